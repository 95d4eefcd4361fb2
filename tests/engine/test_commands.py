"""Commands that fail are undone, repeated ones keep their arrays, and some run long."""

from __future__ import annotations

import contextlib
import importlib
import mmap
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from failing_ops import Fussy

import synkhronos as synk
from synkhronos._engine.commands.base import Command
from synkhronos._engine.shipping import share_variables
from synkhronos._engine.variables import Registry, mark_torn
from synkhronos._proofs.reductions import Reduction
from synkhronos._transport.communicators import shared_memory
from synkhronos.testing.faults import Fault

pytestmark = pytest.mark.usefixtures("lasting_groups")


class Step:
    """A training step of a linear model: gradient, all_reduce, update; negative targets raise."""

    def __init__(self) -> None:
        x, y = pt.dmatrix("x"), pt.dvector("y")
        self.w = pytensor.shared(np.arange(3.0), name="w")
        self.g = pytensor.shared(np.zeros(3), name="g")
        loss = ((x @ self.w - y) ** 2).mean()
        grad = pt.grad(loss, self.w)
        outputs, updates = [loss, (Fussy()(y).sum(), "sum")], [(self.g, grad)]
        mode = "FAST_COMPILE"
        self.gradient = synk.function([x, y], outputs, updates=updates, mode=mode)
        self.update = synk.function([], updates=[(self.w, self.w - 0.1 * self.g)], mode=mode)
        self.serial = pytensor.function([x, y], [loss, grad], mode=mode)

    def __call__(self, x: np.ndarray, y: np.ndarray, size: int) -> np.ndarray:
        loss: np.ndarray = self.gradient(x, y)[0]
        synk.all_reduce(self.g, "avg", weights=[len(p) for p in np.array_split(x, size)])
        self.update()
        return loss


def test_a_step_by_hand(group: synk.Group, rng: np.random.Generator) -> None:
    """Gradient, all_reduce and update, one after the other, equal the serial step."""
    step = Step()
    for rows in (10, 7, 12):
        x, y = rng.normal(size=(rows, 3)), rng.random(rows)
        loss, grad = step.serial(x, y)
        wanted = step.w.get_value() - 0.1 * grad
        np.testing.assert_allclose(step(x, y, group.size), loss)
        np.testing.assert_allclose(step.w.get_value(), wanted)
        for rank in range(group.size):
            np.testing.assert_array_equal(synk.get_value(rank, step.w), step.w.get_value())
            np.testing.assert_allclose(synk.get_value(rank, step.g), grad)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_call_that_fails_in_one_member_changes_nothing(
    group2: synk.Group, rng: np.random.Generator, rank: int
) -> None:
    """Not in the other member either, which has finished; the variable lives in the arena."""
    step = Step()
    x, y = rng.normal(size=(9, 3)), rng.random(9)
    step(x, y, 2)
    before = [(synk.get_value(r, step.w), synk.get_value(r, step.g)) for r in range(2)]
    bad = y.copy()
    bad[-rank] = -1.0  # in the first member's part, or in the last one's
    for _ in range(2):
        with pytest.raises(ValueError, match="a negative number"):
            step(x, bad, 2)
        for r, (w, g) in enumerate(before):
            np.testing.assert_array_equal(synk.get_value(r, step.w), w)
            np.testing.assert_array_equal(synk.get_value(r, step.g), g)
    step(x, y, 2)


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


@dataclass(frozen=True)
class Meet(Command):
    """Meet others by a verb of the communicator."""

    verb: str
    members: tuple[int, ...] | None = None

    def run(self, member: Any) -> Any:
        values = [np.full(5, float(member.rank))]
        comm, members = member.communicator, self.members
        if self.verb == "take values":
            member.receive_master_values([member.variables[0]])
        elif self.verb == "barrier":
            comm.barrier(members)
        elif self.verb == "enter":
            comm.enter()
        elif self.verb == "expose":
            comm.expose([comm.empty((3,), np.dtype("float64"))])
        elif self.verb == "broadcast":
            return tuple(comm.broadcast(values, member.size - 1, members) or ())
        elif self.verb == "gather":
            comm.gather(values, member.size - 1, members=members)
        elif self.verb == "all_gather":
            comm.all_gather(values)
        elif self.verb == "scatter":
            comm.scatter(values, member.master, tuple(range(member.size + 1)))
        elif self.verb == "reduce":
            comm.reduce(values, Reduction.SUM, member.size - 1, members=members)
        elif self.verb == "all_reduce large":
            large = [np.full(100_000, float(member.rank))]
            comm.all_reduce(large, Reduction.SUM, members=members)
            values = [large[0][:5]]
        elif self.verb == "all_reduce":
            comm.all_reduce(values, Reduction.SUM, members=members)
        elif self.verb == "reduce_scatter":
            comm.reduce_scatter(values, Reduction.SUM, tuple(range(member.size + 1)))
        return tuple(values)


MOVING = ("take values", "expose", "broadcast", "gather", "all_gather", "scatter")
REDUCING = ("reduce", "all_reduce", "all_reduce large", "reduce_scatter")


