"""fit over nodes: as on one node with as many members; stopped by a signal, and resumed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from launching import LIMIT, Launcher, job, run, run_here
from selection import thorough

FITTED = """
import functools, os, signal, sys
import numpy as np
import pytensor, pytensor.tensor as pt
import synkhronos as synk
from synkhronos.extensions import updates
from synkhronos.training import Best, fit, metrics, read_metrics, scheduled

pytensor.config.mode = "FAST_COMPILE"
members, place, stops = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
synk.fork(members)
draw = np.random.default_rng(1)
rows = draw.normal(size=(61, 6))
target = rows @ draw.normal(size=6) + draw.normal(size=61)
rows[17] = np.nan
x, y = pt.dmatrix("x"), pt.dvector("y")
w = pytensor.shared(np.zeros(6), name="w")
mean = pytensor.shared(np.zeros(6), name="mean")
adam = scheduled(updates.adam, lambda step: 0.3 / (1 + step))

def stop(event):
    if event.kind == "step" and event.step == stops:
        os.kill(os.getpid(), signal.SIGTERM)

done = fit(
    ((x @ w - y) ** 2).mean(), [w], [x, y], (rows, target), optimizer=adam, ema=0.9,
    batch=20, epochs=3, validation=(rows[20:], target[20:]),
    metrics={"r2": metrics.r2(x @ w, y)}, guard="skip",
    updates=[(mean, 0.9 * mean + 0.1 * x.mean(axis=0), "avg", "all")],
    callbacks=[Best("val_r2"), stop], folder=place + ".run", resume="auto", progress=False,
)
values = {v.name: v.get_value() for v in done.values()}
history = {k: np.array(done.history[k]) for k in ("loss", "val_loss", "val_r2", "skipped")}
kinds = [line["kind"] for line in read_metrics(place + ".run")]
assert kinds.count("epoch") == 3, kinds
np.savez(place, **values, **history)
"""


def fitted(
    mpi: Launcher, place: Path, nodes: int, members: int, stops: int
) -> dict[str, np.ndarray]:
    """What such a group ends with, stopped after so many steps and run again."""
    given = str(members), str(place), str(stops)
    if stops:
        with job(mpi, nodes, place.parent, FITTED, *given) as stopped:
            assert stopped.wait(LIMIT) == 75, stopped.text
            stopped.check_gone()
        assert not place.exists()
    if nodes == 1:
        run_here(place.parent, FITTED, *given[:2], "0")
    else:
        run(mpi, nodes, place.parent, FITTED, *given[:2], "0")
    with np.load(place) as found:
        return {key: found[key] for key in found.files}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "members", "stops"), [(2, 1, 5), *thorough((2, 2, 0), (3, 1, 4), (2, 2, 3))]
)
def test_nodes_fit_as_members_of_one(
    mpi: Launcher, tmp_path: Path, nodes: int, members: int, stops: int
) -> None:
    one = fitted(mpi, tmp_path / "one.npz", 1, nodes * members, 0)
    many = fitted(mpi, tmp_path / "many.npz", nodes, members, stops)
    assert one.keys() == many.keys()
    assert one["skipped"].tolist() == [1, 2, 3]
    for key, wanted in one.items():
        np.testing.assert_allclose(many[key], wanted, rtol=1e-9, atol=1e-12, err_msg=key)
