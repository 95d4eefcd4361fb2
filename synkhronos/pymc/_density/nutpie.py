"""nutpie's functions, compiled in less time. This file alone knows how nutpie compiles.

nutpie (0.16) calls PyTensor's compiled functions from C functions that numba does not cache:

* numba links and optimises the whole log-density again for each of them, in each process. Here
  they call its machine code, which is in the cache.
* An assignment of a slice brings a message with lengths, whose code takes numba 1.3 s. Here they
  are loops.
* Data are read by overloads, which take numba 1.2 s. Here they are read by an intrinsic.

Functions are compiled in the mode of groups: :mod:`synkhronos._compiling.lean`.
"""

from __future__ import annotations

import functools
import importlib
import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import numpy as np
from pymc import sample as pm_sample
from pytensor.compile.mode import Mode, predefined_modes

from synkhronos._compiling.lean.closed import ClosedLinker
from synkhronos._compiling.lean.mode import with_lean

log = logging.getLogger("synkhronos")

_COMPILE = "_compile_pymc_model_numba"
_MODE = "NUMBA"  # the name of the mode that nutpie compiles for
_SUCCESS, _FAILED, _NOT_FINITE_GRADIENT, _NOT_FINITE_VALUE = 0, 1, 3, 4
_WORD_BYTES = 8
_ANOTHER_LENGTH, _NOT_EXPANDED = -1, -2


def sample(*args: object, **kwargs: object) -> Any:
    """`pm.sample`, with a compilation in less time if nutpie samples in mode NUMBA."""
    if kwargs.get("nuts_sampler") not in (None, "nutpie"):
        return pm_sample(*args, **kwargs)
    with compiled_soon():
        return pm_sample(*args, **kwargs)


@contextmanager
def compiled_soon() -> Iterator[None]:
    """A context in which nutpie compiles a model in less time; without nutpie it does nothing.

    Several threads may be in it at once: the last one to leave restores nutpie's function.
    """
    try:
        module: Any = importlib.import_module("nutpie.compile_pymc")
        _ = [getattr(module, name) for name in (_COMPILE, *_FUNCTIONS)]
    except Exception as exc:  # if nutpie cannot be imported, `pm.sample` says so
        log.debug("nutpie compiles as it is: %s", exc)
        yield
        return
    with _lock:
        if not _inside:
            _inside.enter_context(_replaced(module, {_COMPILE: _soon(module)}))
        _inside.threads += 1
    try:
        yield
    finally:
        with _lock:
            _inside.threads -= 1
            if not _inside:
                _inside.close()


class _Inside(ExitStack):
    """Restores nutpie once no thread is in `compiled_soon` any more."""

    threads = 0

    def __bool__(self) -> bool:
        return self.threads > 0


_lock, _inside = threading.RLock(), _Inside()


def _soon(module: Any) -> Callable[..., object]:
    """Nutpie's function that compiles a model, in less time; one thread after another."""
    compile_model: Callable[..., object] = getattr(module, _COMPILE)

    @functools.wraps(compile_model)
    def compile_soon(*args: object, **kwargs: object) -> object:
        with _lock, _in_mode_of_groups(), _replaced(module, _FUNCTIONS):
            return compile_model(*args, **kwargs)

    return compile_soon


@contextmanager
def _in_mode_of_groups() -> Iterator[None]:
    """Compile for mode NUMBA as groups do, in all threads of the process."""
    mode = predefined_modes[_MODE]
    predefined_modes[_MODE] = with_lean(Mode(ClosedLinker(), mode.provided_optimizer))
    try:
        yield
    finally:
        predefined_modes[_MODE] = mode


@contextmanager
def _replaced(module: object, functions: Mapping[str, Callable[..., object]]) -> Iterator[None]:
    before = {name: getattr(module, name) for name in functions}
    for name, function in functions.items():
        setattr(module, name, function)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(module, name, function)


def _log_density(
    length: int,
    function: Callable[..., tuple[np.ndarray, ...]],
    *data: Any,
) -> tuple[Callable[..., int], object]:
    """A function for nutpie's sampler, and its type: writes value and gradient, returns a code."""
    numba: Any = importlib.import_module("numba")
    evaluate = _with_data(function, *data)
    types = numba.types
    numbers = types.CPointer(types.double)

    def log_density(
        dim: int, x: np.ndarray, out: np.ndarray, logp: np.ndarray, pointer: object
    ) -> int:
        if dim != length:
            return _ANOTHER_LENGTH
        try:
            value, gradient = evaluate(numba.carray(x, (length,)), pointer)
            logp[0] = value[()]
            finite = True
            for i in range(length):
                out[i] = gradient[i]
                finite &= math.isfinite(out[i])
            if not finite:
                return _NOT_FINITE_GRADIENT
            if not math.isfinite(logp[0]):
                return _NOT_FINITE_VALUE
        except Exception:
            return _FAILED
        return _SUCCESS

    given = types.uint64, numbers, numbers, numbers, types.voidptr
    return log_density, types.int64(*given)


