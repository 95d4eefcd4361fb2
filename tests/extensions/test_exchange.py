"""What nodes send of their gradients: the largest elements, with a residual, or 16 bits."""

from __future__ import annotations

import functools
import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from exchange_cases import Regression, data, trained_by_numpy
from held_variables import Holding
from modes import FAST
from training_cases import lars

import synkhronos as synk
from synkhronos import rules
from synkhronos.extensions import Batches, HalfPrecision, TopK, make_train_function, updates
from synkhronos.extensions._step.sparse import SparseSum
from synkhronos.extensions._step.update import FlatUpdate
from synkhronos.training import fit, guarded

pytestmark = pytest.mark.usefixtures("lasting_groups")


def test_equals_the_oracle(group: synk.Group) -> None:
    """Ten steps of error feedback, on one node or on several."""
    net = Regression(exchange=TopK(0.2))
    nodes = len(net.train.by_node[0].get_value())
    assert TopK(0.2).count(35) == 7
    for x, y in data(10):
        net.train(x, y)
    values, residuals = trained_by_numpy(10, 7, synk.size() // nodes, nodes)
    np.testing.assert_allclose(net.values(), values, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(net.residuals(), residuals, rtol=1e-12, atol=1e-12)
    assert np.count_nonzero(residuals) > 20


@pytest.mark.each_choice
@pytest.mark.parametrize("rule", [updates.adam, lars])
@pytest.mark.parametrize("clip", [None, "norm"])
def test_density_one_is_dense(group2: synk.Group, rule: Any, clip: Any) -> None:
    """Up to rounding; also of rules that need norms or whole parameters."""
    limit = functools.partial(updates.total_norm_constraint, max_norm=2.0) if clip else None
    found = []
    for more in ({}, {"exchange": TopK(1.0)}):
        net = Regression(update_rule=rule, clip=limit, **more)
        losses = [net.train(x, y) for x, y in data(6)]
        found.append((net.values(), losses))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-10)
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-10)


def test_nothing_is_lost(group2: synk.Group) -> None:
    """What was applied and what is left make the sum of all gradients."""
    net = Regression(exchange=TopK(0.1), update_rule=updates.sgd, learning_rate=1.0)
    total = np.zeros(35)
    for x, y in data(5):
        total += np.concatenate([g.ravel() for g in net.train.gradients(x, y)])
        before = net.values()
        net.train(x, y)
        assert np.count_nonzero(net.values() - before) == 4
    np.testing.assert_allclose(net.residuals().sum(axis=0) - net.values(), total)


def test_a_checkpoint_goes_on_with_equal_bits(group2: synk.Group, tmp_path: Path) -> None:
    checkpoints = pytest.importorskip("synkhronos.extensions.checkpoints")
    pytest.importorskip("safetensors")
    unbroken, first = Regression(exchange=TopK(0.2)), Regression(exchange=TopK(0.2))
    steps = data(6)
    for x, y in steps:
        unbroken.train(x, y)
    for x, y in steps[:3]:
        first.train(x, y)
    checkpoints.Checkpoints(tmp_path, first.train).save(3)
    second = Regression(exchange=TopK(0.2))
    checkpoints.Checkpoints(tmp_path, second.train).restore()
    assert second.residuals().any()
    for x, y in steps[3:]:
        second.train(x, y)
    for a, b in zip(second.everything(), unbroken.everything(), strict=True):
        np.testing.assert_array_equal(a, b)
    dense = Regression()
    with pytest.raises(synk.InputError, match="holds residual of b, residual of w, which this"):
        checkpoints.Checkpoints(tmp_path, dense.train).restore()


def _residual(rows: np.ndarray) -> Holding:
    return Holding(state=[pytensor.shared(rows, name="residual of w")], by_node=True)


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_another_number_of_nodes_keeps_the_sum(tmp_path: Path, nodes: int) -> None:
    checkpoints = pytest.importorskip("synkhronos.extensions.checkpoints")
    pytest.importorskip("safetensors")
    saved = np.array([[1.0, 2.0], [3.0, 5.0]])
    checkpoints.Checkpoints(tmp_path, _residual(saved)).save(1)
    new = _residual(np.ones((nodes, 2)))
    checkpoints.Checkpoints(tmp_path, new).restore()
    found = new.state[0].get_value()
    np.testing.assert_array_equal(found.sum(axis=0), [4, 7])
    np.testing.assert_array_equal(found[0], saved[0] if nodes == 2 else [4, 7])
    assert len(found) == nodes
    with pytest.raises(synk.InputError, match=r"is float64 \(1, 3\), saved was float64 \(2, 2\)"):
        checkpoints.Checkpoints(tmp_path, _residual(np.ones((1, 3)))).restore()


