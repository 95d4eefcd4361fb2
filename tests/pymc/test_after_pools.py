"""What follows sampling, on pools: the same bits as in this process, in memory and in a store."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from after_models import draws_of, several
from modes import FAST
from selection import thorough
from stand_pool import Loss, Stand

import synkhronos as synk
from synkhronos._errors import InputError, InputTypeError, SynkhronosError
from synkhronos._transport.serialization import unpack_graph
from synkhronos.pymc._after import calculation, loo_rows, pooled
from synkhronos.pymc._map.results import packed_result

PLAIN: dict[str, Any] = {"progressbar": False, "compile_kwargs": {"mode": FAST}}
CALLS: dict[str, Callable[..., Any]] = {
    "posterior": lambda tree, model, **given: synk.pymc.sample_posterior_predictive(
        tree, model, var_names=["y", "n"], random_seed=1, **given
    ),
    "prior": lambda tree, model, **given: synk.pymc.sample_prior_predictive(
        9, model, random_seed=1, **given
    ),
    "likelihood": lambda tree, model, **given: synk.pymc.compute_log_likelihood(
        tree, model=model, extend_inferencedata=False, **given
    ),
    "deterministics": lambda tree, model, **given: synk.pymc.compute_deterministics(
        tree, model=model, **given
    ),
}
pytestmark = pytest.mark.filterwarnings("ignore:.*[Ii]mput")


@pytest.fixture
def blocks_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calculation, "block_length", lambda shape, size: min(3, shape[-1]))


@pytest.fixture
def zarr_ends() -> Iterator[None]:
    """zarr's threads end with the test."""
    yield
    from zarr.core.sync import cleanup_resources

    cleanup_resources()


def computed(items: Sequence[tuple[str, str, bytes]], head: bytes) -> dict[str, Any]:
    """What a worker returns."""
    fit = unpack_graph(head)["fit"]
    ends = []
    for name, digest, packed in items:
        result = packed_result(name, digest, 0, fit(unpack_graph(packed)))
        ends.append((result, "", "", 0.01))
    return {"ends": ends}


class Here(Stand):
    """Computes in this process; `fails` says what raises."""

    def __init__(self, fails: Callable[[list[str]], bool] = lambda names: False) -> None:
        super().__init__(self.computed)
        self.fails, self.tries = fails, 0

    def held(self, data: bytes) -> object:
        """Keep it."""
        self.head = data
        return data

    def computed(self, items: Sequence[tuple[str, str, bytes]]) -> dict[str, Any]:
        """The ends of a batch."""
        self.tries += 1
        if self.fails([name for name, *_ in items]):
            raise Loss("its machine is gone")
        return computed(items, self.head)


def chosen(pool: Stand, monkeypatch: pytest.MonkeyPatch) -> Stand:
    monkeypatch.setattr(pooled, "pool_of", lambda *_: pool)
    return pool


def equal(one: Any, two: Any) -> None:
    """Bit by bit, and no time at which they were made."""
    trees = [
        {"": found.drop_attrs(deep=False)}
        if isinstance(found, xr.Dataset)
        else {name: child.to_dataset().drop_attrs(deep=False) for name, child in found.items()}
        for found in (one, two)
    ]
    assert trees[0].keys() == trees[1].keys()
    for name, found in trees[0].items():
        xr.testing.assert_identical(found, trees[1][name])


@pytest.mark.usefixtures("blocks_of_three")
@pytest.mark.parametrize("call", ["posterior", "likelihood", *thorough("prior", "deterministics")])
def test_bits_are_those_of_one_process(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if a batch has come twice."""
    model = several()
    tree = draws_of(model)
    here = CALLS[call](tree, model, cores=1, **PLAIN)
    pool = Here(lambda names: pool.tries == 1)
    chosen(pool, monkeypatch)
    equal(CALLS[call](tree, model, on=pool, **PLAIN), here)
    items = sum(map(len, pool.batches[1:]))
    assert items == (3 if call == "prior" else 6)


@pytest.mark.usefixtures("blocks_of_three", "zarr_ends")
def test_a_store_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written stays when the workers are gone, and slots of this machine go on."""
    pytest.importorskip("zarr", reason="synkhronos[data]")
    model = several()
    tree = draws_of(model)
    whole = CALLS["posterior"](tree, model, cores=1, **PLAIN)
    given = {"store": tmp_path / "draws.zarr", **PLAIN}
    lost = Here(lambda names: names != ["0"])
    lost.said = "it is gone"
    chosen(lost, monkeypatch)
    with pytest.raises(
        SynkhronosError, match=r"draws \d+ to \d+ have failed: its worker has ended"
    ):
        CALLS["posterior"](tree, model, on=lost, **given)
    pool = chosen(Here(), monkeypatch)
    found = CALLS["posterior"](tree, model, on=pool, **given)
    equal(found.map_over_datasets(lambda each: each.load()), whole)
    names = [name for batch in pool.batches for name, *_ in batch]
    assert "0" not in names
    assert found["posterior_predictive"].attrs["draws_done"] == 14


def test_blocks_take_part_of_a_second() -> None:
    """So that many workers have some; those of few draws are small."""
    asked: list[int] = []

    class Own:
        total, block, in_processes, before, parts = 100, 50, True, 0, ()
        counted, if_lost = "draws", ""

        def shorten(self, length: int) -> None:
            calculation.Calculation.shorten(self, length)  # type: ignore[arg-type]
            asked.append(self.block)

    own: Any = Own()
    for seconds in (10.0, 0.0):
        own.block = 50
        pooled.PooledDivision(own, seconds, Here(), "call", None).run(pooled.InMemory([]))  # type: ignore[arg-type]
    assert asked == [3, 50]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"on": 3}, "on=3: give a Client of Dask"),
        ({"on": ThreadPoolExecutor(1), "cores": 1}, "cores= is for processes of this machine"),
    ],
)
@pytest.mark.parametrize("call", list(CALLS))
def test_what_is_not_a_pool(call: str, given: dict[str, Any], error: str) -> None:
    model = several()
    with pytest.raises((InputError, InputTypeError), match=error):
        CALLS[call](draws_of(model), model, **given)