def _expanded(
    length: int,
    expanded: int,
    function: Callable[..., tuple[np.ndarray, ...]],
    *data: Any,
) -> tuple[Callable[..., int], object]:
    """A function for nutpie's trace, and its type: writes all variables of a draw."""
    numba: Any = importlib.import_module("numba")
    evaluate = _with_data(function, *data)
    types = numba.types
    numbers = types.CPointer(types.double)

    def expand(dim: int, count: int, x: np.ndarray, out: np.ndarray, pointer: object) -> int:
        if dim != length or count != expanded:
            return _ANOTHER_LENGTH
        try:
            (values,) = evaluate(numba.carray(x, (length,)), pointer)
            for i in range(expanded):
                out[i] = values[i]
        except Exception:
            return _NOT_EXPANDED
        return _SUCCESS

    given = types.uint64, types.uint64, numbers, numbers, types.voidptr
    return expand, types.int64(*given)


def _with_data(
    function: Callable[..., tuple[np.ndarray, ...]],
    data: np.ndarray,
    keys: Sequence[str],
    shared: Mapping[str, np.ndarray],
) -> Callable[..., tuple[np.ndarray, ...]]:
    """A function of a point and of a pointer to the record of shared variables."""
    numba: Any = importlib.import_module("numba")
    found: Callable[..., tuple[np.ndarray, ...]]
    try:
        arrays = _shared_arrays(data.dtype, [*keys], shared)
    except KeyError as exc:
        log.debug("nutpie's record is another one: no field %s", exc)
        module: Any = importlib.import_module("nutpie.compile_pymc")
        found = module.make_extraction_fn(function, shared, keys, data.dtype)
        return found

    def evaluate(x: np.ndarray, pointer: object) -> tuple[np.ndarray, ...]:
        return function(x, *arrays(pointer))

    found = numba.njit(evaluate)
    return found


def _shared_arrays(
    record: np.dtype, keys: Sequence[str], shared: Mapping[str, np.ndarray]
) -> Callable[[object], tuple[np.ndarray, ...]]:
    """A function for numba's code: the values of shared variables, by a pointer to their record.

    Nutpie's own one takes numba a second to compile: overloads, of a loop that is unrolled.
    """
    numba: Any = importlib.import_module("numba")
    extending: Any = importlib.import_module("numba.extending")
    arrays: Any = importlib.import_module("numba.np.arrayobj")
    types = numba.types
    values = [shared[key] for key in keys]
    kinds = [types.Array(numba.from_dtype(v.dtype), v.ndim, "C") for v in values]
    # the record holds words: an address and lengths for each key
    addresses = [_word(record, "data", key) for key in keys]
    lengths = [_word(record, "shape", key) for key in keys]

    def made(context: Any, builder: Any, signature: Any, pointers: Any) -> Any:
        words = builder.bitcast(pointers[0], context.get_value_type(types.intp).as_pointer())

        def word(number: int) -> Any:
            return builder.load(builder.gep(words, [context.get_constant(types.intp, number)]))

        found = []
        for value, kind, address, first in zip(values, kinds, addresses, lengths, strict=True):
            array = arrays.make_array(kind)(context, builder)
            size = stride = context.get_constant(types.intp, value.itemsize)
            shape = [word(first + axis) for axis in range(value.ndim)]
            strides: list[Any] = []
            for length in reversed(shape):
                strides.insert(0, stride)
                stride = builder.mul(stride, length)
            start = builder.inttoptr(word(address), array.data.type)
            arrays.populate_array(array, start, shape, strides, size, meminfo=None)
            found.append(array._getvalue())
        return context.make_tuple(builder, signature.return_type, found)

    def shared_arrays(typing: object, pointer: object) -> tuple[object, object]:
        return types.Tuple(kinds)(pointer), made

    return cast(Callable[[object], tuple[np.ndarray, ...]], extending.intrinsic(shared_arrays))


def _word(record: np.dtype, *names: str) -> int:
    """The place of a field of nutpie's record, in words."""
    place = 0
    for name in ("shared", *names):
        fields: Any = record.fields
        record, offset = fields[name][:2]
        place += offset
    return place // _WORD_BYTES


_FUNCTIONS = {"_make_c_logp_func": _log_density, "_make_c_expand_func": _expanded}
