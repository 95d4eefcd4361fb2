"""The numba code of `SquaresOfRows`: loops, since a call of BLAS takes longer than short ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from pytensor.link.numba.dispatch.basic import numba_njit

from synkhronos._compiling.lean.quadratics import APART, HEAD, OUTSIDE, SMALLEST, size_of

VERSION = 1  # part of the key of cached machine code: change it whenever the code changes


def squares_of_rows() -> Any:
    """A function of numba: (coefficients, scale, numbers) -> the value and the gradient."""
    size = numba_njit(size_of)

    @numba_njit(boundscheck=False, error_model="numpy")
    def distances(b: np.ndarray, scale: float, numbers: np.ndarray, slope: np.ndarray) -> float:
        """Half of the squares; adds to the slope."""
        width = b.size
        least, at = numbers[SMALLEST] / scale, HEAD + 2 * width
        found = least * least
        for i in range(width):
            distance = numbers[HEAD + width + i]
            for j in range(i, width):
                distance -= numbers[at + j - i] * (b[j] - numbers[HEAD + j])
            distance /= scale
            found += distance * distance
            distance /= scale
            for j in range(i, width):
                slope[j] += numbers[at + j - i] * distance
            at += width - i
        return 0.5 * found

    @numba_njit(boundscheck=False, error_model="numpy")
    def squares(b: np.ndarray, scale: float, numbers: np.ndarray) -> tuple[float, np.ndarray]:
        width = b.size
        if numbers.size != size(width):
            raise ValueError("a form has another number of coefficients than expected")
        slope = np.zeros(width)
        if numbers[APART] != 0:
            return -distances(b, scale, numbers, slope) - numbers[OUTSIDE], slope
        joined = numbers[numbers.size - width * width :].reshape((width, width))
        whole, by_whole = np.zeros(width), np.zeros(width)
        for i in range(width):
            for j in range(width):
                whole[i] += joined[i, j] * b[j]
        found = distances(whole, scale, numbers, by_whole)
        for i in range(width):
            for j in range(width):
                slope[j] += joined[i, j] * by_whole[i]
        return -found - numbers[OUTSIDE], slope

    return squares
