"""A training step over a slow link: gradients sent after the computation, or while it goes on.

Two network namespaces of this machine are two hosts, with a process each, and half of the cores.
Their link is limited in each direction by tc. The nets are in float32: the MLP 784-800-800-10, and
a VGG of 8 convolutions whose 3 layers of units hold 80 % of its bytes. All contenders take turns in
the same two processes; the table gives medians of a step. "hidden" is how much sooner a step ends
with overlap, beside `reduce` and `wait` of the same exchange without it.

    python benchmarks/overlap.py [--rates 1gbit 100mbit] [--nets mlp vgg] [--steps 20] [--rounds 3]
        [--batch ROWS]

It needs root, the programs ip and tc, and MPICH or Open MPI.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from common import describe_machine, show
from rules_link import ROOT, installed_launcher, take_half_of_the_cores

import synkhronos as synk
from synkhronos import zoo
from synkhronos.extensions import HalfPrecision, TopK, make_train_function, updates

JOB = "--job"
LIMIT = 550  # seconds of a job
WARM = 6  # steps in which TCP finds the link's rate
BF16 = HalfPrecision("bf16")
CONTENDERS: dict[str, dict[str, Any]] = {
    "dense": {},
    "overlap": {"overlap": True},
    "bf16": {"exchange": BF16},
    "overlap, bf16": {"exchange": BF16, "overlap": True},
    "TopK(0.01)": {"exchange": TopK(0.01)},
}

PARTNERS = {"overlap": "dense", "overlap, bf16": "bf16"}  # the same exchange without overlap


def mlp(batch: int) -> tuple[Any, Any, Any, Any, tuple[np.ndarray, np.ndarray]]:
    """The loss, parameters and inputs of the MLP, and as many rows for each of both members."""
    sizes = 784, 800, 800, 10
    x, y = pt.fmatrix("x"), pt.ivector("y")
    h, params = x, []
    rng = np.random.default_rng(0)
    for i, (m, n) in enumerate(itertools.pairwise(sizes)):
        w = pytensor.shared((rng.normal(size=(m, n)) / m**0.5).astype("f4"), name=f"w{i}")
        b = pytensor.shared(np.zeros(n, "f4"), name=f"b{i}")
        params += [w, b]
        h = (pt.maximum(h, 0) if i else h) @ w + b
    shifted = h - h.max(axis=1, keepdims=True)
    likely = shifted - pt.log(pt.exp(shifted).sum(axis=1, keepdims=True))
    loss = -likely[pt.arange(y.shape[0]), y].mean()
    rows = rng.random((2 * batch, 784)).astype("f4"), rng.integers(0, 10, 2 * batch, "i4")
    return loss, params, x, y, rows


def vgg(batch: int) -> tuple[Any, Any, Any, Any, tuple[np.ndarray, np.ndarray]]:
    """The same of the VGG."""
    pytensor.config.floatX = "float32"
    net = zoo.vgg(11, classes=10, size=32, width=16, units=1500, dropout=0.0)
    x, y = net.inputs
    rng = np.random.default_rng(0)
    rows = rng.random((2 * batch, 32, 32, 3)).astype("f4"), rng.integers(0, 10, 2 * batch)
    return net.loss, net.params, x, y, (rows[0], rows[1].astype(y.type.dtype))


NETS = {"mlp": mlp, "vgg": vgg}
BATCH = {"mlp": 128, "vgg": 16}  # rows of a process


class Contender:
    """A training function, and the times of its steps."""

    def __init__(self, name: str, net: str, batch: int, options: dict[str, Any]) -> None:
        loss, params, x, y, rows = NETS[net](batch)
        rule = updates.momentum, 0.001, 0.9
        self.train = make_train_function(
            loss, params, x, y, *rule, mode="NUMBA", name=name, reduction="avg", **options
        )
        self.data = self.train.build_inputs(*rows)
        self.times: list[float] = []
        self.parts: list[dict[str, float]] = []

    def steps(self, count: int, warm: int) -> None:
        """Make steps, and keep the times of those after the first ones."""
        before: dict[str, list[float]] = {}
        for k in range(warm + count):
            if k == warm:
                before = self.train.seconds()
            began = time.perf_counter()
            self.train(*self.data)
            if k >= warm:
                self.times.append(1e3 * (time.perf_counter() - began))
        after = self.train.seconds()
        self.parts.append({p: 1e3 * (after[p][0] - before[p][0]) / count for p in after})


def job(net: str, batch: int, which: list[str], steps: int, rounds: int) -> None:
    """What both processes run: the master prints its figures as a line."""
    take_half_of_the_cores()
    synk.fork(1)  # returns in the master only
    contenders = {
        name: Contender(name, net, batch, options)
        for name, options in CONTENDERS.items()
        if name in which
    }
    for c in contenders.values():
        c.steps(1, 2)
        c.times.clear()
        c.parts.clear()
    for _ in range(rounds):
        for c in contenders.values():
            c.steps(steps, WARM)
    found = {n: (median(c.times), c.parts) for n, c in contenders.items()}
    print("figures", json.dumps(found), flush=True)
    synk.close()


def measured(rate: str, net: str, given: argparse.Namespace) -> dict[str, Any]:
    """The figures over a link of this rate."""
    sys.path.append(str(ROOT / "tests" / "mpi"))
    from hosts import two_hosts
    from launching import Job

    with tempfile.TemporaryDirectory() as name, two_hosts(Path(name), rate) as hosts:
        command = [sys.executable, str(Path(__file__).resolve()), JOB, net]
        command += ["--steps", str(given.steps), "--rounds", str(given.rounds)]
        command += ["--batch", str(given.batch or BATCH[net]), "--contenders", *given.contenders]
        made = Job(hosts.launcher(installed_launcher()), 2, command, Path(name))
        try:
            if made.wait(LIMIT):
                raise SystemExit(made.text)
            [line] = [x for x in made.text.splitlines() if x.startswith("figures ")]
        finally:
            made.kill()
    found: dict[str, Any] = json.loads(line.removeprefix("figures "))
    return found


def main() -> None:
    """Measure at each rate, or run as one of the two processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rates", nargs="+", default=["1gbit", "100mbit"], help="as tc takes them")
    parser.add_argument("--nets", nargs="+", default=list(NETS), choices=list(NETS))
    parser.add_argument("--steps", type=int, default=20, help="of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, help=f"rows of a process; default: {BATCH}")
    parser.add_argument(
        "--contenders", nargs="+", default=list(CONTENDERS), choices=list(CONTENDERS)
    )
    parser.add_argument(JOB, choices=list(NETS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        job(given.job, given.batch, given.contenders, given.steps, given.rounds)
        return
    describe_machine()
    for net, rate in itertools.product(given.nets, given.rates):
        found = measured(rate, net, given)
        base = next(iter(found.values()))[0]
        lines = []
        waits = {}
        for name, (ms, parts) in found.items():
            each = {p: median(x[p] for x in parts) for p in parts[0]}
            waits[name] = each["reduce"] + each["wait"]
            partner = PARTNERS.get(name)
            gain = (found[partner][0] - ms) / waits[partner] if partner in waits else None
            hidden = "" if gain is None else f"{gain:.0%}"
            lines.append([name, ms, each["compute"], waits[name], f"{base / ms:.2f}", hidden])
        columns = ["", "ms of a step", "compute", "reduce and wait", "times as fast", "hidden"]
        show(f"{net}: a step over a link of {rate}", columns, lines)


if __name__ == "__main__":
    main()
