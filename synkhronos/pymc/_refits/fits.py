"""The common part of `cross_validate`, `reloo` and `lfo`: the fits, by `map`."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pymc as pm
from pymc.pytensorf import resolve_backend_compile_kwargs
from xarray import DataArray, DataTree

from synkhronos._checks import check_integer, or_none
from synkhronos._errors import InputError, SynkhronosError
from synkhronos._host.launch_settings import launch_settings
from synkhronos.pymc._after.division import By
from synkhronos.pymc._after.loo_rows import LooRows
from synkhronos.pymc._after.observed import (
    OfModel,
    computed,
    draws_of,
    posterior_with_draws,
    rows_of_group,
)
from synkhronos.pymc._density.adaptation import check_adaptation
from synkhronos.pymc._map.digests import digest_of
from synkhronos.pymc._map.mapped import map as map_items
from synkhronos.pymc._map.results import Fits, Folder, forget
from synkhronos.pymc._map.where import own_cores, where_of
from synkhronos.pymc._refits.refit import Refit
from synkhronos.pymc._refits.weighted import weighted

FITS = "fits without rows"  # in messages
_NAMED = 5  # fits in a message
_OF_MAP = frozenset(
    name
    for name, parameter in inspect.signature(map_items).parameters.items()
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY
)
_OF_WHERE = _OF_MAP & inspect.signature(where_of).parameters.keys()


class Refits:
    """The rows of an observed variable, and fits without some of them.

    Attributes
    ----------
    posterior : Dataset
        The draws of the fit to all rows.
    rows : DataArray
        Of the shape of the rows, with their coordinates.
    draws : int
        The number of draws of the fit to all rows.
    """

    def __init__(
        self,
        what: str,
        data: DataTree,
        model: pm.Model,
        var_name: str | None,
        compilation: tuple[str | None, dict[str, object] | None],  # backend and compile_kwargs
        options: Mapping[str, Any],  # of `map` and `pm.sample`
    ) -> None:
        self._what, self._model = what, model
        self._by = By.of(what, options.get("cores"), options.get("progressbar", True))
        self._of_map, own = options_of(what, options, FITS)
        self.posterior = posterior_with_draws(what, data)
        self.draws = draws_of(self.posterior)
        sizes = self.posterior.sizes
        self._arguments = {"draws": sizes["draw"], "chains": sizes["chain"], **own}
        given = resolve_backend_compile_kwargs(*compilation)
        self._of_model = OfModel(what, model, var_name, self.posterior, given)
        name = self._of_model.name
        self.rows: DataArray = self._of_model.labels
        self._known: LooRows | None = None
        first = None
        if "log_likelihood" in data:
            group = data["log_likelihood"].to_dataset()
            if name in group:
                self.rows, self._known = rows_of_group(what, group, name, 0)
                first = self._known.of_first_draw()
        self._function = self._of_model.function(first)

    def log_means(self, changed: Callable[[LooRows], LooRows] = lambda work: work) -> np.ndarray:
        """The logs of mean likelihoods by the fit to all rows, flat; `changed` takes the rows."""
        rows = self._of_model.rows(0) if self._known is None else self._known
        work = changed(rows)
        like = DataArray(np.empty(work.rows * work.each))
        return computed(self._what, work, like, self._by)[0]

    def run(
        self, items: Mapping[str, Mapping[str, Any]], kind: type[Refit] = Refit, keeps: bool = False
    ) -> dict[str, Any]:
        """The results of items by their names.

        Raises
        ------
        SynkhronosError
            An item has failed.
        InputError
            This is a task of an array, which has a part of the items.
        """
        refuse_parts(self._what)
        model = weighted(self._what, self._model, self._of_model.name, self._of_model.first.shape)
        members = self._of_map.get("members", self._members(len(items)))
        fit = kind(model, self._function, self._arguments, members, keeps)
        of = self._digest()
        whole = {name: {**item, "of": of} for name, item in items.items()}
        options = {**self._of_map, "members": members}
        found = self._mapped(fit, whole, options)
        results = dict(found)
        # those of an earlier call, which kept no draws
        bare = [name for name, result in results.items() if keeps and "fit" not in result]
        if bare:
            forget(found, bare)
            results = dict(self._mapped(fit, whole, options))
        diverged = {name: result["diverged"] for name, result in results.items()}
        warn_of_divergences(self._what, diverged, 4)
        return results

    def _mapped(self, fit: Refit, items: Mapping[str, object], options: Mapping[str, Any]) -> Fits:
        """The results of `map`, none of which has failed."""
        found = map_items(fit, items, **options)
        if found.failed:
            name, why = next(iter(found.failed.items()))
            raise SynkhronosError(
                f"{self._what}: {len(found.failed)} of {len(items)} fits have failed. The first of "
                f"them, {name}: {why}. With folder= the others are kept, and the same call fits "
                "these again"
            )
        return found

    def _members(self, fits: int) -> int:
        """The cores of a fit: idle ones run its chains, but a worker of a pool may have one."""
        if self._of_map.get("on") is not None:
            return 1
        there = own_cores(self._by.cores)
        return max(1, min(int(self._arguments["chains"]), there // fits))

    def _digest(self) -> str:
        """Tells the model by what it computes for the first draw and the last one."""
        own = self._of_model
        values = [own.all(*[v[draw, ...] for v in own.inputs])[0] for draw in (0, self.draws - 1)]
        draws = [[v[draw, ...] for v in own.inputs] for draw in (0, self.draws - 1)]
        return digest_of((own.name, values, draws, sorted(map(str, self._arguments.items()))))


def options_of(
    what: str, options: Mapping[str, Any], fits: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of `map`, and those of `pm.sample`; `fits` is what a message calls the fits.

    Raises
    ------
    InputError, InputTypeError, BackendMissing
        One is not for such fits or not possible, or the folder is of another seed.
    """
    of_map = {name: value for name, value in options.items() if name in _OF_MAP}
    own = {name: value for name, value in options.items() if name not in _OF_MAP}
    for name in ("model", "var_names", "idata_kwargs", "return_inferencedata"):
        if name in own:
            raise InputError(f"{what}: {name}= is not for {fits}: leave it out")
    check_adaptation(own.get("adaptation"), {**own})
    where_of(what, **{name: of_map[name] for name in _OF_WHERE & of_map.keys()})
    seed = or_none(check_integer, f"{what}: random_seed", of_map.get("random_seed"), 0)
    if (folder := of_map.get("folder")) is not None:
        Folder(folder).noted_seed(seed)
    return of_map, own


def refuse_parts(what: str) -> None:
    """Raise in a task of an array: `map` would fit a part of the items."""
    if (parts := launch_settings().part[1]) > 1:
        raise InputError(
            f"{what}: it needs all fits, and this is one of {parts} tasks of an array, each of "
            "which has a part of them: give on= in a job of one task"
        )


def warn_of_divergences(what: str, diverged: Mapping[Any, int], stacklevel: int) -> None:
    """Warn if draws diverged in fits, which are given by their names."""
    counts = {name: n for name, n in diverged.items() if n}
    if counts:
        first = sorted(counts, key=lambda name: -counts[name])[:_NAMED]
        each = ", ".join(f"{name}: {counts[name]}" for name in first)
        more = ", ..." if len(counts) > _NAMED else ""
        warnings.warn(
            f"{what}: draws diverged in {len(counts)} of {len(diverged)} fits ({each}{more}): "
            "their numbers may be wrong. Give target_accept=0.95, or look at the model",
            UserWarning,
            stacklevel=stacklevel,
        )


def result_rows(rows: DataArray, values: np.ndarray) -> DataArray:
    """Numbers of rows, with their coordinates."""
    return rows.copy(data=values.reshape(rows.shape))
