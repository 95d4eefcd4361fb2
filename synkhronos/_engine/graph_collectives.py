"""Operations inside a graph that combine values of all members, and the order of these.

A member that came to another operation than the others would combine values that do not belong
together, or wait. PyTensor's compilers promise no order of operations that do not depend on each
other. So each such operation has one more input and output, its *token*: a number. When a member
compiles, `ordered` lets each operation's token depend on that of the one before. The order follows
only from the structure of the graph, which all members have from the master. The last token is an
output of the compiled function. So no rewriting drops, merges or swaps operations in one member
only: each depends on all before it, and the output on all of them. Nothing of it is computed from
constants either, so an operation of constants is not replaced by its value.

Loops (`Scan`) carry the token from step to step. They check that all members make as many steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.graph.traversal import ancestors, toposort
from pytensor.scalar.basic import ScalarConstant
from pytensor.scalar.basic import int64 as token_type
from pytensor.scan.op import Scan
from pytensor.scan.utils import ScanArgs, expand_empty

from synkhronos._engine.graph_exchanges import all_reduced
from synkhronos._errors import InputError
from synkhronos._proofs.reductions import Reduction
from synkhronos._proofs.walk import over_members

FIRST_TOKEN = ScalarConstant(token_type, np.int64(0))


class CollectiveOp(Op):
    """An operation that combines values of all members; all compute it in the same order.

    Its last input and last output are its token.
    """

    # whether its outputs are the same in all members, whatever its inputs are. None: that depends
    # on the inputs
    equal: bool | None = None

    def do_constant_folding(self, fgraph: FunctionGraph, node: Apply) -> bool:
        """Never: the value of a constant depends on the members."""
        return False


class SameSteps(CollectiveOp):
    """The number of a loop's steps; raises if the members have different ones."""

    __props__ = ()

    def make_node(self, *inputs: Any) -> Apply:
        [steps, token] = inputs
        return Apply(self, [steps, token], [steps.type(), token_type()])

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Any) -> None:
        output_storage[0][0] = same_steps(np.asarray(inputs[0]))
        output_storage[1][0] = inputs[1]


def same_steps(steps: np.ndarray) -> np.ndarray:
    """The number of steps, or an error in all members."""
    mine = int(steps)
    [least, most] = all_reduced(np.array([mine, -mine], np.int64), Reduction.MIN).tolist()
    if least != -most:
        raise InputError(
            f"a loop with collectives over members has {least} steps in one member and {-most} in "
            f"another: make the number of steps equal, for example by synk.ops.all_reduce(n, 'max')"
        )
    return np.array(mine, steps.dtype)


Kind = Literal["equal", "own", "inside"]


@over_members.register
def _kind(op: CollectiveOp) -> Kind:
    if op.equal is None:
        return "inside"
    return "equal" if op.equal else "own"


@over_members.register(OpFromGraph)
@over_members.register(Scan)
def _kind_of_container(op: Any) -> Kind | None:
    kinds = [_kind(inner) for inner in collectives_of(op.inner_outputs)]
    if not kinds:
        return None
    return "own" if "own" in kinds else "inside"


def collectives_of(variables: Iterable[Variable]) -> Iterator[CollectiveOp]:
    """All operations over members that these depend on, also those in loops and inner graphs."""
    for variable in ancestors(list(variables)):
        op = None if variable.owner is None else variable.owner.op
        if isinstance(op, CollectiveOp):
            yield op
            continue
        for inner in collectives_of(_inner_outputs(op)):
            _check_place(op)
            yield inner
        if isinstance(getattr(op, "core_op", None), CollectiveOp):
            _check_place(op)


def _inner_outputs(op: object) -> list[Variable]:
    """The outputs of the graphs inside an operation, such as the branches of a condition."""
    if isinstance(op, HasInnerGraph):
        return list(op.inner_outputs)
    return [v for graph in getattr(op, "inner_graphs", {}).values() for v in graph.outputs]


def _check_place(op: object) -> None:
    """Refuse collectives where not every member comes to each of them, or in another order."""
    if isinstance(op, OpFromGraph) or (isinstance(op, Scan) and not op.info.as_while):
        return
    what = "a loop that ends on a condition (until)" if isinstance(op, Scan) else str(op)
    raise InputError(
        f"there is a collective over members inside {what}: each member may come to it another "
        "number of times. Use it outside, or in a scan with a number of steps"
    )


