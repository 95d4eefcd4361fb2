"""Keras models from their JSON: of Keras 3, and of Keras 1 and 2, whose names are translated."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from synkhronos._errors import InputError
from synkhronos._host import files

Layer = Mapping[str, Any]

_CLASSES = {
    "Convolution1D": "Conv1D",
    "Convolution2D": "Conv2D",
    "Convolution3D": "Conv3D",
    "Deconvolution2D": "Conv2DTranspose",
    "SeparableConvolution2D": "SeparableConv2D",
    "AtrousConvolution2D": "Conv2D",
}
# names of Keras 1, by those of Keras 2 and 3
_NAMES = {
    "bias": "use_bias",
    "init": "kernel_initializer",
    "inner_init": "recurrent_initializer",
    "inner_activation": "recurrent_activation",
    "nb_filter": "filters",
    "filter_length": "kernel_size",
    "subsample": "strides",
    "subsample_length": "strides",
    "stride": "strides",
    "pool_length": "pool_size",
    "atrous_rate": "dilation_rate",
    "border_mode": "padding",
    "p": "rate",
    "dropout_W": "dropout",
    "dropout_U": "recurrent_dropout",
    "W_regularizer": "kernel_regularizer",
    "b_regularizer": "bias_regularizer",
    "U_regularizer": "recurrent_regularizer",
    "W_constraint": "kernel_constraint",
    "b_constraint": "bias_constraint",
}
_OF_EMBEDDINGS = {
    "init": "embeddings_initializer",
    "W_regularizer": "embeddings_regularizer",
    "W_constraint": "embeddings_constraint",
}
_WITH_UNITS = ("Dense", "LSTM", "GRU", "SimpleRNN")
_INITIALIZERS = {"zero": "zeros", "one": "ones", "uniform": "random_uniform"}
_INITIALIZERS |= {"normal": "random_normal"}
_FORGET = {"one": True, "ones": True, "zero": False, "zeros": False}
_FORMATS = {"th": "channels_first", "tf": "channels_last"}
# what says nothing of the result, or is a part of the input
_LEFT_OUT = (
    *("batch_input_shape", "input_shape", "input_dtype", "input_length", "consume_less"),
    *("implementation", "ragged"),
)


def model_of(keras: ModuleType, path: Any) -> Any:
    """The model of a file that ``model.to_json()`` has filled, with weights that Keras draws.

    Raises
    ------
    InputError
        The file cannot be read, or Keras cannot make the model.
    """
    file = Path(os.fspath(path))
    try:
        text = files.read_text(file)
        table = json.loads(text)
    except (OSError, ValueError, RecursionError) as exc:
        raise InputError(
            f"from_keras: {file} cannot be read: {exc}: give the JSON of model.to_json()"
        ) from None
    if not isinstance(table, dict) or "class_name" not in table or "config" not in table:
        raise InputError(f"from_keras: {file} is not the JSON of model.to_json()")
    try:
        if "module" in table:
            return keras.models.model_from_json(text)
        return _older(keras, table)
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        version = table.get("keras_version", "1 or 2")
        raise InputError(
            f"from_keras: {file}: Keras {keras.__version__} cannot make this model of Keras "
            f"{version}: {type(exc).__name__}: {exc}"
        ) from exc


def _older(keras: ModuleType, table: Layer) -> Any:
    """The model of Keras 1 or 2."""
    keras.saving.register_keras_serializable("synkhronos", "hard_sigmoid_of_keras_2")(hard_sigmoid)
    config = table["config"]
    layers = config if isinstance(config, list) else config["layers"]
    if table["class_name"] == "Sequential":
        first = layers[0]["config"]
        shape = first.get("batch_input_shape") or [None, *_shape(first)]
        made = [_layer(keras, each) for each in layers if each["class_name"] != "InputLayer"]
        return keras.Sequential([keras.Input(batch_shape=tuple(shape)), *made])
    if table["class_name"] not in ("Model", "Functional"):
        raise ValueError(f"it is a {table['class_name']}, and neither Sequential nor Model")
    return _functional(keras, config, layers)


def _shape(config: Layer) -> Sequence[object]:
    if "input_shape" in config:
        return list(config["input_shape"])
    return [config["input_dim"]]


def _functional(keras: ModuleType, config: Layer, layers: Sequence[Layer]) -> object:
    """A model of layers that are called one after the other; each may be called several times."""
    found: dict[tuple[str, int], object] = {}
    for each in layers:
        name = each.get("name", each["config"]["name"])
        if each["class_name"] == "InputLayer":
            shape = tuple(each["config"]["batch_input_shape"])
            dtype = each["config"].get("dtype", each["config"].get("input_dtype"))
            found[name, 0] = keras.Input(batch_shape=shape, dtype=dtype, name=name)
            continue
        made = _layer(keras, each)
        for number, node in enumerate(each["inbound_nodes"]):
            given = [found[before, call] for before, call, *_ in node]
            options = node[0][3] if len(node[0]) > 3 else {}
            found[name, number] = made(given[0] if len(given) == 1 else given, **options)
    ends = [[found[name, call] for name, call, *_ in config[key]] for key in _ENDS]
    inputs, outputs = (each[0] if len(each) == 1 else each for each in ends)
    return keras.Model(inputs, outputs, name=config.get("name"))


_ENDS = ("input_layers", "output_layers")


def _layer(keras: ModuleType, each: Layer) -> Any:
    """A layer of Keras 3."""
    name = str(_CLASSES.get(each["class_name"], each["class_name"]))
    kind: Any = getattr(keras.layers, name, None)
    if kind is None:
        known = keras.saving.get_registered_object(name)
        if known is None:
            raise ValueError(f"there is no layer {name}")
        kind = known
    make: Callable[..., object] = kind.from_config
    return make(_options(name, each["config"]))


def _options(kind: str, config: Layer) -> dict[str, object]:
    """The arguments of a layer, by the names of Keras 3."""
    given = {k: v for k, v in config.items() if k not in _LEFT_OUT}
    names = _NAMES
    if kind == "Embedding":
        names = _NAMES | _OF_EMBEDDINGS
        if not given.get("dropout"):
            given.pop("dropout", None)
    else:
        given.pop("input_dim", None)
    if not given.get("time_major"):
        given.pop("time_major", None)
    if "output_dim" in given and kind in _WITH_UNITS:
        given["units"] = given.pop("output_dim")
    if "nb_row" in given:
        given["kernel_size"] = [given.pop("nb_row"), given.pop("nb_col")]
    if "dim_ordering" in given:
        given["data_format"] = _FORMATS.get(given.pop("dim_ordering"))
    found = {names.get(name, name): value for name, value in given.items()}
    if kind == "GRU":
        found.setdefault("reset_after", False)  # Keras 3 takes True
    if "forget_bias_init" in found:
        drawn = found.pop("forget_bias_init")
        if drawn not in _FORGET:
            raise ValueError(f"forget_bias_init is {drawn!r}, and Keras 3 knows one and zero")
        found["unit_forget_bias"] = _FORGET[drawn]
    if isinstance(found.get("axis"), list) and len(found["axis"]) == 1:
        found["axis"] = found["axis"][0]
    for name, value in found.items():
        if name in ("activation", "recurrent_activation") and value == "hard_sigmoid":
            found[name] = hard_sigmoid
        if name.endswith("_initializer") and isinstance(value, str):
            found[name] = _INITIALIZERS.get(value, value)
        if name.endswith("_regularizer") and isinstance(value, dict) and "name" in value:
            found[name] = _regularizer(value)
    return found


def hard_sigmoid(x: Any) -> Any:
    """The function of this name in Keras 1 and 2; that of Keras 3 has a slope of 1/6."""
    return (0.2 * x + 0.5).clip(0, 1)


def _regularizer(value: Mapping[str, object]) -> dict[str, object]:
    """The regularizer of Keras 1, in the form of Keras 2 and 3."""
    config = {name: value.get(name, 0.0) for name in ("l1", "l2")}
    return {"class_name": "L1L2", "config": config}
