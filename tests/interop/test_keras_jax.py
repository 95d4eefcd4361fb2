"""Keras models in a group: Keras's own values, gradients and training are the oracle."""

from __future__ import annotations

import functools
import importlib
import json
import os
import pickle
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from selection import thorough

import synkhronos as synk
from synkhronos import interop, rules
from synkhronos.extensions import Batches, make_train_function, updates
from synkhronos.training import fit

pytestmark = [
    pytest.mark.together,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras
    pytest.mark.skipif(find_spec("keras") is None, reason="Keras is not installed"),
]
NEW = np.random.default_rng(5)
ROWS = NEW.normal(size=(25, 8)).astype("float32")
LABELS = NEW.integers(0, 3, 25)


@pytest.fixture(scope="module")
def keras() -> ModuleType:
    os.environ["KERAS_BACKEND"] = "jax"  # also for members that start later
    import keras

    return keras


@pytest.fixture(scope="module")
def lasting() -> Iterator[synk.Group]:
    made = synk.Group(2, start="exec")
    yield made
    made.close()


@pytest.fixture
def pair(lasting: synk.Group) -> Iterator[synk.Group]:
    with lasting.active():
        yield lasting


def mlp(keras: Any, *more: Any, columns: int = 8, units: int = 6, classes: int = 3) -> Any:
    keras.utils.set_random_seed(1)
    first = keras.layers.Dense(units, activation="tanh", kernel_regularizer="l2", name="first")
    layers = [
        keras.Input((columns,), name="x"),
        first,
        *more,
        keras.layers.Dense(classes, name="last"),
    ]
    return keras.Sequential(layers, name="net")


def cross_entropy(keras: Any, **kwargs: Any) -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **kwargs)


@functools.cache
def adapted(keras: Any) -> interop.KerasNet:
    """A small network; tests set its parameters before they use them."""
    return interop.from_keras(mlp(keras), cross_entropy(keras))


