"""Models of other frameworks in JAX programs; imported when JAX compiles the first graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from pytensor.graph.basic import Apply
from pytensor.link.jax.dispatch import jax_funcify

from synkhronos.interop._operations import Called, Pulled


@jax_funcify.register(Called)
def _called(op: Called, node: Apply, **kwargs: object) -> Callable[..., object]:
    del kwargs
    function, declared = op.model.function(op.what), _dtypes(node.inputs)
    dtype = op.kind.dtype
    return lambda *inputs: function(*_cast(inputs, declared)).astype(dtype)


@jax_funcify.register(Pulled)
def _pulled(op: Pulled, node: Apply, **kwargs: object) -> Callable[..., object]:
    del kwargs
    function, declared = op.model.function(op.what), _dtypes(node.inputs)
    first, last = op.rows, op.rows + op.weights

    def pulled(*inputs: object) -> object:
        *given, sent = _cast(inputs, declared)

        def of_weights(*weights: object) -> object:
            return function(*given[:first], *weights, *given[last:])

        value, pull = jax.vjp(of_weights, *given[first:last])
        found = pull(sent.astype(value.dtype))
        return found[0] if len(found) == 1 else found

    return pulled


def _dtypes(variables: Sequence[Any]) -> list[str]:
    return [v.type.dtype for v in variables]


def _cast(values: Sequence[object], dtypes: Sequence[str]) -> list[Any]:
    """Values in the dtypes that the graph declares; JAX's may be wider."""
    return [jax.numpy.asarray(v).astype(d) for v, d in zip(values, dtypes, strict=True)]
