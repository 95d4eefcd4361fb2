"""The screen of a run: a few lasting lines, and one line that tells how far it is.

At a terminal the progress line is drawn over and over, at most twice a second. The cursor then
stands at its beginning (`_compiling.terminal.Line`), so that it and `_compiling.progress` erase the
line of each other.
Other texts for ``sys.stdout`` and ``sys.stderr``, and the logs there, erase the line first.
Elsewhere, as in a file or a notebook, the progress is a plain line every ten seconds.

There is no thread, and nothing is drawn between two calls.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TextIO

from synkhronos._compiling.progress import in_notebook
from synkhronos._compiling.terminal import ERASE, Line, can_redraw, cells, cut, is_terminal
from synkhronos._errors import printable

REDRAW = 0.5  # seconds between two drawings; each takes about 50 us
EVERY = 10.0  # seconds between two plain lines
WINDOW = 5.0  # seconds over which rows per second are averaged


class Told(NamedTuple):
    """How far a run is."""

    epoch: int  # the one under way, from 1
    epochs: int
    done: int  # of the epoch, as `total`, in any unit
    total: int
    rows: int  # trained since the run began, in all epochs
    values: Callable[[], Mapping[str, float]] = dict  # to show; called only if the line is drawn

    @property
    def ended(self) -> float:
        """Epochs that are made, with a part of that under way."""
        return self.epoch - 1 + self.done / self.total


class Console:
    """Shows lines and progress on one stream."""

    def __init__(
        self,
        # default: `sys.stderr`; in a notebook `sys.stdout`, as the other has a red background
        stream: TextIO | None = None,
        enabled: bool = True,  # false: nothing is written
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if stream is None:
            stream = sys.stdout if in_notebook() else sys.stderr
        self._line = Line(stream)
        self._clock = clock  # seconds that never go back
        self._live = enabled and can_redraw(stream)
        self._pause = REDRAW if self._live else EVERY
        self._next = -math.inf  # when progress is shown again; infinite: never
        self._latest: Told | None = None  # progress that has not been shown
        self._is_old = False  # a lasting line has come after the progress
        self._pace = _Pace()
        self._above: list[_Above] = []
        if not enabled or stream is None:
            self._off()
        elif self._live:
            self._go_above()

    def banner(self, lines: Sequence[str]) -> None:
        """Show some lasting lines, at the beginning of a run."""
        self.line("\n".join(lines))

    def line(self, text: str) -> None:
        """Show a lasting line; the progress line moves below it."""
        if self._next == math.inf:
            return
        before = self._line.shown
        self._line.erase()
        self._latest, self._is_old = None, True
        self._write(printable(text, kept="\n") + "\n")
        if before:
            self._draw(before)

    def progress(self, told: Told) -> None:
        """Tell how far the run is; called after each step, and cheap where nothing is drawn."""
        now = self._clock()
        if now < self._next:
            self._latest = told
            return
        first, self._next = self._next == -math.inf, now + self._pause
        if first and not self._live:
            self._latest = told
            self._pace.after(now, told)
            return
        self._show(now, told)

    def close(self) -> None:
        """Leave the latest progress on the screen unless a lasting line has come after it."""
        if self._next == math.inf:
            return
        if self._latest is not None:
            self._show(self._clock(), self._latest)
        text = "" if self._is_old else self._line.shown
        self._line.erase()
        if text:
            self._write(f"{text}\n")
        self._off()

    def _show(self, now: float, told: Told) -> None:
        self._latest, self._is_old = None, False
        rate, remaining = self._pace.after(now, told)
        texts = Texts(
            f"epoch {told.epoch}/{told.epochs}",
            f"{100 * told.done / told.total:.0f} %",
            f"{_short(rate)} rows/s" if rate else "",
            [f"{printable(name)} {_number(value)}" for name, value in told.values().items()],
            f"eta {_duration(remaining)}" if remaining else "",
        )
        if self._live:
            self._draw(texts.within(self._line.width))
        else:
            self._write(f"{texts}\n")

    def _draw(self, text: str) -> None:
        self._line.erase()
        for stream in self._above:
            stream.end_line()
        self._line.draw(text)
        self._look()

    def _write(self, text: str) -> None:
        self._line.write(text)
        self._look()

    def _look(self) -> None:
        """Stop where nobody reads any more; the run goes on."""
        if not self._line.read:
            self._off()

    def _off(self) -> None:
        self._next, self._latest, self._line.shown = math.inf, None, ""
        for stream in self._above:
            stream.leave()
        self._above = []

    def _go_above(self) -> None:
        """Let what is printed at this terminal erase the progress line first."""
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if is_terminal(stream):
                self._above.append(_Above(name, stream, self._line.erase))
        _live.add(self)


class _Above:
    """In place of ``sys.stdout`` or ``sys.stderr``: its texts stand above the progress line."""

    def __init__(self, name: str, stream: TextIO, erase: Callable[[], None]) -> None:
        self._name, self._stream, self._erase_line = name, stream, erase
        self._ended = True  # the cursor is where a line begins
        setattr(sys, name, self)
        self._handlers = [h for h in _log_handlers() if h.stream is stream]
        for handler in self._handlers:
            handler.setStream(self)

    def write(self, text: str) -> int:
        """Write a text after the progress line has been erased."""
        if text:
            self._erase_line()
            self._ended = text.endswith(("\n", "\r", ERASE))
        return self._stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write some texts."""
        for line in lines:
            self.write(line)

    def end_line(self) -> None:
        """End a line that has no end, so that the progress line does not replace it."""
        if not self._ended:
            self.write("\n")
            self._stream.flush()

    def leave(self) -> None:
        """Put the stream back, unless another one has come in its place."""
        if getattr(sys, self._name) is self:
            setattr(sys, self._name, self._stream)
        for handler in self._handlers:
            if handler.stream is self:
                handler.setStream(self._stream)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def _log_handlers() -> list[Any]:
    """The handlers that write to a stream, of the program and of this package."""
    loggers = logging.getLogger(), logging.getLogger("synkhronos")
    return [h for each in loggers for h in each.handlers if isinstance(h, logging.StreamHandler)]


