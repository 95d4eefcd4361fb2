"""The code of operations on matrices: factors, solutions, a gradient, and products by BLAS.

Rows of results are as long as whole registers, so that no loop has a rest. A call of LAPACK takes
longer than a small matrix. Values are those of PyTensor's code for numba: of a factor one triangle
is read, and it is NaN where the matrix is not positive definite; so is a solution by a triangle
whose diagonal has a zero. A number that is none changes only what follows from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from llvmlite import ir

from synkhronos._compiling.direct.arrays import Shape
from synkhronos._compiling.direct.code import LANES, Array, Code, chunks

_WORD, _BIT, _DOUBLE = ir.IntType(64), ir.IntType(1), ir.DoubleType()
_BYTE, _INT = ir.IntType(8), ir.IntType(32)
_POINTER = _BYTE.as_pointer()
_VECTOR = ir.VectorType(_DOUBLE, LANES)
# int numba_xxgemm(kind, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc) and
# int numba_xxgemv(kind, trans, m, n, alpha, a, lda, x, beta, y): numba's entries into SciPy's BLAS
_GEMM = ir.FunctionType(
    _INT,
    [*[_BYTE] * 3, *[_WORD] * 3, *[_POINTER] * 2, _WORD, _POINTER, _WORD, *[_POINTER] * 2, _WORD],
)
_GEMV = ir.FunctionType(_INT, [*[_BYTE] * 2, *[_WORD] * 2, *[_POINTER] * 2, _WORD, *[_POINTER] * 3])


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
            for chunk in chunks(range(0, first + LANES, LANES)):
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
