"""Keras 3 models on JAX: each member makes the model anew from its text, and calls it stateless.

The weights of the model become shared variables. So a training function, a rule, a checkpoint and a
metric treat them as they treat any others, and the copy of the model in a member computes only.
"""

# These rules hold here:
#
# * The user's model is read, and never changed before `store`. A copy computes, made of the model's
#   text in each member.
# * Equal texts, of equal classes of the user, are equal models: operations compare by `KerasModel`,
#   and a process makes each once.
# * The copy holds no values that count. Weights and state are inputs of each operation, and no
#   state comes back. A model whose state training changes is refused, but for seeds of random
#   numbers.
# * Keras gives the loss of each row: the copy's reduction is "none". The sum or mean over rows is
#   in PyTensor's graph, where it can be proved; penalties on weights are added once.
# * Shapes are inferred by JAX, which computes nothing for that.
# * Keras and JAX are imported inside of functions only.

from __future__ import annotations

import contextlib
import functools
import json
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FunctionType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from synkhronos._checks import shown
from synkhronos._errors import BackendMissing, InputError, InputTypeError
from synkhronos._libraries.keras import KERAS
from synkhronos.interop._keras_json import model_of
from synkhronos.interop._operations import Called
from synkhronos.training.metrics import Metric, accuracy
from synkhronos.training.net import Net

if TYPE_CHECKING:
    import jax
    import keras

_LABELS = ("sparse_categorical_crossentropy", "SparseCategoricalCrossentropy")
_PROBED = 2, 7  # rows, and the length of axes that a model leaves open, where shapes are inferred


@dataclass(frozen=True, kw_only=True)
class KerasNet(Net):
    """A Keras model as the trainer takes it: a `Net`, and the model.

    Parameters
    ----------
    model : keras.Model
        Its weights are those of before the training, until `store`.
    state : sequence of SharedVariable
        Weights that are not trained, such as those of frozen layers.

    Notes
    -----
    `from_keras` makes it. Functions of its expressions run in mode JAX.
    """

    model: keras.Model
    state: Sequence[SharedVariable] = ()

    def store(self) -> keras.Model:
        """Write the trained weights into the Keras model, which then predicts and saves with them.

        Returns
        -------
        keras.Model

        Notes
        -----
        Cost: one copy of the weights. The optimizer of the Keras model is not touched.

        >>> net.store().save("trained.keras")  # doctest: +SKIP
        """
        for variable, p in zip(self.model.trainable_variables, self.params, strict=True):
            variable.assign(p.get_value())
        return self.model


