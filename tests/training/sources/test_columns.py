"""Columns of Parquet as the usual writers leave them: lists, labels, large integers, parts."""

from __future__ import annotations

import datetime
import decimal
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import synkhronos as synk
from synkhronos.training import sources

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

BIG = 2**53 + 1
TENSORS = np.arange(24.0).reshape(4, 2, 3)


def table(path: Path, groups: int = 2, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=groups)
    return path


def tensors() -> Any:
    kind = pa.fixed_shape_tensor(pa.float64(), (2, 3))
    return pa.ExtensionArray.from_storage(
        kind, pa.FixedSizeListArray.from_arrays(pa.array(TENSORS.ravel()), 6)
    )


def fixed(inner: Any, length: int) -> Any:
    return pa.FixedSizeListArray.from_arrays(inner, length)


READ: dict[str, tuple[Callable[[], Any], Any]] = {
    "lists": (lambda: TENSORS.reshape(4, 6).tolist(), TENSORS.reshape(4, 6)),
    "large lists": (
        lambda: pa.array(TENSORS.reshape(4, 6).tolist(), pa.large_list(pa.float32())),
        TENSORS.reshape(4, 6).astype("f4"),
    ),
    "lists of lists": (lambda: TENSORS.tolist(), TENSORS),
    "fixed lists of fixed lists": (lambda: fixed(fixed(pa.array(TENSORS.ravel()), 3), 2), TENSORS),
    "tensors": (tensors, TENSORS),
    "halves": (lambda: pa.array(np.float16([0.5, 1, 2, 3])), np.float16([0.5, 1, 2, 3])),
    "truth": (lambda: [True, False, True, True], np.array([1, 0, 1, 1], bool)),
    "dictionaries of numbers": (
        lambda: pa.array([5.0, 7.0, 5.0, 5.0]).dictionary_encode(),
        np.array([5.0, 7, 5, 5]),
    ),
    "large uint64": (
        lambda: pa.array([0, BIG, 2**64 - 1, 1], pa.uint64()),
        np.array([0, BIG, 2**64 - 1, 1], np.uint64),
    ),
}