@pytest.mark.new_group  # in which the variable has the number 0
@pytest.mark.parametrize("members", [None, (0, 1)])
def test_a_long_command_cannot_meet_the_master(
    group2: synk.Group, members: tuple[int, ...] | None
) -> None:
    """The master takes no part in it: a member that would wait for it raises at once."""
    w = pytensor.shared(np.zeros(3), name="w")
    share_variables(group2, [w])
    for verb in ("barrier", "enter", *MOVING, *REDUCING):
        task = group2.start(Meet(verb, members), "a walk")
        with pytest.raises(synk.WorkerError, match=r"a walk.*GroupError") as found:
            task.wait()
        assert "the master takes no part" in str(found.value)
        assert found.value.ranks == (1,)
        assert group2.run(Walk_once()) == [1, 1]
        synk.broadcast(w)  # and what all members run still meets the master


@pytest.mark.parametrize("master", [0, 1])
def test_workers_meet_in_a_long_command(master: int) -> None:
    """They name themselves; whoever names the master too is refused."""
    with synk.Group(3, master_rank=master) as group:
        workers = tuple(r for r in range(3) if r != master)
        total = np.full(5, float(sum(workers)))
        for verb in ("all_reduce", "all_reduce large"):
            found = group.start(Meet(verb, workers)).wait()
            assert set(found) == set(workers)
            for (values,) in found.values():
                np.testing.assert_array_equal(values, total)
        for (values,) in group.start(Meet("broadcast", workers)).wait().values():
            np.testing.assert_array_equal(values, max(workers))
        with pytest.raises(synk.WorkerError, match="the master takes no part"):
            group.start(Meet("all_reduce", (0, 1, 2))).wait()
        assert group.start(Meet("barrier", workers)).wait()


def test_a_group_of_one_meets_itself_in_a_long_command() -> None:
    with synk.Group(1) as group:
        for verb in ("barrier", "all_reduce"):
            assert set(group.start(Meet(verb)).wait()) == {0}


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
        group.member.changes.in_place = (entry,)
        with pytest.raises(synk.WorkerDied):
            group.run(Fault("SIGKILL", (1,)))
    with synk.Group(2):
        with pytest.raises(synk.StateTorn, match="shared"):
            synk.all_reduce(shared, "sum")
        shared.set_value(np.ones(100_000))
        synk.all_reduce(shared, "sum")
        assert (shared.get_value() == 2).all()


@dataclass(frozen=True)
class Held(Command):
    """The value of a variable in each member, as it is."""

    number: int

    def run(self, member: Any) -> tuple[np.ndarray]:
        return (np.array(member.variables[self.number].storage[0]),)

    def answer(self, member: Any, own: Any, reports: dict[int, Any]) -> list[np.ndarray]:
        return [own[0], *(array for (array,) in reports.values())]


def counter(name: str) -> tuple[Any, synk.Function]:
    """A variable in the arena, and a function that adds 1 to it and raises for negative inputs."""
    w, x = pytensor.shared(np.ones(3000), name=name), pt.dvector("x")
    f = synk.function([x], (Fussy()(x).sum(), "sum"), updates=[(w, w + 1)], mode="FAST_COMPILE")
    synk.all_reduce(w, "avg")
    return w, f


@pytest.mark.parametrize("fails", [0, 1])
def test_a_variable_changed_twice_is_undone(group2: synk.Group, fails: int) -> None:
    """An undo gives back the value before the command, not the one before its last change.

    The other member receives the value that the user has set, and adds 1 to it.
    """
    w, f = counter("w")
    good, bad = np.ones(2), np.ones(2)
    bad[fails] = -1.0
    f(good)
    number = group2.member.variables.of(w).number
    for _ in range(2):
        w.set_value(np.full(3000, 7.0))
        with pytest.raises(ValueError, match="a negative number"):
            f(bad)
        master, worker = group2.run(Held(number))
        np.testing.assert_array_equal(master, 7.0)
        np.testing.assert_array_equal(worker, 2.0)
    f(good)
    for value in group2.run(Held(number)):
        np.testing.assert_array_equal(value, 8.0)


def test_a_value_taken_back_after_a_failure(group2: synk.Group) -> None:
    """What the others have a copy of is not written over while the user holds it."""
    w, f = counter("w")
    for value in (2.0, 3.0):
        f(np.ones(2))
        old = w.get_value(borrow=True)
        w.set_value(np.full(3000, 100.0))
        with pytest.raises(ValueError, match="a negative number"):
            f(np.array([1.0, -1.0]))
        w.set_value(old, borrow=True)
        for rank in range(2):
            np.testing.assert_array_equal(synk.get_value(rank, w), value)


@dataclass(frozen=True)
class Again(Command):
    """Return an array that came with the command, from the workers; posted again as one word."""

    value: np.ndarray
    repeats = True

    def run(self, member: Any) -> tuple[np.ndarray]:
        return (self.value,)

    def answer(self, member: Any, own: Any, reports: dict[int, Any]) -> Any:
        return reports[1][0]


