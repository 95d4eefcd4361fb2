"""Update rules: what a step changes, serially and in two halves, equals the papers' arithmetic.

One table of rules drives it; numpy in float64 is the oracle. The numbers S87 and S88 are the
defects of the system of 2017 that a test holds.
"""

from __future__ import annotations

import functools
import inspect
import pickle
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import training_cases
from modes import FAST
from selection import thorough

import synkhronos as synk
from synkhronos._plan.rows import edges
from synkhronos.extensions import make_local_train_function, make_train_function, updates
from synkhronos.extensions.updates import Split, rule_of, split

pytestmark = pytest.mark.usefixtures("lasting_groups")

STEPS = 10

Array = np.ndarray
State = dict[str, Any]


# The oracle: each rule for one parameter, from its paper, with plain powers and no scalars folded.


def np_sgd(s: State, g: Array, lr: float) -> Array:
    return -lr * g


def np_momentum(s: State, g: Array, lr: float, momentum: float = 0.9) -> Array:
    s["velocity"] = momentum * s.get("velocity", 0) - lr * g
    return s["velocity"]


def np_nesterov(s: State, g: Array, lr: float, momentum: float = 0.9) -> Array:
    s["velocity"] = momentum * s.get("velocity", 0) - lr * g
    return momentum * s["velocity"] - lr * g


def np_adagrad(s: State, g: Array, lr: float = 1.0, epsilon: float = 1e-6) -> Array:
    s["accu"] = s.get("accu", 0) + g * g
    return -lr * g / np.sqrt(s["accu"] + epsilon)


def np_rmsprop(
    s: State, g: Array, lr: float = 1.0, rho: float = 0.9, epsilon: float = 1e-6
) -> Array:
    s["accu"] = rho * s.get("accu", 0) + (1 - rho) * g * g
    return -lr * g / np.sqrt(s["accu"] + epsilon)


def np_adadelta(
    s: State, g: Array, lr: float = 1.0, rho: float = 0.95, epsilon: float = 1e-6
) -> Array:
    s["accu"] = rho * s.get("accu", 0) + (1 - rho) * g * g
    step = g * np.sqrt(s.get("delta_accu", 0) + epsilon) / np.sqrt(s["accu"] + epsilon)
    s["delta_accu"] = rho * s.get("delta_accu", 0) + (1 - rho) * step**2
    return -lr * step


def moments(s: State, g: Array, beta1: float, beta2: float) -> int:
    s["t"] = s.get("t", 0) + 1
    s["m"] = beta1 * s.get("m", 0) + (1 - beta1) * g
    s["v"] = beta2 * s.get("v", 0) + (1 - beta2) * g * g
    return int(s["t"])


def np_adam(
    s: State,
    g: Array,
    lr: float = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
) -> Array:
    t = moments(s, g, beta1, beta2)
    unbiased = s["m"] / (1 - beta1**t)
    # the paper's epsilon-hat, spread over the corrected root
    root = np.sqrt(s["v"] / (1 - beta2**t)) + epsilon / np.sqrt(1 - beta2**t)
    return -lr * unbiased / root


def np_adamax(
    s: State,
    g: Array,
    lr: float = 0.002,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
) -> Array:
    t = moments(s, g, beta1, 0.0)
    s["u"] = np.where(beta2 * s.get("u", 0) > abs(g), beta2 * s.get("u", 0), abs(g))
    return -lr / (1 - beta1**t) * s["m"] / (s["u"] + epsilon)


def np_amsgrad(
    s: State,
    g: Array,
    lr: float = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
) -> Array:
    t = moments(s, g, beta1, beta2)
    old = s.get("v_max", 0)
    s["v_max"] = np.where(s["v"] > old, s["v"], old)
    rate = lr * np.sqrt(1 - beta2**t) / (1 - beta1**t)
    return -rate * s["m"] / (np.sqrt(s["v_max"]) + epsilon)


def np_nadam(
    s: State,
    g: Array,
    lr: float = 0.002,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
) -> Array:
    t = moments(s, g, beta1, beta2)
    ahead = beta1 * s["m"] / (1 - beta1 ** (t + 1)) + (1 - beta1) * g / (1 - beta1**t)
    return -lr * ahead / (np.sqrt(s["v"] / (1 - beta2**t)) + epsilon)


# rule: its oracle, arguments that differ from the defaults, its states, its default of `decoupled`
RULES: dict[str, tuple[Callable[..., Array], State, tuple[str, ...], bool]] = {
    "sgd": (np_sgd, {"learning_rate": 0.1}, (), False),
    "momentum": (np_momentum, {"learning_rate": 0.1, "momentum": 0.6}, ("velocity",), False),
    "nesterov_momentum": (
        np_nesterov,
        {"learning_rate": 0.1, "momentum": 0.6},
        ("velocity",),
        False,
    ),
    "adagrad": (np_adagrad, {"learning_rate": 0.3, "epsilon": 0.01}, ("accu",), False),
    "rmsprop": (np_rmsprop, {"learning_rate": 0.05, "rho": 0.7}, ("accu",), False),
    "adadelta": (
        np_adadelta,
        {"learning_rate": 0.9, "rho": 0.8, "epsilon": 0.01},
        ("accu", "delta_accu"),
        False,
    ),
    "adam": (np_adam, {"learning_rate": 0.05, "beta1": 0.8, "beta2": 0.9}, ("m", "v"), True),
    "adamax": (np_adamax, {"learning_rate": 0.05, "beta1": 0.8, "beta2": 0.6}, ("m", "u"), True),
    "amsgrad": (
        np_amsgrad,
        {"learning_rate": 0.05, "beta1": 0.5, "beta2": 0.6},
        ("m", "v", "v_max"),
        True,
    ),
    "nadam": (np_nadam, {"learning_rate": 0.05, "beta1": 0.8, "beta2": 0.9}, ("m", "v"), True),
}
DECAYS: dict[str, State] = {
    "plain": {},
    "coupled": {"weight_decay": 0.3, "decoupled": False},
    "decoupled": {"weight_decay": 0.3, "decoupled": True},
}
CASES = [(rule, decay) for rule in RULES for decay in DECAYS]
PYMC = {  # the names that PyMC has
    "sgd": {"learning_rate": 0.1},
    "momentum": {"learning_rate": 0.1},
    "nesterov_momentum": {"learning_rate": 0.1},
    "adagrad": {},
    "adagrad_window": {"n_win": 3},
    "rmsprop": {"learning_rate": 0.1},
    "adadelta": {},
    "adam": {"learning_rate": 0.1},
    "adamax": {"learning_rate": 0.1},
}

