"""Training over a slow link: the time to the same loss, or of a step, by what nodes exchange.

Two network namespaces of this machine are two hosts, with a process each, and half of the cores.
Their link is limited in each direction by tc's token bucket filter. Both train the MLP
784-800-800-10 in float32 on MNIST, 128 rows in a member's step, by momentum SGD. The loss is that
of held-out images, every 10 steps, while the clock stands still. All contenders get the same
batches. They take turns, with the seeds as rounds; the table gives medians.

    python benchmarks/rules_link.py [--rates 100mbit 1gbit] [--loss 0.2] [--seeds 3] [--steps N]

With ``--steps 20`` it measures only the time of so many steps, on noise, for each way to exchange
gradients.

It needs root, the programs ip and tc, and MPICH or Open MPI. The data are those of demos/mnist:
SYNKHRONOS_DATA names their folder.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
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

import synkhronos as synk
from synkhronos import rules
from synkhronos.extensions import Batches, HalfPrecision, TopK, make_train_function, updates

ROOT = Path(__file__).resolve().parents[1]
JOB = "--job"
SIZES = (784, 800, 800, 10)
BATCH, LOOK, MOST = 128, 10, 2000  # rows of a member's step; steps between two looks; steps
CONTENDERS: dict[str, dict[str, Any]] = {
    "synchronous": {},
    "HalfPrecision": {"exchange": HalfPrecision("bf16")},
    "TopK(0.01)": {"exchange": TopK(0.01)},
    "Average(10)": {"rule": rules.Average(10)},
}
EXCHANGES: dict[str, dict[str, Any]] = {
    "float32": {},
    "bf16": {"exchange": HalfPrecision("bf16")},
    "bf16, stochastic": {"exchange": HalfPrecision("bf16", stochastic=True)},
    "TopK(0.1)": {"exchange": TopK(0.1)},
    "TopK(0.01)": {"exchange": TopK(0.01)},
    "TopK(0.001)": {"exchange": TopK(0.001)},
}
LIMIT = 550  # seconds of a job


class Contender:
    """A training function, and its way to a loss."""

    def __init__(self, name: str, options: dict[str, Any], images: Any, labels: Any) -> None:
        x, y = pt.fmatrix("x"), pt.ivector("y")
        h, params = x, []
        for i, (m, n) in enumerate(itertools.pairwise(SIZES)):
            w = pytensor.shared(np.zeros((m, n), "f4"), name=f"w{i}")
            b = pytensor.shared(np.zeros(n, "f4"), name=f"b{i}")
            params += [w, b]
            h = (pt.maximum(h, 0) if i else h) @ w + b
        shifted = h - h.max(axis=1, keepdims=True)
        likely = shifted - pt.log(pt.exp(shifted).sum(axis=1, keepdims=True))
        loss = -likely[pt.arange(y.shape[0]), y].mean()
        optimizer = updates.momentum, 0.05, 0.9
        self.train = make_train_function(
            loss, params, x, y, *optimizer, mode="NUMBA", name=name, reduction="avg", **options
        )
        self.loss = pytensor.function([x, y], loss)
        self.name, self.meets = name, "rule" in options
        self.data = self.train.build_inputs(images, labels)

    def begin(self, seed: int) -> None:
        """Set parameters and states to their first values."""
        rng = np.random.default_rng(seed)
        for p in self.train.params:
            m, *rest = p.get_value(borrow=True).shape
            scale = (2 / m) ** 0.5 if rest else 0.0
            p.set_value((rng.normal(size=(m, *rest)) * scale).astype("f4"))
        for v in self.train.state:
            v.set_value(np.zeros_like(v.get_value(borrow=True)))

    def seconds(self, seed: int, held_out: Any, goal: float) -> tuple[float, int]:
        """Train until the loss is reached; the seconds and the steps."""
        self.begin(seed)
        batches = Batches(len(self.data[0]), BATCH * synk.size(), seed=seed, last="drop")
        passed, steps, found = 0.0, 0, np.inf
        while found > goal and steps < MOST:
            for batch in batches:
                began = time.perf_counter()
                self.train(*self.data, batch=batch)
                passed += time.perf_counter() - began
                steps += 1
                if steps % LOOK == 0:
                    found = float(self.loss(*held_out))
                    if found <= goal or steps >= MOST:
                        break
        return (passed if found <= goal else np.inf), steps

    def milliseconds(self, steps: int) -> float:
        """The median time of so many steps, after some in which TCP finds the link's rate."""
        self.begin(0)
        batches = itertools.cycle(Batches(len(self.data[0]), BATCH * synk.size(), last="drop"))
        found = []
        for batch in itertools.islice(batches, 10 + steps):
            began = time.perf_counter()
            self.train(*self.data, batch=batch)
            found.append(1e3 * (time.perf_counter() - began))
        return median(found[10:])

    def warm_up(self) -> None:
        """Compile, also a meeting."""
        self.begin(0)
        for _ in range(10):
            self.train(*self.data, batch=2 * BATCH)