def from_keras(
    model: keras.Model,
    loss: object = None,
    *,
    inputs: object = None,
    y: Variable | None = None,
    seed: int = 0,
) -> KerasNet:
    """Let a group train a Keras 3 model.

    Parameters
    ----------
    model : keras.Model or path
        A built model with one output, on Keras's backend "jax". It is not changed before `store`.
        Or a file with the JSON of ``model.to_json()``, of Keras 1, 2 or 3: its weights are drawn.
    loss : str, keras.losses.Loss or function, optional
        Default: that of ``model.compile``.
    inputs : variable or list of them, optional
        Default: from the model. Models that are classes of their own do not know their inputs.
    y : variable, optional
        What the loss compares the model's output with. Default: an int64 vector for sparse
        categorical cross-entropy, else of the type of the output.
    seed : int
        Of dropout. Each member draws its own numbers.

    Returns
    -------
    KerasNet
        ``loss`` includes penalties on weights. ``outputs`` and ``metrics`` are those of prediction.
        Compile all with ``mode="JAX"``.

    Raises
    ------
    BackendMissing
        Keras is not installed.
    InputError, InputTypeError
        Keras does not run on JAX, or the model cannot be divided over rows: it has batch
        normalisation or another state that training changes, losses of activities, a mask, or a
        loss with another reduction than a mean or a sum.

    Notes
    -----
    The loss of each row comes from ``model.stateless_call``, its gradient from JAX. So the members'
    gradients add up to that of all rows.

    Cost: one more copy of the weights in each member. Own layers and losses need
    ``@keras.saving.register_keras_serializable()``.

    Examples
    --------
    >>> import keras, synkhronos as synk  # doctest: +SKIP
    >>> from synkhronos.interop import from_keras  # doctest: +SKIP
    >>> from synkhronos.extensions import make_train_function, updates  # doctest: +SKIP
    >>> layers = [keras.Input((64,)), keras.layers.Dense(10)]  # doctest: +SKIP
    >>> scores = keras.losses.SparseCategoricalCrossentropy(from_logits=True)  # doctest: +SKIP
    >>> net = from_keras(keras.Sequential(layers), scores)  # doctest: +SKIP
    >>> _ = synk.fork(2)  # doctest: +SKIP
    >>> train = make_train_function(
    ...     net.loss, net.params, *net.inputs, updates.adam, mode="JAX"
    ... )  # doctest: +SKIP
    """
    keras = _on_jax()
    if isinstance(model, str | os.PathLike):
        model = model_of(keras, model)
    _check_model(keras, model)
    found, reduction, labels = _loss_of(keras, model, loss)
    given = _inputs_of(model, inputs)
    kept = [v for v in model.non_trainable_variables if id(v) not in _seeds(model)]
    text = _text(keras, model)
    compared = json.dumps(keras.saving.serialize_keras_object(found))
    custom = _custom(keras, model, found, text + compared)
    source = KerasModel(text, compared, len(given), bool(_seeds(model)), reduction == "sum", custom)
    made = source.made()
    if _shapes(made.model) != _shapes(model):
        raise InputError(f"from_keras: {model.name} made from its config has other weights")
    params = [pytensor.shared(_value(v), name=v.path) for v in model.trainable_variables]
    state = [pytensor.shared(_value(v), name=v.path) for v in kept]
    kind = _probed(source, given)
    target = y if y is not None else (pt.lvector("y") if labels else kind("y"))
    words, updates = _words(given[0], seed) if source.random else ([], None)

    def value(what: str, rows: Sequence[object], kind: object) -> Any:
        return Called(source, what, len(rows), len(params), kind)(*rows, *params, *state)

    scores = value("scores", given, kind)
    scores.name = "scores"
    each = pt.TensorType(kind.dtype, (None,))
    rows = value("losses", [*given, target, *words], each)
    plain = value("plain losses", [*given, target], each)
    total = rows.sum() if reduction == "sum" else rows.mean()
    validated = plain.sum() if reduction == "sum" else plain.mean()
    if any(v.regularizer is not None for v in model.trainable_variables):
        penalty = Called(source, "penalty", 0, len(params), pt.TensorType(kind.dtype, ()))
        total, validated = total + penalty(*params, *state), validated + penalty(*params, *state)
    metrics: dict[str, object] = {"loss": validated}
    right = _accuracy(found, scores, target)
    if right is not None:
        metrics["accuracy"] = right
    return KerasNet(
        loss=total,
        params=params,
        inputs=[*given, target],
        outputs=scores,
        metrics=metrics,
        updates=updates,
        model=model,
        state=state,
    )


@dataclass(frozen=True)
class KerasModel:
    """The texts of a model and of its loss; with equal ones, models compute the same.

    Parameters
    ----------
    text, loss : str
        Keras's own form of them, as JSON.
    inputs : int
        The number of the model's inputs.
    random : bool
        Whether training draws random numbers; words for them then follow the target.
    summed : bool
        Whether the loss of a row is the sum of its entries, or their mean.
    custom : dict
        Registered classes and functions, by their names. A name may come to mean another one, as
        where the cell of a notebook is edited and run again.
    """

    text: str
    loss: str
    inputs: int
    random: bool
    summed: bool
    custom: dict[str, object] = field(default_factory=dict, hash=False, repr=False)

    def made(self) -> SimpleNamespace:
        """The model and its loss in this process, made once."""
        return _made(self)

    def function(self, what: str) -> Callable[..., object]:
        """As for `Model`: losses and scores of rows, and the penalty on weights."""
        if what == "penalty":
            return functools.partial(_penalty, self.made())
        training = what == "losses"
        return functools.partial(_rows, self, self.made(), what != "scores", training)


@functools.lru_cache(maxsize=8)
def _made(source: KerasModel) -> SimpleNamespace:
    keras = _on_jax()
    try:
        with _registered(keras, source.custom):
            model = keras.saving.deserialize_keras_object(json.loads(source.text))
            loss = keras.saving.deserialize_keras_object(json.loads(source.loss))
    except (TypeError, ValueError) as exc:
        raise InputError(
            f"from_keras: Keras cannot make the model or its loss from the config ({exc}): "
            "decorate your own layers and losses by @keras.saving.register_keras_serializable()"
        ) from exc
    if isinstance(loss, keras.losses.Loss):
        loss.reduction = "none"
    seeds = _seeds(model)
    places = [id(v) in seeds for v in model.non_trainable_variables]
    return SimpleNamespace(model=model, loss=loss, places=places)


def _custom(keras: ModuleType, model: object, loss: Any, text: str) -> dict[str, object]:
    """The registered classes and functions in a text, first those that model and loss are of."""
    layers = KERAS.of(model, "_flatten_layers")()
    used = [*map(type, layers), loss if isinstance(loss, FunctionType) else type(loss)]
    named = {keras.saving.get_registered_name(each): each for each in used}
    known = keras.saving.get_custom_objects().items()
    return {name: named.get(name, each) for name, each in known if f'"{name}"' in text}


