"""Makes the polynomials of synkhronos._compiling.vectorised, and says the error that each reaches.

    scripts/bench coefficients            the table of errors
    scripts/bench coefficients --write    also writes the module with the coefficients

Each polynomial interpolates a function at the zeros of a Chebyshev polynomial, in 50 digits, and is
then rounded to its format. That is within a small factor of the best one (Trefethen,
"Approximation Theory and Approximation Practice", theorem 16.1). Errors are the largest ones at
2,000 points, in units of half a unit in the last place of 1, relative to the scale of the result.
"""

from __future__ import annotations

import argparse
import functools
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np

MODULE = Path(__file__).parent.parent / "synkhronos/_compiling/vectorised/coefficients.py"
HEAD = '''"""Coefficients of polynomials, by name and bits: `scripts/bench coefficients --write`."""

# This file is written by that command, and never by hand. These rules hold here:
#
# * The lowest power comes first. Each coefficient is rounded to the format of its bits.
# * Where the first one needs more digits than the format has, the second one is the rest of it.
# * `fits` of that benchmark says what a polynomial approximates, and where. Its range and the code
#   that calls the polynomial change together.
# * With the numbers changes `VERSION` in `code`, which is a part of the key of cached machine code.

TWO_OVER_PI_BITS = {bits}
TWO_OVER_PI = int(  # 2 / pi times 2**TWO_OVER_PI_BITS
{digits},
    16,
)

# fmt: off
COEFFICIENTS: dict[tuple[str, int], tuple[float, ...]] = {{
'''
BITS = 1280  # of 2 / pi; the largest number needs 1,024 and those of four words
Number = Any


@dataclass(frozen=True)
class Fit:
    """A function, where it is approximated, and the degrees for float64 (or None) and float32.

    An error is divided by the scale: it is 1 where the result is about the polynomial itself, and
    larger where the polynomial is a small part of the result. With `constant_in_two` the first
    coefficient is a sum of two numbers.
    """

    function: Callable[[Number], Number]
    low: Number
    high: Number
    degrees: tuple[int | None, int]
    scale: float = 1.0
    constant_in_two: bool = False

    def coefficients(self, degree: int) -> list[Number]:
        """Of the interpolating polynomial, lowest power first."""
        low, high = mp.mpf(self.low), mp.mpf(self.high)
        angles = [mp.pi * (2 * i + 1) / (2 * degree + 2) for i in range(degree + 1)]
        points = [(low + high) / 2 + (high - low) / 2 * mp.cos(a) for a in angles]
        values = [self.function(p) for p in points]
        for step in range(1, degree + 1):  # Newton's divided differences
            for i in range(degree, step - 1, -1):
                values[i] = (values[i] - values[i - 1]) / (points[i] - points[i - step])
        found = [values[degree]]
        for i in range(degree - 1, -1, -1):
            shifted = [mp.mpf(0), *found]
            found = [s - points[i] * f for s, f in zip(shifted, [*found, mp.mpf(0)], strict=True)]
            found[0] += values[i]
        return found

    def error(self, coefficients: tuple[float, ...], bits: int) -> float:
        """The largest error, in units of half a unit in the last place of 1."""
        low, high = mp.mpf(self.low), mp.mpf(self.high)
        points = [low + (high - low) * mp.mpf(i) / 1999 for i in range(2000)]
        exact = [mp.mpf(c) for c in coefficients]
        if self.constant_in_two:
            exact[:2] = [exact[0] + exact[1]]
        exact.reverse()
        worst = max(abs(mp.polyval(exact, p) - self.function(p)) for p in points)
        return float(worst / self.scale * 2 ** (53 if bits == 64 else 24))


def unless_zero(function: Callable[[Number], Number], limit: Any) -> Callable[[Number], Number]:
    """The function, and its limit in the immediate surroundings of 0."""
    return lambda t: function(t) if abs(t) > mp.mpf(10) ** -25 else mp.mpf(limit)


def of_square(function: Callable[[Number], Number], limit: Any) -> Callable[[Number], Number]:
    """A function of x as a function of x * x."""
    return unless_zero(lambda z: function(mp.sqrt(z)), limit)


def erfcx(x: Number) -> Number:
    """exp(x * x) * erfc(x)."""
    if x < 30:
        return mp.exp(x * x) * mp.erfc(x)
    return mp.nsum(
        lambda k: (-1) ** int(k) * mp.fac2(2 * int(k) - 1) / (2 * x * x) ** int(k), [0, 24]
    ) / (x * mp.sqrt(mp.pi))


