"""Several commands in one round, and commands that run long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synkhronos as synk
from synkhronos._engine.commands.base import Command, Program
from synkhronos._engine.commands.collectives import AllReduce
from synkhronos._engine.shipping import share_variables
from synkhronos._plan.reductions import Reduction
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


@pytest.mark.parametrize("first", ["all_reduce", "update"])
def test_a_variable_changed_twice_is_undone(group2: synk.Group, first: str) -> None:
    """An undo gives back the value before the command, not the one before its last change."""
    w = pytensor.shared(np.ones(3000), name="w")
    f = synk.function([], updates=[(w, w + 1)], mode="FAST_COMPILE")
    synk.all_reduce(w, "avg")
    f()
    number = group2.member.variables.of(w).number
    start = AllReduce((number,), Reduction.AVG) if first == "all_reduce" else f.command()
    for _ in range(2):
        with pytest.raises(ValueError, match="bad value"):
            group2.run(Program((start, f.command(), f.command(), Fault("ValueError", (1,)))))
        for rank in range(2):
            np.testing.assert_array_equal(synk.get_value(rank, w), 2.0)
    group2.run(Program((start, f.command(), f.command())))
    wanted = 4.0 if first == "all_reduce" else 5.0
    np.testing.assert_array_equal(synk.get_value(1, w), wanted)
    np.testing.assert_array_equal(w.get_value(), wanted)


def test_a_value_taken_back_after_a_failure(group2: synk.Group) -> None:
    """What the others have a copy of is not written over while the user holds it."""
    w = pytensor.shared(np.ones(3000), name="w")
    f = synk.function([], updates=[(w, w + 1)], mode="FAST_COMPILE")
    synk.all_reduce(w, "avg")
    for value in (2.0, 3.0):
        f()
        old = w.get_value(borrow=True)
        w.set_value(np.full(3000, 100.0))
        with pytest.raises(ValueError, match="bad value"):
            group2.run(Program((f.command(), Fault("ValueError", (1,)))))
        w.set_value(old, borrow=True)
        for rank in range(2):
            np.testing.assert_array_equal(synk.get_value(rank, w), value)


def test_a_program_run_again_has_its_own_arrays(group2: synk.Group) -> None:
    """What a repeated command brings is not in the master's box, where the next command lies."""
    x, c = pt.dvector("x"), pt.dvector("c")
    mode = "FAST_COMPILE"
    f = synk.function([x], (x.sum() * c.sum(), "sum"), bcast_inputs=[c], mode=mode)
    h = synk.function([], (c.sum(), "sum"), bcast_inputs=[c], mode=mode)
    d, values = synk.data(np.ones(10)), np.arange(500.0)
    f(d, values)
    program = Program((f.command(d, values),))
    wanted = 10 * values.sum()
    assert group2.run(program)[0][0] == wanted
    h(np.full(1000, 7.0))
    assert group2.run(program)[0][0] == wanted


def test_an_interrupt_stops_a_long_command(
    group2: synk.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = group2.start(Walk(), "a walk")
    while min(task.progress()) < 3:
        pass

    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(group2._channel, "collect", interrupted)
        with pytest.raises(KeyboardInterrupt):
            task.wait()
    assert group2.run(Walk_once()) == [1, 1]
    with pytest.raises(synk.GroupError, match="a walk: it has been waited for"):
        task.wait()
    later = group2.start(Fault("ValueError", (), meet=False))
    assert later.progress() == [0]
    later.wait()


@dataclass(frozen=True)
class Say(Command):
    """Return a value from the workers."""

    value: Any

    def run(self, member: Any) -> Any:
        return self.value


def test_outcomes_are_the_callers(group2: synk.Group) -> None:
    """Arrays of an outcome stay as they are; lists arrive as they were sent."""
    for size in (1000, 100_000):
        found = group2.start(Say((np.full(size, 1.0),))).wait()
        group2.run(Say((np.full(size, 2.0),)))
        np.testing.assert_array_equal(found[1][0], np.full(size, 1.0))
    for value in (["text", 1], [1, 2], [1.5]):
        found = group2.start(Say(value)).wait()
        assert found == {1: value}
        assert [type(v) for v in found[1]] == [type(v) for v in value]


@dataclass(frozen=True)
class Assign(Command):
    number: int
    value: float

    def run(self, member: Any) -> tuple[int]:
        member.change(member.variables[self.number], np.full(3, self.value))
        return (1,)


def test_what_a_long_command_changes_stands(group: synk.Group) -> None:
    w = pytensor.shared(np.zeros(3), name="w")
    number, last = share_variables(group, [w])[w].number, group.size - 1
    group.start(Assign(number, 8.0)).wait()
    with pytest.raises(ValueError, match="bad value"):
        group.run(Fault("ValueError", (last,)))
    np.testing.assert_array_equal(synk.get_value(last, w), 8.0)
