"""Sources of files: the rows of every format, whatever is asked for; damage; nothing left open."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import errno
import gc
import gzip
import io
import logging
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import synkhronos as synk
from synkhronos._transport.processes.fork_safety import reasons_against_fork
from synkhronos.training import sources
from synkhronos.training.sources import FileSource

Array = np.ndarray

LENGTHS = (7, 1, 12)  # rows of three files
X = np.arange(20 * 6, dtype="float32").reshape(20, 2, 3)
Y = np.arange(20) % 5


def parts(array: Array) -> list[Array]:
    return np.split(array, np.cumsum(LENGTHS)[:-1])


def make_npy(path: Path, x: Array) -> None:
    np.save(path, x)


def make_npz(path: Path, x: Array) -> None:
    np.savez_compressed(path, x=x, other=np.zeros(2))


def make_hdf5(path: Path, x: Array, **more: Any) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        chunks = (4, *x.shape[1:]) if len(x) > 4 else None
        file.create_dataset("group/x", data=x, chunks=chunks, **more)


def make_hdf5_contiguous(path: Path, x: Array) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file["group/x"] = x


def make_hdf5_gzip(path: Path, x: Array) -> None:
    make_hdf5(path, x, compression="gzip", shuffle=True, maxshape=(None, *x.shape[1:]))


def make_zarr(path: Path, x: Array) -> None:
    asynchronous = pytest.importorskip("zarr.api.asynchronous")
    chunks = (min(4, len(x)), *x.shape[1:])

    async def write() -> None:
        made = await asynchronous.create_array(
            str(path), shape=x.shape, dtype=x.dtype, chunks=chunks
        )
        await made.setitem(..., x)

    asyncio.run(write())


def make_parquet(path: Path, x: Array) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    width = int(np.prod(x.shape[1:]))
    lists = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), width)
    flat = {f"c{i}": x.reshape(len(x), -1)[:, i] for i in range(width)}
    parquet.write_table(pa.table({"x": lists, **flat}), path, row_group_size=4)


def make_csv(path: Path, x: Array) -> None:
    pytest.importorskip("pyarrow")
    rows = x.reshape(len(x), -1)
    names = [f"c{i}" for i in range(rows.shape[1])] if x.ndim > 1 else ["y"]
    lines = [",".join(map(repr, row)) for row in rows.tolist()]
    path.write_bytes(gzip.compress("\n".join([",".join(names), *lines]).encode()))


def read_csv(paths: Any, **options: Any) -> FileSource:
    """All columns, or the labels."""
    columns = "c0:c5"
    with contextlib.suppress(OSError, EOFError):  # a damaged file
        first = paths[0] if isinstance(paths, list) else paths
        header = gzip.decompress(Path(first).read_bytes()).partition(b"\n")[0].decode()
        columns = "y" if header == "y" else f"c0:{header.rpartition(',')[2]}"
    return sources.csv(paths, columns, **options)


def make_idx(path: Path, x: Array) -> None:
    code, dtype = {"f4": (13, ">f4"), "f8": (14, ">f8")}.get(x.dtype.str[1:], (12, ">i4"))
    header = bytes([0, 0, code, x.ndim]) + np.array(x.shape, ">u4").tobytes()
    raw = header + x.astype(dtype).tobytes()
    path.write_bytes(gzip.compress(raw) if path.name.endswith(".gz") else raw)


FORMATS: dict[str, tuple[str, Callable[[Path, Array], None], Callable[..., FileSource]]] = {
    "npy": ("npy", make_npy, sources.npy),
    "npz": ("npz", make_npz, lambda p, **o: sources.npz(p, "x", **o)),
    "hdf5": ("h5", make_hdf5, lambda p, **o: sources.hdf5(p, "group/x", **o)),
    "hdf5 contiguous": (
        *("h5", make_hdf5_contiguous, lambda p, **o: sources.hdf5(p, "group/x", **o)),
    ),
    "hdf5 gzip": ("h5", make_hdf5_gzip, lambda p, **o: sources.hdf5(p, "group/x", **o)),
    "zarr": ("zarr", make_zarr, sources.zarr),
    "parquet": ("parquet", make_parquet, lambda p, **o: sources.parquet(p, "x", **o)),
    "csv": ("gz", make_csv, read_csv),
    "idx": ("idx", make_idx, sources.idx),
    "idx gzip": ("gz", make_idx, sources.idx),
}
CACHED = [name for name in FORMATS if name not in ("npy", "hdf5 contiguous", "zarr", "idx")]
formats = pytest.mark.parametrize("kind", FORMATS)


def written(kind: str, folder: Path, x: Array = X) -> list[str]:
    ending, make, _ = FORMATS[kind]
    paths = [folder / f"part{i}.{ending}" for i in range(len(LENGTHS))]
    for path, rows in zip(paths, parts(x), strict=True):
        make(path, rows)
    return [str(path) for path in paths]


def rows_of(kind: str) -> Array:
    """X as this format gives it: lists of Parquet are flat, and so are lines of CSV."""
    if kind == "csv":
        return X.reshape(20, -1).astype("float64")
    return X.reshape(20, -1) if kind == "parquet" else X


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of one chunk each, as chunks in use are larger than those here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("synkhronos.training.sources._files.SMALL_BLOCK", 1)
    for module in ("_hdf5", "_zarr"):
        monkeypatch.setattr(
            f"synkhronos.training.sources.{module}.even_blocks",
            lambda rows, row_bytes, unit=100, least=0: tuple(
                min(unit, rows - start) for start in range(0, rows, unit)
            ),
        )


@pytest.fixture(autouse=True)
def _nothing_is_left_open() -> Iterator[None]:
    threads = threading.enumerate()
    yield
    if open_files():  # a traceback may hold them
        gc.collect()
    assert not open_files()
    assert threading.enumerate() == threads


def open_files() -> set[str]:
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            target = os.readlink(link)
            if "part" in target:
                found.add(target)
    return found


@formats
def test_rows_are_those_of_the_files(kind: str, tmp_path: Path) -> None:
    """Any rows, in any order, some twice; none; slices; one."""
    read, wanted = FORMATS[kind][2], rows_of(kind)
    source = read(written(kind, tmp_path))
    assert (len(source), source.shape, source.dtype) == (20, wanted.shape, wanted.dtype)
    assert sum(source.blocks) == 20
    for rows in ([19, 0, 7, 7, 8, 3], np.arange(20), np.array([], np.int64), np.uint8([6, 7])):
        found = source[rows]
        np.testing.assert_array_equal(found, wanted[np.asarray(rows, int)])
        assert found.dtype == wanted.dtype
        assert found.flags.writeable
    np.testing.assert_array_equal(source[3:15:2], wanted[3:15:2])
    np.testing.assert_array_equal(source[7], wanted[7])
    for wrong in ([20], [-1]):
        with pytest.raises(IndexError, match=f"has no row {wrong[0]}"):
            source[wrong]
    with pytest.raises(TypeError, match="an array of row numbers"):
        source[[0.5]]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 19), max_size=40), st.integers(1, 4))
def test_any_rows_with_few_blocks_kept(
    tmp_path_factory: pytest.TempPathFactory, rows: list[int], keep: int
) -> None:
    folder = tmp_path_factory.mktemp("npz")
    source = sources.npz(written("npz", folder), "x", keep=keep)
    for wanted in (rows, rows[::-1]):
        np.testing.assert_array_equal(source[np.array(wanted, int)], X[np.array(wanted, int)])


@formats
def test_blocks_are_what_is_decoded_together(kind: str, tmp_path: Path) -> None:
    blocks = FORMATS[kind][2](written(kind, tmp_path)).blocks
    whole = kind in ("npy", "npz", "hdf5 contiguous", "idx", "idx gzip", "csv")
    assert blocks == (LENGTHS if whole else (4, 3, 1, 4, 4, 4))


@pytest.mark.parametrize("kind", CACHED)
def test_an_order_by_blocks_decodes_each_block_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With as many blocks kept as are mixed, and two more."""
    x = np.arange(400, dtype="float32").reshape(400, 1)
    ending, make, read = FORMATS[kind]
    paths = [tmp_path / f"part{i}.{ending}" for i in range(20)]
    for path, rows in zip(paths, np.split(x, 20), strict=True):
        make(path, rows)
    source = read([str(p) for p in paths], keep=5)
    decoded: list[int] = []
    real = type(source._format).read

    def counted(self: Any, handle: Any, block: int, start: int, stop: int) -> Array:
        decoded.append(block)
        return real(self, handle, block, start, stop)

    monkeypatch.setattr(type(source._format), "read", counted)
    batches = synk.extensions.Batches(400, 10, blocks=source.blocks, window=3)
    with source.reading():
        for rows in batches:
            np.testing.assert_array_equal(source[rows], x[rows])
    assert len(decoded) == len(source.blocks)


