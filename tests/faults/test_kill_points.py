"""Whatever dies, and wherever: every call returns or raises, and nothing is left (promises 1, 2,
6, 7). A sample of the points that scripts/chaos goes through."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from functools import cache

import pytest
from campaign import SCENARIO, SHORT_OF, SHORTAGES, VICTIMS, Counts, judge, spread
from selection import thorough

from synkhronos.testing.killing import NEVER, Outcome, Stage, points

MANY = "32"  # members

pytestmark = [
    pytest.mark.together,  # one stage, and one trial without a fault of each victim
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]

TYPICAL = ("start", "master", "rank 1")  # of the starts and of the workers one each


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage(SCENARIO) as made:
        yield made


@pytest.fixture(scope="module")
def whole(stage: Stage) -> Callable[[str], Outcome]:
    """A trial without a fault, once for each victim."""
    return cache(lambda victim: stage.trial(victim, NEVER))


@pytest.mark.parametrize("victim", [v if v in TYPICAL else thorough(v)[0] for v in VICTIMS])
@pytest.mark.parametrize("number", [1, *thorough(8)])
def test_killed_at_some_system_call(
    stage: Stage, whole: Callable[[str], Outcome], victim: str, number: int
) -> None:
    unharmed = whole(victim)
    assert not judge(unharmed)
    assert unharmed.said("finished") is not None
    assert len(unharmed.made) > 100
    for name, k in spread(points(unharmed.made), number, random.Random(victim)):
        found = stage.trial(victim, k, name)
        assert not judge(found), f"{victim} killed at {name} {k}"


@pytest.mark.thorough
@pytest.mark.parametrize("victim", ["rank 1", "rank 31"])
def test_one_of_many_members_is_killed(victim: str) -> None:
    """Members outnumber the cores of most machines: the others must not delay the exception."""
    counts = Counts(judge)
    with Stage(SCENARIO, limit=180) as stage:
        unharmed = stage.trial(victim, NEVER, argument=MANY)
        assert not judge(unharmed)
        for name, k in spread(points(unharmed.made), 8, random.Random(victim)):
            counts.add(stage.trial(victim, k, name, argument=MANY))
    assert not counts.wrong
    print(counts.report())


@pytest.mark.each_choice
@pytest.mark.parametrize("victim", SHORT_OF)
@pytest.mark.parametrize("calls", SHORTAGES, ids=lambda pair: pair[0])
@pytest.mark.parametrize("number", [1, *thorough(2)])
def test_a_system_call_that_fails(
    stage: Stage,
    whole: Callable[[str], Outcome],
    calls: tuple[str, str],
    victim: str,
    number: int,
) -> None:
    """Promise 10: an error, and the next group works."""
    how = calls[0], f"error={calls[1]}"
    made = [place for place in points(whole(victim).made) if place[0] == calls[0]]
    for name, k in spread(made, number, random.Random(0)):
        found = stage.trial(victim, k, *how)
        assert not judge(found), f"{name} {k}"
        said = [text for _, text in found.events]
        if found.reached and said[0] != "finished":
            assert said[0].startswith(("StartFailed", "MemoryError", "WorkerError")), said


def test_a_fault_that_is_not_handled_is_seen(stage: Stage) -> None:
    """The judge is no rubber stamp."""
    found = stage.trial("rank 1", 40)
    assert not judge(found)
    assert found.reached
    for spoilt in (
        {"status": None},
        {"left": ["process 1: x"]},
        {"events": []},
        {"events": [(found.died + 2, "WorkerDied"), (found.died + 2, "again")]},
        {"events": [e for e in found.events if not e[1].startswith("WorkerDied")]},
        {"ended": found.died + 60},
    ):
        good = dict(vars(found))
        vars(found).update(spoilt)
        assert judge(found), spoilt
        vars(found).update(good)
