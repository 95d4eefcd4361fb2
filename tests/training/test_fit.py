"""fit: equal to serial training for any split; stops, guards, and what it refuses."""

from __future__ import annotations

import functools
import logging
import os
import re
import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from modes import FAST
from scipy.sparse import csr_array
from selection import thorough

import synkhronos as synk
from synkhronos import rules
from synkhronos.extensions import Batches, Loader, make_train_function, updates
from synkhronos.extensions._apart.points import RunEpochs
from synkhronos.training import (
    Best,
    EarlyStopping,
    Event,
    Metric,
    Plateau,
    Target,
    Trainer,
    averages_of,
    ema,
    fit,
    guarded,
    metrics,
    read_metrics,
    scheduled,
    sources,
)
from synkhronos.training._run import evaluation, loop, progress
from synkhronos.training._run.position import Position
from synkhronos.training._run.progress import Progress

pytestmark = pytest.mark.usefixtures("lasting_groups")

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(103, 6))
LABELS = (ROWS @ RNG.normal(size=(6, 3))).argmax(axis=1).astype("int32")


@pytest.fixture(autouse=True)
def _no_compiler() -> Iterator[None]:
    with pytensor.config.change_flags(mode=FAST):
        yield


class Net:
    """A softmax over three classes."""

    def __init__(self) -> None:
        self.x, self.y = pt.dmatrix("x"), pt.ivector("y")
        self.w = pytensor.shared(np.zeros((6, 3)), name="w")
        self.scores = pt.special.log_softmax(self.x @ self.w, axis=1)
        self.loss = -self.scores[pt.arange(self.y.shape[0]), self.y].mean()
        self.given = self.loss, [self.w], [self.x, self.y]


ADAM = functools.partial(updates.adam, learning_rate=0.05)


def around(rule: Any) -> Any:
    """A rate that follows the step, a bound of the norm, a mean of the parameters."""

    def rate(step: Any) -> Any:
        return 0.1 / (1 + 0.1 * step)

    def bounded(grads: Any, params: Any, **options: Any) -> Any:
        return rule(updates.total_norm_constraint(grads, 0.2), params, **options)

    return ema(scheduled(bounded, rate), 0.8)


@pytest.mark.parametrize("slices", [1, 3, 7])
def test_equal_to_serial_steps(group: synk.Group, slices: int) -> None:
    """With a schedule, clipping, averages and a guard; an odd last batch."""
    net = Net()
    run = fit(
        *net.given,
        (ROWS, LABELS),
        optimizer=around(updates.adam.rule),
        batch=20,
        epochs=2,
        slices=slices,
        progress=False,
    )
    assert run.step == 12
    serial = Net()
    made: dict[Any, Any] = {}

    def rule(loss: Any, params: Any) -> Any:
        made.update(around(updates.adam.rule)([pytensor.grad(loss, p) for p in params], params))
        return made

    step = pytensor.function(
        [serial.x, serial.y], serial.loss, updates=rule(serial.loss, [serial.w])
    )
    for _, rows in zip(range(2), [Batches(103, 20)] * 2, strict=True):
        losses = [float(step(ROWS[r], LABELS[r])) * len(r) for r in rows]
    np.testing.assert_allclose(net.w.get_value(), serial.w.get_value(), rtol=1e-10, atol=1e-12)
    [average], [other] = averages_of(run.train.state).values(), averages_of(made).values()
    np.testing.assert_allclose(average.get_value(), other.get_value(), rtol=1e-10, atol=1e-12)
    assert run.history["loss"][-1] == pytest.approx(sum(losses) / 103, rel=1e-10)


def test_validation_uses_averages(group2: synk.Group) -> None:
    net = Net()
    run = fit(
        *net.given,
        (ROWS, LABELS),
        optimizer=ADAM,
        ema=0.9,
        batch=30,
        epochs=2,
        validation=(ROWS[:50], LABELS[:50]),
        metrics={"accuracy": metrics.accuracy(net.scores, net.y)},
        progress=False,
    )
    average = averages_of(run.train.state)[net.w].get_value()
    assert not np.allclose(average, net.w.get_value())
    found = (ROWS[:50] @ average).argmax(axis=1) == LABELS[:50]
    assert run.history[-1]["val_accuracy"] == found.mean()
    assert run.evaluate((ROWS[:50], LABELS[:50]))["accuracy"] == found.mean()
    for wrong in (0, -1, "all"):
        with pytest.raises((synk.InputError, synk.InputTypeError), match="evaluate: batch="):
            run.evaluate((ROWS[:50], LABELS[:50]), batch=wrong)  # type: ignore[arg-type]


def test_metrics_that_are_arrays(group2: synk.Group, tmp_path: Path) -> None:
    """Events and the record have them, the history has numbers."""
    net, tables = Net(), []

    def note(event: Event) -> None:
        if event.kind == "epoch":
            tables.append(event.values["val_table"])

    run = fit(
        *net.given,
        (ROWS, LABELS),
        optimizer=ADAM,
        batch=60,
        epochs=1,
        validation=(ROWS, LABELS),
        metrics={"table": metrics.confusion(net.scores, net.y, 3)},
        callbacks=[note],
        folder=tmp_path / "run",
        progress=False,
    )
    assert tables[0].sum() == 103
    [line] = [line for line in read_metrics(tmp_path / "run") if line["kind"] == "epoch"]
    assert line["val_table"] == tables[0].tolist()
    assert "val_table" not in run.history.columns


class Prints(pytensor.graph.Op):
    """The identity; a member that computes it prints and logs."""

    __props__ = ()
    itypes, otypes = [pt.dmatrix], [pt.dmatrix]

    def perform(self, node: Any, inputs: Any, outputs: Any) -> None:
        print("computing", len(inputs[0]))
        logging.getLogger("mine").warning("logged")
        outputs[0][0] = inputs[0].copy()


