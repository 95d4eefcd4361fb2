"""Sources in a Loader: orders by blocks, errors of a batch, rows left out, nothing left open."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import synkhronos as synk
from synkhronos.extensions import Batches, Loader
from synkhronos.training import sources

pytestmark = pytest.mark.usefixtures("lasting_groups")

Array = np.ndarray
X = np.arange(60.0).reshape(30, 2)
Y = np.arange(30) % 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five archives of six rows each."""
    for i in range(5):
        rows = slice(6 * i, 6 * i + 6)
        np.savez_compressed(tmp_path / f"part{i}.npz", x=X[rows], y=Y[rows])
    return tmp_path


@pytest.fixture(autouse=True)
def _nothing_is_left(folder: Path) -> Iterator[None]:
    yield
    if open_in(folder):  # a traceback may hold them
        gc.collect()
    assert not open_in(folder)
    assert threading.enumerate() == [threading.main_thread()]


def open_in(folder: Path) -> list[str]:
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(os.readlink(link))
    return [name for name in found if str(folder) in name]


def opened(folder: Path, **options: Any) -> tuple[sources.FileSource, sources.FileSource]:
    paths = sorted(folder.glob("*.npz"))
    return sources.npz(paths, "x", **options), sources.npz(paths, "y", **options)


@pytest.mark.parametrize("sort", [False, True])
def test_an_epoch_by_blocks(group2: synk.Group, folder: Path, sort: bool) -> None:
    """Every row once, features and labels in step, in the order of the batches; two epochs."""
    x, y = opened(folder)
    batches = Batches(30, 7, seed=3, blocks=x.blocks, window=2)
    with Loader([x, y], batches, sort=sort, prefetch=3) as loader:
        for epoch in range(2):
            order = batches.order(epoch)
            found = [(np.array(a), np.array(b)) for a, b in loader]
            assert [len(b) for _, b in found] == [7, 7, 7, 7, 2]
            np.testing.assert_array_equal(np.concatenate([a for a, _ in found]), X[order])
            np.testing.assert_array_equal(np.concatenate([b for _, b in found]), Y[order])
    assert loader.skipped == 0


def test_a_loop_left_early_closes_its_files(group2: synk.Group, folder: Path) -> None:
    np.save(folder / "rows.npy", X)
    for found in Loader(sources.npy(folder / "rows.npy"), Batches(30, 4)):
        assert len(found) == 4
        break


def test_unequal_lengths_at_once(group2: synk.Group, folder: Path) -> None:
    x, _ = opened(folder)
    y = sources.npz(folder / "part0.npz", "y")
    with pytest.raises(synk.InputError, match=r"source 1 .FileSource. has 6 rows, the batches 30"):
        Loader([x, y], Batches(30, 7))


def test_an_error_names_file_rows_batch_and_epoch(group2: synk.Group, folder: Path) -> None:
    """The group goes on, and so does the loader, once the file is whole again."""
    x, y = opened(folder)
    whole = (folder / "part2.npz").read_bytes()
    loader = Loader([x, y], Batches(30, 6, shuffle=False))
    assert len(list(loader)) == 5
    (folder / "part2.npz").write_bytes(whole[:50])
    again = Loader(list(opened_later(folder, whole)), Batches(30, 6, shuffle=False))
    with pytest.raises(synk.SourceError, match=r"part2.npz: rows 0 to 5 of the file") as caught:
        list(again)
    assert "batch 3 of epoch 1" in caught.value.__notes__[0]
    assert len(list(loader)) == 5, "what it has decoded"


def opened_later(folder: Path, whole: bytes) -> tuple[sources.FileSource, sources.FileSource]:
    """Sources of files of which the third is damaged after it has been described."""
    path = folder / "part2.npz"
    damaged = path.read_bytes()
    path.write_bytes(whole)
    found = opened(folder)
    path.write_bytes(damaged)
    return found


