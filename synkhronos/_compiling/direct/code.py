"""Instructions on arrays: elements, registers of them, loops, and calls of BLAS."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from llvmlite import ir

from synkhronos._compiling.direct.arrays import Shape

LANES = 8  # numbers of a register
_AT_ONCE = 4  # registers that add up a part of a row
_WORD, _DOUBLE, _INT = ir.IntType(64), ir.DoubleType(), ir.IntType(32)
_VECTOR, _WORDS = ir.VectorType(_DOUBLE, LANES), ir.VectorType(_WORD, LANES)
_EACH = ir.VectorType(_INT, LANES)
_ALIGNED = 8  # bytes
type Index = ir.Value | int
type Numbers = Callable[[ir.Value], ir.Value]


@dataclass(frozen=True)
class Array:
    """An array at its place in memory; strides count elements."""

    start: ir.Value
    shape: Shape
    strides: Shape
    dtype: str = "float64"


class Code:
    """Appends instructions that read and write arrays.

    Parameters
    ----------
    builder : ir.IRBuilder
    flags : sequence of str
        What LLVM may change of arithmetic.
    """

    def __init__(self, builder: ir.IRBuilder, flags: Sequence[str]) -> None:
        self.builder, self.flags = builder, tuple(flags)

    @contextmanager
    def counted(self, length: int) -> Iterator[ir.Value]:
        """A loop over integers from 0; it has one step at least."""
        b, before = self.builder, self.builder.block
        body = b.append_basic_block("loop")
        b.branch(body)
        b.position_at_end(body)
        at = b.phi(_WORD)
        at.add_incoming(_WORD(0), before)
        yield at
        following = b.add(at, _WORD(1), flags=("nuw", "nsw"))
        at.add_incoming(following, b.block)
        after = b.append_basic_block("after")
        b.cbranch(b.icmp_unsigned("<", following, _WORD(length)), body, after)
        b.position_at_end(after)

    @contextmanager
    def each(self, first: Index, end: Index) -> Iterator[ir.Value]:
        """A loop over integers, which may have no step."""
        b, first, end = self.builder, _word(first), _word(end)
        before = b.block
        body, after = b.append_basic_block("each"), b.append_basic_block("done")
        b.cbranch(b.icmp_signed("<", first, end), body, after)
        b.position_at_end(body)
        at = b.phi(_WORD)
        at.add_incoming(first, before)
        yield at
        following = b.add(at, _WORD(1), flags=("nsw",))
        at.add_incoming(following, b.block)
        b.cbranch(b.icmp_signed("<", following, end), body, after)
        b.position_at_end(after)

    @contextmanager
    def each_down(self, first: int, end: int) -> Iterator[ir.Value]:
        """A loop over integers, from the last one on."""
        with self.each(first, end) as at:
            yield self.builder.sub(_WORD(first + end - 1), at)

    def slot(self, value: ir.Value) -> ir.Value:
        """Memory of one value, which LLVM makes a register."""
        with self.builder.goto_entry_block():
            found = self.builder.alloca(value.type)
        self.builder.store(value, found)
        return found

    def place(self, array: Array, *index: Index) -> ir.Value:
        """The address of an element."""
        b, found = self.builder, _WORD(0)
        for at, stride in zip(index, array.strides, strict=True):
            found = b.add(found, b.mul(_word(at), _WORD(stride)))
        return b.gep(array.start, [found], inbounds=True)

    def load(self, array: Array, *index: Index) -> ir.Value:
        return self.builder.load(self.place(array, *index))

    def store(self, number: ir.Value, array: Array, *index: Index) -> None:
        self.builder.store(number, self.place(array, *index))

    def column(self, array: Array, i: ir.Value) -> Numbers:
        """The numbers of a column, by their row."""
        return lambda k: self.load(array, k, i)

    def row(self, array: Array, i: ir.Value) -> Numbers:
        """The numbers of a row, by their column."""
        return lambda k: self.load(array, i, k)

    def lanes(self, array: Array, *index: Index) -> ir.Value:
        """The elements of a register from one on, which lie next to each other."""
        return self.builder.load(self._register(array, *index), align=_ALIGNED)

    def put(self, vector: ir.Value, array: Array, *index: Index) -> None:
        self.builder.store(vector, self._register(array, *index), align=_ALIGNED)

    def _register(self, array: Array, *index: Index) -> ir.Value:
        return self.builder.bitcast(self.place(array, *index), _VECTOR.as_pointer())

    def spread(self, number: ir.Value) -> ir.Value:
        """A number in all lanes."""
        b, kind = self.builder, ir.VectorType(number.type, LANES)
        nothing = ir.Constant(kind, ir.Undefined)
        one = b.insert_element(nothing, number, _INT(0))
        return b.shuffle_vector(one, nothing, ir.Constant(_EACH, 0))

    def from_lane(self, first: ir.Value) -> ir.Value:
        """Whether a lane is this one or one after it."""
        each = ir.Constant(_WORDS, list(range(LANES)))
        return self.builder.icmp_signed(">=", each, self.spread(first))

    def add(self, one: ir.Value, other: ir.Value) -> ir.Value:
        return self.builder.fadd(one, other, flags=self.flags)

    def subtract(self, one: ir.Value, other: ir.Value) -> ir.Value:
        return self.builder.fsub(one, other, flags=self.flags)

    def multiply(self, one: ir.Value, other: ir.Value) -> ir.Value:
        return self.builder.fmul(one, other, flags=self.flags)

    def inverse(self, number: ir.Value) -> ir.Value:
        return self.builder.fdiv(_DOUBLE(1.0), number)

    def total(self, vector: ir.Value) -> ir.Value:
        """The sum of all lanes."""
        kind = ir.FunctionType(_DOUBLE, [_DOUBLE, _VECTOR])
        function = self._external(f"llvm.vector.reduce.fadd.v{LANES}f64", kind)
        return self.builder.call(function, [_DOUBLE(0.0), vector], fastmath=self.flags)

    def root(self, number: ir.Value) -> ir.Value:
        function = self.builder.module.declare_intrinsic("llvm.sqrt", [_DOUBLE])
        return self.builder.call(function, [number])

    def blas(self, name: str, kind: ir.FunctionType, given: Sequence[ir.Value]) -> ir.Value:
        """Call an entry into BLAS; whether it has failed."""
        found = self.builder.call(self._external(name, kind), given)
        return self.builder.icmp_signed("!=", found, _INT(0))

    def _external(self, name: str, kind: ir.FunctionType) -> ir.Value:
        module = self.builder.module
        return module.globals.get(name) or ir.Function(module, kind, name)

    def fill(self, array: Array, number: float) -> None:
        """Set all elements of rows of whole registers."""
        flat = Array(array.start, (math.prod(array.shape),), (1,))
        vector = ir.Constant(_VECTOR, number)
        with self.each(0, flat.shape[0] // LANES) as at:
            self.put(vector, flat, self.builder.mul(at, _WORD(LANES)))

    def copy(self, source: Array, into: Array) -> None:
        """Copy the elements of an array to the beginning of longer rows."""
        if len(source.shape) == 1:
            with self.each(0, source.shape[0]) as i:
                self.store(self.load(source, i), into, i)
            return
        rows, columns = source.shape
        with self.each(0, rows) as i, self.each(0, columns) as j:
            self.store(self.load(source, i, j), into, i, j)

    def scale(self, array: Array, i: ir.Value, starts: Sequence[int], by: ir.Value) -> None:
        """Multiply registers of a row."""
        times = self.spread(by)
        for at in starts:
            self.put(self.multiply(self.lanes(array, i, at), times), array, i, at)

    def summed(
        self,
        sums: Sequence[ir.Value],
        starts: Sequence[int],
        ends: tuple[Index, Index],
        factor: Numbers,
        rows: Array,
        combine: Callable[[ir.Value, ir.Value], ir.Value],
    ) -> None:
        """Add to slots, or subtract: factor(k) times registers of row k, for each k."""
        with self.each(*ends) as k:
            by = self.spread(factor(k))
            for slot, at in zip(sums, starts, strict=True):
                term = self.multiply(by, self.lanes(rows, k, at))
                self.builder.store(combine(self.builder.load(slot), term), slot)

    def eliminate(
        self,
        out: Array,
        i: ir.Value,
        starts: Sequence[int],
        ends: tuple[Index, Index],
        factor: Numbers,
        lower: bool = False,
    ) -> None:
        """Subtract factor(k) times row k from row i of an array, whose rows may be a triangle's."""
        for chunk in chunks(starts):
            first, end = ends
            sums = [self.slot(self.lanes(out, i, at)) for at in chunk]
            begin = chunk[0] if lower else first  # before it, these registers are 0
            self.summed(sums, chunk, (begin, end), factor, out, self.subtract)
            for slot, at in zip(sums, chunk, strict=True):
                self.put(self.builder.load(slot), out, i, at)


def _word(value: Index) -> ir.Value:
    return _WORD(value) if isinstance(value, int) else value


def chunks(starts: Sequence[int]) -> Iterator[Sequence[int]]:
    """The first lanes of registers, as many at once as add up a part of a row."""
    for first in range(0, len(starts), _AT_ONCE):
        yield starts[first : first + _AT_ONCE]