@formats
def test_what_is_pickled_is_small_and_opens_the_files_by_itself(kind: str, tmp_path: Path) -> None:
    source = FORMATS[kind][2](written(kind, tmp_path))
    source[[0]]
    packed = pickle.dumps(source)
    assert len(packed) < 4000
    np.testing.assert_array_equal(pickle.loads(packed)[[19, 3]], rows_of(kind)[[19, 3]])


@formats
def test_files_are_open_only_while_rows_are_read(kind: str, tmp_path: Path) -> None:
    """So none is open at a fork; and no thread is left that would forbid one."""
    before = reasons_against_fork()
    source = FORMATS[kind][2](written(kind, tmp_path))
    assert not open_files()
    with source.reading(), source.reading():
        source[[0, 19]]
        inside = open_files()
    assert bool(inside) == (kind not in ("npz", "zarr", "idx gzip"))
    source[[0, 19]]
    assert not open_files()
    assert set(reasons_against_fork()) <= set(before)


@pytest.mark.parametrize("kind", ["npy", "hdf5 gzip"])
def test_a_fork_opens_files_of_its_own(kind: str, tmp_path: Path) -> None:
    """Those of the parent stay open in it, and are not read through."""
    source = FORMATS[kind][2](written(kind, tmp_path))
    with source.reading():
        source[[0]]
        before = source._opened()
        pid = os.fork()
        if not pid:
            same = np.array_equal(source[[19, 0]], X[[19, 0]])
            own = source._opened() is not before
            os._exit(0 if same and own else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert source._opened() is before


@pytest.mark.parametrize("kind", ["hdf5 gzip", "zarr"])
def test_two_threads_read_the_same_source(kind: str, tmp_path: Path) -> None:
    source, wanted = FORMATS[kind][2](written(kind, tmp_path), keep=2), rows_of(kind)
    wrong: list[Any] = []

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(20):
            rows = rng.integers(20, size=8)
            if not np.array_equal(source[rows], wanted[rows]):
                wrong.append(rows)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("kind", ["zarr", "npy"])
def test_inside_of_an_event_loop_as_in_notebooks(kind: str, tmp_path: Path) -> None:
    paths = written(kind, tmp_path)

    async def cell() -> Array:
        return FORMATS[kind][2](paths)[[5, 4]]

    np.testing.assert_array_equal(asyncio.run(cell()), X[[5, 4]])


# ---- lists of files


def test_lists_of_files(tmp_path: Path) -> None:
    """Lines from the folder of the list, comments, empty lines; several lists and paths."""
    paths = written("npy", tmp_path)
    (tmp_path / "a.list").write_text("# of two\npart0.npy\n\n  part1.npy \n")
    listed = sources.npy([tmp_path / "a.list", paths[2]])
    assert listed.paths == tuple(paths)
    np.testing.assert_array_equal(listed[:], X)
    (tmp_path / "empty.list").write_text("# none\n")
    for wrong, said in [
        (tmp_path / "empty.list", "names no file"),
        ([], "names no file"),
        (tmp_path / "no.list", "cannot be read"),
        (3, "not a path"),
        ([3], "not a path"),
        ([paths[0], paths[0]], "listed twice"),
    ]:
        with pytest.raises(synk.InputError, match=said):
            sources.npy(wrong)


# ---- damage


def damage(path: Path) -> None:
    """Half of a file, or a folder whose largest file is half."""
    if path.is_dir():
        path = max((p for p in path.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@formats
def test_a_truncated_file_is_named(kind: str, tmp_path: Path) -> None:
    """At once if it cannot be described, else with its rows when they are read."""
    read, paths = FORMATS[kind][2], written(kind, tmp_path)
    damage(Path(paths[2]))
    with pytest.raises(synk.SourceError, match=r"part2\.\w+[: ].*cannot be read"):
        read(paths)[:]


@formats
def test_an_empty_file_and_none(kind: str, tmp_path: Path) -> None:
    read, paths = FORMATS[kind][2], written(kind, tmp_path)
    lost = Path(paths[1])
    for file in [lost] if lost.is_file() else [p for p in lost.rglob("*") if p.is_file()]:
        file.write_bytes(b"")
    with pytest.raises(synk.SourceError, match=r"part1\.\w+ cannot be read"):
        read(paths)
    with pytest.raises(synk.SourceError, match=r"nothing\.\w+ cannot be read"):
        read(str(tmp_path / f"nothing.{FORMATS[kind][0]}"))


@formats
def test_what_cannot_be_described_is_left_out_on_request(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read, paths = FORMATS[kind][2], written(kind, tmp_path)
    missing = str(tmp_path / f"no.{FORMATS[kind][0]}")
    with caplog.at_level(logging.WARNING, "synkhronos"):
        source = read([paths[0], missing, *paths[1:]], skip=True)
    assert source.skipped == (missing,)
    assert missing in caplog.text
    np.testing.assert_array_equal(source[:], rows_of(kind))
    with pytest.raises(synk.SourceError, match="no file of"):
        read([missing], skip=True)


def test_damaged_rows_are_listed_on_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All those of the asked rows that are in damaged blocks; logged once."""
    paths = written("npz", tmp_path)
    source = sources.npz(paths, "x", skip=True)
    for path in paths[:2]:
        damage(Path(path))
    with caplog.at_level(logging.WARNING, "synkhronos"):
        for rows, lost in (([0, 9, 7, 3, 0], {0, 3, 7}), ([9, 7], {7})):
            with pytest.raises(synk.SourceError) as caught:
                source[rows]
            assert set(caught.value.lost) == lost
    assert caplog.text.count("they are left out") == 2
    with pytest.raises(synk.SourceError) as caught:
        pickle.loads(pickle.dumps(source))[[7]]
    assert caught.value.lost == (7,)


@pytest.mark.parametrize(("skip", "number"), [(True, errno.EMFILE), (False, errno.EIO)])
def test_an_error_that_passes_loses_no_rows(
    skip: bool, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `skip` too, if the process has too few descriptors; the next read finds the rows."""
    paths = written("npy", tmp_path)
    source = sources.npy(paths, skip=skip)

    def fail(*args: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(source._format, "open", fail)
    with pytest.raises(synk.SourceError, match=os.strerror(number)) as caught:
        source[[3]]
    assert not caught.value.lost
    if skip:
        monkeypatch.setattr(type(source._format), "describe", fail)
        with pytest.raises(synk.SourceError, match=os.strerror(number)):
            sources.npy(paths, skip=True)
    monkeypatch.undo()
    np.testing.assert_array_equal(source[[3]], X[[3]])


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind != "csv"])
@pytest.mark.parametrize("other", ["shape", "dtype"])
def test_files_of_other_rows_are_refused_at_once(kind: str, other: str, tmp_path: Path) -> None:
    _, make, read = FORMATS[kind]
    paths = written(kind, tmp_path)
    changed = X[:4].astype("float64") if other == "dtype" else np.concatenate([X, X], axis=2)[:4]
    last = tmp_path / f"part9.{FORMATS[kind][0]}"
    make(last, changed)
    with pytest.raises(
        synk.SourceError, match=r"the rows of .*part9.* are .* and those of .*part0"
    ):
        read([*paths, str(last)])


def test_a_file_that_has_changed_since(tmp_path: Path) -> None:
    source = sources.npz(written("npz", tmp_path), "x")
    make_npz(tmp_path / "part0.npz", X[:7].astype("int32"))
    with pytest.raises(synk.SourceError, match=r"part0.npz: rows 0 to 6 .* are int32"):
        source[[3]]
    make_npz(tmp_path / "part2.npz", X[:2])
    with pytest.raises(synk.SourceError, match=r"rows 0 to 11 of the file \(rows 8 to 19 of the"):
        source[[9]]


@formats
def test_not_a_number_is_found(kind: str, tmp_path: Path) -> None:
    """On request, with its file and its row there and in the source, in rows that are read."""
    x = X.copy()
    x[9, 1, 2] = np.nan
    read, paths = FORMATS[kind][2], written(kind, tmp_path, x)
    assert np.isnan(read(paths)[[9]]).any()
    source = read(paths, check=True)
    source[[8, 10]]
    with pytest.raises(synk.SourceError, match=r"part2.*: row 1 of the file \(row 9 .* has NaN"):
        source[[3, 9]]


@formats
def test_labels_out_of_range_are_found(kind: str, tmp_path: Path) -> None:
    y = Y.copy()
    y[9] = 5
    make, read = FORMATS[kind][1], FORMATS[kind][2]
    ending = FORMATS[kind][0]
    paths = [str(tmp_path / f"part{i}.{ending}") for i in range(3)]
    for path, rows in zip(paths, parts(y), strict=True):
        if kind == "parquet":
            pa = pytest.importorskip("pyarrow")
            from pyarrow import parquet

            parquet.write_table(pa.table({"x": rows}), path)
        else:
            make(Path(path), rows)
    np.testing.assert_array_equal(read(paths, classes=6)[:], y)
    with pytest.raises(synk.SourceError, match=r"row 9 of the source\) has a label out of range"):
        read(paths, classes=5)[:]


def test_packed_files_with_names_in_capitals(tmp_path: Path) -> None:
    """Whatever writes them; also the list that names them."""
    path = tmp_path / "LABELS.IDX.GZ"
    make_idx(tmp_path / "labels.gz", Y)
    (tmp_path / "labels.gz").rename(path)
    (tmp_path / "ALL.LIST").write_text(f"{path.name}\n")
    for name in (path, tmp_path / "ALL.LIST"):
        np.testing.assert_array_equal(sources.idx(name)[:], Y)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 1.5, -0.5, 3.0])
def test_numbers_that_are_no_labels(wrong: float, tmp_path: Path) -> None:
    """NaN is neither below the range nor above it."""
    path = tmp_path / "labels.npy"
    np.save(path, np.array([0.0, 2.0, wrong], "float32"))
    with pytest.raises(synk.SourceError, match=r"row 2 of the source\) has a label out of range"):
        sources.npy(path, classes=3)[:]
    np.testing.assert_array_equal(sources.npy(path)[:2], [0, 2])


def test_what_data_cannot_hold(tmp_path: Path) -> None:
    np.save(tmp_path / "text.npy", np.array(["a", "b"]))
    np.save(tmp_path / "number.npy", np.array(3.0))
    np.save(tmp_path / "none.npy", np.zeros((0, 3)))
    np.save(tmp_path / "big.npy", np.arange(4, dtype=">i4"))
    with pytest.raises(synk.InputTypeError, match="<U1"):
        sources.npy(tmp_path / "text.npy")
    with pytest.raises(synk.SourceError, match="its array has no rows"):
        sources.npy(tmp_path / "number.npy")
    with pytest.raises(synk.SynkhronosError):
        sources.npy(tmp_path / "none.npy")
    swapped = sources.npy(tmp_path / "big.npy")
    assert swapped[[2, 1]].tolist() == [2, 1]
    assert swapped[[0]].dtype == np.dtype("int32")


def test_names_that_a_file_does_not_have(tmp_path: Path) -> None:
    npz, parquet, h5 = (written(k, tmp_path) for k in ("npz", "parquet", "hdf5"))
    with pytest.raises(synk.SourceError, match="no array 'y'; there are x, other"):
        sources.npz(npz, "y")
    with pytest.raises(synk.SourceError, match=r"no column \['y'\]; there are x, c0"):
        sources.parquet(parquet, ["c0", "y"])
    with pytest.raises(synk.SourceError, match="no dataset 'group'; there are group"):
        sources.hdf5(h5, "group")


def test_records_of_cifar10(tmp_path: Path) -> None:
    """A label, then red, green and blue; images have the channels last."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (7, 3, 32, 32), "u1"), np.arange(7, dtype="u1")
    records = np.concatenate([labels[:, None], images.reshape(7, -1)], axis=1)
    for name, rows in (("part0.bin", records[:4]), ("part1.bin", records[4:])):
        (tmp_path / name).write_bytes(rows.tobytes())
    paths = [tmp_path / "part0.bin", tmp_path / "part1.bin"]
    found = sources.cifar10(paths, "images")
    assert (found.shape, found.dtype) == ((7, 32, 32, 3), np.dtype("u1"))
    np.testing.assert_array_equal(found[[5, 0, 3]], images[[5, 0, 3]].transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(sources.cifar10(paths, "labels", classes=7)[:], labels)
    with pytest.raises(synk.SourceError, match=r"row 6 of the source.* a label out of range"):
        sources.cifar10(paths, "labels", classes=6)[:]
    with pytest.raises(synk.InputError, match='part=\'pixels\': use "images" or "labels"'):
        sources.cifar10(paths, "pixels")
    (tmp_path / "part2.bin").write_bytes(bytes(3000))
    with pytest.raises(synk.SourceError, match="3,000 bytes, and records of CIFAR-10 have 3,073"):
        sources.cifar10(tmp_path / "part2.bin", "labels")


def test_hdf5_that_is_not_laid_out_as_memory(tmp_path: Path) -> None:
    """Behind a user's block, in another file, not written, of other bytes: h5py reads it."""
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "part.h5"
    with h5py.File(path, "w", userblock_size=512) as file:
        file["x"] = X
        file.create_dataset("unwritten", (20,), "f4", fillvalue=3)
        file.create_dataset("other", data=Y, external=[(str(tmp_path / "raw"), 0, 8 * 20)])
        layout = h5py.VirtualLayout((20, 2, 3), "f4")
        layout[:] = h5py.VirtualSource(file["x"])
        file.create_virtual_dataset("virtual", layout)
    for name, wanted in (("x", X), ("other", Y), ("virtual", X), ("unwritten", np.full(20, 3))):
        found = sources.hdf5(path, name, external=name == "other")
        np.testing.assert_array_equal(found[[19, 0, 7]], wanted[[19, 0, 7]])
    with h5py.File(tmp_path / "swapped.h5", "w") as file:
        file["x"] = X.astype(">f4")
        file["truth"] = X[:, 0, 0] > 9
    np.testing.assert_array_equal(sources.hdf5(tmp_path / "swapped.h5", "x")[[3]], X[[3]])
    np.testing.assert_array_equal(
        sources.hdf5(tmp_path / "swapped.h5", "truth")[[3, 0]], [True, False]
    )


def test_columns_side_by_side_and_nulls(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    paths = written("parquet", tmp_path)
    found = sources.parquet(paths, ["c4", "c0"])
    np.testing.assert_array_equal(found[[9, 2]], X.reshape(20, 6)[[9, 2]][:, [4, 0]])
    with pytest.raises(synk.SourceError, match="columns of lists"):
        sources.parquet(paths, ["x", "c0"])
    table = pa.table(
        {"a": pa.array([1.0, None]), "b": pa.array([1, 2], pa.int32()), "c": ["t", "u"]}
    )
    parquet.write_table(table, tmp_path / "nulls.parquet")
    with pytest.raises(synk.SourceError, match="column 'a' has 1 nulls"):
        sources.parquet(tmp_path / "nulls.parquet", ["a", "b"])[[0]]
    with pytest.raises(synk.SynkhronosError):
        sources.parquet(tmp_path / "nulls.parquet", "c")
    mixed = sources.parquet(tmp_path / "nulls.parquet", ["b"])
    assert mixed[[1]].tolist() == [[2]]


@pytest.mark.parametrize(
    ("options", "said"),
    [({"keep": 0}, "keep=0"), ({"classes": 0.5}, "classes=0.5"), ({"keep": True}, "keep=True")],
)
def test_bad_options(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(synk.InputError, match=said):
        sources.npz(written("npz", tmp_path), "x", **options)
    with pytest.raises(synk.InputTypeError, match="no option 'windows'"):
        sources.npz("a.npz", "x", windows=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("kind", "library"),
    [
        *(("hdf5", "h5py"), ("zarr", "zarr"), ("parquet", "pyarrow"), ("csv", "pyarrow")),
        ("remote", "fsspec"),
    ],
)
def test_libraries_that_are_missing(
    kind: str, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = ["memory://x.npy"] if kind == "remote" else written(kind, tmp_path)
    read = sources.npy if kind == "remote" else FORMATS[kind][2]
    real = builtins.__import__

    def without(name: str, *more: Any) -> Any:
        if name.split(".")[0] == library:
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(synk.BackendMissing, match=r'"synkhronos\[data\]"'):
        read(paths)


# ---- remote files


@pytest.fixture
def remote() -> Iterator[Callable[[np.ndarray], str]]:
    """Writes an array to a remote file; returns its path."""
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")

    def put(array: np.ndarray) -> str:
        raw = io.BytesIO()
        np.save(raw, array)
        store.pipe("/rows.npy", raw.getvalue())
        return "memory://rows.npy"

    yield put
    store.rm("/rows.npy")


def test_remote_files_are_copied_once_and_again_if_they_change(
    tmp_path: Path, remote: Callable[[np.ndarray], str]
) -> None:
    cache, path = tmp_path / "cache", remote(X)
    with pytest.raises(synk.InputError, match="give cache=folder"):
        sources.npy(path)
    source = sources.npy(path, cache=cache)
    np.testing.assert_array_equal(source[[3, 1]], X[[3, 1]])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(source))[[3]], X[[3]])
    np.testing.assert_array_equal(sources.npy(f"filecache::{path}", cache=cache)[[3]], X[[3]])
    [copy] = cache.iterdir()
    assert copy.name.endswith("-rows.npy")
    remote(X + 1)
    np.testing.assert_array_equal(sources.npy(path, cache=cache)[[3]], X[[3]] + 1)
    assert len(list(cache.iterdir())) == 2


def test_a_copy_stays_under_its_readers(
    tmp_path: Path, remote: Callable[[np.ndarray], str]
) -> None:
    """A reader maps it: a download onto it would change its rows, or end the process (SIGBUS)."""
    cache, path = tmp_path / "cache", remote(X)
    source = sources.npy(path, cache=cache)
    with source.reading():
        source[[0]]
        remote(X[:2] + 1)
        other = sources.npy(path, cache=cache)
        np.testing.assert_array_equal(other[:], X[:2] + 1)
        np.testing.assert_array_equal(source[:], X)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(source))[:], X)
    for copy in cache.iterdir():  # as on another machine, which has none
        copy.unlink()
    with pytest.raises(synk.SourceError, match="has changed since the source was made"):
        pickle.loads(pickle.dumps(source))[:]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(other))[:], X[:2] + 1)


def test_a_file_that_is_written_while_it_is_copied(
    tmp_path: Path, remote: Callable[[np.ndarray], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fsspec = pytest.importorskip("fsspec")
    store, path = type(fsspec.filesystem("memory")), remote(X)
    get = store.get_file

    def slow(self: Any, source: str, target: str, **options: Any) -> None:
        get(self, source, target, **options)
        remote(X + 1)

    monkeypatch.setattr(store, "get_file", slow)
    with pytest.raises(synk.SourceError, match="was written while it was copied"):
        sources.npy(path, cache=tmp_path)
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []
    np.testing.assert_array_equal(sources.npy(path, cache=tmp_path)[:], X + 1)
