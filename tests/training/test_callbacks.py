"""Callbacks of runs: whose state and whose checkpoints are whose; which values are better."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from modes import FAST
from selection import thorough

import synkhronos as synk
from synkhronos.extensions import make_train_function, updates
from synkhronos.training import (
    Best,
    EarlyStopping,
    Event,
    Metric,
    Net,
    Plateau,
    Target,
    Trainer,
    fit,
    metrics,
    read_metrics,
)
from synkhronos.training._directions import usual_mode

pytestmark = pytest.mark.usefixtures("lasting_groups")

ROWS = np.random.default_rng(0).normal(size=(40, 2))
TARGETS = ROWS @ [1.0, 2.0]
DATA = ROWS, TARGETS


@pytest.fixture(autouse=True)
def _no_compiler() -> Iterator[None]:
    with pytensor.config.change_flags(mode=FAST):
        yield


def line() -> Net:
    x, y, w = pt.dmatrix("x"), pt.dvector("y"), pytensor.shared(np.zeros(2), name="w")
    return Net(loss=((x @ w - y) ** 2).mean(), params=[w], inputs=[x, y])


def trained(net: Net | None = None, rate: float = 0.1, **options: Any) -> Trainer:
    """A run of 3 epochs of 2 steps, in which the validated loss falls at each."""
    sgd = functools.partial(updates.sgd, learning_rate=rate)
    given: dict[str, Any] = {"batch": 20, "epochs": 3, "validation": DATA, "progress": False}
    return fit(net or line(), DATA, optimizer=sgd, **{**given, **options})


def trainer_of(net: Net, **options: Any) -> Trainer:
    train = make_train_function(net.loss, net.params, net.inputs, None, updates.sgd, 0.1)
    return Trainer(train, metrics={"loss": net.loss}, progress=False, **options)


def far(net: Net) -> dict[str, object]:
    """A metric that is highest at the begin."""
    [w] = net.params
    return {"far": (-(w**2).sum() + 0 * net.loss, "avg")}


def steps_in(folder: Path) -> list[int]:
    return sorted(int(place.name[5:]) for place in folder.iterdir())


# Folders of the best checkpoints.


def test_each_keeps_its_own_checkpoints(group2: synk.Group, tmp_path: Path) -> None:
    """Two in a run, also after a restart in the other order, and one that is taken away."""
    net = line()
    low, high = Best("val_loss", restore=False), Best("val_far", mode="max", restore=True)
    trained(net, metrics=far(net), callbacks=[low, high], folder=tmp_path)
    assert ([s for _, s in low.kept], [s for _, s in high.kept]) == ([6], [2])
    for best in (low, high):
        assert best.path is not None
        assert best.path.exists()
    folders = [tmp_path / "best", tmp_path / "best-highest-val_far"]
    assert [steps_in(folder) for folder in folders] == [[6], [2]]
    options = {"metrics": far(net), "folder": tmp_path, "resume": "auto"}
    again = [Best("val_far", mode="max"), Best("val_loss", keep=2)]
    trained(net, callbacks=again, epochs=4, **options)
    assert [[s for _, s in best.kept] for best in again] == [[2], [8, 6]]
    trained(net, callbacks=[Best("val_far", mode="max")], epochs=5, **options)
    assert [steps_in(folder) for folder in folders] == [[6, 8], [2]]


def test_checkpoints_of_an_earlier_try_are_kept(
    group2: synk.Group, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that goes back to an earlier step, and gets worse there."""
    options: dict[str, Any] = {"folder": tmp_path, "keep": None}
    trained(callbacks=[Best(restore=True)], **options)
    best, net = Best(restore=True), line()
    with caplog.at_level(logging.WARNING, "synkhronos"):
        run = trained(net, rate=2.0, callbacks=[best], resume=2, **options)
    assert "checkpoints of steps after 2, which count: 6" in caplog.text
    assert [step for _, step in best.kept] == [6]
    assert run.evaluate(DATA)["loss"] == best.kept[0][0] < min(run.history["val_loss"])


