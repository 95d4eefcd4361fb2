"""CSV files: types from all lines, rows that equal those of pandas, errors with line and column."""

from __future__ import annotations

import csv as writers
import gzip
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import synkhronos as synk
from synkhronos._transport.processes.fork_safety import reasons_against_fork
from synkhronos.training import sources
from synkhronos.training.sources import _lines

pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")

TABLE = "a,b,c,kind\n1,0.5,True,rose\n-2,3,False,iris\n3,4e2,True,rose\n"


@pytest.fixture(autouse=True)
def _caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def written(folder: Path, text: str | bytes, name: str = "a.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_columns_and_labels(tmp_path: Path) -> None:
    path = written(tmp_path, TABLE)
    for columns, wanted in (
        ("a", np.array([1, -2, 3])),
        ("b", np.array([0.5, 3, 400])),
        ("c", np.array([True, False, True])),
        (["a", "b"], np.array([[1, 0.5], [-2, 3], [3, 400]])),
        ("a:c", np.array([[1, 0.5, 1], [-2, 3, 0], [3, 400, 1]])),
    ):
        found = sources.csv(path, columns)
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_array_equal(found[[2, 0, 1]], wanted[[2, 0, 1]])
    labels = sources.csv(path, "kind", classes=["iris", "rose"])
    assert (labels.dtype, labels[:].tolist()) == (np.int64, [1, 0, 1])


SPELLINGS: dict[str, tuple[bytes, str, dict[str, Any]]] = {
    "CRLF": (TABLE.replace("\n", "\r\n").encode(), "a.csv", {}),
    "CR": (TABLE.replace("\n", "\r").encode(), "a.csv", {}),
    "all ends": (TABLE.replace("\n", "\r", 1).replace("\n", "\r\n", 1).encode(), "a.csv", {}),
    "CR, lines before": (
        b'# made "by hand\r\r' + TABLE.replace("\n", "\r").encode(),
        "a.csv",
        {"skip_lines": 2},
    ),
    "no end": (TABLE.rstrip("\n").encode(), "a.csv", {}),
    "empty lines at the end": (f"{TABLE}\n\r\n\n".encode(), "a.csv", {}),
    "a mark of UTF-8": (b"\xef\xbb\xbf" + TABLE.encode(), "a.csv", {}),
    "tabs": (TABLE.replace(",", "\t").encode(), "a.tsv", {}),
    "tabs in capitals": (TABLE.replace(",", "\t").encode(), "A.TSV", {}),
    "semicolons": (TABLE.replace(",", ";").encode(), "a.csv", {"separator": ";"}),
    "German": (
        TABLE.replace(",", ";").replace(".", ",").encode(),
        "a.csv",
        {"separator": ";", "decimal": ","},
    ),
    "gzip": (gzip.compress(TABLE.encode()), "a.csv.gz", {}),
    "zstd": (bytes(pa.compress(TABLE.encode(), "zstd", asbytes=True)), "a.csv.zst", {}),
    "GZIP": (gzip.compress(TABLE.encode()), "A.CSV.GZ", {}),
    "ZSTD": (bytes(pa.compress(TABLE.encode(), "zstd", asbytes=True)), "A.Csv.Zst", {}),
    "tabs, gzip": (gzip.compress(TABLE.replace(",", "\t").encode()), "a.tsv.gz", {}),
    "quotes": (
        b'"a","b","c","kind"\n"1","0.5",True,"rose"\n-2,3,"False",iris\n3,4e2,True,rose\n',
        "a.csv",
        {},
    ),
    "spaces around numbers": (TABLE.replace(",", " , ").encode(), "a.csv", {}),
    "lines before": (b'# made "by hand\n\n' + TABLE.encode(), "a.csv", {"skip_lines": 2}),
}


@pytest.mark.parametrize("block", [1 << 22, 7])
@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(name: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One table as programs write it, in blocks that end anywhere."""
    monkeypatch.setattr(_lines, "_BLOCK", block)
    content, file, options = SPELLINGS[name]
    path = written(tmp_path, content, file)
    found = sources.csv(path, "a:c", **options)
    assert found[:].tolist() == [[1, 0.5, 1], [-2, 3, 0], [3, 400, 1]]
    names = [" iris", " rose"] if "spaces" in name else ["iris", "rose"]
    assert sources.csv(path, "kind", classes=names, **options)[:].tolist() == [1, 0, 1]


def test_numbers_are_those_of_python(tmp_path: Path) -> None:
    """Or an error, which `WRONG` has."""
    texts = [
        "inf",
        "-Infinity",
        "NaN",
        "1e-400",
        "-0.0",
        "1.",
        ".5",
        "+1E+05",
        "5e-324",
        "0" * 5000 + "1",
    ]
    path = written(tmp_path, "\n".join(["x", *texts]))
    np.testing.assert_array_equal(sources.csv(path, "x")[:], [float(text) for text in texts])


def test_no_header(tmp_path: Path) -> None:
    path = written(tmp_path, TABLE.partition("\n")[2])
    assert sources.csv(path, ["1", "0"], header=False)[1].tolist() == [3, -2]
    assert sources.csv(path, "0:1", header=False)[2].tolist() == [3, 400]


fields = st.text(st.sampled_from(',"\n\r ab\u00e90.'), max_size=5)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 3).flatmap(
        lambda n: st.lists(st.lists(fields, min_size=n, max_size=n), min_size=1, max_size=8)
    ),
    st.integers(1, 12),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_any_texts_come_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]], block: int, end: str
) -> None:
    """Python's own writer is the oracle: quotes, separators and ends of lines inside of fields."""
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = writers.writer(file, lineterminator=end, quoting=writers.QUOTE_ALL)
        writer.writerows([[f"c{i}" for i in range(len(rows[0]))], *rows])
    before = _lines._BLOCK
    _lines._BLOCK = block
    try:
        found = [
            [column[i].as_py() for column in texts.columns]
            for texts in _lines.blocks_of(str(path), _lines.Dialect())
            for i in range(len(texts.begins))
        ]
    finally:
        _lines._BLOCK = before
    assert found == rows


def test_types_are_those_of_all_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last line decides, in whatever block it is."""
    monkeypatch.setattr(_lines, "_BLOCK", 16)
    body = "".join(f"{i},{i},{i},x\n" for i in range(50))
    path = written(tmp_path, f"a,b,c,d\n{body}1,1.5,{2**63},y\n")
    assert sources.csv(path, "a").dtype == np.int64
    assert sources.csv(path, "b").dtype == np.float64
    assert sources.csv(path, "c").dtype == np.uint64
    assert sources.csv(path, "c")[50] == 2**63
    np.testing.assert_array_equal(sources.csv(path, "b")[:], [*range(50), 1.5])
    assert sources.csv(path, "d", classes=["y", "x"])[:].tolist() == [1] * 50 + [0]


def test_rows_equal_those_that_pandas_has_written(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        rng.standard_normal((3000, 4)) * 10.0 ** rng.integers(-300, 300, (3000, 1))
    )
    frame["n"] = rng.integers(-(2**63), 2**63 - 1, 3000)
    path = tmp_path / "a.csv"
    frame.to_csv(path)
    np.testing.assert_array_equal(sources.csv(path, "0:3")[:], frame.iloc[:, :4].to_numpy())
    np.testing.assert_array_equal(sources.csv(path, "n")[:], frame["n"])
    np.testing.assert_array_equal(sources.csv(path, "")[:], np.arange(3000))


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "a hole": (
        "a,b\n1,2\n3,\n5,\n",
        {},
        r"line 3, column 'b': found nothing: fill it, .* it has 2 such lines",
    ),
    "a hole in quotes": ('a,b\n1,2\n3,""\n', {}, "line 3, column 'b': found nothing"),
    "a hole of spaces": ("a,b\n1,2\n3, \n", {}, "line 3, column 'b': found nothing"),
    "a short line": ("a,b\n1,2\n3\n", {}, r"line 3, column 2: found 1 fields in '3', .* has 2"),
    "a long line": ("a,b\n1,2,3\n", {}, r"line 2, column 3: found 3 fields in '1,2,3', .* has 2"),
    "an empty line": ("a,b\n1,2\n\n3,4\n", {}, "line 3, .*leave out the empty line"),
    "many empty lines": ("a,b\n1,2\n" + "\n" * 5000 + "3,4\n", {}, "empty line"),
    "a text": ("a,b\n1,2\n3,NA\n5,6\n", {}, "line 3, column 'b': found 'NA', which is no number"),
    "a decimal comma": (
        "a;b\n1;2,5\n",
        {"separator": ";"},
        r"line 2, column 'b': found '2,5', which is no number with .*: give decimal=','",
    ),
    "a point for thousands": (
        "a;b\n1;1.234\n",
        {"separator": ";", "decimal": ","},
        r"line 2, column 'b': found '1\.234', which is no number",
    ),
    "digits": (
        f"a,b\n1,0.5\n2,{2**53 + 1}\n",
        {},
        rf"line 3, column 'b': found '{2**53 + 1}', which float64.* does not hold",
    ),
    "an integer that is too long": (
        f"a,b\n1,2\n2,{10**30 + 1}\n",
        {},
        "line 3, column 'b': found '1000000000000000000000000000001', which float64",
    ),
    "one beyond all floats": (f"a,b\n1,{'9' * 400}\n", {}, "line 2, column 'b': .*which float64"),
    "a number beyond all floats": (
        "a,b\n1,2\n2,-1e400\n",
        {},
        r"line 3, column 'b': found '-1e400', which float64.* or a number below 1\.8e308, or inf",
    ),
    "a number of base 16": (
        "a,b\n1,2\n2,0x10\n",
        {},
        "line 3, column 'b': found '0x10', which is no number",
    ),
    "one after a point for thousands": (
        "a;b\n1;0.10\n",
        {"separator": ";", "decimal": ","},
        r"line 2, column 'b': found '0\.10', which is no number",
    ),
    "a quote in a field": ('a,b\n1,5" x "y\n', {}, "line 2, column 'b': .*a quote inside"),
    "a quote that stays open": ('a,b\n1,2\n3,"4\n5,6\n', {}, "line 3: a quote .* never closed"),
    "another separator": ("a;b\n1;2\n", {}, r"line 1: it has no column \['b'\]; there are a;b"),
    "no rows": ("a,b\n", {}, "it has no rows"),
    "nothing": ("", {}, "it has no rows"),
    "two of a name": ("b,a,b\n1,2,3\n", {}, "line 1: it has several columns 'b'"),
}


@pytest.mark.parametrize("block", [1 << 22, 5])
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(
    name: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By file, line and column; other columns can be read if each line is whole."""
    monkeypatch.setattr(_lines, "_BLOCK", block)
    text, options, said = WRONG[name]
    path = written(tmp_path, text)
    with pytest.raises(synk.SourceError, match=rf"a\.csv.*{said}"):
        sources.csv(path, "b", **options)
    if name in ("a hole", "a text", "a decimal comma", "digits", "two of a name"):
        assert len(sources.csv(path, "a", **options))
    assert not list((tmp_path / "cache").rglob("*.new"))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(["a", "b\nc", "\n\n", ""]), min_size=1, max_size=9))