def upper_tail(k: int, offset: float, scale: Any) -> Callable[[Number], Number]:
    """(x + offset) * erfcx(x / scale) as a function of t = (x - k) / (x + k), from -1 to 1."""

    def function(t: Number) -> Number:
        if 1 - t < mp.mpf(10) ** -25:
            return scale / mp.sqrt(mp.pi)
        x = k * (1 + t) / (1 - t)
        return (x + offset) * erfcx(x / scale)

    return function


def stirling(x: Number) -> Number:
    """x times what Stirling's formula for the logarithm of gamma(x) leaves."""
    return (mp.loggamma(x) - (x - 0.5) * mp.log(x) + x - mp.log(2 * mp.pi) / 2) * x


@functools.cache
def inverse_of_erf(w: Number) -> Number:
    """The inverse of erf at z over z, z * z = 1 - exp(-w): Newton's method for log(erfc)."""
    if w < mp.mpf(10) ** -25:
        return mp.sqrt(mp.pi) / 2
    z = mp.sqrt(-mp.expm1(-w))
    y = mp.exp(-w) / (1 + z)  # 1 - z
    found = mp.sqrt(mp.pi) / 2 * z if w < 3 else mp.sqrt(w - mp.log(mp.pi * w) / 2)
    for _ in range(60):
        tail = mp.erfc(found)
        excess = mp.erf(found) - z if w < 1 else tail * mp.log(y / tail)
        step = excess / (2 / mp.sqrt(mp.pi) * mp.exp(-found * found))
        found -= step
        if abs(step) < abs(found) * mp.mpf(10) ** -40:
            return found / z
    raise ArithmeticError(f"no inverse for {w}")


def inverse_of_erf_near(t: Number) -> Number:
    """The slope of the inverse over z from w = 0 to 4.5 (1 + t)."""
    w = 4.5 * (1 + t)
    if w < mp.mpf(10) ** -25:
        return mp.sqrt(mp.pi) * mp.pi / 24
    return (inverse_of_erf(w) - inverse_of_erf(mp.mpf(0))) / w


def inverse_of_erf_far(t: Number) -> Number:
    """The inverse over s = sqrt(w), as a function of t = 6.72 / s - 1.24, s from 3 to 28."""
    s = 672 / (100 * t + 124)
    return inverse_of_erf(s**2) * mp.sqrt(-mp.expm1(-(s**2))) / s


def bessel_far(order: int) -> Callable[[Number], Number]:
    """sqrt(x) exp(-x) I(x) as a function of t = 8 / x - 1."""

    def function(t: Number) -> Number:
        if 1 + t < mp.mpf(10) ** -4:  # the asymptotic series
            u, m = (1 + t) / 8, 4 * mp.mpf(order) ** 2
            term = total = mp.mpf(1)
            for i in range(1, 20):
                term *= -(m - (2 * i - 1) ** 2) * u / (8 * i)
                total += term
            return total / mp.sqrt(2 * mp.pi)
        x = 8 / (1 + t)
        return mp.besseli(order, x) * mp.exp(-x) * mp.sqrt(x)

    return function


