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
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_default_op_cache_key

from synkhronos._engine.graph_collectives import SameSteps, same_steps
from synkhronos._engine.graph_exchanges import (
    Weighing,
    all_reduced,
    gathered,
    of_root,
    place,
    scattered,
)
from synkhronos._engine.ready_values import tell
from synkhronos._libraries.pytensor import get_numba_type
from synkhronos._proofs.reductions import Reduction
from synkhronos.ops._collectives import (
    AllGather,
    AllReduce,
    Broadcast,
    OwnRows,
    Rank,
    ReduceScatter,
)
from synkhronos.ops._ready import Ready

type Code = tuple[Callable[..., np.ndarray], int]  # of numba, and its version

_OPS = list(Reduction)
_WEIGHINGS = [Weighing(given, got) for given in (False, True) for got in (False, True)]


def _all_reduced(how: int, values: np.ndarray) -> np.ndarray:
    op, weighing = _HOW[how]
    return all_reduced(values, op, weighing)


def _gathered(how: int, values: np.ndarray) -> np.ndarray:
    return gathered(values, _HOW[how][1])


def _scattered(how: int, values: np.ndarray) -> np.ndarray:
    op, weighing = _HOW[how]
    return scattered(values, op, weighing)


def _own_rows(how: int, values: np.ndarray, mine: int) -> np.ndarray:
    op, weighing = _HOW[how]
    return scattered(values, op, weighing, mine)


_HOW = [(op, weighing) for op in _OPS for weighing in _WEIGHINGS]  # a number is passed fastest
_CALLED = (_all_reduced, _gathered, _scattered, _own_rows, of_root, place, same_steps, tell)
_VERSION = zlib.crc32(repr([2, *((f.__module__, f.__name__) for f in _CALLED)]).encode())


def _how(op: Op) -> int:
    return _HOW.index((getattr(op, "op", Reduction.SUM), op.weighing))


def _array(node: Apply) -> np.ndarray:
    """The type of the arrays that a node's first output is computed as."""
    kind = get_numba_type(node.outputs[0].type)
    return numba.types.Array(kind.dtype, kind.ndim, "C")


@register_funcify_default_op_cache_key(AllReduce)  # type: ignore[untyped-decorator]
def _all_reduce(op: AllReduce, node: Apply, **kwargs: object) -> Code:
    how, kind = _how(op), _array(node)

    @numba_njit
    def all_reduce(values: np.ndarray, token: np.ndarray) -> np.ndarray:
        with numba.objmode(found=kind):
            found = _all_reduced(how, values)
        return found, token

    return all_reduce, _VERSION


@register_funcify_default_op_cache_key(AllGather)  # type: ignore[untyped-decorator]
def _all_gather(op: AllGather, node: Apply, **kwargs: object) -> Code:
    how, kind = _how(op), _array(node)

    @numba_njit
    def all_gather(values: np.ndarray, token: np.ndarray) -> np.ndarray:
        with numba.objmode(found=kind):
            found = _gathered(how, values)
        return found, token

    @numba_njit
    def all_gather_like(values: np.ndarray, like: np.ndarray, token: np.ndarray) -> np.ndarray:
        return all_gather(values, token)

    return all_gather if len(node.inputs) == 2 else all_gather_like, _VERSION


@register_funcify_default_op_cache_key(OwnRows)  # type: ignore[untyped-decorator]
def _rows(op: OwnRows, node: Apply, **kwargs: object) -> Code:
    how, kind = _how(op), _array(node)

    @numba_njit
    def own_rows(values: np.ndarray, like: np.ndarray, token: np.ndarray) -> np.ndarray:
        mine = len(like)
        with numba.objmode(found=kind):
            found = _own_rows(how, values, mine)
        return found, token

    return own_rows, _VERSION


@register_funcify_default_op_cache_key(ReduceScatter)  # type: ignore[untyped-decorator]
def _reduce_scatter(op: ReduceScatter, node: Apply, **kwargs: object) -> Code:
    how, kind = _how(op), _array(node)

    @numba_njit
    def reduce_scatter(values: np.ndarray, token: np.ndarray) -> np.ndarray:
        with numba.objmode(found=kind):
            found = _scattered(how, values)
        return found, token

    return reduce_scatter, _VERSION


@register_funcify_default_op_cache_key(Broadcast)  # type: ignore[untyped-decorator]
def _broadcast(op: Broadcast, node: Apply, **kwargs: object) -> Code:
    root, kind = op.root, _array(node)

    @numba_njit
    def broadcast(values: np.ndarray, token: np.ndarray) -> np.ndarray:
        with numba.objmode(found=kind):
            found = of_root(values, root)
        return found, token

    return broadcast, _VERSION


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
