"""Every rule through `fit`, a config and `synk train`: validation, checkpoints, resume, trace."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from configs import place as place
from modes import FAST
from selection import thorough

import synkhronos as synk
from synkhronos import rules
from synkhronos.cli._command_line import main
from synkhronos.extensions import updates
from synkhronos.extensions._apart.rounds.function import RoundFunction
from synkhronos.training import Event, config, fit, read_metrics
from synkhronos.training._run.loop import Loop
from synkhronos.training.configured import train

pytestmark = pytest.mark.usefixtures("lasting_groups")

SGD = functools.partial(updates.sgd, learning_rate=0.05)
# by the words of a config: the rule
RULES: dict[str, rules.Rule] = {
    '"Average"': rules.Average(),
    '{ name = "SlowMo", period = 2 }': rules.SlowMo(2),
    '{ name = "DiLoCo", period = 2 }': rules.DiLoCo(2),
    '{ name = "Swap", period = 2 }': rules.Swap(2),
    '{ name = "EASGD", period = 2 }': rules.EASGD(2),
    '{ name = "EASGD", period = 2, meet = true }': rules.EASGD(2, meet=True),
    '"Downpour"': rules.Downpour(),
    '{ name = "Downpour", centre = { name = "sgd", rate = 0.05 } }': rules.Downpour(centre=SGD),
    '"GEM"': rules.GEM(),
    '"GoSGD"': rules.GoSGD(),
    '"Hogwild"': rules.Hogwild(),
    '{ name = "Nodes", between = { name = "Average", period = 2 } }': rules.Nodes(
        None, rules.Average(2)
    ),
    '{ name = "Nodes", inside = "EASGD", between = { name = "DiLoCo", period = 2 } }': rules.Nodes(
        rules.EASGD(), rules.DiLoCo(2)
    ),
}
CONFIGURED = [words for words in RULES if "meet" in words or "inside" in words]
OTHERS = [words for words in RULES if words not in CONFIGURED]
BASES = {"Rule", "RoundRule", "FreeRule", "TurnRule"}
# one of each kind: rounds, turns, messages, no turns, nodes
TYPICAL = ('"Average"', '"Downpour"', '"GoSGD"', '"Hogwild"', [*RULES][-1])
EACH = pytest.mark.parametrize(
    "words",
    [
        pytest.param(w, id=str(rule), marks=[] if w in TYPICAL else [pytest.mark.thorough])
        for w, rule in RULES.items()
    ],
)
DRAWN = np.random.default_rng(0)
X = DRAWN.normal(size=(61, 3))
Y = X @ [1.0, 2.0, 3.0]


def test_no_rule_is_left_out() -> None:
    assert {type(rule).__name__ for rule in RULES.values()} == set(rules.__all__) - BASES


def fitted(rule: rules.Rule, epochs: int, **options: Any) -> Any:
    """A run of `fit` on a line."""
    x, y = pt.dmatrix("x"), pt.dvector("y")
    w = pytensor.shared(np.zeros(3), name="w")
    size = {"batch": 20} if rule.meets else {"member_batch": 10}
    return fit(
        ((x @ w - y) ** 2).mean(),
        [w],
        [x, y],
        (X, Y),
        optimizer=SGD,
        rule=rule,
        epochs=epochs,
        validation=(X[:9], Y[:9]),
        mode=FAST,
        progress=False,
        **size,
        **options,
    )


@EACH
def test_fit(words: str, group2: synk.Group, tmp_path: Path) -> None:
    """Validated in each epoch, saved, and gone on with.

    The master collects the spans of a trace between two steps, and there is no such moment where
    each member steps alone.
    """
    rule, folder = RULES[words], tmp_path / "run"
    if not rule.meets:
        with pytest.raises(synk.InputError, match="members step without the master"):
            fitted(rule, 1, folder=folder, trace=2)
        assert not folder.exists()
    first = fitted(rule, 1, folder=folder, trace=2 if rule.meets else 0)
    assert (folder / "trace.bin").exists() == rule.meets
    again = fitted(rule, 3, folder=folder, resume="auto")
    assert again.history["epoch"] == [1, 2, 3]
    losses = again.history["val_loss"]
    assert losses[0] == first.history["val_loss"][0]
    assert losses[-1] < losses[0]
    assert len(list(folder.glob("ckpt/step-*"))) == 3
    assert [line["epoch"] for line in read_metrics(folder) if line["kind"] == "epoch"] == [0, 1, 2]


def test_back_to_a_checkpoint_after_a_torn_meeting(
    group2: synk.Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the members that train apart, at the end of an epoch: as after a step."""
    settle, calls = RoundFunction.settle, [0]

    def fails(train: RoundFunction) -> None:
        settle(train)
        calls[0] += 1
        if calls[0] == 3:  # an epoch settles at its end, and before it is saved
            raise synk.StateTorn("half written")

    unbroken = fitted(rules.Average(), 2).history["val_loss"]
    monkeypatch.setattr(RoundFunction, "settle", fails)
    monkeypatch.setattr(Loop, "_is_torn", lambda self: True)
    run = fitted(rules.Average(), 2, folder=tmp_path / "run", torn="restore")
    assert calls[0] > 4
    assert run.history["val_loss"] == unbroken


def test_what_a_restored_history_says(
    group2: synk.Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After torn values the rows are those of a checkpoint, and another run gives others still."""
    torn: list[int] = []

    def breaks(event: Event) -> None:
        if event.kind == "step" and event.epoch == 1 and not torn:
            torn.append(event.step)
            raise synk.StateTorn("half written")

    monkeypatch.setattr(Loop, "_is_torn", lambda self: True)
    run = fitted(rules.EASGD(2), 2, folder=tmp_path / "run", torn="restore", callbacks=[breaks])
    assert torn
    assert run.history["epoch"] == [1, 2]
    assert not run.history.repeatable


def written(place: Path, words: str) -> Path:
    """The config of the folder with this rule, and with the size of its batch."""
    text = (place / "config.toml").read_text()
    size = "batch = 20" if RULES[words].meets else "member_batch = 10"
    changed = text.replace("batch = 20", f'{size}\nrule = {words}\nfolder = "run"')
    (place / "rule.toml").write_text(changed.replace("[data]", "[data]\nmemory = true"))
    return place / "rule.toml"


@pytest.mark.parametrize("words", [*CONFIGURED, *thorough(*OTHERS)], ids=str)
def test_synk_train(
    words: str, place: Path, group2: synk.Group, capsys: pytest.CaptureFixture[str]
) -> None:
    """A config names the rule; the second command goes on where the first one has ended."""
    file = written(place, words)
    for epochs in (1, 2):
        code = main(["train", str(file), f"epochs={epochs}", "resume=auto"])
        assert code == 0, capsys.readouterr().err
    lines = read_metrics(place / "run")
    assert [line["step"] > 0 for line in lines if line["kind"] == "epoch"] == [True, True]
    assert [line["kind"] for line in lines].count("resumed") == 2
    assert len(list((place / "run").glob("ckpt/step-*"))) == 2


@pytest.mark.parametrize("words", thorough(*RULES))
def test_configured_train(words: str, place: Path, group2: synk.Group) -> None:
    run = train(config.read(written(place, words)))
    assert run.history["epoch"] == [1, 2, 3]
    assert np.isfinite(run.history["val_loss"]).all()
