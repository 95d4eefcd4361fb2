"""Rewrites of a member's graph: fewer costly functions; expressions only of data become inputs."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.dist_math import I0e, I1e, i0e, normal_lccdf, normal_lcdf
from pymc.logprob.utils import local_remove_check_parameter
from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply, Constant, Variable, equal_computations
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.basic import NodeRewriter, dfs_rewriter, node_rewriter
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors, toposort
from pytensor.scalar import basic as ps
from pytensor.scalar import math as psm
from pytensor.tensor import TensorVariable
from pytensor.tensor.basic import get_underlying_scalar_constant_value
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.exceptions import NotScalarConstantError
from pytensor.tensor.math import Dot, switch

from synkhronos._compiling.lean.rewrite import operands_alike
from synkhronos._compiling.nodes import FLOATS, computes, without_axes
from synkhronos._compiling.python_function import PythonFunction
from synkhronos._compiling.vectorised.ratios import distance
from synkhronos._compiling.vectorised.table import TABLE
from synkhronos._compiling.vectorised.tails import LogNdtr, log_ndtr
from synkhronos._proofs.values import Rows, Same
from synkhronos._proofs.walk import Walk, seed

Variables = Sequence[TensorVariable]
Rewritten = list[Variable] | None  # in place of the outputs of a node

TABLE |= {I0e: ("bessel", "i0e"), I1e: ("bessel", "i1e")}  # PyTensor has none

# Functions of one number that cost more than a choice between two numbers.
_COSTLY = (
    *(ps.Exp, ps.Log, ps.Log1p, ps.Expm1, ps.Sqrt, ps.Log2, ps.Log10, ps.Tanh, ps.ArcTan),
    *(psm.Sigmoid, psm.Softplus, psm.Log1mexp, psm.GammaLn, psm.Psi, psm.Erf, psm.Erfc, psm.Erfcx),
    LogNdtr,
)

# PyTensor's rewrites of logarithms whose argument is no elementwise function.
_LOGARITHMS = (
    *("local_logsoftmax", "local_softmax_stabilize", "local_log_softmax_from_logsumexp"),
    *("local_log_sum_exp", "local_log_add_exp", "local_exp_log_softmax"),
)


def _function_of(variable: Variable) -> tuple[bool, Variable] | None:
    """(negated, f(x)) if the variable is f(x) or -f(x) with a costly f."""
    negated, node = False, variable.owner
    if computes(node, ps.Neg):
        negated, variable = True, node.inputs[0]
    return (negated, variable) if computes(variable.owner, _COSTLY) else None


@node_rewriter([Elemwise])  # type: ignore[untyped-decorator]
def _lift_choice(fgraph: FunctionGraph, node: Apply) -> Rewritten:
    """switch(c, f(a), f(b)) -> f(switch(c, a, b)): one costly function instead of two."""
    del fgraph
    if not isinstance(node.op.scalar_op, ps.Switch):
        return None
    condition, *branches = node.inputs
    found = [_function_of(branch) for branch in branches]
    if found[0] is None or found[1] is None:
        return None
    (negated, one), (other_negated, other) = found
    if negated != other_negated or type(one.owner.op.scalar_op) is not type(
        other.owner.op.scalar_op
    ):
        return None
    a, b = one.owner.inputs[0], other.owner.inputs[0]
    chosen = one.owner.op(switch(condition, a, b))
    chosen = -chosen if negated else chosen
    return [chosen] if chosen.type == node.outputs[0].type else None


@node_rewriter([Elemwise])  # type: ignore[untyped-decorator]
def _name_normal_tail(fgraph: FunctionGraph, node: Apply) -> Rewritten:
    """PyMC's formula for the logarithm of a normal tail -> one operation."""
    del fgraph
    condition = node.inputs[0].owner if isinstance(node.op.scalar_op, ps.Switch) else None
    z = condition.inputs[0] if condition is not None and condition.inputs else None
    inner = getattr(z, "owner", None)
    if not computes(inner, ps.TrueDiv):
        return None
    difference, sigma = inner.inputs
    if not computes(difference.owner, ps.Sub):
        return None
    x, mu = difference.owner.inputs
    for formula, argument in ((normal_lcdf, z), (normal_lccdf, -z)):
        if equal_computations([formula(mu, sigma, x)], node.outputs):
            found = _as_pymc(argument)
            return [found] if found.type == node.outputs[0].type else None
    return None


def _as_pymc(z: TensorVariable) -> TensorVariable:
    """log_ndtr(z) to the last digit of PyMC's formula.

    The formula divides by a root of 2 in the dtype of PyTensor's constant, which is float32. It
    does not do so in the square that it subtracts below -1.
    """
    root = float(np.sqrt(np.asarray(2.0, pt.sqrt(2.0).type.dtype)))
    part = (2 / root**2 - 1) / 2
    return log_ndtr(z * (math.sqrt(2) / root)) + switch(z < -1.0, pt.sqr(z) * part, 0.0)


