"""Folders of images, by Pillow."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from synkhronos._checks import check_word, is_integer, options_checked, shown
from synkhronos._errors import BackendMissing, InputError
from synkhronos.training.sources._files import Described, FileSource, Format, Options

_ENDINGS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
# Pillow goes by the content: by any other format a file might start a program, such as Ghostscript
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4}


@dataclass(frozen=True)
class Images(Format):
    """Each file is one row: uint8, channels first."""

    mode: str
    resize: tuple[int, int] | None  # height and width

    name = "images"
    kept = False  # a row is asked for once an epoch

    def describe(self, path: str) -> Described:
        size = self.resize
        if size is None:
            with _library().open(path, formats=_FORMATS) as image:
                size = image.height, image.width
        return Described((1,), (_CHANNELS[self.mode], *size), np.dtype(np.uint8))

    def read(self, handle: Any, block: int, start: int, stop: int) -> np.ndarray:
        with _library().open(handle, formats=_FORMATS) as image:
            plain = image.convert(self.mode)
            if self.resize is not None and plain.size != self.resize[::-1]:
                plain = plain.resize(self.resize[::-1])
            pixels = np.asarray(plain)
        return pixels[None, None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)[None]


class ImageSource(FileSource):
    """Images and their labels; `images` makes it.

    Attributes
    ----------
    labels : numpy.ndarray
        The number of each row's class, int64: a source beside this one.
    classes : tuple of str
        The names of the subfolders, sorted.
    """

    def __init__(self, kind: Images, files: dict[str, str], options: Options) -> None:
        super().__init__(kind, list(files), options)
        self.classes = tuple(sorted(set(files.values())))
        numbers = {name: i for i, name in enumerate(self.classes)}
        self.labels = np.array([numbers[files[path]] for path in self.paths])


def _library() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise BackendMissing("Pillow", "data") from None
    return Image


@options_checked
def images(
    folder: str | os.PathLike[str],
    *,
    resize: tuple[int, int] | None = None,
    mode: str = "RGB",
    threads: int = 1,
    skip: bool = False,
) -> ImageSource:
    """Images of a folder; each subfolder is a class (extra: data).

    Parameters
    ----------
    folder : path
        Its subfolders hold the images: ``folder/cat/1.png``.
    resize : (height, width), optional
        The size of all rows. Default: that of the files, which must be equal.
    mode : {"RGB", "L", "RGBA"}
        Colours, grey values, or colours with transparency.
    threads : int, at least 1
        Threads that decode a batch. They use cores that the members compute on, too.
    skip : bool
        Leave out images that cannot be read: see `synkhronos.training.sources`.

    Returns
    -------
    ImageSource
        Rows are uint8 of shape (channels, height, width), as convolutions of PyTensor take them.
        ``source.labels`` is the source of the labels.

    Raises
    ------
    BackendMissing
    InputError
        The folder has no subfolder with images.
    SourceError
        An image is damaged, or has another size than the first.

    Notes
    -----
    Cost: the file of each row is opened and decoded whenever the row is read. Without `resize`,
    each file is also opened once to read its size.

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
    check_word("images: mode", mode, [*_CHANNELS])
    size = None
    if resize is not None:
        if len(resize) != 2 or not all(is_integer(n) and n > 0 for n in resize):
            raise InputError(f"images: resize={shown(resize)}: give (height, width)")
        size = int(resize[0]), int(resize[1])
    root = Path(folder)
    files = {
        str(path): path.parent.name
        for path in sorted(root.glob("*/*"))
        if path.suffix.lower() in _ENDINGS
    }
    if not files:
        raise InputError(f"images: {root} has no subfolders with images; each is a class")
    _library()
    return ImageSource(Images(mode, size), files, Options(skip=skip, threads=threads))
