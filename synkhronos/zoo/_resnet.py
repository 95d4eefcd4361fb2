"""Residual networks: each block adds to what it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from pytensor.tensor.variable import TensorVariable

from synkhronos._checks import shown
from synkhronos._errors import InputError
from synkhronos.nn import conv2d
from synkhronos.training.net import Net
from synkhronos.zoo._blocks import (
    average,
    conv,
    conv_norm,
    drop,
    images,
    known,
    linear,
    norm,
    pool,
    relu,
)
from synkhronos.zoo._classifier import classifier
from synkhronos.zoo._network import network

BLOCKS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}


@network
def resnet(
    depth: int = 50,
    *,
    classes: int = 1000,
    size: int | tuple[int, int] = 224,
    channels: int = 3,
    width: int = 64,
    blocks: Sequence[int] | None = None,
    augment: Mapping[str, object] | None = None,
    seed: int | None = 0,
) -> Net:
    """ResNet for large images; from a depth of 50 on, blocks have a narrow middle.

    Parameters
    ----------
    depth : 18, 34, 50, 101 or 152
    classes : int
    size : int or (height, width)
        Of the images, in pixels.
    channels : int
    width : int
        Filters of the first stage; each further stage has twice as many.
    blocks : sequence of int, optional
        Numbers of blocks of the stages, in place of those of the depth.
    augment : mapping, optional
        Arguments of `synkhronos.nn.augment`. Images are then uint8, and move in training.
    seed : int or None
        Of the weights. None: weights are 0, for those that are loaded.

    Returns
    -------
    Net
        Inputs: images (rows, height, width, channels), and labels (rows,). Outputs: scores
        (rows, classes), as in validation.

    Raises
    ------
    InputError
        An argument is out of range, or images are too small.

    Notes
    -----
    A block with a narrow middle has its stride in the 3 x 3 convolution, as most implementations.

    References
    ----------
    He et al., Deep residual learning for image recognition, arXiv:1512.03385.

    Examples
    --------
    >>> from synkhronos import zoo
    >>> net = zoo.resnet(50, seed=None)
    >>> sum(p.get_value(borrow=True).size for p in net.params)
    25557032
    """
    stages = known(BLOCKS, depth)
    block = _narrow if depth >= 50 else _plain
    seen = images(size, channels, augment)
    x = pool(relu(conv_norm("stem", seen.seen, width, 7, 2)))
    for stage, layers in enumerate(stages if blocks is None else blocks):
        for number in range(layers):
            stride = 2 if stage and not number else 1
            x = block(f"stage{stage}_{number}", x, width << stage, stride)
    return classifier(seen, linear("scores", average(x), classes))


def _plain(name: str, x: TensorVariable, new: int, stride: int) -> TensorVariable:
    """Two convolutions of 3 x 3."""
    y = relu(conv_norm(f"{name}_a", x, new, 3, stride))
    return relu(conv_norm(f"{name}_b", y, new) + _projected(name, x, new, stride))


def _narrow(name: str, x: TensorVariable, inner: int, stride: int) -> TensorVariable:
    """Convolutions of 1 x 1, 3 x 3 and 1 x 1, the last with four times the filters."""
    y = relu(conv_norm(f"{name}_a", x, inner, 1))
    y = relu(conv_norm(f"{name}_b", y, inner, 3, stride))
    return relu(conv_norm(f"{name}_c", y, 4 * inner, 1) + _projected(name, x, 4 * inner, stride))


def _projected(name: str, x: TensorVariable, new: int, stride: int) -> TensorVariable:
    """The input that a block adds to; a convolution of 1 x 1 where its shape is another."""
    if stride == 1 and x.type.shape[3] == new:
        return x
    return conv_norm(f"{name}_beside", x, new, 1, stride)


@network
def cifar_resnet(
    depth: int = 20,
    *,
    classes: int = 10,
    size: int | tuple[int, int] = 32,
    channels: int = 3,
    width: int = 16,
    augment: Mapping[str, object] | None = None,
    seed: int | None = 0,
) -> Net:
    """ResNet for small images: three stages, and shortcuts without weights.

    Parameters
    ----------
    depth : 20, 32, 44, 56, 110 ...
        6 n + 2, of n blocks in each stage.
    classes : int
    size : int or (height, width)
        Of the images, in pixels.
    channels : int
    width : int
        Filters of the first stage; each further stage has twice as many.
    augment : mapping, optional
        Arguments of `synkhronos.nn.augment`. Images are then uint8, and move in training.
    seed : int or None
        Of the weights. None: weights are 0, for those that are loaded.

    Returns
    -------
    Net
        Inputs: images (rows, height, width, channels), and labels (rows,). Outputs: scores
        (rows, classes), as in validation.

    Raises
    ------
    InputError
        An argument is out of range, or images are too small.

    References
    ----------
    He et al., arXiv:1512.03385, section 4.2, with shortcuts of kind A.

    Examples
    --------
    >>> from synkhronos import zoo
    >>> net = zoo.cifar_resnet(20, seed=None)
    >>> sum(p.get_value(borrow=True).size for p in net.params)
    269722
    """
    layers = _each(depth, 2)
    seen = images(size, channels, augment)
    x = relu(conv_norm("stem", seen.seen, width))
    for stage in range(3):
        for number in range(layers):
            stride, new = 2 if stage and not number else 1, width << stage
            name = f"stage{stage}_{number}"
            y = relu(conv_norm(f"{name}_a", x, new, 3, stride))
            x = relu(conv_norm(f"{name}_b", y, new) + _widened(x, new, stride))
    return classifier(seen, linear("scores", average(x), classes))


def _each(depth: int, others: int) -> int:
    """Blocks of each of three stages of a network with this number of other layers, or raise."""
    layers, rest = divmod(depth - others, 6)
    if rest or layers < 1:
        raise InputError(f"depth={shown(depth)}: give 6 n + {others}, such as {18 + others}")
    return layers


def _widened(x: TensorVariable, new: int, stride: int) -> TensorVariable:
    """Every second pixel, with channels of 0 beside, as a convolution with a constant."""
    old = x.type.shape[3]
    if stride == 1 and old == new:
        return x
    return conv2d(x, np.eye(old, new, dtype=x.dtype)[None, None], stride)


@network
def wide_resnet(
    depth: int = 28,
    widen: int = 10,
    *,
    classes: int = 10,
    size: int | tuple[int, int] = 32,
    channels: int = 3,
    dropout: float = 0.0,
    augment: Mapping[str, object] | None = None,
    seed: int | None = 0,
) -> Net:
    """Wide ResNet for small images: few wide blocks, which normalise before they convolve.

    Parameters
    ----------
    depth : 10, 16, 22, 28, 40 ...
        6 n + 4, of n blocks in each stage.
    widen : int
        The stages have 16, 32 and 64 times this number of filters.
    classes : int
    size : int or (height, width)
        Of the images, in pixels.
    channels : int
    dropout : float
        Share of the values between the convolutions of a block that is removed in training.
    augment : mapping, optional
        Arguments of `synkhronos.nn.augment`. Images are then uint8, and move in training.
    seed : int or None
        Of the weights and of dropout. None: weights are 0, for those that are loaded.

    Returns
    -------
    Net
        Inputs: images (rows, height, width, channels), and labels (rows,). Outputs: scores
        (rows, classes), as in validation.

    Raises
    ------
    InputError
        An argument is out of range, or images are too small.

    References
    ----------
    Zagoruyko and Komodakis, Wide residual networks, arXiv:1605.07146.

    Examples
    --------
    >>> from synkhronos import zoo
    >>> net = zoo.wide_resnet(28, 10, seed=None)
    >>> sum(p.get_value(borrow=True).size for p in net.params)
    36479194
    """
    layers = _each(depth, 4)
    seen = images(size, channels, augment)
    x = conv("stem", seen.seen, 16, bias=False)
    for stage in range(3):
        for number in range(layers):
            stride, new = 2 if stage and not number else 1, (16 * widen) << stage
            name = f"stage{stage}_{number}"
            before = relu(norm(f"{name}_a", x))
            y = conv(f"{name}_a", before, new, 3, stride, bias=False)
            y = relu(norm(f"{name}_b", y))
            y = conv(f"{name}_b", drop(f"{name}_drop", y, dropout, seed), new, bias=False)
            same = x.type.shape[3] == new and stride == 1
            x = y + (x if same else conv(f"{name}_beside", before, new, 1, stride, bias=False))
    return classifier(seen, linear("scores", average(relu(norm("last", x))), classes))