def test_others_in_the_folder_are_left_alone(group2: synk.Group, tmp_path: Path) -> None:
    """Of a user, and of the direction that is not its own."""
    net = line()
    others = tmp_path / "best"
    trainer = trainer_of(net, folder=tmp_path / "other")
    trainer.fit(DATA, batch=20, epochs=1)
    saved = trainer.checkpoints_in("own")
    assert saved is not None
    saved.save(1, note="mine")
    (tmp_path / "other" / "own").rename(others)
    best = Best()
    trained(net, callbacks=[best], folder=tmp_path)
    assert steps_in(others) == [1]
    assert steps_in(tmp_path / "best-lowest-val_loss") == [6]
    both = [Best(mode="max"), Best(mode="min")]
    trained(net, callbacks=both, folder=tmp_path, resume="auto", epochs=4)
    assert [[s for _, s in each.kept] for each in both] == [[8], [8]]
    assert (tmp_path / "best-highest-val_loss" / "step-00000008").exists()


# One run.


def test_another_run_begins_anew(group2: synk.Group, tmp_path: Path) -> None:
    """One list for several folds; in memory, and with folders."""
    rate = pytensor.shared(0.1, name="rate")
    folds = [(ROWS, scale * TARGETS) for scale in (1.0, 10.0)]
    lone = [trained(validation=data).history["val_loss"] for data in folds]
    for place in (None, tmp_path):
        shared = [Best(restore=True), EarlyStopping(patience=2), Plateau(rate, patience=2)]
        for fold, data in enumerate(folds):
            folder = None if place is None else place / str(fold)
            run = trained(callbacks=shared, validation=data, folder=folder)
            assert run.history["val_loss"] == lone[fold]
            assert shared[0].kept[0][0] == min(run.history["val_loss"])
            assert run.evaluate(data)["loss"] == shared[0].kept[0][0]


def test_it_does_not_come_back(group2: synk.Group) -> None:
    """Two runs that take turns would mix their values."""
    stop = EarlyStopping()
    one, two = (trainer_of(line(), callbacks=[stop]) for _ in range(2))
    for trainer in (one, two):
        trainer.fit(DATA, batch=20, epochs=1, validation=DATA)
    with pytest.raises(synk.InputError, match="another run has used it since"):
        one.fit(DATA, batch=20, epochs=2, validation=DATA)
    two.fit(DATA, batch=20, epochs=2, validation=DATA)


def test_listed_twice(group2: synk.Group) -> None:
    stop = EarlyStopping()
    with pytest.raises(synk.InputError, match="of val_loss, min> is listed twice"):
        trained(callbacks=[stop], stop=stop)


