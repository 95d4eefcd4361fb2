"""The shared variables of a member, by number; in the master also which values the others have.

A variable stays one variable in every member, also if functions are sent at different times:
graphs contain its number, and never the variable itself.
"""

# These rules hold here:
#
# * `seen` says what the other members have. What a command brings them counts once it is final
#   (`Changes.keep`), so a value that is lost on its way is sent again.
# * `differs` and `view` follow from what commands mark, when these are final.
# * The user's value is never copied to be compared: identity, and a fingerprint, have to do.
# * A torn value is marked by its container, for all groups, and `seen` is cleared. So its next use
#   looks at it, and raises until the user has set it.

from __future__ import annotations

import functools
import hashlib
import math
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.link.basic import Container
from pytensor.tensor.random.type import RandomType

from synkhronos._errors import InputError, ReplicaWarning, StateTorn
from synkhronos._warnings import warn

# by container: the value that a failure has left half written
_torn: weakref.WeakKeyDictionary[Container, np.ndarray] = weakref.WeakKeyDictionary()


@dataclass(eq=False)
class Entry:
    """A shared variable, and in the master what it knows of the values in other members."""

    # returns the variable. The master's are weak references: when the user has dropped a variable
    # and its clones, and all functions with them, its memory is freed in all members
    ref: Callable[[], SharedVariable | None]
    number: int
    storage: list[Any]  # the one-element list in which the variable's container keeps its value
    # in a master with workers: `seen` keeps a fingerprint of the value, to notice a change of the
    # value itself
    watched: bool = False
    # the user has made the members' values differ: scatter, set_value(rank), local updates
    differs: bool = False
    # the array that is the variable's value in all members of the node, if there is one
    view: np.ndarray | None = None
    elsewhere: bool = False  # other nodes have their own arrays for the variable
    # previous `view`; kept while some member may still use it, since the memory is the master's and
    # would be freed
    lent: np.ndarray | None = None
    _seen: Any = field(default=None, init=False)
    _sample: np.ndarray | None = field(default=None, init=False)
    _print: int = field(default=0, init=False)

    @property
    def seen(self) -> object:
        """The value that the other members have a copy of.

        The user's `set_value` puts another object into the storage, which the master notices.
        Functions of PyTensor may write into the same object, which changes the fingerprint.
        """
        return self._seen

    @seen.setter
    def seen(self, value: object) -> None:
        self._seen = value
        self._sample = _sample(value) if self.watched else None
        if self._sample is not None:
            self._print = hash(self._sample.tobytes())

    @property
    def is_set(self) -> bool:
        """Whether the value is not the one of the other members, as far as the master can see."""
        if self.storage[0] is not self._seen:
            return True
        if self._sample is None or self.view is not None:
            return False
        return hash(self._sample.tobytes()) != self._print

    @property
    def variable(self) -> SharedVariable:
        """The shared variable."""
        found = self.ref()
        if found is None:
            raise InputError(f"shared variable number {self.number} has been dropped by its user")
        return found

    @property
    def is_stream(self) -> bool:
        """Whether the value is a random generator: each member draws from its own stream."""
        return isinstance(self.variable.type, RandomType)

    def settle(self) -> bool:
        """In the master: copy a value that the user has set into the node's common array.

        Returns whether all members have the value now.
        """
        value = self.storage[0]
        if self.view is None or value is self.view:
            return self.view is not None
        if self.elsewhere:
            return False
        array = np.asarray(value)
        if array.shape != self.view.shape:
            return False
        np.copyto(self.view, array)
        self.storage[0] = self.seen = self.view
        return True

    @property
    def label(self) -> str:
        """How messages name the variable."""
        return self.variable.name or f"<unnamed shared variable {self.variable.type}>"


_WHOLE_BYTES = 1 << 12  # up to this size a fingerprint covers every element
_SAMPLES = 64  # of larger arrays, about this many elements


