"""The random words of an epoch, by which `synkhronos.nn.augment` moves the pixels of each row."""

from __future__ import annotations

from typing import Any

import numpy as np
from pytensor.graph.basic import Variable

from synkhronos._api.make_data import data as make_data
from synkhronos._checks import shown
from synkhronos._errors import InputError, InputTypeError
from synkhronos.extensions._rows.batches import Batches

_KEY = 1  # behind the epoch; the order of rows, drawn by Batches, has the epoch only


def augmentation_words(n: int, seed: int, epoch: int) -> np.ndarray:
    """Draw the words of all rows for an epoch.

    Parameters
    ----------
    n : int
        The number of rows.
    seed : int, not negative
        That of the `Batches`: their order and these words are independent.
    epoch : int

    Returns
    -------
    numpy.ndarray of shape (n,), uint64
        Each depends only on the seed, the epoch and the row, also in other versions of numpy.

    Notes
    -----
    Cost: 8 bytes and less than 10 ns for each row. ``fit(..., augment=words)`` draws them by
    itself; a loop of your own passes ``augmentation_words(...)[rows]``.

    Examples
    --------
    >>> from synkhronos.training import augmentation_words
    >>> words = augmentation_words(3, seed=0, epoch=5)
    >>> words.dtype.name, bool((augmentation_words(2, seed=0, epoch=5) == words[:2]).all())
    ('uint64', True)
    """
    # numpy keeps the raw numbers of its bit generators as they are in all versions
    key = np.random.SeedSequence(seed, spawn_key=(epoch, _KEY))
    return np.random.PCG64(key).random_raw(n)


class Words:
    """The words of the epoch at hand, of all rows.

    Parameters
    ----------
    batches : Batches
        They tell the seed and the number of rows.
    shared : bool
        All members see them.
    """

    def __init__(self, batches: Batches, shared: bool) -> None:
        shape = (batches.n,)
        self.all: Any = np.zeros(shape, np.uint64)
        if shared:
            self.all = make_data(shape=shape, dtype="uint64", name="words")
        self._batches = batches
        self._epoch = -1

    def begin_epoch(self, epoch: int) -> None:
        """Draw the words of an epoch, if they are not there yet."""
        if epoch != self._epoch:
            self.all[...] = augmentation_words(self._batches.n, self._batches.seed, epoch)
            self._epoch = epoch


def check_words(words: object, inputs: list[Any]) -> None:
    """Raise unless these are words that a training function can take as its last input.

    Raises
    ------
    InputError, InputTypeError
    """
    kind = getattr(words, "type", None)
    vector = getattr(kind, "ndim", None) == 1 and getattr(kind, "dtype", None) == "uint64"
    if not isinstance(words, Variable) or words.owner is not None or not vector:
        raise InputTypeError(
            f'augment={shown(words)}: give the variable of words, pt.vector("words", '
            'dtype="uint64"), by which synkhronos.nn.augment moves images'
        )
    if not inputs or inputs[-1] is not words:
        raise InputError(
            f"augment={words}: it has to be the last input of the training function; its inputs "
            f"are {', '.join(map(str, inputs))}"
        )
