"""Readers of folders of images and of lists of paths."""

from __future__ import annotations

import functools
import io
import struct
import zlib
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from mutations import damaged, once_in, text_of
from rows_checked import ERRORS, ROWS, checked, confused
from strangers import Reader, Tree

from synkhronos.training import sources


@functools.cache
def pictures() -> dict[str, bytes]:
    from PIL import Image

    found = {}
    for kind in ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP"):
        for mode in ("L", "RGB"):
            made = io.BytesIO()
            Image.new(mode, (5, 4), 7).save(made, kind)
            found[f"{kind} {mode}"] = made.getvalue()
    exif = Image.Exif()
    exif[0x0112] = 6
    for kind, modes in (("PNG", ("P", "RGBA", "1", "I;16")), ("TIFF", ("I", "F", "I;16", "L"))):
        for mode in modes:
            made = io.BytesIO()
            Image.new(mode, (5, 4), 1).save(made, kind, exif=exif)
            found[f"{kind} {mode}, turned"] = made.getvalue()
    return found


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


@st.composite
def png_bytes(draw: st.DrawFn) -> bytes:
    """A PNG whose header says what it likes, with right checksums."""
    wide, high = (draw(st.sampled_from((4, 5, 0, 1, 2000, 2**16, 2**31 - 1))) for _ in range(2))
    head = struct.pack(
        ">IIBBBBB",
        wide,
        high,
        draw(st.sampled_from((8, 1, 16, 3))),
        draw(st.integers(0, 7)),
        0,
        0,
        0,
    )
    kind = draw(st.sampled_from((b"zTXt", b"iCCP", b"eXIf", b"acTL", b"fdAT", b"tRNS", b"PLTE")))
    extra = draw(st.binary(max_size=40) | st.just(b"x\0\0" + confused()))
    data = draw(st.sampled_from((zlib.compress(bytes(99)), b"", confused())))
    chunks = [
        _chunk(b"IHDR", head),
        _chunk(kind, extra),
        _chunk(b"IDAT", data),
        _chunk(b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@st.composite
def image_cases(draw: st.DrawFn) -> Tree:
    found = {}
    for name in ("cat/1.png", "dog/1.jpg"):
        raw = pictures()[draw(st.sampled_from(sorted(pictures())))]
        kind = draw(st.sampled_from(("good", "good", "damaged", "made")))
        found[name] = {"good": st.just(raw), "damaged": damaged(raw), "made": png_bytes()}[kind]
    tree = {name: draw(each) for name, each in found.items()}
    if draw(once_in(10)):
        tree["cat/1.png"] = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\n"
    return tree


def read_images(folder: Path) -> None:
    for options in (
        {},
        {"resize": (3, 2), "mode": "L"},
        {"mode": "RGBA", "threads": 2},
        {"dtype": "uint16", "mode": "L"},
        {"dtype": "float32", "orientation": False},
    ):
        try:
            source = sources.images(folder, **options)
            assert len(checked(source)) in (0, len(source.labels))
        except ERRORS as exc:
            if "other values: give dtype=" not in str(exc):
                raise


LINES = ("rows.npy", "# more", "rows2.npy", "", "  rows3.npy  ")
WORDS = [
    "rows.npy",
    "/etc/passwd",
    "../x.npy",
    "https://[::1/x.npy",
    "s3://b/x.npy",
    "::",
    "://",
    "file:///etc/passwd",
    "filecache::s3://b/x",
    "reference::x",
    "x.list",
    ".",
    "/",
    "~/x.npy",
    "/dev/null",
    "http://me:pw@h/x.npy?sig=a",
    "simplecache::",
    "#",
    "rows.npy#x",
    "\r",
    "\x1c",
]


def list_cases(canary: str) -> st.SearchStrategy[Tree]:
    made = io.BytesIO()
    np.save(made, ROWS)
    there = {name: made.getvalue() for name in ("rows.npy", "rows2.npy", "rows3.npy")}
    return text_of(LINES, WORDS).map(lambda text: {"x.list": text, **there})


def read_list(folder: Path) -> None:
    from synkhronos.training._from_config.rows import _format_of

    path = str(folder / "x.list")
    try:
        source = sources.npy(path)
    except ERRORS as exc:
        # of a path in the list, the message names that one
        if "x.list" not in str(exc):
            raise type(exc)(f"{exc} (x.list)") from exc
        raise
    checked(source)
    _format_of([path])


READERS = (
    Reader("images", lambda canary: image_cases(), read_images, "case", ERRORS),
    Reader("lists", list_cases, read_list, "x.list", ERRORS),
)
