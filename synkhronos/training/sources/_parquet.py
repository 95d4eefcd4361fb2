"""Parquet files, by pyarrow."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from synkhronos._checks import options_checked
from synkhronos._errors import BackendMissing
from synkhronos.training.sources._files import Described, FileSource, Format, Options


@dataclass(frozen=True)
class Parquet(Format):
    """Columns of each file: one of them, or several side by side."""

    columns: str | tuple[str, ...]

    name = "parquet"

    def describe(self, path: str) -> Described:
        file = self.open(path)
        try:
            meta = file.metadata
            blocks = tuple([meta.row_group(i).num_rows for i in range(meta.num_row_groups)])
            schema = file.schema_arrow
        finally:
            self.close(file)
        missing = [name for name in self._names if name not in schema.names]
        if missing:
            raise ValueError(f"it has no column {missing}; there are {', '.join(schema.names)}")
        kinds = [_kind(schema.field(name)) for name in self._names]
        if isinstance(self.columns, str):
            return Described(blocks, kinds[0][0], kinds[0][1])
        if any(row for row, _ in kinds):
            raise ValueError("columns of lists cannot be side by side: name one as a str")
        return Described(blocks, (len(kinds),), np.result_type(*[dtype for _, dtype in kinds]))

    def open(self, path: str) -> Any:
        try:
            from pyarrow.parquet import ParquetFile
        except ImportError:
            raise BackendMissing("pyarrow", "data") from None
        # read ahead by pyarrow needs a thread, which stays
        return ParquetFile(path, memory_map=True, pre_buffer=False)

    def close(self, handle: Any) -> None:
        handle.close(force=True)

    def read(self, handle: Any, block: int, start: int, stop: int) -> np.ndarray:
        table = handle.read_row_group(block, columns=list(self._names), use_threads=False)
        found = [_values(name, table.column(name)) for name in self._names]
        return found[0] if isinstance(self.columns, str) else np.stack(found, axis=1)

    @property
    def _names(self) -> tuple[str, ...]:
        return (self.columns,) if isinstance(self.columns, str) else self.columns


def _kind(field: Any) -> tuple[tuple[int, ...], np.dtype]:
    """The shape of a row and the dtype of a column: numbers, or lists of a fixed length of them."""
    kind = field.type
    row: tuple[int, ...] = ()
    if hasattr(kind, "list_size"):
        kind, row = kind.value_type, (kind.list_size,)
    return row, np.dtype(kind.to_pandas_dtype())


def _values(name: str, column: Any) -> np.ndarray:
    array = column.combine_chunks()
    if array.null_count:
        raise ValueError(f"column {name!r} has {array.null_count} nulls")
    if hasattr(array.type, "list_size"):
        flat = array.flatten()
        if flat.null_count:
            raise ValueError(f"column {name!r} has {flat.null_count} nulls")
        return flat.to_numpy(zero_copy_only=False).reshape(-1, array.type.list_size)
    return array.to_numpy(zero_copy_only=False)


@options_checked
def parquet(
    paths: Any,
    columns: str | list[str] | tuple[str, ...],
    *,
    cache: str | os.PathLike[str] | None = None,
    skip: bool = False,
    check: bool = False,
    classes: int | None = None,
    keep: int = 10,
) -> FileSource:
    """Rows of columns in Parquet files (extra: data).

    Parameters
    ----------
    paths : path, list of paths, or a path that ends in .list
        See `synkhronos.training.sources`, also for the options.
    columns : str or list of str
        One column: a row is a number, or has the fixed length of the column's lists. Several
        columns of numbers: a row is a vector of them, in their common dtype.
    cache, skip, check, classes, keep
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
    groups stay in memory. The group is the block. A null is an error.

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
    return FileSource(Parquet(names), paths, Options(cache, skip, check, classes, keep))
