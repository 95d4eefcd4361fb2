"""Windows over images: their number, their positions, and their pixels as one array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from pytensor.graph.basic import Variable

Pair = tuple[int, int]
Padding = tuple[Pair, Pair]
Lengths = Sequence[Variable | int | None]


@dataclass(frozen=True)
class Windows:
    """The positions of windows in an image: strides, padding, and dilation of the pixels."""

    strides: Pair  # vertical, horizontal; as for dilation
    padding: Padding  # top and bottom; left and right
    dilation: Pair = (1, 1)

    def fitting(self, lengths: Lengths, window: Sequence[int]) -> Lengths:
        """The numbers of windows that fit; lengths may be numbers, variables or None.

        >>> Windows((2, 2), ((1, 1), (0, 0))).fitting((5, 6), (3, 3))
        (3, 2)
        """
        first, second = [
            None if n is None else (n + before + after - ((k - 1) * gap + 1)) // step + 1
            for n, k, step, (before, after), gap in zip(
                lengths, window, self.strides, self.padding, self.dilation, strict=True
            )
        ]
        return first, second

    def covered(self, fitting: Lengths, window: Lengths, added: Pair) -> Lengths:
        """The lengths of images that hold these numbers of windows; they may be variables or None.

        >>> Windows((2, 2), ((1, 1), (0, 0))).covered((3, 2), (3, 3), (0, 1))
        (5, 6)
        """
        first, second = [
            None if n is None else (n - 1) * step + (k - 1) * gap + 1 - before - after + extra
            for n, k, step, (before, after), gap, extra in zip(
                fitting, window, self.strides, self.padding, self.dilation, added, strict=True
            )
        ]
        return first, second

    def check(self, lengths: Sequence[int | None], window: Pair) -> None:
        """Raise if windows are larger than the images, as far as lengths are known."""
        fitting = self.fitting(lengths, window)
        if any(n is not None and n < 1 for n in fitting):
            raise ValueError(
                f"windows of {window}, with dilation {self.dilation}, do not fit into images of "
                f"{tuple(lengths)} with padding {self.padding}"
            )

    def pixels(self, images: np.ndarray, window: Pair, fill: float = 0) -> np.ndarray:
        """The pixels of each window, of shape (images, rows, columns, *window, channels)."""
        self.check(images.shape[1:3], window)
        padded = self.padded(images, fill)
        spans = tuple((k - 1) * gap + 1 for k, gap in zip(window, self.dilation, strict=True))
        view = sliding_window_view(padded, spans, axis=(1, 2))
        (down, right), (by, along) = self.strides, self.dilation
        return view[:, ::down, ::right, :, ::by, ::along].transpose(0, 1, 2, 4, 5, 3)

    def padded(self, images: np.ndarray, fill: float = 0) -> np.ndarray:
        """The images with their padding."""
        if not any(map(any, self.padding)):
            return images
        return np.pad(images, ((0, 0), *self.padding, (0, 0)), constant_values=fill)

    def spread(self, pixels: np.ndarray, lengths: Pair) -> np.ndarray:
        """The transpose of `pixels`: add each value to the pixel that it belongs to."""
        n, rows, columns, height, width, channels = pixels.shape
        self.check(lengths, (height, width))
        (top, bottom), (left, right) = self.padding
        down, across = lengths
        whole = np.zeros((n, top + down + bottom, left + across + right, channels), pixels.dtype)
        for i in range(height):
            for j in range(width):
                whole[self.place(i, j, rows, columns)] += pixels[:, :, :, i, j]
        return whole[:, top : top + down, left : left + across]

    def place(self, i: int, j: int, rows: int, columns: int) -> tuple[slice, slice, slice]:
        """The slices of padded images that hold pixel (i, j) of all windows."""
        starts = i * self.dilation[0], j * self.dilation[1]
        return (
            slice(None),
            *(
                slice(start, start + (n - 1) * step + 1, step)
                for start, n, step in zip(starts, (rows, columns), self.strides, strict=True)
            ),
        )
