"""Several commands in one round, and commands that run long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synkhronos as synk
from synkhronos._commands import AllReduce, Command, Program
from synkhronos._reductions import Reduction
from synkhronos._shipping import share_variables
from synkhronos.testing.faults import Fault


@dataclass
class Step:
    """A training step of a linear model: gradient, all_reduce, update."""

    group: synk.Group

    def __post_init__(self) -> None:
        x, y = pt.dmatrix("x"), pt.dvector("y")
        self.w = pytensor.shared(np.arange(3.0), name="w")
        self.g = pytensor.shared(np.zeros(3), name="g")
        loss = ((x @ self.w - y) ** 2).mean()
        grad = pt.grad(loss, self.w)
        mode = "FAST_COMPILE"
        self.gradient = synk.function([x, y], loss, updates=[(self.g, grad)], mode=mode)
        self.update = synk.function([], updates=[(self.w, self.w - 0.1 * self.g)], mode=mode)
        self.serial = pytensor.function([x, y], [loss, grad], mode=mode)

    def program(self, x: np.ndarray, y: np.ndarray, *more: Command) -> Program:
        weights = tuple(float(len(p)) for p in np.array_split(x, self.group.size))
        first = self.gradient.command(x, y)
        last = self.update.command()
        g = share_variables(self.group, [self.g])[self.g]
        return Program((first, AllReduce((g.number,), Reduction.AVG, weights), last, *more))


def test_a_step_in_one_round(group: synk.Group, rng: np.random.Generator) -> None:
    """Gradient, all_reduce and update as one program equal the serial step."""
    step = Step(group)
    for rows in (10, 7, 12):
        x, y = rng.normal(size=(rows, 3)), rng.normal(size=rows)
        loss, grad = step.serial(x, y)
        wanted = step.w.get_value() - 0.1 * grad
        found = group.run(step.program(x, y))
        np.testing.assert_allclose(found[0][0], loss)
        np.testing.assert_allclose(step.w.get_value(), wanted)
        for rank in range(group.size):
            np.testing.assert_array_equal(synk.get_value(rank, step.w), step.w.get_value())
            np.testing.assert_allclose(synk.get_value(rank, step.g), grad)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_program_stands_whole_or_not_at_all(
    group2: synk.Group, rng: np.random.Generator, rank: int
) -> None:
    """A failure in its last command undoes the first, the reduction in place included."""
    step = Step(group2)
    x, y = rng.normal(size=(9, 3)), rng.normal(size=9)
    group2.run(step.program(x, y))
    before = [(synk.get_value(r, step.w), synk.get_value(r, step.g)) for r in range(2)]
    bare = AllReduce((share_variables(group2, [step.w])[step.w].number,), Reduction.SUM)
    with pytest.raises(ValueError, match="bad value"):
        group2.run(step.program(x, y, bare, Fault("ValueError", (rank,))))
    for r, (w, g) in enumerate(before):
        np.testing.assert_array_equal(synk.get_value(r, step.w), w)
        np.testing.assert_array_equal(synk.get_value(r, step.g), g)
    group2.run(step.program(x, y))


@dataclass(frozen=True)
class Walk(Command):
    """Count steps until told to stop."""

    def run(self, member: Any) -> tuple[int]:
        steps = 0
        while not member.stopping:
            steps += 1
            member.progress(steps)
        return (steps,)


def test_a_long_command_reports_and_stops() -> None:
    with synk.Group(3) as group:
        task = group.start(Walk(), "a walk")
        while min(task.progress()) < 100:
            pass
        task.stop()
        found = task.wait()
        assert set(found) == {1, 2}
        assert all(steps >= 100 for (steps,) in found.values())
        x = pt.dvector("x")
        assert synk.function([x], x.mean(), mode="FAST_COMPILE")(np.arange(3.0)) == 1


def test_a_long_command_that_raises(group2: synk.Group) -> None:
    task = group2.start(Fault("ValueError", (1,), meet=False), "a walk")
    with pytest.raises(synk.WorkerError, match="a walk"):
        task.wait()
    assert group2.run(Walk_once()) == [1, 1]


@dataclass(frozen=True)
class Walk_once(Command):
    def run(self, member: Any) -> int:
        return 1

    def answer(self, member: Any, own: Any, reports: dict[int, Any]) -> list[int]:
        return [own, *reports.values()]


def test_a_value_left_half_written_raises_until_it_is_set() -> None:
    """StateTorn: a worker that dies inside a reduction in place."""
    shared = pytensor.shared(np.ones(100_000), name="shared")
    with synk.Group(2) as group:
        synk.all_reduce(shared, "sum")
        entry = group.member.variables.of(shared)
        # as the master finds itself when the other dies between the two barriers
        group.member.in_place = (entry,)
        with pytest.raises(synk.WorkerDied):
            group.run(Fault("SIGKILL", (1,)))
    with synk.Group(2):
        with pytest.raises(synk.StateTorn, match="shared"):
            synk.all_reduce(shared, "sum")
        shared.set_value(np.ones(100_000))
        synk.all_reduce(shared, "sum")
        assert (shared.get_value() == 2).all()