def test_damaged_rows_are_left_out_of_all_sources(group2: synk.Group, folder: Path) -> None:
    """Shorter batches, none without rows, all of them counted; every other row once."""
    x, y = opened(folder, skip=True)
    for i in (1, 3):
        path = folder / f"part{i}.npz"
        path.write_bytes(path.read_bytes()[:50])
    kept = np.r_[0:6, 12:18, 24:30]
    for size, lengths in ((6, [6, 6, 6]), (4, [4, 2, 4, 2, 4, 2])):
        loader = Loader([np.arange(30), x, y], Batches(30, size, shuffle=False))
        found, numbers = [], []
        for n, a, b in loader:
            found.append((np.array(n), np.array(a), np.array(b)))
            numbers.append(loader.rows)
        assert [len(n) for n, _, _ in found] == lengths
        rows = np.concatenate([n for n, _, _ in found])
        np.testing.assert_array_equal(rows, kept)
        np.testing.assert_array_equal(np.concatenate(numbers), kept)
        np.testing.assert_array_equal(np.concatenate([a for _, a, _ in found]), X[rows])
        np.testing.assert_array_equal(np.concatenate([b for _, _, b in found]), Y[rows])
        assert loader.skipped == 12
        assert loader.batches.epoch == 1
    shuffled = [np.array(n) for n, *_ in Loader([np.arange(30), x], Batches(30, 7), sort=True)]
    assert sorted(np.concatenate(shuffled)) == kept.tolist()


def test_not_a_number_in_a_batch(group2: synk.Group, folder: Path) -> None:
    x = X.copy()
    x[13, 1] = np.nan
    np.save(folder / "rows.npy", x)
    loader = Loader(sources.npy(folder / "rows.npy", check=True), Batches(30, 10, shuffle=False))
    with pytest.raises(synk.SourceError, match=r"row 13 of the source\) has NaN") as caught:
        list(loader)
    assert "batch 2 of epoch 1" in caught.value.__notes__[0]


def test_two_tasks_of_one_source(group2: synk.Group, folder: Path) -> None:
    """A loop for validation inside of the loop for training, over the same source."""
    x, _ = opened(folder, keep=1)
    totals = []
    for outer in Loader(x, Batches(30, 10)):
        inner = sum(np.array(rows).sum() for rows in Loader(x, Batches(30, 15)))
        totals.append((np.array(outer).sum(), inner))
    assert sum(t for t, _ in totals) == X.sum()
    assert {t for _, t in totals} == {X.sum()}


@pytest.mark.parametrize("prefetch", [2, 5])
def test_as_many_batches_are_read_ahead_as_asked(group2: synk.Group, prefetch: int) -> None:
    asked: list[int] = []
    ready = threading.Semaphore(0)

    def read(rows: Array) -> Array:
        asked.append(len(rows))
        ready.release()
        return X[rows]

    places = set()
    for number, found in enumerate(Loader(read, Batches(30, 3), prefetch=prefetch)):
        places.add(id(found))
        for _ in range(min(prefetch + number, 10) - len(asked)):
            assert ready.acquire(timeout=10)
        assert len(asked) <= min(prefetch + number, 10)
    assert len(places) == prefetch


@pytest.mark.parametrize("prefetch", [1, 0, 2.0, True])
def test_bad_prefetch_and_read(group2: synk.Group, prefetch: Any) -> None:
    with pytest.raises(synk.InputError, match="prefetch="):
        Loader(X, Batches(30, 3), prefetch=prefetch)
    with pytest.raises(synk.InputError, match="read='nodes'"):
        Loader(X, Batches(30, 3), read="nodes")  # type: ignore[arg-type]


def test_one_machine_has_one_reader(group2: synk.Group) -> None:
    """read="node" changes nothing there: any source will do."""
    loader = Loader(lambda rows: X[rows], Batches(30, 30, shuffle=False), read="node")
    for found in loader:
        np.testing.assert_array_equal(found.data, X)
