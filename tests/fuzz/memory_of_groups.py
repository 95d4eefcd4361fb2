"""The reader of memory of groups: `synk top`."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import struct
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
from hypothesis import strategies as st
from modes import FAST
from mutations import integers
from strangers import Reader, Tree

import synkhronos as synk
from synkhronos._transport.shared_state.control_words import STATUS, STATUS_BYTES
from synkhronos._transport.shared_state.status import read_status
from synkhronos.cli._top.live_view import drawn, plain
from synkhronos.cli._top.watched_groups import _EarlierLooks, _watched
from synkhronos.extensions import make_train_function, updates

HEAD_BYTES = STATUS + STATUS_BYTES
CLOCKS = STATUS + 64  # the place of the first function's clocks


@functools.cache
def memory() -> tuple[int, dict[int, bytes]]:
    """What a group of two shows of itself: the size of its memory, and what is where."""
    x, w = pt.dmatrix("x"), pytensor.shared(np.zeros(3), name="w")
    loss = (x @ w).sum()
    with synk.Group(2) as group:
        train = make_train_function(loss, [w], x, None, updates.sgd, 0.1, mode=FAST)
        train(np.ones((4, 3)))
        group.note("epoch 1")
        fd, size = group.arena.fd, os.fstat(group.arena.fd).st_size
        places = (0, group.arena.region_bytes)
        found = {at: os.pread(fd, HEAD_BYTES, at) for at in places}
        (clocks,) = struct.unpack_from("<q", found[0], CLOCKS)
        assert clocks > HEAD_BYTES
        return size, found | {clocks: os.pread(fd, 2 * 16 * 8, clocks)}


@st.composite
def memory_cases(draw: st.DrawFn) -> Tree:
    """Two looks at memory: words and texts of the heads are changed, and the clocks."""
    _size, good = memory()
    found = {}
    for look in ("before", "after"):
        for place, content in good.items():
            piece = bytearray(content)
            first = STATUS if place < max(good) else 0
            for _ in range(draw(st.integers(0, 3))):
                at = draw(st.sampled_from((0, first))) + 8 * draw(st.integers(0, 31))
                number = draw(integers) % (1 << 64)
                real = struct.pack("<d", draw(st.floats(width=64)))
                piece[at : at + 8] = draw(st.sampled_from((number.to_bytes(8, "little"), real)))
            if first and draw(st.booleans()):
                at = first + draw(st.integers(1000, 2600))
                piece[at : at + 8] = draw(st.binary(max_size=8)).ljust(8, b"\x1b")
            found[f"{look} {place}"] = bytes(piece[: len(content)])
    return found


def read_memory(folder: Path) -> None:
    size, good = memory()
    seen = _EarlierLooks()
    for look in ("before", "after"):
        fd = os.memfd_create("synkhronos")
        try:
            os.ftruncate(fd, size)
            for place in good:
                os.pwrite(fd, (folder / f"{look} {place}").read_bytes(), place)
            status = read_status(fd)
        finally:
            os.close(fd)
        if status is not None:
            group = _watched(status, seen)
            assert not set(plain(group)) & {"\x1b", "\0"}
            drawn([group])
            json.dumps(dataclasses.asdict(group))


READERS = (Reader("top", lambda canary: memory_cases(), read_memory, "memory", ()),)