ROWS: dict[str, Callable[..., Any]] = {
    "loo": synk.pymc.loo,
    "matched": lambda *tree, **given: synk.pymc.loo(
        *tree, moment_match=True, k_threshold=0.2, **given
    ),
    "subsample": lambda tree, each, **given: synk.pymc.loo_subsample(tree, 7, each, **given),
}


def twelve_rows() -> tuple[pm.Model, xr.DataTree]:
    """A model of which one row is far off, and draws."""
    r = np.random.default_rng(3)
    y = r.normal(size=12)
    y[5] = 6.0
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("m", 0, 3), observed=y)
    posterior = xr.Dataset({"m": (("chain", "draw"), r.normal(y.mean(), 0.3, (2, 60)))})
    return model, xr.DataTree.from_dict({"posterior": posterior})


@functools.cache
def in_one_process(call: str) -> Any:
    """What the call gives where nothing is sent; rows that are matched take two seconds."""
    model, tree = twelve_rows()
    return ROWS[call](tree, True, model=model, cores=1, **PLAIN)


@pytest.mark.filterwarnings("ignore:.*Pareto")
# "matched" also in the test below
@pytest.mark.parametrize("call", [c if c != "matched" else thorough(c)[0] for c in ROWS])
def test_rows_are_those_of_one_process(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit by bit: blocks of five rows, and each row that is matched, is an item."""
    monkeypatch.setattr(loo_rows, "_BYTES", 8 * 120 * 5)
    model, tree = twelve_rows()
    here = in_one_process(call)
    pool = Here(lambda names: pool.tries == 1)
    chosen(pool, monkeypatch)
    found = ROWS[call](tree, True, model=model, on=pool, **PLAIN)
    assert vars(found).keys() == vars(here).keys()
    for name, value in vars(here).items():
        np.testing.assert_array_equal(getattr(found, name), value, err_msg=name)
    items = [name for batch in pool.batches[1:] for name, *_ in batch]
    matched = (here.influence_pareto_k > 0.2).sum().item() if call == "matched" else 0
    assert len(items) == {"loo": 3, "matched": 3 + matched, "subsample": 5}[call]
    assert call != "matched" or (matched > 1 and np.isfinite(here.n_eff_i).any())


def test_log_likelihoods_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that needs nothing else refuses a pool; rows are matched there."""
    model, tree = twelve_rows()
    whole = synk.pymc.compute_log_likelihood(tree, model=model, cores=1, **PLAIN)
    pool = chosen(Here(), monkeypatch)
    for call in ("loo", "subsample"):
        with pytest.raises(InputError, match="on=: data has the group log_likelihood, and to send"):
            ROWS[call](whole, True, on=pool, progressbar=False)
    with pytest.raises(InputError, match="on=: data has the group log_likelihood, and to send"):
        synk.pymc.loo_subsample(whole, 7, on=pool, model=model, method="plpd", **PLAIN)
    assert not pool.batches
    here = in_one_process("matched")  # computes the same log-likelihoods
    found = ROWS["matched"](whole, True, model=model, on=pool, **PLAIN)
    xr.testing.assert_identical(found.elpd_i, here.elpd_i)
    matched = (here.influence_pareto_k > 0.2).sum().item()
    assert sum(map(len, pool.batches)) == matched > 1


def test_rows_that_fail_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tree = twelve_rows()
    chosen(Here(lambda names: True), monkeypatch)
    with pytest.raises(SynkhronosError, match=r"loo: rows 0 to 11 have failed: its worker has"):
        synk.pymc.loo(tree, model=model, on="it", **PLAIN)


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_workers_of_an_executor() -> None:
    """Each has a process, whose draws are those of this one."""
    model = several()
    tree = draws_of(model)
    with ThreadPoolExecutor(2) as pool:
        for call in ("posterior", "likelihood"):
            here = CALLS[call](tree, model, cores=1, progressbar=False)
            there = CALLS[call](tree, model, on=pool, progressbar=False)
            equal(there, here)
    assert np.isfinite(here["n"]).all()
