"""The operations: their types, values and gradients.

A *linear* one is a map of all members' values, given by a matrix X. It has a weighing (see
`_engine.graph_exchanges`): with the diagonal matrix W of the members' shares of the rows it may be
X, X W, W^-1 X or W^-1 X W. The loss of the group is the mean of the members' losses, weighted by
these shares. So the gradient through a map M is W^-1 M^T W g, where g has the members' gradients by
its value. For M = W^-b X W^a this is W^(a-1) X^T W^(1-b): the transposed map, with
`Weighing.transposed`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import OutputStorageType
from pytensor.scalar.basic import int64 as token_type
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from synkhronos._compiling.graph_types import Arrays, Inputs
from synkhronos._engine import graph_exchanges
from synkhronos._engine.graph_collectives import FIRST_TOKEN, CollectiveOp
from synkhronos._engine.graph_exchanges import PLAIN, Weighing
from synkhronos._libraries.library import optional_gain
from synkhronos._libraries.pytensor import PYTENSOR
from synkhronos._proofs.reductions import Reduction, result_dtype

SUM, PROD = Reduction.SUM, Reduction.PROD


Shape = Sequence[Variable | int]  # lengths, as expressions


class Combining(CollectiveOp):
    """An operation on one value, and perhaps on one more that only gives a length."""

    def made(self, given: Sequence[Variable], output: Variable) -> Apply:
        """A node, before it has its token."""
        return Apply(self, [*given, FIRST_TOKEN], [output, token_type()])

    def make_node(self, *inputs: Variable) -> Apply:
        given = [pt.as_tensor(v) for v in inputs if getattr(v, "type", None) != token_type]
        node = self.made(given, self.output_type(given[0].type)())
        if len(inputs) > len(given):
            node.inputs[-1] = inputs[-1]
        return node

    def output_type(self, kind: TensorType) -> TensorType:
        """The type of the combined value, of that of the members' values."""
        return kind

    def value(self, given: Sequence[np.ndarray]) -> np.ndarray:
        """The combined value."""
        raise NotImplementedError

    def perform(self, node: Apply, inputs: Arrays, output_storage: OutputStorageType) -> None:
        """Meet the others."""
        *given, token = inputs
        output_storage[0][0] = self.value([np.asarray(v) for v in given])
        output_storage[1][0] = token

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Only the first input has a gradient."""
        return [[True, False], *([False, False] for _ in node.inputs[1:])]

    def pullback(self, inputs: Inputs, outputs: Inputs, cotangents: Inputs) -> list[Variable]:
        """The gradient of the mean of the members' losses, weighted by rows."""
        given, found = inputs[0], cotangents[0]
        others = [disconnected_type() for _ in inputs[1:]]
        if isinstance(found.type, DisconnectedType):
            return [disconnected_type(), *others]
        if given.type.dtype in _DISCRETE:
            return [given.zeros_like(dtype="float64"), *others]
        return [self.gradient(given, outputs[0], found).astype(given.type.dtype), *others]

    def gradient(
        self, given: TensorVariable, output: TensorVariable, found: TensorVariable
    ) -> TensorVariable:
        """By the given value, of the gradient by the output."""
        raise NotImplementedError


_DISCRETE = ("bool", *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)))


class AllReduce(Combining):
    """The members' values, reduced; linear for a sum."""

    __props__ = ("op", "weighing")

    def __init__(self, op: str, weighing: Weighing = PLAIN) -> None:
        self.op, self.weighing = Reduction(op), weighing
        self.equal = not weighing.got

    def infer_shape(self, node: Apply, shapes: Sequence[Shape]) -> list[Shape]:
        return [shapes[0], ()]

    def value(self, given: Sequence[np.ndarray]) -> np.ndarray:
        return graph_exchanges.all_reduced(given[0], self.op, self.weighing)

    def gradient(
        self, given: TensorVariable, output: TensorVariable, found: TensorVariable
    ) -> TensorVariable:
        if self.op is SUM:
            return AllReduce(SUM, self.weighing.transposed)(found)[0]
        return _slope(self.op, given, output) * _total(found)


class AllGather(Combining):
    """The members' values, joined along axis 0; linear.

    A second value, if given, has as many rows as the result. JAX needs it where members have
    different numbers of rows.
    """

    __props__ = ("weighing",)

    def __init__(self, weighing: Weighing = PLAIN) -> None:
        self.weighing = weighing
        self.equal = not weighing.got

    def output_type(self, kind: TensorType) -> TensorType:
        return kind.clone(shape=(None, *kind.shape[1:]))

    def value(self, given: Sequence[np.ndarray]) -> np.ndarray:
        return graph_exchanges.gathered(given[0], self.weighing)

    def gradient(
        self, given: TensorVariable, output: TensorVariable, found: TensorVariable
    ) -> TensorVariable:
        return OwnRows(self.weighing.transposed)(found, given)[0]


