"""Files of bytes with a short header or none: IDX, as MNIST is stored, and CIFAR-10's records."""

from __future__ import annotations

import gzip
import io
import math
import os
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from synkhronos._checks import check_word, options_checked
from synkhronos._errors import SourceError
from synkhronos._host import files
from synkhronos.training.sources._files import (
    MAPPED_BLOCK,
    Described,
    FileSource,
    Format,
    Options,
    check_stored,
    even_blocks,
)

# http://yann.lecun.com/exdb/mnist: the third byte says the type; numbers are big-endian
_DTYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_HEADER_BYTES = 4 + 4 * 255  # at most
_PIXELS = (3, 32, 32)  # of CIFAR-10: channels first
_PARTS = ("images", "labels")


class Idx(Format):
    """Files of one array each; gzipped ones are decoded whole, others are mapped."""

    name = "idx"

    def describe(self, path: str) -> Described:
        array = _decoded(path) if _zipped(path) else _mapped(path)
        if not array.ndim:
            raise ValueError("its array has no rows")
        whole = (len(array),)
        blocks = whole if _zipped(path) else _mapped_blocks(array)
        return Described(blocks, array.shape[1:], array.dtype)

    def open(self, path: str) -> np.memmap | str:
        return path if _zipped(path) else _mapped(path)

    def read(self, handle: np.ndarray | str, block: int, start: int, stop: int) -> np.ndarray:
        return _decoded(handle) if isinstance(handle, str) else handle[start:stop]


@dataclass(frozen=True)
class Cifar10(Format):
    """CIFAR-10's binary version: records of a label and 3,072 pixels, which are mapped."""

    part: str

    name = "cifar10"

    def describe(self, path: str) -> Described:
        records = self.open(path)
        row = (*_PIXELS[1:], _PIXELS[0]) if self.part == "images" else ()
        return Described(_mapped_blocks(records), row, np.dtype("u1"))

    def open(self, path: str) -> Any:
        each = 1 + math.prod(_PIXELS)
        size = os.path.getsize(path)
        if not size or size % each:
            raise ValueError(f"it has {size:,} bytes, and records of CIFAR-10 have {each:,}")
        return np.memmap(path, "u1", "r", shape=(size // each, each))

    def read(self, handle: Any, block: int, start: int, stop: int) -> np.ndarray:
        records = handle[start:stop]
        if self.part == "labels":
            return records[:, 0]
        return records[:, 1:].reshape(-1, *_PIXELS).transpose(0, 2, 3, 1)


@options_checked
def idx(
    paths: object,
    *,
    cache: str | os.PathLike[str] | None = None,
    skip: bool = False,
    check: bool = False,
    classes: int | None = None,
    keep: int = 10,
) -> FileSource:
    """Rows of IDX files, as those of MNIST, gzipped (``.gz``) or not.

    Parameters
    ----------
    paths : path, list of paths, or a path that ends in .list
        See `synkhronos.training.sources`, also for the options.
    cache, skip, check, classes, keep
        See `synkhronos.training.sources`.

    Returns
    -------
    FileSource
        Bytes stay bytes: pixels are from 0 to 255.

    Raises
    ------
    SourceError
        A file is not a whole IDX file, or its rows differ from those of the first file.

    Notes
    -----
    Cost: each row is copied once. A gzipped file is decoded whole for any of its rows; the last
    `keep` of them stay in memory.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from synkhronos.training import sources
    >>> with tempfile.NamedTemporaryFile(suffix="-ubyte") as file:
    ...     _ = file.write(bytes([0, 0, 8, 1, 0, 0, 0, 4, 5, 6, 7, 8]))
    ...     file.flush()
    ...     sources.idx(file.name)[[3, 1]].tolist()
    [8, 6]
    """
    return FileSource(Idx(), paths, Options(cache, skip, check, classes, keep))


@options_checked
def cifar10(
    paths: object,
    part: str,
    *,
    cache: str | os.PathLike[str] | None = None,
    skip: bool = False,
    classes: int | None = None,
) -> FileSource:
    """Images or labels of CIFAR-10's binary files, such as ``data_batch_1.bin``.

    Parameters
    ----------
    paths : path, list of paths, or a path that ends in .list
        See `synkhronos.training.sources`, also for the options.
    part : {"images", "labels"}
        Images are (rows, 32, 32, 3), uint8: the files have channels first.
    cache, skip, classes
        See `synkhronos.training.sources`.

    Returns
    -------
    FileSource

    Raises
    ------
    InputError
        There is no such part.
    SourceError
        A file does not hold whole records.

    Notes
    -----
    Cost: each row is copied once.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from synkhronos.training import sources
    >>> with tempfile.NamedTemporaryFile(suffix=".bin") as file:
    ...     _ = file.write(bytes([7]) + bytes(3072) + bytes([2]) + bytes(3072))
    ...     file.flush()
    ...     sources.cifar10(file.name, "labels")[:].tolist()
    [7, 2]
    """
    check_word("cifar10: part", part, [*_PARTS])
    return FileSource(Cifar10(part), paths, Options(cache, skip, classes=classes))


def read_idx(path: files.Name) -> np.ndarray:
    """The array in an IDX file, gzipped or not.

    Raises
    ------
    SourceError
        It cannot be read, or is not a whole one.
    """
    try:
        return _decoded(path)
    except (OSError, EOFError, ValueError, zlib.error) as exc:
        raise SourceError(f"{path} is not a whole IDX file: {exc}") from exc


def _mapped(path: str) -> np.memmap:
    with files.reading(path) as file:
        dtype, shape, begin = _header(file.read(_HEADER_BYTES))
    if os.path.getsize(path) != begin + math.prod(shape) * dtype.itemsize:
        raise ValueError("it is not a whole IDX file")
    return np.memmap(path, dtype, "r", begin, shape)


def _decoded(path: files.Name) -> np.ndarray:
    found = files.read_bytes(path, most=None)
    raw = _unpacked(found) if _zipped(path) else found
    dtype, shape, begin = _header(raw)
    if len(raw) != begin + math.prod(shape) * dtype.itemsize:
        raise ValueError("it is not a whole IDX file")
    return np.frombuffer(raw, dtype, offset=begin).reshape(shape)


def _unpacked(packed: bytes) -> bytes:
    """The bytes of a gzip file: one more than its header says at most, whatever follows."""
    with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
        first = file.read(_HEADER_BYTES)
        dtype, shape, begin = _header(first)
        size = begin + math.prod(shape) * dtype.itemsize
        check_stored(size, len(packed))
        return first + file.read(max(0, size + 1 - len(first)))


def _zipped(path: files.Name) -> bool:
    return os.fspath(path).lower().endswith(".gz")


def _header(raw: bytes) -> tuple[np.dtype, tuple[int, ...], int]:
    """The dtype and the shape that the first bytes say, and where the numbers begin."""
    if len(raw) < 4 or raw[:2] != bytes(2) or raw[2] not in _DTYPES or len(raw) < 4 + 4 * raw[3]:
        raise ValueError("it has no header of IDX")
    shape = tuple(np.frombuffer(raw, ">u4", raw[3], 4).tolist())
    return np.dtype(_DTYPES[raw[2]]), shape, 4 + 4 * raw[3]


def _mapped_blocks(array: np.ndarray) -> tuple[int, ...]:
    return even_blocks(len(array), array[:1].nbytes, least=MAPPED_BLOCK)