@contextlib.contextmanager
def _registered(keras: ModuleType, custom: dict[str, object]) -> Iterator[None]:
    """Let Keras find these by their names, whatever else has the names by now."""
    known = keras.saving.get_custom_objects()
    before = dict(known)
    known.update(custom)
    try:
        yield
    finally:
        known.clear()
        known.update(before)


def _rows(
    source: KerasModel, made: SimpleNamespace, compared: bool, training: bool, *inputs: jax.Array
) -> object:
    """Losses of rows, or what the model predicts."""
    before = source.inputs + compared + (training and source.random)
    last = before + len(made.model.trainable_variables)
    rows, weights, state = inputs[:before], inputs[before:last], inputs[last:]
    words = rows[-1] if training and source.random else None
    scores, _ = _called(made, rows[: source.inputs], weights, state, words, training)
    if not compared:
        return scores
    losses = made.loss(rows[source.inputs], scores)
    entries = losses.reshape(len(losses), -1)
    return entries.sum(axis=1) if source.summed else entries.mean(axis=1)


def _called(
    made: SimpleNamespace,
    rows: Sequence[object],
    weights: Any,
    state: Any,
    words: Any,
    training: bool,
) -> tuple[object, object]:
    """The outputs of the model for rows, and its variables after that."""
    import jax.numpy as jnp

    left, others, number = iter(state), [], 0
    for is_seed in made.places:
        if is_seed:
            word = jnp.zeros(2, "uint32") if words is None else words[0].astype("uint32")
            others.append(word + jnp.array([0, number << 16], "uint32"))
            number += 1
        else:
            others.append(next(left))
    x = rows[0] if len(rows) == 1 else list(rows)
    return made.model.stateless_call(list(weights), others, x, training=training)


def _penalty(made: SimpleNamespace, *inputs: object) -> object:
    variables = made.model.trainable_variables
    return sum(
        v.regularizer(w)
        for v, w in zip(variables, inputs, strict=False)
        if v.regularizer is not None
    )


def _on_jax() -> ModuleType:
    """Keras, which must run on JAX."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    try:
        import keras
    except ImportError as exc:
        if exc.name != "keras":  # such as another backend, which the user has chosen
            raise
        raise BackendMissing("keras", "keras") from None
    if keras.backend.backend() != "jax":
        raise InputError(
            f"from_keras: Keras runs on {keras.backend.backend()}: set the environment variable "
            "KERAS_BACKEND to jax before keras is imported"
        )
    return keras


def _text(keras: ModuleType, model: object) -> str:
    with warnings.catch_warnings():  # the rate of a compiled model, by Keras 3.15 on numpy 2.5
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
        found = keras.saving.serialize_keras_object(model)
    found.pop("compile_config", None)
    return json.dumps(found)


def _value(variable: keras.Variable) -> np.ndarray:
    return np.array(variable.value)


def _shapes(model: keras.Model) -> list[tuple[tuple[int, ...], str, bool]]:
    return [(tuple(v.shape), str(v.dtype), v.trainable) for v in model.variables]


def _seeds(model: keras.Model) -> set[int]:
    """The states of the model's random generators, by their ids."""
    layers = KERAS.of(model, "_flatten_layers")()
    return {id(g.state) for each in layers for g in KERAS.of(each, "_seed_generators")}


def _words(x: Variable, seed: int) -> tuple[list[Variable], dict[object, object]]:
    """Random words with a row for each row of x; a member draws its own."""
    rng = pytensor.shared(np.random.default_rng(seed), name="dropout")
    after, words = pt.random.integers(
        0, 2**31 - 1, size=(pt.shape(x)[0], 2), rng=rng, return_next_rng=True
    )
    return [words], {rng: after}


def _check_model(keras: ModuleType, model: keras.Model) -> None:
    if not isinstance(model, keras.Model):
        raise InputTypeError(f"from_keras: {shown(model)} is not a keras.Model")
    if not model.built or not model.trainable_variables:
        raise InputError(
            f"from_keras: {model.name} has no weights yet, or none to train: build it, such as by "
            "keras.Input as its first layer"
        )
    for each in KERAS.of(model, "_flatten_layers")():
        if getattr(each, "activity_regularizer", None) is not None:
            raise InputError(
                f"from_keras: layer {each.name} has an activity_regularizer, a loss that is not a "
                "mean over rows: leave it out"
            )


