"""C functions of a point and a record of data, around functions that numba has compiled.

A sampler in another language calls them: nutpie. Their few instructions are written here, since
numba takes a second to type and compile the same in Python, in each process.

Their arguments are numbers of the caller, which are compared with those that the function was made
for; then pointers to the point, to the results, and to a record of words with the addresses and
lengths of arrays.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types

from synkhronos._compiling.kept.machine_code import ANOTHER_LENGTH, CFunction
from synkhronos._compiling.lean.machine_code import linked
from synkhronos._libraries.numba import (
    ALLOC_FLAG_IDX,
    HASH_BUF_IDX,
    alloca_once_value,
    for_range,
    make_array,
    pointer_add,
    populate_array,
    true_bit,
    unpack_tuple,
    voidptr_t,
)

SUCCESS, FAILED, NOT_FINITE_GRADIENT, NOT_FINITE_VALUE = 0, 1, 3, 4
NOT_EXPANDED = -2
_CODE = _WORD = ir.IntType(64)
_NUMBERS = ir.DoubleType().as_pointer()
Typed = tuple[types.Type, ir.Value]


@dataclass(frozen=True)
class Place:
    """An array of the record: its type, and which words are its address and its lengths."""

    type: types.Array
    address: int
    lengths: int

    @classmethod
    def of(cls, value: np.ndarray, address: int, lengths: int) -> Place:
        """Of an array in C order of this one's dtype and number of axes."""
        return cls(types.Array(numba.from_dtype(value.dtype), value.ndim, "C"), address, lengths)


def log_density(function: Any, length: int, data: Sequence[Place]) -> CFunction:
    """Value and gradient: ``code(length, point, gradient, value, record)``."""

    def write(code: _Code, results: Sequence[Typed]) -> ir.Value:
        (value, gradient), (out, logp) = results, code.pointers[1:3]
        code.builder.store(code.number(*value), logp)
        finite = alloca_once_value(code.builder, true_bit)

        def each(number: ir.Value) -> None:
            both = code.builder.and_(code.builder.load(finite), code.finite(number))
            code.builder.store(both, finite)

        code.copy(*gradient, out, length, each)
        good = code.builder.select(
            code.finite(code.builder.load(logp)), _CODE(SUCCESS), _CODE(NOT_FINITE_VALUE)
        )
        return code.builder.select(code.builder.load(finite), good, _CODE(NOT_FINITE_GRADIENT))

    return _made(function, [length], 3, data, FAILED, write)


def expansion(function: Any, length: int, expanded: int, data: Sequence[Place]) -> CFunction:
    """All variables of a draw: ``code(length, expanded, point, variables, record)``."""

    def write(code: _Code, results: Sequence[Typed]) -> ir.Value:
        [values] = results
        code.copy(*values, code.pointers[1], expanded)
        return _CODE(SUCCESS)

    return _made(function, [length, expanded], 2, data, NOT_EXPANDED, write)


