"""Folders of images: labels by subfolder, sizes, damage, threads that end."""

from __future__ import annotations

import builtins
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import synkhronos as synk
from synkhronos.training import sources

Image = pytest.importorskip("PIL.Image")

PIXELS = np.random.default_rng(0).integers(0, 255, (7, 4, 6, 3), dtype=np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five cats, two dogs; and files that are no images."""
    for i, pixels in enumerate(PIXELS):
        place = tmp_path / ("cat" if i < 5 else "dog")
        place.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(place / f"{i}.png")
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "readme.png").write_text("in no class")
    return tmp_path


@pytest.mark.parametrize("threads", [1, 3])
def test_rows_are_pixels_channels_first_and_labels_the_subfolders(
    folder: Path, threads: int
) -> None:
    found = sources.images(folder, threads=threads)
    assert isinstance(found, sources.ImageSource)
    assert (found.shape, found.dtype, found.classes) == ((7, 3, 4, 6), np.uint8, ("cat", "dog"))
    assert found.labels.tolist() == [0] * 5 + [1] * 2
    rows = np.array([6, 0, 0, 3])
    np.testing.assert_array_equal(found[rows], PIXELS[rows].transpose(0, 3, 1, 2))
    assert found[[]].shape == (0, 3, 4, 6)
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again[[2]], found[[2]])
    np.testing.assert_array_equal(again.labels, found.labels)
    assert threading.active_count() == 1


def test_modes_and_sizes(folder: Path) -> None:
    grey = sources.images(folder, mode="L", resize=(2, 3))
    assert grey[[1]].shape == (1, 1, 2, 3)
    with Image.open(folder / "cat" / "1.png") as image:
        wanted = np.asarray(image.convert("L").resize((3, 2)))
    np.testing.assert_array_equal(grey[1][0], wanted)
    assert sources.images(folder, mode="RGBA").shape == (7, 4, 4, 6)
    Image.new("RGB", (9, 9)).save(folder / "dog" / "9.png")
    with pytest.raises(synk.SourceError, match=r"rows of .*dog/9.png are uint8 of shape .3, 9, 9."):
        sources.images(folder)
    assert sources.images(folder, resize=(4, 6)).shape == (8, 3, 4, 6)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_damaged_image(folder: Path, threads: int) -> None:
    path = folder / "cat" / "3.png"
    path.write_bytes(path.read_bytes()[:60])
    found = sources.images(folder, threads=threads)
    with pytest.raises(synk.SourceError, match=r"cat/3.png: row 3 of the source cannot be read"):
        found[:]
    lenient = sources.images(folder, threads=threads, skip=True)
    with pytest.raises(synk.SourceError) as caught:
        lenient[[5, 3, 1, 3]]
    assert set(caught.value.lost) == {3}
    path.write_bytes(b"")
    left = sources.images(folder, threads=threads, skip=True)
    assert left.skipped == (str(path),)
    assert left.labels.tolist() == [0] * 4 + [1] * 2
    assert len(left[:]) == 6


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "CMYK"}, 'mode=\'CMYK\': use "L", "RGB" or "RGBA"'),
        ({"threads": 0}, "threads=0"),
        ({"resize": (3,)}, "resize="),
        ({"resize": (0, 2)}, "resize="),
    ],
)
def test_bad_arguments(folder: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(synk.InputError, match=said):
        sources.images(folder, **options)
    with pytest.raises(synk.InputError, match="no subfolders with images"):
        sources.images(folder / "cat")


def test_without_pillow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *more: Any) -> Any:
        if name == "PIL":
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(synk.BackendMissing, match=r'"synkhronos\[data\]"'):
        sources.images(folder)