def test_a_state_has_its_metric(
    group2: synk.Group, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The order of the list means nothing, and a mismatch is told."""
    seen: list[tuple[float, ...]] = []

    def first(*given: Any) -> Any:
        def note(event: Event) -> None:
            if event.kind == "step" and event.step == 7:
                seen.append(tuple(each.best for each in given))

        return note

    val, loss = EarlyStopping("val_loss", 9), EarlyStopping("loss", 9)
    run = trained(callbacks=[val, loss], folder=tmp_path)
    best = run.history["val_loss"][-1], run.history["loss"][-1]
    swapped = EarlyStopping("loss", 7), EarlyStopping("val_loss", 7)
    options: dict[str, Any] = {"folder": tmp_path, "resume": 6, "epochs": 4}
    trained(callbacks=[*swapped, first(swapped[1], swapped[0])], **options)
    assert seen.pop() == best
    assert not caplog.text
    other = EarlyStopping("val_loss", 9, "max")
    with caplog.at_level(logging.WARNING, "synkhronos"):
        trained(callbacks=[other, first(other)], **options)
    assert seen.pop() == (-np.inf,)
    assert "EarlyStopping: val_loss max has no state in the checkpoint" in caplog.text
    assert "has a state of EarlyStopping: loss min, which this run lacks" in caplog.text


class Counts:
    """A callback with a state and a key of its own."""

    def __init__(self, state_key: str) -> None:
        self.state_key = state_key
        self.epochs = 0

    def on_epoch(self, event: Event) -> None:
        self.epochs += 1

    def state(self) -> dict[str, int]:
        return {"epochs": self.epochs}

    def restore(self, state: dict[str, int]) -> None:
        self.epochs = state["epochs"]

    def why_ended(self) -> str:
        return "enough" if self.state_key == "b" and self.epochs > 3 else ""


def test_a_key_of_its_own(group2: synk.Group, tmp_path: Path) -> None:
    trained(callbacks=[Counts("a")], folder=tmp_path)
    both = [Counts("b"), Counts("a")]
    trained(callbacks=both, folder=tmp_path, resume="auto", epochs=5)
    assert [each.epochs for each in both] == [2, 5]
    run = trained(callbacks=[Counts("b")], folder=tmp_path, resume="auto", epochs=9)
    assert len(run.history) == 9  # asked at the start only
    run = trained(callbacks=[Counts("b")], folder=tmp_path, resume="auto", epochs=99)
    assert (len(run.history), run.reason) == (9, "enough")


# Ends.


@pytest.mark.parametrize("how", ["stop", "target"])
def test_a_run_that_has_ended_stays_ended(group2: synk.Group, tmp_path: Path, how: str) -> None:
    """After restarts, and in a further fit; more patience, or another target, lets it go on."""
    ends: dict[str, Any] = {
        "stop": [EarlyStopping("val_loss", n, "max") for n in (1, 3)],
        "target": [Target("val_loss", value) for value in (4.0, 0.0)],
    }
    reasons = []
    for _ in range(3):
        run = trained(epochs=99, folder=tmp_path, resume="auto", **{how: ends[how][0]})
        run.fit(DATA, batch=20, epochs=99, validation=DATA)
        assert run.completed
        reasons.append((run.reason, len(run.history), run.step))
    assert len(set(reasons)) == 1
    run = trained(epochs=5, folder=tmp_path, resume="auto", **{how: ends[how][1]})
    assert len(run.history) > reasons[0][1]


@pytest.mark.parametrize("kind", ["epoch", "validated", *thorough("step", "saved")])
def test_an_epoch_ends_once(group2: synk.Group, tmp_path: Path, kind: str) -> None:
    """After an exception of a callback; each of the others is told once, later ones too."""
    told: dict[str, list[tuple[str, int]]] = {"before": [], "after": []}
    failing = [True]

    def note(which: str) -> Any:
        return lambda e: told[which].append((e.kind, e.step)) if e.kind not in ENDS else None

    def fail(event: Event) -> None:
        if event.kind == kind and event.step == 4 and failing:
            failing.clear()
            raise OSError("no space for a picture")

    stop = EarlyStopping(patience=50)
    trainer = trainer_of(
        line(), callbacks=[note("before"), fail, stop, note("after")], folder=tmp_path
    )
    with pytest.raises(OSError, match="no space"):
        trainer.fit(DATA, batch=20, epochs=2, validation=DATA)
    trainer.fit(DATA, batch=20, epochs=2, validation=DATA)
    assert trainer.checkpoints_in("ckpt").steps() == [2, 4]  # type: ignore[union-attr]
    trainer.fit(DATA, batch=20, epochs=3, validation=DATA)
    assert trainer.history["epoch"] == [1, 2, 3]
    wanted = [k for k in ("validated", "epoch") for _ in range(3)]
    for seen in told.values():
        assert sorted(k for k, _ in seen if k in wanted) == sorted(wanted)
        assert [s for k, s in seen if k == "step"] == [1, 2, 3, 4, 5, 6]
    lines = [line["kind"] for line in read_metrics(tmp_path)]
    assert (lines.count("epoch"), lines.count("validated"), stop.waited) == (3, 3, 0)


ENDS = ("start", "end")


def test_all_are_told_of_the_end(group2: synk.Group) -> None:
    """Also if one of them raises there."""
    ends: list[str] = []

    def fail(event: Event) -> None:
        if event.kind == "end":
            raise OSError("at the end")

    with pytest.raises(OSError, match="at the end"):
        trained(callbacks=[fail, lambda event: ends.append(event.kind)])
    assert ends[-1] == "end"


# Directions.


@pytest.mark.parametrize(
    "name",
    [
        *("perplexity", "nll", "kl", "mape", "msle", "cross_entropy", "brier", "deviance", "wer"),
        *("cer", "fid", "ppl", "fpr", "cost", "distance", "hamming", "logloss", "auc", "elbo"),
        *("neg_log_loss", "neg_mean_squared_error"),
    ],
)
def test_no_direction_is_guessed(name: str) -> None:
    assert usual_mode(f"val_{name}") is None
    assert EarlyStopping(f"val_{name}").mode is None


@pytest.mark.parametrize("make", [EarlyStopping, Best, lambda m: Target(m, 3.0)])
def test_an_unknown_direction_is_refused(group2: synk.Group, tmp_path: Path, make: Any) -> None:
    """Before the first step and before the folder is made; by a Metric or a word it is known."""
    net, seen = line(), list[Any]()
    exp = {"perplexity": pt.exp(net.loss)}
    with pytest.raises(synk.InputError, match=r'lower or higher.*val_perplexity.*mode="min"'):
        trained(net, callbacks=[make("val_perplexity")], metrics=exp, folder=tmp_path / "a")
    assert not (tmp_path / "a").exists()
    assert (net.params[0].get_value() == 0).all()
    (x, y), [w] = net.inputs, net.params
    sums = [abs(x @ w - y).sum(), pt.ones_like(y).sum()]
    own = {"perplexity": Metric(sums, _ratio, "min")}
    watch = make("val_perplexity")
    trained(net, callbacks=[watch, seen.append], metrics=own, epochs=1)
    assert watch.mode == "min"
    assert seen[0].values["modes"] == {
        **{"loss": "min", "rows": None, "seconds": None},
        **{"val_loss": "min", "val_perplexity": "min"},
    }


def _ratio(total: Any, n: Any) -> Any:
    return total / n


def test_metrics_know_their_directions() -> None:
    scores, labels, a, b = pt.matrix(), pt.ivector(), pt.vector(), pt.vector()
    made = {
        "max": [
            metrics.accuracy(scores, labels),
            metrics.top_k(scores, labels, 2),
            metrics.f1(scores, labels, 3),
            metrics.r2(a, b),
        ],
        "min": [metrics.mse(a, b), metrics.rmse(a, b), metrics.mae(a, b)],
        None: [metrics.confusion(scores, labels, 3), metrics.f1(scores, labels, 3, None)],
    }
    for mode, found in made.items():
        assert {metric.mode for metric in found} == {mode}
    with pytest.raises(synk.InputError, match="mode='up'"):
        Metric([a.sum()], _ratio, "up")  # type: ignore[arg-type]


def test_the_start_says_what_is_better(
    group2: synk.Group, capfd: pytest.CaptureFixture[str]
) -> None:
    net = line()
    stop = EarlyStopping("val_far", mode="max")
    trained(net, metrics=far(net), callbacks=[Best(), stop], epochs=1, progress=True)
    out = "".join(capfd.readouterr())
    assert "val_loss: lower is better, val_far: higher is better\n" in out


@pytest.mark.parametrize("by", [float("nan"), -0.1, "much"])
def test_how_much_better(by: Any) -> None:
    with pytest.raises((synk.InputError, synk.InputTypeError), match="EarlyStopping: by="):
        EarlyStopping(by=by)


def test_a_step_without_a_checkpoint(group2: synk.Group, tmp_path: Path) -> None:
    """The message is about fit's argument, and the folder is as before."""
    with pytest.raises(synk.InputError, match=r"resume=9: .*; there is none"):
        trained(folder=tmp_path / "a", resume=9)
    assert not (tmp_path / "a").exists()
    trained(folder=tmp_path, keep=2)
    starts = (tmp_path / "run.json").read_bytes()
    with pytest.raises(synk.InputError, match=r"fit: resume=99: .* there are those of 4, 6: give"):
        trained(folder=tmp_path, resume=99)
    assert (tmp_path / "run.json").read_bytes() == starts


@pytest.mark.parametrize("folder", [False, True])
def test_a_line_of_the_record_has_its_own_step(
    group2: synk.Group, tmp_path: Path, folder: bool
) -> None:
    """It is said with a folder and without one; other names are kept."""

    def note(event: Event) -> None:
        if event.kind == "epoch":
            event.trainer.record("rate", rate=0.1)
            with pytest.raises(synk.InputError, match="record: each line has its own 'step'"):
                event.trainer.record("rate", step=event.step, rate=0.1)

    trained(callbacks=[note], folder=tmp_path if folder else None, epochs=1)
    if folder:
        [line] = [line for line in read_metrics(tmp_path) if line["kind"] == "rate"]
        assert (line["step"], line["epoch"], line["rate"]) == (2, 0, 0.1)
