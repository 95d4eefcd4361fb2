"""Convolution and its two gradients: three operations; the gradients of each are the other two.

Images are (rows, height, width, channels), kernels (height, width, channels, new channels), as in
pytensor-ml, Keras and Flax. Kernels are not flipped. numpy and numba compute a matrix product over
the pixels of each window (im2col). For JAX see `_jax`.

References
----------
Dumoulin and Visin, A guide to convolution arithmetic for deep learning, arXiv:1603.07285.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.scalar import upcast

from synkhronos.nn._windows import Padding, Pair, Windows


class _ConvolutionOp(Op):
    """Base class of the three operations: strides, padding and dilation of the windows."""

    __props__ = ("strides", "padding", "dilation")

    def __init__(self, strides: Pair, padding: Padding, dilation: Pair) -> None:
        self.strides, self.padding, self.dilation = strides, padding, dilation

    @property
    def windows(self) -> Windows:
        return Windows(self.strides, self.padding, self.dilation)

    def _others(self) -> tuple[Any, Any, Any]:
        given = self.strides, self.padding, self.dilation
        return Convolution(*given), ImageGradient(*given), KernelGradient(*given)


class Convolution(_ConvolutionOp):
    """images, kernel -> images."""

    def make_node(self, *images_kernel: Any) -> Apply:
        images, kernel = _same_dtype(*images_kernel)
        n, *lengths, _ = images.type.shape
        window, out = kernel.type.shape[:2], kernel.type.shape[3]
        fitting: tuple[Any, Any] = (None, None)
        if None not in window:
            self.windows.check(lengths, window)
            fitting = self.windows.fitting(lengths, window)
        return Apply(self, [images, kernel], [_images(images.dtype, (n, *fitting, out))])

    def infer_shape(self, node: Apply, shapes: Sequence[Any]) -> list[Any]:
        (n, *lengths, _), (*window, _, out) = shapes
        return [(n, *self.windows.fitting(lengths, window), out)]

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Any) -> None:
        """Compute one matrix product for all windows."""
        images, kernel = inputs
        pixels = self.windows.pixels(images, kernel.shape[:2])
        n, rows, columns = pixels.shape[:3]
        found = _flat(pixels) @ kernel.reshape(-1, kernel.shape[3])
        output_storage[0][0] = found.reshape(n, rows, columns, kernel.shape[3])

    def pullback(
        self, inputs: Sequence[Any], outputs: Sequence[Any], cotangents: Sequence[Any]
    ) -> list[Variable]:
        images, kernel = inputs
        _, by_images, by_kernel = self._others()
        return [by_images(images, kernel, *cotangents), by_kernel(images, kernel, *cotangents)]


class ImageGradient(_ConvolutionOp):
    """images (for their shape), kernel, gradient of the result -> gradient of the images."""

    def make_node(self, *images_kernel_gradient: Any) -> Apply:
        images, kernel, gradient = _same_dtype(*images_kernel_gradient)
        return Apply(self, [images, kernel, gradient], [images.type()])

    def infer_shape(self, node: Apply, shapes: Sequence[Any]) -> list[Any]:
        return [shapes[0]]

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Any) -> None:
        """Add each window's gradient to the pixels of that window."""
        images, kernel, gradient = inputs
        pixels = gradient.reshape(-1, kernel.shape[3]) @ kernel.reshape(-1, kernel.shape[3]).T
        whole = pixels.reshape(*gradient.shape[:3], *kernel.shape[:3])
        output_storage[0][0] = np.ascontiguousarray(self.windows.spread(whole, images.shape[1:3]))

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """The result does not depend on the images' values."""
        return [[False], [True], [True]]

    def pullback(
        self, inputs: Sequence[Any], outputs: Sequence[Any], cotangents: Sequence[Any]
    ) -> list[Variable]:
        """Differentiate; the result is linear in kernel and gradient."""
        _, kernel, gradient = inputs
        [given] = cotangents
        convolve, _, by_kernel = self._others()
        return [disconnected_type(), by_kernel(given, kernel, gradient), convolve(given, kernel)]


class KernelGradient(_ConvolutionOp):
    """images, kernel (for its shape), gradient of the result -> gradient of the kernel."""

    def make_node(self, *images_kernel_gradient: Any) -> Apply:
        images, kernel, gradient = _same_dtype(*images_kernel_gradient)
        return Apply(self, [images, kernel, gradient], [kernel.type()])

    def infer_shape(self, node: Apply, shapes: Sequence[Any]) -> list[Any]:
        return [shapes[1]]

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Any) -> None:
        """Compute one matrix product for all windows."""
        images, kernel, gradient = inputs
        pixels = _flat(self.windows.pixels(images, kernel.shape[:2]))
        found = pixels.T @ gradient.reshape(-1, kernel.shape[3])
        output_storage[0][0] = found.reshape(kernel.shape)

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """The result does not depend on the kernel's values."""
        return [[True], [False], [True]]

    def pullback(
        self, inputs: Sequence[Any], outputs: Sequence[Any], cotangents: Sequence[Any]
    ) -> list[Variable]:
        """Differentiate; the result is linear in images and gradient."""
        images, _, gradient = inputs
        [given] = cotangents
        convolve, by_images, _ = self._others()
        return [by_images(images, given, gradient), disconnected_type(), convolve(images, given)]


