"""The vectorised functions: their exact values, where they are looked at, and what is allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
        The size of what is subtracted at negative arguments, if results may be much smaller.
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


def bounded(x: Any, bound: float = 1e5) -> Any:
    """Arguments beyond give results without size, in time without end."""
    return mp.mpf(max(-bound, min(bound, x)))


def softplus(x: Any) -> Any:
    return mp.log1p(mp.exp(x)) if x < 1e4 else x


def log1mexp(x: Any) -> Any:
    if x > 0:
        return mp.nan
    if x == 0:
        return -mp.inf
    return mp.log1p(-mp.exp(bounded(x))) if x < -1 else mp.log(-mp.expm1(x))


def log(x: Any, base: Any = mp.e) -> Any:
    if x <= 0:
        return -mp.inf if x == 0 else mp.nan
    return mp.log(x) / mp.log(base)


def log1p(x: Any) -> Any:
    if x <= -1:
        return -mp.inf if x == -1 else mp.nan
    return mp.log1p(x)


def tail(x: Any) -> Any:
    """The distribution function of the normal distribution, to all digits in the lower tail."""
    return mp.erfc(-bounded(x) / mp.sqrt(2)) / 2


def log_tail(x: Any) -> Any:
    if x < -1e4:
        return -x * x / 2 - mp.log(-x * mp.sqrt(2 * mp.pi)) + mp.log1p(-1 / x**2 + 3 / x**4)
    return mp.log(tail(x)) if x < 1 else mp.log1p(-tail(-x))


def mills(x: Any) -> Any:
    if x < -1e4:
        return -x / (1 - 1 / x**2 + 3 / x**4 - 15 / x**6 + 105 / x**8)
    return mp.npdf(bounded(x)) / tail(x)


def scaled_tail(x: Any) -> Any:
    """exp(x * x) * erfc(x)."""
    if x < -1e3:
        return mp.inf
    if x > 1e4:
        return (1 - 1 / (2 * x**2) + 3 / (4 * x**4) - 15 / (8 * x**6)) / (x * mp.sqrt(mp.pi))
    return mp.exp(x * x) * mp.erfc(x)


def erfinv(x: Any) -> Any:
    if abs(x) >= 1:
        return mp.sign(x) * mp.inf if abs(x) == 1 else mp.nan
    if abs(x) < 1e-20:
        return x * mp.sqrt(mp.pi) / 2
    return mp.erfinv(x) if abs(x) < 0.9 else mp.sign(x) * erfcinv(1 - abs(x))


def erfcinv(y: Any) -> Any:
    """By Newton's method for log(erfc) below 1 / 2."""
    if y < 0 or y > 2:
        return mp.nan
    if y == 0:
        return mp.inf
    if y > 0.5:
        return erfinv(1 - y)
    found = mp.sqrt(-mp.log(y * (2 - y)))
    for _ in range(40):
        tail = mp.erfc(found)
        step = mp.log(y / tail) * tail / (2 / mp.sqrt(mp.pi) * mp.exp(-found * found))
        found -= step
        if abs(step) < mp.mpf(10) ** -30 * abs(found):
            break
    return found


def scaled_bessel(order: int) -> Callable[[Any], Any]:
    """exp(-|x|) * I(x); for large arguments the asymptotic series."""

    def function(x: Any) -> Any:
        size = abs(x)
        if size < 1e3:
            found = mp.exp(-size) * mp.besseli(order, size)
        else:
            found = term = mp.mpf(1)
            for i in range(1, 14):
                term *= -(4 * order - (2 * i - 1) ** 2) / (8 * i * size)
                found += term
            found /= mp.sqrt(2 * mp.pi * size)
        return -found if order == 1 and x < 0 else found

    return function


def is_pole(x: Any) -> bool:
    return bool(x <= 0 and x == mp.floor(x))


def gammaln(x: Any) -> Any:
    """By the reflection for negative arguments."""
    if is_pole(x):
        return mp.inf
    if x < 0:
        return mp.log(mp.pi / abs(mp.sinpi(x))) - gammaln(1 - x)
    return mp.loggamma(x)


def digamma(x: Any) -> Any:
    if is_pole(x):
        return -mp.inf if x == 0 else mp.nan
    if x < 0:
        return digamma(1 - x) - mp.pi * mp.cospi(x) / mp.sinpi(x)
    return mp.digamma(x) if x > 1e-5 else mp.digamma(1 + x) - 1 / x


def trigamma(x: Any) -> Any:
    if is_pole(x):
        return mp.inf
    if x < 0:
        return (mp.pi / mp.sinpi(x)) ** 2 - trigamma(1 - x)
    return mp.polygamma(1, x) if x > 1e-5 else mp.polygamma(1, 1 + x) + 1 / x**2


