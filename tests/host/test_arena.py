"""The node's shared memory: what is free, and what a Ctrl-C cannot spoil."""

from __future__ import annotations

import gc
import os
import random
import signal
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from physical_memory import physical_memory

from synkhronos._host import arena as _arena
from synkhronos._host.arena import _FreeList
from synkhronos._host.memory_limits import Limit

START, STOP = 4096, 4096 + 1000


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 300)), max_size=60))
def test_free_ranges_are_what_is_not_taken(steps: list[tuple[bool, int]]) -> None:
    """Sorted and merged; taken ranges never overlap."""
    free, taken = _FreeList(START, STOP), dict[int, int]()
    for take, number in steps:
        if take:
            start = free.take(number)
            if start is None:
                assert free.longest() < number
            else:
                taken[start] = number
        elif taken:
            start = list(taken)[number % len(taken)]
            free.give(start, taken.pop(start))
        ranges = sorted([*((s, s + n) for s, n in taken.items()), *free._ranges.value])
        assert [start for start, _ in ranges] == [START, *(stop for _, stop in ranges[:-1])]
        assert ranges[-1][1] == STOP
        left = list(free._ranges.value)
        assert left == sorted(left)
        assert not {stop for _, stop in left} & {start for start, _ in left}


def test_interrupts_while_memory_is_taken_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is raised, none is swallowed by a finalizer; no range is free and in use at once."""
    plenty = Limit(1 << 40, 1 << 40, "none")
    monkeypatch.setattr(_arena, "available", lambda: plenty)  # it reads files, which would be left
    arena, draw = _arena.Arena(1), random.Random(1)
    held: dict[int, np.ndarray] = {}

    def go_on() -> None:
        until = time.monotonic() + 1
        signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-5, 1e-3))
        while time.monotonic() < until:
            held[draw.randrange(20)] = arena.empty((draw.randrange(9_000_000),), "uint8")
            held.pop(draw.randrange(20), None)

    gc.collect()
    gc.disable()  # finalizers of what other tests have left would swallow an interrupt
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for _ in range(400):
            with pytest.raises(KeyboardInterrupt):
                go_on()
            used = [(o := arena.offset(a), o + a.size) for a in held.values() if a.size]
            edges = [edge for span in sorted([*arena._free._ranges.value, *used]) for edge in span]
            assert edges == sorted(edges)
    finally:
        signal.signal(signal.SIGALRM, before)
        gc.enable()
    held.clear()
    assert not arena.empty((9_000_000,), "uint8").any()
    assert os.fstat(arena.fd).st_blocks * 512 < 4 * 9_000_000
    arena.close_fd()


def test_private_memory_is_given_back_and_comes_back_as_zeros() -> None:
    """It has no descriptor; what has died takes no memory, and a mirror is as in a shared arena."""
    arena = _arena.Arena(1, mirror=True, private=True)
    assert arena.fd is None
    arena.reserve_heads()
    before = physical_memory(arena)
    first, small = arena.empty((8_000_000,), "float64"), arena.empty((3,), "float64")
    first[:] = 1.0
    offset = arena.offset(first)
    assert physical_memory(arena) == before + 64_000_000 + _arena.PAGE
    copy = arena.mirrored(offset, _arena.PAGE)
    copy[:] = bytes([7]) * _arena.PAGE
    assert arena.view(arena.ref(first))[:9].view("uint8").tolist() == [7] * 72
    arena.free_mirrored(offset, _arena.PAGE)
    del first, copy
    assert physical_memory(arena) == before + _arena.PAGE
    assert not arena.empty((8_000_000,), "float64").any()
    assert small.size == 3