@node_rewriter([Elemwise])  # type: ignore[untyped-decorator]
def _scale_bessel(fgraph: FunctionGraph, node: Apply) -> Rewritten:
    """log(i0(x)) -> log(i0e(x)) + |x|, which does not overflow from x = 714 on."""
    del fgraph
    inner = node.inputs[0].owner
    if not isinstance(node.op.scalar_op, ps.Log) or not computes(inner, psm.I0):
        return None
    x = inner.inputs[0]
    found = node.op(i0e(x)) + abs(x)
    return [found] if found.type == node.outputs[0].type else None


@node_rewriter([Elemwise])  # type: ignore[untyped-decorator]
def _power_of_beta(fgraph: FunctionGraph, node: Apply) -> Rewritten:
    """The incomplete beta function is a power if one of its parameters is 1.

    The derivatives of the function itself are loops of up to 200 steps for each row.
    """
    del fgraph
    if not isinstance(node.op.scalar_op, psm.BetaInc):
        return None
    a, b, x = node.inputs
    if not computes(x.owner, psm.Sigmoid):
        x = switch((x >= 0) & (x <= 1), x, np.nan)
    if _is_one(b):
        found = pt.second(b, pt.exp(switch(a > 0, a, np.nan) * pt.log(x)))
    elif _is_one(a):
        found = pt.second(a, -pt.expm1(switch(b > 0, b, np.nan) * pt.log1p(-x)))
    else:
        return None
    return [found] if found.type == node.outputs[0].type else None


def _is_one(variable: Variable) -> bool:
    """Whether all elements are 1, whatever the parameters and the data."""
    try:
        return bool(get_underlying_scalar_constant_value(rewritten(variable)) == 1)
    except NotScalarConstantError:
        return False


def with_named_tails(outputs: Sequence[Variable]) -> list[TensorVariable]:
    """Copies of graphs in which normal tails are operations with a derivative of their own.

    The derivative of PyMC's formula takes a difference of large numbers far out in the tail. The
    logarithm of a Bessel function follows from the scaled one. Some incomplete beta functions are
    powers.
    """
    graph = FunctionGraph(outputs=clone_replace(list(outputs)), clone=False)
    dfs_rewriter(_name_normal_tail, _scale_bessel, _power_of_beta).rewrite(graph)
    return list(graph.outputs)


@node_rewriter([Dot])  # type: ignore[untyped-decorator]
def _cast_operands(fgraph: FunctionGraph, node: Apply) -> Rewritten:
    """A product of integers as data: the cast becomes a part of what `hoist` computes once."""
    del fgraph
    operands = operands_alike(node)
    return None if operands == node.inputs else [node.op(*operands)]


def _split_logarithm(positive: Collection[Variable]) -> NodeRewriter:
    """log(a / b) -> log(a) - log(b) if one of them is in `positive`: data above 0.

    a / b overflows for a tiny parameter. PyTensor does so where the data are constants, whose
    logarithm it folds; `hoist` does the same with that of a place.
    """

    @node_rewriter([Elemwise])  # type: ignore[untyped-decorator]
    def rewrite(fgraph: FunctionGraph, node: Apply) -> Rewritten:
        del fgraph
        inner = node.inputs[0].owner if isinstance(node.op.scalar_op, ps.Log) else None
        if not computes(inner, ps.TrueDiv):
            return None
        if not any(without_axes(v) in positive for v in inner.inputs):
            return None
        a, b = [node.op(v.astype(node.outputs[0].type.dtype)) for v in inner.inputs]
        return [a - b]

    return rewrite


def _name_ratios(wrt: Collection[Variable]) -> NodeRewriter:
    """Squares, or sizes, of x / y: with a ratio, if y depends on a parameter.

    Where y is data, `hoist` computes its powers once.
    """

    @node_rewriter([Elemwise])  # type: ignore[untyped-decorator]
    def rewrite(fgraph: FunctionGraph, node: Apply) -> Rewritten:
        inner = node.inputs[0].owner if _is_size(node) else None
        if not computes(inner, ps.TrueDiv):
            return None
        x, y = inner.inputs
        if not {x.type.dtype, y.type.dtype} <= {*FLOATS} or set(wrt).isdisjoint(ancestors([y])):
            return None
        return [node.op(distance(x, y), *node.inputs[1:])]

    return rewrite


def _is_size(node: Apply) -> bool:
    """Whether an operation is a square, or leaves the sign out."""
    if computes(node, ps.Pow):
        exponent = without_axes(node.inputs[1])
        return isinstance(exponent, Constant) and bool(np.all(exponent.data == 2))
    return computes(node, ps.Sqr | ps.Abs)


def rewritten[Graph: Variable | Sequence[Variable]](graph: Graph) -> Graph:
    """A copy of the graph, rewritten, without the rewrites for C.

    The latter make PyTensor look for a BLAS to link with, and warn if it finds none.
    """
    include = "canonicalize", "stabilize"
    return rewrite_graph(graph, include=include, exclude=("cxx_only",), clone=True)