def test_lines_of_rows(tmp_path_factory: pytest.TempPathFactory, rows: list[str]) -> None:
    """Of each row and of all at once."""
    path = written(tmp_path_factory.mktemp("csv"), "\n".join(["x", *[f'"{r}"' for r in rows]]))
    [texts] = _lines.blocks_of(str(path), _lines.Dialect())
    wanted = [2 + i + "".join(rows[:i]).count("\n") for i in range(len(rows))]
    assert texts.lines().tolist() == wanted
    assert [texts.line(row) for row in range(len(rows))] == wanted


def test_other_encodings(tmp_path: Path) -> None:
    path = written(tmp_path, "a,b\n1,2\n3,é\n".encode("latin-1"))
    with pytest.raises(synk.SourceError, match=r"line 3: found b'\\xe9\\n', which is not UTF-8"):
        sources.csv(path, "a")
    path = written(tmp_path, TABLE.encode("utf-16"))
    with pytest.raises(synk.SourceError, match="line 1: it is UTF-16"):
        sources.csv(path, "a")


def test_texts_that_are_no_class(tmp_path: Path) -> None:
    path = written(tmp_path, TABLE)
    with pytest.raises(synk.SourceError, match=r"'kind' has 'iris' in line 3, which is none of"):
        sources.csv(path, "kind", classes=["rose"])[:]
    with pytest.raises(synk.SourceError, match=r"line 2, column 'kind': found 'rose', .*classes="):
        sources.csv(path, "kind")
    lines = written(tmp_path, 'kind\n"a\nb"\nrose\n', "b.csv")
    with pytest.raises(synk.SourceError, match="'kind' has 'rose' in row 1 of the file"):
        sources.csv(lines, "kind", classes=["a\nb"])[:]


