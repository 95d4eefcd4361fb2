"""The logarithm of the normal distribution function, and its derivative, as scalar operations."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.scalar import basic as ps
from pytensor.tensor.elemwise import Elemwise

from synkhronos._compiling.vectorised.ratios import quotient

_ROOT_HALF, _SCALE = math.sqrt(0.5), math.sqrt(2 / math.pi)


@functools.cache
def _special() -> ModuleType:
    """SciPy's functions; a group that computes none of them does not import SciPy."""
    return import_module("scipy.special")


class LogNdtr(ps.UnaryScalarOp):
    """log(P(z < x)) of a standard normal z."""

    nfunc_spec = ("scipy.special.log_ndtr", 1, 1)

    def impl(self, x: float) -> float:
        return _special().log_ndtr(np.float64(x))

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        """The density over the distribution function."""
        return [cotangents[0] * _scalar_mills(inputs[0])]

    def c_code(self, *args: object) -> str:
        """Not available: `expanded` replaces it."""
        raise NotImplementedError


class Mills(ps.UnaryScalarOp):
    """The density over the distribution function: the inverse of Mills' ratio at -x."""

    nfunc_spec = None

    def impl(self, x: float) -> float:
        return _SCALE / _special().erfcx(-np.float64(x) * _ROOT_HALF)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        """-m (x + m): far below 0, where m is nearly -x, from the asymptotic series of m."""
        [x], m = inputs, _scalar_mills(inputs[0])
        square: Any = ps.scalar_maximum(x * x, 1.0)
        s = 1.0 / square
        far = 1.0 - s * (1.0 - s * (6.0 - s * (50.0 - s * 518.0)))
        bound = -50.0 if x.type.dtype == "float64" else -8.0
        return [-cotangents[0] * ps.switch(x < bound, far, m * (x + m))]

    def c_code(self, *args: object) -> str:
        """Not available: `expanded` replaces it."""
        raise NotImplementedError


_scalar_mills = Mills(ps.upgrade_to_float_no_complex, name="mills")
log_ndtr = Elemwise(LogNdtr(ps.upgrade_to_float_no_complex, name="log_ndtr"))


@node_rewriter([Elemwise])  # type: ignore[untyped-decorator]
def _expand(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    del fgraph
    x: Any = node.inputs[0]
    if isinstance(node.op.scalar_op, LogNdtr):
        lower = pt.log(pt.erfcx(x * -_ROOT_HALF) / 2) - pt.sqr(x) / 2
        found = pt.switch(x < -1, lower, pt.log1p(pt.erfc(x * _ROOT_HALF) / -2))
    elif isinstance(node.op.scalar_op, Mills):
        found = _SCALE / pt.erfcx(x * -_ROOT_HALF)
    else:
        found = quotient(node)
    return None if found is None else [pt.cast(found, node.outputs[0].type.dtype)]


def expanded(outputs: Iterable[Variable]) -> list[Variable]:
    """Copies of graphs with PyTensor's operations instead of these, for other modes."""
    graph = FunctionGraph(outputs=list(outputs), clone=True, copy_inputs=False)
    dfs_rewriter(_expand).rewrite(graph)
    return list(graph.outputs)
