"""What a run's record keeps besides its metrics: where time went, and warnings."""

from __future__ import annotations

import functools
import json
import logging
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor_ml import optim

import synkhronos as synk
from synkhronos.cli._report.summary import _flat, read_run
from synkhronos.extensions import updates
from synkhronos.extensions._rows.by_master import MasterLoop
from synkhronos.rules import EASGD
from synkhronos.training import Event, clipped, ema, fit, read_metrics, scheduled
from synkhronos.training._descriptions import described
from synkhronos.training._record.run_folder import read_starts
from synkhronos.training._record.warning_lines import kept_warnings
from synkhronos.training._run.phases import phases_of

ROWS = np.random.default_rng(0).normal(size=(60, 3))


def trained(folder: Path, data: Any = ROWS, **options: Any) -> list[dict[str, Any]]:
    """The lines of a run of two epochs."""
    x, w = pt.dmatrix("x"), pytensor.shared(np.zeros(3), name="w")
    given: dict[str, Any] = {"batch": 10, "epochs": 2, "progress": False, "mode": "FAST_COMPILE"}
    sgd = functools.partial(updates.sgd, learning_rate=0.1)
    loss = ((x - w) ** 2).mean()
    fit(loss, [w], [x], data, optimizer=sgd, folder=folder, **{**given, **options})
    return read_metrics(folder)


def test_phases_add_up() -> None:
    """Who has worked less has waited; the rest is the script's."""
    before = {"compute": [1.0, 1.0], "wait": [0.5, 0.0], "between": [9.0, 0.0]}
    now = {"compute": [3.0, 2.0], "wait": [0.5, 0.25], "between": [99.0, 7.0]}
    now.pop("between"), before.pop("between")
    found = phases_of(before, now, 2.5)
    assert found == {"compute": [2.0, 1.0], "wait": [0.0, 1.0], "between": [0.5, 0.5]}
    assert phases_of({}, now, 4.0)["compute"] == [3.0, 2.0]
    # the clocks of workers that were restarted begin anew
    assert phases_of({"compute": [9.0, 1.0], "wait": [0.0, 0.0]}, now, 4.0)["compute"] == [3.0, 2.0]
    assert phases_of(now, now, 4.0) == {}
    assert phases_of({}, {"compute": [], "wait": []}, 1.0) == {}
    assert phases_of({}, now, 1.0)["between"] == [0.0, 0.0]  # clocks of two sorts


def test_split_of_epochs(group2: synk.Group, tmp_path: Path) -> None:
    """Each member's phases are the epoch's seconds; a callback's time is not among them."""

    ends, spans = [time.perf_counter()], []

    def pause(event: Event) -> None:
        if event.kind == "epoch":
            spans.append(time.perf_counter() - ends[-1])
            time.sleep(0.3)
            ends.append(time.perf_counter())

    lines = trained(tmp_path / "run", callbacks=[pause])
    epochs = [line for line in lines if line["kind"] == "epoch"]
    for line, span in zip(epochs, spans, strict=True):
        phases = line["phases"]
        assert {"scatter", "compute", "wait", "update", "between"} <= phases.keys()
        for times in zip(*phases.values(), strict=True):
            assert sum(times) == pytest.approx(line["seconds"], rel=0.05, abs=1e-4)
            assert sum(times) < span + 0.1
        assert len(phases["compute"]) == 2
        assert line["reading"] == 0
    [start] = read_starts(tmp_path / "run")
    assert (start["config"]["rows"], start["config"]["members"]) == (60, 2)
    sgd = {"weight_decay": 0.0, "decoupled": False, "learning_rate": 0.1}
    assert start["config"]["optimizer"] == {"name": "sgd", **sgd}
    assert read_run(tmp_path / "run", 0, "run").config["optimizer.learning_rate"] == "0.1"


HALF = np.float32(0.5)


def mine(loss: Any, params: Any, rate: Any = HALF) -> Any:
    return updates.sgd(loss, params, rate)


class Called:
    def __call__(self, loss: Any, params: Any, rate: float = 2.5) -> Any:
        return updates.sgd(loss, params, rate)


