"""Sine, cosine and the arc tangent.

Sine and cosine reduce their argument by as many digits of 2 / pi as it needs (M. Payne and
R. Hanek, ACM SIGNUM Newsletter 18, 1983). For float64 a table has those that can matter for each
few exponents; float32 selects two of eight numbers.
"""

from __future__ import annotations

import functools
from fractions import Fraction

from synkhronos._compiling.vectorised.coefficients import TWO_OVER_PI, TWO_OVER_PI_BITS
from synkhronos._compiling.vectorised.real import (
    DOUBLE,
    SINGLE,
    Real,
    Word,
    product,
    sum_of_two,
    where,
)

_EXPONENTS = 8  # for which a row of the table is
_BOUNDS = 50, 76, 102  # exponents of float32 for which other parts of 2 / pi matter
_UNIT = 1 << TWO_OVER_PI_BITS
_HALF_PI = 1.5707963267948966
_HALF_PI_TAIL = 6.123233995736766e-17

_QUARTER = 0.7853981633974483, 0.7853981852531433  # pi / 4
_QUARTER_TAIL = 3.061616997868383e-17, -2.1855694e-08
_ROOT_2 = 1.4142135623730951


def atan(x: Real) -> Real:
    """Of x below tan(pi / 8), of (x - 1) / (x + 1), or of -1 / x above tan(3 pi / 8)."""
    size = abs(x)
    middle, far = size > _ROOT_2 - 1.0, size > _ROOT_2 + 1.0
    top = where(far, -1.0, where(middle, size - 1.0, size))
    t = top / where(far, size, where(middle, size + 1.0, 1.0))
    square = t * t
    rest = (t * square) * square.polynomial("atan")
    quarters = where(far, 2.0, where(middle, 1.0, 0.0 * t))
    tail = quarters.fused(x.pick(*_QUARTER_TAIL), rest)
    base = quarters * x.pick(*_QUARTER)
    found = where(middle, base + (t + tail), t + rest)
    return found.signed(x)


def _sum(number: Fraction, words: int) -> list[float]:
    """The number as a sum of float64."""
    parts = []
    for _ in range(words):
        parts.append(float(number))
        number -= Fraction(parts[-1])
    return parts


@functools.cache
def _rows() -> list[list[float]]:
    """2**(exponents * i) * 2 / pi, less multiples that give whole turns of float64."""
    modulus = 1 << (DOUBLE.fraction + 1 + TWO_OVER_PI_BITS)
    shifts = range(0, DOUBLE.bias + 1, _EXPONENTS)
    return [_sum(Fraction((TWO_OVER_PI << s) % modulus, _UNIT), 4) for s in shifts]


@functools.cache
def _parts(exponent: int) -> list[float]:
    """2 / pi, less a multiple that gives whole turns of float32 from 2**exponent on."""
    modulus = Fraction(2) ** (SINGLE.fraction + 2 - exponent)
    return _sum((Fraction(TWO_OVER_PI, _UNIT) + modulus / 2) % modulus - modulus / 2, 2)


def _reduced_single(x: Real) -> tuple[Word, Real]:
    """(k, r): x is k pi / 2 + r up to whole turns, |r| < 0.99; nan for an infinite x.

    float64 has enough digits for the float32 nearest to a multiple of pi / 2. Few parts of 2 / pi
    need no table, from which a processor without AVX-512 reads one number at a time.
    """
    y = x.double()
    size = abs(y)
    high, low = (y.like(part) for part in _parts(0))
    for exponent in _BOUNDS:
        large, parts = size >= 2.0**exponent, _parts(exponent)
        high, low = (
            where(large, part, held) for part, held in zip(parts, (high, low), strict=True)
        )
    first, lost = product(y, high)
    nearest, k = first.whole()
    turn = (first - nearest) + y.fused(low, lost)
    return k.single(), (turn * _HALF_PI).single()


def _reduced_double(size: Real) -> tuple[Word, Real, Real]:
    """(k, r, w): size is k pi / 2 + r + w up to whole turns, |r| < 0.79, for a finite size >= 0."""
    y, words = size.looked_up(_rows(), _EXPONENTS)
    (first, first_lost), (second, second_lost), (third, third_lost) = (
        product(y, word) for word in words[:3]
    )
    first = first - 4.0 * (0.25 * first).floor()
    more, lost = sum_of_two(first_lost, second)
    total, rest = sum_of_two(first, more)
    nearest, k = total.whole()
    a, a_lost = sum_of_two(rest, lost)
    b, b_lost = sum_of_two(second_lost, third)
    c, c_lost = sum_of_two(a, b)
    turn, tail = sum_of_two(total - nearest, c)
    tail = tail + ((a_lost + b_lost) + (c_lost + y.fused(words[3], third_lost)))
    r, lost = product(turn, size.like(_HALF_PI))
    return k, r, turn.fused(_HALF_PI_TAIL, tail.fused(_HALF_PI, lost))


def _wave_single(x: Real, quarters: int) -> Real:
    """The sine of x + quarters * pi / 2, of float32."""
    k, r = _reduced_single(x)
    k = k + quarters
    square = r * r
    sine = (r * square).fused(square.polynomial("sin"), r)
    cosine = square.fused(square.fused(square.polynomial("cos"), -0.5), 1.0)
    return where(k.bit(0), cosine, sine).turned(k.sign(1))


def _wave_double(x: Real, quarters: int) -> Real:
    """The sine of |x| + quarters * pi / 2, of float64."""
    size = abs(x)
    finite = size <= DOUBLE.largest
    k, r, w = _reduced_double(where(finite, size, 1.0))
    k = k + quarters
    square = r * r
    half = 0.5 * square
    sine = r + (r * square).fused(square.polynomial("sin"), (-half).fused(w, w))
    head = 1.0 - half
    rest = (square * square).fused(square.polynomial("cos"), (-r).fused(w, (1.0 - head) - half))
    found = where(k.bit(0), head + rest, sine).turned(k.sign(1))
    return where(finite, found, float("nan"))


def sin(x: Real) -> Real:
    if x.format is SINGLE:
        return where(x.equals(0.0), x, _wave_single(x, 0))
    found = _wave_double(x, 0)
    return where(abs(x) < 1e-9, x, where(x < 0.0, -found, found))


def cos(x: Real) -> Real:
    return _wave_single(x, 1) if x.format is SINGLE else _wave_double(x, 1)
