"""Layers that the networks share: functions from expressions to expressions.

Images are (rows, height, width, channels). Numbers of channels follow from static shapes.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytensor
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable
from pytensor_ml.layers import Dropout, Input, Linear

from synkhronos._checks import check_number, shown
from synkhronos._errors import InputError, InputTypeError
from synkhronos.nn import BatchNorm, Conv2D, MaxPool2D, augment
from synkhronos.zoo._network import He

Pair = tuple[int, int]


class Images(NamedTuple):
    """The images that a network is given, and what its first layer sees."""

    given: TensorVariable  # floatX; with augmentation uint8
    seen: TensorVariable
    words: TensorVariable | None  # of augmentation


def images(size: int | Pair, channels: int, moved: Mapping[str, Any] | None) -> Images:
    """The input of a network for images; `moved` holds arguments of `synkhronos.nn.augment`."""
    lengths = (size, size) if isinstance(size, int) else tuple(size)
    if len(lengths) != 2:
        raise InputError(f"size={shown(size)}: give pixels to a side, or (height, width)")
    shape = (None, *lengths, channels)
    if moved is None:
        x = Input("x", shape, pytensor.config.floatX)
        return Images(x, x, None)
    if not isinstance(moved, Mapping):
        raise InputTypeError(
            f"augment={shown(moved)}: give a dict of arguments of synkhronos.nn.augment"
        )
    x, words = Input("x", shape, "uint8"), pt.vector("words", dtype="uint64")
    try:
        seen = augment(x, words, **moved)
    except TypeError as exc:
        raise InputTypeError(f"augment={shown(moved)}: {exc}") from None
    return Images(x, seen.astype(pytensor.config.floatX), words)


def relu(x: TensorVariable) -> TensorVariable:
    """The positive part."""
    return pt.maximum(x, 0)


def conv(
    name: str,
    x: TensorVariable,
    new: int,
    window: int | Pair = 3,
    stride: int = 1,
    padding: str | int | Pair = "same",
    *,
    bias: bool = True,
    groups: int = 1,
) -> TensorVariable:
    """A convolution."""
    layer = Conv2D(
        name,
        in_channels=x.type.shape[3],
        out_channels=new,
        kernel_size=window,
        stride=stride,
        padding=padding,
        bias=bias,
        groups=groups,
        weight_initializer=He(),
    )
    return layer(x)


def norm(name: str, x: TensorVariable, epsilon: float = 1e-5) -> TensorVariable:
    """Batch normalisation over the rows of all members."""
    return BatchNorm(f"{name}_norm", n_in=x.type.shape[-1], epsilon=epsilon)(x)


def conv_norm(
    name: str, x: TensorVariable, new: int, *where: Any, groups: int = 1, epsilon: float = 1e-5
) -> TensorVariable:
    """A convolution without bias, then batch normalisation."""
    return norm(name, conv(name, x, new, *where, bias=False, groups=groups), epsilon)


def norm_conv(name: str, x: TensorVariable, new: int, *where: Any) -> TensorVariable:
    """Batch normalisation and rectifier, then a convolution without bias."""
    return conv(name, relu(norm(name, x)), new, *where, bias=False)


def pool(x: TensorVariable, window: int = 3, stride: int = 2, padding: int = 1) -> TensorVariable:
    """The largest value of each window."""
    return MaxPool2D(kernel_size=window, stride=stride, padding=padding)(x)


def average(x: TensorVariable) -> TensorVariable:
    """The mean over all pixels, of shape (rows, channels)."""
    return x.mean(axis=(1, 2))


def flat(x: TensorVariable) -> TensorVariable:
    """All values of a row, of shape (rows, values)."""
    if x.type.ndim == 2:
        return x
    return x.reshape((x.shape[0], math.prod(x.type.shape[1:])))


def linear(name: str, x: TensorVariable, new: int) -> TensorVariable:
    """A layer of units."""
    return Linear(name, n_in=x.type.shape[-1], n_out=new, weight_initializer=He())(x)


def drop(name: str, x: TensorVariable, rate: float, seed: int | None) -> TensorVariable:
    """Remove a share of the values in training; each name draws other ones from the seed."""
    if not check_number("dropout", rate, 0, below=1):
        return x
    return Dropout(name, p=float(rate), random_state=[seed or 0, zlib.crc32(name.encode())])(x)


def known(depths: Mapping[int, object], depth: int) -> Any:
    """The entry for a depth, or raise."""
    if depth not in depths:
        there = ", ".join(map(str, depths))
        raise InputError(f"depth={shown(depth)}: there are {there}")
    return depths[depth]