@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        (updates.adam, {"name": "adam", "learning_rate": 0.001}),
        (
            functools.partial(updates.sgd, learning_rate=pytensor.shared(0.25)),
            {"name": "sgd", "learning_rate": 0.25},
        ),
        (
            ema(scheduled(updates.adam, optim.linear_schedule(0.1, 30), beta1=0.8), 0.9),
            {
                **{"name": "ema", "decay": 0.9, "rule.name": "scheduled"},
                **{"rule.rule.name": "adam", "rule.options.beta1": 0.8},
                "rule.schedule.name": "linear_schedule",
                **{"rule.schedule.learning_rate": 0.1, "rule.schedule.total_steps": 30},
            },
        ),
        (clipped(updates.sgd, 0.5), {"name": "clipped", "limit": 0.5, "rule.name": "sgd"}),
        (optim.adamw(1e-3), {"name": "adamw", "learning_rate": 0.001, "beta1": 0.9}),
        (
            optim.chain(optim.clip_by_global_norm(2.5), optim.adam(1e-3)),
            {"name": "chain", "transforms[0].bound": 2.5, "transforms[1].learning_rate": 0.001},
        ),
        (mine, {"name": "mine", "rate": 0.5}),
        (Called(), {"name": "Called", "rate": 2.5}),
        (lambda loss, params: None, {"name": "<lambda>"}),
    ],
)
def test_what_is_said_of_a_rule(rule: Any, settings: dict[str, Any]) -> None:
    """Runs that differ in a setting differ in their record, in every form of a rule."""
    text = json.dumps(described(rule))
    found = dict(_flat("", json.loads(text)))
    assert found == found | {key: str(value) for key, value in settings.items()}


class Slow:
    """A source that takes its time for a batch when the loop waits for it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        take = MasterLoop.take
        self.asked = threading.Semaphore(0)

        def taking(loop: MasterLoop, number: int) -> Any:
            self.asked.release()
            return take(loop, number)

        patch.setattr(MasterLoop, "take", taking)

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, rows: Any) -> np.ndarray:
        if threading.current_thread() is not threading.main_thread():  # else fit looks at a row
            assert self.asked.acquire(timeout=60)
            time.sleep(0.005)
        return ROWS[rows]


def test_time_for_reading(
    group2: synk.Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = trained(tmp_path / "run", Slow(monkeypatch))
    [one, two] = [line for line in lines if line["kind"] == "epoch"]
    assert one["reading"] >= 6 * 0.005  # of the six batches
    assert 6 * 0.005 <= two["reading"] < two["phases"]["between"][0] + 0.01


def test_members_that_train_apart_have_no_split(group2: synk.Group, tmp_path: Path) -> None:
    rule = EASGD(period=2)
    lines = trained(tmp_path / "run", rule=rule, batch=None, member_batch=5)
    assert [line["kind"] for line in lines].count("epoch") == 2
    assert not any("phases" in line for line in lines)


def test_warnings_of_a_run(
    group2: synk.Group, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of Python and of the log are kept, and shown as without a record."""
    log = logging.getLogger("synkhronos")

    def warn(event: Event) -> None:
        if event.kind == "epoch":
            log.warning("rank %d is <late>", 1)
            log.info("nothing")
            warnings.warn("so slow", UserWarning, stacklevel=1)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        lines = trained(tmp_path / "run", callbacks=[warn], epochs=1)
    found = [line for line in lines if line["kind"] == "warning"]
    assert [(w["what"], w["text"], w["step"], w["epoch"]) for w in found] == [
        ("WARNING", "rank 1 is <late>", 6, 0),
        ("UserWarning", "so slow", 6, 0),
    ]
    assert [str(warning.message) for warning in seen] == ["so slow"]
    assert "rank 1 is <late>" in caplog.text


def test_what_keeps_warnings_leaves_nothing() -> None:
    """After a failure too; what cannot be kept is only shown."""
    log = logging.getLogger("synkhronos")
    shown, filters = warnings.showwarning, list(log.filters)
    kept: list[tuple[str, str]] = []

    def keep(what: str, text: str) -> None:
        kept.append((what, text))
        raise OSError("no space left")

    def fail() -> None:
        log.error("one %s", "x" * 10_000)
        raise KeyError

    with pytest.raises(KeyError), kept_warnings(keep):
        fail()
    assert [what for what, _ in kept] == ["ERROR"]
    assert len(kept[0][1]) == 4000
    assert warnings.showwarning is shown
    assert log.filters == filters
    others = warnings.showwarning
    with kept_warnings(keep), warnings.catch_warnings():
        mine = warnings.showwarning = lambda *given, **named: None
        with kept_warnings(keep):
            pass
        assert warnings.showwarning is mine
    assert warnings.showwarning is others
