"""A function with a product, a fused loop, a reduction and a shared variable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from synkhronos._compiling.lean.mode import lean

MODE = lean("NUMBA")
X = np.linspace(-1, 1, 12).reshape(3, 4)


def made(factor: float = 1.0, **options: Any) -> Any:
    """The function; its shared variable is full of `factor`."""
    x = pt.matrix("x", dtype="float64")
    w = pytensor.shared(np.full((4, 2), factor), name="w")
    y = pt.tanh(x @ w) * 1.5
    return pytensor.function([x], [y.sum(axis=0), y], mode=MODE, **options)