# A model with a matrix, a row, and a 0-d parameter: mean over rows of |(x @ w + b) * s - y|^2 / 2.
X = np.random.default_rng(1).normal(size=(7, 3))
Y = np.random.default_rng(2).normal(size=(7, 2))
START = (
    np.random.default_rng(3).normal(size=(3, 2)),
    np.random.default_rng(4).normal(size=(1, 2)),
    np.array(1.3),
)


class Model:
    """Its parameters, inputs and loss, afresh."""

    def __init__(self, dtypes: Sequence[str] = ("float64",) * 3, static: bool = True) -> None:
        self.params = [
            pytensor.shared(value.astype(dtype), name=name, shape=value.shape if static else None)
            for value, dtype, name in zip(START, dtypes, "wbs", strict=True)
        ]
        w, b, s = self.params
        self.x, self.y = pt.matrix("x", dtype="float64"), pt.matrix("y", dtype="float64")
        error = (self.x @ w + (b if static else b[0])) * s - self.y
        self.loss = (error**2).sum(axis=1).mean() / 2

    def values(self) -> list[Array]:
        return [np.asarray(p.get_value()) for p in self.params]


def np_gradients(values: Sequence[Array], x: Array, y: Array) -> list[Array]:
    w, b, s = values
    before = x @ w + b
    error = before * s - y
    n = len(x)
    return [
        x.T @ (error * s) / n,
        (error * s).sum(0, keepdims=True) / n,
        np.sum(error * before) / n,
    ]


@functools.cache
def np_training(rule: str, decay: str, defaults: bool = False) -> list[Array]:
    """The parameters after the steps, by the oracle."""
    oracle, hypers, _, decoupled = RULES[rule]
    if defaults:
        hypers = {k: v for k, v in hypers.items() if rule in PLAIN_LR and k == "learning_rate"}
    hypers = {{"learning_rate": "lr"}.get(k, k): v for k, v in hypers.items()}
    lr = hypers.get("lr", inspect.signature(oracle).parameters["lr"].default)
    wd = DECAYS[decay].get("weight_decay", 0.0)
    decoupled = DECAYS[decay].get("decoupled", decoupled)
    values = [v.copy() for v in START]
    states: list[State] = [{} for _ in values]
    for _ in range(STEPS):
        grads = np_gradients(values, X, Y)
        for i, (p, g) in enumerate(zip(list(values), grads, strict=True)):
            if decoupled:
                values[i] = p + oracle(states[i], g, **hypers) - lr * wd * p
            else:
                values[i] = p + oracle(states[i], g + wd * p, **hypers)
    return values


PLAIN_LR = ("sgd", "momentum", "nesterov_momentum")


def arguments(rule: str, decay: str) -> State:
    return RULES[rule][1] | DECAYS[decay]


def serial_training(model: Model, new: Any, steps: int = STEPS) -> list[Array]:
    train = pytensor.function([model.x, model.y], model.loss, updates=new, mode=FAST)
    for _ in range(steps):
        train(X, Y)
    return model.values()


def halves_training(model: Model, halves: Split, steps: int = STEPS) -> list[Array]:
    first = pytensor.function([model.x, model.y], [], updates=halves.grad_updates, mode=FAST)
    second = pytensor.function([], [], updates=halves.param_updates, mode=FAST)
    for _ in range(steps):
        first(X, Y)
        second()
    return model.values()


def close(found: Sequence[Array], wanted: Sequence[Array], rtol: float = 1e-10) -> None:
    assert len(found) == len(wanted) > 0
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol / 100)


def value(expression: Any, inputs: Any = None) -> Array:
    return np.asarray(expression.eval(inputs, mode=FAST))


# Values.


def test_every_rule_has_cases() -> None:
    """Here, and among the cases of training functions."""
    rules = {n for n in updates.__all__ if hasattr(getattr(updates, n), "rule")} - {"sgd_nonflat"}
    assert rules == set(RULES)
    trained = {function for function, _ in training_cases.RULES.values()}
    assert trained >= {getattr(updates, name) for name in rules}


@pytest.mark.each_choice
@pytest.mark.parametrize(("rule", "decay"), CASES)
def test_serial_rules_are_the_papers(rule: str, decay: str) -> None:
    model = Model()
    new = getattr(updates, rule).rule(model.loss, model.params, **arguments(rule, decay))
    assert type(new) is dict
    close(serial_training(model, new), np_training(rule, decay))


@pytest.mark.each_choice
@pytest.mark.parametrize(("rule", "decay"), CASES)
def test_halves_are_the_papers(rule: str, decay: str) -> None:
    model = Model()
    halves = getattr(updates, rule)(model.loss, model.params, **arguments(rule, decay))
    close(halves_training(model, halves), np_training(rule, decay))


@pytest.mark.parametrize("rule", RULES)
def test_defaults(rule: str) -> None:
    """Those of the original; no decay."""
    model = Model()
    given = {"learning_rate": RULES[rule][1]["learning_rate"]} if rule in PLAIN_LR else {}
    new = getattr(updates, rule).rule(model.loss, model.params, **given)
    close(serial_training(model, new), np_training(rule, "plain", defaults=True))


@pytest.mark.parametrize("rule", RULES)
def test_which_decay_is_meant_by_default(rule: str) -> None:
    model = Model()
    given = RULES[rule][1] | {"weight_decay": 0.3}
    found = serial_training(model, getattr(updates, rule).rule(model.loss, model.params, **given))
    meant, other = ("decoupled", "coupled") if RULES[rule][3] else ("coupled", "decoupled")
    close(found, np_training(rule, meant))
    if rule != "sgd":
        assert np.abs(found[0] - np_training(rule, other)[0]).max() > 1e-4


