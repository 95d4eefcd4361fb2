"""The graph of some rows of a variable, computed from these rows of its inputs where possible.

PyTensor's own rewrites move a slice through an operation only if nothing else uses the result. Here
each operation that keeps rows apart is made again on the slice. Other operations
stay whole, and their results are sliced: that takes longer, and is right as well.
"""

from __future__ import annotations

from collections.abc import Callable

from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.variable import TensorVariable


class SomeRows:
    """Makes graphs of some rows along the first axis.

    Parameters
    ----------
    start, stop : integer scalars
        The first row, and the one after the last; or `start` is a vector of the rows' numbers, and
        `stop` is None.
    rows : int
        The number of all rows.

    Notes
    -----
    A condition on all rows, as PyMC has for each parameter, is looked at for these rows only. For
    draws of a posterior all conditions hold.
    """

    def __init__(self, start: Variable, stop: Variable | None, rows: int) -> None:
        self._some = start if stop is None else slice(start, stop)
        self._count = start.shape[0] if stop is None else stop - start
        self._rows = rows
        self._made: dict[TensorVariable, TensorVariable] = {}

    def of(self, whole: TensorVariable) -> TensorVariable:
        """The rows of a variable whose first axis is that of the rows."""
        if whole not in self._made:
            self._made[whole] = self._of(whole)
        return self._made[whole]

    def _of(self, whole: TensorVariable) -> TensorVariable:
        node = whole.owner
        rule = None if node is None else _rule_for(node)
        found = None if rule is None else rule(self, node, whole)
        return whole[self._some] if found is None else found

    def elemwise(self, node: Apply, whole: TensorVariable) -> TensorVariable | None:
        """Rows of the operands; one that has a single row is the same for all."""
        if len(node.outputs) > 1:
            return None
        return node.op(*(v if v.type.broadcastable[0] else self.of(v) for v in node.inputs))

    def dimshuffle(self, node: Apply, whole: TensorVariable) -> TensorVariable | None:
        """Rows of the operand, if its first axis stays the first one."""
        [given] = node.inputs
        if not given.type.ndim or node.op.new_order[0] != 0:
            return None
        return self.of(given).dimshuffle(node.op.new_order)

    def dot(self, node: Apply, whole: TensorVariable) -> TensorVariable | None:
        """Rows of the first factor."""
        left, right = node.inputs
        return node.op(self.of(left), right)

    def reduction(self, node: Apply, whole: TensorVariable) -> TensorVariable | None:
        """Rows of the operand, if the rows are not what is reduced."""
        axis = node.op.axis
        if axis is None or 0 in axis:
            return None
        return node.op(self.of(node.inputs[0]))

    def lookup(self, node: Apply, whole: TensorVariable) -> TensorVariable | None:
        """Rows of the numbers by which something is looked up."""
        if len(node.inputs) != 2 or node.inputs[1].type.ndim != 1:
            return None
        if getattr(node.op, "idx_list", (0,)) != (0,):
            return None
        if node.inputs[1].type.dtype == "bool":
            return None
        found = node.inputs[0][self.of(node.inputs[1])]
        return found if found.type.ndim == whole.type.ndim else None

    def checked(self, node: Apply, whole: TensorVariable) -> TensorVariable | None:
        """Rows of the value, under the conditions for these rows."""
        value, *conditions = node.inputs
        return node.op(self.of(value), *map(self._condition, conditions))

    def repeated(self, node: Apply, whole: TensorVariable) -> TensorVariable | None:
        """Rows of a value that is repeated along other axes; the one row of all, once for each."""
        value, _, *others = node.inputs
        if value.type.ndim < whole.type.ndim or value.type.broadcastable[0]:
            return node.op(value, self._count, *others)
        rows = self.of(value)
        return node.op(rows, rows.shape[0], *others)

    def symbolic(self, node: Apply, whole: TensorVariable) -> TensorVariable | None:
        """Rows of what PyTensor writes as a graph: LogSumExp, and elementwise functions."""
        if hasattr(node.op, "axis"):
            return self.reduction(node, whole)
        if any(v.type.ndim != whole.type.ndim for v in node.inputs):
            return None
        return self.elemwise(node, whole)

    def _condition(self, condition: Variable) -> Variable:
        """A condition on parameters, for these rows of the parameters that have rows."""
        node = condition.owner
        if node is None:
            return condition
        kind = type(node.op).__name__
        if kind == "All" and node.op.axis in (None, (0,)):
            given = node.inputs[0]
            if given.type.shape[:1] == (self._rows,):
                return self.of(given).all()
        if kind in _OF_CONDITIONS:
            return node.op(*map(self._condition, node.inputs))
        return condition


type Rule = Callable[[SomeRows, Apply, TensorVariable], TensorVariable | None]

_OF_CONDITIONS = ("All", "MakeVector", "ScalarFromTensor")

# By the name of a class, since versions of PyTensor differ in which of them they have.
_RULES: dict[str, Rule] = {
    "Elemwise": SomeRows.elemwise,
    "DimShuffle": SomeRows.dimshuffle,
    "Dot": SomeRows.dot,
    "CAReduce": SomeRows.reduction,
    "FusibleSymbolicOp": SomeRows.symbolic,
    "AdvancedSubtensor": SomeRows.lookup,
    "AdvancedSubtensor1": SomeRows.lookup,
    "CheckAndRaise": SomeRows.checked,
    "Alloc": SomeRows.repeated,
}


def _rule_for(node: Apply) -> Rule | None:
    names = (kind.__name__ for kind in type(node.op).__mro__)
    return next((_RULES[name] for name in names if name in _RULES), None)
