"""Computes the parts of a work in processes, into memory that they share or into a store."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from xarray import DataTree

from synkhronos._checks import check_flag, check_integer, or_none
from synkhronos._compiling.progress import tell
from synkhronos._engine.commands.base import Command
from synkhronos._engine.group import Group
from synkhronos._engine.member import Member
from synkhronos._errors import InputError
from synkhronos._host.arena import ArrayRef
from synkhronos._host.cores import available
from synkhronos._host.system import trouble
from synkhronos._host.thread_pools import ThreadLimits
from synkhronos._transport.pools.pool import Pool
from synkhronos._transport.processes.fork_safety import reasons_against_fork
from synkhronos._transport.serialization import pack_graph, proxy_reducers, unpack_graph
from synkhronos.pymc._after.blocks import share
from synkhronos.pymc._after.calculation import Calculation
from synkhronos.pymc._after.pooled import PooledDivision, chosen
from synkhronos.pymc._after.store import Store, check_store
from synkhronos.pymc._after.work import InMemory, Target, Work
from synkhronos.pymc._map.bar import Bar

_FORK_SECONDS, _EXEC_SECONDS = 0.1, 6.0  # to start a process and give it a compiled function
_NOTE_SECONDS = 1.0  # between two notes in a store


@dataclass(frozen=True)
class ComputeShare(Command):
    """Compute a member's share of a work."""

    packed: bytes  # the pickled work; empty for members that were forked with it
    arrays: tuple[ArrayRef, ...]  # where the results go; empty if they go into the store
    store: Store | None

    forked_with: ClassVar[Work | None] = None  # set while a group starts

    def run(self, member: Member) -> None:
        """Compute until all is done, or the master asks the member to stop."""
        work = unpack_graph(self.packed) if self.packed else self.forked_with
        assert isinstance(work, Work)
        target = self.store or InMemory([member.view(ref) for ref in self.arrays])
        mine = share(work.parts, member.rank, member.size)
        with ThreadLimits(1):  # sums of several threads have other bits
            for done in work.compute(mine, target):
                member.progress(done)
                if member.stopping:
                    return


@dataclass(frozen=True)
class By:
    """By whom a work is computed: processes of this machine, or the workers of a pool."""

    cores: int | None = None
    progressbar: bool = True
    pool: Pool | None = None

    @staticmethod
    def of(what: str, cores: int | None, progressbar: bool, on: object = None) -> By:
        """Check the options of the call `what`; for exceptions see also `chosen`."""
        check_flag(f"{what}: progressbar", progressbar)
        cores = or_none(check_integer, f"{what}: cores", cores, 1)
        return By(cores, progressbar, chosen(what, on, cores))


@dataclass(frozen=True)
class How:
    """How a call computes all draws of a calculation: by whom, and into memory or a store."""

    what: str  # how messages name the call
    groups: Sequence[str]  # of the tree, which have the results
    by: By
    store: str | None

    @staticmethod
    def of(
        what: str,
        groups: Sequence[str],
        cores: int | None,
        progressbar: bool,
        store: str | os.PathLike[str] | None,
        on: object,
        compile_kwargs: Mapping[str, object] | None,
    ) -> How:
        """Check the options; for exceptions see `By.of` and `check_store`."""
        by = By.of(what, cores, progressbar, on)
        if (compile_kwargs or {}).get("updates"):
            raise InputError(
                f"{what}: compile_kwargs has updates, so each draw depends on the one before, and "
                "draws are made in any order here: leave updates out, or call PyMC's function"
            )
        return How(what, groups, by, check_store(store, groups))

    def results(
        self,
        own: Calculation,
        # from arrays of shape ``(*sample_shape, ...)`` by name; without copies
        tree_of: Callable[[Mapping[str, np.ndarray]], DataTree],
    ) -> DataTree:
        """Compute all draws, and return them as a tree."""
        if self.store is not None and not own.names:
            raise InputError(
                f"{self.what}: store=: no variable is computed, so there is nothing to store"
            )
        first, seconds = own.measured()
        shapes = [((*own.sample_shape, *value.shape), value.dtype) for value in first]
        if self.store is None:
            with divided(own, seconds * own.total, self.what, self.by) as division:
                arrays = [division.empty(shape, dtype) for shape, dtype in shapes]
                flat = [
                    a.reshape((own.draws, *v.shape)) for a, v in zip(arrays, first, strict=True)
                ]
                division.run(InMemory(flat))
                return tree_of(dict(zip(own.names, arrays, strict=True)))
        zeros = [np.broadcast_to(np.zeros((), dtype), shape) for shape, dtype in shapes]
        tree = tree_of(dict(zip(own.names, zeros, strict=True)))
        stored = {name: tree[name].to_dataset() for name in self.groups if name in tree.children}
        given = stored, own.names, own.sample_shape, own.block
        target = Store.of(self.store, *given, made_of=own.digest(), seed=own.seed)
        is_there = target.is_there()
        if is_there:
            target.cleaned()
            own.there = frozenset(part.start for part in own.parts if target.has(part))
        with divided(own, seconds * own.total, self.what, self.by) as division:
            if not is_there:
                target.make(stored)  # after the start of processes, since zarr has threads
            division.run(target)
            return tree.assign(target.opened())


