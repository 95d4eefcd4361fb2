"""A model of a training step's time on many nodes: checked on few, predicted for many.

    python benchmarks/scale_model.py [mpich=PREFIX] [--plot scale.png] [--quick]

The time of one step, for N nodes of m members and gradients of B bytes:

    step(N) = compute + node + command(N) + agree(N) + wire(N)

    compute   a member's part of the batch, which does not change with N (each node adds its own)
    node      the sum of the members' gradients in shared memory, and the update of a chunk
    command   down the tree and up again: 2 * depth(N) hops, each parent sending to 4 children in
              turn (`_transport.channels.leader_tree.ARITY`)
    agree     the same hops again: all leaders agree to enter the reduction
    wire      a reduction between leaders: 2 * log2(N) messages' latency, and 2 * (N - 1) / N * B
              bytes for each node (recursive halving and doubling, or a ring)

A hop costs `hop` seconds for the first child and `send` more for each other one.

The check has 2 to 16 ranks on few cores: at each hop of the tree, ranks that share a core take
turns, and all bytes of a reduction go through the cores one after the other. The predictions are
for nodes that do not share cores.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from common import answer_help, describe_machine, show
from mpi import launchers

import synkhronos as synk
from synkhronos._engine.commands.base import Command
from synkhronos._engine.group import current
from synkhronos._proofs.reductions import Reduction
from synkhronos._transport.channels.leader_tree import ARITY

RANKS = (2, 4, 8, 16)
FIT = (2, 4)  # what the constants are taken from; the others check them
LAUNCHES = 3  # of each number of ranks, of which the median counts
NODES = tuple(2**k for k in range(1, 11))
BYTES = 4 << 20  # of the reduction that is measured
NETWORKS = {  # seconds per message, bytes per second
    "InfiniBand, 2 us, 25 GB/s": (2e-6, 25e9),
    "25 Gbit Ethernet, 20 us, 3 GB/s": (20e-6, 3e9),
    "1 Gbit Ethernet, 60 us, 0.12 GB/s": (60e-6, 0.12e9),
}
MODELS = {  # parameters in float32, seconds that a node computes for each step
    "1.3 M parameters, 10 ms": (1_276_810, 0.010),
    "25 M parameters, 200 ms": (25_000_000, 0.200),
    "350 M parameters, 2 s": (350_000_000, 2.0),
}


def depth(nodes: int) -> int:
    """The depth of the tree of leaders."""
    found, level, rest = 0, 1, nodes - 1
    while rest > 0:
        level *= ARITY
        rest -= level
        found += 1
    return found


def children(nodes: int) -> int:
    """The largest number of children of a leader."""
    return min(ARITY, nodes - 1)


@dataclass(frozen=True)
class Costs:
    """The constants measured on one machine.

    Attributes
    ----------
    hop, send : float
        Seconds of a leader's message and its answer, and for each further child.
    turn : float
        Seconds that a rank keeps its core busy at each hop, if it shares the core.
    byte : float
        Seconds of a core for each byte that a rank's reduction moves.
    node : float
        Seconds for each byte of the members' sum and the update in one node.
    """

    hop: float
    send: float
    turn: float
    byte: float
    node: float

    def round(self, nodes: int, latency: float = 0.0) -> float:
        """Seconds down the tree and up."""
        return 2 * depth(nodes) * (latency + self.hop + (children(nodes) - 1) * self.send)

    def crowded_round(self, ranks: int, cores: int) -> float:
        """The same with more ranks than cores: at each hop, all ranks of a core take turns."""
        if ranks <= cores:
            return self.round(ranks)
        return 2 * depth(ranks) * self.turn * ranks / cores

    def crowded_wire(self, ranks: int, cores: int, nbytes: int) -> float:
        """Seconds of a reduction with more ranks than cores: all share the cores' memory."""
        moved = 2 * (ranks - 1) / ranks * nbytes
        return self.crowded_round(ranks, cores) + self.byte * moved * ranks / min(cores, ranks)

    def wire(self, nodes: int, latency: float, bandwidth: float, nbytes: float) -> float:
        """Seconds of a reduction between nodes, each with its own network link."""
        return 2 * math.log2(nodes) * latency + 2 * (nodes - 1) / nodes * nbytes / bandwidth

    def step(self, nodes: int, latency: float, bandwidth: float, nbytes: float, work: float) -> Any:
        """Seconds of a step, and their parts that are not computation."""
        rounds = 2 * self.round(nodes, latency)
        beside = rounds + self.wire(nodes, latency, bandwidth, nbytes) + self.node * nbytes
        return work + beside, beside