def test_what_workers_print_is_kept(group2: synk.Group, tmp_path: Path) -> None:
    net = Net()
    seen = pt.mean(Prints()(net.x))
    fit(
        *net.given,
        (ROWS, LABELS),
        optimizer=ADAM,
        batch=60,
        epochs=1,
        validation=(ROWS, LABELS),
        metrics={"seen": (seen, "avg")},
        folder=tmp_path / "run",
        progress=False,
    )
    [file] = (tmp_path / "run" / "log").iterdir()
    assert file.name == "rank-1.log"
    lines = [line.split(" ", 2)[2] for line in file.read_text().splitlines()]
    assert lines == ["computing 51", "WARNING mine: logged"]


def test_metrics_are_computed_in_the_mode_of_the_steps(
    group2: synk.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes, made = [], evaluation.function
    monkeypatch.setattr(
        evaluation, "function", lambda *a, **how: modes.append(how["mode"]) or made(*a, **how)
    )
    net = Net()
    options: dict[str, Any] = {"optimizer": ADAM, "batch": 60, "epochs": 1, "progress": False}
    fit(*net.given, (ROWS, LABELS), **options, validation=(ROWS, LABELS), mode=FAST)
    assert modes == [FAST]


def test_a_validation_with_dropout_is_told(
    group2: synk.Group, caplog: pytest.LogCaptureFixture
) -> None:
    net = Net()
    noise = pytensor.shared(np.random.default_rng(0), name="noise")
    drop = pt.random.normal(size=net.x.shape, rng=noise, return_next_rng=True)[1]
    options: dict[str, Any] = {"optimizer": ADAM, "batch": 60, "epochs": 1, "progress": False}
    whole = {**options, "validation": (ROWS, LABELS), "guard": None, "strict": False}
    loss = net.loss + (net.x * drop).mean()
    fit(loss, *net.given[1:], (ROWS, LABELS), **whole, metrics={"loss": net.loss})
    assert "val_loss" not in caplog.text
    fit(loss, *net.given[1:], (ROWS, LABELS), **whole)
    assert "val_loss is of the loss as it is trained" in caplog.text


def test_events_and_history(group2: synk.Group) -> None:
    """In order; a function is told of all, an object of what it has methods for."""
    net, seen, epochs = Net(), [], []

    class Mine:
        def on_epoch(self, event: Event) -> None:
            epochs.append((event.epoch, event.values["loss"]))

    def told(event: Event) -> None:
        seen.append(event.kind)

    run = fit(
        *net.given,
        (ROWS, LABELS),
        optimizer=ADAM,
        batch=60,
        epochs=2,
        validation=(ROWS, LABELS),
        callbacks=[told, Mine()],
        progress=False,
    )
    epoch = ["step", "step", "validated", "epoch"]
    assert seen == ["start", *epoch, *epoch, "end"]
    assert [e for e, _ in epochs] == [0, 1]
    assert run.history["epoch"] == [1, 2]  # as the line that is shown
    assert [loss for _, loss in epochs] == run.history["loss"]
    assert run.history["rows"] == [103, 103]
    assert run.reason == "epochs"
    assert run.completed


def test_a_callback_that_raises_is_named(group2: synk.Group) -> None:
    """And a further fit goes on after the last step."""
    net = Net()
    failing = [True]

    def mine(event: Event) -> None:
        if event.kind == "step" and event.step == 3 and failing:
            raise RuntimeError("mine")

    train = make_train_function(net.loss, [net.w], [net.x, net.y], None, ADAM)
    trainer = Trainer(train, callbacks=[mine], progress=False)
    with pytest.raises(RuntimeError, match="mine") as caught:
        trainer.fit((ROWS, LABELS), batch=20, epochs=1)
    assert "callback mine at the event 'step' of step 3" in caught.value.__notes__[0]
    failing.clear()
    trainer.fit((ROWS, LABELS), batch=20, epochs=1)
    assert trainer.step == 6
    other = Net()
    fit(
        *other.given, (ROWS, LABELS), optimizer=ADAM, guard=None, batch=20, epochs=1, progress=False
    )
    np.testing.assert_array_equal(net.w.get_value(), other.w.get_value())


def test_a_failing_step_is_made_again(group2: synk.Group) -> None:
    """A member raises in the last batch; nothing has changed, and a further fit repeats it."""
    net = Net()
    labels = LABELS.copy()
    train = make_train_function(net.loss, [net.w], [net.x, net.y], None, ADAM)
    trainer = Trainer(train, progress=False)
    last = list(Batches(103, 20))[-1]
    labels[last[-1]] = 99  # there is no such column
    with pytest.raises(synk.WorkerError):
        trainer.fit((ROWS, labels), batch=20, epochs=1)
    assert trainer.step == 5
    trainer.fit((ROWS, LABELS), batch=20, epochs=1)
    other = Net()
    fit(
        *other.given, (ROWS, LABELS), optimizer=ADAM, guard=None, batch=20, epochs=1, progress=False
    )
    np.testing.assert_array_equal(net.w.get_value(), other.w.get_value())
    assert trainer.history["rows"] == [103]


@pytest.mark.parametrize(
    ("options", "epochs", "reason"),
    [
        ({"target": "val_accuracy >= 0.8"}, 1, "target was 0.8"),
        ({"target": ["val_accuracy > 1.5", Target("val_accuracy", 0.8)]}, 1, "target was 0.8"),
        ({"stop": EarlyStopping("val_zero", 2, "max")}, 3, "not been better than 0 for 2 times"),
        (
            {"stop": ["loss", EarlyStopping("val_zero", 2, "max")], "patience": 50},
            3,
            "than 0 for 2 times",
        ),
        ({"stop": "loss", "patience": 50}, 4, "epochs"),
        ({"stop": "loss"}, 4, "epochs"),
    ],
)
def test_stops(group2: synk.Group, options: dict[str, Any], epochs: int, reason: str) -> None:
    net = Net()
    run = fit(
        *net.given,
        (ROWS, LABELS),
        optimizer=ADAM,
        batch=10,
        epochs=4,
        validation=(ROWS, LABELS),
        metrics={"accuracy": metrics.accuracy(net.scores, net.y), "zero": 0 * (net.x**2).sum()},
        **options,
        progress=False,
    )
    assert len(run.history) == epochs
    assert reason in run.reason


class Fake:
    """A trainer as callbacks see it."""

    reason = ""

    def stop(self, reason: str) -> None:
        self.reason = reason

    def say(self, text: str) -> None:
        pass


def looks(callback: Any, values: list[float]) -> str:
    """What a callback says after these values."""
    trainer = Fake()
    for step, value in enumerate(values):
        callback.on_validated(Event("validated", trainer, step, step, {"val_loss": value}, 0.0))
        if trainer.reason:
            return f"{step}: {trainer.reason}"
    return ""


def test_early_stopping_counts() -> None:
    nan = float("nan")
    assert not looks(EarlyStopping("val_loss", 2), [3, 2, 2.5, 1, nan, 0.5])
    assert looks(EarlyStopping("val_loss", 2), [3, nan, nan]).startswith("2:")
    assert looks(EarlyStopping("val_loss", 2, by=1), [3, 2.5, 2.2]).startswith("2:")
    assert looks(EarlyStopping("val_loss", 1, smooth=True), [1, 0.5, 3, 0.1]).startswith("2:")
    assert looks(EarlyStopping("val_loss", 1, mode="max"), [1, 2, 1]).startswith("2:")
    first, second = EarlyStopping("val_loss", 3), EarlyStopping("val_loss", 3)
    looks(first, [1, 2, 2])
    second.restore(first.state())
    assert looks(second, [2]).startswith("0:")
    assert looks(Target("val_loss", 0.5), [1, 0.5]).startswith("1:")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: EarlyStopping("val_loss", 0), "EarlyStopping: patience=0"),
        (lambda: EarlyStopping(""), "not the name of a value"),
        (lambda: EarlyStopping("val_loss", mode="least"), "mode='least'"),
        (lambda: Best("val_loss", keep=True), "Best: keep=True"),
        (lambda: Plateau(0.1), "not a shared scalar"),
        (lambda: Plateau(pytensor.shared(0.1), factor=1), "factor=1"),
        (lambda: Plateau(pytensor.shared(0.1), patience=0), "Plateau: patience=0"),
    ],
)
def test_bad_callbacks(make: Any, text: str) -> None:
    with pytest.raises((synk.InputError, synk.InputTypeError), match=text):
        make()


