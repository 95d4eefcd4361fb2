"""Enters a call at each line that the package executes for it, as a handler or finalizer may."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import synkhronos as synk

MOST = 500  # entries in one run: what is begun anew after an entry must end at some time
PACKAGE = str(Path(synk.__file__).parent)


def enter_at_each_line(
    outer: Callable[[], object], inner: Callable[[], object], runs: int = 16
) -> Counter[str]:
    """Make the call `outer` repeatedly, with `inner` before some of the lines that it executes.

    Run k enters at lines k, k + runs, k + 2 runs, ..., so all runs together enter at each line.
    Both calls check their own results. Returns how often `inner` was made, and how often refused.
    """
    told: Counter[str] = Counter()
    for first in range(runs):
        lines = entries = 0
        failed: list[Exception] = []

        def trace(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal entries, lines
            if not frame.f_code.co_filename.startswith(PACKAGE):
                return None
            if event == "line":
                lines += 1
                if lines % runs == first and entries < MOST:
                    entries += 1
                    _enter(inner, told, failed)
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            outer()
        finally:
            sys.settrace(before)
        if failed:
            raise failed[0]
    return told


def _enter(inner: Callable[[], object], told: Counter[str], failed: list[Exception]) -> None:
    try:
        inner()
        told["made"] += 1
    except synk.GroupError:
        told["refused"] += 1
    except Exception as exc:  # raised in a tracer, it would also end the tracing
        failed.append(exc)
