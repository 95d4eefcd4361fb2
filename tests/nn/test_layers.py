"""Networks of pytensor-ml's layers: layers, batch statistics, dropout, recurrence over members."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from gpu_commands import Traffic
from selection import thorough
from worker_commands import FailsToMeet

import synkhronos as synk
from synkhronos import nn
from synkhronos.extensions import make_train_function, make_train_function_pytensor, updates

ml = pytest.importorskip("pytensor_ml", reason="pytensor-ml is not installed (synkhronos[nn])")
layers = pytest.importorskip("pytensor_ml.layers")
from pytensor_ml.activations import ReLU  # noqa: E402
from pytensor_ml.model import Model  # noqa: E402
from pytensor_ml.pytensorf import rewrite_for_prediction  # noqa: E402

MODE = "FAST_COMPILE"


@pytest.fixture(autouse=True)
def _double_without_compiler(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Layers have graphs of their own inside, for which FAST_COMPILE would wait for gcc."""
    given = os.environ.get("PYTENSOR_FLAGS", "")
    monkeypatch.setenv("PYTENSOR_FLAGS", f"{given},cxx=".lstrip(","))
    with pytensor.config.change_flags(floatX="float64", cxx=""):
        yield


PAIRS = {
    "Conv2D": {"in_channels": 2, "out_channels": 3, "kernel_size": (3, 2), "padding": "same"},
    "Conv2D strides": {
        "in_channels": 2,
        "out_channels": 3,
        "kernel_size": 3,
        "stride": 2,
        "padding": 1,
        "bias": False,
    },
    "Conv2D reflected": {
        "in_channels": 2,
        "out_channels": 1,
        "kernel_size": 3,
        "padding": 1,
        "padding_mode": "reflect",
    },
    "Conv1D": {"in_channels": 2, "out_channels": 3, "kernel_size": 3, "padding": 1, "dilation": 2},
    "ConvTranspose2D": {
        "in_channels": 2,
        "out_channels": 3,
        "kernel_size": (3, 4),
        "stride": 2,
        "padding": (0, 1),
        "output_padding": (1, 0),
    },
    "ConvTranspose2D plain": {
        "in_channels": 2,
        "out_channels": 1,
        "kernel_size": 2,
        "dilation": 2,
        "bias": False,
    },
    "ConvTranspose1D": {"in_channels": 2, "out_channels": 3, "kernel_size": 3, "stride": 2},
    "MaxPool2D": {"kernel_size": 3, "stride": 2, "padding": 1},
    "MaxPool2D gaps": {"kernel_size": 2, "dilation": 2},
    "MaxPool1D": {"kernel_size": 3, "stride": 1},
    "AvgPool2D": {"kernel_size": 2, "padding": 1},
    "AvgPool1D": {"kernel_size": 2},
    "BatchNorm": {"n_in": 2},
    "BatchNorm plain": {"n_in": 2, "affine": False, "track_running_stats": False},
}


@pytest.mark.parametrize("case", PAIRS)
def test_layers_compute_what_pytensor_mls_do(case: str, rng: np.random.Generator) -> None:
    """Values and gradients; same parameters, in the same order."""
    kind, arguments = case.split()[0], PAIRS[case]
    shape = (4, 7, 2) if kind.endswith("1D") else (4, 7, 6, 2)
    x = layers.Input("x", (None, *shape[1:]), "float64")
    images, found = rng.normal(size=shape), []
    for home in (layers, nn):
        y = getattr(home, kind)(kind, **arguments)(x)
        params = Model(y).initialize(3).weights
        gradients = pytensor.grad(pt.sin(y).sum(), [x, *params])
        values = pytensor.function([x], [y, *gradients], mode=MODE)(images)
        found.append(([p.name for p in params], y.name, values))
    (names, name, theirs), (others, other, ours) = found
    assert (names, name) == (others, other)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-9)


