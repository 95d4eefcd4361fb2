"""Pooling: the largest or the mean value of each window, with its gradient.

Several pixels of a window may be equally large, which is common after rectified layers. The whole
gradient then goes to the first of them, in every mode. NaN counts as the largest, so a network that
has diverged shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import grad_not_implemented
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op, OutputStorageType
from pytensor.tensor import TensorLike
from pytensor.tensor.variable import TensorVariable

from synkhronos._compiling.graph_types import Arrays, Inputs
from synkhronos.nn._convolution import padding_of, pair
from synkhronos.nn._windows import Padding, Pair, Windows
from synkhronos.ops._collectives import Shape


class _PoolingOp(Op):
    """Base class of both operations: kind ("max" or "mean"), windows, strides and padding."""

    __props__ = ("kind", "window", "strides", "padding")

    def __init__(self, kind: str, window: Pair, strides: Pair, padding: Padding) -> None:
        self.kind, self.window, self.strides, self.padding = kind, window, strides, padding

    @property
    def windows(self) -> Windows:
        return Windows(self.strides, self.padding)

    @property
    def fill(self) -> float:
        """The value of the padding."""
        return -np.inf if self.kind == "max" else 0.0

    def check(self, images: tuple[int, ...], *pooled: tuple[int, ...]) -> None:
        """Raise if arrays of these shapes do not fit together."""
        self.windows.check(images[1:3], self.window)
        result = (images[0], *self.windows.fitting(images[1:3], self.window), images[3])
        for shape in pooled:
            if shape != result:
                raise ValueError(
                    f"pooled images or a gradient have the shape {shape}, but the pooling of "
                    f"images of {images} has {result}"
                )


class Pooling(_PoolingOp):
    """images -> images with one pixel for each window."""

    def make_node(self, *inputs: Variable) -> Apply:
        [images] = map(_floating, inputs)
        n, *lengths, channels = images.type.shape
        self.windows.check(lengths, self.window)
        shape = (n, *self.windows.fitting(lengths, self.window), channels)
        return Apply(self, [images], [pt.tensor(dtype=images.dtype, shape=shape)])

    def infer_shape(self, node: Apply, shapes: Sequence[Shape]) -> list[Shape]:
        n, *lengths, channels = shapes[0]
        return [(n, *self.windows.fitting(lengths, self.window), channels)]

    def perform(self, node: Apply, inputs: Arrays, output_storage: OutputStorageType) -> None:
        """Reduce a view of all windows."""
        pixels = self.windows.pixels(inputs[0], self.window, self.fill)
        reduced = pixels.max((3, 4)) if self.kind == "max" else pixels.mean((3, 4))
        output_storage[0][0] = np.ascontiguousarray(reduced)

    def pullback(self, inputs: Inputs, outputs: Inputs, cotangents: Inputs) -> list[Variable]:
        gradient: Any = PoolingGradient(self.kind, self.window, self.strides, self.padding)
        return [gradient(inputs[0], outputs[0], cotangents[0])]


class PoolingGradient(_PoolingOp):
    """images, pooled images, gradient of the pooled images -> gradient of the images."""

    def make_node(self, *images_pooled_gradient: Variable) -> Apply:
        images, pooled, gradient = map(_floating, images_pooled_gradient)
        return Apply(self, [images, pooled, gradient.astype(images.dtype)], [images.type()])

    def infer_shape(self, node: Apply, shapes: Sequence[Shape]) -> list[Shape]:
        return [shapes[0]]

    def perform(self, node: Apply, inputs: Arrays, output_storage: OutputStorageType) -> None:
        """Give each window's gradient to its first largest pixel, or divide it among all pixels."""
        images, pooled, gradient = inputs
        self.check(images.shape, pooled.shape, gradient.shape)
        height, width = self.window
        shape = (*gradient.shape[:3], height, width, gradient.shape[3])
        if self.kind == "max":
            pixels = self.windows.pixels(images, self.window, self.fill)
            taken = np.zeros(gradient.shape, bool)
            parts = np.zeros(shape, gradient.dtype)
            for i in range(height):
                for j in range(width):
                    pixel = pixels[:, :, :, i, j]
                    hit = ((pixel == pooled) | np.isnan(pixel)) & ~taken
                    taken |= hit
                    parts[:, :, :, i, j] = np.where(hit, gradient, 0)
        else:
            share = (gradient / (height * width)).astype(gradient.dtype)
            parts = np.broadcast_to(share[:, :, :, None, None], shape)
        output_storage[0][0] = np.ascontiguousarray(self.windows.spread(parts, images.shape[1:3]))

    def pullback(self, inputs: Inputs, outputs: Inputs, cotangents: Inputs) -> list[Variable]:
        """Refuse second derivatives."""
        why = "pooling has no second derivatives"
        return [grad_not_implemented(self, i, v, why) for i, v in enumerate(inputs)]


def max_pool2d(
    images: TensorLike,
    window: int | Pair = 2,
    strides: int | Pair | None = None,
    padding: str | int | Pair | Padding = "valid",
) -> TensorVariable:
    """Compute the largest value of each window, channel by channel, in any mode.

    Parameters
    ----------
    images : variable of shape (rows, height, width, channels), float32 or float64
    window : int or (height, width)
    strides : int or (vertical, horizontal); default: the window, so that windows do not overlap
    padding : as for `conv2d`
        The added pixels are never the largest.

    Returns
    -------
    variable of shape (rows, new height, new width, channels)

    Notes
    -----
    Cost: one pass over the images, and two for the gradient. The gradient goes to the first of
    several largest values; NaN is the largest. A row of the result depends only on the same row of
    the images.

    Examples
    --------
    >>> import numpy as np, pytensor.tensor as pt
    >>> from synkhronos.nn import max_pool2d
    >>> images = pt.tensor4("images", dtype="float64")
    >>> max_pool2d(images).eval({images: np.arange(16.0).reshape(1, 4, 4, 1)}).ravel().tolist()
    [5.0, 7.0, 13.0, 15.0]
    """
    return _pooled("max", images, window, strides, padding)


def avg_pool2d(
    images: TensorLike,
    window: int | Pair = 2,
    strides: int | Pair | None = None,
    padding: str | int | Pair | Padding = "valid",
) -> TensorVariable:
    """Compute the mean of each window, channel by channel, in any mode; padding counts as 0.

    Parameters and result are those of `max_pool2d`.

    Notes
    -----
    Cost: one pass over the images, and one for the gradient.

    Examples
    --------
    >>> import numpy as np, pytensor.tensor as pt
    >>> from synkhronos.nn import avg_pool2d
    >>> images = pt.tensor4("images", dtype="float64")
    >>> avg_pool2d(images).eval({images: np.arange(16.0).reshape(1, 4, 4, 1)}).ravel().tolist()
    [2.5, 4.5, 10.5, 12.5]
    """
    return _pooled("mean", images, window, strides, padding)


def _pooled(
    kind: str, images: TensorVariable, window: object, strides: object, padding: object
) -> TensorVariable:
    size = pair(window, "window")
    steps = size if strides is None else pair(strides, "strides")
    around = padding_of(padding, size, (1, 1))
    if any(side >= k for k, sides in zip(size, around, strict=True) for side in sides):
        raise ValueError(f"padding {padding!r} holds whole windows of {size}")
    return Pooling(kind, size, steps, around)(images)


def _floating(images: TensorVariable) -> TensorVariable:
    found = pt.as_tensor(images)
    if found.type.ndim != 4 or np.dtype(found.dtype).kind != "f":
        raise TypeError(
            f"pooling needs a floating-point tensor with 4 dimensions, found {found.type}"
        )
    return found