def test_a_plateau_lowers_the_rate() -> None:
    rate = pytensor.shared(np.float32(1), name="rate")
    looks(Plateau(rate, "val_loss", factor=0.5, patience=2, least=0.2), [1, 1, 1, 1, 1])
    assert rate.get_value() == np.float32(0.25)
    looks(Plateau(rate, "val_loss", factor=0.5, patience=1, least=0.2), [1, 1, 1])
    assert rate.get_value() == np.float32(0.2)


def test_the_best_values_come_back(group2: synk.Group) -> None:
    """In memory; only after a normal end."""
    net, found = Net(), []

    def note(event: Event) -> None:
        if event.kind == "epoch":
            found.append((event.values["val_loss"], net.w.get_value()))

    fit(
        *net.given,
        (ROWS, LABELS),
        optimizer=functools.partial(updates.sgd, learning_rate=9.0),
        batch=10,
        epochs=4,
        validation=(ROWS, LABELS),
        callbacks=[Best("val_loss", restore=True), note],
        progress=False,
    )
    best = min(range(4), key=lambda i: found[i][0])
    assert best != 3
    np.testing.assert_array_equal(net.w.get_value(), found[best][1])


def test_nan_rows_are_named(group2: synk.Group, tmp_path: Any) -> None:
    """NonFinite: all values are those of before the step; the row, the rank, the file."""
    net = Net()
    rows = ROWS.copy()
    rows[77, 2] = np.nan
    seen = []

    def note(event: Event) -> None:
        if event.kind == "step":
            seen.append(net.w.get_value())

    with pytest.raises(synk.NonFinite, match=r"row 77 of the data \(rank [01]\)") as caught:
        fit(
            *net.given,
            (rows, LABELS),
            optimizer=ADAM,
            batch=20,
            epochs=1,
            folder=tmp_path / "run",
            callbacks=[note],
            progress=False,
        )
    assert caught.value.rows == [77]
    assert caught.value.step == len(seen)
    assert caught.value.epoch == 0
    assert " of epoch 1: the gradient" in str(caught.value), "as the printed line counts"
    np.testing.assert_array_equal(net.w.get_value(), seen[-1] if seen else np.zeros((6, 3)))
    with np.load(tmp_path / "run" / f"nonfinite-{len(seen)}.npz") as kept:
        np.testing.assert_array_equal(kept["input0"], rows[[77]])
        assert kept["rows"].tolist() == [77]


@pytest.mark.parametrize("at", [102, *thorough(45)])
def test_the_step_that_raised_is_made_again(group2: synk.Group, at: int) -> None:
    """After NonFinite a further fit begins with its batch: no row is left out or counts twice."""
    found = []
    for bad in (False, True):
        net = Net()
        rows = ROWS.copy()
        train = make_train_function(*net.given, None, guarded(ADAM))
        trainer = Trainer(train, progress=False)
        if bad:
            rows[Batches(103, 20).order(0)[at]] = np.nan
            with pytest.raises(synk.NonFinite):
                trainer.fit((rows, LABELS), batch=20, epochs=2)
            assert trainer.step == at // 20
        history = trainer.fit((ROWS, LABELS), batch=20, epochs=2)
        position = trainer.position
        counts = [history[c] for c in ("loss", "rows", "step")], position.all_rows, position.step
        found.append((net.w.get_value().tolist(), counts))
    assert found[0] == found[1]


