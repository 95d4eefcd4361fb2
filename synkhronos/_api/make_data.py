"""synk.data: makes Data, or scattered Data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pytensor.graph.basic import Variable

from synkhronos._api.data import Data, as_literal
from synkhronos._api.scattered_data import load_scattered
from synkhronos._api.unusable import why_unusable
from synkhronos._checks import check_integer, is_integer, shown
from synkhronos._compiling.graph_types import tensor_type
from synkhronos._engine.group import current
from synkhronos._errors import InputError, InputTypeError

_DTYPES = frozenset(
    {"bool", "float16", "float32", "float64", "complex64", "complex128"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)


def data(
    value: object = None,
    var: Variable | None = None,
    dtype: object = None,
    ndim: int | None = None,
    shape: Sequence[int] | int | None = None,
    minibatch: bool = False,
    force_cast: bool = False,
    oversize: float = 1,
    name: str | None = None,
    scatter: bool = False,
) -> Data:
    """Make an array in shared memory, to be an input of functions.

    Parameters
    ----------
    value : array_like or callable, optional
        The contents. Each member maps a numpy.memmap and does not load it; on several nodes the
        file must have the same name on each. With `scatter` also a loader: ``value(start, stop)``
        returns these rows, of the given `shape` and `dtype`. On several nodes it runs in every
        member, for the member's rows; on one machine it runs once, in the master, for all rows.
    var : Variable, optional
        The input that the Data are for: gives dtype, ndim and name.
    dtype, ndim : optional
        Default: those of `var`, else those of `value` (ndim also from `shape`).
    shape : sequence of int, or int, optional
        The shape of Data without a value; they are filled with 0.
    minibatch : bool
        The array holds only the rows of a call's batch, in the batch's order: its first
        ``len(batch)`` rows are used. For a slice, its row 0 is the slice's lowest row.
    force_cast : bool
        Cast the value to a smaller dtype.
    oversize : float, at least 1
        Hold memory for that many times the elements.
    name : str, optional
    scatter : bool
        On several nodes, each keeps only the rows that its members compute on. Such Data cannot be
        changed, and batches of them must be in ascending order. On one machine it has no effect.

    Returns
    -------
    Data

    Raises
    ------
    InputTypeError
        dtype and ndim are unknown, or the value does not fit them.
    InputError
        Another file has got the name of that which a numpy.memmap maps.
    MemoryError
        The message says how much was asked for and how much is free.

    Notes
    -----
    Cost: one copy of the value; no communication with the workers. On several nodes the next call
    sends what has been written to all nodes; with `scatter`, each row is sent at once, to one node.

    Examples
    --------
    >>> import synkhronos as synk
    >>> _ = synk.fork(2)
    >>> synk.data(shape=(3, 2), dtype="float32")
    <synkhronos.Data float32 (3, 2)>
    >>> synk.close()
    """
    group = current("synk.data")
    label = name or getattr(var, "name", None)
    if isinstance(shape, int | np.integer):
        shape = (int(shape),)
    loader = value if callable(value) else None
    try:
        kind, dimensions = _kind(None if loader else value, var, dtype, ndim, shape)
    except TypeError as exc:
        raise InputTypeError(f"synk.data: {str(exc).removeprefix('synk.data: ')}") from None
    if scatter or loader:
        _check_scattered(dimensions, shape, loader, scatter, minibatch)
        if group.member.communicator.nodes > 1 and not isinstance(value, np.memmap):
            if loader:
                return load_scattered(group, kind, tuple(shape or ()), loader, None, label)
            given = Data(group, kind, dimensions, label, False).condition_data(value, force_cast)
            return load_scattered(group, kind, given.shape, None, given, label)
        if loader and shape is not None:
            value = loader(0, shape[0])
    made = Data(group, kind, dimensions, label, bool(minibatch))
    if value is not None:
        made.set_value(value, force_cast, oversize)
        if shape is not None and tuple(shape) != made.shape:
            raise InputError(f"the value has shape {made.shape}, and shape={tuple(shape)} is given")
    elif shape is not None:
        made.set_shape(shape, oversize)
    else:
        made.reshape((0,) * dimensions, oversize, keep=True)
    return made


def _check_scattered(
    ndim: int, shape: Sequence[int] | None, loader: object, scatter: bool, minibatch: bool
) -> None:
    if not scatter:
        raise InputError("synk.data: a loader is for scatter=True; give its array as the value")
    if not ndim or minibatch:
        raise InputError("synk.data: scatter=True is for rows, all of them: not 0-d, no minibatch")
    if loader and shape is None:
        raise InputError("synk.data: a loader needs shape= (of all rows) and dtype= or var=")


def _kind(
    value: object, var: Variable | None, dtype: Any, ndim: int | None, shape: Any
) -> tuple[np.dtype, int]:
    if var is not None:
        if not isinstance(var, Variable):
            raise InputTypeError(f"var={shown(var)} is not a variable: give the function's input")
        kind = tensor_type(var)
        dtype, ndim = kind.dtype, kind.ndim
    if value is not None:
        array = as_literal(value, np.dtype(np.float64 if dtype is None else dtype))
        if unusable := array.dtype.kind in "OSUT" and why_unusable(value):
            raise InputTypeError(f"{shown(value)} cannot be held: {unusable}")
        dtype = np.asarray(value).dtype if dtype is None else dtype
        ndim = array.ndim if ndim is None else ndim
    if ndim is None and shape is not None:
        ndim = len(shape)
    if dtype is None or ndim is None:
        raise InputTypeError("dtype and ndim are unknown: give var, value, or both dtype and ndim")
    ndim = check_integer("synk.data: ndim", ndim, 0)
    if shape is not None and (
        len(shape) != ndim or not all(is_integer(n) and n >= 0 for n in shape)
    ):
        raise InputError(f"synk.data: shape={shape} does not fit ndim={ndim}")
    found = np.dtype(dtype)
    if found.name not in _DTYPES:
        raise InputTypeError(f"PyTensor has no dtype {found}")
    return found.newbyteorder("="), ndim
