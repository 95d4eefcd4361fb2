"""Functions: what a call returns and changes equals what the serial function would.

The numbers S1, S2, ... are the defects of the system of 2017 that a test holds; numpy or the serial
PyTensor function is the oracle.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import subprocess
import sys
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from failing_ops import Fussy, Known, Replicas, fussy, rank_shaped
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from modes import FAST
from pytensor import In
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from selection import thorough

import synkhronos as synk
from synkhronos._api import auto_slices
from synkhronos._plan.rows import edges

# The mechanics of local updates, of named reductions and of empty batches. `test_warnings.py` holds
# what is warned of.
pytestmark = [
    pytest.mark.usefixtures("lasting_groups"),
    pytest.mark.filterwarnings("ignore::synkhronos.LocalUpdateWarning"),
    pytest.mark.filterwarnings("ignore::synkhronos.ReductionWarning"),
    pytest.mark.filterwarnings("ignore::synkhronos.BatchWarning"),
]

SLOW_TO_MAKE = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]

Array = np.ndarray


def matrix(name: str = "x", dtype: str = "float64") -> Any:
    return pt.matrix(name, dtype=dtype)


def shared(value: Any, name: str | None = None) -> Any:
    return pytensor.shared(np.asarray(value), name=name)


def make(inputs: Any, outputs: Any = None, **options: Any) -> synk.Function:
    return synk.function(inputs, outputs, mode=FAST, **options)


def serial(inputs: Any, outputs: Any = None, **options: Any) -> Any:
    return pytensor.function(inputs, outputs, mode=FAST, on_unused_input="ignore", **options)


def everywhere(variable: Any, size: int) -> list[Array]:
    """The value of a variable in each member."""
    return [synk.get_value(rank, variable) for rank in range(size)]


def parts_of(rows: Array, size: int) -> list[Array]:
    """The rows of each member."""
    at = edges(len(rows), size)
    return [rows[a:b] for a, b in pairwise(at)]


def same(found: Any, wanted: Any, rtol: float = 1e-12) -> None:
    np.testing.assert_allclose(found, wanted, rtol=rtol, atol=1e-13)


@dataclass
class Form:
    outputs: Callable[[Any], Any]
    wanted: Callable[[Array], Any]


FORMS = {
    "variable": Form(lambda x: x.mean(), lambda a: a.mean()),
    "pair": Form(lambda x: (x.sum(), "sum"), lambda a: a.sum()),
    "list": Form(lambda x: [x.mean(), x.sum()], lambda a: [a.mean(), a.sum()]),
    "list of one": Form(lambda x: [x.sum()], lambda a: [a.sum()]),
    "tuple": Form(lambda x: (x.mean(), x.sum(), x.max()), lambda a: [a.mean(), a.sum(), a.max()]),
    "S14: tuple of two": Form(lambda x: (x.mean(), x.sum()), lambda a: [a.mean(), a.sum()]),
    "mixed list": Form(lambda x: [(x.max(), "max"), x.sum()], lambda a: [a.max(), a.sum()]),
    "S14: dict": Form(
        lambda x: {"b": x.mean(), "a": (x.sum(0), "sum")},
        lambda a: {"b": a.mean(), "a": a.sum(0)},
    ),
    "no outputs": Form(lambda x: None, lambda a: []),
    "empty list": Form(lambda x: [], lambda a: []),
    "empty dict": Form(lambda x: {}, lambda a: {}),
    "constant": Form(lambda x: [pt.constant(2.5), x.sum()], lambda a: [2.5, a.sum()]),
    "number": Form(lambda x: [2.5, x.sum()], lambda a: [2.5, a.sum()]),
    "the same twice": Form(
        lambda x: [s := x.sum(), s, (s, "max")],
        lambda a: [a.sum(), a.sum(), None],
    ),
    "Out": Form(lambda x: [pytensor.Out(x.sum(), borrow=True)], lambda a: [a.sum()]),
}


@pytest.mark.each_choice
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_outputs(group: synk.Group, rng: np.random.Generator, form: str) -> None:
    """S14: tuples of variables are lists of outputs, dicts are taken."""
    x, rows = matrix(), rng.normal(size=(7, 3))
    found = make([x], FORMS[form].outputs(x), on_unused_input="ignore")(rows)
    wanted = FORMS[form].wanted(rows)
    assert type(found) is type(wanted) or isinstance(found, np.ndarray)
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        found, wanted = list(found.values()), list(wanted.values())
    if isinstance(wanted, list):
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted, strict=True):
            if b is not None:
                same(a, b)
    elif wanted is not None:
        same(found, wanted)


REDUCED: dict[str | None, tuple[Callable[[Any], Any], Callable[[Array], Any]]] = {
    "avg": (lambda x: x.mean(0), lambda a: a.mean(0)),
    "mean": (lambda x: x.mean(0), lambda a: a.mean(0)),
    "sum": (lambda x: x.sum(0), lambda a: a.sum(0)),
    "prod": (lambda x: x.prod(0), lambda a: a.prod(0)),
    "min": (lambda x: x.min(0), lambda a: a.min(0)),
    "max": (lambda x: x.max(0), lambda a: a.max(0)),
    "gather": (lambda x: x * 2, lambda a: a * 2),
}


@pytest.mark.each_choice
@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize("prefix", ["", "c_"])
def test_every_reduction(
    group: synk.Group, rng: np.random.Generator, prefix: str, rows: int
) -> None:
    """S1, S8, S9, S13: 2017's names; parts of unequal length; members without rows."""
    x, values = matrix(), rng.normal(size=(rows, 3))
    names = [n for n in REDUCED if not (prefix and n == "mean")]
    f = make([x], [(REDUCED[n][0](x), f"{prefix}{n}") for n in names])
    assert f.output_modes == ["avg" if n == "mean" else n for n in names]
    for name, found in zip(names, f(values), strict=True):
        same(found, REDUCED[name][1](values))


@pytest.mark.parametrize(
    "name", ["c_", "", "cumsum", "count", "c_None", "average", "AVG", "c_c_avg"]
)
def test_unknown_reductions_are_named(group2: synk.Group, name: str) -> None:
    """S1: a reduction's name is read whole, for outputs and updates."""
    x, s = matrix(), shared(0.0, "s")
    with pytest.raises(synk.InputError, match="'gather', 'mean' for 'avg', or None"):
        make([x], (x.sum(), name))
    with pytest.raises(synk.InputError, match="gather"):
        make([x], updates=[(s, x.sum(), name)])


def test_mean_is_a_synonym(group2: synk.Group) -> None:
    x, s = pt.vector("x", dtype="float64"), shared(0.0, "s")
    f = make([x], (x.mean(), "mean"), updates=[(s, x.sum(), "mean", "all")])
    assert (f.output_modes, f.update_modes) == ("avg", {s: "avg"})
    same(f([1.0, 3.0, 8.0]), 4)
    same(s.get_value(), (4 * 2 + 8) / 3)
    synk.set_value(1, s, 2 * s.get_value())
    synk.all_reduce(s, "mean")
    same(s.get_value(), 8)


@pytest.mark.parametrize("output", [("x", "avg"), (3, 4, 5), object(), [pt.constant(1.0)]])
def test_what_is_no_output(group2: synk.Group, output: Any) -> None:
    with pytest.raises(synk.InputTypeError):
        make([matrix()], [output])


def test_a_scalar_is_gathered_from_each_member(group: synk.Group, rng: np.random.Generator) -> None:
    """S13: one element from each member that has rows, in the order of ranks."""
    x, rows = matrix(), rng.normal(size=(7, 3))
    found = make([x], (x.sum(), "gather"))(rows)
    same(found, [p.sum() for p in parts_of(rows, group.size)])


@pytest.mark.parametrize("num_slices", [1, 2, 9])
def test_none_is_the_masters_own_value(
    group: synk.Group, rng: np.random.Generator, num_slices: int
) -> None:
    """S12: the value over the master's whole part, whatever the number of slices."""
    x, rows = matrix(), rng.normal(size=(8, 3))
    total, each = make([x], [(x.sum(), None), (x * 2, None)])(rows, num_slices=num_slices)
    mine = parts_of(rows, group.size)[0]
    same(total, mine.sum())
    same(each, mine * 2)


@pytest.mark.each_choice
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int32", "int64", "uint64"])
@pytest.mark.parametrize("rows", [2, 7])
def test_averages_of_integers_are_floats(
    group: synk.Group, rng: np.random.Generator, dtype: str, rows: int
) -> None:
    """S11: the mean of integers or bools is a float64, weighted by rows."""
    x = matrix(dtype=dtype)
    values = rng.integers(0, 2 if dtype == "bool" else 100, (rows, 3)).astype(dtype)
    f = make([x], [(x.max(0), "avg"), (x.max(0), "max"), x.sum(0), x.mean(0), x])
    average, most, total, mean, itself = f(values)
    parts = [p for p in parts_of(values, group.size) if len(p)]
    weights = [len(p) for p in parts]
    same(average, np.average([p.max(0) for p in parts], 0, weights))
    assert average.dtype == np.float64
    assert most.dtype == itself.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(most, values.max(0))
    np.testing.assert_array_equal(total, values.sum(0))
    np.testing.assert_array_equal(itself, values)
    same(mean, values.mean(0))


@pytest.mark.each_choice
@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64", "complex128"])
def test_outputs_keep_their_dtype(group: synk.Group, dtype: str) -> None:
    x = matrix(dtype=dtype)
    values = np.arange(21).reshape(7, 3).astype(dtype)
    f = make([x], [(x.sum(0), "sum"), (x * 2, "gather"), (x.sum(0), "prod")])
    wanted = serial([x], [x.sum(0), x * 2])(values)
    for found, value in zip(f(values), wanted, strict=False):
        assert found.dtype == value.dtype
        same(found, value, rtol=1e-3 if dtype == "float16" else 1e-6)


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", ["float16", "float32", "int32", "int64", "bool", "complex64"])
@pytest.mark.parametrize("op", ["avg", "sum", "prod", "min", "max", "gather"])
def test_large_outputs_are_reduced_alike(
    group: synk.Group, rng: np.random.Generator, dtype: str, op: str
) -> None:
    """Above 64 KB members reduce together; below, the master alone: the same values and dtypes."""
    big, small = pt.vector("big", dtype=dtype), pt.vector("small", dtype=dtype)
    row = pt.vector("row", dtype="float64")
    values = rng.integers(0, 3, 140_000).astype(dtype)
    by_rows = [pt.switch(row[0] < 1, v, v) for v in (big, small)]
    if (dtype, op) == ("bool", "sum"):
        with pytest.raises(synk.InputTypeError, match="a bool cannot hold their sum"):
            make([row], (by_rows[0], op), bcast_inputs=[big, small], on_unused_input="ignore")
        return
    f = make([row], [(v, op) for v in by_rows], bcast_inputs=[big, small])
    first, second = f(np.zeros(5), values, values[:10])
    many = group.size if op == "gather" else 1
    assert len(first) == many * 140_000
    np.testing.assert_array_equal(first[:10], second[:10])
    assert first.dtype == second.dtype
    if op in ("avg", "min", "max", "gather"):
        np.testing.assert_array_equal(first, np.tile(values, many))
        assert first.dtype == (np.float64 if op == "avg" and values.dtype.kind in "ib" else dtype)