@pytest.mark.parametrize("loads", [False, True])
def test_other_data_begin_the_epoch_anew(group2: synk.Group, loads: bool) -> None:
    """The rows and losses of the epoch that was broken off do not count in theirs."""
    net = Net()
    breaks = Losses(3)
    train = make_train_function(*net.given, None, ADAM)
    trainer = Trainer(train, callbacks=[breaks], progress=False)
    with pytest.raises(OSError, match="broken off"):
        trainer.fit((ROWS, LABELS), batch=20, epochs=1)
    assert (trainer.position.rows, trainer.epoch) == (60, 0)
    breaks.seen.clear()
    other = [ROWS[:50], LABELS[:50]]
    if loads:
        with Loader(other, Batches(50, 20)) as loader:
            history = trainer.fit(loader, epochs=1)
    else:
        history = trainer.fit(tuple(other), batch=20, epochs=1)
    assert history["rows"] == [50]
    loss = sum(loss * rows for loss, rows in breaks.seen) / 50
    assert history["loss"] == [pytest.approx(loss, rel=1e-12)]
    assert trainer.position.all_rows == 110


class Losses:
    """Keeps the losses of steps and their rows, and raises once, after a step."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.seen: list[tuple[float, int]] = []

    def on_step(self, event: Event) -> None:
        self.seen.append((event.values["loss"], event.values["rows"]))
        if event.step == self.at:
            raise OSError("broken off")


def test_steps_can_be_left_out(group2: synk.Group) -> None:
    """guard="skip": as without these batches, also for running means; six in a row end it."""
    net = Net()
    rows = ROWS.copy()
    rows[77, 2] = np.nan
    mean = pytensor.shared(np.zeros(6), name="mean")
    kept = [(mean, 0.9 * mean + 0.1 * net.x.mean(axis=0), "avg", "all")]
    run = fit(
        *net.given,
        (rows, LABELS),
        optimizer=ADAM,
        batch=20,
        epochs=2,
        guard="skip",
        updates=kept,
        progress=False,
    )
    assert run.history["skipped"] == [1, 2]
    other = Net()
    theirs = pytensor.shared(np.zeros(6), name="mean")
    new = [(theirs, 0.9 * theirs + 0.1 * other.x.mean(axis=0), "avg", "all")]
    train = make_train_function(
        other.loss, [other.w], [other.x, other.y], None, guarded(ADAM), updates=new
    )
    batches = Batches(103, 20)
    for _ in range(2):
        for batch in batches:
            if 77 not in batch:
                train(rows, LABELS, batch=batch)
    np.testing.assert_array_equal(net.w.get_value(), other.w.get_value())
    np.testing.assert_array_equal(mean.get_value(), theirs.get_value())
    rows[:] = np.nan
    with pytest.raises(synk.NonFinite, match="gradient"):
        fit(
            *Net().given,
            (rows, LABELS),
            optimizer=ADAM,
            batch=10,
            epochs=1,
            guard="skip",
            progress=False,
        )


def test_without_a_guard_the_loss_is_looked_at(group2: synk.Group) -> None:
    net = Net()
    rows = ROWS.copy()
    rows[77, 2] = np.nan
    with pytest.raises(synk.NonFinite, match="the loss is nan"):
        fit(
            *net.given,
            (rows, LABELS),
            optimizer=ADAM,
            batch=50,
            epochs=1,
            guard=None,
            progress=False,
        )


def test_strict_refuses_what_is_not_proved(group2: synk.Group) -> None:
    net = Net()
    spread = net.scores.std()
    options: dict[str, Any] = {"optimizer": ADAM, "batch": 50, "epochs": 1, "progress": False}
    whole = {**options, "validation": (ROWS, LABELS)}
    with pytest.raises(synk.InputError, match="no reduction over the rows"):
        fit(*net.given, (ROWS, LABELS), **whole, metrics={"spread": spread})
    with pytest.raises(synk.InputError, match="no reduction can be proved"):
        fit(net.loss + spread, *net.given[1:], (ROWS, LABELS), **options)
    assert (net.w.get_value() == 0).all()
    with pytest.warns(synk.ReductionWarning):
        fit(*net.given, (ROWS, LABELS), **whole, strict=False, metrics={"spread": spread})


def test_verify_finds_a_wrong_reduction(group2: synk.Group) -> None:
    """And says how near equal ones are."""
    net = Net()
    options: dict[str, Any] = {"optimizer": ADAM, "batch": 50, "epochs": 1, "progress": False}
    fit(*net.given, (ROWS, LABELS), **options, verify=2)
    net = Net()
    wrong = net.loss * net.x.shape[0] ** 0.5
    with (
        pytest.warns(synk.ReductionWarning),
        pytest.raises(synk.SynkhronosError, match="verify: the loss of step 1 differs"),
    ):
        fit(
            wrong,
            *net.given[1:],
            (ROWS, LABELS),
            **options,
            verify=2,
            reduction="avg",
            strict=False,
        )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"batch": None}, "give batch="),
        ({"member_batch": 3}, "rows of all members"),
        ({"epochs": 0}, "epochs=0"),
        ({"stop": "val_acc,5"}, 'target="val_acc >= 0.97"'),
        ({"patience": 3}, 'stop="val_loss"'),
        ({"target": "val_acc"}, "target='val_acc': give the name of a value and a number"),
        ({"resume": "auto"}, "needs the run's folder"),
        ({"guard": "no"}, "guard='no'"),
        ({"callbacks": [3]}, "not a function of an event"),
        ({"callbacks": Best("loss"), "trace": 1}, r"give a list of them, as in callbacks=\[mine\]"),
        ({"torn": "restore"}, "needs a folder"),
        ({"data": (ROWS,)}, "1 arrays for the inputs x, y"),
        ({"data": (ROWS, LABELS[:9])}, "x: 103, y: 9"),
        ({"data": (ROWS[:0], LABELS[:0])}, "no rows"),
        ({"data": (csr_array(ROWS), LABELS)}, "for x: it is a sparse matrix.*toarray"),
        ({"data": (ROWS, LABELS.astype(str))}, "for y: it is text, and not numbers"),
        ({"data": (ROWS.astype(object), LABELS)}, "for x: it holds objects"),
        ({"clip": 1.0}, r"clip=1.0: give a function .*total_norm_constraint, max_norm=1.0"),
        ({"optimizer": updates.sgd}, "the rule sgd: missing a required argument: 'learning_rate'"),
        ({"epoch": 3}, "did you mean epochs"),
        ({"verify": -1}, "verify=-1"),
        ({"lr": 0.1}, "did you mean optimizer"),
        ({"batch_size": 3}, "did you mean batch"),
        ({"optimizer": lambda rate=1e-3, decay=0.9: lambda loss, params: {}}, "makes a rule when"),
    ],
)
def test_bad_arguments(group2: synk.Group, change: dict[str, Any], text: str) -> None:
    net = Net()
    data = change.pop("data", (ROWS, LABELS))
    given = {"optimizer": ADAM, "batch": 10, "epochs": 1, "progress": False, **change}
    with pytest.raises((synk.InputError, synk.InputTypeError), match=text):
        fit(*net.given, data, **given)
    assert (net.w.get_value() == 0).all()


class LateRun:
    """A run that has used all rows when the master looks first, and has not ended yet."""

    rows, steps, loss = 40, 4, 0.25

    def __init__(self) -> None:
        self.looks = iter([False, True])

    def __enter__(self) -> LateRun:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def wait(self, seconds: float) -> bool:
        return next(self.looks)


def test_the_loss_of_members_that_end_between_two_looks() -> None:
    """It counts for all rows, also for those that were reported before."""
    feed = SimpleNamespace(begin=lambda: (), batches=None)
    position = Position()
    for report in RunEpochs().reports(lambda *data: LateRun(), feed):
        position.add(report.rows, report.steps, 0.0)
        position.add_loss(report.loss, report.counted)
    assert (position.rows, position.step, position.mean) == (40, 4, 0.25)


@pytest.mark.parametrize("rule", [rules.Average(period=4), rules.EASGD(period=4)])
def test_rules(group2: synk.Group, rule: Any) -> None:
    """The same fit; free rules take the rows of a member's step."""
    net = Net()
    free = not rule.meets
    run = fit(
        *net.given,
        (ROWS, LABELS),
        optimizer=ADAM,
        rule=rule,
        epochs=3,
        validation=(ROWS, LABELS),
        metrics={"accuracy": metrics.accuracy(net.scores, net.y)},
        progress=False,
        **({"member_batch": 10} if free else {"batch": 20}),
    )
    assert run.history["rows"] == [103] * 3
    assert run.history["val_accuracy"][-1] > 0.6
    assert run.history.repeatable is not free
    assert np.isfinite(run.history["loss"]).all()


