"""A table of all lines with all their columns, as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from synkhronos._host import files
from synkhronos.training._record.exporters.target import Target, numbers_of
from synkhronos.training._record.run_folder import is_later, step_of_return


class Table(Target):
    """``metrics.csv``: a row for each line, a column for each name.

    Rows are appended. After a new column, and after a return to an earlier step, the file is
    replaced as a whole.
    """

    def __init__(self, run: Path, folder: Path | None) -> None:
        self._path = (folder or run) / "metrics.csv"
        files.make_folder(self._path.parent)
        self._rows: list[dict[str, Any]] = []
        self._columns: dict[str, None] = {}  # an ordered set
        self._written: int | None = None  # rows; None: the file is to be replaced

    @property
    def place(self) -> str:
        return str(self._path)

    def take(self, lines: Sequence[Mapping[str, Any]]) -> None:
        for line in lines:
            if (step := step_of_return(line)) is not None:
                self._rows = [row for row in self._rows if not is_later(row, step)]
                self._written = None
            plain = {k: v for k, v in line.items() if v is None or isinstance(v, str | int | float)}
            row = {**plain, **numbers_of(line), **plain}
            if row.keys() - self._columns.keys():
                self._columns.update(dict.fromkeys(row))
                self._written = None
            self._rows.append(row)
        if self._written is None:
            files.replace(self._path, self._text(0))
        else:
            with open(files.appending(self._path), "ab") as file:
                file.write(self._text(self._written).encode("utf-8", "backslashreplace"))
        self._written = len(self._rows)

    def _text(self, first: int) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, list(self._columns))
        if not first:
            writer.writeheader()
        writer.writerows(self._rows[first:])
        return text.getvalue()

    def close(self, ended: bool) -> None:
        """Nothing is open."""
