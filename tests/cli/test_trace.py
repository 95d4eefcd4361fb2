"""`synk trace`: what it writes, and what it says."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from modes import FAST

import synkhronos as synk
from synkhronos import rules
from synkhronos._engine.spans import RUN, SPAN
from synkhronos._engine.trace import MemberTrace, Trace
from synkhronos.cli._command_line import main
from synkhronos.extensions import updates
from synkhronos.training import Trainer, fit

SGD = functools.partial(updates.sgd, learning_rate=0.1)


def trained(folder: Path | None, trace: int, rule: rules.Rule | None = None) -> Trainer:
    x = pt.matrix("x", dtype="float64")
    w = pytensor.shared(np.zeros(3), name="w")
    rows = np.random.default_rng(0).normal(size=(40, 3))
    loss = ((x @ w - 1) ** 2).mean()
    given = {"batch": 5} if rule is None else {"member_batch": 5, "rule": rule}
    return fit(
        *(loss, [w], x, rows),
        optimizer=SGD,
        epochs=2,
        folder=folder,
        trace=trace,
        validation=rows,
        mode=FAST,
        progress=False,
        **given,
    )


def test_a_traced_run(
    group2: synk.Group, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also of fewer steps than were asked for; validation and checkpoints are in it."""
    run = trained(tmp_path / "a", 1000)
    found = run.trace.seconds()[0]
    assert {"function train", "validate", "save", "compute"} <= set(found)
    assert main(["trace", str(tmp_path / "a")]) == 0
    out = capsys.readouterr().out
    events = json.loads((tmp_path / "a" / "trace.json").read_text())["traceEvents"]
    steps = [e for e in events if e["name"] == "function train" and e["tid"] == 1]
    assert len(steps) == 2 * 8 - 2  # the first two steps compile, and are left out
    assert "trace.json holds" in out
    assert "validate" in out
    other = tmp_path / "b.json.gz"
    assert main(["trace", str(tmp_path / "a" / "trace.bin"), "--to", str(other)]) == 0
    assert other.exists()


def test_so_many_steps_are_traced(group2: synk.Group) -> None:
    run = trained(None, 3)
    names = [e["name"] for e in run.trace.events() if e["ph"] == "X" and e["tid"] == 1]
    assert names.count("function train") == 3
    assert trained(None, 0).trace.members == []


def test_what_is_refused(
    group2: synk.Group, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for wrong in (-1, True, "5"):
        with pytest.raises(synk.InputError, match=r"fit: trace=.*: give an integer of at least 0"):
            trained(None, wrong)
    with pytest.raises(synk.InputError, match="members step without the master"):
        trained(None, 3, rules.Hogwild())
    assert main(["trace", str(tmp_path)]) == 1
    assert "is not a trace" in capsys.readouterr().err


def test_what_is_said_of_nodes_and_losses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spans = np.array([(0.0, 1.0, RUN, 1)], SPAN)
    members = [MemberTrace(r, r, f"host{r}", r, spans, [], 7) for r in range(2)]
    Trace(members, 0, 2.5e-5).save(tmp_path / "t.bin")
    assert main(["trace", str(tmp_path / "t.bin")]) == 0
    out = capsys.readouterr().out
    assert "14 older spans were overwritten" in out
    assert "agree within 25 us" in out