def by_keras(keras: Any, model: Any, loss: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Loss and gradients of Keras's own stateless calls."""
    import jax

    def value(weights: Any) -> Any:
        others = [v.value for v in model.non_trainable_variables]
        scores, _, penalties = model.stateless_call(weights, others, x, return_losses=True)
        return loss(y, scores) + sum(penalties)

    found = jax.value_and_grad(value)([v.value for v in model.trainable_variables])
    return float(found[0]), [np.asarray(g) for g in found[1]]


@pytest.mark.thorough
def test_loss_and_gradient_are_those_of_keras(keras: Any) -> None:
    net = adapted(keras)
    gradients = pytensor.grad(net.loss, net.params)
    function = pytensor.function(
        net.inputs, [net.loss, net.metrics["loss"], net.outputs, *gradients], mode="JAX"
    )
    value, validated, scores, *found = function(ROWS, LABELS)
    wanted, by_weights = by_keras(keras, net.model, cross_entropy(keras), ROWS, LABELS)
    assert value == pytest.approx(wanted, rel=1e-6)
    assert validated == pytest.approx(wanted, rel=1e-6)
    np.testing.assert_allclose(scores, net.model(ROWS), atol=1e-6)
    for g, w in zip(found, by_weights, strict=True):
        assert g.dtype == w.dtype == "float32"
        np.testing.assert_allclose(g, w, atol=1e-6)


@pytest.mark.parametrize("num_slices", [*thorough(1), 3])
def test_steps_of_two_members_are_those_of_one(
    keras: Any, pair: synk.Group, num_slices: int
) -> None:
    """25 rows in 2 members and in 3 slices: the gradient is that of Keras for all rows."""
    net = interop.from_keras(mlp(keras), cross_entropy(keras))
    before = [p.get_value() for p in net.params]
    value, gradients = by_keras(keras, net.model, cross_entropy(keras), ROWS, LABELS)
    train = make_train_function(
        net.loss, net.params, *net.inputs, updates.sgd, learning_rate=0.5, mode="JAX"
    )
    assert train(ROWS, LABELS, num_slices=num_slices) == pytest.approx(value, rel=1e-6)
    for p, old, g in zip(net.params, before, gradients, strict=True):
        np.testing.assert_allclose(p.get_value(), old - 0.5 * g, atol=1e-6)
    np.testing.assert_array_equal(net.model.weights[0], before[0])  # until they are stored
    stored = net.store()
    np.testing.assert_array_equal(stored.weights[0], net.params[0].get_value())
    again, _ = by_keras(keras, stored, cross_entropy(keras), ROWS, LABELS)
    assert again < value


@pytest.mark.thorough  # of other networks: tests/extensions
@pytest.mark.parametrize("rule", [rules.DiLoCo(4), rules.EASGD(period=2)], ids=str)
def test_rules(keras: Any, pair: synk.Group, rule: Any) -> None:
    """By a rule with meetings, and by one without."""
    net = interop.from_keras(mlp(keras), cross_entropy(keras))
    before, _ = by_keras(keras, net.model, cross_entropy(keras), ROWS, LABELS)
    train = make_train_function(
        net.loss, net.params, *net.inputs, updates.sgd, learning_rate=0.2, mode="JAX", rule=rule
    )
    if rule.meets:
        for _ in range(12):
            train(ROWS, LABELS)
        train.meet()
    else:
        data = train.build_inputs(ROWS, LABELS)
        with train.start(*data, Batches(25, 5, seed=1), epochs=8) as run:
            assert run.wait()
    after, _ = by_keras(keras, net.store(), cross_entropy(keras), ROWS, LABELS)
    assert after < 0.9 * before


@pytest.mark.parametrize(
    "rule", [None, *thorough(rules.DiLoCo(2), rules.EASGD(period=2), rules.Average(2))], ids=str
)
def test_fit_validates_and_resumes(keras: Any, pair: synk.Group, rule: Any, tmp_path: Any) -> None:
    """Values of validation are those of Keras's own model, also after the run has gone on."""
    net = interop.from_keras(mlp(keras), cross_entropy(keras))
    size = {"batch": 10} if rule is None or rule.meets else {"member_batch": 5}
    for epochs in (1, 2):
        run = fit(
            net,
            (ROWS, LABELS),
            optimizer=functools.partial(updates.sgd, learning_rate=0.1),
            epochs=epochs,
            validation=(ROWS[:15], LABELS[:15]),
            rule=rule,
            mode="JAX",
            folder=tmp_path / "run",
            resume="auto",
            progress=False,
            **size,
        )
        model = net.store()
        value, _ = by_keras(keras, model, cross_entropy(keras), ROWS[:15], LABELS[:15])
        right = model.predict(ROWS[:15], verbose=0).argmax(axis=1) == LABELS[:15]
        assert run.history["val_loss"][-1] == pytest.approx(value, rel=1e-5)
        assert run.history["val_accuracy"][-1] == pytest.approx(right.mean())
    assert len(run.history) == 2
    assert None not in run.history["val_loss"]


def test_shapes_are_known_without_a_compiler(keras: Any) -> None:
    """Of the scores and of gradients; a model that leaves an axis open has no shape."""
    net = adapted(keras)
    assert net.outputs.type.shape == (None, 3)
    wanted = [net.outputs.shape, *(g.shape for g in pytensor.grad(net.loss, net.params))]
    shape_of = pytensor.function(net.inputs, wanted, mode="FAST_COMPILE", on_unused_input="ignore")
    found = [tuple(map(int, shape)) for shape in shape_of(ROWS[:4], LABELS[:4])]
    assert found == [(4, 3), *(p.get_value().shape for p in net.params)]
    series = keras.Sequential([keras.Input((None, 2)), keras.layers.Dense(3)])
    opened = interop.from_keras(series, cross_entropy(keras), y=pt.lmatrix("y"))
    assert opened.outputs.type.shape == (None, None, None)


def test_dropout(keras: Any, pair: synk.Group) -> None:
    """It draws anew in each step, each member other numbers, and not in predictions."""
    model = mlp(keras, keras.layers.Dropout(0.5), keras.layers.Dropout(0.5))
    net = interop.from_keras(model, cross_entropy(keras, reduction="sum"))
    same = np.repeat(ROWS[:1], 24, axis=0), np.repeat(LABELS[:1], 24)
    each = synk.function(net.inputs, (net.loss, "gather"), updates=net.updates, mode="JAX")
    drawn = np.array([each(*same) for _ in range(2)])
    assert len(np.unique(drawn)) == drawn.size == 4
    predict = pytensor.function(net.inputs[:1], net.outputs, mode="JAX")
    np.testing.assert_allclose(predict(ROWS), model.predict(ROWS, verbose=0), atol=1e-6)


def test_several_inputs_and_a_loss_of_vectors(keras: Any) -> None:
    """Inputs of a functional model, a frozen layer, and targets of the type of the output."""
    a, b = keras.Input((4,), name="a"), keras.Input((3,), name="b")
    frozen = keras.layers.Dense(2, trainable=False, name="frozen")
    out = keras.layers.Dense(2)(keras.layers.Concatenate()([frozen(a), b]))
    model = keras.Model([a, b], out)
    model.compile(loss="mean_squared_error")
    net = interop.from_keras(model)
    assert [v.name for v in net.inputs] == ["a", "b", "y"]
    assert [v.get_value().shape for v in net.state] == [(4, 2), (2,)]
    value = pytensor.function(net.inputs, net.loss, mode="JAX")
    x, more, y = (NEW.normal(size=(6, n)).astype("float32") for n in (4, 3, 2))
    error = model.predict([x, more], verbose=0) - y
    assert value(x, more, y) == pytest.approx(np.mean(error**2), rel=1e-6)


@pytest.mark.parametrize("reduction", ["sum", *thorough("sum_over_batch_size")])
def test_a_loss_with_several_entries_in_a_row(keras: Any, reduction: str) -> None:
    """As Keras reduces it over rows and steps of time."""
    steps = keras.Sequential([keras.Input((4, 2)), keras.layers.Dense(3)])
    loss = cross_entropy(keras, reduction=reduction)
    net = interop.from_keras(steps, loss, y=pt.lmatrix("y"))
    x, y = NEW.normal(size=(5, 4, 2)).astype("float32"), NEW.integers(0, 3, (5, 4))
    value = pytensor.function(net.inputs, net.loss, mode="JAX")(x, y)
    assert value == pytest.approx(float(loss(y, steps.predict(x, verbose=0))), rel=1e-6)


def refused(keras: Any) -> dict[str, tuple[Any, Any, str]]:
    """Models, losses, and words of the message."""
    layers, loss = keras.layers, cross_entropy(keras)
    x = keras.Input((8,))
    two = keras.Model(x, [layers.Dense(2)(x), layers.Dense(2)(x)])
    words = keras.Input((5,), dtype="int32")
    masked = keras.Model(words, layers.Embedding(9, 4, mask_zero=True)(words))
    active = layers.Dense(2, activity_regularizer="l2", name="active")
    return {
        "normalised": (mlp(keras, layers.BatchNormalization(name="bn")), loss, "bn/moving_mean"),
        "activity": (mlp(keras, active), loss, "layer active has an activity_regularizer"),
        "two": (two, loss, "2 outputs"),
        "masked": (masked, "mean_squared_error", "has a mask"),
        "none": (mlp(keras), None, "give one loss"),
        "unknown": (mlp(keras), "no_such_loss", "no_such_loss"),
        "reduction": (mlp(keras), cross_entropy(keras, reduction=None), "reduction="),
        "own": (mlp(keras), first_score, "register_keras_serializable"),
        "empty": (keras.Sequential([x, layers.Flatten()]), loss, "none to train"),
        "unbuilt": (keras.Sequential([layers.Dense(3)]), loss, "no weights yet"),
        "no model": (layers.Dense(3), loss, "not a keras.Model"),
    }


def test_refused(keras: Any) -> None:
    for name, (model, loss, words) in refused(keras).items():
        with pytest.raises(synk.InputError if name != "no model" else TypeError) as caught:
            interop.from_keras(model, loss)
        assert words in str(caught.value), name
    net = adapted(keras)
    with pytest.raises(synk.InputError, match='mode="JAX"'):
        net.loss.eval({net.inputs[0]: ROWS, net.inputs[1]: LABELS}, mode="FAST_COMPILE")
    with pytest.raises(synk.InputError, match="add_loss"):
        interop.from_keras(mlp(keras, adds(keras)), cross_entropy(keras))


def first_score(y: Any, scores: Any) -> Any:
    """A loss that is not registered."""
    return scores[:, 0]


def adds(keras: Any) -> Any:
    """A layer with a loss of its own."""

    @keras.saving.register_keras_serializable()
    class Adds(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            self.add_loss(keras.ops.sum(inputs))
            return inputs

    return Adds()


def test_models_travel_as_text(keras: Any) -> None:
    """Two nets of one config are the same operation, also after a pickle."""
    net, other = (interop.from_keras(mlp(keras), cross_entropy(keras)) for _ in range(2))
    ops = [n.outputs.owner.op for n in (net, other)]
    assert ops[0] == ops[1] == pickle.loads(pickle.dumps(ops[0]))
    assert ops[0] != interop.from_keras(mlp(keras, units=7), cross_entropy(keras)).outputs.owner.op


def scaled(keras: Any, factor: float) -> interop.KerasNet:
    """A net of a layer and a loss whose names are the same for any factor, as in a notebook."""

    @keras.saving.register_keras_serializable("tests")
    class Scaled(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            return inputs * factor

    @keras.saving.register_keras_serializable("tests")
    def off(y: Any, scores: Any) -> Any:
        return factor * keras.ops.abs(y - scores)

    return interop.from_keras(mlp(keras, Scaled(name="scaled")), off)


def test_a_layer_and_a_loss_that_are_defined_again(keras: Any) -> None:
    """Each net computes by the code of its own, also after its copy was made anew."""
    nets = [scaled(keras, factor) for factor in (1.0, 3.0)]
    sources = [net.outputs.owner.op.model for net in nets]
    assert sources[0] != sources[1]
    assert sources[0].text == sources[1].text
    registered = dict(keras.saving.get_custom_objects())
    for again in range(2):
        for net, source, factor in zip(nets, sources, (1.0, 3.0), strict=True):
            weights = [p.get_value() for p in net.params]
            found = np.asarray(source.function("scores")(ROWS, *weights))
            np.testing.assert_allclose(found, net.model(ROWS), rtol=1e-5, atol=1e-6)
            losses = source.function("plain losses")(ROWS, found + 1, *weights)
            np.testing.assert_allclose(losses, factor, rtol=1e-5)
        if not again:
            importlib.import_module("synkhronos.interop._keras")._made.cache_clear()
    assert keras.saving.get_custom_objects() == registered


def test_another_backend_is_refused(keras: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: "numpy")
    with pytest.raises(synk.InputError, match="KERAS_BACKEND"):
        interop.from_keras(mlp(keras), cross_entropy(keras))


def test_keras_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keras", None)
    with pytest.raises(synk.BackendMissing, match=r"synkhronos\[keras\]"):
        interop.from_keras(None)


@pytest.mark.thorough
@pytest.mark.parametrize("rule", [rules.EASGD(), rules.Average(5)], ids=str)
def test_digits_are_learned_as_by_keras(keras: Any, pair: synk.Group, rule: Any) -> None:
    """Within a point of the accuracy of Keras's own training on one process."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = (x[order] / 16).astype("float32"), y[order].astype("int64")
    learned, held_out = slice(1437), slice(1437, None)

    def accuracy(model: Any) -> float:
        return float((model.predict(x[held_out], verbose=0).argmax(1) == y[held_out]).mean())

    def made() -> Any:
        keras.utils.set_random_seed(1)
        dense = keras.layers.Dense
        return keras.Sequential([keras.Input((64,)), dense(64, activation="relu"), dense(10)])

    serial = made()
    serial.compile(optimizer=keras.optimizers.SGD(0.3), loss=cross_entropy(keras))
    serial.fit(x[learned], y[learned].astype("int32"), batch_size=32, epochs=60, verbose=0)
    net = interop.from_keras(made(), cross_entropy(keras))
    train = make_train_function(
        net.loss, net.params, *net.inputs, updates.sgd, learning_rate=0.3, mode="JAX", rule=rule
    )
    data = train.build_inputs(x[learned], y[learned])
    batches = Batches(1437, 64 if rule.meets else 32, seed=1)  # 32 rows in each member's step
    if rule.meets:
        for _ in range(60):
            for batch in batches:
                train(*data, batch=batch)
        train.meet()
    else:
        with train.start(*data, batches, epochs=60) as run:
            assert run.wait()
    assert abs(accuracy(net.store()) - accuracy(serial)) <= 0.01
    assert accuracy(serial) > 0.95


GLOROT = {"class_name": "VarianceScaling", "config": {"scale": 1.0, "mode": "fan_avg"}}


def keras_1() -> dict[str, Any]:
    """As mpi_learn's own MNIST model, smaller, written by Keras 1.2."""
    layers = [
        (
            "Convolution2D",
            {
                **{"batch_input_shape": [None, 8, 8, 1], "nb_filter": 4, "nb_row": 3, "nb_col": 3},
                **{"border_mode": "valid", "subsample": [1, 1], "dim_ordering": "tf"},
                **{"init": "glorot_uniform", "bias": True, "activation": "linear"},
                **{"W_regularizer": {"name": "WeightRegularizer", "l1": 0.0, "l2": 0.01}},
                **{"b_regularizer": None, "W_constraint": None, "input_dtype": "float32"},
            },
        ),
        ("Activation", {"activation": "relu"}),
        (
            "MaxPooling2D",
            {"pool_size": [2, 2], "strides": [2, 2], "border_mode": "valid", "dim_ordering": "tf"},
        ),
        ("Dropout", {"p": 0.25}),
        ("Flatten", {}),
        ("Dense", {"output_dim": 5, "input_dim": 36, "init": "he_normal", "activation": "softmax"}),
    ]
    config = [
        {"class_name": kind, "config": {"name": f"layer_{i}", "trainable": True, **each}}
        for i, (kind, each) in enumerate(layers)
    ]
    return {"class_name": "Sequential", "config": config, "keras_version": "1.2.2"}


def keras_2(functional: bool) -> dict[str, Any]:
    dense = {"units": 3, "use_bias": True, "kernel_initializer": GLOROT, "trainable": True}
    first = {"name": "first", **dense, "activation": "tanh", "batch_input_shape": [None, 4]}
    last = {"name": "last", **dense, "activation": "linear"}
    if not functional:
        config = [{"class_name": "Dense", "config": each} for each in (first, last)]
        inside = {"name": "net", "layers": config}
        return {"class_name": "Sequential", "config": inside, "keras_version": "2.2.4"}
    layers = [
        {
            "name": "x",
            "class_name": "InputLayer",
            "config": {"batch_input_shape": [None, 4], "dtype": "float32", "name": "x"},
            "inbound_nodes": [],
        },
        {
            **{"name": "first", "class_name": "Dense", "config": first},
            "inbound_nodes": [[["x", 0, 0, {}]]],
        },
        {
            "name": "both",
            "class_name": "Concatenate",
            "config": {"name": "both", "trainable": True, "axis": -1},
            "inbound_nodes": [[["first", 0, 0, {}], ["x", 0, 0, {}]]],
        },
        {
            **{"name": "last", "class_name": "Dense", "config": last},
            "inbound_nodes": [[["both", 0, 0, {}]]],
        },
    ]
    ends = {"input_layers": [["x", 0, 0]], "output_layers": [["last", 0, 0]]}
    inside = {"name": "net", "layers": layers, **ends}
    return {"class_name": "Model", "config": inside, "keras_version": "2.1.6"}


def written(folder: Path, table: Any) -> Path:
    (folder / "model.json").write_text(json.dumps(table))
    return folder / "model.json"


def test_models_from_the_json_of_keras_1(keras: ModuleType, tmp_path: Path) -> None:
    """The layers that the same calls of Keras 3 make, with the options of each."""
    net = interop.from_keras(written(tmp_path, keras_1()), "categorical_crossentropy")
    conv, _, pool, drop, _, dense = net.model.layers
    assert (conv.filters, conv.kernel_size, conv.padding) == (4, (3, 3), "valid")
    assert conv.data_format == pool.data_format == "channels_last"
    assert conv.kernel_regularizer.l2 == pytest.approx(0.01)
    assert (pool.pool_size, drop.rate, dense.units) == ((2, 2), 0.25, 5)
    assert type(dense.kernel_initializer).__name__ == "HeNormal"
    assert net.model.input_shape == (None, 8, 8, 1)
    assert list(net.metrics) == ["loss", "accuracy"]  # of labels that are one-hot
    assert net.inputs[1].type.ndim == 2


def recurrent(**options: Any) -> dict[str, Any]:
    """A model of Keras 1 with options of its recurrent and embedding layers."""
    given = {"init": "uniform", "W_regularizer": {"name": "WeightRegularizer", "l2": 0.5}}
    words = {"batch_input_shape": [None, 5], "input_dim": 9, "output_dim": 4, "dropout": 0.0}
    states = {"output_dim": 3, "init": "glorot_uniform", "inner_init": "orthogonal"}
    states |= {"activation": "tanh", "inner_activation": "hard_sigmoid", "consume_less": "cpu"}
    layers: list[tuple[str, dict[str, Any]]] = [
        ("Embedding", {**given, **words, "W_constraint": None, "mask_zero": False}),
        ("GRU", {**states, "return_sequences": True}),
        ("LSTM", {**states, "forget_bias_init": "one"}),
        ("Dense", {"output_dim": 2, "activation": "hard_sigmoid"}),
    ]
    config = [
        {"class_name": kind, "config": {**each, "name": kind.lower(), **options.get(kind, {})}}
        for kind, each in layers
    ]
    return {"class_name": "Sequential", "config": config, "keras_version": "1.2.2"}


@pytest.mark.thorough  # other layers: the test above
def test_recurrent_layers_of_keras_1(keras: Any, tmp_path: Path) -> None:
    """The recurrence, the activation and the arguments are those of Keras 1, not of Keras 3."""
    net = interop.from_keras(written(tmp_path, recurrent()), "mse")
    embedding, gru, lstm, dense = net.model.layers
    assert embedding.embeddings_regularizer.l2 == pytest.approx(0.5)
    assert type(embedding.embeddings_initializer).__name__ == "RandomUniform"
    assert not gru.reset_after
    assert lstm.unit_forget_bias
    at = np.linspace(-4, 4, 33, dtype="float32")
    for activation in (gru.recurrent_activation, lstm.recurrent_activation, dense.activation):
        np.testing.assert_allclose(activation(at), np.clip(0.2 * at + 0.5, 0, 1), atol=1e-6)
    source, words = net.outputs.owner.op.model, np.arange(10).reshape(2, 5)
    weights = [v.get_value() for v in (*net.params, *net.state)]
    found = source.function("scores")(words, *weights)  # of the model's text
    np.testing.assert_allclose(found, net.model(words), rtol=1e-5, atol=1e-6)
    assert not net.model.layers[1].from_config(gru.get_config()).reset_after


@pytest.mark.parametrize(
    ("kind", "option", "message"),
    [
        ("LSTM", {"forget_bias_init": "uniform"}, "forget_bias_init is 'uniform'"),
        ("LSTM", {"time_major": True}, "time_major"),
        ("Embedding", {"dropout": 0.5}, "dropout"),
    ],
)
def test_options_that_keras_3_does_not_have(
    keras: Any, tmp_path: Path, kind: str, option: dict[str, Any], message: str
) -> None:
    path = written(tmp_path, recurrent(**{kind: option}))
    with pytest.raises(synk.InputError, match=message):
        interop.from_keras(path, "mse")


@pytest.mark.parametrize("functional", [*thorough(False), True])
def test_models_from_the_json_of_keras_2(
    keras: ModuleType, tmp_path: Path, functional: bool
) -> None:
    net = interop.from_keras(written(tmp_path, keras_2(functional)), "mean_squared_error")
    first, second, last, other = (p.get_value() for p in net.params)
    rows = ROWS[:, :4]
    hidden = np.tanh(rows @ first + second)
    if functional:
        hidden = np.concatenate([hidden, rows], axis=1)
    found, wanted = net.model.predict(rows, verbose=0), hidden @ last + other
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)  # float32, of size 1
    assert list(net.metrics) == ["loss"]


def test_models_from_the_json_of_keras_3(keras: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text(mlp(keras).to_json())
    net = interop.from_keras(tmp_path / "model.json", cross_entropy(keras))
    assert net.model.count_params() == mlp(keras).count_params()


def test_json_that_is_no_model(keras: ModuleType, tmp_path: Path) -> None:
    other = {**keras_2(False), "class_name": "Graph"}
    unknown = keras_1()
    unknown["config"][1]["class_name"] = "MaxoutDense"
    for table, message in (
        (3, "is not the JSON of model.to_json"),
        (other, "of Keras 2.2.4: ValueError: it is a Graph"),
        (unknown, "of Keras 1.2.2: ValueError: there is no layer MaxoutDense"),
    ):
        with pytest.raises(synk.InputError, match=message):
            interop.from_keras(written(tmp_path, table), "mse")
    with pytest.raises(synk.InputError, match=r"nothing.json cannot be read"):
        interop.from_keras(tmp_path / "nothing.json", "mse")


@pytest.mark.thorough  # of several: test_fit_validates_and_resumes
def test_accuracy_of_two_classes(keras: ModuleType) -> None:
    """Of one probability, or one logit, for a row."""
    target = (ROWS[:, :1] > 0).astype("float32")
    for loss, limit in (
        ("binary_crossentropy", 0.5),
        (keras.losses.BinaryCrossentropy(from_logits=True), 0.0),
    ):
        net = interop.from_keras(mlp(keras, classes=1), loss)
        metric = net.metrics["accuracy"]
        x, y = net.inputs
        sums = pytensor.function([x, y], list(metric.sums), mode="JAX")(ROWS, target)
        expected = np.mean((net.model.predict(ROWS, verbose=0) > limit) == (target > 0.5))
        assert metric.finish(*map(float, sums)) == pytest.approx(expected)