@pytest.mark.parametrize("name", READ)
def test_columns_that_are_rows(name: str, tmp_path: Path) -> None:
    made, wanted = READ[name]
    source = sources.parquet(table(tmp_path / "a.parquet", x=made()), "x")
    assert (source.shape, source.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_array_equal(source[[3, 0, 2, 1]], wanted[[3, 0, 2, 1]])


REFUSED: dict[str, tuple[Any, type[synk.SynkhronosError], str]] = {
    "decimals": (
        [decimal.Decimal("1.25")],
        synk.InputTypeError,
        r"'x' is decimal128\(3, 2\), .*column\('x'\)\.cast\('float64'\)",
    ),
    "timestamps": (
        [datetime.datetime(2026, 1, 2)],
        synk.InputTypeError,
        r"'x' is timestamp\[us\], .*\.cast\('int64'\)",
    ),
    "dates": (
        [datetime.date(2026, 1, 2)],
        synk.InputTypeError,
        r"'x' is date32\[day\], .*\.cast\('int32'\)",
    ),
    "structs": (
        [{"a": 1, "b": 2}],
        synk.InputTypeError,
        r"'x' is struct<a: int64, b: int64>, .*fields a, b .*table\.flatten\(\)",
    ),
    "bytes": ([b"a"], synk.InputTypeError, "'x' is binary, and Data hold numbers: write it as"),
    "nothing": ([None], synk.InputTypeError, "'x' is null"),
    "text": (["a"], synk.InputTypeError, r"'x' is text \(string\): give classes="),
    "lists of text": ([["a"]], synk.InputTypeError, r"'x' is text .*: give classes="),
    "lists of other lengths": (
        [[1.0, 2.0]] * 4 + [[3.0]],
        synk.SourceError,
        r"lists of 2 and, in row 4 of the file, one of 1",
    ),
    "lists of lists of other lengths": (
        [[[1.0], [2.0]]] * 3 + [[[1.0], [2.0, 3.0]]],
        synk.SourceError,
        r"lists of 1 and, in row 3 of the file, one of 2",
    ),
    "an empty list": ([[], [1.0]], synk.SourceError, "no value in row 0"),
    "a hole in a list": ([[1.0]] * 3 + [[None]], synk.SourceError, "1 nulls, the first in row 3"),
    "a hole": ([1, 2, 3, None], synk.SourceError, "1 nulls, the first in row 3 of the file"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_columns_that_are_refused(name: str, tmp_path: Path) -> None:
    """By its own type, with the cast; or by the row."""
    values, error, said = REFUSED[name]
    path = table(tmp_path / "a.parquet", x=values, y=[0] * len(values))
    with pytest.raises(error, match=rf"a\.parquet.*{said}"):
        sources.parquet(path, "x")[:]


def test_texts_are_labels(tmp_path: Path) -> None:
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())):
        path = table(tmp_path / "a.parquet", x=pa.array(["b", "a", "b", "c"], kind))
        found = sources.parquet(path, "x", classes=["a", "b", "c"])
        assert found.dtype == np.int64
        assert found[:].tolist() == [1, 0, 1, 2]
        with pytest.raises(
            synk.SourceError, match=r"'x' has 'c' in row 3 of the file, which is none of classes="
        ):
            sources.parquet(path, "x", classes=["a", "b"])[:]
    numbers = table(tmp_path / "b.parquet", x=[0, 1])
    with pytest.raises(synk.InputTypeError, match="classes= has names: give their number"):
        sources.parquet(numbers, "x", classes=["a", "b"])
    assert sources.parquet(numbers, "x", classes=2)[:].tolist() == [0, 1]


@pytest.mark.parametrize("other", ["int64", "float64", "float32"])
def test_large_integers_beside_others_keep_their_digits(other: str, tmp_path: Path) -> None:
    """They become float64 only where this holds them."""
    for kind in ("uint64", "int64"):
        small = pa.array([1, 2**53, 7], kind)
        beside = pa.array([1, 2, 3], other)
        common = np.result_type(np.dtype(kind), np.dtype(other))
        found = sources.parquet(table(tmp_path / "a.parquet", x=small, y=beside), ["x", "y"])
        assert found.dtype == common
        assert found[:].tolist() == [[1, 1], [2**53, 2], [7, 3]]
        large = table(tmp_path / "b.parquet", x=pa.array([1, 2, BIG], kind), y=beside)
        if common.kind == "f":
            with pytest.raises(
                synk.SourceError, match=rf"'x' is {kind} and has {BIG} in row 2 .*float64"
            ):
                sources.parquet(large, ["x", "y"])[:]
        else:
            assert sources.parquet(large, ["x", "y"])[2].tolist() == [BIG, 3]


def test_ranges_of_columns(tmp_path: Path) -> None:
    names = ["id", "pixel0", "pixel1", "pixel2", "label", "a:b"]
    path = table(tmp_path / "a.parquet", **{n: [10.0 * i] for i, n in enumerate(names)})
    for columns, wanted in (
        ("pixel0:pixel2", [10, 20, 30]),
        (["pixel1:label", "id"], [20, 30, 40, 0]),
        (["id:id"], [0]),
    ):
        assert sources.parquet(path, columns)[0].tolist() == wanted
    assert sources.parquet(path, "a:b")[0] == 50
    with pytest.raises(synk.SourceError, match="'id' is before 'label': give id:label"):
        sources.parquet(path, "label:id")
    with pytest.raises(synk.SourceError, match=r"no column \['pixel0:pixel9'\]"):
        sources.parquet(path, "pixel0:pixel9")


def test_a_folder_of_parts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As Spark and pandas leave it: one source in the order of names."""
    folder = tmp_path / "out"
    for i, name in enumerate(["part-00000.snappy", "part-00001.snappy", "year=2024/part-00000"]):
        table(folder / f"{name}.parquet", x=[3 * i, 3 * i + 1, 3 * i + 2])
    for name in ("_SUCCESS", ".part-00000.snappy.parquet.crc", "_temporary/0/part-9.parquet"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"no rows")
    with caplog.at_level(logging.WARNING, "synkhronos"):
        found = sources.parquet(folder, "x")
    assert found[:].tolist() == [*range(9)]
    assert not caplog.text
    (folder / "README.md").write_text("rows")
    with caplog.at_level(logging.WARNING, "synkhronos"):
        assert len(sources.parquet([folder], "x")) == 9
    assert "left out: README.md" in caplog.text
    (tmp_path / "none").mkdir()
    with pytest.raises(synk.InputError, match=r"none has no file that ends in \.parquet, \.pq"):
        sources.parquet(tmp_path / "none", "x")


def test_a_folder_of_several_data_sets(tmp_path: Path) -> None:
    """As those of Hugging Face, in which rows for training and test are in one folder."""
    for name in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"):
        table(tmp_path / "data" / f"{name}.parquet", x=[1])
    with pytest.raises(synk.InputError, match="has parts of test, train, which are several"):
        sources.parquet(tmp_path / "data", "x")
    (tmp_path / "data" / "test-00000-of-00001.parquet").unlink()
    assert len(sources.parquet(tmp_path / "data", "x")) == 2


def test_what_hdf5_holds_beside_numbers(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("group/text", data=["a", "b"])
        file["bytes"] = np.array([b"a", b"b"])
        file["records"] = np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")])
        ragged = file.create_dataset("ragged", (2,), h5py.vlen_dtype("int32"))
        ragged[0], ragged[1] = [1, 2], [3]
    for name, said in {
        "group/text": "dataset 'group/text' holds text: write the number of each value",
        "bytes": "dataset 'bytes' holds text: write the number",
        "records": r"records with the fields a, b, and Data hold numbers: write each field",
        "ragged": r"dataset 'ragged' holds lists of different lengths \(int32\): write them",
    }.items():
        with pytest.raises(synk.InputTypeError, match=rf"a\.h5.*{said}"):
            sources.hdf5(path, name)
    with pytest.raises(synk.SourceError, match="there are bytes, group/text, ragged, records"):
        sources.hdf5(path, "group")


def test_what_arrays_of_numpy_hold_beside_numbers(tmp_path: Path) -> None:
    for name, array, said in (
        ("text", np.array(["a"]), r"text \(<U1\), .*: write the number of each value"),
        ("dates", np.array(["2026-01-02"], "M8[D]"), r"\.astype\('int64'\)"),
        ("records", np.zeros(1, [("a", "i4"), ("b", "f8")]), "the fields a, b"),
    ):
        np.save(tmp_path / f"{name}.npy", array)
        np.savez(tmp_path / f"{name}.npz", x=array)
        with pytest.raises(synk.InputTypeError, match=rf"{name}\.npy.*{said}"):
            sources.npy(tmp_path / f"{name}.npy")
        with pytest.raises(synk.InputTypeError, match=rf"{name}\.npz.*{said}"):
            sources.npz(tmp_path / f"{name}.npz", "x")


@pytest.mark.filterwarnings("ignore:The codec `vlen-utf8`:UserWarning")  # of zarr 3.1
@pytest.mark.parametrize("version", [2, 3])
def test_a_group_of_zarr_says_which_arrays_it_has(version: int, tmp_path: Path) -> None:
    asynchronous = pytest.importorskip("zarr.api.asynchronous")
    import asyncio

    async def write() -> None:
        group = await asynchronous.open_group(str(tmp_path / "a.zarr"), zarr_format=version)
        for name in ("y", "x"):
            await group.create_array(name, shape=(3,), dtype="f8")
        await group.create_group("more")
        await group.create_array("more/text", shape=(3,), dtype="str")

    asyncio.run(write())
    with pytest.raises(
        synk.SourceError, match=r"a group with the arrays x, y: give the path of one, .*a\.zarr/x"
    ):
        sources.zarr(tmp_path / "a.zarr")
    with pytest.raises(synk.SourceError, match="nothing"):
        sources.zarr(tmp_path / "nothing")
    with pytest.raises(synk.SourceError, match=r"more/text .*it holds text .*: write the number"):
        sources.zarr(tmp_path / "a.zarr" / "more" / "text")