def test_output_subset_keeps_its_order(group: synk.Group, rng: np.random.Generator) -> None:
    """S5, S6, S20: any order, repeated changes, then all of them again; numpy integers."""
    x, rows = matrix(), rng.normal(size=(5, 3))
    f = make([x], [x.sum(), x.mean(), x.max(), x * 2])
    wanted = [rows.sum(), rows.mean(), rows.max(), rows * 2]
    subsets: list[Any] = [[2, 0], None, [0, 2], (3,), [], np.array([3, 1]), None, [1, 1], [-1, 0]]
    for subset in subsets:
        for num_slices in (1, 2):
            found = f(rows, output_subset=subset, num_slices=num_slices)
            chosen = range(4) if subset is None else subset
            assert isinstance(found, list)
            assert len(found) == len(chosen)
            for value, i in zip(found, chosen, strict=True):
                same(value, wanted[i])


def test_output_subset_does_not_drop_updates(group: synk.Group) -> None:
    """S6: updates happen whatever the outputs asked for, in slices too."""
    x, s = matrix(), shared(0.0, "s")
    f = make([x], [x.sum(), x.max()], updates=[(s, s + 1)])
    for n, (subset, num_slices) in enumerate([([1], 1), ([0], 3), ([], 1), ([], 2)]):
        f(np.ones((5, 2)), output_subset=subset, num_slices=num_slices)
        assert everywhere(s, group.size) == [n + 1.0] * group.size


def test_output_subset_of_a_dict(group2: synk.Group, rng: np.random.Generator) -> None:
    x, rows = matrix(), rng.normal(size=(5, 3))
    f = make([x], {"total": x.sum(), "mean": x.mean(), "most": x.max()})
    found = f(rows, output_subset=["most", "total"])
    assert list(found) == ["most", "total"]
    same(list(found.values()), [rows.max(), rows.sum()])
    assert list(f(rows)) == ["total", "mean", "most"]


@pytest.mark.parametrize("subset", [[4], [-5], ["sum"], [True], [1.0], [None]])
def test_outputs_that_do_not_exist(group2: synk.Group, subset: list[Any]) -> None:
    x = matrix()
    f = make([x], [x.sum(), x.mean(), x.max(), x.min()])
    with pytest.raises(synk.InputError, match="4 outputs"):
        f(np.ones((2, 2)), output_subset=subset)


@pytest.mark.parametrize("subset", [1, "total"])
def test_what_is_no_list_of_outputs(group2: synk.Group, subset: Any) -> None:
    x = matrix()
    f = make([x], {"total": x.sum(), "mean": x.mean()})
    with pytest.raises(synk.InputTypeError, match=r"give \["):
        f(np.ones((2, 2)), output_subset=subset)


SLICED_UPDATES: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Array, Array], Array]]] = {
    "avg": (lambda s, x: s + x.mean(0), lambda s, a: s + a.mean(0)),
    "sum": (lambda s, x: x.sum(0), lambda s, a: a.sum(0)),
    "prod": (lambda s, x: x.prod(0), lambda s, a: a.prod(0)),
    "min": (lambda s, x: pt.minimum(s, x.min(0)), lambda s, a: np.minimum(s, a.min(0))),
    "max": (lambda s, x: pt.maximum(s, x.max(0)), lambda s, a: np.maximum(s, a.max(0))),
}


@pytest.fixture
def accumulating(group: synk.Group) -> tuple[synk.Function, list[Any], Any, Any]:
    """A function with an update of each reduction, and one of the rows themselves."""
    x = matrix()
    variables = [shared(np.zeros(3), op) for op in SLICED_UPDATES]
    kept, count = shared(np.zeros((1, 3)), "kept"), shared(0, "count")
    updates: list[Any] = [
        (s, SLICED_UPDATES[op][0](s, x), op)
        for s, op in zip(variables, SLICED_UPDATES, strict=True)
    ]
    updates += [(kept, x * 2, "gather"), (count, count + 1)]
    outputs = [x.mean(), x.sum(0), (x.max(), "max"), x, variables[0].sum()]
    return make([x], outputs, updates=updates), variables, kept, count


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=SLOW_TO_MAKE)
@given(calls=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 11)), min_size=1, max_size=3))
def test_slicing_with_updates_equals_unsliced(
    group: synk.Group,
    accumulating: tuple[synk.Function, list[Any], Any, Any],
    calls: list[tuple[int, int]],
) -> None:
    """S2, S3, S4, S10: slices see the values before the call; updates are applied once."""
    f, variables, kept, count = accumulating
    draw = np.random.default_rng(len(calls))
    held = [[np.full(3, 0.5)] * group.size for _ in variables]
    rows_kept = [np.zeros((1, 3))] * group.size
    synk.broadcast(variables, [np.full(3, 0.5)] * len(variables))
    synk.broadcast([kept, count], [np.zeros((1, 3)), np.array(0)])
    for n, (length, num_slices) in enumerate(calls):
        rows = draw.normal(size=(length, 3))
        mine = held[0][0].sum()
        found = f(rows, num_slices=num_slices)
        for value, wanted in zip(
            found[:4], [rows.mean(), rows.sum(0), rows.max(), rows], strict=True
        ):
            same(value, wanted)
        if n == 0:
            same(found[4], mine)  # before the update
        for rank, part in enumerate(parts_of(rows, group.size)):
            if len(part):
                rows_kept[rank] = part * 2
                for column, (_, wanted_value) in zip(held, SLICED_UPDATES.values(), strict=True):
                    column[rank] = wanted_value(column[rank], part)
        for variable, column in zip(variables, held, strict=True):
            same(everywhere(variable, group.size), column)
        for rank in range(group.size):
            same(synk.get_value(rank, kept), rows_kept[rank])
        assert everywhere(count, group.size) == [n + 1] * group.size


def test_slices_are_never_empty(group: synk.Group) -> None:
    """S10: more slices than rows are as many as there are rows."""
    x = matrix()
    f = make([x], (x.shape[0], "gather"))
    for rows, num_slices in [(7, 3), (2, 5), (1, 100), (9, np.int64(2))]:
        wanted = [
            len(piece)
            for part in np.array_split(np.zeros(rows), group.size)
            for piece in np.array_split(part, min(len(part), num_slices) or 1)
            if len(piece)
        ]
        assert f(np.zeros((rows, 1)), num_slices=num_slices).tolist() == wanted


@pytest.mark.each_choice
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_slices_of_a_single_row(group: synk.Group, rows: int) -> None:
    """S10: what slices make is finished where there is one slice too."""
    x = pt.dmatrix("x")
    total, calls = pytensor.shared(np.zeros(2), "total"), pytensor.shared(0, "calls")
    updates = [(total, total + x.sum(0)), (calls, calls + 1)]
    f = make([x], x.mean(0) ** 2, updates=updates)
    given = np.arange(2.0 * rows).reshape(rows, 2)
    same(f(given, num_slices=3), given.mean(0) ** 2)
    same(sum(everywhere(total, group.size)), given.sum(0))
    assert calls.get_value() == 1


def test_averages_of_integer_slices_are_rounded(group2: synk.Group) -> None:
    """S11: as in every other place where an integer must hold an average."""
    x, n = pt.lvector("x"), shared(np.int64(0), "n")
    f = make([x], updates=[(n, x.max(), "avg")])
    f(np.array([2, 3, 3, 2, 3, 3]), num_slices=3)
    assert [int(v) for v in everywhere(n, 2)] == [3, 3]


@pytest.mark.parametrize("wrong", [0, -2])
def test_fewer_slices_than_one(group2: synk.Group, wrong: int) -> None:
    x = matrix()
    with pytest.raises(synk.InputError, match="num_slices"):
        make([x], x.sum())(np.ones((3, 2)), num_slices=wrong)


@pytest.mark.parametrize("wrong", [True, 1.5, "many", None, [2]])
def test_what_is_no_number_of_slices(group2: synk.Group, wrong: Any) -> None:
    x = matrix()
    with pytest.raises(synk.InputTypeError, match="num_slices"):
        make([x], x.sum())(np.ones((3, 2)), num_slices=wrong)