@pytest.mark.each_choice
@pytest.mark.parametrize("rule", RULES)
def test_members_together_train_as_one(group: synk.Group, size: int, rule: str) -> None:
    """Unequal parts: the mean of the gradients is weighted by rows."""
    model = Model()
    halves = getattr(updates, rule)(model.loss, model.params, **arguments(rule, "coupled"))
    f_grad = synk.function([model.x, model.y], [], updates=halves.grad_updates, mode=FAST)
    f_update = synk.function([], [], updates=halves.param_updates, mode=FAST)
    rows = [b - a for a, b in pairwise(edges(len(X), size))]
    assert size == 1 or len(set(rows)) == 2
    for _ in range(STEPS):
        f_grad(X, Y)
        synk.all_reduce(halves.grad_shared, "avg", weights=rows)
        f_update()
    close(model.values(), np_training(rule, "coupled"))
    for rank in range(1, size):
        for mine, theirs in zip(model.values(), synk.get_value(rank, model.params), strict=True):
            np.testing.assert_array_equal(mine, theirs)


# Dtypes and shapes.


@pytest.mark.each_choice
@pytest.mark.parametrize("floatx", ["float32", "float64"])
@pytest.mark.parametrize("rule", RULES)
def test_float32_stays_float32(rule: str, floatx: str) -> None:
    """Python, numpy and shared hyper-parameters of float64 widen nothing."""
    with pytensor.config.change_flags(floatX=floatx):
        for make in (float, np.float64, lambda v: pytensor.shared(np.float64(v))):
            model = Model(("float32",) * 3)
            hypers = {k: make(v) for k, v in arguments(rule, "coupled").items() if k != "decoupled"}
            halves = getattr(updates, rule)(model.loss, model.params, decoupled=False, **hypers)
            assert halves.grad_shared.type.dtype == "float32"
            for shared, new in [*halves.grad_updates, *halves.param_updates]:
                assert shared.type.dtype == new.type.dtype == "float32", shared
    found = halves_training(model, halves)
    assert {v.dtype for v in found} == {np.dtype("float32")}
    close(found, np_training(rule, "coupled"), rtol=2e-4)


def test_bias_correction_keeps_its_digits_in_float32() -> None:
    """1 - 0.999 loses four digits in float32; the first step of Adam is the learning rate."""
    w = pytensor.shared(np.float32(0.0), name="w")
    new = updates.adam.rule([pt.constant(np.float32(3.0))], [w], learning_rate=1.0)
    assert value(new[w]) == pytest.approx(-1.0, rel=1e-6)


@pytest.mark.parametrize("rule", RULES)
def test_mixed_dtypes(rule: str) -> None:
    """One vector for each dtype, in the order of the parameters."""
    model = Model(("float32", "float64", "float32"))
    halves = getattr(updates, rule)(model.loss, model.params, **arguments(rule, "plain"))
    assert [g.type.dtype for g in halves.grad_shared] == ["float32", "float64"]
    assert [g.get_value().shape for g in halves.grad_shared] == [(7,), (2,)]
    found = halves_training(model, halves)
    assert [str(v.dtype) for v in found] == ["float32", "float64", "float32"]
    close(found, np_training(rule, "plain"), rtol=2e-4)


def test_mixed_dtypes_over_members(group2: synk.Group) -> None:
    model = Model(("float32", "float64", "float32"))
    halves = updates.adam(model.loss, model.params, **arguments("adam", "plain"))
    f_grad = synk.function([model.x, model.y], [], updates=halves.grad_updates, mode=FAST)
    f_update = synk.function([], [], updates=halves.param_updates, mode=FAST)
    for _ in range(STEPS):
        f_grad(X, Y)
        synk.all_reduce(halves.grad_shared, "avg", weights=[4, 3])
        f_update()
    close(model.values(), np_training("adam", "plain"), rtol=2e-4)


@pytest.mark.parametrize("rule", RULES)
def test_float16(rule: str) -> None:
    """Also where the gradient is zero: an epsilon of 1e-8 would be zero and divide by it."""
    h = pytensor.shared(np.array([1.0, -1.0, 0.5], "float16"), name="h")
    loss = (h * np.array([1, 1, 0], "float16")).sum()
    given = {"learning_rate": 0.125}
    new = getattr(updates, rule).rule(loss, [h], **given)
    step = pytensor.function([], [], updates=new, mode=FAST)
    step()
    step()
    found = h.get_value()
    assert found.dtype == np.float16
    assert found[2] == 0.5
    assert np.isfinite(found).all()
    assert (found[:2] < [1.0, -1.0]).all()
    assert all(v.type.dtype == "float16" for v in new if not v.name.endswith(".t"))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("static", [True, False])
def test_types_are_kept(rule: str, static: bool) -> None:
    """Every new value is what its variable can take: 0-d, (1, n) fixed, or open lengths."""
    model = Model(static=static)
    hypers = arguments(rule, "coupled")
    halves = getattr(updates, rule)(model.loss, model.params, **hypers)
    for shared, new in halves.param_updates:
        assert shared.type.in_same_class(new.type)
        assert new.type == shared.type or not static
    if not static:
        close(halves_training(model, halves), np_training(rule, "coupled"))
    states = {v.name: v for v, _ in halves.param_updates}
    for p in model.params:
        for state in RULES[rule][2]:
            held = states[f"{p.name}.{state}"]
            assert held.type == p.type
            assert held.get_value().shape == p.get_value().shape


def test_gradients_given_are_brought_to_the_parameters_type() -> None:
    row = pytensor.shared(np.ones((1, 2), "float32"), shape=(1, 2), name="row")
    g = pt.matrix("g", dtype="float64")
    for halves in (updates.sgd([g], [row], 0.5), updates.sgd((g,), (row,), lr=0.5)):
        ((_, flat),) = halves.grad_updates
        assert flat.type.dtype == "float32"
        assert value(flat, {g: np.array([[2.0, 4.0]])}).tolist() == [2.0, 4.0]
    new = updates.sgd.rule([g], [row], 0.5)[row]
    assert new.type == row.type
    assert value(new, {g: np.array([[2.0, 4.0]])}).tolist() == [[0.0, -1.0]]
    with pytest.raises(AssertionError, match="SpecifyShape"):
        value(new, {g: np.ones((2, 2))})


