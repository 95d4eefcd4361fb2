"""PyDTNN's models, as networks of `synkhronos.zoo`."""

from __future__ import annotations

import re

Arguments = dict[str, object]

SHAPES = {"mnist": (28, 28, 1), "cifar10": (32, 32, 3)}  # of an image
STORED, SEEN = 227, 224  # pixels of ImageNet's images in files, and in all models but AlexNet
_SMALL_ALEXNET: Arguments = {
    "blocks": [[64], [192], [384, 256, 256]],
    "units": [4096, 4096],
    "stride": 2,
}
_FIRST: dict[str, Arguments] = {  # what its version 1.0 had otherwise
    "simplecnn": {"padded": False, "dropout": 0.0},
    "alexnet": {"dropout": 0.0},
}
_CNNS: dict[str, Arguments] = {
    "simplecnn": {},
    "alexnet": _SMALL_ALEXNET,
    "vgg1": {"blocks": [[32, 32]], "dropout": 0.0},
    "vgg2": {"blocks": [[32, 32], [64, 64]], "dropout": 0.0},
    "vgg3": {"blocks": [[32, 32], [64, 64], [128, 128]], "dropout": 0.0},
}
_MLP: Arguments = {"hidden": [512, 512, 512], "dropout": 0.0, "input_dropout": 0.0}
_DEPTHS = {
    "vgg": (11, 16, 19),
    "cifar_resnet": (20, 32, 44, 56, 110),
    "resnet": (18, 34, 50, 101, 152),
    "densenet": (121, 161, 169, 201),
}


def network_of(model: str, dataset: str, first: bool = False) -> tuple[str, Arguments] | None:
    """The function of the zoo that makes a model, and its arguments; None if it has no such model.

    `first`: the model is that of version 1.0.

    >>> network_of("vgg16", "cifar10")
    ('vgg', {'depth': 16, 'classes': 10, 'size': 32, 'units': 512})
    >>> network_of("simplecnn", "mnist", first=True)
    ('cnn', {'padded': False, 'dropout': 0.0})
    >>> network_of("vgg16bn_cifar10", "cifar10") is None
    True
    """
    found = _network_of(model, dataset)
    return (found[0], found[1] | _FIRST.get(model, {})) if found and first else found


def _network_of(model: str, dataset: str) -> tuple[str, Arguments] | None:
    name, _, given = model.partition("_")
    data = given or dataset
    if name == "simplemlp":
        return "mlp", {"shape": list(SHAPES.get(data, SHAPES["mnist"])), **_MLP}
    if name in _CNNS and data in SHAPES:
        height, _, channels = SHAPES[data]
        sizes = {} if data == "mnist" else {"size": height, "channels": channels}
        return "cnn", {**_CNNS[name], **sizes}
    if name == "alexnet":
        return "alexnet", {"size": STORED}
    if match := re.fullmatch(r"(vgg|resnet|densenet)(\d+)", name):
        return _deep(match[1], int(match[2]), data)
    return None


def _deep(family: str, depth: int, data: str) -> tuple[str, Arguments] | None:
    small = data == "cifar10"
    if family == "resnet" and small:
        family = "cifar_resnet"
    if depth not in _DEPTHS[family] or (family == "densenet" and small):
        return None
    arguments: Arguments = {"depth": depth}
    if small:
        arguments["classes"] = 10
    if family == "vgg" and small:
        arguments |= {"size": 32, "units": 512}
    return family, arguments
