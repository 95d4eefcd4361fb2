"""The error function and the normal distribution.

The upper tail is exp(-x * x) times a function without large changes, which is a polynomial in
t = (x - k) / (x + k) over x + c (Shepherd and Laframboise, Mathematics of Computation 36, 1981).
"""

from __future__ import annotations

from dataclasses import dataclass

from synkhronos._compiling.vectorised.exponentials import reduced, scaled
from synkhronos._compiling.vectorised.logarithms import log_of_sum
from synkhronos._compiling.vectorised.quotients import quotient
from synkhronos._compiling.vectorised.real import SINGLE, Real, where


@dataclass(frozen=True)
class Form:
    """tail(x) * (x + offset) as a polynomial of this name in t = (x - k) / (x + k)."""

    name: str
    k: float
    offset: float


_ERFCX = Form("erfcx", 4.0, 0.875)
_LARGE = 1e100, 1e15  # where 1 / x is the tail over the density, to all digits
_HEIGHT = 0.3989422804014327  # of the density at 0
_NORMAL = Form("normal_tail", 6.0, 0.75)


def _plus(x: Real, c: float) -> tuple[Real, Real]:
    """X + c, x >= 0, and what the sum has lost."""
    total = x + c
    return total, where(x > c, c - (total - x), x - (total - c))


def _tail(x: Real, form: Form) -> tuple[Real, Real]:
    """The tail over exp(-x * x), as a sum of two."""
    total, lost = _plus(x, form.k)
    inverse = 1.0 / total
    rest = inverse * ((-total).fused(inverse, 1.0) - lost * inverse)
    t = rest.fused(-2.0 * form.k, inverse.fused(-2.0 * form.k, 1.0))
    constant, more = t.constant_and_rest(form.name)
    top = constant + more
    return quotient(top, (constant - top) + more, *_plus(x, form.offset))


def _times(pair: tuple[Real, Real], e: Real) -> tuple[Real, Real]:
    """A sum of two times 1 + e, |e| < 1, as such a sum."""
    head, tail = pair
    more = head * e
    total = head + more
    return total, tail.fused(e, tail) + ((head - total) + more)


def _minus_square(x: Real, factor: float) -> tuple[Real, Real]:
    """(k, e) with exp(-factor * x * x) = 2**k (1 + e); the square is a sum of two."""
    head = x.head(27 if x.format.bits == 64 else 12)
    k, r, w = reduced(head * head * -factor, (head - x) * (head + x) * factor)
    return k, r + w


def _erf_middle(x: Real) -> Real:
    """erf(x) for |x| <= 1."""
    return x.fused((x * x).polynomial("erf"), x)


def _erfcx_of(size: Real) -> tuple[Real, Real]:
    """exp(x * x) * erfc(x) for x >= 0, as a sum of two; erf, erfc and erfcx of one x share it."""
    return _tail(size.at_most(size.format.largest), _ERFCX)


def _erfc_of(size: Real) -> Real:
    """erfc(x) for x >= 0."""
    k, e = _minus_square(size.at_most(size.pick(28.0, 11.0)), 1.0)
    return scaled(sum_of(_times(_erfcx_of(size), e)), k)


def sum_of(pair: tuple[Real, Real]) -> Real:
    return pair[0] + pair[1]


def _erfc_single(size: Real) -> Real:
    """erfc(x) for x >= 1, to the digits of float32 that matter for 1 - erfc(x)."""
    return (size.at_most(4.0) - 2.5).polynomial("erf_tail")


def erf(x: Real) -> Real:
    size = abs(x)
    tail = _erfc_single(size) if x.format is SINGLE else _erfc_of(size)
    return where(size < 1.0, _erf_middle(x), (1.0 - tail).signed(x))


def erfc(x: Real) -> Real:
    tail = _erfc_of(abs(x))
    return where(x < 0.0, 2.0 - tail, tail)


def erfcx(x: Real) -> Real:
    size = abs(x)
    tail = sum_of(_erfcx_of(size))
    bounded = size.at_most(size.pick(26.66, 9.42))
    k, e = _minus_square(bounded, -1.0)
    part = (k - 2.0).power_of_two()
    mirrored = part.fused(e, part - 0.125 * tail) * 8.0  # 2 exp(x * x) - tail
    return where(x < 0.0, mirrored, where(x.equals(float("inf")), 0.0, tail))


class _Normal:
    """The common parts of the functions of a normal distribution, for |x|."""

    def __init__(self, x: Real) -> None:
        self.size = abs(x)
        self.far = self.size >= 0.6744897501960817  # the upper quartile
        # the upper tail over exp(-x * x / 2), far from 0
        self.mills, self.mills_tail = _tail(self.size.at_most(x.pick(*_LARGE)), _NORMAL)
        bounded = self.size.at_most(x.pick(39.0, 14.5))
        # exp(-x * x / 2) = 2**k (1 + e)
        self.k, self.e = _minus_square(bounded, 0.5)
        upper, upper_tail = _times((self.mills, self.mills_tail), self.e)
        middle = self.size * (self.size * self.size).polynomial("normal_middle")
        near = 0.5 - middle
        # the upper tail, as a sum of two
        self.upper = where(self.far, scaled(upper, self.k), near)
        self.upper_tail = where(self.far, scaled(upper_tail, self.k), (0.5 - near) - middle)


def log_ndtr(x: Real) -> Real:
    """The logarithm of the normal distribution function."""
    shared = _Normal(x)
    below = x < 0.0
    u = 1.0 - shared.upper
    lost = ((1.0 - u) - shared.upper) - shared.upper_tail
    lower = where(shared.far, shared.mills, shared.upper)
    lower_tail = where(shared.far, shared.mills_tail, shared.upper_tail)
    found = log_of_sum(where(below, lower, u), where(below, lower_tail, lost))
    lifted = where(below & shared.far, x, 0.0)
    return -abs((lifted * -0.5).fused(lifted, found))  # also where it is 0


def mills(x: Real) -> Real:
    """The derivative of `log_ndtr`: the density over the distribution function."""
    shared = _Normal(x)
    below = x < 0.0
    height, height_tail = x.like(_HEIGHT), x.pick(-2.49232720227773e-17, -1.133517010526318e-08)
    more = height * shared.e
    density = height + more
    rest = ((height - density) + more) + height_tail
    u = 1.0 - shared.upper
    lost = ((1.0 - u) - shared.upper) - shared.upper_tail
    found = quotient(
        where(below, height, scaled(density, shared.k)),
        where(below, height_tail, scaled(rest, shared.k)),
        where(below, shared.mills, u),
        where(below, shared.mills_tail, lost),
    )
    return where(x < -x.pick(*_LARGE), -x, sum_of(found))