@pytest.mark.each_choice
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("start", [2.0, [2.0], [[2.0]]])
@pytest.mark.parametrize("static", [True, False])
def test_one_element_alone(rule: str, start: Any, static: bool) -> None:
    """PyTensor knows that its vector has one element, and minds."""
    value = np.array(start)
    w = pytensor.shared(value, name="w", shape=value.shape if static else None)
    halves = getattr(updates, rule)(pt.sqr(w).sum(), [w], learning_rate=0.125)
    pytensor.function([], [], updates=halves.grad_updates, mode=FAST)()
    assert halves.grad_shared.get_value().tolist() == [4.0]
    pytensor.function([], [], updates=halves.param_updates, mode=FAST)()
    assert w.get_value().shape == value.shape
    assert (w.get_value() < 2.0).all()


def test_empty_parameters() -> None:
    none = pytensor.shared(np.zeros((0, 3)), name="none")
    w = pytensor.shared(np.ones(2), name="w")
    halves = updates.adam((w**2).sum() + none.sum(), [none, w])
    assert halves.grad_shared.get_value().shape == (2,)
    pytensor.function([], [], updates=halves.grad_updates, mode=FAST)()
    pytensor.function([], [], updates=halves.param_updates, mode=FAST)()
    assert halves.grad_shared.get_value().tolist() == [2.0, 2.0]
    assert none.get_value().shape == (0, 3)


@pytest.mark.parametrize("given", ["loss", "gradients"])
def test_integer_parameters_are_left(given: str) -> None:
    w, v = pytensor.shared(np.ones(2), name="w"), pytensor.shared(np.ones(2))
    n, on = pytensor.shared(np.arange(2), name="n"), pytensor.shared(np.array(True), name="on")
    loss = ((w + v) * n).sum()
    asked: Any = loss if given == "loss" else [*pytensor.grad(loss, [w, v]), None, None]
    with pytest.warns(synk.UnusedWarning) as told:
        halves = updates.momentum(asked, [w, v, n, on], 1.0)
    assert [str(w.message) for w in told] == [
        "params: n (int64), on (bool) have no gradient and are left as they are; leave them out of "
        "the list"
    ]
    assert halves.grad_shared.get_value().shape == (4,)
    assert [s.name for s, _ in halves.param_updates] == ["w.velocity", "w", "param1.velocity", None]
    pytensor.function([], [], updates=halves.grad_updates, mode=FAST)()
    assert halves.grad_shared.get_value().tolist() == [0.0, 1.0, 0.0, 1.0]


def test_parameters_apart_from_the_loss() -> None:
    w, alone = pytensor.shared(np.ones(2), name="w"), pytensor.shared(np.ones(2), name="alone")
    with pytest.warns(synk.UnusedWarning, match="the loss does not depend on alone: "):
        new = updates.sgd.rule(w.sum(), [w, alone], 0.5, weight_decay=1.0)
    assert value(new[alone]).tolist() == [0.5, 0.5]


# Hyper-parameters.


@pytest.mark.parametrize("rule", RULES)
def test_shared_hyper_parameters(rule: str) -> None:
    """All of them shared: the same values, and a change counts from the next step on."""
    model = Model()
    hypers = arguments(rule, "coupled")
    held = {k: pytensor.shared(np.float64(v)) for k, v in hypers.items() if k != "decoupled"}
    halves = getattr(updates, rule)(model.loss, model.params, decoupled=False, **held)
    first = pytensor.function([model.x, model.y], [], updates=halves.grad_updates, mode=FAST)
    second = pytensor.function([], [], updates=halves.param_updates, mode=FAST)
    for _ in range(STEPS):
        first(X, Y)
        second()
    close(model.values(), np_training(rule, "coupled"))
    held["learning_rate"].set_value(0.0)
    if "momentum" in held:
        held["momentum"].set_value(0.0)
    second()
    close(model.values(), np_training(rule, "coupled"))


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64"])
def test_symbolic_learning_rate(group2: synk.Group, dtype: str) -> None:
    """A 0-d input of the call: a schedule compiles nothing anew."""
    w = pytensor.shared(np.array([8.0, 4.0]), name="w")
    x, lr = pt.vector("x", dtype="float64"), pt.scalar("lr", dtype=dtype)
    halves = updates.sgd((w * x.mean()).sum(), [w], lr)
    f_grad = synk.function([x], [], updates=halves.grad_updates, mode=FAST)
    f_update = synk.function([], [], bcast_inputs=[lr], updates=halves.param_updates, mode=FAST)
    for rate, wanted in ((1, [7.0, 3.0]), (2, [5.0, 1.0]), (0, [5.0, 1.0])):
        f_grad(np.array([0.0, 2.0]))
        synk.all_reduce(halves.grad_shared, "avg")
        f_update(np.asarray(rate, dtype))
        assert w.get_value().tolist() == synk.get_value(1, w).tolist() == wanted


def test_shared_learning_rate_over_members(group2: synk.Group) -> None:
    w = pytensor.shared(np.array([8.0, 4.0]), name="w")
    lr = pytensor.shared(np.float32(1.0), name="lr")
    halves = updates.sgd(w.sum(), [w], lr)
    f_grad = synk.function([], [], updates=halves.grad_updates, mode=FAST)
    f_update = synk.function([], [], updates=halves.param_updates, mode=FAST)
    for rate, wanted in ((1.0, [7.0, 3.0]), (2.0, [5.0, 1.0])):
        lr.set_value(np.float32(rate))
        f_grad()
        synk.all_reduce(halves.grad_shared, "avg")
        f_update()
        assert w.get_value().tolist() == synk.get_value(1, w).tolist() == wanted


# Defects of 2017.


