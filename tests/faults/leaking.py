"""No slow leak (promise 8): what calls, Data, exceptions and groups by the thousand leave behind.

    python tests/faults/leaking.py [--sample]

Each kind of work is done for a while first, so that caches are full; then it is counted what the
members have more after it than before. The process must have done nothing else: where NumPy has
had arrays of 4 MiB and more on the heap it has asked for huge pages there, and any little object
put in their place later can take 2 MiB at once.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode

import synkhronos as synk
from synkhronos.testing.faults import Fault

FAST = Mode("py", None)  # as in the tests; this program runs by itself
GROWTH = 2 << 20  # bytes of a member's resident memory
MEMBERS = 2


@dataclass(frozen=True)
class Amounts:
    """How often each is done."""

    calls: int = 100_000
    data: int = 1_000
    exceptions: int = 300
    groups: int = 100


@dataclass(frozen=True)
class Held:
    """What members and their shared memory take.

    Attributes
    ----------
    resident : tuple of int
        Bytes of each member.
    descriptors, threads : tuple of int
    shared : int
        Bytes of the arena; without a group, mappings of one.
    """

    resident: tuple[int, ...]
    descriptors: tuple[int, ...]
    threads: tuple[int, ...]
    shared: int


def held(group: synk.Group | None) -> Held:
    """Take stock of a group, or of this process alone."""
    gc.collect()
    pids = [os.getpid()]
    shared = Path("/proc/self/maps").read_text().count("memfd:synkhronos")
    if group is not None:
        pids = [group.channel.pid(rank) for rank in range(group.size)]
        group.arena._reclaim()
        shared = os.fstat(group.arena.fd).st_blocks * 512
    folders = [Path(f"/proc/{pid}") for pid in pids]
    return Held(
        tuple(
            int((f / "statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") for f in folders
        ),
        tuple(len(os.listdir(f / "fd")) for f in folders),
        tuple(len(os.listdir(f / "task")) for f in folders),
        shared,
    )


@dataclass(frozen=True)
class Growth:
    """What was there before and after."""

    what: str
    times: int
    before: Held
    after: Held
    seconds: float

    @property
    def resident(self) -> list[int]:
        """Bytes that each member has grown by."""
        pairs = zip(self.before.resident, self.after.resident, strict=True)
        return [after - before for before, after in pairs]

    def leaks(self) -> list[str]:
        """What has grown that may not."""
        found = []
        if max(self.resident) >= GROWTH:
            found.append(f"resident memory by {self.resident} bytes")
        for name in ("descriptors", "threads", "shared"):
            before, after = getattr(self.before, name), getattr(self.after, name)
            if after > before:
                found.append(f"{name} from {before} to {after}")
        return [f"{self.times} {self.what}: {text}" for text in found]

    def __str__(self) -> str:
        grown = ", ".join(f"{n / 1024:+.0f}" for n in self.resident)
        return (
            f"{self.times} {self.what}: resident memory of the members {grown} KB, descriptors "
            f"{self.after.descriptors} (before: {self.before.descriptors}), threads "
            f"{self.after.threads} ({self.before.threads}), shared memory "
            f"{self.after.shared - self.before.shared:+d} bytes; {self.seconds:.0f} s"
        )


def grown(
    what: str, group: synk.Group | None, act: Callable[[int], Any], times: int, warm: int
) -> Growth:
    """Do something often, and see what has grown since it was done `warm` times."""
    for n in range(warm):
        act(n)
    before, began = held(group), time.monotonic()
    for n in range(times):
        act(n)
    return Growth(what, times, before, held(group), time.monotonic() - began)


def calls() -> Callable[[int], Any]:
    """Calls of all sorts: repeated ones, of Data and arrays, with rows, updates, collectives."""
    x = pt.matrix("x", dtype="float64")
    s = pytensor.shared(np.zeros(3), "s")
    t = pytensor.shared(np.zeros(20_000), "t")
    f = synk.function([x], [x.sum(), (x[:, 0], "gather")], mode=FAST)
    step = synk.function([x], x.mean(), updates=[(s, s + 1)], mode=FAST)
    d = synk.data(np.ones((100, 3)))
    array, rows = np.ones((90, 3)), np.arange(0, 100, 3)
    acts: list[Callable[[], Any]] = [
        *[lambda: f(d)] * 5,
        lambda: step(d),
        lambda: f(array),
        lambda: f(d, batch=rows),
        lambda: synk.all_reduce([s, t], "max"),
        lambda: s.set_value(np.zeros(3)) or step(array, num_slices=2),
    ]
    return lambda n: acts[n % len(acts)]()


def data() -> Callable[[int], Any]:
    """Data of any size, grown, called with, and dropped."""
    x = pt.vector("x", dtype="float64")
    f = synk.function([x], x.sum(), mode=FAST)

    def act(n: int) -> None:
        made = synk.data(np.ones(1 + 37 * n % 5_000), oversize=1 + n % 2)
        made.set_length(n % 7_000 + 1)
        f(made)

    return act


def exceptions(group: synk.Group) -> Callable[[int], Any]:
    """A worker raises, or the master, with and without others that wait."""

    def act(n: int) -> None:
        with contextlib.suppress(ValueError):
            group.run(Fault("ValueError", (n % MEMBERS,), bool(n % 3)))

    return act


def groups() -> Callable[[int], Any]:
    """A group with a function, Data and a variable."""
    s = pytensor.shared(np.zeros(3), "s")
    x = pt.vector("x", dtype="float64")

    def act(n: int) -> None:
        with synk.Group(MEMBERS):
            synk.function([x], x.sum(), updates=[(s, s + 1)], mode=FAST)(np.ones(5))
            synk.data(np.ones(1000))

    return act


WHOLE = Amounts(), Amounts(calls=2_000, data=300, exceptions=50, groups=20)
SAMPLE = (
    Amounts(calls=3_000, data=200, exceptions=60, groups=15),
    Amounts(calls=500, data=100, exceptions=20, groups=5),
)


def campaign(amounts: Amounts, warm: Amounts) -> Iterator[Growth]:
    """All of it, each sort by itself."""
    yield grown("groups", None, groups(), amounts.groups, warm.groups)
    with synk.Group(MEMBERS) as group:
        yield grown("calls", group, calls(), amounts.calls, warm.calls)
        yield grown("Data", group, data(), amounts.data, warm.data)
        yield grown("exceptions", group, exceptions(group), amounts.exceptions, warm.exceptions)


def main() -> int:
    parser = argparse.ArgumentParser(description="What calls, Data and groups leave behind.")
    parser.add_argument("--sample", action="store_true", help="do little of it, in seconds")
    wrong = []
    for growth in campaign(*(SAMPLE if parser.parse_args().sample else WHOLE)):
        print(growth, flush=True)
        wrong += growth.leaks()
    for line in wrong:
        print(f"leak: {line}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
