"""Which metric samples a model in less time: diag or low_rank of nutpie, by a short warm-up.

Coordinates are scaled as by nutpie's diagonal metric: each by the root of the ratio of the standard
deviations of draws and of gradients. For a normal posterior with covariance S in these coordinates,
a gradient is -S^-1 times the draw, and S is the geometric mean of the covariance of draws and the
inverse covariance of gradients, which few draws give. A leapfrog step is as long as the shortest
direction of S allows, and a trajectory has to cross the longest one. So the gradients for an
effective draw grow as the root of S's condition number. A low-rank metric leaves the directions
whose eigenvalue is between 1/2 and 2; the ratio of both roots is its gain.

A posterior that is not normal can have such eigenvalues by chance, and low_rank then learns noise.
So the metric that one chain has learnt is tried on the other one. For a normal posterior the sum of
a draw and its gradient is zero in coordinates in which S is the identity. The mean square of this
sum is the Fisher divergence, which nutpie's metrics minimise (arXiv:2603.18845).

Draws on the way to the posterior say little. By Stein's identity the covariance of a coordinate and
its gradient is -1 for every density. On the way draws are far from it, and more of them are asked.

Seconds are counts times constants of one machine, not measurements: a model has the same choice on
every machine and with every seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

DIAG, LOW_RANK = "diag", "low_rank"
CHAINS = 2  # of the short warm-up
_SHARE = 20  # draws of a chain for each of the short warm-up's
_FEWEST, _MOST = 40, 100  # draws of a chain of it
_LONGEST = 200  # draws of a chain, where chains of a shorter one were on their way
_LEAST_TUNE = 200  # draws in which low_rank can learn

_CUT = 2.0  # nutpie leaves eigenvalues between 1/2 and 2
_RIDGE = 1e-3  # variance that is added, so that directions without draws have eigenvalue 1
_MOST_DRIFT = 2.0  # of minus the covariance of draws and gradients, which is 1 in the posterior
_MOST_LEFT = 0.4  # of the divergence, for another chain: low_rank then learns nothing that holds
_DRAWS_OF_DIRECTION = 6  # at least, where a stretched one is believed
_LEAST_GAIN = 1.3  # since predictions err by as much
_CLEAR_GAIN = 2.0  # by half of the short warm-up: the other half is then left out

# Of an update of low_rank, which decomposes matrices of all directions that a window of draws has.
_UPDATE_SECONDS = 9e-5  # for each parameter, up to `_FAST` of them
_FAST, _SLOW_SECONDS = 128, 2.0
_UPDATES = 0.55 / 20  # for each draw of the tuning: nutpie's schedule after its early windows
_GRADIENT_SECONDS, _PARAMETER_SECONDS = 1e-6, 1e-8  # at least, beside what rows take
_FEWEST_STEPS = 7.0  # gradients of a draw with a good metric


@dataclass(frozen=True)
class Warmup:
    """Draws of a short warm-up with the diagonal metric, by chain, draw and parameter."""

    draws: np.ndarray  # unconstrained
    gradients: np.ndarray
    gradients_of_draw: np.ndarray  # their number

    @property
    def steps(self) -> float:
        """Gradients of a draw."""
        return float(self.gradients_of_draw.mean())

    def first(self, draws: int) -> Warmup:
        """The first draws of each chain."""
        parts = self.draws, self.gradients, self.gradients_of_draw
        return Warmup(*(part[:, :draws] for part in parts))


@dataclass(frozen=True)
class Choice:
    """A metric, the expected times of effective draws a second of low_rank by diag, and why."""

    name: str
    gain: float
    why: str

    def __str__(self) -> str:
        return (
            f"metric {self.name}: {self.gain:.2g} times the effective draws a second of diag are "
            f"expected of low_rank; {self.why}"
        )


def draws_of_warmup(draws: int, tune: int) -> int:
    """The draws of a chain of the short warm-up; 0 if it would take too long beside sampling."""
    found = min((draws + tune) // _SHARE, _MOST)
    return found if found >= _FEWEST and tune >= _LEAST_TUNE else 0


def draws_of_warmups(draws: int, tune: int) -> list[int]:
    """Those of the short warm-up, and of others that follow while chains are on their way."""
    found = [draws_of_warmup(draws, tune)]
    while 0 < 2 * found[-1] <= _LONGEST:
        found.append(2 * found[-1])
    return found


def without_warmup(parameters: int, seconds: float, draws: int, tune: int) -> Choice | None:
    """The choice where it needs no warm-up; `seconds` are those of the rows of a gradient."""
    if not draws_of_warmup(draws, tune):
        return Choice(DIAG, 1.0, f"{tune} + {draws} draws are too few to find out")
    steps, most = 2 * _FEWEST_STEPS, 10.0
    if _slowed(most, steps, parameters, seconds, draws, tune) < _LEAST_GAIN:
        return Choice(DIAG, 0.0, _too_slow(parameters, tune))
    return None


def choice(warmup: Warmup, seconds: float, draws: int, tune: int) -> tuple[Choice, bool]:
    """The choice after a short warm-up, and whether it is the last one.

    `seconds` are those of the rows of a gradient. If it is not the last one, chains of the warm-up
    are on their way, and a longer warm-up may tell more.
    """
    half = warmup.first(warmup.draws.shape[1] // 2)
    early = early_choice(half, seconds, draws, tune)
    return (early, True) if early else late_choice(warmup, seconds, draws, tune)


def early_choice(half: Warmup, seconds: float, draws: int, tune: int) -> Choice | None:
    """The choice by the first half of the draws of each chain; None if it needs the other one."""
    found, clear = _choice(half, seconds, draws, tune)
    return found if clear else None


def late_choice(warmup: Warmup, seconds: float, draws: int, tune: int) -> tuple[Choice, bool]:
    """The choice by all draws, which the first half has left open, and whether it is the last."""
    found, _ = _choice(warmup, seconds, draws, tune)
    on_the_way = found.name == DIAG and drift(warmup) > _MOST_DRIFT
    if on_the_way:
        why = f"chains are on their way to the posterior after {warmup.draws.shape[1]} draws"
        found = Choice(DIAG, 1.0, why)
    return found, not on_the_way


def drift(warmup: Warmup) -> float:
    """Minus the covariance of draws and gradients, of the second half of all chains together.

    It is a mean over parameters; NaN where one is infinite.
    """
    half = warmup.draws.shape[1] // 2
    x, g = (np.concatenate(a[:, half:]) for a in (warmup.draws, warmup.gradients))
    with np.errstate(invalid="ignore"):
        return float(-((x - x.mean(axis=0)) * (g - g.mean(axis=0))).mean())


def _choice(warmup: Warmup, seconds: float, draws: int, tune: int) -> tuple[Choice, bool]:
    """The choice by these draws, and whether as many more would hardly change it."""
    half = warmup.draws.shape[1] // 2
    chains = [(x[half:], g[half:]) for x, g in zip(warmup.draws, warmup.gradients, strict=True)]
    x, g = (np.concatenate(each) for each in zip(*chains, strict=True))
    parameters = x.shape[1]
    if not all(np.isfinite(a).all() and a.std(axis=0).all() for each in chains for a in each):
        return Choice(DIAG, 1.0, "draws of a short warm-up did not move"), False
    values, _ = _spectrum(x, g, _scale(x, g))
    rest = values[(values >= 1 / _CUT) & (values <= _CUT)]
    stretched = len(values) - len(rest)
    if not stretched:
        return Choice(DIAG, 1.0, f"none of its {parameters} directions is stretched"), True
    of = f"{stretched} of {parameters} directions"
    believed = len(x) // _DRAWS_OF_DIRECTION
    if stretched > believed:
        found = Choice(DIAG, 1.0, f"{of} seem stretched, which {len(x)} draws cannot tell")
        return found, stretched > 2 * believed
    left = max(_left(a, b) for a, b in (chains, chains[::-1]))
    if left > _MOST_LEFT:
        why = f"what one chain learns does not hold for another: {left:.0%} is left"
        return Choice(DIAG, 1.0, why), False
    longest, shortest = max(values.max(), 1.0), min(values.min(), 1.0)
    of_rest = rest.max() / rest.min() if len(rest) else 1.0
    gain = 1 + (1 - left) * max(0.0, math.sqrt(longest / shortest / of_rest) - 1)
    slowed = _slowed(gain, warmup.steps, parameters, seconds, draws, tune)
    if slowed < _LEAST_GAIN <= gain:
        return Choice(DIAG, slowed, _too_slow(parameters, tune)), False
    why = f"{of} are stretched, by up to {math.sqrt(longest / shortest):.2g}"
    name = LOW_RANK if slowed >= _LEAST_GAIN else DIAG
    return Choice(name, slowed, why), slowed >= _CLEAR_GAIN


def _slowed(
    gain: float, steps: float, parameters: int, seconds: float, draws: int, tune: int
) -> float:
    """The gain for a gradient as one for a second: updates of low_rank take time."""
    gradients = (draws + tune) * max(_FEWEST_STEPS, steps / gain)
    sampling = gradients * (seconds + _GRADIENT_SECONDS + _PARAMETER_SECONDS * parameters)
    return gain / (1 + _seconds_of_updates(parameters, tune) / sampling)


def _seconds_of_updates(parameters: int, tune: int) -> float:
    update = _UPDATE_SECONDS * parameters if parameters <= _FAST else _SLOW_SECONDS
    return _UPDATES * tune * update


def _too_slow(parameters: int, tune: int) -> str:
    seconds = _seconds_of_updates(parameters, tune)
    return f"its updates with {parameters:,} parameters take about {seconds:.2g} s of each chain"


def _scale(x: np.ndarray, g: np.ndarray) -> np.ndarray:
    """The scales of nutpie's diagonal metric."""
    found: np.ndarray = np.sqrt(x.std(axis=0) / g.std(axis=0))
    return found


