"""Each way of `sample`: the first run of a script has the bits of all later ones."""

from __future__ import annotations

from pathlib import Path

import kept_ways
import pytest
from cold_and_warm import told_by_runs

pytest.importorskip("nutpie")


@pytest.mark.thorough
@pytest.mark.parametrize("way", kept_ways.WAYS)
def test_bits_do_not_depend_on_what_caches_hold(tmp_path: Path, way: str) -> None:
    first, *later = told_by_runs(tmp_path, kept_ways.__file__, way)
    assert first.count("\n") == 1
    assert later == [first, first]
