"""Blocks of draws: each is one file, which is there as a whole or not at all.

A file is a sequence of arrays as `numpy.save` writes them. The first is the draws, a record for
each with all variables and statistics, so ``numpy.load(path, mmap_mode="r")`` shows them. Then come
what the next block needs and texts, which are rare.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from xarray.backends import BackendArray
from xarray.core import indexing

from synkhronos._host import files

_VERSION = (3, 0)  # of numpy's format: names of variables may be any text
_LONGEST_HEAD = 1 << 24  # bytes of a description of records
TEXT = np.dtype("u1")  # stands in a record for an optional text: whether there is one


@dataclass(frozen=True)
class Block:
    """Draws of one chain.

    Attributes
    ----------
    draws : array
        A record for each; its fields are "group/variable".
    state : dict of str to array
        What the next block starts with.
    texts : dict of str to dict
        By field, the texts of records by their numbers.
    """

    draws: np.ndarray
    state: Mapping[str, np.ndarray]
    texts: Mapping[str, Mapping[int, str]] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write the file, which gets its name once it is on the disk.

        Raises
        ------
        OSError
        """
        rest = json.dumps({"state": list(self.state), "texts": self.texts}).encode()
        found = io.BytesIO()  # into a file of the system, numpy writes without its last error
        for array in (self.draws, np.frombuffer(rest, "u1"), *self.state.values()):
            npy.write_array(found, np.asarray(array, order="C"), _VERSION)
        files.replace(path, found.getbuffer())

    @staticmethod
    def read(path: Path) -> Block | None:
        """The block of a file; None if there is none, or a damaged one.

        Raises
        ------
        OSError
            It cannot be read.
        """
        try:
            with files.reading(path) as file:
                draws, rest = _array(file), _array(file)
                found = json.loads(rest.tobytes())
                state = {name: _array(file) for name in found["state"]}
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, EOFError):
            return None
        texts = {
            name: {int(i): t for i, t in each.items()} for name, each in found["texts"].items()
        }
        return Block(draws, state, texts)


def _array(file: Any) -> np.ndarray:
    found: np.ndarray = npy.read_array(file, max_header_size=_LONGEST_HEAD)
    return found


def length_of(path: Path) -> int:
    """The number of draws in a file that is whole; 0 if there is none.

    Raises
    ------
    OSError
        Descriptors or memory are short, so nobody can tell.
    """
    try:
        return len(_mapped(path))
    except (OSError, ValueError) as exc:
        if files.is_shortage(exc):
            raise
        return 0


def kinds_of(path: Path) -> dict[str, np.dtype]:
    """The fields of the draws in a file, with their dtypes and shapes."""
    fields: Any = _mapped(path).dtype.fields
    return {name: kind for name, (kind, *_) in fields.items()}


def _mapped(path: Path) -> np.ndarray:
    files.check_regular(path)
    return npy.open_memmap(path, mode="r", max_header_size=_LONGEST_HEAD)


class StoredDraws(BackendArray):
    """A variable of all chains, whose values are read from their files when they are used.

    Parameters
    ----------
    chains : sequence of sequence of path
        The files of each chain.
    name : str
        The field of the records.
    block : int
        The draws in a file, except for the last.
    draws : int
        Of each chain; NaN, zero of other kinds, or no text, where some are missing.
    dtype : numpy.dtype
        Of the field, with its shape.
    """

    def __init__(
        self, chains: Sequence[Sequence[Path]], name: str, block: int, draws: int, dtype: np.dtype
    ) -> None:
        self._chains, self._name, self._block = chains, name, block
        self._is_text = dtype.base == TEXT
        self.dtype = np.dtype(object) if self._is_text else dtype.base
        self.shape = (len(chains), draws, *dtype.shape)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(
            key, self.shape, indexing.IndexingSupport.OUTER, self._read
        )

    def _read(self, key: tuple[Any, ...]) -> Any:
        chains, rows, *event = key
        which = np.atleast_1d(np.arange(self.shape[0])[chains])
        rows = np.atleast_1d(np.arange(self.shape[1])[rows])
        missing = np.nan if self.dtype.kind in "fc" else None if self._is_text else 0
        found = np.full((len(which), len(rows), *self.shape[2:]), missing, self.dtype)
        blocks = rows // self._block
        for i, chain in enumerate(which):
            for block in np.unique(blocks[blocks < len(self._chains[chain])]):
                at = np.flatnonzero(blocks == block)
                values = self._values(self._chains[chain][block])
                at = at[rows[at] - block * self._block < len(values)]
                found[i, at] = values[rows[at] - block * self._block]
        for axis, index in reversed(list(enumerate(event, 2))):
            found = found[(*[slice(None)] * axis, index)]
        for axis, index in ((1, key[1]), (0, key[0])):
            if isinstance(index, int | np.integer):
                found = found.take(0, axis)
        return found

    def _values(self, path: Path) -> np.ndarray:
        if not self._is_text:
            found: np.ndarray = _mapped(path)[self._name]
            return found
        block = Block.read(path)
        texts = np.full(0 if block is None else len(block.draws), None, object)
        for row, text in {} if block is None else block.texts.get(self._name, {}).items():
            texts[row] = text
        return texts
