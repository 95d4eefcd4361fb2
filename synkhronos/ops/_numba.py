"""The operations in numba code; imported when numba compiles the first graph.

The code calls Python to meet the others. Numba caches machine code that calls Python functions by
module and name: both are part of the cache's key.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numba
import numpy as np
from pytensor.graph.basic import Apply
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_default_op_cache_key

from synkhronos._engine.graph_collectives import SameSteps, same_steps
from synkhronos._engine.graph_exchanges import Weighing, place
from synkhronos._engine.ready_values import tell
from synkhronos._libraries.pytensor import get_numba_type
from synkhronos._proofs.reductions import Reduction
from synkhronos.ops._collectives import (
    AllGather,
    AllReduce,
    Broadcast,
    Combining,
    OwnRows,
    Rank,
    ReduceScatter,
)
from synkhronos.ops._ready import Ready

type Code = tuple[Callable[..., np.ndarray], int]  # of numba, and its version

_WEIGHINGS = [Weighing(given, got) for given in (False, True) for got in (False, True)]
_OPS: list[Combining] = [  # a number is passed fastest
    *[kind(op, w) for kind in (AllReduce, ReduceScatter) for op in Reduction for w in _WEIGHINGS],
    *[kind(w) for kind in (AllGather, OwnRows) for w in _WEIGHINGS],
]


def _number(op: Combining) -> int:
    return ~op.root if isinstance(op, Broadcast) else _OPS.index(op)


def _combined(number: int, values: np.ndarray, rows: int) -> np.ndarray:
    """The value of an operation; `rows` is the length of its second input, if it has one."""
    op = Broadcast(~number) if number < 0 else _OPS[number]
    return op.value([values, np.empty(rows, bool)])


_CALLED = (_combined, place, same_steps, tell)
_VERSION = zlib.crc32(repr([3, *((f.__module__, f.__name__) for f in _CALLED)]).encode())


def _array(node: Apply) -> np.ndarray:
    """The type of the arrays that a node's first output is computed as."""
    kind = get_numba_type(node.outputs[0].type)
    return numba.types.Array(kind.dtype, kind.ndim, "C")


@register_funcify_default_op_cache_key(Combining)  # type: ignore[untyped-decorator]
def _combining(op: Combining, node: Apply, **kwargs: object) -> Code:
    number, kind = _number(op), _array(node)

    @numba_njit
    def combining(values: np.ndarray, token: np.ndarray) -> np.ndarray:
        with numba.objmode(found=kind):
            found = _combined(number, values, 0)
        return found, token

    @numba_njit
    def combining_like(values: np.ndarray, like: np.ndarray, token: np.ndarray) -> np.ndarray:
        rows = len(like)
        with numba.objmode(found=kind):
            found = _combined(number, values, rows)
        return found, token

    return combining if len(node.inputs) == 2 else combining_like, _VERSION


@register_funcify_default_op_cache_key(Rank)  # type: ignore[untyped-decorator]
def _rank(op: Rank, node: Apply, **kwargs: object) -> Code:
    @numba_njit
    def rank(token: np.ndarray) -> np.ndarray:
        with numba.objmode(found="int64"):
            found = place()[0]
        return np.array(found), token

    return rank, _VERSION


@register_funcify_default_op_cache_key(SameSteps)  # type: ignore[untyped-decorator]
def _same_steps(op: SameSteps, node: Apply, **kwargs: object) -> Code:
    kind = _array(node)

    @numba_njit
    def check(steps: np.ndarray, token: np.ndarray) -> np.ndarray:
        with numba.objmode(found=kind):
            found = same_steps(steps)
        return found, token

    return check, _VERSION


@register_funcify_default_op_cache_key(Ready)  # type: ignore[untyped-decorator]
def _ready(op: Ready, node: Apply, **kwargs: object) -> Code:
    number = op.number

    @numba_njit
    def ready(value: np.ndarray, token: int) -> np.ndarray:
        with numba.objmode():
            tell(number, value)
        return value, token

    return ready, _VERSION
