"""A line that is drawn over and over: what reaches the terminal, and streams that fail."""

from __future__ import annotations

import io
import os
import pty

import pytest

from synkhronos._compiling.terminal import ERASE, Line, can_redraw, cut, is_terminal


class Failing(io.StringIO):
    """A stream whose reader has ended."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_line_replaces_the_one_before() -> None:
    stream = io.StringIO()
    line = Line(stream)
    line.erase()  # there is nothing yet
    line.draw("one")
    line.draw("two")
    assert line.shown == "two"
    line.erase()
    line.erase()
    assert stream.getvalue() == f"one\r{ERASE}two\r{ERASE}"


def test_a_dim_line_leaves_the_terminal_as_it_was() -> None:
    stream = io.StringIO()
    Line(stream, dim=True).draw("one")
    assert stream.getvalue() == "\x1b[2mone\x1b[0m\r"


@pytest.mark.parametrize("stream", [Failing(), None])
def test_where_nobody_reads(stream: io.StringIO | None) -> None:
    line = Line(stream)
    line.draw("one")
    assert not line.read
    assert not is_terminal(stream)


def test_characters_that_the_stream_does_not_have() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    Line(stream).write("\u03b2\n")
    assert raw.getvalue() == b"\\u03b2\n"


def test_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb"), os.fdopen(theirs, "w") as stream:
        assert is_terminal(stream)
        monkeypatch.setenv("TERM", "xterm")
        assert can_redraw(stream)
        monkeypatch.setenv("TERM", "dumb")
        assert not can_redraw(stream)
        assert Line(stream).width == 79  # a new one has no size
    stream.close()
    assert not is_terminal(stream)


def test_a_text_that_is_too_wide() -> None:
    assert cut("abc", 3) == "abc"
    assert cut("\u65e5\u672c\u8a9e", 5) == "\u65e5\u672c"
    assert cut("abc", 0) == ""
