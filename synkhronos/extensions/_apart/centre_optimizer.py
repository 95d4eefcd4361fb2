"""An update rule for chunks of flat vectors, which are not the values of its variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pytensor
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace

from synkhronos._compiling.progress import watch
from synkhronos._compiling.python_mode import python_mode
from synkhronos._engine.replicas import compiled, configured, settings
from synkhronos._errors import InputError
from synkhronos.extensions._step.partition import Loop, Partition, partition_rule
from synkhronos.extensions.updates import apply_rule

_MODE = "NUMBA"


@dataclass(frozen=True)
class ElementwiseRecipe:
    """An update rule that works element by element, and treats all parameters alike."""

    loops: dict[str, Loop]  # by dtype of the parameters
    # of each state, a variable for every parameter, with its first value
    states: tuple[tuple[SharedVariable, ...], ...]
    scalars: tuple[SharedVariable, ...]  # 0-d states of the whole rule, such as a count of steps
    new_scalars: tuple[Variable, ...]  # their new values
    settings: tuple[SharedVariable, ...]  # other scalars, such as a learning rate
    config: dict[str, object]  # PyTensor's, in the master

    @classmethod
    def of(
        cls, rule: Callable[..., object], params: Sequence[SharedVariable], what: str
    ) -> ElementwiseRecipe:
        """The recipe of a rule of Lasagne's signature.

        Raises
        ------
        InputError
            The rule needs whole parameters or norms, treats parameters differently, or depends on
            something that is neither a state nor a shared scalar.
        """
        gradients = [p.type(f"gradient of {p.name}") for p in params]
        updates = apply_rule(rule, gradients, params, (), {})
        partition = partition_rule(list(updates.items()), params, gradients)
        _check(partition, params, what)
        scalars = tuple(v for v, _ in partition.states)
        others: list[SharedVariable] = []
        for v in partition.leaves:
            if not isinstance(v, SharedVariable):
                raise InputError(f"{what} depends on {v}: use a number or a shared scalar")
            others += [] if v in scalars else [v]
        columns = zip(*[unit.variables[1:] for unit in partition.units], strict=True)
        return cls(
            {loop.gradient.type.dtype: loop for loop in partition.loops},
            tuple(columns),
            scalars,
            tuple(new for _, new in partition.states),
            tuple(others),
            settings(),
        )


def _check(partition: Partition, params: Sequence[SharedVariable], what: str) -> None:
    if partition.levels or partition.whole_updates:
        raise InputError(
            f"{what} must work element by element, and this one needs whole parameters or norms"
        )
    changed = {unit.variables[0] for unit in partition.units}
    for p in params:
        if p not in changed:
            raise InputError(f"{what} gives {p} no new value")
    dtypes = {loop.gradient.type.dtype for loop in partition.loops}
    counts = {len(unit.variables) for unit in partition.units}
    if len(dtypes) < len(partition.loops) or len(counts) > 1:
        raise InputError(f"{what} must treat all parameters alike, and this one does not")


class ElementwiseUpdate:
    """The compiled functions of a recipe.

    Notes
    -----
    The mode is always NUMBA, without fast arithmetic, which would round an element differently at
    the end of a vector. So any chunks, in a run and in a simulation, give the same bits.
    """

    def __init__(self, recipe: ElementwiseRecipe, settings: Sequence[np.ndarray]) -> None:
        self.recipe = recipe
        # the values of the recipe's settings, 0-d; they may change between two steps
        self._settings = settings
        self._scalar_dtypes = [v.type.dtype for v in recipe.scalars]
        self._loops: dict[np.dtype, tuple[Any, tuple[int, ...]]] = {}
        self._count: Any = None

    @classmethod
    def of_vector(cls, rule: Callable[..., Any], start: np.ndarray, what: str) -> Self:
        """The compiled update of one vector; it keeps the present values of the settings."""
        recipe = ElementwiseRecipe.of(rule, [pytensor.shared(start, name="vector")], what)
        made = cls(recipe, [v.container.storage[0] for v in recipe.settings])
        made.compile()
        return made

    def compile(self) -> None:
        """Compile, and call each function once on dummy values."""
        recipe = self.recipe
        leaves: list[Variable] = [*recipe.scalars, *recipe.settings]
        places: dict[Variable, Any] = {v: v.type() for v in leaves}
        replace = list(places.items())
        exact = {"numba__fastmath": False}
        with configured(recipe.config | exact), np.errstate(all="ignore"):
            for dtype, loop in recipe.loops.items():
                outputs = clone_replace(list(loop.outputs), replace=replace)
                inputs = [loop.gradient, *loop.values, *places.values()]
                function = compiled(inputs, outputs, mode=_MODE)
                function.trust_input = True
                watch(function)
                function(*[np.ones((1,) * v.type.ndim, v.type.dtype) for v in inputs])
                self._loops[np.dtype(dtype)] = function, loop.targets
            if recipe.scalars:
                self._count = pytensor.function(
                    list(places.values()),
                    clone_replace(list(recipe.new_scalars), replace=replace),
                    mode=python_mode(),
                    on_unused_input="ignore",
                )
                self._count.trust_input = True

    def _leaves(self, scalars: np.ndarray) -> list[np.ndarray]:
        own = [np.array(v, d) for v, d in zip(scalars, self._scalar_dtypes, strict=True)]
        return [*own, *self._settings]

    def counted(self, scalars: np.ndarray) -> list[np.ndarray]:
        """The new values of the 0-d states."""
        found: list[np.ndarray] = self._count(*self._leaves(scalars)) if self._count else []
        return found

    def step(
        self, scalars: np.ndarray
    ) -> Callable[[np.ndarray, Sequence[np.ndarray], Sequence[np.ndarray]], None]:
        """The step at these values of the 0-d states, for any chunk.

        Returns ``step(gradient, vectors, new)``, where `vectors` are parameters and states.
        """
        leaves = self._leaves(scalars)

        def make(
            gradient: np.ndarray, vectors: Sequence[np.ndarray], new: Sequence[np.ndarray]
        ) -> None:
            function, targets = self._loops[gradient.dtype]
            values = function(gradient, *vectors, *leaves)
            for k, vector in enumerate(vectors):
                if k not in targets:
                    new[k][...] = vector
            for k, value in zip(targets, values, strict=True):
                new[k][...] = value

        return make
