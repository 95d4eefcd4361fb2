"""Multivariate normals whose covariance depends on parameters: the gradient in closed form.

By the covariance K, log(det(K)) / 2 has the derivative inv(K) / 2, and r' inv(K) r has -a a' with
a = inv(K) r. PyTensor has derivatives of the Cholesky factor instead. Values stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.gradient import DisconnectedType
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors, toposort
from pytensor.scalar import basic as ps
from pytensor.tensor import TensorVariable
from pytensor.tensor.basic import ExtractDiag
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.linalg.decomposition.cholesky import Cholesky
from pytensor.tensor.linalg.solvers.triangular import SolveTriangular
from pytensor.tensor.math import Sum

from synkhronos._compiling.graph_types import Inputs
from synkhronos._compiling.lean.covariances import CovarianceGradient
from synkhronos._compiling.nodes import in_batches, without_axes

_SOLVES = SolveTriangular(lower=True, b_ndim=1)
# Rows of r. With more of them PyTensor's form is faster, whose products BLAS computes: a model of
# 283 rows takes 94 us so, and 116 in closed form.
_MOST_ROWS = 8


class _Normal(OpFromGraph):
    """K, rows of r, the factor L of K, inv(L) r, log(det(K)) / 2, r' inv(K) r -> the last two.

    Only the first two have derivatives. Second derivatives are those of the others' graphs.
    """

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Outputs depend on K, and one of them on r."""
        return [[True, True], [False, True], *[[False, False]] * (len(node.inputs) - 2)]

    def pullback(self, inputs: Inputs, outputs: Inputs, cotangents: Inputs) -> list[Variable]:
        """The gradients by K and r."""
        covariance, _, factor, solved, *_ = inputs
        of_log, of_form = (
            pt.zeros_like(v) if isinstance(c.type, DisconnectedType) else c
            for v, c in zip(outputs, cotangents, strict=True)
        )
        rows = pt.linalg.solve_triangular(factor.mT, solved, lower=False, b_ndim=1)
        axes = list(range(covariance.type.ndim - 2))  # of length 1
        flat = rows.reshape((of_form.size, rows.shape[-1]))
        by_covariance = CovarianceGradient.of(
            factor.squeeze(axes), of_log.sum() / 2, flat, -of_form.ravel()
        )
        others = [DisconnectedType()() for _ in inputs[2:]]
        return [pt.expand_dims(by_covariance, axes), 2 * of_form[..., None] * rows, *others]


def with_normals(graph: TensorVariable, parameters: Collection[Variable]) -> TensorVariable:
    """A log-density in which the gradients of such normals have a closed form.

    It is the same one if it has none whose covariance is a matrix that depends on parameters.
    """
    if not any(_is_factor(node) for node in toposort([graph])):
        return graph
    fgraph, found = FunctionGraph(outputs=clone_replace([graph]), clone=False), False
    for node in fgraph.toposort():
        if not _is_factor(node) or set(parameters).isdisjoint(ancestors(node.inputs)):
            continue
        if (parts := _parts(fgraph, node.outputs[0])) is None:
            continue
        solves, *outputs = parts
        given = [node.inputs[0], solves.inputs[1], *node.outputs, *solves.outputs, *outputs]
        places = [v.type() for v in given]
        made = _Normal(places, places[-2:], inline=True)(*given, return_list=True)
        users = [list(fgraph.clients[v]) for v in outputs]
        for each, new in zip(users, made, strict=True):
            for user, i in each:
                fgraph.change_node_input(user, i, new, reason="normals", import_missing=True)
        found = True
    [changed] = fgraph.outputs
    changed.name = graph.name
    return changed if found else graph


def _is_factor(node: Apply) -> bool:
    """Whether it is the lower Cholesky factor of one matrix, which is not given by its factor."""
    op = in_batches(node)
    if not (isinstance(op, Cholesky) and op.lower):
        return False
    factor: Any = node.outputs[0]
    made = without_axes(node.inputs[0]).owner
    operands = [] if made is None or isinstance(made.op, Elemwise) else made.inputs
    of_factor = len(operands) == 2 and len({without_axes(v) for v in operands}) == 1
    return all(factor.type.broadcastable[:-2]) and not of_factor


def _parts(fgraph: FunctionGraph, factor: Variable) -> tuple[Apply, Variable, Variable] | None:
    """The node that gives inv(L) r, half the log-determinant, and the quadratic forms of rows of r.

    None if there is more: other functions of a factor need its own derivatives.
    """
    logarithms, forms = [], []
    for node in _users(fgraph, factor):
        if isinstance(node.op, ExtractDiag):
            chosen = [n for n in _users(fgraph, node.outputs[0]) if not _is(n, ps.GT)]
            logarithms += [_sum_of(fgraph, n, ps.Log) for n in chosen]
        elif isinstance(node.op, Blockwise) and node.op.core_op == _SOLVES:
            squares = _users(fgraph, node.outputs[0])
            forms += [(node, _sum_of(fgraph, n, ps.Sqr)) for n in squares]
        else:
            return None
    if len(logarithms) != 1 or len(forms) != 1:
        return None
    [logarithm], [(solves, form)] = logarithms, forms
    if logarithm is None or form is None or not _has_few_rows(solves.inputs[1]):
        return None
    return solves, logarithm, form


def _has_few_rows(residuals: Any) -> bool:
    *rows, _ = residuals.type.shape
    return None not in rows and math.prod(rows) <= _MOST_ROWS


def _users(fgraph: FunctionGraph, variable: Variable) -> list[Apply]:
    """The operations that read a variable, also with axes of length 1 before its own."""
    found = []
    for node, _ in fgraph.clients[variable]:
        expands = isinstance(node.op, DimShuffle) and node.op.is_left_expand_dims
        found += _users(fgraph, node.outputs[0]) if expands else [node]
    return found


def _sum_of(fgraph: FunctionGraph, node: Apply, kind: type) -> Variable | None:
    """The sum along the last axis of this operation's result; None if it is another operation."""
    users = fgraph.clients[node.outputs[0]] if _is(node, kind) else []
    if len(users) != 1:
        return None
    last = node.outputs[0].type.ndim - 1
    [(user, _)] = users
    return user.outputs[0] if isinstance(user.op, Sum) and user.op.axis == (last,) else None


def _is(node: Apply, kind: type) -> bool:
    """Whether an operation is this one by element; a power of 2 is a square."""
    op = node.op.scalar_op if isinstance(node.op, Elemwise) else None
    if kind is ps.Sqr and isinstance(op, ps.Pow):
        exponent = without_axes(node.inputs[1])
        return isinstance(exponent, Constant) and exponent.data.size == 1 and exponent.data == 2
    return isinstance(op, kind)
