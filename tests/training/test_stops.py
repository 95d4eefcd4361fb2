"""stop, patience and target; the old text means what it meant, and its warning how to write it."""

from __future__ import annotations

import json
import tomllib
import warnings
from typing import Any

import pytest

import synkhronos as synk
from synkhronos.training import EarlyStopping, Target
from synkhronos.training._stops import stops_of

pytest.importorskip("msgspec", reason="msgspec is not installed (synkhronos[train])")
from synkhronos.training import config as configs
from synkhronos.training.configured import _stops

NEEDED: dict[str, Any] = {
    "model": "mine:net",
    "optimizer": "adam",
    "epochs": 1,
    "batch": 1,
    "data": {"train": "x"},
}
# old texts; the new spelling in a program and in a config
OLD: list[tuple[Any, str, str]] = [
    ("val_loss,<,5", 'stop="val_loss", patience=5', 'stop = "val_loss" and patience = 5'),
    (" val_acc , > , 7", 'stop="val_acc", patience=7', 'stop = "val_acc" and patience = 7'),
    ("val_acc,>,0.97", 'target="val_acc >= 0.97"', 'target = "val_acc >= 0.97"'),
    ("val_loss,<,1e-9", 'target="val_loss <= 1e-09"', 'target = "val_loss <= 1e-09"'),
    ("val_acc,>,1.0", 'target="val_acc >= 1.0"', 'target = "val_acc >= 1.0"'),
    (
        "val_loss,~<,5",
        'stop=EarlyStopping("val_loss", patience=5, smooth=True)',
        'stop = { metric = "val_loss", patience = 5, smooth = true }',
    ),
    (
        "val_zero,~<,2",
        'stop=EarlyStopping("val_zero", patience=2, smooth=True, mode="min")',
        'stop = { metric = "val_zero", patience = 2, mode = "min", smooth = true }',
    ),
    (
        ["val_loss,<,40", "val_loss,<,1e-9", "val_acc,>,0.5"],
        'stop="val_loss", patience=40, target=["val_loss <= 1e-09", "val_acc >= 0.5"]',
        'stop = "val_loss" and patience = 40 and target = ["val_loss <= 1e-09", "val_acc >= 0.5"]',
    ),
    (
        ["val_loss,<,4", "val_acc,>,4"],
        'stop=["val_loss", "val_acc"], patience=4',
        'stop = ["val_loss", "val_acc"] and patience = 4',
    ),
    (
        ["val_loss,<,4", "val_acc,>,5"],
        'stop=[EarlyStopping("val_loss", patience=4), EarlyStopping("val_acc", patience=5)]',
        'stop = [{ metric = "val_loss", patience = 4 }, { metric = "val_acc", patience = 5 }]',
    ),
]


def meaning(made: tuple[list[Any], list[Any]]) -> list[tuple[str, dict[str, Any]]]:
    """The class and the public attributes: how a direction became known means nothing."""
    return [
        (type(each).__name__, {k: v for k, v in vars(each).items() if k[0] != "_"})
        for each in (*made[0], *made[1])
    ]


def options(stop: Any = (), patience: Any = None, target: Any = ()) -> Any:
    return stops_of(stop, patience, target)


def written(new: str) -> list[tuple[str, dict[str, Any]]]:
    """What a program with the new spelling gets."""
    names = {"options": options, "EarlyStopping": EarlyStopping}
    return meaning(eval(f"options({new})", names))


def of_config(**table: Any) -> list[tuple[str, dict[str, Any]]]:
    return meaning(_stops(configs.config_of(NEEDED | table)))


@pytest.mark.parametrize(("old", "new", "toml"), OLD)
def test_the_old_text(old: Any, new: str, toml: str) -> None:
    """The new spelling that the warning shows has exactly its meaning, here and in a config."""
    with pytest.warns(synk.DeprecatedWarning) as told:
        made = meaning(options(old))
    assert str(told[0].message) == f"stop={json.dumps(old)} is an old spelling: write {new}"
    assert told[0].filename == __file__
    with pytest.warns(synk.DeprecatedWarning) as told:
        assert of_config(stop=old) == made
    text = json.dumps(old)
    assert str(told[0].message) == f"stop = {text} is an old spelling: write {toml}"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert written(new) == made
        assert of_config(**tomllib.loads(toml.replace(" and ", "\n"))) == made


def test_it_is_seen_everywhere() -> None:
    """Python hides a DeprecationWarning outside of the main module."""
    assert issubclass(synk.DeprecatedWarning, FutureWarning)
    assert not issubclass(synk.DeprecatedWarning, DeprecationWarning)


def test_names_and_numbers() -> None:
    """An integer is a number here, spaces are free, and the default patience is 5."""
    stops, targets = stops_of(["val_loss", EarlyStopping("a", 9)], None, ["b>1", " c <= 1e-2 "])
    assert [(s.metric, s.patience, s.mode) for s in stops] == [
        ("val_loss", 5, "min"),
        ("a", 9, None),  # as the metric says
    ]
    assert [(t.metric, t.value, t.mode) for t in targets] == [("b", 1.0, "max"), ("c", 0.01, "min")]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (("val_loss,<", None, ()), 'stop="val_loss", patience=5 to stop'),
        (("val_loss,~<,0.5", None, ()), "a target is not smoothed"),
        (("val_loss,<,1e", None, ()), "1e is not a number"),
        (("val_loss >= 3", None, ()), 'target="val_acc >= 0.97"'),
        ((3, None, ()), "stop=3: give the name"),
        (([Target("a", 3)], None, ()), "give the name of a value"),
        (((), 3, ()), 'stop="val_loss"'),
        ((EarlyStopping("a"), 3, ()), "of the values that stop= names"),
        (("val_loss", 0, ()), "patience=0"),
        (((), None, "val_acc"), "target='val_acc': give the name of a value and a number"),
        (((), None, ">= 3"), "give the name of a value and a number"),
        (((), None, 3), "target=3"),
        (((), None, "val_acc >= many"), "many is not a number"),
    ],
)
def test_refused(given: tuple[Any, Any, Any], text: str) -> None:
    with pytest.raises(synk.InputError, match=text):
        stops_of(*given)
