"""What numba compiles for many tests: its own code for arrays, and this package's for `loo`."""

from __future__ import annotations

import numpy as np


def compile_array_code() -> None:
    """Compile it in this process, for all that are forked from it.

    numba keeps none of it on disk. If PyTensor's cache has this function, that of the tests has
    theirs, and nothing is compiled.
    """
    import pytensor  # tests of processes that share tests need none
    import pytensor.tensor as pt

    x, y = pt.vector("x"), pt.matrix("y")
    wanted = [y @ x, (2 * y).sum(axis=0), pt.zeros((x.shape[0], 2)), pt.concatenate([x, x])]
    pytensor.function([x, y], wanted, mode="NUMBA")(np.ones(2), np.ones((3, 2)))


def compile_loo() -> None:
    """Compile it before processes that share tests of `loo` would all do so at the same time."""
    from synkhronos.pymc._after.pareto import smooth, tail_length  # imports numba

    found = np.empty((3, 1))
    smooth(np.random.default_rng(0).normal(size=(1, 100)), tail_length(100, 1.0), *found)