@pytest.mark.parametrize("where", ["accumulate", "exchange"])
def test_a_step_that_fails_keeps_the_residual(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str
) -> None:
    """In a worker's chunk or in the leader: nothing has changed, and the next step is right."""
    work, fault = getattr(SparseSum, where), np.memmap(tmp_path / "fault", np.uint8, "w+", 0, 1)
    master = os.getpid()

    def fails(sums: SparseSum, *args: Any) -> None:
        work(sums, *args)
        if fault[0] and (where == "exchange" or os.getpid() != master):
            raise LookupError("here")

    monkeypatch.setattr(SparseSum, where, fails)
    with synk.Group(2, start="fork"):
        other = Regression(exchange=TopK(0.2))
        for x, y in data(4):
            other.train(x, y)
        net = Regression(exchange=TopK(0.2))
        steps = data(4)
        for x, y in steps[:2]:
            net.train(x, y)
        before = net.everything()
        fault[0] = 1
        with pytest.raises(LookupError):
            net.train(*steps[2])
        fault[0] = 0
        for a, b in zip(net.everything(), before, strict=True):
            np.testing.assert_array_equal(a, b)
        for x, y in steps[2:]:
            net.train(x, y)
        for a, b in zip(net.everything(), other.everything(), strict=True):
            np.testing.assert_array_equal(a, b)


def _failing(error: type[Exception]) -> Any:
    def fails(*args: Any) -> None:
        raise error("here")

    return fails


def test_a_failure_in_the_update_tears_the_residual_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with synk.Group(1):
        net = Regression(exchange=TopK(0.2))
        [(x, y)] = data(1)
        net.train(x, y)
        monkeypatch.setattr(FlatUpdate, "apply", _failing(LookupError))
        with pytest.raises(LookupError):
            net.train(x, y)
        monkeypatch.undo()
        for v in (*net.params, *net.train.state):
            if v not in net.train.by_node:
                v.set_value(v.get_value())
        with pytest.raises(synk.StateTorn, match="residual of"):
            net.train(x, y)
        for v in net.train.by_node:
            v.set_value(np.zeros_like(v.get_value()))
        net.train(x, y)


@pytest.mark.parametrize("row", [0, 17])
def test_a_gradient_that_is_not_finite_is_not_kept(group2: synk.Group, row: int) -> None:
    """The step is left out by `guarded`, and the residual is that of before."""
    net = Regression(exchange=TopK(0.2), update_rule=guarded(updates.momentum))
    good, bad = data(2)
    net.train(*good)
    values, residuals = net.values(), net.residuals()
    bad[0][row, 2] = np.nan
    net.train(*bad)
    np.testing.assert_array_equal(net.values(), values)
    np.testing.assert_array_equal(net.residuals(), residuals)
    plain = Regression(exchange=TopK(0.2))
    plain.train(*bad)
    assert np.isnan(plain.values()).all()


def test_setting_a_residual(group2: synk.Group) -> None:
    """A value that the user sets counts in the next step."""
    net = Regression(exchange=TopK(0.01), update_rule=updates.sgd, learning_rate=1.0)
    [(x, y)] = data(1)
    net.train(x, y)
    before = net.values()
    for v in net.train.by_node:
        v.set_value(np.zeros_like(v.get_value()))
    rows = net.train.by_node[0].get_value()
    rows[0, 5, 4] = 1e6
    net.train.by_node[0].set_value(rows)
    net.train(x, y)
    moved = net.values() - before
    assert np.flatnonzero(moved).tolist() == [29]
    assert moved[29] == pytest.approx(-1e6, rel=1e-3)


def test_the_old_spelling(group2: synk.Group) -> None:
    """compress= makes the exchange that its warning shows; in fit, too."""
    with pytest.warns(synk.DeprecatedWarning, match="compress=.* write (exchange=.*)$") as told:
        train = _made(compress="fp16")
    new = str(told[0].message).rpartition("exchange=")[2]
    assert train._planned.plan.exchange == eval(new) == HalfPrecision("fp16")
    assert told[0].filename == __file__
    x, w = pt.dvector("x"), pytensor.shared(0.0, name="w")
    adam: Any = {"optimizer": updates.adam, "batch": 2, "epochs": 1, "progress": False}
    with pytest.warns(synk.DeprecatedWarning, match=r'write exchange=HalfPrecision\("bf16"\)$'):
        run = fit(((w - x) ** 2).mean(), [w], x, np.ones(2), compress="bf16", mode=FAST, **adam)
    assert run.train._planned.plan.exchange == HalfPrecision("bf16")


def test_fit_passes_it_on(group2: synk.Group) -> None:
    x, y = pt.dmatrix("x"), pt.dvector("y")
    w = pytensor.shared(np.zeros(6), name="w")
    rows = np.random.default_rng(0).normal(size=(60, 6))
    given = dict(optimizer=functools.partial(updates.sgd, learning_rate=0.1), mode=FAST)
    loss, target = ((x @ w - y) ** 2).mean(), (rows, rows @ np.arange(6.0))
    more: dict[str, Any] = {"batch": 20, "epochs": 1, "progress": False, **given}
    run = fit(loss, [w], [x, y], target, exchange=TopK(0.4), **more)
    assert [v.name for v in run.train.by_node] == ["residual of w"]
    assert run.train.by_node[0].get_value().any()
    with pytest.raises(synk.InputError, match=r"verify=2: .* exchange=TopK\(density=0.4\)"):
        fit(loss, [w], [x, y], target, exchange=TopK(0.4), verify=2, **more)
    with pytest.raises(synk.InputError, match=r"is for gradients, and with Average\(.*\) members"):
        fit(loss, [w], [x, y], target, exchange=TopK(0.4), rule=rules.Average(2), **more)


