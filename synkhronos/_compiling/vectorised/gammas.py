"""The gamma function's logarithm and its derivatives.

Large arguments: Stirling's series (Abramowitz and Stegun, 6.1.40, 6.3.18, 6.4.12), of which a
polynomial fits the rest. Smaller ones are moved by the recurrence, negative ones by the reflection.
"""

from __future__ import annotations

from synkhronos._compiling.vectorised.logarithms import log_of_positive
from synkhronos._compiling.vectorised.quotients import quotient
from synkhronos._compiling.vectorised.real import Real, Truth, product, sum_of_two, where

_LARGE = 3.0  # from here on `gammaln` uses Stirling's series
_STEPS = 4  # of the recurrence, for the derivatives of arguments below
_PI = 3.141592653589793
_PI_TAIL = 1.2246467991473532e-16, -8.742278000372485e-08


def _positive(x: Real) -> tuple[Truth, Real]:
    """(whether x is negative, 1 - x or x)."""
    negative = x < 0.0
    return negative, where(negative, 1.0 - x, x)


def _from_integer(x: Real) -> Real:
    """X minus the nearest integer; 0 for an infinite x."""
    bounded = where(abs(x) <= x.format.largest, x, 0.0)
    return bounded - bounded.rounded()


def _sine(r: Real) -> Real:
    """sin(pi r) / pi, |r| <= 1 / 2."""
    square = r * r
    return (r * square).fused(square.polynomial("sine"), r)


def gammaln(x: Real) -> Real:
    """log(|gamma(x)|): by a polynomial between 2 and 3, to which the recurrence leads."""
    negative, y = _positive(x)
    large, below_1, below_2 = y >= _LARGE, y < 1.0, y < 2.0
    d = where(below_1, y, where(below_2, y - 1.0, y - 2.0))
    above = where(large | below_2, y.at_most(y.format.largest), 1.0)
    argument = where(below_1, y.fused(y, y), above)
    log = log_of_positive(argument)
    middle = d.fused(d.polynomial("gammaln"), -log)
    inverse = 1.0 / y
    far = (y - 0.5).fused(
        log_of_positive(argument, -1.0),
        inverse.fused((inverse * inverse).polynomial("stirling"), 0.4189385332046727),
    )
    found = where(y > 0.0, where(large, far, middle), float("inf"))
    sine = abs(_sine(_from_integer(x)))
    lost = (1.0 - y) - x  # by 1 - x; the derivative is about log(y)
    mirrored = -log_of_positive(where(negative, sine, 1.0)) - lost.fused(log, found)
    mirrored = where(sine.equals(0.0), float("inf"), mirrored)
    found = where(negative, mirrored, found)
    return where(x <= float("inf"), found, x)


class _Shift:
    """A sum of 1 / (y + k)**power over the steps k from 1, as a quotient, if y is small."""

    def __init__(self, y: Real, power: int) -> None:
        small = y < float(_STEPS)
        low = where(small, y, 1.0)
        steps = [low + float(k) for k in range(_STEPS - 1, 0, -1)]
        steps = [step * step if power == 2 else step for step in steps]
        self.top, self.bottom = y.like(1.0), steps[0]
        for step in steps[1:]:
            self.top, self.bottom = self.top.fused(step, self.bottom), self.bottom * step
        self.top = where(small, self.top, 0.0)
        moved = y + float(_STEPS)
        # the argument of Stirling's series, and what has been rounded off
        self.shifted = where(small, moved, y)
        self.lost = where(small, y - (moved - float(_STEPS)), 0.0)
        inverse = 1.0 / low
        # 1 / y as a sum of two; 0, if y is not small
        self.inverse = where(small, inverse, 0.0)
        self.inverse_tail = self.inverse * (-low).fused(inverse, 1.0)


def digamma(x: Real) -> Real:
    """The derivative of `gammaln`: log(y), sums of reciprocals, and for negative x a cotangent."""
    negative, y = _positive(x)
    shift = _Shift(y, 1)
    r = _from_integer(x)
    sine = where(negative, _sine(r), 1.0)
    cosine = where(negative, _sine(0.5 - abs(r)), 0.0)
    top, top_tail = product(cosine, x.like(_PI))
    top_tail = cosine.fused(x.pick(*_PI_TAIL), top_tail)
    cotangent, rest = quotient(top, top_tail, sine, x.like(0.0))
    inverse = 1.0 / shift.shifted
    square = inverse * inverse
    series = square.fused(square.polynomial("digamma"), 0.5 * inverse)
    less = shift.top / shift.bottom + (series + (shift.inverse_tail + rest))
    z = shift.shifted.at_most(y.format.largest)
    found = log_of_positive(z, -shift.inverse - cotangent, -less)
    found = where(negative & r.equals(0.0), float("nan"), found)
    found = where(abs(x) < x.pick(1e-290, 1e-30), -shift.inverse - cotangent, found)
    return where(x.equals(float("inf")), x, found)


def trigamma(x: Real) -> Real:
    """The second derivative of `gammaln`; for negative x from pi**2 / sin(pi x)**2."""
    negative, y = _positive(x)
    shift = _Shift(y, 2)
    largest = shift.inverse * shift.inverse
    rest = shift.inverse.fused(shift.inverse, -largest) + 2.0 * shift.inverse * shift.inverse_tail
    inverse = 1.0 / shift.shifted
    rest = rest + inverse * ((-shift.shifted).fused(inverse, 1.0) - shift.lost * inverse)
    square = inverse * inverse
    series = (inverse * square).fused(square.polynomial("trigamma"), 0.5 * square)
    part, lost = sum_of_two(shift.top / shift.bottom, inverse)
    found = largest + (part + (series + (rest + lost)))
    found = where(y < y.pick(1e-100, 1e-12), largest, where(y.equals(float("inf")), 0.0, found))
    inverse = 1.0 / _sine(_from_integer(x))
    return where(negative, inverse * inverse - found, found)
