"""The arc tangent: a quotient that is small, and a multiple of pi / 4 that is added."""

from __future__ import annotations

from synkhronos._backends.vectorised.real import Real, where

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
