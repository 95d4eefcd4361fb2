"""Logarithms: x = 2**k m and the series of 2 atanh(s), s = (m - 1) / (m + 1).

Muller, "Elementary Functions", 3rd edition, chapter 11; the sum is arranged as by P. T. P. Tang.
"""

from __future__ import annotations

from synkhronos._compiling.vectorised.real import Real, where

# log(2) as a sum of two: k times the first one is exact for each exponent k
LOG_2_HEAD = 6.93147180369123816490e-01, 0.693145751953125
LOG_2_TAIL = 1.90821492927058770002e-10, 1.428606765330187e-06


def _series(s: Real) -> Real:
    """(2 atanh(s) - 2 s) / s."""
    z = s * s
    return z * z.polynomial("log")


def _log(
    k: Real, f: Real, more: Real | None = None, large: Real | float = 0.0, small: Real | float = 0.0
) -> Real:
    """K log(2) + log(1 + f) + more / (1 + f) + large + small."""
    s = f / (f + 2.0)
    h = (0.5 * f) * f
    tail = k * k.pick(*LOG_2_TAIL)
    if more is not None:
        inverse = 1.0 - 2.0 * s * (1.0 - s * (1.0 - s))  # 1 / (1 + f) to 3 digits
        tail = more.fused(inverse, tail)
    rest = s.fused(h + _series(s), tail)
    part = f - (h - rest)
    if small != 0.0:
        part = part + small
    return k.fused(k.pick(*LOG_2_HEAD), large) + part


def checked(x: Real, found: Real) -> Real:
    """The logarithm of x, `found` if x is finite and above 0."""
    found = where(x.equals(float("inf")), x, found)
    found = where(x.equals(0.0), -float("inf"), found)
    return where(x >= 0.0, found, float("nan"))


def split(x: Real) -> tuple[Real, Real]:
    """(k, m) with x = 2**k m, also for subnormal x."""
    tiny = x < x.format.tiny
    raised = x.format.fraction + 2
    k, m = where(tiny, x * 2.0**raised, x).split()
    return where(tiny, k - raised, k), m


def log(x: Real) -> Real:
    return checked(x, log_of_positive(x))


def log_of_positive(x: Real, large: Real | float = 0.0, small: Real | float = 0.0) -> Real:
    """log(x) + large + small for finite x > 0, summed before much is rounded off."""
    k, m = split(x)
    return _log(k, m - 1.0, large=large, small=small)


def log_of_sum(u: Real, more: Real, raised: Real | None = None) -> Real:
    """log(u + more) for a normal u and a correction that is no larger than its last place.

    The number is 2**-raised times as large, where that is given.
    """
    k, m = u.split()
    return _log(k if raised is None else k - raised, m - 1.0, more * _scale(k))


def _scale(k: Real) -> Real:
    """2**-k for small k; beyond, a correction is of no account."""
    return (-k.at_most(k.pick(60.0, 30.0))).power_of_two()


def log1p(x: Real) -> Real:
    """log(u) for u = 1 + x, and what u has lost."""
    u = 1.0 + x
    lost = where(u > 2.0, 1.0 - (u - x), x - (u - 1.0))
    k, m = u.split()
    near = k.equals(0.0)
    found = _log(k, where(near, x, m - 1.0), where(near, 0.0, lost * _scale(k)))
    return where(abs(x) < x.pick(1e-290, 1e-30), x, checked(u, found))


def log1p_of_fraction(y: Real) -> Real:
    """log(1 + y) for y from 0 to 1."""
    large = y > 0.41421356237309503
    f = where(large, 0.5 * (y - 1.0), y)  # 1 + y = 2 (1 + f) or 1 + f
    s = f / (f + 2.0)
    h = (0.5 * f) * f
    base = f - (h - s * (h + _series(s)))
    return where(large, base + 0.6931471805599453, base)
