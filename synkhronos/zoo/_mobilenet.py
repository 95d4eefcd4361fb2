"""MobileNet."""

from __future__ import annotations

from collections.abc import Mapping

from synkhronos._checks import check_number
from synkhronos.training.net import Net
from synkhronos.zoo._blocks import average, conv_norm, images, linear, relu
from synkhronos.zoo._classifier import classifier
from synkhronos.zoo._network import network

# filters and strides of the blocks
BLOCKS = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1)),
    *((512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)),
)


@network
def mobilenet(
    width: float = 1.0,
    *,
    classes: int = 1000,
    size: int | tuple[int, int] = 224,
    channels: int = 3,
    augment: Mapping[str, object] | None = None,
    seed: int | None = 0,
) -> Net:
    """MobileNet: 3 x 3 convolutions of each channel apart, then of all channels of a pixel.

    Parameters
    ----------
    width : float
        The numbers of filters are multiplied by it.
    classes : int
    size : int or (height, width)
        Of the images, in pixels.
    channels : int
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
    Howard et al., MobileNets, arXiv:1704.04861.

    Examples
    --------
    >>> from synkhronos import zoo
    >>> net = zoo.mobilenet(seed=None)
    >>> sum(p.get_value(borrow=True).size for p in net.params)
    4231976
    """
    width = check_number("width", width, above=0)
    seen = images(size, channels, augment)
    x = relu(conv_norm("stem", seen.seen, max(1, int(32 * width)), 3, 2))
    for number, (filters, stride) in enumerate(BLOCKS):
        old = x.type.shape[3]
        x = relu(conv_norm(f"block{number}_apart", x, old, 3, stride, groups=old))
        x = relu(conv_norm(f"block{number}", x, max(1, int(filters * width)), 1))
    return classifier(seen, linear("scores", average(x), classes))