WRONG: list[tuple[Any, str]] = [
    (lambda: TopK(0), "TopK: density=0: give a number of more than 0 and at most 1"),
    (lambda: TopK(1.5), "density=1.5"),
    (lambda: TopK(float("nan")), "density=nan"),
    (lambda: TopK("0.1"), "density='0.1': give a number of more"),  # type: ignore[arg-type]
    (lambda: TopK(True), "density=True: give a number of more"),
    (lambda: HalfPrecision("fp8"), 'HalfPrecision: format=\'fp8\': use "fp16" or "bf16"'),
    (lambda: HalfPrecision(stochastic=1), "stochastic=1: give True or False"),  # type: ignore[arg-type]
    (lambda: HalfPrecision(seed=-1), "seed=-1: give an integer of at least 0"),
    (lambda: HalfPrecision(seed=0.5), "seed=0.5: give an integer of at least 0"),  # type: ignore[arg-type]
    (lambda: _made(exchange=TopK), r"exchange=TopK is a class: call it, as in TopK\(0.01\)"),
    (lambda: _made(exchange=0.01), r"exchange=0.01: give TopK\(density\) or"),
    (lambda: _made(exchange=TopK(0.1), compress="fp16"), "give the second one alone"),
    (lambda: _made(compress="fp8"), r"compress='fp8': use exchange=HalfPrecision\("),
    (lambda: _made(exchange=TopK(0.1), rule=rules.GEM()), "is for gradients, and with GEM"),
    (lambda: _made(exchange=HalfPrecision(), rule=rules.Average(2)), "is for gradients"),
]


@pytest.mark.parametrize(("make", "said"), WRONG)
def test_wrong_arguments(group2: synk.Group, make: Any, said: str) -> None:
    with pytest.raises(synk.InputError, match=said):
        make()


def _made(**options: Any) -> Any:
    x, w = pt.dvector("x"), pytensor.shared(0.0, name="w")
    return make_train_function(((w - x) ** 2).mean(), [w], x, None, updates.sgd, 0.1, **options)


def test_numpy_numbers_and_text() -> None:
    assert TopK(np.float32(0.5)).density == 0.5
    assert type(TopK(np.float64(0.5)).density) is float
    assert str(HalfPrecision("fp16")) == "HalfPrecision(format='fp16', stochastic=False, seed=0)"


def test_sixteen_bits_change_nothing_on_one_node(group2: synk.Group) -> None:
    """A count of the steps, from which the chance follows, is a state all the same."""
    nets = [Regression(), Regression(exchange=HalfPrecision("fp16", stochastic=True))]
    for net in nets:
        for x, y in data(3):
            net.train(x, y)
    if nets[1].train.group.member.communicator.nodes == 1:
        np.testing.assert_array_equal(nets[0].values(), nets[1].values())
    [steps] = [v for v in nets[1].train.state if v.name == "steps of the exchange"]
    assert steps.get_value() == 3


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Those of scikit-learn, in a shuffled order; without an import of that library."""
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        pytest.skip("scikit-learn is not installed (the extra: synkhronos[demos])")
    place = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
    table = np.random.default_rng(0).permutation(np.loadtxt(place, delimiter=","))
    return table[:, :-1] / 16, table[:, -1].astype(np.int64)


@pytest.mark.thorough
def test_digits_are_learnt_as_well(group2: synk.Group) -> None:
    """With 1 % of the elements in each step, within one point of the dense accuracy."""
    images, labels = digits()
    accuracies = []
    for more in ({}, {"exchange": TopK(0.01)}):
        rng = np.random.default_rng(1)
        x, y = pt.dmatrix("x"), pt.lvector("y")
        w0, b0, w1, b1 = (
            pytensor.shared(scale * rng.standard_normal(shape), name=name)
            for name, scale, shape in (
                *(("w0", 0.15, (64, 48)), ("b0", 0.0, 48)),
                *(("w1", 0.15, (48, 10)), ("b1", 0.0, 10)),
            )
        )
        likely = pt.special.log_softmax(pt.tanh(x @ w0 + b0) @ w1 + b1, axis=1)
        loss = -likely[pt.arange(y.shape[0]), y].mean()
        rule = updates.momentum, 0.05, 0.5
        train = make_train_function(loss, [w0, b0, w1, b1], x, y, *rule, mode=FAST, **more)
        inputs = train.build_inputs(images[:1400], labels[:1400])
        batches = Batches(1400, 50, seed=2)
        for _ in range(40):
            for batch in batches:
                train(*inputs, batch=batch)
        hidden = np.tanh(images[1400:] @ w0.get_value() + b0.get_value())
        found = (hidden @ w1.get_value() + b1.get_value()).argmax(axis=1)
        accuracies.append(float((found == labels[1400:]).mean()))
    dense, sparse = accuracies
    assert dense > 0.93
    assert sparse > dense - 0.01, accuracies