def test_several_files(tmp_path: Path) -> None:
    """The types are those of all files; columns have one order."""
    first = written(tmp_path, "a,b\n1,2\n")
    second = written(tmp_path, "a,b\n0.5,3\n", "b.csv")
    found = sources.csv([first, second], ["a", "b"])
    assert found[:].tolist() == [[1, 2], [0.5, 3]]
    one = sources.csv([first, second], "a")
    assert (one.dtype, one[[1, 0]].tolist()) == (np.float64, [0.5, 1])
    assert sources.csv([first, second], "b").dtype == np.int64
    large = written(tmp_path, f"a,b\n{2**53 + 1},2\n", "c.csv")
    with pytest.raises(synk.SourceError, match=rf"c\.csv.*{2**53 + 1} in row 0 of the file"):
        sources.csv([first, second, large], "a")[:]
    for name, text, said in (
        ("d.csv", "a,c,b\n1,2,3\n", r"d\.csv, line 1, column 2: found 'c', and .*a\.csv has 'b'"),
        ("e.csv", "b,a\n1,2\n", r"e\.csv, line 1, column 1: found 'b'"),
        ("f.csv", "a,b,c\n1,2,3\n", r"f\.csv, line 1, column 3: found 'c', and .* has nothing"),
        ("g.csv", "a\n1\n", r"g\.csv.* line 1: it has no column \['b'\]"),
    ):
        with pytest.raises(synk.SourceError, match=said):
            sources.csv([first, written(tmp_path, text, name)], ["a", "b"])
    folder = tmp_path / "parts"
    folder.mkdir()
    written(folder, "a,b\n3,4\n", "part-1.csv.gz.csv")
    written(folder, "a,b\n1,2\n", "part-0.csv")
    (folder / "_SUCCESS").touch()
    assert sources.csv(folder, "a")[:].tolist() == [1, 3]


