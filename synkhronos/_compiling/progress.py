"""Tells the user what takes long before a call computes: compiling, and proofs.

At a terminal one line on stderr says what is done, after two seconds. Elsewhere the logger
"synkhronos" gets a line after five seconds, and then every ten, at INFO. Where the user has set up
no logging, the line goes to stderr, as Python does with warnings.

A thread writes this, since PyTensor and LLVM do not return meanwhile. It exists only while
something is told. It ends before the workers are started again: with a thread alive, they could
not be forked.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Protocol

from synkhronos._compiling.compile_cache import operations_of
from synkhronos._compiling.terminal import Line, can_redraw, cut, is_terminal
from synkhronos._errors import printable
from synkhronos._warnings import log

SOON = 2.0  # seconds until a person who waits is told
FIRST = 5.0  # seconds until the first line of a log; imports before it may take as long
REDRAW = 0.5  # seconds; drawing takes about 2 ms
EVERY = 9.5  # seconds between two lines of a log, so that no silence lasts 10 s
_LEAVE = 5.0  # seconds to wait for the thread, which may be writing to a terminal that stands


_current: ContextVar[_Told | None] = ContextVar("_current", default=None)
_in_a_table: ContextVar[bool] = ContextVar("_in_a_table", default=False)
_spent = [0.0]  # seconds
_silent: ContextVar[bool] = ContextVar("_silent", default=False)


@contextlib.contextmanager
def silent(asked: bool = True) -> Iterator[None]:
    """A context without lines, nor warnings of the logger, if that is asked; errors remain."""
    token = _silent.set(asked or _silent.get())
    try:
        yield
    finally:
        _silent.reset(token)


def _is_heard(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR or not _silent.get()


log.addFilter(_is_heard)


@contextlib.contextmanager
def telling(text: str, compiling: Callable[[], Sequence[int]] = tuple) -> Iterator[None]:
    """A context whose work the user is told of while it lasts: "compiling f", "proving f".

    Inside another such context it only changes the text.

    Parameters
    ----------
    text : str
    compiling : callable, optional
        Returns the ranks of the workers that compile now.
    """
    outer = _current.get()
    if outer is not None:
        before = outer.text, outer.operations, outer.compiling
        outer.text, outer.operations, outer.compiling = text, [], compiling
        try:
            yield
        finally:
            outer.text, outer.operations, outer.compiling = before
        return
    told = _Told(text, compiling)
    token = _current.set(told)
    try:
        if not _silent.get() and (not _in_a_table.get() or can_redraw(sys.stderr)):
            told.start()
        yield
        told.done = True
    finally:
        told.end()
        _current.reset(token)
        _spent[0] += time.monotonic() - told.began


def spent() -> float:
    """Seconds that this process has spent so far on what `telling` tells of."""
    return _spent[0]


@contextlib.contextmanager
def in_a_table() -> Iterator[None]:
    """A context in which the log gets no lines, which would come between those of a table."""
    token = _in_a_table.set(True)
    try:
        yield
    finally:
        _in_a_table.reset(token)


def tell(text: str) -> None:
    """Write a line to the log; to stderr if no logging is set up, and somebody reads it."""
    if _silent.get():
        return
    text = printable(text)
    if log.hasHandlers():
        log.info("%s", text)
    elif sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # it fails no call
            sys.stderr.write(f"synkhronos: {text}\n")
            sys.stderr.flush()


def watch(function: object) -> None:
    """Count from now on the operations of a function of PyTensor that is being compiled."""
    told, operations = _current.get(), operations_of(function)
    if told is not None and operations is not None:
        told.operations.append(operations)


def stop_telling() -> None:
    """End the thread: this process is about to be forked."""
    told = _current.get()
    if told is not None:
        told.end()


class _Told:
    """The text of the thread."""

    def __init__(self, text: str, compiling: Callable[[], Sequence[int]]) -> None:
        self.text = text
        self.compiling = compiling
        self.operations: list[Callable[[], tuple[int, int]]] = []  # of each function
        self.done = False
        self.began = time.monotonic()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __str__(self) -> str:
        said = []
        if counts := [operations() for operations in self.operations]:
            said.append("{} of {} operations".format(*map(sum, zip(*counts, strict=True))))
        if ranks := self.compiling():
            said.append(f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))} compiling")
        return f"{self.text}: {', '.join([*said, self.seconds])}"

    @property
    def seconds(self) -> str:
        """How long it has lasted."""
        return f"{time.monotonic() - self.began:,.0f} s"

    def start(self) -> None:
        """Start the thread, which does not keep this object: it also ends if this is dropped."""
        arguments = weakref.ref(self), self._over
        thread = threading.Thread(target=_tell, args=arguments, name="synkhronos", daemon=True)
        with contextlib.suppress(RuntimeError):  # no more threads: nothing is told
            thread.start()
            self._thread = thread

    def end(self) -> None:
        """End the thread, and take its line away."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(_LEAVE)


def _tell(of: weakref.ref[_Told], over: threading.Event) -> None:
    person = is_terminal(sys.stderr) or in_notebook()
    pause, line = SOON if person else FIRST, None
    with contextlib.suppress(OSError, ValueError):  # nobody reads stderr any more
        while not over.wait(pause):
            told = of()
            if told is None:
                return
            line = line or _line()
            line.show(str(told))
            pause = line.pause
            del told
        if line is not None:
            told = of()
            line.end(f"{told.text}: done after {told.seconds}" if told and told.done else "")


def in_notebook() -> bool:
    """Whether a kernel of Jupyter runs this process, which is more than to have ipykernel."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return shell is not None and hasattr(shell(), "kernel")


class _Line(Protocol):
    """Where the text goes."""

    pause: float  # seconds between two texts

    def show(self, text: str) -> None: ...

    def end(self, text: str) -> None: ...


def _line() -> _Line:
    return _LiveLine() if can_redraw(sys.stderr) else _LogLines()


class _LiveLine:
    """One line of the terminal, drawn again and again, and taken away at the end."""

    pause = REDRAW

    def __init__(self) -> None:
        self._line = Line(sys.stderr, dim=True)

    def show(self, text: str) -> None:
        """Draw over the previous text."""
        self._line.draw(cut(printable(text), self._line.width))

    def end(self, text: str) -> None:
        """Take the line away, whatever the last text is."""
        del text
        self._line.erase()


class _LogLines:
    """Lines of the log; of stderr if no logging is set up."""

    pause = EVERY

    def show(self, text: str) -> None:
        """Write a line."""
        tell(text)

    def end(self, text: str) -> None:
        """Say that it is done."""
        if text:
            self.show(text)