def take_half_of_the_cores() -> None:
    """Let this process use those that the other does not."""
    rank = int(os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[rank::2] or cores)


def noise() -> tuple[np.ndarray, np.ndarray]:
    """Rows for the time of a step, on which their values have no influence."""
    rng = np.random.default_rng(0)
    images = rng.random((16 * BATCH, SIZES[0])).astype("f4")
    return images, rng.integers(0, SIZES[-1], len(images), "i4")


def job(goal: float, seeds: int, steps: int) -> None:
    """What both processes run: the master prints its figures as a line."""
    sys.path.append(str(ROOT / "demos" / "mnist"))
    import mnist

    take_half_of_the_cores()
    synk.fork(1)  # returns in the master only
    if steps:
        train = noise()
    else:
        data = mnist.load()
        train = data.train
    which = EXCHANGES if steps else CONTENDERS
    contenders = [Contender(n, options, *train) for n, options in which.items()]
    found: dict[str, list[Any]] = {c.name: [] for c in contenders}
    for c in contenders:
        c.warm_up()
    for seed in range(1, seeds + 1):
        for c in contenders:
            found[c.name].append(
                c.milliseconds(steps) if steps else c.seconds(seed, data.validation, goal)
            )
    print("figures", json.dumps(found), flush=True)
    synk.close()


def measured(rate: str, goal: float, seeds: int, steps: int) -> dict[str, Any]:
    """The figures over a link of this rate."""
    sys.path.append(str(ROOT / "tests" / "mpi"))
    from hosts import two_hosts
    from launching import Job

    with tempfile.TemporaryDirectory() as name, two_hosts(Path(name), rate) as hosts:
        command = [sys.executable, __file__, JOB, "--loss", str(goal), "--seeds", str(seeds)]
        command += ["--steps", str(steps)]
        made = Job(hosts.launcher(installed_launcher()), 2, command, Path(name))
        try:
            if made.wait(LIMIT):
                raise SystemExit(made.text)
            print(*(x for x in made.text.splitlines() if "images to train" in x), sep="\n")
            [line] = [x for x in made.text.splitlines() if x.startswith("figures ")]
        finally:
            made.kill()
    found: dict[str, Any] = json.loads(line.removeprefix("figures "))
    return found


def installed_launcher() -> Any:
    """The launcher of an MPI that is installed; `tests/mpi` is on the path."""
    from _pytest.outcomes import Skipped
    from launching import KINDS, launcher

    for kind in KINDS:
        with contextlib.suppress(Skipped):
            return launcher(kind)
    raise SystemExit("neither MPICH nor Open MPI is installed")


def main() -> None:
    """Measure at each rate, or run as one of the two processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rates", nargs="+", default=["100mbit", "1gbit"], help="as tc takes them")
    parser.add_argument("--loss", type=float, default=0.2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=0, help="measure only the time of a step")
    parser.add_argument(JOB, action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        job(given.loss, given.seeds, given.steps)
        return
    describe_machine()
    for rate in given.rates:
        found = measured(rate, given.loss, given.seeds, given.steps)
        if given.steps:
            [base, *_] = [median(times) for times in found.values()]
            each = {name: median(times) for name, times in found.items()}
            lines = [[name, ms, f"{base / ms:.1f}"] for name, ms in each.items()]
            show(f"A step over a link of {rate}", ["", "ms of a step", "times as fast"], lines)
            continue
        rows, first = [], []
        for name, pairs in found.items():
            seconds, steps = zip(*pairs, strict=True)
            first = first or seconds
            ratio = median(a / b for a, b in zip(first, seconds, strict=True))
            each = median(1e3 * s / n for s, n in pairs)
            rows.append([name, median(seconds), median(steps), each, f"{ratio:.1f}"])
        columns = ["", "seconds", "steps", "ms of a step", "times as fast"]
        show(f"Held-out loss {given.loss} over a link of {rate}", columns, rows)


if __name__ == "__main__":
    main()
