"""Enters a call at each line that the package executes for it, as a handler or finalizer may."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import synkhronos as synk

MOST = 500  # entries in one run: what is begun anew after an entry must end at some time
PACKAGE = str(Path(synk.__file__).parent)


def enter_at_each_line(
    outer: Callable[[], object],
    inner: Callable[[], object],
    runs: int = 16,
    only: Iterable[int] | None = None,
) -> Counter[str]:
    """Make the call `outer` repeatedly, with `inner` before some of the lines that it executes.

    Run k enters at lines k, k + runs, k + 2 runs, ..., so all runs together enter at each line.
    With `only`, just these are made. Both calls check their own results. Returns how often `inner`
    was made, and how often refused.
    """
    told: Counter[str] = Counter()
    for first in range(runs) if only is None else only:
        entries = _Entries(inner, first, runs, told)
        before = sys.gettrace()
        sys.settrace(entries.trace)
        try:
            outer()
        finally:
            sys.settrace(before)
        if entries.failed:
            raise entries.failed[0]
    return told


class _Entries:
    """The entries of one run."""

    def __init__(
        self, inner: Callable[[], object], first: int, runs: int, told: Counter[str]
    ) -> None:
        self._inner = inner
        self._first, self._runs = first, runs
        self._told = told
        self._lines = self._made = 0
        self.failed: list[Exception] = []

    def trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        """The tracer of the run."""
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            self._lines += 1
            if self._lines % self._runs == self._first and self._made < MOST:
                self._made += 1
                self._enter()
        return self.trace

    def _enter(self) -> None:
        try:
            self._inner()
            self._told["made"] += 1
        except synk.GroupError:
            self._told["refused"] += 1
        except Exception as exc:  # raised in a tracer, it would also end the tracing
            self.failed.append(exc)