def test_what_members_that_train_apart_show(
    group2: synk.Group,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """No loss before it is known, all seconds of each epoch, and a warning once."""
    monkeypatch.setattr(loop, "_RECORD_SECONDS", 0.0)
    monkeypatch.setattr(group2, "cores", [{0}, {0}])
    looks: list[float] = [time.perf_counter()]

    def look(event: Event) -> None:
        if event.kind == "epoch":
            looks.append(time.perf_counter())

    run = fit(
        *Net().given,
        (ROWS, LABELS),
        optimizer=ADAM,
        rule=rules.EASGD(period=4),
        member_batch=10,
        epochs=3,
        callbacks=[look],
        folder=tmp_path / "run",
    )
    assert run.history["epoch"] == [1, 2, 3]
    out = "".join(capfd.readouterr())
    assert re.findall(r"epoch (\d)/3:", out) == ["1", "2", "3"]
    assert "nan" not in out
    lines = read_metrics(tmp_path / "run")
    assert not [line for line in lines if np.isnan(line.get("loss", 0.0))]
    assert [line for line in lines if line["kind"] == "step"]
    for seconds, (before, after) in zip(run.history["seconds"], pairwise(looks), strict=True):
        assert 0 < seconds < after - before
    told = [r.getMessage() for r in caplog.records if "more members" in r.getMessage()]
    assert len(told) == 1


def test_the_first_epoch_contains_compiling(group2: synk.Group, tmp_path: Path) -> None:
    """Of the history, and of the record, whose phases are the same seconds."""
    net, looks = Net(), [0.0, 0.0]

    def look(event: Event) -> None:
        if event.kind == "step" and event.step == 1:
            looks[1] = time.perf_counter()

    looks[0] = time.perf_counter()
    run = fit(
        *net.given, (ROWS, LABELS), optimizer=ADAM, batch=20, epochs=2, callbacks=[look],
        folder=tmp_path / "run", progress=False,
    )  # fmt: skip
    first, second = (line for line in read_metrics(tmp_path / "run") if line["kind"] == "epoch")
    assert [first["seconds"], second["seconds"]] == run.history["seconds"]
    [compiling, other] = first["phases"]["compile"]
    assert 0 < compiling == other < first["seconds"]
    for times in zip(*first["phases"].values(), strict=True):
        assert sum(times) == pytest.approx(first["seconds"], rel=0.05, abs=1e-4)
    assert compiling < looks[1] - looks[0]
    assert "compile" not in second["phases"]


def test_members_that_train_apart_take_rows_from_memory(group2: synk.Group, tmp_path: Path) -> None:
    """Sources, Loaders and generators are refused before anything compiles or is written."""
    net = Net()
    np.save(tmp_path / "rows.npy", ROWS)
    source = sources.npy(tmp_path / "rows.npy")
    for data, text in (
        ((source, LABELS), r"each member takes batches by itself.*data.memory = true"),
        (Loader([ROWS, LABELS], Batches(103, 20)), "each member takes batches by itself"),
        (((row for row in ROWS), LABELS), "has no rows: give an array, Data, or a source"),
    ):
        given = {} if isinstance(data, Loader) else {"member_batch": 10}
        with pytest.raises(synk.SynkhronosError, match=text):
            fit(
                *net.given, data, optimizer=ADAM, rule=rules.EASGD(period=4), epochs=3,
                folder=tmp_path / "run", progress=False, **given
            )  # fmt: skip
        assert not (tmp_path / "run").exists()


def test_rows_of_sources(group2: synk.Group) -> None:
    """A source gives the same steps as the array; so does a Loader; metrics add up over batches."""

    class Source:
        shape, dtype = ROWS.shape, ROWS.dtype

        def __len__(self) -> int:
            return len(ROWS)

        def __getitem__(self, rows: Any) -> Any:
            return ROWS[rows]

    found = []
    source = (Source(), LABELS)
    for data, read in (
        ((ROWS, LABELS), "master"), (source, "master"), (source, "memory"), (None, "master")
    ):  # fmt: skip
        net = Net()
        given = data or Loader([ROWS, LABELS], Batches(103, 20))
        run = fit(
            *net.given,
            given,
            optimizer=ADAM,
            batch=20 if data else None,
            epochs=2,
            validation=data or (ROWS, LABELS),
            metrics={"f1": metrics.f1(net.scores, net.y, 3)},
            read=read,
            progress=False,
        )
        found.append((net.w.get_value(), run.history["val_loss"], run.history["val_f1"]))
    for other in found[1:]:
        for mine, theirs in zip(found[0], other, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-12)
    with pytest.raises(synk.InputError, match="'root' cannot be added up"):
        fit(
            *net.given,
            (Source(), LABELS),
            optimizer=ADAM,
            batch=20,
            epochs=1,
            validation=(Source(), LABELS),
            metrics={"root": (net.x**2).mean() ** 0.5},
            progress=False,
        )


class Counted:
    """A source that notes what is read of it."""

    shape, blocks = ROWS.shape, (50, 0, 53)

    def __init__(self, dtype: str = "float64", lost: tuple[int, ...] = ()) -> None:
        self.dtype, self.lost = np.dtype(dtype), lost
        self.reads: list[list[int]] = []

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, rows: Any) -> Any:
        self.reads.append(list(rows))
        if set(self.lost) & set(rows):
            error = synk.SourceError("row 60 is damaged")
            error.lost = self.lost
            raise error
        return ROWS[rows].astype(self.dtype)


