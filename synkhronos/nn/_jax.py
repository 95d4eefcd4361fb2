"""The operations in JAX programs; imported when JAX compiles the first graph.

On GPUs, ``jax.lax`` calls cuDNN's convolutions. On CPUs, XLA's own convolution is slow for few
channels and for windows of one pixel; here both are matrix products. Pooling is written out pixel
by pixel of the window, and XLA fuses these expressions into one loop. XLA's own gradient of pooling
scatters one value at a time. Large windows would take too long to compile in this form, so a loop
over blocks handles them.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from pytensor.graph.basic import Apply
from pytensor.link.jax.dispatch import jax_funcify

from synkhronos.nn._augmentation import Augmentation
from synkhronos.nn._convolution import (
    Convolution,
    ImageGradient,
    KernelGradient,
    TransposedConvolution,
    check_channels,
)
from synkhronos.nn._moments import Moments, combined
from synkhronos.nn._pooling import Pooling, PoolingGradient
from synkhronos.nn._windows import Pair, Windows
from synkhronos.ops._jax import met

# Largest number of values in a window for which a matrix product over all windows beats XLA's
# convolution on a CPU: it is faster for 9 and 36 values, slower for 144.
_FEW = 64
# Smallest number of windows for which a transposed convolution without zeros between the pixels is
# faster on a CPU: it takes 0.3 to 0.6 of the time for 225 windows and more, and more time for 64.
_MANY = 200
# Largest number of pixels in a window for which pooling is written out pixel by pixel: up to there
# XLA compiles it within a second. Windows that do not overlap are faster in blocks above 9 pixels.
_WRITTEN_OUT, _WRITTEN_OUT_ASIDE = 100, 9


def _declared(node: Apply, compute: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Cast inputs to the dtype that the graph declares, then compute; JAX's may be wider."""
    dtype = node.outputs[0].type.dtype
    return lambda *inputs: compute(*[v.astype(dtype) for v in inputs])


@jax_funcify.register(Convolution)
def _convolution(op: Convolution, node: Apply, **kwargs: object) -> Callable[..., jax.Array]:
    del kwargs

    def convolution(images: jax.Array, kernel: jax.Array) -> jax.Array:
        op.check(images.shape, kernel.shape)
        return _convolve(op.windows, op.groups, images, kernel)

    return _declared(node, convolution)


@jax_funcify.register(ImageGradient)
def _by_images(op: ImageGradient, node: Apply, **kwargs: object) -> Callable[..., jax.Array]:
    del kwargs

    def by_images(images: jax.Array, kernel: jax.Array, gradient: jax.Array) -> jax.Array:
        op.check(images.shape, kernel.shape, gradient.shape)
        return _enlarge(op.windows, op.groups, images.shape[1:3], kernel, gradient)

    return _declared(node, by_images)


@jax_funcify.register(TransposedConvolution)
def _transposed(
    op: TransposedConvolution, node: Apply, **kwargs: object
) -> Callable[..., jax.Array]:
    del kwargs

    def transposed(images: jax.Array, kernel: jax.Array) -> jax.Array:
        check_channels(images.shape[3], kernel.shape[3])
        lengths = op.lengths(images.shape[1:3], kernel.shape[:2])
        return _enlarge(op.windows, op.groups, lengths, kernel, images)

    return _declared(node, transposed)


@jax_funcify.register(KernelGradient)
def _by_kernel(op: KernelGradient, node: Apply, **kwargs: object) -> Callable[..., jax.Array]:
    del kwargs

    def by_kernel(images: jax.Array, kernel: jax.Array, gradient: jax.Array) -> jax.Array:
        op.check(images.shape, kernel.shape, gradient.shape)
        _, pull = jax.vjp(lambda w: _convolve(op.windows, op.groups, images, w), kernel)
        return pull(gradient)[0]

    return _declared(node, by_kernel)


