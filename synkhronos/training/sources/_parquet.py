"""Parquet files, by pyarrow."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

import synkhronos.training.sources._columns as tables
from synkhronos._checks import options_checked
from synkhronos._host.files import check_regular
from synkhronos.training.sources._files import (
    UNCHECKED_BLOCK,
    Described,
    FileSource,
    Format,
    Options,
    check_listed,
    check_stored,
)

PARQUET = (".parquet", ".pq")
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4}  # bytes of values in memory, where not 8
_LISTED = 1 << 14  # rows of a list that are read together


@dataclass(frozen=True)
class Parquet(Format):
    """Columns of each file: one of them, or several side by side."""

    columns: str | tuple[str, ...]
    labels: tuple[str, ...] | None = None

    name = "parquet"
    endings: ClassVar[tuple[str, ...]] = PARQUET

    def describe(self, path: str) -> Described:
        file = self.open(path)
        try:
            return self._described(file, os.path.getsize(path))
        finally:
            self.close(file)

    def _described(self, file: tables.File, stored: int) -> Described:
        meta, schema = file.metadata, file.schema_arrow
        blocks = tuple([meta.row_group(i).num_rows for i in range(meta.num_row_groups)])
        names = tables.selected(self.columns, schema.names)
        _check_values(meta, names, stored)
        kinds = [tables.kind_of(name, schema.field(name).type, self.labels) for name in names]
        if tables.is_one(self.columns, schema.names):
            row, dtype = kinds[0]
            if not all(row) and any(blocks):
                row = tables.first_shape(names[0], _first_row(file, blocks, names), row)
                _check_lengths(file, names[0], row, self.labels)
            return Described(blocks, row, dtype)
        if any(row for row, _ in kinds):
            raise ValueError("columns of lists cannot be side by side: name one as a str")
        return Described(blocks, (len(kinds),), np.result_type(*[dtype for _, dtype in kinds]))

    def open(self, path: str) -> tables.File:
        return _opened(path)

    def close(self, handle: tables.File) -> None:
        handle.close(force=True)

    def read(self, handle: tables.File, block: int, start: int, stop: int) -> np.ndarray:
        schema = handle.schema_arrow
        names = tables.selected(self.columns, schema.names)
        kinds = [tables.kind_of(name, schema.field(name).type, self.labels) for name in names]
        table = handle.read_row_group(block, columns=names, use_threads=False)
        stored = _stored(handle.metadata.row_group(block))
        check_stored(_length_of_texts(table), stored, unchecked=UNCHECKED_BLOCK)
        rows = [row for row, _ in kinds]

        def where(row: int) -> str:
            return self.where(handle, start + row)

        if table.num_rows and not all(rows[0]):
            rows[0] = tables.first_shape(names[0], table.column(names[0]), rows[0])
        found = [
            tables.values_of(name, table.column(name), row, self.labels, where)
            for name, row in zip(names, rows, strict=True)
        ]
        if tables.is_one(self.columns, schema.names):
            return found[0]
        return tables.side_by_side(names, found, np.result_type(*[k for _, k in kinds]), where)

    def where(self, handle: tables.File, row: int) -> str:
        """Where a row stands in its file, for messages."""
        return f"row {row} of the file"


def _opened(path: str) -> tables.File:
    """A file whose texts are not yet repeated for each row, as a few bytes of it may say."""
    library = tables.parquet_of()
    meta = library.read_metadata(path, memory_map=True)
    leaves = [meta.schema.column(i) for i in range(meta.num_columns)]
    texts = [i for i, leaf in enumerate(leaves) if leaf.physical_type == "BYTE_ARRAY"]
    # read ahead by pyarrow needs a thread, which stays
    return library.ParquetFile(
        path, metadata=meta, memory_map=True, pre_buffer=False, read_dictionary=texts
    )


def _chunks(group: Any, names: Sequence[str]) -> list[Any]:
    """The chunks of some columns in a row group; lists and structs have several."""
    begins = tuple([f"{name}." for name in names])
    return [
        chunk
        for chunk in map(group.column, range(group.num_columns))
        if chunk.path_in_schema in names or chunk.path_in_schema.startswith(begins)
    ]


def _stored(group: Any) -> int:
    """The bytes of a row group in the file, as it says."""
    return sum(group.column(j).total_compressed_size for j in range(group.num_columns))


def _check_values(meta: Any, names: Sequence[str], stored: int) -> None:
    """Refuse columns that say they have far more values than the file explains."""
    sizes = [0]
    groups = [meta.row_group(i) for i in range(meta.num_row_groups)]
    if sum(map(_stored, groups)) > stored:
        raise ValueError("it is damaged: its row groups have more bytes than the file")
    for group in groups:
        size = 0
        for chunk in _chunks(group, names):
            values = max(chunk.num_values, group.num_rows)
            width = _WIDTHS.get(chunk.physical_type, 8)
            size += max(values * width, chunk.total_uncompressed_size)
        sizes.append(size)
    check_stored(max(sizes), stored, unchecked=UNCHECKED_BLOCK)
    check_stored(sum(sizes), stored)


def _length_of_texts(table: Any) -> int:
    return sum(tables.text_bytes(column) for column in table.columns)


def columns_of(path: str, columns: Sequence[str]) -> tuple[list[list[Any]], list[str]]:
    """The values of some columns, None where there is nothing, and the row of each.

    Raises
    ------
    ValueError
        There is no such column, it has lists, or the file is damaged.
    """
    check_regular(path)
    file, stored = _opened(path), os.path.getsize(path)
    try:
        names = tables.selected(columns, file.schema_arrow.names)
        for name in names:
            tables.check_flat(name, file.schema_arrow.field(name).type)
        check_listed(file.metadata.num_rows, 0, stored)
        _check_values(file.metadata, names, stored)
        found: list[list[Any]] = [[] for _ in names]
        size = 0
        for batch in file.iter_batches(_LISTED, columns=names, use_threads=False):
            size += _length_of_texts(batch)
            check_listed(len(found[0]) + len(batch), size, stored)
            for values, name in zip(found, names, strict=True):
                values += tables.plain(batch.column(name)).to_pylist()
    finally:
        file.close(force=True)
    return found, [f"row {row}" for row in range(len(found[0]))]


def _check_lengths(
    file: tables.File, name: str, row: tuple[int, ...], labels: Sequence[str] | None
) -> None:
    """Name a row with another length, in a group that has more or fewer values than its rows."""
    meta, start = file.metadata, 0
    for i in range(meta.num_row_groups):
        group = meta.row_group(i)
        stored = [chunk.num_values for chunk in _chunks(group, [name])]
        if stored != [group.num_rows * math.prod(row)]:
            table = file.read_row_group(i, columns=[name], use_threads=False)
            tables.values_of(name, table.column(0), row, labels, _from(start))
        start += group.num_rows


def _from(start: int) -> tables.Where:
    """Names rows of a file by their number in a part that begins at `start`."""
    return lambda row: f"row {start + row} of the file"


def _first_row(file: tables.File, blocks: Sequence[int], names: list[str]) -> object:
    group = next(i for i, rows in enumerate(blocks) if rows)
    batches = file.iter_batches(1, [group], columns=names, use_threads=False)
    return next(batches).column(0)


@options_checked
def parquet(
    paths: object,
    columns: str | list[str] | tuple[str, ...],
    *,
    cache: str | os.PathLike[str] | None = None,
    skip: bool = False,
    check: bool = False,
    classes: int | Sequence[str] | None = None,
    keep: int = 10,
) -> FileSource:
    """Rows of columns in Parquet files (extra: data).

    Parameters
    ----------
    paths : path, list of paths, or a path that ends in .list
        See `synkhronos.training.sources`, also for the options. A folder stands for the files in
        it that end in .parquet or .pq, in the order of their names.
    columns : str or list of str
        One column: a row is a number, or has the length of the column's lists, which is the same in
        all rows. Several columns of numbers: a row is a vector of them, in their common dtype.
        ``"a:c"`` stands for all columns from a to c.
    classes : int, or list of str, optional
        As for all readers; or the texts of a column in the order of their numbers, which are the
        rows then.
    cache, skip, check, keep
        See `synkhronos.training.sources`.

    Returns
    -------
    FileSource

    Raises
    ------
    BackendMissing
    SourceError
        A file is damaged or has no such column, or its rows differ from those of the first file.

    Notes
    -----
    Cost: a row group is decoded for any of its rows, the named columns only; the last `keep` row
    groups stay in memory. The group is the block.

    A null is an error, and so is an integer beyond 2**53 where the common dtype is float64.

    Examples
    --------
    >>> import tempfile, pyarrow, pyarrow.parquet
    >>> from synkhronos.training import sources
    >>> with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
    ...     table = pyarrow.table({"a": [0.0, 1.0, 2.0], "b": [5.0, 6.0, 7.0]})
    ...     pyarrow.parquet.write_table(table, file.name)
    ...     sources.parquet(file.name, ["a", "b"])[[2, 0]]
    array([[2., 7.],
           [0., 5.]])
    """
    names = columns if isinstance(columns, str) else tuple(columns)
    labels = tables.check_classes("parquet", classes)
    number = None if isinstance(labels, tuple) else labels
    kind = Parquet(names, labels if isinstance(labels, tuple) else None)
    return FileSource(kind, paths, Options(cache, skip, check, number, keep))
