"""The code of operations on matrices: factors, solutions, a gradient, and products by BLAS.

Rows of results are as long as whole registers, so that no loop has a rest. A call of LAPACK takes
longer than a small matrix. Values are those of PyTensor's code for numba: of a factor one triangle
is read, and it is NaN where the matrix is not positive definite; so is a solution by a triangle
whose diagonal has a zero. A number that is none changes only what follows from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from llvmlite import ir

from synkhronos._compiling.direct.arrays import Shape
from synkhronos._records import dataclass

LANES = 8  # numbers of a register
_AT_ONCE = 4  # registers that add up a part of a row
_WORD, _BIT, _DOUBLE = ir.IntType(64), ir.IntType(1), ir.DoubleType()
_BYTE, _INT = ir.IntType(8), ir.IntType(32)
_POINTER = _BYTE.as_pointer()
_VECTOR, _WORDS = ir.VectorType(_DOUBLE, LANES), ir.VectorType(_WORD, LANES)
_EACH = ir.VectorType(_INT, LANES)
_ALIGNED = 8  # bytes
# int numba_xxgemm(kind, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc) and
# int numba_xxgemv(kind, trans, m, n, alpha, a, lda, x, beta, y): numba's entries into SciPy's BLAS
_GEMM = ir.FunctionType(
    _INT,
    [*[_BYTE] * 3, *[_WORD] * 3, *[_POINTER] * 2, _WORD, _POINTER, _WORD, *[_POINTER] * 2, _WORD],
)
_GEMV = ir.FunctionType(_INT, [*[_BYTE] * 2, *[_WORD] * 2, *[_POINTER] * 2, _WORD, *[_POINTER] * 3])
type Index = ir.Value | int
type Numbers = Callable[[ir.Value], ir.Value]


def padded(length: int) -> int:
    """The numbers of as many registers as this many numbers need."""
    return -(-length // LANES) * LANES


def leading(shape: Shape, strides: Shape) -> tuple[bool, int] | None:
    """Whether a matrix lies by rows, and the leading dimension; None if BLAS cannot read it."""
    (rows, columns), (down, along) = shape, strides
    for by_rows, step, lead, length, others in (
        (True, along, down, columns, rows),
        (False, down, along, rows, columns),
    ):
        if step == 1 and (lead >= length or others == 1):
            return by_rows, max(lead, length)
    return None


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
        for chunk in _chunks(starts):
            first, end = ends
            sums = [self.slot(self.lanes(out, i, at)) for at in chunk]
            begin = chunk[0] if lower else first  # before it, these registers are 0
            self.summed(sums, chunk, (begin, end), factor, out, self.subtract)
            for slot, at in zip(sums, chunk, strict=True):
                self.put(self.builder.load(slot), out, i, at)


def _word(value: Index) -> ir.Value:
    return _WORD(value) if isinstance(value, int) else value


def _chunks(starts: Sequence[int]) -> Iterator[Sequence[int]]:
    for first in range(0, len(starts), _AT_ONCE):
        yield starts[first : first + _AT_ONCE]


def triangle(code: Code, given: Sequence[Array], into: Sequence[Array], lower: bool) -> None:
    """Write a triangle as the upper one of rows: a lower one by its columns."""
    [matrix], [rows] = given, into
    n, _ = rows.shape
    code.fill(rows, 0.0)
    with code.each(0, n) as i, code.each(i, n) as j:
        number = code.load(matrix, j, i) if lower else code.load(matrix, i, j)
        code.store(number, rows, i, j)


def factor(code: Code, given: Sequence[Array], into: Sequence[Array], lower: bool) -> None:
    """Write the upper Cholesky factor, by one triangle; NaN if a pivot is not above 0."""
    b, [rows] = code.builder, into
    n, width = rows.shape
    triangle(code, given, into, lower)
    failed = code.slot(_BIT(0))
    for first in range(0, n, LANES):
        starts = range(first, width, LANES)
        with code.each(first, min(first + LANES, n)) as i:
            code.eliminate(rows, i, starts, (0, i), code.column(rows, i))
            pivot = code.load(rows, i, i)
            wrong = b.not_(b.fcmp_ordered(">", pivot, _DOUBLE(0.0)))
            b.store(b.or_(b.load(failed), wrong), failed)
            code.scale(rows, i, starts, code.inverse(code.root(pivot)))
            kept = code.from_lane(b.sub(i, _WORD(first)))
            found = b.select(kept, code.lanes(rows, i, first), ir.Constant(_VECTOR, 0.0))
            code.put(found, rows, i, first)
    with b.if_then(b.load(failed), likely=False):
        code.fill(rows, math.nan)


def _no_solution(code: Code, matrix: Array, n: int, out: Array) -> None:
    """Write NaN if an element of the diagonal is 0."""
    b, singular = code.builder, code.slot(_BIT(0))
    with code.each(0, n) as i:
        zero = b.fcmp_ordered("==", code.load(matrix, i, i), _DOUBLE(0.0))
        b.store(b.or_(b.load(singular), zero), singular)
    with b.if_then(b.load(singular), likely=False):
        code.fill(out, math.nan)


def solve_vector(
    code: Code,
    given: Sequence[Array],
    into: Sequence[Array],
    lower: bool,
    unit: bool,
    checked: bool,
) -> None:
    """Write the solution of a triangle, which is that of `triangle`, and a vector."""
    b, (rows, right), [out] = code.builder, given, into
    n, width = rows.shape
    code.fill(out, 0.0)
    code.copy(right, out)
    for first in range(0, n, LANES) if lower else reversed(range(0, n, LANES)):
        starts, end = range(first, width, LANES), min(first + LANES, n)
        with code.each(first, end) if lower else code.each_down(first, end) as i:
            number = code.load(out, i)
            after = code.from_lane(b.sub(i, _WORD(first - 1)))
            if not lower:
                total = ir.Constant(_VECTOR, 0.0)
                for at in starts:
                    known = code.lanes(out, at)
                    if at == first:
                        known = b.select(after, known, ir.Constant(_VECTOR, 0.0))
                    total = code.add(total, code.multiply(known, code.lanes(rows, i, at)))
                number = code.subtract(number, code.total(total))
            if not unit:
                number = b.fdiv(number, code.load(rows, i, i))
            for at in starts if lower else ():
                old = code.lanes(out, at)
                by = code.multiply(code.spread(number), code.lanes(rows, i, at))
                new = code.subtract(old, by)
                code.put(b.select(after, new, old) if at == first else new, out, at)
            code.store(number, out, i)
    if checked and not unit:
        _no_solution(code, rows, n, out)


def solve_matrix(
    code: Code,
    given: Sequence[Array],
    into: Sequence[Array],
    lower: bool,
    unit: bool,
    checked: bool,
) -> None:
    """Write the solutions of a triangle and the columns of a matrix."""
    b, (matrix, right), [out] = code.builder, given, into
    n, width = out.shape
    starts = range(0, width, LANES)
    code.fill(out, 0.0)
    code.copy(right, out)
    with code.each(0, n) if lower else code.each_down(0, n) as i:
        ends = (0, i) if lower else (b.add(i, _WORD(1)), n)
        code.eliminate(out, i, starts, ends, code.row(matrix, i))
        if not unit:
            code.scale(out, i, starts, code.inverse(code.load(matrix, i, i)))
    if checked and not unit:
        _no_solution(code, matrix, n, out)


def covariance_gradient(code: Code, given: Sequence[Array], into: Sequence[Array]) -> None:
    """Write the gradient of a `CovarianceGradient`; the other arrays are memory that it needs."""
    b, (known, times, vectors, weights), (out, inverse, rows) = code.builder, given, into
    (n, _), [count] = out.shape, weights.shape
    for array in into:
        code.fill(array, 0.0)
    code.copy(vectors, rows)
    for first in range(0, n, LANES):
        starts = range(0, first + LANES, LANES)
        with code.each(first, min(first + LANES, n)) as i:
            code.store(_DOUBLE(1.0), inverse, i, i)
            before = (0, i)
            code.eliminate(inverse, i, starts, before, code.row(known, i), True)
            code.scale(inverse, i, starts, code.inverse(code.load(known, i, i)))
    scale = code.spread(code.load(times))
    for first in range(0, n, LANES):
        with code.each(first, min(first + LANES, n)) as i:
            for chunk in _chunks(range(0, first + LANES, LANES)):
                sums = [code.slot(ir.Constant(_VECTOR, 0.0)) for _ in chunk]
                code.summed(sums, chunk, (i, n), code.column(inverse, i), inverse, code.add)
                for slot in sums:
                    b.store(code.multiply(b.load(slot), scale), slot)

                def weighted(k: ir.Value, i: ir.Value = i) -> ir.Value:
                    return code.multiply(code.load(weights, k), code.load(rows, k, i))

                code.summed(sums, chunk, (0, count), weighted, rows, code.add)
                for slot, at in zip(sums, chunk, strict=True):
                    found = b.load(slot)
                    twice = code.add(found, found)
                    if at == first:  # the diagonal once, and nothing above it
                        lane, nothing = b.sub(i, _WORD(first)), ir.Constant(_VECTOR, 0.0)
                        beyond = code.from_lane(b.add(lane, _WORD(1)))
                        found = b.select(beyond, nothing, found)
                        twice = b.select(code.from_lane(lane), found, twice)
                    code.put(twice, out, i, at)


def multiply(code: Code, arrays: Sequence[Array], into: Sequence[Array]) -> ir.Value:
    """Write a product by BLAS, of matrices or of a matrix and a vector; whether it has failed."""
    b, (one, other), [out] = code.builder, arrays, into
    known = [leading(v.shape, v.strides) or (True, 0) for v in arrays if len(v.shape) > 1]
    kind, once, nothing = _BYTE(ord("d")), code.slot(_DOUBLE(1.0)), code.slot(_DOUBLE(0.0))
    alpha, beta, first, second, found = (
        b.bitcast(v, _POINTER) for v in (once, nothing, one.start, other.start, out.start)
    )
    letters = {True: _BYTE(ord("t")), False: _BYTE(ord("n"))}
    if len(other.shape) == 1:
        [(by_rows, lead)] = known
        rows, columns = one.shape
        with code.each(0, rows) as i:  # some BLAS read it in spite of beta = 0
            code.store(_DOUBLE(0.0), out, i)
        lengths = (columns, rows) if by_rows else (rows, columns)
        given = [kind, letters[by_rows], *map(_WORD, lengths), alpha]
        given += [first, _WORD(lead), second, beta, found]
        return code.blas("numba_xxgemv", _GEMV, given)
    (by_rows, lead), (other_by_rows, other_lead) = known
    (m, k), (_, n) = one.shape, other.shape
    # BLAS stores by columns: it computes the transposed product of the transposed operands
    given = [kind, letters[not other_by_rows], letters[not by_rows], *map(_WORD, (n, m, k)), alpha]
    given += [second, _WORD(other_lead), first, _WORD(lead), beta, found, _WORD(n)]
    return code.blas("numba_xxgemm", _GEMM, given)
