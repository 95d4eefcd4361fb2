"""Digests of items: equal ones have equal digests, in every process.

Pickles do not: they have sets in the order of hashes, which differ between processes, and one of
two equal texts as a reference if both are one object. Here each object is a digest of its own
contents. Of an object that is reached again from inside of itself, the way back is told.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from synkhronos._transport.serialization import pack_graph, pack_level

_BYTES = 16  # of a digest
_PLAIN = frozenset({type(None), bool, int, float})  # a pickle has these without a reference


def digest(data: bytes) -> str:
    """A short text that only equal data have."""
    return hashlib.blake2b(data, digest_size=_BYTES).hexdigest()


def digest_of(item: object) -> str:
    """A short text that only items have that are equal, of the same types, and bit by bit.

    The order in a dict counts as little as in a set.
    """
    try:
        return digest(_Contents().of(item))
    except RecursionError:  # such as a list with a list in it, and so on a thousand times
        return digest(pack_graph(item))


class _Contents:
    """The contents of objects, as bytes."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, bytes]] = {}  # with the object, whose id then stays
        # objects that are being looked at, and others that lead back to these
        self._open: list[object] = []
        self._places: dict[int, int] = {}
        self._back: float = math.inf  # the first of them to which something has led back

    def of(self, value: object) -> bytes:
        """The bytes of an object: short ones as they are, of others a digest."""
        kind = type(value)
        if kind in _PLAIN:
            return f"{kind.__name__} {value!r}".encode()
        if kind in (str, bytes):
            return _digested(kind.__name__, [_raw(value)])
        if id(value) in self._known:
            return self._known[id(value)][1]
        if id(value) in self._places:
            place = self._places[id(value)]
            self._back = min(self._back, place)
            return f"back {len(self._open) - place}".encode()
        before, place = self._back, len(self._open)
        self._back = self._places[id(value)] = place
        self._open.append(value)
        found = self._inside(value)
        if self._back == place:  # nothing in it leads to what is around it
            for each in self._open[place:]:
                del self._places[id(each)]
            del self._open[place:]
            self._known[id(value)] = value, found
        self._back = min(before, self._back)
        return found

    def _inside(self, value: Any) -> bytes:
        kind = type(value)
        if kind in (list, tuple):
            if set(map(type, value)) <= _PLAIN:
                return _digested(kind.__name__, [pack_graph(value)])
            return _digested(kind.__name__, map(self.of, value))
        if isinstance(value, set | frozenset):
            return _digested("set", [self.of(kind), *sorted(map(self.of, value))])
        if kind is dict:
            pairs = sorted(((self.of(key), each) for key, each in value.items()), key=_first)
            return _digested("dict", [part for key, each in pairs for part in (key, self.of(each))])
        if kind is np.ndarray and not value.dtype.hasobject:
            plain = np.ascontiguousarray(value)
            return _digested("array", [self.of((value.dtype, value.shape)), plain.tobytes()])
        return _digested("object", [pack_level(value, self._number)])

    def _number(self, value: object) -> int | None:
        """The number of an object in a pickle, which then has no reference to it."""
        return None if type(value) in _PLAIN else int.from_bytes(_digested("", [self.of(value)]))


def _raw(value: str | bytes) -> bytes:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


def _first(pair: tuple[bytes, object]) -> bytes:
    return pair[0]


def _digested(kind: str, parts: Iterable[bytes]) -> bytes:
    found = hashlib.blake2b(kind.encode(), digest_size=_BYTES)
    for part in parts:
        found.update(len(part).to_bytes(8))
        found.update(part)
    return found.digest()
