"""The operations in JAX programs; imported when JAX compiles the first graph.

A program calls back into Python to meet the others. The calls are ordered as JAX traces them, in
an order that the graph fixes. JAX fixes the shapes of results when it traces a program. So gathered
values have the length that the graph gives, or else that of equal members.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from pytensor.graph.basic import Apply
from pytensor.link.jax.dispatch import jax_funcify

from synkhronos._engine import graph_exchanges
from synkhronos._engine.graph_collectives import SameSteps, same_steps
from synkhronos._plan.rows import edges
from synkhronos._proofs.reductions import Reduction
from synkhronos.ops._collectives import (
    AllGather,
    AllReduce,
    Broadcast,
    OwnRows,
    Rank,
    ReduceScatter,
)


def met(
    meet: Callable[[np.ndarray], np.ndarray],
    values: jax.Array,
    shape: Sequence[int],
    dtype: jax.Array = None,
) -> jax.Array:
    """The combined values of all members, by a call of Python."""
    dtype = values.dtype if dtype is None else dtype
    if not graph_exchanges.is_collective():
        return values.astype(dtype)

    def called(given: jax.Array) -> np.ndarray:
        found = graph_exchanges.deferring_errors(meet, np.asarray(given), shape)
        return np.asarray(found, dtype)

    return io_callback(called, jax.ShapeDtypeStruct(tuple(shape), dtype), values, ordered=True)


def _declared(node: Apply, values: jax.Array) -> jax.Array:
    """Values in the dtype that the graph declares; JAX's may be wider."""
    return jnp.asarray(values).astype(node.inputs[0].type.dtype)


@jax_funcify.register(AllReduce)
def _all_reduce(op: AllReduce, node: Apply, **kwargs: object) -> Callable[..., jax.Array]:
    del kwargs
    meet = functools.partial(graph_exchanges.all_reduced, op=op.op, weighing=op.weighing)

    def all_reduce(values: jax.Array, token: jax.Array) -> jax.Array:
        values = _declared(node, values)
        return met(meet, values, values.shape), token

    return all_reduce


@jax_funcify.register(AllGather)
def _all_gather(op: AllGather, node: Apply, **kwargs: object) -> Callable[..., jax.Array]:
    del kwargs
    meet = functools.partial(graph_exchanges.gathered, weighing=op.weighing)

    def all_gather(values: jax.Array, *like_and_token: jax.Array) -> jax.Array:
        values = _declared(node, values)
        *like, token = like_and_token
        rows = len(like[0]) if like else graph_exchanges.place()[1] * len(values)
        return met(meet, values, (rows, *values.shape[1:])), token

    return all_gather


@jax_funcify.register(OwnRows)
def _own_rows(op: OwnRows, node: Apply, **kwargs: object) -> Callable[..., jax.Array]:
    del kwargs

    def own_rows(values: jax.Array, like: jax.Array, token: jax.Array) -> jax.Array:
        values, mine = _declared(node, values), len(like)
        meet = functools.partial(
            graph_exchanges.scattered, op=Reduction.SUM, weighing=op.weighing, mine=mine
        )
        return met(meet, values, (mine, *values.shape[1:])), token

    return own_rows


@jax_funcify.register(ReduceScatter)
def _reduce_scatter(op: ReduceScatter, node: Apply, **kwargs: object) -> Callable[..., jax.Array]:
    del kwargs
    meet = functools.partial(graph_exchanges.scattered, op=op.op, weighing=op.weighing)

    def reduce_scatter(values: jax.Array, token: jax.Array) -> jax.Array:
        values = _declared(node, values)
        rank, size = graph_exchanges.place()
        at = edges(len(values), size)
        shape = (at[rank + 1] - at[rank], *values.shape[1:])
        return met(meet, values, shape, node.outputs[0].type.dtype), token

    return reduce_scatter


@jax_funcify.register(Broadcast)
def _broadcast(op: Broadcast, node: Apply, **kwargs: object) -> Callable[..., jax.Array]:
    del kwargs
    meet = functools.partial(graph_exchanges.of_root, root=op.root)

    def broadcast(values: jax.Array, token: jax.Array) -> jax.Array:
        values = _declared(node, values)
        return met(meet, values, values.shape), token

    return broadcast


@jax_funcify.register(Rank)
def _rank(op: Rank, node: Apply, **kwargs: object) -> Callable[..., jax.Array]:
    del op, node, kwargs
    return lambda token: (jnp.asarray(graph_exchanges.place()[0], "int64"), token)


@jax_funcify.register(SameSteps)
def _same_steps(op: SameSteps, node: Apply, **kwargs: object) -> Callable[..., jax.Array]:
    del op, kwargs

    def check(steps: jax.Array, token: jax.Array) -> jax.Array:
        met(same_steps, _declared(node, steps), ())
        return steps, token  # as a number that JAX knows while it compiles, which loops need

    return check
