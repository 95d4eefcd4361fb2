"""What numba compiles of its own for arrays: sums, products, new arrays and joined ones."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt


def compile_array_code() -> None:
    """Compile it in this process, for all that are forked from it.

    numba keeps none of it on disk. If PyTensor's cache has this function, that of the tests has
    theirs, and nothing is compiled.
    """
    x, y = pt.vector("x"), pt.matrix("y")
    wanted = [y @ x, (2 * y).sum(axis=0), pt.zeros((x.shape[0], 2)), pt.concatenate([x, x])]
    pytensor.function([x, y], wanted, mode="NUMBA")(np.ones(2), np.ones((3, 2)))
