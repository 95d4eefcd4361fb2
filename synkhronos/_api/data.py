"""Data: an array in shared memory that every member can read; an input of functions."""

# These rules hold here:
#
# * Dtype and number of dimensions never change. Shape and place do so only in the master, while the
#   group lives.
# * `stamp` is new whenever place, shape or `minibatch` changes, and never used twice. A repeated
#   call compares stamps and nothing else, so whatever sets `_view` sets it, too.
# * Nothing is sent: members find the array by `ref`, which the next command carries.
# * Unless it maps a file, `_view` is the begin of `_memory`, in its shape. Growth takes other
#   memory, and the old one lives as long as a view of the user's.
# * On several nodes each write has to be noted by `wrote`, or the other nodes keep the old value.
#   So all views that users get are read-only there.
# * A value is checked and converted before anything is replaced: an error leaves the Data as they
#   were.

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from synkhronos._api.unusable import is_masked, why_unusable
from synkhronos._checks import check_number, is_integer, shown
from synkhronos._engine.group import Group, current
from synkhronos._errors import InputError, InputTypeError
from synkhronos._host.arena import ArrayRef, FileRef, mapped_inode

_stamps = itertools.count()


class _ReadOnly(np.ndarray):
    """The contents of Data in a group of several nodes."""

    def __array_finalize__(self, made_of: object) -> None:
        if isinstance(made_of, np.ndarray) and not isinstance(made_of, _ReadOnly):
            self.flags.writeable = False

    def __setitem__(self, key: Any, value: object) -> None:
        if not self.flags.writeable:
            raise InputError(
                "d.data is read-only in a group of several nodes, and so are d[i] and "
                "np.asarray(d): the other nodes would not see the change. Write d[...] = value, or "
                "d.set_value(value)"
            )
        super().__setitem__(key, value)


