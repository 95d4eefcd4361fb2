"""Conformance suites: checks that every channel and every communicator has to pass.

Run them once a group uses a new channel or communicator. Both suites run as commands in the group:
every member makes the same assertions and compares its results with numpy's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from synkhronos._backends.jax import dtype as jax_dtype
from synkhronos._backends.jax import held
from synkhronos._engine.commands.base import Command
from synkhronos._engine.group import Group
from synkhronos._engine.member import Member
from synkhronos._plan.rows import edges
from synkhronos._proofs.reductions import Reduction, combine
from synkhronos._transport.communicators.communicator import Communicator

Shape = tuple[int, ...]

SHAPES: tuple[Shape, ...] = ((), (1,), (5,), (0, 3), (3, 4), (1000,), (70_001,), (300, 200))
DTYPES = (
    "bool",
    *("int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
TOLERANCES = {"bfloat16": 4e-2, "float16": 1e-2, "float32": 1e-5, "complex64": 1e-5}
OPS = (Reduction.AVG, Reduction.SUM, Reduction.PROD, Reduction.MIN, Reduction.MAX)


def check_communicator(
    group: Group, dtypes: Sequence[str] = DTYPES, shapes: tuple[tuple[int, ...], ...] = SHAPES
) -> None:
    """Check every operation of the group's communicator, on every dtype and shape.

    >>> import synkhronos as synk
    >>> with synk.Group(2) as group:
    ...     check_communicator(group, ["float32"], ((), (3,)))
    """
    group.run(_Interface(), "check_communicator")
    for dtype in dtypes:
        group.run(_Verbs(dtype, tuple(shapes)), f"check_communicator {dtype}")


def check_channel(group: Group) -> None:
    """Check the group's channel: order, message size, repeated commands, long commands.

    >>> import synkhronos as synk
    >>> with synk.Group(2) as group:
    ...     check_channel(group)
    """
    small = _Echo(7)
    for _ in range(300):
        assert group.run(small) == [7] * group.size
    for size in (0, 10, 1 << 17, 1 << 22):  # within and beyond a mailbox, in both directions
        sent = np.arange(size, dtype=np.int64)
        for rank, got in enumerate(group.run(_Echo(sent))):
            np.testing.assert_array_equal(got, sent, err_msg=f"rank {rank}")
    for n in range(300):  # more commands than members remember
        assert group.run(_Echo(n)) == [n] * group.size
    assert group.run(small) == [7] * group.size
    task = group.start(_Count())
    while group.size > 1 and min(task.progress()) < 3:
        pass
    task.stop()
    counts = task.wait()
    assert all(c >= 3 for (c,) in counts.values()), counts
    _check_channel_interface(group)


def _check_channel_interface(group: Group) -> None:
    channel = group.channel
    before = channel.number
    group.run(_Echo(0))
    assert channel.number == before + 1
    assert channel.committed()
    assert not channel.broken
    assert channel.started.split()[0] in ("inline", "fork", "exec")
    pids = [channel.pid(rank) for rank in range(group.size)]
    assert pids[group.master] == os.getpid()
    assert len(set(pids)) == group.size or group.member.communicator.nodes > 1
    assert {w.pid for w in channel.workers} <= set(pids)
    assert all(isinstance(channel.device(rank), str) for rank in range(group.size))
    limits = channel.inspector.limit, channel.inspector.warning
    with channel.inspector.limited(60.0):
        assert channel.inspector.limit == 60.0
        assert group.run(_Echo(1)) == [1] * group.size
    assert (channel.inspector.limit, channel.inspector.warning) == limits
    channel.wake()
    with channel.interrupts:
        assert group.run(_Echo(2)) == [2] * group.size


@dataclass(frozen=True)
class _Echo(Command):
    value: object
    repeats = True

    def run(self, member: Member) -> object:
        return (self.value,)

    def answer(self, member: Member, own: Any, reports: dict[int, Any]) -> list[object]:
        ranks = range(member.size)
        return [(own if r == member.master else reports[r])[0] for r in ranks]


@dataclass(frozen=True)
class _Count(Command):
    def run(self, member: Member) -> tuple[int]:
        count = 0
        while not member.stopping or count < 3:
            count += 1
            member.progress(count)
        return (count,)


@dataclass(frozen=True)
class _Interface(Command):
    """The rest that the engine uses of a communicator: all but moving and reducing arrays."""

    def run(self, member: Member) -> None:
        comm, home = member.communicator, member.communicator.home
        assert (comm.rank, comm.size) == (member.rank, member.size)
        assert 0 <= home.leader < home.size <= comm.size
        assert (comm.nodes == 1) == (home.size == comm.size)
        with comm.interrupts:
            comm.barrier()
            comm.enter()
        only = (comm.size - 1,)
        comm.barrier(only)
        self._check_subset(comm, only)
        self._check_late_reader(comm)
        self._check_shared(comm, home)
        begun: list[int] = []
        values = np.full(3, comm.rank + 1.0)
        comm.all_reduce([values], Reduction.SUM, starting=lambda: begun.append(comm.size))
        assert begun in ([comm.size], []), "called once; a group of one changes nothing"
        assert values.tolist() == [comm.size * (comm.size + 1) / 2] * 3
        assert comm.native([1.0, 2.0]).tolist() == [1.0, 2.0]
        looks = iter([False, True])
        comm.wait_for_gpu(lambda: next(looks, True))
        with comm.without_master():
            pass
        comm.barrier()

    def _check_subset(self, comm: Communicator, only: tuple[int, ...]) -> None:
        mine = comm.rank in only
        found = comm.broadcast([np.arange(3.0)] if mine else None, only[0], only)
        assert (found is not None) == mine
        if found is not None:
            assert found[0].tolist() == [0.0, 1.0, 2.0]
        assert (comm.reduce([np.ones(2)], Reduction.SUM, only[0], None, only) is None) != mine

    def _check_late_reader(self, comm: Communicator) -> None:
        """A member that reads late gets the values of this exchange, not those of the next."""
        last = comm.size - 1

        def late() -> None:
            if comm.rank == last:
                time.sleep(0.02)

        for members in (tuple(range(comm.size)), tuple(range(max(0, last - 1), comm.size))):
            first, second = np.full(3, comm.rank + 1.0), np.full(3, 100.0)
            comm.all_reduce([first], Reduction.SUM, members=members, starting=late)
            comm.barrier((0,))  # the others do not wait here
            comm.all_reduce([second], Reduction.SUM, members=members)
            if comm.rank in members:
                assert first.tolist() == [sum(r + 1.0 for r in members)] * 3, members
                assert second.tolist() == [100.0 * len(members)] * 3, members

    def _check_shared(self, comm: Communicator, home: Communicator) -> None:
        array = comm.empty((4,), np.dtype(float))
        array[:] = home.rank
        shown = comm.expose([array])
        comm.barrier()
        assert [a[0].tolist() for a in shown] == [[float(r)] * 4 for r in range(home.size)]
        comm.barrier()
        total = shown[home.leader][0]

        def fill(i: int, lo: int, hi: int) -> None:
            total[lo:hi] = 1.0

        comm.sum_over_nodes([total], fill)
        comm.barrier()
        if comm.nodes > 1:
            assert total.tolist() == [float(comm.nodes)] * 4
        comm.barrier()


@dataclass(frozen=True)
class _Verbs(Command):
    dtype: str
    shapes: tuple[tuple[int, ...], ...]

    def run(self, member: Member) -> None:
        values = [_values(self.dtype, self.shapes, rank) for rank in range(member.size)]
        if self.dtype in DTYPES:  # only JAX has the others
            comm = member.communicator
            _check_moving(member, values, np.asarray)
            _check_reducing(member, values, (np.array, lambda v: _in_arena(comm, v)))
        if member.communicator.on_gpus:
            _check_moving(member, values, held)
            _check_reducing(member, values, (held,))


def _values(dtype: str, shapes: tuple[tuple[int, ...], ...], rank: int) -> list[np.ndarray]:
    rng = np.random.default_rng(rank)
    kind = np.dtype(dtype) if dtype in DTYPES else jax_dtype(dtype)
    return [np.asarray(rng.integers(0, 4, shape)).astype(kind) for shape in shapes]


def _equal(found: Any, wanted: Any, what: str) -> None:
    assert len(found) == len(wanted), what
    for a, b in zip(found, wanted, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), (what, a.shape, a.dtype, b.shape, b.dtype)
        loose = TOLERANCES.get(a.dtype.name, 1e-12)
        if a.dtype.kind == "V":  # a dtype that only JAX has
            a, b = np.asarray(a).astype("float32"), b.astype("float32")
        np.testing.assert_allclose(a, b, rtol=loose, err_msg=what)


def _check_moving(
    member: Member, values: list[list[np.ndarray]], make: Callable[[np.ndarray], Any]
) -> None:
    comm, size = member.communicator, member.size
    mine = [make(v) for v in values[member.rank]]
    for root in range(size):
        given = mine if member.rank == root else None
        _equal(comm.broadcast(given, root), values[root], "broadcast")
        found = comm.gather(mine, root, "stack")
        if member.rank == root:
            _equal(found, [np.stack(column) for column in zip(*values, strict=True)], "stack")
        rowed = [make(v) for v in values[root] if v.ndim]
        for rows in {len(v) for v in rowed}:
            same = [v for v in rowed if len(v) == rows]
            borders = edges(rows, size)
            part = slice(borders[member.rank], borders[member.rank + 1])
            scattered = comm.scatter(same if member.rank == root else None, root, borders)
            _equal(scattered, [v[part] for v in same], "scatter")
    columns = zip(*values, strict=True)
    joined = [np.concatenate([np.atleast_1d(v) for v in column]) for column in columns]
    _equal(comm.all_gather(mine), joined, "all_gather")
    uneven = [np.arange(rank + 1) for rank in range(size)]
    _equal(comm.all_gather([make(uneven[member.rank])]), [np.concatenate(uneven)], "uneven")
    found = comm.gather([make(uneven[member.rank])], size - 1)
    if member.rank == size - 1:
        _equal(found, [np.concatenate(uneven)], "uneven gather")


def _check_reducing(
    member: Member, values: list[list[np.ndarray]], makers: Sequence[Callable[[np.ndarray], Any]]
) -> None:
    comm, size = member.communicator, member.size
    mine = [makers[0](v) for v in values[member.rank]]
    weights = [float(r + 1) for r in range(size)]
    for op in OPS:
        shares = weights if op is Reduction.AVG else None
        wanted = [_combined(column, op, shares) for column in zip(*values, strict=True)]
        for root in range(size):
            found = comm.reduce(mine, op, root, shares)
            if member.rank == root:
                _equal(found, wanted, f"reduce {op}")
        kept = [
            np.rint(w).astype(v.dtype) if v.dtype.kind in "biu" else w
            for v, w in zip(mine, wanted, strict=True)
        ]
        for make in makers:
            arrays = [make(v) for v in mine]
            comm.all_reduce(arrays, op, shares)
            _equal(arrays, kept, f"all_reduce {op}")
            single = [make(mine[1])]
            comm.all_reduce(single, op, shares)
            _equal(single, [kept[1]], f"small all_reduce {op}")
        rowed = [(v, w) for v, w in zip(mine, wanted, strict=True) if v.ndim]
        for v, w in rowed:
            borders = edges(len(v), size)
            part = slice(borders[member.rank], borders[member.rank + 1])
            _equal(comm.reduce_scatter([v], op, borders, shares), [w[part]], "reduce_scatter")


def _combined(
    column: Sequence[np.ndarray], op: Reduction, weights: list[float] | None
) -> np.ndarray:
    kind = column[0].dtype
    if kind.kind != "V":
        return combine(column, op, weights)
    return combine([v.astype("float32") for v in column], op, weights).astype(kind)


def _in_arena(comm: Communicator, value: np.ndarray) -> np.ndarray:
    array = comm.empty(value.shape, value.dtype)
    array[...] = value
    return array