def test_groups_of_channels(rng: np.random.Generator) -> None:
    """Each half of the new channels is that of a layer which sees half of the channels."""
    x = layers.Input("x", (None, 5, 4, 4), "float64")
    how = {"kernel_size": 3, "padding": 1, "stride": 2}
    whole = nn.Conv2D("whole", in_channels=4, out_channels=6, groups=2, **how)
    halves = [nn.Conv2D(f"half{n}", in_channels=2, out_channels=3, **how) for n in range(2)]
    for n, half in enumerate(halves):
        half.W.set_value(whole.W.get_value()[..., 3 * n : 3 * n + 3])
    apart = [half(x[..., 2 * n : 2 * n + 2]) for n, half in enumerate(halves)]
    found, *expected = pytensor.function([x], [whole(x), *apart], mode=MODE)(
        rng.normal(size=(3, 5, 4, 4))
    )
    np.testing.assert_allclose(found, np.concatenate(expected, axis=3), atol=1e-12)
    assert whole.W.get_value().shape == (3, 3, 2, 6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"groups": 3}, "4 channels cannot be divided into 3 groups"),
        ({"groups": 0}, "groups=0: give an integer of at least 1"),
        ({"groups": 4}, "6 new channels cannot be divided into 4 groups"),
        ({"groups": 2, "padding_mode": "reflect"}, "pad with zeros"),
    ],
)
def test_groups_that_do_not_fit(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nn.Conv2D(in_channels=4, out_channels=6, kernel_size=3, **given)


def small_net(batch_norm: Any = None, rate: float = 0.0) -> tuple[Any, ...]:
    """x, y, params, loss of a small CNN."""
    x, y = layers.Input("x", (None, 6, 6, 1), "float64"), pt.ivector("y")
    h = nn.Conv2D("c", in_channels=1, out_channels=3, kernel_size=3, padding="same")(x)
    h = h if batch_norm is None else batch_norm("n", n_in=3)(h)
    h = nn.MaxPool2D(kernel_size=2)(ReLU()(h)).reshape((x.shape[0], 27))
    if rate:
        h = layers.Dropout("d", p=rate, random_state=5)(h)
    scores = layers.Linear("f", n_in=27, n_out=4)(h)
    params = Model(scores).initialize(1).weights
    log_p = pt.special.log_softmax(scores, axis=1)
    return x, y, params, -log_p[pt.arange(y.shape[0]), y].mean(), scores


def small_data(rows: int = 23) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(rows, 6, 6, 1)), rng.integers(0, 4, rows).astype("int32")


def values(variables: Sequence[Any]) -> list[np.ndarray]:
    return [v.get_value() for v in variables]


def check_training(
    batch_norm: Any, mode: str, steps: int = 4, few: int = 0, **kwargs: Any
) -> tuple[list[Any], list[Any]]:
    """Train with all members and alone, last by a few rows: (losses and values of both)."""
    data, found = small_data(), []
    for make in (make_train_function, make_train_function_pytensor):
        x, y, params, loss, _ = small_net(batch_norm)
        more = nn.state_updates(loss)
        how = {"updates": more, "mode": mode} | kwargs
        train = make(loss, params, x, y, updates.nesterov_momentum, 0.1, **how)
        losses = [float(train(*data, batch=slice(k, 20 + k))) for k in range(steps)]
        losses += [float(train(*data, batch=slice(few)))] if few else []
        found.append([losses, *values([*params, *(u[0] for u in more)])])
    return found[0], found[1]


def test_a_network_trains_as_in_one_process(group: synk.Group) -> None:
    """Whatever the number of members; all is proved, so nothing is warned of."""
    ours, serial = check_training(None, MODE)
    for a, b in zip(ours, serial, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)


def test_synchronised_statistics_are_those_of_all_rows(
    group: synk.Group, caplog: pytest.LogCaptureFixture
) -> None:
    """Losses, gradients through the statistics, and running values are the serial ones."""
    with caplog.at_level(logging.INFO, "synkhronos"):
        ours, serial = check_training(nn.BatchNorm, MODE, few=1)  # some members have no row
    for a, b in zip(ours, serial, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    assert not [r for r in caplog.records if "own" in r.message]


@pytest.mark.slow
@pytest.mark.thorough  # of the collectives: ops/test_ops.py
@pytest.mark.parametrize("mode", ["NUMBA", "JAX"])
@pytest.mark.filterwarnings("ignore:Skipping Assert:UserWarning")
def test_synchronised_statistics_in_compiled_modes(mode: str) -> None:
    """A small graph, which numba compiles in seconds."""
    if mode == "JAX":
        pytest.importorskip("jax")
    rows = np.random.default_rng(0).normal(size=(7, 2)) * [1, 100]
    found = []
    with synk.Group(2, start="exec"):
        for make in (make_train_function, make_train_function_pytensor):
            x, w = pt.dmatrix("x"), pytensor.shared(np.eye(2), "w")
            layer = nn.BatchNorm("n", n_in=2, affine=False)
            loss = pt.tanh(layer(x @ w) * x).mean()
            more = nn.state_updates(loss)
            train = make(loss, [w], x, None, updates.sgd, 0.1, updates=more, mode=mode)
            losses = [float(train(rows)) for _ in range(3)]
            found.append([losses, *values([w, *(u[0] for u in more)])])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)


