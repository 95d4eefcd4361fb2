"""C functions of a standardised point, around C functions of a point.

The point is ``centre + scales * (z + directions.T @ (factors * (directions @ z)))``: an affine map
by a diagonal of scales and a correction of low rank. A sampler in another language then moves in
`z`, with the metric of the map. One function serves all models, since it reads all from a record.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir

from synkhronos._compiling.kept.machine_code import CFunction
from synkhronos._compiling.lean.machine_code import compiled
from synkhronos._libraries.numba import cpu_target, for_range

_WORD, _NUMBER = ir.IntType(64), ir.DoubleType()
_NUMBERS, _RECORD = _NUMBER.as_pointer(), _WORD.as_pointer()
# the words of a record
_WORDS = ("density", "expansion", "data", "first", "length", "rank")
_ARRAYS = ("centre", "scales", "directions", "factors", "point", "products")
_PLACES = {name: place for place, name in enumerate((*_WORDS, *_ARRAYS))}


@dataclass(frozen=True)
class AffineMap:
    """A map from standardised points to points.

    Attributes
    ----------
    centre, scales : array
        Of the length of a point.
    directions : array
        Orthonormal rows, each of the length of a point; maybe none.
    factors : array
        A number above -1 for each row.
    """

    centre: np.ndarray
    scales: np.ndarray
    directions: np.ndarray
    factors: np.ndarray

    def points(self, z: np.ndarray) -> np.ndarray:
        """The points of standardised ones, along the last axis."""
        return self.centre + self.scales * self._corrected(z, self.factors)

    def gradients(self, found: np.ndarray) -> np.ndarray:
        """The gradients by points of those by standardised ones."""
        return self._corrected(found, -self.factors / (1 + self.factors)) / self.scales

    def _corrected(self, z: np.ndarray, factors: np.ndarray) -> np.ndarray:
        return z + ((z @ self.directions.T) * factors) @ self.directions


class StandardisedRecord:
    """What `density` and `expansion` read, for one thread at a time.

    Attributes
    ----------
    words : array
        Its address is that of the record.
    """

    def __init__(self, density: int, expansion: int, data: int, by: AffineMap) -> None:
        arrays = {
            "centre": by.centre,
            "scales": by.scales,
            "directions": by.directions,
            "factors": by.factors,
            "point": np.empty_like(by.centre),
            "products": np.empty_like(by.factors),
        }
        self._arrays = {
            name: np.ascontiguousarray(arrays[name], dtype="float64") for name in _ARRAYS
        }
        given = [density, expansion, data, 0, len(by.centre), len(by.factors)]
        addresses = [array.ctypes.data for array in self._arrays.values()]
        self.words = np.array([*given, *addresses], dtype="int64")

    def begin(self) -> None:
        """Let the next gradient be ones, by which nutpie starts with the identity as its metric."""
        self.words[_PLACES["first"]] = 1


class _Code:
    """The instructions of one function."""

    def __init__(self, builder: ir.IRBuilder, record: ir.Value) -> None:
        self.builder = builder
        self._words = builder.bitcast(record, _RECORD)
        self.length, self.rank = self.word("length"), self.word("rank")

    def place(self, name: str) -> ir.Value:
        """The address of a word."""
        return self.builder.gep(self._words, [_WORD(_PLACES[name])])

    def word(self, name: str) -> ir.Value:
        """A word."""
        return self.builder.load(self.place(name))

    def array(self, name: str) -> ir.Value:
        """The address of an array."""
        return self.builder.inttoptr(self.word(name), _NUMBERS)

    def function(self, name: str, kind: ir.FunctionType) -> ir.Value:
        """A function, by its address."""
        return self.builder.inttoptr(self.word(name), kind.as_pointer())

    def each(self, count: ir.Value, step: Callable[[ir.Value], None]) -> None:
        """A loop."""
        with for_range(self.builder, count) as loop:
            step(loop.index)

    def at(self, array: ir.Value, index: ir.Value) -> ir.Value:
        """An entry."""
        return self.builder.load(self.builder.gep(array, [index]))

    def put(self, array: ir.Value, index: ir.Value, value: ir.Value) -> None:
        """Set an entry."""
        self.builder.store(value, self.builder.gep(array, [index]))

    def correct(self, source: ir.Value, target: ir.Value) -> None:
        """Add ``directions.T @ (factors * (directions @ source))`` ; both may be one."""
        builder = self.builder
        directions, factors = self.array("directions"), self.array("factors")
        products = self.array("products")

        def multiply(row: ir.Value) -> None:
            first = builder.mul(row, self.length)
            self.put(products, row, _NUMBER(0.0))

            def add(i: ir.Value) -> None:
                term = builder.fmul(self.at(directions, builder.add(first, i)), self.at(source, i))
                self.put(products, row, builder.fadd(self.at(products, row), term))

            self.each(self.length, add)
            product = builder.fmul(self.at(products, row), self.at(factors, row))
            self.put(products, row, product)

        def spread(row: ir.Value) -> None:
            first = builder.mul(row, self.length)
            product = self.at(products, row)

            def add(i: ir.Value) -> None:
                term = builder.fmul(self.at(directions, builder.add(first, i)), product)
                self.put(target, i, builder.fadd(self.at(target, i), term))

            self.each(self.length, add)

        self.each(self.rank, multiply)
        self.each(self.rank, spread)

    def point(self, z: ir.Value) -> ir.Value:
        """The point of a standardised one."""
        builder, point = self.builder, self.array("point")
        centre, scales = self.array("centre"), self.array("scales")
        self.each(self.length, lambda i: self.put(point, i, self.at(z, i)))
        self.correct(z, point)

        def place(i: ir.Value) -> None:
            scaled = builder.fmul(self.at(scales, i), self.at(point, i))
            self.put(point, i, builder.fadd(self.at(centre, i), scaled))

        self.each(self.length, place)
        return point

    def pull_back(self, gradient: ir.Value) -> None:
        """The gradient by the standardised point, in place of that by the point."""
        builder, scales = self.builder, self.array("scales")

        def scale(i: ir.Value) -> None:
            self.put(gradient, i, builder.fmul(self.at(scales, i), self.at(gradient, i)))

        self.each(self.length, scale)
        self.correct(gradient, gradient)


def _density(code: _Code, given: list[ir.Value], kind: ir.FunctionType) -> ir.Value:
    builder = code.builder
    length, z, gradient, value, _ = given
    data = builder.inttoptr(code.word("data"), kind.args[-1])
    arguments = [length, code.point(z), gradient, value, data]
    status = builder.call(code.function("density", kind), arguments)
    first = builder.icmp_signed("!=", code.word("first"), _WORD(0))
    with builder.if_else(first) as (then, otherwise):
        with then:
            builder.store(_WORD(0), code.place("first"))
            code.each(code.length, lambda i: code.put(gradient, i, _NUMBER(1.0)))
        with otherwise:
            code.pull_back(gradient)
    return status


def _expansion(code: _Code, given: list[ir.Value], kind: ir.FunctionType) -> ir.Value:
    length, expanded, z, variables, _ = given
    data = code.builder.inttoptr(code.word("data"), kind.args[-1])
    arguments = [length, expanded, code.point(z), variables, data]
    return code.builder.call(code.function("expansion", kind), arguments)


@functools.cache
def functions() -> tuple[CFunction, CFunction]:
    """The density and the expansion of a standardised point, as nutpie calls them."""
    pointer = ir.IntType(8).as_pointer()
    return (
        _made("synkhronos_standardised_density", _density, [_WORD, *[_NUMBERS] * 3, pointer]),
        _made(
            "synkhronos_standardised_expansion",
            _expansion,
            [*[_WORD] * 2, *[_NUMBERS] * 2, pointer],
        ),
    )


def _made(name: str, write: Callable[..., ir.Value], given: list[ir.Type]) -> CFunction:
    kind = ir.FunctionType(_WORD, given)
    module: Any = cpu_target.target_context.create_module(name)
    function = ir.Function(module, kind, name)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    code = _Code(builder, function.args[-1])
    builder.ret(write(code, list(function.args), kind))
    return compiled(name, module)