def test_automatic_slices(group: synk.Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """As few as keep temporaries within the budget: one where they fit, more where they do not."""
    x, w = matrix(), shared(np.ones((50, 50)), "w")
    f = make([x], [pt.tanh(x @ w).sum(), (x.shape[0], "max")])
    rows = np.linspace(0, 1, 60 * 50).reshape(60, 50)
    wanted = np.tanh(rows @ np.ones((50, 50))).sum()
    total, longest = f(rows, num_slices="auto")
    same(total, wanted)
    assert longest == -(-60 // group.size)
    # a row has 50 products and as many tanhs, 800 bytes
    monkeypatch.setattr(auto_slices, "BUDGET_BYTES", 10 * 800)
    total, longest = f(rows, num_slices="auto")
    same(total, wanted)
    assert 1 <= longest <= 10
    same(f(rows[:0], num_slices="auto")[0], 0.0)


class _OfMany(Op):
    """An operation that cannot compute few rows, and whose shape only its value tells."""

    __props__ = ()

    def make_node(self, rows: Any) -> Apply:
        return Apply(self, [rows], [rows.type()])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        if len(inputs[0]) < 3:
            raise NotImplementedError
        output_storage[0][0] = 2 * inputs[0]


def test_slices_of_an_operation_whose_shape_is_not_known(group2: synk.Group) -> None:
    """As of operations that only JAX or numba has: then one slice."""
    x = pt.dvector("x")
    f = synk.function([x], (_OfMany()(x).sum(), "sum"), mode=FAST)
    same(f(np.arange(8.0), num_slices="auto"), 56.0)


def test_inputs_by_position_and_name(group: synk.Group) -> None:
    """S17: numpy arrays, lists and numbers; names."""
    x, y = pt.vector("x", dtype="float64"), pt.vector("y", dtype="float64")
    k, b = pt.scalar("k", dtype="float64"), pt.vector("b", dtype="float64")
    f = make([x, y, k], (k * x * y).sum() + b.sum(), bcast_inputs=[In(b, name="bias")])
    v, none = np.array([1.0, 2.0, 3.0]), np.zeros(0)
    same(f(v, v, 3.0, none), 42)
    same(f(v, v, np.float32(3), [1, 1]), 44)
    same(f(y=v, x=v, k=2, bias=np.ones(4)), 32)
    same(f([1, 2, 3], v, bias=none, k=np.array(1.0)), 14)
    same(f(synk.data(v), v, synk.data(1.0), synk.data([1.0])), 15)


@pytest.mark.parametrize("kind", ["shared variable", "container"])
def test_defaults(group: synk.Group, kind: str) -> None:
    """S17: PyTensor's defaults, which are containers; their present value counts."""
    x, k, y = pt.vector("x", dtype="float64"), pt.scalar("k", dtype="float64"), pt.dvector("y")
    s, rows = shared(2.0), shared(np.ones(3))
    take = (lambda v: v) if kind == "shared variable" else (lambda v: v.container)
    f = make([x, In(k, value=take(s)), In(y, value=take(rows))], (k * x * y).sum())
    for _ in range(2):
        same(f(np.ones(3)), 6)
        same(f(x=np.ones(3)), 6)
    s.set_value(7.0)
    same(f(np.ones(3)), 21)
    rows.set_value(np.zeros(3))
    same(f(np.ones(3)), 0)
    with pytest.raises(synk.InputTypeError, match="'x' is missing"):
        f()


@pytest.mark.parametrize(
    ("args", "kwargs", "error", "text"),
    [
        ((), {"k": 1.0}, synk.InputTypeError, "'x' is missing"),
        (([1.0],), {}, synk.InputTypeError, "'k' is missing"),
        ((1, 1), {}, synk.InputTypeError, "'x'"),
        ((None, 1), {}, synk.InputTypeError, "'x' is None"),
        (([1.0],), {"k": None}, synk.InputTypeError, "'k' is None"),
        (([1.0], 2.0, 3.0), {}, synk.InputError, "takes 2 inputs, found 3"),
        (([1.0], 1.0), {"z": 1.0}, synk.InputTypeError, "no input 'z'"),
        (([1.0],), {"x": [1.0]}, synk.InputTypeError, "given twice"),
        (([1.0], [2.0]), {}, synk.InputTypeError, "'k'"),
    ],
)
def test_inputs_that_do_not_fit(
    group2: synk.Group, args: Any, kwargs: Any, error: type[Exception], text: str
) -> None:
    x, k = pt.vector("x", dtype="float64"), pt.scalar("k", dtype="float64")
    f = make([x, k], (k * x).sum())
    for call in (f, f.as_pytensor, f):
        with pytest.raises(error, match=text):
            call(*args, **kwargs)
        same(f(np.ones(3), 1), 3)


WRONG: dict[str, Any] = {
    "float64": np.ones((3, 2), "float64"),
    "complex64": np.ones((3, 2), "complex64"),
    "1-d": np.ones(3, "float32"),
    "3-d": np.ones((3, 2, 1), "float32"),
    "int64": np.ones((3, 2), "int64"),
    "text array": np.array([["a", "b"]]),
    "objects": np.array([[None, None]]),
    "text": "text",
    "nothing": None,
}


@pytest.mark.each_choice
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_types_are_refused(group: synk.Group, wrong: str) -> None:
    """S18: another dtype or ndim never reaches compiled code, nor moves anything."""
    x, b, s = matrix(dtype="float32"), matrix("b", dtype="float32"), shared(0.0, "s")
    f = make([x], x.sum() + b.sum(), bcast_inputs=[b], updates=[(s, s + 1)])
    good = np.ones((3, 2), "float32")
    cases = [(f, "'x'", (WRONG[wrong], good)), (f, "'b'", (good, WRONG[wrong]))]
    cases += [(f.as_pytensor, name, args) for _, name, args in cases]
    for call, name, args in cases:
        with pytest.raises(synk.InputTypeError, match=name) as caught:
            call(*args)
        assert isinstance(caught.value, TypeError)
        assert everywhere(s, group.size) == [0.0] * group.size
    assert f(good, good) == 12


def test_downcasts_where_they_are_asked_for(group2: synk.Group) -> None:
    x = matrix(dtype="float32")
    f = make([x], x.sum(), allow_input_downcast=True)
    assert f(np.ones((3, 2), "float64")) == 6


@pytest.mark.parametrize("shape", [(5,), (5, 3, 2)])
def test_data_of_another_kind_is_refused(group2: synk.Group, shape: tuple[int, ...]) -> None:
    """S18: the same for Data."""
    x = matrix(dtype="float32")
    f = make([x], x.sum())
    for wrong in (synk.data(shape=shape, dtype="float32"), synk.data(shape=(5, 3), dtype="int8")):
        with pytest.raises(synk.InputTypeError, match="'x'"):
            f(wrong)
    with synk.Group(2) as other:
        foreign = synk.data(shape=(5, 3), dtype="float32")
        assert other.alive
        with pytest.raises(synk.InputError, match="another group"):
            f(foreign)
    with pytest.raises(synk.InputError, match="of a closed group"):
        f(foreign)


@pytest.mark.parametrize(
    ("shape", "found", "scattered"),
    [
        ((None, 4), (10, 5), True),
        ((None, 1), (10, 3), True),
        ((1, None), (10, 3), True),
        ((10, 4), (12, 4), True),
        ((1, None), (10, 3), False),
        ((10, None), (12, 4), False),
    ],
)
def test_data_of_a_length_that_the_type_fixes(
    group2: synk.Group, shape: Any, found: Any, scattered: bool
) -> None:
    """PyTensor compiles with the lengths in types, so other Data would give other values."""
    x = pt.tensor("x", shape=shape, dtype="float64")
    inputs = {"inputs": [x]} if scattered else {"inputs": [], "bcast_inputs": [x]}
    f = synk.function(**inputs, outputs=(x.sum(), "sum" if scattered else None), mode=FAST)
    d = synk.data(np.ones(found))
    axis = next(i for i, n in enumerate(shape) if n not in (None, found[i]))
    with pytest.raises(synk.InputError, match=f"length {shape[axis]} along axis {axis}"):
        f(d)
    fits = [n if fixed is None else fixed for n, fixed in zip(found, shape, strict=True)]
    d.set_value(np.ones(fits))
    for _ in range(2):
        assert f(d) == np.prod(fits)
    d.set_value(np.ones(found))  # in place of what fitted
    with pytest.raises(synk.InputError, match="by its type"):
        f(d)
    if scattered and axis == 0:  # the length is that of the rows which are used
        assert f(d, batch=shape[0]) == np.prod([shape[0], found[1]])


def test_what_a_function_cannot_be_made_of(group2: synk.Group) -> None:
    """Refused when it is made, as PyTensor does, and not at its first call."""
    x, w = matrix(), pt.vector("w", dtype="float64")
    with pytest.raises(synk.InputTypeError, match="no parameter 'bcast'"):
        synk.function([x], x.sum(), bcast=[w])
    s = shared(np.zeros(3), "s")
    for outputs, updates in (((x @ w).sum(), None), (None, [(s, w)])):
        with pytest.raises(synk.InputError, match="need w: name all"):
            synk.function([x], outputs, updates=updates, on_unused_input="ignore")
    f = synk.function([x], (x @ w).sum(), givens={w: np.ones(3)}, mode=FAST)
    assert f(np.ones((4, 3))) == 12


def test_an_error_tells_shapes_of_rows(group2: synk.Group) -> None:
    """What was forgotten in bcast_inputs is cut into rows."""
    x, w = matrix(), pt.matrix("w", dtype="float64")
    f = make([x, w], ((x @ w).sum(), "sum"))
    with pytest.raises(ValueError, match="mismatch") as caught:
        f(np.ones((3, 3)), np.ones((3, 1)))
    notes = "".join([*caught.value.__notes__, str(caught.value.__cause__)])
    assert "x (2, 3), w (2, 1)" in notes
    assert "bcast_inputs" in notes
    assert f(np.ones((2, 1)), np.ones((2, 1))) == 2


SELECTIONS: dict[str, Any] = {
    "all": None,
    "int": 5,
    "numpy int": np.int32(5),
    "none of them": 0,
    "slice": slice(2, 6),
    "step": slice(1, 8, 3),
    "reversed": slice(None, None, -1),
    "from the end": slice(-4, None),
    "empty slice": slice(5, 2),
    "list": [3, 1, 1, 7],
    "negative": [-1, 0, -8],
    "tuple": (2, 4),
    "int32": np.array([6, 2], "int32"),
    "uint8": np.array([6, 2, 0], "uint8"),
    "empty list": [],
    "mask": [True, False, True, True, False, False, False, True],
    "array mask": np.arange(8) % 3 == 0,
}


def rows_of(values: Array, batch: Any) -> Array:
    """What a batch means, said in numpy."""
    if batch is None:
        return values
    if isinstance(batch, int | np.integer):
        return values[:batch]
    if isinstance(batch, list | tuple):
        batch = np.array(batch, bool if batch and isinstance(batch[0], bool) else int)
    return values[batch]


@pytest.mark.parametrize("kind", ["numpy", "data", "mixed"])
def test_batches(group: synk.Group, rng: np.random.Generator, kind: str) -> None:
    """S20, S21, S26, S9: rows are selected first and divided after."""
    x, y = matrix(), pt.lvector("y")
    rows, labels = rng.normal(size=(8, 3)), np.arange(8)
    f = make([x, y], [x * 2, y, (x.sum(1) * y).sum()])
    first: Any = synk.data(rows) if kind == "data" else rows
    second: Any = synk.data(labels) if kind != "numpy" else labels
    for name, batch in SELECTIONS.items():
        some, numbers = rows_of(rows, batch), rows_of(labels, batch)
        for num_slices in (1, 2):
            found = f(first, second, batch=batch, num_slices=num_slices)
            np.testing.assert_array_equal(found[0], some * 2, err_msg=name)
            np.testing.assert_array_equal(found[1], numbers, err_msg=name)
            np.testing.assert_allclose(found[2], (some.sum(1) * numbers).sum(), err_msg=name)
    np.testing.assert_array_equal(first[...], rows)


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        (9, IndexError),
        (-1, IndexError),
        ([8], IndexError),
        ([0, -9], IndexError),
        (np.array([0, 255], "uint8"), IndexError),
        ([True, False], IndexError),
        (True, TypeError),
        (2.0, TypeError),
        ([0.0, 1.0], TypeError),
        ([[0, 1]], TypeError),
        ("all", TypeError),
        ({1, 2}, TypeError),
    ],
)
def test_batches_that_do_not_exist(group2: synk.Group, batch: Any, error: type[Exception]) -> None:
    """S20, S21: refused before anything moves."""
    x, s = matrix(), shared(0.0, "s")
    f = make([x], x.sum(), updates=[(s, s + 1)])
    with pytest.raises(error) as caught:
        f(np.ones((8, 2)), batch=batch)
    assert isinstance(caught.value, synk.InputError)
    assert everywhere(s, 2) == [0.0, 0.0]
    assert f(np.ones((8, 2)), batch=8) == 16


