"""Runs in a folder that are killed: a few trials of the campaign."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import stored_kills
from stored_kills import CHANGING, FAILING, FULL, MODELS, Campaign, misses

from synkhronos.testing.killing import KILL, Stage

pytest.importorskip("nutpie")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]


@pytest.mark.timeout(600)
def test_a_killed_run_goes_on_bit_by_bit(tmp_path: Path) -> None:
    with Stage(stored_kills.__file__, stored_kills.LIMIT) as stage:
        campaign = Campaign(stage, "conjugate", tmp_path, random.Random(1))
        faults = [*campaign.moments(3), *campaign.points(6, CHANGING, KILL)]
        for fault in (*faults, *campaign.points(3, FAILING, FULL)):
            campaign.run(**fault)
            campaign.end()
    assert campaign.counts["runs"] == 12
    assert campaign.counts["kills"] >= 6
    assert campaign.counts["full disks"] >= 2
    assert campaign.counts["blocks kept"] > 20


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", MODELS)
def test_moments_are_those_that_are_known(name: str, tmp_path: Path) -> None:
    found = misses(name, tmp_path)
    assert max(found.values()) < stored_kills.MOST_ERRORS, found
