"""Powers, and logarithms to other bases, from the logarithm as a sum of two numbers.

A power multiplies an error of the logarithm by the exponent, so it is computed to 64 bits (Muller,
"Elementary Functions", 3rd edition, section 11.4). The sums are exact where the processor fuses
multiplications and additions.
"""

from __future__ import annotations

from synkhronos._compiling.vectorised.exponentials import reduced, scaled
from synkhronos._compiling.vectorised.logarithms import LOG_2_HEAD, LOG_2_TAIL, checked, split
from synkhronos._compiling.vectorised.quotients import quotient
from synkhronos._compiling.vectorised.real import Real, product, where


def _long_log(x: Real) -> tuple[Real, Real]:
    """The logarithm of a finite x > 0 as a sum of two: s (2 + z w), s = (m - 1) / (m + 1)."""
    k, m = split(x)
    f = m - 1.0
    low = f + 2.0
    s, s_tail = quotient(f, f * 0.0, low, f - (low - 2.0))
    z, z_tail = product(s, s)
    z_tail = (2.0 * s).fused(s_tail, z_tail)
    constant, more = z.constant_and_rest("long_log")
    w = constant + more
    w_tail = (constant - w) + more
    u, u_tail = product(z, w)
    u_tail = u_tail + z.fused(w_tail, z_tail * w)
    v, v_tail = product(s, u)
    v_tail = v_tail + s.fused(u_tail, s_tail * u)
    power, twice = k * k.pick(*LOG_2_HEAD), 2.0 * s
    first = power + twice
    total = first + v
    tail = ((power - first) + twice) + ((first - total) + v)
    tail = tail + k.fused(k.pick(*LOG_2_TAIL), s_tail.fused(2.0, v_tail))
    head = total + tail
    return head, (total - head) + tail


def power(x: Real, y: Real) -> Real:
    """x**y, with the values of C's pow at odd points."""
    size = abs(x)
    zero, infinite = size.equals(0.0), size.equals(float("inf"))
    head, tail = _long_log(where(zero | infinite, 1.0, size))
    bounded = y.between(y.pick(-1e300, -1e36), y.pick(1e300, 1e36))
    exponent, rest = product(bounded, head)
    rest = bounded.fused(tail, rest)
    k, r, w = reduced(
        exponent.between(y.pick(-746.0, -104.0), y.pick(710.0, 89.0)),
        where(abs(exponent) < 1000.0, rest, 0.0),
    )
    found = scaled(1.0 + (r + w), k)
    above = y > 0.0
    found = where(zero, where(above, 0.0, y.like(float("inf"))), found)
    found = where(infinite, where(above, float("inf"), y.like(0.0)), found)
    whole = y.floor().equals(y)
    odd = whole & ((y * 0.5).floor() * 2.0 < y)
    real = whole | zero | infinite | (x >= 0.0)
    found = where(odd, found.signed(x), where(real, found, float("nan")))
    found = where(x <= float("inf"), where(y <= float("inf"), found, y), x)
    return where(y.equals(0.0) | x.equals(1.0), 1.0, found)


def log2(x: Real) -> Real:
    return _of_base(x, 1.4426950408889634, (2.0355273740931033e-17, 1.9259629911266175e-08))


def log10(x: Real) -> Real:
    return _of_base(x, 0.4342944819032518, (1.098319650216765e-17, -1.0103050052231683e-08))


def _of_base(x: Real, scale: float, scale_tail: tuple[float, float]) -> Real:
    """log(x) * scale, exact for powers of the base."""
    finite = (x > 0.0) & (x <= x.format.largest)
    head, tail = _long_log(where(finite, x, 1.0))
    found, rest = product(head, x.like(scale))
    rest = head.fused(x.pick(*scale_tail), tail.fused(scale, rest))
    return checked(x, found + rest)
