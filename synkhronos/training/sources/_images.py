"""Folders and lists of images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from synkhronos._checks import check_flag, check_word, is_integer, options_checked, shown
from synkhronos._errors import InputError
from synkhronos.training.sources._columns import check_classes
from synkhronos.training.sources._files import Described, FileSource, Format, Options
from synkhronos.training.sources._listings import Listing, in_folders, in_lines, in_table, is_table
from synkhronos.training.sources._pixels import CHANNELS, DEPTHS, INTERPOLATED, Pixels, library


@dataclass(frozen=True)
class Images(Format):
    """Each file is one row, channels first."""

    pixels: Pixels

    name = "images"
    kept = False  # a row is asked for once an epoch

    def describe(self, path: str) -> Described:
        return Described((1,), self.pixels.shape(path), np.dtype(self.pixels.dtype))

    def read(self, handle: str, block: int, start: int, stop: int) -> np.ndarray:
        return self.pixels.read(handle)[None]


class ImageSource(FileSource):
    """Images and their labels; `images` makes it.

    Attributes
    ----------
    labels : numpy.ndarray
        The number of each row's class, int64: a source beside this one. Of a list, its numbers:
        int64 or float64.
    classes : tuple of str
        The names of the classes in the order of their numbers. Empty if a list has numbers.
    """

    def __init__(self, kind: Images, listing: Listing, options: Options) -> None:
        super().__init__(kind, listing.paths, options)
        self.classes = listing.classes
        label_of = dict(zip(listing.paths, listing.labels, strict=True))
        self.labels = np.array([label_of[path] for path in self.paths])


@options_checked
def images(
    folder: str | os.PathLike[str],
    *,
    columns: tuple[str, str] | None = None,
    root: str | os.PathLike[str] | None = None,
    ending: str = "",
    classes: int | Sequence[str] | None = None,
    resize: tuple[int, int] | None = None,
    mode: str = "RGB",
    dtype: str = "uint8",
    orientation: bool = True,
    threads: int = 1,
    skip: bool = False,
) -> ImageSource:
    """Images of a folder, of which each subfolder is a class, or of a list (extra: data).

    Parameters
    ----------
    folder : path
        A folder: its subfolders hold the images, at any depth: ``folder/cat/1.png``,
        ``folder/cat/2024/2.png``. Or a list, whose lines have a path and a label:
        ``cat/1.png 0``. Or a table, in CSV or Parquet, with `columns`.
    columns : (str, str), optional
        Of a table: the column of paths, and that of labels.
    root : path, optional
        Where the paths of a list or a table begin. Default: the folder that it is in.
    ending : str
        Is added to each path of a list or a table: ``".jpg"``.
    classes : int, or list of str, optional
        The number of classes, or their names in the order of their numbers. Default: the names that
        are there, sorted. Give the names where another folder may lack one, as for validation.
    resize : (height, width), optional
        The size of all rows. Default: that of the files, which must be equal.
    mode : {"RGB", "L", "RGBA"}
        Colours, grey values, or colours with transparency.
    dtype : {"uint8", "int8", "uint16", "int16", "uint32", "int32", "float32"}
        The type of the values in the files, which is that of the rows. A file with another type is
        an error, since its values would be other ones.
    orientation : bool
        Turn pictures as their EXIF says, so that they are as people see them. Pillow turns TIFF in
        any case.
    threads : int, at least 1
        Threads that decode a batch. They use cores that the members compute on, too.
    skip : bool
        Leave out images that cannot be read: see `synkhronos.training.sources`.

    Returns
    -------
    ImageSource
        Rows have the shape (channels, height, width), as convolutions of PyTensor take them.
        ``source.labels`` is the source of the labels.

    Raises
    ------
    BackendMissing
    InputError
        The folder has no subfolder with images, or one of them has none. A line of a list has no
        label.
    SourceError
        An image is damaged, has other values than `dtype`, or another size than the first.

    Notes
    -----
    Cost: the file of each row is opened and decoded whenever the row is read. Without `resize`,
    each file is also opened once to read its size.

    A picture of more than 64 MB is refused if its file has less than 1/4,096 of it: such a file may
    be made to take all memory.

    Hidden entries, such as ``.DS_Store``, ``._1.png`` and ``__MACOSX``, are left out. A line in the
    log names other entries that are no image.

    Labels of a list that are all numbers are taken as they are; others are names of classes.

    Examples
    --------
    >>> import pathlib, tempfile, numpy as np
    >>> from PIL import Image
    >>> from synkhronos.training import sources
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("cat", "dog"):
    ...         place = pathlib.Path(folder) / name
    ...         place.mkdir()
    ...         Image.new("RGB", (4, 2)).save(place / "1.png")
    ...     pets = sources.images(folder)
    ...     pets.shape, pets.classes, pets.labels.tolist(), int(pets[[1]].sum())
    ((2, 3, 2, 4), ('cat', 'dog'), [0, 1], 0)
    """
    size = None
    check_word("images: mode", mode, [*CHANNELS])
    check_word("images: dtype", dtype, DEPTHS)
    if resize is not None:
        if len(resize) != 2 or not all(is_integer(n) and n > 0 for n in resize):
            raise InputError(f"images: resize={shown(resize)}: give (height, width)")
        if dtype not in INTERPOLATED:
            raise InputError(
                f"images: resize={shown(resize)} interpolates, which loses digits of {dtype}: "
                "leave out resize"
            )
        size = int(resize[0]), int(resize[1])
    pixels = Pixels(mode, dtype, size, check_flag("images: orientation", orientation))
    listing = _listing(Path(folder), columns, root, ending, check_classes("images", classes))
    library()
    return ImageSource(Images(pixels), listing, Options(skip=skip, threads=threads))


def class_names(folder: str | os.PathLike[str], **options: Any) -> tuple[str, ...]:
    """The names of the classes of a folder, a list or a table; no image is opened."""
    given = {"columns": None, "root": None, "ending": "", "classes": None} | options
    return _listing(Path(folder), **given).classes


def _two(columns: Any, place: Path) -> tuple[str, str]:
    several = isinstance(columns, list | tuple) and len(columns) == 2
    if not several or not all(isinstance(name, str) for name in columns):
        raise InputError(
            f"images: columns={shown(columns)}: give the columns of paths and of labels in {place}"
        )
    return columns[0], columns[1]


def _listing(
    place: Path,
    columns: Any,
    root: str | os.PathLike[str] | None,
    ending: str,
    classes: int | tuple[str, ...] | None,
) -> Listing:
    if place.is_dir():
        given = {"columns": columns, "root": root, "ending": ending or None}
        for name, value in given.items():
            if value is not None:
                raise InputError(
                    f"images: {name}={shown(value)} is for lists and tables, and {place} is a "
                    "folder"
                )
        return in_folders(place, classes)
    start = place.parent if root is None else Path(root)
    if is_table(place):
        return in_table(place, _two(columns, place), start, ending, classes)
    if columns is not None:
        raise InputError(
            f"images: columns={shown(columns)} is for CSV and Parquet, and {place} has the name of "
            "neither"
        )
    return in_lines(place, start, ending, classes)
