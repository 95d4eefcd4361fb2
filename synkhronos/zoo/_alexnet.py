"""AlexNet."""

from __future__ import annotations

from collections.abc import Mapping

from synkhronos._checks import shown
from synkhronos._errors import InputError
from synkhronos.training.net import Net
from synkhronos.zoo._blocks import conv, drop, flat, images, linear, pool, relu
from synkhronos.zoo._classifier import classifier
from synkhronos.zoo._network import network

FILTERS = {1: (64, 192, 384, 256, 256), 2: (96, 256, 384, 384, 256)}


@network
def alexnet(
    *,
    classes: int = 1000,
    size: int | tuple[int, int] = 224,
    channels: int = 3,
    towers: int = 1,
    units: int = 4096,
    dropout: float = 0.5,
    augment: Mapping[str, object] | None = None,
    seed: int | None = 0,
) -> Net:
    """AlexNet: five convolutions and three layers of units, without response normalisation.

    Parameters
    ----------
    classes : int
    size : int or (height, width)
        Of the images, in pixels.
    channels : int
    towers : 1 or 2
        2: the network of 2012, whose second, fourth and fifth convolution see half of the channels
        each. 1: the network of 2014, with fewer filters.
    units : int
        Of the two layers before the scores.
    dropout : float
        Share of the values before these layers that is removed in training.
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
    Krizhevsky, Sutskever and Hinton, ImageNet classification with deep convolutional neural
    networks, NIPS 2012. Krizhevsky, One weird trick, arXiv:1404.5997.

    Examples
    --------
    >>> from synkhronos import zoo
    >>> net = zoo.alexnet(seed=None)
    >>> sum(p.get_value(borrow=True).size for p in net.params)
    61100840
    """
    if towers not in FILTERS:
        raise InputError(f"towers={shown(towers)}: give 1 or 2")
    filters = FILTERS[towers]
    seen = images(size, channels, augment)
    x = pool(relu(conv("conv1", seen.seen, filters[0], 11, 4, 2)), padding=0)
    x = pool(relu(conv("conv2", x, filters[1], 5, groups=towers)), padding=0)
    x = relu(conv("conv3", x, filters[2]))
    x = relu(conv("conv4", x, filters[3], groups=towers))
    x = flat(pool(relu(conv("conv5", x, filters[4], groups=towers)), padding=0))
    for name in ("dense6", "dense7"):
        x = relu(linear(name, drop(f"{name}_drop", x, dropout, seed), units))
    return classifier(seen, linear("scores", x, classes))
