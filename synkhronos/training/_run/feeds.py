"""Feeds: the batches of an epoch as arguments of a call, from Data or from sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from pytensor.graph.basic import Variable

from synkhronos._api.data import Data
from synkhronos._api.make_data import data as make_data
from synkhronos._checks import shown
from synkhronos._errors import InputError, InputTypeError
from synkhronos.extensions._rows.batches import Batches
from synkhronos.extensions._rows.loader import Loader
from synkhronos.extensions._step.step_report import Rows
from synkhronos.training._run.augmentation import Words

Step = tuple[tuple[object, ...], object, int]  # the inputs, the batch of them, its number of rows


class Feed(Rows):
    """One pass over batches for each `for` loop, as arguments of calls.

    Arrays become Data once, in shared memory; a source is read in batches by a `Loader`.
    """

    def __init__(
        self,
        # for each input with rows an array, Data, or source; or one Loader for all
        given: Sequence[Any],
        batches: Batches,
        inputs: Sequence[Variable],  # what the arrays are for
        prefetch: int = 2,
        read: Any = "master",  # as for `Loader`, like `prefetch`
        # the words of the epoch's rows are one more argument, the last one
        augmented: bool = False,
    ) -> None:
        self.batches = batches
        self.fixed: tuple[Data, ...] | None = None  # all rows, where they are in shared memory
        # the inputs of the latest step, and the batch of them
        self.latest: tuple[tuple[object, ...], object] = ((), None)
        self._loader: Loader | None = None
        fits = _in_memory(given)
        self._words = Words(batches, shared=fits) if augmented else None
        if fits:
            self.fixed = tuple(
                v if isinstance(v, Data) else _shared(v, variable)
                for v, variable in zip(given, inputs, strict=True)
            )
            if self._words is not None:
                self.fixed += (self._words.all,)
        elif len(given) == 1 and isinstance(given[0], Loader):
            [self._loader] = given
        else:
            sources = [_source(v) for v in given]
            self._loader = Loader(sources, batches, prefetch=prefetch, read=read)

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

    def close(self) -> None:
        """End what reads ahead."""
        if self._loader is not None:
            self._loader.close()


def rows_of(given: Sequence[object], inputs: Sequence[Variable], what: str) -> int:
    """The number of rows of the data, after a check that there is one for each input.

    Raises
    ------
    InputError, InputTypeError
        There are too many or too few, something has no rows, or lengths differ.
    """
    names = ", ".join(str(v) for v in inputs)
    if len(given) != len(inputs):
        raise InputError(f"{what}: {len(given)} arrays for the inputs {names}: give one for each")
    lengths = []
    for value, variable in zip(given, inputs, strict=True):
        if not hasattr(value, "__len__") or isinstance(value, str | dict | list | tuple):
            raise InputTypeError(
                f"{what}: {shown(value)} for {variable} has no rows: give an array, Data, or a "
                "source with a length, such as an h5py dataset"
            )
        if isinstance(value, np.ndarray) and not value.ndim:
            raise InputError(f"{what}: the array for {variable} has no rows: it is 0-d")
        lengths.append(len(value))
    if len(set(lengths)) > 1:
        pairs = ", ".join(f"{v}: {n:,}" for v, n in zip(inputs, lengths, strict=True))
        raise InputError(f"{what}: the inputs have different numbers of rows ({pairs})")
    if not lengths or not lengths[0]:
        raise InputError(f"{what}: there are no rows")
    return lengths[0]


def blocks_of(given: Sequence[object]) -> Sequence[int] | None:
    """The blocks in which the rows of the first source are stored that has several."""
    for source in given:
        blocks = getattr(source, "blocks", None)
        if blocks is not None and len(blocks) > 1:
            return list(blocks)
    return None


def listed(given: object) -> list[object]:
    """The data as a list: of one array, or of a tuple or list of them."""
    return list(given) if isinstance(given, tuple | list) else [given]


def _shared(array: np.ndarray, variable: Variable) -> Data:
    """Data of an array, whose dtype must be held without loss."""
    try:
        return make_data(array, var=variable)
    except InputTypeError:
        wanted = variable.type.dtype
        if np.can_cast(array.dtype, wanted):
            raise
        raise InputTypeError(
            f"the array for {variable} is {array.dtype}, and {variable.type} does not take it "
            f'without loss: give array.astype("{wanted}")'
        ) from None


def _in_memory(given: Sequence[object]) -> bool:
    return all(isinstance(v, Data | np.ndarray) for v in given)


def _source(value: object) -> object:
    return np.asarray(value) if isinstance(value, Data) else value
