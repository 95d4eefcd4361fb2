"""Training rules: rows a second with a slow member and with equal ones; the cost of an exchange.

An MLP of 784-800-10 in float32; each member trains on batches of its own size. A member is slowed
by an operation in its loss that sleeps for as long as a step takes. All contenders of a table take
turns; the tables give medians over the rounds, and ratios within rounds.

* With one member slowed twice, a group that meets at each step runs at half speed. Members that
  never meet run at (p - 1/2) / (p / 2) times that, for p members.
* With equal members, a rule is compared with members that do not exchange at all.
* An exchange of 5 MB is compared with a copy of 5 MB.

    python benchmarks/rules.py [--members 2] [--rounds 5] [--seconds 2] [--only slow equal exchange]
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from common import describe_machine, show
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import synkhronos as synk
from synkhronos import rules
from synkhronos.extensions import Batches, make_train_function, updates
from synkhronos.extensions._apart.centre_optimizer import ElementwiseUpdate
from synkhronos.extensions._apart.free.free_member import BLOCK
from synkhronos.rules import EASGD, GEM, Downpour
from synkhronos.rules._base import Turn

ROWS, BATCH, HIDDEN = 20_000, 250, 800
EXCHANGED = 1_300_000  # float32: 5.2 MB
MODE = "NUMBA"


class Slowed(Op):
    """The same value, after a sleep in one member."""

    __props__ = ("rank", "seconds")

    def __init__(self, rank: int, seconds: float) -> None:
        self.rank, self.seconds = rank, seconds

    def make_node(self, x: Any) -> Apply:
        """One input, and an output of its type."""
        return Apply(self, [x], [x.type()])

    def perform(self, node: Apply, inputs: list[Any], outputs: list[list[Any]]) -> None:
        """Sleep, and copy."""
        if synk.rank() == self.rank:
            time.sleep(self.seconds)
        outputs[0][0] = np.array(inputs[0])

    def pullback(self, inputs: Any, outputs: Any, gradients: Any) -> Any:
        """The gradient is that of the identity."""
        return gradients

    grad = pullback


class Contender:
    """A training function, and how many rows a second it makes."""

    def __init__(self, name: str, rule: rules.Rule | None, slow: float) -> None:
        self.name, self.rule = name, rule
        rng = np.random.default_rng(0)
        x, y = pt.fmatrix("x"), pt.lvector("y")
        shapes = [(784, HIDDEN), (HIDDEN,), (HIDDEN, 10), (10,)]
        params = [
            pytensor.shared((rng.normal(size=s) * 0.03).astype("f4"), name=f"p{i}")
            for i, s in enumerate(shapes)
        ]
        a, b, c, d = params
        scores = pt.maximum(x @ a + b, 0) @ c + d
        if slow:
            scores = Slowed(synk.size() - 1, slow)(scores)
        shifted = scores - scores.max(axis=1, keepdims=True)
        likely = shifted - pt.log(pt.exp(shifted).sum(axis=1, keepdims=True))
        loss = -likely[pt.arange(y.shape[0]), y].mean()
        self.train = make_train_function(
            loss, params, x, y, updates.sgd, 0.01, rule=rule, mode=MODE, name=name, reduction="avg"
        )
        self.data = self.train.build_inputs(
            rng.normal(size=(ROWS, 784)).astype("f4"), rng.integers(0, 10, ROWS)
        )
        self.rates: list[float] = []

    def round(self, seconds: float) -> None:
        """Train for so long."""
        free = self.rule is not None and not self.rule.meets
        self.rates.append(self._free(seconds) if free else self._steps(seconds))

    def _steps(self, seconds: float) -> float:
        rows, began = 0, time.perf_counter()
        while True:
            for batch in Batches(ROWS, BATCH * synk.size(), seed=1):
                self.train(*self.data, batch=batch)
                rows += len(batch)
                if (now := time.perf_counter()) - began > seconds:
                    return rows / (now - began)

    def _free(self, seconds: float) -> float:
        with self.train.start(*self.data, Batches(ROWS, BATCH, seed=1), epochs=1000) as run:
            run.wait(0.2)  # all members have begun
            before, began = run.rows, time.perf_counter()
            run.wait(seconds)
            return (run.rows - before) / (time.perf_counter() - began)


def compared(title: str, rounds: int, seconds: float, contenders: list[Contender]) -> None:
    """Let the contenders take turns; ratios are against the first."""
    for contender in contenders:
        contender.round(0.3)
        contender.rates.clear()
    for _ in range(rounds):
        for contender in contenders:
            contender.round(seconds)
    first = contenders[0].rates
    table = []
    for c in contenders:
        ratios = [a / b for a, b in zip(c.rates, first, strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        table.append([c.name, median(c.rates), f"{median(ratios):.3f}", spread])
    show(title, ["", "rows/s", "ratio", "range"], table)


def free_rules(period: int) -> list[tuple[str, rules.Rule]]:
    """The rules whose members never meet."""
    return [
        (f"EASGD({period})", EASGD(period)),
        (f"Downpour({period})", Downpour(period)),
        (f"GEM({period})", GEM(period)),
        ("GoSGD", rules.GoSGD()),
        ("Hogwild", rules.Hogwild()),
    ]


def slow(rounds: int, seconds: float) -> None:
    """One member slowed twice."""
    plain = Contender("a step", None, 0.0)
    plain.round(0.1)  # compiles
    plain.round(seconds)
    step = BATCH * synk.size() / plain.rates[-1]
    p = synk.size()
    contenders = [Contender("synchronous", None, step)]
    contenders += [Contender("Average(10)", rules.Average(10), step)]
    contenders += [Contender(name, rule, step) for name, rule in free_rules(10)]
    title = (
        f"{p} members, one slowed twice (a step takes {step * 1e3:.1f} ms); "
        f"the bound of the ratio is {(p - 0.5) / (p / 2):.2f}"
    )
    compared(title, rounds, seconds, contenders)


def equal(rounds: int, seconds: float) -> None:
    """Equal members, against members that do not exchange."""
    contenders = [Contender("no exchange", EASGD(10**9), 0.0)]
    contenders += [Contender("synchronous", None, 0.0)]
    contenders += [Contender("Average(10)", rules.Average(10), 0.0)]
    contenders += [Contender(name, rule, 0.0) for name, rule in free_rules(10)]
    compared(f"{synk.size()} equal members", rounds, seconds, contenders)


def exchange(rounds: int) -> None:
    """The pass of an exchange over 5.2 MB, against a copy."""
    rng = np.random.default_rng(0)
    w, read, m, last, source, target = (rng.normal(size=EXCHANGED).astype("f4") for _ in range(6))
    centre, new = (
        [np.abs(rng.normal(size=EXCHANGED)).astype("f4") for _ in range(3)] for _ in range(2)
    )
    passes: dict[str, Callable[[], None]] = {
        "copy": lambda: np.copyto(target, source),
        "check that w is finite": lambda: bool(np.isfinite(w.sum())) and None,
    }
    momentum = functools.partial(updates.momentum, learning_rate=0.5)
    adam = functools.partial(updates.adam, learning_rate=0.001)
    contenders: list[tuple[str, Any, list[Any], Any]] = [
        ("EASGD", EASGD(1), [], None),
        ("Downpour", Downpour(1), [read], None),
        ("Downpour, momentum at the centre", Downpour(1), [read], momentum),
        ("Downpour, adam at the centre", Downpour(1), [read], adam),
        ("GEM", GEM(1), [read, m, last], None),
    ]
    for name, rule, own, optimizer in contenders:
        turn, states = Turn(staleness=1, rows=1.0, present=2, counts=[]), 0
        if optimizer is not None:
            update = ElementwiseUpdate.of_vector(optimizer, w, name)
            turn.optimizer = update.step(np.ones(len(update.recipe.scalars)))
            states = len(update.recipe.states)
        made = rule.for_members(2)
        vectors = [w, *own, *centre[: 1 + states], *new[: 1 + states]]

        def one(
            made: Any = made,
            vectors: Any = vectors,
            turn: Any = turn,
            n: int = 1 + len(own),
            k: int = 1 + states,
        ) -> None:
            for lo in range(0, EXCHANGED, BLOCK):
                v = [each[lo : lo + BLOCK] for each in vectors]
                made.exchange(turn, v[0], v[1:n], v[n : n + k], v[n + k :])

        passes[name] = one
    for call in passes.values():
        call()
    found: dict[str, list[float]] = {name: [] for name in passes}
    for _ in range(40 * rounds):
        for name, call in passes.items():
            began = time.perf_counter()
            call()
            found[name].append(time.perf_counter() - began)
    copy = median(found["copy"])
    rows = [
        [name, f"{1e3 * median(v):.3f}", f"{median(v) / copy:.2f}"] for name, v in found.items()
    ]
    show(f"An exchange of {4e-6 * EXCHANGED:.1f} MB", ["", "ms", "copies"], rows)


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--members", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a contender in a round")
    tables = ["slow", "equal", "exchange"]
    parser.add_argument("--only", nargs="+", choices=tables, default=tables)
    given = parser.parse_args()
    describe_machine()
    if "exchange" in given.only:
        exchange(given.rounds)
    if {"slow", "equal"} & set(given.only):
        synk.fork(given.members)
        if "slow" in given.only:
            slow(given.rounds, given.seconds)
        if "equal" in given.only:
            equal(given.rounds, given.seconds)
        synk.close()


if __name__ == "__main__":
    main()