def test_rows_of_a_source_are_read_once_into_memory(
    group2: synk.Group, caplog: pytest.LogCaptureFixture
) -> None:
    """By blocks; the weights are those of the array, bit by bit."""
    net, plain, free = Net(), Net(), Net()
    usual = {"optimizer": ADAM, "epochs": 3, "progress": False}
    source = Counted()
    with caplog.at_level("INFO", logger="synkhronos"):
        fit(*net.given, (source, LABELS), batch=20, read="memory", **usual)
    assert source.reads == [list(range(50)), list(range(50, 103))]
    assert "reads all 103 rows of x" in caplog.text
    fit(*plain.given, (ROWS, LABELS), batch=20, **usual)
    np.testing.assert_array_equal(net.w.get_value(), plain.w.get_value())
    given = {"rule": rules.EASGD(period=4), "member_batch": 10, "read": "memory"}
    assert fit(*free.given, (Counted(), LABELS), **given, **usual).step > 0


@pytest.mark.parametrize(
    ("data", "read", "error", "message"),
    [
        (Counted("complex128"), "memory", synk.InputTypeError, "x are complex128, and x takes"),
        (Counted(lost=(60,)), "memory", synk.SourceError, "row 60 is damaged"),
        (Counted(), "momory", synk.InputError, "read='momory'"),
        (None, "memory", synk.InputError, "a Loader reads batches"),
    ],
)
def test_rows_that_memory_cannot_hold(
    group2: synk.Group, data: Any, read: str, error: type[Exception], message: str
) -> None:
    """Nothing is trained."""
    net = Net()
    before = net.w.get_value()
    rows = (data, LABELS) if data is not None else Loader([ROWS, LABELS], Batches(103, 20))
    batch = None if data is None else 20
    with pytest.raises(error, match=message) as raised:
        fit(*net.given, rows, optimizer=ADAM, batch=batch, epochs=1, read=read, progress=False)
    assert ("leaves out no rows" in str(getattr(raised.value, "__notes__", ""))) == (
        error is synk.SourceError
    )
    np.testing.assert_array_equal(net.w.get_value(), before)


