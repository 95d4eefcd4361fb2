"""CSV files as files of Parquet: each column has one type, which all of its lines have."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from synkhronos._checks import shown
from synkhronos._host import files
from synkhronos.training.sources._columns import EXACT, File, Values, arrow, parquet_of
from synkhronos.training.sources._lines import Dialect, Texts, blocks_of

_TYPES = ("int64", "uint64", "double", "bool", "string")  # each is tried if the one before fails
_FLOATS, _TEXT = _TYPES.index("double"), _TYPES.index("string")
_GROUP = 1 << 22  # bytes of numbers in a row group
_KEY = "synkhronos.csv"  # of what we say of the columns, in the file's metadata

_BEGINS = (*"0123456789.",)  # of numbers

type Place = tuple[int, str]  # a line of the file, and what is there


@dataclass(frozen=True)
class Column:
    """The type of a column, and what is odd about its texts."""

    kind: int = 0  # a position in `_TYPES`
    holes: int = 0  # fields in which there is nothing; `hole` is the line of the first
    hole: int = 0
    text: Place | None = None  # the first field that is no number, if there is one
    digits: Place | None = None  # the first number that is not among the floats of its column


def convert(path: str, dialect: Dialect, target: Path) -> None:
    """Write a CSV file as Parquet, whole or not at all.

    Raises
    ------
    ValueError
        A line cannot be read; the message begins with its number.
    OSError
    """
    files.make_folder(target.parent)
    with files.draft(target, mode=files.OWN_FILE) as file:
        before = version_of(path)
        columns: list[Column] = []
        while not _write(path, dialect, columns, files.name_of(file.fileno())):
            # later lines have other values than the first ones, and `columns` has wider types now
            columns[:] = [Column(c.kind, text=c.text) for c in columns]
        if version_of(path) != before:
            raise OSError("the file was written while it was converted. Try again")


def version_of(path: str) -> tuple[int, int]:
    """The stamp that changes when a file is written."""
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns


def remarks_of(file: File) -> tuple[int, list[Column]]:
    """The line of the first row of a file that was converted, and what is odd in its columns.

    The line is 0 where some rows have several lines.
    """
    found = json.loads(file.metadata.metadata[_KEY.encode()])
    return found["line"], [Column(*column) for column in found["columns"]]


def _write(path: str, dialect: Dialect, columns: list[Column], draft: str) -> bool:
    """Write all lines; if the types of `columns` do not do, they become wider: then False."""
    line, one_each, fits, writer = 0, True, True, None
    with contextlib.ExitStack() as stack:
        for texts in blocks_of(path, dialect):
            columns += [Column()] * (len(texts.names) - len(columns))
            one_each &= len(texts.begins) == texts.raw.count(b"\n")
            before = [column.kind for column in columns]
            arrays = []
            for i in range(len(columns)):
                columns[i], array = _typed(texts, i, columns[i], dialect)
                arrays.append(array)
            if writer is None:
                line = texts.first
                table = arrow().Table.from_arrays(arrays, list(texts.names))
                writer = stack.enter_context(_writer(draft, table.schema))
            elif before != [column.kind for column in columns]:
                fits = False
            if fits:
                table = arrow().Table.from_arrays(arrays, schema=table.schema)
                writer.write_table(table, max(1, _GROUP // (8 * len(columns))))
        if writer is None:
            raise ValueError("it has no rows")
        line = line if one_each else 0
        said = [[c.kind, c.holes, c.hole, c.text, c.digits] for c in columns]
        writer.add_key_value_metadata({_KEY: json.dumps({"line": line, "columns": said})})
    return fits


def _writer(draft: str, schema: Any) -> Any:
    texts = [field.name for field in schema if field.type == "string"]
    return parquet_of().ParquetWriter(draft, schema, compression="none", use_dictionary=texts)


def _typed(texts: Texts, index: int, column: Column, dialect: Dialect) -> tuple[Column, Values]:
    """The fields of a column as values of its type, or of a wider one."""
    fields, empty = _without_holes(texts.columns[index])
    kind, found, numbers = column.kind, None, _plain(fields, dialect)
    if kind < _TEXT:
        kind, found = _narrowest(numbers, kind)
    if found is None and column.kind < _TEXT:
        # spaces around numbers are no part of them; around texts they are
        trimmed, all_empty = _without_holes(arrow().compute.ascii_trim_whitespace(fields))
        numbers = _plain(trimmed, dialect)
        kind, found = _narrowest(numbers, column.kind)
        empty = all_empty if found is not None else empty
    if empty.any():
        first = column.hole or texts.line(int(empty.argmax()))
        column = replace(column, holes=column.holes + int(empty.sum()), hole=first)
    if found is None:
        found = fields
        if column.text is None and len(fields) > fields.null_count:
            column = replace(column, text=_place(texts, index, _first_text(numbers)))
    elif kind == _FLOATS and column.digits is None:
        row = _lost_digits(numbers, found)
        column = replace(column, digits=None if row is None else _place(texts, index, row))
    return replace(column, kind=kind), found


def _without_holes(fields: Values) -> tuple[Values, np.ndarray]:
    """The fields with nulls where there is nothing, and where this is."""
    compute = arrow().compute
    lengths = compute.fill_null(compute.binary_length(fields), 0)
    empty = lengths.to_numpy(zero_copy_only=False) == 0
    if not empty.any():
        return fields, empty
    return compute.if_else(arrow().array(empty), None, fields), empty


def _plain(fields: Values, dialect: Dialect) -> Values:
    """Numbers with a point before their decimals."""
    if dialect.decimal == ".":
        return fields
    compute = arrow().compute
    wrong = compute.replace_substring(fields, ".", "x")  # in 1.234 it would be for thousands
    return compute.replace_substring(wrong, dialect.decimal, ".")


def _narrowest(fields: Values, kind: int) -> tuple[int, Values]:
    """The fields as values of the first type from `kind` on that takes all; of text None."""
    for wider in range(kind, _TEXT):
        found = _cast(fields, _TYPES[wider])
        if found is not None:
            return wider, found
    return _TEXT, None


def _cast(fields: Values, kind: str) -> Values:
    try:
        found = fields.cast(kind)
    except arrow().ArrowInvalid:
        return None
    if kind.endswith("int64"):
        compute = arrow().compute
        has_x = compute.any(compute.match_substring(fields, "x", ignore_case=True))
        return None if has_x.as_py() else found  # pyarrow takes 0x10, which is not decimal
    return found


def _first_text(fields: Values) -> int:
    """The first row that is no number, of rows that are not all numbers."""
    low, high = 0, len(fields)
    while high - low > 1:
        middle = (low + high) // 2
        if _cast(fields.slice(low, middle - low), "double") is None:
            high = middle
        else:
            low = middle
    return low


def _lost_digits(fields: Values, found: Values) -> int | None:
    """The first row whose number is too large for a float, or an integer between two floats."""
    values = arrow().compute.fill_null(found, 0.0).to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(np.abs(values) >= EXACT).tolist():
        text = fields[row].as_py().strip().lstrip("+-").lstrip("0")
        whole = text.isdigit()
        if np.isinf(values[row]):
            if text[:1] in _BEGINS:  # and not a word, such as inf
                return int(row)
        elif whole and int(text) != abs(int(values[row])):
            return int(row)
    return None


def _place(texts: Texts, index: int, row: int) -> Place:
    return texts.line(row), shown(texts.columns[index][row].as_py())
