"""Random numbers that follow from words, one word for each row, so that nothing is drawn.

The same words give the same numbers in every mode, for any number of members. As `augment` does,
only the low 32 bits of a word are used, which JAX without 64-bit numbers keeps.
"""

from __future__ import annotations

import math

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from synkhronos._checks import check_integer, check_word, shown
from synkhronos._errors import InputTypeError

KINDS = ("normal", "uniform")
# of numbers with 32 bits, with little bias: C. Wellons, https://nullprogram.com/blog/2018/07/31/
_SHIFTS, _FACTORS = (16, 15, 16), (0x7FEB352D, 0x846CA68B)
_BITS = 24  # of a number between 0 and 1: as many as float32 holds


def noise(
    words: TensorVariable, columns: int, kind: str = "normal", dtype: str | None = None
) -> TensorVariable:
    """Make random numbers of words, such as the noise that a generator starts from.

    Parameters
    ----------
    words : variable of shape (rows,), uint64
        One for each row. `fit` and `Trainer` draw them by seed, epoch and row, see their argument
        `augment`; or use `synkhronos.training.augmentation_words`.
    columns : int
        The numbers of a row.
    kind : {"normal", "uniform"}
        Of mean 0 and variance 1; or between -1 and 1.
    dtype : {"float32", "float64"}, optional
        Default: floatX.

    Returns
    -------
    variable of shape (rows, columns)
        Rows stay apart, so reductions over them are proved.

    Raises
    ------
    InputError, InputTypeError
        An argument is out of range, or `words` is something else.

    Notes
    -----
    Each number is a hash of the word and the column. Rows with equal low halves of their words have
    equal numbers; of 10,000 rows, that are 0.01 pairs on average.

    Cost: about 20 elementwise operations for each number; "uniform" about half.

    References
    ----------
    Box and Muller, A note on the generation of random normal deviates, 1958. Wellons, Prospecting
    for hash functions, 2018: https://nullprogram.com/blog/2018/07/31/.

    Examples
    --------
    >>> import numpy as np, pytensor.tensor as pt
    >>> from synkhronos.nn import noise
    >>> words = pt.vector("words", dtype="uint64")
    >>> z = noise(words, 2, dtype="float64")
    >>> found = z.eval({words: np.arange(10_000, dtype="uint64")})
    >>> found.shape, bool(abs(found.mean()) < 0.02), bool(abs(found.std() - 1) < 0.02)
    ((10000, 2), True, True)
    """
    dtype = pytensor.config.floatX if dtype is None else dtype
    check_word("noise: kind", kind, KINDS)
    check_word("noise: dtype", dtype, ("float32", "float64"))
    columns = check_integer("noise: columns", columns, 1)
    given = getattr(words, "type", None)
    if (getattr(given, "ndim", None), getattr(given, "dtype", None)) != (1, "uint64"):
        raise InputTypeError(
            f'noise: words={shown(words)}: give pt.vector("words", dtype="uint64")'
        )
    seeds = _hashed(words.astype("uint32"))[:, None]
    first = _uniform(seeds, 0, columns, dtype)
    if kind == "uniform":
        return first * np.asarray(2, dtype) - np.asarray(1, dtype)
    second = _uniform(seeds, columns, columns, dtype)
    far = pt.sqrt(np.asarray(-2, dtype) * pt.log(first))
    return far * pt.cos(np.asarray(2 * math.pi, dtype) * second)


def _uniform(seeds: TensorVariable, start: int, columns: int, dtype: str) -> TensorVariable:
    """Numbers above 0, up to 1."""
    keys = _hashed(np.arange(start + 1, start + columns + 1, dtype=np.uint32))
    bits = _hashed(pt.bitwise_xor(seeds, pt.constant(keys[None, :])))
    high = bits // np.uint32(1 << (32 - _BITS))
    return (high.astype(dtype) + np.asarray(0.5, dtype)) * np.asarray(2.0**-_BITS, dtype)


def _hashed(x: TensorVariable) -> TensorVariable:
    """A permutation of the numbers with 32 bits."""
    xor = np.bitwise_xor if isinstance(x, np.ndarray) else pt.bitwise_xor
    for shift, factor in zip(_SHIFTS, (*_FACTORS, None), strict=True):
        x = xor(x, x // np.uint32(1 << shift))
        x = x if factor is None else x * np.uint32(factor)
    return x
