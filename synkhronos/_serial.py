"""A function in one process: what the master runs by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from synkhronos._compile import Plan
from synkhronos._replicas import compiled


class Serial:
    """A plan compiled as pytensor.function would, but for updates: they put new arrays in place.

    (PyTensor's own may write into the old ones, which the group would not notice.)
    """

    def __init__(self, plan_: Plan) -> None:
        recipe = plan_.recipe
        self._streams = [s for s in recipe.streams if s.after is not None]
        self._updated = [u.shared for u in recipe.updates] + [s.shared for s in self._streams]
        new: list[Any] = [u.new for u in recipe.updates] + [s.after for s in self._streams]
        self._n = len(plan_.outputs)
        self._function = compiled(
            plan_.inputs,
            [*(o.variable for o in plan_.outputs), *new],
            mode=recipe.mode,
            name=recipe.name,
            givens=list(zip(recipe.places, recipe.sliceables, strict=True)),
            **recipe.options,
        )

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        found = self._function(*values)
        for shared, value in zip(self._updated, found[self._n :], strict=True):
            shared.set_value(value, borrow=True)
        return list(found[: self._n])
