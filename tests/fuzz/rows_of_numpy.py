"""Readers of arrays with a short header: npy, npz, IDX and CIFAR-10."""

from __future__ import annotations

import gzip
import io
import struct
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from mutations import EDGES, bomb, damaged, once_in
from rows_checked import CONFUSED, ERRORS, ROWS, SMALL, checked, packed, zeros
from strangers import Reader, Tree

from synkhronos.training import sources
from synkhronos.training.sources._idx import read_idx

DTYPES = [
    "'<f8'",
    "'>f8'",
    "'|O'",
    "'O'",
    "'<U9999999'",
    "'S0'",
    "'V8'",
    "'<f2'",
    "'<M8[ns]'",
    "'<c16'",
    "'|b1'",
    "'f9'",
    "'<i4'",
    "'<f16'",
    "[('a','<f8')]",
    "[('a','|O')]",
    "[('a','<f8',(9999999,))]",
    "('<f8',(3,))",
    "'|S9999999999'",
    "3",
    "None",
    "[]",
    "{}",
]
SHAPES = [
    "(6,4)",
    "(4,6)",
    "(24,)",
    "()",
    "(0,)",
    "(0,4611686018427387904)",
    "(-6,4)",
    "(4611686018427387904,)",
    "(6,4,1)",
    "(4294967296,4294967296)",
    "(9999999999,0)",
    "(True,)",
    "(6.0,4)",
    "('x',)",
    "6",
    "None",
    "[6,4]",
    "(6,)*9",
    "(1e99,)",
    "(2147483648,1)",
    "(18446744073709551616,)",
    f"({'1,' * 70})",
    f"({'9' * 5000},)",
]
ORDERS = ("False", "True", "None", "0", "'x'")


@st.composite
def npy_bytes(draw: st.DrawFn) -> bytes:
    """An array whose header says something else than there is."""
    if draw(once_in(4)):
        made = io.BytesIO()
        np.save(made, draw(st.sampled_from((ROWS, ROWS.T, ROWS.astype(">i4"), ROWS[:0]))))
        return draw(damaged(made.getvalue()))
    descr = draw(st.sampled_from(["'<f8'"] * (4 * len(DTYPES)) + DTYPES))
    shape = draw(st.sampled_from(["(6,4)"] * (4 * len(SHAPES)) + SHAPES))
    order = draw(st.sampled_from(("False",) * 9 + ORDERS))
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"
    kind = draw(st.sampled_from(("plain",) * 40 + ("deep", "code", "many", "more", "long", "sum")))
    if kind == "deep":
        text = draw(st.sampled_from(("(", "[", "{1:", "-", "not "))) * draw(
            st.sampled_from((90, 1000, 4000))
        )
    elif kind == "code":
        text = "__import__('os').mkdir('canary')"
    elif kind == "many":
        text = text.replace("'descr'", "'x': 1, 'descr'")
    elif kind == "more":
        text += " " * 70_000
    elif kind == "sum":
        text = "1+" * 4000 + "1"
    version = draw(st.sampled_from(((1, 0),) * 9 + ((2, 0), (3, 0), (0, 0), (9, 1))))
    raw = text.encode() + b"\n"
    size = len(raw) if kind != "long" else draw(st.sampled_from(EDGES))
    form, most = ("<H", 1 << 16) if version == (1, 0) else ("<I", 1 << 32)
    head = b"\x93NUMPY" + bytes(version) + struct.pack(form, size % most)
    data = ROWS.tobytes()[: draw(st.sampled_from((192,) * 12 + (191, 0)))]
    return head + raw + data


def npy_cases(canary: str) -> st.SearchStrategy[Tree]:
    objects = io.BytesIO()
    np.lib.format.write_array(objects, np.array([None]), allow_pickle=True)
    with_code = objects.getvalue()[:-4] + bomb(canary)
    objects_or_not = (
        npy_bytes() | npy_bytes() | npy_bytes() | st.just(with_code) | damaged(with_code)
    )
    return objects_or_not.map(lambda raw: {"x.npy": raw})


def read_npy(folder: Path) -> None:
    path = folder / "x.npy"
    checked(sources.npy(path), lambda: np.load(path))


