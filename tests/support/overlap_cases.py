"""Nets for sums that are made while members compute, and an operation that acts in the middle."""

from __future__ import annotations

import itertools
import os
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from modes import FAST
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op

from synkhronos import ops
from synkhronos._engine.member import Member
from synkhronos.extensions import make_train_function, updates

SIZES = (20, 90, 130, 3)  # of layers: gradients of 7 to 94 KB
ROWS = 31


def data(steps: int, dtype: str = "float64") -> list[tuple[np.ndarray, np.ndarray]]:
    """The rows of each step."""
    rng = np.random.default_rng(5)
    return [
        (rng.normal(size=(ROWS + k, SIZES[0])).astype(dtype), rng.integers(0, 3, ROWS + k))
        for k in range(steps)
    ]


class Act(Op):
    """The value itself; its gradient calls `act` of the member that computes it."""

    __props__ = ("backwards",)
    view_map = {0: [0]}  # noqa: RUF012
    act: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, backwards: bool = False) -> None:
        self.backwards = backwards

    def make_node(self, *inputs: Variable) -> Apply:
        return Apply(self, list(inputs), [inputs[0].type()])

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Any) -> None:
        if self.backwards:
            Act.act()
        output_storage[0][0] = inputs[0]

    def infer_shape(self, node: Apply, shapes: Sequence[Any]) -> Sequence[Any]:
        return shapes

    def pullback(
        self,
        inputs: Sequence[Variable],
        outputs: Sequence[Variable],
        cotangents: Sequence[Variable],
    ) -> list[Variable]:
        return [Act(True)(cotangents[0])]


class Layers:
    """A net of three layers; in the gradient of the second one, members act."""

    def __init__(self, dtype: str = "float64", together: bool = False, **options: Any) -> None:
        x, y = pt.matrix("x", dtype=dtype), pt.lvector("y")
        rng, h = np.random.default_rng(1), x
        self.params = []
        for i, (m, n) in enumerate(itertools.pairwise(SIZES)):
            w = pytensor.shared((rng.normal(size=(m, n)) / m**0.5).astype(dtype), name=f"w{i}")
            b = pytensor.shared(np.zeros(n, dtype), name=f"b{i}")
            self.params += [w, b]
            h = (Act()(pt.tanh(h)) if i else h) @ w + b
        if together:  # a value that follows from the rows of all members
            h = h - ops.all_reduce(h.mean(axis=0), "avg")
        likely = h - pt.log(pt.exp(h).sum(axis=1, keepdims=True))
        loss = -likely[pt.arange(y.shape[0]), y].mean()
        options.setdefault("mode", FAST)
        rule = options.pop("update_rule", updates.momentum)
        self.train = make_train_function(
            loss, self.params, x, y, rule, 0.05, reduction="avg", **options
        )

    def values(self) -> list[np.ndarray]:
        """Of all variables that a step changes."""
        return [np.array(v.get_value()) for v in (*self.train.params, *self.train.state)]

    def steps(self, rows: Sequence[tuple[np.ndarray, np.ndarray]], **options: Any) -> list[float]:
        """Train; the losses."""
        return [float(self.train(x, y, **options)) for x, y in rows]


def summing_processes() -> dict[int, list[int]]:
    """The pids of the summing processes of this machine, by that of their leader."""
    found: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            said = (folder / "cmdline").read_text()
        except (OSError, UnicodeDecodeError):  # it has ended, or is another program
            continue
        parent = re.search(r'"parent": (\d+)', said)
        if parent and "communicators.summing" in said:
            found.setdefault(int(parent[1]), []).append(int(folder.name))
    return found


def obey(order: Path) -> None:
    """Let members do, in the middle of a gradient, what a file orders: a rank and a word."""

    def act() -> None:
        try:
            rank, word = order.read_text().split()
        except (OSError, ValueError):
            return
        here = Member.serving
        if int(rank) != (0 if here is None else here.rank):
            return
        order.unlink()
        if word == "raise":
            raise LookupError(f"by member {rank}")
        if word == "interrupt":
            signal.raise_signal(signal.SIGINT)
        elif word == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        else:  # to the summing process of this node
            children = summing_processes()
            leader = os.getpid() if os.getpid() in children else os.getppid()
            for pid in children[leader]:
                os.kill(pid, {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[word])

    Act.act = staticmethod(act)
