"""Each way of `sample`: the first run of a script has the bits of all later ones."""

from __future__ import annotations

from pathlib import Path

import kept_models
import kept_ways
import pytest
from cold_and_warm import told_by_runs

from synkhronos._compiling.kept.folder import Folder

pytest.importorskip("nutpie")


WAYS = tuple(kept_ways.WAYS)


@pytest.mark.thorough
@pytest.mark.parametrize("at", range(5), ids=lambda at: " ".join(WAYS[at::5]))
def test_bits_do_not_depend_on_what_caches_hold(tmp_path: Path, at: int) -> None:
    """Each way has a model of its own, so its functions are new in the first run."""
    first, *later = told_by_runs(tmp_path, kept_ways.__file__, *WAYS[at::5])
    assert first.count("\n") == len(WAYS[at::5])
    assert later == [first, first]


@pytest.mark.thorough
def test_an_argument_keeps_nothing(keeping: Folder) -> None:
    """Neither functions of this process nor those of members; draws are the same."""
    given = {"nuts_sampler": "pymc", "backend": "numba"}
    without = kept_ways.sampled(kept_ways.counts, keep=False, **given)
    divided = {"chains": 1, "cores": 2, "members_per_chain": 2, "mode": "NUMBA"}
    kept_ways.sampled(kept_models.regression, keep=False, **divided, **given)
    assert keeping.size() == (0, 0)
    assert kept_ways.sampled(kept_ways.counts, **given) == without
    assert keeping.size()[0] > 0
