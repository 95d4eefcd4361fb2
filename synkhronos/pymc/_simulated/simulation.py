"""The work of a process for a simulated data set: a fit, and ranks among its draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
from pymc.model.transform.conditioning import observe
from pytensor import shared
from xarray import DataArray, Dataset, DataTree

from synkhronos._checks import shown
from synkhronos._errors import InputError
from synkhronos.pymc._after.observed import efficiency_of
from synkhronos.pymc._map.fitted import Sampled
from synkhronos.pymc._reading.models import initial_values_of, without_initial_values
from synkhronos.pymc._refits.refit import diverged

type Transform = Callable[[str, np.ndarray], object]
type Simulator = Callable[..., Mapping[str, object]]


class Simulation:
    """Fits a model to simulated data, and ranks the parameters that they come from.

    An item has the parameters (``truth``) by name, and the ``data``, unless a simulator makes them.
    """

    def __init__(
        self,
        model: pm.Model,
        names: Sequence[str],  # of the variables that are ranked
        arguments: Mapping[str, Any],  # of `pm.sample`
        members: int,
        thin: int,
        transform: Transform | None,
        simulator: Simulator | None,
    ) -> None:
        self._model, self._names, self._thin = model, list(names), thin
        self._arguments, self._members = arguments, members
        self._transform, self._simulator = transform, simulator
        self._sampled: Sampled | None = None
        self._observing: Observing | None = None

    def __call__(self, item: Mapping[str, Any], random_seed: int) -> dict[str, Any]:
        """The ranks, how many draws diverged, and how many draws are compared.

        ``efficiency`` is the number of effective draws for each of them.
        """
        own, seed = np.random.SeedSequence(random_seed).spawn(2)
        r = np.random.default_rng(own)
        truth = item["truth"]
        data = item["data"]
        if self._simulator is not None:
            data = simulated(self._simulator, truth, int(r.integers(2**30)))
        if self._sampled is None:
            self._sampled = Sampled(self._observed, self._arguments, self._members)
        fit = self._sampled(data, seed)
        assert isinstance(fit, DataTree)
        draws = fit["posterior"].to_dataset()[self._names].isel(draw=slice(0, None, self._thin))
        return {
            "ranks": Dataset({name: self._rank(draws[name], truth[name], r) for name in draws}),
            "diverged": diverged(fit),
            "efficiency": efficiency_of(draws),
            "compared": draws.sizes["chain"] * draws.sizes["draw"],
        }

    def _observed(self, data: Mapping[str, Any]) -> pm.Model:
        if self._observing is None:
            self._observing = Observing(self._model, data)
        return self._observing.model_of(data)

    def _rank(self, draws: DataArray, truth: np.ndarray, r: np.random.Generator) -> DataArray:
        """The number of draws below the truth; of those that equal it, any number alike."""
        values = draws.transpose("chain", "draw", ...).values
        values = values.reshape(-1, *values.shape[2:])
        if self._transform is not None:
            name = str(draws.name)
            values = np.stack([np.asarray(self._transform(name, value)) for value in values])
            truth = np.asarray(self._transform(name, truth))
        ties = (values == truth).sum(axis=0)
        found = (values < truth).sum(axis=0) + r.integers(0, ties + 1)
        like = draws.isel(chain=0, draw=0, drop=True)
        if like.shape == found.shape:
            return like.copy(data=found)
        return DataArray(found, dims=[f"{draws.name}_dim_{i}" for i in range(found.ndim)])


class Observing:
    """A copy of a model that observes data which can be replaced, with its initial values.

    Parameters
    ----------
    model : pymc.Model
    data : mapping of str to array
        The first ones; the others are for the same variables, and have their shapes.
    """

    def __init__(self, model: pm.Model, data: Mapping[str, Any]) -> None:
        self._places = {
            name: shared(
                np.asarray(value, model[name].dtype),
                name=f"simulated {name}",
                shape=model[name].type.shape,
            )
            for name, value in data.items()
        }
        self._model = observe(without_initial_values(model), self._places)
        for name, value in initial_values_of(model).items():
            if name not in data:
                self._model.rvs_to_initial_values[self._model[name]] = value

    def model_of(self, data: Mapping[str, Any]) -> pm.Model:
        """The model with other data: the same object each time."""
        for name, place in self._places.items():
            place.set_value(np.asarray(data[name], place.dtype))
        return self._model


def simulated(
    simulator: Simulator, truth: Mapping[str, np.ndarray], seed: int
) -> Mapping[str, object]:
    """The data that a simulator makes.

    Raises
    ------
    InputError
        It returns no dict.
    """
    found = simulator(**truth, seed=seed)
    if not isinstance(found, Mapping):
        raise InputError(f"sbc: simulator has returned {shown(found)}: return a dict of arrays")
    return found