@pytest.mark.parametrize("rule", ["adam", "adamax", "amsgrad", "nadam"])
def test_one_count_for_all_parameters(rule: str) -> None:
    """S88: the count was updated once for each parameter, which PyTensor refuses."""
    model = Model()
    halves = getattr(updates, rule)(model.loss, model.params)
    shareds = [s for s, _ in halves.param_updates]
    assert len(set(shareds)) == len(shareds)
    (count,) = [s for s in shareds if s.name == f"{rule}.t"]
    assert count.type.ndim == 0
    halves_training(model, halves, steps=3)
    assert count.get_value() == 3


def test_sgd_nonflat(group2: synk.Group) -> None:
    """S88: gradients and their shared variables were taken one for the other."""
    model = Model()
    halves = updates.sgd_nonflat(model.loss, model.params, 0.1)
    assert [g.name for g in halves.grad_shared] == ["w.grad", "b.grad", "s.grad"]
    assert [g.type for g in halves.grad_shared] == [p.type for p in model.params]
    f_grad = synk.function([model.x, model.y], [], updates=halves.grad_updates, mode=FAST)
    f_update = synk.function([], [], updates=halves.param_updates, mode=FAST)
    for _ in range(STEPS):
        f_grad(X, Y)
        synk.all_reduce(halves.grad_shared, "avg", weights=[4, 3])
        f_update()
    close(model.values(), np_training("sgd", "plain"))


def bound(grads: list[Any]) -> list[Any]:
    return updates.total_norm_constraint(grads, 0.5)


@pytest.mark.parametrize("form", ["split", "rule", "nonflat"])
def test_clipping_between_reduction_and_update(group2: synk.Group, form: str) -> None:
    """S87: what is bounded is the norm of the whole gradient, not of the members' own."""
    model = Model()
    before = model.values()
    if form == "split":
        halves = split(updates.sgd, model.loss, model.params, 1.0, clip=bound)
    elif form == "rule":
        halves = updates.sgd(model.loss, model.params, 1.0, clip=bound)
    else:
        halves = updates.sgd_nonflat(model.loss, model.params, 1.0, clip=bound)
    f_grad = synk.function([model.x, model.y], [], updates=halves.grad_updates, mode=FAST)
    f_update = synk.function([], [], updates=halves.param_updates, mode=FAST)
    f_grad(X, Y)
    synk.all_reduce(halves.grad_shared, "avg", weights=[4, 3])
    f_update()
    whole = np_gradients(before, X, Y)
    norm = np.sqrt(sum((g**2).sum() for g in whole))
    assert norm > 1
    steps = [a - b for a, b in zip(before, model.values(), strict=True)]
    assert np.sqrt(sum((s**2).sum() for s in steps)) == pytest.approx(0.5, rel=1e-6)
    close(steps, [g * 0.5 / norm for g in whole], rtol=1e-6)


# Norms.


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    ("shape", "given", "axes"),
    [
        ((3, 4), None, (0,)),
        ((2, 3, 4), None, (1, 2)),
        ((2, 3, 2, 2, 2), None, (1, 2, 3, 4)),
        ((6,), (0,), (0,)),
        ((3, 4), [-1], (1,)),
    ],
)
def test_norm_constraint(
    shape: tuple[int, ...], given: Any, axes: tuple[int, ...], dtype: str, rng: np.random.Generator
) -> None:
    start = rng.normal(size=shape).astype(dtype)
    norms = np.sqrt((start.astype(float) ** 2).sum(axis=axes, keepdims=True))
    limit = float(np.median(norms)) if norms.size > 1 else 0.5
    tensor = pt.as_tensor(start)
    found = updates.norm_constraint(tensor, limit, norm_axes=given)
    assert found.type == tensor.type
    wanted = start * np.minimum(1.0, limit / norms)
    assert not np.allclose(start, wanted)
    np.testing.assert_allclose(value(found), wanted, rtol=2e-3 if dtype == "float16" else 1e-5)


def test_total_norm_constraint() -> None:
    """Large float16 values: their squares need float32."""
    values = [np.array([[300.0, 0.0]], "float16"), np.array(400.0), np.zeros(2, "float32")]
    tensors = [pt.as_tensor(v) for v in values]
    limit = pytensor.shared(np.float32(50.0))
    scaled, norm = updates.total_norm_constraint(tensors, limit, return_norm=True)
    assert value(norm) == 500.0
    assert [s.type for s in scaled] == [t.type for t in tensors]
    found = [value(s) for s in scaled]
    np.testing.assert_allclose(found[0], [[30.0, 0.0]], rtol=1e-3)
    np.testing.assert_allclose(found[1], 40.0, rtol=1e-6)
    limit.set_value(np.float32(1000.0))
    assert value(updates.total_norm_constraint(tensors, limit)[1]) == pytest.approx(400.0)
    zero = updates.total_norm_constraint([pt.zeros(2)], 1.0)
    assert value(zero[0]).tolist() == [0.0, 0.0]
    assert value(updates.total_norm_constraint(tensors, 0)[1]) == 0.0


def test_constraints_meet_the_bound() -> None:
    """A norm above the bound becomes the bound, however small both are; epsilon lowers it."""
    small = pt.as_tensor(np.array([[3e-5], [4e-5]], "float32"))
    for scaled in (
        updates.norm_constraint(small, 1e-6),
        *updates.total_norm_constraint([small], 1e-6),
    ):
        assert np.linalg.norm(value(scaled)) == pytest.approx(1e-6, rel=1e-6)
    five = pt.as_tensor(np.array([3.0, 4.0]))
    found = value(updates.total_norm_constraint([five], 1.0, epsilon=1.0)[0])
    np.testing.assert_allclose(found, [3 / 6, 4 / 6])