def has_collectives(variables: Iterable[Variable]) -> bool:
    """Whether one of these depends on a `CollectiveOp`.

    Raises
    ------
    InputError
        One is where members may not come to it equally often.
    """
    return bool(list(collectives_of(variables)))


def unmet_ancestors(variable: Variable) -> set[Variable]:
    """All that a value depends on, but for what a collective makes equal in all members."""
    equal = [v for v in ancestors([variable]) if v.owner and _equal(v.owner.op) is True]
    return set(ancestors([variable], blockers=equal))


def is_own(variable: Variable) -> bool:
    """Whether this is a rank, or another value that a collective gives to one member."""
    op = None if variable.owner is None else variable.owner.op
    return any(_equal(o) is False for o in (op, *collectives_of(_inner_outputs(op))))


def _equal(op: object) -> bool | None:
    return op.equal if isinstance(op, CollectiveOp) else None


def ordered(variables: Sequence[Variable]) -> tuple[list[Variable], Variable]:
    """The same variables, with all collectives in one order; and a variable of the last token."""
    order = _Order(FIRST_TOKEN)
    found = order.follow(variables, {})
    token: Any = pt.tensor_from_scalar(order.token)
    return found, token


class _Order:
    """Rebuilds graphs so that each collective depends on the one before."""

    def __init__(self, token: Variable) -> None:
        self.token = token

    def follow(self, roots: Sequence[Variable], new: dict[Variable, Variable]) -> list[Variable]:
        """The roots, rebuilt; `new` holds what replaces variables."""
        for node in toposort(roots, blockers=list(new)):
            inputs = [new.get(v, v) for v in node.inputs]
            outputs = self._outputs(node, inputs)
            if outputs is not None:
                new.update(zip(node.outputs, outputs, strict=True))
        return [new.get(v, v) for v in roots]

    def _outputs(self, node: Apply, inputs: list[Variable]) -> Sequence[Variable] | None:
        """The replacements of a node's outputs; None: the node stays."""
        op = node.op
        if isinstance(op, CollectiveOp):
            outputs = node.clone_with_new_inputs([*inputs[:-1], self.token]).outputs
            self.token = outputs[-1]
            return outputs
        if isinstance(op, OpFromGraph) and has_collectives(op.inner_outputs):
            inner = op.fgraph.bind(inputs)
            return self.follow(inner, {v: v for v in inputs})
        if isinstance(op, Scan) and has_collectives(op.inner_outputs):
            return self._loop(node.clone_with_new_inputs(inputs))
        if inputs == node.inputs:
            return None
        return node.clone_with_new_inputs(inputs).outputs

    def _loop(self, node: Apply) -> list[Variable]:
        """A loop with the token as one more state."""
        steps: Any = node.inputs[0]
        if not isinstance(steps, Constant):
            check: Any = SameSteps()(steps, self.token)
            steps, self.token = check
            node = node.clone_with_new_inputs([steps, *node.inputs[1:]])
        args, before = ScanArgs.from_node(node, clone=True), pt.lscalar()
        inside = _Order(pt.scalar_from_tensor(before))
        given = args.inner_outputs
        made = inside.follow(given, {v: v for v in [*args.inner_inputs, before]})
        first: Any = pt.tensor_from_scalar(self.token)
        args.outer_in_sit_sot.append(expand_empty(first[None], steps))
        args.inner_in_sit_sot.append(before)
        place = len(args.outer_out_mit_mot + args.outer_out_mit_sot + args.outer_out_sit_sot)
        inner = sum(map(len, args.inner_out_mit_mot)) + len(
            args.inner_out_mit_sot + args.inner_out_sit_sot
        )
        after: Any = pt.tensor_from_scalar(inside.token)
        made.insert(inner, after)
        old: Any = node.op
        loop = Scan(
            args.inner_inputs,
            made,
            args.info,
            mode=old.mode,
            truncate_gradient=old.truncate_gradient,
            name=old.name,
            allow_gc=old.allow_gc,
        )
        outputs = list(loop.make_node(*args.outer_inputs).outputs)
        tokens: Any = outputs.pop(place)
        self.token = pt.scalar_from_tensor(tokens[-1])
        return outputs
