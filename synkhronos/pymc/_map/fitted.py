"""Fits one item: calls `fit`, and samples the model that it returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pymc as pm
from pymc.sampling import sample as pm_sample

from synkhronos._errors import InputError
from synkhronos._host.thread_pools import ThreadLimits
from synkhronos._warnings import log
from synkhronos.pymc._density.adaptation import AUTO, Auto, adapted, check_adaptation, name_of_nuts
from synkhronos.pymc._density.metric import Choice


class Sampled:
    """Fits an item; calls may share compiled models."""

    def __init__(
        self, fit: Callable[..., object], arguments: Mapping[str, Any], members: int
    ) -> None:
        self._fit = fit
        self._arguments: dict[str, Any] = {
            "cores": members,
            "progressbar": False,
            "quiet": True,
            "compute_convergence_checks": False,
            **arguments,
        }
        metric = check_adaptation(self._arguments.pop("adaptation", None), self._arguments)
        # a line for each item is noise
        self._auto = Auto(kept=_found, say=log.debug) if metric == AUTO else None
        if metric not in (None, AUTO):
            of_nuts = name_of_nuts(self._arguments)
            nuts = self._arguments.get(of_nuts) or {}
            self._arguments[of_nuts] = {**nuts, "adaptation": metric}
        self._takes_seed = takes_seed(fit)

    def __call__(self, item: object, seed: np.random.SeedSequence) -> object:
        """The draws of the model that `fit` returns; or what it returns."""
        word, *others = (int(state) for state in seed.generate_state(2))
        np.random.seed(others[0])
        found = self._fit(item, **({"random_seed": word} if self._takes_seed else {}))
        model, data = found if _is_model_and_data(found) else (found, {})
        if not isinstance(model, pm.Model):
            return found
        if data:
            with model:
                pm.set_data(dict(data))
        given = dict(self._arguments)
        of_nuts = name_of_nuts(given)
        if isinstance(nuts := given.get(of_nuts), Mapping):  # `pm.sample` writes into it
            given[of_nuts] = dict(nuts)
        with adapted(self._auto):
            return pm_sample(model=model, random_seed=word, **given)


def _found(_: object, find: Callable[[], Choice]) -> Choice:
    with ThreadLimits(1):  # the same rounding with any number of cores
        return find()


def takes_seed(fit: Callable[..., object]) -> bool:
    """Whether it takes an argument `random_seed`."""
    try:
        return "random_seed" in inspect.signature(fit).parameters
    except (TypeError, ValueError):  # of some builtins
        return False


def _is_model_and_data(found: object) -> bool:
    if not (isinstance(found, tuple) and found and isinstance(found[0], pm.Model)):
        return False
    if len(found) != 2 or not isinstance(found[1], Mapping):
        raise InputError(
            "map: fit has returned a model and something else: give a model, or a model and a dict "
            "of data for pm.set_data"
        )
    return True
