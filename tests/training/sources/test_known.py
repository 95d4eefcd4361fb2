"""Known data sets: from a folder, whole or the test set only; a download that is refused."""

from __future__ import annotations

import builtins
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import synkhronos as synk
from synkhronos.training import sources
from synkhronos.training.sources import _known
from synkhronos.training.sources._paths import cache_folder


def write_idx(path: Path, array: np.ndarray) -> None:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(gzip.compress(header + array.tobytes()))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twelve images to train on, and five to test."""
    rng = np.random.default_rng(0)
    inner = tmp_path / "mnist"
    inner.mkdir()
    for name, n in (("train", 12), ("t10k", 5)):
        write_idx(inner / f"{name}-images-idx3-ubyte.gz", rng.integers(0, 255, (n, 28, 28), "u1"))
        write_idx(inner / f"{name}-labels-idx1-ubyte.gz", np.arange(n, dtype="u1") % 10)
    monkeypatch.setenv("SYNKHRONOS_DATA", str(tmp_path))
    return inner


def test_the_files_of_a_folder(folder: Path) -> None:
    found = sources.known("mnist")
    assert isinstance(found, sources.Split)
    assert [x.shape for x, _ in found] == [(10, 784), (2, 784), (5, 784)]
    assert [y.tolist() for _, y in (found.validation, found.test)] == [[0, 1], [0, 1, 2, 3, 4]]
    assert found.where == f"MNIST in {folder}"
    x, y = found.train
    assert (x.dtype, y.dtype) == (np.float32, np.int32)
    assert 0 <= x.min() < x.max() <= 1


def test_the_test_set_only(folder: Path) -> None:
    for path in folder.glob("train*"):
        path.unlink()
    found = sources.known("mnist")
    assert [len(y) for _, y in found] == [4, 1, 0]
    assert found.where == f"the test set of MNIST in {folder}"


@pytest.mark.parametrize("harm", [lambda raw: raw[:20], lambda raw: gzip.compress(b"\0\0\x08\x01")])
def test_a_damaged_file_is_named(folder: Path, harm: Any) -> None:
    path = folder / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(harm(path.read_bytes()))
    with pytest.raises(synk.SourceError, match=r"t10k-labels-idx1-ubyte.gz"):
        sources.known("mnist")


def test_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNKHRONOS_DATA", str(tmp_path))
    monkeypatch.setattr(_known, "answers", lambda url: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(synk.SourceError, match=r"no MNIST .*holds no files of MNIST.*not answer"):
        sources.known("mnist")
    other = sources.known("mnist", instead="digits")
    assert len(other.train[1]) == 1297
    assert other.where.startswith(f"no MNIST (SYNKHRONOS_DATA={tmp_path} holds")
    assert other.where.endswith("scikit-learn's digits of 8x8 pixels instead")
    real = builtins.__import__

    def without(name: str, *more: Any) -> Any:
        if name in ("pooch", "sklearn.datasets"):
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(synk.SourceError, match="pooch is not installed"):
        sources.known("mnist")
    with pytest.raises(synk.BackendMissing, match="scikit-learn"):
        sources.known("digits")


def test_a_download_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of the cache are taken only with the SHA-256 of the originals."""
    pooch = pytest.importorskip("pooch")
    monkeypatch.delenv("SYNKHRONOS_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(_known, "answers", lambda url: False)
    folder = cache_folder("mnist")
    folder.mkdir(parents=True)
    for name in _known.FILES:
        (folder / name).write_bytes(b"not the original")

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise ConnectionError("no network here")

    monkeypatch.setattr(pooch, "HTTPDownloader", lambda **k: refuse)
    with pytest.raises(synk.SourceError, match="ConnectionError"):
        sources.known("mnist")


def test_digits_and_other_names() -> None:
    found = sources.known("digits")
    assert [x.shape for x, _ in found] == [(1297, 64), (250, 64), (250, 64)]
    with pytest.raises(synk.InputError, match="there are"):
        sources.known("cifar")