def simplified(
    outputs: Sequence[Variable], positive: Collection[Variable] = (), wrt: Collection[Variable] = ()
) -> list[TensorVariable]:
    """Rewrite graphs: costly functions leave choices, products are of one dtype.

    Quotients leave logarithms if they are of a variable in `positive`. Distances by scales that
    depend on `wrt` become ratios.
    """
    graph = FunctionGraph(outputs=list(outputs), clone=False)
    rewrites = _split_logarithm(positive), _lift_choice, _cast_operands, _name_ratios(wrt)
    dfs_rewriter(*rewrites).rewrite(graph)
    return list(graph.outputs)


def without_parameter_checks(outputs: Sequence[Variable]) -> list[Variable]:
    """Copies of graphs without PyMC's checks of parameters, which may fail at the initial point."""
    graph = FunctionGraph(outputs=clone_replace(list(outputs)), clone=False)
    dfs_rewriter(local_remove_check_parameter).rewrite(graph)
    return list(graph.outputs)


def stable(outputs: Sequence[Variable]) -> list[TensorVariable]:
    """Copies of graphs in which logarithms of probabilities and of sums are computed as one.

    PyTensor does so in the whole graph. A member's graph may begin between the two operations, at
    the result of a softmax that rounds to 0, or of a sum of exponentials that overflows.
    """
    graph = FunctionGraph(outputs=clone_replace(list(outputs)), clone=False)
    optdb["stabilize"].query(RewriteDatabaseQuery(include=_LOGARITHMS)).rewrite(graph)
    return list(graph.outputs)


@dataclass
class Hoisted:
    """A graph in which expressions that depend only on data are inputs, with these expressions."""

    outputs: list[TensorVariable]
    rows: Variables = ()  # the new inputs, which have rows
    _expressions: Variables = ()
    _function: PythonFunction = field(default_factory=lambda: PythonFunction([], []))

    def arrays(self, rowed: Sequence[np.ndarray], whole: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Compute the values of the new inputs from the data."""
        return self._function(*rowed, *whole)

    def depend_on(self, data: Variables) -> list[bool]:
        """Of each new input, whether it is computed from some of these."""
        return [not set(data).isdisjoint(ancestors([v])) for v in self._expressions]


def hoist(outputs: Variables, rowed: Variables, whole: Variables) -> Hoisted:
    """Turn expressions that are computed row by row, and only from data, into inputs.

    PyTensor folds constants in the same way: the logarithm of a constant exposure is a constant.
    """
    axes = _row_axes(outputs, rowed, whole)
    known = {*rowed, *[v for v, axis in axes.items() if axis == 0]}  # not kept twice
    wanted = {v: a for v, a in axes.items() if a == 0 or without_axes(v) not in known}
    return _replaced(outputs, rowed, whole, wanted)


def replaced(outputs: Variables, rowed: Variables, whole: Variables, wanted: Variables) -> Hoisted:
    """The graphs with inputs instead of these expressions of data, whose first axis has rows."""
    return _replaced(outputs, rowed, whole, dict.fromkeys(wanted, 0))


def _replaced(
    outputs: Variables, rowed: Variables, whole: Variables, wanted: Mapping[TensorVariable, int]
) -> Hoisted:
    """The same where an axis is given for each expression; inputs have rows along the first."""
    if not wanted:
        return Hoisted(list(outputs))
    expressions = [pt.moveaxis(v, axis, 0) if axis else v for v, axis in wanted.items()]
    places = [v.type.clone(shape=(None, *v.type.shape[1:]))(name="data") for v in expressions]
    pairs = [
        (v, pt.moveaxis(place, 0, axis) if axis else place)
        for (v, axis), place in zip(wanted.items(), places, strict=True)
    ]
    found = clone_replace(list(outputs), replace=pairs, rebuild_strict=False)
    computed = PythonFunction([*rowed, *whole], expressions)
    return Hoisted(found, places, expressions, computed)


def of_data_alone(
    outputs: Variables, rowed: Variables, whole: Variables, ends: tuple[type, ...] = ()
) -> list[TensorVariable]:
    """The largest expressions that are computed row by row, and only from data.

    Their first axis has the rows. An operation of a class of `ends` counts as one that needs more
    than data.
    """
    return [v for v, axis in _row_axes(outputs, rowed, whole, ends).items() if axis == 0]


def _row_axes(
    outputs: Variables, rowed: Variables, whole: Variables, ends: tuple[type, ...] = ()
) -> dict[TensorVariable, int]:
    """The same along any axis, which is the value."""
    data = {*rowed, *whole}
    alone: dict[Variable, bool] = {}
    for node in toposort(outputs):
        fixed = [v in data or isinstance(v, Constant) or alone.get(v, False) for v in node.inputs]
        touched = any(v in data or alone.get(v, False) for v in node.inputs)
        for output in node.outputs:
            alone[output] = all(fixed) and touched and not isinstance(node.op, ends)
    used = dict.fromkeys(
        v
        for node in toposort(outputs)
        if not all(alone[o] for o in node.outputs)
        for v in node.inputs
        if alone.get(v, False)
    )
    if not used:
        return {}
    walk = Walk({**{v: seed(v) for v in rowed}, **dict.fromkeys(whole, Same())})
    known = dict(zip(used, walk.read(list(used)), strict=True))
    return {
        v: value.axis
        for v, value in known.items()
        if isinstance(value, Rows) and value.whole and not value.factors
    }
