"""Files that a stranger has made run nothing, and lead to no other file of the user (T5, T6)."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import pickle
import struct
import time
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peak_memory import forget_peak, peak

import synkhronos as synk
from synkhronos.training import sources
from synkhronos.training.sources._pixels import _pixels_of_webp


class Bomb:
    def __init__(self, canary: Path) -> None:
        self.canary = str(canary)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.canary,)


OLD = {
    "zarr_format": 2,
    "shape": [4],
    "chunks": [4],
    "fill_value": 0,
    "order": "C",
    "filters": None,
    "dtype": "<f8",
}
TEXT = {"attributes": {"text": "which zarr would read"}}
PLAIN = {"name": "bytes", "configuration": {"endian": "little"}}
NEW = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [4],
    "data_type": "float64",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "fill_value": 0.0,
    "attributes": {"codecs": [{"name": "pickle"}]},  # the user's own words, which run nothing
}


def zarr_array(folder: Path, meta: dict[str, Any], chunk: bytes) -> str:
    folder.mkdir()
    if meta["zarr_format"] == 2:
        (folder / ".zarray").write_text(json.dumps(meta))
        (folder / "0").write_bytes(chunk)
    else:
        (folder / "zarr.json").write_text(json.dumps(meta))
        (folder / "c").mkdir()
        (folder / "c" / "0").write_bytes(chunk)
    return str(folder)


@pytest.mark.parametrize(
    "more",
    [
        {"compressor": {"id": "pickle", "protocol": 5}},
        {"compressor": None, "filters": [{"id": "pickle"}]},
        {"compressor": {"id": "zlib"}, "filters": [{"id": "json2"}], "dtype": "|O"},
        {"compressor": None, "filters": [{"id": "vlen-utf8"}], "dtype": "|O"} | TEXT,
        {"compressor": None, "filters": [{"id": "base64"}]},  # which zarr itself takes
    ],
    ids=["compressor", "filter", "json", "text", "another"],
)
def test_codecs_of_zarr(tmp_path: Path, more: dict[str, Any]) -> None:
    """Refused before rows are asked for."""
    pytest.importorskip("zarr")
    canary = tmp_path / "canary"
    path = zarr_array(tmp_path / "x.zarr", OLD | more, pickle.dumps(Bomb(canary)))
    # zarr itself refuses some of them since 3.1, by their dtypes
    own = "|No Zarr data type" if "text" not in more.get("attributes", ()) else ""
    with pytest.raises(synk.SourceError, match=f"may run code that the data contain{own}"):
        sources.zarr(path)
    assert not canary.exists()


@pytest.mark.parametrize("packed", [False, True], ids=["npy", "npz"])
@pytest.mark.parametrize("version", [(2, 0), (3, 0)])
def test_headers_of_numpy_with_a_length_of_gigabytes(
    tmp_path: Path, packed: bool, version: tuple[int, int]
) -> None:
    """Numpy reads as much as a header says that it has, before it finds that it is too long."""
    raw = np.lib.format.magic(*version) + b"\xff\xff\xff\xff{'descr': '<f8'}"
    path = tmp_path / ("x.npz" if packed else "x.npy")
    if packed:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", raw)
    else:
        path.write_bytes(raw)
    with pytest.raises(synk.SourceError, match="4,294,967,295 bytes, and at most 10,000 are read"):
        sources.npz(path, "x") if packed else sources.npy(path)


def test_codecs_are_known_by_name(tmp_path: Path) -> None:
    """Also inside of shards; attributes of the user are not codecs."""
    pytest.importorskip("zarr")
    from synkhronos.training.sources._zarr import _check_codecs

    values = np.arange(4.0)
    path = zarr_array(tmp_path / "x.zarr", NEW | {"codecs": [PLAIN]}, values.tobytes())
    assert sources.zarr(path)[:].tolist() == values.tolist()

    class Metadata:
        def __init__(self, codecs: list[Any]) -> None:
            self.codecs = codecs

        def to_dict(self) -> dict[str, Any]:
            return NEW | {"codecs": self.codecs}

    within = {"name": "sharding_indexed", "configuration": {"codecs": [{"name": "numcodecs.dill"}]}}
    for codecs in ([{"name": "numcodecs.pickle"}, PLAIN], [within]):
        with pytest.raises(ValueError, match="may run code"):
            _check_codecs(Metadata(codecs))


@pytest.mark.parametrize(
    "line",
    [
        "reference::file:///etc/passwd",
        "filecache::reference://x::file:///tmp/ref.json",
        "file:///etc/passwd",
        "ssh://host/x.npy",
        "github://a:b@/x.npy",
        "simplecache::zip://x.npy::http://host/a.zip",
        "local://x.npy",
        "s3://bucket/x.npy::file:///x",
    ],
)
def test_lines_of_lists(tmp_path: Path, line: str) -> None:
    listed = tmp_path / "a.list"
    listed.write_text(f"# rows\n{line}\n")
    with pytest.raises(synk.InputError, match=r"line 2 of .*a\.list"):
        sources.npy(str(listed), cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("line", ["s3://b/x.npy", "https://h/x.npy", "filecache::gs://b/x.npy"])
def test_usual_lines_of_lists(tmp_path: Path, line: str) -> None:
    from synkhronos.training.sources._paths import listed

    (tmp_path / "a.list").write_text(f"{line}\nmine.npy\n")
    found = listed("npy", tmp_path / "a.list")
    assert found == (line, str(tmp_path / "mine.npy"))


def test_images_of_other_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file named .png that is PostScript would start Ghostscript."""
    pytest.importorskip("PIL")
    canary, programs = tmp_path / "canary", tmp_path / "bin"
    programs.mkdir()
    (programs / "gs").write_text(f"#!/bin/sh\nmkdir {canary}\n")
    (programs / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    place = tmp_path / "pets" / "cat"
    place.mkdir(parents=True)
    text = "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\nshowpage\n"
    (place / "1.png").write_text(text)
    with pytest.raises(synk.SourceError, match="cannot identify"):
        _ = sources.images(tmp_path / "pets")[:]
    assert not canary.exists()


def hdf5_files(folder: Path) -> Path:
    import h5py

    with h5py.File(folder / "other.h5", "w") as other:
        other["x"] = np.arange(4.0)
        other["group/x"] = np.arange(4.0)
    with h5py.File(folder / "a.h5", "w") as file:
        file["inside"] = np.arange(4.0)
        file["soft"] = h5py.SoftLink("/groups/one/inside")
        file["groups/one/inside"] = h5py.SoftLink("/inside")
        file["circle"] = h5py.SoftLink("/circle")
        file["link"] = h5py.ExternalLink("other.h5", "x")
        file["folder"] = h5py.ExternalLink("other.h5", "group")
        file["soft link"] = h5py.SoftLink("link")
        secret = [(str(folder / "secret"), 0, 32)]
        file.create_dataset("external", (4,), "f8", external=secret)
        layout = h5py.VirtualLayout((4,), "f8")
        layout[:] = h5py.VirtualSource(str(folder / "other.h5"), "x", (4,))
        file.create_virtual_dataset("virtual", layout)
    (folder / "secret").write_bytes(np.arange(4.0).tobytes())
    return folder / "a.h5"


def test_hdf5_of_one_file(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    path = hdf5_files(tmp_path)
    for name in ("inside", "soft", "groups/one/inside"):
        assert sources.hdf5(path, name)[:].tolist() == [0, 1, 2, 3]
    for name in ("external", "virtual", "link", "folder/x", "soft link", "circle"):
        with pytest.raises(synk.SourceError, match="external=True"):
            sources.hdf5(path, name)
    for name in ("external", "virtual", "link", "folder/x", "soft link"):
        assert sources.hdf5(path, name, external=True)[:].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("shape", [(2**60,), (4, 2**55), (2**20, 2**20)])
def test_sizes_that_hdf5_does_not_store(tmp_path: Path, shape: tuple[int, ...]) -> None:
    h5py = pytest.importorskip("h5py")
    chunks = tuple(min(n, 64) for n in shape)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", shape, "f8", chunks=chunks, compression="gzip")
    began = time.monotonic()
    with pytest.raises(synk.SourceError, match="stores 0"):
        sources.hdf5(tmp_path / "a.h5", "x")
    assert time.monotonic() - began < 60


def test_sizes_that_zarr_does_not_store(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    meta = OLD | {"shape": [2**60], "chunks": [64], "compressor": None}
    path = zarr_array(tmp_path / "x.zarr", meta, base64.b64decode(b""))
    with pytest.raises(synk.SourceError, match="more than 4,194,304 blocks"):
        sources.zarr(path)


LARGE = 9000  # pixels; Pillow itself refuses some more


def chunk(kind: bytes, body: bytes) -> bytes:
    """A part of a PNG."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def tiled() -> bytes:
    """A TIFF of 8 x 8 pixels in one tile, which says that it is larger."""
    tags = {256: 8, 257: 8, 258: 8, 259: 8, 262: 1, 277: 1, 322: LARGE, 323: LARGE, 324: 8, 325: 0}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return struct.pack("<2sHIH", b"II", 42, 8, len(tags)) + entries + bytes(4)


def enlarged(kind: str) -> bytes:
    """A picture whose header says 9,000 x 9,000 pixels, and that has next to none of them."""
    from PIL import Image

    if kind == "PNG":
        head = struct.pack(">IIBBBBB", LARGE, LARGE, 8, 2, 0, 0, 0)
        pixels = chunk(b"IDAT", zlib.compress(bytes(10**5), 9))
        return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + pixels + chunk(b"IEND", b"")
    if kind == "PPM":
        return b"P6 9000 9000 255\n"
    if kind == "TIFF":
        return tiled()
    made = io.BytesIO()
    Image.new("RGB", (8, 8)).save(made, kind, lossless=True)
    found = bytearray(made.getvalue())
    at, size = {
        "BMP": (18, struct.pack("<II", LARGE, LARGE)),
        "GIF": (6, struct.pack("<HH", LARGE, LARGE)),
        "JPEG": (found.find(b"\xff\xc0") + 5, struct.pack(">HH", LARGE, LARGE)),
        "WEBP": (found.find(b"VP8L") + 9, struct.pack("<I", (LARGE - 1) * ((1 << 14) + 1))),
    }[kind]
    found[at : at + len(size)] = size
    return bytes(found)


@pytest.mark.parametrize("kind", ["BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP"])
def test_pictures_that_their_files_do_not_explain(tmp_path: Path, kind: str) -> None:
    """T6: the header is looked at before pixels take memory, with `resize` and without."""
    pytest.importorskip("PIL")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / f"1.{kind.lower()}").write_bytes(enlarged(kind))
    before = forget_peak()
    for resize in (None, (8, 8)):
        with pytest.raises(synk.SourceError, match="says that it has 243,000,000 bytes of rows"):
            sources.images(tmp_path, resize=resize)[[0]]
    assert peak() - before < 32 << 20


@pytest.mark.parametrize("how", [{"lossless": True}, {"quality": 50}])
@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
@pytest.mark.parametrize("size", [(1, 1), (333, 640), (16383, 5)])
def test_the_pixels_of_a_webp(size: tuple[int, int], mode: str, how: dict[str, object]) -> None:
    """T6: by its header alone, since Pillow takes memory for them when it opens the file."""
    image = pytest.importorskip("PIL.Image")
    made = io.BytesIO()
    image.new(mode, size).save(made, "WEBP", **how)
    head = made.getvalue()[:30]
    assert _pixels_of_webp(head) == size[0] * size[1]
    assert _pixels_of_webp(head[:29]) == _pixels_of_webp(b"\x89PNG" + head[4:]) == 0


def table_of(kind: str, place: Path) -> Path:
    """A table of pictures that is a few KB on the disk, and large in memory."""
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    if kind == "csv":
        place = place / "t.csv.gz"
        place.write_bytes(gzip.compress(b"path,label\n" + b"a,0\n" * 300_000))
        return place
    count, text = {"many rows": (10**6, "a"), "long texts": (1000, "a" * 10**6)}[kind]
    paths = pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), [text])
    table = pa.table({"path": paths, "label": pa.array(np.zeros(count, np.int64))})
    pq.write_table(table, place / "t.parquet", compression="zstd")
    return place / "t.parquet"


@pytest.mark.parametrize("kind", ["csv", "many rows", "long texts"])
def test_tables_of_pictures_that_their_files_do_not_explain(tmp_path: Path, kind: str) -> None:
    table = table_of(kind, tmp_path)
    assert table.stat().st_size < 10**4
    before = forget_peak()
    with pytest.raises(synk.InputError, match=r"says that it has [\d,]+ bytes of rows"):
        sources.images(table, columns=("path", "label"))
    assert peak() - before < 128 << 20


def test_a_table_whose_paths_are_lists(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"path": [["a", "b"]], "label": [0]}), tmp_path / "t.parquet")
    with pytest.raises(synk.InputError, match=r"column 'path' is list.*: give one with a value in"):
        sources.images(tmp_path / "t.parquet", columns=("path", "label"))


def test_columns_that_parquet_does_not_store(tmp_path: Path) -> None:
    """Numbers, as the footer says; and texts, which a dictionary repeats."""
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pairs = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(16_000_000)), 400)
    pq.write_table(pa.table({"x": pairs}), tmp_path / "a.parquet", compression="zstd")
    with pytest.raises(synk.SourceError, match="says that it has 128,000,000 bytes of rows"):
        sources.parquet(tmp_path / "a.parquet", "x")
    texts = sources.parquet(table_of("long texts", tmp_path), "path", classes=["a"])
    before = forget_peak()
    with pytest.raises(synk.SourceError, match="says that it has 1,000,000,000 bytes of rows"):
        texts[[0]]
    assert peak() - before < 32 << 20
