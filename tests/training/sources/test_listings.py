"""Folders of images as cameras, archives and people leave them, and lists of images."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import synkhronos as synk
from synkhronos.training import sources

Image = pytest.importorskip("PIL.Image")


def picture(path: Path, grey: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (3, 2), grey).save(path)


def greys(source: sources.ImageSource) -> list[int]:
    return source[:][:, 0, 0, 0].tolist()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three classes, of which two have folders of their own."""
    root = tmp_path / "pets"
    for i, name in enumerate(
        ["cat/2023/a.png", "cat/2024/01/a.png", "cat/z.PNG", "dog/a.png", "emu/far/away/a.jfif"]
    ):
        path = root / name
        if path.suffix == ".jfif":
            picture(path.with_suffix(".jpg"), i)
            path.with_suffix(".jpg").rename(path)
        else:
            picture(path, i)
    return root


def test_all_folders_below_a_class(folder: Path) -> None:
    found = sources.images(folder, mode="L")
    assert found.classes == ("cat", "dog", "emu")
    assert found.labels.tolist() == [0, 0, 0, 1, 2]
    assert greys(found) == [0, 1, 2, 3, 4]


def test_hidden_entries_are_left_out_with_a_line(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("cat/._a.png", "cat/.DS_Store", "__MACOSX/cat/._a.png", ".git/x.png"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"no image")
    picture(folder / "cat" / ".hidden" / "a.png")
    with caplog.at_level(logging.INFO, "synkhronos"):
        assert len(sources.images(folder)) == 5
    assert "5 hidden entries are left out" in caplog.text
    caplog.clear()
    (folder / "dog" / "a.heic").write_bytes(b"")
    picture(folder / "in no class.png")
    with caplog.at_level(logging.WARNING, "synkhronos"):
        assert len(sources.images(folder)) == 5
    assert "2 entries that are no image of a class" in caplog.text
    assert "a.heic, in no class.png" in caplog.text


def test_a_class_without_images_is_named(folder: Path) -> None:
    (folder / "cow" / "2024").mkdir(parents=True)
    (folder / "fox").mkdir()
    (folder / "fox" / "._1.png").write_bytes(b"")
    with pytest.raises(synk.InputError, match=r"no image in cow, fox.*or remove the folder"):
        sources.images(folder)


def test_links(folder: Path, tmp_path: Path) -> None:
    """They are followed, as names of the user; a circle ends."""
    picture(tmp_path / "elsewhere" / "b.png", 9)
    (folder / "dog" / "more").symlink_to(tmp_path / "elsewhere")
    (folder / "dog" / "circle").symlink_to(folder / "dog")
    found = sources.images(folder, mode="L")
    assert greys(found) == [0, 1, 2, 3, 9, 4]


def test_folders_that_link_to_one_another(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """T6: each is read once, and by its own path: 12 have more paths than can be walked."""
    rooms = [folder / "dog" / f"room{i:02}" for i in range(12)]
    for room in rooms:
        picture(room / "a.png", 7)
        for other in rooms:
            (room / f"to{other.name}").symlink_to(other)
    found = sources.images(folder, mode="L")
    assert greys(found) == [0, 1, 2, 3, *[7] * 12, 4]
    assert [str(room / "a.png") for room in rooms] == list(found.paths[4:16])
    assert "entries that are no image of a class" in caplog.text


def test_numbers_of_named_classes(folder: Path, tmp_path: Path) -> None:
    """A folder that lacks a class keeps the numbers of the others."""
    picture(tmp_path / "validation" / "emu" / "a.png")
    names = ("cat", "dog", "emu")
    found = sources.images(tmp_path / "validation", classes=names)
    assert (found.classes, found.labels.tolist()) == (names, [2])
    assert sources.images(folder, classes=3).classes == names
    with pytest.raises(synk.InputError, match="are 3 classes, and classes=4"):
        sources.images(folder, classes=4)
    with pytest.raises(synk.InputError, match=r"emu is none of classes=\['cat', 'dog'\]"):
        sources.images(folder, classes=["cat", "dog"])
    with pytest.raises(synk.InputError, match="has a name twice"):
        sources.images(folder, classes=["cat", "cat"])
    with pytest.raises(synk.InputTypeError, match="a list of their names"):
        sources.images(folder, classes="cat")  # type: ignore[arg-type]


LISTS: dict[str, tuple[str, dict[str, Any], list[float], tuple[str, ...]]] = {
    "numbers": ("cat/z.PNG 7\ndog/a.png 0\n", {}, [7, 0], ()),
    "numbers in range": ("cat/z.PNG 7\r\ndog/a.png 0", {"classes": 8}, [7, 0], ()),
    "floats": ("cat/z.PNG 0.5\ndog/a.png 2\n", {}, [0.5, 2], ()),
    "names": ("cat/z.PNG tom\n# a comment\n\ndog/a.png rex\n", {}, [1, 0], ("rex", "tom")),
    "named": (
        *("cat/z.PNG\ttom\ndog/a.png rex\n", {"classes": ["tom", "rex"]}),
        *([0, 1], ("tom", "rex")),
    ),
    "with an ending": ("cat/2023/a 3\ndog/a 4\n", {"ending": ".png"}, [3, 4], ()),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_paths_and_labels(name: str, folder: Path, tmp_path: Path) -> None:
    text, options, labels, classes = LISTS[name]
    (tmp_path / "lists").mkdir()
    for place, more in ((folder, {}), (tmp_path / "lists", {"root": folder})):
        (place / "train.txt").write_text(text)
        found = sources.images(place / "train.txt", mode="L", **options, **more)
        assert found.labels.tolist() == labels
        assert found.labels.dtype == (np.float64 if name == "floats" else np.int64)
        assert found.classes == classes
        assert greys(found) == [0 if name == "with an ending" else 2, 3]


def test_paths_with_spaces_in_lists(folder: Path) -> None:
    picture(folder / "a cat" / "one more.png", 5)
    (folder / "train.txt").write_text("a cat/one more.png 1\n")
    assert greys(sources.images(folder / "train.txt", mode="L")) == [5]


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("dog/a.png 0\ncat/z.PNG\n", {}, r"train\.txt, line 2: found 'cat/z.PNG', give a path"),
        ("dog/a.png 0\ndog/a.png 0\n", {}, r"line 2: 'dog/a.png' is listed before, at .*line 1"),
        ("\n# none\n", {}, "names no image"),
        ("dog/a.png -1\n", {"classes": 3}, r"line 1: found the label -1, .*classes=3"),
        ("dog/a.png x\n", {"classes": ["y"]}, r"line 1: found the label 'x', .*classes=\['y'\]"),
        ("https://h/a.png 1\n", {}, r"line 1: found 'https://h/a.png', give a path on this"),
        ("dog/a.png 1\n", {"columns": ("a", "b")}, "is for CSV and Parquet"),
    ],
)
def test_lists_that_are_refused(
    text: str, options: dict[str, Any], said: str, folder: Path
) -> None:
    (folder / "train.txt").write_text(text)
    with pytest.raises(synk.InputError, match=said):
        sources.images(folder / "train.txt", **options)


def test_a_picture_of_a_list_that_is_missing(folder: Path, tmp_path: Path) -> None:
    (folder / "train.txt").write_text("dog/a.png 1\ndog/b.png 0\n")
    with pytest.raises(synk.SourceError, match=r"dog/b\.png cannot be read"):
        sources.images(folder / "train.txt")
    lenient = sources.images(folder / "train.txt", skip=True)
    assert lenient.labels.tolist() == [1]
    with pytest.raises(synk.InputError, match="nowhere cannot be read"):
        sources.images(tmp_path / "nowhere")
    with pytest.raises(synk.InputError, match=r"ending='\.png' is for lists"):
        sources.images(folder, ending=".png")


TABLES: dict[str, tuple[dict[str, list[Any]], dict[str, Any], list[float]]] = {
    "numbers": ({"file": ["cat/z.PNG", "dog/a.png"], "target": [3, 1]}, {}, [3, 1]),
    "names": ({"file": ["cat/z.PNG", "dog/a.png"], "target": ["b", "a"]}, {}, [1, 0]),
    "floats": ({"file": ["cat/z.PNG", "dog/a.png"], "target": [0.5, 1.5]}, {}, [0.5, 1.5]),
    "numbers as paths": (
        {"more": ["x", "y"], "target": [3, 1], "file": ["007", "08"]},
        {"ending": ".png"},
        [3, 1],
    ),
}


@pytest.mark.parametrize("kind", ["csv", "tsv", "csv.gz", "parquet"])
@pytest.mark.parametrize("name", TABLES)
def test_tables_of_paths_and_labels(name: str, kind: str, folder: Path) -> None:
    pytest.importorskip("pyarrow")
    pd = pytest.importorskip("pandas")
    columns, options, labels = TABLES[name]
    picture(folder / "007.png", 2)
    picture(folder / "08.png", 3)
    path = folder / f"train.{kind}"
    if kind == "parquet":
        pd.DataFrame(columns).to_parquet(path)
    else:
        pd.DataFrame(columns).to_csv(path, index=False, sep="\t" if kind == "tsv" else ",")
    found = sources.images(path, columns=("file", "target"), mode="L", **options)
    assert found.labels.tolist() == labels
    assert found.classes == (("a", "b") if name == "names" else ())
    assert greys(found) == [2, 3]


@pytest.mark.parametrize(
    ("text", "columns", "said"),
    [
        ("f,t\ncat/z.PNG,\n", ("f", "t"), r"train\.csv, line 2, column 't': found nothing"),
        ("f,t\n,1\n", ("f", "t"), r"train\.csv, line 2, column 'f': found nothing"),
        ("f,t\ncat/z.PNG,1\n", ("f", "label"), r"train\.csv: .*no column \['label'\]; .*f, t"),
        ("f,t\ncat/z.PNG,1\n", None, "columns=None: give the columns of paths and of labels"),
        ("f,t\ncat/z.PNG,1\n", "ft", "columns='ft': give the columns"),
        ("f,t\ncat/z.PNG\n", ("f", "t"), r"train\.csv: line 2, column 2: found 1 fields"),
        ("f,t\n", ("f", "t"), "names no image"),
    ],
)
def test_tables_that_are_refused(text: str, columns: Any, said: str, folder: Path) -> None:
    pytest.importorskip("pyarrow")
    (folder / "train.csv").write_text(text)
    with pytest.raises(synk.InputError, match=said):
        sources.images(folder / "train.csv", columns=columns)