def test_statistics_of_each_member(group2: synk.Group) -> None:
    """pytensor-ml's own layer: other values than the serial ones, equal in all members."""
    ours, serial = check_training(layers.BatchNorm, MODE, reduction="avg")
    assert not np.allclose(ours[0], serial[0], rtol=1e-6)
    np.testing.assert_allclose(ours[0], serial[0], rtol=0.2)
    *_, mean, variance = ours
    np.testing.assert_allclose(mean, serial[-2], rtol=1e-6, atol=1e-3)
    assert (variance < 1.01 * serial[-1]).all()


def test_prediction_takes_the_running_statistics(group2: synk.Group) -> None:
    x, y, params, loss, scores = small_net(nn.BatchNorm)
    more = nn.state_updates(loss)
    train = make_train_function(loss, params, x, y, updates.sgd, 0.1, updates=more, mode=MODE)
    images, labels = small_data()
    train(images, labels)
    predict = synk.function([x], rewrite_for_prediction(scores), mode=MODE)
    np.testing.assert_allclose(predict(images)[:5], predict(images[:5]), rtol=1e-9)
    running = values([u[0] for u in more])
    predict(images)
    for a, b in zip(values([u[0] for u in more]), running, strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_statistics_of_all_rows_refuse(group2: synk.Group) -> None:
    """Sums over rows, slices; and the group goes on."""
    x, y, params, loss, scores = small_net(nn.BatchNorm)
    with pytest.raises(synk.InputError, match="is not a mean over rows"):
        make_train_function((scores**2).sum(), params, x, None, updates.sgd, 0.1, mode=MODE)
    train = make_train_function(
        loss, params, x, y, updates.sgd, 0.1, updates=nn.state_updates(loss), mode=MODE
    )
    images, labels = small_data()
    before = values(params)
    with pytest.raises(synk.InputError, match="compute each part at once"):
        train(images, labels, num_slices=2)
    for a, b in zip(values(params), before, strict=True):
        np.testing.assert_array_equal(a, b)
    assert np.isfinite(train(images, labels))


class Strict(pytensor.graph.op.Op):
    """Raises in a worker, where its input is negative somewhere."""

    __props__ = ()

    def make_node(self, x: Any) -> Any:
        return pytensor.graph.basic.Apply(self, [x], [x.type()])

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        if inputs[0].min() < 0:
            raise ArithmeticError("negative")
        output_storage[0][0] = inputs[0].copy()

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> Any:
        return cotangents


@pytest.mark.parametrize("bad", [0, 1])
def test_a_member_that_fails_frees_those_who_wait_for_it(group2: synk.Group, bad: int) -> None:
    """In the middle of the compiled function; the next call is right."""
    x = layers.Input("x", (None, 2), "float64")
    y = nn.BatchNorm("n", n_in=2, affine=False)(Strict()(x))
    f = synk.function([x], ((y**2).mean(), "avg"), mode=MODE)
    rows = np.arange(1.0, 13.0).reshape(6, 2) ** 2
    good = float(f(rows))
    worse = rows.copy()
    worse[4 * bad] *= -1
    with pytest.raises(ArithmeticError, match="negative"):
        f(worse)
    assert float(f(rows)) == good


FAULTS: dict[str, tuple[int, type[BaseException], str | None]] = {
    "raises": (1, ArithmeticError, "no luck"),
    "raises in the master": (0, ArithmeticError, "no luck"),
    "SIGINT": (0, KeyboardInterrupt, None),
    "SIGKILL": (1, synk.WorkerDied, "rank 1"),
}


@pytest.mark.thorough  # in Python: the test above
@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        "raises",
        *thorough(*list(FAULTS)[1:]),
    ],
)
def test_a_member_that_fails_to_meet_in_jax(
    fault: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a callback, where JAX logs what is raised: nobody sees tracebacks of those who waited."""
    pytest.importorskip("jax")
    rank, kind, message = FAULTS[fault]
    x = layers.Input("x", (None, 2), "float64")
    y = nn.BatchNorm("n", n_in=2, affine=False)(x)
    rows = np.arange(12.0).reshape(6, 2) ** 2
    with synk.Group(2, "cpu", start="exec", max_restarts=1) as group:
        f = synk.function([x], (y**2).mean(), mode="JAX")
        good = float(f(rows))
        for _ in range(2):
            group.run(FailsToMeet(rank, fault.split()[0]))
            if kind is synk.WorkerDied and not group.restarts:
                assert float(f(rows)) == good
                continue
            with pytest.raises(kind, match=message):
                f(rows)
            if group.alive:
                assert float(f(rows)) == good
    said = "".join(capsys.readouterr()) + caplog.text
    assert "Traceback" not in said
    assert "callback" not in said


def test_dropout_differs_by_member_and_repeats(group2: synk.Group) -> None:
    check_masks(MODE)


def check_masks(mode: str) -> None:
    """Equal rows are dropped differently in both members, and alike in both runs."""
    x = layers.Input("x", (None, 50), "float64")
    runs = []
    for _ in range(2):
        y = layers.Dropout("d", p=0.5, random_state=9)(x)
        f = synk.function([x], (y, "gather"), updates=nn.state_updates(y), mode=mode)
        runs.append([f(np.ones((4, 50))) for _ in range(2)])
    (once, then), again = runs
    np.testing.assert_array_equal(runs[0], again)
    halves = (once[:2] > 0, once[2:] > 0, then[:2] > 0)
    assert {0.0, 2.0} == set(np.unique(once))
    assert not np.array_equal(halves[0], halves[1])
    assert not np.array_equal(halves[0], halves[2])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Skipping Assert:UserWarning")
@pytest.mark.thorough
def test_jax_statistics_of_members_on_gpus(start: Callable[..., synk.Group]) -> None:
    """The serial ones where what is trained stays in each member; the path is forced."""
    pytest.importorskip("jax")
    group = start(2)
    ours, serial = check_training(nn.BatchNorm, "JAX")
    for a, b in zip(ours, serial, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    assert all(exchanged for exchanged, _ in group.run(Traffic()))


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Skipping Assert:UserWarning")
def test_jax_dropout_of_members_on_gpus(start: Callable[..., synk.Group]) -> None:
    """It repeats, goes on from step to step, and differs by member."""
    pytest.importorskip("jax")
    group, runs = start(2), []
    for _ in range(2):
        x, y, params, loss, _ = small_net(rate=0.5)
        how = {"updates": nn.state_updates(loss), "mode": "JAX"}
        train = make_train_function(loss, params, x, y, updates.sgd, 0.01, **how)
        runs.append([[float(train(*small_data())) for _ in range(4)], *values(params)])
    assert len(set(runs[0][0])) == 4
    for a, b in zip(*runs, strict=True):
        np.testing.assert_array_equal(a, b)
    assert all(exchanged for exchanged, _ in group.run(Traffic()))
    check_masks("JAX")


def test_dropout_in_a_loss_is_proved(group2: synk.Group) -> None:
    x, y, params, loss, _ = small_net(rate=0.5)
    draws = nn.state_updates(loss)
    train = make_train_function(loss, params, x, y, updates.sgd, 0.1, updates=draws, mode=MODE)
    losses = [float(train(*small_data())) for _ in range(20)]
    assert np.mean(losses[10:]) < np.mean(losses[:10])
    assert len(set(losses)) == 20


def test_a_recurrent_layer(group: synk.Group) -> None:
    found = []
    rng = np.random.default_rng(0)
    data = rng.normal(size=(11, 5, 2)), rng.integers(0, 2, 11).astype("int32")
    for make in (make_train_function, make_train_function_pytensor):
        x, y = layers.Input("x", (None, 5, 2), "float64"), pt.ivector("y")
        scores = layers.Linear("f", n_in=4, n_out=2)(layers.LSTM("l", n_in=2, n_hidden=4)(x)[:, -1])
        params = Model(scores).initialize(0).weights
        loss = -pt.special.log_softmax(scores, axis=1)[pt.arange(y.shape[0]), y].mean()
        train = make(loss, params, x, y, updates.adam, 0.05, mode=MODE)
        found.append([[float(train(*data)) for _ in range(4)], *values(params)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7)