def test_a_command_run_again_has_its_own_arrays(group2: synk.Group) -> None:
    """What a repeated command brings is not in the master's box, where the next command lies."""
    values = np.arange(500.0)
    command = Again(values)
    np.testing.assert_array_equal(group2.run(command), values)
    group2.run(Again(np.full(1000, 7.0)))
    np.testing.assert_array_equal(group2.run(command), values)


def test_an_interrupt_stops_a_long_command(
    group2: synk.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = group2.start(Walk(), "a walk")
    while min(task.progress()) < 3:
        pass

    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(group2.channel, "collect", interrupted)
        with pytest.raises(KeyboardInterrupt):
            task.wait()
    assert group2.run(Walk_once()) == [1, 1]
    with pytest.raises(synk.GroupError, match="a walk: wait\\(\\) has been called"):
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
        member.changes.set(member.variables[self.number], np.full(3, self.value))
        return (1,)


def test_what_a_long_command_changes_stands(group: synk.Group) -> None:
    w = pytensor.shared(np.zeros(3), name="w")
    number, last = share_variables(group, [w])[w].number, group.size - 1
    group.start(Assign(number, 8.0)).wait()
    with pytest.raises(ValueError, match="bad value"):
        group.run(Fault("ValueError", (last,)))
    np.testing.assert_array_equal(synk.get_value(last, w), 8.0)


@pytest.mark.parametrize("longest", [0, 1])
def test_outputs_of_unequal_size_are_refused(group2: synk.Group, longest: int) -> None:
    """A large one in one member, a small one in the other: no member waits for the other's."""
    y = pt.lvector("y")
    f = synk.function([y], (pt.bincount(y), "sum"), mode="FAST_COMPILE")
    labels = np.array([0, 100, 0, 100])
    labels[2 * longest + 1] = 10_000
    for _ in range(2):
        with pytest.raises(synk.InputError, match=r"did not combine the same values.*gather"):
            f(labels)
        np.testing.assert_array_equal(f(np.array([0, 1, 1, 1])), [1, 3])


def test_memory_of_an_abandoned_reduction_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker still writes its chunk of the result when the master has given up."""
    late, master, original = mmap.mmap(-1, 1), os.getpid(), shared_memory.reduce_into

    def slow(*args: Any) -> None:
        if os.getpid() != master and late[0]:
            time.sleep(0.5)
        original(*args)

    monkeypatch.setattr(shared_memory, "reduce_into", slow)
    x, w = pt.dvector("x"), pt.dvector("w")
    with synk.Group(2, start="fork"):
        f = synk.function([x], (w * x.sum(), "sum"), bcast_inputs=[w], mode="FAST_COMPILE")
        rows, many = np.ones(4), synk.data(np.ones(20_000))
        f(rows, many)
        late[0] = 1
        with contextlib.suppress(synk.GroupTimeout):  # which holds the frames of `reduce`
            f(rows, many, timeout=0.2)
            pytest.fail("the worker was not late")
        others = [synk.data(np.full(20_000, 7.0)) for _ in range(3)]
        late[0] = 0
        np.testing.assert_array_equal(f(rows, many), np.full(20_000, 4.0))
        for d in others:
            np.testing.assert_array_equal(d.data, 7.0)


def test_a_sparse_result_stays_as_it_is() -> None:
    """A worker alone has rows, and its report is overwritten by the next one."""
    sparse = pytest.importorskip("pytensor.sparse")
    x = pt.dmatrix("x")
    with synk.Group(2, master_rank=1):
        f = synk.function([x], (sparse.csr_from_dense(x), None), mode="FAST_COMPILE")
        row = np.arange(2000.0)[np.newaxis]
        first = f(row)
        f(3 * row)
        np.testing.assert_array_equal(first.toarray(), row)


def test_a_function_that_workers_cannot_import_fails_alone(
    group2: synk.Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others that are made beside it are sent all the same."""
    (tmp_path / "late_module.py").write_text(_LATE)
    monkeypatch.syspath_prepend(tmp_path)
    late = importlib.import_module("late_module")
    x = pt.dvector("x")
    f = synk.function([x], x.sum(), mode="FAST_COMPILE")
    g = synk.function([x], (late.Twice()(x).sum(), "sum"), mode="FAST_COMPILE")
    rows = np.ones(4)
    assert f(rows) == 4.0
    with pytest.raises(synk.WorkerError, match="late_module"):
        g(rows)
    assert synk.function([x], 2 * x.sum(), mode="FAST_COMPILE")(rows) == 8.0


_LATE = """
import numpy as np
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

class Twice(Op):
    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = 2 * inputs[0]
"""


def test_a_function_of_a_half_written_variable_fails_alone(group2: synk.Group) -> None:
    x, s = pt.dvector("x"), pytensor.shared(1.0, name="s")
    mark_torn(Registry(True).add(s))
    f = synk.function([x], x.sum(), mode="FAST_COMPILE")
    g = synk.function([x], (x * s).sum(), mode="FAST_COMPILE")
    rows = np.ones(4)
    assert f(rows) == 4.0
    with pytest.raises(synk.StateTorn):
        g(rows)
    s.set_value(2.0)
    assert g(rows) == 8.0