def test_tables_of_pandas_count_by_the_order_of_their_rows(group2: synk.Group) -> None:
    """A frame that was shuffled has labels of rows in another order; they mean nothing here."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    table = pandas.DataFrame(ROWS).assign(label=LABELS).sample(frac=1, random_state=0)
    x, y = table.drop(columns="label"), table["label"]
    arrays = x.to_numpy(), y.to_numpy()
    found = []
    for rows, labels in (arrays, (x, y), (arrays[0], y)):
        net = Net()
        run = fit(
            *net.given,
            (rows, labels),
            optimizer=ADAM,
            batch=20,
            epochs=2,
            validation=(rows, labels),
            metrics={"accuracy": metrics.accuracy(net.scores, net.y)},
            progress=False,
        )
        found.append((net.w.get_value(), run.history[-1]["val_accuracy"]))
        assert run.evaluate((rows, labels))["accuracy"] == found[0][1]
    for w, accuracy in found:
        np.testing.assert_array_equal(w, found[0][0])
        assert accuracy == found[0][1]


def test_tensors_are_arrays(group2: synk.Group) -> None:
    """As those of PyTorch, whose dtypes numpy does not know, and which take no array as index."""

    class Tensor:
        dtype, shape = "torch.float64", ROWS.shape

        def __len__(self) -> int:
            return len(ROWS)

        def __getitem__(self, rows: Any) -> Any:
            raise TypeError("only slices")

        def __dlpack__(self) -> Any:
            raise BufferError

        def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
            return ROWS

    net, plain = Net(), Net()
    usual: dict[str, Any] = {"optimizer": ADAM, "batch": 20, "epochs": 1, "progress": False}
    fit(*net.given, (Tensor(), LABELS), **usual)
    fit(*plain.given, (ROWS, LABELS), **usual)
    np.testing.assert_array_equal(net.w.get_value(), plain.w.get_value())


def test_data_sets_of_h5py(group2: synk.Group, tmp_path: Path) -> None:
    """They take rising rows only."""
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    net, plain = Net(), Net()
    usual: dict[str, Any] = {"optimizer": ADAM, "batch": 20, "epochs": 2, "progress": False}
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["x"], file["y"] = ROWS, LABELS
        data = file["x"], file["y"]
        run = fit(*net.given, data, validation=data, **usual)
    other = fit(*plain.given, (ROWS, LABELS), validation=(ROWS, LABELS), **usual)
    np.testing.assert_allclose(net.w.get_value(), plain.w.get_value(), rtol=1e-12)
    assert run.history["val_loss"] == pytest.approx(other.history["val_loss"], rel=1e-12)


def test_an_array_beside_a_source_gets_the_dtype_of_its_input(group2: synk.Group) -> None:
    """As arrays alone do; a Loader has the dtypes of its sources, which fit checks."""
    net, plain = Net(), Net()
    usual: dict[str, Any] = {"optimizer": ADAM, "epochs": 2, "progress": False}
    steps: dict[str, Any] = {"batch": 20, "shuffle": False, **usual}
    data = Counted(), LABELS.astype("uint8")
    fit(*net.given, data, validation=data, **steps)
    fit(*plain.given, (ROWS, LABELS), **steps)
    np.testing.assert_allclose(net.w.get_value(), plain.w.get_value(), rtol=1e-12)
    wide = LABELS.astype("int64")
    with pytest.raises(synk.InputTypeError, match=r"y is int64.*astype\("):
        fit(*net.given, (Counted(), wide), **steps)
    loader = Loader([ROWS, wide], Batches(103, 20))
    with pytest.raises(synk.InputTypeError, match="rows for y are int64, and y takes int32"):
        fit(*net.given, loader, **usual)
    with pytest.raises(synk.InputTypeError, match=r"validation: .* loader.sources"):
        fit(*net.given, data, validation=loader, **steps)


def test_sources_that_leave_out_all_rows(group2: synk.Group) -> None:
    """An error, in place of an epoch that begins again and again; the epoch is still to come."""
    net, gone = Net(), Counted(lost=tuple(range(103)))
    train = make_train_function(net.loss, [net.w], [net.x, net.y], None, ADAM)
    trainer = Trainer(train, metrics={"loss": net.loss}, progress=False)
    how: dict[str, Any] = {"batch": 20, "epochs": 1}
    with pytest.raises(synk.SourceError, match="no row of epoch 1 could be read"):
        trainer.fit((gone, LABELS), **how)
    assert (trainer.step, trainer.epoch) == (0, 0)
    with pytest.raises(synk.SourceError, match="no row of the validation could be read"):
        trainer.evaluate((gone, LABELS))
    trainer.fit((ROWS, LABELS), **how)
    other = Net()
    fit(*other.given, (ROWS, LABELS), optimizer=ADAM, guard=None, progress=False, **how)
    np.testing.assert_array_equal(net.w.get_value(), other.w.get_value())


def test_rows_in_blocks_are_shuffled_by_blocks(group2: synk.Group) -> None:
    """The order of Batches with the source's blocks; a failing read does not lose a batch."""
    reads: list[Any] = []

    class Stored:
        shape, dtype, blocks = ROWS.shape, ROWS.dtype, (50, 53)

        def __len__(self) -> int:
            return len(ROWS)

        def __getitem__(self, rows: Any) -> Any:
            reads.append(rows)
            if len(reads) == 4:
                raise OSError("unplugged")
            return ROWS[rows]

    net = Net()
    train = make_train_function(net.loss, [net.w], [net.x, net.y], None, ADAM)
    trainer = Trainer(train, progress=False)
    with pytest.raises(OSError, match="unplugged"):
        trainer.fit((Stored(), LABELS), batch=20, epochs=1)
    assert trainer.step < 6
    trainer.fit((Stored(), LABELS), batch=20, epochs=1)
    assert trainer.history["rows"] == [103]
    other = Net()
    step = make_train_function(other.loss, [other.w], [other.x, other.y], None, ADAM)
    for rows in Batches(103, 20, blocks=(50, 53)):
        step(ROWS, LABELS, batch=rows)
    np.testing.assert_array_equal(net.w.get_value(), other.w.get_value())


def test_what_is_shown(
    group2: synk.Group,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO)
    net = Net()
    monkeypatch.setattr(progress, "SOON", 0.0)  # every compilation takes longer
    fit(*net.given, (ROWS, LABELS), optimizer=ADAM, batch=20, epochs=1)
    out = "".join(capfd.readouterr())
    assert "18 weights" in out
    assert "2 members" in out
    assert "batch 20 of 103 rows" in out
    assert "compiling train took " in out
    assert "epoch 1/1: loss " in out
    assert "ended after 6 steps: epochs" in out


