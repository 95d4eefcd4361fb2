"""The divided likelihood in JAX programs: a call back into Python; imported once JAX is in use."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.custom_derivatives import SymbolicZero
from pytensor.link.jax.dispatch import jax_funcify

from synkhronos.pymc._op import DividedLogp, evaluate


@jax_funcify.register(DividedLogp)
def _funcify(op: DividedLogp, **kwargs: Any) -> Any:
    """A callback whose derivative is what it has returned."""
    number = op.number

    def called(*inputs: Any) -> Any:
        kinds = [jax.ShapeDtypeStruct((), np.float64)]
        kinds += [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in inputs]
        return jax.pure_callback(evaluated, tuple(kinds), *inputs, vmap_method="sequential")

    def evaluated(*inputs: Any) -> Any:
        return evaluate(number, *[np.asarray(v) for v in inputs])

    @jax.custom_vjp  # type: ignore[untyped-decorator]
    def divided_logp(*inputs: Any) -> Any:
        return called(*inputs)

    def forward(*inputs: Any) -> Any:
        found = called(*[v.value for v in inputs])
        return found, found[1:]

    def backward(gradients: Any, cotangents: Any) -> Any:
        first, *others = cotangents
        if not all(isinstance(c, SymbolicZero) for c in others):
            raise NotImplementedError("a divided likelihood has no second derivatives")
        if isinstance(first, SymbolicZero):
            return tuple(np.zeros(g.shape, g.dtype) for g in gradients)
        return tuple((first * g).astype(g.dtype) for g in gradients)

    divided_logp.defvjp(forward, backward, symbolic_zeros=True)
    return divided_logp
