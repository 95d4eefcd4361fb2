"""The divided likelihood in JAX programs: a call back into Python; imported if JAX is in use."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.custom_derivatives import SymbolicZero
from pytensor.link.jax.dispatch import jax_funcify

from synkhronos.pymc._density.op import DividedLogp, evaluate
from synkhronos.pymc._reading.facts import is_smooth


@jax_funcify.register(DividedLogp)
def _funcify(op: DividedLogp, node: Any = None, **kwargs: Any) -> Any:
    """A callback that returns its value and its derivatives."""
    number = op.number
    smooth = [is_smooth(v) for v in node.inputs]

    def called(*inputs: Any) -> Any:
        kinds = [jax.ShapeDtypeStruct((), np.float64)]
        for value, has_gradient in zip(inputs, smooth, strict=True):
            if has_gradient:
                kinds.append(jax.ShapeDtypeStruct(value.shape, value.dtype))
        return jax.pure_callback(evaluated, tuple(kinds), *inputs, vmap_method="sequential")

    def evaluated(*inputs: Any) -> Any:
        return evaluate(number, True, *[np.asarray(v) for v in inputs])

    @jax.custom_vjp  # type: ignore[untyped-decorator]
    def divided_logp(*inputs: Any) -> Any:
        return called(*inputs)

    def forward(*inputs: Any) -> Any:
        found = called(*[v.value for v in inputs])
        shapes = [np.zeros(v.value.shape, jax.dtypes.float0) for v in inputs]
        return found, (found[1:], shapes)

    def backward(kept: Any, cotangents: Any) -> Any:
        gradients, nothing = kept
        first, *others = cotangents
        if not all(isinstance(c, SymbolicZero) for c in others):
            raise NotImplementedError("a divided likelihood has no second derivatives")
        if isinstance(first, SymbolicZero):
            first = np.zeros(())
        left = iter(gradients)
        return tuple(
            (first * (g := next(left))).astype(g.dtype) if has_gradient else none
            for has_gradient, none in zip(smooth, nothing, strict=True)
        )

    divided_logp.defvjp(forward, backward, symbolic_zeros=True)
    return divided_logp
