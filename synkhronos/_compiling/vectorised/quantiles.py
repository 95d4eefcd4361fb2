"""The inverses of the error function and of its complement.

Both follow from w = -log(1 - z * z), z the value of the error function: a polynomial in w, and far
out one in 1 / sqrt(w) (after M. Giles, "Approximating the erfinv function", GPU Computing Gems 2).
"""

from __future__ import annotations

from synkhronos._compiling.vectorised.logarithms import log_of_positive
from synkhronos._compiling.vectorised.real import Real, Truth, sum_of_two, where

_FAR = 9.0  # of w
_ROOT = 0.886226925452758, 0.8862269520759583  # sqrt(pi) / 2
_ROOT_TAIL = -3.8332932499128993e-17, -2.662320023830404e-08
_LARGEST = 800.0  # of w, beyond all numbers


def _quantile(z: Real, lost: Real, rest: Real) -> Real:
    """The magnitude of the inverse at z + lost, where 1 - z * z is `rest`."""
    w = (-log_of_positive(rest)).between(z.like(0.0), z.like(_LARGEST))
    small = w.at_most(_FAR)
    constant, more = small.fused(2.0 / _FAR, -1.0).constant_and_rest("erfinv")
    more = small.fused(constant, small.fused(more, z.pick(*_ROOT_TAIL)))
    total, tail = sum_of_two(more, z.pick(*_ROOT))
    near = z.fused(total, z.fused(tail, lost * total))
    root = w.at_least(_FAR).root()
    rest_of_root = (-root).fused(root, w) * (0.5 / root)
    constant, more = (1.0 / root).fused(6.72, -1.24).constant_and_rest("erfinv_far")
    far = root.fused(constant, root.fused(more, rest_of_root * constant))
    return where(w < _FAR, near, far)


def _within(inside: Truth, at_end: Truth, found: Real) -> Real:
    return where(inside, found, where(at_end, found.like(float("inf")), float("nan")))


def erfinv(x: Real) -> Real:
    size = abs(x)
    inside = size < 1.0
    found = _quantile(size, size.like(0.0), where(inside, (1.0 - size) * (1.0 + size), 1.0))
    return _within(inside, size.equals(1.0), found).signed(x)


def erfcinv(x: Real) -> Real:
    z = 1.0 - x
    lost = (1.0 - z) - x
    inside = (x > 0.0) & (x < 2.0)
    rest = where(inside, x * (2.0 - x), 1.0)
    found = _quantile(abs(z), where(z < 0.0, -lost, lost), rest)
    return _within(inside, x.equals(0.0) | x.equals(2.0), found).signed(z)