def test_a_batch_needs_scattered_inputs(group2: synk.Group) -> None:
    b = pt.vector("b", dtype="float64")
    f = make([], b.sum(), bcast_inputs=[b])
    assert f(np.ones(3)) == 3
    with pytest.raises(synk.InputError, match="batch"):
        f(np.ones(3), batch=2)


@pytest.mark.parametrize("batch", [None, 3, [0, 1]])
def test_lengths_that_differ(group2: synk.Group, batch: Any) -> None:
    """S28: also where a batch would fit both."""
    x, y = matrix(), pt.vector("y", dtype="float64")
    f = make([x, y], x.sum() + y.sum())
    with pytest.raises(synk.InputError, match=r"'x': 5, 'y': 4"):
        f(np.ones((5, 2)), np.ones(4), batch=batch)
    assert f(np.ones((4, 2)), np.ones(4)) == 12


MINIBATCHES: list[tuple[Any, Any]] = [
    (slice(100, 110), range(10)),
    (slice(4, 12, 2), [0, 2, 4, 6]),
    ([107, 103, 103], [0, 1, 2]),
    (np.array([50, 58], "int16"), [0, 1]),
    (np.arange(12) % 3 == 0, [0, 1, 2, 3]),
    (4, range(4)),
    (None, range(10)),
]


@pytest.mark.parametrize(("batch", "wanted"), MINIBATCHES)
def test_minibatch_data_alone(group: synk.Group, batch: Any, wanted: Any) -> None:
    """S27: a list goes by position, the lowest row of a slice is row 0; no length bounds either."""
    x, y = matrix(), pt.lvector("y")
    rows = np.arange(20.0).reshape(10, 2)
    f = make([x, y], [x, y])
    mini = synk.data(rows, minibatch=True), synk.data(np.arange(10), minibatch=True)
    found = f(*mini, batch=batch)
    same(found[0], rows[list(wanted)])
    assert found[1].tolist() == list(wanted)


