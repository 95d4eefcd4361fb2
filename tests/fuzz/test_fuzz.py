"""Readers of files that a stranger may have made: rows, or a documented error (T5, T6).

For each reader, files that are nearly right. It gives what is in them, or raises an error that
names the file. It runs no code of a file, takes little memory, and comes to an end.
"""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import json
import mmap
import os
import pickle
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files_of_runs import LINES, STARTS
from files_of_states import trace_bytes
from files_of_users import table as table_lines
from fuzzing import READERS
from hypothesis import strategies as st
from mutations import DEEP
from rows_checked import ROWS
from rows_of_chunks import OLD
from selection import thorough
from strangers import CANARY, Reader, Tree, in_a_process, opened, shown, tried

import synkhronos as synk
from synkhronos._engine.spans import NAMED, SPAN
from synkhronos.interop._keras_json import model_of
from synkhronos.training import config

FEW, MANY = 4, 300
BOMB = 40 << 20  # bytes
NEEDS = {"hdf5": "h5py", "zarr": "zarr", "parquet": "pyarrow", "images": "PIL"}
NEEDS |= {"csv": "pyarrow", "labels": "pyarrow", "image lists": "PIL"}
NEEDS |= {"checkpoints": "safetensors", "configs": "msgspec", "top": "rich"}
NEEDS |= {"page": "matplotlib", "page of tables": "matplotlib"}


@pytest.mark.parametrize("examples", [FEW, *thorough(MANY)])
@pytest.mark.parametrize("name", READERS)
def test_files_that_are_nearly_right(name: str, examples: int, tmp_path: Path) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    reader = READERS[name]
    found = tried(reader, tmp_path, examples)
    assert found.keys() <= {"read", "refused"}
    if examples == MANY and reader.share == 1 and name != "cifar10":  # of few files
        assert sum(found.values()) > MANY / 2


# ---- what this has found


def npy(shape: str, data: bytes = ROWS.tobytes()) -> bytes:
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


def npz(body: bytes, method: int = zipfile.ZIP_STORED) -> Tree:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        archive.writestr("x.npy", body)
    return {"x.npz": made.getvalue()}


def packed_to_more() -> Tree:
    """A stream of bzip2 that is much longer than the archive says."""
    first = npy("(6, 4)")
    found = npz(first, zipfile.ZIP_BZIP2)["x.npz"]
    right, more = bz2.compress(first), bz2.compress(first + bytes(BOMB))
    assert right in found
    at = found.index(right)
    found = found.replace(right, more)
    found = found[:18] + len(more).to_bytes(4, "little") + found[22:]  # in the member's header
    central = found.index(b"PK\x01\x02")
    found = found[: central + 20] + len(more).to_bytes(4, "little") + found[central + 24 :]
    end = found.index(b"PK\x05\x06")
    assert at < central < end
    return {"x.npz": found[: end + 16] + central.to_bytes(4, "little") + found[end + 20 :]}


def idx(raw: bytes, packed: bytes) -> Tree:
    return {"x-ubyte": raw, "x-ubyte.gz": packed}


IDX = bytes([0, 0, 14, 2, 0, 0, 0, 6, 0, 0, 0, 4]) + ROWS.astype(">f8").tobytes()


def zarr(**more: Any) -> Tree:
    return {".zarray": json.dumps(OLD | more).encode(), "0.0": ROWS[:3].tobytes()}


def not_there() -> Tree:
    return {".zarray": zarr(shape=[2**25, 4], chunks=[2**25, 4])[".zarray"]}


@functools.cache
def hdf5() -> Tree:
    """A chunk of 1 GB of which nothing is stored."""
    import h5py

    made = io.BytesIO()
    with h5py.File(made, "w") as file:
        file.create_dataset("group/x", (2**27,), "f8", chunks=(2**27,))
    return {"x.h5": made.getvalue()}


def run(lock: str = "", starts: str = json.dumps(STARTS), **more: Any) -> Tree:
    lines = b"\n".join(json.dumps(line | more).encode() for line in LINES)
    host = os.uname().nodename
    return {
        "run.json": starts.encode(),
        "metrics.jsonl": lines,
        ".lock": f"{lock or os.getpid()} {host}".encode(),
    }


def trace(**more: Any) -> Tree:
    kind, head, raw = trace_bytes().split(b"\n", 2)
    return {"trace.bin": b"\n".join([kind, json.dumps(json.loads(head) | more).encode(), raw])}


def trace_of(kind: int) -> Tree:
    found = trace_bytes()
    spans = np.frombuffer(found[-12 * SPAN.itemsize :], SPAN).copy()
    spans["kind"][0] = kind
    return {"trace.bin": found[: -spans.nbytes] + spans.tobytes()}


def table(members: str) -> Tree:
    text = "\n".join(table_lines()).replace(" ", "").replace("128,4,", f"128,{members},")
    return {"a.csv": text.encode()}


def toml(text: str) -> Tree:
    return {"a.toml": f'model = "a:b"\nepochs = 1\n{text}\n'.encode()}


