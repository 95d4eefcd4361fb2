"""Counts the seconds of steps, without what a run does between them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator


class StepClock:
    """Says how long each step took.

    A step takes the time since the one before, with the script's work between the two. Validation
    and checkpoints are aside: their seconds are no step's.

    Parameters
    ----------
    set_aside : callable
        Is told of the seconds that are no step's.
    """

    def __init__(self, set_aside: Callable[[float], None]) -> None:
        # when the latest step ended, in seconds of `time.monotonic`, later by what was aside since
        self.latest = 0.0
        self._set_aside = set_aside
        self._left: float | None = None

    def start(self) -> None:
        """Begin to count the next step; the time since `leave` is aside."""
        self.latest = time.monotonic()
        if self._left is not None:
            self._set_aside(self.latest - self._left)

    def step(self) -> float:
        """The seconds of the step that has just ended."""
        now = time.monotonic()
        seconds, self.latest = now - self.latest, now
        return seconds

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """A context between two steps that is no part of either."""
        began = time.monotonic()
        yield
        seconds = time.monotonic() - began
        self.latest += seconds
        self._set_aside(seconds)

    def leave(self) -> None:
        """End to count, until the next `start`."""
        self._left = time.monotonic()
