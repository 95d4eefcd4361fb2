"""Inference rules: these operations keep images apart; the gradients of kernels are sums."""

from __future__ import annotations

from collections.abc import Sequence

from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

from synkhronos._proofs.values import Factors, Rows, Same, Stuck, Value, summed
from synkhronos._proofs.walk import Transferred, Walk, transfer
from synkhronos.nn._augmentation import Augmentation
from synkhronos.nn._convolution import (
    Convolution,
    ImageGradient,
    KernelGradient,
    TransposedConvolution,
)
from synkhronos.nn._moments import Moments
from synkhronos.nn._pooling import Pooling, PoolingGradient


@transfer.register(Convolution)
@transfer.register(TransposedConvolution)
def _convolution(op: Op, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    images, kernel = values
    return _apart([images], images) if isinstance(kernel, Same) else None


@transfer.register
def _by_images(op: ImageGradient, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    images, kernel, gradient = values
    return _apart([images, gradient], gradient) if isinstance(kernel, Same) else None


@transfer.register
def _by_kernel(op: KernelGradient, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    images, _, gradient = values
    if not _are_images(images, gradient):
        return None
    return summed(
        _one([images.factors, gradient.factors]),
        node.outputs[0].type.dtype,
        zero=images.zero or gradient.zero,
    )


@transfer.register
def _pooling(op: Pooling, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    [images] = values
    if op.kind == "max" and _are_images(images) and images.factors:
        raise Stuck("it is not linear in a value over all rows")
    return _apart([images], images)


@transfer.register
def _pooling_gradient(
    op: PoolingGradient, node: Apply, values: Sequence[Value], walk: Walk
) -> Transferred:
    images, pooled, gradient = values
    if not _are_images(images, pooled) or images.factors or pooled.factors:
        return None
    return _apart(values, gradient)


@transfer.register
def _augmentation(
    op: Augmentation, node: Apply, values: Sequence[Value], walk: Walk
) -> Transferred:
    images, mean, factor, *words = values
    if not all(isinstance(v, Same) for v in (mean, factor)) or not _are_images(images):
        return None
    if images.factors:
        raise Stuck("it is not linear in a value over all rows")
    return _apart([images, *words], Rows(0))


@transfer.register
def _moments(op: Moments, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    images, *running, _ = values
    if not _are_images(images) or images.factors:
        return None
    return Same() if all(isinstance(v, Same) for v in running) else None


def follow_layers(gathers: type, spreads: type) -> None:
    """Register the same rule for pytensor-ml's two operations that gather and spread pixels."""

    def picked(op: Op, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
        first, *lengths = values
        return _apart([first], first) if all(isinstance(v, Same) for v in lengths) else None

    transfer.register(gathers, picked)
    transfer.register(spreads, picked)


def _are_images(*values: object) -> bool:
    """Whether all values have one row for each image."""
    return all(isinstance(v, Rows) and v.axis == 0 for v in values)


def _apart(values: Sequence[Value], linear: object) -> Value | None:
    """Images computed from images row by row; linear in the one named `linear`."""
    if not _are_images(*values):
        return None
    return Rows(0, any(v.whole for v in values), linear.factors, linear.zero)


def _one(found: Sequence[Factors]) -> Factors:
    scaled = [f for f in found if f]
    if len(scaled) > 1:
        raise Stuck("it multiplies two values over all rows")
    return scaled[0] if scaled else frozenset()
