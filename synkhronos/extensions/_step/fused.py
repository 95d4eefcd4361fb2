"""The training step of a group of one on a GPU: gradients and update in one program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors

from synkhronos._backends import jax as jax_backend
from synkhronos._engine.commands.call import Call, bring
from synkhronos._engine.member import Member
from synkhronos._engine.replicas import Replica, configured
from synkhronos.extensions._step.resident_recipe import ResidentRecipe


class Fused:
    """One program for outputs and new values, without communication."""

    def __init__(
        self,
        recipe: ResidentRecipe,
        replica: Replica,
        call: Call,
        partials: Sequence[tuple[int, bool]],  # as for a Step
    ) -> None:
        self._replica = replica  # of the loss, the outputs and the gradients
        own = replica.recipe
        extra: list[object] = [own.outputs[i] for i in call.extra]
        whole: list[tuple[Any, object]] = list(
            zip(recipe.places, extra[len(partials) :], strict=True)
        )
        whole += [(recipe.leaves[i], v) for (i, _), v in zip(partials, extra, strict=False)]
        pieces: dict[Variable, Variable] = {
            place: place.type.filter_variable(value, allow_convert=True) for place, value in whole
        }
        new = clone_replace([v for _, v in recipe.updates], replace=list(pieces.items()))
        outputs = [own.outputs[i] for i in call.outputs]
        computed = [*outputs, *(u.new for u in own.updates), *new]
        self._n_outputs = len(outputs)
        changed = [v for v, _ in recipe.updates]
        known = {*pieces, *changed, *own.inputs}
        self._scalars = [i for i, v in enumerate(recipe.leaves) if v not in known]
        scalars = [recipe.leaves[i] for i in self._scalars]
        known |= set(scalars)
        others = [v for v in ancestors(computed) if isinstance(v, SharedVariable)]
        self._others = [v for v in dict.fromkeys(others) if v not in known]
        given: list[Any] = [*changed, *self._others, *scalars]
        places = {v: v.type() for v in given}
        inputs = [*own.inputs, *places.values()]
        first = len(own.inputs)
        with configured(recipe.config), jax_backend.wide():
            mode, programs = jax_backend.in_place(recipe.mode, range(first, first + len(changed)))
            self._function = pytensor.function(
                inputs,
                clone_replace(computed, replace=list(places.items())),
                mode=mode,
                on_unused_input="ignore",
            )
        self._function.trust_input = True
        [self._program] = programs
        self._dtypes = [v.type.dtype for v in given]
        self._shapes = [*recipe.shapes]

    @staticmethod
    def serves(call: Call, member: Member) -> bool:
        """Whether a step of this call can be one program."""
        recipe = member.replicas[call.function].recipe
        apart = call.sliced or recipe.streams or recipe.sliceables
        return member.size == 1 and not apart

    def prepare(self, member: Member, arguments: Sequence[Any]) -> None:
        """Compile for values of these shapes, if they are new; overwrites nothing."""
        bring(member, self._replica)
        held = [np.shape(v) for v in self._held()]
        key = tuple([np.shape(a) for a in arguments]), tuple(held)
        if self._program.chosen(key):
            return
        shapes = [*self._shapes, *held]
        shapes += [()] * (len(self._dtypes) - len(shapes))
        inputs: list[Any] = [(np.shape(a), np.asarray(a).dtype.name) for a in arguments]
        inputs += list(zip(shapes, self._dtypes, strict=True))
        with member.compiling(), jax_backend.shared_cache():
            self._program.compile(key, inputs)

    def _held(self) -> list[Any]:
        """The values of shared variables that the step only reads."""
        return [v.container.storage[0] for v in self._others]

    def __call__(
        self, arguments: Sequence[object], values: Sequence[object], leaves: Sequence[np.ndarray]
    ) -> Any:
        """Compute outputs, the function's own updates, and new values in the memory of `values`."""
        scalars = [leaves[i] for i in self._scalars]
        with jax_backend.wide():
            found = self._function(*arguments, *values, *self._held(), *scalars)
        jax_backend.send_scalars(found[: self._n_outputs])
        jax_backend.ready(found)
        return found
