"""Moment matching: draws moved such that they have the moments of the posterior without a row.

Paananen, Piironen, Buerkner, Vehtari, "Implicitly Adaptive Importance Sampling", Statistics and
Computing 31(2), 2021. The steps, their order and their constants are those of ArviZ (arviz_stats
1.3, ``loo_moment_match``), so that its decisions and its numbers are found again:

* Draws are moved in the space where parameters have no bounds, by an affine map. Its mean, then
  also its variances, then also its covariances are those of the weighted draws.
* A map is kept if the weights of the moved draws have a smaller Pareto k, and the first kind of map
  is tried again. The work of a row ends when k is small enough or no kind of map has made it
  smaller.
* With `split`, only one half of the draws is moved by all maps together. Weights are those of the
  mixture of both densities.

Each row is computed by one process from the same draws, so the number of processes changes no bit.
Arrays over draws are flat: chain after chain.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
from arviz_stats.base import array_stats
from xarray import Dataset

from synkhronos._errors import InputError
from synkhronos._host.thread_pools import ThreadLimits
from synkhronos.pymc._after.calculation import in_processes
from synkhronos.pymc._after.division import By, divided
from synkhronos.pymc._after.loo_rows import SAMPLE_DIMS, LooRows
from synkhronos.pymc._after.points import Points
from synkhronos.pymc._after.unconstrained import Unconstrained, unconstrained
from synkhronos.pymc._after.work import InMemory, Target, Work

_DRAWS_FOR_EACH = 10  # parameter, below which covariances are not matched
_LEAST_VARIANCE = 1e-9  # of a parameter whose scale is changed
_LARGE = 1e9  # log-likelihoods in a pass over all rows, for which a faster density is compiled
_PASSES = 8  # over the draws for a row, about
_JITTER = 1e-6  # of covariances that are not positive definite


@dataclass(frozen=True)
class Matching:
    """The options of `loo` for moment matching."""

    threshold: float | None  # None: `good_k_of`
    most: int  # maps of a row
    split: bool
    covariances: bool


def match_moments(
    model: pm.Model,
    posterior: Dataset,
    work: LooRows,
    name: str,  # of the observed variable
    given: Mapping[str, Any],  # arguments of `Model.compile_fn`
    how: Matching,
    efficiency: float,
    found: Sequence[np.ndarray],  # elpd, Pareto k and lppd of all rows; the first two are changed
    by: By,
) -> np.ndarray | None:
    """Match moments for the rows with a large k; returns effective draws, if any were changed."""
    elpd, pareto_k, lppd = found
    threshold = good_k_of(work.draws) if how.threshold is None else how.threshold
    chosen = np.flatnonzero((pareto_k > threshold) & np.isfinite(lppd))
    if model.discrete_value_vars:
        names = [v.name for v in model.discrete_value_vars]
        raise InputError(
            f"loo: moment_match=True moves draws, and {names} are whole numbers: fit the model "
            "again without the rows, or sum over these variables in the model"
        )
    if not len(chosen):
        return None
    points = Points.of_dataset(posterior, model, SAMPLE_DIMS)
    faster = len(chosen) * float(work.draws) * work.rows * work.each > _LARGE
    density, draws = unconstrained(model, points, work, name, given, faster)
    chains = posterior.sizes["chain"]
    began = time.perf_counter()
    with ThreadLimits(1):
        log_density = density.log_densities(draws)
    seconds = _PASSES * (time.perf_counter() - began) * len(chosen)
    rows = [int(row) for row in chosen]
    matched = MatchedRows(density, rows, draws, log_density, chains, efficiency, threshold, how)
    with divided(matched, seconds, "loo: moment matching", by) as division:
        arrays = [division.empty((len(rows),), np.float64) for _ in range(5)]
        division.run(InMemory(arrays))
        new_elpd, new_k, effective, k_of_all, maps = (np.array(array) for array in arrays)
    changed = chosen[maps > 0]
    elpd.reshape(-1)[changed] = new_elpd[maps > 0]
    pareto_k.reshape(-1)[changed] = new_k[maps > 0]
    if not how.split and (k_of_all > threshold).any():
        warnings.warn(
            "loo: without split=True some results of moment matching are not reliable: Pareto k of "
            f"the moved draws is up to {k_of_all.max():.2f}",
            UserWarning,
            stacklevel=3,
        )
    if not len(changed):
        return None
    draws_of_rows = np.full(elpd.shape, np.nan)
    draws_of_rows.reshape(-1)[changed] = effective[maps > 0]
    return draws_of_rows


def good_k_of(draws: int) -> float:
    """The Pareto k up to which importance sampling by this number of draws is reliable.

    >>> good_k_of(100), good_k_of(4000)
    (0.5, 0.7)
    """
    return min(1 - 1 / math.log10(draws), 0.7)


class Map(NamedTuple):
    """An affine map around the mean: a shift, scales, and a matrix."""

    shift: np.ndarray
    scale: np.ndarray
    matrix: np.ndarray | None = None  # None: the identity


class Weighted(NamedTuple):
    """Draws with weights for the posterior without a row."""

    draws: np.ndarray
    log_likelihood: np.ndarray  # of the row
    log_weights: np.ndarray
    k: float  # of the weights
    of_all: np.ndarray  # log-weights for the posterior with the row
    k_of_all: float


@dataclass
class MatchedRows(Work):
    """Moment matching of some rows.

    The results are elpd, Pareto k, effective draws, Pareto k of the weights for the posterior with
    all rows, and the number of maps. Without a map the others have no meaning.
    """

    counted = "rows to match"

    model: Unconstrained
    rows: list[int]  # numbers of log-likelihoods, flat
    draws: np.ndarray  # unconstrained, of shape ``(draws, parameters)``
    log_density: np.ndarray  # of the draws
    chains: int
    efficiency: float
    threshold: float
    how: Matching

    @property
    def total(self) -> int:
        return len(self.rows)

    @property
    def parts(self) -> list[range]:
        return [range(place, place + 1) for place in range(len(self.rows))]

    @property
    def in_processes(self) -> bool:
        return in_processes(self.model.density)

    def computed(self, part: range) -> list[np.ndarray]:
        found = [self._matched(self.rows[place]) for place in part]
        return [np.array(values) for values in zip(*found, strict=True)]

    def compute(self, mine: Sequence[range], target: Target) -> Iterator[int]:
        assert isinstance(target, InMemory)
        for done, [place] in enumerate(mine, 1):
            found = self._matched(self.rows[place])
            for array, value in zip(target.arrays, found, strict=True):
                array[place] = value
            yield done

    def _matched(self, row: int) -> tuple[float, ...]:
        count = len(self.draws)
        own = self.model.log_likelihoods(self.draws, row)
        even = np.full(count, -np.log(count))
        now = Weighted(self.draws, own, *smoothed(-own, self.efficiency), even, 0.0)
        made: list[Map] = []
        while now.k > self.threshold and len(made) < self.how.most:
            better = self._improved(now, row)
            if better is None:
                break
            made.append(better[0])
            now = better[1]
        if made and self.how.split:
            own, weights, of_all, efficiency = self._split(made, row)
        else:
            own, weights, of_all = now.log_likelihood, now.log_weights, now.of_all
            efficiency = self._efficiency(np.exp(own).reshape(self.chains, -1))
        effective = min(1 / np.exp(2 * w).sum() for w in (weights, of_all)) * efficiency
        return np.logaddexp.reduce(own + weights), now.k, effective, now.k_of_all, len(made)

    def _improved(self, now: Weighted, row: int) -> tuple[Map, Weighted] | None:
        """The first kind of map after which k is smaller, and the draws that it has moved."""
        kinds: list[Callable[[Weighted], Map]] = [_of_means, _of_variances]
        count, parameters = self.draws.shape
        if self.how.covariances and parameters > 1 and count >= _DRAWS_FOR_EACH * parameters:
            kinds.append(_of_covariances)
        for kind in kinds:
            found = kind(now)
            moved = _moved(now.draws, found)
            own = self.model.log_likelihoods(moved, row)
            ratios = self.model.log_densities(moved) - self.log_density
            log_weights, k = smoothed(ratios - own, self.efficiency)
            if k < now.k:
                return found, Weighted(
                    moved, own, log_weights, k, *smoothed(ratios, self.efficiency)
                )
        return None

    def _split(self, made: list[Map], row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        """Log-likelihoods, both kinds of log-weights and the efficiency, one half being moved."""
        count, parameters = self.draws.shape
        total, inverse = _together(made, parameters)
        each = count // self.chains
        order = np.arange(count).reshape(each, self.chains).T.ravel()  # draw after draw
        first = order < count // 2
        mean = self.draws.mean(0)
        there, back = self.draws.copy(), self.draws.copy()
        there[first] = _moved(self.draws, total)[first]
        centred = self.draws - mean
        if inverse is not None:
            centred = centred @ inverse
        back[~first] = (centred / total.scale + (mean - total.shift))[~first]

        # those of draws that are not moved are known
        density, density_back = self.log_density.copy(), self.log_density.copy()
        density[first] = self.model.log_densities(there[first])
        density_back[~first] = self.model.log_densities(back[~first])
        own = self.model.log_likelihoods(there, row)
        with np.errstate(divide="ignore", invalid="ignore"):
            determinant = 1.0 if total.matrix is None else np.linalg.det(total.matrix)
            density_back += -np.log(total.scale).sum() - np.log(determinant)
            ratios = density - np.logaddexp(density, density_back) - own
        ratios[np.isposinf(ratios)] = -np.inf
        log_weights, _ = smoothed(ratios, self.efficiency)
        of_all = log_weights + own
        of_all[np.isposinf(of_all)] = -np.inf
        of_all, _ = smoothed(of_all, self.efficiency)

        efficiency = self.efficiency
        if self.chains > 1:
            likelihood = np.exp(own).reshape(self.chains, each)
            half = count // 2 // self.chains
            halves = likelihood[:, :half], likelihood[:, half:]
            efficiency = min(map(self._efficiency, halves))
        return own, log_weights, of_all, efficiency

    @staticmethod
    def _efficiency(values: np.ndarray) -> float:
        """Effective draws of a draw, of numbers of shape ``(chains, draws)``."""
        return (
            float(array_stats.ess(values, chain_axis=0, draw_axis=1, method="mean")) / values.size
        )


def smoothed(ratios: np.ndarray, efficiency: float) -> tuple[np.ndarray, float]:
    """Pareto-smoothed log-weights, whose sum is 1, and their k; as they are without a tail."""
    ratios = np.where(np.isnan(ratios), -np.inf, ratios)
    try:
        log_weights, k = array_stats.psislw(-ratios, r_eff=efficiency)
    except ValueError:  # all in the tail are equal, or it has fewer than 5 draws
        return ratios - np.logaddexp.reduce(ratios), np.inf
    return log_weights, float(k)


def _of_means(now: Weighted) -> Map:
    weights = np.exp(now.log_weights)
    shift = weights @ now.draws - now.draws.mean(0)
    return Map(shift, np.ones(len(shift)))


def _of_variances(now: Weighted) -> Map:
    weights, draws = np.exp(now.log_weights), now.draws
    count = len(draws)
    mean = weights @ draws
    wanted = (weights @ draws**2 - mean**2) * count / (count - 1)
    there = draws.var(0, ddof=1)
    scale = np.ones(len(mean))
    valid = (there > _LEAST_VARIANCE) & (wanted > _LEAST_VARIANCE)
    scale[valid] = np.sqrt(wanted[valid] / there[valid])
    return Map(mean - draws.mean(0), scale)


def _of_covariances(now: Weighted) -> Map:
    weights, draws = np.exp(now.log_weights), now.draws
    shift = weights @ draws - draws.mean(0)
    one = np.ones(len(shift))
    try:
        there = _cholesky(np.cov(draws, rowvar=False, ddof=1))
        wanted = _cholesky(np.cov(draws, rowvar=False, aweights=weights, ddof=1))
        return Map(shift, one, wanted @ np.linalg.inv(there))
    except np.linalg.LinAlgError:
        return Map(shift, one)


def _cholesky(covariance: np.ndarray) -> np.ndarray:
    least = np.linalg.eigvalsh(covariance).min()
    if least <= 0:
        covariance = covariance + np.eye(len(covariance)) * (_JITTER - least)
    return np.linalg.cholesky(covariance)


def _moved(draws: np.ndarray, by: Map) -> np.ndarray:
    mean = draws.mean(0)
    moved = (draws - mean) * by.scale
    if by.matrix is not None:
        moved = moved @ by.matrix.T
    return moved + (mean + by.shift)


def _together(made: list[Map], parameters: int) -> tuple[Map, np.ndarray | None]:
    """Several maps as one, as ArviZ composes them, and the inverse of its transposed matrix."""
    shift = sum((each.shift for each in made), np.zeros(parameters))
    scale = np.prod([each.scale for each in made], axis=0)
    matrix: np.ndarray | None = None
    for each in made:
        if each.matrix is not None:
            matrix = each.matrix if matrix is None else each.matrix @ matrix
    if matrix is None:
        return Map(shift, scale), None
    return Map(shift, scale, matrix), np.linalg.inv(matrix.T)