def _convolve(windows: Windows, groups: int, images: jax.Array, kernel: jax.Array) -> jax.Array:
    height, width, channels, new = kernel.shape
    if jax.default_backend() == "cpu":
        if groups > 1:
            return _in_groups(windows, groups, images, kernel)
        if height == width == 1:
            [seen] = _pixels(windows, images, (1, 1))
            return seen @ kernel.reshape(channels, new)
        if height * width * channels <= _FEW:
            return _product(windows, images, kernel)
    return lax.conv_general_dilated(
        images,
        kernel,
        windows.strides,
        windows.padding,
        rhs_dilation=windows.dilation,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def _enlarge(
    windows: Windows, groups: int, lengths: Pair, kernel: jax.Array, images: jax.Array
) -> jax.Array:
    """The transpose of `_convolve`: larger images, of these lengths."""
    if groups == 1 and jax.default_backend() == "cpu" and _has_phases(windows, kernel, images):
        return _phases(windows, lengths, kernel, images)
    shape = (len(images), *lengths, kernel.shape[2] * groups)
    convolve = functools.partial(_convolve, windows, groups, kernel=kernel)
    [found] = jax.linear_transpose(convolve, jax.ShapeDtypeStruct(shape, images.dtype))(images)
    return found


def _has_phases(windows: Windows, kernel: jax.Array, images: jax.Array) -> bool:
    """Windows are at least twice as large as a stride above 1, and there are many."""
    fits = all(k >= 2 * s for k, s in zip(kernel.shape, windows.strides, strict=False))
    many = math.prod(images.shape[1:3]) >= _MANY and math.prod(kernel.shape[:3]) > _FEW
    return fits and many and max(windows.strides) > 1 and windows.dilation == (1, 1)


def _phases(windows: Windows, lengths: Pair, kernel: jax.Array, images: jax.Array) -> jax.Array:
    """Enlarge images by a convolution with a stride of 1, whose new channels are pixels.

    Pixels of the result with the same remainder by the strides see the same part of the kernel. XLA
    would put zeros between the pixels of the images, and multiply by these.

    References
    ----------
    Shi et al., Real-time single image and video super-resolution using an efficient sub-pixel
    convolutional neural network, arXiv:1609.05158.
    """
    height, width, channels, new = kernel.shape
    (down, right), (n, rows, columns, _) = windows.strides, images.shape
    high, wide = -(-height // down), -(-width // right)
    sides = ((0, high * down - height), (0, wide * right - width), (0, 0), (0, 0))
    parts = jnp.pad(kernel, sides).reshape(high, down, wide, right, channels, new)
    parts = parts[::-1, :, ::-1].transpose(0, 2, 5, 1, 3, 4)
    found = lax.conv_general_dilated(
        images,
        parts.reshape(high, wide, new, down * right * channels),
        (1, 1),
        ((high - 1, high - 1), (wide - 1, wide - 1)),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    rows, columns = rows + high - 1, columns + wide - 1
    pixels = found.reshape(n, rows, columns, down, right, channels).transpose(0, 1, 3, 2, 4, 5)
    whole = pixels.reshape(n, rows * down, columns * right, channels)
    cut = [
        (-before, before + length - size, 0)
        for (before, _), length, size in zip(
            windows.padding, lengths, whole.shape[1:3], strict=True
        )
    ]
    return lax.pad(whole, whole.dtype.type(0), [(0, 0, 0), *cut, (0, 0, 0)])


def _in_groups(windows: Windows, groups: int, images: jax.Array, kernel: jax.Array) -> jax.Array:
    """Convolve groups one after the other; single channels all together, pixel by pixel."""
    height, width, channels, new = kernel.shape
    if channels == 1 and new == groups:
        seen = _pixels(windows, images, (height, width))
        return sum(p * w for p, w in zip(seen, kernel.reshape(-1, new), strict=True))
    parts = [jnp.split(array, groups, axis=3) for array in (images, kernel)]
    found = [_convolve(windows, 1, *part) for part in zip(*parts, strict=True)]
    return jnp.concatenate(found, axis=3)


def _product(windows: Windows, images: jax.Array, kernel: jax.Array) -> jax.Array:
    """Convolve as a matrix product, channels first: XLA then vectorises long rows of pixels."""
    height, width, channels, new = kernel.shape
    seen = [p.transpose(3, 0, 1, 2) for p in _pixels(windows, images, (height, width))]
    matrix = jnp.stack(seen).reshape(height * width * channels, -1)
    found = kernel.reshape(-1, new).T @ matrix
    return found.reshape(new, *seen[0].shape[1:]).transpose(1, 2, 3, 0)


def _pixels(
    windows: Windows, images: jax.Array, window: Pair, fill: float = 0.0
) -> list[jax.Array]:
    """Pixel (i, j) of all windows, for each (i, j)."""
    rows, columns = windows.fitting(images.shape[1:3], window)
    if any(map(any, windows.padding)):
        around = ((0, 0), *windows.padding, (0, 0))
        images = jnp.pad(images, around, constant_values=images.dtype.type(fill))
    return [images[windows.place(i, j, rows, columns)] for i, j in np.ndindex(window)]


@jax_funcify.register(Pooling)
def _pooling(op: Pooling, node: Apply, **kwargs: object) -> Callable[..., jax.Array]:
    del kwargs
    pool = _pooled if _is_written_out(op) else _pooled_in_blocks

    def pooling(images: jax.Array) -> jax.Array:
        op.check(images.shape)
        return pool(op, images)

    return _declared(node, pooling)


def _is_written_out(op: Pooling | PoolingGradient) -> bool:
    return math.prod(op.window) <= (_WRITTEN_OUT if _overlap(op) else _WRITTEN_OUT_ASIDE)


def _overlap(op: Pooling | PoolingGradient) -> bool:
    return any(k > step for k, step in zip(op.window, op.strides, strict=True))


def _pooled(op: Pooling, images: jax.Array) -> jax.Array:
    pixels = _pixels(op.windows, images, op.window, op.fill)
    if op.kind == "max":
        return functools.reduce(jnp.maximum, pixels)
    return _share(op, sum(pixels))


@jax_funcify.register(PoolingGradient)
def _pooling_gradient(
    op: PoolingGradient, node: Apply, **kwargs: object
) -> Callable[..., jax.Array]:
    del kwargs
    spread = _spread if _is_written_out(op) else _spread_in_blocks

    def pooling_gradient(images: jax.Array, pooled: jax.Array, gradient: jax.Array) -> jax.Array:
        op.check(images.shape, pooled.shape, gradient.shape)
        return spread(op, images, pooled, gradient)

    return _declared(node, pooling_gradient)


def _spread(
    op: PoolingGradient, images: jax.Array, pooled: jax.Array, gradient: jax.Array
) -> jax.Array:
    given = _parts(op, images, pooled, gradient)
    return sum(
        _laid_back(op.windows, part, place, images.shape[1:3])
        for place, part in zip(np.ndindex(op.window), given, strict=False)
    )


def _parts(
    op: PoolingGradient, images: jax.Array, pooled: jax.Array, gradient: jax.Array
) -> Iterable[jax.Array]:
    """The gradient of each pixel of the windows."""
    if op.kind == "mean":
        return itertools.repeat(_share(op, gradient))
    first = jnp.full(pooled.shape, -1, jnp.int16)
    pixels = _pixels(op.windows, images, op.window, op.fill)
    for number, pixel in reversed(list(enumerate(pixels))):
        first = jnp.where(_is_largest(pixel, pooled), jnp.int16(number), first)
    if _overlap(op):
        first = lax.optimization_barrier(first)  # computed once for all pixels, not once for each
    zero = gradient.dtype.type(0)
    return (jnp.where(first == n, gradient, zero) for n in itertools.count())


def _share(op: Pooling | PoolingGradient, values: jax.Array) -> jax.Array:
    return values / values.dtype.type(math.prod(op.window))


def _is_largest(pixel: jax.Array, pooled: jax.Array) -> jax.Array:
    return (pixel == pooled) | jnp.isnan(pixel)


def _laid_back(windows: Windows, part: jax.Array, place: Pair, lengths: Pair) -> jax.Array:
    """Images that hold the values of pixel (i, j) of all windows at its positions, else zeros."""
    _, *slices = windows.place(*place, *part.shape[1:3])
    sides = [
        (at.start - before, length + before - at.stop, at.step - 1)
        for at, (before, _), length in zip(slices, windows.padding, lengths, strict=True)
    ]
    return lax.pad(part, part.dtype.type(0), [(0, 0, 0), *sides, (0, 0, 0)])


@dataclass(frozen=True)
class _Blocks:
    """Images cut into blocks of the size of the strides; each window covers a few blocks.

    A loop over the blocks of a window takes the same time to compile for windows of any size.
    """

    windows: Windows
    window: Pair
    images: tuple[int, ...]  # shape of the images

    @property
    def fitting(self) -> Pair:
        """The numbers of windows, vertical and horizontal."""
        return self.windows.fitting(self.images[1:3], self.window)

    @property
    def covered(self) -> Pair:
        """The numbers of blocks that a window covers, the last one perhaps partly."""
        down, right = (-(-k // s) for k, s in zip(self.window, self.windows.strides, strict=True))
        return down, right

    def cut(self, images: jax.Array, fill: float) -> jax.Array:
        """Blocks, of shape (images, block rows, height, block columns, width, channels)."""
        padded = lax.pad(images, images.dtype.type(fill), self._sides(1))
        return padded.reshape(self._shape([n - 1 + m for n, m in self._counts]))

    def joined(self, blocks: jax.Array) -> jax.Array:
        """Join blocks to images."""
        n, rows, height, columns, width, channels = blocks.shape
        whole = blocks.reshape(n, rows * height, columns * width, channels)
        return lax.pad(whole, whole.dtype.type(0), self._sides(-1))

    def seen(self, blocks: jax.Array, place: Sequence[jax.Array]) -> jax.Array:
        """The block at one place of each window."""
        return lax.dynamic_slice(blocks, place, self._shape(self.fitting))

    def over(
        self, visit: Callable[[jax.Array, Sequence[int], jax.Array], jax.Array], start: jax.Array
    ) -> jax.Array:
        """Loop over the blocks of a window.

        `visit` gets the last result, the block's place, and the numbers of its pixels in the
        window (-1: outside).
        """
        (height, width), (down, right) = self.window, self.windows.strides

        def visited(at: jax.Array, last: jax.Array) -> jax.Array:
            row, column = at // self.covered[1], at % self.covered[1]
            i = row * down + jnp.arange(down, dtype=jnp.int32)[:, None, None, None]
            j = column * right + jnp.arange(right, dtype=jnp.int32)[:, None]
            number = jnp.where((i < height) & (j < width), i * width + j, -1)
            zero = jnp.int32(0)
            return visit(last, [zero, row, zero, column, zero, zero], number)

        return lax.fori_loop(jnp.int32(0), jnp.int32(math.prod(self.covered)), visited, start)

    @property
    def _counts(self) -> list[tuple[int, int]]:
        return list(zip(self.fitting, self.covered, strict=True))

    def _shape(self, counts: Sequence[int]) -> list[int]:
        down, right = self.windows.strides
        return [self.images[0], counts[0], down, counts[1], right, self.images[3]]

    def _sides(self, sign: int) -> list[tuple[int, int, int]]:
        """Padding by which images fill whole blocks; with sign -1 it is removed."""
        found = [
            (before, (n - 1 + m) * step - before - length)
            for (n, m), step, (before, _), length in zip(
                self._counts,
                self.windows.strides,
                self.windows.padding,
                self.images[1:3],
                strict=True,
            )
        ]
        return [(0, 0, 0), *((sign * a, sign * b, 0) for a, b in found), (0, 0, 0)]


def _pooled_in_blocks(op: Pooling, images: jax.Array) -> jax.Array:
    blocks = _Blocks(op.windows, op.window, images.shape)
    cut, fill = blocks.cut(images, op.fill), images.dtype.type(op.fill)
    join, reduce = (jnp.maximum, jnp.max) if op.kind == "max" else (jnp.add, jnp.sum)

    def visit(pooled: jax.Array, place: Sequence[jax.Array], number: jax.Array) -> jax.Array:
        return join(pooled, reduce(jnp.where(number < 0, fill, blocks.seen(cut, place)), (2, 4)))

    start = jnp.full((len(images), *blocks.fitting, images.shape[3]), fill)
    found = blocks.over(visit, start)
    return found if op.kind == "max" else _share(op, found)


def _spread_in_blocks(
    op: PoolingGradient, images: jax.Array, pooled: jax.Array, gradient: jax.Array
) -> jax.Array:
    blocks = _Blocks(op.windows, op.window, images.shape)
    cut, zero = blocks.cut(images, op.fill), gradient.dtype.type(0)

    def earlier(first: jax.Array, place: Sequence[jax.Array], number: jax.Array) -> jax.Array:
        hit = (number >= 0) & _is_largest(blocks.seen(cut, place), _by_block(pooled))
        return jnp.minimum(first, jnp.where(hit, number, none).min((2, 4)))

    def spread(whole: jax.Array, place: Sequence[jax.Array], number: jax.Array) -> jax.Array:
        chosen = number >= 0 if first is None else number == _by_block(first)
        part = jnp.where(chosen, _by_block(given), zero)
        return lax.dynamic_update_slice(whole, blocks.seen(whole, place) + part, place)

    if op.kind == "mean":
        first, given = None, _share(op, gradient)
    else:
        none = jnp.int32(math.prod(op.window))
        first, given = blocks.over(earlier, jnp.full(pooled.shape, none)), gradient
    return blocks.joined(blocks.over(spread, jnp.zeros_like(cut)))


def _by_block(values: jax.Array) -> jax.Array:
    """Values of windows, with axes that broadcast over the pixels of blocks."""
    return values[:, :, None, :, None]


@jax_funcify.register(Augmentation)
def _augmentation(op: Augmentation, node: Apply, **kwargs: object) -> Callable[..., jax.Array]:
    del node, kwargs
    return functools.partial(op.computed, jnp)


@jax_funcify.register(Moments)
def _moments(op: Moments, node: Apply, **kwargs: object) -> Callable[..., jax.Array]:
    del kwargs

    def moments(values: jax.Array, *running: jax.Array) -> jax.Array:
        axes = tuple(range(values.ndim - 1))
        local = jnp.stack([values.mean(axes), values.var(axes)])
        found = met(combined, local, local.shape)
        return (*found, *op.run_on(found, running))

    declared = _declared(node, moments)
    return lambda *inputs: (*declared(*inputs[:-1]), inputs[-1])
