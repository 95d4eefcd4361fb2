"""The numbers of a run, by row and by column."""

from __future__ import annotations

import csv
import html
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

from synkhronos._api.tables import Table
from synkhronos._errors import needing
from synkhronos._host import files
from synkhronos.training._record.scalars import plain, text_of

_ENDS = 5  # rows at each end of what is shown of a long history

type Row = dict[str, Any]  # int, float, str, bool or None


class History:
    """Rows of plain values: int, float, str, bool or None, by the names of columns.

    Attributes
    ----------
    repeatable : bool
        Whether the same run gives the same rows again. False for rules whose members train
        without waiting for each other.

    Examples
    --------
    >>> from synkhronos.training import History
    >>> history = History()
    >>> history.append(epoch=1, loss=0.5)
    >>> history.append(epoch=2, loss=0.25, val_acc=0.875)
    >>> history[-1]
    {'epoch': 2, 'loss': 0.25, 'val_acc': 0.875}
    >>> history["val_acc"], history.columns
    ([None, 0.875], ['epoch', 'loss', 'val_acc'])
    >>> history
    2 rows
    epoch  loss  val_acc
    1       0.5
    2      0.25    0.875
    """

    def __init__(self) -> None:
        self.repeatable = True
        self._rows: list[Row] = []
        self._columns: dict[str, None] = {}  # an ordered set

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, object]]) -> History:
        """Make a history of rows, such as those of `as_rows`.

        Parameters
        ----------
        rows : iterable of mappings
            From the names of columns to values.
        """
        history = cls()
        for row in rows:
            history.append(**row)
        return history

    def append(self, /, **values: object) -> None:
        """Add a row.

        Parameters
        ----------
        **values
            Numbers, texts, truth values or None, by column. Numbers of numpy and JAX, also arrays
            without dimensions, become Python's.

        Raises
        ------
        InputTypeError
            A value is something else.
        """
        row = {name: plain(name, value) for name, value in values.items()}
        self._rows.append(row)
        self._columns.update(dict.fromkeys(row))

    def truncate(self, n: int) -> None:
        """Keep the first `n` rows, as when a run goes on from an earlier checkpoint."""
        del self._rows[n:]
        self._columns = {name: None for row in self._rows for name in row}

    @property
    def columns(self) -> list[str]:
        """The names of the columns, in the order in which they first appeared."""
        return list(self._columns)

    def as_rows(self) -> list[Row]:
        """Copies of all rows, each with the columns that it has."""
        return [dict(row) for row in self._rows]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.as_rows())

    def __contains__(self, column: object) -> bool:
        return column in self._columns

    @overload
    def __getitem__(self, which: int) -> Row: ...

    @overload
    def __getitem__(self, which: str) -> list[Any]: ...

    @overload
    def __getitem__(self, which: slice) -> list[Row]: ...

    def __getitem__(self, which: int | str | slice) -> Any:
        """A row by its number, some rows by a slice, or a column by its name."""
        if isinstance(which, str):
            if which not in self._columns:
                known = ", ".join(self._columns) or "none yet"
                raise KeyError(f"no column {which!r}; there are: {known}")
            return [row.get(which) for row in self._rows]
        if isinstance(which, slice):
            return [dict(row) for row in self._rows[which]]
        return dict(self._rows[which])

    def to_pandas(self) -> Any:
        """Make a ``pandas.DataFrame``; what a row lacks is missing there.

        Raises
        ------
        BackendMissing
            pandas is not installed.
        """
        with needing("pandas"):
            import pandas
        return pandas.DataFrame({name: self[name] for name in self._columns})

    def to_arrow(self) -> Any:
        """Make a ``pyarrow.Table``; what a row lacks is null there.

        A column that mixes texts or truth values with other values becomes one of texts.

        Raises
        ------
        BackendMissing
            pyarrow is not installed.
        """
        with needing("pyarrow", "data"):
            import pyarrow
        return pyarrow.table({name: _of_one_type(self[name]) for name in self._columns})

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write a file of comma-separated values in UTF-8, with a line of names first.

        A value that a row lacks is an empty field; numbers keep all their digits.
        """
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns)
        writer.writeheader()
        writer.writerows(self._rows)
        files.write(path, text.getvalue())

    def __repr__(self) -> str:
        if not self._columns:
            return self._headline
        return str(Table(self._headline, self.columns, self._shown(), "")).rstrip("\n")

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self._columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in row) + "</tr>"
            for row in self._shown()
        )
        return (
            f"<p>{self._headline}</p><table><thead><tr>{head}</tr></thead>"
            f"<tbody>{body}</tbody></table>"
        )

    @property
    def _headline(self) -> str:
        return f"{len(self):,} row{'s' * (len(self) != 1)}"

    def _shown(self) -> list[list[str]]:
        """The texts of the first and the last rows."""
        if len(self) <= 2 * _ENDS:
            return self._texts(self._rows)
        between = ["..."] * len(self._columns)
        return [*self._texts(self._rows[:_ENDS]), between, *self._texts(self._rows[-_ENDS:])]

    def _texts(self, rows: Sequence[Mapping[str, object]]) -> list[list[str]]:
        return [[text_of(row.get(name)) for name in self._columns] for row in rows]


def _of_one_type(column: list[object]) -> list[object]:
    """The column, or its texts if numbers are mixed with texts or truth values."""
    types = {type(value) for value in column if value is not None}
    if len(types) <= 1 or types == {int, float}:
        return column
    return [None if value is None else str(value) for value in column]