def _sample(value: object) -> np.ndarray | None:
    """The elements in the fingerprint, as a view: all, or a regular grid."""
    if not isinstance(value, np.ndarray) or value.dtype.hasobject:
        return None
    if value.nbytes <= _WHOLE_BYTES:
        return value
    each = math.ceil(_SAMPLES ** (1 / value.ndim))
    return value[tuple([slice(None, None, max(1, n // each)) for n in value.shape])]


@dataclass(frozen=True)
class Definition:
    """A description of a shared variable for another member; arrays follow by broadcast."""

    number: int
    kind: type
    type: object
    name: str | None
    value: object = None  # a generator, or another value that is not an array


class _Clones:
    """Weak references to a user's variable and to clones of it, which have one container."""

    def __init__(self, variable: SharedVariable) -> None:
        self._refs = [weakref.ref(variable)]

    def __call__(self) -> SharedVariable | None:
        """The first of them that still exists."""
        return next((v for ref in self._refs if (v := ref()) is not None), None)

    def add(self, variable: SharedVariable) -> None:
        """Add a clone, if it is new."""
        alive = [ref for ref in self._refs if ref() is not None]
        known = any(ref() is variable for ref in alive)
        self._refs = alive if known else [*alive, weakref.ref(variable)]


class Registry:
    """Shared variables by number and by name; clones of a variable (`clone`) count as the variable.

    `watched`: the values are those of a master with workers, which notices what the user changes.
    """

    def __init__(self, watched: bool = False) -> None:
        self._watched = watched
        self._entries: dict[int, Entry] = {}
        self._numbers: weakref.WeakKeyDictionary[Container, int] = weakref.WeakKeyDictionary()
        self._next = 0  # a number is used once: a member may still know the old variable
        # in the master: variables that the user has dropped and `remove` has not removed yet
        self.dropped: list[int] = []

    def __getitem__(self, number: int) -> Entry:
        return self._entries[number]

    def __iter__(self) -> Any:
        return iter([e for e in self._entries.values() if e.ref() is not None])

    def find(self, variable: SharedVariable) -> Entry | None:
        """The entry of a variable, if it is known."""
        number = self._numbers.get(variable.container)
        if number is None:
            return None
        entry = self._entries[number]
        if entry.ref() is not variable and isinstance(entry.ref, _Clones):
            entry.ref.add(variable)
        return entry

    def of(self, variable: SharedVariable) -> Entry:
        """The entry of a variable that is known."""
        return self._entries[self._numbers[variable.container]]

    def add(self, variable: SharedVariable, number: int | None = None) -> Entry:
        """Add a variable. Without a number it belongs to the user, who may drop it."""
        check_whole(variable)
        ref: Callable[[], SharedVariable | None]
        if number is None:
            number = self._next
            self._next += 1
            ref = _Clones(variable)
            weakref.finalize(variable.container, self.dropped.append, number).atexit = False
        else:
            ref = functools.partial(_same, variable)
        entry = Entry(ref, number, variable.container.storage, self._watched)
        self._entries[number] = entry
        self._numbers[variable.container] = number
        return entry

    def remove(self, numbers: Iterable[int]) -> None:
        """Forget variables."""
        for number in numbers:
            entry = self._entries.pop(number, None)
            variable = None if entry is None else entry.ref()
            if variable is not None:
                self._numbers.pop(variable.container, None)

    def named(self, name: str) -> Entry:
        """The one variable of that name."""
        found = [e for e in self if e.variable.name == name]
        if len(found) == 1:
            return found[0]
        if not found:
            known = sorted(e.variable.name for e in self if e.variable.name)
            raise InputError(
                f"no shared variable is named {name!r}; known names: {', '.join(known) or 'none'}"
            )
        raise InputError(f"{len(found)} shared variables are named {name!r}: pass the variable")


def _same(variable: SharedVariable) -> SharedVariable:
    return variable


def watch(variable: SharedVariable) -> Entry:
    """An entry outside of any registry, for a variable whose value only the master reads."""
    storage = variable.container.storage
    entry = Entry(functools.partial(_same, variable), -1, storage)
    entry.seen = storage[0]
    return entry


def define(entry: Entry, *, value: object = None) -> Definition:
    """Describe a variable to the other members."""
    sv = entry.variable
    return Definition(entry.number, type(sv), sv.type, sv.name, value)


def build(definition: Definition) -> SharedVariable:
    """Make the variable in another member."""
    value = definition.value
    if value is None:
        value = _placeholder(definition.type)
    return definition.kind(
        type=definition.type, value=value, strict=False, allow_downcast=None, name=definition.name
    )


def _placeholder(kind: Any) -> object:
    """A value of the type, until the real one arrives by broadcast."""
    return np.zeros([1 if s is None else s for s in kind.shape], kind.dtype)


def check_dense(variable: SharedVariable) -> None:
    """Raise if the variable is sparse: only dense arrays move between members."""
    if hasattr(variable.type, "format"):  # importing pytensor.sparse to ask costs 0.1 s
        raise InputError(
            f"shared variable {variable.name!r} is sparse ({variable.type}) and cannot be sent to "
            "other members: share its data, indices and indptr, and build the matrix in the graph "
            "with pytensor.sparse.CSR (or CSC)"
        )


def is_array(entry: Entry) -> bool:
    """Whether the value is sent as an array."""
    kind = entry.variable.type
    return hasattr(kind, "dtype") and hasattr(kind, "ndim") and not entry.is_stream


def stream(generator: np.random.Generator, rank: int, master: int) -> np.random.Generator:
    """A member's own random stream, computed from the generator's state and the rank.

    The master keeps the user's generator, so a group of one draws the serial function's numbers.
    """
    if rank == master:
        return generator
    bits = generator.bit_generator
    digest = hashlib.sha256(repr(bits.state).encode()).digest()
    seed = np.random.SeedSequence([*np.frombuffer(digest, np.uint32).tolist(), rank])
    return np.random.Generator(type(bits)(seed))


class NewValues(NamedTuple):
    """Values that the user has set in the master, as a command carries them to other members."""

    numbers: tuple[int, ...]  # variables whose values are arrays: the master broadcasts them
    # variables with other values (random generators), which the command contains
    objects: tuple[tuple[int, object], ...]


def to_send(entries: Iterable[Entry]) -> list[Entry]:
    """In the master: the variables whose values the user has set and other members do not have.

    If the members of the node have a common array for it, the value is copied there, and not sent.
    """
    found = []
    for entry in entries:
        if entry.is_set:
            check_whole(entry.variable)
            make_contiguous(entry)
            if not entry.settle():
                found.append(entry)
    return found


def make_contiguous(entry: Entry) -> None:
    """In the master: give an array the layout in which the others get it.

    Numba compiles a function for each layout, so a second one would cost workers the whole first
    call again.
    """
    value = entry.storage[0]
    if type(value) is np.ndarray and not value.flags.c_contiguous:
        entry.storage[0] = np.ascontiguousarray(value)


def new_values(
    entries: Iterable[Entry], replaced: Callable[[Entry], bool] = lambda entry: False
) -> NewValues | None:
    """In the master: the values that the next command must carry; None: all members have them.

    A variable whose members were made to differ keeps their values, with a warning unless the
    command replaces them without reading them.
    """
    numbers, objects = [], []
    for entry in to_send(entries):
        if entry.differs and not entry.is_stream:
            if not replaced(entry):
                _warn_differs(entry)
        elif is_array(entry):
            numbers.append(entry.number)
        else:
            objects.append((entry.number, entry.storage[0]))
    return NewValues(tuple(numbers), tuple(objects)) if numbers or objects else None


def _warn_differs(entry: Entry) -> None:
    entry.seen = entry.storage[0]
    warn(
        f"shared variable {entry.label} was set in the master while the members hold their own "
        "values: theirs are kept. synk.broadcast gives all members the master's",
        ReplicaWarning,
    )


def mark_torn(entry: Entry) -> None:
    """Remember that a failure has left this value half written."""
    if (variable := entry.ref()) is not None:
        _torn[variable.container] = entry.storage[0]
    entry.seen = None  # so that the next use checks the value


def lost_with_workers(entries: Iterable[Entry]) -> list[str]:
    """The values that new workers cannot get from the master."""
    found = list(entries)
    lost = [f"{e.label} (half written)" for e in found if is_torn(e)]
    differing = [e for e in found if e.differs and not e.is_stream]
    return lost + [f"{e.label} (members held different values)" for e in differing]


def is_torn(entry: Entry) -> bool:
    """Whether a failure has left the value half written."""
    variable = entry.ref()
    torn = None if variable is None else _torn.get(variable.container)
    return torn is not None and torn is entry.storage[0]


def check_whole(variable: SharedVariable) -> None:
    """Raise if a failure has left the value half written and the user has not set it since."""
    torn = _torn.get(variable.container)
    if torn is None:
        return
    if torn is variable.container.storage[0]:
        raise StateTorn(
            f"the value of shared variable {variable.name!r} was half written when a member failed "
            "during an update in place: set it (set_value) or load a checkpoint before "
            "you use it"
        )
    del _torn[variable.container]
