"""Exponentials and logarithms that a compiler can vectorise: arithmetic without branches or calls.

libm's functions take one number at a time, 6 to 10 ns each on a 2020s core; these take as many as
the registers hold. Arguments are reduced as usual (Muller, "Elementary Functions", 3rd edition,
chapters 5 and 11): exp to |r| <= log(2) / 2 and a Taylor polynomial, log to m in [sqrt(1/2),
sqrt(2)) and the series of 2 atanh((m - 1) / (m + 1)). Within 2 units in the last place of libm,
subnormal results, infinities and nan included.
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
from pytensor.tensor.elemwise import Elemwise


class FastUnary(ps.UnaryScalarOp):
    """The base: a float64 function whose numba code is in `_numba`."""

    nfunc_spec: tuple[str, int, int] | None = None

    def impl(self, x: Any) -> Any:
        """In Python, the plain function."""
        return self.plain(np.float64(x))

    @staticmethod
    def plain(x: Any) -> Any:
        """What it stands for."""
        raise NotImplementedError

    def c_code(self, *args: Any) -> str:
        """None: it is for numba only."""
        raise NotImplementedError

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> Any:
        """None: it replaces the plain function when all derivatives are there."""
        raise NotImplementedError(f"{self} has no derivative: differentiate before it is put in")


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
def _put_in(fgraph: Any, node: Any) -> Any:
    del fgraph
    fast = _FAST.get(type(node.op.scalar_op))
    if fast is None or node.inputs[0].type.dtype != "float64":
        return None
    return [Elemwise(fast(ps.upgrade_to_float, name=fast.__name__))(node.inputs[0])]


def put_in(outputs: list[Variable]) -> list[Any]:
    """The graph with fast functions in place of the plain ones."""
    graph = FunctionGraph(outputs=outputs, clone=True, copy_inputs=False)
    dfs_rewriter(_put_in).rewrite(graph)
    return list(graph.outputs)
