"""The operations in numba code; imported when numba compiles the first graph.

The loops go image by image: the pixels of one image's windows fit into a CPU cache, from which the
matrix product reads them.
"""

# These rules hold here:
#
# * The operation itself (`perform`, in numpy) says what is computed; the tests compare with it.
# * `_VERSION` is a part of the key of cached machine code. Its number changes with any code below,
#   or old machine code is used. Strides, padding and groups are properties of the operation, which
#   the default key holds.
# * No images are copied for their padding: `_collect` writes zeros in place of pixels outside.
# * Where each channel has a kernel of its own, a matrix product would have one column. Plain loops
#   over the pixels serve there; the innermost goes over channels, which lie next to each other.
# * Shapes that only a call knows are checked in front of all loops, and Python raises the error.

from __future__ import annotations

import zlib
from collections.abc import Callable

import numba
import numpy as np
from pytensor.graph.basic import Apply
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_default_op_cache_key

from synkhronos.nn._augmentation import BORDERS, MOST, Augmentation, check_counts
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


def _geometry(windows: Windows) -> tuple[int, ...]:
    (top, bottom), (left, right) = windows.padding
    return (*windows.strides, *windows.dilation, top, bottom, left, right)


def _windows(geometry: tuple[int, ...]) -> Windows:
    """The inverse of `_geometry`."""
    down, right, by, along, top, bottom, left, after = geometry
    return Windows((down, right), ((top, bottom), (left, after)), (by, along))


def _refuse(geometry: tuple[int, ...], lengths: Pair, window: Pair) -> None:
    """Raise from Python: numba takes seconds to compile a message with numbers."""
    _windows(geometry).check(lengths, window)


def _refuse_shapes(geometry: tuple[int, ...], groups: int, *shapes: tuple[int, ...]) -> None:
    windows = _windows(geometry)
    op = Convolution(windows.strides, windows.padding, windows.dilation, groups)
    op.check(*[shape for shape in shapes if shape != _UNKNOWN])


def _refuse_covered(
    geometry: tuple[int, ...], images: tuple[int, ...], kernel: tuple[int, ...], added: Pair
) -> None:
    windows = _windows(geometry)
    check_channels(images[3], kernel[3])
    op = TransposedConvolution(windows.strides, windows.padding, windows.dilation, 1, added)
    op.lengths(images[1:3], kernel[:2])


def _refuse_pooled(geometry: tuple[int, ...], window: Pair, *shapes: tuple[int, ...]) -> None:
    windows = _windows(geometry)
    PoolingGradient("max", window, windows.strides, windows.padding).check(*shapes)


def _refuse_images(
    moves: tuple[int, int, int, int, bool, bool], lengths: Pair, counts: tuple[int, ...]
) -> None:
    """Raise if images do not fit; a size of 0 is that of the images."""
    above, aside, height, width, flips, reflects = moves
    size = (height, width) if height else None
    Augmentation((above, aside), size, flips, BORDERS[reflects]).check(lengths)
    check_counts(*counts)


_UNKNOWN = (-1, -1, -1, -1)  # a shape

type Code = tuple[Callable[..., np.ndarray], int]  # of numba, and its version

# Numba caches machine code that calls Python functions by module and name: both, and the number of
# the code below, are part of the cache's key.
_CALLED = (_refuse, _refuse_shapes, _refuse_covered, _refuse_pooled, _refuse_images, combined)
_VERSION = zlib.crc32(repr([7, *((f.__module__, f.__name__) for f in _CALLED)]).encode())


@numba_njit
def _fitting(geometry: np.ndarray, height: int, width: int, kh: int, kw: int) -> tuple[int, int]:
    down, right, by, along, top, bottom, left, after = geometry
    rows = (height + top + bottom - ((kh - 1) * by + 1)) // down + 1
    columns = (width + left + after - ((kw - 1) * along + 1)) // right + 1
    if rows < 1 or columns < 1:
        with numba.objmode():
            _refuse(geometry, (height, width), (kh, kw))
    return rows, columns


