"""fit by each rule, with and without validation, metrics and a resume: numpy is the oracle."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from modes import FAST
from read_rows import Source
from selection import thorough

import synkhronos as synk
from synkhronos import rules
from synkhronos.extensions import updates
from synkhronos.training import fit, metrics

pytestmark = pytest.mark.usefixtures("lasting_groups")

NEW = np.random.default_rng(3)
ROWS = NEW.normal(size=(44, 4))
LABELS = (ROWS @ NEW.normal(size=(4, 3))).argmax(axis=1)
HELD_OUT = slice(30, None)
RULES = [
    *(None, rules.DiLoCo(2), rules.EASGD(period=2)),
    *thorough(rules.Average(2), rules.GoSGD()),
]


@pytest.mark.each_choice
@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("named", ["none", "expression", "sums"])
@pytest.mark.parametrize("validated", ["none", "array", "source"])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_values_of_validation(
    group2: synk.Group, rule: Any, validated: str, named: str, resumed: bool, tmp_path: Path
) -> None:
    x, y = pt.dmatrix("x"), pt.lvector("y")
    w = pytensor.shared(np.zeros((4, 3)), name="w")
    scores = pt.special.log_softmax(x @ w, axis=1)
    right = pt.eq(scores.argmax(axis=1), y)
    given: dict[str, Any] = {
        "none": None,
        "expression": {"accuracy": right.mean()},
        "sums": {"accuracy": metrics.accuracy(scores, y)},
    }
    rows = ROWS[HELD_OUT], LABELS[HELD_OUT]
    size = {"batch": 8} if rule is None or rule.meets else {"member_batch": 4}
    for epochs in (1, 2) if resumed else (2,):
        run = fit(
            -scores[pt.arange(y.shape[0]), y].mean(),
            [w],
            [x, y],
            (ROWS[:30], LABELS[:30]),
            optimizer=functools.partial(updates.sgd, learning_rate=0.2),
            epochs=epochs,
            rule=rule,
            validation={"none": None, "array": rows, "source": tuple(map(Source, rows))}[validated],
            metrics=given[named],
            folder=tmp_path / "run" if resumed else None,
            resume="auto" if resumed else None,
            mode=FAST,
            progress=False,
            **size,
        )
    scored = rows[0] @ w.get_value()
    exact = np.log(np.exp(scored).sum(axis=1)) - scored[np.arange(len(scored)), rows[1]]
    expected = {"val_loss": exact.mean(), "val_accuracy": (scored.argmax(1) == rows[1]).mean()}
    if validated == "none":
        expected = {}
    elif named == "none":
        del expected["val_accuracy"]
    last = run.history[-1]
    found = {name: value for name, value in last.items() if name.startswith("val_")}
    assert found == pytest.approx(expected)
    assert [last["rows"], last["epoch"], len(run.history)] == [30, 2, 2]
    assert np.isfinite(run.history["loss"]).all()
