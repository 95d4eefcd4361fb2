"""Readers of arrays in chunks: HDF5, zarr and Parquet."""

from __future__ import annotations

import asyncio
import functools
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from mutations import bomb, damaged, integers, json_of, once_in
from rows_checked import ERRORS, ROWS, SMALL, checked, packed
from strangers import Reader, Tree

from synkhronos.training import sources


@st.composite
def hdf5_cases(draw: st.DrawFn) -> Tree:
    import h5py

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "x.h5")
        with h5py.File(path, "w", libver=draw(st.sampled_from(("earliest", "latest")))) as file:
            _fill(draw, h5py, file)
        raw = Path(path).read_bytes()
    return {"x.h5": draw(damaged(raw)) if draw(st.booleans()) else raw}


def _fill(draw: st.DrawFn, h5py: Any, file: Any) -> None:
    """Something of the name group/x."""
    kind = draw(st.sampled_from(("chunks",) * 6 + ("plain", "plain", "type", "huge", "link", "no")))
    name = "group/x"
    if kind == "chunks":
        packed = draw(st.sampled_from((None, "gzip", "lzf")))
        shuffle, check = draw(st.booleans()), draw(st.booleans())
        options = {"compression": packed, "shuffle": shuffle, "fletcher32": check}
        file.create_dataset(name, data=ROWS, chunks=(4, 2), **options)
    elif kind == "plain":
        file[name] = ROWS
    elif kind == "type":
        text = h5py.string_dtype()
        made = draw(
            st.sampled_from(
                (
                    np.array(["a", "b"], object),
                    np.array([b"a", b"b"]),
                    np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]),
                    np.array([True, False]),
                    np.float16([1, 2]),
                    np.complex64([1, 2]),
                    np.array(1.0),
                    ROWS[:0],
                )
            )
        )
        file.create_dataset(name, data=made, dtype=text if made.dtype == object else None)
    elif kind == "huge":
        shape = draw(st.sampled_from(((2**62,), (2**31, 2**31), (2**27,), (6, 2**40))))
        chunk = draw(st.sampled_from((1, 64, 2**27)))
        chunks = tuple(min(n, chunk if i == 0 else 1) for i, n in enumerate(shape))
        file.create_dataset(name, shape, "f8", chunks=chunks)
    elif kind == "link":
        file[name] = draw(
            st.sampled_from((h5py.SoftLink("/group/x"), h5py.SoftLink("/"), h5py.SoftLink("group")))
        )
    else:
        file.create_group(draw(st.sampled_from((name, "group", "group/x/y"))))


def read_hdf5(folder: Path) -> None:
    import h5py

    path = folder / "x.h5"

    def oracle() -> Any:
        with h5py.File(path) as file:
            return file["group/x"][()]

    checked(sources.hdf5(path, "group/x"), oracle)


OLD = {
    "zarr_format": 2,
    "shape": [6, 4],
    "chunks": [3, 4],
    "fill_value": 0,
    "order": "C",
    "filters": None,
    "compressor": None,
    "dtype": "<f8",
}
NEW = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [6, 4],
    "data_type": "float64",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [3, 4]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "fill_value": 0.0,
    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
}
COMPRESSORS = ("zlib", "gzip", "bz2", "lzma", "lz4", "zstd", "blosc")
FILTERS = ("pickle", "json2", "vlen-utf8", "delta", "quantize", "shuffle", "nil", 3)


