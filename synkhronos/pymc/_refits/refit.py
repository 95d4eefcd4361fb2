"""The work of a process for an item: a fit without some rows, and log-likelihoods of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm
from xarray import DataTree

from synkhronos._host.thread_pools import ThreadLimits
from synkhronos.pymc._after.loo_rows import ChosenRows, log_means
from synkhronos.pymc._after.moments import smoothed
from synkhronos.pymc._after.observed import RowFunction, draws_of, efficiency_of
from synkhronos.pymc._after.work import InMemory
from synkhronos.pymc._map.fitted import Sampled
from synkhronos.pymc._refits.weighted import KEPT


class Refit:
    """Fits the model without rows, and predicts rows.

    An item has the numbers of the log-likelihoods that are left out (``out``), and of those that
    are predicted (``scored``): each, or all of them ``together``.
    """

    def __init__(
        self,
        model: pm.Model,  # of `weighted`
        rows: RowFunction,
        arguments: Mapping[str, Any],  # of `pm.sample`
        members: int,
        keeps: bool,  # whether the result has the draws
    ) -> None:
        self._model, self._rows = model, rows
        self._arguments, self._members = arguments, members
        self._keeps = keeps
        self._sampled: Sampled | None = None

    def __call__(self, item: Mapping[str, Any], random_seed: int) -> dict[str, Any]:
        """The result of an item, whose bits do not depend on the number of cores."""
        with ThreadLimits(1):  # each core has a chain; sums of several threads have other bits
            return self.found(item, random_seed)

    def found(self, item: Mapping[str, Any], random_seed: int) -> dict[str, Any]:
        """The logs of mean likelihoods, how many draws diverged, and the draws if they are kept."""
        fit = self.fitted(item["out"], random_seed)
        work = self._rows.at(fit["posterior"].to_dataset(), item["scored"])
        elpd = joint(work) if item["together"] else each(work)
        kept = {"fit": fit} if self._keeps else {}
        return {"elpd": elpd, "diverged": diverged(fit), **kept}

    def fitted(self, out: np.ndarray, random_seed: int) -> DataTree:
        """The draws of a fit without log-likelihoods with these numbers."""
        if self._sampled is None:
            self._sampled = Sampled(self._without, self._arguments, self._members)
        found = self._sampled(out, np.random.SeedSequence(random_seed))
        assert isinstance(found, DataTree)
        return found

    def _without(self, out: np.ndarray) -> tuple[pm.Model, dict[str, np.ndarray]]:
        kept = np.ones(self._model[KEPT].get_value().shape)
        kept.reshape(-1)[out] = 0
        return self._model, {KEPT: kept}


class Carried(Refit):
    """Leaves the future of a time series out, and carries draws on to later times.

    Bürkner, Gabry, Vehtari, "Approximate Leave-Future-Out Cross-Validation for Bayesian Time Series
    Models", Journal of Statistical Computation and Simulation 90(14), 2020. Draws of a fit get
    weights for the times that it has not seen. If their Pareto k is too large, a new fit follows.
    """

    def found(self, item: Mapping[str, Any], random_seed: int) -> dict[str, Any]:
        """For each time: the log predictive density of what follows, and k; new fits."""
        times, horizon = item["times"], item["horizon"]
        origins = range(item["first"], times - horizon + 1)
        elpd, pareto_k = np.empty(len(origins)), np.full(len(origins), np.nan)
        refits: list[int] = []
        count = 0
        future = None
        for place, time in enumerate(origins):
            weights = None
            if future is not None:
                weights, k = future.weights(time)
                if k > item["threshold"]:
                    refits.append(time)
                    future = None
                else:
                    pareto_k[place] = k
            if future is None:
                seed = np.random.SeedSequence([random_seed, time]).generate_state(1)
                fit = self.fitted(np.arange(time, times), int(seed[0]))
                count += diverged(fit)
                future = _Future(self._rows, fit, time, times)
                weights = np.zeros(future.draws)
            assert weights is not None
            block = future.likelihoods(time, time + horizon)
            elpd[place] = np.logaddexp.reduce(weights + block) - np.logaddexp.reduce(weights)
        return {"elpd": elpd, "pareto_k": pareto_k, "refits": refits, "diverged": count}


class _Future:
    """Log-likelihoods of the times that a fit has not seen, some of them in memory."""

    def __init__(self, rows: RowFunction, fit: DataTree, begin: int, end: int) -> None:
        draws = fit["posterior"].to_dataset()
        self._work = rows.at(draws, np.arange(begin, end))
        self._efficiency = efficiency_of(draws)
        self.draws = draws_of(draws)
        self._begin = self._seen = begin
        self._ratios = np.zeros(self.draws)  # of all times that were seen since
        self._blocks: dict[int, np.ndarray] = {}

    def weights(self, time: int) -> tuple[np.ndarray | None, float]:
        """The log-weights of draws for all that is known up to a time, and their Pareto k."""
        self._ratios += self.likelihoods(self._seen, time)
        self._seen = time
        ratios = self._ratios
        if np.isnan(ratios).any() or np.isposinf(ratios).any() or np.isneginf(ratios).all():
            return None, np.inf
        weights, k = smoothed(ratios, self._efficiency)
        bad = not np.isfinite(k) or np.isnan(weights).any() or np.isposinf(weights).any()
        return (None, np.inf) if bad else (weights, k)

    def likelihoods(self, begin: int, end: int) -> np.ndarray:
        """The log-likelihoods of all draws, summed over times."""
        found = np.zeros(self.draws)
        length = len(self._work.parts[0])
        for time in range(begin, end):
            block, place = divmod(time - self._begin, length)
            for old in [n for n in self._blocks if n < (self._seen - self._begin) // length]:
                del self._blocks[old]
            if block not in self._blocks:
                rows = self._work.parts[block]
                self._blocks[block] = np.empty((len(rows), self.draws))
                self._work.log_likelihoods(rows, self._blocks[block])
            found += self._blocks[block][place]
        return found


def each(work: ChosenRows) -> np.ndarray:
    """The log of the mean likelihood of each row."""
    found = np.empty(work.rows)
    list(work.compute(work.parts, InMemory([found])))
    return found


def joint(work: ChosenRows) -> np.ndarray:
    """The log of the mean likelihood of all rows together, as an array with one number."""
    total = np.zeros(work.draws)
    for rows in work.parts:
        found = np.empty((len(rows), work.draws))
        work.log_likelihoods(rows, found)
        total += found.sum(axis=0)
    return log_means(total[None])


def diverged(fit: DataTree) -> int:
    """The number of draws that diverged."""
    if "sample_stats" not in fit or "diverging" not in fit["sample_stats"]:
        return 0
    return int(fit["sample_stats"]["diverging"].sum())
