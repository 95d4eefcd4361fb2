"""Batches of which each node reads its own rows.

The leader of each node has a thread that reads. One command a batch names the batches to read next,
and waits for the one to use::

    master          leaders
    ReadAhead       ask the thread for the batches that the command names
                    wait for the rows of the batch to use
    reports         all nodes have their rows, or the error of one

Commands name batches by epoch and place; each leader computes the order of an epoch itself.
"""

from __future__ import annotations

import itertools
import queue
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from synkhronos._api.scattered_data import ScatteredData
from synkhronos._engine.commands.base import Command
from synkhronos._engine.group import Group
from synkhronos._engine.member import Member
from synkhronos._errors import GroupError, InputError, InputTypeError
from synkhronos._plan.rows import edges
from synkhronos.extensions._rows.batches import Batches, EpochWalk
from synkhronos.extensions._rows.reader import LOOK_SECONDS, Read, opened, read_batch
from synkhronos.extensions._rows.source import Source

Kind = tuple[tuple[int, ...], str]


@dataclass(frozen=True)
class Job:
    """A batch to read."""

    loop: int  # the loop that asks; a reader drops what earlier loops have asked for
    # the epoch; the batch in it; where in the order of the epoch it begins and ends
    epoch: int
    number: int
    start: int
    stop: int
    slot: int  # the set of arrays to write to


@dataclass(frozen=True)
class OpenReader(Command):
    """Allocate the sets of a loader on each node, and give its leader the sources."""

    number: int  # of the reader
    sets: tuple[tuple[int, ...], ...]  # the numbers of the arrays of each set
    kinds: tuple[Kind, ...]  # the shape of a row and the dtype, of each array
    sources: tuple[object, ...]  # as the user gave them
    orders: Batches  # with the orders of the rows
    sort: bool

    foreign = True
    pure = True

    def run(self, member: Member) -> None:
        """Allocate in the node's leader; all members of the node use its arrays."""
        comm = member.communicator
        home, leads = comm.home, comm.home.rank == comm.leader
        lo, hi = share(member, min(self.orders.size, self.orders.n))
        shapes = [((hi - lo, *row), np.dtype(kind)) for row, kind in self.kinds]
        made = [home.empty(*shape) for _ in self.sets for shape in shapes] if leads else []
        arrays = home.expose(made)[comm.leader]
        for number, array in zip(itertools.chain(*self.sets), arrays, strict=True):
            member.on_node.scattered_rows[number] = array, lo
        slots = [tuple(arrays[i : i + len(shapes)]) for i in range(0, len(arrays), len(shapes))]
        reader = None
        if leads:
            found = [Source(s, i, self.orders.n) for i, s in enumerate(self.sources)]
            reader = NodeReader(found, self.orders, self.sort, slots)
        member.installed.keep(self.number, NodePart(reader, self.sets))
        comm.barrier()


@dataclass(frozen=True)
class ReadAhead(Command):
    """Ask for batches, and wait for one."""

    number: int
    asked: tuple[Job, ...]
    taken: Job

    pure = True

    def run(self, member: Member) -> None:
        """Wait, in the node's leader, until its thread has read this node's rows."""
        part = member.installed.find(NodePart, self.number)
        if part is None:
            raise GroupError("Loader: the workers have been restarted: make the Loader anew")
        if part.reader is not None:
            with member.uninterrupted():
                for job in self.asked:
                    part.reader.ask(job, share(member, job.stop - job.start))
            part.reader.take(self.taken)
        first = share(member, self.taken.stop - self.taken.start)[0]
        for number in part.sets[self.taken.slot]:
            member.on_node.scattered_rows[number] = member.on_node.scattered_rows[number][0], first


@dataclass
class NodePart:
    """The state of a loader in a member; only the node's leader has a reader."""

    reader: NodeReader | None
    sets: tuple[tuple[int, ...], ...]