class Data:
    """A numpy-like array that all members of a group see.

    Made by `synk.data`. The dtype and the number of dimensions are fixed, the shape can change. The
    memory is freed with the last reference to the Data or to a view.

    After the end of the group, Data can be read and written; methods that change the shape raise
    GroupClosed.

    `pickle` and the like write the array. They read Data of the current group; without one
    they raise NotForked. A copy by `copy` is Data of the same group, with an array of its own.

    Attributes
    ----------
    group : Group
    name : str or None
    stamp : int
        A new number whenever the place in memory, the shape or `minibatch` changes; unique among
        all Data.

    Examples
    --------
    >>> import synkhronos as synk
    >>> _ = synk.fork(2)
    >>> d = synk.data([[1, 2], [3, 4]], dtype="float32")
    >>> d[0, 1] = 9; d.data.tolist()
    [[1.0, 9.0], [3.0, 4.0]]
    >>> synk.close()
    >>> d[1] = 0; d.data.tolist()
    [[1.0, 9.0], [0.0, 0.0]]
    """

    __array_priority__ = 10.0

    def __init__(
        self, group: Group, dtype: np.dtype, ndim: int, name: str | None, minibatch: bool
    ) -> None:
        self.group = group
        self._dtype = dtype
        self._ndim = ndim
        self.name = name
        self.minibatch = minibatch  # and a first `stamp`
        self._memory = np.empty(0, dtype)  # all that is allocated, 1-D
        self._view = np.zeros((0,) * ndim, dtype)
        self._ref: ArrayRef | FileRef | None = None
        self._generation = 0
        self._given = False  # a value or a shape

    @property
    def minibatch(self) -> bool:
        """Whether the rows are those of a call's batch; it can be set."""
        return self._minibatch

    @minibatch.setter
    def minibatch(self, value: bool) -> None:
        self._minibatch = bool(value)
        self.stamp = next(_stamps)

    @property
    def data(self) -> np.ndarray:
        """The array itself, a view of shared memory; write to it in place.

        In a group of several nodes it is read-only, as are ``d[i]`` and ``np.asarray(d)``: write
        with ``d[...] = value`` or `set_value`, which send the values to the other nodes.
        """
        if self.group.arena.tracks_changes:
            return self._view.view(_ReadOnly)
        return self._view

    @property
    def dtype(self) -> np.dtype:
        """The fixed dtype."""
        return self._dtype

    @property
    def ndim(self) -> int:
        """The fixed number of dimensions."""
        return self._ndim

    @property
    def shape(self) -> tuple[int, ...]:
        """The current shape."""
        return self._view.shape

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._view.size

    @property
    def alloc_size(self) -> int:
        """The number of elements that fit into the allocated memory."""
        return self._memory.size

    @property
    def ref(self) -> ArrayRef | FileRef:
        """The name by which members find the array."""
        if self._ref is None:
            self._ref = self.group.arena.ref(self._view, self._generation)
        return self._ref

    def __len__(self) -> int:
        if not self._ndim:
            raise TypeError("len() of 0-d Data")
        return len(self._view)

    def __getitem__(self, key: Any) -> Any:
        found = self.data[key]
        is_copy = isinstance(found, _ReadOnly) and found.flags.writeable
        return np.asarray(found) if is_copy else found

    def __setitem__(self, key: Any, value: object) -> None:
        if self.group.arena.tracks_changes and isinstance(self._ref, FileRef):
            raise InputError(
                f"{self!r} is a file that each node opens for itself, and other nodes might not "
                "see the change: write to the file before any call reads it, or make Data of a "
                "copy, synk.data(np.array(mapped))"
            )
        self._view[key] = value
        self.wrote(key)

    @property
    def writable(self) -> np.ndarray:
        """The array itself; call `wrote` after each write."""
        return self._view

    @property
    def readable(self) -> np.ndarray:
        """The whole array, for functions: of one that is read-only, numba compiles them anew."""
        return np.asarray(self._view)

    def wrote(self, key: object = ...) -> None:
        """Note a write to `writable`: the next command sends these elements to the other nodes."""
        arena = self.group.arena
        if arena.tracks_changes and not isinstance(self._ref, FileRef):
            arena.mark_dirty(_written(self._view, key))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.data, dtype=dtype, copy=copy)

    def __deepcopy__(self, memo: object) -> Data:
        self.group.check("copy.deepcopy of Data")
        return _made(self.group, self._contents(), self.name, self.minibatch)

    def __copy__(self) -> Data:
        return self.__deepcopy__(None)

    def __reduce__(self) -> Any:
        return _unpickled, (self._contents(), self.name, self.minibatch)

    def _contents(self) -> np.ndarray:
        return np.array(self._view)

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        flag = ", minibatch" if self.minibatch else ""
        known = self._given or self.size
        shape = str(self.shape) if known else f"{self._ndim}-d, no value yet"
        return f"<synkhronos.Data{name} {self._dtype} {shape}{flag}>"

    def condition_data(self, input_data: object, force_cast: bool = False) -> np.ndarray:
        """Return an array as `set_value` would store it; the Data do not change.

        Parameters
        ----------
        input_data : array_like, of this ndim
        force_cast : bool
            Also cast to a smaller dtype.

        Raises
        ------
        InputTypeError
            The array has another number of dimensions, or its dtype does not cast safely.

        Examples
        --------
        >>> import numpy as np, synkhronos as synk
        >>> with synk.Group(1):
        ...     synk.data(shape=(3,), dtype="float64").condition_data(np.array([1, 2], "int32"))
        array([1., 2.])
        """
        value = as_literal(input_data, self._dtype)
        if unusable := value.dtype.kind in "OSUT" and why_unusable(input_data):
            raise InputTypeError(f"{self!r} cannot hold {shown(input_data)}: {unusable}")
        if value.ndim != self._ndim:
            raise InputTypeError(
                f"{self!r} takes arrays of {self._ndim} dimensions, found {value.ndim} "
                f"(shape {value.shape})"
            )
        if not force_cast and not np.can_cast(value.dtype, self._dtype, "safe"):
            raise InputTypeError(
                f"{self!r} does not take {value.dtype} without loss: pass force_cast=True to cast, "
                f'or make Data with dtype="{value.dtype}"'
            )
        return value.astype(self._dtype, copy=False)

    def set_value(self, input_data: Any, force_cast: bool = False, oversize: float = 1) -> None:
        """Replace the contents, of any length.

        Parameters
        ----------
        input_data : array_like, of this ndim
            A numpy.memmap is not loaded: each member maps its file. One of mode "c" is copied,
            because its changes are not in the file.
        force_cast : bool
            Also cast to a smaller dtype.
        oversize : float, at least 1
            Allocate memory for this many times the elements, for later growth.

        Raises
        ------
        InputError, InputTypeError, MemoryError
            Nothing has changed then. InputError: the file of a numpy.memmap has been replaced.

        Notes
        -----
        Cost: one copy; no communication with the workers.

        Examples
        --------
        >>> import synkhronos as synk
        >>> with synk.Group(1):
        ...     d = synk.data([1.0, 2.0], oversize=2)
        ...     d.set_value([3.0, 4.0, 5.0]); d.data
        array([3., 4., 5.])
        """
        value = self.condition_data(input_data, force_cast)
        self._given = True
        if self._mappable(input_data):
            self._map(input_data)
            return
        self.reshape(value.shape, oversize, keep=False)
        self._view[...] = value
        self.wrote()

    def set_length(self, length: int, oversize: float = 1) -> None:
        """Change the length of axis 0; remaining rows keep their contents.

        >>> import synkhronos as synk
        >>> with synk.Group(1):
        ...     d = synk.data([1.0, 2.0])
        ...     d.set_length(3); d.data
        array([1., 2., 0.])
        """
        if not self._ndim:
            raise InputError("0-d Data has no length")
        self.set_shape((length, *self.shape[1:]), oversize)

    def set_shape(self, shape: Sequence[int] | int, oversize: float = 1) -> None:
        """Change the shape; elements inside both shapes keep their values, new ones are 0.

        Raises
        ------
        InputError
            The shape has another number of dimensions, or a negative size.
        MemoryError
            The message says how much was asked for and how much is free.

        Examples
        --------
        >>> import synkhronos as synk
        >>> with synk.Group(1):
        ...     d = synk.data([[1.0, 2.0], [3.0, 4.0]])
        ...     d.set_shape((1, 3)); d.data
        array([[1., 2., 0.]])
        """
        given = tuple(shape) if isinstance(shape, Iterable) else (shape,)
        if len(given) != self._ndim or not all(is_integer(n) and n >= 0 for n in given):
            raise InputError(
                f"{self!r} cannot take the shape {shown(given)}: give {self._ndim} integers of at "
                "least 0"
            )
        self._given = True
        self.reshape(tuple([int(n) for n in given]), oversize, keep=True)

    def free_memory(self) -> None:
        """Free the memory; the length becomes 0 (0-d Data become 0).

        >>> import synkhronos as synk
        >>> with synk.Group(1):
        ...     d = synk.data([[1.0, 2.0]])
        ...     d.free_memory(); d.shape, d.alloc_size
        ((0, 0), 1)
        """
        self.group.check("Data")
        self._memory = np.empty(0, self._dtype)
        self._view = np.empty(0, self._dtype)
        self.reshape((0,) * self._ndim, 1, keep=False)

    def reshape(self, shape: tuple[int, ...], oversize: float, keep: bool) -> None:
        """Change the shape; `keep`: elements inside both shapes keep their values."""
        if type(oversize) is not int or oversize < 1:  # spares calls the time of the check
            oversize = check_number("oversize", oversize, 1)
        if shape == self.shape and self._memory.size >= int(self.size * oversize) > 0:
            return
        self.group.check("Data")
        old, count = self._view, math.prod(shape)
        want = max(1, int(count * oversize))
        mapped = isinstance(self._ref, FileRef)
        fits = want <= self._memory.size and not mapped
        if keep and fits and shape[1:] != old.shape[1:]:
            fits = False  # moving rows of another length in place would overwrite some
        if not fits:
            self._memory = self.group.arena.empty((want,), self._dtype)
            self.group.arena.generation += 1
        new = self._memory[:count].reshape(shape)
        if keep:
            _keep_common(old, new, same_memory=fits)
        self._take(new)
        if keep:
            self.wrote()

    def _take(self, view: np.ndarray) -> None:
        self._view = view
        self._ref = None
        self.stamp = next(_stamps)
        self._generation = self.group.arena.generation

    def _mappable(self, value: object) -> bool:
        """Whether each member can map the array's file."""
        return (
            isinstance(value, np.memmap)
            and value.filename is not None
            and value.mode != "c"  # what the user has changed is not in the file
            and value.dtype == self._dtype
            and value.flags.c_contiguous
            and value.size > 0
            and os.path.exists(value.filename)  # members find it by its name
        )

    def _map(self, value: np.memmap) -> None:
        self.group.check("Data")
        inode = mapped_inode(value, str(value.filename))
        self.group.arena.generation += 1
        self._memory = np.empty(0, self._dtype)
        self._view = value
        self.stamp = next(_stamps)
        self._generation = self.group.arena.generation
        start = value.__array_interface__["data"][0]
        base = value.base if isinstance(value.base, np.memmap) else value
        inside = start - base.__array_interface__["data"][0]
        self._ref = FileRef(
            str(value.filename),
            int(base.offset) + inside,
            value.shape,
            value.dtype.str,
            # copy-on-write: a read-only array would make numba compile every function anew
            "c",
            self._generation,
            inode,
        )


