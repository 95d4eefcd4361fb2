"""One member of a group: its variables and functions, as commands see them when they run.

These rules hold:

* Every process of a group has one `Member`, the master included. A command runs the same code in
  each; what differs is only `rank`, and what the member holds.
* A command changes variables through `changes`, so that the verdict can undo it in all members.
  Other objects of commands (replicas, `installed`, `measured`, `held`) are made before they are
  used, by a command of their own, and follow a number of the master's.
* Nothing here asks the master, or waits, except in collectives of the `communicator`. All members
  make these in the same order. A wait outside of one could not be ended by an abort.
* A value that lies in the arena belongs to the group. `release` copies each value out before the
  group's memory ends, since the user's variables live longer than the group.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from synkhronos._engine.changes import Changes, HeldArrays
from synkhronos._engine.replicas import Replica
from synkhronos._engine.spans import COMPILE, Spans
from synkhronos._engine.variables import Entry, NewValues, Registry, is_torn, mark_torn, stream
from synkhronos._host.arena import ArrayRef, FileRef, Views
from synkhronos._host.cores import MasterCores
from synkhronos._transport.communicators.communicator import Communicator
from synkhronos._transport.processes.interrupts import Interrupts
from synkhronos._transport.shared_state.control_words import COMPILING, PROGRESS, progress_word
from synkhronos._transport.shared_state.node import Node
from synkhronos._transport.shared_state.peers import Peers
from synkhronos._transport.shared_state.status import Status

_NO_LIMIT = nullcontext()


@dataclass
class Measured:
    """A member's measurements of its own work."""

    # of the functions whose calls are measured, by their numbers
    clocks: dict[int, Any] = field(default_factory=dict)
    spans: Spans | None = None  # what the member does and when, while the group is traced


class LongCommandAbove(ABC):
    """A long command of the members above, as the leader of a node sees it."""

    @property
    @abstractmethod
    def stopping(self) -> bool:
        """Whether the master asks the command to return."""

    @abstractmethod
    def count(self) -> None:
        """Show the master that a count of this node has changed."""

    @abstractmethod
    def compiling(self, now: bool) -> None:
        """Show the master that this leader compiles, or does so no more."""


@dataclass
class OnNode:
    """A member's place on its node."""

    node: Node | None  # what the members of the node have in common; None in a group of one
    master_cores: MasterCores | None = None  # in the master: its share of the cores
    # inside, libraries use no more threads than this member has cores
    core_limit: AbstractContextManager[None] = _NO_LIMIT
    # in the master and in the leader of a node, on several nodes: the cores of its members
    cores: list[int] = field(default_factory=list)
    # by number, the rows of scattered Data on this node, and the number of the first row
    scattered_rows: dict[int, tuple[np.ndarray, int]] = field(default_factory=dict)
    above: LongCommandAbove | None = None  # in the leader of a node that is not the master's


class Ending(ABC):
    """The base of what holds more than memory, such as a process, until it is not needed."""

    @abstractmethod
    def end(self) -> None:
        """Let it go, in bounded time."""


class Installed:
    """The state of one member, by the number of a function or loader; each user knows the class.

    Examples
    --------
    >>> installed = Installed()
    >>> installed.keep(3, [1.0])
    >>> installed.of(list, 3), installed.find(list, 4), len(installed)
    ([1.0], None, 1)
    """

    def __init__(self) -> None:
        self._kept: dict[int, object] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, number: int, what: object) -> None:
        """Keep something, in place of what was kept by this number."""
        self.forget(number)
        self._kept[number] = what

    def of[T](self, kind: type[T], number: int) -> T:
        """The state of a number."""
        found = self._kept[number]
        assert isinstance(found, kind), f"{number}: {type(found).__name__}, not {kind.__name__}"
        return found

    def find[T](self, kind: type[T], number: int) -> T | None:
        """The state of a number; None if there is none, as after a restart."""
        return self.of(kind, number) if number in self._kept else None

    def forget(self, number: int) -> None:
        """Drop what is kept by a number, if anything is."""
        found = self._kept.pop(number, None)
        if isinstance(found, Ending):
            found.end()