class _Code:
    """The instructions of a function: a builder of LLVM's, with what is common to all functions."""

    def __init__(self, context: Any, builder: ir.IRBuilder, pointers: Sequence[ir.Value]) -> None:
        self.context, self.builder = context, builder
        self.pointers = pointers

    def array(self, kind: types.Array, start: ir.Value, shape: Sequence[ir.Value]) -> ir.Value:
        """An array of numba's, which owns no memory."""
        context, builder = self.context, self.builder
        array = make_array(kind)(context, builder)
        size = stride = _WORD(context.get_abi_sizeof(context.get_data_type(kind.dtype)))
        strides: list[ir.Value] = []
        for length in reversed(shape):
            strides.insert(0, stride)
            stride = builder.mul(stride, length)
        data = builder.bitcast(start, array.data.type)
        populate_array(array, data, shape, strides, size, meminfo=None)
        return array._getvalue()

    def from_record(self, place: Place) -> ir.Value:
        """An array of the record."""
        words = self.builder.bitcast(self.pointers[-1], _WORD.as_pointer())

        def word(number: int) -> ir.Value:
            return self.builder.load(self.builder.gep(words, [_WORD(number)]))

        start = self.builder.inttoptr(word(place.address), voidptr_t)
        shape = [word(place.lengths + axis) for axis in range(place.type.ndim)]
        return self.array(place.type, start, shape)

    def number(self, kind: types.Type, value: ir.Value, at: ir.Value | None = None) -> ir.Value:
        """A number, or one of an array, as a double."""
        if isinstance(kind, types.Array):
            array = make_array(kind)(self.context, self.builder, value=value)
            start = array.data
            if at is not None:
                [stride] = unpack_tuple(self.builder, array.strides)
                start = pointer_add(self.builder, start, self.builder.mul(stride, at))
            kind, value = kind.dtype, self.context.unpack_value(self.builder, kind.dtype, start)
        return self.context.cast(self.builder, value, kind, types.float64)

    def finite(self, number: ir.Value) -> ir.Value:
        """Whether a number is neither infinite nor NaN: of those the difference is NaN."""
        return self.builder.fcmp_ordered("ord", *[self.builder.fsub(number, number)] * 2)

    def copy(
        self,
        kind: types.Array,
        value: ir.Value,
        out: ir.Value,
        length: int,
        each: Callable[[ir.Value], None] | None = None,
    ) -> None:
        """Copy the entries of an array as doubles, and do something with each."""
        with for_range(self.builder, _WORD(length)) as loop:
            number = self.number(kind, value, loop.index)
            self.builder.store(number, self.builder.gep(out, [loop.index]))
            if each is not None:
                each(number)

    def free_exception(self, status: Any) -> None:
        """Free what a function has allocated for an exception that has values of this call."""
        builder, nrt = self.builder, self.context.nrt
        with builder.if_then(status.is_user_exc):
            raised = builder.load(status.excinfoptr)
            allocated = builder.extract_value(raised, ALLOC_FLAG_IDX)
            with builder.if_then(builder.icmp_signed(">", allocated, allocated.type(0))):
                nrt.free(builder, builder.extract_value(raised, HASH_BUF_IDX))
                nrt.free(builder, builder.bitcast(status.excinfoptr, voidptr_t))


def _made(
    function: Any,
    numbers: Sequence[int],
    pointers: int,
    data: Sequence[Place],
    failed: int,
    write: Callable[[_Code, Sequence[Typed]], ir.Value],
) -> CFunction:
    """A function that compares numbers, calls numba's, and writes its results."""
    point = types.Array(types.float64, 1, "C")
    kinds = (point, *[place.type for place in data])
    function.compile(kinds)
    inner = function.overloads[kinds]
    context, described = inner.target_context.subtarget(enable_nrt=True), inner.fndesc
    module = context.create_module("c_function")
    name = f"synkhronos_{uuid.uuid4().hex}"  # one process holds many
    given = [*[_WORD] * len(numbers), *[_NUMBERS] * pointers, voidptr_t]
    outer = ir.Function(module, ir.FunctionType(_CODE, given), name)
    convention = context.call_conv
    called = convention.get_function_type(described.restype, described.argtypes)
    callee = ir.Function(module, called, described.llvm_func_name)
    builder = ir.IRBuilder(outer.append_basic_block("entry"))
    code = _Code(context, builder, outer.args[len(numbers) :])
    for argument, number in zip(outer.args, numbers, strict=False):
        with builder.if_then(builder.icmp_signed("!=", argument, _WORD(number)), likely=False):
            builder.ret(_CODE(ANOTHER_LENGTH))
    arguments = [code.array(point, code.pointers[0], [_WORD(numbers[0])])]
    arguments += [code.from_record(place) for place in data]
    status, result = convention.call_function(
        builder, callee, described.restype, described.argtypes, arguments
    )
    with builder.if_then(status.is_error, likely=False):
        code.free_exception(status)
        builder.ret(_CODE(failed))
    results = unpack_tuple(builder, result, len(described.restype))
    found = write(code, list(zip(described.restype, results, strict=True)))
    context.nrt.decref(builder, described.restype, result)
    builder.ret(found)
    return linked(name, module, inner)
