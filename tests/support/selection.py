"""Which cases of a test belong to the default selection, and which only to `scripts/test --all`.

A test with the marker `each_choice` keeps as many cases as it takes for every value of every
parameter to occur once; with `pairwise`, every pair of values of two parameters. Without either, a
test over groups of all sizes keeps each of its cases in one size. The other cases get the marker
`thorough`. See D. R. Kuhn, R. N. Kacker, Y. Lei, "Practical Combinatorial Testing",
NIST SP 800-142 (2010).

Hypothesis makes a third of the examples of a test in the default selection, see `examples`.
"""

from __future__ import annotations

import itertools
import os
import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest

COLLECTED = pytest.StashKey[list["Collected"]]()  # the default selection of what is collected
STRENGTHS = {"each_choice": 1, "pairwise": 2}


class Collected(NamedTuple):
    """A test, as other processes may know it."""

    path: str
    name: str
    doc: str
    module_doc: str

    @classmethod
    def of(cls, item: pytest.Function) -> Collected:
        """What is known of a collected one."""
        docs = item.function.__doc__ or "", item.module.__doc__ or ""
        return cls(str(item.path), item.name, *docs)


def thorough(*cases: Any) -> list[Any]:
    """Cases of a parametrised test that only `scripts/test --all` runs; several values: a tuple."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.thorough)
        for case in cases
    ]


def examples(count: int) -> int:
    """How many of so many examples of Hypothesis this run makes; `scripts/test --all` makes all."""
    return -(-count // 3) if os.environ.get("SYNK_TEST_EXAMPLES") == "few" else count


def mark_thorough(items: Sequence[pytest.Item]) -> None:
    """Add the marker `thorough` to the cases that the covering selections leave out."""
    tests: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if hasattr(item, "callspec") and not item.get_closest_marker("thorough"):
            tests[item.nodeid.partition("[")[0]].append(item)
    for name, cases in tests.items():
        strengths = [s for marker, s in STRENGTHS.items() if cases[0].get_closest_marker(marker)]
        # a value may not be hashable; it is the same object in all cases
        values = [{k: id(v) for k, v in case.callspec.params.items()} for case in cases]
        if strengths:
            kept = covering(values, strengths[0])
        elif "size" in values[0]:
            kept = each_in_one_size(values, zlib.crc32(name.encode()))
        else:
            continue
        for number, case in enumerate(cases):
            if number not in kept:
                case.add_marker(pytest.mark.thorough)


def each_in_one_size(cases: Sequence[Mapping[str, int]], turn: int) -> set[int]:
    """Each combination of the other parameters once; sizes take turns, from test to test too.

    >>> sorted(each_in_one_size([{"size": s, "op": o} for s in range(2) for o in range(3)], 0))
    [0, 2, 4]
    """
    others: defaultdict[frozenset[tuple[str, int]], list[int]] = defaultdict(list)
    for number, case in enumerate(cases):
        others[frozenset(pair for pair in case.items() if pair[0] != "size")].append(number)
    return {sizes[(turn + n) % len(sizes)] for n, sizes in enumerate(others.values())}


def covering(cases: Sequence[Mapping[str, int]], strength: int) -> set[int]:
    """Few cases in which each combination of `strength` parameters' values occurs.

    Greedy: the case with most combinations that are still missing, and among equals the one whose
    values have occurred least, so that sizes and dtypes take turns.

    >>> sorted(covering([{"size": s, "op": o} for s in range(2) for o in range(3)], 1))
    [0, 2, 4]
    """
    missing = [set(itertools.combinations(sorted(c.items()), min(strength, len(c)))) for c in cases]
    used: Counter[tuple[str, int]] = Counter()
    kept: set[int] = set()
    while True:
        best = max(
            range(len(cases)),
            key=lambda n: (len(missing[n]), -sum(used[value] for value in cases[n].items())),
        )
        if not missing[best]:
            return kept
        kept.add(best)
        used.update(cases[best].items())
        found = set(missing[best])
        for combinations in missing:
            combinations -= found
