"""Which cases of a test belong to the default selection, and which only to `scripts/test --all`.

A test with the marker `each_choice` keeps as many cases as it takes for every value of every
parameter to occur once; with `pairwise`, every pair of values of two parameters. The other cases
get the marker `thorough`. See D. R. Kuhn, R. N. Kacker, Y. Lei, "Practical Combinatorial Testing",
NIST SP 800-142 (2010).
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import pytest

COLLECTED = pytest.StashKey[list[pytest.Item]]()  # all tests, whatever is then selected
STRENGTHS = {"each_choice": 1, "pairwise": 2}


def mark_thorough(items: Sequence[pytest.Item]) -> None:
    """Add the marker `thorough` to the cases that the covering selections leave out."""
    tests: defaultdict[tuple[str, int], list[pytest.Item]] = defaultdict(list)
    for item in items:
        for name, strength in STRENGTHS.items():
            if item.get_closest_marker(name) and not item.get_closest_marker("thorough"):
                tests[item.nodeid.partition("[")[0], strength].append(item)
    for (_, strength), cases in tests.items():
        # a value may not be hashable; it is the same object in all cases
        values = [{k: id(v) for k, v in case.callspec.params.items()} for case in cases]
        kept = covering(values, strength)
        for number, case in enumerate(cases):
            if number not in kept:
                case.add_marker(pytest.mark.thorough)


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
