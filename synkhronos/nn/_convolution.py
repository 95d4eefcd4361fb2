"""Convolution and its two gradients: three operations; the gradients of each are the other two.

Images are (rows, height, width, channels), kernels (height, width, channels, new channels), as in
pytensor-ml, Keras and Flax. Kernels are not flipped. numpy and numba compute a matrix product over
the pixels of each window (im2col). For JAX see `_jax`.

A transposed convolution computes what `ImageGradient` does, of images whose size follows from that
of the gradient. With groups, each group of new channels sees its own group of channels.

References
----------
Dumoulin and Visin, A guide to convolution arithmetic for deep learning, arXiv:1603.07285.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op, OutputStorageType
from pytensor.scalar import upcast
from pytensor.tensor import TensorLike
from pytensor.tensor.variable import TensorVariable

from synkhronos._checks import check_integer, is_integer, shown
from synkhronos._compiling.graph_types import Arrays, Inputs
from synkhronos._errors import InputError
from synkhronos.nn._windows import Padding, Pair, Windows
from synkhronos.ops._collectives import Shape


class _ConvolutionOp(Op):
    """Base class: strides, padding and dilation of the windows, and the number of groups."""

    __props__: tuple[str, ...] = ("strides", "padding", "dilation", "groups")

    def __init__(self, strides: Pair, padding: Padding, dilation: Pair, groups: int = 1) -> None:
        self.strides, self.padding, self.dilation = strides, padding, dilation
        self.groups = groups

    @property
    def windows(self) -> Windows:
        return Windows(self.strides, self.padding, self.dilation)

    def check(
        self,
        images: tuple[int, ...],
        kernel: tuple[int, ...],
        gradient: tuple[int, ...] | None = None,
    ) -> None:
        """Raise if arrays of these shapes do not fit together."""
        check_channels(images[3], kernel[2], kernel[3], self.groups)
        self.windows.check(images[1:3], kernel[:2])
        result = (images[0], *self.windows.fitting(images[1:3], kernel[:2]), kernel[3])
        if gradient not in (None, result):
            raise ValueError(
                f"the gradient has the shape {gradient}, but the convolution has {result}: of "
                f"images of {images} with a kernel of {kernel}"
            )

    def _others(self) -> tuple[TensorVariable, TensorVariable, TensorVariable]:
        given = self.strides, self.padding, self.dilation, self.groups
        return Convolution(*given), ImageGradient(*given), KernelGradient(*given)

    def _over_groups(self, compute: Callable[..., np.ndarray], *arrays: np.ndarray) -> np.ndarray:
        """Compute each group apart; arrays and results have the groups along their last axis."""
        if self.groups == 1:
            return compute(*arrays)
        parts = zip(*(np.split(a, self.groups, axis=3) for a in arrays), strict=True)
        return np.concatenate([compute(*part) for part in parts], axis=3)

    def _is_apart(self, kernel: np.ndarray) -> bool:
        """Each channel has a kernel of its own: too many groups for a loop of Python."""
        return self.groups > 1 and kernel.shape[2:] == (1, self.groups)


class Convolution(_ConvolutionOp):
    """images, kernel -> images."""

    def make_node(self, *images_kernel: Variable) -> Apply:
        images, kernel = _same_dtype(*images_kernel)
        n, *lengths, channels = images.type.shape
        window, (taken, out) = kernel.type.shape[:2], kernel.type.shape[2:]
        check_channels(channels, taken, out, self.groups)
        fitting = (None, None)
        if None not in window:
            self.windows.check(lengths, window)
            fitting = self.windows.fitting(lengths, window)
        return Apply(self, [images, kernel], [_images(images.dtype, (n, *fitting, out))])

    def infer_shape(self, node: Apply, shapes: Sequence[Shape]) -> list[Shape]:
        (n, *lengths, _), (*window, _, out) = shapes
        return [(n, *self.windows.fitting(lengths, window), out)]

    def perform(self, node: Apply, inputs: Arrays, output_storage: OutputStorageType) -> None:
        """Compute one matrix product for all windows of a group."""
        images, kernel = inputs
        self.check(images.shape, kernel.shape)
        if self._is_apart(kernel):
            pixels = self.windows.pixels(images, kernel.shape[:2])
            found = np.einsum("nrcijk,ijk->nrck", pixels, kernel[:, :, 0])
        else:
            found = self._over_groups(self._group, images, kernel)
        output_storage[0][0] = found

    def _group(self, images: np.ndarray, kernel: np.ndarray) -> np.ndarray:
        pixels = self.windows.pixels(images, kernel.shape[:2])
        n, rows, columns = pixels.shape[:3]
        found = _flat(pixels) @ kernel.reshape(-1, kernel.shape[3])
        return found.reshape(n, rows, columns, kernel.shape[3])

    def pullback(self, inputs: Inputs, outputs: Inputs, cotangents: Inputs) -> list[Variable]:
        images, kernel = inputs
        _, by_images, by_kernel = self._others()
        return [by_images(images, kernel, *cotangents), by_kernel(images, kernel, *cotangents)]


class ImageGradient(_ConvolutionOp):
    """images (for their shape), kernel, gradient of the result -> gradient of the images."""

    def make_node(self, *images_kernel_gradient: Variable) -> Apply:
        images, kernel, gradient = _same_dtype(*images_kernel_gradient)
        return Apply(self, [images, kernel, gradient], [images.type()])

    def infer_shape(self, node: Apply, shapes: Sequence[Shape]) -> list[Shape]:
        return [shapes[0]]

    def perform(self, node: Apply, inputs: Arrays, output_storage: OutputStorageType) -> None:
        """Add each window's gradient to the pixels of that window."""
        images, kernel, gradient = inputs
        self.check(images.shape, kernel.shape, gradient.shape)
        if self._is_apart(kernel):
            pixels = gradient[:, :, :, None, None] * kernel[:, :, 0]
            found = np.ascontiguousarray(self.windows.spread(pixels, images.shape[1:3]))
        else:
            spread = functools.partial(_spread, self.windows, images.shape[1:3])
            found = self._over_groups(spread, kernel, gradient)
        output_storage[0][0] = found

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """The result does not depend on the images' values."""
        return [[False], [True], [True]]

    def pullback(self, inputs: Inputs, outputs: Inputs, cotangents: Inputs) -> list[Variable]:
        """Differentiate; the result is linear in kernel and gradient."""
        _, kernel, gradient = inputs
        [given] = cotangents
        convolve, _, by_kernel = self._others()
        return [disconnected_type(), by_kernel(given, kernel, gradient), convolve(given, kernel)]


