"""The operations in JAX programs; imported when JAX compiles the first graph.

A program calls back into Python to meet the others. The calls are ordered as JAX traces them, in
an order that the graph fixes. JAX fixes the shapes of results when it traces a program. So gathered
values have the length that the graph gives, or else that of equal members.
"""

from __future__ import annotations

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
from synkhronos.ops._collectives import AllGather, AllReduce, Broadcast, Combining, Rank


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


@jax_funcify.register(Combining)
def _combining(op: Combining, node: Apply, **kwargs: object) -> Callable[..., jax.Array]:
    del kwargs

    def combining(values: jax.Array, *like_and_token: jax.Array) -> jax.Array:
        values = _declared(node, values)
        *like, token = like_and_token
        lengths = [np.broadcast_to(0, len(v)) for v in like]  # all that the operation reads of it

        def meet(given: np.ndarray) -> np.ndarray:
            return op.value([given, *lengths])

        shape = _shape(op, values.shape, lengths)
        return met(meet, values, shape, node.outputs[0].type.dtype), token

    return combining


def _shape(op: Combining, given: tuple[int, ...], like: Sequence[np.ndarray]) -> tuple[int, ...]:
    """The shape of the combined value."""
    if isinstance(op, AllReduce | Broadcast):
        return given
    if like:
        return (len(like[0]), *given[1:])
    rank, size = graph_exchanges.place()
    if isinstance(op, AllGather):
        return (size * given[0], *given[1:])
    at = edges(given[0], size)
    return (at[rank + 1] - at[rank], *given[1:])


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
