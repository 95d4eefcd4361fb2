"""Known networks learn something small."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytensor
import pytest
from learning_cases import copies, images_of_digits, learned, marked
from modes import FAST
from scipy.special import log_softmax, softmax

import synkhronos as synk
from synkhronos import zoo
from synkhronos.extensions import make_train_function, updates
from synkhronos.training import Net

pytest.importorskip("pytensor_ml", reason="pytensor-ml is not installed (synkhronos[nn])")


@pytest.fixture(autouse=True)
def _single_without_compiler() -> Iterator[None]:
    """Layers have graphs of their own inside, for which FAST_COMPILE would wait for gcc."""
    with pytensor.config.change_flags(floatX="float32", cxx=""):
        yield


@pytest.mark.thorough  # another one: tests/training/test_fit.py
def test_mlp_learns_digits() -> None:
    """With dropout of the images and of the units, whose reductions are proved."""
    train, test = images_of_digits(8)
    net = zoo.mlp((8, 8, 1), (64,), input_dropout=0.1, dropout=0.2)
    assert learned(net, train, test, 1e-2, 4) > 0.9


# network, pixels to a side, rate, epochs, accuracy
LEARNS: dict[str, tuple[Callable[[], Net], int, float, int, float]] = {
    "vgg": (
        lambda: zoo.vgg(11, size=32, channels=1, classes=10, width=4, units=64, dropout=0.2),
        *(32, 3e-3, 12, 0.95),
    ),
    "cnn": (lambda: zoo.cnn(units=(32,), size=8, dropout=0.2), 8, 1e-2, 4, 0.9),
    "resnet": (
        lambda: zoo.resnet(18, blocks=(1, 1), size=16, channels=1, classes=10, width=8),
        *(16, 1e-2, 8, 0.95),
    ),
    "cifar_resnet": (
        lambda: zoo.cifar_resnet(20, size=8, channels=1, width=8),
        *(8, 5e-3, 5, 0.97),
    ),
    "wide_resnet": (
        lambda: zoo.wide_resnet(10, 1, size=8, channels=1),
        *(8, 5e-3, 5, 0.95),
    ),
    "densenet": (
        lambda: zoo.densenet(blocks=(3, 3), growth=4, size=16, channels=1, classes=10),
        *(16, 2e-2, 8, 0.97),
    ),
    "mobilenet": (
        lambda: zoo.mobilenet(0.25, size=32, channels=1, classes=10),
        *(32, 1e-2, 8, 0.8),
    ),
}


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNS)
def test_a_network_learns_digits(name: str) -> None:
    make, pixels, rate, epochs, accuracy = LEARNS[name]
    train, test = images_of_digits(pixels)
    assert learned(make(), train, test, rate, epochs) > accuracy


# network, rate, steps
RUNS: dict[str, tuple[Callable[[], Net], float, int]] = {
    "alexnet": (lambda: zoo.alexnet(size=64, classes=5, units=64, dropout=0.0), 1e-4, 8),
    "googlenet": (
        lambda: zoo.googlenet(size=64, classes=5, auxiliary=True, dropout=0.0),
        *(1e-3, 10),
    ),
    "inception_v3": (
        lambda: zoo.inception_v3(size=75, classes=5, auxiliary=True, dropout=0.0),
        *(1e-3, 4),
    ),
}


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_large_network_learns_a_few_rows(name: str) -> None:
    """Steps on the same rows at least halve the loss, that of auxiliary classifiers included."""
    make, rate, steps = RUNS[name]
    net = make()
    rng = np.random.default_rng(6)
    images = rng.normal(size=(6, *net.inputs[0].type.shape[1:])).astype("float32")
    labels = rng.integers(0, 5, 6).astype("int32")
    with synk.Group(2):
        train = make_train_function(
            net.loss, net.params, net.inputs, None, updates.adam, rate,
            updates=net.updates, mode="FAST_COMPILE",
        )  # fmt: skip
        losses = [float(train(images, labels)) for _ in range(steps)]
    assert losses[-1] < losses[0] / 2


@pytest.mark.thorough
@pytest.mark.slow
def test_lstm_remembers() -> None:
    with pytensor.config.change_flags(floatX="float64"):
        net = zoo.lstm(2, 16, length=10)
    assert learned(net, marked(2000, 0), marked(500, 1), 0.02, 10) > 0.88


@pytest.mark.thorough
@pytest.mark.slow
def test_transformer_copies() -> None:
    """All that can be known from the tokens before, and nothing that only later ones tell."""
    net = zoo.transformer(8, length=11, width=16, heads=2, layers=1, dropout=0.0)
    x, y = copies(500, 1)
    right = learned(net, copies(2000, 0), (x, y), 2e-2, 3)
    scores = pytensor.function([net.inputs[0]], net.outputs, mode=FAST)(x)
    hits = scores.argmax(axis=2) == y
    assert right == pytest.approx(hits.mean(), abs=1e-6)
    assert hits[:, 5:].mean() > 0.97
    assert hits[:, :5].mean() == pytest.approx(1 / 8, abs=0.03)  # chance, 4.5 standard deviations


def test_transformer_equals_its_formula() -> None:
    """GPT-2's, in numpy: values, loss, and the gradient's share along a random direction."""
    rng = np.random.default_rng(0)
    with pytensor.config.change_flags(floatX="float64"):
        net = zoo.transformer(7, length=6, width=8, heads=2, layers=2, dropout=0.0)
    values = {p.name: p.get_value() for p in net.params}
    values = {name: v + 0.5 * rng.normal(size=v.shape) for name, v in values.items()}
    x, y = (rng.integers(0, 7, (3, 6)).astype("int32") for _ in range(2))
    for p in net.params:
        p.set_value(values[p.name])
    gradients = pytensor.grad(net.loss, net.params)
    function = pytensor.function(net.inputs, [net.outputs, net.loss, *gradients], mode=FAST)
    scores, loss, *gradients = function(x, y)
    np.testing.assert_allclose(scores, gpt(values, x), rtol=1e-9)

    def mean_loss(step: float) -> float:
        found = log_softmax(gpt({n: v + step * by[n] for n, v in values.items()}, x), axis=2)
        return -np.take_along_axis(found, y[..., None], axis=2).mean()

    by = {name: rng.normal(size=v.shape) for name, v in values.items()}
    assert loss == pytest.approx(mean_loss(0), rel=1e-10)
    slope = sum((g * by[p.name]).sum() for g, p in zip(gradients, net.params, strict=True))
    assert slope == pytest.approx((mean_loss(1e-5) - mean_loss(-1e-5)) / 2e-5, rel=1e-6)


def gpt(v: dict[str, np.ndarray], tokens: np.ndarray) -> np.ndarray:
    """Scores of two layers with two heads of four values."""

    def normal(x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(axis=-1, keepdims=True)
        spread = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
        return centred / spread * v[f"{name}_scale"] + v[f"{name}_loc"]

    def units(x: np.ndarray, name: str) -> np.ndarray:
        return x @ v[f"{name}_W"] + v[f"{name}_b"]

    rows, length = tokens.shape
    x = v["words_W"][tokens] + v["places_W"]
    later = np.triu(np.full((length, length), -np.inf), 1)
    for layer in ("layer0", "layer1"):
        parts = np.split(units(normal(x, f"{layer}_norm1"), f"{layer}_attn_qkv_proj"), 3, axis=2)
        q, k, seen = (p.reshape(rows, length, 2, 4).transpose(0, 2, 1, 3) for p in parts)
        shares = softmax(q @ k.transpose(0, 1, 3, 2) / 2 + later, axis=3)
        joined = (shares @ seen).transpose(0, 2, 1, 3).reshape(rows, length, 8)
        x = x + units(joined, f"{layer}_attn_out_proj")
        h = units(normal(x, f"{layer}_norm2"), f"{layer}_ff_fc_in")
        h = h / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
        x = x + units(h, f"{layer}_ff_fc_out")
    return normal(x, "last") @ v["words_W"].T