# Consoles that draw. In a fork, such as a member of a group, they end without a trace.
_live: weakref.WeakSet[Console] = weakref.WeakSet()


def _leave_all() -> None:
    for console in list(_live):
        console._off()


os.register_at_fork(after_in_child=_leave_all)


class _Pace:
    """How fast it goes: rows by the last seconds, epochs by all the time since the first look."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque()  # seconds, rows
        self._first: tuple[float, float] | None = None  # seconds, epochs

    def after(self, now: float, told: Told) -> tuple[float | None, float | None]:
        """Rows per second, and the seconds that the epochs left will take; None: not known yet."""
        looks, rows, epochs = self._looks, told.rows, told.ended
        if looks and rows < looks[-1][1]:  # counted anew
            looks.clear()
        looks.append((now, rows))
        while len(looks) > 2 and looks[1][0] <= now - WINDOW:
            looks.popleft()
        since, before = looks[0]
        rate = (rows - before) / (now - since) if now > since else None
        if self._first is None or epochs < self._first[1]:
            self._first = now, epochs
        began, at = self._first
        if epochs <= at or now <= began:
            return rate, None
        return rate, (told.epochs - epochs) * (now - began) / (epochs - at)


@dataclass(frozen=True)
class Texts:
    """The parts of the progress line."""

    epoch: str
    part: str
    rate: str
    values: Sequence[str]
    eta: str

    def __str__(self) -> str:
        return "  ".join(filter(None, [self.epoch, self.part, self.rate, *self.values, self.eta]))

    def within(self, width: int) -> str:
        """The text without the last values, which have no room."""
        kept = self
        while cells(text := str(kept)) > width and kept.values:
            kept = replace(kept, values=kept.values[:-1])
        return cut(text, width)


def _number(value: float) -> str:
    """Three digits; thousands in full."""
    value = float(value)
    return f"{value:.3g}" if not 999.5 <= abs(value) < 1e6 else f"{value:,.0f}"


def _short(rate: float) -> str:
    """Three digits, with k or M."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if rate >= 0.9995 * size:
            return f"{_number(rate / size)}{unit}"
    return _number(rate)


def _duration(seconds: float) -> str:
    """Minutes and seconds; with hours or days where there are any."""
    minutes, left = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours}:{minutes:02}:{left:02}"
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"
