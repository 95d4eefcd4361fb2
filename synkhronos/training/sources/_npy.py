"""Files of numpy."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from synkhronos._checks import options_checked
from synkhronos.training.sources._files import (
    MAPPED_BLOCK,
    Described,
    FileSource,
    Format,
    Options,
    even_blocks,
)


class Npy(Format):
    """Files of one array each; they are mapped, and only the rows that are asked for are read."""

    name = "npy"

    def describe(self, path: str) -> Described:
        array = self.open(path)
        row_bytes = array[:1].nbytes
        blocks = even_blocks(len(array), row_bytes, least=MAPPED_BLOCK)
        return Described(blocks, array.shape[1:], array.dtype)

    def open(self, path: str) -> Any:
        array = np.lib.format.open_memmap(path, mode="r")
        if not array.ndim:
            raise ValueError("its array has no rows")
        return array

    def read(self, handle: Any, block: int, start: int, stop: int) -> np.ndarray:
        return handle[start:stop]


@options_checked
def npy(
    paths: Any,
    *,
    cache: str | os.PathLike[str] | None = None,
    skip: bool = False,
    check: bool = False,
    classes: int | None = None,
) -> FileSource:
    """Rows of ``.npy`` files, which are mapped and not loaded.

    Parameters
    ----------
    paths : path, list of paths, or a path that ends in .list
        See `synkhronos.training.sources`, also for the options.
    cache, skip, check, classes
        See `synkhronos.training.sources`.

    Returns
    -------
    FileSource

    Raises
    ------
    SourceError
        A file is not a whole array, or its rows differ from those of the first file.

    Notes
    -----
    Cost: each row is copied once. Blocks have 16 MB.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from synkhronos.training import sources
    >>> with tempfile.NamedTemporaryFile(suffix=".npy") as file:
    ...     np.save(file.name, np.arange(4.0))
    ...     sources.npy(file.name)[[3, 1]]
    array([3., 1.])
    """
    return FileSource(Npy(), paths, Options(cache, skip, check, classes))
