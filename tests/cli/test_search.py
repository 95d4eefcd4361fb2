"""`synk search`: what it draws, what it prints, the config that it writes; and wrong lines."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import optuna
import pytest
from configs import place as place
from user_scripts import LIMIT

import synkhronos as synk
from synkhronos.cli import _command_line as command_line
from synkhronos.search import open_study
from synkhronos.search._spaces import Space, override
from synkhronos.training import config as configs

pytestmark = pytest.mark.timeout(LIMIT)
Captured = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("text", "space"),
    [
        ("epochs~3..10", Space("epochs", low=3, high=10)),
        ("a.b ~ 16..128:16", Space("a.b", low=16, high=128, step=16)),
        ("rate~log:1e-4..1e-1", Space("rate", low=1e-4, high=0.1, log=True)),
        ("rate~-0.5..1", Space("rate", low=-0.5, high=1)),
        ("rate~.5..2.:.5", Space("rate", low=0.5, high=2.0, step=0.5)),
        ("n~log:1..64", Space("n", low=1, high=64, log=True)),
        ("batch~32,64", Space("batch", (32, 64))),
        ('o~adam, "sgd",true,0.1', Space("o", ("adam", "sgd", True, 0.1))),
    ],
)
def test_spaces(text: str, space: Space) -> None:
    found = Space.of(text)
    assert found == space
    study = optuna.create_study()
    drawn = [found.drawn(study.ask()) for _ in range(9)]
    if space.choices:
        assert set(drawn) <= set(space.choices)
    else:
        assert all(space.low <= value <= space.high for value in drawn)
        whole = isinstance(space.low, int) and isinstance(space.high, int)
        assert {type(value) for value in drawn} == {int if whole else float}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs", "give a range"),
        ("~1..2", "give a range"),
        ("epochs~", "give a range"),
        ("epochs~3..", "give a range"),
        ("epochs~a..b", "give a range"),
        ("epochs~1.2.3..4", "'1.2.3' is not a number"),
        ("epochs~5..3", "the range is empty"),
        ("epochs~1..3:9", "the range is empty"),
        ("epochs~1..3:0.5", "integers need a step that is one"),
        ("rate~log:0..1", "log: is for a range above 0"),
        ("rate~log:1..9:2", "without a step"),
        ("batch~1,,2", "'' is not a number"),
        ("batch~[1]", "is not a number"),
    ],
)
def test_wrong_spaces(text: str, message: str) -> None:
    with pytest.raises(synk.InputError, match=re.escape(message)):
        Space.of(text)


@pytest.mark.parametrize("value", ["a b", "\U0001f600", '\u00e9\\"\x7f\n', 0.1, 3, True])
def test_values_that_are_drawn_reach_the_config(value: object) -> None:
    key, _, text = override("key", value).partition("=")
    assert key == "key"
    assert tomllib.loads(f"value = {text}") == {"value": value}


LINE = ["search", "config.toml", "mode=FAST_COMPILE", "-n", "2"]


@pytest.mark.slow
def test_a_search_is_resumed_and_its_best_is_a_config(place: Path, capsys: Captured) -> None:
    """The line is the same; the best config trains to the value that the search has printed."""
    line = [*LINE, "optimizer.rate~log:1e-3..1e-1", "epochs=2", "folder=runs", "--seed", "1"]
    line += ["--storage", "s.db", "--best", "b.toml", "--pruner", "none", "--log-dir", "logs"]
    assert command_line.main([*line, "--trials", "1"]) == 0
    out, err = capsys.readouterr()
    assert re.fullmatch(r"trial 0: complete val_loss \S+  optimizer.rate=\S+\n", err)
    assert command_line.main([*line, "--trials", "2"]) == 0
    out, err = capsys.readouterr()
    assert err.startswith("trial 1: complete val_loss ")
    study = open_study("config", "s.db")
    best = study.best_trial
    rate = best.params["optimizer.rate"]
    assert out == f"trial {best.number}, val_loss {best.value:.6g}: optimizer.rate={rate}\n"
    assert best.intermediate_values[1] == best.value
    assert len(list(place.glob("runs/trial-*/run.json"))) == 2
    text = Path("b.toml").read_text()
    assert text.startswith(f"# Trial {best.number} of the study 'config': val_loss is ")
    found = configs.read("b.toml")
    assert found == configs.read(
        "config.toml", ["mode=FAST_COMPILE", "epochs=2", "folder=runs", f"optimizer.rate={rate!r}"]
    )
    assert command_line.main(["train", "b.toml", "-n", "1"]) == 0
    assert f"val_loss {best.value:.6g}" in capsys.readouterr().out


@pytest.mark.thorough  # what an objective raises: tests/search/test_search.py
def test_no_trial_has_a_value(place: Path, capsys: Captured) -> None:
    """As when the metric does not exist, which only a run can tell."""
    line = [*LINE, "batch~5,10", "--metric", "val_los", "--direction", "minimize"]
    line += ["--trials", "1", "--log-dir", "logs"]
    assert command_line.main(line) == 1
    err = capsys.readouterr().err
    assert "trial 0: fail  batch=" in err
    assert err.endswith("synk search: no trial has a value\n")
    assert "there is no value 'val_los'; there are " in Path("logs/trial-0.log").read_text()
    assert not Path("best.toml").exists()


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("--trials", "0", "an integer of at least 1"),
        ("--slots", "0", "an integer of at least 1"),
        ("-n", "0", "an integer of at least 1"),
        ("--limit", "-1.0", "a number of more than 0"),
        ("--seed", "-1", "an integer of at least 0"),
        ("--target", "nan", "a number"),
    ],
)
def test_wrong_numbers(place: Path, capsys: Captured, option: str, value: str, wanted: str) -> None:
    assert command_line.main(["search", "config.toml", "batch~1..9", option, value]) == 2
    assert f"{value}: give {wanted}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["batch=7"], "nothing to search: give a key and a range"),
        (["batch~5,10", "--metric", "val_los"], "give --direction minimize or maximize"),
        (["batch~0..9"], "batch: found 0, give an integer of at least 1"),
        (["btach~1..9"], "btach: there is no such key; did you mean batch?"),
        (["batch~1..9", "batch~3,4"], "batch~: given twice"),
        (["batch~9..1"], "the range is empty"),
        (["batch~1..9", "epochs=0"], "epochs: found 0"),
        (["batch~1..9", "--best", "no/b.toml"], "--best no/b.toml: there is no such folder"),
        (["batch~1..9", "--storage", "s.txt"], "storage='s.txt': a file for SQLite"),
    ],
)
def test_wrong_lines(place: Path, capsys: Captured, line: list[str], message: str) -> None:
    assert command_line.main(["search", "config.toml", *line]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("synk search: ")
    assert message in err
    assert not out


def test_the_direction_follows_the_name(place: Path) -> None:
    """And the study the name of the config's file."""
    line = [*LINE, "batch~5,10", "--storage", "s.journal", "--limit", "0.001", "--trials", "1"]
    assert command_line.main([*line, "--metric", "val_accuracy"]) == 1
    assert open_study("config", "s.journal", direction="maximize").trials[0].state.name == "FAIL"
