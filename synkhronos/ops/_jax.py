"""The operations in JAX programs; imported when JAX compiles the first graph.

A program calls back into Python to meet the others. The calls are ordered as JAX traces them, in
an order that the graph fixes. JAX fixes the shapes of results when it traces a program. So gathered
values have the length that the graph gives, or else that of equal members.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from pytensor.link.jax.dispatch import jax_funcify

from synkhronos._engine import graph_exchanges
from synkhronos._engine.graph_collectives import SameSteps, same_steps
from synkhronos._plan.reductions import Reduction
from synkhronos._plan.rows import edges
from synkhronos.ops._collectives import (
    AllGather,
    AllReduce,
    Broadcast,
    OwnRows,
    Rank,
    ReduceScatter,
)


def met(
    meet: Callable[[np.ndarray], np.ndarray], values: Any, shape: Sequence[int], dtype: Any = None
) -> Any:
    """The combined values of all members, by a call of Python."""
    dtype = values.dtype if dtype is None else dtype
    if not graph_exchanges.is_collective():
        return values.astype(dtype)

    def called(given: Any) -> np.ndarray:
        found = graph_exchanges.deferring_errors(meet, np.asarray(given), shape)
        return np.asarray(found, dtype)

    return io_callback(called, jax.ShapeDtypeStruct(tuple(shape), dtype), values, ordered=True)


def _declared(node: Any, values: Any) -> Any:
    """Values in the dtype that the graph declares; JAX's may be wider."""
    return jnp.asarray(values).astype(node.inputs[0].type.dtype)


@jax_funcify.register(AllReduce)
def _all_reduce(op: AllReduce, node: Any, **kwargs: Any) -> Callable[..., Any]:
    del kwargs
    meet = functools.partial(graph_exchanges.all_reduced, op=op.op, weighing=op.weighing)

    def all_reduce(values: Any, token: Any) -> Any:
        values = _declared(node, values)
        return met(meet, values, values.shape), token

    return all_reduce


@jax_funcify.register(AllGather)
def _all_gather(op: AllGather, node: Any, **kwargs: Any) -> Callable[..., Any]:
    del kwargs
    meet = functools.partial(graph_exchanges.gathered, weighing=op.weighing)

    def all_gather(values: Any, *like_and_token: Any) -> Any:
        values = _declared(node, values)
        *like, token = like_and_token
        rows = len(like[0]) if like else graph_exchanges.place()[1] * len(values)
        return met(meet, values, (rows, *values.shape[1:])), token

    return all_gather


@jax_funcify.register(OwnRows)
def _own_rows(op: OwnRows, node: Any, **kwargs: Any) -> Callable[..., Any]:
    del kwargs

    def own_rows(values: Any, like: Any, token: Any) -> Any:
        values, mine = _declared(node, values), len(like)
        meet = functools.partial(
            graph_exchanges.scattered, op=Reduction.SUM, weighing=op.weighing, mine=mine
        )
        return met(meet, values, (mine, *values.shape[1:])), token

    return own_rows


@jax_funcify.register(ReduceScatter)
def _reduce_scatter(op: ReduceScatter, node: Any, **kwargs: Any) -> Callable[..., Any]:
    del kwargs
    meet = functools.partial(graph_exchanges.scattered, op=op.op, weighing=op.weighing)

    def reduce_scatter(values: Any, token: Any) -> Any:
        values = _declared(node, values)
        rank, size = graph_exchanges.place()
        at = edges(len(values), size)
        shape = (at[rank + 1] - at[rank], *values.shape[1:])
        return met(meet, values, shape, node.outputs[0].type.dtype), token

    return reduce_scatter


@jax_funcify.register(Broadcast)
def _broadcast(op: Broadcast, node: Any, **kwargs: Any) -> Callable[..., Any]:
    del kwargs
    meet = functools.partial(graph_exchanges.of_root, root=op.root)

    def broadcast(values: Any, token: Any) -> Any:
        values = _declared(node, values)
        return met(meet, values, values.shape), token

    return broadcast


@jax_funcify.register(Rank)
def _rank(op: Rank, node: Any, **kwargs: Any) -> Callable[..., Any]:
    del op, node, kwargs
    return lambda token: (jnp.asarray(graph_exchanges.place()[0], "int64"), token)


@jax_funcify.register(SameSteps)
def _same_steps(op: SameSteps, node: Any, **kwargs: Any) -> Callable[..., Any]:
    del op, kwargs

    def check(steps: Any, token: Any) -> Any:
        met(same_steps, _declared(node, steps), ())
        return steps, token  # as a number that JAX knows while it compiles, which loops need

    return check
