"""Feeds: the batches of an epoch as arguments of a call, from Data or from sources."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from pytensor.graph.basic import Variable

from synkhronos._api.data import Data
from synkhronos._api.make_data import data as make_data
from synkhronos._api.unusable import why_unusable
from synkhronos._checks import shown
from synkhronos._errors import InputError, InputTypeError, SourceError
from synkhronos._warnings import log
from synkhronos.extensions._rows.batches import Batches
from synkhronos.extensions._rows.loader import Loader
from synkhronos.extensions._rows.source import Source, by_number
from synkhronos.extensions._step.step_report import Rows
from synkhronos.training._run.augmentation import Words

_LOADED_ROWS = 1024  # at a time, of a source without blocks

Step = tuple[tuple[object, ...], object, int]  # the inputs, the batch of them, its number of rows


@dataclass(frozen=True)
class Order:
    """In which batches rows are taken, and how sources are read: see `Batches` and `Loader`."""

    size: int
    seed: int = 0
    shuffle: bool = True
    last: Any = "keep"
    prefetch: int = 2
    read: Any = "master"


class Feed(Rows):
    """One pass over batches for each `for` loop, as arguments of calls, while it is entered.

    Arrays become Data once, in shared memory; a source is read in batches by a `Loader`, or once
    if the order says ``read="memory"``.
    """

    def __init__(
        self,
        # for each input with rows an array, Data, or source; or one Loader for all
        given: Sequence[Any],
        inputs: Sequence[Variable],  # what the arrays are for
        order: Order | None = None,  # None: that of the Loader
        # the words of the epoch's rows are one more argument, the last one
        augmented: bool = False,
    ) -> None:
        self.fixed: tuple[Data, ...] | None = None  # all rows, where they are in shared memory
        # the inputs of the latest step, and the batch of them
        self.latest: tuple[tuple[object, ...], object] = ((), None)
        whole = order is not None and order.read == "memory"
        self.in_memory = whole or all(isinstance(v, Data | np.ndarray) for v in given)
        self._given = given
        self._inputs = inputs
        self._order = order
        self._augmented = augmented
        self._loader: Loader | None = None

    def __enter__(self) -> Self:
        given, order = self._given, self._order
        if order is None:
            [self._loader] = given
            self.batches = self._loader.batches
        else:
            blocks = _blocks_of(given) if order.shuffle and not self.in_memory else None
            self.batches = Batches(
                len(given[0]), order.size, order.seed, order.shuffle, order.last, blocks=blocks
            )
        self._words = Words(self.batches, shared=self.in_memory) if self._augmented else None
        if self.in_memory:
            self.fixed = tuple(
                v
                if isinstance(v, Data)
                else _shared(v, variable)
                if isinstance(v, np.ndarray)
                else _loaded(v, variable, i)
                for i, (v, variable) in enumerate(zip(given, self._inputs, strict=True))
            )
            if self._words is not None:
                self.fixed += (self._words.all,)
        elif order is not None:
            sources = [
                v.readable
                if isinstance(v, Data)
                else _cast(v, variable)
                if isinstance(v, np.ndarray)
                else v
                for v, variable in zip(given, self._inputs, strict=True)
            ]
            self._loader = Loader(sources, self.batches, prefetch=order.prefetch, read=order.read)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._loader is not None:
            self._loader.close()

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Step]:
        batches, words = self.batches, self._words
        if self.fixed is not None:
            fixed = self.fixed
            for rows in batches:
                if words is not None:
                    words.begin_epoch(batches.epoch)
                self.latest = fixed, rows
                yield fixed, rows, len(rows)
            return
        loader = self._loader
        assert loader is not None
        for taken in loader:
            found = taken if isinstance(taken, tuple) else (taken,)
            if words is not None:
                words.begin_epoch(batches.epoch)
                found += (words.all[loader.rows],)
            self.latest = found, None
            yield found, None, len(found[0])

    def begin(self) -> tuple[Data, ...]:
        """`fixed` for the epoch that comes next, for members that take batches by themselves."""
        if self._words is not None:
            self._words.begin_epoch(self.batches.state()["epoch"])
        assert self.fixed is not None, "members cannot take batches of a source by themselves"
        return self.fixed

    @property
    def waited(self) -> float:
        """Seconds that loops have waited for sources."""
        return 0.0 if self._loader is None else self._loader.waited


def rows_of(given: Sequence[object], inputs: Sequence[Variable], what: str) -> int:
    """The number of rows of the data, of which there is one for each input.

    Raises
    ------
    InputError, InputTypeError
        There are too many or too few, something has no rows, or lengths differ.
    """
    names = ", ".join(str(v) for v in inputs)
    if any(isinstance(v, Loader) for v in given):
        raise InputTypeError(
            f"{what}: a Loader has batches of its own, and only fit takes one, in place of all "
            "data: give what it reads, loader.sources"
        )
    if len(given) != len(inputs):
        raise InputError(f"{what}: {len(given)} arrays for the inputs {names}: give one for each")
    lengths = []
    for value, variable in zip(given, inputs, strict=True):
        if not hasattr(value, "__len__") or isinstance(value, str | dict | list | tuple):
            raise InputTypeError(
                f"{what}: {shown(value)} for {variable} has no rows: give an array, Data, or a "
                "source with a length, such as an h5py dataset"
            )
        if why := why_unusable(value):  # before len(), which sparse matrices refuse
            raise InputTypeError(f"{what}: {shown(value)} for {variable}: {why}")
        if isinstance(value, np.ndarray) and not value.ndim:
            raise InputError(f"{what}: the array for {variable} has no rows: it is 0-d")
        lengths.append(len(value))
    if len(set(lengths)) > 1:
        pairs = ", ".join(f"{v}: {n:,}" for v, n in zip(inputs, lengths, strict=True))
        raise InputError(f"{what}: the inputs have different numbers of rows ({pairs})")
    if not lengths or not lengths[0]:
        raise InputError(f"{what}: there are no rows")
    return lengths[0]


def no_rows(what: str) -> SourceError:
    """The error where sources have left out all rows."""
    return SourceError(
        f"fit: no row of {what} could be read, and sources made with skip=True leave such rows "
        "out: the warnings before this error name the files. See that these can be read, and make "
        "the sources anew"
    )


def _blocks_of(given: Sequence[object]) -> Sequence[int] | None:
    """The blocks in which the rows of the first source are stored that has several."""
    for source in given:
        blocks = getattr(source, "blocks", None)
        if blocks is not None and len(blocks) > 1:
            return list(blocks)
    return None


def listed(given: object) -> list[object]:
    """The data as a list, whose tables of pandas and tensors are arrays now."""
    return [by_number(each) for each in (given if isinstance(given, tuple | list) else [given])]


def _shared(array: np.ndarray, variable: Variable) -> Data:
    """Data of an array, whose dtype must be held without loss."""
    try:
        return make_data(array, var=variable)
    except InputTypeError:
        if np.can_cast(array.dtype, variable.type.dtype):
            raise
        raise _lossy(array, variable) from None


def _cast(array: np.ndarray, variable: Variable) -> np.ndarray:
    """An array of the input's dtype, as `_shared` makes it: a Loader keeps that of its sources."""
    wanted = np.dtype(variable.type.dtype)
    if array.dtype == wanted:
        return array
    if not np.can_cast(array.dtype, wanted):
        raise _lossy(array, variable)
    return array.astype(wanted)


