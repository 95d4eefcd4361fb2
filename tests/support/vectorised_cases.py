"""The vectorised functions: their exact values, where they are looked at, and what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import mpmath as mp
import numpy as np


def evenly(low: float, high: float) -> Callable[[Any, int], np.ndarray]:
    return lambda r, n: r.uniform(low, high, n)


def normal(scale: float = 1.0) -> Callable[[Any, int], np.ndarray]:
    return lambda r, n: r.normal(0, scale, n)


def magnitudes(low: float, high: float) -> Callable[[Any, int], np.ndarray]:
    """Numbers of all exponents between two, of the sign of the first."""
    sign, (a, b) = np.sign(low), np.sort(np.log(np.abs([low, high])))
    return lambda r, n: sign * np.exp(r.uniform(a, b, n))


@dataclass(frozen=True)
class Case:
    """A function.

    Attributes
    ----------
    module : str
        Of the package; the function has the name of the case.
    exact : callable
        The function on mpmath's numbers.
    domains : tuple of callable
        They draw arguments; those outside of float32's range are for float64.
    units : float
        The error that is allowed, in units of the last place of the result.
    least : float
        Smaller results count as this large. (Where a function crosses zero.)
    parts : callable, optional
        The size of what is subtracted, if results may be much smaller.
    odd : tuple of float
        Further arguments.
    """

    module: str
    exact: Callable[[Any], Any]
    domains: tuple[Callable[[Any, int], np.ndarray], ...]
    units: float = 2.0
    least: float = 0.0
    parts: Callable[[Any], Any] | None = None
    odd: tuple[float, ...] = ()


def tail(x: Any) -> Any:
    """The distribution function of the normal distribution, to all digits in the lower tail."""
    return mp.erfc(-x / mp.sqrt(2)) / 2


def log_tail(x: Any) -> Any:
    return mp.log(tail(x)) if x < 1 else mp.log1p(-tail(-x))


def scaled_tail(x: Any) -> Any:
    """exp(x * x) * erfc(x)."""
    if x > 1e4:
        return (1 - 1 / (2 * x * x)) / (x * mp.sqrt(mp.pi))
    return mp.exp(x * x) * mp.erfc(x)


def erfinv(x: Any) -> Any:
    return mp.erfinv(x) if abs(x) < 0.9 else mp.sign(x) * erfcinv(1 - abs(x))


def erfcinv(y: Any) -> Any:
    """By Newton's method for log(erfc)."""
    if y == 0:
        return mp.inf
    found = mp.sqrt(-mp.log(y * (2 - y)))
    for _ in range(40):
        tail = mp.erfc(found)
        step = mp.log(y / tail) * tail / (2 / mp.sqrt(mp.pi) * mp.exp(-found * found))
        found -= step
        if abs(step) < mp.mpf(10) ** -30 * abs(found):
            break
    return found


def log1mexp(x: Any) -> Any:
    return mp.log(-mp.expm1(x))


def reflected(x: Any, function: Callable[[Any], Any]) -> Any:
    """Twice the larger part of the difference that gives the value at a negative argument."""
    return 2 * max(abs(function(1 - x)), abs(function(x))) if x < 0 else mp.mpf(0)