def share(member: Member, rows: int) -> tuple[int, int]:
    """The first row of a batch that this member's node has, and the end."""
    home, borders = member.communicator.home, edges(rows, member.size)
    first = member.rank - home.rank
    return borders[first], borders[first + home.size]


class NodeReader:
    """The thread of a node's leader. It ends when nothing is asked of it for half a second."""

    def __init__(
        self,
        sources: Sequence[Source],
        orders: Batches,
        sort: bool,
        slots: Sequence[tuple[np.ndarray, ...]],
    ) -> None:
        self._sources = sources
        self._orders = orders
        self._sort = sort
        self._slots = slots
        self._todo: queue.SimpleQueue[tuple[Job, tuple[int, int]]] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Job, BaseException | None]] = queue.SimpleQueue()
        self._lock = threading.Lock()  # for a thread that starts, or ends
        self._thread: threading.Thread | None = None  # the one that serves
        self._loop = -1
        self._epoch, self._order = -1, np.zeros(0, np.int64)

    def ask(self, job: Job, rows: tuple[int, int]) -> None:
        """Read these rows of a batch."""
        self._loop = job.loop
        with self._lock:
            self._todo.put((job, rows))
            if self._thread is None:
                thread = threading.Thread(
                    target=self._serve, name="synkhronos-node-reader", daemon=True
                )
                thread.start()
                self._thread = thread

    def take(self, job: Job) -> None:
        """Wait until a batch has been read; raises what the source has raised."""
        while True:
            thread = self._thread
            serving = thread is not None and thread.is_alive()
            try:
                found, error = self._done.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                if not serving:
                    raise GroupError("Loader: the reading thread is gone: begin anew") from None
                continue
            if found != job:  # of a loop that was left
                continue
            if error is None:
                return
            try:
                raise error
            finally:
                del error  # its traceback holds this frame

    def _serve(self) -> None:
        try:
            for source in self._sources:
                source.expect(random=self._orders.shuffle)
            files = opened(self._sources)
        except BaseException as exc:
            self._refuse(exc)
            return
        with files:
            while self._next():
                pass

    def _refuse(self, error: BaseException) -> None:
        """Answer all that is asked by an error; what is asked later tries again."""
        with self._lock:
            self._thread = None
            while not self._todo.empty():
                job, _ = self._todo.get()
                self._done.put((job, error))

    def _next(self) -> bool:
        try:
            job, rows = self._todo.get(timeout=LOOK_SECONDS)
        except queue.Empty:
            with self._lock:
                if self._todo.empty():
                    self._thread = None
                return self._thread is not None
        if job.loop == self._loop:
            try:
                self._read(job, *rows)
                self._done.put((job, None))
            except BaseException as exc:
                self._done.put((job, exc))
        return True

    def _read(self, job: Job, lo: int, hi: int) -> None:
        if job.epoch != self._epoch:
            self._order, self._epoch = self._orders.order(job.epoch), job.epoch
        if lo == hi:
            return
        rows = self._order[job.start + lo : job.start + hi]
        targets = [array[: hi - lo] for array in self._slots[job.slot]]
        where = f"batch {job.number + 1} of epoch {job.epoch + 1}"
        self._place(read_batch(self._sources, rows, self._sort, targets, where), targets, where)

    def _place(self, read: Read, targets: list[np.ndarray], where: str) -> None:
        """Copy what the sources have not written to its place themselves."""
        for source, array, target in zip(self._sources, read.arrays, targets, strict=True):
            if array is None:
                continue
            if array.shape != target.shape or not np.can_cast(array.dtype, target.dtype):
                raise InputTypeError(
                    f"Loader: {source.label} should give {target.dtype} of shape {target.shape} "
                    f"for {where}, and gave {array.dtype} of shape {array.shape}"
                )
            target[...] = array


class NodeRows(ScatteredData):
    """The Data of one source in one set: each node has its members' rows of the batch."""

    def resize(self, length: int, rows: int) -> None:
        """Become a batch of this length, with this number of rows on this node."""
        if length == len(self):
            return
        self._shape = (length, *self._shape[1:])
        array, _ = self.group.member.on_node.scattered_rows[self.ref.number]
        self._take(array[:rows])


