"""Inverse functions of angles and of hyperbolas, and the tangent, from vectorised functions."""

from __future__ import annotations

import math

from synkhronos._compiling.vectorised.angles import atan, cos, sin
from synkhronos._compiling.vectorised.logarithms import log, log1p
from synkhronos._compiling.vectorised.real import Real, Truth, where

_LOG_2 = math.log(2.0)


def tan(x: Real) -> Real:
    return where(x.equals(0.0), x, sin(x) / cos(x))


def arcsin(x: Real) -> Real:
    return 2.0 * atan(x / (1.0 + ((1.0 - x) * (1.0 + x)).root()))


def arccos(x: Real) -> Real:
    return 2.0 * atan(((1.0 - x) / (1.0 + x)).root())


def arctan2(y: Real, x: Real) -> Real:
    """The arc tangent of the smaller one over the larger one, turned to the right eighth."""
    height, width = abs(y), abs(x)
    steep = height > width
    low, high = where(steep, width, height), where(steep, height, width)
    ratio = where(low.equals(high), 1.0, low / high)
    ratio = where(low.equals(0.0) & high.equals(0.0), 0.0, ratio)
    angle = atan(ratio)
    angle = where(steep, 0.5 * math.pi - angle, angle)
    return where(x.like(1.0).signed(x) < 0.0, math.pi - angle, angle).signed(y)


def arcsinh(x: Real) -> Real:
    size = abs(x)
    square = size * size
    near = log1p(size + square / (1.0 + (1.0 + square).root()))
    return where(_is_far(size), log(size) + _LOG_2, near).signed(x)


def arccosh(x: Real) -> Real:
    rest = x - 1.0
    near = log1p(rest + (rest * (x + 1.0)).root())
    found = where(_is_far(x), log(x) + _LOG_2, near)
    return where(x >= 1.0, found, float("nan"))


def arctanh(x: Real) -> Real:
    size = abs(x)
    return (0.5 * log1p(2.0 * size / (1.0 - size))).signed(x)


def _is_far(size: Real) -> Truth:
    """Whether 1 is nothing beside the square, which may be too large for a number."""
    return size > size.pick(2.0**28, 2.0**13)
