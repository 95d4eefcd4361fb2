"""A line that tells how many draws are done."""

from __future__ import annotations

import sys
import time

from synkhronos._compiling.progress import EVERY, REDRAW, SOON, tell
from synkhronos._compiling.terminal import Line, can_redraw, cut


class Bar:
    """Tells how far a computation is; a context manager, after which the line is gone.

    At a terminal one line is drawn again and again. Elsewhere the log gets a line every ten
    seconds. Nothing is told in the first two seconds.
    """

    def __init__(self, text: str, total: int, enabled: bool = True) -> None:
        self._text, self._total, self._enabled = text, total, enabled
        self._live = can_redraw(sys.stderr)
        self._line = Line(sys.stderr, dim=True)
        self._began = time.monotonic()
        self._next = self._began + (SOON if self._live else EVERY)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *exc: object) -> None:
        self._line.erase()

    def show(self, done: int) -> None:
        """Tell how many are done, if it is time to."""
        now = time.monotonic()
        if not self._enabled or now < self._next:
            return
        self._next = now + (REDRAW if self._live else EVERY)
        text = self._said(done, now - self._began)
        if self._live:
            self._line.draw(cut(text, self._line.width))
        else:
            tell(text)

    def _said(self, done: int, seconds: float) -> str:
        left = f", {seconds * (self._total - done) / done:,.0f} s left" if done else ""
        return f"{self._text}: {done:,} of {self._total:,}, {seconds:,.0f} s{left}"
