"""VGG."""

from __future__ import annotations

from collections.abc import Mapping

from synkhronos.training.net import Net
from synkhronos.zoo._blocks import conv, drop, flat, images, known, linear, pool, relu
from synkhronos.zoo._classifier import classifier
from synkhronos.zoo._network import network

# convolutions between poolings
BLOCKS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


@network
def vgg(
    depth: int = 16,
    *,
    classes: int = 1000,
    size: int | tuple[int, int] = 224,
    channels: int = 3,
    width: int = 64,
    units: int = 4096,
    dropout: float = 0.5,
    augment: Mapping[str, object] | None = None,
    seed: int | None = 0,
) -> Net:
    """VGG: blocks of 3 x 3 convolutions between poolings, then three layers of units.

    Parameters
    ----------
    depth : 11, 13, 16 or 19
    classes : int
    size : int or (height, width)
        Of the images, in pixels.
    channels : int
    width : int
        Filters of the first block; later ones have up to 8 times as many.
    units : int
        Of the two layers before the scores.
    dropout : float
        Share of the values of these layers that is removed in training.
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
    Simonyan and Zisserman, Very deep convolutional networks, arXiv:1409.1556.

    Examples
    --------
    >>> from synkhronos import zoo
    >>> net = zoo.vgg(16, seed=None)
    >>> sum(p.get_value(borrow=True).size for p in net.params)
    138357544
    """
    seen = images(size, channels, augment)
    x = seen.seen
    for block, layers in enumerate(known(BLOCKS, depth)):
        for layer in range(layers):
            x = relu(conv(f"block{block}_{layer}", x, width * min(2**block, 8)))
        x = pool(x, 2, 2, 0)
    x = flat(x)
    for name in ("dense0", "dense1"):
        x = drop(f"{name}_drop", relu(linear(name, x, units)), dropout, seed)
    return classifier(seen, linear("scores", x, classes))