@pytest.mark.parametrize(
    ("dtype", "mode"),
    [
        *((dtype, FAST) for dtype in ("float16", "float32", "float64")),
        *thorough(
            ("float32", "NUMBA"), ("float64", "NUMBA"), ("float16", "JAX"), ("float32", "JAX")
        ),
    ],
)
def test_norms_within_the_bound_change_no_bit(
    dtype: str, mode: Any, rng: np.random.Generator
) -> None:
    """Below the bound, at it, and zero: with and without an epsilon."""
    values = rng.normal(size=(3, 5)).astype(dtype)
    values[:, 0], values[:, 1] = [0.0, -3.0, 4.0], [0.0, -0.0, 0.0]  # norms 5 and 0
    tensor = pt.as_tensor(values)
    zeros, alone = pt.as_tensor(np.zeros((2, 2), dtype)), pt.as_tensor(values[:, :2])
    cases = [  # what is found, what is wanted
        (updates.norm_constraint(tensor, 5.0), values),
        (updates.norm_constraint(tensor, 5.0, epsilon=1e-2), values),
        (updates.norm_constraint(zeros, 0.0), np.zeros((2, 2), dtype)),
        (updates.total_norm_constraint([alone], 5.0)[0], values[:, :2]),
        (updates.total_norm_constraint([tensor, alone], 20.0, 1e-2)[0], values),
        (updates.total_norm_constraint([tensor, alone], np.inf)[0], values),
        (updates.total_norm_constraint([zeros], 0.0)[0], np.zeros((2, 2), dtype)),
    ]
    function = pytensor.function([], [graph for graph, _ in cases], mode=mode)
    for found, (_, wanted) in zip(function(), cases, strict=True):
        assert np.asarray(found).dtype == wanted.dtype
        assert np.asarray(found).tobytes() == wanted.tobytes()


@pytest.mark.parametrize(
    ("rule", "mode"),
    [("sgd", FAST), ("adam", FAST), ("units", FAST), *thorough(("adam", "NUMBA"))],
)
def test_a_loose_bound_trains_as_none(group2: synk.Group, rule: str, mode: Any) -> None:
    """In the flat loop, and where parameters are updated whole."""

    def of(model: Model, clip: Any) -> Any:
        own = functools.partial(_columns, limit=1e3 if clip else None)
        return make_train_function(
            model.loss,
            model.params,
            model.x,
            model.y,
            own if rule == "units" else getattr(updates, rule),
            learning_rate=0.1,
            clip=clip,
            mode=mode,
        )

    free, bounded = Model(), Model()
    steps = of(free, None), of(bounded, lambda grads: updates.total_norm_constraint(grads, 1e3))
    for _ in range(3):
        for step in steps:
            step(X, Y)
    for a, b in zip(free.values(), bounded.values(), strict=True):
        np.testing.assert_array_equal(a, b)


def _columns(grads: Any, params: Any, learning_rate: float, limit: float | None) -> Any:
    news = [p - learning_rate * g for p, g in zip(params, grads, strict=True)]
    if limit is not None:
        news = [updates.norm_constraint(n, limit) if n.type.ndim == 2 else n for n in news]
    return list(zip(params, news, strict=True))


# Momentum for any updates.


@pytest.mark.parametrize(
    ("apply", "rule"),
    [
        (updates.apply_momentum, "momentum"),
        (updates.apply_nesterov_momentum, "nesterov_momentum"),
    ],
)
@pytest.mark.parametrize("form", ["keyword", "scalar", "shared", "params", "positions"])
def test_momentum_for_any_updates(apply: Callable[..., Any], rule: str, form: str) -> None:
    model = Model()
    plain = updates.sgd.rule(model.loss, model.params, 0.1)
    new = {
        "keyword": lambda: apply(plain, momentum=0.6),
        "scalar": lambda: apply(plain, 0.6),
        "shared": lambda: apply(plain, pytensor.shared(np.float32(0.6).astype("float64"))),
        "params": lambda: apply(plain, model.params, 0.6),
        "positions": lambda: apply(OrderedDict(plain), plain.keys(), 0.6),
    }[form]()
    assert len(plain) == 3
    assert type(new) is (OrderedDict if form == "positions" else dict)
    assert {v.name for v in new} == {*"wbs", "w.velocity", "b.velocity", "s.velocity"}
    rtol = 1e-6 if form == "shared" else 1e-10
    close(serial_training(model, new), np_training(rule, "plain"), rtol)


@pytest.mark.parametrize("apply", [updates.apply_momentum, updates.apply_nesterov_momentum])
def test_momentum_for_halves(apply: Callable[..., Any]) -> None:
    """The original's form: pairs in, pairs out, the momentum in second place."""
    model = Model()
    halves = updates.sgd(model.loss, model.params, 0.1)
    new = apply(halves.param_updates, 0.6)
    assert type(new) is list
    rule = apply.__name__.removeprefix("apply_")
    close(halves_training(model, halves._replace(param_updates=new)), np_training(rule, "plain"))


def test_momentum_for_some_updates() -> None:
    model = Model()
    w, b, s = model.params
    plain = updates.momentum.rule(model.loss, model.params, 0.1)
    new = updates.apply_momentum(plain, [w])
    assert [v.name for v in new if v not in plain] == ["w.velocity_2"]
    assert new[b] is plain[b]
    assert new[s] is plain[s]
    counted = pytensor.shared(0, name="count")
    assert len(updates.apply_momentum({w: w * 2, counted: counted + 1})) == 3
    assert updates.apply_momentum([]) == []


# The split of any rule.


@pytest.fixture(scope="module")
def pymc_rules() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rules = pytest.importorskip("pymc.variational.updates")
    return rules


@pytest.mark.each_choice
@pytest.mark.parametrize("rule", PYMC)
@pytest.mark.parametrize("partial", [False, True])
def test_rules_of_pymc(pymc_rules: Any, rule: str, partial: bool) -> None:
    known = {n for n in pymc_rules.__all__ if "constraint" not in n and "apply" not in n}
    assert known == set(PYMC)
    foreign, whole, parts = getattr(pymc_rules, rule), Model(), Model()
    wanted = serial_training(whole, foreign(whole.loss, whole.params, **PYMC[rule]))
    if partial:
        halves = split(foreign(**PYMC[rule]), parts.loss, parts.params)
    else:
        halves = split(foreign, parts.loss, parts.params, **PYMC[rule])
    close(halves_training(parts, halves), wanted)
    assert np.abs(wanted[0] - START[0]).max() > 1e-4


