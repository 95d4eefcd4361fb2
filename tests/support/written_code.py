"""Graphs as machine code that is written without numba, beside what PyTensor makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.fg import FunctionGraph
from rewritten import rewritten

from synkhronos._compiling.direct.flat import Flat
from synkhronos._compiling.direct.functions import c_function
from synkhronos._compiling.lean.c_functions import Place

NUMBERS = np.array([0.3, -1.7, 2.5, 0.0, -0.0, 1.0, 40.0, -0.6, 1e-9, 3.0])
N = len(NUMBERS)
_WORDS = 5  # of the record for an array: its address, and room for four lengths


class Made:
    """A graph of a point and data as a C function, and as PyTensor evaluates it.

    By default the graph is not rewritten, so each operation is the one that is built.
    """

    def __init__(
        self,
        build: Callable[..., Any],
        *data: np.ndarray,
        length: int = N,
        rewrites: bool = False,
    ) -> None:
        x = pt.vector("x", dtype="float64", shape=(length,))
        given = [pt.tensor(dtype=d.dtype.name, shape=(None,) * d.ndim) for d in data]
        found = build(x, *given)
        vector = pt.concatenate([pt.as_tensor(v).astype("float64").ravel() for v in found])
        outputs = [pt.constant(np.array(1.0)), vector]
        self.places = [Place.of(d, _WORDS * at, _WORDS * at + 1) for at, d in enumerate(data)]
        if rewrites:
            graph = rewritten([x, *given], outputs).maker.fgraph
        else:
            graph = FunctionGraph([x, *given], outputs, clone=True)
        self.flat, self.length = Flat.of(graph), length
        with pytensor.config.change_flags(cxx=""):  # graphs inside of graphs have the default mode
            self.plain = pytensor.function(
                [x, *given], vector, mode="FAST_COMPILE", on_unused_input="ignore"
            )
        self.use(*data)

    def use(self, *data: np.ndarray) -> None:
        """Make the function for these data, of the same graph."""
        self.data = data
        self.total = len(self.plain(0.1 * np.sin(np.arange(1.0, self.length + 1)), *data))
        self.function = c_function(self.flat, data, self.places, [self.length, self.total])

    def at(self, point: np.ndarray, *data: np.ndarray) -> tuple[int, np.ndarray]:
        """The status, and the vector."""
        given = data or self.data
        words = np.zeros(_WORDS * len(given) + 1, np.int64)
        for place, d in zip(self.places, given, strict=True):
            words[place.address] = d.ctypes.data
            words[place.lengths : place.lengths + d.ndim] = d.shape
        found, value = np.full(self.total, np.nan), np.zeros(1)
        status = self.function([self.length, self.total], [point, found, value, words])
        return status, found

    def check(self, *points: np.ndarray) -> None:
        for point in points:
            _, found = self.at(point)
            expected = self.plain(point, *self.data)
            size = np.abs(expected[np.isfinite(expected)]).max(initial=0.0)
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=min(1e-15 * size, 1e-12))
