"""CSV files, which are converted once, to files of Parquet."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from synkhronos._checks import check_flag, check_integer, check_word, options_checked, shown
from synkhronos._errors import InputError, SourceError
from synkhronos._host.secrets import without_secrets
from synkhronos._warnings import log
from synkhronos.training.sources._columns import (
    File,
    Kind,
    Values,
    check_classes,
    check_exact,
    is_text,
    selected,
)
from synkhronos.training.sources._conversion import convert, remarks_of, version_of
from synkhronos.training.sources._copies import is_remote, name_of_copy, on_this_machine
from synkhronos.training.sources._files import Described, FileSource, Options
from synkhronos.training.sources._lines import CSV, Dialect, separator_of
from synkhronos.training.sources._parquet import Parquet
from synkhronos.training.sources._paths import cache_folder

_FORMAT = 2  # of converted files; another number when they become others


@dataclass(frozen=True)
class Csv(Parquet):
    """Columns of CSV files, by the files of Parquet that they are converted to."""

    dialect: Dialect = field(default_factory=Dialect)

    name = "csv"
    endings = CSV
    mixed = True

    def place(self, path: str, cache: str | None, described: str = "") -> str:
        if described and os.path.exists(described):
            return described
        raw = on_this_machine(path, cache)
        dialect = replace(self.dialect, separator=self.dialect.separator or separator_of(path))
        copied = is_remote(path) and cache is not None
        origin = path if is_remote(path) else os.path.abspath(path)
        version = os.path.basename(raw) if copied else repr(version_of(raw))
        name = name_of_copy(repr((_FORMAT, origin, dialect)), version, f"{raw}.parquet")
        target = Path(cache or cache_folder("csv")) / name
        if described and os.path.basename(described) != name:
            raise OSError("the file has changed since the source was made. Make the source anew")
        if not target.exists():
            convert(raw, dialect, target)
            log.info("csv: %s is converted into %s", without_secrets(path), target)
        return str(target)

    def _described(self, file: File, stored: int) -> Described:
        line, remarks = remarks_of(file)
        names = file.schema_arrow.names
        try:
            wanted = selected(self.columns, names)
        except ValueError as exc:
            raise ValueError(f"line {max(1, line - 1)}: {exc}") from None
        for name in wanted:
            self._check(name, remarks[names.index(name)], file.schema_arrow.field(name).type)
        return super()._described(file, stored)

    def _check(self, name: str, column: Values, kind: Kind) -> None:
        """Refuse a column with holes, texts or integers that would not be the numbers wanted."""
        if column.holes:
            more = f"; it has {column.holes} such lines" if column.holes > 1 else ""
            raise ValueError(
                f"line {column.hole}, column {name!r}: found nothing: fill it, or leave out the "
                f"line{more}"
            )
        if is_text(kind) and self.labels is None:
            line, text = column.text
            raise ValueError(f"line {line}, column {name!r}: found {text}, {_cure(text)}")
        if column.digits is not None:
            line, text = column.digits
            raise ValueError(
                f"line {line}, column {name!r}: found {text}, which float64, the type of the "
                "column, does not hold: write integers only, or two columns; or a number below "
                "1.8e308, or inf"
            )

    def where(self, handle: File, row: int) -> str:
        first = remarks_of(handle)[0]
        return f"line {first + row}" if first else super().where(handle, row)

    def cast(self, rows: np.ndarray, dtype: np.dtype, start: int) -> np.ndarray:
        each = rows[:1].size
        check_exact(
            shown(self.columns),
            rows.reshape(-1),
            dtype,
            lambda i: f"row {start + i // each} of the file",
        )
        return rows.astype(dtype)


def _cure(text: str) -> str:
    plain = text.strip("'\"").lstrip("+-")
    if plain.replace(",", "").isdigit() and plain.count(",") == 1:
        return "which is no number with decimal='.': give decimal=','"
    return (
        "which is no number: mend it, or give classes=, the list of the column's texts in the "
        "order of their numbers"
    )


@options_checked
def csv(
    paths: object,
    columns: str | list[str] | tuple[str, ...],
    *,
    cache: str | os.PathLike[str] | None = None,
    skip: bool = False,
    check: bool = False,
    classes: int | Sequence[str] | None = None,
    keep: int = 10,
    separator: str | None = None,
    decimal: str = ".",
    header: bool = True,
    skip_lines: int = 0,
) -> FileSource:
    r"""Rows of columns in CSV files, also ``.tsv``, ``.gz`` and ``.zst`` (extra: data).

    A file is converted once, into a file of Parquet in the folder `cache`. All lines together say
    the type of a column: int64, uint64, float64, bool, or text.

    Parameters
    ----------
    paths : path, list of paths, or a path that ends in .list
        See `synkhronos.training.sources`, also for the options. A folder stands for the CSV files
        in it, in the order of their names.
    columns : str or list of str
        As for `parquet`: one column, or several side by side; ``"a:c"`` stands for all from a to c.
    cache : path, optional
        The folder of converted files, and of copies of remote ones. Default: ``synkhronos/csv`` in
        the user's folder for caches, ``$XDG_CACHE_HOME`` or ``~/.cache``.
    classes : int, or list of str, optional
        As for all readers; or the texts of a column in the order of their numbers, which are the
        rows then.
    skip, check, keep
        See `synkhronos.training.sources`.
    separator : str, optional
        Between fields. Default: a tab in ``.tsv`` and ``.tab``, else a comma.
    decimal : {".", ","}
        What is before the decimals of a number.
    header : bool
        Whether the first line has the names of the columns. If not, they are "0", "1", ...
    skip_lines : int, not negative
        Lines before the header, or before the first row.

    Returns
    -------
    FileSource

    Raises
    ------
    BackendMissing
    SourceError
        A line has more or fewer fields than the first one. In a column that is asked for there is a
        hole, a text that is no number and has no number by `classes`, or a number that its type
        does not hold. Files have other columns than the first. The message names file, line and
        column.

    Notes
    -----
    Cost: see `benchmarks/sources.py --csv` for the seconds of a conversion, which needs little
    memory and no thread. Afterwards as `parquet`: a block of some ten thousand rows is decoded for
    any of them. A file that has changed is converted under another name: remove old ones when no
    program reads them.

    Quotes are as in RFC 4180: a field with separators or ends of lines has quotes around it, and a
    quote in it is written twice. An empty line is an error, except at the end of the file. A line
    ends with a line feed, a carriage return, or both.

    Numbers are decimal, as Python's ``float`` takes them, also ``nan`` and ``inf``. A number beyond
    1.8e308, which ``float`` makes infinite, is an error.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from synkhronos.training import sources
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "flowers.csv"
    ...     _ = path.write_text("width,height,kind\n1,2.5,rose\n3,4,iris\n")
    ...     x = sources.csv(path, ["width", "height"], cache=folder)
    ...     y = sources.csv(path, "kind", classes=["iris", "rose"], cache=folder)
    ...     x[:].tolist(), y[:].tolist()
    ([[1.0, 2.5], [3.0, 4.0]], [1, 0])
    """
    check_word("csv: decimal", decimal, [".", ","])
    if separator is not None and not _separates(separator, decimal):
        raise InputError(
            f"csv: separator={shown(separator)}: give one character of ASCII that is no quote, no "
            "end of a line and not the decimal"
        )
    dialect = Dialect(
        separator or "",
        decimal,
        check_flag("csv: header", header),
        check_integer("csv: skip_lines", skip_lines, 0),
    )
    names = columns if isinstance(columns, str) else tuple(columns)
    labels = check_classes("csv", classes)
    number = None if isinstance(labels, tuple) else labels
    kind = Csv(names, labels if isinstance(labels, tuple) else None, dialect)
    found = FileSource(kind, paths, Options(cache, skip, check, number, keep))
    _check_headers(kind, found, None if cache is None else os.fspath(cache))
    return found


def _separates(separator: object, decimal: str) -> bool:
    one = isinstance(separator, str) and len(separator) == 1 and separator.isascii()
    return one and separator not in ('"', "\n", "\r", decimal)


def _check_headers(kind: Csv, source: FileSource, cache: str | None) -> None:
    """Refuse files whose columns are others than those of the first, or in another order."""
    first: list[str] = []
    for path in source.paths:
        file = kind.open(kind.place(path, cache))
        try:
            names = file.schema_arrow.names
        finally:
            kind.close(file)
        first = first or names
        if names != first:
            width = min(len(names), len(first))
            at = next((i for i in range(width) if names[i] != first[i]), width)
            here, there = (shown(n[at]) if at < len(n) else "nothing" for n in (names, first))
            raise SourceError(
                f"csv: {without_secrets(path)}, line {1 + kind.dialect.skip_lines}, column "
                f"{at + 1}: found {here}, and {without_secrets(source.paths[0])} has {there} "
                "there: give files with the same columns"
            )
