"""The node's shared memory: what is free, and what a Ctrl-C cannot spoil."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from running import run_script

from synkhronos._arena import _FreeList

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
        ranges = sorted([*taken.items(), *((a, b - a) for a, b in free._ranges)])
        ends = [start + length for start, length in ranges]
        assert [start for start, _ in ranges] == [START, *ends[:-1]]
        assert ends[-1] == STOP
        assert free._ranges == sorted(free._ranges)
        assert not {stop for _, stop in free._ranges} & {start for start, _ in free._ranges}


def test_an_interrupt_while_memory_is_freed(tmp_path: Path) -> None:
    """It is not lost in a finalizer, and neither is the memory."""
    text = """
        import os, random, signal, sys, time
        from synkhronos._arena import Arena
        lost = []
        sys.unraisablehook = lambda what: lost.append(what.exc_value)
        signal.signal(signal.SIGALRM, lambda n, f: os.kill(os.getpid(), signal.SIGINT))
        arena, caught = Arena(1), 0
        random.seed(2)
        for _ in range(200):
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-4, 3e-3))
                until = time.monotonic() + 1
                while time.monotonic() < until:
                    arena.empty((1 << 19,), "uint8")
            except KeyboardInterrupt:
                caught += 1
        print([type(what) for what in lost])
        arena._reclaim()
        print(caught, os.fstat(arena.fd).st_blocks, len(arena._blocks))
    """
    assert run_script(tmp_path, text).split() == ["[]", "200", "0", "0"]
