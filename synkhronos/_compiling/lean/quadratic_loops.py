"""The numba code of `SquaresOfRows`: loops, since a call of BLAS takes longer than short ones."""

from __future__ import annotations

import numpy as np
from pytensor.link.numba.dispatch.basic import numba_njit

from synkhronos._compiling.lean.quadratics import APART, HEAD, OUTSIDE, SMALLEST

VERSION = 1  # part of the key of cached machine code: change it whenever the code changes


# Sums in their order, since vectors of a few numbers take longer, also to compile; places without a
# sign, since numba looks for negative ones, which count from the end, at each place.
@numba_njit(boundscheck=False, error_model="numpy", fastmath=False)
def squares_of_rows(b: np.ndarray, scale: float, numbers: np.ndarray) -> tuple[float, np.ndarray]:
    """Coefficients, scale, numbers -> the value and the gradient."""
    one, width = np.uintp(1), np.uintp(b.size)
    centre = np.uintp(HEAD)
    rest, upper = centre + width, centre + width + width
    joined = upper + width * (width + one) // np.uintp(2)
    if np.uintp(numbers.size) != joined + width * width:
        raise ValueError("a form has another number of coefficients than expected")
    step = np.empty(width)
    for i in range(width):
        total = b[i]
        if numbers[APART] == 0:
            total = 0.0
            for j in range(width):
                total += numbers[joined + i * width + j] * b[j]
        step[i] = total - numbers[centre + i]
    least = numbers[SMALLEST] / scale
    found, at = least * least, upper
    for i in range(width):
        total = numbers[rest + i]
        for j in range(i, width):
            total -= numbers[at] * step[j]
            at += one
        total /= scale
        found += total * total
        step[i] = total / scale  # no later row reads it
    for k in range(width):
        last = width - one - k
        total, at = 0.0, upper + last
        for i in range(last + one):
            total += numbers[at] * step[i]
            at += width - i - one
        step[last] = total
    slope = step
    if numbers[APART] == 0:
        slope = np.empty(width)
        for j in range(width):
            total = 0.0
            for i in range(width):
                total += numbers[joined + i * width + j] * step[i]
            slope[j] = total
    return -0.5 * found - numbers[OUTSIDE], slope
