"""The seconds of steps, and where the time of an epoch went in each member."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from synkhronos.extensions._step.training_function import TrainingFunction
from synkhronos.training._run.feeds import Feed
from synkhronos.training._run.position import Position

type Seconds = Mapping[str, Sequence[float]]  # by phase, then by rank


class PhaseTimes:
    """Reads the clocks of a training function, epoch after epoch, without setting them back."""

    def __init__(self, train: TrainingFunction, feed: Feed, position: Position) -> None:
        self._train = train
        self._feed = feed
        self._position = position  # its seconds are those of the epoch
        # seconds of the epoch's step that compiles, which no member's clock counts
        self.compiling = 0.0
        self._measured = position.seconds  # of an epoch that is resumed: by an earlier process
        self._before = train.seconds()
        self._waited = feed.waited

    def epoch(self) -> dict[str, object]:
        """The time in the line of an epoch; nothing if members have no clocks.

        ``phases``: seconds of each member by phase, which together are the seconds of the epoch.
        One of them is ``compile``, in an epoch with a step that compiles.
        ``reading``: seconds of them in which all members waited for the rows of a source.
        """
        now, waited = self._train.seconds(), self._feed.waited
        compiling, self.compiling = self.compiling, 0.0
        seconds = self._position.seconds - self._measured - compiling
        phases = phases_of(self._before, now, seconds)
        reading = waited - self._waited
        self._before, self._waited, self._measured = now, waited, 0.0
        if not phases:
            return {}
        if compiling:
            phases["compile"] = [round(compiling, 6)] * len(phases["between"])
        return {"phases": phases, "reading": round(reading, 6)}


def phases_of(before: Seconds, now: Seconds, seconds: float) -> dict[str, list[float]]:
    """The seconds of each phase between two looks, by rank; empty if none were counted.

    A member that has worked less than the busiest one has waited for it. The rest of the time is
    "between": that of the script, and of the call before the members' work.
    """
    since = {name: _since(before.get(name, ()), times) for name, times in now.items()}
    work = [sum(times) for times in zip(*since.values(), strict=True)]
    longest = max(work, default=0.0)
    if longest <= 0:
        return {}
    since["wait"] = [t + longest - w for t, w in zip(since["wait"], work, strict=True)]
    since["between"] = [max(0.0, seconds - longest)] * len(work)
    return {name: [round(t, 6) for t in times] for name, times in since.items()}


def _since(before: Sequence[float], now: Sequence[float]) -> list[float]:
    """The addition; all of it if the clocks are new, as after a restart of workers."""
    if len(before) != len(now) or any(b > n for b, n in zip(before, now, strict=True)):
        return list(now)
    return [n - b for b, n in zip(before, now, strict=True)]


class StepClock:
    """Says how long each step took.

    A step takes the time since the one before, with the script's work between the two. Validation
    and checkpoints are aside: their seconds are no step's.
    """

    def __init__(self, set_aside: Callable[[float], None]) -> None:
        # when the latest step ended, in seconds of `time.monotonic`, later by what was aside since
        self.latest = 0.0
        self._set_aside = set_aside  # is told of the seconds that are no step's
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