@numba_njit
def _placed(
    geometry: np.ndarray,
    groups: int,
    images: tuple[int, ...],
    kernel: tuple[int, ...],
    gradient: tuple[int, ...],
) -> tuple[int, int]:
    """The numbers of windows; raises if arrays of these shapes do not fit together."""
    n, height, width, channels = images
    kh, kw, taken, new = kernel
    rows, columns = _fitting(geometry, height, width, kh, kw)
    fits = channels == taken * groups and new % groups == 0
    if not fits or (gradient != _UNKNOWN and gradient != (n, rows, columns, new)):
        with numba.objmode():
            _refuse_shapes(geometry, groups, images, kernel, gradient)
    return rows, columns


@numba_njit
def _collect(geometry: np.ndarray, image: np.ndarray, kh: int, kw: int, pixels: np.ndarray) -> None:
    """Write the pixels of each window into a row of `pixels`."""
    down, right, by, along, top, _, left, _ = geometry
    height, width, channels = image.shape
    rows, columns = _fitting(geometry, height, width, kh, kw)
    for row in range(rows):
        for column in range(columns):
            at, k = row * columns + column, 0
            for i in range(kh):
                y = row * down + i * by - top
                for j in range(kw):
                    x = column * right + j * along - left
                    inside = 0 <= y < height and 0 <= x < width
                    for c in range(channels):
                        pixels[at, k] = image[y, x, c] if inside else 0
                        k += 1


@numba_njit
def _spread(geometry: np.ndarray, pixels: np.ndarray, kh: int, kw: int, image: np.ndarray) -> None:
    """The transpose of `_collect`: add each value to the pixel that it belongs to."""
    down, right, by, along, top, _, left, _ = geometry
    height, width, channels = image.shape
    rows, columns = _fitting(geometry, height, width, kh, kw)
    for row in range(rows):
        for column in range(columns):
            at, k = row * columns + column, 0
            for i in range(kh):
                y = row * down + i * by - top
                for j in range(kw):
                    x = column * right + j * along - left
                    if 0 <= y < height and 0 <= x < width:
                        for c in range(channels):
                            image[y, x, c] += pixels[at, k + c]
                    k += channels


