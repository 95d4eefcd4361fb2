"""What cannot be pickled says what to do instead; Data are pickled as arrays."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import joblib
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from modes import FAST
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import synkhronos as synk
from synkhronos import rules
from synkhronos.extensions import (
    Batches,
    Loader,
    make_local_train_function,
    make_train_function,
    updates,
)
from synkhronos.extensions.checkpoints import Checkpoints
from synkhronos.training import Alternate, Trainer

pytestmark = pytest.mark.usefixtures("lasting_groups")

WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": pickle.dumps,
    "copy.deepcopy": copy.deepcopy,
    "copy.copy": copy.copy,
    "joblib.dump": lambda given: joblib.dump(given, io.BytesIO()),
    "joblib.hash": joblib.hash,
    "cloudpickle": cloudpickle.dumps,
    "inside of others": lambda given: pickle.dumps({"a": [given]}),
}


def train(**options: Any) -> Any:
    x, w = pt.dvector("x"), pytensor.shared(np.zeros(()), name="w")
    loss = ((w - x) ** 2).mean()
    return make_train_function(loss, [w], x, None, updates.sgd, 0.1, mode=FAST, **options)


def local(name: str = "local") -> Any:
    x, w = pt.dvector("x"), pytensor.shared(np.zeros(()), name="w")
    loss = ((w - x) ** 2).mean()
    return make_local_train_function(loss, [w], x, None, updates.sgd, 0.1, mode=FAST, name=name)


def function() -> Any:
    x = pt.dvector("x")
    return synk.function([x], x.sum(), mode=FAST)


BOUND: dict[str, tuple[Callable[[synk.Group, Any], Any], str]] = {
    "Group": (lambda group, at: group, r"start one in the other process, by synk\.fork"),
    "Function": (lambda group, at: function(), r"f\.get_shared\(\)\], and make the function again"),
    "a method": (lambda group, at: function().__call__, "a Function cannot be copied"),
    "TrainFunction": (lambda group, at: train(), r"Checkpoints\(folder, train\)"),
    "RoundFunction": (lambda group, at: train(rule=rules.Average(2)), "a RoundFunction cannot"),
    "FreeFunction": (lambda group, at: train(rule=rules.Downpour(2)), "a FreeFunction cannot"),
    "LocalFunction": (lambda group, at: local(), r"synk\.gather of each parameter"),
    "Trainer": (lambda group, at: Trainer(train()), r"trainer\.history can be pickled"),
    "Alternate": (
        lambda group, at: Alternate([(local("a"), 1), (local("b"), 2)]),
        "a Trainer with folder= keeps a run",
    ),
    "Loader": (lambda group, at: Loader(np.ones(4), Batches(4, 2, seed=1)), "pickle its batches"),
    "Checkpoints": (lambda group, at: Checkpoints(at, train()), "with the same folder"),
}


@pytest.mark.parametrize("kind", BOUND)
def test_what_a_group_works_with_is_not_pickled(
    group2: synk.Group, kind: str, tmp_path: Any
) -> None:
    make, text = BOUND[kind]
    made = make(group2, tmp_path)
    for way, act in WAYS.items():
        if kind == "a method" and way == "copy.copy":
            continue  # it is the same method
        with pytest.raises(synk.InputTypeError, match=text):
            act(made)
    assert function()([1.0, 2.0]) == 3.0


READ: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda given: pickle.loads(pickle.dumps(given)),
    "old pickle": lambda given: pickle.loads(pickle.dumps(given, 0)),
    "cloudpickle": lambda given: pickle.loads(cloudpickle.dumps(given)),
    "copy.deepcopy": copy.deepcopy,
    "copy.copy": copy.copy,
    "inside of others": lambda given: copy.deepcopy([given])[0],
}


@pytest.mark.parametrize("way", READ)
def test_data_are_copied_as_arrays(group2: synk.Group, way: str, tmp_path: Any) -> None:
    """With dtype, shape, name and kind; the copy has an array of its own, and is an input."""
    np.save(tmp_path / "rows.npy", np.arange(4.0))
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    for given in (
        synk.data(np.arange(4.0), name="x"),
        synk.data(np.ones((2, 3), "float32"), minibatch=True),
        synk.data(2.5),
        synk.data(dtype="int8", ndim=2),
        synk.data(np.arange(4.0), scatter=True),
        synk.data(mapped),
    ):
        found = READ[way](given)
        assert type(found) is synk.Data
        assert found.group is group2
        assert (found.dtype, found.name, found.minibatch) == (
            given.dtype,
            given.name,
            given.minibatch,
        )
        np.testing.assert_array_equal(found.data, given.data)
        assert not np.shares_memory(found.data, given.data)
    f = function()
    assert f(READ[way](synk.data(np.arange(4.0)))) == 6.0


def test_data_of_another_time(tmp_path: Any) -> None:
    """Data of a closed group can be pickled, and is read into the current group, or refused."""
    with synk.Group(1):
        d = synk.data(np.arange(3.0), name="x")
    joblib.dump(d, tmp_path / "data")
    with pytest.raises(synk.NotForked, match=r"np\.asarray\(data\)\) needs a group"):
        joblib.load(tmp_path / "data")
    with pytest.raises(synk.GroupClosed):
        copy.deepcopy(d)
    with synk.Group(2) as group:
        found = joblib.load(tmp_path / "data")
        assert found.group is group
        assert found.data.tolist() == [0.0, 1.0, 2.0]
        assert joblib.hash(found) == joblib.hash(d)


class Adds(Op):
    """Adds the sum of an array that it holds."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def make_node(self, *inputs: Any) -> Apply:
        return Apply(self, list(inputs), [inputs[0].type()])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = inputs[0] + np.asarray(self.held).sum()


def test_an_operation_that_holds_what_cannot_be_sent(group2: synk.Group) -> None:
    """The error says so, and the group goes on."""
    x = pt.dvector("x")
    for held in (group2, function(), synk.data([1.0])):
        f = synk.function([x], (Adds(held)(x), None), mode=FAST)
        with pytest.raises(synk.SynkhronosError, match=r"cannot be copied or pickled|np\.asarray"):
            f([1.0, 2.0])
        del f
        assert function()([1.0, 2.0]) == 3.0
