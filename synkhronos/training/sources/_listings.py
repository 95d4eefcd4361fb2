"""Which pictures there are, and the label of each: folders of classes, and lists."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from synkhronos._checks import shown
from synkhronos._errors import InputError
from synkhronos._host import files
from synkhronos._warnings import log
from synkhronos.training.sources._lines import CSV, Dialect, separator_of, texts_of
from synkhronos.training.sources._parquet import PARQUET, columns_of
from synkhronos.training.sources._paths import few, files_below, is_hidden

# of the formats that `_pixels` reads
_ENDINGS = frozenset(
    {".bmp", ".dib", ".gif", ".jpeg", ".jpg", ".jpe", ".jfif", ".png", ".apng"}
    | {".pbm", ".pgm", ".ppm", ".pnm", ".pfm", ".tif", ".tiff", ".webp"}
)
_LARGEST = 1 << 63


@dataclass(frozen=True)
class Listing:
    """Pictures in the order of their rows, and their labels, which may be numbers of classes."""

    paths: tuple[str, ...]
    labels: np.ndarray
    classes: tuple[str, ...]


def in_folders(root: Path, classes: int | Sequence[str] | None) -> Listing:
    """The pictures in the subfolders of a folder, at any depth; each subfolder is a class.

    Raises
    ------
    InputError
        There is none, a subfolder has none, or it is none of `classes`.
    """
    folders, left_out = _folders(root)
    if not folders:
        raise InputError(f"images: {root} has no subfolders with images; each is a class")
    names = _numbered([f.name for f in folders], classes, f"the subfolders of {root}")
    paths: list[str] = []
    labels: list[int] = []
    empty: list[str] = []
    for folder in folders:
        if folder.name not in names:
            raise InputError(
                f"images: the folder {folder} is none of classes={shown(list(names))}: add its "
                "name, or remove the folder"
            )
        found = _pictures(folder, left_out)
        if not found:
            empty.append(folder.name)
        paths += [str(path) for path in found]
        labels += [names[folder.name]] * len(found)
    if len(empty) == len(folders):
        raise InputError(f"images: {root} has no subfolders with images; each is a class")
    if empty:
        raise InputError(
            f"images: {root} has no image in {few(empty)}, and each subfolder is a class: put "
            "images there, or remove the folder"
        )
    _tell(root, left_out)
    return Listing(tuple(paths), np.array(labels), tuple(names))


def _folders(root: Path) -> tuple[list[Path], list[str]]:
    """The folders of classes, and the names of other entries."""
    try:
        entries = sorted(root.iterdir())
    except OSError as exc:
        raise InputError(
            f"images: {root} cannot be read ({exc.strerror}): give a folder with a subfolder for "
            "each class, or a list of paths with labels"
        ) from None
    folders = [e for e in entries if e.is_dir() and not is_hidden(e.name)]
    return folders, [e.name for e in entries if e not in folders]


def _pictures(folder: Path, left_out: list[str]) -> list[Path]:
    """The pictures of a class, sorted."""
    found = []
    for path in files_below("images", folder, left_out):
        if path.suffix.lower() in _ENDINGS:
            found.append(path)
        else:
            left_out.append(path.name)
    return sorted(found)


def _tell(root: Path, left_out: list[str]) -> None:
    """A line in the log with what is no row."""
    hidden = sum(map(is_hidden, left_out))
    others = sorted({name for name in left_out if not is_hidden(name)})
    if hidden:
        log.info("images: %s: %d hidden entries are left out", root, hidden)
    if others:
        count = len(left_out) - hidden
        log.warning(
            "images: %s: %d entries that are no image of a class, by their names, are left out: %s",
            *(root, count, few(others)),
        )


def in_lines(path: Path, root: Path, ending: str, classes: int | Sequence[str] | None) -> Listing:
    """The pictures of a text file with a path and a label in each line.

    Raises
    ------
    InputError
        It cannot be read, or a line has no label.
    """
    try:
        lines = files.read_text(path, most=None).split("\n")
    except OSError as exc:
        raise InputError(f"images: the list {path} cannot be read: {exc}") from None
    places, labels, numbers = [], [], []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        # the path may contain spaces, the label does not
        parts = line.strip().rsplit(None, 1)
        if len(parts) != 2:
            raise InputError(
                f"images: {path}, line {number}: found {shown(line)}, give a path and a label"
            )
        places.append(parts[0] + ending)
        labels.append(parts[1])
        numbers.append(number)
    return _labelled(path, places, labels, root, classes, [f"line {n}" for n in numbers])


def in_table(
    path: Path,
    columns: tuple[str, str],
    root: Path,
    ending: str,
    classes: int | Sequence[str] | None,
) -> Listing:
    """The pictures of a CSV or Parquet file with a column of paths and one of labels.

    Raises
    ------
    InputError
        It cannot be read, has no such column, or a field is empty.
    """
    try:
        if path.name.lower().endswith(PARQUET):
            (places, labels), where = columns_of(str(path), columns)
        else:
            dialect = Dialect(separator_of(str(path)))
            (places, labels), where = texts_of(str(path), columns, dialect)
    except (OSError, ValueError, TypeError) as exc:
        raise InputError(f"images: the table {path}: {exc}") from exc
    for name, values in zip(columns, (places, labels), strict=True):
        if None in values:
            raise InputError(
                f"images: {path}, {where[values.index(None)]}, column {name!r}: found nothing: "
                "fill it, or leave it out"
            )
    return _labelled(path, [f"{p}{ending}" for p in places], labels, root, classes, where)


def is_table(path: Path) -> bool:
    """Whether a file is CSV or Parquet, by its name."""
    return path.name.lower().endswith((*PARQUET, *CSV))


def _labelled(
    path: Path,
    places: Sequence[str],
    labels: Sequence[object],
    root: Path,
    classes: int | Sequence[str] | None,
    spots: Sequence[str],
) -> Listing:
    """The pictures of a list: labels are numbers, or else names of classes.

    `spots` says of each where it stands in the list at `path`, for messages.
    """
    if not places:
        raise InputError(f"images: {path} names no image")
    where = [f"{path}, {spot}" for spot in spots]
    for place, spot in zip(places, where, strict=True):
        if "://" in place or "::" in place or "\0" in place:
            raise InputError(f"images: {spot}: found {shown(place)}, give a path on this machine")
    paths = [os.path.join(root, place) for place in places]
    seen: dict[str, int] = {}
    for i, name in enumerate(paths):
        if name in seen:
            raise InputError(
                f"images: {where[i]}: {shown(places[i])} is listed before, at {where[seen[name]]}"
            )
        seen[name] = i
    numbers = None if isinstance(classes, Sequence) else _numbers(labels)
    if numbers is not None and not isinstance(classes, Sequence):
        if classes is not None:
            _check_range(numbers, classes, where)
        return Listing(tuple(paths), numbers, ())
    texts = [str(label) for label in labels]
    names = _numbered(sorted(set(texts)), classes, "the labels")
    for text, spot in zip(texts, where, strict=True):
        if text not in names:
            raise InputError(
                f"images: {spot}: found the label {shown(text)}, which is none of classes="
                f"{shown(list(names))}"
            )
    return Listing(tuple(paths), np.array([names[text] for text in texts]), tuple(names))


def _numbers(labels: Sequence[object]) -> np.ndarray | None:
    """The labels as integers or floats, if all are; else they are names."""
    texts = [str(label) for label in labels]  # int(0.5) would be 0
    with contextlib.suppress(ValueError):
        numbers = [int(text) for text in texts]
        return np.array(numbers, np.int64) if all(abs(n) < _LARGEST for n in numbers) else None
    with contextlib.suppress(ValueError):
        found = np.array([float(text) for text in texts])
        if np.isfinite(found).all():
            return found
    return None


def _check_range(numbers: np.ndarray, classes: int, where: Sequence[str]) -> None:
    wrong = np.flatnonzero((numbers < 0) | (numbers >= classes) | (numbers != numbers // 1))
    if len(wrong):
        first = int(wrong[0])
        raise InputError(
            f"images: {where[first]}: found the label {numbers[first]}, which is out of range "
            f"(classes={classes})"
        )


def _numbered(
    found: Sequence[str], classes: int | Sequence[str] | None, what: str
) -> dict[str, int]:
    """The number of each class by its name."""
    if isinstance(classes, Sequence):
        return {name: i for i, name in enumerate(classes)}
    if classes is not None and classes != len(found):
        raise InputError(f"images: {what} are {len(found)} classes, and classes={classes}")
    return {name: i for i, name in enumerate(found)}
