"""Sine, cosine and the arc tangent.

Sine and cosine reduce their argument by as many digits of 2 / pi as it needs (M. Payne and
R. Hanek, ACM SIGNUM Newsletter 18, 1983). A table has those that can matter for each few exponents.
"""

from __future__ import annotations

import functools
from fractions import Fraction

from synkhronos._backends.vectorised.coefficients import TWO_OVER_PI, TWO_OVER_PI_BITS
from synkhronos._backends.vectorised.real import (
    DOUBLE,
    SINGLE,
    Format,
    Real,
    product,
    sum_of_two,
    where,
)

_EXPONENTS = 8  # for which a row of the table is
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


@functools.cache
def _rows(form: Format, words: int) -> list[list[float]]:
    """2**(exponents * i) * 2 / pi, less multiples that give whole turns, as sums of float64.

    The multiples are those of numbers that come from this format.
    """
    unit, modulus = 1 << TWO_OVER_PI_BITS, 1 << (form.fraction + 1 + TWO_OVER_PI_BITS)
    rows = []
    for i in range((form.bias + 1) // _EXPONENTS):
        rest = Fraction((TWO_OVER_PI << _EXPONENTS * i) % modulus, unit)
        row = []
        for _ in range(words):
            row.append(float(rest))
            rest -= Fraction(row[-1])
        rows.append(row)
    return rows


def _reduced(size: Real) -> tuple[Real, Real, Real]:
    """(k, r, w): size is k pi / 2 + r + w up to whole turns, |r| < 0.79, for a finite size >= 0."""
    return _reduced_double(size) if size.format is DOUBLE else _reduced_single(size)


def _reduced_single(size: Real) -> tuple[Real, Real, Real]:
    """By float64, which has enough digits for the float32 nearest to a multiple of pi / 2."""
    y, (high, low) = size.double().looked_up(_rows(SINGLE, 2), _EXPONENTS)
    first, lost = product(y, high)
    turn = (first - 4.0 * (0.25 * first).floor()) + y.fused(low, lost)
    k = turn.nearest()
    rest = (turn - k) * _HALF_PI
    r = rest.single()
    return k.single(), r, (rest - r.double()).single()


def _reduced_double(size: Real) -> tuple[Real, Real, Real]:
    y, words = size.looked_up(_rows(DOUBLE, 4), _EXPONENTS)
    (first, first_lost), (second, second_lost), (third, third_lost) = (
        product(y, word) for word in words[:3]
    )
    first = first - 4.0 * (0.25 * first).floor()
    more, lost = sum_of_two(first_lost, second)
    total, rest = sum_of_two(first, more)
    k = total.nearest()
    a, a_lost = sum_of_two(rest, lost)
    b, b_lost = sum_of_two(second_lost, third)
    c, c_lost = sum_of_two(a, b)
    turn, tail = sum_of_two(total - k, c)
    tail = tail + ((a_lost + b_lost) + (c_lost + y.fused(words[3], third_lost)))
    r, lost = product(turn, size.like(_HALF_PI))
    return k, r, turn.fused(_HALF_PI_TAIL, tail.fused(_HALF_PI, lost))


def _wave(x: Real, quarters: float) -> Real:
    """The sine of x + quarters * pi / 2."""
    size = abs(x)
    finite = size <= x.format.largest
    k, r, w = _reduced(where(finite, size, 1.0))
    k = k + quarters
    square = r * r
    half = 0.5 * square
    sine = r + (r * square).fused(square.polynomial("sin"), (-half).fused(w, w))
    head = 1.0 - half
    rest = (square * square).fused(square.polynomial("cos"), (-r).fused(w, (1.0 - head) - half))
    found = where(k.bit(0), head + rest, sine)
    return where(finite, where(k.bit(1), -found, found), float("nan"))


def sin(x: Real) -> Real:
    found = _wave(x, 0.0)
    return where(abs(x) < x.pick(1e-9, 1e-5), x, where(x < 0.0, -found, found))


def cos(x: Real) -> Real:
    return _wave(x, 1.0)