FOUND: dict[str, tuple[str, Callable[[], Tree], str]] = {
    "rows below 0": ("npz", lambda: npz(npy("(-6, 4)")), "refused"),
    "columns below 0": ("npz", lambda: npz(npy("(6, -4)")), "refused"),
    "70 dimensions": ("npz", lambda: npz(npy(f"({'1,' * 70})", bytes(8))), "refused"),
    "a large npz that is small": ("npz", lambda: npz(npy("(1099511627776,)")), "refused"),
    "bzip2 without an end": ("npz", packed_to_more, "refused"),
    "gzip without an end": (
        "idx",
        lambda: idx(IDX, gzip.compress(IDX + bytes(BOMB))),
        "refused",
    ),
    "gzip of nothing": (
        "mnist",
        lambda: idx(IDX, gzip.compress(IDX)[:10] + b"\x1f\x8b\x08\x00\xf3|\x07k\x02\xff" * 9),
        "refused",
    ),
    "a chunk that is not there": ("zarr", lambda: zarr(shape=[4, 2**40], chunks=[4, 1]), "refused"),
    "a chunk that is not stored": ("hdf5", hdf5, "refused"),
    "a chunk of 1 GB that is not there": ("zarr", not_there, "refused"),
    "a large chunk": ("zarr", lambda: zarr(shape=[2**40, 4], chunks=[2**40, 4]), "refused"),
    "process 0": ("records", lambda: run("0"), "read"),
    "process -1": ("records", lambda: run("-1"), "read"),
    "a process of 100 digits": ("records", lambda: run("9" * 100), "read"),
    "a deep record": ("records", lambda: run(starts="[" * DEEP), "refused"),
    "a time of 400 digits": ("records", lambda: run(time=10**400), "read"),
    "a step of 400 digits": ("records", lambda: run(step=10**400), "read"),
    "rows of 400 digits": ("records", lambda: run(kind="epoch", rows=10**400, seconds=1.0), "read"),
    "a loss of 400 digits": ("export", lambda: run(loss=-(10**400)), "read"),
    "a trace of another kind": ("traces", lambda: trace_of(20), "refused"),
    "a name that is not there": ("traces", lambda: trace_of(NAMED + 99), "refused"),
    "a master of -0.0": ("traces", lambda: trace(master=-0.0), "refused"),
    "a master that is not there": ("traces", lambda: trace(master=2), "refused"),
    "an error of inf": ("traces", lambda: trace(error=float("inf")), "refused"),
    "an error of 400 digits": ("traces", lambda: trace(error=10**400), "refused"),
    "spans of 40 digits": (
        "traces",
        lambda: trace(members=[{"spans": 10**40, "names": []}]),
        "refused",
    ),
    "a deep trace": (
        "traces",
        lambda: {"trace.bin": b"synkhronos trace 1\n" + b"[" * DEEP + b"\n"},
        "refused",
    ),
    "deep tables": ("configs", lambda: toml("optimizer = " + "{a=" * 5000), "refused"),
    "deep lists": ("configs", lambda: toml("optimizer = " + "[" * 5000), "refused"),
    "a base of NUL": ("configs", lambda: toml('base = "\\u0000"'), "refused"),
    "a raised digit": ("hosts", lambda: {"hosts": "node1:²\n".encode()}, "refused"),
    "slots of a raised digit": ("hosts", lambda: {"hosts": "node1 slots=²\n".encode()}, "refused"),
    "very many slots": ("hosts", lambda: {"hosts": b"node1:" + b"9" * 5000}, "refused"),
    "hosts that are no text": ("hosts", lambda: {"hosts": b"node\xff\n"}, "refused"),
    "very many members": ("tables", lambda: table("9" * 400), "refused"),
}


@pytest.mark.parametrize("case", FOUND)
def test_what_was_found(case: str, tmp_path: Path) -> None:
    name, files, wanted = FOUND[case]
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    most = BOMB if "without an end" in case else READERS[name].most
    reader = replace(READERS[name], cases=lambda canary: st.just(files()), most=most)
    assert tried(reader, tmp_path, 1) == {wanted: 1}


def test_deep_texts_elsewhere(tmp_path: Path) -> None:
    """A value of a command line, and a model of Keras."""
    (tmp_path / "a.toml").write_text('model = "a:b"\nepochs = 1\noptimizer = "adam"\n')
    with pytest.raises(synk.InputError, match="too deep"):
        config.read(tmp_path / "a.toml", ["optimizer=" + "[" * 5000])
    (tmp_path / "a.json").write_text("[" * DEEP)
    with pytest.raises(synk.InputError, match=r"a\.json"):
        model_of(None, tmp_path / "a.json")


# ---- the tests can fail


def wrong_error(folder: Path) -> None:
    raise KeyError("x.bin")


def nameless(folder: Path) -> None:
    raise synk.InputError("it cannot be read")


def greedy(folder: Path) -> None:
    with mmap.mmap(-1, 2 * BOMB) as memory:
        memory.write(bytes(2 * BOMB))


def greedier(folder: Path) -> None:
    np.empty(1 << 40, "u1")


def unpickles(folder: Path) -> None:
    pickle.loads(pickle.dumps(os.getpid))


def runs_code(folder: Path) -> None:
    (folder.parent / CANARY).mkdir(exist_ok=True)


def crashes(folder: Path) -> None:
    os.abort()


DEFECTS = {
    wrong_error: "KeyError",
    nameless: "no x.bin in the message",
    greedy: "bytes of memory",
    greedier: "MemoryError",
    unpickles: "pickle.find_class",
    runs_code: "code of the file has run",
    crashes: "it ended with -6",
}


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda d: d.__name__)
def test_a_defect_is_seen(defect: Callable[[Path], None], tmp_path: Path) -> None:
    tree = {"x.bin": b"abc"}
    errors = (synk.InputError,)
    reader = Reader("bad", lambda canary: st.just(tree), defect, "x.bin", errors, most=BOMB)
    with pytest.raises(AssertionError, match=DEFECTS[defect]) as caught:
        tried(reader, tmp_path, 1)
    if defect is not crashes:
        assert shown(tree) in str(caught.value)
    assert opened({"x.bin": shown(tree).split("'")[3]}) == tree
    assert (tmp_path / "case" / "x.bin").read_bytes() == b"abc"


def test_a_hang_is_seen(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="without an end"):
        in_a_process(tmp_path, lambda say: time.sleep(600), patience=0.2)
