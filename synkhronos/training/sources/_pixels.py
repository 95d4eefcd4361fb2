"""The pixels of pictures, by Pillow: the values of the file, which are never clipped."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from synkhronos._errors import needing
from synkhronos._host import files
from synkhronos.training.sources._files import UNCHECKED_BLOCK, check_stored

if TYPE_CHECKING:
    from PIL import Image

# Pillow goes by the content: by any other format a file might start a program, such as Ghostscript
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4}
DEPTHS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float32")
INTERPOLATED = ("uint8", "int8", "uint16", "int16", "float32")  # others would lose digits
_THROUGH = {"La": "LA", "LAB": "RGB"}  # modes that Pillow converts to few others
# of TIFF (https://www.itu.int/itudoc/itu-t/com16/tiff-fx/docs/tiff6.pdf, section 8 and 19)
_KIND_OF_PAGE, _BITS, _SAMPLE_FORMAT = 254, 258, 339
_TILE = 322, 323  # width and height, which may be larger than the picture
_REDUCED, _SIGNED = 1, 2
_WEBP_HEADER = 30  # bytes
_ORIENTATION = 0x0112  # of EXIF: how the camera was held
_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
_ON_THEIR_SIDE = (5, 6, 7, 8)


@dataclass(frozen=True)
class Pixels:
    """How pictures become rows: channels first."""

    mode: str
    dtype: str
    resize: tuple[int, int] | None  # height and width
    orientation: bool

    def shape(self, path: str) -> tuple[int, ...]:
        """The shape of the row of a file; only its header is read, and nothing with `resize`."""
        if self.resize is not None:
            return (CHANNELS[self.mode], *self.resize)
        with self._opened(path) as image:
            self._check(image)
            turned = self.orientation and _orientation(image) in _ON_THEIR_SIDE
            size = (image.width, image.height) if turned else (image.height, image.width)
        return (CHANNELS[self.mode], *size)

    def read(self, path: str) -> np.ndarray:
        """The row of a file."""
        with self._opened(path) as image:
            depth = self._check(image)
            turn = _TURNS.get(_orientation(image)) if self.orientation else None
            found = image
            if turn is not None:
                found = image.transpose(getattr(library().Transpose, turn))
            if depth == np.uint8:
                return self._colours(found)
            return self._grey(np.asarray(found), depth)

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[Image.Image]:
        """A picture, not decoded yet; one whose pixels the file does not explain is refused."""
        # by a name, Pillow would map it, and mix the pixels of a TIFF that is turned
        with files.reading(path) as file:
            stored, channels = os.fstat(file.fileno()).st_size, CHANNELS[self.mode]
            # Pillow takes the memory for a WebP's pixels when it opens the file
            size = _pixels_of_webp(file.read(_WEBP_HEADER)) * channels
            check_stored(size, stored, unchecked=UNCHECKED_BLOCK)
            file.seek(0)
            with library().open(file, formats=_FORMATS) as image:
                channels = max(len(image.getbands()), channels)
                size = _decoded_pixels(image) * channels * _depth(image).itemsize
                check_stored(size, stored, unchecked=UNCHECKED_BLOCK)
                yield image

    def _check(self, image: Image.Image) -> np.dtype:
        """The type of the values in the file, which is the wanted one."""
        depth = _depth(image)
        if depth != np.dtype(self.dtype):
            more = ", since Pillow reads 8 bits of each colour" if len(image.getbands()) > 1 else ""
            raise ValueError(
                f"its pixels are {depth} (mode {image.mode} of Pillow{more}), and dtype="
                f"{self.dtype!r} has other values: give dtype={str(depth)!r}, or write all "
                "pictures in one depth"
            )
        pages = _pages(image)
        if pages > 1:
            raise ValueError(
                f"it has {pages} pages, and a row is one picture: write each page to its own file"
            )
        return depth

    def _colours(self, image: Image.Image) -> np.ndarray:
        """Pixels of 8 bits, which Pillow converts."""
        if image.mode in _THROUGH:
            image = image.convert(_THROUGH[image.mode])
        elif image.mode == "P" and "transparency" in image.info:  # else Pillow warns
            image = image.convert("RGBA")
        plain = image.convert(self.mode)
        if self.resize is not None and plain.size != self.resize[::-1]:
            plain = plain.resize(self.resize[::-1])
        pixels = np.asarray(plain)
        return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)

    def _grey(self, found: np.ndarray, depth: np.dtype) -> np.ndarray:
        """Pixels of more bits: Pillow has no colours of these, and converts them by clipping."""
        pixels = found.astype(depth)  # Pillow has the bits of uint32 in int32, of int8 in uint8
        if self.resize is not None and pixels.shape != self.resize:
            pixels = _resized(pixels, self.resize)
        channels = [pixels] * (1 if self.mode == "L" else 3)
        if self.mode == "RGBA":
            opaque = np.iinfo(depth).max if depth.kind in "iu" else 1
            channels.append(np.full_like(pixels, opaque))
        return np.stack(channels)


def _pixels_of_webp(head: bytes) -> int:
    """The pixels of a WebP by its header; 0 for any other file.

    The three kinds of headers: RFC 9649, sections 2.5 to 2.7, 3.4; RFC 6386, section 9.1.
    """
    if head[:4] + head[8:12] != b"RIFFWEBP" or len(head) < _WEBP_HEADER:
        return 0
    match head[12:16]:
        case b"VP8X":
            width, height = (int.from_bytes(head[at : at + 3], "little") + 1 for at in (24, 27))
        case b"VP8L":
            sizes = int.from_bytes(head[21:25], "little")
            width, height = (sizes & 0x3FFF) + 1, (sizes >> 14 & 0x3FFF) + 1
        case b"VP8 ":
            width, height = (int.from_bytes(head[a : a + 2], "little") & 0x3FFF for a in (26, 28))
        case _:
            return 0
    return width * height


def _decoded_pixels(image: Image.Image) -> int:
    """The pixels that Pillow makes of a file."""
    sizes = image.size
    if image.format == "TIFF":
        tiles = [int(image.tag_v2.get(tag, 0)) for tag in _TILE]
        sizes = tuple(map(max, sizes, tiles))
    return sizes[0] * sizes[1]


def _depth(image: Image.Image) -> np.dtype:
    """The type of the values in a file; a mode of Pillow may stand for several."""
    if image.mode == "F":
        return np.dtype(np.float32)
    if image.mode.startswith("I;16"):
        return np.dtype(np.uint16)
    if image.format == "TIFF":
        signed = image.tag_v2.get(_SAMPLE_FORMAT, (1,))[0] == _SIGNED
        if image.mode == "I":
            bits = image.tag_v2[_BITS][0]
            return np.dtype(f"{'int' if signed else 'uint'}{bits}")
        return np.dtype(np.int8 if signed else np.uint8)
    # grey PPM of more than 8 bits, which Pillow scales to 16
    return np.dtype(np.uint16 if image.mode == "I" else np.uint8)


def _pages(image: Image.Image) -> int:
    """Pages of a TIFF that are not the first in a smaller size; of animations there is one."""
    if image.format != "TIFF" or not image.is_animated:
        return 1
    found = 0
    for page in range(image.n_frames):
        image.seek(page)
        found += not image.tag_v2.get(_KIND_OF_PAGE, 0) & _REDUCED
    image.seek(0)
    return found


def _orientation(image: Image.Image) -> int:
    """How EXIF says that a picture has to be turned; 1 if not."""
    if image.format == "TIFF":
        return 1  # Pillow itself turns these
    if image.format == "PNG" and "exif" not in image.info:
        return 1  # Pillow would decode the pixels to look behind them
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # of damaged EXIF, Pillow raises errors of many kinds; viewers show it as is
        return 1


def _resized(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Grey pixels in another size: interpolation may lead beyond the range, which ends it."""
    wide = pixels if pixels.dtype.kind == "f" else pixels.astype(np.int32)
    found = np.asarray(library().fromarray(wide).resize(size[::-1]))
    if pixels.dtype.kind == "f":
        return found
    limits = np.iinfo(pixels.dtype)
    return found.clip(limits.min, limits.max).astype(pixels.dtype)


def library() -> ModuleType:
    with needing("Pillow", "data"):
        from PIL import Image
    return Image
