"""The numbers of a run: rows, columns, and other libraries' tables."""

from __future__ import annotations

import builtins
import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import synkhronos as synk
from synkhronos._transport.processes.fork_safety import reasons_against_fork
from synkhronos.training import History

ROWS = [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": math.inf, "note": "é,\n"}, {"done": True}]


def test_rows_and_columns() -> None:
    history = History.of(ROWS)
    assert (len(history), list(history), history.as_rows()) == (3, ROWS, ROWS)
    assert history.columns == ["epoch", "loss", "note", "done"]
    assert history["note"] == [None, "é,\n", None]
    assert (history[0], history[-1], history[1:]) == (ROWS[0], ROWS[2], ROWS[1:])
    assert ("loss" in history, "val" in history, History().repeatable) == (True, False, True)
    with pytest.raises(IndexError):
        history[3]
    with pytest.raises(KeyError, match="no column 'val'; there are: epoch, loss, note, done"):
        history["val"]
    with pytest.raises(KeyError, match="there are: none yet"):
        History()["val"]


def test_what_it_returns_is_a_copy() -> None:
    history = History.of(ROWS)
    for row in (history[0], next(iter(history)), history.as_rows()[0], history[:1][0]):
        row["loss"] = "changed"
    assert history.as_rows() == ROWS


def test_numbers_become_plain() -> None:
    history = History()
    history.append(
        **{"self": np.float32(0.5), "n": np.int64(3), "zero": np.array(2.0), "ok": np.bool_(True)},
        **{"long": np.longdouble(0.25), "text": np.str_("a"), "nothing": None},
    )
    kinds = [float, int, float, bool, float, str, type(None)]
    assert [type(value) for value in history[0].values()] == kinds
    assert history[0] == {
        **{"self": 0.5, "n": 3, "zero": 2.0, "ok": True},
        **{"long": 0.25, "text": "a", "nothing": None},
    }


@pytest.mark.parametrize("value", [np.ones(2), [1], {"a": 1}, 1j, np.complex64(1), object()])
def test_other_values_are_refused(value: Any) -> None:
    history = History()
    with pytest.raises(synk.InputTypeError, match=r"loss=.*: a number, a text"):
        history.append(epoch=1, loss=value)
    assert (len(history), history.columns) == (0, [])


def test_truncate_forgets_columns_too() -> None:
    history = History.of(ROWS)
    history.truncate(5)
    assert history.as_rows() == ROWS
    history.truncate(1)
    assert (history.as_rows(), history.columns) == (ROWS[:1], ["epoch", "loss"])
    history.truncate(0)
    assert (len(history), history.columns) == (0, [])


def test_csv(tmp_path: Path) -> None:
    """Numbers keep their digits, and texts their commas and ends of lines."""
    history = History.of([*ROWS, {"loss": 0.1 + 0.2}])
    history.to_csv(tmp_path / "é.csv")
    with open(tmp_path / "é.csv", encoding="utf-8", newline="") as file:
        read = list(csv.DictReader(file))
    assert read[1] == {"epoch": "2", "loss": "inf", "note": "é,\n", "done": ""}
    assert float(read[3]["loss"]) == 0.1 + 0.2


def test_pandas_and_arrow() -> None:
    """No threads stay alive that a group would refuse to fork with."""
    pytest.importorskip("pandas", reason="pandas is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    before = reasons_against_fork()
    history = History.of([{"epoch": 1, "loss": 1}, {"epoch": 2, "loss": 0.5, "note": "a"}])
    frame = history.to_pandas()
    assert list(frame.columns) == ["epoch", "loss", "note"]
    assert frame["epoch"].tolist() == [1, 2]
    assert frame["loss"].tolist() == [1.0, 0.5]
    assert frame["note"].isna().tolist() == [True, False]
    table = history.to_arrow()
    assert table.column_names == ["epoch", "loss", "note"]
    assert table.to_pylist()[0] == {"epoch": 1, "loss": 1.0, "note": None}
    mixed = History.of([{"x": 1}, {"x": "a"}, {"x": True}, {}]).to_arrow()
    assert mixed["x"].to_pylist() == ["1", "a", "True", None]
    assert History().to_pandas().empty
    assert History().to_arrow().num_rows == 0
    assert set(reasons_against_fork()) <= set(before)


@pytest.mark.parametrize(
    ("method", "library", "command"),
    [("to_pandas", "pandas", "pip install pandas"), ("to_arrow", "pyarrow", r'"synkhronos\[data')],
)
def test_libraries_that_are_missing(
    method: str, library: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def imports(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == library:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", imports)
    with pytest.raises(synk.BackendMissing, match=command):
        getattr(History.of(ROWS), method)()


def test_what_is_shown() -> None:
    """A long history by its ends; in notebooks, without texts that a browser would run."""
    history = History.of({"epoch": n, "loss": 1 / 3, "<b>": None} for n in range(1, 1001))
    lines = repr(history).splitlines()
    assert lines[:2] == ["1,000 rows", "epoch      loss  <b>"]
    assert lines[2].split() == ["1", "0.333333"]
    assert (len(lines), lines[7].split()[0], lines[-1].split()[0]) == (13, "...", "1000")
    page = history._repr_html_()
    assert "<p>1,000 rows</p>" in page
    assert "&lt;b&gt;" in page
    assert page.count("<tr>") == 12
    assert repr(History()) == "0 rows"
    assert repr(History.of([{"a": 1}])).splitlines() == ["1 row", "a", "1"]