@st.composite
def zarr_cases(draw: st.DrawFn, canary: str) -> Tree:
    codec = draw(st.sampled_from((None, *COMPRESSORS)))
    chunk = ROWS[:3].tobytes() if codec is None else packed(codec, draw(once_in(10)))
    if len(chunk) < SMALL and draw(once_in(4)):
        chunk = draw(damaged(chunk) | st.just(bomb(canary)))
    if draw(st.booleans()):
        meta: dict[str, Any] = OLD | {"compressor": codec and {"id": codec}}
        if draw(once_in(6)):
            meta = meta | {"filters": [{"id": draw(st.sampled_from(FILTERS))}]}
        name, places = ".zarray", ("0.0", "1.0")
    else:
        names = {"gzip": "gzip", "zstd": "zstd", "blosc": "blosc"}
        more = [{"name": names.get(codec, f"numcodecs.{codec}"), "configuration": {}}]
        codecs = [*NEW["codecs"], *(more if codec else [])]
        meta, name, places = NEW | {"codecs": codecs}, "zarr.json", ("c/0/0", "c/1/0")
    raw = json.dumps(meta).encode() if not draw(once_in(3)) else draw(json_of(meta))
    if draw(once_in(10)):
        meta = meta | {"shape": [draw(integers), 4]}
        raw = json.dumps(meta).encode()
    return {name: raw, places[0]: chunk, places[1]: ROWS[3:].tobytes()}


def read_zarr(folder: Path) -> None:
    from zarr.api import asynchronous

    def oracle() -> Any:
        async def read() -> Any:
            return await (await asynchronous.open_array(store=str(folder), mode="r")).getitem(...)

        return asyncio.run(read())

    checked(sources.zarr(folder), oracle)


@functools.cache
def tables() -> dict[str, bytes]:
    import pyarrow as pa
    from pyarrow import parquet

    lists = pa.FixedSizeListArray.from_arrays(pa.array(ROWS.ravel()), 4)
    columns = {
        "numbers": pa.array(ROWS[:, 0]),
        "lists": lists,
        "no rows": pa.array(ROWS[:0, 0]),
        "nulls": pa.array([1.0, None]),
        "texts": pa.array(["a", "b"]),
        "variable lists": pa.array([[1.0], [2.0, 3.0]]),
        "dictionary": pa.array(["a", "b"]).dictionary_encode(),
        "structs": pa.array([{"a": 1}, {"a": 2}]),
        "times": pa.array([1, 2], pa.timestamp("ns")),
        "decimals": pa.array([1, 2]).cast(pa.decimal128(30, 2)),
        "truth": pa.array([True, False]),
        "small": pa.array([1, 2], pa.uint8()),
        "binary": pa.array([b"a", b"b"]),
        "nothing": pa.nulls(2),
        "lists of lists": pa.array(ROWS[:4].reshape(4, 2, 2).tolist()),
        "equal lists": pa.array(ROWS.tolist()),
        "tensors": pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.float64(), (2, 2)), lists
        ),
        "large": pa.array([2**64 - 1, 2**53 + 1], pa.uint64()),
    }
    found = {}
    for name, column in columns.items():
        for how in ("none", "snappy", "zstd", "gzip"):
            made = io.BytesIO()
            parquet.write_table(pa.table({"x": column}), made, row_group_size=4, compression=how)
            found[f"{name} {how}"] = made.getvalue()
    return found


@st.composite
def parquet_cases(draw: st.DrawFn) -> Tree:
    raw = tables()[draw(st.sampled_from(sorted(tables())))]
    return {"x.parquet": draw(damaged(raw)) if draw(st.booleans()) else raw}


def read_parquet(folder: Path) -> None:
    path = folder / "x.parquet"
    checked(sources.parquet(path, "x"))
    checked(sources.parquet(path, ["x", "x"]))


def read_labels(folder: Path) -> None:
    checked(sources.parquet(folder / "x.parquet", "x", classes=["a", "b"]))


READERS = (
    Reader("hdf5", lambda canary: hdf5_cases(), read_hdf5, "x.h5", ERRORS),
    Reader("zarr", lambda canary: zarr_cases(canary), read_zarr, "case", ERRORS, share=2),
    Reader("parquet", lambda canary: parquet_cases(), read_parquet, "x.parquet", ERRORS),
    Reader("labels", lambda canary: parquet_cases(), read_labels, "x.parquet", ERRORS),
)
