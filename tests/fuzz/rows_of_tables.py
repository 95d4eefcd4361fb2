"""Readers of CSV files, and of lists and tables of images."""

from __future__ import annotations

import csv
import functools
import gzip
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from mutations import damaged, once_in, text_of
from rows_checked import CONFUSED, ERRORS, checked
from rows_of_others import pictures
from strangers import Reader, Tree

from synkhronos.training import sources

LINES = (
    "a , b , c , kind",
    "1 , 0.5 , 7 , rose",
    '2 , 1e3 , -7 , "iris"',
    "3 , nan , 0 , rose",
    "9007199254740992 , 4 , 12 , rose",
)
CELLS = [
    *('"', '""', '"a', '"a,b"', '"a\nb"', ",", ",,", "\r", "\n", "\n\n", "\t", ";", "1,5", "0x1F"),
    *("NA", "inf", "-0", "1e999", "9" * 400, "9" * 5000, "-1", "True", "rose", "a", "b", "\ufeff"),
]


def _packed(raw: bytes, ending: str) -> bytes:
    if ending == ".gz":
        return gzip.compress(raw)
    if ending == ".zst":
        import pyarrow as pa

        return bytes(pa.compress(raw, "zstd", asbytes=True))
    return raw


@st.composite
def csv_cases(draw: st.DrawFn) -> Tree:
    raw = draw(text_of(LINES, CELLS)).replace(b" ", b"")
    if draw(once_in(20)):
        raw = draw(st.sampled_from((b"", b"\xff\xfea\0", b'"', b"a", b"\xef\xbb\xbf", b"a,b\n")))
    ending = draw(st.sampled_from(("", "", "", ".gz", ".zst")))
    if ending and draw(once_in(10)):
        raw += draw(st.sampled_from((b"1,2,3,rose\n", b"\n", b"\0", b'"'))) * (CONFUSED // 11)
    found = _packed(raw, ending)
    return {f"x.csv{ending}": draw(damaged(found)) if ending and draw(once_in(3)) else found}


def read_csv(folder: Path) -> None:
    [path] = folder.glob("x.csv*")
    wanted: dict[str, Any] = {"a": None, "b": None, "kind": ["rose", "iris"]}
    for name, classes in wanted.items():
        source = sources.csv(path, name, classes=classes, cache=folder / "cache")
        checked(source, functools.partial(_by_hand, path, name, source))
    checked(sources.csv(path, "a:c", cache=folder / "cache"))


def _by_hand(path: Path, name: str, source: sources.FileSource) -> np.ndarray:
    """A column as Python reads it."""
    raw = path.read_bytes()
    if path.suffix == ".gz":
        raw = gzip.decompress(raw)
    elif path.suffix == ".zst":
        import pyarrow as pa

        raw = pa.input_stream(path, compression="zstd").read()
    text = raw.removeprefix(b"\xef\xbb\xbf").decode().rstrip("\r\n").replace("\r\n", "\n")
    if "\r" in text or len(text) > csv.field_size_limit():  # Python ends lines at a return
        return source[:]
    header, *rows = csv.reader(f"{line}\n" for line in text.split("\n"))
    at = [name.strip() for name in header].index(name)
    fields = [row[at] for row in rows]
    if name == "kind":
        return np.array([["rose", "iris"].index(field) for field in fields])
    if source.dtype.kind == "b":
        return np.array([field.strip().lower() in ("true", "1") for field in fields])
    if source.dtype.kind == "f":
        return np.array([float(field) for field in fields])
    base = [16 if "0x" in field.lower() else 10 for field in fields]
    return np.array([int(f, b) for f, b in zip(fields, base, strict=True)], source.dtype)


IMAGES = ("a.png 0", "b.jpg 1", "# more", "", "c d.png 0")
IMAGE_WORDS = [
    *("/etc/passwd", "../a.png", "/dev/null", "https://h/a.png", "s3://b/a.png", "::", "a.png"),
    *("1", "-1", "0.5", "nan", "9" * 30, "9" * 5000, "cat", "\0", ".", "/", "\r", "\x1c", ","),
]


@st.composite
def list_cases(draw: st.DrawFn) -> Tree:
    text = draw(text_of(IMAGES, IMAGE_WORDS) | st.just("\n".join(IMAGES).encode()))
    rows = draw(text_of(IMAGES[:2], IMAGE_WORDS))
    tree = {name: pictures()["PNG L"] for name in ("a.png", "b.jpg", "c d.png")}
    table = b"path,label\n" + rows.replace(b" ", b",")
    return {"x.txt": text, "x.csv": table, **tree}


def read_image_lists(folder: Path) -> None:
    for name, columns in (("x.txt", None), ("x.csv", ("path", "label"))):
        try:
            source = sources.images(folder / name, columns=columns, mode="L")
        except ERRORS as exc:
            # of a picture in the list, the message names that one
            if name in str(exc) or "cannot be read" in str(exc) or "the rows of" in str(exc):
                raise type(exc)(f"{exc} ({name})") from exc
            raise
        assert len(checked(source)) == len(source.labels)


READERS = (
    Reader("csv", lambda canary: csv_cases(), read_csv, "x.csv", ERRORS, share=2),
    Reader("image lists", lambda canary: list_cases(), read_image_lists, "x.", ERRORS),
)
