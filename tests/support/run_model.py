"""A model of runs in one folder: which checkpoints there are, and how far callbacks have come."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import NamedTuple

STEPS = 2  # of an epoch


def value_at(step: int) -> int:
    """The value of the validation after a step: up and down, and no two are equal."""
    return 7919 * step % 10007


class Broken(Exception):
    """Of a callback."""


class Fault(NamedTuple):
    """A callback raises, or stops the run, at the event of a kind with this number in the call."""

    how: str
    kind: str
    number: int


@dataclass
class MemberState:
    """The steps that a `Best` keeps, the best one first; they outlive the run."""

    sign: int
    most: int = 1
    steps: list[int] = field(default_factory=list)

    def see(self, step: int) -> None:
        def rank(each: int) -> int:
            return self.sign * value_at(each)

        if len(self.steps) >= self.most and rank(step) <= rank(self.steps[self.most - 1]):
            return
        found = sorted({*self.steps, step}, key=rank, reverse=True)
        self.steps = found[: self.most]


@dataclass
class Stopping:
    """How long an `EarlyStopping` has waited, in the run at hand."""

    best: int = -1
    waited: int = 0


@dataclass
class Place:
    """What a checkpoint has."""

    step: int = 0
    epoch: int = 0
    ends: list[int] = field(default_factory=list)  # of epochs, by their steps
    stopping: Stopping | None = None


class Model:
    """What a run should do."""

    def __init__(self) -> None:
        self.kept = {"up": MemberState(+1), "down": MemberState(-1)}
        self.saved: dict[int, Place] = {}  # the latest one is the last
        self.place = Place()

    def start(
        self, at: int | None, bests: dict[str, int], patience: int, fails_first: bool
    ) -> None:
        """Begin, or go on at a step, as a new process does; None: at the latest one."""
        latest = next(reversed(self.saved), None) if at is None else at
        self.place = Place() if latest is None else deepcopy(self.saved[latest])
        self.bests, self.patience, self.fails_first = bests, patience, fails_first
        for name, most in bests.items():
            self.kept[name].most = most
        if not patience:
            self.place.stopping = None
        elif self.place.stopping is None:
            self.place.stopping = Stopping()
        self.untold: deque[Callable[[], None]] = deque()
        self.is_saved = True

    def go(self, epochs: int, fault: Fault | None) -> None:
        """Train; `Broken` is what the callback raises."""
        self.fault, self.count, place = fault, dict[str, int](), self.place
        self.ends = self.has_stopped()
        self.tell_rest()
        if not self.is_saved:
            self.save()
        while place.epoch < epochs and not self.ends:
            while place.step < STEPS * (place.epoch + 1):
                place.step += 1
                self.tell("step")
                if self.ends and place.step < STEPS * (place.epoch + 1):
                    return self.save()
            place.ends.append(place.step)
            self.is_saved = False
            try:
                self.post("validated")
                self.tell("epoch")
            finally:
                place.epoch += 1
            self.save()
        return None

    def has_stopped(self) -> bool:
        stopping = self.place.stopping
        return stopping is not None and stopping.waited >= self.patience

    def save(self) -> None:
        self.saved.pop(self.place.step, None)
        self.saved[self.place.step] = deepcopy(self.place)
        self.is_saved = True
        self.tell("saved")

    def tell(self, kind: str) -> None:
        self.post(kind)
        self.tell_rest()

    def post(self, kind: str) -> None:
        told = [lambda: self.fail(kind)]
        if kind == "validated":
            step = self.place.step
            told.insert(self.fails_first, lambda: self.see(step))
        self.untold += told

    def tell_rest(self) -> None:
        while self.untold:
            self.untold.popleft()()

    def fail(self, kind: str) -> None:
        number = self.count[kind] = self.count.get(kind, 0) + 1
        if self.fault and self.fault[1:] == (kind, number):
            if self.fault.how == "raise":
                raise Broken
            self.ends = True

    def see(self, step: int) -> None:
        for name in self.bests:
            self.kept[name].see(step)
        stopping, value = self.place.stopping, value_at(step)
        if stopping is not None:
            better = value > stopping.best
            stopping.waited = 0 if better else stopping.waited + 1
            stopping.best = max(stopping.best, value)
            self.ends = self.ends or self.has_stopped()
