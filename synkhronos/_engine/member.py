"""One member of a group: its variables and functions, and the changes of the current command."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import numpy as np

from synkhronos._engine.replicas import Replica
from synkhronos._engine.spans import COMPILE, Spans
from synkhronos._engine.variables import Entry, NewValues, Registry, is_torn, mark_torn, stream
from synkhronos._host.arena import ArrayRef, FileRef, Views
from synkhronos._host.cores import MasterCores
from synkhronos._transport.communicators.communicator import Communicator
from synkhronos._transport.communicators.gpus import Gpus
from synkhronos._transport.processes.interrupts import Interrupts
from synkhronos._transport.words.control_words import COMPILING, PROGRESS, progress_word
from synkhronos._transport.words.node import Node
from synkhronos._transport.words.peers import Peers
from synkhronos._transport.words.status import Status

log = logging.getLogger("synkhronos")

_TEXT_LIMIT = 1 << 15  # characters of a message or traceback that travel


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
        self._kept: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, number: int, what: object) -> None:
        """Keep something, in place of what was kept by this number."""
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
        self._kept.pop(number, None)


class Member:
    """One process of a group, as commands see it when they run.

    Attributes
    ----------
    rank, size, master : int
    communicator : Communicator
    variables : Registry
        The shared variables, by number.
    replicas : dict of Replica
        The functions, by number.
    installed : Installed
        What functions and loaders keep in this member, by their numbers.
    apart : dict of str
        Names of values that each member has its own of, beside variables, by the same number.
    clocks : dict of Clocks
        Of the functions whose calls are measured, by their numbers.
    spans : Spans or None
        What this member does and when, while the group is traced.
    resident : bool
        Whether trained values stay in the memory that JAX computes in.
    owned : dict of array
        By the number of a variable, a value that only this member holds, and may overwrite.
    scattered_rows : dict
        By number, the rows of scattered Data on this node, and the number of the first row.
    master_input : object
        In the master: what `Group.run` was given beside the command, such as arrays to send.
    above : Leader or None
        In the leader of a node that is not the master's: its end of the tree of leaders.
    node_cores : list of int
        In the master and in the leader of a node, on several nodes: the cores of its members.
    serving : Member or None
        Of the class: in a process that runs another process's commands, the member that it is.
    """

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
        self.resident = resident
        self._use(communicator)
        self.variables = Registry(watched=rank == master and size > 1)
        self.replicas: dict[int, Replica] = {}
        self.master_input: Any = None
        self.core_limit: AbstractContextManager[None] = master_cores or nullcontext()
        self._master_cores = master_cores
        self._views = views
        self._interrupts = interrupts
        self._node = node
        self._homes: dict[int, list[np.ndarray]] = {}
        self._undo: dict[int, tuple[Entry, Any]] = {}
        self._sent: list[Entry] = []
        self._marks: dict[int, bool] = {}
        self.edition = 0  # counts up whenever the set of variables that differ changes
        self._in_place: Sequence[Entry] = ()
        self._joined: dict[int, np.ndarray] = {}
        self.installed = Installed()
        self.apart: dict[int, str] = {}
        self.clocks: dict[int, Any] = {}
        self.spans: Spans | None = None
        self.owned: dict[int, Any] = {}
        self.scattered_rows: dict[int, tuple[np.ndarray, int]] = {}
        self.above: Any = None
        self.node_cores: list[int] = []

    def assign_rank(self, communicator: Communicator) -> None:
        """Become a member of a group of several nodes, with another rank and size."""
        self.rank, self.size = communicator.rank, communicator.size
        self._use(communicator)

    def _use(self, communicator: Communicator) -> None:
        self.communicator = communicator
        self._gpus = communicator if isinstance(communicator, Gpus) else None
        self.resident = self.resident or self._gpus is not None

    def view(self, ref: ArrayRef | FileRef) -> np.ndarray:
        """The array that a reference names."""
        return self._views[ref]

    def places(self, arrays: Sequence[np.ndarray]) -> list[int]:
        """Offsets of arrays in the arena, in bytes."""
        return [self._views.offset(a) for a in arrays]

    def confined(self) -> AbstractContextManager[None]:
        """A context in which the master uses its own cores only; workers always do."""
        return nullcontext() if self._master_cores is None else self._master_cores.confined()

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """A context for compiling.

        Threads that a library starts in it use this member's cores. The master waits longer for a
        member that compiles.
        """
        with self.confined():
            mine: Any = {} if self._node is None else self._node.words.of[self._node.rank]
            mine[COMPILING] = 1
            began = time.perf_counter()
            try:
                yield
            finally:
                mine[COMPILING] = 0
                if self.spans is not None:
                    self.spans.add(began, time.perf_counter(), COMPILE)

    def show_clocks(self, cells: np.ndarray) -> None:
        """Let those who watch the group from outside find the phases of a function's calls."""
        if self._node is not None:
            [offset] = self.places([cells])
            Status(self._node.arena).add_clocks(offset, cells.shape[1])

    def uninterrupted(self) -> AbstractContextManager[None]:
        """A context in which Ctrl-C waits until all members have reached the same point."""
        return self._interrupts

    @property
    def in_place(self) -> Sequence[Entry]:
        """Variables that the members are writing in place: a failure leaves them torn.

        While there are any, Ctrl-C waits (inside `uninterrupted`).
        """
        return self._in_place

    @in_place.setter
    def in_place(self, entries: Sequence[Entry]) -> None:
        self._interrupts.firm = bool(entries)
        self._in_place = entries

    @property
    def stopping(self) -> bool:
        """Whether the master asks a long command to return; always true in a group of one."""
        if self.above is not None and self.above.stopping:
            return True
        return self._node is None or self._node.stopping

    def peers(self) -> Peers:
        """The other members, for a long command; on one node."""
        return Peers(self._node)

    def progress(self, count: int) -> None:
        """Show the master a count of what a long command has done."""
        if self._node is not None:
            mine = self._node.words.of[self._node.rank]
            mine[PROGRESS] = progress_word(self._node.number, count)
            if self.above is not None:
                self.above.count()

    @property
    def changed(self) -> bool:
        """Whether the current command has changed values."""
        return bool(self._undo)

    def change(self, entry: Entry, value: Any) -> None:
        """Set a variable; `keep` makes the new value final, `undo` restores the old one."""
        placed = self._place(entry, value)
        self._note(entry)
        entry.storage[0] = placed

    def _note(self, entry: Entry) -> None:
        """Remember the value before the command's first change, for an undo."""
        if entry.number not in self._undo:
            self._undo[entry.number] = entry, entry.storage[0]

    def _place(self, entry: Entry, value: Any) -> Any:
        """A copy of the value in the variable's arrays of the arena, if it has some of this shape.

        There are two, used in turn, so that the value before the command stays intact.
        """
        home = self._homes.get(entry.number)
        if home is None:
            return value
        array = np.asarray(value)
        if array.shape != home[0].shape or array.dtype != home[0].dtype:
            del self._homes[entry.number]
            return value
        if len(home) == 1:
            home.append(self.communicator.empty(array.shape, array.dtype))
        current = entry.storage[0]
        if entry.number in self._undo:  # changed before: an undo needs the other
            spare = current if any(current is h for h in home) else None
        else:  # the user may set the value again that other members have a copy of
            spare = next((h for h in home if h is not current and h is not entry.seen), None)
        if spare is None:
            return value
        np.copyto(spare, array)
        return spare

    def join(self, entry: Entry, view: np.ndarray) -> None:
        """Set a variable to an array that all members of the node have in common."""
        self._homes.pop(entry.number, None)
        self.owned.pop(entry.number, None)
        self._note(entry)
        entry.storage[0] = view
        self._joined[entry.number] = view

    def keep(self) -> list[Entry]:
        """Make the changes of the current command final; returns the variables concerned.

        The values are recorded as those that the other members have.
        """
        if not (self._undo or self._sent or self._marks or self._joined):
            return []
        for entry, _ in self._undo.values():
            entry.seen = entry.storage[0]
        for entry in self._sent:
            entry.seen = entry.storage[0]
        for number, differs in self._marks.items():
            entry = self.variables[number]
            self.edition += entry.differs != differs
            entry.differs = differs
            if entry.watched and entry.storage[0] is entry.seen:
                entry.seen = entry.seen  # a new fingerprint, since a reduction wrote in place
        touched = [e for e, _ in self._undo.values()] + self._sent
        touched += [self.variables[number] for number in self._marks]
        self._note_node_shared(touched)
        self._forget_command()
        return touched

    def _note_node_shared(self, touched: list[Entry]) -> None:
        """Record which variables have one array in all members now, and which no longer have."""
        once = {e.number: e for e in touched}.values()
        left = [e for e in once if e.view is not None and e.number not in self._joined]
        for entry in left:
            entry.lent, entry.view = entry.view, None
        for entry in once:
            if not entry.differs:
                entry.lent = None
        for number, view in self._joined.items():
            self.variables[number].view = view
            self.variables[number].elsewhere = self.communicator.nodes > 1
        if left and self.rank == self.master:
            names = ", ".join(e.label for e in left)
            log.info("each member has its own value of %s again", names)

    def _forget_command(self) -> None:
        self._undo.clear()
        self._sent.clear()
        self._marks.clear()
        self._joined.clear()

    def undo(self) -> None:
        """Restore every variable; those that were being written in place are torn."""
        if self._gpus is not None:
            self.communicator.fail_exchange()
        for entry in self._in_place:
            written = entry.storage[0]
            if (
                self._undo.get(entry.number, (entry, written))[1] is written
            ):  # the old value is lost
                mark_torn(entry)
        self.in_place = ()
        for entry, value in self._undo.values():
            entry.storage[0] = value
        self._forget_command()

    def mark(self, entry: Entry, differs: bool) -> None:
        """Record whether the command gives the members different values of a variable."""
        self._marks[entry.number] = differs and self.size > 1

    def differs(self, entry: Entry) -> bool:
        """Whether members hold different values, with the changes of the current command."""
        return self._marks.get(entry.number, entry.differs)

    def forget(self, variables: Sequence[int]) -> None:
        """Drop shared variables, and free their memory."""
        self.variables.remove(variables)
        for number in variables:
            self._homes.pop(number, None)
            self.owned.pop(number, None)

    @property
    def on_gpus(self) -> bool:
        """Whether arrays of JAX move between the members without a copy in the host's memory."""
        return self._gpus is not None

    def native(self, value: Any) -> Any:
        """A value in the form in which it moves: an array of numpy, or of JAX on a GPU."""
        return np.asarray(value) if self._gpus is None else self._gpus.native(value)

    def adding_up(self, arrays: list[Any]) -> AbstractContextManager[None]:
        """A context in which arrays of JAX, which only the caller holds, are summed over members.

        At its end `arrays` hold the sums.
        """
        if self._gpus is not None:
            return self._gpus.adding_up(arrays)
        if self.size > 1:
            raise TypeError("only members on GPUs add up arrays of JAX")
        return nullcontext()

    def array(self, entry: Entry) -> Any:
        """A variable's value in the form in which the communicator moves it."""
        return self.native(entry.storage[0])

    def receive_master_values(self, entries: Sequence[Entry], undo: bool = True) -> None:
        """Set variables to the master's values, in all members."""
        if not entries:
            return
        self._sent += entries
        mine = self.rank == self.master
        values = [self.array(e) for e in entries] if mine else None
        received = self.communicator.broadcast(values, self.master)
        if mine or received is None:
            return
        for entry, value in zip(entries, received, strict=True):
            if undo:
                self.change(entry, value)
            else:
                entry.storage[0] = value

    def take_new(self, values: NewValues) -> None:
        """Give variables the values that the user has set in the master, in all members."""
        self.receive_master_values([self.variables[n] for n in values.numbers])
        for number, value in values.objects:
            entry = self.variables[number]
            if self.rank == self.master:
                value = entry.storage[0]
            elif isinstance(value, np.random.Generator):
                value = stream(value, self.rank, self.master)
            self.change(entry, value)

    def adopt(self, entry: Entry) -> np.ndarray:
        """Move a variable's value into the arena, where collectives read it without a copy."""
        if self.size == 1:
            return self.array(entry)
        home = self._homes.get(entry.number)
        value = entry.storage[0]
        if home is None or not any(value is h for h in home):
            array = np.asarray(value)
            home = [self.communicator.empty(array.shape, array.dtype)]
            np.copyto(home[0], array)
            self._homes[entry.number] = home
            entry.seen = home[0] if entry.seen is value else entry.seen
            entry.storage[0] = home[0]
        placed: np.ndarray = entry.storage[0]
        return placed

    def is_placed(self, entry: Entry) -> bool:
        """Whether a variable's value must not be moved, since collectives write it in place."""
        value = entry.storage[0]
        return entry.view is value or self._views.hold(value)

    def move(self, entry: Entry, value: Any) -> None:
        """Replace a variable's value by an equal one, which a function reads without a copy."""
        if entry.seen is entry.storage[0]:
            entry.seen = value
        entry.storage[0] = value

    def leave(self) -> None:
        """Close the links to the other members' GPUs."""
        if self._gpus is not None:
            self._gpus.close()

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
        self._homes.clear()
        self.owned.clear()
        self.leave()
