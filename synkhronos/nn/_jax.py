"""Convolution and pooling in JAX programs; imported when the first of them is compiled.

On GPUs convolutions are cuDNN's, through ``jax.lax``. XLA's own for CPUs is slow where there are
few channels, and for windows of one pixel; those are written as matrix products. Pooling is written
pixel by pixel of the window, which XLA fuses into one loop; its own scatters one by one.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback
from pytensor.link.jax.dispatch import jax_funcify

from synkhronos._meetings import is_held, mean_over_members, quietly
from synkhronos.nn._convolution import Convolution, ImageGradient, KernelGradient
from synkhronos.nn._moments import Mean, Moments, combined
from synkhronos.nn._pooling import Pooling, PoolingGradient
from synkhronos.nn._windows import Pair, Windows

# Values under a window up to which a matrix product over all windows beats XLA's convolution on a
# CPU: 9 and 36 do, 144 do not.
_FEW = 64


def _declared(node: Any, compute: Callable[..., Any]) -> Callable[..., Any]:
    """A function of inputs in the dtype that the graph declares; JAX's may be wider."""
    dtype = node.outputs[0].type.dtype
    return lambda *inputs: compute(*[v.astype(dtype) for v in inputs])


@jax_funcify.register(Convolution)
def _convolution(op: Convolution, node: Any, **kwargs: Any) -> Callable[..., Any]:
    del kwargs
    return _declared(node, functools.partial(_convolve, op.windows))


@jax_funcify.register(ImageGradient)
def _by_images(op: ImageGradient, node: Any, **kwargs: Any) -> Callable[..., Any]:
    del kwargs

    def by_images(images: Any, kernel: Any, gradient: Any) -> Any:
        _, pull = jax.vjp(lambda x: _convolve(op.windows, x, kernel), images)
        return pull(gradient)[0]

    return _declared(node, by_images)


@jax_funcify.register(KernelGradient)
def _by_kernel(op: KernelGradient, node: Any, **kwargs: Any) -> Callable[..., Any]:
    del kwargs

    def by_kernel(images: Any, kernel: Any, gradient: Any) -> Any:
        _, pull = jax.vjp(lambda w: _convolve(op.windows, images, w), kernel)
        return pull(gradient)[0]

    return _declared(node, by_kernel)


def _convolve(windows: Windows, images: Any, kernel: Any) -> Any:
    height, width, channels, new = kernel.shape
    if jax.default_backend() == "cpu":
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
    )


def _product(windows: Windows, images: Any, kernel: Any) -> Any:
    """Channels first, so that what is vectorised are rows of pixels, which are long."""
    height, width, channels, new = kernel.shape
    seen = [p.transpose(3, 0, 1, 2) for p in _pixels(windows, images, (height, width))]
    matrix = jnp.stack(seen).reshape(height * width * channels, -1)
    found = kernel.reshape(-1, new).T @ matrix
    return found.reshape(new, *seen[0].shape[1:]).transpose(1, 2, 3, 0)


def _pixels(windows: Windows, images: Any, window: Pair, fill: float = 0.0) -> list[Any]:
    """Pixel (i, j) of all windows, for each (i, j)."""
    rows, columns = windows.fitting(images.shape[1:3], window)
    if any(map(any, windows.padding)):
        around = ((0, 0), *windows.padding, (0, 0))
        images = jnp.pad(images, around, constant_values=images.dtype.type(fill))
    return [images[windows.place(i, j, rows, columns)] for i, j in np.ndindex(window)]


@jax_funcify.register(Pooling)
def _pooling(op: Pooling, node: Any, **kwargs: Any) -> Callable[..., Any]:
    del kwargs
    windows, window, fill = op.windows, op.window, op.fill

    def pooling(images: Any) -> Any:
        pixels = _pixels(windows, images, window, fill)
        if op.kind == "max":
            return functools.reduce(jnp.maximum, pixels)
        return sum(pixels) / images.dtype.type(len(pixels))

    return _declared(node, pooling)


@jax_funcify.register(PoolingGradient)
def _pooling_gradient(op: PoolingGradient, node: Any, **kwargs: Any) -> Callable[..., Any]:
    del kwargs
    windows, window, fill = op.windows, op.window, op.fill
    overlapping = any(k > step for k, step in zip(window, op.strides, strict=True))

    def parts(images: Any, pooled: Any, gradient: Any) -> Any:
        """What each pixel of the windows gets."""
        zero = gradient.dtype.type(0)
        if op.kind == "mean":
            return itertools.repeat(gradient / gradient.dtype.type(math.prod(window)))
        pixels = _pixels(windows, images, window, fill)
        first = jnp.full(pooled.shape, -1, jnp.int16)
        for number, pixel in reversed(list(enumerate(pixels))):
            hit = (pixel == pooled) | jnp.isnan(pixel)
            first = jnp.where(hit, jnp.int16(number), first)
        if overlapping:  # computed once for all pixels, not once for each
            first = lax.optimization_barrier(first)
        return (jnp.where(first == n, gradient, zero) for n in itertools.count())

    def pooling_gradient(images: Any, pooled: Any, gradient: Any) -> Any:
        given = parts(images, pooled, gradient)
        lengths = images.shape[1:3]
        return sum(
            _laid_back(windows, part, place, lengths)
            for place, part in zip(np.ndindex(window), given, strict=False)
        )

    return _declared(node, pooling_gradient)


def _laid_back(windows: Windows, part: Any, place: Pair, lengths: Pair) -> Any:
    """Values of pixel (i, j) of all windows, where these pixels lie in the images."""
    _, *slices = windows.place(*place, *part.shape[1:3])
    sides = [
        (at.start - before, length + before - at.stop, at.step - 1)
        for at, (before, _), length in zip(slices, windows.padding, lengths, strict=True)
    ]
    return lax.pad(part, part.dtype.type(0), [(0, 0, 0), *sides, (0, 0, 0)])


@jax_funcify.register(Mean)
def _mean(op: Mean, node: Any, **kwargs: Any) -> Callable[..., Any]:
    del kwargs
    meet = functools.partial(mean_over_members, op.number)
    return _declared(node, lambda values: _met(meet, values))


@jax_funcify.register(Moments)
def _moments(op: Moments, node: Any, **kwargs: Any) -> Callable[..., Any]:
    del kwargs

    def moments(values: Any, *running: Any) -> Any:
        axes = tuple(range(values.ndim - 1))
        local = jnp.stack([values.mean(axes), values.var(axes)])
        found = _met(functools.partial(combined, op.number), local)
        return (*found, *op.run_on(found, running))

    return _declared(node, moments)


def _met(meet: Callable[[np.ndarray], np.ndarray], values: Any) -> Any:
    """A call back into Python; members trace the same graph, so they meet in the same order."""
    if not is_held():
        return values

    def called(given: Any) -> np.ndarray:
        return np.asarray(quietly(meet, np.asarray(given)), given.dtype)

    kind = jax.ShapeDtypeStruct(values.shape, values.dtype)
    return io_callback(called, kind, values, ordered=True)