class Member:
    """One process of a group."""

    # of the class: in a process that runs another process's commands, the member that it is
    serving: ClassVar[Member | None] = None

    def __init__(
        self,
        rank: int,
        size: int,
        master: int,
        communicator: Communicator,
        views: Views,
        interrupts: Interrupts,
        node: Node | None = None,
        master_cores: MasterCores | None = None,
        resident: bool = False,
    ) -> None:
        self.rank = rank
        self.size = size
        self.master = master
        self.resident = resident  # whether trained values stay in the memory that JAX computes in
        # the shared variables, by number
        self.variables = Registry(watched=rank == master and size > 1)
        self.held = HeldArrays()  # what else this member holds for them
        # what the current command has changed of them
        self.changes = Changes(self.variables, self.held, interrupts, master)
        self._use(communicator)
        self.replicas: dict[int, Replica] = {}  # the functions, by number
        # what functions, loaders and models keep in this member, by their numbers
        self.installed = Installed()
        self.measured = Measured()
        limit = _NO_LIMIT if master_cores is None else master_cores.thread_limits
        self.on_node = OnNode(node, master_cores, limit)
        # in the master: what `Group.run` was given beside the command, such as arrays to send
        self.master_input: Any = None
        self._views = views

    def assign_rank(self, communicator: Communicator) -> None:
        """Become a member of a group of several nodes, with another rank and size."""
        self.rank, self.size = communicator.rank, communicator.size
        self._use(communicator)

    def _use(self, communicator: Communicator) -> None:
        self.communicator = communicator
        self.changes.use(communicator)
        self.resident = self.resident or communicator.on_gpus

    def view(self, ref: ArrayRef | FileRef) -> np.ndarray:
        """The array that a reference names."""
        return self._views[ref]

    def places(self, arrays: Sequence[np.ndarray]) -> list[int]:
        """Offsets of arrays in the arena, in bytes."""
        return [self._views.offset(a) for a in arrays]

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """A context for compiling.

        Threads that a library starts in it use this member's cores. The master waits longer for a
        member that compiles.
        """
        master_cores = self.on_node.master_cores
        with _NO_LIMIT if master_cores is None else master_cores.confined():
            node = self.on_node.node
            mine: Any = {} if node is None else node.words.of[node.rank]
            mine[COMPILING] = 1
            self._show_compiling(True)
            began = time.perf_counter()
            try:
                yield
            finally:
                mine[COMPILING] = 0
                self._show_compiling(False)
                if self.measured.spans is not None:
                    self.measured.spans.add(began, time.perf_counter(), COMPILE)

    def _show_compiling(self, now: bool) -> None:
        if self.on_node.above is not None:
            self.on_node.above.compiling(now)

    def show_clocks(self, cells: np.ndarray) -> None:
        """Let those who watch the group from outside find the phases of a function's calls."""
        if self.on_node.node is not None:
            [offset] = self.places([cells])
            Status(self.on_node.node.arena).add_clocks(offset, cells.shape[1])

    def uninterrupted(self) -> AbstractContextManager[None]:
        """A context in which Ctrl-C waits until all members have reached the same point."""
        return self.changes.interrupts

    @property
    def stopping(self) -> bool:
        """Whether the master asks a long command to return; always true in a group of one."""
        above, node = self.on_node.above, self.on_node.node
        if above is not None and above.stopping:
            return True
        return node is None or node.stopping

    def peers(self) -> Peers:
        """The other members, for a long command; on one node."""
        return Peers(self.on_node.node)

    def progress(self, count: int) -> None:
        """Show the master a count of what a long command has done."""
        node = self.on_node.node
        if node is not None:
            mine = node.words.of[node.rank]
            mine[PROGRESS] = progress_word(node.number, count)
            if self.on_node.above is not None:
                self.on_node.above.count()

    def forget(self, variables: Sequence[int]) -> None:
        """Drop shared variables, and free their memory."""
        self.variables.remove(variables)
        self.held.forget(variables)

    def array(self, entry: Entry) -> Any:
        """A variable's value in the form in which the communicator moves it."""
        return self.communicator.native(entry.storage[0])

    def receive_master_values(self, entries: Sequence[Entry], undo: bool = True) -> None:
        """Set variables to the master's values, in all members."""
        if not entries:
            return
        held = self.changes.note_sent(entries)
        mine = self.rank == self.master
        values = [self.communicator.native(v) for v in held] if mine else None
        received = self.communicator.broadcast(values, self.master)
        if mine or received is None:
            return
        for entry, value in zip(entries, received, strict=True):
            if undo:
                self.changes.set(entry, value)
            else:
                entry.storage[0] = value

    def take_new(self, values: NewValues) -> None:
        """Give variables the values that the user has set in the master, in all members."""
        self.receive_master_values([self.variables[n] for n in values.numbers])
        for number, value in values.objects:
            entry = self.variables[number]
            if self.rank == self.master:
                self.changes.note_given(entry, value)
                continue
            if isinstance(value, np.random.Generator):
                value = stream(value, self.rank, self.master)
            self.changes.set(entry, value)

    def is_placed(self, entry: Entry) -> bool:
        """Whether a variable's value must not be moved, since collectives write it in place."""
        value = entry.storage[0]
        return entry.view is value or self._views.hold(value)

    def move(self, entry: Entry, value: object) -> None:
        """Replace a variable's value by an equal one, which a function reads without a copy."""
        self.changes.replace(entry, entry.storage[0], value)

    def release(self) -> None:
        """Copy every variable's value out of the arena."""
        for entry in self.variables:
            value = entry.storage[0]
            if isinstance(value, np.ndarray) and self._views.hold(value):
                known, torn = value is entry.seen, is_torn(entry)
                entry.storage[0] = np.array(value)
                entry.seen = entry.storage[0] if known else entry.seen
                if torn:
                    mark_torn(entry)
            entry.view = None
        self.held.clear()
        self.communicator.close()
