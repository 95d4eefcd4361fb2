"""A small network of convolutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from synkhronos._checks import check_flag, shown
from synkhronos._errors import InputError
from synkhronos.training.net import Net
from synkhronos.zoo._blocks import conv, drop, flat, images, linear, pool, relu
from synkhronos.zoo._classifier import classifier
from synkhronos.zoo._network import network


@network
def cnn(
    blocks: Sequence[Sequence[int]] = ((4, 8),),
    units: Sequence[int] = (128,),
    *,
    classes: int = 10,
    size: int | tuple[int, int] = 28,
    channels: int = 1,
    window: int = 3,
    padded: bool = True,
    stride: int = 1,
    dropout: float = 0.5,
    augment: Mapping[str, object] | None = None,
    seed: int | None = 0,
) -> Net:
    """Blocks of convolutions between poolings of 2 x 2 pixels, then layers of units.

    Parameters
    ----------
    blocks : sequence of sequences of int
        The filters of each convolution, block by block.
    units : sequence of int
        Of the layers before the scores.
    classes : int
    size : int or (height, width)
        Of the images, in pixels.
    channels : int
    window : int
        Pixels to a side of a filter.
    padded : bool
        Add half of the window to each side of images, so that a convolution keeps their size.
    stride : int
        Of the first convolution.
    dropout : float
        Share of the values of the layers of units that is removed in training.
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

    Examples
    --------
    >>> from synkhronos import zoo
    >>> net = zoo.cnn(seed=None)
    >>> sum(p.get_value(borrow=True).size for p in net.params)
    202458
    >>> net = zoo.cnn(padded=False, dropout=0.0, seed=None)  # as PyDTNN 1.0's simplecnn
    >>> sum(p.get_value(borrow=True).size for p in net.params)
    149210
    """
    around = window // 2 if check_flag("padded", padded) else 0
    seen = images(size, channels, augment)
    x = seen.seen
    for i, filters in enumerate(blocks):
        several = isinstance(filters, Sequence) and len(filters) > 0
        if not several or not all(type(n) is int and n > 0 for n in filters):
            raise InputError(
                f"blocks={shown(blocks)}: give the filters of each convolution, block by block, "
                "such as [[32, 32], [64, 64]]"
            )
        for j, new in enumerate(filters):
            step = stride if i == j == 0 else 1
            x = relu(conv(f"block{i}_{j}", x, new, window, step, around))
        x = pool(x, 2, 2, 0)
    x = flat(x)
    for number, new in enumerate(units):
        x = drop(f"dense{number}_drop", relu(linear(f"dense{number}", x, new)), dropout, seed)
    return classifier(seen, linear("scores", x, classes))