def _lossy(array: np.ndarray, variable: Variable) -> InputTypeError:
    return InputTypeError(
        f"the array for {variable} is {array.dtype}, and {variable.type} does not take it "
        f'without loss: give array.astype("{variable.type.dtype}")'
    )


def _loaded(given: Any, variable: Variable, number: int) -> Data:
    """Data of all rows of a source, read block by block into shared memory."""
    source, n = Source(given, number, len(given)), len(given)
    blocks = getattr(given, "blocks", None) or [_LOADED_ROWS] * -(-n // _LOADED_ROWS)
    borders = np.minimum(np.cumsum([0, *blocks]), n)
    made: Data | None = None
    with source.reading():
        for start, stop in itertools.pairwise(borders):
            if start == stop:
                continue
            place = None if made is None else made.writable[start:stop]
            try:
                found = np.asarray(source.read(np.arange(start, stop), place))
            except SourceError as exc:
                if exc.lost:
                    exc.add_note('synkhronos: read="memory" leaves out no rows; read="master" does')
                raise
            if made is None:
                made = make_data(found[:0], var=variable)
                made.set_shape((n, *found.shape[1:]))
                size = made.writable.nbytes / 1e6
                log.info("fit: reads all %d rows of %s, %.3g MB, into memory", n, variable, size)
            if found is not place:
                made.writable[start:stop] = found
    assert made is not None, "rows_of refuses data without rows"
    made.wrote()
    return made
