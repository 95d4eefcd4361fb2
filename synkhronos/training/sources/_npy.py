"""Files of numpy."""

from __future__ import annotations

import os
import struct
from typing import IO

import numpy as np

from synkhronos._checks import options_checked
from synkhronos._host import files
from synkhronos.training.sources._files import (
    MAPPED_BLOCK,
    Described,
    FileSource,
    Format,
    Options,
    even_blocks,
)

_MOST_HEADER = 10_000  # bytes; numpy parses no longer one, but reads 4 GB if the file says so


def check_header(file: IO[bytes]) -> tuple[int, int]:
    """The version of an array in numpy's format, whose header has a length that numpy parses.

    Raises
    ------
    ValueError
        It has another beginning, or a longer header.
    """
    version = np.lib.format.read_magic(file)
    form = "<H" if version == (1, 0) else "<I"
    said = file.read(struct.calcsize(form))
    if len(said) == struct.calcsize(form) and struct.unpack(form, said)[0] > _MOST_HEADER:
        raise ValueError(
            f"its header has {struct.unpack(form, said)[0]:,} bytes, and at most {_MOST_HEADER:,} "
            "are read"
        )
    return version


class Npy(Format):
    """Files of one array each; they are mapped, and only the rows that are asked for are read."""

    name = "npy"

    def describe(self, path: str) -> Described:
        array = self.open(path)
        row_bytes = array[:1].nbytes
        blocks = even_blocks(len(array), row_bytes, least=MAPPED_BLOCK)
        return Described(blocks, array.shape[1:], array.dtype)

    def open(self, path: str) -> np.memmap:
        with files.reading(path) as file:
            check_header(file)
        array = np.lib.format.open_memmap(path, mode="r")
        if not array.ndim:
            raise ValueError("its array has no rows")
        return array

    def read(self, handle: np.ndarray, block: int, start: int, stop: int) -> np.ndarray:
        return handle[start:stop]


@options_checked
def npy(
    paths: object,
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