def conv2d(
    images: Any,
    kernel: Any,
    strides: int | Pair = 1,
    padding: str | int | Pair | Padding = "valid",
    dilation: int | Pair = 1,
) -> Any:
    """Convolve images with a kernel, in any mode, with gradients of any order.

    Parameters
    ----------
    images : variable of shape (rows, height, width, channels), float32 or float64
    kernel : variable of shape (height, width, channels, new channels)
        Height and width have to be static. The kernel is not flipped.
    strides, dilation : int or (vertical, horizontal)
        Steps between windows, and between the pixels of a window.
    padding : "valid", "same", int, (vertical, horizontal) or ((top, bottom), (left, right))
        Number of zeros added around the images. "same" adds half a window on each side, as in
        pytensor-ml and torch. With a stride of 1 the result then has the images' height and width.

    Returns
    -------
    variable of shape (rows, new height, new width, new channels)

    Raises
    ------
    ValueError, TypeError
        The shapes or the arguments do not fit together.

    Notes
    -----
    Cost: 2 * windows * window size * channels * new channels operations, and as many for each
    gradient. A row of the result depends only on the same row of the images, so functions divide
    rows over members exactly.

    Examples
    --------
    >>> import numpy as np, pytensor.tensor as pt
    >>> from synkhronos.nn import conv2d
    >>> images = pt.tensor4("images", dtype="float64")
    >>> kernel = np.full((2, 2, 1, 1), 0.25)
    >>> means = conv2d(images, kernel).eval({images: np.arange(9.0).reshape(1, 3, 3, 1)})
    >>> means[0, :, :, 0].tolist()
    [[2.0, 3.0], [5.0, 6.0]]
    """
    kernel = pt.as_tensor(kernel)
    if kernel.type.ndim != 4 or None in kernel.type.shape[:2]:
        raise ValueError(
            f"conv2d: the kernel has the static shape {kernel.type.shape}; it needs 4 dimensions "
            "(height, width, channels, new channels), with height and width known"
        )
    window = kernel.type.shape[:2]
    gaps = pair(dilation, "dilation")
    around = padding_of(padding, window, gaps)
    return Convolution(pair(strides, "strides"), around, gaps)(images, kernel)


def pair(given: int | Sequence[int], name: str, least: int = 1) -> Pair:
    """Make a pair of numbers from one number or two."""
    found = (given, given) if isinstance(given, int) else tuple(given)
    if len(found) != 2 or not all(isinstance(n, int) and n >= least for n in found):
        raise ValueError(f"{name} is {given!r}: give one or two integers of at least {least}")
    return found


def padding_of(given: Any, window: Pair, dilation: Pair) -> Padding:
    """The numbers of pixels that are added on the four sides."""
    if given == "valid":
        return ((0, 0), (0, 0))
    if given == "same":
        added = [(k - 1) * gap for k, gap in zip(window, dilation, strict=True)]
        return (added[0] // 2, added[0] - added[0] // 2), (added[1] // 2, added[1] - added[1] // 2)
    if isinstance(given, str):
        raise ValueError(f"padding is {given!r}: give 'valid', 'same', or numbers of pixels")
    if not isinstance(given, int) and all(not isinstance(side, int) for side in given):
        vertical, horizontal = given
        return pair(vertical, "padding", 0), pair(horizontal, "padding", 0)
    vertical, horizontal = pair(given, "padding", 0)
    return (vertical, vertical), (horizontal, horizontal)


def _same_dtype(*given: Any) -> list[Any]:
    """Cast tensors of four dimensions to one floating dtype, or raise."""
    tensors = [pt.as_tensor(v) for v in given]
    dtype = upcast(*(v.dtype for v in tensors))
    if any(v.type.ndim != 4 for v in tensors) or np.dtype(dtype).kind != "f":
        raise TypeError(
            f"a convolution needs floating-point tensors with 4 dimensions, found "
            f"{', '.join(str(v.type) for v in tensors)}"
        )
    channels = [tensors[0].type.shape[3], tensors[1].type.shape[2]]
    if None not in channels and channels[0] != channels[1]:
        raise ValueError(
            f"the images have {channels[0]} channels, but the kernel takes {channels[1]}"
        )
    return [v.astype(dtype) for v in tensors]


def _images(dtype: str, shape: Sequence[int | None]) -> Any:
    return pt.tensor(dtype=dtype, shape=tuple(shape))


def _flat(pixels: np.ndarray) -> np.ndarray:
    """Reshape pixels to a matrix with a row for each window."""
    return pixels.reshape(math.prod(pixels.shape[:3]), math.prod(pixels.shape[3:]))
