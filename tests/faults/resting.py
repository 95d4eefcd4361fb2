"""Idle costs nothing, overload stays fair (promise 19): what a group takes that does nothing, and
how long a barrier lasts where members outnumber cores.

    python tests/faults/resting.py [--seconds N] [--barriers N]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor.tensor as pt

import synkhronos as synk
from synkhronos._engine.commands.base import Command

CROWD = 3  # workers for each core
IDLE_SHARE = 1e-3  # of one core's time
BARRIER_SECONDS = 1e-3  # p99


def processor_seconds(group: synk.Group) -> list[float]:
    """The time that each member has had a core for, to the nanosecond.

    It is /proc/PID/stat's utime + stime without its rounding; see clock_getcpuclockid(3).
    """
    return [time.clock_gettime(~group.channel.pid(r) << 3 | 2) for r in range(group.size)]


def used(group: synk.Group) -> None:
    """Calls, after which the members wait for the next."""
    x = pt.vector("x", dtype="float64")
    f = synk.function([x], x.sum(), mode="FAST_COMPILE")
    for _ in range(10):
        assert f(np.ones(10)) == 10


def idle_seconds(members: int, seconds: float) -> list[float]:
    """What each member takes of the cores' time while the group has nothing to do."""
    with synk.Group(members) as group:
        used(group)
        time.sleep(0.2)  # members go to sleep
        before = processor_seconds(group)
        time.sleep(seconds)
        after = processor_seconds(group)
    return [b - a for a, b in zip(before, after, strict=True)]


@dataclass(frozen=True)
class Barriers(Command):
    """Many barriers in a row."""

    times: int

    def run(self, member: Any) -> list[float]:
        """How long each has lasted, in the master."""
        meet, clock = member.communicator.barrier, time.perf_counter
        found = []
        for _ in range(self.times):
            began = clock()
            meet()
            found.append(clock() - began)
        return found if member.rank == member.master else []


def barriers(members: int, times: int) -> list[float]:
    """Seconds of each barrier, in order."""
    with synk.Group(members) as group:
        used(group)
        return sorted(group.run(Barriers(times)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="of idleness")
    parser.add_argument("--barriers", type=int, default=10_000)
    args = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    idle = idle_seconds(3, args.seconds)
    share = sum(idle) / args.seconds
    print(
        f"idle group of 3 for {args.seconds:.0f} s: {100 * share:.3f} % of a core "
        f"({', '.join(f'{1e3 * s:.1f}' for s in idle)} ms)",
        flush=True,
    )
    found = barriers(1 + CROWD * cores, args.barriers)
    p99 = found[int(0.99 * len(found))]
    print(
        f"{len(found)} barriers of {1 + CROWD * cores} members on {cores} cores: "
        f"{1e3 * found[len(found) // 2]:.3f} ms (median), {1e3 * p99:.3f} ms (p99), "
        f"{1e3 * found[-1]:.1f} ms (max)"
    )
    return share >= IDLE_SHARE or p99 > BARRIER_SECONDS


if __name__ == "__main__":
    sys.exit(main())