_EXPONENTS = magnitudes(1e-37, 1e38)
_SMALL, _LESS = magnitudes(1e-37, 1), magnitudes(-1e-37, -1)
_LARGE = magnitudes(-1e38, -1e308)
# The numbers of each format that are nearest to multiples of pi / 2, and some others near to them.
_TURNS = (
    *(np.pi / 2, np.pi, 3 * np.pi / 2, 1e6 * np.pi, 6381956970095103 * 2.0**797),
    *(16367173 * 2.0**72, float(np.float32(np.pi)), float(np.float32(np.pi / 2)), 1e22),
)
CASES: dict[str, Case] = {
    "exp": Case("exponentials", mp.exp, (normal(), evenly(-87, 88), evenly(-745, 709), _SMALL)),
    "exp2": Case(
        "exponentials",
        lambda x: mp.mpf(2) ** x,
        (normal(), evenly(-126, 127), evenly(-1074, 1023), _LESS),
        odd=(-3.0, 0.5, 10.0),
    ),
    "expm1": Case(
        "exponentials", mp.expm1, (normal(), evenly(-40, 88), evenly(80, 709), _SMALL, _LESS)
    ),
    "sigmoid": Case(
        "exponentials",
        lambda x: 1 / (1 + mp.exp(-x)),
        (normal(), evenly(-87, 50), evenly(-700, 40), _LESS),
    ),
    "softplus": Case(
        "exponentials",
        lambda x: mp.log1p(mp.exp(x)),
        (normal(), evenly(-87, 50), evenly(-700, 40), _LESS),
    ),
    "log1mexp": Case(
        "exponentials",
        log1mexp,
        (lambda r, n: -abs(r.normal(size=n)), evenly(-80, -1e-6), _LESS),
        odd=(-0.6931471805599453, -0.6931472),
    ),
    "tanh": Case("exponentials", mp.tanh, (normal(), evenly(-20, 20), normal(0.1), _SMALL, _LESS)),
    "sinh": Case("exponentials", mp.sinh, (normal(), evenly(-88, 88), evenly(80, 710), _SMALL)),
    "cosh": Case("exponentials", mp.cosh, (normal(), evenly(-88, 88), evenly(80, 710), _SMALL)),
    "log": Case("logarithms", mp.log, (evenly(0.5, 2), _EXPONENTS, magnitudes(1e-300, 1e300))),
    "log1p": Case(
        "logarithms",
        mp.log1p,
        (normal(0.1), evenly(-0.999999, 3), _SMALL, _EXPONENTS, magnitudes(-1e-300, -0.9)),
    ),
    "log2": Case(
        "powers",
        lambda x: mp.log(x, 2),
        (evenly(0.5, 2), _EXPONENTS, magnitudes(1e-300, 1e300)),
        odd=(8.0, 0.25),
    ),
    "log10": Case(
        "powers",
        mp.log10,
        (evenly(0.5, 2), _EXPONENTS, magnitudes(1e-300, 1e300)),
        odd=(1000.0, 1e-10),
    ),
    "erf": Case("normal", mp.erf, (normal(), evenly(-6, 6), evenly(0.9, 1.2), _SMALL, _LESS)),
    "erfc": Case("normal", mp.erfc, (normal(), evenly(-6, 9), evenly(9, 26), _SMALL)),
    "erfcx": Case(
        "normal",
        scaled_tail,
        (normal(), evenly(-8, 30), evenly(-26, 0), _EXPONENTS),
    ),
    "erfinv": Case(
        "quantiles", erfinv, (evenly(-1, 1), _SMALL, _LESS, lambda r, n: 1 - _SMALL(r, n))
    ),
    "erfcinv": Case(
        "quantiles",
        lambda y: erfinv(1 - y) if y > 0.5 else erfcinv(y),
        (
            evenly(0, 2),
            evenly(0.9, 1.1),
            _SMALL,
            magnitudes(1e-307, 1),
            lambda r, n: 2 - _SMALL(r, n),
        ),
        odd=(0.00012340, 1.9998766),
    ),
    "log_ndtr": Case("normal", log_tail, (normal(), evenly(-30, 12), evenly(-1, 1), _LESS)),
    "mills": Case(
        "normal",
        lambda x: mp.npdf(x) / tail(x),
        (normal(), evenly(-30, 12), evenly(-1, 1), _LESS),
    ),
    "atan": Case(
        "angles",
        mp.atan,
        (normal(), normal(0.1), _SMALL, _LESS, _EXPONENTS),
        odd=(0.41421356237309503, 0.4142136, 2.414213562373095, 2.4142137),
    ),
    "sin": Case(
        "angles",
        mp.sin,
        (normal(), evenly(-100, 100), _SMALL, _LESS, _EXPONENTS, _LARGE),
        odd=_TURNS,
    ),
    "cos": Case(
        "angles",
        mp.cos,
        (normal(), evenly(-100, 100), _SMALL, _LESS, _EXPONENTS, _LARGE),
        odd=_TURNS,
    ),
    "i0e": Case(
        "bessel",
        lambda x: mp.exp(-abs(x)) * mp.besseli(0, x),
        (normal(), evenly(-10, 10), evenly(3.9, 4.1), _SMALL, magnitudes(-1e3, -1)),
        odd=(4.0, 3.9999999999999996),
    ),
    "i1e": Case(
        "bessel",
        lambda x: mp.exp(-abs(x)) * mp.besseli(1, x),
        (normal(), evenly(-10, 10), evenly(3.9, 4.1), _SMALL, magnitudes(-1e3, -1)),
        odd=(4.0, 3.9999999999999996),
    ),
    "gammaln": Case(
        "gammas",
        lambda x: mp.log(abs(mp.gamma(x))),
        (evenly(0, 20), evenly(0.9, 2.1), magnitudes(1e-37, 1e10), evenly(-8, 0), evenly(-90, -8)),
        least=2.0,
        parts=lambda x: reflected(x, lambda y: mp.log(abs(mp.gamma(y)))),
        odd=(1.0, 2.0, 3.0, 8.0, 0.5, 7.999999999999999, -0.5, -2.457024738220800),
    ),
    "digamma": Case(
        "gammas",
        mp.digamma,
        (evenly(0, 20), evenly(1, 2), magnitudes(1e-10, 1e10), evenly(-8, 0), evenly(-90, -8)),
        least=2.0,
        parts=lambda x: reflected(x, mp.digamma),
        odd=(1.0, 2.0, 1.4616321449683622, 4.0, -0.5),
    ),
    "trigamma": Case(
        "gammas",
        lambda x: mp.polygamma(1, x),
        (evenly(0, 20), magnitudes(1e-10, 1e10), evenly(-8, 0)),
        parts=lambda x: 2 * (mp.pi / mp.sinpi(x)) ** 2 if x < 0 else mp.mpf(0),
        odd=(1.0, 2.0, 4.0, -0.5),
    ),
}


def function(name: str) -> Any:
    """A function on numbers of LLVM code."""
    return getattr(import_module(f"synkhronos._backends.vectorised.{CASES[name].module}"), name)


def arguments(name: str, dtype: Any, n: int) -> np.ndarray:
    """n arguments of each domain whose results are normal numbers, and the odd ones."""
    case, r, info = CASES[name], np.random.default_rng(1), np.finfo(dtype)
    with np.errstate(all="ignore"):
        drawn = [d(r, n).astype(dtype) for d in case.domains]
        x = np.concatenate([*drawn, np.array(case.odd, dtype)])
    return x[np.isfinite(x) & (abs(x) >= info.tiny)]


def units(name: str, found: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The errors of results, in units of the last place; 0 where results are no normal numbers."""
    case, info = CASES[name], np.finfo(x.dtype)
    errors = np.zeros(len(x))
    with mp.workdps(50):
        for i, (given, got) in enumerate(zip(x.tolist(), found.tolist(), strict=True)):
            exact = case.exact(mp.mpf(given))
            if not info.tiny <= abs(exact) <= info.max and not case.least:
                continue
            size = max(abs(exact), case.least)
            if case.parts is not None:
                size = max(size, abs(case.parts(mp.mpf(given))))
            unit = float(np.spacing(x.dtype.type(size)))
            errors[i] = abs(mp.mpf(got) - exact) / unit if np.isfinite(got) else np.inf
    return errors
