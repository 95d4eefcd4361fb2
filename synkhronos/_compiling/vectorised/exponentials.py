"""exp and its kin: x = k log(2) + r, and a polynomial for r (Muller, "Elementary Functions")."""

from __future__ import annotations

from math import log2

from synkhronos._compiling.vectorised.logarithms import (
    LOG_2_HEAD,
    LOG_2_TAIL,
    log1p_of_fraction,
    log_of_sum,
)
from synkhronos._compiling.vectorised.real import DOUBLE, Real, where

_LOG_2 = 0.6931471805599453
_LOG2_E = 1.4426950408889634


def reduced(x: Real, more: Real | None = None) -> tuple[Real, Real, Real]:
    """(k, r, w) with exp(x + more) = 2**k (1 + r + w), |r| < 0.35; `more` is a small correction."""
    shifter = x.format.shifter
    k = x.fused(_LOG2_E, shifter) - shifter
    head = k.fused(-k.pick(*LOG_2_HEAD), x)
    tail = k * k.pick(*LOG_2_TAIL)
    if more is not None:
        tail = tail - more
    r = head - tail
    return k, r, (r * r).fused(r.polynomial("exp"), (head - r) - tail)


def scaled(x: Real, k: Real) -> Real:
    """2**k x, also where it is subnormal or overflows: two steps, of which one rounds."""
    half = (k * 0.5).nearest()
    return x * half.power_of_two() * (k - half).power_of_two()


def exp(x: Real) -> Real:
    k, r, w = reduced(_bounded(x))
    return scaled(1.0 + (r + w), k)


def _bounded(x: Real) -> Real:
    """Where exp(x) is neither 0 nor infinite, and a little beyond."""
    return x.between(x.pick(-746.0, -104.0), x.pick(710.0, 89.0))


def less_one(k: Real, r: Real, w: Real, unit: float) -> Real:
    """`unit` times exp(x) - 1, for what `reduced` returns for x, and a power of two."""
    scale = (k + log2(unit)).power_of_two()
    near = scale - unit
    head = scale.fused(r, near)
    tail = scale.fused(r, near - head)  # what the sum has lost: the product is exact
    return head + scale.fused(w, tail)


def expm1(x: Real) -> Real:
    k, r, w = reduced(_bounded(x))
    found = less_one(k.at_least(-100.0), r, w, 0.5) * 2.0
    return where(abs(x) < x.pick(1e-290, 1e-30), x, found)


def exp2(x: Real) -> Real:
    y = x.between(x.pick(-1076.0, -151.0), x.pick(1025.0, 129.0))
    k = y.nearest()
    f = y - k
    r = f.fused(f.pick(2.3190468138462996e-17, -1.904654299957768e-09), f * _LOG_2)
    return scaled(1.0 + (r * r).fused(r.polynomial("exp"), r), k)


def sigmoid(x: Real) -> Real:
    """From y = exp(-|x|), as `softplus`: 1 / (1 + y) or y / (1 + y)."""
    y = exp(-abs(x))
    low = 1.0 + y
    lost = (1.0 - low) + y
    above = x >= 0.0
    found = where(above, 1.0, y) / low
    inverse = where(above, found, 1.0 - found)  # 1 / low
    return (-found * inverse).fused(lost, found)


def softplus(x: Real) -> Real:
    """max(x, 0) + log(1 + exp(-|x|))."""
    return where(x > 0.0, x, 0.0) + log1p_of_fraction(exp(-abs(x)))


def log1mexp(x: Real) -> Real:
    """log(1 - exp(x)), x < 0: of exp(x) - 1 above -log(2), else of what 1 - exp(x) rounds off."""
    k, r, w = reduced(_bounded(x))
    power = scaled(1.0 + (r + w), k)
    raised = 60.0 if x.format is DOUBLE else 30.0
    near = -less_one(k.at_least(-1.0), r, w, 2.0**raised)  # also of a subnormal x a normal number
    far = 1.0 - power
    is_near = x > -_LOG_2
    found = log_of_sum(
        where(is_near, near, far),
        where(is_near, 0.0, (1.0 - far) - power),
        where(is_near, x.like(raised), 0.0),
    )
    found = -abs(found)  # also where it is 0
    return where(x.equals(0.0), -float("inf"), where(x <= 0.0, found, float("nan")))


def tanh(x: Real) -> Real:
    """From E = exp(-2 |x|): (1 - E) / (1 + E) near 0, else 1 - 2 E / (1 + E)."""
    size = abs(x)
    bounded = size.at_most(size.pick(22.0, 10.0))
    k, r, w = reduced(bounded * -2.0)
    half = (k - 1.0).power_of_two()
    e = r + w
    far = size > 0.55
    power = half.fused(e, half)  # exp(-2 |x|) / 2
    quotient = where(far, power, -less_one(k, r, w, 0.5)) / half.fused(e, half + 0.5)
    found = where(far, quotient.fused(-2.0, 1.0), quotient)
    return where(size < size.pick(1e-9, 1e-5), size, found).signed(x)


def sinh(x: Real) -> Real:
    size = abs(x)
    bounded = size.at_most(size.pick(710.5, 89.5))
    k, r, w = reduced(bounded)
    lost = less_one(k, r, w, 0.25)
    found = 2.0 * lost + 0.5 * (lost / (lost + 0.25))
    return where(size < size.pick(1e-9, 1e-5), size, found).signed(x)


def cosh(x: Real) -> Real:
    size = abs(x)
    bounded = size.at_most(size.pick(710.5, 89.5))
    k, r, w = reduced(bounded)
    quarter = (1.0 + (r + w)) * (k - 2.0).power_of_two()
    return 2.0 * quarter + 0.125 / quarter