class OwnRows(Combining):
    """This member's rows of the sum: as many as a second value has; linear, see `AllGather`."""

    __props__ = ("weighing",)
    equal = False

    def __init__(self, weighing: Weighing = PLAIN) -> None:
        self.weighing = weighing

    def output_type(self, kind: TensorType) -> TensorType:
        return kind.clone(shape=(None, *kind.shape[1:]))

    def value(self, given: Sequence[np.ndarray]) -> np.ndarray:
        return graph_exchanges.scattered(given[0], SUM, self.weighing, len(given[1]))

    def gradient(
        self, given: TensorVariable, output: TensorVariable, found: TensorVariable
    ) -> TensorVariable:
        return AllGather(self.weighing.transposed)(found, given)[0]


class ReduceScatter(Combining):
    """This member's rows of the reduced values, as a part is cut; linear for a sum."""

    __props__ = ("op", "weighing")
    equal = False

    def __init__(self, op: str, weighing: Weighing = PLAIN) -> None:
        self.op, self.weighing = Reduction(op), weighing

    @property
    def reduction(self) -> Reduction:
        """As the communicators call it."""
        return Reduction.AVG if self.weighing.given else self.op

    def output_type(self, kind: TensorType) -> TensorType:
        dtype = result_dtype(np.dtype(kind.dtype), self.reduction).name
        return kind.clone(dtype=dtype, shape=(None, *kind.shape[1:]))

    def value(self, given: Sequence[np.ndarray]) -> np.ndarray:
        return graph_exchanges.scattered(given[0], self.op, self.weighing)

    def gradient(
        self, given: TensorVariable, output: TensorVariable, found: TensorVariable
    ) -> TensorVariable:
        if self.op is SUM:
            return AllGather(self.weighing.transposed)(found, given)[0]
        whole = AllGather()(output, given)[0]
        return _slope(self.op, given, whole) * AllGather(PLAIN.transposed)(found, given)[0]


class Broadcast(Combining):
    """The value of one member."""

    __props__ = ("root",)
    equal = True

    def __init__(self, root: int) -> None:
        self.root = root

    def infer_shape(self, node: Apply, shapes: Sequence[Shape]) -> list[Shape]:
        return [shapes[0], ()]

    def value(self, given: Sequence[np.ndarray]) -> np.ndarray:
        return graph_exchanges.of_root(given[0], self.root)

    def gradient(
        self, given: TensorVariable, output: TensorVariable, found: TensorVariable
    ) -> TensorVariable:
        return pt.switch(pt.eq(Rank()()[0], self.root), _total(found), 0)


class Rank(CollectiveOp):
    """This member's rank."""

    __props__ = ()
    equal = False

    def make_node(self, *inputs: Variable) -> Apply:
        token = inputs[0] if inputs else FIRST_TOKEN
        return Apply(self, [token], [pt.lscalar(), token_type()])

    def infer_shape(self, node: Apply, shapes: Sequence[Shape]) -> list[Shape]:
        return [(), ()]

    def perform(self, node: Apply, inputs: Arrays, output_storage: OutputStorageType) -> None:
        """No meeting."""
        output_storage[0][0] = np.array(graph_exchanges.place()[0], np.int64)
        output_storage[1][0] = inputs[0]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """It has no gradient."""
        return [[False, False]]


def _total(found: TensorVariable) -> TensorVariable:
    """The gradient of the group's loss by a value that all members share, in this member's scale.

    Losses of members count by their shares, and the gradient that a member returns is multiplied by
    its own share in the end.
    """
    return AllReduce(SUM, PLAIN.transposed)(found)[0]


def _slope(op: Reduction, given: TensorVariable, output: TensorVariable) -> TensorVariable:
    """The derivative of a reduced value by this member's, element by element.

    As in PyTensor, each of several equal largest or smallest values has derivative 1.
    """
    if op is not PROD:
        return pt.eq(given, output)
    zero = pt.eq(given, 0)
    zeros = AllReduce(SUM)(zero.astype("int64"))[0]
    others = AllReduce(PROD)(pt.switch(zero, 1, given).astype(given.type.dtype))[0]
    alone = pt.switch(pt.eq(zeros, 0), others / pt.switch(zero, 1, given), 0)
    return pt.switch(zero, pt.switch(pt.eq(zeros, 1), others, 0), alone)


def _of_batch(
    op: Combining, node: Apply, values: TensorVariable, token: TensorVariable
) -> TensorVariable:
    """Over a batch of values the operation is the same, since it is element by element."""
    return op.make_node(values, node.inputs[-1])


with optional_gain():
    for _kind in AllReduce, Broadcast:
        PYTENSOR.get("_vectorize_node").register(_kind)(_of_batch)
