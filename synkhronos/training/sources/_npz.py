"""Archives of numpy."""

from __future__ import annotations

import math
import os
import zipfile
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from synkhronos._checks import options_checked
from synkhronos.training.sources._files import Described, FileSource, Format, Options, check_stored
from synkhronos.training.sources._npy import check_header

# zipfile unpacks the others without a limit, and a byte may become a million
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


@dataclass(frozen=True)
class Npz(Format):
    """One array of each archive, which is one block: it has to be decoded from its beginning."""

    array: str

    name = "npz"
    endings: ClassVar[tuple[str, ...]] = (".npz",)

    def describe(self, path: str) -> Described:
        with zipfile.ZipFile(path) as archive, archive.open(self._member(archive)) as file:
            version = check_header(file)
            if version not in _HEADERS:
                raise ValueError(
                    f"{self.array!r} has version {version} of numpy's format; "
                    f"versions that are read: {', '.join(map(str, _HEADERS))}"
                )
            file.seek(len(np.lib.format.magic(*version)))
            shape, _, dtype = _HEADERS[version](file)
            check_stored(math.prod(shape) * dtype.itemsize, os.path.getsize(path))
        if not shape:
            raise ValueError(f"{self.array!r} has no rows")
        return Described((shape[0],), shape[1:], dtype)

    def read(self, handle: Any, block: int, start: int, stop: int) -> np.ndarray:
        with zipfile.ZipFile(handle) as archive, archive.open(self._member(archive)) as file:
            return np.lib.format.read_array(file)

    def _member(self, archive: zipfile.ZipFile) -> zipfile.ZipInfo:
        names = archive.namelist()
        if f"{self.array}.npy" not in names:
            there = ", ".join(name.removesuffix(".npy") for name in names)
            raise ValueError(f"it has no array {self.array!r}; there are {there}")
        found = archive.getinfo(f"{self.array}.npy")
        if found.compress_type not in _METHODS:
            raise ValueError(f"{self.array!r} is packed in a way that numpy does not write")
        return found


@options_checked
def npz(
    paths: object,
    name: str,
    *,
    cache: str | os.PathLike[str] | None = None,
    skip: bool = False,
    check: bool = False,
    classes: int | None = None,
    keep: int = 10,
) -> FileSource:
    """Rows of one array in ``.npz`` files, compressed or not.

    Parameters
    ----------
    paths : path, list of paths, or a path that ends in .list
        See `synkhronos.training.sources`, also for the options.
    name : str
        Of the array in each file.
    cache, skip, check, classes, keep
        See `synkhronos.training.sources`.

    Returns
    -------
    FileSource

    Raises
    ------
    SourceError
        A file is damaged or has no such array, is packed in another way than numpy packs it, or
        its rows differ from those of the first file.

    Notes
    -----
    Cost: an array is decoded whole for any of its rows; the last `keep` arrays stay in memory.
    The file is the block, so ``Batches(blocks=source.blocks)`` decodes each array once an epoch.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from synkhronos.training import sources
    >>> with tempfile.NamedTemporaryFile(suffix=".npz") as file:
    ...     np.savez_compressed(file.name, x=np.arange(4.0), y=np.arange(4))
    ...     sources.npz(file.name, "x")[[3, 1]]
    array([3., 1.])
    """
    return FileSource(Npz(name), paths, Options(cache, skip, check, classes, keep))