def _centred(x: np.ndarray, g: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return (x - x.mean(axis=0)) / scale, (g - g.mean(axis=0)) * scale


def _spectrum(x: np.ndarray, g: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and eigenvectors of S, in directions of draws or gradients."""
    x, g = _centred(x, g, scale)
    rows, parameters = x.shape
    basis = np.eye(parameters)
    if parameters > 2 * rows:
        basis = np.linalg.qr(np.vstack([x, g]).T)[0]
    of_draws, of_gradients = (_covariance(a @ basis) for a in (x, g))
    root, inverse = _roots(of_gradients)
    middle, _ = _roots(root @ of_draws @ root)
    values, vectors = np.linalg.eigh(inverse @ middle @ inverse)
    return np.clip(values, 1e-12, 1e12), basis @ vectors


def _covariance(a: np.ndarray) -> np.ndarray:
    found: np.ndarray = a.T @ a / len(a) + _RIDGE * np.eye(a.shape[1])
    return found


def _roots(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The root of a symmetric matrix, and its inverse."""
    values, vectors = np.linalg.eigh(a)
    roots = np.sqrt(np.maximum(values, 1e-30))
    return (vectors * roots) @ vectors.T, (vectors / roots) @ vectors.T


def _left(learnt: tuple[np.ndarray, np.ndarray], tried: tuple[np.ndarray, np.ndarray]) -> float:
    """The divergence of low_rank by that of diag, for another chain than it has learnt."""
    scale = _scale(*learnt)
    values, vectors = _spectrum(*learnt, scale)
    far = (values > _CUT) | (values < 1 / _CUT)
    roots, vectors = np.sqrt(values[far]), vectors[:, far]
    x, g = _centred(*tried, scale)
    shrunk = x + (x @ vectors) * (1 / roots - 1) @ vectors.T
    grown = g + (g @ vectors) * (roots - 1) @ vectors.T
    return _divergence(shrunk, grown) / _divergence(x, g)


def _divergence(x: np.ndarray, g: np.ndarray) -> float:
    """The mean square of the sum of draws and gradients, whatever their common scale is."""
    sizes = float(np.linalg.norm(x) * np.linalg.norm(g))
    return max(float(np.linalg.norm(x + g) ** 2) / sizes, 1e-12)
