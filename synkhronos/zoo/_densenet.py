"""DenseNet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytensor.tensor as pt

from synkhronos.nn import avg_pool2d
from synkhronos.training.net import Net
from synkhronos.zoo._blocks import (
    average,
    conv_norm,
    images,
    known,
    linear,
    norm,
    norm_conv,
    pool,
    relu,
)
from synkhronos.zoo._classifier import classifier
from synkhronos.zoo._network import network

BLOCKS = {121: (6, 12, 24, 16), 161: (6, 12, 36, 24), 169: (6, 12, 32, 32), 201: (6, 12, 48, 32)}


@network
def densenet(
    depth: int = 121,
    *,
    classes: int = 1000,
    size: int | tuple[int, int] = 224,
    channels: int = 3,
    growth: int | None = None,
    blocks: Sequence[int] | None = None,
    augment: Mapping[str, object] | None = None,
    seed: int | None = 0,
) -> Net:
    """DenseNet: each layer of a block sees the channels of all layers before it.

    Parameters
    ----------
    depth : 121, 161, 169 or 201
    classes : int
    size : int or (height, width)
        Of the images, in pixels.
    channels : int
    growth : int, optional
        Channels that a layer adds. Default: 32; with a depth of 161, 48.
    blocks : sequence of int, optional
        Numbers of layers of the blocks, in place of those of the depth.
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
    Huang et al., Densely connected convolutional networks, arXiv:1608.06993.

    Examples
    --------
    >>> from synkhronos import zoo
    >>> net = zoo.densenet(121, seed=None)
    >>> sum(p.get_value(borrow=True).size for p in net.params)
    7978856
    """
    layers = known(BLOCKS, depth)
    each = (48 if depth == 161 else 32) if growth is None else growth
    seen = images(size, channels, augment)
    x = pool(relu(conv_norm("stem", seen.seen, 2 * each, 7, 2)))
    for block, number in enumerate(layers if blocks is None else blocks):
        if block:
            x = norm_conv(f"between{block}", x, x.type.shape[3] // 2, 1)
            x = avg_pool2d(x, 2)
        for layer in range(number):
            name = f"block{block}_{layer}"
            added = norm_conv(f"{name}_a", x, 4 * each, 1)
            x = pt.concatenate([x, norm_conv(f"{name}_b", added, each)], axis=3)
    return classifier(seen, linear("scores", average(relu(norm("last", x))), classes))