@pytest.mark.parametrize("rule", [r for r in RULES if r in PYMC])
def test_rules_are_those_of_pymc(pymc_rules: Any, rule: str) -> None:
    ours, theirs = Model(), Model()
    given = RULES[rule][1]
    wanted = serial_training(theirs, getattr(pymc_rules, rule)(theirs.loss, theirs.params, **given))
    found = serial_training(ours, getattr(updates, rule).rule(ours.loss, ours.params, **given))
    close(found, wanted, rtol=1e-9)


def test_constraints_of_pymc(pymc_rules: Any) -> None:
    tensor = pt.as_tensor(START[0])
    close(
        [value(updates.norm_constraint(tensor, 0.5, epsilon=1e-7))],
        [value(pymc_rules.norm_constraint(tensor, 0.5))],
    )
    (ours,) = updates.total_norm_constraint([tensor], 0.5, epsilon=1e-7)
    (theirs,) = pymc_rules.total_norm_constraint([tensor], 0.5)
    close([value(ours)], [value(theirs)])


@pytest.mark.parametrize("kind", [dict, OrderedDict, list, tuple])
def test_a_rule_of_the_users(kind: type) -> None:
    def signs(loss_or_grads: Any, params: Any, step: float) -> Any:
        return kind((p, p - step * pt.sign(g)) for p, g in zip(params, loss_or_grads, strict=True))

    w = pytensor.shared(np.array([1.0, -3.0]), name="w")
    grad_updates, param_updates, grad_shared = split(signs, (w**2).sum(), [w], step=0.5)
    pytensor.function([], [], updates=grad_updates, mode=FAST)()
    assert grad_shared.get_value().tolist() == [2.0, -6.0]
    assert type(param_updates) is list
    pytensor.function([], [], updates=param_updates, mode=FAST)()
    assert w.get_value().tolist() == [0.5, -2.5]


@pytest.mark.parametrize("rule", RULES)
def test_a_function_around_a_rule_is_a_rule(rule: str) -> None:
    """By any names of its arguments; the result is the rule's, and not its two halves."""

    def around(a: Any, b: Any) -> Any:
        return getattr(updates, rule)(a, b, **arguments(rule, "plain"))

    model = Model()
    new = updates.apply_rule(around, model.loss, model.params, (), {})
    close(serial_training(model, new), np_training(rule, "plain"))
    halved = Model()
    close(
        halves_training(halved, split(around, halved.loss, halved.params)),
        np_training(rule, "plain"),
    )


@pytest.mark.parametrize("make", ["train", "local"])
def test_a_function_around_a_rule_trains(group2: synk.Group, make: str) -> None:
    """With clipping inside, of the gradients over all rows."""
    clip = functools.partial(updates.total_norm_constraint, max_norm=0.1)
    found = []
    for rule in (
        lambda loss, params: updates.momentum(loss, params, 0.1, clip=clip),
        lambda loss, params: (
            updates.momentum.rule(clip(pytensor.grad(loss, params)), params, 0.1)
            if isinstance(loss, pytensor.graph.Variable)
            else updates.momentum.rule(clip(loss), params, 0.1)
        ),
    ):
        model = Model()
        making = make_train_function if make == "train" else make_local_train_function
        train = making(model.loss, model.params, model.x, model.y, rule, mode=FAST)
        for _ in range(3):
            train(X, Y)
        found.append(model.values())
    close(*found)


def test_rule_of() -> None:
    assert rule_of(updates.adam) is updates.adam.rule
    assert rule_of(updates.adam.rule) is updates.adam.rule
    assert rule_of(updates.sgd_nonflat) is updates.sgd.rule
    assert rule_of(len) is len
    model = Model()
    fast = functools.partial(updates.sgd, learning_rate=0.1)
    close(
        halves_training(model, split(fast, model.loss, model.params)), np_training("sgd", "plain")
    )


@pytest.mark.parametrize("name", RULES)
def test_the_halves_look_like_their_rule(name: str) -> None:
    halves = getattr(updates, name)
    serial = halves.rule
    assert halves.__name__ == serial.__name__ == name
    assert halves.__wrapped__ is serial
    assert pickle.loads(pickle.dumps(halves)) is halves
    found = inspect.signature(halves).parameters
    wanted = inspect.signature(serial).parameters
    assert list(found) == ["loss", *list(wanted)[1:], "clip"]
    assert [found[p].default for p in list(found)[1:-1]] == [
        p.default for p in list(wanted.values())[1:]
    ]
    assert "loss_or_grads" not in halves.__doc__
    for section in ("Parameters\n", "clip : ", "Returns\n-------\nSplit", "Cost: ", f".{name}("):
        assert section in halves.__doc__, section


# Names and helpers.


def test_names_are_unique() -> None:
    """Also where parameters share a name, or have one that is made for those without."""
    made = [pytensor.shared(np.ones(2), name=n) for n in ("w", None, "w", "param1", "w_2")]
    loss = sum(p.sum() for p in made)
    halves = updates.adam(loss, made)
    names = [s.name for s, _ in halves.param_updates if s not in made]
    assert names == [
        *("w.m", "w.v", "param1_2.m", "param1_2.v", "w_3.m", "w_3.v"),
        *("param1.m", "param1.v", "w_2.m", "w_2.v", "adam.t"),
    ]
    assert [g.name for g in updates.sgd_nonflat(loss, made, 0.1).grad_shared] == [
        *("w.grad", "param1_2.grad", "w_3.grad", "param1.grad", "w_2.grad")
    ]


def test_helpers_of_the_original() -> None:
    a, b = pytensor.shared(np.float64(1.0)), pytensor.shared(np.full((1, 2), 2.0), shape=(1, 2))
    assert updates.vars_flat_size([a, b]) == 3
    assert value(updates.flatten_vars([a, b])).tolist() == [1.0, 2.0, 2.0]
    vector = pt.vector("vector", dtype="float64")
    views = updates.unflatten_vars(vector, [a, b])
    assert [v.type for v in views] == [a.type, b.type]
    assert [value(v, {vector: np.arange(3.0)}).tolist() for v in views] == [0.0, [[1.0, 2.0]]]
    loss = a + (b * 2).sum()
    shared, flat, views = updates.flat_unflat_grads(loss, [a, b])
    shared.set_value(value(flat))
    assert [value(v).tolist() for v in views] == [1.0, [[2.0, 2.0]]]
    shareds, grads = updates.nonflat_grads(loss, [a, b])
    assert [s.type for s in shareds] == [a.type, b.type]
    assert [value(g).tolist() for g in grads] == [1.0, [[2.0, 2.0]]]