def _made(group: Group, value: np.ndarray, name: str | None, minibatch: bool) -> Data:
    made = Data(group, value.dtype, value.ndim, name, minibatch)
    made.set_value(value)
    return made


def _unpickled(value: np.ndarray, name: str | None, minibatch: bool) -> Data:
    what = "unpickling Data (for a process without a group, pickle np.asarray(data))"
    return _made(current(what), value, name, minibatch)


def as_literal(given: object, dtype: np.dtype) -> np.ndarray:
    """Make an array; plain numbers and lists take `dtype` if they fit."""
    if is_masked(given):
        raise InputTypeError(f"{shown(given)} is not an array of numbers: {why_unusable(given)}")
    try:
        value = np.asarray(given)
    except ValueError as exc:
        raise InputTypeError(f"a ragged list is not an array ({exc})") from None
    if not isinstance(given, int | float | complex | list | tuple):
        return value
    if not value.size:  # numpy takes an empty list for floats
        return value.astype(dtype)
    if dtype.kind in "fc" and value.dtype.kind in "iuf" + dtype.kind:
        with np.errstate(over="ignore"):
            cast = value.astype(dtype)
        return value if (np.isinf(cast) & ~np.isinf(value)).any() else cast
    if value.dtype.kind in "iu" and dtype.kind in "iu" and value.size:
        limits = np.iinfo(dtype)
        if limits.min <= value.min() and value.max() <= limits.max:
            return value.astype(dtype)
    return value


