"""Digests by which a folder of `map` knows an item again."""

from __future__ import annotations

import copy
import enum
import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from synkhronos.pymc._map.digests import digest_of


def text(word: str) -> str:
    """An equal text that is another object."""
    return "".join([*word])


@dataclass
class Shop:
    name: str
    goods: Any
    owner: Any = None


class Bag(frozenset[Any]):
    pass


class Ring:
    """An object that refers to itself."""

    def __init__(self, *inside: object) -> None:
        self.inside = inside
        self.me = self


def frame() -> pd.DataFrame:
    return pd.DataFrame({"shop": ["a", "b", "a"], "sold": [1, 2, 3]})


def looked_into() -> pd.DataFrame:
    found = frame()
    found["sold"].mean()
    found.index.get_loc(0)
    return found.loc[[0, 1, 2]]


word, pair, array = "north", (1, 2), np.arange(12.0).reshape(3, 4)

EQUAL: dict[str, tuple[Any, Any]] = {
    "one text and two": ((word, word), (word, text(word))),
    "texts of attributes": (Shop("goods", word), Shop(text("goods"), text(word))),
    "one tuple and two": ([pair, pair], [(1, 2), tuple([1, 2])]),
    "one array and two": ([array, array], [array, array.copy()]),
    "orders of a set": ({0, 8, 16}, {16, 8, 0}),
    "orders of sets in sets": ({frozenset([0, 8]), 1}, {1, frozenset([8, 0])}),
    "orders of a set of another class": (Bag([0, 8]), Bag([8, 0])),
    "orders of a dict": ({"a": 1, "b": [2]}, {"b": [2], "a": 1}),
    "strides": (array, np.asfortranarray(array)),
    "views": (np.arange(10)[::2], np.array([0, 2, 4, 6, 8])),
    "tables": (frame(), looked_into()),
    "rings": (Ring(pair, pair), Ring(pair, (1, 2))),
    "rings in rings": ([Ring(r := Ring(word)), r], [Ring(r := Ring(text(word))), r]),
    "copies": (s := Shop(word, {"x": array}, Ring()), copy.deepcopy(s)),
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal_items_have_equal_digests(name: str) -> None:
    first, other = EQUAL[name]
    assert digest_of(first) == digest_of(other)
    assert digest_of(Shop(word, [first, 1])) == digest_of(Shop(text(word), [other, 1]))


def ring_of(*numbers: int) -> Ring:
    """Objects each of which has the next one, and the last the first."""
    rings = [Ring(n) for n in numbers]
    for one, after in zip(rings, [*rings[1:], rings[0]], strict=True):
        one.after = after  # type: ignore[attr-defined]
    return rings[0]


def linked(to: int) -> list[Any]:
    """Three lists, of which the last has the list at a place."""
    found: list[Any] = [[], [], []]
    found[0].append(found[1])
    found[1].append(found[2])
    found[2].append(found[to])
    return found[0]


OTHER = [
    *(1, 2, 1.0, True, None, "1", b"1", [1], (1,), {1}, {1: 1}, {1: 2}, {2: 1}, [], (), set(), {}),
    *([1, 2], [2, 1], [[1], 2], [1, [2]], [12], ["a", "b"], ["ab"], [["a"], "b"], {"a", "b"}),
    *(
        {"a": "b"},
        {"b": "a"},
        {frozenset({1}), 2},
        {1, frozenset({2})},
        frozenset({1, 2}),
        Bag([1, 2]),
    ),
    *(
        np.array([1]),
        np.array([1.0]),
        np.array([[1]]),
        np.array([1], ">i8"),
        np.array(["a"], object),
    ),
    *(np.array([np.nan]), np.array([0.0]), np.array([-0.0]), np.float64(1), np.int64(1)),
    *(Shop("a", 1), Shop("a", 1, 1), Shop("b", 1), Ring(), Ring(1), Ring(Ring())),
    *(ring_of(1, 2), ring_of(2, 1), ring_of(1, 2, 1), linked(0), linked(1), linked(2)),
    *(frame(), frame().assign(sold=1), frame().rename(columns={"sold": "left"}), frame()[::-1]),
    *(dict, list, Shop, Ring, len, os, enum.Enum("E", "a b"), lambda x: x, lambda x: x + 1),
]


def test_others_have_others() -> None:
    found = [digest_of(each) for each in OTHER]
    twice = [(OTHER[i], OTHER[found.index(d)]) for i, d in enumerate(found) if found.index(d) < i]
    assert not twice


def test_random_items() -> None:
    """Each has the digest of a copy that is made in another order, without what is shared."""
    draw = random.Random(0)

    def made(depth: int) -> Any:
        kinds = ["int", "text", "array", *["list", "dict", "set", "shop", "again"] * (depth > 0)]
        kind = draw.choice(kinds)
        if kind == "again":
            return [one := made(depth - 1), one]
        if kind in ("list", "dict", "shop"):
            inside = [made(depth - 1) for _ in range(draw.randrange(4))]
            keyed = {f"k{i}": each for i, each in enumerate(inside)}
            return {"list": inside, "dict": keyed, "shop": Shop("s", inside)}[kind]
        if kind == "set":
            return {draw.choice([draw.randrange(99), f"t{draw.randrange(99)}"]) for _ in range(4)}
        return {
            "int": draw.randrange(9),
            "text": f"t{draw.randrange(9)}",
            "array": array[draw.randrange(3)],
        }[kind]

    def again(item: Any) -> Any:
        if isinstance(item, dict):
            return {text(k): again(item[k]) for k in draw.sample([*item], len(item))}
        if isinstance(item, set):
            return set(draw.sample([*item], len(item)))
        if isinstance(item, Shop):
            return Shop(text(item.name), again(item.goods))
        if isinstance(item, list):
            return [again(each) for each in item]
        return text(item) if isinstance(item, str) else copy.copy(item)

    for _ in range(200):
        item = made(4)
        assert digest_of(item) == digest_of(again(item)), item


def test_what_leads_back_takes_no_time_for_each_way() -> None:
    """Objects that all refer to one another have more ways than can be walked."""
    rings = [Ring(i) for i in range(40)]
    for ring in rings:
        ring.all = rings  # type: ignore[attr-defined]
    assert digest_of(rings[0]) != digest_of(rings[1])


def test_items_that_are_deep() -> None:
    """A pickle may be deeper than the walk, which then counts for nothing."""
    item: Any = 1
    for depth in range(450):
        item = Shop("a", item)
        if depth % 50 == 0:
            assert digest_of(item) == digest_of(copy.copy(item))


SCRIPT = """
import enum, sys
from dataclasses import dataclass
from synkhronos.pymc._map.digests import digest_of
@dataclass
class Shop:
    name: str
    goods: object
class Kind(enum.Enum):
    BIG = "big"
    SMALL = "small"
items = [{"north", "south", "east"}, frozenset(["a", "b", "c"]), Shop("a", {"b", "c"}), Kind.BIG,
         lambda shop: shop.name in {"a", "b", "c"}, {"k": {("x", "y"), ("z",)}}]
print(*map(digest_of, items))
"""


def test_in_other_processes(tmp_path: Path) -> None:
    """Where texts have other hashes, and classes of the script other numbers of cloudpickle."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    found = [
        subprocess.run(
            [sys.executable, "-P", str(script)],
            env=os.environ | {"PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            check=True,
            timeout=100,
        ).stdout.split()
        for seed in "12"
    ]
    assert len(set(found[0])) == 6
    assert found[0] == found[1]
