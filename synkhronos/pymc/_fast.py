"""Exponentials and logarithms that a compiler can vectorise: arithmetic without branches or calls.

libm's functions compute one number at a time, 6 to 10 ns each on a 2020s core. These compute as
many as the registers hold. Arguments are reduced as usual (Muller, "Elementary Functions", 3rd
edition, chapters 5 and 11): exp to |r| <= log(2) / 2 and a Taylor polynomial, log to m in
[sqrt(1/2), sqrt(2)) and the series of 2 atanh((m - 1) / (m + 1)). Results are within 2 units in the
last place of libm's, including subnormal results, infinities and nan.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.scalar import basic as ps
from pytensor.scalar import math as psm
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.subtensor import AdvancedIncSubtensor


class FastUnary(ps.UnaryScalarOp):
    """Base class: a float64 function whose numba code is in `_kernels`."""

    nfunc_spec: tuple[str, int, int] | None = None

    def impl(self, x: Any) -> Any:
        return self.plain(np.float64(x))

    @staticmethod
    def plain(x: Any) -> Any:
        """The function that this one replaces."""
        raise NotImplementedError

    def c_code(self, *args: Any) -> str:
        """Not available: only numba compiles this."""
        raise NotImplementedError

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> Any:
        """Not available: fast functions replace plain ones after differentiation."""
        raise NotImplementedError(
            f"{self} has no derivative: differentiate the plain function before it is replaced"
        )


class FastExp(FastUnary):
    """exp(x)."""

    plain = staticmethod(np.exp)


class FastLog(FastUnary):
    """log(x)."""

    plain = staticmethod(np.log)


class FastLog1p(FastUnary):
    """log(1 + x)."""

    plain = staticmethod(np.log1p)


class FastSigmoid(FastUnary):
    """1 / (1 + exp(-x))."""

    @staticmethod
    def plain(x: Any) -> Any:
        """Without overflow."""
        y = math.exp(-abs(x))
        return 1 / (1 + y) if x >= 0 else y / (1 + y)


class FastSoftplus(FastUnary):
    """log(1 + exp(x))."""

    @staticmethod
    def plain(x: Any) -> Any:
        """Without overflow."""
        return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


_FAST = {
    ps.Exp: FastExp,
    ps.Log: FastLog,
    ps.Log1p: FastLog1p,
    psm.Sigmoid: FastSigmoid,
    psm.Softplus: FastSoftplus,
}
FAST = tuple(_FAST.values())


@node_rewriter([Elemwise])  # type: ignore[untyped-decorator]
def _replace(fgraph: Any, node: Any) -> Any:
    del fgraph
    fast = _FAST.get(type(node.op.scalar_op))
    if fast is None or node.inputs[0].type.dtype != "float64":
        return None
    return [Elemwise(fast(ps.upgrade_to_float, name=fast.__name__))(node.inputs[0])]


def with_fast_functions(outputs: list[Variable]) -> list[Any]:
    """A copy of the graph with fast functions instead of the plain ones."""
    graph = FunctionGraph(outputs=outputs, clone=True, copy_inputs=False)
    dfs_rewriter(_replace).rewrite(graph)
    return list(graph.outputs)


def scatters_fast_function(variable: Variable) -> bool:
    """Whether it is a sum by indices over values that a loop computes with a fast function."""
    node = variable.owner
    if node is None or not isinstance(node.op, AdvancedIncSubtensor):
        return False
    stack, seen = [node.inputs[1]], set[Variable]()
    while stack:
        found = stack.pop()
        inner = found.owner
        if inner is None or found in seen or not isinstance(inner.op, Elemwise | DimShuffle):
            continue  # a loop is fused through these operations
        if isinstance(inner.op, Elemwise) and isinstance(inner.op.scalar_op, FAST):
            return True
        seen.add(found)
        stack += inner.inputs
    return False