def test_converted_once_and_again_if_the_file_changes(tmp_path: Path) -> None:
    path, cache = written(tmp_path, TABLE), tmp_path / "mine"
    source = sources.csv(path, "a", cache=cache)
    [copy] = cache.iterdir()
    before = copy.stat().st_mtime_ns
    sources.csv(path, "b", cache=cache)
    assert [(p, p.stat().st_mtime_ns) for p in cache.iterdir()] == [(copy, before)]
    written(tmp_path, TABLE.replace("-2", "7"))
    os.utime(path, ns=(1, 1))
    assert source[:].tolist() == [1, -2, 3]
    assert pickle.loads(pickle.dumps(source))[:].tolist() == [1, -2, 3]
    assert sources.csv(path, "a", cache=cache)[:].tolist() == [1, 7, 3]
    assert len(list(cache.iterdir())) == 2
    copy.unlink()
    with pytest.raises(synk.SourceError, match="has changed since the source was made"):
        pickle.loads(pickle.dumps(source))[:]
    assert not (tmp_path / "cache").exists()


def test_no_thread_stays(tmp_path: Path) -> None:
    """pyarrow's own reader starts some, which forbid a fork."""
    before = reasons_against_fork()
    assert len(sources.csv(written(tmp_path, TABLE), "a")[:]) == 3
    assert set(reasons_against_fork()) <= set(before)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"separator": ",,"}, "give one character"),
        ({"separator": '"'}, "give one character"),
        ({"separator": ",", "decimal": ","}, "not the decimal"),
        ({"decimal": "x"}, 'use "." or ","'),
        ({"skip_lines": -1}, "skip_lines=-1"),
        ({"header": 1}, "header=1"),
    ],
)
def test_bad_options(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(synk.InputError, match=said):
        sources.csv(written(tmp_path, TABLE), "a", **options)


@pytest.mark.parametrize(
    ("name", "loader", "width"),
    [("iris", "load_iris", 4), ("wine_data", "load_wine", 13), ("breast_cancer", None, 30)],
)
def test_files_that_scikit_learn_ships(name: str, loader: str | None, width: int) -> None:
    """A line of its own before the rows, and no header."""
    datasets = pytest.importorskip("sklearn.datasets")
    x, y = getattr(datasets, loader or "load_breast_cancer")(return_X_y=True)
    path = Path(datasets.__file__).parent / "data" / f"{name}.csv"
    options = {"header": False, "skip_lines": 1}
    np.testing.assert_array_equal(sources.csv(path, f"0:{width - 1}", **options)[:], x)
    np.testing.assert_array_equal(sources.csv(path, str(width), **options)[:], y)
