"""Whatever dies, and wherever: every call returns or raises, and nothing is left (promises 1, 2,
6, 7). A sample of the points that scripts/chaos goes through."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator

import pytest
from campaign import SCENARIO, SHORT_OF, SHORTAGES, VICTIMS, judge, measured, spread
from selection import thorough

from synkhronos.testing.killing import NEVER, Stage, points

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage(SCENARIO) as made:
        yield made


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("number", [1, *thorough(8)])
def test_killed_at_some_system_call(stage: Stage, victim: str, number: int) -> None:
    whole = stage.trial(victim, NEVER)
    assert not judge(whole)
    assert whole.said("finished") is not None
    assert len(whole.made) > 100
    for name, k in spread(points(whole.made), number, random.Random(victim)):
        found = stage.trial(victim, k, name)
        assert not judge(found), f"{victim} killed at {name} {k}"


@pytest.mark.each_choice
@pytest.mark.parametrize("victim", SHORT_OF)
@pytest.mark.parametrize("calls", SHORTAGES, ids=lambda pair: pair[0])
@pytest.mark.parametrize("number", [1, *thorough(2)])
def test_a_system_call_that_fails(
    stage: Stage, calls: tuple[str, str], victim: str, number: int
) -> None:
    """Promise 10: an error, and the next group works."""
    how = calls[0], f"error={calls[1]}"
    for p in measured(stage, victim, number, random.Random(0), *how):
        found = stage.trial(victim, p.k, *how)
        assert not judge(found), f"{p.calls} {p.k}"
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
