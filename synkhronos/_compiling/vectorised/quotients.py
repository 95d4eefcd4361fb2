"""Quotients of sums of two numbers, to more digits than one number has."""

from __future__ import annotations

from synkhronos._compiling.vectorised.real import Real


def quotient(top: Real, top_tail: Real, low: Real, low_tail: Real) -> tuple[Real, Real]:
    """The quotient of two sums of two numbers, as such a sum."""
    inverse = 1.0 / low
    head = top * inverse
    rest = (-head).fused(low, top) + (-head).fused(low_tail, top_tail)
    return head, rest * inverse
