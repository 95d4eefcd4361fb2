"""Loops over arrays, compiled by numba and kept in PyTensor's folder."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

_HALF = np.dtype(np.float16)


def njit(
    function: Callable[..., None], *, version: str = "", vectorised: bool = False
) -> Callable[..., None]:
    """Compile a loop; the compiled code is cached.

    Parameters
    ----------
    function : callable
    version : str
        Of the code that the loop calls: numba looks only whether the loop's own file has changed.
    vectorised : bool
        Sums may be added in any order, and a division by 0 is infinite. Loops are vectorised then.
    """
    import numba
    import pytensor

    folder = Path(pytensor.config.base_compiledir) / "synkhronos" / version
    options = {"fastmath": {"reassoc"}, "error_model": "numpy"} if vectorised else {}
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder)  # numba reads it in the decorator
    try:
        compiled: Callable[..., None] = numba.njit(function, cache=True, **options)
    finally:
        numba.config.CACHE_DIR = before
    return compiled


def elementwise(function: Callable[..., None]) -> Callable[..., None]:
    """Decorate a loop over vectors of one dtype, which are its first arguments; then come numbers.

    It is compiled at the first call. The numbers get the dtype of the vectors. Vectors of float16,
    which numba does not add, are copied to float32 and back.
    """

    @functools.cache
    def compiled() -> Callable[..., None]:
        return njit(function)

    @functools.wraps(function)
    def call(*given: Any) -> None:
        vectors = [v for v in given if isinstance(v, np.ndarray)]
        numbers = given[len(vectors) :]
        dtype = vectors[0].dtype
        if dtype != _HALF:
            compiled()(*vectors, *[dtype.type(n) for n in numbers])
            return
        wide = [v.astype(np.float32) for v in vectors]
        compiled()(*wide, *[np.float32(n) for n in numbers])
        for vector, value in zip(vectors, wide, strict=True):
            vector[...] = value

    return call