@dataclass(frozen=True)
class Measure(Command):
    """Agreements and reductions, in microseconds."""

    repeats: int

    def run(self, member: Any) -> list[float]:
        comm = member.communicator
        vector = [np.ones(BYTES // 4, np.float32)]
        return [
            self._median(comm.enter, self.repeats),
            self._median(lambda: self._reduce(comm, vector), max(5, self.repeats // 20)),
        ]

    def _reduce(self, comm: Any, vector: list[np.ndarray]) -> None:
        vector[0][:] = 1
        comm.all_reduce(vector, Reduction.SUM)
        assert vector[0][0] == vector[0][-1] == comm.size

    def _median(self, act: Callable[[], Any], repeats: int) -> float:
        found = []
        for _ in range(repeats):
            began = time.perf_counter()
            act()
            found.append(time.perf_counter() - began)
        return 1e6 * float(np.median(found[repeats // 5 :]))


@dataclass(frozen=True)
class Nothing(Command):
    """An empty command."""

    repeats = True
    pure = True

    def run(self, member: Any) -> None:
        del member


def inside(repeats: int) -> None:
    """In the first of the launched processes: measure, and print the results."""
    synk.fork(1)
    group = current()
    nothing = Nothing()
    took = []
    for _ in range(repeats):
        began = time.perf_counter()
        group.run(nothing)
        took.append(time.perf_counter() - began)
    agree, reduce = group.run(Measure(repeats))
    print("found", json.dumps([1e6 * float(np.median(took[repeats // 5 :])), agree, reduce]))


def measured(launcher: list[str], ranks: int, repeats: int) -> list[float]:
    """Microseconds of an empty command, an agreement, a reduction of `BYTES`."""
    command = [*launcher, "-n", str(ranks), sys.executable, __file__, "--inside", str(repeats)]
    found = []
    for _ in range(LAUNCHES):
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
        line = next(line for line in done.stdout.splitlines() if line.startswith("found"))
        found.append(json.loads(line.removeprefix("found")))
    return [float(v) for v in np.median(found, axis=0)]


def node_seconds() -> float:
    """Seconds for each byte of a sum over two members and an update of the result."""
    a, b = np.ones(1 << 22, np.float32), np.ones(1 << 22, np.float32)
    found = []
    for _ in range(9):
        began = time.perf_counter()
        np.add(a, b, out=a)
        np.multiply(a, 0.5, out=a)
        found.append(time.perf_counter() - began)
    return float(np.median(found)) / a.nbytes


def fitted(found: dict[int, list[float]], cores: int) -> Costs:
    """Fit the constants to the smallest runs."""
    two, four = (found[r] for r in FIT)
    hop = two[1] * 1e-6 / 2
    turn = four[1] * 1e-6 / (2 * depth(FIT[1])) * cores / FIT[1]
    send = max(0.0, (four[1] * 1e-6 / 2 - hop) / 2)
    # of ranks that share cores, as those that check it: two that do not may fit into the caches
    moved = 2 * (FIT[1] - 1) / FIT[1] * BYTES * FIT[1] / min(cores, FIT[1])
    byte = max(0.0, (four[2] - four[1]) * 1e-6) / moved
    return Costs(hop, send if cores >= FIT[1] else hop / 4, turn, byte, node_seconds())


def check(found: dict[int, list[float]], costs: Costs, cores: int) -> None:
    """Compare the model with the measurements."""
    rows = []
    for ranks, (empty, agree, reduce) in found.items():
        a = 1e6 * costs.crowded_round(ranks, cores)
        w = 1e6 * costs.crowded_wire(ranks, cores, BYTES)
        taken = "fitted" if ranks in FIT else "predicted"
        ratios = f"{a / agree:.2f}, {w / reduce:.2f}"
        rows.append([f"{ranks} ({taken})", empty, agree, a, reduce, w, ratios])
    columns = ["ranks", "command", "agree", "model", "4 MB sum", "model", "model / measured"]
    show(f"{cores} cores, microseconds", columns, rows)


def predict(costs: Costs) -> dict[str, dict[str, list[float]]]:
    """The share of a step that is computation, for each model and network."""
    found: dict[str, dict[str, list[float]]] = {}
    for model, (parameters, work) in MODELS.items():
        rows = []
        found[model] = {}
        for network, (latency, bandwidth) in NETWORKS.items():
            steps = [costs.step(n, latency, bandwidth, 4 * parameters, work)[0] for n in NODES]
            found[model][network] = [work / s for s in steps]
            rows.append([network, *[f"{100 * work / s:.0f}" for s in steps]])
        show(f"{model}: % of a step that is computation", ["nodes", *map(str, NODES)], rows)
    return found


def plot(found: dict[str, dict[str, list[float]]], path: str) -> None:
    """One picture for each model, one line for each network."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(found), figsize=(13, 4), sharey=True)
    for axis, (model, lines) in zip(axes, found.items(), strict=True):
        for network, values in lines.items():
            axis.plot(NODES, [100 * v for v in values], marker="o", label=network)
        axis.set(title=model, xlabel="nodes", xscale="log", ylim=(0, 100))
        axis.set_xscale("log", base=2)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("computation, % of a step")
    axes[-1].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def limits(costs: Costs) -> None:
    """Print where the design stops scaling, and what would help."""
    rows = []
    for network, (latency, bandwidth) in NETWORKS.items():
        for model, (parameters, work) in MODELS.items():
            rounds = 2 * costs.round(NODES[-1], latency)
            wire = costs.wire(NODES[-1], latency, bandwidth, 4 * parameters)
            half = next(
                (
                    n
                    for n in NODES
                    if costs.step(n, latency, bandwidth, 4 * parameters, work)[1] > work
                ),
                None,
            )
            rows.append([network, model, 1e3 * rounds, 1e3 * wire, half or f"over {NODES[-1]}"])
    columns = ["network", "model", "rounds, ms", "wire, ms", "half the step at"]
    show(f"{NODES[-1]} nodes: commands and agreements, transfers", columns, rows)
    print(
        "Commands and agreements grow with the depth of the tree; transfers hardly grow with the\n"
        "number of nodes. Where transfers take half of a step, the bandwidth is the limit.\n"
        "Remedies: gradients in 16 bits (exchange=), a larger batch for each node, sending a\n"
        "layer's gradients while the next is computed. One agreement for several transfers would\n"
        "save messages."
    )


def main() -> None:
    answer_help(__doc__)
    if "--inside" in sys.argv:
        inside(int(sys.argv[-1]))
        return
    describe_machine()
    found_launchers = launchers([a for a in sys.argv[1:] if "=" in a])
    if "mpich" not in found_launchers:
        sys.exit('MPICH is not installed: pip install "synkhronos[mpich]"')
    repeats = 100 if "--quick" in sys.argv else 400
    cores = len(os.sched_getaffinity(0))
    found = {n: measured(found_launchers["mpich"], n, repeats) for n in RANKS}
    costs = fitted(found, cores)
    check(found, costs, cores)
    predicted = predict(costs)
    limits(costs)
    if "--plot" in sys.argv:
        plot(predicted, sys.argv[sys.argv.index("--plot") + 1])


if __name__ == "__main__":
    main()
