"""Bools are combined by one rule in all places: no sum, and averages are rounded in a bool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from modes import FAST

import synkhronos as synk
from synkhronos import ops

pytestmark = pytest.mark.usefixtures("lasting_groups")

OPS = ("avg", "sum", "prod", "min", "max")
COLUMNS = [[True, True, True], [True, False, False], [False, False, True], [False] * 3]


def held(size: int) -> Any:
    """A variable of bools; each member has another row of COLUMNS, turned."""
    s = pytensor.shared(np.zeros(len(COLUMNS), bool), name="s")
    for rank in range(size):
        synk.set_value(rank, s, np.array([column[rank] for column in COLUMNS]))
    return s


def reduced(group: synk.Group, op: str) -> Any:
    return synk.reduce(held(group.size), op, in_place=False)


def in_place(group: synk.Group, op: str) -> Any:
    s = held(group.size)
    synk.reduce(s, op)
    return s.get_value()


def in_all(group: synk.Group, op: str) -> Any:
    s = held(group.size)
    synk.all_reduce(s, op)
    return synk.get_value(group.size - 1, s)


def scattered(group: synk.Group, op: str) -> Any:
    s = held(group.size)
    synk.reduce_scatter(s, op)
    return synk.gather(s, nd_up=0)


def as_output(group: synk.Group, op: str) -> Any:
    x = pt.matrix("x", dtype="bool")
    rows = np.array(COLUMNS).T[: group.size]
    return synk.function([x], (x[0], op), mode=FAST)(rows)


def as_update(group: synk.Group, op: str) -> Any:
    x, s = pt.matrix("x", dtype="bool"), pytensor.shared(np.zeros(len(COLUMNS), bool), name="s")
    f = synk.function([x], updates=[(s, x[0], op, "all")], mode=FAST)
    f(np.array(COLUMNS).T[: group.size])
    return synk.get_value(group.size - 1, s)


def over_slices(group: synk.Group, op: str) -> Any:
    x, s = pt.matrix("x", dtype="bool"), pytensor.shared(np.zeros(len(COLUMNS), bool), name="s")
    f = synk.function([x], updates=[(s, x[0], op, "local")], mode=FAST)
    rows = np.array(COLUMNS).T[: group.size]
    f(np.repeat(rows[None], group.size, 0).reshape(-1, len(COLUMNS)), num_slices=group.size)
    return synk.get_value(0, s)


def in_a_graph(group: synk.Group, op: str) -> Any:
    return synk.function([], ops.all_reduce(held(group.size), op), mode=FAST)()


def rows_in_a_graph(group: synk.Group, op: str) -> Any:
    own = ops.reduce_scatter(held(group.size), op)
    return synk.function([], (own, "gather"), mode=FAST)()


PLACES: dict[str, tuple[Callable[[synk.Group, str], Any], str]] = {
    "reduce": (reduced, "float64"),
    "reduce in place": (in_place, "bool"),
    "all_reduce": (in_all, "bool"),
    "reduce_scatter": (scattered, "bool"),
    "an output": (as_output, "float64"),
    "an update in all members": (as_update, "bool"),
    "an update over slices": (over_slices, "bool"),
    "ops.all_reduce": (in_a_graph, "bool"),
    "ops.reduce_scatter": (rows_in_a_graph, "float64"),
}


@pytest.mark.each_choice
@pytest.mark.parametrize("place", PLACES)
def test_bools_are_combined_by_one_rule(group: synk.Group, place: str) -> None:
    """As numpy does, of one dtype; the mean is a float, or rounded where a bool holds it."""
    act, dtype = PLACES[place]
    values = np.array([column[: group.size] for column in COLUMNS])
    wanted: dict[str, Any] = {
        "avg": values.mean(1) if dtype == "float64" else np.rint(values.mean(1)).astype(bool),
        "prod": values.all(1),
        "min": values.min(1),
        "max": values.max(1),
    }
    for op in OPS:
        if op == "sum":
            with pytest.raises(synk.InputTypeError, match="a bool cannot hold their sum"):
                act(group, op)
            continue
        found = np.asarray(act(group, op))
        assert found.dtype == wanted[op].dtype
        np.testing.assert_array_equal(found, wanted[op])


def test_counts_of_bools_are_integers(group: synk.Group) -> None:
    """Sums and means over rows in the graph, as PyTensor makes them."""
    x, rows = pt.matrix("x", dtype="bool"), np.array(COLUMNS)
    f = synk.function([x], [x.sum(), x.sum(0), x.mean(), x.any(), x.all()], mode=FAST)
    found = f(rows)
    assert [np.asarray(v).dtype for v in found] == ["int64", "int64", "float64", "bool", "bool"]
    counts = [rows.sum(), rows.sum(0), rows.mean(), True, False]
    for value, wanted in zip(found, counts, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-15)
