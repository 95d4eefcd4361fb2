"""A function that only the master runs."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from synkhronos._backends import jax as jax_backend
from synkhronos._engine.function_plan import Plan
from synkhronos._engine.replicas import compiled, configured


class Serial:
    """A plan, compiled as pytensor.function would, except that updates set new value objects.

    PyTensor's own updates may write into the old value, which the group would not notice. In JAX
    they would also draw the same random numbers in each call.
    """

    def __init__(self, plan_: Plan) -> None:
        recipe = plan_.recipe
        moving = [s for s in recipe.streams if s.after is not None]
        self._updated = [u.shared for u in recipe.updates] + [s.shared for s in moving]
        new: list[Any] = [u.new for u in recipe.updates] + [s.after for s in moving]
        self._n = len(plan_.outputs)
        self._drawn = [s.shared for s in recipe.streams] if recipe.jax else []
        states = [s.type(name=s.name) for s in self._drawn]
        self._width = jax_backend.wide if recipe.jax else contextlib.nullcontext
        with configured(recipe.config), self._width():
            self._function = compiled(
                [*plan_.inputs, *states],
                [*(o.variable for o in plan_.outputs), *new],
                mode=jax_backend.declared_dtypes(recipe.mode) if recipe.jax else recipe.mode,
                name=recipe.name,
                givens=[
                    *zip(recipe.places, recipe.sliceables, strict=True),
                    *zip(self._drawn, states, strict=True),
                ],
                **recipe.options,
            )
        self._function.trust_input = recipe.jax

    def __call__(self, values: Sequence[object]) -> list[object]:
        before = {s: s.container.storage[0] for s in self._drawn}
        with self._width():
            found = self._function(*values, *map(jax_backend.typified, before.values()))
        for shared, value in zip(self._updated, found[self._n :], strict=True):
            new = jax_backend.generator(value, before[shared]) if shared in before else value
            shared.set_value(new, borrow=True)
        return list(found[: self._n])