@contextlib.contextmanager
def divided(work: Work, seconds: float, what: str, by: By) -> Iterator[Division | PooledDivision]:
    """A context in which a work can be run, in a group of its own if that is sooner done.

    One process would take `seconds`. Members that are forked have the work already.
    """
    with Bar(what, work.total, by.progressbar) as bar:
        if by.pool is not None:
            yield PooledDivision(work, seconds, by.pool, what, bar)
            return
        size = _processes(work, by.cores, seconds)
        if size == 1:
            yield Division(work, None, what, bar)
            return
        ComputeShare.forked_with = work
        try:
            group = Group(size, mpi=False, stall_warning=None)
        finally:
            ComputeShare.forked_with = None
        try:
            packed = b"" if group.channel.started == "fork" else _packed(work, what)
            if packed is None:
                group.close()
                yield Division(work, None, what, bar)
            else:
                yield Division(work, group, what, bar, packed)
        finally:
            group.close()


def _packed(work: Work, what: str) -> bytes | None:
    """The work for fresh interpreters; None, with a line, if it cannot be sent to them."""
    try:
        return pack_graph(work, reducers=proxy_reducers())
    except Exception as exc:  # of any object that it refers to
        tell(f"{what}: one process computes, since the model cannot be sent to others: {exc}")
        return None


def _processes(work: Work, cores: int | None, seconds: float) -> int:
    """The number of processes: as many as cores, unless one alone is done sooner."""
    size = min(cores or len(available()), len(work.parts))
    if size <= 1 or not work.in_processes or trouble():
        return 1
    start = _EXEC_SECONDS if reasons_against_fork() else _FORK_SECONDS
    return size if seconds * (1 - 1 / size) > start else 1


class Division:
    """A work, and the processes that compute it."""

    def __init__(
        self,
        work: Work,
        group: Group | None,  # None: this process computes all
        what: str,
        bar: Bar,
        packed: bytes = b"",  # the work, for members that were not forked with it
    ) -> None:
        self._work, self._what, self._bar = work, what, bar
        self._group, self._packed = group, packed
        self._done = 0
        self._noted = 0.0

    def empty(self, shape: Sequence[int], dtype: np.dtype | type) -> np.ndarray:
        """A new array that all processes share."""
        make = np.empty if self._group is None else self._group.arena.empty
        return make(shape, dtype)

    def run(self, target: Target) -> None:
        """Compute all parts: the workers theirs, and this process its own meanwhile."""
        try:
            if self._group is None:
                with ThreadLimits(1):
                    for done in self._work.compute(self._work.parts, target):
                        self._tell(done, target)
            else:
                self._run_in(self._group, target)
        except BaseException:
            with contextlib.suppress(OSError):  # the disk may be full
                target.note(self._work.before + self._done)
            raise
        target.note(self._work.before + self._done)

    def _run_in(self, group: Group, target: Target) -> None:
        stored = target if isinstance(target, Store) else None
        arrays = target.arrays if isinstance(target, InMemory) else ()
        refs = tuple(group.arena.ref(array) for array in arrays)
        task = group.start(ComputeShare(self._packed, refs, stored), self._what)
        theirs: int | None = None  # once they are done
        try:
            with ThreadLimits(1):
                mine = share(self._work.parts, group.rank, group.size)
                for done in self._work.compute(mine, target):
                    counted = sum(task.progress()) if theirs is None else theirs
                    self._tell(done + counted, target)
                    if theirs is None and task.failed:
                        task.stop()  # the others, for which `wait` waits
                        task.wait()
                    if theirs is None and task.done:
                        theirs = sum(task.progress())
                        task.wait()
            if theirs is None:
                task.wait()
        except BaseException:
            task.stop()
            with contextlib.suppress(Exception):
                task.wait()
            raise
        self._done = self._work.total

    def _tell(self, done: int, target: Target) -> None:
        self._done = done
        self._bar.show(done)
        if (now := time.monotonic()) > self._noted + _NOTE_SECONDS:
            target.note(self._work.before + done)
            self._noted = now
