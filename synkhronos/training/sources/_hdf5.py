"""HDF5 files, by h5py."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from synkhronos._checks import options_checked
from synkhronos._errors import needing
from synkhronos.training.sources._files import (
    MAPPED_BLOCK,
    UNCHECKED_BLOCK,
    Described,
    FileSource,
    Format,
    NotNumbers,
    Options,
    check_stored,
    even_blocks,
)

if TYPE_CHECKING:
    import h5py

type Rows = h5py.Dataset | np.memmap  # a memmap where the rows lie in the file as in memory

_LINKS = 1000  # parts of a name that are followed
_DEPTH = 20  # of virtual datasets that are made of virtual datasets
_NAMED = 20  # datasets in a message
_TRUSTED = "If you trust it, pass external=True"


@dataclass(frozen=True)
class Hdf5(Format):
    """One dataset of each file."""

    dataset: str
    external: bool

    name = "hdf5"

    def describe(self, path: str) -> Described:
        with _library().File(path, "r") as file:
            found = self._of(file)
            _check_numbers(self.dataset, found.dtype)
            row_bytes = math.prod(found.shape[1:]) * found.dtype.itemsize
            stored, cure = found.id.get_storage_size(), f". {_TRUSTED}"
            if not self.external:
                check_stored(len(found) * row_bytes, stored, cure)
            if found.chunks:
                blocks = even_blocks(len(found), row_bytes, found.chunks[0])
            else:
                blocks = even_blocks(len(found), row_bytes, least=MAPPED_BLOCK)
            if not self.external:
                most = max(blocks, default=0) * row_bytes
                check_stored(most, stored, cure, UNCHECKED_BLOCK)
            return Described(blocks, found.shape[1:], found.dtype)

    def open(self, path: str) -> Rows:
        file = _library().File(path, "r")
        try:
            found = self._of(file)
            offset = _plain_offset(file, found)
            if offset is None:
                return found
            mapped = np.memmap(path, found.dtype, "r", offset, found.shape)
        except BaseException:
            file.close()
            raise
        file.close()
        return mapped

    def close(self, handle: Rows) -> None:
        if not isinstance(handle, np.memmap):
            handle.file.close()

    def read(self, handle: Rows, block: int, start: int, stop: int) -> np.ndarray:
        return handle[start:stop]

    def _of(self, file: h5py.File) -> h5py.Dataset:
        if not self.external and _is_elsewhere(file, self.dataset):
            raise ValueError(
                f"rows of {self.dataset!r} lie in other files, and it may name any file that you "
                f"can read. {_TRUSTED}"
            )
        found = file.get(self.dataset)
        if not isinstance(found, _library().Dataset):
            raise ValueError(f"it has no dataset {self.dataset!r}; there are {_datasets(file)}")
        if not found.shape:
            raise ValueError(f"{self.dataset!r} has no rows")
        return found


def _check_numbers(name: str, dtype: np.dtype) -> None:
    """Refuse texts and lists of different lengths, which h5py shows as objects."""
    if _library().check_string_dtype(dtype) is not None:
        raise NotNumbers(
            f"dataset {name!r} holds text: write the number of each value, such as that of its "
            "class"
        )
    ragged = _library().check_vlen_dtype(dtype)
    if ragged is not None:
        raise NotNumbers(
            f"dataset {name!r} holds lists of different lengths ({np.dtype(ragged)}): write them "
            "with one length, as an array of two dimensions"
        )


def _datasets(file: h5py.File) -> str:
    """The first datasets by their names; no link is followed."""
    found: list[str] = []

    def look(name: str, item: object) -> bool | None:
        if isinstance(item, _library().Dataset):
            found.append(name)
        return True if len(found) > _NAMED else None  # a value ends the visit

    file.visititems(look)
    more = ["more"] if len(found) > _NAMED else []
    return ", ".join([*found[:_NAMED], *more]) or "none"


def _is_elsewhere(file: h5py.File, name: str, depth: int = 0) -> bool:
    """Whether rows of a dataset lie in other files; none of these is opened."""
    if depth == _DEPTH or _leads_elsewhere(file, name):
        return True
    found = file.get(name)
    if not isinstance(found, _library().Dataset):
        return False
    if found.is_virtual:
        return any(
            source.file_name != "." or _is_elsewhere(file, source.dset_name, depth + 1)
            for source in found.virtual_sources()
        )
    return bool(found.external)


def _leads_elsewhere(file: h5py.File, name: str) -> bool:
    """Whether a link on the way to a dataset leads out of the file; no other file is opened."""
    place, parts = file, name.split("/")
    for _ in range(_LINKS):
        if not parts:
            return False
        part, *parts = parts
        if not part:
            continue
        link = place.get(part, getlink=True) if hasattr(place, "keys") else None
        if isinstance(link, _library().ExternalLink):
            return True
        if isinstance(link, _library().SoftLink):
            place = file if link.path.startswith("/") else place
            parts = [*link.path.split("/"), *parts]
        elif link is None:
            return False  # there is no such dataset
        else:
            place = place[part]
    return True  # soft links in a circle


def _plain_offset(file: h5py.File, dataset: h5py.Dataset) -> int | None:
    """Where in the file the rows are, if they are there as in memory, one after the other."""
    if dataset.chunks or dataset.external or dataset.is_virtual or file.userblock_size:
        return None
    if dataset.file.filename != file.filename:  # an external link
        return None
    return dataset.id.get_offset()


def _library() -> ModuleType:
    with needing("h5py", "data"):
        import h5py
    return h5py


@options_checked
def hdf5(
    paths: object,
    dataset: str,
    *,
    cache: str | os.PathLike[str] | None = None,
    skip: bool = False,
    check: bool = False,
    classes: int | None = None,
    keep: int = 10,
    external: bool = False,
) -> FileSource:
    """Rows of one dataset in HDF5 files (extra: data).

    Parameters
    ----------
    paths : path, list of paths, or a path that ends in .list
        See `synkhronos.training.sources`, also for the options.
    dataset : str
        Its name in each file; one in a group is ``"group/name"``.
    cache, skip, check, classes, keep
        See `synkhronos.training.sources`.
    external : bool
        Trust the files. Rows may lie in other files that they name: by external storage, a virtual
        dataset, or a link. A file of a stranger may name any file that you can read. And a dataset
        may be larger than 1 GB, or its chunks than 64 MB, and 4,096 times what the file stores.

    Returns
    -------
    FileSource

    Raises
    ------
    BackendMissing
    SourceError
        A file is damaged or has no such dataset, or its rows differ from those of the first file.

    Notes
    -----
    Cost: a block is decoded for any of its rows, and the last `keep` blocks stay in memory. A block
    is one chunk along the rows, or several that have 256 KB together. All reads by h5py in a
    process wait for each other, also those of other files. Datasets without chunks are mapped, and
    only the rows that are asked for are read.

    Examples
    --------
    >>> import tempfile, h5py, numpy as np
    >>> from synkhronos.training import sources
    >>> with tempfile.NamedTemporaryFile(suffix=".h5") as file:
    ...     with h5py.File(file.name, "w") as made:
    ...         _ = made.create_dataset("x", data=np.arange(4.0), compression="gzip")
    ...     sources.hdf5(file.name, "x")[[3, 1]]
    array([3., 1.])
    """
    return FileSource(Hdf5(dataset, external), paths, Options(cache, skip, check, classes, keep))