@register_funcify_default_op_cache_key(Convolution)  # type: ignore[untyped-decorator]
def _convolution(op: Convolution, node: Apply, **kwargs: object) -> Code:
    geometry, groups = _geometry(op.windows), op.groups

    @numba_njit
    def in_groups(images: np.ndarray, kernel: np.ndarray) -> np.ndarray:
        n = len(images)
        kh, kw, channels, new = kernel.shape
        rows, columns = _placed(geometry, groups, images.shape, kernel.shape, _UNKNOWN)
        found = np.zeros((n, rows * columns, new), images.dtype)
        if channels == 1 and new == groups:
            for r in range(n):
                _convolve_apart(geometry, images[r], kernel, columns, found[r])
            return found.reshape((n, rows, columns, new))
        matrices = _matrices(kernel, groups)
        pixels = np.empty((rows * columns, kh * kw * channels), images.dtype)
        part = np.empty((rows * columns, new // groups), images.dtype)
        for r in range(n):
            for g in range(groups):
                mine = images[r, :, :, g * channels : (g + 1) * channels]
                _collect(geometry, mine, kh, kw, pixels)
                np.dot(pixels, matrices[g], part)
                found[r, :, g * part.shape[1] : (g + 1) * part.shape[1]] = part
        return found.reshape((n, rows, columns, new))

    @numba_njit
    def convolution(images: np.ndarray, kernel: np.ndarray) -> np.ndarray:
        n = len(images)
        kh, kw, channels, new = kernel.shape
        rows, columns = _placed(geometry, groups, images.shape, kernel.shape, _UNKNOWN)
        matrix = np.ascontiguousarray(kernel).reshape((kh * kw * channels, new))
        pixels = np.empty((rows * columns, kh * kw * channels), images.dtype)
        found = np.empty((n, rows * columns, new), images.dtype)
        for r in range(n):
            _collect(geometry, images[r], kh, kw, pixels)
            np.dot(pixels, matrix, found[r])
        return found.reshape((n, rows, columns, new))

    return (convolution if groups == 1 else in_groups), _VERSION


@register_funcify_default_op_cache_key(ImageGradient)  # type: ignore[untyped-decorator]
def _by_images(op: ImageGradient, node: Apply, **kwargs: object) -> Code:
    geometry, groups = _geometry(op.windows), op.groups

    @numba_njit
    def by_images(images: np.ndarray, kernel: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        _placed(geometry, groups, images.shape, kernel.shape, gradient.shape)
        found = np.zeros(images.shape, images.dtype)
        _spread_all(geometry, kernel, gradient, found)
        return found

    @numba_njit
    def in_groups(images: np.ndarray, kernel: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        kh, kw, channels, new = kernel.shape
        n, rows, columns, _ = gradient.shape
        _placed(geometry, groups, images.shape, kernel.shape, gradient.shape)
        found = np.zeros(images.shape, images.dtype)
        if channels == 1 and new == groups:
            for r in range(n):
                _spread_apart(geometry, gradient[r], kernel, found[r])
            return found
        given = np.ascontiguousarray(gradient).reshape((n, rows * columns, new))
        matrices, size = _matrices(kernel, groups), new // groups
        pixels = np.empty((rows * columns, kh * kw * channels), images.dtype)
        for r in range(n):
            for g in range(groups):
                part = given[r, :, g * size : (g + 1) * size].copy()
                np.dot(part, matrices[g].T, pixels)
                mine = found[r, :, :, g * channels : (g + 1) * channels]
                _spread(geometry, pixels, kh, kw, mine)
        return found

    return (by_images if groups == 1 else in_groups), _VERSION


@register_funcify_default_op_cache_key(TransposedConvolution)  # type: ignore[untyped-decorator]
def _transposed(op: TransposedConvolution, node: Apply, **kwargs: object) -> Code:
    geometry, added = _geometry(op.windows), op.added

    @numba_njit
    def transposed(images: np.ndarray, kernel: np.ndarray) -> np.ndarray:
        n, rows, columns, given = images.shape
        kh, kw, channels, taken = kernel.shape
        down, right, by, along, top, bottom, left, after = geometry
        height = (rows - 1) * down + (kh - 1) * by + 1 - top - bottom + added[0]
        width = (columns - 1) * right + (kw - 1) * along + 1 - left - after + added[1]
        if height < 1 or width < 1 or given != taken:
            with numba.objmode():
                _refuse_covered(geometry, images.shape, kernel.shape, added)
        found = np.zeros((n, height, width, channels), images.dtype)
        _spread_all(geometry, kernel, images, found)
        return found

    return transposed, _VERSION


@numba_njit
def _spread_all(
    geometry: np.ndarray, kernel: np.ndarray, gradient: np.ndarray, found: np.ndarray
) -> None:
    """Add the product of each value and the kernel to the pixels of its window."""
    kh, kw, channels, new = kernel.shape
    n, rows, columns, _ = gradient.shape
    matrix = np.ascontiguousarray(kernel).reshape((kh * kw * channels, new)).T.copy()
    given = np.ascontiguousarray(gradient).reshape((n, rows * columns, new))
    pixels = np.empty((rows * columns, kh * kw * channels), found.dtype)
    for r in range(n):
        np.dot(given[r], matrix, pixels)
        _spread(geometry, pixels, kh, kw, found[r])


@numba_njit
def _matrices(kernel: np.ndarray, groups: int) -> np.ndarray:
    """A matrix (pixels of a window, new channels) for each group."""
    kh, kw, channels, new = kernel.shape
    size = new // groups
    whole = np.ascontiguousarray(kernel).reshape((kh * kw * channels, new))
    found = np.empty((groups, kh * kw * channels, size), kernel.dtype)
    for g in range(groups):
        found[g] = whole[:, g * size : (g + 1) * size]
    return found


@numba_njit
def _convolve_apart(
    geometry: np.ndarray, image: np.ndarray, kernel: np.ndarray, columns: int, found: np.ndarray
) -> None:
    """Convolve each channel with a kernel of its own: a matrix product would have one column."""
    down, right, by, along, top, _, left, _ = geometry
    height, width, channels = image.shape
    for at in range(len(found)):
        for i in range(kernel.shape[0]):
            y = at // columns * down + i * by - top
            for j in range(kernel.shape[1]):
                x = at % columns * right + j * along - left
                if 0 <= y < height and 0 <= x < width:
                    for c in range(channels):
                        found[at, c] += image[y, x, c] * kernel[i, j, 0, c]


@numba_njit
def _spread_apart(
    geometry: np.ndarray, given: np.ndarray, kernel: np.ndarray, image: np.ndarray
) -> None:
    """The transpose of `_convolve_apart`, for images."""
    down, right, by, along, top, _, left, _ = geometry
    height, width, channels = image.shape
    for row in range(given.shape[0]):
        for column in range(given.shape[1]):
            for i in range(kernel.shape[0]):
                y = row * down + i * by - top
                for j in range(kernel.shape[1]):
                    x = column * right + j * along - left
                    if 0 <= y < height and 0 <= x < width:
                        for c in range(channels):
                            image[y, x, c] += given[row, column, c] * kernel[i, j, 0, c]


@numba_njit
def _sum_apart(
    geometry: np.ndarray, image: np.ndarray, given: np.ndarray, kernel: np.ndarray
) -> None:
    """The transpose of `_convolve_apart`, for kernels."""
    down, right, by, along, top, _, left, _ = geometry
    height, width, channels = image.shape
    for row in range(given.shape[0]):
        for column in range(given.shape[1]):
            for i in range(kernel.shape[0]):
                y = row * down + i * by - top
                for j in range(kernel.shape[1]):
                    x = column * right + j * along - left
                    if 0 <= y < height and 0 <= x < width:
                        for c in range(channels):
                            kernel[i, j, 0, c] += image[y, x, c] * given[row, column, c]


@register_funcify_default_op_cache_key(KernelGradient)  # type: ignore[untyped-decorator]
def _by_kernel(op: KernelGradient, node: Apply, **kwargs: object) -> Code:
    geometry, groups = _geometry(op.windows), op.groups

    @numba_njit
    def in_groups(images: np.ndarray, kernel: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        kh, kw, channels, new = kernel.shape
        n, rows, columns, _ = gradient.shape
        _placed(geometry, groups, images.shape, kernel.shape, gradient.shape)
        if channels == 1 and new == groups:
            whole = np.zeros((kh, kw, 1, new), images.dtype)
            for r in range(n):
                _sum_apart(geometry, images[r], gradient[r], whole)
            return whole
        given = np.ascontiguousarray(gradient).reshape((n, rows * columns, new))
        size = new // groups
        pixels = np.empty((rows * columns, kh * kw * channels), images.dtype)
        part = np.empty((kh * kw * channels, size), images.dtype)
        found = np.zeros((kh * kw * channels, new), images.dtype)
        for r in range(n):
            for g in range(groups):
                mine = images[r, :, :, g * channels : (g + 1) * channels]
                _collect(geometry, mine, kh, kw, pixels)
                np.dot(pixels.T, given[r, :, g * size : (g + 1) * size].copy(), part)
                found[:, g * size : (g + 1) * size] += part
        return found.reshape((kh, kw, channels, new))

    @numba_njit
    def by_kernel(images: np.ndarray, kernel: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        kh, kw, channels, new = kernel.shape
        n, rows, columns, _ = gradient.shape
        _placed(geometry, groups, images.shape, kernel.shape, gradient.shape)
        given = np.ascontiguousarray(gradient).reshape((n, rows * columns, new))
        pixels = np.empty((rows * columns, kh * kw * channels), images.dtype)
        found = np.zeros((kh * kw * channels, new), images.dtype)
        part = np.empty_like(found)
        for r in range(n):
            _collect(geometry, images[r], kh, kw, pixels)
            np.dot(pixels.T, given[r], part)
            found += part
        return found.reshape((kh, kw, channels, new))

    return (by_kernel if groups == 1 else in_groups), _VERSION


@register_funcify_default_op_cache_key(Pooling)  # type: ignore[untyped-decorator]
def _pooling(op: Pooling, node: Apply, **kwargs: object) -> Code:
    geometry = _geometry(op.windows)
    (kh, kw), largest = op.window, op.kind == "max"

    @numba_njit
    def pooling(images: np.ndarray) -> np.ndarray:
        down, right, _, _, top, _, left, _ = geometry
        n, height, width, channels = images.shape
        rows, columns = _fitting(geometry, height, width, kh, kw)
        found = np.empty((n, rows, columns, channels), images.dtype)
        found[:] = -np.inf if largest else 0
        for r in range(n):
            for row in range(rows):
                for column in range(columns):
                    for y in range(max(0, row * down - top), min(height, row * down - top + kh)):
                        begin, end = column * right - left, column * right - left + kw
                        for x in range(max(0, begin), min(width, end)):
                            for c in range(channels):
                                value, old = images[r, y, x, c], found[r, row, column, c]
                                if largest:  # a select is vectorised; NaN counts as the largest
                                    larger = value > old or value != value
                                    found[r, row, column, c] = value if larger else old
                                else:
                                    found[r, row, column, c] = old + value
        return found if largest else found / images.dtype.type(kh * kw)

    return pooling, _VERSION


@register_funcify_default_op_cache_key(PoolingGradient)  # type: ignore[untyped-decorator]
def _pooling_gradient(op: PoolingGradient, node: Apply, **kwargs: object) -> Code:
    geometry = _geometry(op.windows)
    (kh, kw), largest = op.window, op.kind == "max"

    @numba_njit
    def pooling_gradient(
        images: np.ndarray, pooled: np.ndarray, gradient: np.ndarray
    ) -> np.ndarray:
        down, right, _, _, top, _, left, _ = geometry
        n, height, width, channels = images.shape
        rows, columns = _fitting(geometry, height, width, kh, kw)
        result = (n, rows, columns, channels)
        if pooled.shape != result or gradient.shape != result:
            with numba.objmode():
                _refuse_pooled(geometry, (kh, kw), images.shape, pooled.shape, gradient.shape)
        share = images.dtype.type(1) if largest else images.dtype.type(1 / (kh * kw))
        found = np.zeros(images.shape, images.dtype)
        taken = np.empty(channels, np.bool_)
        for r in range(n):
            for row in range(rows):
                for column in range(columns):
                    taken[:] = False
                    for y in range(max(0, row * down - top), min(height, row * down - top + kh)):
                        begin, end = column * right - left, column * right - left + kw
                        for x in range(max(0, begin), min(width, end)):
                            for c in range(channels):
                                given = gradient[r, row, column, c] * share
                                if not largest:
                                    found[r, y, x, c] += given
                                elif not taken[c]:
                                    value = images[r, y, x, c]
                                    hit = value == pooled[r, row, column, c] or value != value
                                    taken[c] = hit
                                    found[r, y, x, c] += given if hit else 0
        return found

    return pooling_gradient, _VERSION


@register_funcify_default_op_cache_key(Augmentation)  # type: ignore[untyped-decorator]
def _augmentation(op: Augmentation, node: Apply, **kwargs: object) -> Code:
    moves = (*op.pad, *(op.size or (0, 0)), op.flip, op.border == "reflect")

    @numba_njit
    def augmentation(
        images: np.ndarray, mean: np.ndarray, factor: np.ndarray, words: np.ndarray
    ) -> np.ndarray:
        return _moved(moves, images, mean, factor, words, True)

    @numba_njit
    def centred(images: np.ndarray, mean: np.ndarray, factor: np.ndarray) -> np.ndarray:
        return _moved(moves, images, mean, factor, np.empty(len(images), np.uint64), False)

    if len(node.inputs) == 4:
        return augmentation, _VERSION
    return centred, _VERSION + 1  # the default key does not tell numbers of inputs apart


@numba_njit
def _moved(
    moves: np.ndarray,
    images: np.ndarray,
    mean: np.ndarray,
    factor: np.ndarray,
    words: np.ndarray,
    drawn: bool,
) -> np.ndarray:
    above, aside, rows, columns, flips, reflects = moves
    n, height, width, channels = images.shape
    if rows == 0:
        rows, columns = height, width
    down, right = height + 2 * above - rows + 1, width + 2 * aside - columns + 1
    sides = 2 if flips else 1
    fit = min(down, right) > 0 and sides * down * right <= MOST and len(words) == n
    fit = fit and not (reflects and (0 < above >= height or 0 < aside >= width))
    if not fit or len(mean) not in (1, channels) or len(factor) not in (1, channels):
        counts = (n, len(words), channels, len(mean), len(factor))
        with numba.objmode():
            _refuse_images(moves, (height, width), counts)
    found = np.empty((n, rows, columns, channels), mean.dtype)
    means, factors = np.empty(channels, mean.dtype), np.empty(channels, mean.dtype)
    means[:], factors[:] = mean, factor
    edge = (mean.dtype.type(0) - means) * factors
    from_column = np.empty(columns, np.int64)
    for r in range(n):
        top, left, flipped = (down - 1) // 2, (right - 1) // 2, False
        if drawn:
            number = np.int64(words[r] & np.uint64(0xFFFFFFFF)) % (sides * down * right)
            flipped = flips and number % 2 == 1
            top, left = number // sides // right, number // sides % right
        for j in range(columns):
            k = columns - 1 - j if flipped else j
            from_column[k] = _source(left + j - aside, width, reflects)
        for i in range(rows):
            y = _source(top + i - above, height, reflects)
            for j in range(columns):
                x = from_column[j]
                for c in range(channels):
                    if y < 0 or x < 0:
                        found[r, i, j, c] = edge[c]
                    else:
                        pixel = mean.dtype.type(images[r, y, x, c])
                        found[r, i, j, c] = (pixel - means[c]) * factors[c]
    return found


@numba_njit
def _source(at: int, length: int, reflects: bool) -> int:
    """The pixel of an image for a place outside or inside of it; -1: none."""
    if 0 <= at < length:
        return at
    if not reflects:
        return -1
    return -at if at < 0 else 2 * (length - 1) - at


@register_funcify_default_op_cache_key(Moments)  # type: ignore[untyped-decorator]
def _moments(op: Moments, node: Apply, **kwargs: object) -> Code:
    momentum = op.momentum
    kind = numba.types.Array(numba.float64, 2, "C")

    @numba_njit
    def moments(
        values: np.ndarray, mean: np.ndarray, variance: np.ndarray, token: np.ndarray
    ) -> np.ndarray:
        channels = values.shape[-1]
        rows = np.ascontiguousarray(values).reshape((values.size // channels, channels))
        local = np.zeros((2, channels))
        for r in range(len(rows)):
            for c in range(channels):
                local[0, c] += rows[r, c]
        local[0] /= len(rows)
        for r in range(len(rows)):
            for c in range(channels):
                local[1, c] += (rows[r, c] - local[0, c]) ** 2
        local[1] /= len(rows)
        with numba.objmode(found=kind):
            found = combined(local)
        means, variances = found[0].astype(values.dtype), found[1].astype(values.dtype)
        next_mean = (momentum * found[0] + (1 - momentum) * mean).astype(mean.dtype)
        next_variance = (momentum * found[1] + (1 - momentum) * variance).astype(variance.dtype)
        return means, variances, next_mean, next_variance, token

    return moments, _VERSION
