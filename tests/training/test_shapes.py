"""Rows of another shape than that of the inputs, or of the network, are refused before a step."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from modes import FAST
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from read_rows import Source

import synkhronos as synk
from synkhronos import nn, rules
from synkhronos.extensions import Batches, Loader, updates
from synkhronos.training import fit
from synkhronos.training._run import shapes

pytestmark = pytest.mark.usefixtures("lasting_groups")

N = 6
CASES = {
    "channels first": ((28, 26, 1), (1, 28, 26), r"28 x 26 x 1, .*takes 1 x 28 x 26: .*\(0, 3, 1"),
    "channels last": ((1, 28, 26), (28, 26, 1), r"transpose\(0, 2, 3, 1\)"),
    "flat": ((28, 26), (728,), r"28 x 26, .*takes a vector of 728: .*reshape\(-1, 728\)"),
    "images": ((728,), (28, None), r"takes 28 x any: .*reshape\(-1, 28, 26\)"),
    "columns": ((63,), (64,), "vector of 63, .*vector of 64: give rows of this shape"),
    "no axis": ((), (4,), "a single value, .*a vector of 4"),
    "one axis more": ((4, 1), (None,), r"4 x 1, .*any length: .*reshape\(-1, 4\)"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_inputs_declare(case: str) -> None:
    found, wanted, text = CASES[case]
    x = pt.tensor("x", dtype="float64", shape=(None, *wanted))
    fitting = np.zeros((N, *(n or 26 for n in wanted)))
    shapes.check_rows([fitting], [x], "fit")
    for rows in (np.zeros((N, *found)), Source(np.zeros((N, *found)))):
        with pytest.raises(synk.InputError, match=text):
            shapes.check_rows([rows], [x], "fit")


def test_labels_for_each_class() -> None:
    with pytest.raises(synk.InputTypeError, match=r"a vector of 3, .*argmax\(axis=-1\)"):
        shapes.check_rows([np.zeros((N, 3))], [pt.lvector("y")], "fit")
    source = Source(np.zeros(N, "int32"))
    with pytest.raises(synk.InputTypeError, match="rows for y are int32, and y takes int64"):
        shapes.check_rows([source], [pt.lvector("y")], "fit")


def test_a_source_of_float64_for_float32() -> None:
    """As columns of CSV are; numpy says that float64 equals None."""
    source, x = Source(np.zeros((N, 2))), pt.fmatrix("x")
    with pytest.raises(synk.InputTypeError, match=r'rows\[:\]\.astype\("float32"\)'):
        shapes.check_rows([source], [x], "fit")


def net(**declared: Any) -> tuple[Any, Any, Any]:
    x = pt.tensor("x", dtype="float64", shape=(None, declared.get("columns")))
    w = pytensor.shared(np.zeros((4, 1)), name="w")
    return ((x @ w) ** 2).mean(), w, x


def trained(loss: Any, w: Any, x: Any, data: Any, **options: Any) -> Any:
    sgd = functools.partial(updates.sgd, learning_rate=0.1)
    size = {} if isinstance(data, Loader) else {"batch": 3}
    how = {"optimizer": sgd, "epochs": 1, "mode": FAST, "progress": False, **size, **options}
    return fit(loss, [w], x, data, **how)


@pytest.mark.parametrize("kind", ["array", "source", "data", "loader"])
@pytest.mark.parametrize("columns", [None, 4])
def test_before_the_first_step(group2: synk.Group, kind: str, columns: int | None) -> None:
    """Of what inputs declare, or of what the weights need."""
    rows = np.zeros((N, 5))
    given = {
        "array": lambda: rows,
        "source": lambda: Source(rows),
        "data": lambda: synk.data(rows),
        "loader": lambda: Loader(Source(rows), Batches(N, 3)),
    }[kind]()
    text = (
        "a vector of 5, and x takes a vector of 4" if columns else r"x: a vector of 5.*w \(4, 1\)"
    )
    with pytest.raises(synk.InputError, match=text):
        trained(*net(columns=columns), given)


@pytest.mark.parametrize("columns", [None, 4])
def test_rows_of_validation(group2: synk.Group, columns: int | None) -> None:
    """They are compared before the first epoch, not after it."""
    loss, w, x = net(columns=columns)
    steps: list[Any] = []
    with pytest.raises(synk.InputError, match="validation: "):
        trained(loss, w, x, np.ones((N, 4)), validation=np.zeros((N, 5)), callbacks=[steps.append])
    assert not steps


def test_images_through_a_convolution(group2: synk.Group) -> None:
    """The input declares nothing: the kernel does, and transposed images pass."""
    x = pt.dtensor4("x")
    kernel = pytensor.shared(np.zeros((3, 3, 1, 2)), name="kernel", shape=(3, 3, 1, 2))
    loss = (nn.conv2d(x, kernel) ** 2).mean()
    with pytest.raises(synk.InputError, match=r"x: 1 x 8 x 7.*array.transpose\(0, 2, 3, 1\)"):
        trained(loss, kernel, x, np.zeros((N, 1, 8, 7)))
    assert trained(loss, kernel, x, np.zeros((N, 8, 7, 1))).step == 2


class Fussy(Op):
    """An operation that refuses types which tell their length, and computes all values."""

    __props__ = ()

    def make_node(self, rows: Any) -> Apply:
        if rows.type.shape[1] is not None:
            raise ValueError("no length, please")
        return Apply(self, [rows], [rows.type()])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = inputs[0].copy()


def test_only_what_cannot_be_computed_is_refused() -> None:
    x = pt.dmatrix("x")
    shapes.check_network([Fussy()(x).sum()], {x: (4,)}, "fit")
    y = pt.dmatrix("y")
    with pytest.raises(synk.InputError, match="x: a vector of 4, y: a vector of 3"):
        shapes.check_network([Fussy()(x).sum() + (x * y).sum()], {x: (4,), y: (3,)}, "fit")


def test_members_that_train_apart(group2: synk.Group) -> None:
    for rule, size in ((rules.Average(2), "batch"), (rules.EASGD(period=2), "member_batch")):
        with pytest.raises(synk.InputError, match=r"w \(4, 1\)"):
            trained(*net(), np.zeros((N, 5)), rule=rule, **{"batch": None, size: 3})