def test_rates_leave_out_what_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the first line of rows in a second, and the time that is left, are those of training."""
    shown = progress.Progress(None, None, None, epochs=1, enabled=False)
    before = shown.console._clock()
    monkeypatch.setattr(progress, "spent", lambda: 1e6)
    assert shown.console._clock() < before


def test_validation_is_no_time_between_steps(
    group2: synk.Group, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor are callbacks at epochs, and the time between two runs."""
    net = Net()
    told: list[list[float]] = []  # of each run: seconds between its steps, all and those shown
    report = Progress._report

    def watched(progress: Progress) -> Any:
        whole = progress._train.report()
        with monkeypatch.context() as patch:
            patch.setattr(progress._train, "report", lambda: whole)
            found = report(progress)
        told.append([r.seconds["between"][0] * whole.calls for r in (whole, found)])
        return found

    monkeypatch.setattr(Progress, "_report", watched)

    def pause(event: Event) -> None:
        if event.kind == "epoch":
            time.sleep(0.5)

    options: dict[str, Any] = {"batch": 60, "epochs": 2}
    run = fit(*net.given, (ROWS, LABELS), optimizer=ADAM, callbacks=[pause], **options)
    time.sleep(1.0)
    run.fit((ROWS, LABELS), **{**options, "epochs": 4})
    assert len(re.findall(r"between steps \d+ %", "".join(capfd.readouterr()))) == 2
    assert len(told) == 2
    for whole, shown in told:
        assert whole - shown >= 0.5  # after an epoch
        assert shown < 1.0


def test_a_signal_is_told_of(
    group2: synk.Group, tmp_path: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    def end(event: Event) -> None:
        if event.kind == "step" and event.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    options: dict[str, Any] = {"optimizer": ADAM, "batch": 50, "epochs": 2, "callbacks": [end]}
    with pytest.raises(SystemExit):
        fit(*Net().given, (ROWS, LABELS), folder=tmp_path / "run", **options)
    out = "".join(capfd.readouterr())
    assert "SIGTERM: the run ends after this step" in out
    assert 'step 2 is saved: resume="auto" goes on from it' in out


def test_a_run_that_has_ended_says_so(
    group2: synk.Group, capfd: pytest.CaptureFixture[str]
) -> None:
    net = Net()
    run = fit(*net.given, (ROWS, LABELS), optimizer=ADAM, batch=50, epochs=2)
    capfd.readouterr()
    run.fit((ROWS, LABELS), batch=50, epochs=2)
    out = "".join(capfd.readouterr())
    assert "ended after 6 steps: epochs; 2 epochs were made before, and epochs= counts them" in out
    assert len(run.history) == 2


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a name of no value": (
        {"target": "val_acc >= 0.9"},
        "no value 'val_acc'; there are loss.*val_los",
    ),
    "no validation": (
        {"callbacks": [Best("val_loss")], "validation": None},
        "there are loss, rows, seconds; validation= gives others",
    ),
    "a class": ({"callbacks": [EarlyStopping]}, "is a class"),
    "a function": ({"callbacks": print}, "give a list of them"),
    "metrics without names": ({"metrics": [pt.dscalar()]}, "give a dict of names"),
}


@pytest.mark.parametrize("which", WRONG)
def test_mistakes_are_found_before_the_first_step(group2: synk.Group, which: str) -> None:
    options, message = WRONG[which]
    net = Net()
    whole = {"epochs": 1, "validation": (ROWS, LABELS), "progress": False, **options}
    with pytest.raises((synk.InputError, synk.InputTypeError), match=message):
        fit(*net.given, (ROWS, LABELS), optimizer=ADAM, batch=50, **whole)
    assert (net.w.get_value() == 0).all()


def test_labels_of_another_dtype(group2: synk.Group) -> None:
    net = Net()
    with pytest.raises(synk.InputTypeError, match=r'array for y is int64.*astype\("int32"\)'):
        fit(
            *net.given,
            (ROWS, LABELS.astype("int64")),
            optimizer=ADAM,
            batch=50,
            epochs=1,
            progress=False,
        )


def test_a_metric_of_sums() -> None:
    with pytest.raises(synk.InputTypeError, match="list of variables"):
        Metric(3, print)  # type: ignore[arg-type]
    with pytest.raises(synk.InputTypeError, match="at least one sum"):
        Metric([], print)


def test_a_step_left_out_keeps_what_callbacks_have_set(group2: synk.Group) -> None:
    """Such as a rate; only what the step itself has changed is taken back."""
    net = Net()
    rows = ROWS.copy()
    rows[list(Batches(103, 20))[3][0]] = np.nan  # in the fourth batch
    rate = pytensor.shared(0.05, name="rate")

    def lower(event: Event) -> None:
        if event.kind == "step" and event.step == 3:
            rate.set_value(0.01)

    run = fit(
        *net.given,
        (rows, LABELS),
        optimizer=functools.partial(updates.adam, learning_rate=rate),
        batch=20,
        epochs=1,
        guard="skip",
        callbacks=[lower],
        progress=False,
    )
    assert run.history["skipped"] == [1]
    assert rate.get_value() == 0.01


@pytest.mark.parametrize(
    ("rule", "how", "text"),
    [
        (rules.EASGD(period=4), {"ema": 0.9, "member_batch": 10}, "averages"),
        (rules.Average(period=4, state="reset"), {"ema": 0.9, "batch": 20}, "averages"),
        (rules.Average(period=4), {"guard": "skip", "batch": 20}, "guard="),
    ],
)
def test_what_needs_members_together(
    group2: synk.Group, rule: Any, how: dict[str, Any], text: str
) -> None:
    net = Net()
    with pytest.raises(synk.InputError, match=text):
        fit(*net.given, (ROWS, LABELS), optimizer=ADAM, rule=rule, epochs=1, progress=False, **how)