class KernelGradient(_ConvolutionOp):
    """images, kernel (for its shape), gradient of the result -> gradient of the kernel."""

    def make_node(self, *images_kernel_gradient: Variable) -> Apply:
        images, kernel, gradient = _same_dtype(*images_kernel_gradient)
        return Apply(self, [images, kernel, gradient], [kernel.type()])

    def infer_shape(self, node: Apply, shapes: Sequence[Shape]) -> list[Shape]:
        return [shapes[1]]

    def perform(self, node: Apply, inputs: Arrays, output_storage: OutputStorageType) -> None:
        """Compute one matrix product for all windows of a group."""
        images, kernel, gradient = inputs
        self.check(images.shape, kernel.shape, gradient.shape)
        if self._is_apart(kernel):
            pixels = self.windows.pixels(images, kernel.shape[:2])
            found = np.einsum("nrcijk,nrck->ijk", pixels, gradient)[:, :, None]
        else:
            found = self._over_groups(self._group, images, kernel, gradient)
        output_storage[0][0] = found

    def _group(self, images: np.ndarray, kernel: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        pixels = _flat(self.windows.pixels(images, kernel.shape[:2]))
        found = pixels.T @ gradient.reshape(-1, kernel.shape[3])
        return found.reshape(kernel.shape)

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """The result does not depend on the kernel's values."""
        return [[True], [False], [True]]

    def pullback(self, inputs: Inputs, outputs: Inputs, cotangents: Inputs) -> list[Variable]:
        """Differentiate; the result is linear in images and gradient."""
        images, _, gradient = inputs
        [given] = cotangents
        convolve, by_images, _ = self._others()
        return [by_images(images, given, gradient), disconnected_type(), convolve(images, given)]


class TransposedConvolution(_ConvolutionOp):
    """images, kernel (height, width, new channels, channels) -> larger images.

    The result has the size of the smallest images in which a convolution would place its windows at
    the pixels of these images, and `added` more pixels at the bottom and on the right.
    """

    __props__ = ("strides", "padding", "dilation", "groups", "added")

    def __init__(
        self, strides: Pair, padding: Padding, dilation: Pair, groups: int, added: Pair
    ) -> None:
        super().__init__(strides, padding, dilation, groups)
        self.added = added

    def make_node(self, *images_kernel: Variable) -> Apply:
        images, kernel = _same_dtype(*images_kernel)
        n, *fitting, channels = images.type.shape
        *window, new, taken = kernel.type.shape
        check_channels(channels, taken)
        lengths = (None, None)
        if None not in window:
            lengths = self.lengths(fitting, window)
        shape = (n, *lengths, None if new is None else new * self.groups)
        return Apply(self, [images, kernel], [_images(images.dtype, shape)])

    def lengths(self, fitting: Pair, window: Pair) -> Pair:
        """Height and width of the result, as far as those of the images are known; or raise."""
        found = self.windows.covered(fitting, window, self.added)
        if any(isinstance(n, int) and n < 1 for n in found):
            raise ValueError(
                f"padding {self.padding} leaves nothing of the transposed convolution of images of "
                f"{tuple(fitting)} with windows of {tuple(window)}"
            )
        return found

    def infer_shape(self, node: Apply, shapes: Sequence[Shape]) -> list[Shape]:
        (n, *fitting, _), (*window, new, _) = shapes
        lengths = self.windows.covered(fitting, window, self.added)
        return [(n, *lengths, new * self.groups)]

    def perform(self, node: Apply, inputs: Arrays, output_storage: OutputStorageType) -> None:
        """Add the product of each pixel and the kernel to the pixels of a window."""
        images, kernel = inputs
        check_channels(images.shape[3], kernel.shape[3])
        lengths = self.lengths(images.shape[1:3], kernel.shape[:2])
        spread = functools.partial(_spread, self.windows, lengths)
        output_storage[0][0] = self._over_groups(spread, kernel, images)

    def pullback(self, inputs: Inputs, outputs: Inputs, cotangents: Inputs) -> list[Variable]:
        """Differentiate; the result is linear in images and kernel."""
        images, kernel = inputs
        [given] = cotangents
        convolve, _, by_kernel = self._others()
        return [convolve(given, kernel), by_kernel(given, kernel, images)]


def conv2d(
    images: TensorLike,
    kernel: TensorLike,
    strides: int | Pair = 1,
    padding: str | int | Pair | Padding = "valid",
    dilation: int | Pair = 1,
    groups: int = 1,
) -> TensorVariable:
    """Convolve images with a kernel, in any mode, with gradients of any order.

    Parameters
    ----------
    images : variable of shape (rows, height, width, channels), float32 or float64
    kernel : variable of shape (height, width, channels / groups, new channels)
        Height and width have to be static. The kernel is not flipped.
    strides, dilation : int or (vertical, horizontal)
        Steps between windows, and between the pixels of a window.
    padding : "valid", "same", int, (vertical, horizontal) or ((top, bottom), (left, right))
        Number of zeros added around the images. "same" adds half a window on each side, as in
        pytensor-ml and torch. With a stride of 1 the result then has the images' height and width.
    groups : int
        Channels and new channels are divided into this number of groups; the new channels of a
        group are computed from the channels of the same group. As many groups as channels: each
        apart.

    Returns
    -------
    variable of shape (rows, new height, new width, new channels)

    Raises
    ------
    ValueError, TypeError
        The shapes or the arguments do not fit together.

    Notes
    -----
    Cost: 2 * windows * window size * channels * new channels / groups operations, and as many for
    each gradient. A row of the result depends only on the same row of the images, so functions
    divide rows over members exactly.

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
    gaps = pair(dilation, "dilation")
    around = padding_of(padding, _window("conv2d", kernel), gaps)
    groups = check_integer("groups", groups, 1)
    return Convolution(pair(strides, "strides"), around, gaps, groups)(images, kernel)


def conv_transpose2d(
    images: TensorLike,
    kernel: TensorLike,
    strides: int | Pair = 1,
    padding: int | Pair | Padding = 0,
    dilation: int | Pair = 1,
    output_padding: int | Pair = 0,
) -> TensorVariable:
    """Enlarge images: each pixel, times the kernel, is added to a window of the result.

    It is the gradient of `conv2d` with respect to its images, as a function of its own, in any mode
    and with gradients of any order.

    Parameters
    ----------
    images : variable of shape (rows, height, width, channels), float32 or float64
    kernel : variable of shape (height, width, channels, new channels)
        Height and width have to be static.
    strides, dilation : int or (vertical, horizontal)
        Steps between windows of the result, and between the pixels of a window.
    padding : int, (vertical, horizontal) or ((top, bottom), (left, right))
        Number of pixels that are removed around the result.
    output_padding : int or (vertical, horizontal), less than the strides
        Number of pixels that the result has in addition, at the bottom and on the right.

    Returns
    -------
    variable of shape (rows, new height, new width, new channels)
        The new height is (height - 1) * stride + dilation * (kernel height - 1) + 1 + output
        padding, less the padding.

    Raises
    ------
    ValueError, TypeError
        The shapes or the arguments do not fit together.

    Notes
    -----
    Cost: 2 * pixels * window size * channels * new channels operations, and as many for each
    gradient, as for the convolution that leads from the result back to the images. A row of the
    result depends only on the same row of the images.

    Examples
    --------
    >>> import numpy as np, pytensor.tensor as pt
    >>> from synkhronos.nn import conv_transpose2d
    >>> images = pt.tensor4("images", dtype="float64")
    >>> larger = conv_transpose2d(images, np.ones((2, 2, 1, 1)), strides=2)
    >>> larger.eval({images: np.arange(1.0, 3.0).reshape(1, 1, 2, 1)})[0, :, :, 0].tolist()
    [[1.0, 1.0, 2.0, 2.0], [1.0, 1.0, 2.0, 2.0]]
    """
    kernel = pt.as_tensor(kernel)
    window = _window("conv_transpose2d", kernel)
    if isinstance(padding, str):
        raise ValueError(f"padding is {padding!r}: give numbers of pixels")
    gaps, steps = pair(dilation, "dilation"), pair(strides, "strides")
    added = pair(output_padding, "output_padding", 0)
    if any(extra >= step for extra, step in zip(added, steps, strict=True)):
        raise ValueError(f"output_padding is {added}: give less than the strides, {steps}")
    op = TransposedConvolution(steps, padding_of(padding, window, gaps), gaps, 1, added)
    return op(images, kernel.dimshuffle(0, 1, 3, 2))


def _window(name: str, kernel: TensorVariable) -> Pair:
    """The static height and width of a kernel, or raise."""
    if kernel.type.ndim != 4 or None in kernel.type.shape[:2]:
        raise ValueError(
            f"{name}: the kernel has the static shape {kernel.type.shape}; it needs 4 dimensions "
            "(height, width, channels, new channels), with height and width known"
        )
    height, width = kernel.type.shape[:2]
    return height, width


def pair(given: int | Sequence[int], name: str, least: int = 1) -> Pair:
    """Make a pair of numbers from one number or two."""
    found = list(given) if isinstance(given, Iterable) else [given, given]
    if len(found) != 2 or not all(is_integer(n) and n >= least for n in found):
        raise InputError(f"{name}={shown(given)}: give one or two integers of at least {least}")
    return int(found[0]), int(found[1])


def padding_of(given: object, window: Pair, dilation: Pair) -> Padding:
    """The numbers of pixels that are added on the four sides."""
    if isinstance(given, str) and given == "valid":
        return ((0, 0), (0, 0))
    if isinstance(given, str) and given == "same":
        added = [(k - 1) * gap for k, gap in zip(window, dilation, strict=True)]
        return (added[0] // 2, added[0] - added[0] // 2), (added[1] // 2, added[1] - added[1] // 2)
    if isinstance(given, str):
        raise ValueError(f"padding is {given!r}: give 'valid', 'same', or numbers of pixels")
    sides = list(given) if isinstance(given, Iterable) else []
    if len(sides) == 2 and all(isinstance(side, Iterable) for side in sides):
        return pair(sides[0], "padding", 0), pair(sides[1], "padding", 0)
    vertical, horizontal = pair(given, "padding", 0)
    return (vertical, vertical), (horizontal, horizontal)


def _same_dtype(*given: TensorVariable) -> list[TensorVariable]:
    """Cast tensors of four dimensions to one floating dtype, or raise."""
    tensors = [pt.as_tensor(v) for v in given]
    dtype = upcast(*(v.dtype for v in tensors))
    if any(v.type.ndim != 4 for v in tensors) or np.dtype(dtype).kind != "f":
        raise TypeError(
            f"a convolution needs floating-point tensors with 4 dimensions, found "
            f"{', '.join(str(v.type) for v in tensors)}"
        )
    return [v.astype(dtype) for v in tensors]


def check_channels(
    channels: int | None, taken: int | None, new: int | None = None, groups: int = 1
) -> None:
    """Raise if images and kernel do not fit together, as far as their channels are known."""
    if None not in (channels, taken) and channels != taken * groups:
        of = f" in {groups} groups" if groups > 1 else ""
        raise ValueError(f"the images have {channels} channels, but the kernel takes {taken}{of}")
    if new is not None and new % groups:
        raise ValueError(f"{new} new channels cannot be divided into {groups} groups")


def _images(dtype: str, shape: Sequence[int | None]) -> TensorVariable:
    return pt.tensor(dtype=dtype, shape=tuple(shape))


def _spread(
    windows: Windows, lengths: Sequence[int], kernel: np.ndarray, given: np.ndarray
) -> np.ndarray:
    """Add each value, times the kernel, to the pixels of its window in images of these lengths."""
    pixels = given.reshape(-1, kernel.shape[3]) @ kernel.reshape(-1, kernel.shape[3]).T
    whole = pixels.reshape(*given.shape[:3], *kernel.shape[:3])
    height, width = lengths
    return np.ascontiguousarray(windows.spread(whole, (height, width)))


def _flat(pixels: np.ndarray) -> np.ndarray:
    """Reshape pixels to a matrix with a row for each window."""
    return pixels.reshape(math.prod(pixels.shape[:3]), math.prod(pixels.shape[3:]))
