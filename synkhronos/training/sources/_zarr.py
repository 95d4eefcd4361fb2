"""Arrays of zarr.

zarr's synchronous functions start threads that stay: an event loop, and a pool that decodes. A
group whose master has threads starts its members as new interpreters. So arrays are read by an
event loop of the reading thread, which ends, with its pool, when the array is closed.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from synkhronos._checks import options_checked
from synkhronos._errors import needing
from synkhronos.training.sources._files import (
    UNCHECKED_BLOCK,
    Described,
    FileSource,
    Format,
    NotNumbers,
    Options,
    check_numbers,
    check_stored,
    even_blocks,
)
from synkhronos.training.sources._paths import few

if TYPE_CHECKING:
    from zarr import AsyncArray
    from zarr.core.metadata import ArrayMetadata

type Handle = tuple[asyncio.Runner, AsyncArray]

# Codecs that only compute. Others, such as pickle, may run code that a chunk contains.
_CODECS = frozenset(
    {"blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd"}
    | {"adler32", "crc32", "crc32c", "fletcher32", "jenkins_lookup3"}
    | {"astype", "bitround", "delta", "fixedscaleoffset", "packbits", "quantize", "shuffle"}
    | {"bytes", "transpose", "sharding_indexed"}
)


class Zarr(Format):
    """One array in each path."""

    name = "zarr"

    def place(self, path: str, cache: str | None, described: str = "") -> str:
        return path

    def describe(self, path: str) -> Described:
        def look() -> Described:
            with asyncio.Runner() as runner:
                found = runner.run(_described_array(path))
                try:
                    check_numbers(found.dtype)
                except NotNumbers as exc:
                    _check_codecs(found.metadata, f"{exc}; ")  # texts have a codec of their own
                    raise
                _check_codecs(found.metadata)
                if not found.shape:
                    raise ValueError("it has no rows")
                row_bytes = math.prod(found.shape[1:]) * found.dtype.itemsize
                blocks = even_blocks(found.shape[0], row_bytes, found.chunks[0])
                # where chunks are missing there are rows, too, of the fill value
                if (most := max(blocks, default=0) * row_bytes) > UNCHECKED_BLOCK:
                    stored = runner.run(found.nbytes_stored())
                    check_stored(most, stored, unchecked=UNCHECKED_BLOCK)
                return Described(blocks, found.shape[1:], found.dtype)

        return _without_loop(look)

    def open(self, path: str) -> Handle:
        runner = asyncio.Runner()
        try:
            array = _without_loop(lambda: runner.run(_array(path)))
            _check_codecs(array.metadata)
            return runner, array
        except BaseException:
            runner.close()
            raise

    def close(self, handle: Handle) -> None:
        _without_loop(handle[0].close)

    def read(self, handle: Handle, block: int, start: int, stop: int) -> np.ndarray:
        runner, array = handle
        return _without_loop(lambda: np.asarray(runner.run(array.getitem(slice(start, stop)))))


def _array(path: str) -> Coroutine[object, object, AsyncArray]:
    return _library().open_array(store=path, mode="r")


async def _described_array(path: str) -> AsyncArray:
    """An array; of a group, the error says which arrays it has."""
    try:
        return await _array(path)
    except Exception as exc:
        names = await _arrays(path)
        if not names:
            raise
        raise ValueError(
            f"it is a group with the arrays {few(names)}: give the path of one, such as "
            f"{path.rstrip('/')}/{names[0]}"
        ) from exc


async def _arrays(path: str) -> list[str]:
    """The arrays of a group; none if there is no group."""
    try:
        group = await _library().open_group(store=path, mode="r")
        return sorted([name async for name, _ in group.arrays()])
    except Exception:  # the error of the array says more
        return []


def _library() -> ModuleType:
    with needing("zarr", "data"):
        from zarr.api import asynchronous
    return asynchronous


def _check_codecs(metadata: ArrayMetadata, said: str = "") -> None:
    names = [name.removeprefix("numcodecs.") for name in _codecs_of(metadata.to_dict())]
    others = sorted(set(names) - _CODECS)
    if others:
        raise ValueError(
            f"{said}its codec {others[0]!r} may run code that the data contain, and is not used: "
            f"write the array with one of {', '.join(sorted(_CODECS))}"
        )


def _codecs_of(entry: object) -> Iterator[str]:
    """The names of all codecs in an array's metadata, of either format, also inside of shards."""
    if isinstance(entry, Mapping):
        for key, value in entry.items():
            if key in ("codecs", "index_codecs", "filters", "compressor"):
                yield from _names(value)
            if key not in ("attributes", "fill_value"):
                yield from _codecs_of(value)
    elif isinstance(entry, list | tuple):
        for value in entry:
            yield from _codecs_of(value)


def _names(codecs: object) -> Iterator[str]:
    for codec in codecs if isinstance(codecs, list | tuple) else [codecs]:
        if isinstance(codec, Mapping):
            yield str(codec.get("name", codec.get("id")))
        elif codec is not None:
            yield str(getattr(codec, "codec_id", codec))


def _without_loop[T](call: Callable[[], T]) -> T:
    """Call in this thread, or in one of its own where an event loop runs here, as in notebooks."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return call()
    found: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            found.append(call())
        except BaseException as exc:
            raised.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return found[0]


@options_checked
def zarr(
    paths: object,
    *,
    skip: bool = False,
    check: bool = False,
    classes: int | None = None,
    keep: int = 10,
) -> FileSource:
    """Rows of zarr arrays (extra: data).

    Parameters
    ----------
    paths : path, list of paths, or a path that ends in .list
        The folder of an array: ``"data.zarr/x"`` for one in a group. zarr itself opens remote ones
        (``"s3://..."``); they are not copied.
    skip, check, classes, keep
        See `synkhronos.training.sources`.

    Returns
    -------
    FileSource

    Raises
    ------
    BackendMissing
    SourceError
        An array is damaged, or its rows differ from those of the first.

    Notes
    -----
    Cost: a block is decoded for any of its rows, and the last `keep` blocks stay in memory. A block
    is one chunk along the rows, or several that have 256 KB together. zarr decodes chunks in
    threads, which end with the loop of the Loader; those of drivers for remote storage may stay,
    so start the group before you make such a source.

    Do not read HDF5 and zarr in one process: they have deadlocked (hdmf-zarr issue 362).

    Examples
    --------
    >>> import asyncio, tempfile, numpy as np
    >>> from zarr.api import asynchronous
    >>> from synkhronos.training import sources
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = asyncio.run(asynchronous.array(np.arange(4.0), store=f"{folder}/x.zarr"))
    ...     sources.zarr(f"{folder}/x.zarr")[[3, 1]]
    array([3., 1.])
    """
    return FileSource(Zarr(), paths, Options(None, skip, check, classes, keep))
