"""The group that fit opens where none is open: one process or members, by measured times."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from modes import FAST

import synkhronos as synk
from synkhronos import rules
from synkhronos._api.advice import Timing
from synkhronos._engine.group import current, current_or_none
from synkhronos.extensions import updates
from synkhronos.nn import augment
from synkhronos.training import fit
from synkhronos.training._run import group_choice
from synkhronos.training._run.group_choice import Choice, chosen_size, function_in_group

ROWS = np.random.default_rng(0).normal(size=(60, 3))
TARGETS = ROWS @ [1.0, 2.0, 3.0]
SGD = functools.partial(updates.sgd, learning_rate=0.1)


@pytest.fixture(autouse=True)
def _no_group_before_and_after() -> Iterator[None]:
    assert current_or_none() is None
    with pytensor.config.change_flags(mode=FAST):
        yield
    synk.close()


def trained(data: Any = (ROWS, TARGETS), **options: Any) -> tuple[Any, np.ndarray]:
    """The trainer and the parameters of a linear regression."""
    x, y, w = pt.dmatrix("x"), pt.dvector("y"), pytensor.shared(np.zeros(3), name="w")
    given: dict[str, Any] = {"optimizer": SGD, "batch": 20, "epochs": 2, "progress": False}
    trainer = fit(((x @ w - y) ** 2).mean(), [w], [x, y], data, **given | options)
    return trainer, w.get_value()


@pytest.fixture
def members_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores, and a measurement in which two members are faster from the first step on."""
    monkeypatch.setattr(group_choice, "START_SECONDS", 0.0)
    monkeypatch.setattr(group_choice._cores, "physical", lambda: 2)
    monkeypatch.setattr(group_choice, "slowdown", lambda cores: 1.0)
    timed = Timing("NUMBA", 1.0, 1.0, 0.0, {1: 1.0, 2: 0.5}, 0.001)
    monkeypatch.setattr(
        "synkhronos.extensions.TrainFunction.timed", lambda self, asked: ("train", 20, timed)
    )


def recorded(threads: float, one: float, half: float, quarter: float, around: float) -> Timing:
    """Milliseconds of a step: with all threads; of all rows and of parts with one; of meetings."""
    parts = {1: one / 1e3, 2: half / 1e3, 4: quarter / 1e3}
    return Timing("NUMBA", one / 1e3, threads / 1e3, 0.0, parts, around / 1e3)


# On two virtual cores, with the slowdown that was measured then, and the milliseconds that a step
# took in one process and with two members. The network and the rows are of `contenders.py`.
RECORDED = {
    "network, Adam, 128 rows": (recorded(7.18, 11.8, 6.66, 4.07, 1.52), 1.47, 6.13, 7.93),
    "network, Adam, 500 rows": (recorded(23.0, 40.7, 21.4, 11.4, 1.65), 1.15, 24.3, 24.6),
    "network, Adam, 4,096 rows": (recorded(399, 281, 126, 56.3, 2.78), 2.0, 437, 288),
    "exp and tanh, Adam, 5,000 rows": (recorded(1.03, 1.00, 0.516, 0.258, 0.061), 2.0, 1.56, 2.43),
    "20 weights, Adam, 128 rows": (recorded(0.025, 0.025, 0.021, 0.018, 0.046), 2.0, 0.158, 0.346),
}


@pytest.mark.parametrize("case", RECORDED)
def test_the_choice_by_recorded_times(case: str) -> None:
    """What is chosen for a long run is what was faster."""
    timing, slowdown, one, two = RECORDED[case]
    assert chosen_size(timing, slowdown, 2, 100_000).members == (1 if one < two else 2)


