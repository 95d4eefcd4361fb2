"""Arrays of a function: places in memory, and views of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from synkhronos._compiling.direct.unfit import UnfitError

type Shape = tuple[int, ...]

_LARGE = 1 << 16  # elements of a constant


@dataclass(eq=False)
class Buffer:
    """Memory of numbers.

    Attributes
    ----------
    size : int
        The number of its elements.
    argument : int or None
        The number of the function's argument. None: memory of the function's own.
    constant : array or None
        What is in it, if that stays.
    """

    size: int
    dtype: str
    argument: int | None = None
    constant: np.ndarray | None = None


@dataclass(frozen=True)
class View:
    """Elements of a buffer as an array; strides and the offset count elements."""

    buffer: Buffer
    shape: Shape
    strides: Shape
    offset: int = 0

    @classmethod
    def whole(cls, buffer: Buffer, shape: Shape) -> View:
        """All elements, in C order."""
        return cls(buffer, shape, contiguous(shape))

    @property
    def dtype(self) -> str:
        return self.buffer.dtype

    def broadcast(self, shape: Shape) -> View:
        """The view with more axes, or longer ones in place of those of length 1."""
        more = len(shape) - len(self.shape)
        strides = [0] * more + [
            0 if old == 1 else stride for old, stride in zip(self.shape, self.strides, strict=True)
        ]
        if any(old not in (1, new) for old, new in zip(self.shape, shape[more:], strict=True)):
            raise UnfitError(f"{self.shape} as {shape}")
        return replace(self, shape=tuple(shape), strides=tuple(strides))

    def moved(self, order: Sequence[int | str]) -> View:
        """The axes in an order; "x" is a new one. Axes that are left out have length 1."""
        shape = tuple(1 if a == "x" else self.shape[int(a)] for a in order)
        strides = tuple(0 if a == "x" else self.strides[int(a)] for a in order)
        return replace(self, shape=shape, strides=strides)

    @property
    def transposed(self) -> View:
        """The view with its last axes exchanged."""
        last = len(self.shape) - 1
        return self.moved([*range(last - 1), last, last - 1])

    def first(self, length: int) -> View:
        """The first elements along the last axis."""
        return self.part([*[slice(None)] * (len(self.shape) - 1), slice(length)])

    def part(self, index: Sequence[int | slice]) -> View:
        """The elements that integers and slices name; an index of the first axes."""
        shape, strides, offset = [], [], self.offset
        given = [*index, *[slice(None)] * (len(self.shape) - len(index))]
        for each, length, stride in zip(given, self.shape, self.strides, strict=True):
            if isinstance(each, slice):
                places = range(length)[each]
                offset += (places.start if len(places) else 0) * stride
                shape.append(len(places))
                strides.append(places.step * stride)
            else:
                offset += range(length)[each] * stride
        return replace(self, shape=tuple(shape), strides=tuple(strides), offset=offset)

    def reshaped(self, shape: Shape) -> View | None:
        """The elements in C order with another shape; None if these are no view."""
        kept = [(n, s) for n, s in zip(self.shape, self.strides, strict=True) if n != 1]
        merged: list[tuple[int, int]] = []  # of axes that follow each other in memory
        for n, stride in kept:
            if merged and merged[-1][1] == n * stride:
                merged[-1] = merged[-1][0] * n, stride
            else:
                merged.append((n, stride))
        if len(merged) > 1:
            long = [n for n in shape if n != 1]
            if long != [n for n, _ in kept]:
                return None
            left = iter(s for _, s in kept)
            return replace(
                self, shape=shape, strides=tuple(next(left) if n != 1 else 0 for n in shape)
            )
        step = merged[0][1] if merged else 0
        return replace(self, shape=shape, strides=tuple(step * s for s in contiguous(shape)))


def contiguous(shape: Shape) -> Shape:
    """The strides of an array in C order."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def new_array(shape: Shape, dtype: str) -> View:
    """An array in memory of its own."""
    return View.whole(Buffer(math.prod(shape), dtype), shape)


def array_of(value: np.ndarray) -> View:
    """An array of numbers that stay.

    Raises
    ------
    UnfitError
        They are many, or no numbers.
    """
    if value.dtype.kind not in "fiub":
        raise UnfitError(f"a constant of {value.dtype}")
    if value.size and (value == value.flat[0]).all():
        one = Buffer(1, value.dtype.name, constant=value.ravel()[:1])
        return View.whole(one, ()).broadcast(value.shape)
    if value.size > _LARGE:
        raise UnfitError(f"a constant of {value.size} elements")
    buffer = Buffer(value.size, value.dtype.name, constant=value.ravel())
    return View.whole(buffer, value.shape)
