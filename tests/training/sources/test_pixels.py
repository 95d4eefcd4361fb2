"""Pixels of images: every mode that Pillow opens, with every mode that a row can have."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import synkhronos as synk
from synkhronos.training import sources
from synkhronos.training.sources._pixels import DEPTHS

Image = pytest.importorskip("PIL.Image")
version = pytest.importorskip("PIL").__version__

MODES = {"L": 1, "RGB": 3, "RGBA": 4}
SIZE = (4, 6)  # height and width
BYTES = np.random.default_rng(0).integers(0, 256, (*SIZE, 4), dtype=np.uint8)
DEEP = {
    "uint16": np.array([[0, 1, 255, 256], [4095, 32768, 65534, 65535]], np.uint16),
    "int16": np.array([[-32768, -1, 0, 1], [255, 256, 4095, 32767]], np.int16),
    "uint32": np.array([[0, 1, 255, 65536], [2**24 + 1, 2**31 - 1, 2**31, 2**32 - 1]], np.uint32),
    "int32": np.array([[-(2**31), -1, 0, 1], [255, 2**16, 2**24 + 1, 2**31 - 1]], np.int32),
    "int8": np.array([[-128, -1, 0, 1], [2, 3, 126, 127]], np.int8),
    "float32": np.array([[0, 0.25, 0.5, 1], [-3e38, 3e38, 1e-40, np.inf]], np.float32),
}


def tiff(pixels: np.ndarray, order: str = "<", pages: int = 1, **tags: Any) -> bytes:
    """A TIFF of grey values, without compression; each page has the same pixels."""
    raw = pixels.astype(pixels.dtype.newbyteorder(order)).tobytes()
    kind = {"u": 1, "i": 2, "f": 3}[pixels.dtype.kind]
    found = {"<": b"II", ">": b"MM"}[order] + struct.pack(order + "HI", 42, 8 + len(raw)) + raw
    for page in range(pages):
        entries = {
            254: page if tags.get("reduced") else 0,
            256: pixels.shape[1],
            257: pixels.shape[0],
            258: 8 * pixels.itemsize,
            259: 1,
            262: 1,
            273: 8,
            277: 1,
            278: pixels.shape[0],
            279: len(raw),
            339: kind,
        }
        body = b"".join(struct.pack(order + "HHII", tag, 4, 1, n) for tag, n in entries.items())
        after = len(found) + 2 + len(body) + 4 if page < pages - 1 else 0
        found += struct.pack(order + "H", len(entries)) + body + struct.pack(order + "I", after)
    return found


def saved(image: Any, kind: str, **options: Any) -> bytes:
    made = io.BytesIO()
    image.save(made, kind, **options)
    return made.getvalue()


def shallow() -> dict[str, bytes]:
    """Files of 8 bits or fewer in each format that is read, and each mode that it has."""
    colours = Image.fromarray(BYTES)
    found = {}
    kinds = {
        "PNG": ("1", "L", "LA", "P", "RGB", "RGBA"),
        "TIFF": ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB"),
        "JPEG": ("L", "RGB", "CMYK"),
        "WEBP": ("RGB", "RGBA"),
        "BMP": ("1", "L", "P", "RGB", "RGBA"),
        "GIF": ("1", "L", "P"),
        "PPM": ("1", "L", "RGB"),
    }
    for kind, modes in kinds.items():
        for mode in modes:
            source = colours.convert("RGB") if mode in ("LAB", "PA", "P") else colours
            source = source.convert("P") if mode == "PA" else source
            found[f"{kind} {mode}"] = saved(source.convert(mode), kind)
    palette = colours.convert("RGB").convert("P")
    found["PNG P transparent"] = saved(palette, "PNG", transparency=bytes(range(200)))
    found["PNG L transparent"] = saved(colours.convert("L"), "PNG", transparency=3)
    return found


def deep() -> dict[str, tuple[bytes, np.ndarray]]:
    """Files of other values, and their values."""
    found = {}
    for name, pixels in DEEP.items():
        for order in "<>":
            if (name, order) != ("uint32", ">"):  # Pillow has none
                found[f"TIFF {name} {order}"] = tiff(pixels, order), pixels
    sixteen = Image.fromarray(DEEP["uint16"])
    found["PNG uint16"] = saved(sixteen, "PNG"), DEEP["uint16"]
    found["PPM uint16"] = saved(sixteen, "PPM"), DEEP["uint16"]
    floats = Image.fromarray(DEEP["float32"])
    found["PFM float32"] = saved(floats, "PPM"), DEEP["float32"]
    return found


def folder_of(folder: Path, content: bytes) -> Path:
    place = folder / "pets" / "cat"
    place.mkdir(parents=True)
    (place / "1.png").write_bytes(content)  # Pillow goes by the content
    return folder / "pets"


@pytest.mark.parametrize("name", shallow())
def test_files_of_8_bits(name: str, tmp_path: Path) -> None:
    """The rows of each mode are those that Pillow shows, and no other dtype takes the file."""
    content = shallow()[name]
    folder = folder_of(tmp_path, content)
    with Image.open(io.BytesIO(content)) as image:
        if name == "TIFF YCbCr" and version < "12":
            pytest.skip("Pillow 11 cannot read the file that it writes")
        shown = np.asarray(image.convert("RGBA"))
        size = image.height, image.width
    for mode, channels in MODES.items():
        found = sources.images(folder, mode=mode)
        assert (found.shape, found.dtype) == ((1, channels, *size), np.dtype(np.uint8))
        wanted = np.asarray(Image.fromarray(shown).convert(mode)).reshape(*size, channels)
        off = np.abs(found[0].astype(int) - wanted.transpose(2, 0, 1))
        if "LAB" in name or "YCbCr" in name or "CMYK" in name:
            assert off.max() <= 2  # Pillow rounds twice
        else:
            assert not off.any()
    for dtype in DEPTHS[1:]:
        with pytest.raises(synk.SourceError, match=r"1\.png.*give dtype='uint8'"):
            sources.images(folder, dtype=dtype)
    late = sources.images(folder, dtype="uint16", resize=size)  # opens no file
    with pytest.raises(synk.SourceError, match=r"1\.png: row 0 .*give dtype='uint8'"):
        late[0]


@pytest.mark.parametrize("name", deep())
def test_files_of_other_values(name: str, tmp_path: Path) -> None:
    """Rows have the values of the file; where they do not fit, the error says which dtype does."""
    content, pixels = deep()[name]
    folder = folder_of(tmp_path, content)
    own = str(pixels.dtype)
    for mode, channels in MODES.items():
        found = sources.images(folder, mode=mode, dtype=own)
        assert (found.shape, found.dtype) == ((1, channels, *pixels.shape), pixels.dtype)
        row = found[0]
        for channel in row[:3]:
            np.testing.assert_array_equal(channel, pixels)
        if mode == "RGBA":
            assert np.unique(row[3]).tolist() == [np.iinfo(own).max if own[0] != "f" else 1]
    for dtype in DEPTHS:
        if dtype != own:
            with pytest.raises(synk.SourceError, match=rf"1\.png.*give dtype='{own}'"):
                sources.images(folder, dtype=dtype)


def test_colours_of_16_bits_are_scaled(tmp_path: Path) -> None:
    """Pillow has no colours of 16 bits: it takes their upper 8 bits, which is no clipping."""
    values = np.array([[[0, 255, 256], [511, 4095, 65535]]], np.uint16)
    raw = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)

    def chunk(name: bytes, data: bytes) -> bytes:
        tail = struct.pack(">I", zlib.crc32(name + data))
        return struct.pack(">I", len(data)) + name + data + tail

    head = struct.pack(">IIBBBBB", 2, 1, 16, 2, 0, 0, 0)
    chunks = (b"IHDR", head), (b"IDAT", zlib.compress(raw)), (b"IEND", b"")
    folder = folder_of(tmp_path, b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*c) for c in chunks))
    np.testing.assert_array_equal(sources.images(folder)[0], (values >> 8).transpose(2, 0, 1))
    with pytest.raises(synk.SourceError, match="reads 8 bits of each colour"):
        sources.images(folder, dtype="uint16")


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int16", "float32"])
def test_other_values_in_another_size(dtype: str, tmp_path: Path) -> None:
    """Interpolation ends at the range of the type: a white picture stays white."""
    kind = np.dtype(dtype)
    low, high = (0, 1) if kind.kind == "f" else (np.iinfo(kind).min, np.iinfo(kind).max)
    pixels = np.full((8, 8), high, kind)
    pixels[:, :4] = low
    folder = folder_of(tmp_path, tiff(pixels))
    row = sources.images(folder, mode="L", dtype=dtype, resize=(4, 16))[0][0]
    assert row.shape == (4, 16)
    assert row[:, :3].max() <= low + 0.1 * (float(high) - low)
    assert row[:, -3:].min() >= high - 0.1 * (float(high) - low)
    for wide in ("int32", "uint32"):
        with pytest.raises(synk.InputError, match=f"loses digits of {wide}"):
            sources.images(folder, dtype=wide, resize=(4, 4))


def test_pages(tmp_path: Path) -> None:
    """A stack of pictures is not one; a small copy beside a picture is no page."""
    pixels = DEEP["uint16"]
    stack, plain = (folder_of(tmp_path / n, b"") for n in ("stack", "plain"))
    (stack / "cat" / "1.png").write_bytes(tiff(pixels, pages=3))
    (plain / "cat" / "1.png").write_bytes(tiff(pixels, pages=2, reduced=True))
    with pytest.raises(synk.SourceError, match=r"1\.png.*it has 3 pages"):
        sources.images(stack, dtype="uint16")
    found = sources.images(plain, dtype="uint16", mode="L")
    np.testing.assert_array_equal(found[0][0], pixels)


PORTRAIT = np.arange(6, dtype=np.uint8).reshape(2, 3) * 40  # as people see it
STORED = {  # by EXIF's number, https://www.cipa.jp/std/documents/e/DC-008-2012_E.pdf, 4.6.4 A
    1: PORTRAIT,
    2: PORTRAIT[:, ::-1],
    3: PORTRAIT[::-1, ::-1],
    4: PORTRAIT[::-1],
    5: PORTRAIT.T,
    6: np.rot90(PORTRAIT, 1),
    7: PORTRAIT[::-1, ::-1].T,
    8: np.rot90(PORTRAIT, -1),
}


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP", "JPEG"])
@pytest.mark.parametrize("number", STORED)
def test_a_portrait_stands_upright(kind: str, number: int, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = number
    big = np.kron(STORED[number], np.ones((8, 8), np.uint8))  # whole blocks of JPEG
    options = {"lossless": True} if kind == "WEBP" else {}
    folder = folder_of(tmp_path, saved(Image.fromarray(big), kind, exif=exif, **options))
    Image.fromarray(np.kron(PORTRAIT, np.ones((8, 8), np.uint8))).save(folder / "cat" / "2.png")
    found = sources.images(folder, mode="L")
    assert found.shape == (2, 1, 16, 24)
    off = np.abs(found[0].astype(int) - found[1])
    assert off.max() <= (8 if kind == "JPEG" else 0)
    sized = sources.images(folder, mode="L", resize=(2, 3))
    assert np.abs(sized[0].astype(int) - sized[1]).max() <= 8
    if kind != "TIFF":  # which Pillow turns itself
        stored = sources.images(folder, mode="L", resize=big.shape, orientation=False)[0][0]
        assert np.abs(stored.astype(int) - big).max() <= (8 if kind == "JPEG" else 0)


def test_exif_that_cannot_be_read(tmp_path: Path) -> None:
    picture = saved(Image.fromarray(PORTRAIT), "PNG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    assert sources.images(folder_of(tmp_path, picture), mode="L").shape == (1, 1, 2, 3)


@pytest.mark.parametrize(("most", "dtype"), [(100, "uint8"), (1023, "uint16")])
def test_grey_values_below_a_largest_one(most: int, dtype: str, tmp_path: Path) -> None:
    """PPM says what is white; Pillow scales that to the largest value of the type."""
    values = np.array([[0, most // 2, most]])
    raw = f"P5 3 1 {most}\n".encode() + values.astype("u1" if most < 256 else ">u2").tobytes()
    row = sources.images(folder_of(tmp_path, raw), mode="L", dtype=dtype)[0][0]
    scaled = values / most * np.iinfo(dtype).max
    assert np.abs(row - scaled).max() <= 0.5


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_animations(kind: str, tmp_path: Path) -> None:
    first, second = (Image.new("L", (3, 2), grey) for grey in (0, 255))
    options = {"lossless": True} if kind == "WEBP" else {}
    raw = saved(first, kind, save_all=True, append_images=[second], **options)
    with Image.open(io.BytesIO(raw)) as image:
        assert image.n_frames == 2
    assert not sources.images(folder_of(tmp_path, raw))[:].any()