def test_cores_that_share_nothing_have_no_slowdown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between 1 and the number of cores, whatever a noisy clock says."""
    for alone, together, found in ((1.0, 0.5, 1.0), (1.0, 0.75, 1.5), (1.0, 1.3, 2.0), (1, 0.4, 1)):
        times = iter((together, alone))
        monkeypatch.setattr(group_choice, "seconds_of", lambda call, times=times: next(times))
        assert group_choice.slowdown(2) == found


def test_members_have_to_save_more_than_their_start() -> None:
    timing = Timing("NUMBA", 0.02, 0.02, 0.0, {1: 0.02, 2: 0.01}, 0.0001)
    few, many = (chosen_size(timing, 1.0, 2, steps) for steps in (100, 1000))
    assert (few.members, many.members) == (1, 2)
    assert "saves 0.99 s, less than their start" in few.why
    assert many.why.startswith("2 members, 10.1 ms for a step; one process with all threads, 20 ms")


def test_a_short_run_trains_in_one_process(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "synkhronos"):
        trainer, alone = trained()
    assert trainer.train.group.size == synk.size() == 1
    [line] = [r.message for r in caplog.records if r.message.startswith("fit: ")]
    assert line.startswith("fit: one process with all threads: 6 steps of ")
    assert trainer.train.gradients(ROWS, TARGETS)[0].shape == (3,)  # the group stays open
    synk.close()
    with synk.Group(2):
        together = trained()[1]
    np.testing.assert_allclose(alone, together, rtol=1e-12)


@pytest.mark.usefixtures("members_pay")
def test_members_train_where_they_are_faster(capsys: pytest.CaptureFixture[str]) -> None:
    trainer, together = trained(progress=True)
    assert trainer.train.group.size == synk.size() == 2
    assert "fit: 2 members, 501 ms for a step; one process with" in capsys.readouterr().err
    synk.close()
    with synk.Group(1):
        alone = trained()[1]
    np.testing.assert_allclose(alone, together, rtol=1e-12)


def test_the_group_that_is_open_is_kept() -> None:
    with synk.Group(2) as group:
        assert trained()[0].train.group is group
        with pytest.raises(synk.InputError):
            trained(epochs=0)
        assert group.alive


@pytest.mark.parametrize(
    "options",
    [{"epochs": 0}, {"batch": 0}, {"data": (ROWS, TARGETS[:5])}, {"folder": "."}],
    ids=lambda options: next(iter(options)),
)
def test_a_group_that_an_error_leaves_is_closed(options: dict[str, Any]) -> None:
    with pytest.raises(synk.SynkhronosError):
        trained(**options, resume=7)
    assert current_or_none() is None


def test_threads_that_begin_at_once_have_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them measures in a group of one, and closes it; no other one uses that."""
    measuring = threading.Event()

    def measured(*args: object) -> Choice:
        measuring.set()
        time.sleep(0.1)
        return Choice(2, "two members")

    monkeypatch.setattr(group_choice._cores, "physical", lambda: 2)
    monkeypatch.setattr(group_choice, "_measured", measured)
    make: Any = functools.partial(current, "fit")
    rows: Any = object
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(function_in_group, make, None, rows)
        assert measuring.wait(60)
        second = pool.submit(function_in_group, make, None, rows)
        found: Any = first.result()[0], second.result()[0]
    assert found[0] is found[1]
    assert (found[0].alive, found[0].size) == (True, 2)


def test_options_for_members_open_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured then."""
    monkeypatch.setattr(group_choice, "_measured", None)
    trainer, _ = trained(rule=rules.Average(2))
    assert trainer.train.group.size == group_choice._cores.physical()
    assert current_or_none() is trainer.train.group


class Table:
    """A source of rows that counts its reads."""

    def __init__(self, values: np.ndarray) -> None:
        self.values, self.reads = values, 0

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Any) -> np.ndarray:
        self.reads += 1
        return self.values[rows]


def test_a_step_of_a_source_is_measured() -> None:
    source = Table(ROWS)
    _, alone = trained((source, TARGETS), shuffle=False)
    assert synk.size() == 1
    assert source.reads == 1 + 2 * 3  # one batch to measure with, then those of the run
    synk.close()
    with synk.Group(1):
        np.testing.assert_array_equal(trained(shuffle=False)[1], alone)


def test_a_step_with_words_of_augmentation_is_measured() -> None:
    x, words = pt.dtensor4("x"), pt.vector("words", dtype="uint64")
    w = pytensor.shared(np.zeros(()), name="w")
    moved = augment(x, words, flip=True)
    rows = np.random.default_rng(0).normal(size=(12, 4, 4, 1))
    fit(
        ((moved - w) ** 2).mean(),
        [w],
        [x],
        rows,
        augment=words,
        optimizer=SGD,
        batch=4,
        epochs=1,
        progress=False,
    )
    assert synk.size() == 1
    assert w.get_value() != 0
