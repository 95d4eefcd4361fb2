"""An observed variable: its rows, and their log-likelihoods for the draws of a posterior."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pymc as pm
from pymc.model.transform.optimization import freeze_dims_and_data
from pytensor.compile import Function
from xarray import DataArray, Dataset, DataTree

from synkhronos._errors import InputError
from synkhronos.pymc._after.calculation import in_processes
from synkhronos.pymc._after.densities import Density, posterior_of
from synkhronos.pymc._after.division import By, divided
from synkhronos.pymc._after.labels import in_order
from synkhronos.pymc._after.loo_rows import (
    SAMPLE_DIMS,
    ChosenRows,
    LooRows,
    ModelRows,
    StoredRows,
    function_of_rows,
)
from synkhronos.pymc._after.pareto import tail_length
from synkhronos.pymc._after.points import Points
from synkhronos.pymc._after.work import InMemory
from synkhronos.pymc._reading.models import without_initial_values

_FEWEST, _FEWEST_IN_TAIL = 25, 5  # draws
_WITHIN = 1e-6  # of log-likelihoods that are known, and those of the model
_NAMED = 5  # rows in a message


def posterior_with_draws(what: str, data: DataTree) -> Dataset:
    """The posterior, if it has enough draws in chains; `what` is how messages name the call."""
    posterior = posterior_of(data, what)
    if missing := [dim for dim in SAMPLE_DIMS if dim not in posterior.dims]:
        raise InputError(f"{what}: the posterior has no dimension {missing[0]!r}")
    check_draws(what, draws_of(posterior))
    return posterior


def check_draws(what: str, draws: int) -> None:
    """Raise if there are not enough draws."""
    if draws < _FEWEST:
        raise InputError(f"{what}: {draws} draws are too few: {_FEWEST} are needed")


def check_same_draws(what: str, stored: StoredRows, draws: int) -> None:
    """Raise if log-likelihoods that are known have another number of draws than the posterior."""
    if stored.draws != draws:
        raise InputError(
            f"{what}: the group log_likelihood has {stored.draws} draws, and the posterior has "
            f"{draws}: give both of the same draws, or leave log_likelihood out and give model="
        )


def draws_of(posterior: Dataset) -> int:
    """The number of draws of all chains."""
    return math.prod(posterior.sizes[dim] for dim in SAMPLE_DIMS)


def efficiency_of(posterior: Dataset, draws: int | None = None) -> float:
    """The effective draws of a draw, averaged over all elements of all variables, as in ArviZ.

    `draws` is the number of those that are used, such as every fifth one. Default: all.
    """
    if posterior.sizes["chain"] == 1:
        return 1.0
    ess = posterior.azstats.ess(method="mean")
    means = np.hstack([ess[v].values.ravel() for v in ess.data_vars]).mean()
    return float(means / (draws_of(posterior) if draws is None else draws))


def refuse_pool(what: str) -> None:
    """Raise, since all that the call needs is computed from log-likelihoods that are known."""
    raise InputError(
        f"{what}: on=: data has the group log_likelihood, and to send that to workers takes longer "
        "than what follows from it: leave on= out, or leave the group out and give model="
    )


def tail_of(what: str, draws: int, efficiency: float) -> int:
    """The number of draws in the tail of weights, if a distribution can be fitted to them."""
    tail = tail_length(draws, efficiency)
    if tail < _FEWEST_IN_TAIL:
        raise InputError(
            f"{what}: reff={efficiency:g} leaves {tail} of {draws} draws for the tail, and "
            f"{_FEWEST_IN_TAIL} are needed: reff is effective draws for each draw, about 1"
        )
    return tail


def rows_of_group(
    what: str, group: Dataset, name: str | None, tail: int
) -> tuple[DataArray, StoredRows]:
    """The labels of the rows, and the work, from log-likelihoods that are known."""
    chosen = _chosen(what, name, [str(v) for v in group.data_vars], "the group log_likelihood")
    values = group[chosen]
    rows = _some(what, values.isel(chain=0, draw=0, drop=True))
    own = [dim for dim in values.dims if dim not in SAMPLE_DIMS]
    if not own:
        values, own = values.expand_dims("row"), ["row"]
    values = values.transpose(*own, *SAMPLE_DIMS)
    length, each = values.shape[0], math.prod(values.shape[1:-2])
    return rows, StoredRows(length, each, math.prod(values.shape[-2:]), tail, values)


@dataclass(frozen=True)
class RowFunction:
    """Log-likelihoods of chosen rows, for any draws; it can be pickled."""

    function: Function  # its last input are numbers of rows
    names: list[str]  # of its other inputs
    width: int  # log-likelihoods in a row

    def at(self, draws: Dataset, numbers: np.ndarray, tail: int = 0) -> ChosenRows:
        """The work for log-likelihoods with these numbers, flat."""
        shape = tuple(draws.sizes[dim] for dim in SAMPLE_DIMS)
        values = {name: draws[name].transpose(*SAMPLE_DIMS, ...) for name in self.names}
        inputs = Points(shape, {}, values).inputs_of(self.function, self.names)
        given = self.function, inputs, np.asarray(numbers), self.width
        return ChosenRows(len(numbers), 1, math.prod(shape), tail, *given)


class OfModel:
    """The log-likelihoods of an observed variable of a model, for the draws of a posterior.

    Attributes
    ----------
    labels : DataArray
        Of the shape and with the coordinates of the rows; its name is that of the variable.
    first : array
        The log-likelihoods of the first draw.
    """

    def __init__(
        self,
        what: str,
        model: pm.Model,
        name: str | None,
        posterior: Dataset,
        given: Mapping[str, Any],  # arguments of `Model.compile_fn`
    ) -> None:
        self.name = _chosen(what, name, [v.name for v in model.observed_RVs], "the model")
        frozen = freeze_dims_and_data(without_initial_values(model))
        self._what, self._given = what, given
        self._density = Density(frozen, "likelihood", [self.name])
        points = Points.of_dataset(posterior, model, SAMPLE_DIMS)
        [self._whole] = self._density.graphs
        self.all = self._density.compiled(given)  # the function of all rows
        if not in_processes(self.all):
            raise InputError(
                f"{what}: mode JAX compiles no blocks of rows: name another one, as in "
                'backend="numba"'
            )
        self.inputs = points.inputs_of(self.all, self._density.inputs)
        self.first = self.all(*[values[0, ...] for values in self.inputs])[0]
        coords = [points.coords[dim] for dim in SAMPLE_DIMS]
        known = np.broadcast_to(self.first[(None,) * 2], (*map(len, coords), *self.first.shape))
        labels = points.dataset({self.name: known}, self._density.model, SAMPLE_DIMS)[self.name]
        self.labels = _some(what, labels.isel(chain=0, draw=0, drop=True))
        shape: tuple[int, ...] = self.first.shape
        self.length, self.each = (shape[0], math.prod(shape[1:])) if shape else (1, 1)

    def rows(self, tail: int) -> ModelRows:
        """The work for all rows."""
        own = self._whole, self.length, self.first.reshape(-1), self.inputs, self._compiled
        function, _ = function_of_rows(*own)
        return ModelRows(self.length, self.each, len(self.inputs[0]), tail, function, self.inputs)

    def function(self, first: np.ndarray | None = None) -> RowFunction:
        """The function of chosen rows.

        Raises
        ------
        InputError
            The log-likelihoods of the first draw are not `first`, which are known.
        """
        if first is not None:
            self.check(first)
        own = self._whole, self.length, self.first.reshape(-1), self.inputs, self._compiled
        function, _ = function_of_rows(*own, chosen=True)
        return RowFunction(function, self._density.inputs, self.each)

    def at_means(self) -> np.ndarray:
        """The log-likelihoods at the mean of the draws, flat."""
        named = zip(self._density.inputs, self.inputs, strict=True)
        if whole := [name for name, values in named if values.dtype.kind != "f"]:
            raise InputError(
                f"{self._what}: {whole} are whole numbers, whose mean is no value of them: give "
                'method="lpd"'
            )
        found: np.ndarray = self.all(*[values.mean(axis=0) for values in self.inputs])[0]
        return found.reshape(-1)

    def check(self, first: np.ndarray) -> None:
        """Raise if known log-likelihoods of the first draw are not those of the model."""
        if first.size != self.first.size or not np.allclose(
            first.reshape(-1), self.first.reshape(-1), _WITHIN, _WITHIN, equal_nan=True
        ):
            raise InputError(
                f"{self._what}: the log-likelihoods of {self.name} for the first draw are not "
                "those of the model: give the model, and the data, that the draws were made with"
            )

    def _compiled(self, graph: Any, more: Any) -> Any:
        return self._density.compiled_from([graph], [*self._density.values, *more], self._given)


def computed(what: str, work: LooRows, rows: DataArray, by: By) -> list[np.ndarray]:
    """The results of all rows, in the shape of `rows`: elpd, Pareto k and lppd, or lppd alone.

    Log-likelihoods that are known are not sent to workers of a pool, which takes longer than what
    follows from them.
    """
    if isinstance(work, StoredRows):
        by = replace(by, pool=None)
    shape = work.rows, work.each
    few = work.parts[0][:8]
    scratch = InMemory([np.empty(shape) for _ in range(work.results)])
    list(work.compute([few], scratch))  # the first call takes longer
    began = time.perf_counter()
    list(work.compute([few], scratch))
    seconds = (time.perf_counter() - began) * work.rows / max(1, len(few))
    with divided(work, seconds, what, by) as division:
        arrays = [division.empty(shape, np.float64) for _ in range(work.results)]
        division.run(InMemory(arrays))
    found = [np.array(array).reshape(rows.shape) for array in arrays]
    if work.tail and (same := found.pop()).any():
        raise InputError(
            f"{what}: all draws in the tail have the same likelihood of {named(rows, same > 0)}, "
            "so that no distribution can be fitted to their weights"
        )
    return found


def named(rows: DataArray, marked: np.ndarray, values: np.ndarray | None = None) -> str:
    """How messages name rows: their number, and the names of the first, or of the largest."""
    marked = marked.reshape(rows.shape)
    places = np.flatnonzero(marked)
    if values is not None:
        places = places[np.argsort(-values.ravel()[places], kind="stable")]
    each = []
    for place in places[:_NAMED]:
        index = np.unravel_index(place, rows.shape)
        at = ", ".join(
            f"{dim}={rows[dim].values[i] if dim in rows.coords else i}"
            for dim, i in zip(rows.dims, index, strict=True)
        )
        at = at or str(rows.name)  # a scalar
        each.append(at if values is None else f"{at}: {values[index]:.2f}")
    more = ", ..." if len(places) > _NAMED else ""
    return f"{len(places):,} of {marked.size:,} rows ({'; '.join(each)}{more})"


def jacobian_of(what: str, given: DataArray | None, rows: DataArray) -> np.ndarray | float:
    """The numbers that are added to the log predictive densities of rows."""
    if given is None:
        return 0.0
    if not isinstance(given, DataArray) or set(given.dims) != set(rows.dims):
        raise InputError(
            f"{what}: log_jacobian: give a DataArray with the dimensions {list(rows.dims)}"
        )
    found = in_order(f"{what}: log_jacobian", given, rows).values
    if not np.isfinite(found).all():
        raise InputError(f"{what}: log_jacobian: give finite numbers")
    return found


def _some(what: str, rows: DataArray) -> DataArray:
    if not rows.size:
        raise InputError(f"{what}: {rows.name} has no rows: it has the shape {rows.shape}")
    return rows


def _chosen(what: str, name: str | None, names: Sequence[str], where: str) -> str:
    if name is None and len(names) == 1:
        return names[0]
    if name not in names:
        asked = "give var_name=" if name is None else f"var_name={name!r}"
        raise InputError(f"{what}: {asked}: {where} has {list(names)}")
    return name
