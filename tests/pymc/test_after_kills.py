"""Stores after kills and full disks: they can be read, and the same call goes on with them."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from after_models import draws_of, several
from modes import FAST
from selection import thorough

import synkhronos as synk
from synkhronos._errors import InputError, WorkerError
from synkhronos.pymc._after import calculation, division
from synkhronos.pymc._after.calculation import Calculation
from synkhronos.pymc._after.store import StoredArray
from synkhronos.testing import leaks

PLAIN = {"progressbar": False, "compile_kwargs": {"mode": FAST}}
DRAWS = 20
type Call = Callable[..., xr.Dataset]


def predictive(model: pm.Model, idata: Any, **given: Any) -> xr.Dataset:
    found = synk.pymc.sample_posterior_predictive(idata, model, **{"random_seed": 3, **given})
    return found["posterior_predictive"].to_dataset()


def likelihood(model: pm.Model, idata: Any, **given: Any) -> xr.Dataset:
    found: xr.Dataset = synk.pymc.compute_log_likelihood(
        idata, model=model, extend_inferencedata=False, **given
    )
    return found


CALLS = {"posterior_predictive": predictive, "log_likelihood": likelihood}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Processes are started; blocks have three draws; zarr's threads end with the test."""
    monkeypatch.setattr(division, "_FORK_SECONDS", -1.0)
    monkeypatch.setattr(division, "_EXEC_SECONDS", -1.0)
    monkeypatch.setattr(division, "_NOTE_SECONDS", 0.0)
    monkeypatch.setattr(calculation, "block_length", lambda shape, size: min(3, shape[-1]))
    yield
    from zarr.core.sync import cleanup_resources

    cleanup_resources()


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The draws that this process computes for results."""
    found: list[int] = []
    compute = Calculation.compute

    def counted(self: Calculation, mine: Any, target: Any) -> Iterator[int]:
        found.extend(draw for part in mine for draw in part)
        return compute(self, mine, target)

    monkeypatch.setattr(Calculation, "compute", counted)
    return found


def attributes(store: Path, group: str) -> dict[str, Any]:
    return dict(xr.open_zarr(store, group=group, consolidated=False, chunks=None).attrs)


def check_goes_on(store: Path, name: str, computed: list[int]) -> None:
    """The store has whole blocks; the call ends it, with the bits of one that was not killed."""
    model = several()
    idata = draws_of(model, 2, DRAWS)
    expected = CALLS[name](model, idata, cores=1, **PLAIN)
    part = xr.open_zarr(store, group=name, consolidated=False, chunks=None).load()
    assert part.attrs["draws"] == 2 * DRAWS
    assert 0 < part.attrs["draws_done"] < 2 * DRAWS
    computed.clear()
    ended = CALLS[name](model, idata, cores=1, store=store, **PLAIN)
    assert 0 < len(computed) <= 2 * DRAWS - part.attrs["draws_done"]
    xr.testing.assert_equal(ended.load(), expected)
    assert attributes(store, name)["draws_done"] == 2 * DRAWS
    missing = computed.copy()
    for key in expected.data_vars:  # what was there before had these bits already
        flat = part[key].values.reshape(2 * DRAWS, -1)
        whole = expected[key].values.reshape(2 * DRAWS, -1)
        kept = np.setdiff1d(np.arange(2 * DRAWS), missing)
        assert np.array_equal(flat[kept], whole[kept])
    assert not list(store.rglob("*.new"))


def noted(store: Path, group: str) -> int:
    """How many draws of a store are done, as it says itself."""
    try:
        found: int = json.loads((store / group / "zarr.json").read_text())["attributes"][
            "draws_done"
        ]
    except (OSError, KeyError):
        return 0
    return found


def session(leader: int) -> list[int]:
    """The processes of a session that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, own = path.read_text().rsplit(")", 1)[1].split()[:4]
            if int(own) == leader and state != "Z":
                found.append(int(path.parent.name))
    return found


