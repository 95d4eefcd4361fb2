"""Seeds and files of items: they follow from the name of an item alone."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

import numpy as np

from synkhronos._checks import shown
from synkhronos._errors import InputError, InputTypeError
from synkhronos.pymc._map.digests import digest


def named(items: object) -> dict[Hashable, object]:
    """Items by their names: keys, or places.

    Raises
    ------
    InputError, InputTypeError
        They are no items, there are none, or two names look the same.
    """
    if isinstance(items, Mapping):
        found = dict(items)
    elif isinstance(items, Iterable) and not isinstance(items, str | bytes):
        found = dict(enumerate(items))
    else:
        raise InputTypeError(f"map: items={shown(items)}: give a list, or a dict with their names")
    if not found:
        raise InputError("map: there is no item")
    texts: dict[str, Hashable] = {}
    for name in found:
        if (other := texts.setdefault(str(name), name)) is not name:
            raise InputError(f"map: two items are named {name}: {other!r} and {name!r}")
    return found


def file_of(name: Hashable) -> str:
    """The name of the file of an item."""
    return f"{digest(str(name).encode())}.fit"


def seed_of(entropy: int, name: Hashable) -> np.random.SeedSequence:
    """The seed of an item.

    >>> seed_of(1, "a").generate_state(1) == seed_of(1, "a").generate_state(1)
    array([ True])
    """
    words = np.frombuffer(bytes.fromhex(digest(str(name).encode())), "<u4")
    return np.random.SeedSequence(entropy, spawn_key=tuple(int(word) for word in words))