@pytest.mark.parametrize("batch", [slice(3, 7), [6, 3, 4], np.arange(8) // 4 == 1, slice(6, 2, -1)])
def test_minibatch_data_beside_whole(group: synk.Group, batch: Any) -> None:
    """S27: the minibatch has the rows of the batch: in its order, for a slice from the lowest."""
    x, y = matrix(), pt.lvector("y")
    rows, labels = np.arange(16.0).reshape(8, 2), np.arange(8)
    own = slice(3, 7) if isinstance(batch, slice) else batch
    mini = synk.data(rows[own], minibatch=True)
    found = make([x, y], [x, y])(mini, labels, batch=batch)
    same(found[0], rows[batch])
    assert found[1].tolist() == labels[batch].tolist()


@pytest.mark.parametrize("batch", [slice(0, 5), [1] * 5, slice(None, None), slice(-2, None), [-1]])
def test_minibatches_that_do_not_reach(group2: synk.Group, batch: Any) -> None:
    """S27: batches longer than the minibatch, or counted from an end that it does not have."""
    x = matrix()
    f = make([x], x.sum())
    mini = synk.data(np.ones((4, 2)), minibatch=True)
    with pytest.raises(IndexError):
        f(mini, batch=batch)
    assert f(mini) == 8


def test_minibatches_follow_each_other(group2: synk.Group) -> None:
    """One Data, refilled; the batch moves on."""
    x = matrix()
    f = make([x], x * 1)
    mini = synk.data(shape=(4, 1), dtype="float64", minibatch=True)
    whole = np.arange(12.0).reshape(12, 1)
    for start in (0, 4, 8):
        mini[...] = whole[start : start + 4]
        same(f(mini, batch=slice(start, start + 4)), whole[start : start + 4])
        same(f(mini), whole[start : start + 4])


def test_data_become_a_minibatch(group: synk.Group) -> None:
    """Between two calls that are alike otherwise."""
    x = matrix()
    f, rows = make([x], x * 1), np.arange(6.0).reshape(6, 1)
    d = synk.data(rows)
    for minibatch in (False, True, False):
        d.minibatch = minibatch
        for _ in range(2):
            same(f(d, batch=[5, 3, 0]), rows[[0, 1, 2] if minibatch else [5, 3, 0]])


@pytest.mark.parametrize("form", [dict, list])
def test_givens(group: synk.Group, rng: np.random.Generator, form: type) -> None:
    """S16: all uses are replaced, of sliceable shared variables too."""
    x, y = matrix(), matrix("y")
    s, k = shared(rng.normal(size=(6, 2)), "s"), shared(3.0, "k")
    rows = rng.normal(size=(6, 2))
    givens = form({y: s * k, k: pt.constant(2.0)}.items())
    f = make([], [y.sum(), (y + s).sum()], givens=givens, sliceable_shareds=[s])
    total = s.get_value().sum()
    synk.scatter(s)
    # givens are carried out all at once: k inside of s * k stays k
    for num_slices in (1, 2):
        same(f(num_slices=num_slices), [3 * total, 4 * total])
    g = make([x], x.sum() + y.sum(), givens=form({y: x * 2}.items()))
    same(g(rows), 3 * rows.sum())


def test_givens_reach_updates_and_shared_variables(group2: synk.Group) -> None:
    """S16: a shared variable is replaced in outputs and updates alike, and gets no slice itself."""
    x, s, u = matrix(), shared(np.ones((4, 2)), "s"), shared(0.0, "u")
    f = make([x], (x * s).sum(), updates=[(u, s.sum(), "sum")], givens=[(s, x + 1)])
    rows = np.arange(8.0).reshape(4, 2)
    same(f(rows, num_slices=2), (rows * (rows + 1)).sum())
    same(everywhere(u, 2), [(p + 1).sum() for p in parts_of(rows, 2)])
    assert s not in f.get_shared()


def test_as_pytensor(group: synk.Group, rng: np.random.Generator) -> None:
    """S19: takes Data; what it updates travels to the others with the next call."""
    x, s = matrix(), shared(1.0, "s")
    f = make([x], {"a": x.sum() * s, "b": (x, "gather")}, updates=[(s, s + x.sum(), "sum")])
    rows = rng.normal(size=(5, 3))
    found = f.as_pytensor(synk.data(rows))
    assert list(found) == ["a", "b"]
    same(found["a"], rows.sum())
    same(found["b"], rows)
    after = 1.0 + rows.sum()
    same(s.get_value(), after)
    same(f(rows)["a"], rows.sum() * after)
    assert f.as_theano == f.as_pytensor
    same(f.as_theano(x=rows)["b"], rows)


def test_as_pytensor_keeps_replicas_together(group: synk.Group) -> None:
    """S19: collectives see the master's new values as calls do."""
    s = shared(1.0, "s")
    f = make([], s * 1.0, updates=[(s, s + 1)])
    f()
    f.as_pytensor()
    assert everywhere(s, group.size) == [3.0] * group.size
    assert f() == 3.0
    assert everywhere(s, group.size) == [4.0] * group.size


def test_build_inputs(group: synk.Group) -> None:
    x, y, b = matrix(dtype="float32"), pt.lvector("y"), pt.vector("b", dtype="float32")
    f = make([x, y], (x.sum(1) * y).sum() + b.sum(), bcast_inputs=[b])
    rows = np.ones((4, 2), "float32")
    made = f.build_inputs(rows, np.arange(4), b=np.zeros(1, "float32"))
    assert [d.name for d in made] == ["x", "y", "b"]
    assert [d.dtype.name for d in made] == ["float32", "int64", "float32"]
    assert f(*made) == 12
    made = f.build_inputs(rows.astype("float64"), force_cast=True, oversize=2)
    assert made[0].alloc_size >= 16
    assert [d.shape for d in made] == [(4, 2), (0,), (0,)]
    flags = f.build_inputs(minibatch=[True, False, False])
    assert [d.minibatch for d in flags] == [True, False, False]
    assert all(d.minibatch for d in f.build_inputs(minibatch=True))
    assert isinstance(make([x], x.sum()).build_inputs(rows), synk.Data)
    with pytest.raises(synk.InputTypeError):
        f.build_inputs(rows.astype("float64"))
    with pytest.raises(synk.InputError):
        f.build_inputs(rows, rows, rows, rows)
    with pytest.raises(synk.InputTypeError):
        f.build_inputs(z=rows)
    with pytest.raises(synk.InputError, match=r"3 inputs.*minibatch= has 1"):
        f.build_inputs(minibatch=[True])
    with pytest.raises(synk.InputTypeError, match="'x' is given twice"):
        f.build_inputs(rows, x=rows)


def test_what_a_function_tells_of_itself(group2: synk.Group) -> None:
    """S7: name, output_modes, update_modes, get_shared."""
    x, s, t = matrix(), shared(0.0, "s"), shared(np.ones(2), "t")
    f = make(
        [x],
        {"mean": (x @ t).mean(), "own": (x.sum(), None), "most": (x.max(), "c_max"), "t": t.sum()},
        updates=[(s, x.sum(), "sum"), (t, t * 2)],
        name="f",
    )
    assert f.name == "f"
    assert f.output_modes == {"mean": "avg", "own": None, "most": "max", "t": None}
    assert f.update_modes == {s: "sum", t: None}
    assert set(f.get_shared()) == {s, t}
    assert "f(x)" in repr(f)
    assert make([x], x.sum()).output_modes == "sum"
    assert make([x], [x.sum() + t.sum(), x.mean() + 1]).output_modes == ["inferred", "avg"]


def draws(seed: int = 7) -> tuple[Any, Any, Any, dict[Any, Any]]:
    """Rows x, a generator, numbers drawn from it for each element of x, and the update of it."""
    x = matrix()
    generator = pytensor.shared(np.random.default_rng(seed), name="generator")
    after, noise = pt.random.normal(size=x.shape, rng=generator, return_next_rng=True)
    return x, generator, noise, {generator: after}


ZEROS = np.zeros((6, 2))


def test_streams_are_independent_and_reproducible(size: int) -> None:
    """S30: a stream for each rank, a function of seed and rank; the next call goes on."""
    found = []
    for _ in range(2):
        with synk.Group(size):
            x, _, noise, after = draws()
            f = make([x], (noise, "gather"), updates=after)
            found.append([f(ZEROS) for _ in range(3)])
    np.testing.assert_array_equal(found[0], found[1])
    values = np.array(found[0]).ravel()
    assert len(np.unique(values)) == values.size
    with synk.Group(size):
        x, _, noise, after = draws(8)
        other = make([x], (noise, "gather"), updates=after)(ZEROS)
    assert not np.isin(other, values).any()


def test_streams_advance_from_slice_to_slice(group: synk.Group) -> None:
    """S30: slices of one part do not draw the same numbers, nor does the call after."""
    x, _, noise, after = draws()
    f = make([x], (noise, "gather"), updates=after)
    drawn = np.concatenate([f(np.zeros((12, 2)), num_slices=4) for _ in range(2)])
    assert len(np.unique(drawn)) == drawn.size


def test_a_group_of_one_draws_as_pytensor_does() -> None:
    x, _, noise, after = draws()
    f = serial([x], noise, updates=after)
    wanted = [f(ZEROS) for _ in range(2)]
    with synk.Group(1):
        x, _, noise, after = draws()
        g = make([x], noise, updates=after)
        for value in wanted:
            np.testing.assert_array_equal(g(ZEROS), value)


def test_seeding_again_reaches_all_streams(group: synk.Group) -> None:
    """The master's set_value of a generator starts every member's stream anew."""
    x, generator, noise, after = draws()
    f = make([x], (noise, "gather"), updates=after)
    first = f(ZEROS)
    second = f(ZEROS)
    generator.set_value(np.random.default_rng(7))
    np.testing.assert_array_equal(f(ZEROS), first)
    np.testing.assert_array_equal(f(ZEROS), second)
    synk.broadcast(generator)
    assert not (f(ZEROS) == first).any()


def test_streams_move_where_functions_say_so(group: synk.Group) -> None:
    """S30: by default_update too; a function without an update draws the same again."""
    x, generator, noise, after = draws()
    still = make([x], (noise, "gather"))
    np.testing.assert_array_equal(still(ZEROS), still(ZEROS))
    with pytest.warns(DeprecationWarning, match="default_update"):
        generator.default_update = after[generator]
    f = make([x], (noise, "gather"))
    drawn = [f(ZEROS) for _ in range(3)]
    assert len(np.unique(drawn)) == 36


def test_members_without_rows_draw_on(group: synk.Group) -> None:
    """S9, S30: after small batches, too, no number is drawn twice."""
    x, _, noise, after = draws()
    f = make([x], (noise, "gather"), updates=after)
    drawn = np.concatenate([f(np.zeros((n, 2))) for n in (6, 1, 0, 6, 2, 6)])
    assert len(np.unique(drawn)) == drawn.size == 42


def test_a_failed_call_draws_nothing(group: synk.Group) -> None:
    """All or nothing holds for streams."""
    x, _, noise, after = draws()
    f = make([x], (noise + Fussy()(x), "gather"), updates=after)
    bad = ZEROS.copy()
    bad[-1] = -1
    first = f(ZEROS)
    with pytest.raises(ValueError, match="negative"):
        f(bad)
    second = f(ZEROS)
    x, _, noise, after = draws()
    g = make([x], (noise + Fussy()(x), "gather"), updates=after)
    np.testing.assert_array_equal(g(ZEROS), first)
    np.testing.assert_array_equal(g(ZEROS), second)


@pytest.mark.parametrize("form", ["list", "dict", "dict of pairs", "OrderedDict"])
def test_every_form_of_updates(group: synk.Group, form: str) -> None:
    """S15: dicts and lists, with reductions or without."""
    x, s, t = matrix(), shared(0.0, "s"), shared(5.0, "t")
    new_s, new_t = x.sum(), t * 2
    updates: Any = {
        "list": [(s, new_s, "sum"), (t, new_t)],
        "dict": {s: new_s, t: new_t},
        "dict of pairs": {s: (new_s, "sum"), t: (new_t, "avg")},
        "OrderedDict": OrderedDict([(s, new_s), (t, new_t)]),
    }[form]
    rows = np.arange(10.0).reshape(5, 2)
    make([x], updates=updates)(rows, num_slices=2)
    same(everywhere(s, group.size), [p.sum() for p in parts_of(rows, group.size)])
    assert everywhere(t, group.size) == [10.0] * group.size


@pytest.mark.parametrize(
    "update",
    [
        lambda s: (s,),
        lambda s: (s, s + 1, "sum", "some"),
        lambda s: (s, s + 1, "sum", "all", 1),
        lambda s: (s + 1, s),
        lambda s: (s, pt.vector("v", dtype="float64")),
        lambda s: (s, "text"),
    ],
)
def test_updates_that_make_no_sense(group2: synk.Group, update: Callable[[Any], Any]) -> None:
    s = shared(0.0, "s")
    with pytest.raises(synk.InputError):
        make([], updates=[update(s)], on_unused_input="ignore")
    with pytest.raises(synk.InputError, match="twice"):
        make([], updates=[(s, s + 1), (s, s + 2)])


@pytest.mark.parametrize("name", ["updates", "givens"])
def test_pairs_that_are_not_in_a_list(group2: synk.Group, name: str) -> None:
    """What is forgotten most: the list around one pair."""
    x, s, v = matrix(), shared(0.0, "s"), shared(np.zeros(2), "v")
    for wrong in ((s, x.sum()), (v, x[0]), s, 3, [s], [(s,)]):
        with pytest.raises(synk.InputError, match=f"^{name}.* pair"):
            make([x], x.sum() + s, **{name: wrong})


def test_updates_are_local(group: synk.Group, rng: np.random.Generator) -> None:
    """S31: each member keeps its own value; members without rows keep the one they have."""
    x, s = matrix(), shared(0.0, "s")
    f = make([x], s * 1.0, updates=[(s, s + x.sum())])
    held = [0.0] * group.size
    for length in (7, 2, 1):
        rows = rng.normal(size=(length, 3))
        f(rows)
        for rank, part in enumerate(parts_of(rows, group.size)):
            held[rank] += part.sum()
        same(everywhere(s, group.size), held)
    synk.all_reduce(s, "sum")
    same(everywhere(s, group.size), [sum(held)] * group.size)


@pytest.mark.each_choice
@pytest.mark.parametrize("rows", [1, 2, 5, 8])
@pytest.mark.parametrize("num_slices", [1, 3])
def test_updates_for_all(
    group: synk.Group, rng: np.random.Generator, rows: int, num_slices: int
) -> None:
    """S31: with "all" an update is reduced over members as an output is, exactly."""
    x = matrix()
    values = rng.normal(size=(rows, 3))
    variables = {op: shared(np.zeros(3), op) for op in SLICED_UPDATES}
    free = shared(1.0, "free")
    updates: list[Any] = [
        (s, SLICED_UPDATES[op][0](s, x), op, "all") for op, s in variables.items()
    ]
    f = make([x], x.sum(), updates=[*updates, (free, free * 2, "avg", "all")])
    held = {op: np.zeros(3) for op in variables}
    for n in range(2):
        same(f(values + n, num_slices=num_slices), (values + n).sum())
        for op, s in variables.items():
            held[op] = SLICED_UPDATES[op][1](held[op], values + n)
            found = everywhere(s, group.size)
            same(found, [held[op]] * group.size)
            assert all(np.array_equal(v, found[0]) for v in found)
    assert everywhere(free, group.size) == [4.0] * group.size


@pytest.mark.parametrize("op", ["gather", None])
def test_updates_for_all_that_cannot_be(group2: synk.Group, op: str | None) -> None:
    """Refused when the function is made, not in the members."""
    x, s = matrix(), shared(np.zeros((1, 2)), "s")
    with pytest.raises(synk.InputError, match="all"):
        make([x], updates=[(s, x, op, "all")])


def test_integers_averaged_for_all_are_rounded(group2: synk.Group) -> None:
    """S11."""
    x, n = pt.lvector("x"), shared(np.int32(0), "n")
    make([x], updates=[(n, x.max().astype("int32"), "avg", "all")])(np.array([2, 2, 3]))
    assert [int(v) for v in everywhere(n, 2)] == [2, 2]
    assert synk.get_value(1, n).dtype == np.int32


def test_updates_without_rows(group: synk.Group) -> None:
    """S9: what does not depend on rows is updated in members that have none."""
    x, t, s = matrix(), shared(0, "t"), shared(0.0, "s")
    f = make([x], x.sum(), updates=[(t, t + 1), (s, x.sum(), "sum", "all")])
    for n in range(3):
        f(np.full((n, 2), 1.0))
        assert everywhere(t, group.size) == [n + 1] * group.size
        assert everywhere(s, group.size) == [2.0 * n] * group.size


FAILURES: dict[str, tuple[Callable[[Any], Any], type[Exception]]] = {
    "an Op raises": (lambda x: Fussy()(x).sum(), ValueError),
    "wrap_py raises": (lambda x: fussy(x).sum(), ZeroDivisionError),
    "shapes do not fit": (lambda x: (x[:, 0] + rank_shaped(x)).sum(), Exception),
}


@pytest.mark.pairwise
@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("num_slices", [1, 2])
@pytest.mark.parametrize("where", ["first", "last"])
def test_all_or_nothing(group: synk.Group, failure: str, num_slices: int, where: str) -> None:
    """A call that raises in one member leaves every replica bit-equal to before."""
    x = matrix()
    local, total, count = shared(1.0, "local"), shared(np.ones(3), "total"), shared(0, "count")
    build, error = FAILURES[failure]
    f = make(
        [x],
        [build(x), x.sum()],
        updates=[
            (local, local + x.sum(), "sum"),
            (total, x.sum(0), "sum", "all"),
            (count, count + 1),
        ],
    )
    good = np.arange(18.0).reshape(6, 3)
    bad = good.copy()
    bad[0 if where == "first" else -1] = -1.0
    if where == "last" and failure == "shapes do not fit":
        bad = good.copy()
        bad[edges(6, group.size)[-2]] = -1.0
    for attempt in range(2):  # before the function is compiled, and after
        before = [everywhere(v, group.size) for v in (local, total, count)]
        held = local.get_value(borrow=True)
        with pytest.raises(error) as caught:
            f(bad, num_slices=num_slices)
        if group.size > 1 and where == "last":
            assert isinstance(caught.value, synk.WorkerError)
            assert caught.value.rank == group.size - 1
        after = [everywhere(v, group.size) for v in (local, total, count)]
        for a, b in zip(before, after, strict=True):
            for one, other in zip(a, b, strict=True):
                np.testing.assert_array_equal(one, other)
        assert local.get_value(borrow=True) is held
        same(f(good, num_slices=num_slices)[1], good.sum())
        assert everywhere(count, group.size) == [attempt + 1] * group.size


def test_a_result_that_cannot_be_made_undoes_the_call(group2: synk.Group) -> None:
    """All or nothing: parts that do not go together are found by the master, and nothing stands."""
    x, s = matrix(), shared(0, "s")
    ragged = rank_shaped(x)
    for op in ("max", "sum"):
        f = make([x], (ragged, op), updates=[(s, s + 1)])
        bad = np.array([[1.0], [1.0], [-1.0], [1.0]])
        with pytest.raises(Exception, match=r"."):
            f(bad)
        assert everywhere(s, 2) == [0, 0]
    f = make([x], (ragged, "gather"), updates=[(s, s + 1)])
    assert len(f(bad)) == 5


@pytest.mark.parametrize("op", ["avg", "sum", "max"])
def test_parts_of_different_shapes_are_an_error(group2: synk.Group, op: str) -> None:
    """S67: values with one element for each row are not broadcast against each other."""
    x, s = matrix(), shared(0, "s")
    f = make([x], (x.sum(1), op), updates=[(s, s + 1)])
    assert f(np.ones((4, 2))).shape == (2,)
    for rows, num_slices in ((3, 1), (6, 2)):  # unequal parts, unequal slices
        with pytest.raises(ValueError, match="shape"):
            f(np.ones((rows, 2)), num_slices=num_slices)
    assert everywhere(s, 2) == [1, 1]


def test_averages_of_float16_over_slices(group: synk.Group) -> None:
    """S8, S44: no partial sum leaves the range of float16."""
    x = matrix(dtype="float16")
    rows = np.full((48, 2), 20_000, "float16")
    mean, total = make([x], [(x.max(0), "avg"), (x.max(), "avg")])(rows, num_slices=2)
    assert mean.tolist() == [20_000] * 2
    assert total == 20_000
    assert mean.dtype == total.dtype == np.float16


def test_the_masters_values_win(group: synk.Group) -> None:
    """The master's set_value travels with the next call, by value and by identity."""
    x, s = matrix(), shared(np.ones(2), "s")
    f = make([x], (x * s).sum())
    rows = np.ones((6, 2))
    assert f(rows) == 12
    s.set_value(np.array([2.0, 3.0]))
    assert f(rows) == 30
    s.set_value(np.array([0.0, 1.0]), borrow=True)
    assert f(rows) == 6
    s.set_value(np.array([5.0, 5.0]))
    same(everywhere(s, group.size), [[5.0, 5.0]] * group.size)
    s.container.storage[0] = np.zeros(2)
    assert f(rows) == 0


def test_a_value_of_another_shape_travels(group: synk.Group) -> None:
    s = shared(np.ones(2), "s")
    f = make([], s.sum(), updates=[(s, s * 2)])
    assert f() == 2
    s.set_value(np.ones(5))
    assert f() == 5
    same(everywhere(s, group.size), [np.full(5, 2.0)] * group.size)


def told_of(group: synk.Group) -> Any:
    """Within it, the master warns of values that differ; a group of one never does."""
    if group.size == 1:
        return contextlib.nullcontext()
    return pytest.warns(synk.ReplicaWarning, match=r"variable s .*synk\.broadcast")


def test_values_that_differ_are_kept(group: synk.Group) -> None:
    """The master's set_value on a variable made to differ warns and names synk.broadcast."""
    x, s = matrix(), shared(np.zeros(1), "s")
    f = make([x], (x.sum() * s, "gather"))
    rows = np.ones((group.size, 1))
    synk.scatter(s, np.arange(float(group.size)))
    same(f(rows), np.arange(group.size))
    s.set_value(np.array([9.0]))
    with told_of(group):
        same(f(rows), [9.0, *range(1, group.size)])
    f(rows)  # and not again: warnings are errors
    synk.broadcast(s)
    same(f(rows), [9.0] * group.size)
    s.set_value(np.array([4.0]))
    same(f(rows), [4.0] * group.size)


@pytest.mark.parametrize("how", ["set_value", "update"])
def test_what_makes_values_differ(group: synk.Group, how: str) -> None:
    """The same after set_value(rank) and after a local update; a group of one never warns."""
    x, s = matrix(), shared(1.0, "s")
    g = make([x], x.sum(), updates=[(s, s + x.sum())])
    f = make([x], (s * x.sum(), "gather"))
    rows = np.ones((group.size, 1))
    held = [1.0] * group.size
    if how == "set_value":
        synk.set_value(group.size - 1, s, np.array(2.0))
        held[-1] = 2.0
    else:
        g(rows)
        held = [2.0] * group.size
    s.set_value(7.0)
    with told_of(group):
        same(f(rows), [7.0, *held[1:]])


def test_values_that_differ_where_no_rows_are_involved(group2: synk.Group) -> None:
    """An output without rows is the average where members hold different values, in repeats too."""
    s = shared(1.0, "s")
    f = make([], s * 2)
    for _ in range(2):
        for _ in range(3):
            assert f() == 2.0
        synk.set_value(1, s, np.array(3.0))
        for _ in range(3):
            assert f() == 4.0
        synk.broadcast(s)


def test_functions_may_be_made_at_any_time(group: synk.Group) -> None:
    """S77: after distribute, and after calls."""
    x, s = matrix(), shared(1.0, "s")
    rows = np.ones((5, 2))
    f = make([x], x.sum() * s)
    synk.distribute()
    g = make([x], x.sum() * s * 2)
    assert f(rows) == 10
    assert g(rows) == 20
    t = shared(3.0, "t")
    h = make([x], x.sum() * s * t, updates=[(s, s + 1)])
    assert h(rows) == 30
    assert f(rows) == 20
    synk.distribute()
    synk.distribute()
    assert g(rows) == 40


@pytest.mark.new_group
def test_one_variable_in_two_functions_is_one(group: synk.Group) -> None:
    """Also where they were shipped apart."""
    s = shared(np.zeros(2), "s")
    f = make([], updates=[(s, s + 1)])
    f()
    g = make([], (s.sum(), "gather"))
    assert g().tolist() == [2.0] * group.size
    f()
    assert g().tolist() == [4.0] * group.size
    assert group.run(Known()) == [1] * group.size
    h = make([], updates=[(s, s * 10)])
    h()
    assert g().tolist() == [40.0] * group.size


@pytest.mark.new_group
def test_functions_dropped_are_forgotten(group: synk.Group) -> None:
    x = matrix()
    f, g = make([x], x.sum()), make([x], x.max())
    rows = np.ones((4, 2))
    assert (f(rows), g(rows)) == (8, 1)
    assert [len(held) for held in group.run(Replicas())] == [2] * group.size
    del f
    gc.collect()
    h = make([x], x.min())
    assert (g(rows), h(rows)) == (1, 1)
    assert [len(held) for held in group.run(Replicas())] == [2] * group.size


X = pt.matrix("x", dtype="float64")
Y = pt.lvector("y")
W = pytensor.shared(np.linspace(-1, 1, 12).reshape(3, 4), name="w")
B = pytensor.shared(np.zeros(4), name="b")
_probabilities = pt.special.softmax(X @ W + B, axis=1)
_loss = -pt.log(_probabilities[pt.arange(Y.shape[0]), Y]).mean()
_l2 = (W**2).sum()

EXACT: dict[str, Any] = {
    "mean": X.mean(),
    "mean over rows": X.mean(0),
    "mean over columns": X.mean(1),
    "sum of squares": (X**2).sum(),
    "kept dims": X.sum(0, keepdims=True),
    "row by row": X @ W,
    "max": X.max(),
    "min over rows": X.min(0),
    "product of rows": X.T @ X,
    "cross-entropy": _loss,
    "mean and penalty": _loss + 0.1 * _l2,
    "sum and penalty": (X @ W).sum() + _l2,
    "errors": pt.neq(pt.argmax(_probabilities, axis=1), Y).mean(),
    "gradient of the loss": pytensor.grad(_loss, W),
    "gradient with penalty": pytensor.grad(_loss + 0.1 * _l2, W),
    "gradient of b": pytensor.grad(_loss, B),
    "masked mean": (X[:, 0] * (Y > 0)).sum() / (Y > 0).sum(),
    "weighted mean": (X[:, 0] * X[:, 1] ** 2).sum() / (X[:, 1] ** 2).sum(),
    "no rows": _l2,
    "number of rows": X.shape[0],
    "affine": 3.0 * X.sum() - 2.0,
}


@pytest.mark.each_choice
@pytest.mark.parametrize("length", [1, 2, 7, 10])
def test_inferred_reductions_are_exact(
    group: synk.Group, rng: np.random.Generator, length: int
) -> None:
    """S8, S9: for any split and any slices the serial value, nothing named and no warning."""
    rows, labels = rng.normal(size=(length, 3)), rng.integers(0, 4, length)
    labels[0] = 1
    wanted = serial([X, Y], list(EXACT.values()))(rows, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f = make([X, Y], dict(EXACT))
    for num_slices in (1, 2, 5):
        found = f(rows, labels, num_slices=num_slices)
        for name, value in zip(EXACT, wanted, strict=True):
            np.testing.assert_allclose(found[name], value, rtol=1e-10, atol=1e-12, err_msg=name)
            assert np.shape(found[name]) == np.shape(value), name
    picks = rng.integers(-length, length, 2 * length)
    wanted = serial([X, Y], list(EXACT.values()))(rows[picks], labels[picks])
    if (labels[picks] > 0).any():
        for value, exact in zip(f(rows, labels, batch=picks).values(), wanted, strict=True):
            np.testing.assert_allclose(value, exact, rtol=1e-10, atol=1e-12)


def test_without_inference(rng: np.random.Generator) -> None:
    """infer=False gives the averages of 2017, weighted by rows."""
    x, rows = matrix(), rng.normal(size=(7, 3))
    with synk.Group(2, infer=False):
        f = make([x], [x.sum(), x.max(0), (x, "gather"), x.mean()])
        assert f.output_modes == ["avg", "avg", "gather", "avg"]
        total, most, itself, mean = f(rows)
    parts = parts_of(rows, 2)
    same(total, np.average([p.sum() for p in parts], weights=[4, 3]))
    same(most, np.average([p.max(0) for p in parts], 0, weights=[4, 3]))
    same(itself, rows)
    same(mean, rows.mean())


def test_one_warning_for_what_is_not_proved(group2: synk.Group, rng: np.random.Generator) -> None:
    """It says which output, why, and how to name a reduction; a named one is not warned about."""
    x, rows = matrix(), rng.normal(size=(7, 3))
    with pytest.warns(synk.ReductionWarning) as told:
        f = make([x], [x.std(), x.mean()], name="spread")
    [text] = [str(w.message) for w in told]
    assert "spread" in text
    assert '"avg")' in text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            same(f(rows)[0], np.average([p.std() for p in parts_of(rows, 2)], weights=[4, 3]))
        make([x], [(x.std(), "avg"), (pt.sort(x, 0), "max")], name="named")


def test_updates_by_rows_are_told_of_once(
    group2: synk.Group, caplog: pytest.LogCaptureFixture
) -> None:
    """S31: a local update that depends on scattered rows is named in the log."""
    x, s, t, u = matrix(), shared(0.0, "s"), shared(0.0, "t"), shared(0.0, "u")
    with caplog.at_level(logging.INFO, "synkhronos"):
        updates = [(s, x.sum(), "sum"), (t, t + 1), (u, x.sum(), "sum", "all")]
        f = make([x], updates=updates)
        for _ in range(3):
            f(np.ones((4, 2)))
    told = [r.getMessage() for r in caplog.records if "depends on scattered rows" in r.getMessage()]
    assert len(told) == 1
    assert "all_reduce" in told[0]
    assert "update of s " in told[0]


PENALISED: dict[str, Callable[[Any, Any], Any]] = {
    "sum and penalty": lambda x, w: (x**2).sum() + (w**2).sum(),
    "sum less a constant": lambda x, w: x.sum() - 3.0,
}


@pytest.mark.parametrize("graph", PENALISED)
@pytest.mark.parametrize("op", ["avg", "sum"])
def test_reductions_that_are_provably_wrong(group2: synk.Group, graph: str, op: str) -> None:
    """An explicit reduction wins, except one that counts a term wrongly."""
    x, w = matrix(), shared(np.ones(3), "w")
    with pytest.raises(synk.InputError, match="term"):
        make([x], (PENALISED[graph](x, w), op))
    assert make([x], PENALISED[graph](x, w))(np.zeros((3, 3))) in (3.0, -3.0)


@pytest.mark.parametrize("op", ["sum", "prod"])
def test_totals_of_what_all_members_have_alike(group2: synk.Group, op: str) -> None:
    """They would count members and slices; beside no rows they count members, as in 2017."""
    x, w = matrix(), shared(np.full(2, 3.0), "w")
    with pytest.raises(synk.InputError, match="same in all members"):
        make([x], [x.sum(), (w.sum(), op)])
    f = make([x], [x.sum(), (w.sum(), "avg"), (w.sum(), "max"), (w.sum(), None)])
    for num_slices in (1, 2):
        assert f(np.ones((4, 1)), num_slices=num_slices) == [4.0, 6.0, 6.0, 6.0]
    assert make([], (w.sum(), op))() == {"sum": 12.0, "prod": 36.0}[op]


def test_sparse_rows_are_not_divided(group2: synk.Group) -> None:
    """Refused by name; as a broadcast input a sparse matrix is as any other value."""
    sparse = pytest.importorskip("pytensor.sparse")
    scipy = pytest.importorskip("scipy.sparse")
    x, m = matrix(), sparse.csr_matrix("ratings", dtype="float64")
    total = sparse.dense_from_sparse(m).sum()
    with pytest.raises(synk.InputTypeError, match=r"ratings.*bcast_inputs"):
        make([m], total)
    f = make([x], [x.sum(), total], bcast_inputs=[m])
    assert f(np.ones((2, 2)), scipy.csr_matrix(np.eye(3))) == [4.0, 3.0]


def test_updates_that_are_provably_wrong(group2: synk.Group) -> None:
    """The same for updates reduced over members: s + x.sum() summed counts s once for each."""
    x, s = matrix(), shared(1.0, "s")
    with pytest.raises(synk.InputError, match="term") as caught:
        make([x], updates=[(s, s + x.sum(), "sum", "all")])
    assert "variable of its own" in str(caught.value)


def sliced_function(
    rng: np.random.Generator, scattered: bool = False
) -> tuple[synk.Function, Any, Any, Array, Array]:
    """A function of two sliceable shared variables (and of a scattered input), and their values."""
    rows, labels = rng.normal(size=(9, 2)), np.arange(9)
    s, t = shared(rows[:1], "s"), shared(labels[:1], "t")
    if scattered:
        x = pt.vector("x", dtype="float64")
        f = make([x], [s * 2, t, (s.sum(1) * t * x).sum()], sliceable_shareds=[s, t])
    else:
        f = make([], [s * 2, t, (s.sum(1) * t).sum()], sliceable_shareds=[s, t])
    return f, s, t, rows, labels


SELECTIONS_S: dict[str, Any] = {
    "all": None,
    "int": 2,
    "none of them": 0,
    "slice": slice(1, 3),
    "step": slice(None, None, 2),
    "reversed": slice(None, None, -1),
    "list": [2, 0, 0],
    "negative": [-1, -3],
    "int32": np.array([1, 0], "int32"),
    "empty": [],
}


@pytest.mark.parametrize("num_slices", [1, 2])
def test_batch_s(group: synk.Group, rng: np.random.Generator, num_slices: int) -> None:
    """S22, S24, S26: every kind of selection of each member's own rows, after the scatter."""
    f, s, t, rows, labels = sliced_function(rng)
    synk.scatter([s, t], [rows, labels])
    for name, wanted in SELECTIONS_S.items():
        some = np.concatenate([rows_of(p, wanted) for p in parts_of(rows, group.size)])
        numbers = np.concatenate([rows_of(p, wanted) for p in parts_of(labels, group.size)])
        for _ in range(2):
            found = f(batch_s=wanted, num_slices=num_slices)
            np.testing.assert_array_equal(found[0], some * 2, err_msg=name)
            np.testing.assert_array_equal(found[1], numbers, err_msg=name)
            np.testing.assert_allclose(found[2], (some.sum(1) * numbers).sum(), err_msg=name)


def test_batch_s_for_each_member(group: synk.Group, rng: np.random.Generator) -> None:
    """S24, S25: one selection for each, of any length and kind; the user's list is left alone."""
    f, s, t, rows, labels = sliced_function(rng)
    synk.scatter([s, t], [rows, labels])
    kinds: list[Sequence[Any]] = [
        [slice(0, 2), [1, 0, 1], np.array([2])],
        [[0], [], slice(None, None, -1)],
        [None, slice(0, 1), [-1]],
        [np.array([], int), np.array([1]), np.array([0, 1])],
        [[0, 1], [1, 2], [2, 0]],
    ]
    for kind in kinds:
        given = list(kind[: group.size])
        copies = list(given)
        parts = [rows_of(p, b) for p, b in zip(parts_of(rows, group.size), given, strict=True)]
        same(f(batch_s=given)[0], np.concatenate(parts) * 2)
        same(f(batch_s=tuple(given), num_slices=2)[0], np.concatenate(parts) * 2)
        assert all(a is b for a, b in zip(given, copies, strict=True))


def test_batch_s_masks(group2: synk.Group, rng: np.random.Generator) -> None:
    f, s, t, rows, labels = sliced_function(rng)
    synk.scatter([s, t], [rows[:6], labels[:6]])
    mask = [True, False, True]
    assert f(batch_s=mask)[1].tolist() == [0, 2, 3, 5]
    assert f(batch_s=[np.array(mask), np.array([False] * 3)])[1].tolist() == [0, 2]
    for rows in (synk.data([0, 2]), range(0, 3, 2)):  # workers have no group to unpickle Data in
        assert f(batch_s=rows)[1].tolist() == [0, 2, 3, 5]


@pytest.mark.parametrize(
    ("batch_s", "error"),
    [
        (4, IndexError),
        ([3], IndexError),
        ([0, -4], IndexError),
        ([True, False], IndexError),
        ([[0], [3]], IndexError),
        (-1, IndexError),
        (1.5, TypeError),
        ([0.5, 0.5], TypeError),
        (True, TypeError),
        ("x", TypeError),
    ],
)
def test_batch_s_that_does_not_exist(
    group2: synk.Group, rng: np.random.Generator, batch_s: Any, error: type[Exception]
) -> None:
    """S21, S22: index errors, and the group goes on."""
    f, s, t, rows, labels = sliced_function(rng)
    synk.scatter([s, t], [rows[:6], labels[:6]])
    with pytest.raises(error) as caught:
        f(batch_s=batch_s)
    assert isinstance(caught.value, synk.InputError)
    same(f()[0], rows[:6] * 2)


def test_batch_s_needs_sliceables_and_one_for_each(
    group2: synk.Group, rng: np.random.Generator
) -> None:
    x = matrix()
    with pytest.raises(synk.InputError, match="sliceable"):
        make([x], x.sum())(np.ones((2, 2)), batch_s=1)
    f, *_ = sliced_function(rng)
    with pytest.raises(synk.InputError, match="3 entries"):
        f(batch_s=[slice(0, 1)] * 3)


def test_sliceables_beside_scattered_inputs(group: synk.Group, rng: np.random.Generator) -> None:
    """S23: with a batch_s or without; lengths that do not agree are an error."""
    f, s, t, rows, labels = sliced_function(rng, scattered=True)
    synk.scatter([s, t], [rows, labels])
    factors = rng.normal(size=9)
    for num_slices in (1, 2):
        found = f(factors, num_slices=num_slices)
        same(found[0], rows * 2)
        same(found[2], (rows.sum(1) * labels * factors).sum())
    few = factors[: 2 * group.size]
    parts = [p[[1, 0]] for p in parts_of(rows, group.size)]
    numbers = [p[[1, 0]] for p in parts_of(labels, group.size)]
    found = f(few, batch_s=[1, 0])
    same(found[0], np.concatenate(parts) * 2)
    wanted = np.concatenate(parts).sum(1) * np.concatenate(numbers)
    same(found[2], (wanted * few).sum())
    with pytest.raises(synk.InputError, match="agree"):
        f(factors[:4])
    same(f(factors)[0], rows * 2)


def test_sliceables_of_unequal_lengths(group2: synk.Group, rng: np.random.Generator) -> None:
    f, s, t, rows, labels = sliced_function(rng)
    synk.broadcast([s, t], [rows, labels[:4]])
    with pytest.raises(synk.InputError, match="differ in length"):
        f()


@pytest.mark.parametrize("what", ["unused", "no variable", "0-d", "no list"])
def test_what_is_not_sliceable(group2: synk.Group, what: str) -> None:
    x, s, k = matrix(), shared(np.ones(3), "s"), shared(1.0, "k")
    given: Any = {"unused": [s], "no variable": [x], "0-d": [k], "no list": k}[what]
    with pytest.raises(synk.InputError, match="sliceable_shareds"):
        make([x], x.sum() * k, sliceable_shareds=given)


def test_means_over_scattered_sliceables_are_weighted(
    group: synk.Group, rng: np.random.Generator
) -> None:
    """S8: the rows that count are those that batch_s selects in each member."""
    rows = rng.normal(size=(9, 2))
    s = shared(rows, "s")
    f = make([], s.mean(), sliceable_shareds=[s])
    synk.scatter(s)
    same(f(), rows.mean())
    per_rank: list[Any] = [[0, 1, 2], np.array([0]), []][: group.size]
    picked = [rows_of(p, b) for p, b in zip(parts_of(rows, group.size), per_rank, strict=True)]
    same(f(batch_s=per_rank), np.concatenate(picked).mean())


def test_results_share_no_memory(group: synk.Group) -> None:
    """S62: neither with Data, nor with shared variables, nor with earlier results."""
    x, w = matrix(), pt.matrix("w", dtype="float64")
    s, t = shared(np.ones((4, 2)), "s"), shared(np.zeros((4, 2)), "t")
    outputs = {"x": x, "part": x[:, :1], "s": s, "own": (x, None), "w": w, "same": s}
    f = make([x], outputs, bcast_inputs=[w], updates=[(t, w)])
    d, e = synk.data(np.ones((4, 2))), synk.data(np.ones((4, 2)))
    found = [f(d, e) for _ in range(2)]
    held: list[Any] = [d.data, e.data, s.get_value(borrow=True), t.get_value(borrow=True)]
    held += [v for results in found for v in results.values()]
    for i, a in enumerate(held):
        for b in held[i + 1 :]:
            assert not np.shares_memory(a, b)
    for results in found:
        for value in results.values():
            value[...] = 7
    e[...] = 3
    same(f(d, e)["s"], np.ones((4, 2)))
    same(everywhere(t, group.size), [np.full((4, 2), 3.0)] * group.size)
    e[...] = 5
    same(everywhere(t, group.size), [np.full((4, 2), 3.0)] * group.size)


LAYOUTS = ["read-only", "strided", "reversed", "Fortran", "big-endian", "unaligned"]


@pytest.mark.parametrize("kind", LAYOUTS)
def test_arrays_of_every_layout(group: synk.Group, kind: str) -> None:
    """S64: read-only and strided inputs, scattered and broadcast."""
    x, b = matrix(), pt.matrix("b", dtype="float64")
    f = make([x], [x * 2, b.sum() * 1.0], bcast_inputs=[b])
    plain = np.arange(48.0).reshape(8, 6)
    plain.setflags(write=kind != "read-only")
    value = {
        "read-only": plain,
        "strided": plain[::2, ::3],
        "reversed": plain[::-1],
        "Fortran": np.asfortranarray(plain),
        "big-endian": plain.astype(">f8"),
        "unaligned": np.frombuffer(bytes(1) + plain.tobytes(), offset=1).reshape(8, 6),
    }[kind]
    assert value.flags.aligned == (kind != "unaligned")
    rows, total = f(value, value)
    same(rows, value * 2)
    same(total, value.sum())
    same(f(value, value, batch=[1, 0])[0], value[[1, 0]] * 2)


def test_inputs_of_any_length_one_after_the_other(group: synk.Group) -> None:
    """Staging memory is used again: no rows of an earlier call come back."""
    x = matrix()
    f = make([x], (x, "gather"))
    for n in (5, 1, 0, 30, 2, 4000, 3):
        rows = np.arange(2.0 * n).reshape(n, 2)
        same(f(rows), rows)


def test_changes_of_data_between_equal_calls(group: synk.Group) -> None:
    """A repeated call sees new contents and lengths of the same Data."""
    x, k = matrix(), pt.scalar("k", dtype="float64")
    f = make([x, k], x.sum() * k)
    d, factor = synk.data(np.ones((4, 2))), synk.data(2.0)
    for _ in range(3):
        assert f(d, factor) == 16
    d[0, 0] = 3
    factor[...] = 1
    assert f(d, factor) == 10
    d.set_length(2)
    assert f(d, factor) == 6
    d.set_value(np.ones((100, 100)))
    assert f(d, factor) == 10_000
    d.free_memory()
    assert f(d, factor) == 0


def test_unused_inputs(group2: synk.Group) -> None:
    from pytensor.compile.rebuild import UnusedInputError

    x, y = matrix(), matrix("y")
    with pytest.raises(UnusedInputError, match="y"):
        make([x, y], x.sum())
    f = make([x, y], x.sum(), on_unused_input="ignore")
    assert f(np.ones((2, 2)), np.ones((2, 2))) == 4


@pytest.mark.parametrize(
    "inputs",
    [
        lambda x, s: x,
        lambda x, s: [x, x],
        lambda x, s: [s],
        lambda x, s: [3.0],
        lambda x, s: [In(x, update=x + 1, value=shared(np.ones((1, 1))))],
    ],
)
def test_what_is_no_list_of_inputs(
    group2: synk.Group, inputs: Callable[[Variable, Any], Any]
) -> None:
    x, s = matrix(), shared(1.0)
    with pytest.raises(synk.InputError):
        make(inputs(x, s), x.sum())


def test_no_group() -> None:
    x = matrix()
    with pytest.raises(synk.NotForked, match=r"synk\.fork"):
        make([x], x.sum())


def test_calls_after_the_end(size: int) -> None:
    x, s = matrix(), shared(1.0, "s")
    with synk.Group(size):
        f = make([x], x.sum() * s)
        value = f(np.ones((4, 2)))
        large = make([x], (x, "sum"))(np.ones((20_000, 2))[: 20_000 - 20_000 % size])
    with pytest.raises(synk.GroupClosed):
        f(np.ones((4, 2)))
    assert value == 8
    assert large.max() == size
    assert f.as_pytensor(np.ones((4, 2))) == 8


@pytest.mark.parametrize("master_rank", [0, 1, 2])
def test_any_rank_may_be_the_master(rng: np.random.Generator, master_rank: int) -> None:
    """S58: parts follow the ranks, whoever is the master."""
    x, s, t = matrix(), shared(0.0, "s"), shared(0.0, "t")
    rows = rng.normal(size=(7, 3))
    updates = [(s, x.sum(), "sum"), (t, x.sum(), "sum", "all")]
    with synk.Group(3, master_rank=master_rank):
        f = make([x], [(x.sum(), "gather"), (x.sum(), None), x], updates=updates)
        each, own, gathered = f(rows)
        parts = parts_of(rows, 3)
        same(each, [p.sum() for p in parts])
        same(own, parts[master_rank].sum())
        same(gathered, rows)
        same(everywhere(s, 3), each)
        single = f(rows[:1], output_subset=[0, 2])
        same(single[0], [rows[0].sum()])
        same(single[1], rows[:1])
        same(everywhere(t, 3), [rows[0].sum()] * 3)
        same(everywhere(s, 3), [rows[0].sum(), *each[1:]])


def test_operations_that_cannot_travel(group2: synk.Group) -> None:
    """The one that does not pickle is named, in an error of the master's; others go on."""

    class Held(Op):
        __props__ = ()

        def __init__(self) -> None:
            self.lock = threading.Lock()

        def make_node(self, x: Any) -> Apply:
            return Apply(self, [x], [x.type()])

        def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
            output_storage[0][0] = inputs[0]

    x = matrix()
    f = make([x], (Held()(x).sum(), "sum"), name="holding")
    with pytest.raises(synk.InputError, match=r"holding.*Held"):
        f(np.ones((2, 2)))
    del f
    gc.collect()
    assert make([x], x.sum())(np.ones((2, 2))) == 4


SCRIPT = """
import numpy as np, pytensor.tensor as pt, synkhronos as synk
from pytensor.compile.ops import wrap_py
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

class Scaled(Op):
    __props__ = ("factor",)
    def __init__(self, factor):
        self.factor = factor
    def make_node(self, x):
        return Apply(self, [x], [x.type()])
    def perform(self, node, inputs, output_storage):
        output_storage[0][0] = inputs[0] * self.factor

SHIFT = 1.0

@wrap_py(itypes=[pt.dmatrix], otypes=[pt.dmatrix])
def shifted(x):
    return x + SHIFT

with synk.Group(2, start="START") as group:
    x = pt.dmatrix("x")
    outputs = [(Scaled(2.0)(x), "gather"), (shifted(x), "gather")]
    f = synk.function([x], outputs, mode="FAST_COMPILE")
    rows = np.arange(10.0).reshape(5, 2)
    scaled, more = f(rows)
    print((scaled == rows * 2).all(), (more == rows + 1).all(), "START" in repr(group))
"""


def run_script(text: str) -> list[str]:
    """The words that a script prints, run in a fresh interpreter from no file."""
    command = [sys.executable, "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=270, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("start", [*thorough("fork"), "exec"])
def test_operations_of_a_script(start: str) -> None:
    """What `__main__` defines travels by value, in both ways to start."""
    assert run_script(SCRIPT.replace("START", start)) == ["True"] * 3


def test_threads_take_turns_from_the_arguments_on(
    group2: synk.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second thread's arrays are not laid over those of a call that is about to run."""
    x = pt.dvector("x")
    f = synk.function([x], (x.sum(), "sum"), mode="FAST_COMPILE")
    ones, twos, found = np.ones(5000), np.full(5000, 2.0), []
    f(ones)
    other = threading.Thread(target=lambda: found.append(f(twos)))
    run = group2.runner.run

    def late(*args: Any, **kwargs: Any) -> Any:
        if not other.ident:
            other.start()
            other.join(0.1)
        return run(*args, **kwargs)

    monkeypatch.setattr(group2.runner, "run", late)
    assert f(ones) == 5000
    other.join()
    assert found == [10_000]


def test_a_default_is_read_at_every_call(group2: synk.Group) -> None:
    """Arrays of a default that have travelled with a command, and values set in the meantime."""
    x, c = pt.dvector("x"), pt.dvector("c")
    default = pytensor.shared(np.arange(500.0))
    mode = "FAST_COMPILE"
    bcast = [In(c, value=default)]
    f = synk.function([x], (x.sum() * c.sum(), "sum"), bcast_inputs=bcast, mode=mode)
    h = synk.function([], (c.sum(), "sum"), bcast_inputs=[c], mode=mode)
    d = synk.data(np.ones(10))
    for _ in range(3):
        assert f(d) == 10 * np.arange(500).sum()
    h(np.full(1000, 7.0))
    assert f(d) == 10 * np.arange(500).sum()
    default.set_value(np.ones(500))
    assert f(d) == 5000


def test_a_deep_graph_is_shipped(group2: synk.Group) -> None:
    """Deeper than pickle goes by itself; networks of many layers are."""
    x = pt.dvector("x")
    y = x
    for _ in range(1500):
        y = pt.sin(y)
    f = synk.function([x], y, mode=pytensor.compile.mode.Mode("py", None))
    expected = np.arange(5.0)
    for _ in range(1500):
        expected = np.sin(expected)
    np.testing.assert_allclose(f(np.arange(5.0)), expected)


def test_values_stored_by_columns(group2: synk.Group) -> None:
    """All members have one layout: numba would compile again in those that have another one."""
    x = pt.dmatrix("x")
    first, second = (np.asfortranarray(np.arange(6.0).reshape(2, 3) + k) for k in (0, 1))
    w = pytensor.shared(first, name="w", borrow=True)
    f = synk.function([x], (x @ w, "gather"), mode=FAST)
    rows = np.ones((4, 2))
    for value in (first, second):
        w.set_value(value, borrow=True)
        np.testing.assert_array_equal(f(rows), rows @ value)
        assert w.get_value(borrow=True).flags.c_contiguous
        np.testing.assert_array_equal(w.get_value(), value)
