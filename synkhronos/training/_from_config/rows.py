"""Rows as a config names them: files by their suffix, known and synthetic data, own functions.

These rules hold here:

* There is one array or source for each input, in the order of the inputs. Labels are the last ones.
* Nothing is read before the run. Another dtype, shape or scale, or a part of the rows, is a source
  around the source (`SourceView`).
* Rows get the dtype of their input if that is a cast of the same kind. Others stay as they are, and
  are refused later with both dtypes: a float must never become an integer in silence.
* A message begins with the path of the key, also one of a source.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import os
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from pytensor.graph.basic import Variable

from synkhronos._checks import shown
from synkhronos._errors import InputError, SourceError, SynkhronosError
from synkhronos._host import files
from synkhronos.extensions._rows.source import wants_ascending
from synkhronos.training import sources
from synkhronos.training._from_config.functions import called, function_of
from synkhronos.training._run.feeds import listed
from synkhronos.training.config import Config, Data
from synkhronos.training.sources._files import not_labels
from synkhronos.training.sources._images import class_names
from synkhronos.training.sources._lines import CSV

SUFFIXES = {
    ".npy": "npy",
    ".npz": "npz",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".hdf": "hdf5",
    ".zarr": "zarr",
    ".parquet": "parquet",
    ".pq": "parquet",
    **{ending: "csv" for ending in CSV},
    "-ubyte": "idx",
    "-ubyte.gz": "idx",
    ".idx": "idx",
    ".idx.gz": "idx",
}
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_SYNTHETIC = "synthetic:ROW,classes=N,n=ROWS,seed=S, such as synthetic:28x28,classes=10,n=60000"


def rows_of(config: Config, key: str, inputs: Sequence[Variable]) -> tuple[object, ...]:
    """The arrays or sources of ``data.train`` or ``data.validation``, one for each input.

    Raises
    ------
    InputError
        The value names nothing that can be read; the message begins with its path.
    SynkhronosError
        Of a source; the message begins with the path, too.
    """
    path = f"data.{key}"
    given = getattr(config.data, key)
    try:
        found = _found(config, given, key, inputs)
    except SynkhronosError as exc:
        if exc.args and isinstance(exc.args[0], str) and not exc.args[0].startswith("data."):
            exc.args = (f"{path}: {exc.args[0]}", *exc.args[1:])
        raise
    if len(found) != len(inputs):
        names = ", ".join(map(str, inputs))
        raise InputError(
            f"{path}: {shown(given)} gives {len(found)} arrays, and the network has the inputs "
            f"{names}: give one for each"
        )
    for rows, variable in zip(found, inputs, strict=True):
        if not isinstance(getattr(rows, "shape", None), tuple):
            raise InputError(
                f"{path}: {shown(given)} gives {shown(rows)} for {variable}, which has no shape: "
                "give an array, or a source with a shape and a dtype"
            )
    images, *others = found
    if config.data.axes == "NCHW":
        images = _channels_last(images)
    found = (_turned(images, config.data, inputs[0]), *others)
    if config.data.first_label:
        found = (*found[:-1], _from_zero(found[-1], config.data))
    found = (*found[:-1], _flat_labels(found[-1], inputs[-1]))
    return tuple(_fitted(rows, variable) for rows, variable in zip(found, inputs, strict=True))


def split(rows: tuple[Any, ...], share: float) -> tuple[tuple[object, ...], tuple[object, ...]]:
    """The rows before the last ones, and this share of all rows, which are the last ones.

    Raises
    ------
    InputError
        One of both parts would have no rows.
    """
    n = len(rows[0])
    kept = n - int(n * share)
    if not 0 < kept < n:
        raise InputError(f"data.split: {share} of {n} rows leaves one part without rows")
    return tuple(_part(v, 0, kept) for v in rows), tuple(_part(v, kept, n) for v in rows)


def first(rows: tuple[Any, ...], n: int) -> tuple[object, ...]:
    """The first n rows of arrays and sources."""
    return tuple(_part(v, 0, min(n, len(v))) for v in rows)


def _part(rows: object, start: int, stop: int) -> object:
    return (
        rows[start:stop]
        if isinstance(rows, np.ndarray)
        else SourceView(rows, start=start, stop=stop)
    )


class SourceView:
    """A source as another dtype, another shape or scale, or a part of its rows: a source, too."""

    def __init__(
        self,
        source: Any,
        dtype: Any = None,  # default: that of the source
        *,
        start: int = 0,
        stop: int | None = None,  # of the rows, as `start`. Default: all
        row: Sequence[int] | None = None,  # the shape of a row. Default: that of the source
        scale: float | None = None,
        change: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> None:
        self._source = source
        self._change = change  # makes the rows of those of the source, before all else
        self._start = start
        self._scale = scale  # values are divided by it
        last = len(source) if stop is None else stop
        self.shape = (last - start, *(source.shape[1:] if row is None else row))
        self.dtype = np.dtype(source.dtype if dtype is None else dtype)
        blocks = getattr(source, "blocks", None)
        self.blocks = None if blocks is None else _blocks_of(blocks, start, last)
        self.skips = getattr(source, "skips", False)
        self.ascending = wants_ascending(source)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: Any) -> object:
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        try:
            found = self._source[np.asarray(rows) + self._start if self._start else rows]
        except SourceError as exc:
            exc.lost = tuple(row - self._start for row in exc.lost)
            raise
        if self._change is not None:
            found = self._change(found)
        found = found.astype(self.dtype, copy=False)
        if self._scale is not None:
            found = found / self.dtype.type(self._scale)
        return found.reshape((*np.shape(rows), *self.shape[1:]))

    def reading(self) -> AbstractContextManager[object]:
        """A context in which the source may keep files open."""
        reading = getattr(self._source, "reading", None)
        return contextlib.nullcontext() if reading is None else reading()


def _blocks_of(blocks: Sequence[int], start: int, stop: int) -> tuple[int, ...]:
    """The parts of blocks that are between two rows."""
    edges = np.clip(np.concatenate([[0], np.cumsum(blocks)]), start, stop)
    return tuple(int(n) for n in np.diff(edges) if n)


def _turned(rows: Any, data: Data, variable: Any) -> object:
    """The rows in the shape and on the scale that the config gives."""
    if data.shape is None and data.scale is None:
        return rows
    row = tuple(rows.shape[1:] if data.shape is None else data.shape)
    if math.prod(row) != math.prod(rows.shape[1:]):
        raise InputError(
            f"data.shape: {list(row)} has {math.prod(row)} values, and rows have the shape "
            f"{list(rows.shape[1:])}"
        )
    dtype = rows.dtype
    if data.scale is not None:
        dtype = np.dtype(variable.type.dtype)
        if dtype.kind != "f":
            raise InputError(
                f"data.scale: the input {variable} is {dtype}, and a quotient is not an integer: "
                "take it out"
            )
    if isinstance(rows, np.ndarray):
        found = rows.reshape((len(rows), *row))
        return found if data.scale is None else found.astype(dtype) / dtype.type(data.scale)
    return SourceView(rows, dtype, row=row, scale=data.scale)


def _channels_last(rows: Any) -> object:
    """Images (rows, channels, height, width) with the channels at the end."""
    if len(rows.shape) != 4:
        raise InputError(
            f'data.axes: "NCHW" is for images, and rows have the shape {list(rows.shape[1:])}'
        )
    if isinstance(rows, np.ndarray):
        return np.ascontiguousarray(_moved(rows))
    _, channels, height, width = rows.shape
    return SourceView(rows, row=(height, width, channels), change=_moved)


def _moved(images: np.ndarray) -> np.ndarray:
    return np.moveaxis(images, -3, -1)


def _from_zero(labels: Any, data: Data) -> object:
    """Labels that begin at another number."""
    classes = data.classes if isinstance(data.classes, int) else None
    change = functools.partial(_less, data.first_label, classes)
    if isinstance(labels, np.ndarray):
        return change(labels)
    return SourceView(labels, change=change)


def _less(first: int, classes: int | None, labels: np.ndarray) -> np.ndarray:
    wrong = labels[not_labels(labels, first, np.inf if classes is None else first + classes)]
    if wrong.size:
        raise SourceError(f"data.first_label: a label is {wrong[0]}, and the first class {first}")
    return labels - labels.dtype.type(first)


def _flat_labels(labels: Any, variable: Any) -> object:
    """Labels (rows, 1) as (rows,), for an input that is a vector."""
    if labels.shape[1:] != (1,) or variable.type.ndim != 1:
        return labels
    return labels.reshape(-1) if isinstance(labels, np.ndarray) else SourceView(labels, row=())


def _fitted(rows: object, variable: Any) -> object:
    """The rows in the dtype of an input, if it is of the same kind; others are refused later."""
    wanted = np.dtype(getattr(variable.type, "dtype", None))
    found = getattr(rows, "dtype", wanted)
    if found == wanted or not np.can_cast(found, wanted, "same_kind"):
        return rows
    return rows.astype(wanted) if isinstance(rows, np.ndarray) else SourceView(rows, wanted)


def _found(
    config: Config, given: object, key: str, inputs: Sequence[Variable]
) -> tuple[object, ...]:
    if isinstance(given, str):
        kind, colon, rest = given.partition(":")
        if colon and kind == "known":
            return _known(rest, key)
        if colon and kind == "synthetic":
            return _synthetic(given)
        if _FUNCTION.fullmatch(given):
            made = called(function_of(given, config.base, f"data.{key}"), {}, f"data.{key}")
            return tuple(listed(made))
    return _files(config.data, config.base, given, inputs, key)


def _known(name: str, key: str) -> tuple[object, ...]:
    name, _, part = name.partition("/")
    split = sources.known(name)
    parts = {"train": split.train, "validation": split.validation, "test": split.test}
    if (part or key) not in parts:
        raise InputError(f"known:{name} has no part {part!r}; there are {', '.join(parts)}")
    return parts[part or key]


def _synthetic(text: str) -> tuple[object, ...]:
    row, *rest = text.partition(":")[2].split(",")
    try:
        shape = [int(n) for n in row.split("x")]
        options = {name.strip(): int(n) for name, n in (part.split("=") for part in rest)}
    except ValueError:
        raise InputError(f"found {shown(text)}, give {_SYNTHETIC}") from None
    if not {"classes", "n"} <= options.keys() <= {"classes", "n", "seed"}:
        raise InputError(f"found {shown(text)}, give {_SYNTHETIC}")
    source = sources.synthetic(shape, **options)
    return source, source.labels


def _files(
    data: Data, base: str, given: object, inputs: Sequence[Variable], key: str
) -> tuple[object, ...]:
    paths = _absolute(given, base)
    kind = data.format or _format_of(paths)
    if kind == "images":
        if not isinstance(paths, str):
            raise InputError(f"found {shown(given)}, give one folder with a subfolder for a class")
        return _images(data, base, paths, key)
    reader: Any = getattr(sources, kind)
    takes = inspect.signature(reader).parameters  # a config names its options as it does
    options = {name: getattr(data, name) for name in takes if hasattr(data, name)}
    if data.cache is not None and "cache" in options:
        options["cache"] = _joined(data.cache, base)
    last = len(inputs) - 1  # the labels
    classes = None if data.first_label else data.classes  # else `_from_zero` compares
    return tuple(
        reader(*place, **options | {"classes": classes if i == last else None})
        for i, place in enumerate(_places(data, kind, paths, list(takes.values()), inputs))
    )


def _places(
    data: Data,
    kind: str,
    paths: Any,
    takes: Sequence[inspect.Parameter],
    inputs: Sequence[Variable],
) -> list[tuple[object, ...]]:
    """Where each array is: paths, and a name if the reader takes one after them."""
    named = takes[1].kind is not inspect.Parameter.KEYWORD_ONLY
    if not named and (kind != "zarr" or data.arrays is None):
        return [(path,) for path in ([paths] if isinstance(paths, str) else paths)]
    names = ["images", "labels"] if kind == "cifar10" else data.arrays
    if names is None:
        raise InputError(
            f"{kind} files hold several arrays: give data.arrays, a list with a name for each "
            f"input ({', '.join(map(str, inputs))})"
        )
    for i, name in enumerate(names):
        if not isinstance(name, str) and takes[1].name != "columns":
            raise InputError(f"data.arrays[{i}]: found {shown(name)}, give a name")
    flat = _flat(paths)
    if named:
        return [(flat, name) for name in names]
    return [([f"{path}/{name}" for path in flat],) for name in names]


def _images(data: Data, base: str, folder: str, key: str) -> tuple[object, ...]:
    """Images and labels; in the rows for validation a class has its number in those to train on."""
    lists: dict[str, Any] = {}
    if not Path(folder).is_dir():
        root = None if data.root is None else _joined(data.root, base)
        columns = None if data.arrays is None else tuple(data.arrays)
        lists = {"columns": columns, "root": root, "ending": data.ending}
    classes: Any = data.classes
    train = _absolute(data.train, base)
    named = isinstance(classes, list)
    if key != "train" and not named and isinstance(train, str) and os.path.exists(train):
        classes = class_names(train, **({} if Path(train).is_dir() else lists)) or classes
    source = sources.images(
        folder,
        **lists,
        classes=classes,
        resize=data.resize,
        mode=data.channels,
        dtype=data.dtype,
        orientation=data.orientation,
        skip=data.skip,
    )
    return source, source.labels


def _absolute(given: Any, base: str) -> Any:
    return _joined(given, base) if isinstance(given, str) else [_absolute(g, base) for g in given]


def _joined(path: str, base: str) -> str:
    return path if "://" in path or "::" in path else os.path.join(base, path)


def _flat(paths: Any) -> list[str]:
    if isinstance(paths, str):
        return [paths]
    return [path for each in paths for path in _flat(each)]


def _format_of(paths: Any) -> str:
    """The format of files, by the suffix of the first; of a list of files by its first line."""
    flat = _flat(paths)
    if not flat:
        raise InputError("found [], give a path or a list of paths")
    name = flat[0]
    if name.lower().endswith(".list"):
        try:
            lines = files.read_text(name, most=None).split("\n")
        except (OSError, UnicodeDecodeError) as exc:
            raise InputError(f"the list {name} cannot be read: {exc}") from None
        name = next((t.strip() for t in lines if t.strip() and not t.startswith("#")), name)
    plain = name.rstrip("/").lower()
    if known := next((kind for end, kind in SUFFIXES.items() if plain.endswith(end)), None):
        return known
    if Path(name).is_dir():
        return "images"
    raise InputError(
        f"the format of {name} is not known: its name ends in none of {', '.join(SUFFIXES)}: give "
        "data.format; other kinds are known:NAME, synthetic:..., and module:function"
    )
