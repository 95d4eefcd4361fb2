"""Each way of training has one function; tables, not kinds, say what a rule needs."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synkhronos as synk
from synkhronos import extensions, rules
from synkhronos.extensions import make_local_train_function, make_train_function, updates
from synkhronos.extensions._apart.free.free_state import FREE_MEMBERS
from synkhronos.extensions._step.training_function import TrainingFunction
from synkhronos.extensions.train import _ALONE
from synkhronos.rules._base import Way
from synkhronos.testing import simulation
from synkhronos.training import Alternate, Trainer

FAST = "FAST_COMPILE"
KINDS = [
    extensions.TrainFunction,
    extensions.RoundFunction,
    extensions.FreeFunction,
    extensions.NodesFunction,
    extensions.LocalFunction,
    Alternate,
]


@pytest.mark.parametrize("kind", KINDS)
def test_no_training_function_is_derived_from_another_one(kind: type) -> None:
    assert TrainingFunction in kind.__bases__
    assert not kind.__subclasses__()
    ours = {c for c in TrainingFunction.__subclasses__() if c.__module__.startswith("synkhronos.")}
    assert ours == {*KINDS}


def test_each_way_is_in_all_tables() -> None:
    ways = {*get_args(Way.__value__)}
    assert {*_ALONE} == ways - {"meets"}
    assert {*FREE_MEMBERS} == {*simulation._WORLDS} == ways - {"meets", "nodes"}


def made(rule: Any = None) -> Any:
    x, w = pt.vector("x", dtype="float64"), pytensor.shared(np.zeros(()), name="w")
    how = {"learning_rate": 0.1, "rule": rule, "mode": FAST, "name": "train"}
    return make_train_function(((w - x) ** 2).mean(), [w], x, None, updates.sgd, **how)


@pytest.mark.parametrize(
    "rule",
    [None, rules.Average(2), rules.EASGD(2), rules.Nodes(None, rules.Average(2))],
    ids=str,
)
def test_what_all_have(group2: synk.Group, rule: Any) -> None:
    train = made(rule)
    assert (train.name, train.size, train.mode, train.on_gpus) == ("train", 2, FAST, False)
    assert not train.compiled
    assert train.by_node == []
    assert [v.name for v in (*train.inputs, *train.params)] == ["x", "w"]
    [(inputs, [_])] = train.graphs
    assert inputs == train.inputs
    by_member = rule is not None and not rule.meets
    assert train.counts_batches_by == ("member" if by_member else "group")
    assert train.repeatable is not by_member
    np.testing.assert_allclose(train.gradients([1.0, 3.0]), [-4.0])
    with pytest.raises(synk.InputError, match="Make at least two steps first"):
        train.report()
    train.settle()
    train.stop()
    train.collect()
    assert isinstance(synk.advise(train, np.ones(8)), synk.Advice)


def test_a_local_function_is_for_alternate(group2: synk.Group) -> None:
    x, w = pt.vector("x", dtype="float64"), pytensor.shared(np.zeros(()), name="w")
    train = make_local_train_function(
        ((w - x) ** 2).mean(), [w], x, None, updates.sgd, 0.5, mode=FAST, name="own"
    )
    assert (train.seconds(), train.graphs, train.by_node, train.rule) == ({}, [], [], None)
    with pytest.raises(synk.InputError, match="local functions"):
        train.report()
    with pytest.raises(synk.InputTypeError, match="is not a training function"):
        Trainer(train)
    cycle = Alternate([(train, 1)])
    with pytest.raises(synk.InputTypeError, match=r"Alternate: .* is not a training function"):
        Alternate([(cycle, 1)])