def _written(array: np.ndarray, key: object) -> np.ndarray:
    """A view of all elements of `array[key]`, and of those between the picked rows."""
    found: list[Any] = []
    for each in key if isinstance(key, tuple) else (key,):
        if isinstance(each, np.ndarray) and not each.ndim:
            each = each[()]
        if each is None or each is ... or isinstance(each, slice):
            found.append(each)
        elif isinstance(each, bool | np.bool_):  # a new axis, of length 1 or 0
            found.append(None)
        elif isinstance(each, int | np.integer):
            found.append(slice(int(each), int(each) + 1 or None))
        else:
            if ... not in found:
                axis = sum(one is not None for one in found)
                found.append(_span(np.asarray(each), array.shape[axis]))
            break  # what follows may be of any axis
    return array[tuple(found)] if ... in found else array[(*found, ...)]


def _span(picks: np.ndarray, length: int) -> slice:
    """The rows from the lowest to the highest of `picks`, which are indices or a mask."""
    rows = picks.nonzero()[0] if picks.dtype == bool else picks.astype(np.intp)
    if not rows.size:
        return slice(0)
    rows = rows % length
    return slice(int(rows.min()), int(rows.max()) + 1)


def _keep_common(old: np.ndarray, new: np.ndarray, same_memory: bool) -> None:
    common = tuple(slice(0, min(a, b)) for a, b in zip(old.shape, new.shape, strict=True))
    if same_memory:
        if new.ndim:
            new[len(old) :] = 0
        return
    kept = old[common]
    if new.size != kept.size:
        new[...] = 0
    new[common] = kept