@st.composite
def npz_cases(draw: st.DrawFn, canary: str) -> Tree:
    made = io.BytesIO()
    names = draw(
        st.lists(
            st.sampled_from(("x.npy", "x.npy", "y.npy", "../x.npy", "/x.npy", "x", "x.npy/", "é")),
            min_size=1,
            max_size=3,
        )
    )
    methods = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    method = draw(st.sampled_from(methods))
    with zipfile.ZipFile(made, "w", method) as archive:
        for name in names:
            kind = draw(st.sampled_from(("array",) * 6 + ("bomb", "code", "other")))
            if kind == "bomb":
                body = zeros(CONFUSED if method and len(names) == 1 else 100)
            elif kind == "code":
                body = bomb(canary)
            else:
                body = draw(npy_bytes()) if kind == "array" else draw(st.binary(max_size=99))
            _add(archive, name, body)
    raw = made.getvalue()
    if draw(once_in(3)) and len(raw) < SMALL:
        raw = draw(damaged(raw))
    if draw(once_in(4)):
        raw = _said_size(raw, draw(st.sampled_from(EDGES)) % (1 << 32))
    return {"x.npz": raw}


def _add(archive: zipfile.ZipFile, name: str, body: bytes) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # names that are there twice
        archive.writestr(name, body)


def _said_size(raw: bytes, size: int) -> bytes:
    """The archive with another size of the first member in its directory."""
    at = raw.find(b"PK\x01\x02")
    return raw if at < 0 else raw[: at + 24] + struct.pack("<I", size) + raw[at + 28 :]


def read_npz(folder: Path) -> None:
    path = folder / "x.npz"

    def oracle() -> Any:
        with zipfile.ZipFile(path) as archive, archive.open("x.npy") as file:
            return np.lib.format.read_array(file)

    checked(sources.npz(path, "x"), oracle)


@st.composite
def idx_bytes(draw: st.DrawFn) -> bytes:
    shape = draw(st.lists(st.sampled_from((6, 4, 0, 1, 2**16, 2**31, 2**32 - 1)), max_size=4))
    if not draw(once_in(4)):
        shape = [6, 4]
    kind = draw(st.sampled_from((14,) * 12 + (8, 9, 11, 12, 13, 0, 255)))
    head = bytes([0, 0, kind, len(shape)]) + np.array(shape, ">u4").tobytes()
    raw = head + ROWS.astype(">f8").tobytes()
    return draw(damaged(raw)) if draw(once_in(3)) else raw


@st.composite
def idx_cases(draw: st.DrawFn) -> Tree:
    raw, many = draw(idx_bytes()), packed("gzip", True)
    once = gzip.compress(raw)
    chosen = draw(st.sampled_from((once,) * 4 + (once * 2, many, once + many, raw)))
    if len(chosen) < SMALL and draw(once_in(3)):
        chosen = draw(damaged(chosen))
    return {"x-ubyte": raw, "x-ubyte.gz": chosen}


def read_idx_files(folder: Path) -> None:
    checked(sources.idx(folder / "x-ubyte"))
    checked(sources.idx(folder / "x-ubyte.gz"))


def read_idx_whole(folder: Path) -> None:
    """As MNIST is read."""
    read_idx(folder / "x-ubyte.gz")


def cifar_cases(canary: str) -> st.SearchStrategy[Tree]:
    return st.sampled_from((0, 1, 3072, 3073, 6146, 6147)).map(lambda n: {"x.bin": bytes(n)})


def read_cifar(folder: Path) -> None:
    for part in ("images", "labels"):
        checked(sources.cifar10(folder / "x.bin", part))


READERS = (
    Reader("npy", npy_cases, read_npy, "x.npy", ERRORS),
    Reader("npz", lambda canary: npz_cases(canary), read_npz, "x.npz", ERRORS),
    Reader("idx", lambda canary: idx_cases(), read_idx_files, "x-ubyte", ERRORS),
    Reader("mnist", lambda canary: idx_cases(), read_idx_whole, "x-ubyte.gz", ERRORS),
    Reader("cifar10", cifar_cases, read_cifar, "x.bin", ERRORS),
)
