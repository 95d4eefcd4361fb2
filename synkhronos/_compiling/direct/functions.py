"""C functions of small graphs, as `lean.c_functions` has them, without a function of numba."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from llvmlite import ir
from pytensor.configdefaults import config

from synkhronos._compiling.direct.arrays import Buffer, View
from synkhronos._compiling.direct.bounds import bounds_of, write_within
from synkhronos._compiling.direct.flat import Flat
from synkhronos._compiling.direct.kernels import kernels
from synkhronos._compiling.direct.loops import Loop
from synkhronos._compiling.direct.operations import Steps
from synkhronos._compiling.direct.scalars import FLAGS, stored_type
from synkhronos._compiling.direct.unfit import OutsideError, UnfitError
from synkhronos._compiling.kept.machine_code import ANOTHER_LENGTH, CFunction
from synkhronos._compiling.lean.c_functions import (
    FAILED,
    NOT_EXPANDED,
    NOT_FINITE_GRADIENT,
    NOT_FINITE_VALUE,
    SUCCESS,
    Place,
)
from synkhronos._compiling.lean.machine_code import compiled
from synkhronos._warnings import log

_WORD, _DOUBLE, _BYTE = ir.IntType(64), ir.DoubleType(), ir.IntType(8)
_STACK = 1 << 18  # bytes: more memory is allocated in each call
_MOST = 1 << 22  # bytes
_MOST_NUMBERS = 1 << 18  # of data: with more, compiling takes less time than sampling
_LINE = 64  # bytes, of the processor's cache
_MOST_LENGTHS = 16  # in an array of the data
_BEYOND = 64  # numbers after a result that have to stay as they are
_CLOSE = {"float64": 1e-9, "float32": 1e-4}  # of the largest number


def c_function(
    flat: Flat, data: Sequence[np.ndarray], places: Sequence[Place], lengths: Sequence[int]
) -> CFunction:
    """A C function of a point and a record of data: of value and gradient, or of all variables.

    Its results are compared with those of PyTensor's code in Python, at one point.

    Parameters
    ----------
    flat : Flat
        Its inputs are the point and the data; its outputs a vector, after a value if there are two.
    data : sequence of array
        In C order. The function fits all data of these lengths, and refuses others. Where lengths
        of other arrays are numbers of the data, it refuses other numbers. Where none of these data
        is an index below 0, or beyond an axis, it refuses data with such indices.
    places : sequence of Place
        Which words of the record are the addresses and lengths of the data.
    lengths : sequence of int
        The numbers that the function gets: the length of the point first, that of the vector last.

    Raises
    ------
    UnfitError
        The graph has something that has no code here, or the function computes something else.
    OutsideError
        An index that does not depend on the point is beyond an axis.
    """
    if sum(d.size for d in data) > _MOST_NUMBERS:
        raise UnfitError("its data are large")
    [size, *_] = lengths
    if not size:
        raise UnfitError("the point has no numbers")
    point = 0.1 * np.sin(np.arange(1.0, size + 1))
    arrays = [point, *data]
    try:
        known = flat.evaluated(arrays)
    except OutsideError:
        raise
    except Exception as exc:  # PyTensor's code in Python is another one than numba's
        raise UnfitError(f"it cannot be evaluated: {exc}") from exc
    given = [
        View.whole(Buffer(d.size, d.dtype.name, argument=at), d.shape)
        for at, d in enumerate(arrays)
    ]
    steps = Steps(dict(zip(flat.inputs, given, strict=True)), known, flat.nodes)
    wanted: list[View] = []
    for v in flat.outputs:
        found = steps.of(v)
        if not _is_own(found) or any(found.buffer is out.buffer for out in wanted):
            out = View.whole(Buffer(math.prod(found.shape), "float64"), found.shape)
            steps.copied(found, out)
            found = out
        wanted.append(found)
    if wanted[-1].shape != (lengths[-1],):
        raise UnfitError(f"it has the shape {wanted[-1].shape}, and not {lengths[-1]} numbers")
    measured = {view.buffer: arrays[given.index(view)] for view in steps.measured}
    if any(d.dtype.kind not in "iu" or d.size > _MOST_LENGTHS for d in measured.values()):
        raise UnfitError("lengths are computed")
    values = {view.buffer: array for view, array in zip(given, arrays, strict=True)}
    made = _Function(steps, given, places, lengths, wanted, measured, values).made()
    _compare(made, arrays, places, lengths, known.outputs)
    return replace(made, fixed=True)


def _is_own(view: View) -> bool:
    """Whether these are all numbers of a memory that can be that of a result.

    A copy would wait for numbers that have been written one by one, to read several at once.
    """
    buffer = view.buffer
    own = buffer.argument is None and buffer.constant is None and view.dtype == "float64"
    is_all = math.prod(view.shape) == buffer.size  # rows are padded to whole registers
    return own and is_all and view == View.whole(buffer, view.shape)


def _compare(
    function: CFunction,
    arrays: Sequence[np.ndarray],
    places: Sequence[Place],
    lengths: Sequence[int],
    expected: Sequence[Any],
) -> None:
    """Compare the results of a function with those that are expected.

    Raises
    ------
    UnfitError
        They differ by more than rounding, or numbers after a result are written.
    """
    point, *data = arrays
    words = {0: 0}
    for place, d in zip(places, data, strict=True):
        words |= {place.address: d.ctypes.data}
        words |= {place.lengths + axis: n for axis, n in enumerate(d.shape)}
    record = np.array([words.get(at, 0) for at in range(max(words) + 1)], np.int64)
    found = [np.full(np.size(e) + _BEYOND, np.nan) for e in expected][::-1]
    function(lengths, [point, *found, record])
    for memory, e in zip(found, expected[::-1], strict=True):
        wanted = np.asarray(e, np.float64)
        got = memory[: wanted.size].reshape(wanted.shape)
        if not np.isnan(memory[wanted.size :]).all():
            log.warning("code of a log-density writes beyond a result: that of numba is taken")
            raise UnfitError("it writes beyond a result")
        size = np.abs(wanted[np.isfinite(wanted)]).max(initial=1.0)
        close = min(_CLOSE.get(np.asarray(each).dtype.name, 0.0) for each in expected)
        if not np.allclose(got, wanted, rtol=close, atol=close * size, equal_nan=True):
            log.warning("code of a log-density differs from PyTensor's: that of numba is taken")
            raise UnfitError("its results differ")


class _Function:
    def __init__(
        self,
        steps: Steps,
        arguments: Sequence[View],
        places: Sequence[Place],
        lengths: Sequence[int],
        wanted: Sequence[View],
        measured: Mapping[Buffer, np.ndarray],
        values: Mapping[Buffer, np.ndarray],
    ) -> None:
        self._kernels = kernels(steps.steps, wanted)
        self._arguments, self._given = arguments, places
        self._lengths, self._wanted, self._measured = lengths, wanted, measured
        self._name = f"synkhronos_{uuid.uuid4().hex}"
        self._module = ir.Module(self._name)
        flags = FLAGS if config.numba__fastmath else ()
        self._bounds = bounds_of(steps.steps, values)
        self._loops = [
            Loop(self._module, f"{self._name}_{at}", kernel, flags, self._bounds)
            for at, kernel in enumerate(self._kernels)
        ]

    def made(self) -> CFunction:
        numbers = [_WORD] * len(self._lengths)
        pointers = [_DOUBLE.as_pointer()] * (1 + len(self._wanted))
        kind = ir.FunctionType(_WORD, [*numbers, *pointers, _BYTE.as_pointer()])
        function = ir.Function(self._module, kind, self._name)
        b = self._b = ir.IRBuilder(function.append_basic_block("entry"))
        given = function.args[: len(numbers)]
        point, *outs, record = function.args[len(numbers) :]
        if len(self._wanted) == 2:  # the gradient comes before the value
            outs = outs[::-1]
        for argument, number in zip(given, self._lengths, strict=True):
            with b.if_then(b.icmp_signed("!=", argument, _WORD(number)), likely=False):
                b.ret(_WORD(ANOTHER_LENGTH))
        first, *data = self._arguments
        self._addressed: dict[Buffer, ir.Value] = {first.buffer: point}
        self._addressed |= {v.buffer: out for v, out in zip(self._wanted, outs, strict=True)}
        words = b.bitcast(record, _WORD.as_pointer())

        def word(at: int) -> ir.Value:
            return b.load(b.gep(words, [_WORD(at)]))

        another: ir.Value = ir.IntType(1)(0)
        for view, place in zip(data, self._given, strict=True):
            start = b.inttoptr(word(place.address), _BYTE.as_pointer())
            self._addressed[view.buffer] = b.bitcast(start, stored_type(view.dtype).as_pointer())
            for axis, n in enumerate(view.shape):
                differs = b.icmp_signed("!=", word(place.lengths + axis), _WORD(n))
                another = b.or_(another, differs)
        with b.if_then(another, likely=False):
            b.ret(_WORD(ANOTHER_LENGTH))
        for buffer, value in self._measured.items():
            for at, n in enumerate(value.flat):
                number = b.load(b.gep(self._addressed[buffer], [_WORD(at)]))
                with b.if_then(b.icmp_signed("!=", number, number.type(int(n))), likely=False):
                    b.ret(_WORD(ANOTHER_LENGTH))
        self._refuse_beyond()
        free = self._allocate()
        outside: ir.Value = _WORD(0)
        for loop in self._loops:
            given = [self._addressed[each] for each in loop.buffers]
            given += [b.gep(self._addressed[each], [_WORD(at)]) for each, at in loop.parts]
            found = b.call(loop.function, given)
            outside = b.or_(outside, found)
        if free is not None:
            free()
        failed = FAILED if len(self._wanted) == 2 else NOT_EXPANDED
        with b.if_then(b.icmp_signed("!=", outside, _WORD(0)), likely=False):
            b.ret(_WORD(failed))
        b.ret(self._checked(outs) if len(self._wanted) == 2 else _WORD(SUCCESS))
        return compiled(self._name, self._module)

    def _refuse_beyond(self) -> None:
        """Return where an index of the data is not within the axis that it is for."""
        b = self._b
        checked = [(buffer, n) for buffer, n in self._bounds if buffer.constant is None]
        for number, (buffer, length) in enumerate(checked):
            within = write_within(self._module, f"{self._name}_within_{number}", buffer, length)
            all_are = b.call(within, [self._addressed[buffer]])
            with b.if_then(b.not_(all_are), likely=False):
                b.ret(_WORD(ANOTHER_LENGTH))

    def _allocate(self) -> Callable[[], None] | None:
        """Give buffers their places in memory of the function's own; returns what frees it."""
        b = self._b
        places, total = self._places()
        if total > _MOST:
            raise UnfitError(f"{total} bytes")
        free = None
        if total <= _STACK:
            with b.goto_entry_block():  # elsewhere LLVM would move the stack in each call
                start = b.alloca(_BYTE, _WORD(max(total, 1)))
            start.align = _LINE
        else:
            allocate = ir.Function(
                self._module, ir.FunctionType(_BYTE.as_pointer(), [_WORD]), "malloc"
            )
            release = ir.Function(
                self._module, ir.FunctionType(ir.VoidType(), [_BYTE.as_pointer()]), "free"
            )
            start = b.call(allocate, [_WORD(total)])
            nothing = ir.Constant(_BYTE.as_pointer(), None)
            with b.if_then(b.icmp_unsigned("==", start, nothing), likely=False):
                b.ret(_WORD(FAILED))

            def free() -> None:
                b.call(release, [start])

        for buffer, place in places.items():
            at = b.gep(start, [_WORD(place)], inbounds=True)
            self._addressed[buffer] = b.bitcast(at, stored_type(buffer.dtype).as_pointer())
        return free

    def _places(self) -> tuple[dict[Buffer, int], int]:
        """The place of each buffer, and the bytes of all; those that no loop needs more are free.

        A long memory would have to be asked of the system in each call.
        """
        last = {buffer: at for at, loop in enumerate(self._loops) for buffer in loop.buffers}
        places: dict[Buffer, int] = {}
        free: list[tuple[int, int]] = []  # of places with their bytes
        total = 0
        for at, loop in enumerate(self._loops):
            own = [buffer for buffer in loop.buffers if buffer not in self._addressed]
            for buffer in own:
                if buffer in places:
                    continue
                needed = _bytes(buffer)
                fitting = [hole for hole in free if hole[1] >= needed]
                if fitting:
                    place, size = min(fitting, key=lambda hole: hole[1])
                    free.remove((place, size))
                    if size > needed:
                        free.append((place + needed, size - needed))
                else:
                    place, total = total, total + needed
                places[buffer] = place
            free += [(places[buffer], _bytes(buffer)) for buffer in own if last[buffer] == at]
        return places, total

    def _checked(self, outs: Sequence[ir.Value]) -> ir.Value:
        """The status by value and gradient: whether they are finite."""
        b, (value, gradient) = self._b, outs
        length = self._wanted[1].buffer.size
        before = b.block
        body, after = b.append_basic_block("look"), b.append_basic_block("looked")
        b.branch(body)
        b.position_at_end(body)
        at, bad = b.phi(_WORD), b.phi(ir.IntType(1))
        number = b.load(b.gep(gradient, [at]))
        now = b.or_(bad, self._infinite(number))
        following = b.add(at, _WORD(1))
        for phi, first, then in ((at, _WORD(0), following), (bad, ir.IntType(1)(0), now)):
            phi.add_incoming(first, before)
            phi.add_incoming(then, body)
        b.cbranch(b.icmp_unsigned("<", following, _WORD(length)), body, after)
        b.position_at_end(after)
        good = b.select(self._infinite(b.load(value)), _WORD(NOT_FINITE_VALUE), _WORD(SUCCESS))
        return b.select(now, _WORD(NOT_FINITE_GRADIENT), good)

    def _infinite(self, number: ir.Value) -> ir.Value:
        """Whether a number is infinite or NaN: of those the difference is NaN."""
        return self._b.fcmp_unordered("uno", *[self._b.fsub(number, number)] * 2)


def _bytes(buffer: Buffer) -> int:
    """The bytes of a buffer, in whole lines."""
    return -(-buffer.size * np.dtype(buffer.dtype).itemsize // _LINE) * _LINE
