"""Pareto-smoothed importance sampling, row by row, without the weights of all draws.

Vehtari, Simpson, Gelman, Yao, Gabry, "Pareto Smoothed Importance Sampling", Journal of Machine
Learning Research 25(72), 2024; the generalised Pareto fit: Zhang and Stephens, "A New and Efficient
Estimation Method for the Generalized Pareto Distribution", Technometrics 51(3), 2009. The formulas
and their constants are ArviZ's (arviz_stats 1.3, ``_psislw`` and ``_gpdfit``).

Outside of the tail, the weight of a draw is 1 / likelihood. So weight times likelihood is the same
number for all of these draws, and no weight is kept. Only the tail is sorted. A sample of the draws
tells about where it begins, so that few others are sorted with it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from synkhronos._compiling.loops import njit
from synkhronos._compiling.vectorised import exponentials, logarithms
from synkhronos._compiling.vectorised.code import VERSION, inlined

_exp = inlined(exponentials.exp)
_expm1 = inlined(exponentials.expm1)
_log = inlined(logarithms.log)
_log1p = inlined(logarithms.log1p)

_EPSILON = 10 * float(np.finfo(float).eps)  # weights below are left out
_TINY = float(np.finfo(float).tiny)
_SAMPLE = 256  # draws that tell about where the tail begins
_FACTORS, _LANES = 8, 8  # that have one logarithm; of a vector
_LEAST, _MOST = 1e-2, 1e30  # of the factors' distance from 1: less is lost in 1, more overflows


def _sum_of_logs(excess: np.ndarray, n: int, b: float) -> float:
    """The sum of log(1 - b * excess); a logarithm of 8 factors takes about as long as that of one.

    `excess` has `n` numbers, then zeros, up to a multiple of 64.
    """
    added = 0.0
    if _LEAST < abs(b) * excess[n - 1] < _MOST:
        m = len(excess) // _FACTORS
        for i in range(m):
            first = (1 - b * excess[i]) * (1 - b * excess[i + m])
            second = (1 - b * excess[i + 2 * m]) * (1 - b * excess[i + 3 * m])
            third = (1 - b * excess[i + 4 * m]) * (1 - b * excess[i + 5 * m])
            fourth = (1 - b * excess[i + 6 * m]) * (1 - b * excess[i + 7 * m])
            added += _log((first * second) * (third * fourth))
    else:
        for i in range(n):
            added += _log1p(-b * excess[i])
    return added


def _fit_tail(
    excess: np.ndarray, n: int, b: np.ndarray, weights: np.ndarray
) -> tuple[float, float]:
    """The shape and scale of a generalised Pareto distribution.

    `excess` is that of `_sum_of_logs`; the last two arrays are scratch.
    """
    grid = len(b)
    quartile = excess[int((n / 4 + 0.5) - 1)]
    if not quartile > excess[0]:
        return np.nan, np.nan
    most = -np.inf
    for g in range(grid):
        b[g] = (1 - np.sqrt(grid / (g + 0.5))) / (3 * quartile) + 1 / excess[n - 1]
        k = _sum(excess, n, b[g]) / n
        weights[g] = n * (np.log(-b[g] / k) - k - 1)
        most = max(most, weights[g])
    total = 0.0
    for g in range(grid):
        weights[g] = np.exp(weights[g] - most)
        total += weights[g]
    kept, mean = 0.0, 0.0
    for g in range(grid):
        weight = weights[g] / total
        if weight >= _EPSILON:
            kept += weight
            mean += b[g] * weight
    mean /= kept
    k = _sum(excess, n, mean) / n
    shape = (n * k + 5.0) / (n + 10)  # a prior of 10 draws around 0.5
    if np.isnan(shape):
        return np.inf, np.nan
    return shape, -k / mean


_VERSION = f"vectorised-{VERSION}"
_sum = njit(_sum_of_logs, version=_VERSION, vectorised=True)
_fit = njit(_fit_tail, version=_VERSION, vectorised=True)


def _order_most(
    values: np.ndarray, n: int, sample: np.ndarray, most: np.ndarray
) -> tuple[np.ndarray, float]:
    """The `n` largest values in their order, and the largest of the others.

    The last two arrays are scratch, the second as long as the values.
    """
    draws, few = len(values), len(sample)
    share = few * (n + 1) / draws
    kept = int(share + 3 * np.sqrt(share)) + 1  # of the sample; too few in one of 1,000 rows
    count = 0
    if kept < few // 2:
        step = draws // few
        for i in range(few):
            sample[i] = values[i * step]
        least = np.partition(sample, few - kept)[few - kept]
        for i in range(draws):
            most[count] = values[i]
            count += values[i] > least
    chosen = most[:count] if count > n else values
    ordered = np.partition(chosen, len(chosen) - n - 1)
    return np.sort(ordered[len(ordered) - n :]), ordered[len(ordered) - n - 1]


_most = njit(_order_most, version=_VERSION, vectorised=True)


def tail_length(draws: int, r_eff: float) -> int:
    """The number of draws in the tail, of the largest weights.

    >>> tail_length(1000, 1.0), tail_length(100, 1.0)
    (94, 20)
    """
    if draws * r_eff > 225:
        return math.floor(3 * (draws / r_eff) ** 0.5)
    return draws // 5


def smooth(
    rows: np.ndarray, tail: int, elpd: np.ndarray, pareto_k: np.ndarray, lppd: np.ndarray
) -> np.ndarray:
    """Compute PSIS-LOO of rows.

    Parameters
    ----------
    rows : float64 array of shape (rows, draws)
        The log-likelihoods.
    tail : int
        Of `tail_length`.
    elpd, pareto_k, lppd : float64 arrays of shape (rows,)
        Get the results: the log predictive density without the row, the shape of the weights' tail,
        and the log predictive density with the row.

    Returns
    -------
    array of int
        Rows whose draws in the tail are all equal; their results have no meaning.

    Notes
    -----
    Cost: about 9 ns for each row and draw.
    """
    same = np.zeros(len(rows), np.bool_)
    probabilities = (np.arange(tail) + 0.5) / tail
    _compiled()(rows, np.log1p(-probabilities), elpd, pareto_k, lppd, same)
    return np.flatnonzero(same)


@functools.cache
def _compiled() -> Callable[..., None]:
    return njit(_smooth_rows, version=_VERSION, vectorised=True)


def _smooth_rows(
    rows: np.ndarray,
    log_survival: np.ndarray,
    elpd: np.ndarray,
    pareto_k: np.ndarray,
    lppd: np.ndarray,
    same: np.ndarray,
) -> None:
    draws = rows.shape[1]
    n = len(log_survival)
    rest = draws - n
    grid = 30 + int(n**0.5)
    weights = np.empty(draws)
    sample, scratch = np.empty(min(_SAMPLE, draws)), np.empty(draws)
    several = _FACTORS * _LANES
    excess = np.zeros((n + several - 1) // several * several)
    smoothed = np.empty(n)
    b = np.empty(grid)
    k_of_b = np.empty(grid)
    for r in range(rows.shape[0]):
        row = rows[r]
        low, high, undefined = row[0], row[0], False
        for i in range(draws):
            value = row[i]
            low, high = min(low, value), max(high, value)
            undefined |= value != value
        if undefined or np.isinf(low):  # as ArviZ has it
            elpd[r] = lppd[r] = np.nan
            pareto_k[r] = np.inf if undefined or low == high else np.nan
            continue
        total = 0.0
        for i in range(draws):
            weights[i] = low - row[i]
            total += _exp(row[i] - high)
        lppd[r] = high + np.log(total) - np.log(draws)

        tail, largest = _most(weights, n, sample, scratch)
        if abs(tail[n - 1] - tail[0]) < _TINY:
            same[r] = True
            continue
        cutoff = np.exp(largest)
        for i in range(n):
            excess[i] = _exp(tail[i]) - cutoff

        shape, scale = _fit(excess, n, b, k_of_b)
        pareto_k[r] = shape

        if np.isfinite(shape):
            most = np.exp(tail[n - 1])
            for i in range(n):
                if scale <= 0:
                    quantile = np.nan
                elif shape == 0:
                    quantile = cutoff - scale * log_survival[i]
                else:
                    quantile = cutoff + scale * _expm1(-shape * log_survival[i]) / shape
                smoothed[i] = _log(most if quantile > most else quantile)
        else:
            smoothed[:] = tail
        total, less = 0.0, 0
        for i in range(draws):
            below = weights[i] < largest
            less += below
            total += _exp(weights[i]) if below else 0.0
        total += (rest - less) * cutoff
        product = float(rest)
        for i in range(n):
            total += _exp(smoothed[i])
            product += _exp(smoothed[i] - tail[i])
        elpd[r] = np.nan if high == np.inf else low + np.log(product) - np.log(total)
