"""Products of vectors and matrices: by loops, or by BLAS where it needs less time."""

from __future__ import annotations

import math

import pytensor.scalar as ps

from synkhronos._compiling.direct import matrices
from synkhronos._compiling.direct.arrays import Shape, View, new_array
from synkhronos._compiling.direct.program import Program
from synkhronos._compiling.direct.steps import Map, Reduce
from synkhronos._compiling.direct.unfit import UnfitError

_MOST_PRODUCTS = 1 << 13  # multiplications of a product: BLAS needs less time for more


def product(program: Program, a: View, b: View, dtype: str = "float64", batch: Shape = ()) -> View:
    """The product of vectors and matrices, for each element of the first axes of both."""
    # axes: rows of a, what is summed, columns of b
    first = len(batch)
    rows, columns = a.shape[first:-1], b.shape[first + 1 :]
    space = (*batch, *rows, a.shape[-1], *columns)
    if not a.shape[-1]:
        raise UnfitError("a product of nothing")
    if math.prod(space) > _MOST_PRODUCTS and math.prod((*rows, *columns)) > 1:
        return _by_blas(program, a, b, batch)
    shape, summed = (*batch, *rows, *columns), first + len(rows)
    out = new_array(shape, dtype)
    one = a.moved([*range(len(a.shape)), *["x"] * len(columns)]).broadcast(space)
    order = [*range(first), *["x"] * len(rows), *range(first, len(b.shape))]
    other = b.moved(order).broadcast(space)
    product = new_array(space, dtype)
    program.append(Map(space, [one, other], ps.mul, [product]))
    strides = iter(out.strides)
    wide = tuple(0 if axis == summed else next(strides) for axis in range(len(space)))
    into = View(out.buffer, space, wide)
    if a.shape[-1] == 1:
        program.copied(product.part([*[slice(None)] * summed, 0]), out)
    else:
        program.append(Reduce(space, [product], ps.add, out.dtype, into, (summed,)))
    return out


def _by_blas(program: Program, a: View, b: View, batch: Shape) -> View:
    """As `product`, by a call of BLAS."""
    axes, first = [*range(len(batch))], len(batch)
    whole = [slice(None)] * first
    rows, columns = a.shape[first:-1], b.shape[first + 1 :]
    shape = (*batch, *rows, *columns)
    matrix, other = a, b
    if math.prod(columns) == 1:
        other = b.part([*whole, slice(None), *[0] * len(columns)])
    elif math.prod(rows) == 1:
        matrix = b.moved([*axes, first + 1, first])
        other = a.part([*whole, *[0] * len(rows)])
    given = [_readable(program, v, first) for v in (matrix, other)]
    lengths = (*given[0].shape[first:-1], *given[1].shape[first + 1 :])
    [out] = program.whole(matrices.multiply, given, [lengths], batch)
    found = out.reshaped(shape)
    assert found is not None
    return found


def _readable(program: Program, given: View, first: int) -> View:
    """The arrays of the last axes as BLAS reads them."""
    shape, strides = given.shape[first:], given.strides[first:]
    if strides == (1,) or (len(shape) > 1 and matrices.leading(shape, strides)):
        return given
    copy = new_array(given.shape, given.dtype)
    program.copied(given, copy)
    return copy
