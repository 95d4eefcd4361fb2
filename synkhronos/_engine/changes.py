"""Changes by the current command in one member, until the verdict keeps or undoes them.

These rules hold:

* A command sets a variable here, and nowhere else. The value from before its first change is noted
  first, so an exception at any moment can be undone.
* The value from before is never overwritten. A variable with arrays in the arena has two of them,
  and a change writes the one that does not hold the old value.
* Another thread, or a signal handler, may set a variable at any moment. All members know the object
  that the command has sent or placed, and not the one that the variable holds at the end. An undo
  leaves a value that somebody else has set.
* Values that are written in place cannot be undone. They are announced first (`in_place`): Ctrl-C
  then waits, and a failure marks them as torn, so that each later use raises `StateTorn`.
* `keep` and `undo` may be interrupted and called again; the second call completes the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from synkhronos._engine.variables import Entry, Registry, mark_torn
from synkhronos._transport.communicators.communicator import Communicator
from synkhronos._transport.processes.interrupts import Interrupts
from synkhronos._warnings import log


@dataclass
class HeldArrays:
    """Memory and notes of one member."""

    # by the number of a variable: its arrays in the arena, where collectives read it without a
    # copy. There are one or two, used in turn
    homes: dict[int, list[np.ndarray]] = field(default_factory=dict)
    # by the number of a variable: its value, which only this member holds, and may overwrite
    overwritable: dict[int, object] = field(default_factory=dict)
    # by the number of a function: names of values beside variables, of which each member has its
    # own. They are lost with the workers
    own_values: dict[int, str] = field(default_factory=dict)

    def forget(self, variables: Iterable[int]) -> None:
        """Free the memory of variables that the user has dropped."""
        for number in variables:
            self.homes.pop(number, None)
            self.overwritable.pop(number, None)

    def clear(self) -> None:
        """Free the memory of all variables."""
        self.homes.clear()
        self.overwritable.clear()


class Changes:
    """The changes of the current command."""

    def __init__(
        self, variables: Registry, held: HeldArrays, interrupts: Interrupts, master: int
    ) -> None:
        # counts up whenever the set of variables that differ between members changes
        self.edition = 0
        self.interrupts = interrupts  # of this process
        self._variables = variables
        self._held = held  # the arrays that new values are copied into
        self._master = master  # its rank
        # by number: a variable, its value before, and the values that the command has placed
        self._undo: dict[int, tuple[Entry, object, list[object]]] = {}
        # by number: a variable, and the value that the other members get of it
        self._given: dict[int, tuple[Entry, object]] = {}
        self._marks: dict[int, bool] = {}
        self._joined: dict[int, np.ndarray] = {}
        self._in_place: Sequence[Entry] = ()
        # what the command has written in place, wholly; whoever begins a command clears it
        self.written: Sequence[Entry] = ()
        # the names of variables that commands without a verdict have written wholly: their new
        # values stay, so these commands must not be repeated. `take_done` clears it
        self._done: list[str] = []

    def use(self, communicator: Communicator) -> None:
        """Follow the member to another communicator."""
        self._communicator = communicator

    @property
    def in_place(self) -> Sequence[Entry]:
        """Variables that the members are writing in place: a failure leaves them torn.

        While there are any, Ctrl-C waits (inside `Member.uninterrupted`).
        """
        return self._in_place

    @in_place.setter
    def in_place(self, entries: Sequence[Entry]) -> None:
        self.interrupts.firm = bool(entries)
        if not entries:
            self.written = [*self.written, *self._in_place]
        self._in_place = entries

    def take_done(self) -> list[str]:
        """The variables that commands have written in place, although they were undone since."""
        found, self._done = self._done, []
        return found

    def __bool__(self) -> bool:
        """Whether the command has changed values."""
        return bool(self._undo)

    def set(self, entry: Entry, value: object) -> None:
        """Set a variable; `keep` makes the new value final, `undo` restores the old one."""
        self._put(entry, self._place(entry, value))

    def _put(self, entry: Entry, placed: object) -> None:
        """Give a variable a value, and remember the one before the first change, for an undo."""
        found = self._undo.get(entry.number)
        if found is None:
            self._undo[entry.number] = entry, entry.storage[0], [placed]
        else:
            found[2].append(placed)
        self._given[entry.number] = entry, placed
        entry.storage[0] = placed

    def replace(self, entry: Entry, old: object, new: object) -> None:
        """Let an equal value take the place of a variable's; the user's is left alone."""
        if entry.number in self._undo and any(p is old for p in self._undo[entry.number][2]):
            self._undo[entry.number][2].append(new)
        if entry.number in self._given and self._given[entry.number][1] is old:
            self._given[entry.number] = entry, new
        if entry.seen is old:
            entry.seen = new
        if entry.storage[0] is old:
            entry.storage[0] = new

    def _place(self, entry: Entry, value: object) -> object:
        """A copy of the value in the variable's arrays of the arena, if it has some of this shape.

        There are two, used in turn, so that the value before the command stays intact.
        """
        homes = self._held.homes
        home = homes.get(entry.number)
        if home is None:
            return value
        array = np.asarray(value)
        if array.shape != home[0].shape or array.dtype != home[0].dtype:
            del homes[entry.number]
            return value
        if len(home) == 1:
            home.append(self._communicator.empty(array.shape, array.dtype))
        current = entry.storage[0]
        if entry.number in self._undo:  # changed before: an undo needs the other
            spare = current if any(current is h for h in home) else None
        else:  # the user may set the value again that other members have a copy of
            spare = next((h for h in home if h is not current and h is not entry.seen), None)
        if spare is None:
            return value
        np.copyto(spare, array)
        return spare

    def adopt(self, entry: Entry) -> np.ndarray:
        """Move a variable's value into the arena, where collectives read it without a copy."""
        if self._communicator.size == 1:
            found: np.ndarray = self._communicator.native(entry.storage[0])
            return found
        home = self._held.homes.get(entry.number)
        value = entry.storage[0]
        if home is None or not any(value is h for h in home):
            array = np.asarray(value)
            home = [self._communicator.empty(array.shape, array.dtype)]
            np.copyto(home[0], array)
            self._held.homes[entry.number] = home
            self.replace(entry, value, home[0])
            value = home[0]
        placed: np.ndarray = value
        return placed

    def join(self, entry: Entry, view: np.ndarray) -> None:
        """Set a variable to an array that all members of the node have in common."""
        self._held.forget([entry.number])
        self._put(entry, view)
        self._joined[entry.number] = view

    def note_sent(self, entries: Sequence[Entry]) -> list[object]:
        """Note that the command gives all members the values that variables have in the master.

        Returns these values.
        """
        values = [entry.storage[0] for entry in entries]
        for entry, value in zip(entries, values, strict=True):
            self.note_given(entry, value)
        return values

    def note_given(self, entry: Entry, value: object) -> None:
        """Note that the command gives all members a value that the master has, or had."""
        self._given[entry.number] = entry, value

    def mark(self, entry: Entry, differs: bool) -> None:
        """Record whether the command gives the members different values of a variable."""
        self._marks[entry.number] = differs and self._communicator.size > 1

    def differs(self, entry: Entry) -> bool:
        """Whether members hold different values, with the changes of the current command."""
        return self._marks.get(entry.number, entry.differs)

    def keep(self) -> list[Entry]:
        """Make the changes of the current command final; returns the variables concerned.

        The values are recorded as those that the other members have.
        """
        if not (self._given or self._marks or self._joined):
            return []
        for entry, value in self._given.values():
            entry.seen = value
        for number, differs in self._marks.items():
            entry = self._variables[number]
            self.edition += entry.differs != differs
            entry.differs = differs
            if entry.watched and entry.storage[0] is entry.seen:
                entry.seen = entry.seen  # a new fingerprint, since a reduction wrote in place
        touched = [e for e, _ in self._given.values()]
        touched += [self._variables[number] for number in self._marks]
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
            self._variables[number].view = view
            self._variables[number].elsewhere = self._communicator.nodes > 1
        if left and self._communicator.rank == self._master:
            names = ", ".join(e.label for e in left)
            log.info("each member has its own value of %s again", names)

    def _forget_command(self) -> None:
        self._undo.clear()
        self._given.clear()
        self._marks.clear()
        self._joined.clear()

    def undo(self) -> None:
        """Restore every variable; those that were being written in place are torn."""
        if self._communicator.on_gpus:
            self._communicator.fail_exchange()
        self._done += [e.label for e in self.written if e.ref() is not None]
        self.written = ()
        for entry in self._in_place:
            written = entry.storage[0]
            _, before, _ = self._undo.get(entry.number, (entry, written, []))
            if before is written and not self._is_users(entry):  # the old value is lost
                mark_torn(entry)
        self.in_place = ()
        self.written = ()  # what is torn is not whole
        for entry, value, placed in self._undo.values():
            if any(p is entry.storage[0] for p in placed):
                entry.storage[0] = value
        self._forget_command()

    def _is_users(self, entry: Entry) -> bool:
        """Whether the user has set a variable while the group wrote the memory of its value."""
        ours = [*self._held.homes.get(entry.number, ()), entry.view]
        known = [a for a in ours if a is not None]
        return bool(known) and not any(a is entry.storage[0] for a in known)
