"""GoogLeNet and Inception-v3: branches side by side, whose channels are joined."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from synkhronos.nn import avg_pool2d
from synkhronos.training.net import Net
from synkhronos.zoo._blocks import average, conv, conv_norm, drop, flat, images, linear, pool, relu
from synkhronos.zoo._classifier import classifier
from synkhronos.zoo._network import network

# filters of 1x1; before 3x3, of 3x3; before 5x5, of 5x5; after the pooling; None: a pooling
GOOGLENET: dict[str, tuple[int, ...] | None] = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "pool3": None,
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "pool4": None,
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
BESIDE = ("4a", "4d")  # blocks after which an auxiliary classifier looks
EPSILON = 1e-3  # of Inception-v3's batch normalisation
# blocks of Inception-v3 after the first five convolutions, each with its own number
INCEPTION = (
    *(("A", 32), ("A", 64), ("A", 64), ("B", 0)),
    *(("C", 128), ("C", 160), ("C", 160), ("C", 192)),
    *(("D", 0), ("E", 0), ("E", 0)),
)


@network
def googlenet(
    *,
    classes: int = 1000,
    size: int | tuple[int, int] = 224,
    channels: int = 3,
    auxiliary: bool = False,
    dropout: float = 0.4,
    augment: Mapping[str, object] | None = None,
    seed: int | None = 0,
) -> Net:
    """GoogLeNet (Inception-v1): nine blocks of four branches, without response normalisation.

    Parameters
    ----------
    classes : int
    size : int or (height, width)
        Of the images, in pixels.
    channels : int
    auxiliary : bool
        Add the losses of two classifiers in the middle, times 0.3, in training. Their dropout
        removes 0.7.
    dropout : float
        Share of the values before the scores that is removed in training. 0: that of auxiliary
        classifiers is 0, too.
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
    Szegedy et al., Going deeper with convolutions, arXiv:1409.4842.

    Examples
    --------
    >>> from synkhronos import zoo
    >>> net = zoo.googlenet(seed=None)
    >>> sum(p.get_value(borrow=True).size for p in net.params)
    6998552
    """
    seen = images(size, channels, augment)
    x = pool(relu(conv("conv1", seen.seen, 64, 7, 2, 3)))
    x = relu(conv("conv2_reduced", x, 64, 1))
    x = pool(relu(conv("conv2", x, 192)))
    beside = []
    for name, filters in GOOGLENET.items():
        x = pool(x) if filters is None else _branches(name, x, filters)
        if auxiliary and name in BESIDE:
            rate = 0.7 if dropout else 0.0
            beside.append((0.3, _auxiliary(f"beside{name}", x, classes, rate, seed)))
    x = drop("drop", average(x), dropout, seed)
    return classifier(seen, linear("scores", x, classes), beside)


def _branches(name: str, x: TensorVariable, filters: tuple[int, ...]) -> TensorVariable:
    one, before_three, three, before_five, five, pooled = filters
    small = relu(conv(f"{name}_3x3_reduced", x, before_three, 1))
    large = relu(conv(f"{name}_5x5_reduced", x, before_five, 1))
    found = [
        conv(f"{name}_1x1", x, one, 1),
        conv(f"{name}_3x3", small, three),
        conv(f"{name}_5x5", large, five, 5),
        conv(f"{name}_pooled", pool(x, 3, 1, 1), pooled, 1),
    ]
    return relu(pt.concatenate(found, axis=3))


def _auxiliary(
    name: str, x: TensorVariable, classes: int, rate: float, seed: int | None
) -> TensorVariable:
    x = relu(conv(f"{name}_conv", _fitting_average(x), 128, 1))
    x = relu(linear(f"{name}_dense", flat(x), 1024))
    return linear(f"{name}_scores", drop(f"{name}_drop", x, rate, seed), classes)


def _fitting_average(x: TensorVariable) -> TensorVariable:
    """Means of 5 x 5 pixels; of smaller images, of all pixels along that axis."""
    height, width = x.type.shape[1:3]
    return avg_pool2d(x, (min(5, height), min(5, width)), 3)


@network
def inception_v3(
    *,
    classes: int = 1000,
    size: int | tuple[int, int] = 299,
    channels: int = 3,
    auxiliary: bool = False,
    dropout: float = 0.5,
    augment: Mapping[str, object] | None = None,
    seed: int | None = 0,
) -> Net:
    """Inception-v3: eleven blocks of branches, with convolutions of one row or one column.

    Parameters
    ----------
    classes : int
    size : int or (height, width)
        Of the images, in pixels.
    channels : int
    auxiliary : bool
        Add the loss of a classifier in the middle, times 0.4, in training.
    dropout : float
        Share of the values before the scores that is removed in training.
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
    Szegedy et al., Rethinking the Inception architecture, arXiv:1512.00567.

    Examples
    --------
    >>> from synkhronos import zoo
    >>> net = zoo.inception_v3(seed=None)
    >>> sum(p.get_value(borrow=True).size for p in net.params)
    23834568
    """
    seen = images(size, channels, augment)
    x = _unit("conv1a", seen.seen, 32, 3, 2, "valid")
    x = _unit("conv2a", x, 32, 3, 1, "valid")
    x = pool(_unit("conv2b", x, 64), padding=0)
    x = _unit("conv3b", x, 80, 1)
    x = pool(_unit("conv4a", x, 192, 3, 1, "valid"), padding=0)
    beside = []
    for number, (kind, width) in enumerate(INCEPTION):
        x = _inception(kind, f"{kind}{number}", x, width)
        if auxiliary and width == 192:
            beside.append((0.4, _auxiliary_v3("beside", x, classes)))
    x = drop("drop", average(x), dropout, seed)
    return classifier(seen, linear("scores", x, classes), beside)


def _unit(name: str, x: TensorVariable, new: int, *where: object) -> TensorVariable:
    return relu(conv_norm(name, x, new, *where, epsilon=EPSILON))


def _line(name: str, x: TensorVariable, *units: tuple[Any, ...]) -> TensorVariable:
    """Convolutions one after the other: filters, window, stride, padding."""
    for number, (new, *where) in enumerate(units):
        x = _unit(f"{name}_{number}", x, new, *where)
    return x


def _inception(kind: str, name: str, x: TensorVariable, width: int) -> TensorVariable:
    """The block of a kind, as figures 5, 10, 6, 10 and 7 of the paper show them."""

    def line(branch: str, *units: tuple[Any, ...]) -> TensorVariable:
        return _line(f"{name}_{branch}", x, *units)

    down = (3, 2, "valid")
    smooth = avg_pool2d(x, 3, 1, 1)
    if kind == "A":
        found = [
            line("1x1", (64, 1)),
            line("5x5", (48, 1), (64, 5)),
            line("3x3", (64, 1), (96, 3), (96, 3)),
            _line(f"{name}_pooled", smooth, (width, 1)),
        ]
    elif kind == "B":
        found = [
            line("3x3", (384, *down)),
            line("twice", (64, 1), (96, 3), (96, *down)),
            pool(x, padding=0),
        ]
    elif kind == "C":
        row, column = (1, 7), (7, 1)
        found = [
            line("1x1", (192, 1)),
            line("7x7", (width, 1), (width, row), (192, column)),
            line("twice", (width, 1), *[(width, w) for w in (column, row, column)], (192, row)),
            _line(f"{name}_pooled", smooth, (192, 1)),
        ]
    elif kind == "D":
        found = [
            line("3x3", (192, 1), (320, *down)),
            line("7x7", (192, 1), (192, (1, 7)), (192, (7, 1)), (192, *down)),
            pool(x, padding=0),
        ]
    else:
        single, double = line("3x3", (384, 1)), line("twice", (448, 1), (384, 3))
        found = [line("1x1", (320, 1))]
        for branch, each in (("3x3", single), ("twice", double)):
            found += [
                _line(f"{name}_{branch}_row", each, (384, (1, 3))),
                _line(f"{name}_{branch}_column", each, (384, (3, 1))),
            ]
        found.append(_line(f"{name}_pooled", smooth, (192, 1)))
    return pt.concatenate(found, axis=3)


def _auxiliary_v3(name: str, x: TensorVariable, classes: int) -> TensorVariable:
    x = _unit(f"{name}_0", _fitting_average(x), 128, 1)
    fits = min(x.type.shape[1:3]) >= 5
    x = _unit(f"{name}_1", x, 768, 5, 1, "valid" if fits else "same")
    return linear(f"{name}_scores", average(x), classes)
