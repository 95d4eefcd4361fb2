"""Members that train apart, one after the other in plain PyTensor: the oracle of round rules."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor
from modes import FAST
from training_cases import Net

from synkhronos import rules
from synkhronos._plan.rows import edges
from synkhronos.extensions import make_train_function_pytensor
from synkhronos.extensions.updates import apply_rule

Arrays = list[np.ndarray]


class Alone:
    """One member: a net, its states, and a step on its part of a batch."""

    def __init__(
        self, update_rule: Any, options: dict[str, Any], loss: Any, dtype: str, clip: Any
    ) -> None:
        self.net = Net(dtype)
        self.share = pytensor.shared(np.asarray(1.0, dtype))  # rows of all for a row of this one
        states: list[Any] = []

        def noted(gradients: Any, params: Any) -> Any:
            made = apply_rule(update_rule, gradients, params, (), options)
            states.extend(v for v in made if v not in self.net.params)
            return made

        net = self.net
        self.step = make_train_function_pytensor(
            *(loss(net, self.share), net.params, net.x, net.y, noted), mode=FAST, clip=clip
        )
        self.states = states
        self.first = [s.get_value() for s in states]

    @staticmethod
    def get(variables: Sequence[Any]) -> Arrays:
        return [v.get_value() for v in variables]

    @staticmethod
    def put(variables: Sequence[Any], values: Sequence[np.ndarray]) -> None:
        for v, value in zip(variables, values, strict=True):
            v.set_value(np.asarray(value, v.type.dtype))


class Apart:
    """So many members, and the centre.

    Parameters
    ----------
    loss : callable
        ``loss(net, share)``: the loss of a part of the rows, as it stands for all rows.
    """

    def __init__(
        self,
        size: int,
        rule: Any,
        update_rule: Any,
        options: dict[str, Any],
        loss: Any = lambda net, share: net.loss,
        dtype: str = "float64",
        clip: Any = None,
    ) -> None:
        self.members = [Alone(update_rule, options, loss, dtype, clip) for _ in range(size)]
        self.rule = rule
        self.centre = self.members[0].net.values()
        self.u = [np.zeros_like(c) for c in self.centre]
        self.rows = np.zeros(size)
        self.since = self.meetings = 0

    def step(self, x: np.ndarray, y: np.ndarray, batch: Any = slice(None)) -> None:
        x, y = x[batch], y[batch]
        borders = edges(len(x), len(self.members))
        for i, (lo, hi) in enumerate(itertools.pairwise(borders)):
            if lo < hi:
                member = self.members[i]
                member.share.set_value(np.asarray(len(x) / (hi - lo), member.net.dtype))
                member.step(x[lo:hi], y[lo:hi])
            self.rows[i] += hi - lo
        self.since += 1
        if self.since == self.rule.period:
            self.meet()

    def meet(self) -> None:
        p, rule = len(self.members), self.rule
        q = self.rows / self.rows.sum()
        w = [m.net.values() for m in self.members]
        v = [Alone.get(m.states) for m in self.members]
        mean = [sum(q[i] * w[i][k] for i in range(p)) for k in range(len(self.centre))]
        for k, (c, m) in enumerate(zip(list(self.centre), mean, strict=True)):
            d, u = c - m, self.u[k]
            match rule:
                case rules.Average() | rules.Swap():
                    new = m
                case rules.SlowMo():
                    self.u[k] = rule.momentum * u + d
                    new = c - rule.lr * self.u[k]
                case rules.DiLoCo():
                    self.u[k] = rule.momentum * u + d
                    new = c - rule.lr * (d + rule.momentum * self.u[k])
                case rules.EASGD():
                    alpha = rule.for_members(p).alpha
                    new = c + sum(alpha * (w[i][k] - c) for i in range(p))
                    for i in range(p):
                        w[i][k] = w[i][k] - alpha * (w[i][k] - c)
            self.centre[k] = np.asarray(new, c.dtype)
        if isinstance(rule, rules.Swap):
            order = rule.partners(self.meetings, p)
            w, v = [w[j] for j in order], [v[j] for j in order]
        elif not isinstance(rule, rules.EASGD):
            w = [self.centre] * p
        policy = getattr(rule, "state", "keep")
        if policy == "average":
            v = [[sum(q[i] * v[i][k] for i in range(p)) for k in range(len(v[0]))]] * p
        elif policy == "reset":
            v = [m.first for m in self.members]
        for m, own, states in zip(self.members, w, v, strict=True):
            Alone.put(m.net.params, own)
            Alone.put(m.states, states)
        self.rows[:] = 0
        self.since = 0
        self.meetings += 1