class NodeSets:
    """The sets of a loader, on all nodes; see `MasterSets`."""

    skipped = 0

    def __init__(
        self,
        group: Group,
        sources: Sequence[Source],
        batches: Batches,
        sort: bool,
        count: int,
        several: bool,
    ) -> None:
        self.several, self.count = several, count
        self.group = group
        self._batches = batches
        self._loops = itertools.count()
        kinds = tuple([_kind_of(source) for source in sources])
        numbers = tuple([tuple([group.inventory.number() for _ in kinds]) for _ in range(count)])
        self.number = group.inventory.number()
        given = tuple([source.given for source in sources])
        command = OpenReader(self.number, numbers, kinds, given, batches.alike(), sort)
        group.run(command, "Loader")
        weakref.finalize(self, group.inventory.forgotten.append, self.number)
        rows = min(batches.size, batches.n)
        self.sets = [
            tuple(
                [
                    NodeRows(group, np.dtype(kind), (rows, *row), number, None)
                    for number, (row, kind) in zip(slot, kinds, strict=True)
                ]
            )
            for slot in numbers
        ]

    def loop(self, walk: EpochWalk) -> NodeLoop:
        """Begin an epoch."""
        return NodeLoop(self, walk, next(self._loops))

    def drop(self) -> None:
        """Nothing to do: the threads of the leaders drop what is not asked for any more."""


class NodeLoop:
    """One epoch; see `MasterLoop`."""

    def __init__(self, sets: NodeSets, walk: EpochWalk, number: int) -> None:
        self._sets = sets
        self._walk = walk
        self._number = number
        self._stopped = False
        self.rows = np.zeros(0, np.int64)

    def start(self) -> None:
        """Nothing to do: the first command starts the threads."""

    def stop(self) -> bool:
        """End it; the threads end by themselves."""
        self._stopped = True
        return True

    def check(self) -> None:
        """Raise if the loop cannot continue."""
        self._sets.group.check("Loader")
        if self._stopped:
            raise InputError("Loader: close() or another loop over the loader has ended this loop")

    def take(self, number: int) -> tuple[NodeRows, ...]:
        """Ask for batches further ahead, and wait for this one."""
        count = self._sets.count
        ahead = range(count) if not number else [number + count - 1]
        asked = tuple([self._job(n) for n in ahead if n < len(self._walk)])
        job = self._job(number)
        what = f"Loader: batch {number + 1} of epoch {self._walk.epoch + 1}"
        self._sets.group.run(ReadAhead(self._sets.number, asked, job), what)
        self.rows = self._walk.rows(number)
        slot = self._sets.sets[job.slot]
        lo, hi = share(self._sets.group.member, job.stop - job.start)
        for rows in slot:
            rows.resize(job.stop - job.start, hi - lo)
        return slot

    def _job(self, number: int) -> Job:
        slot = number % self._sets.count
        return Job(self._number, self._walk.epoch, number, *self._walk.span(number), slot)


def _kind_of(source: Source) -> Kind:
    """The kind of a source that the leaders of other nodes can read."""
    if source.kind is None:
        raise InputError(
            f'Loader: {source.label} has no shape and dtype, which read="node" needs: use a source '
            'of synkhronos.training.sources, or read="master"'
        )
    if isinstance(source.given, np.memmap):
        raise InputError(
            f"Loader: {source.label} would be sent whole to the other nodes: give "
            "synkhronos.training.sources.npy(path), which each node opens for itself"
        )
    if getattr(source.given, "skips", False):
        raise InputError(
            f'Loader: {source.label} was made with skip=True, and with read="node" a node cannot '
            'leave out rows that the other nodes count: use read="master", or leave skip= out'
        )
    row, dtype = source.kind
    return row, dtype.newbyteorder("=").str