KILLED = """
import pickle, sys, time

from test_after_kills import CALLS, PLAIN, calculation, division, several

division._FORK_SECONDS, division._EXEC_SECONDS, division._NOTE_SECONDS = -1.0, -1.0, 0.0
calculation.block_length = lambda shape, size: min(3, shape[-1])
values = calculation.Calculation.values

def slowly(self, draw):
    time.sleep(0.2)
    return values(self, draw)

calculation.Calculation.values = slowly
with open(sys.argv[3], "rb") as file:
    idata = pickle.load(file)
CALLS[sys.argv[2]](several(), idata, cores=2, store=sys.argv[1], **PLAIN)
"""


@pytest.mark.parametrize("name", ["posterior_predictive", *thorough("log_likelihood")])
def test_the_same_call_goes_on_after_a_kill_of_the_master(
    tmp_path: Path, name: str, computed: list[int]
) -> None:
    store = tmp_path / "killed.zarr"
    drawn = tmp_path / "draws.pickle"
    drawn.write_bytes(pickle.dumps(draws_of(several(), 2, DRAWS)))
    line = [sys.executable, "-W", "ignore", "-c", KILLED, store, name, drawn]
    given = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    shared = leaks.named()
    with subprocess.Popen(line, start_new_session=True, env=given) as process:
        until = time.monotonic() + 240
        while not noted(store, name):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        process.kill()
    until = time.monotonic() + 10
    while left := session(process.pid):
        assert time.monotonic() < until, f"processes are left: {left}"
        time.sleep(0.05)
    assert not leaks.left_since(shared)
    check_goes_on(store, name, computed)


@pytest.mark.parametrize("who", ["a member", "the master"])
def test_the_same_call_goes_on_after_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, computed: list[int], who: str
) -> None:
    store = tmp_path / "full.zarr"
    model = several()
    idata = draws_of(model, 2, DRAWS)
    master, write = os.getpid(), StoredArray.write

    def full(self: StoredArray, draws: range, values: np.ndarray) -> None:
        if draws.start >= 15 and (os.getpid() == master) == (who == "the master"):
            raise OSError(28, "No space left on device")
        write(self, draws, values)

    with monkeypatch.context() as patch:
        patch.setattr(StoredArray, "write", full)
        with pytest.raises((OSError, WorkerError), match="No space left on device"):
            predictive(model, idata, cores=2, store=store, **PLAIN)
    check_goes_on(store, "posterior_predictive", computed)


def test_a_store_that_is_whole_is_returned(tmp_path: Path, computed: list[int]) -> None:
    """Also without its seed; and not for another model, other draws or another seed."""
    store = tmp_path / "whole.zarr"
    model = several()
    idata = draws_of(model)
    given = {"cores": 1, "store": store, **PLAIN}
    first = predictive(model, idata, random_seed=None, **given).load()
    computed.clear()
    xr.testing.assert_identical(predictive(model, idata, random_seed=None, **given).load(), first)
    assert not computed
    with pytest.raises(InputError, match="is there already, of another"):
        predictive(model, idata, random_seed=3, **given)
    other = idata.copy()
    other["posterior"] = xr.DataTree(idata["posterior"].to_dataset().roll(draw=1))
    with pytest.raises(InputError, match="is there already, of another"):
        predictive(model, other, random_seed=None, **given)
    with model:
        pm.set_data({"x": model["x"].get_value() + 1})
    given["freeze_vars"] = ["y_unobserved"]
    with pytest.raises(InputError, match="is there already, of another"):
        predictive(model, idata, random_seed=None, **given)


def test_a_group_that_is_not_ended_is_named(tmp_path: Path) -> None:
    """As after a kill while the group is made."""
    (tmp_path / "posterior_predictive").mkdir()
    model = several()
    with pytest.raises(InputError, match="'posterior_predictive' is there already, and no call"):
        predictive(model, draws_of(model), store=tmp_path, **PLAIN)
