"""Modified Bessel functions of the first kind, times exp(-|x|).

Below 4 the power series' polynomial in x * x, and above a polynomial in 1 / x over the square root
(Abramowitz and Stegun, 9.6.10 and 9.7.1).
"""

from __future__ import annotations

from synkhronos._compiling.vectorised.exponentials import reduced
from synkhronos._compiling.vectorised.quotients import quotient
from synkhronos._compiling.vectorised.real import Real, product, where

_LARGE = 4.0
_SLOPES_0 = 0.25, -0.043, 0.0024
_SLOPES_1 = 0.125, -0.0126, 0.0005


def i0e(x: Real) -> Real:
    """exp(-|x|) I0(x)."""
    size = abs(x)
    return where(size.equals(float("inf")), 0.0, _scaled(size, "i0", size.like(1.0), _SLOPES_0))


def i1e(x: Real) -> Real:
    """exp(-|x|) I1(x)."""
    size = abs(x)
    return where(size.equals(float("inf")), 0.0, _scaled(size, "i1", 0.5 * size, _SLOPES_1)).signed(
        x
    )


def _scaled(size: Real, name: str, factor: Real, slopes: tuple[float, float, float]) -> Real:
    """The function at |x|; near 0 it is the factor times a polynomial.

    The slopes give the derivative of the polynomial's logarithm, to a digit, as a parabola: they
    make up for what the square of x has lost.
    """
    is_small = size < _LARGE
    small = size.at_most(_LARGE)
    k, r, w = reduced(-small)
    square, square_lost = product(small, small)
    slope = small.fused(slopes[2], slopes[1]).fused(small, slopes[0])
    value, lost = square.long_polynomial(f"{name}_small")
    e = square_lost.fused(slope, r + w)  # exp(-x) = 2**k (1 + r + w)
    scale = k.power_of_two() * factor
    near = scale.fused(value, scale * (lost + value * e))
    large = size.at_least(_LARGE).at_most(size.format.largest)
    root = large.root()
    rest = (-root).fused(root, large) * (0.5 / root)
    constant, more = (1.0 / large).fused(2.0 * _LARGE, -1.0).constant_and_rest(f"{name}_large")
    top = constant + more
    head, tail = quotient(top, (constant - top) + more, root, rest)
    return where(is_small, near, where(size > 0.0, head + tail, size))
