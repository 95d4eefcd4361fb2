"""Training by sparse gradients, and the same in plain numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from modes import FAST

from synkhronos.extensions import make_train_function, updates

RATE, MOMENTUM = 0.05, 0.9
ROWS = 23


def data(steps: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The rows of each step."""
    rng = np.random.default_rng(7)
    true = rng.standard_normal((6, 5))
    found = []
    for _ in range(steps):
        x = rng.standard_normal((ROWS, 6)) * np.geomspace(0.1, 2, 6)
        found.append((x, x @ true + rng.standard_normal((ROWS, 5))))
    return found


class Regression:
    """A linear map of two parameters, trained by momentum."""

    def __init__(self, **options: Any) -> None:
        x, y = pt.dmatrix("x"), pt.dmatrix("y")
        self.params = [
            pytensor.shared(np.zeros((6, 5)), name="w"),
            pytensor.shared(np.zeros(5), name="b"),
        ]
        w, b = self.params
        loss = ((x @ w + b - y) ** 2).sum(axis=1).mean()
        rule = options.pop("update_rule", updates.momentum)
        options.setdefault("mode", FAST)
        self.train = make_train_function(
            loss, self.params, x, y, rule, options.pop("learning_rate", RATE), **options
        )

    def values(self) -> np.ndarray:
        """All elements of the parameters."""
        return np.concatenate([p.get_value().ravel() for p in self.params])

    def residuals(self) -> np.ndarray:
        """All elements of the residuals, a row for each node."""
        self.train.collect()
        return np.concatenate(
            [v.get_value().reshape(len(v.get_value()), -1) for v in self.train.by_node], axis=1
        )

    def everything(self) -> list[np.ndarray]:
        """The values of all variables that a step changes."""
        self.train.collect()
        return [np.array(v.get_value()) for v in (*self.train.params, *self.train.state)]


def top(vector: np.ndarray, k: int) -> np.ndarray:
    """Which elements are the k of the largest magnitude."""
    chosen = np.zeros(vector.size, bool)
    chosen[np.argsort(-np.abs(vector), kind="stable")[:k]] = True
    return chosen


def trained_by_numpy(steps: int, k: int, members: int, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Parameters and residuals of so many nodes with as many members each."""
    w, b = np.zeros((6, 5)), np.zeros(5)
    values, velocity = np.zeros(35), np.zeros(35)
    residuals = np.zeros((nodes, 35))
    for x, y in data(steps):
        sums, sent = np.zeros(35), []
        parts = np.array_split(np.arange(ROWS), nodes * members)
        for node in range(nodes):
            rows = np.concatenate(parts[node * members : (node + 1) * members])
            error = 2 * (x[rows] @ w + b - y[rows]) / ROWS
            residuals[node] += np.concatenate([(x[rows].T @ error).ravel(), error.sum(axis=0)])
            sent.append(top(residuals[node], k))
            sums += residuals[node] * sent[-1]
        kept = top(sums, k)
        for node in range(nodes):
            residuals[node][kept & sent[node]] = 0
        velocity = MOMENTUM * velocity - RATE * sums * kept
        values = values + velocity
        w, b = values[:30].reshape(6, 5), values[30:]
    return values, residuals