# Errors.


def wide(loss_or_grads: Any, params: Any) -> Any:
    return {
        p: p - np.float64(0.1) * pt.cast(g, "float64")
        for p, g in zip(params, loss_or_grads, strict=True)
    }


def twice(loss_or_grads: Any, params: Any) -> Any:
    return [(p, p * 2) for p in (*params, *params)]


W = pytensor.shared(np.ones(2), name="w")
SMALL = pytensor.shared(np.ones(2, "float32"), name="small")
COUNT = pytensor.shared(np.arange(2), name="count")
WAVE = pytensor.shared(np.ones(2, "complex128"), name="wave")
LOSS = (W**2).sum()


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: updates.sgd(LOSS, W, 0.1), TypeError, "give a list of shared variables; found"),
        (lambda: updates.sgd(LOSS, [W * 2], 0.1), TypeError, "number 0 is Mul.0"),
        (lambda: updates.sgd(LOSS, [W, "w"], 0.1), TypeError, "number 1 is 'w' [(]str[)]"),
        (lambda: updates.sgd(LOSS, [WAVE], 0.1), TypeError, "wave is .*real parameters"),
        (lambda: updates.sgd(LOSS, [], 0.1), ValueError, "none of the 0 variables is of floats"),
        (lambda: updates.sgd(LOSS, [COUNT], 0.1), ValueError, "none of the 1 variables"),
        (lambda: updates.sgd(LOSS, [W, SMALL, W], 0.1), ValueError, "'w'. are listed twice"),
        (lambda: updates.sgd(W**2, [W], 0.1), TypeError, "the loss is Vector.*by mean or sum"),
        (lambda: updates.sgd(COUNT.sum(), [W], 0.1), TypeError, "the loss is Scalar.int64"),
        (lambda: updates.sgd(3.0, [W], 0.1), TypeError, "the loss is 3.0"),
        (lambda: updates.sgd([W, W], [W], 0.1), ValueError, "2 gradients for 1 parameters"),
        (lambda: updates.sgd([pt.dmatrix()], [W], 0.1), TypeError, "the gradient of w "),
        (lambda: updates.sgd([None], [W], 0.1), TypeError, "the gradient of w .* is None"),
        (lambda: updates.sgd([WAVE], [W], 0.1), TypeError, "a complex gradient"),
        (lambda: updates.sgd(LOSS, [W], "fast"), TypeError, "learning_rate='fast'"),
        (lambda: updates.sgd(LOSS, [W], W), ValueError, "learning_rate=w has 1 dimensions"),
        (lambda: updates.sgd(LOSS, [W], 1j), TypeError, "learning_rate=1j"),
        (lambda: updates.adam(LOSS, [W], beta2=[0.1, 0.2]), ValueError, "beta2=.* 0-d"),
        (lambda: split(wide, SMALL.sum(), [SMALL]), TypeError, "rule wide gives small.*float64"),
        (
            lambda: split(lambda g, p: {W: pt.constant(np.ones(1))}, LOSS, [W]),
            TypeError,
            "type Vector.*1,",
        ),
        (lambda: split(twice, LOSS, [W]), ValueError, "the rule twice gives w two new values"),
        (lambda: split(lambda g, p: None, LOSS, [W]), TypeError, "updates must be a dict"),
        (lambda: split(lambda g, p: {"w": W}, LOSS, [W]), TypeError, "found 'w'"),
        (lambda: split(lambda g, p: {W: None}, LOSS, [W]), TypeError, "type NoneType"),
        (lambda: split("adam", LOSS, [W]), TypeError, "'adam' is not an update rule"),
        (lambda: updates.sgd(LOSS, [W], 0.1, clip=lambda g: []), ValueError, "list of 1 gradients"),
        (lambda: updates.sgd(LOSS, [W], 0.1, clip=lambda g: g[0]), ValueError, "list of 1"),
        (lambda: updates.norm_constraint(pt.dmatrix(), -1), ValueError, "max_norm=-1"),
        (lambda: updates.norm_constraint(pt.dvector(), 1), ValueError, "norm_axes=[(]0,[)]"),
        (lambda: updates.norm_constraint(pt.dmatrix(), 1, [2]), ValueError, "norm_axes=[(]2,[)]"),
        (lambda: updates.norm_constraint(pt.dmatrix(), 1, [1, -1]), ValueError, "named once"),
        (lambda: updates.norm_constraint(COUNT, 1, [0]), TypeError, "norms are taken of floats"),
        (lambda: updates.total_norm_constraint([W], -0.5), ValueError, "max_norm=-0.5"),
        (lambda: updates.total_norm_constraint([W], np.nan), ValueError, "max_norm=nan"),
        (lambda: updates.total_norm_constraint(W, 1), TypeError, "give a list of tensors"),
        (lambda: updates.total_norm_constraint([], 1), TypeError, "give a list of tensors"),
        (lambda: updates.apply_momentum({W: W}, [SMALL]), ValueError, "'small'. have no update"),
        (lambda: updates.apply_momentum({W: W}, 0.5, 0.6), ValueError, "two momenta"),
        (lambda: updates.apply_momentum(updates.sgd(LOSS, [W], 1.0)), TypeError, "list of pairs"),
        (lambda: updates.apply_momentum({SMALL: W}), TypeError, "gives small.*float64"),
        (lambda: updates.flatten_vars([W, SMALL]), TypeError, "'float32', 'float64'"),
        (lambda: updates.flatten_vars([]), TypeError, "0 variables"),
        (lambda: updates.unflatten_vars(W, [W, W]), ValueError, r"shape \(2,\).*need \(4,\)"),
    ],
)
def test_errors(call: Callable[[], Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(synk.InputError, match=text) as caught:
        call()
    assert isinstance(caught.value, kind)
    assert isinstance(caught.value, synk.InputTypeError) == (kind is TypeError)
