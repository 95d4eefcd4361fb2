"""Readers of checkpoints and of traces."""

from __future__ import annotations

import contextlib
import functools
import json
import struct
import tempfile
from pathlib import Path

import hostile
import numpy as np
import saving
from hypothesis import strategies as st
from mutations import altered, damaged, integers, json_of, once_in
from strangers import Reader, Tree

import synkhronos as synk
from synkhronos._engine.spans import SPAN
from synkhronos._engine.trace import MemberTrace, Trace

ERRORS = (synk.CheckpointError, synk.InputError)
FOLDER = "step-00000001"


@functools.cache
def forger() -> hostile.Forger:
    case = saving.Case((1,), 2)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "case"
        saving.prepare(case, folder)
        return hostile.Forger(saving.checkpoints_in(folder) / "step-00000001")


@st.composite
def checkpoint_cases(draw: st.DrawFn) -> Tree:
    arrays, body = forger().arrays, forger().body
    kind = draw(st.sampled_from(("body", "header", "bytes", "text")))
    if kind == "body":
        body = draw(altered(body))
    elif kind == "header":
        (length,) = struct.unpack("<Q", arrays[:8])
        text = draw(json_of(json.loads(arrays[8 : 8 + length])))
        size = draw(integers) % (1 << 64) if draw(once_in(9)) else len(text)
        arrays = struct.pack("<Q", size) + text + arrays[8 + length :]
    elif kind == "bytes":
        arrays = draw(damaged(arrays))
    with tempfile.TemporaryDirectory() as place:
        with contextlib.suppress(UnicodeEncodeError):
            forger().write(Path(place), arrays, body)
        meta = (Path(place) / hostile.META).read_bytes()
    if kind == "text":
        meta = draw(json_of(json.loads(meta)))
    folder = saving.checkpoints_in(Path()) / "step-00000001"
    return {f"{folder}/{hostile.META}": meta, f"{folder}/{hostile.ARRAYS}": arrays}


def read_checkpoints(folder: Path) -> None:
    run = saving.Run(folder, saving.Case((1,), 2))
    run.set(saving.NEW)
    try:
        run.checkpoints.restore()
    except (synk.CheckpointError, synk.InputError):
        assert run.stamp() == saving.NEW
        raise


@functools.cache
def trace_bytes() -> bytes:
    spans = np.zeros(6, SPAN)
    spans["start"], spans["end"] = np.arange(6), np.arange(6) + 1.5
    spans["kind"], spans["number"] = [0, 1, 16, 17, 32, 33], np.arange(6)
    names = ["function f", "all_reduce"] * 20
    members = [MemberTrace(r, 0, "vm", 4711 + r, spans, names, 0) for r in range(2)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.bin"
        Trace(members).save(path)
        return path.read_bytes()


@st.composite
def trace_cases(draw: st.DrawFn) -> Tree:
    kind, head, raw = trace_bytes().split(b"\n", 2)
    if draw(st.booleans()):
        head = draw(json_of(json.loads(head)))
    if draw(st.booleans()):
        raw = draw(damaged(raw))
    return {"trace.bin": b"\n".join([kind, head, raw])}


def read_trace(folder: Path) -> None:
    trace = Trace.load(folder / "trace.bin")
    trace.save(folder / "trace.json")
    assert len(trace.seconds()) == len(trace.members)
    json.loads((folder / "trace.json").read_bytes())
    assert isinstance(trace.length + trace.error + trace.lost, float)


READERS = (
    Reader("checkpoints", lambda canary: checkpoint_cases(), read_checkpoints, FOLDER, ERRORS),
    Reader("traces", lambda canary: trace_cases(), read_trace, "trace.bin", ERRORS),
)