def power(x: Any, y: Any) -> Any:
    """C's pow."""
    if x == 0 or y == 0:
        return mp.mpf(1) if y == 0 else mp.mpf(0) if y > 0 else mp.inf
    whole = y == mp.floor(y)
    if x < 0 and not whole:
        return mp.nan
    found = mp.exp(bounded(y * mp.log(abs(x))))
    return -found if x < 0 and y % 2 == 1 else found


def reflected(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The larger part of the difference that gives the value at a negative argument."""

    def size(x: Any) -> Any:
        return max(abs(function(1 - x)), abs(function(x))) if x < 0 and not is_pole(x) else 0

    return size


_EXPONENTS = magnitudes(1e-37, 1e38)
_SMALL, _LESS = magnitudes(1e-37, 1), magnitudes(-1e-37, -1)
_LARGE = magnitudes(-1e38, -1e308)
# The numbers of each format that are nearest to multiples of pi / 2, and some others near to them.
_TURNS = (
    *(np.pi / 2, np.pi, 3 * np.pi / 2, 1e6 * np.pi, 6381956970095103 * 2.0**797),
    *(16367173 * 2.0**72, float(np.float32(np.pi)), float(np.float32(np.pi / 2)), 1e22),
)
# Where the code of some function changes, or where results become 0, subnormal or infinite.
EDGES = (
    *(0.0, 0.25, 0.34657359, 0.41421356237309503, 0.5, 0.537, 0.55, 0.5796875, 0.6744897501960817),
    *(0.6931471805599453, 0.70710678, 0.75, 0.8813735870195430, 0.99993829, 1.0, 1.2533, 1.4142135),
    *(1.4616321449683622, 1.5, 1.5707963267948966, 1.99987659, 2.0, 2.414213562373095, 2.5, 3.0),
    *(3.1415926535897931, 3.5, 4.0, 5.0, 6.0, 6.2831853071795862, 8.0, 9.0, 9.42, 10.0, 10.5, 14.5),
    *(16.6, 17.3, 18.0, 20.0, 22.0, 26.6, 26.66, 27.2, 28.0, 36.7, 37.5, 38.5, 39.0, 50.0, 87.3),
    *(88.72, 89.4, 89.5, 100.0, 103.97, 104.0, 126.0, 128.0, 149.0, 150.0, 170.6, 300.0, 700.0),
    *(708.4, 709.78, 710.0, 710.4758600739439, 710.5, 744.44, 745.13, 746.0, 800.0, 1000.0, 1022.0),
    *(1024.0, 1074.0, 1075.0, 1e4, 1e5, 4413803.5, 2.0**22, 2.0**23 - 0.5, 1e8, 1e10, 1e15),
    *(2.0**50, 2.0**51 - 0.5, 2.0**51, 2.0**52 - 0.5, 2.0**52, 2.0**53, 2.0**76, 2.0**102, 1e30),
    *(1e-5, 1e-6, 1e-9, 1e-10, 1e-16, 1e-30, 1e-20, 5.4e-20, 7.5e-155, 1e-160, 1e-290, 1e-310),
    *(5.6e-309, 1e100, 1e150, 1e154, 1e300),
    *(n + d for n in (2, 3, 7, 20, 40, 100) for d in (0.0, 0.1, 0.5, -1e-3, 1e-6, -1e-12)),
)
CASES: dict[str, Case] = {
    "exp": Case(
        "exponentials",
        lambda x: mp.exp(bounded(x)),
        (normal(), evenly(-87, 88), evenly(-745, 709), _SMALL),
    ),
    "exp2": Case(
        "exponentials",
        lambda x: mp.mpf(2) ** bounded(x),
        (normal(), evenly(-126, 127), evenly(-1074, 1023), _LESS),
        odd=(-3.0, 0.5, 10.0),
    ),
    "expm1": Case(
        "exponentials",
        lambda x: mp.expm1(bounded(x)),
        (normal(), evenly(-40, 88), evenly(80, 709), _SMALL, _LESS),
    ),
    "sigmoid": Case(
        "exponentials",
        lambda x: 1 / (1 + mp.exp(-bounded(x))),
        (normal(), evenly(-87, 50), evenly(-700, 40), _LESS),
    ),
    "softplus": Case(
        "exponentials",
        softplus,
        (normal(), evenly(-87, 50), evenly(-700, 40), _LESS),
    ),
    "log1mexp": Case(
        "exponentials",
        log1mexp,
        (lambda r, n: -abs(r.normal(size=n)), evenly(-80, -1e-6), _LESS),
        units=2.5,
        odd=(-0.6931471805599453, -0.6931472, -0.9933974742889404),
    ),
    "tanh": Case(
        "exponentials",
        lambda x: mp.tanh(bounded(x)),
        (normal(), evenly(-20, 20), normal(0.1), _SMALL, _LESS),
        units=2.5,
        odd=(0.1731128692626953,),
    ),
    "sinh": Case(
        "exponentials",
        lambda x: mp.sinh(bounded(x)),
        (normal(), evenly(-88, 88), evenly(80, 710), _SMALL),
        odd=(0.11972586810588837, 0.42623315310205445),
    ),
    "cosh": Case(
        "exponentials",
        lambda x: mp.cosh(bounded(x)),
        (normal(), evenly(-88, 88), evenly(80, 710), _SMALL),
    ),
    "log": Case("logarithms", log, (evenly(0.5, 2), _EXPONENTS, magnitudes(1e-300, 1e300))),
    "log1p": Case(
        "logarithms",
        log1p,
        (normal(0.1), evenly(-0.999999, 3), _SMALL, _EXPONENTS, magnitudes(-1e-300, -0.9)),
    ),
    "log2": Case(
        "powers",
        lambda x: log(x, 2),
        (evenly(0.5, 2), _EXPONENTS, magnitudes(1e-300, 1e300)),
        odd=(8.0, 0.25),
    ),
    "log10": Case(
        "powers",
        lambda x: log(x, 10),
        (evenly(0.5, 2), _EXPONENTS, magnitudes(1e-300, 1e300)),
        odd=(1000.0, 1e-10),
    ),
    "erf": Case(
        "normal",
        lambda x: mp.erf(bounded(x)),
        (normal(), evenly(-6, 6), evenly(0.9, 1.2), _SMALL, _LESS),
    ),
    "erfc": Case(
        "normal",
        lambda x: mp.erfc(bounded(x)),
        (normal(), evenly(-6, 9), evenly(9, 26), _SMALL),
        units=2.5,
        odd=(8.30792236328125,),
    ),
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
        erfcinv,
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
        mills,
        (normal(), evenly(-30, 12), evenly(-1, 1), _LESS),
        odd=(-1.1995490467597847e-07,),
    ),
    "atan": Case(
        "angles",
        mp.atan,
        (normal(), normal(0.1), _SMALL, _LESS, _EXPONENTS),
        odd=(0.48615047335624695, 0.41421356237309503, 0.4142136, 2.414213562373095, 2.4142137),
    ),
    "sin": Case(
        "angles",
        mp.sin,
        (normal(), evenly(-100, 100), _SMALL, _LESS, _EXPONENTS, _LARGE),
        odd=(*_TURNS, 59342946304.0),
    ),
    "cos": Case(
        "angles",
        mp.cos,
        (normal(), evenly(-100, 100), _SMALL, _LESS, _EXPONENTS, _LARGE),
        odd=(*_TURNS, 1.5909089928500216e19),
    ),
    "i0e": Case(
        "bessel",
        scaled_bessel(0),
        (normal(), evenly(-10, 10), evenly(3.9, 4.1), _SMALL, magnitudes(-1e3, -1)),
        units=2.5,
        odd=(3.7467377185821533, 3.8071136089883555, 4.0, 3.9999999999999996),
    ),
    "i1e": Case(
        "bessel",
        scaled_bessel(1),
        (normal(), evenly(-10, 10), evenly(3.9, 4.1), _SMALL, magnitudes(-1e3, -1)),
        odd=(4.0, 3.9999999999999996),
    ),
    "gammaln": Case(
        "gammas",
        gammaln,
        (evenly(0, 20), evenly(0.9, 2.1), magnitudes(1e-37, 1e10), evenly(-8, 0), evenly(-90, -8)),
        least=1.0,
        parts=reflected(gammaln),
        odd=(1.0, 2.0, 3.0, 8.0, 0.5, 7.999999999999999, -0.5, -2.457024738220800),
    ),
    "digamma": Case(
        "gammas",
        digamma,
        (evenly(0, 20), evenly(1, 2), magnitudes(1e-10, 1e10), evenly(-8, 0), evenly(-90, -8)),
        least=1.0,
        parts=reflected(digamma),
        units=3.0,
        odd=(
            1.0,
            2.0,
            1.4616321449683622,
            4.0,
            -0.5,
            0.5159124135971069,
            0.83550523,
            1.77804252982858,
            2.2116039756589996,
        ),
    ),
    "trigamma": Case(
        "gammas",
        trigamma,
        (evenly(0, 20), magnitudes(1e-10, 1e10), evenly(-8, 0)),
        parts=reflected(trigamma),
        odd=(1.0, 2.0, 4.0, -0.5),
    ),
}


def function(name: str) -> Any:
    """A function on numbers of LLVM code."""
    module = "powers" if name == "power" else CASES[name].module
    return getattr(import_module(f"synkhronos._compiling.vectorised.{module}"), name)


def arguments(name: str, dtype: Any, n: int) -> np.ndarray:
    """n arguments of each domain, and the odd ones."""
    case, r = CASES[name], np.random.default_rng(1)
    with np.errstate(all="ignore"):
        drawn = [d(r, n).astype(dtype) for d in case.domains]
        x = np.concatenate([*drawn, np.array(case.odd, dtype)])
    return x[np.isfinite(x)]


def all_magnitudes(dtype: Any, step: int) -> np.ndarray:
    """Numbers of each sign, and of each exponent or of one in so many, also subnormal ones."""
    info, r = np.finfo(dtype), np.random.default_rng(2)
    lowest, largest = info.minexp - info.nmant, info.maxexp
    exponents = np.arange(lowest + r.integers(step), largest, step)
    exponents = np.repeat(exponents, 2)
    fraction = r.uniform(1, 2, len(exponents))
    x = np.ldexp(fraction, exponents).astype(dtype)
    x = np.concatenate([x, [info.smallest_subnormal, info.tiny, info.max]]).astype(dtype)
    x = np.concatenate([x, np.nextafter(info.tiny, dtype(0))[None]])
    return np.concatenate([x, -x])


def around(numbers: Iterable[float], dtype: Any) -> np.ndarray:
    """The numbers with both signs, and two neighbours on each side."""
    with np.errstate(over="ignore"):
        middle = np.array([*numbers]).astype(dtype)
        below, above = [np.concatenate([middle, -middle])], []
        for _ in range(2):
            above.append(np.nextafter((above or below)[-1], dtype(np.inf)))
        for _ in range(2):
            below.append(np.nextafter(below[-1], dtype(-np.inf)))
    x = np.unique(np.concatenate([*below, *above]))
    return x[np.isfinite(x)]


def swept(name: str, dtype: Any, n: int, step: int) -> np.ndarray:
    """Arguments over all that a format has, and around the places where the code changes."""
    parts = [arguments(name, dtype, n), all_magnitudes(dtype, step), around(EDGES, dtype)]
    return np.unique(np.concatenate(parts) + dtype(0))  # -0.0 is 0.0: mpmath has one zero


def swept_powers(dtype: Any, n: int) -> list[np.ndarray]:
    """Bases and exponents: odd ones in pairs, any, and those of large and of small results."""
    r, info = np.random.default_rng(4), np.finfo(dtype)
    odd = around([0.5, 1, 2, 3, 1e30, info.max, info.tiny, info.smallest_subnormal, 2.0**53], dtype)
    x, y = (v.ravel() for v in np.meshgrid(odd, odd))
    bases = np.concatenate([np.exp(r.normal(size=4 * n)), 1 + r.normal(0, 1e-4, 4 * n)])
    bases = bases.astype(dtype)
    bases = bases[bases != 1]
    most = np.log(info.max) * 1.1
    exponents = r.uniform(-most, most, len(bases)) / np.abs(np.log(bases.astype(np.float64)))
    small = r.normal(size=len(bases)), r.integers(-9, 9, len(bases))
    x = np.concatenate([x, bases, bases, -bases])
    return [x + dtype(0), np.concatenate([y, exponents, *small]).astype(dtype) + dtype(0)]


def allowed(name: str, *x: np.ndarray) -> np.ndarray:
    """The errors that arguments may have: larger ones where results are small differences."""
    if name == "power":
        return np.full(len(x[0]), 2.0)
    case = CASES[name]
    return np.where((x[0] < 0) & (case.parts is not None), 4.0, case.units)


def errors(name: str, found: np.ndarray, *x: np.ndarray) -> np.ndarray:
    """Errors in units of the last place; infinite for a wrong sign, nan or infinity."""
    case = None if name == "power" else CASES[name]
    dtype, made = found.dtype.type, []
    with mp.workdps(50):
        for got, *given in zip(found.tolist(), *(v.tolist() for v in x), strict=True):
            numbers = [mp.mpf(v) for v in given]
            exact = case.exact(*numbers) if case else power(*numbers)
            least = case.least if case else 0.0
            if case and case.parts:
                least = max(least, case.parts(*numbers))
            made.append(error(exact, got, dtype, least))
    return np.array(made)


def error(exact: Any, found: float, dtype: Any, least: Any = 0.0) -> float:
    """The error of a number, in units of the last place of the exact one or of a larger one."""
    if mp.isnan(exact) or np.isnan(found):
        return 0.0 if mp.isnan(exact) and np.isnan(found) else np.inf
    if exact != 0 and not least and (exact < 0) != np.signbit(found):
        return np.inf
    info = np.finfo(dtype)
    next_one = mp.mpf(2) ** info.maxexp  # what an infinity stands for
    exact, got = (max(-next_one, min(next_one, mp.mpf(v))) for v in (exact, found))
    size = min(max(abs(exact), least), mp.mpf(float(info.max)))
    exponent = max(int(mp.frexp(size)[1]) - 1, info.minexp) - info.nmant
    return float(abs(got - exact) / mp.mpf(2) ** exponent)
