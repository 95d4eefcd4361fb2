"""Cases of training functions: a small network, rules, losses, a comparison with serial."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from modes import FAST

import synkhronos as synk
from synkhronos.extensions import make_train_function, make_train_function_pytensor, updates

RULES: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (updates.sgd, {"learning_rate": 0.1}),
    "momentum": (updates.momentum, {"learning_rate": 0.1}),
    "nesterov": (updates.nesterov_momentum, {"learning_rate": 0.1}),
    "adagrad": (updates.adagrad, {"learning_rate": 0.1}),
    "rmsprop": (updates.rmsprop, {"learning_rate": 0.01}),
    "adadelta": (updates.adadelta, {}),
    "adam": (updates.adam, {"learning_rate": 0.01}),
    "adamw": (updates.adam, {"learning_rate": 0.01, "weight_decay": 0.1}),
    "adamax": (updates.adamax, {"learning_rate": 0.01}),
    "amsgrad": (updates.amsgrad, {"learning_rate": 0.01}),
    "nadam": (updates.nadam, {"learning_rate": 0.01}),
}


class Net:
    """A small net: weights of several shapes, a 0-d parameter, and a row-wise error."""

    def __init__(self, dtype: str = "float64", hidden: int = 7) -> None:
        rng = np.random.default_rng(5)
        self.x, self.y = pt.matrix("x", dtype=dtype), pt.lvector("y")

        def shared(name: str, *shape: int) -> Any:
            return pytensor.shared(np.asarray(0.3 * rng.standard_normal(shape), dtype), name=name)

        self.params = [shared("w0", 5, hidden), shared("b0", hidden), shared("w1", hidden, 3)]
        self.params += [shared("b1", 3), shared("scale")]
        w0, b0, w1, b1, scale = self.params
        h = pt.tanh(self.x @ w0 + b0)
        log_p = pt.special.log_softmax((h @ w1 + b1) * scale, axis=1)
        self.error = -log_p[pt.arange(self.y.shape[0]), self.y]
        self.hits = pt.eq(log_p.argmax(axis=1), self.y)
        self.loss = self.error.mean()
        self.dtype = dtype

    def data(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(n)
        return rng.standard_normal((n, 5)).astype(self.dtype), rng.integers(0, 3, n)

    def values(self) -> list[np.ndarray]:
        return [p.get_value() for p in self.params]


def compare(
    make: Callable[[Net], dict[str, Any]],
    steps: int = 10,
    rows: int = 23,
    batch: Any = None,
    dtype: str = "float64",
    tolerance: float = 1e-10,
    num_slices: int = 1,
    hidden: int = 7,
) -> None:
    """Train a net in the group and another one serially: equal losses and parameters."""
    ours, serial = Net(dtype, hidden), Net(dtype, hidden)
    mine, theirs = make(ours), make(serial)
    mine.setdefault("mode", FAST)
    theirs["mode"] = FAST
    train = make_train_function(
        mine.pop("loss", ours.loss), ours.params, ours.x, ours.y, mine.pop("rule"), **mine
    )
    twin = make_train_function_pytensor(
        theirs.pop("loss", serial.loss),
        serial.params,
        serial.x,
        serial.y,
        theirs.pop("rule"),
        **theirs,
    )
    x, y = ours.data(rows)
    for _ in range(steps):
        found = train(x, y, batch=batch, num_slices=num_slices)
        wanted = twin(x, y, batch=batch)
        np.testing.assert_allclose(found, wanted, rtol=tolerance)
    for p, q in zip(ours.params, serial.params, strict=True):
        assert p.get_value().dtype == dtype
        np.testing.assert_allclose(p.get_value(), q.get_value(), rtol=tolerance, atol=tolerance)
    for p in ours.params:
        for rank in range(len(synk.get_lengths(ours.params[1]))):
            np.testing.assert_array_equal(synk.get_value(rank, p), p.get_value())


def loss_of(net: Net, kind: str) -> Any:
    """Losses over rows in every form whose gradient is exact."""
    w0, *_ = net.params
    mask = pt.cast(pt.gt(net.x[:, 0], 0), net.dtype)
    return {
        "mean": net.loss,
        "sum": net.error.sum(),
        "mean + L2": net.loss + 0.01 * (w0**2).sum(),
        "sum + L2": net.error.sum() + 0.3 * (w0**2).sum() + 0.1 * abs(net.params[2]).sum(),
        "masked mean": (net.error * mask).sum() / mask.sum() + 0.01 * (w0**2).sum(),
        "root of mean": pt.sqrt((net.error**2).mean()),
        "log of sum": pt.log(net.error.sum()),
    }[kind]


LOSSES = ("mean", "sum", "mean + L2", "sum + L2", "masked mean", "root of mean", "log of sum")


def lars(grads: Any, params: Any, learning_rate: float = 0.01) -> list[tuple[Any, Any]]:
    """A rate for each parameter, from norms of it and of its gradient."""
    found = []
    for p, g in zip(params, grads, strict=True):
        rate = learning_rate * pt.sqrt((p**2).sum() + 1e-3) / pt.sqrt((g**2).sum() + 1e-6)
        found.append((p, p - rate * g))
    return found


def whitened(grads: Any, params: Any, learning_rate: float = 0.01) -> list[tuple[Any, Any]]:
    """Matrices are multiplied with a running product of their gradients: not elementwise."""
    found = []
    for p, g in zip(params, grads, strict=True):
        if p.type.ndim == 2:
            rows = p.get_value(borrow=True).shape[0]
            product = pytensor.shared(np.eye(rows), name=f"{p.name}.product")
            new = 0.9 * product + g @ g.T
            found += [(product, new), (p, p - learning_rate * pt.linalg.inv(new) @ g)]
        else:
            found.append((p, p - learning_rate * g))
    return found
