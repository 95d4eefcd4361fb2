"""The steps of a graph's operations, in an order.

An operation that moves no numbers is a view of its operand: axes, parts, and shapes where the
memory allows it. Every other result has memory of its own, also where PyTensor would write into an
operand. All lengths are known, and parts are named by constants. Lengths that are numbers of data
are those of the data that the steps were made with. An operation, or a form of it, that is not here
raises `UnfitError`: the graph is numba's then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import singledispatchmethod
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

from synkhronos._compiling.direct.arrays import View, array_of, new_array
from synkhronos._compiling.direct.factors import Factors
from synkhronos._compiling.direct.flat import Evaluated
from synkhronos._compiling.direct.indices import chosen, chosen_shape
from synkhronos._compiling.direct.products import product
from synkhronos._compiling.direct.program import Program
from synkhronos._compiling.direct.regressions import squares_of_rows
from synkhronos._compiling.direct.scans import ScanLoop, in_order
from synkhronos._compiling.direct.steps import (
    Accumulate,
    Check,
    Gather,
    Map,
    Reduce,
    Scatter,
    Whole,
)
from synkhronos._compiling.direct.unfit import UnfitError
from synkhronos._compiling.lean.covariances import CovarianceGradient
from synkhronos._compiling.lean.op import Lean
from synkhronos._compiling.lean.quadratics import SquaresOfRows
from synkhronos._compiling.lean.row_products import ChosenRowProducts, SumsOfRowsByIndex
from synkhronos._compiling.lean.scan_places import buffers
from synkhronos._compiling.lean.scans import NumberScan


class Steps(Program):
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
    measured : list of View
        Arguments whose numbers are lengths of arrays.
    """

    def __init__(
        self,
        inputs: Mapping[Variable, View],
        known: Evaluated,
        nodes: Sequence[Apply],
    ) -> None:
        super().__init__()
        self._views = dict(inputs)
        self._shapes, self._integers = known.shapes, known.integers
        self._factors = Factors(self)
        self._measured: dict[Variable, None] = {}
        for node in nodes:
            found = self._of(node.op, node)
            self._views.update(zip(node.outputs, found, strict=True))
        self.measured = [self._views[v] for v in self._measured]

    def of(self, variable: Variable) -> View:
        """The array of a variable."""
        if variable not in self._views:
            self._views[variable] = _constant(variable)
        return self._views[variable]

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
        return new_array(self._shapes[variable], variable.type.dtype)

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
        self.append(Map(space, [self.of(v).broadcast(space) for v in node.inputs], op, into))
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
        copy = new_array(given.shape, given.dtype)
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
        self.append(Reduce(given.shape, [given], op.scalar_op, within, wide, axes))
        return [found]

    @_of.register(CumOp)
    def _(self, op: Any, node: Apply) -> list[View]:
        given, out = self.of(node.inputs[0]), self._new(node.outputs[0])
        if given.shape[op.axis] == 1:
            self.copied(given, out)
        else:
            operation = {"add": ps.add, "mul": ps.mul}[op.mode]
            self.append(Accumulate(given.shape, [given], operation, op.axis, out))
        return [out]

    @_of.register(Assert)
    def _(self, op: Any, node: Apply) -> list[View]:
        value, *conditions = map(self.of, node.inputs)
        for condition in conditions:
            self.append(Check(condition.shape, [condition]))
        return [value]

    @_of.register(SquaresOfRows)
    def _(self, op: Any, node: Apply) -> list[View]:
        return squares_of_rows(self, *map(self.of, node.inputs))

    @_of.register(Dot)
    def _(self, op: Any, node: Apply) -> list[View]:
        a, b = (self.of(v) for v in node.inputs)
        return [product(self, a, b, node.outputs[0].type.dtype)]

    @_of.register(Blockwise)
    def _(self, op: Any, node: Apply) -> list[View]:
        given = [self.of(v) for v in node.inputs]
        ends = [len(v.shape) - len(axes) for v, axes in zip(given, op.inputs_sig, strict=True)]
        pairs = list(zip(given, ends, strict=True))
        batch = np.broadcast_shapes(*[v.shape[:end] for v, end in pairs])
        wide = [v.broadcast((*batch, *v.shape[end:])) for v, end in pairs]
        if isinstance(op.core_op, Dot):
            one, other = wide
            return [product(self, one, other, node.outputs[0].type.dtype, batch)]
        return [self._factors.of(op.core_op, wide, batch)]

    @_of.register(Cholesky)
    @_of.register(SolveTriangular)
    @_of.register(CholeskySolve)
    def _(self, op: Any, node: Apply) -> list[View]:
        return [self._factors.of(op, [self.of(v) for v in node.inputs], ())]

    @_of.register(CovarianceGradient)
    def _(self, op: Any, node: Apply) -> list[View]:
        return [self._factors.gradient(op, [self.of(v) for v in node.inputs])]

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
        return [array_of(np.eye(rows, columns, k, dtype=op.dtype))]

    @_of.register(ARange)
    def _(self, op: Any, node: Apply) -> list[View]:
        self._measure(node.outputs, node.inputs)
        first, step = (
            v.data if isinstance(v, Constant) else self._number(v) for v in node.inputs[::2]
        )
        [length] = self._shapes[node.outputs[0]]
        return [array_of((first + step * np.arange(length)).astype(op.dtype))]

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
        self.append(Whole(into[0].shape, given, loop, into, ()))
        for buffer, rows in zip(buffers(op.scan.info), into, strict=False):
            found.append(in_order(self, rows, steps, buffer.ends))
        return found + into[len(found) :]

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
        return [array_of(np.array(self.of(node.inputs[0]).shape, np.int64))]

    @_of.register(Shape_i)
    def _(self, op: Any, node: Apply) -> list[View]:
        return [array_of(np.array(self.of(node.inputs[0]).shape[op.i], np.int64))]

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
            self.append(Map(part.shape, [part, added], ps.add, [part]))
        return [out]

    @_of.register(AdvancedSubtensor)
    def _(self, op: Any, node: Apply) -> list[View]:
        given, *numbers = node.inputs
        table, out = self.of(given), self._new(node.outputs[0])
        reads, placed, rest = chosen(op, [self.of(v) for v in numbers], table, out.shape)
        self.append(Gather(out.shape, reads, table, placed, rest, out))
        return [out]

    @_of.register(AdvancedIncSubtensor)
    def _(self, op: Any, node: Apply) -> list[View]:
        given, value, *numbers = node.inputs
        if getattr(op, "ignore_duplicates", False):
            raise UnfitError(f"{op}")
        out = self._new(node.outputs[0])
        self.copied(self.of(given), out)
        indices = [self.of(v) for v in numbers]
        shape = chosen_shape(op, indices, out.shape)
        reads, placed, rest = chosen(op, indices, out, shape)
        added = self.of(value).broadcast(shape)
        self.append(Scatter(shape, [*reads, added], out, placed, rest, not op.set_instead_of_inc))
        return [out]

    @_of.register(ChosenRowProducts)
    def _(self, op: Any, node: Apply) -> list[View]:
        table, rows, index = (self.of(v) for v in node.inputs)
        shape, out = rows.shape, self._new(node.outputs[0])
        found, products = (new_array(shape, rows.dtype) for _ in range(2))
        by_row = index.moved([0, "x"]).broadcast(shape)
        self.append(Gather(shape, [by_row], table, (0, None), (1,), found))
        self.append(Map(shape, [found, rows], ps.mul, [products]))
        into = View(out.buffer, shape, (1, 0))
        self.append(Reduce(shape, [products], ps.add, out.dtype, into, (1,)))
        return [out]

    @_of.register(SumsOfRowsByIndex)
    def _(self, op: Any, node: Apply) -> list[View]:
        self._measure(node.outputs, node.inputs[3:])
        factors, rows, index, _ = (self.of(v) for v in node.inputs)
        shape, out = rows.shape, self._new(node.outputs[0])
        products = new_array(shape, rows.dtype)
        by_row = [v.moved([0, "x"]).broadcast(shape) for v in (factors, index)]
        self.append(Map(shape, [by_row[0], rows], ps.mul, [products]))
        self.copied(array_of(np.zeros((), out.dtype)), out)
        self.append(Scatter(shape, [by_row[1], products], out, (0, None), (1,), True))
        return [out]

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


def _constant(variable: Any) -> View:
    if not isinstance(variable, Constant):
        raise UnfitError(f"{variable.type}")
    return array_of(np.asarray(variable.data))