def fits() -> dict[str, Fit]:
    """The polynomials by name."""
    half_log_2 = mp.log(2) / 2
    largest_s = (mp.sqrt(2) - 1) / (mp.sqrt(2) + 1)
    euler, root_2 = mp.euler, mp.sqrt(2)
    return {
        "exp": Fit(
            unless_zero(lambda r: (mp.expm1(r) - r) / r**2, 0.5),
            *(-half_log_2, half_log_2, (9, 4)),
            scale=8,
        ),
        "log": Fit(
            of_square(lambda s: (2 * mp.atanh(s) / s - 2) / s**2, mp.mpf(2) / 3),
            *(0, largest_s**2, (6, 3)),
            scale=30,
        ),
        "long_log": Fit(
            of_square(lambda s: (2 * mp.atanh(s) / s - 2) / s**2, mp.mpf(2) / 3),
            *(0, largest_s**2, (8, 4)),
            scale=0.001,
            constant_in_two=True,
        ),
        "erf": Fit(of_square(lambda x: mp.erf(x) / x - 1, 2 / mp.sqrt(mp.pi) - 1), 0, 1, (11, 6)),
        "erf_tail": Fit(lambda t: mp.erfc(t + 2.5), -1.5, 1.5, (None, 14), scale=0.84),
        "erfcx": Fit(upper_tail(4, 0.875, 1), -1, 1, (24, 12), scale=0.56, constant_in_two=True),
        "normal_middle": Fit(
            of_square(lambda x: (mp.ncdf(x) - 0.5) / x, 1 / mp.sqrt(2 * mp.pi)),
            *(0, 0.5, (8, 4)),
        ),
        "normal_tail": Fit(
            lambda t: upper_tail(6, 0.75, root_2)(t) / 2,
            -1,
            1,
            (24, 12),
            scale=0.375,
            constant_in_two=True,
        ),
        "erfinv": Fit(inverse_of_erf_near, -1, 1, (29, 13), scale=0.3, constant_in_two=True),
        "erfinv_far": Fit(inverse_of_erf_far, -1, 1, (36, 11), scale=0.85, constant_in_two=True),
        "gammaln": Fit(unless_zero(lambda z: mp.loggamma(2 + z) / z, 1 - euler), 0, 1, (16, 7)),
        "stirling": Fit(
            of_square(lambda s: stirling(1 / s), mp.mpf(1) / 12), 0, mp.mpf(1) / 9, (10, 3), scale=6
        ),
        "digamma": Fit(
            of_square(lambda s: (mp.log(1 / s) - mp.digamma(1 / s) - s / 2) / s**2, mp.mpf(1) / 12),
            *(0, mp.mpf(1) / 16, (10, 3)),
            scale=16,
        ),
        "i0_small": Fit(
            of_square(lambda x: mp.besseli(0, x), 1), 0, 16, (14, 8), 1, constant_in_two=True
        ),
        "i1_small": Fit(
            of_square(lambda x: 2 * mp.besseli(1, x) / x, 1),
            *(0, 16, (13, 7), 1),
            constant_in_two=True,
        ),
        "i0_large": Fit(bessel_far(0), -1, 1, (39, 10), scale=0.4, constant_in_two=True),
        "i1_large": Fit(bessel_far(1), -1, 1, (39, 10), scale=0.38, constant_in_two=True),
        "atan": Fit(
            of_square(lambda t: (mp.atan(t) / t - 1) / t**2, -mp.mpf(1) / 3),
            *(0, (root_2 - 1) ** 2, (10, 5)),
            scale=5,
        ),
        "sine": Fit(
            of_square(lambda r: (mp.sin(mp.pi * r) / (mp.pi * r) - 1) / r**2, -(mp.pi**2) / 6),
            *(0, mp.mpf(1) / 4, (7, 4)),
            scale=2,
        ),
        "sin": Fit(
            of_square(lambda r: (mp.sin(r) / r - 1) / r**2, -mp.mpf(1) / 6),
            *(0, (mp.pi * 5 / 16) ** 2, (6, 2)),  # float32 is reduced to 5 / 8 of pi / 2
            scale=2,
        ),
        "cos": Fit(
            of_square(lambda r: (mp.cos(r) - 1 + r**2 / 2) / r**4, mp.mpf(1) / 24),
            *(0, (mp.pi * 5 / 16) ** 2, (6, 2)),
            scale=1.85,
        ),
        "trigamma": Fit(
            of_square(lambda s: (mp.polygamma(1, 1 / s) - s - s**2 / 2) / s**3, mp.mpf(1) / 6),
            *(0, mp.mpf(1) / 16, (10, 3)),
            scale=16,
        ),
    }


def two_over_pi() -> int:
    """2 / pi times 2**BITS."""
    with mp.workprec(BITS + 64):
        return int(mp.floor(mp.ldexp(2 / mp.pi, BITS)))


def rounded(number: Number, bits: int) -> float:
    return float(number) if bits == 64 else float(np.float32(float(number)))


def made() -> dict[tuple[str, int], tuple[float, ...]]:
    """The coefficients of each polynomial, by name and bits."""
    found = {}
    with mp.workdps(50):
        for name, fit in fits().items():
            for bits, degree in zip((64, 32), fit.degrees, strict=True):
                if degree is None:
                    continue
                exact = fit.coefficients(degree)
                if fit.constant_in_two:
                    exact.insert(1, exact[0] - mp.mpf(rounded(exact[0], bits)))
                found[name, bits] = tuple(rounded(c, bits) for c in exact)
    return found


def row(name: str, bits: int, found: tuple[float, ...]) -> str:
    """The lines of a polynomial."""
    numbers = textwrap.wrap(" ".join(f"{c!r}," for c in found), 90, break_on_hyphens=False)
    return "\n".join(
        [f'    ("{name}", {bits}): (', *[f"        {line}" for line in numbers], "    ),"]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true")
    wanted = parser.parse_args()
    coefficients = made()
    with mp.workdps(50):
        for (name, bits), found in coefficients.items():
            error = fits()[name].error(found, bits)
            print(f"{name:15} float{bits} {len(found):2} coefficients  {error:6.3f}")
    if wanted.write:
        rows = [row(*key, found) for key, found in coefficients.items()]
        digits = textwrap.wrap(f"{two_over_pi():x}", 80)
        head = HEAD.format(bits=BITS, digits="\n".join(f'    "{line}"' for line in digits))
        MODULE.write_text(head + "\n".join(rows) + "\n}\n# fmt: on\n")


if __name__ == "__main__":
    main()
