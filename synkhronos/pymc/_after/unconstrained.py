"""Draws in the space where parameters have no bounds, and a model's densities there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
from pymc.model.transform.optimization import freeze_dims_and_data
from pytensor.compile import Function
from pytensor.graph.replace import clone_replace

from synkhronos._errors import InputError
from synkhronos.pymc._after.densities import compiled_from
from synkhronos.pymc._after.loo_rows import LooRows, function_of_rows
from synkhronos.pymc._after.points import Points
from synkhronos.pymc._kept.fast import fast
from synkhronos.pymc._reading.models import without_initial_values

_WITHIN = 1e-6  # of log-likelihoods, after parameters were transformed twice


@dataclass
class Unconstrained:
    """The log-density of a model, and the log-likelihoods of one of its observed variables."""

    density: Function  # its inputs are the parameters
    rows: Function  # of log-likelihoods; two more inputs are the first one and that after the last
    shapes: list[tuple[tuple[int, ...], np.dtype]]  # of the parameters, and their dtypes
    each: int  # the number of log-likelihoods in a row

    def log_densities(self, draws: np.ndarray) -> np.ndarray:
        """Those of draws, of shape ``(draws, parameters)``."""
        found = np.empty(len(draws))
        for place, given in enumerate(self._given(draws)):
            found[place] = self.density(*given)[0]
        return found

    def log_likelihoods(self, draws: np.ndarray, number: int) -> np.ndarray:
        """Those with this number, of all draws."""
        row, place = divmod(number, self.each)
        ends = np.asarray(row), np.asarray(row + 1)
        found = np.empty(len(draws))
        for at, given in enumerate(self._given(draws)):
            found[at] = self.rows(*given, *ends)[0].reshape(-1)[place]
        return found

    def _given(self, draws: np.ndarray) -> Iterator[list[np.ndarray]]:
        self.density.trust_input = self.rows.trust_input = True
        inputs, at = [], 0
        for shape, dtype in self.shapes:
            size = math.prod(shape)
            inputs.append(draws[:, at : at + size].reshape(-1, *shape).astype(dtype, copy=False))
            at += size
        for draw in range(len(draws)):
            yield [values[draw, ...] for values in inputs]


def unconstrained(
    whole_model: pm.Model,
    points: Points,
    work: LooRows,  # of the observed variable, at the same draws
    name: str,
    given: Mapping[str, Any],
    faster: bool,
) -> tuple[Unconstrained, np.ndarray]:
    """The densities, and the draws, of shape ``(draws, parameters)``.

    With `faster`, compiling takes seconds more, and a log-density up to 7 times less.
    """
    model = freeze_dims_and_data(without_initial_values(whole_model))
    # in the order of the model, on which Cholesky factors depend; a copy has another one
    free = [model[rv.name] for rv in whole_model.free_RVs]
    values = [model.rvs_to_values[rv] for rv in free]
    draws = _without_bounds(model, free, points, given)
    [whole] = model.logp(vars=[model[name]], sum=False)
    inputs = [each.astype(v.type.dtype) for each, v in zip(draws, values, strict=True)]

    def compiled(graph: Any, more: Any = ()) -> Any:
        return compiled_from(model, [graph], [*values, *more], given)

    first = work.of_first_draw()
    rows, known = function_of_rows(whole, work.rows, first, inputs, compiled, _WITHIN)
    if not known:
        raise InputError(
            f"loo: moment_match: the log-likelihoods of {name} for the first draw are not those of "
            "the model: give the model, and the data, that the draws were made with"
        )
    density = compiled(_density(model, whole_model, faster))
    flat = np.concatenate([each.reshape(len(each), -1) for each in draws], axis=1)
    shapes = [(each.shape[1:], each.dtype) for each in inputs]
    return Unconstrained(density, rows, shapes, work.each), flat.astype(float)


def _density(model: pm.Model, plain: pm.Model, faster: bool) -> Any:
    if not faster:
        return model.logp()
    other = fast(plain)
    own = {v.name: v for v in model.value_vars}
    return clone_replace(other.logp(), {v: own[v.name] for v in other.value_vars})


def _without_bounds(
    model: pm.Model, free: Sequence[Any], points: Points, given: Mapping[str, Any]
) -> list[np.ndarray]:
    """The draws of free variables, by the transforms of the model."""
    draws = {rv: rv.type(rv.name) for rv in free}
    moved = []
    for rv, value in draws.items():
        transform = model.rvs_to_transforms[rv]
        moved.append(value if transform is None else transform.forward(value, *rv.owner.inputs))
    graphs = clone_replace(moved, draws)  # bounds may depend on other variables
    function = compiled_from(model, graphs, list(draws.values()), given)
    inputs = points.inputs_of(function, [rv.name for rv in draws])
    each = [function(*[v[draw, ...] for v in inputs]) for draw in range(len(inputs[0]))]
    return [np.stack(several) for several in zip(*each, strict=True)]