def _loss_of(keras: ModuleType, model: keras.Model, loss: object) -> tuple[object, str, bool]:
    """The loss, how it combines rows, and whether it compares with labels."""
    loss = getattr(model, "loss", None) if loss is None else loss
    if loss is None or isinstance(loss, list | tuple | dict):
        raise InputError(f"from_keras: loss={shown(loss)}: give one loss of Keras")
    try:
        found = keras.losses.get(loss)
    except ValueError as exc:
        raise InputError(f"from_keras: loss={shown(loss)}: {exc}") from None
    reduction = getattr(found, "reduction", "sum_over_batch_size")
    if reduction not in ("sum_over_batch_size", "mean", "sum"):
        raise InputError(
            f'from_keras: the loss has reduction={reduction!r}: use "sum_over_batch_size" or "sum"'
        )
    name = getattr(found, "__name__", type(found).__name__)
    return found, reduction, name in _LABELS


def _accuracy(loss: object, scores: TensorVariable, target: Any) -> Metric | None:
    """The share of right answers, of a loss that compares with classes."""
    name = getattr(loss, "__name__", type(loss).__name__).replace("_", "").lower()
    if name == "binarycrossentropy" and scores.type.ndim == target.type.ndim:
        settings: dict[str, bool] = getattr(loss, "get_config", dict)()
        logits = settings.get("from_logits", False)
        right = pt.eq(scores > (0.0 if logits else 0.5), target > 0.5)
        return Metric(
            [right.sum(dtype="int64"), pt.ones_like(target, dtype="int64").sum()],
            lambda found, n: found / n if n else np.nan,
        )
    if name.endswith("categoricalcrossentropy") and scores.type.ndim == 2:
        return accuracy(scores, target) if target.type.ndim in (1, 2) else None
    return None


def _inputs_of(model: keras.Model, inputs: object) -> list[Variable]:
    if inputs is not None:
        found: list[Any] = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        if not all(isinstance(v, pt.TensorVariable) and v.type.ndim for v in found):
            raise InputTypeError(f"from_keras: inputs={shown(inputs)}: give variables with rows")
        return found
    try:
        declared = model.inputs
    except AttributeError:
        declared = None
    if not declared:
        raise InputError(
            f"from_keras: {model.name} does not say what its inputs are: give inputs=, such as "
            'pt.matrix("x", dtype="float32")'
        )
    return [pt.tensor(v.name, dtype=str(v.dtype), shape=(None, *v.shape[1:])) for v in declared]


def _probed(source: KerasModel, given: Sequence[Any]) -> Any:
    """The type of the model's output; raises if its rows cannot be computed apart."""
    import jax

    from synkhronos._libraries.keras import get_keras_mask  # which its losses read

    made = source.made()
    rows = [
        jax.ShapeDtypeStruct([n or _PROBED[i > 0] for i, n in enumerate(v.type.shape)], v.dtype)
        for v in given
    ]
    variables = made.model.trainable_variables, made.model.non_trainable_variables
    values = [[jax.ShapeDtypeStruct(v.shape, v.dtype) for v in each] for each in variables]

    def called(rows: Any, weights: object, state: Any) -> object:
        x = rows[0] if len(rows) == 1 else rows
        found = made.model.stateless_call(weights, state, x, training=True, return_losses=True)
        scores, after, losses = found
        shapes = [(v.shape, v.dtype) for v in jax.tree.leaves(scores)]
        masked = get_keras_mask(scores) is not None
        changed.extend(new is not old for new, old in zip(after, state, strict=True))
        notes.update(outputs=shapes, losses=len(losses), masked=masked)
        return 0

    changed: list[bool] = []
    notes: dict[str, Any] = {}
    jax.eval_shape(called, rows, *values)
    _check_rows(made, changed, notes)
    [(shape, dtype)] = notes["outputs"]
    fixed = all(None not in v.type.shape[1:] for v in given)
    return pt.TensorType(str(dtype), (None, *(n if fixed else None for n in shape[1:])))


def _check_rows(made: SimpleNamespace, changed: Sequence[bool], notes: dict[str, Any]) -> None:
    name, places = made.model.name, made.places
    for variable, moves, is_seed in zip(
        made.model.non_trainable_variables, changed, places, strict=True
    ):
        if moves and not is_seed:
            raise InputError(
                f"from_keras: training changes {variable.path}, of which each member would have "
                "its own value: use GroupNormalization or LayerNormalization instead of batch "
                "normalisation, or freeze the layer (layer.trainable = False)"
            )
    if len(notes["outputs"]) != 1:
        raise InputError(f"from_keras: {name} has {len(notes['outputs'])} outputs: give one output")
    penalties = sum(v.regularizer is not None for v in made.model.trainable_variables)
    if notes["losses"] != penalties:
        raise InputError(
            f"from_keras: a layer of {name} calls add_loss, whose reduction over rows is not "
            "known: write that loss into loss="
        )
    if notes["masked"]:
        raise InputError(
            f"from_keras: the output of {name} has a mask (such as by mask_zero=True), so rows "
            "have unequal weights in the loss: return one vector for each row"
        )
