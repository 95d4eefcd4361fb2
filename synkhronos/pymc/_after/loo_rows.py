"""PSIS-LOO of blocks of rows: their log-likelihoods for all draws, and what follows from these."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile import Function
from xarray import DataArray

from synkhronos.pymc._after.calculation import in_processes
from synkhronos.pymc._after.pareto import smooth
from synkhronos.pymc._after.some_rows import SomeRows
from synkhronos.pymc._after.work import InMemory, Target, Work

SAMPLE_DIMS = ("chain", "draw")
_BYTES = 64 << 20  # of the log-likelihoods of a block
_CHOSEN = "synk chosen row"  # a dimension
_DRAWS = 32  # copied together, since a line of memory has 8 numbers
_RTOL = 1e-9  # of log-likelihoods of some rows, computed apart and with all


@dataclass
class LooRows(Work):
    """PSIS-LOO of all rows of a variable.

    The results are elpd, Pareto k, lppd and a mark, of shape ``(rows, each)``. The mark is 1 where
    all draws in the tail are equal. Without a tail lppd is the only result.
    """

    counted = "rows"

    rows: int  # along the first axis of the variable
    each: int  # the number of log-likelihoods in a row; more than 1 if the variable has more axes
    draws: int
    tail: int  # of `pareto.tail_length`; 0: no weights are smoothed

    @property
    def total(self) -> int:
        return self.rows

    @property
    def parts(self) -> list[range]:
        length = max(1, _BYTES // (8 * self.draws * max(1, self.each)))
        return [range(i, min(i + length, self.rows)) for i in range(0, self.rows, length)]

    @property
    def results(self) -> int:
        """The number of results."""
        return 4 if self.tail else 1

    def computed(self, part: range) -> list[np.ndarray]:
        found = [np.empty((len(part), self.each)) for _ in range(self.results)]
        self._fill(part, np.empty((len(part) * self.each, self.draws)), found)
        return found

    def compute(self, mine: Sequence[range], target: Target) -> Iterator[int]:
        assert isinstance(target, InMemory)
        done = 0
        longest = max(map(len, mine), default=0)
        memory = np.empty((longest * self.each, self.draws))  # new pages take longer than numbers
        for rows in mine:
            own = [array[rows.start : rows.stop] for array in target.arrays]
            self._fill(rows, memory[: len(rows) * self.each], own)
            done += len(rows)
            yield done

    def _fill(self, rows: range, memory: np.ndarray, results: Sequence[np.ndarray]) -> None:
        """Compute rows, whose log-likelihoods are in memory meanwhile."""
        self.log_likelihoods(rows, memory)
        flat = [array.reshape(-1) for array in results]
        if self.tail:
            elpd, pareto_k, lppd, same = flat
            same[:] = 0
            same[smooth(memory, self.tail, elpd, pareto_k, lppd)] = 1
        else:
            flat[0][:] = log_means(memory)

    @abstractmethod
    def of_first_draw(self) -> np.ndarray:
        """All log-likelihoods of the first draw, flat."""

    @abstractmethod
    def log_likelihoods(self, rows: range, found: np.ndarray) -> None:
        """Those of some rows, into an array of shape ``(len(rows) * each, draws)``."""


@dataclass
class StoredRows(LooRows):
    """Rows of log-likelihoods that have been computed."""

    values: DataArray  # the rows are its first axis, and the dimensions of the draws its last ones

    @property
    def in_processes(self) -> bool:
        return not self.values.encoding  # of a file, whose reader may have threads

    def of_first_draw(self) -> np.ndarray:
        return self.values[..., 0, 0].values.reshape(-1)

    def chosen(self, numbers: np.ndarray) -> StoredRows:
        """The log-likelihoods with these numbers, each a row."""
        own = self.values.dims[: -len(SAMPLE_DIMS)]
        places = np.unravel_index(numbers, self.values.shape[: len(own)])
        indexes = {dim: DataArray(p, dims=_CHOSEN) for dim, p in zip(own, places, strict=True)}
        values = self.values.isel(indexes).transpose(_CHOSEN, *SAMPLE_DIMS)
        return StoredRows(len(numbers), 1, self.draws, self.tail, values)

    def log_likelihoods(self, rows: range, found: np.ndarray) -> None:
        values = self.values[rows.start : rows.stop].values
        shaped = found.reshape(values.shape)
        for chain in range(values.shape[-2]):
            for first in range(0, values.shape[-1], _DRAWS):
                several = (..., chain, slice(first, first + _DRAWS))
                shaped[several] = values[several]


@dataclass
class ModelRows(LooRows):
    """Rows whose log-likelihoods a compiled function computes."""

    function: Function  # its last two inputs are the first row and the one after the last
    inputs: list[np.ndarray]  # the values of the other inputs, of shape ``(draws, ...)``

    @property
    def in_processes(self) -> bool:
        return in_processes(self.function)

    def of_first_draw(self) -> np.ndarray:
        given = [values[0, ...] for values in self.inputs]
        return self.function(*given, np.asarray(0), np.asarray(self.rows))[0].reshape(-1)

    def log_likelihoods(self, rows: range, found: np.ndarray) -> None:
        _over_draws(self.function, self.inputs, _asked(rows, False), found, slice(None))


@dataclass
class ChosenRows(LooRows):
    """Log-likelihoods with some numbers, each a row, which a compiled function computes."""

    function: Function  # its last input are numbers of rows of the variable
    inputs: list[np.ndarray]  # as those of `ModelRows`
    numbers: np.ndarray  # of the log-likelihoods, flat
    width: int  # log-likelihoods in a row of the variable

    @property
    def in_processes(self) -> bool:
        return in_processes(self.function)

    def of_first_draw(self) -> np.ndarray:
        found = np.empty((len(self.numbers), 1))
        first = [values[:1] for values in self.inputs]
        replace(self, inputs=first).log_likelihoods(range(len(self.numbers)), found)
        return found[:, 0]

    def log_likelihoods(self, rows: range, found: np.ndarray) -> None:
        numbers = self.numbers[rows.start : rows.stop]
        several, place = np.unique(numbers // self.width, return_inverse=True)
        places = place * self.width + numbers % self.width
        _over_draws(self.function, self.inputs, [several], found, places)


def _over_draws(
    function: Function,
    inputs: Sequence[np.ndarray],
    asked: Sequence[np.ndarray],  # the inputs that name rows
    found: np.ndarray,
    places: slice | np.ndarray,
) -> None:
    """The results of a function at these places, for each draw."""
    function.trust_input = True
    few = np.empty((_DRAWS, len(found)))
    draws = found.shape[1]
    for first in range(0, draws, _DRAWS):
        several = range(first, min(first + _DRAWS, draws))
        for place, draw in enumerate(several):
            given = [values[draw, ...] for values in inputs]
            few[place] = function(*given, *asked)[0].reshape(-1)[places]
        found[:, several.start : several.stop] = few[: len(several)].T


def _asked(rows: range, chosen: bool) -> list[np.ndarray]:
    """The inputs that name rows: their numbers, or the first one and that after the last."""
    return (
        [np.arange(rows.start, rows.stop)]
        if chosen
        else [*map(np.asarray, (rows.start, rows.stop))]
    )


def log_means(rows: np.ndarray) -> np.ndarray:
    """The logs of mean likelihoods, from log-likelihoods of shape ``(rows, draws)``."""
    most = rows.max(axis=1)
    most[~np.isfinite(most)] = 0
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        return np.log(np.exp(rows - most[:, None]).mean(axis=1)) + most


def function_of_rows(
    whole: Any,  # the graph of all log-likelihoods
    length: int,
    first: np.ndarray,  # all of the first draw, flat
    inputs: Sequence[np.ndarray],
    compiled: Callable[..., Function],  # of a graph, and inputs beside the others
    within: float = _RTOL,
    chosen: bool = False,
) -> tuple[Function, bool]:
    """A function whose last two inputs are the first row and the one after the last.

    If rows are chosen, its last input are their numbers instead. Also returned: whether it computes
    the log-likelihoods of the first draw.
    """
    start, stop = pt.lscalar("start"), pt.lscalar("stop")
    numbers = pt.lvector("rows")
    asked = [numbers] if chosen else [start, stop]
    some = SomeRows(numbers, None, length) if chosen else SomeRows(start, stop, length)
    axes = whole if whole.type.ndim else whole.dimshuffle("x")
    given = [values[0, ...] for values in inputs]
    expected = first.reshape(length, -1)
    function = compiled(some.of(axes), asked)
    if _agrees(function, given, expected, within, chosen):
        return function, True
    function = compiled(axes[numbers] if chosen else axes[start:stop], asked)
    return function, _agrees(function, given, expected, within, chosen)


def _agrees(
    function: Function,
    given: Sequence[np.ndarray],
    expected: np.ndarray,
    within: float,
    chosen: bool,
) -> bool:
    """Whether some rows, computed apart, are those of the whole."""
    length = len(expected)
    few = min(length, 1000)
    for start in {0, (length - few) // 2, length - few}:
        found = function(*given, *_asked(range(start, start + few), chosen))[0]
        wanted = expected[start : start + few]
        if found.size != wanted.size:
            return False
        found = found.reshape(wanted.shape)
        if not np.allclose(found, wanted, rtol=within, atol=within, equal_nan=True):
            return False
    return True
