"""A point of a run can be saved while members train, and training goes on from it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
from modes import FAST

import synkhronos as synk
from synkhronos import rules
from synkhronos.extensions import Batches, make_train_function, updates
from synkhronos.extensions.checkpoints import Checkpoints

ROWS = np.random.default_rng(0).normal(size=(400, 3))


def test_a_saved_point_is_restored_with_its_place_in_the_batches(
    group2: synk.Group, tmp_path: Path
) -> None:
    x, y = pt.matrix("x", dtype="float64"), pt.vector("y", dtype="float64")
    w = pytensor.shared(np.zeros(3), name="w")
    loss = ((x @ w - y) ** 2).mean()
    train = make_train_function(
        loss, [w], x, y, updates.sgd, 0.01, rule=rules.EASGD(period=2), mode=FAST
    )
    given = train.build_inputs(ROWS, ROWS @ [3.0, 2.0, 1.0])
    batches = Batches(len(ROWS), 20, seed=1)
    saved = Checkpoints(tmp_path, train, batches, keep=None)
    points = []
    with train.start(*given, batches, epochs=2) as run:
        for point in run.every(rows=200):
            saved.save(point, loss=point.loss)
            points.append(point)
    counts = train.state[-1]
    assert counts.get_value()[0] == 2 * len(ROWS) == run.rows
    # a point may come before the exchange of its last rows: the version has the latest point then
    latest = {point.version: point for point in points}
    assert saved.steps() == [*latest]

    first = latest[points[0].version]
    found = saved.restore(first.version)
    assert found == {"step": first.version, "loss": first.loss}
    assert np.array_equal(w.get_value(), first.values[w])
    assert batches.state() == first.batches
    assert counts.get_value().tolist() == [first.rows, first.version]

    # on a busy machine members may have used nearly all rows before the master looks, and for less
    # than two batches of each member there is a warning
    last = first.epoch + 2
    claimed = first.batches["epoch"] * len(ROWS) + first.batches["row"]
    with train.start(*given, batches, epochs=2) as run:
        run.wait()
    assert counts.get_value()[0] == first.rows + last * len(ROWS) - claimed
    assert counts.get_value()[1] > first.version
    assert batches.state()["epoch"] == last
    assert batches.state()["row"] == 0
