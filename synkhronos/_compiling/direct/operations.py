"""The steps of a graph's operations, in an order.

An operation that moves no numbers is a view of its operand: axes, parts, and shapes where the
memory allows it. Every other result has memory of its own, also where PyTensor would write into an
operand. All lengths are known, and parts are named by constants. Lengths that are numbers of data
are those of the data that the steps were made with. An operation, or a form of it, that is not here
raises `UnfitError`: the graph is numba's then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial, singledispatchmethod
from typing import Any

import numpy as np
import pytensor.scalar as ps
from pytensor.compile.ops import DeepCopyOp, ViewOp
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.raise_op import Assert
from pytensor.scalar.basic import ScalarOp
from pytensor.tensor.basic import (
    Alloc,
    AllocEmpty,
    ARange,
    ExtractDiag,
    Eye,
    Join,
    MakeVector,
    ScalarFromTensor,
    Split,
    TensorFromScalar,
)
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.linalg.decomposition.cholesky import Cholesky
from pytensor.tensor.linalg.solvers.psd import CholeskySolve
from pytensor.tensor.linalg.solvers.triangular import SolveTriangular
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Reshape, Shape_i, SpecifyShape
from pytensor.tensor.shape import Shape as ShapeOp
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
    indices_from_subtensor,
)

from synkhronos._compiling.direct import matrices
from synkhronos._compiling.direct.arrays import Buffer, Shape, View
from synkhronos._compiling.direct.flat import Evaluated
from synkhronos._compiling.direct.scans import ScanLoop
from synkhronos._compiling.direct.steps import (
    Accumulate,
    Check,
    Gather,
    Map,
    Reduce,
    Scatter,
    Step,
    Whole,
)
from synkhronos._compiling.direct.unfit import UnfitError
from synkhronos._compiling.lean.covariances import CovarianceGradient
from synkhronos._compiling.lean.op import Lean
from synkhronos._compiling.lean.quadratics import HEAD, OUTSIDE, SMALLEST, SquaresOfRows
from synkhronos._compiling.lean.scan_places import buffers
from synkhronos._compiling.lean.scans import NumberScan

_LARGE = 1 << 16  # elements of a constant
_MOST_COEFFICIENTS = 48
_MOST_PRODUCTS = 1 << 13  # multiplications of a product: BLAS needs less time for more
_MOST_ROWS, _MOST_COLUMNS = 128, 512  # of matrices: LAPACK needs less time for more


class Steps:
    """The steps of a graph.

    Parameters
    ----------
    inputs : mapping of Variable to View
    known : Evaluated
        The lengths of arrays, and integers.
    nodes : sequence of Apply
        In an order.

    Attributes
    ----------
    steps : list of Step
    measured : list of View
        Arguments whose numbers are lengths of arrays.
    """

    def __init__(
        self,
        inputs: Mapping[Variable, View],
        known: Evaluated,
        nodes: Sequence[Apply],
    ) -> None:
        self._views = dict(inputs)
        self._shapes, self._integers = known.shapes, known.integers
        self.steps: list[Step] = []
        self._measured: dict[Variable, None] = {}
        self._triangles: dict[Buffer, int] = {}  # upper ones with zeros beside them; their rows
        for node in nodes:
            found = self._of(node.op, node)
            self._views.update(zip(node.outputs, found, strict=True))
        self.measured = [self._views[v] for v in self._measured]

    def of(self, variable: Variable) -> View:
        """The array of a variable."""
        if variable not in self._views:
            self._views[variable] = _constant(variable)
        return self._views[variable]

    def copied(self, source: View, into: View) -> None:
        """Copy elements, as numbers of the other's dtype."""
        kind = ps.get_scalar_type(into.dtype)
        self._append(Map(into.shape, [source.broadcast(into.shape)], ps.Cast(kind), [into]))

    def _append(self, step: Step) -> None:
        if math.prod(step.space):
            self.steps.append(step)

    def _measure(self, found: Sequence[Any], given: Sequence[Variable]) -> None:
        """Note which arguments the lengths of arrays follow from, by more than their own."""
        if any(None in v.type.shape for v in found):
            self._follow(given)

    def _follow(self, given: Sequence[Variable]) -> None:
        """Note the arguments whose numbers these follow from."""
        asked, seen = list(given), set[Variable]()
        while asked:
            v = asked.pop()
            if v in seen or isinstance(v, Constant):
                continue
            seen.add(v)
            if v.owner is None:
                self._measured[v] = None
            elif not isinstance(v.owner.op, ShapeOp | Shape_i):
                asked += v.owner.inputs

    def _new(self, variable: Any) -> View:
        return _memory(self._shapes[variable], variable.type.dtype)

    @singledispatchmethod
    def _of(self, op: Any, node: Apply) -> list[View]:
        """The results of a node."""
        if isinstance(op, ScalarOp):
            return self._mapped(op, node)
        raise UnfitError(f"{op}")

    @_of.register(Lean)
    def _(self, op: Any, node: Apply) -> list[View]:
        return self._of(op.op, node)

    @_of.register(Elemwise)
    def _(self, op: Any, node: Apply) -> list[View]:
        return self._mapped(op.scalar_op, node)

    def _mapped(self, op: Any, node: Apply) -> list[View]:
        into = [self._new(v) for v in node.outputs]
        space = into[0].shape
        self._append(Map(space, [self.of(v).broadcast(space) for v in node.inputs], op, into))
        return into

    @_of.register(ScalarFromTensor)
    @_of.register(TensorFromScalar)
    @_of.register(ViewOp)
    @_of.register(DeepCopyOp)
    def _(self, op: Any, node: Apply) -> list[View]:
        return [self.of(node.inputs[0])]

    @_of.register(SpecifyShape)
    def _(self, op: Any, node: Apply) -> list[View]:
        self._follow(node.inputs[1:])  # PyTensor refuses other numbers
        return [self.of(node.inputs[0])]

    @_of.register(DimShuffle)
    def _(self, op: Any, node: Apply) -> list[View]:
        return [self.of(node.inputs[0]).moved(op.new_order)]

    @_of.register(Reshape)
    def _(self, op: Any, node: Apply) -> list[View]:
        self._measure(node.outputs, node.inputs[1:])
        shape, given = self._shapes[node.outputs[0]], self.of(node.inputs[0])
        if (found := given.reshaped(shape)) is not None:
            return [found]
        copy = _memory(given.shape, given.dtype)
        self.copied(given, copy)
        return [View.whole(copy.buffer, shape)]

    @_of.register(CAReduce)
    def _(self, op: Any, node: Apply) -> list[View]:
        given, out = self.of(node.inputs[0]), node.outputs[0]
        axes = tuple(range(len(given.shape))) if op.axis is None else tuple(op.axis)
        if not math.prod(given.shape):
            raise UnfitError(f"{op} of {given.shape}")
        found = self._new(out)
        if math.prod(given.shape[axis] for axis in axes) == 1:
            self.copied(given.moved([a for a in range(len(given.shape)) if a not in axes]), found)
            return [found]
        kept = iter(found.strides)
        strides = tuple(0 if a in axes else next(kept) for a in range(len(given.shape)))
        wide = View(found.buffer, given.shape, strides)
        within = getattr(op, "acc_dtype", None) or out.type.dtype
        self._append(Reduce(given.shape, [given], op.scalar_op, within, wide, axes))
        return [found]

    @_of.register(CumOp)
    def _(self, op: Any, node: Apply) -> list[View]:
        given, out = self.of(node.inputs[0]), self._new(node.outputs[0])
        if given.shape[op.axis] == 1:
            self.copied(given, out)
        else:
            operation = {"add": ps.add, "mul": ps.mul}[op.mode]
            self._append(Accumulate(given.shape, [given], operation, op.axis, out))
        return [out]

    @_of.register(Assert)
    def _(self, op: Any, node: Apply) -> list[View]:
        value, *conditions = map(self.of, node.inputs)
        for condition in conditions:
            self._append(Check(condition.shape, [condition]))
        return [value]

    @_of.register(SquaresOfRows)
    def _(self, op: Any, node: Apply) -> list[View]:
        coefficients, scale, numbers = (self.of(v) for v in node.inputs)
        [width] = coefficients.shape
        if width > _MOST_COEFFICIENTS:
            raise UnfitError(f"{op} of {width} coefficients")
        ends = np.cumsum([HEAD, width, width, width * (width + 1) // 2]).tolist()
        parts = zip([0, *ends], [*ends, numbers.shape[0]], strict=True)
        head, centre, rest, upper, flat = (numbers.part([slice(*ends)]) for ends in parts)
        joined = flat.reshaped((width, width))
        assert joined is not None
        # the triangle as a matrix, whose other elements are any of them times 0
        above = np.triu(np.ones((width, width)))
        places = (np.cumsum(above).reshape(width, width) - 1).astype(np.int64)
        chosen = _memory(places.shape, "float64")
        self._append(Gather(places.shape, [_of_array(places)], upper, (0,), (), chosen))
        root = self._by(ps.mul, chosen, _of_array(above))
        left = self._by(ps.sub, self._product(joined, coefficients), centre)
        left = self._by(ps.sub, rest, self._product(root, left))
        distance = self._by(ps.true_div, left, scale)
        smallest = self._by(ps.true_div, head.part([SMALLEST]), scale)
        squares = self._by(ps.add, self._product(distance, distance), self._by(ps.sqr, smallest))
        half = self._by(ps.mul, squares, _of_array(np.array(-0.5)))
        slope = self._product(joined.moved([1, 0]), self._product(root.moved([1, 0]), distance))
        return [
            self._by(ps.sub, half, head.part([OUTSIDE])),
            self._by(ps.true_div, slope, scale),
        ]

    def _by(self, op: Any, *given: View) -> View:
        """A function of numbers for each element of arrays."""
        shape = np.broadcast_shapes(*[view.shape for view in given])
        found = _memory(shape, "float64")
        self._append(Map(shape, [view.broadcast(shape) for view in given], op, [found]))
        return found

    @_of.register(Dot)
    def _(self, op: Any, node: Apply) -> list[View]:
        a, b = (self.of(v) for v in node.inputs)
        return [self._product(a, b, node.outputs[0].type.dtype)]

    def _product(self, a: View, b: View, dtype: str = "float64", batch: Shape = ()) -> View:
        """The product of vectors and matrices, for each element of the first axes of both."""
        # axes: rows of a, what is summed, columns of b
        first = len(batch)
        rows, columns = a.shape[first:-1], b.shape[first + 1 :]
        space = (*batch, *rows, a.shape[-1], *columns)
        if not a.shape[-1]:
            raise UnfitError("a product of nothing")
        if math.prod(space) > _MOST_PRODUCTS and math.prod((*rows, *columns)) > 1:
            return self._by_blas(a, b, batch)
        shape, summed = (*batch, *rows, *columns), first + len(rows)
        out = _memory(shape, dtype)
        one = a.moved([*range(len(a.shape)), *["x"] * len(columns)]).broadcast(space)
        order = [*range(first), *["x"] * len(rows), *range(first, len(b.shape))]
        other = b.moved(order).broadcast(space)
        product = _memory(space, dtype)
        self._append(Map(space, [one, other], ps.mul, [product]))
        strides = iter(out.strides)
        wide = tuple(0 if axis == summed else next(strides) for axis in range(len(space)))
        into = View(out.buffer, space, wide)
        if a.shape[-1] == 1:
            self.copied(product.part([*[slice(None)] * summed, 0]), out)
        else:
            self._append(Reduce(space, [product], ps.add, out.dtype, into, (summed,)))
        return out

    def _by_blas(self, a: View, b: View, batch: Shape) -> View:
        """As `_product`, by a call of BLAS."""
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
        given = [self._readable(v, first) for v in (matrix, other)]
        lengths = (*given[0].shape[first:-1], *given[1].shape[first + 1 :])
        [out] = self._whole(matrices.multiply, given, [lengths], batch)
        found = out.reshaped(shape)
        assert found is not None
        return found

    def _readable(self, given: View, first: int) -> View:
        """The arrays of the last axes as BLAS reads them."""
        shape, strides = given.shape[first:], given.strides[first:]
        if strides == (1,) or (len(shape) > 1 and matrices.leading(shape, strides)):
            return given
        copy = _memory(given.shape, given.dtype)
        self.copied(given, copy)
        return copy

    def _whole(
        self,
        write: Callable[..., Any],
        given: Sequence[View],
        shapes: Sequence[Shape],
        batch: Shape,
    ) -> list[View]:
        """Arrays of these shapes that an operation on whole arrays writes."""
        if any(view.dtype != "float64" for view in given):
            raise UnfitError(f"matrices of {given[0].dtype}")
        if not all(math.prod(view.shape) for view in given):
            raise UnfitError("a matrix of nothing")
        into = [_memory((*batch, *shape), "float64") for shape in shapes]
        self._append(Whole(into[0].shape, list(given), write, into, batch))
        return into

    @_of.register(Blockwise)
    def _(self, op: Any, node: Apply) -> list[View]:
        given = [self.of(v) for v in node.inputs]
        ends = [len(v.shape) - len(axes) for v, axes in zip(given, op.inputs_sig, strict=True)]
        pairs = list(zip(given, ends, strict=True))
        batch = np.broadcast_shapes(*[v.shape[:end] for v, end in pairs])
        wide = [v.broadcast((*batch, *v.shape[end:])) for v, end in pairs]
        if isinstance(op.core_op, Dot):
            one, other = wide
            return [self._product(one, other, node.outputs[0].type.dtype, batch)]
        return [self._linear(op.core_op, wide, batch)]

    @_of.register(Cholesky)
    @_of.register(SolveTriangular)
    @_of.register(CholeskySolve)
    def _(self, op: Any, node: Apply) -> list[View]:
        return [self._linear(op, [self.of(v) for v in node.inputs], ())]

    def _linear(self, op: Any, given: Sequence[View], batch: Shape) -> View:
        """The result of an operation of linear algebra, on the last axes of arrays."""
        [matrix, *others] = given
        n = matrix.shape[-1]
        if n > _MOST_ROWS:
            raise UnfitError(f"{op} of {n} rows")
        if isinstance(op, Cholesky):
            write = partial(matrices.factor, lower=op.lower)
            [rows] = self._whole(write, given, [(n, matrices.padded(n))], batch)
            self._triangles[rows.buffer] = n
            upper = _narrow(rows, n)
            return _transposed(upper) if op.lower else upper
        if isinstance(op, SolveTriangular):
            return self._solved(matrix, others[0], batch, op.lower, op.unit_diagonal)
        if isinstance(op, CholeskySolve):
            factors = (matrix, _transposed(matrix))
            first, second = factors if op.lower else factors[::-1]
            half = self._solved(first, others[0], batch, True, False, checked=False)
            return self._solved(second, half, batch, False, False, checked=False)
        raise UnfitError(f"{op}")

    def _solved(
        self,
        matrix: View,
        right: View,
        batch: Shape,
        lower: bool,
        unit: bool,
        checked: bool = True,
    ) -> View:
        """The solution of a triangle and a vector or matrix; NaN for a zero of the diagonal."""
        first, n = len(batch), matrix.shape[-1]
        *_, columns = right.shape
        is_matrix = len(right.shape) == first + 2
        if is_matrix and columns > 1:
            if columns > _MOST_COLUMNS:
                raise UnfitError(f"a solution of {columns} columns")
            solve = partial(matrices.solve_matrix, lower=lower, unit=unit, checked=checked)
            shape = n, matrices.padded(columns)
            [wide] = self._whole(solve, [matrix, right], [shape], batch)
            return _narrow(wide, columns)
        vector = right.part([*[slice(None)] * (first + 1), 0]) if is_matrix else right
        rows = self._triangle(matrix, lower, batch)
        write = partial(matrices.solve_vector, lower=lower, unit=unit, checked=checked)
        [wide] = self._whole(write, [rows, vector], [(matrices.padded(n),)], batch)
        found = _narrow(wide, n)
        return found.moved([*range(first + 1), "x"]) if is_matrix else found

    def _triangle(self, matrix: View, lower: bool, batch: Shape) -> View:
        """A triangle as the upper one of rows of whole registers."""
        upper, n = _transposed(matrix) if lower else matrix, matrix.shape[-1]
        width = matrices.padded(n)
        steps = (*upper.strides[:-2], upper.offset)
        if (
            self._triangles.get(upper.buffer) == n
            and upper.strides[-2:] == (width, 1)
            and not any(step % (n * width) for step in steps)
        ):
            return View(upper.buffer, (*batch, n, width), upper.strides, upper.offset)
        write = partial(matrices.triangle, lower=lower)
        return self._whole(write, [matrix], [(n, width)], batch)[0]

    @_of.register(CovarianceGradient)
    def _(self, op: Any, node: Apply) -> list[View]:
        given = [self.of(v) for v in node.inputs]
        factor, _, rows, _ = given
        n, width = factor.shape[0], matrices.padded(factor.shape[0])
        if n > _MOST_ROWS:
            raise UnfitError(f"{op} of {n} rows")
        shapes = [(n, width), (n, width), (rows.shape[0], width)]
        out, *_ = self._whole(matrices.covariance_gradient, given, shapes, ())
        return [_narrow(out, n)]

    @_of.register(ExtractDiag)
    def _(self, op: Any, node: Apply) -> list[View]:
        given = self.of(node.inputs[0])
        rest = [a for a in range(len(given.shape)) if a not in (op.axis1, op.axis2)]
        part = [slice(None)] * len(given.shape)
        part[op.axis1], part[op.axis2] = (
            slice(max(0, -op.offset), None),
            slice(max(0, op.offset), None),
        )
        corner = given.part(part)
        length = min(corner.shape[op.axis1], corner.shape[op.axis2])
        shape = (*[corner.shape[a] for a in rest], length)
        step = corner.strides[op.axis1] + corner.strides[op.axis2]
        return [
            View(given.buffer, shape, (*[corner.strides[a] for a in rest], step), corner.offset)
        ]

    @_of.register(Eye)
    def _(self, op: Any, node: Apply) -> list[View]:
        self._measure(node.outputs, node.inputs[:2])
        rows, columns = self._shapes[node.outputs[0]]
        k = self._number(node.inputs[2])
        return [_of_array(np.eye(rows, columns, k, dtype=op.dtype))]

    @_of.register(ARange)
    def _(self, op: Any, node: Apply) -> list[View]:
        self._measure(node.outputs, node.inputs)
        first, step = (
            v.data if isinstance(v, Constant) else self._number(v) for v in node.inputs[::2]
        )
        [length] = self._shapes[node.outputs[0]]
        return [_of_array((first + step * np.arange(length)).astype(op.dtype))]

    @_of.register(NumberScan)
    def _(self, op: Any, node: Apply) -> list[View]:
        steps = self._number(node.inputs[0])
        self._follow([node.inputs[b.outer] for b in buffers(op.scan.info) if b.is_new])
        loop, outs = ScanLoop(op, steps), iter(node.outputs)
        if steps < 1:
            raise UnfitError(f"{op} of {steps} steps")
        into, found = [], []
        for buffer in buffers(op.scan.info):
            rows = self._new(next(outs))
            into.append(rows)
            if not buffer.is_new:
                self.copied(self.of(node.inputs[buffer.outer]), rows)
        into += [self._new(v) for v in outs]
        if not all(math.prod(rows.shape) for rows in into):
            raise UnfitError(f"{op} of nothing")
        given = [self.of(node.inputs[at]) for at in loop.given]
        self._append(Whole(into[0].shape, given, loop, into, ()))
        for buffer, rows in zip(buffers(op.scan.info), into, strict=False):
            found.append(self._in_order(rows, steps, buffer.ends))
        return found + into[len(found) :]

    def _in_order(self, rows: View, steps: int, ends: int | None) -> View:
        """The rows of a buffer in order after these steps; those of no step are zeros."""
        if ends is None:
            return rows
        length, end = rows.shape[0], steps + ends
        if length > end:
            rest = rows.part([slice(end, None)])
            self.copied(_of_array(np.zeros((), rows.dtype)), rest)
        if not 1 < length < end or not end % length:
            return rows
        out, first = _memory(rows.shape, rows.dtype), end % length
        self.copied(rows.part([slice(first, None)]), out.part([slice(length - first)]))
        self.copied(rows.part([slice(first)]), out.part([slice(length - first, None)]))
        return out

    @_of.register(MakeVector)
    def _(self, op: Any, node: Apply) -> list[View]:
        out = self._new(node.outputs[0])
        for at, v in enumerate(node.inputs):
            self.copied(self.of(v), out.part([at]))
        return [out]

    @_of.register(Join)
    def _(self, op: Any, node: Apply) -> list[View]:
        out, begin = self._new(node.outputs[0]), 0
        axis = op.axis % len(out.shape)
        for v in node.inputs:
            given = self.of(v)
            end = begin + given.shape[axis]
            self.copied(given, out.part([*[slice(None)] * axis, slice(begin, end)]))
            begin = end
        return [out]

    @_of.register(Split)
    def _(self, op: Any, node: Apply) -> list[View]:
        self._measure(node.outputs, node.inputs[1:])
        given, begin, found = self.of(node.inputs[0]), 0, []
        for v in node.outputs:
            end = begin + self._shapes[v][op.axis]
            found.append(given.part([*[slice(None)] * op.axis, slice(begin, end)]))
            begin = end
        return found

    @_of.register(Alloc)
    def _(self, op: Any, node: Apply) -> list[View]:
        self._measure(node.outputs, node.inputs[1:])
        return [self.of(node.inputs[0]).broadcast(self._shapes[node.outputs[0]])]

    @_of.register(AllocEmpty)
    def _(self, op: Any, node: Apply) -> list[View]:
        self._measure(node.outputs, node.inputs)
        return [self._new(node.outputs[0])]

    @_of.register(ShapeOp)
    def _(self, op: Any, node: Apply) -> list[View]:
        return [_of_array(np.array(self.of(node.inputs[0]).shape, np.int64))]

    @_of.register(Shape_i)
    def _(self, op: Any, node: Apply) -> list[View]:
        return [_of_array(np.array(self.of(node.inputs[0]).shape[op.i], np.int64))]

    @_of.register(Subtensor)
    def _(self, op: Any, node: Apply) -> list[View]:
        given, *numbers = node.inputs
        return [self.of(given).part(self._index(op, numbers))]

    @_of.register(IncSubtensor)
    def _(self, op: Any, node: Apply) -> list[View]:
        given, value, *numbers = node.inputs
        out = self._new(node.outputs[0])
        self.copied(self.of(given), out)
        part = out.part(self._index(op, numbers))
        added = self.of(value).broadcast(part.shape)
        if op.set_instead_of_inc:
            self.copied(added, part)
        else:
            self._append(Map(part.shape, [part, added], ps.add, [part]))
        return [out]

    @_of.register(AdvancedSubtensor)
    def _(self, op: Any, node: Apply) -> list[View]:
        given, *numbers = node.inputs
        table, out = self.of(given), self._new(node.outputs[0])
        reads, placed, rest = self._chosen(op, numbers, table, out.shape)
        self._append(Gather(out.shape, reads, table, placed, rest, out))
        return [out]

    @_of.register(AdvancedIncSubtensor)
    def _(self, op: Any, node: Apply) -> list[View]:
        given, value, *numbers = node.inputs
        if getattr(op, "ignore_duplicates", False):
            raise UnfitError(f"{op}")
        out = self._new(node.outputs[0])
        self.copied(self.of(given), out)
        shape = _chosen_shape(op, [self.of(v).shape for v in numbers], out.shape)
        reads, placed, rest = self._chosen(op, numbers, out, shape)
        added = self.of(value).broadcast(shape)
        self._append(Scatter(shape, [*reads, added], out, placed, rest, not op.set_instead_of_inc))
        return [out]

    def _chosen(
        self, op: Any, numbers: Sequence[Variable], table: View, shape: Shape
    ) -> tuple[list[View], tuple[int | None, ...], tuple[int, ...]]:
        """The indices by element, which axes of the table have them, and those of the others."""
        first, indices = _first_indexed(op, len(numbers)), [self.of(v) for v in numbers]
        common = np.broadcast_shapes(*[v.shape for v in indices])
        if any(np.dtype(v.dtype).kind not in "iu" for v in indices):
            raise UnfitError(f"{op} by {indices[0].dtype}")
        after = len(table.shape) - first - len(indices)
        order = [*range(len(common))]
        wide = [
            v.broadcast(common).moved([*["x"] * first, *order, *["x"] * after]).broadcast(shape)
            for v in indices
        ]
        placed = (*[None] * first, *range(len(indices)), *[None] * after)
        begin = first + len(common)
        return wide, placed, (*range(first), *range(begin, begin + after))

    def _index(self, op: Any, numbers: Sequence[Variable]) -> list[int | slice]:
        """The index of a part.

        Raises
        ------
        UnfitError
            It is computed.
        """
        found = indices_from_subtensor(list(numbers), op.idx_list)
        return [
            slice(*[None if e is None else self._number(e) for e in (i.start, i.stop, i.step)])
            if isinstance(i, slice)
            else self._number(i)
            for i in found
        ]

    def _number(self, variable: Any) -> int:
        """An integer that is known before the function is called."""
        if isinstance(variable, int | np.integer):
            return int(variable)
        while not isinstance(variable, Constant):
            if variable in self._integers:
                self._follow([variable])
                return self._integers[variable]
            if variable.owner is None or not isinstance(
                variable.owner.op, ScalarFromTensor | TensorFromScalar | ViewOp
            ):
                raise UnfitError("an index is computed")
            [variable] = variable.owner.inputs
        return int(variable.data)


def _memory(shape: Shape, dtype: str) -> View:
    """A new array."""
    return View.whole(Buffer(math.prod(shape), dtype), shape)


def _transposed(view: View) -> View:
    """The view with its last axes exchanged."""
    last = len(view.shape) - 1
    return view.moved([*range(last - 1), last, last - 1])


def _narrow(view: View, length: int) -> View:
    """The first elements along the last axis."""
    return view.part([*[slice(None)] * (len(view.shape) - 1), slice(length)])


def _first_indexed(op: Any, count: int) -> int:
    """The first axis that has an index: the indices are next to each other, all others whole.

    Raises
    ------
    UnfitError
    """
    places = getattr(op, "idx_list", None)
    if places is None:
        return 0
    kinds = [isinstance(each, slice) for each in places]
    if any(isinstance(s, slice) and s != slice(None) for s in places):
        raise UnfitError(f"{op}")
    first = kinds.index(False)
    if kinds[first : first + count] != [False] * count or not all(kinds[first + count :]):
        raise UnfitError(f"{op}")
    return first


def _chosen_shape(op: Any, indices: Sequence[Shape], table: Shape) -> Shape:
    first = _first_indexed(op, len(indices))
    return (*table[:first], *np.broadcast_shapes(*indices), *table[first + len(indices) :])


def _constant(variable: Any) -> View:
    if not isinstance(variable, Constant):
        raise UnfitError(f"{variable.type}")
    return _of_array(np.asarray(variable.data))


def _of_array(value: np.ndarray) -> View:
    if value.dtype.kind not in "fiub":
        raise UnfitError(f"a constant of {value.dtype}")
    if value.size and (value == value.flat[0]).all():
        one = Buffer(1, value.dtype.name, constant=value.ravel()[:1])
        return View.whole(one, ()).broadcast(value.shape)
    if value.size > _LARGE:
        raise UnfitError(f"a constant of {value.size} elements")
    buffer = Buffer(value.size, value.dtype.name, constant=value.ravel())
    return View.whole(buffer, value.shape)
