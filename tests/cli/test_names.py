"""Names that others have chosen cannot steer a terminal: no escapes, and no markup of rich."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

import synkhronos as synk
from synkhronos._api.tables import Table
from synkhronos._compiling.progress import _LogLines
from synkhronos._errors import UnusedWarning
from synkhronos._warnings import warn
from synkhronos.cli._command_line import main
from synkhronos.training import sources
from synkhronos.training._record.console import Console

# clear the screen, set the title, end the line, write from right to left, bytes that are not UTF-8
HOSTILE = "a\x1b[2J\x1b]0;title\x07\r\u202e\udcff[red]b"
SHOWN = r"a\x1b[2J\x1b]0;title\x07\r\u202e\udcff[red]b"


def check(text: str) -> None:
    assert SHOWN in text, repr(text)
    assert not set("\x1b\x07\r\u202e") & set(text), repr(text)


@pytest.mark.parametrize(
    "verb",
    [
        *(["report"], ["export", "--to", "csv"], ["train"], ["trace"]),
        *(["new", "train", "--to"], ["top"]),
    ],
)
def test_verbs_show_names_by_their_escapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: list[str]
) -> None:
    main([*verb, str(tmp_path / HOSTILE)])
    check("".join(capsys.readouterr()))


def test_errors_and_warnings(tmp_path: Path) -> None:
    with pytest.raises(synk.SynkhronosError) as caught:
        sources.npy(tmp_path / HOSTILE)
    check(str(caught.value))
    with pytest.warns(UnusedWarning) as warned:
        warn(f"the file {HOSTILE}", UnusedWarning)
    check(str(warned[0].message))


def test_what_a_run_and_progress_show(caplog: pytest.LogCaptureFixture) -> None:
    stream = io.StringIO()
    shown = Console(stream)
    shown.line(f"reading {HOSTILE}\nand more")
    check(stream.getvalue())
    assert stream.getvalue().count("\n") == 2
    with caplog.at_level("INFO", "synkhronos"):
        _LogLines().show(f"compiling {HOSTILE}")
    check(caplog.messages[-1])


def test_tables_at_a_terminal_and_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rich")
    table = Table(HOSTILE, [HOSTILE, "n"], [[HOSTILE, "1"]], HOSTILE)
    check(str(table))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    table.show()
    out = capsys.readouterr().out
    check(out)
    assert out.count(SHOWN) == 4
