"""Collectives inside graphs: values and gradients against numpy, their order, what is refused."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from modes import FAST
from pytensor.graph.replace import vectorize_graph
from pytensor.scan.utils import until as scan_until
from selection import thorough

import synkhronos as synk
from synkhronos import ops
from synkhronos._engine.graph_collectives import CollectiveOp, ordered
from synkhronos._plan.rows import edges
from synkhronos.extensions import make_train_function, make_train_function_pytensor, updates

pytestmark = pytest.mark.usefixtures("lasting_groups")

UFUNCS = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}
OPS = ("sum", "avg", "max", "min", "prod")
ROWS = np.array([[1.5, -2.0], [0.0, 3.0], [2.5, 0.5], [-1.0, 3.0], [4.0, 1.0]])


def parts(rows: np.ndarray, size: int) -> list[np.ndarray]:
    """Each member's rows."""
    return [rows[a:b] for a, b in itertools.pairwise(edges(len(rows), size))]


def reduced(values: Sequence[np.ndarray], op: str, weights: Sequence[float]) -> np.ndarray:
    if op == "avg":
        return np.average(np.stack(values), axis=0, weights=weights)
    return UFUNCS[op].reduce(np.stack(values))


def first(x: Any) -> Any:
    """What each member makes of its rows, of one shape in all."""
    return pt.tanh(x).sum(axis=0)


# By name: a graph of the rows x, of the same shape in all members or of x's; and what numpy makes
# of the members' values of `first` (or of their rows) and weights, for one member.
Oracle = Callable[[list[np.ndarray], list[float], int], np.ndarray]
GRAPHS: dict[str, tuple[Callable[[Any], Any], Oracle]] = {
    **{
        f"all_reduce {op}": (
            lambda x, op=op: ops.all_reduce(first(x), op),
            lambda rows, w, r, op=op: reduced([np.tanh(v).sum(0) for v in rows], op, w),
        )
        for op in OPS
    },
    **{
        f"reduce_scatter {op}": (
            lambda x, op=op: ops.reduce_scatter(first(x), op),
            lambda rows, w, r, op=op: parts(
                reduced([np.tanh(v).sum(0) for v in rows], op, w), len(w)
            )[r],
        )
        for op in OPS
    },
    "all_gather": (lambda x: ops.all_gather(x), lambda rows, w, r: np.concatenate(rows)),
    "all_gather 0-d": (
        lambda x: ops.all_gather(x.sum()),
        lambda rows, w, r: np.array([v.sum() for v in rows]),
    ),
    "broadcast": (
        lambda x: ops.broadcast(first(x)),
        lambda rows, w, r: np.tanh(rows[0]).sum(0),
    ),
    "broadcast 0-d": (
        lambda x: ops.broadcast(x.sum()) + x[:, 0],
        lambda rows, w, r: rows[0].sum() + rows[r][:, 0],
    ),
    "rank": (lambda x: ops.rank() + 0.0 * x.sum(), lambda rows, w, r: np.array(float(r))),
}


def check_values(
    size: int, mode: Any, names: Sequence[str], rows: np.ndarray, valued: Sequence[str] = ("rank",)
) -> None:
    """In every member; and the weighted mean of losses of these values has the right gradient.

    The gradients of those in `valued` are left out.
    """
    mine = parts(rows, size)
    weights = [float(len(v)) for v in mine]
    for name in names:
        build, oracle = GRAPHS[name]
        x = pt.matrix("x", dtype="float64")
        value = build(x)
        shown = pt.atleast_1d(value).ravel()
        f = synk.function([x], (shown, "gather"), mode=mode)
        wanted = [np.ravel(oracle(mine, weights, r)) for r in range(size) if weights[r]]
        np.testing.assert_allclose(f(rows), np.concatenate(wanted), rtol=1e-12, err_msg=name)
        if name not in valued:
            check_gradient(size, mode, name, rows)


def losses(values: np.ndarray) -> float:
    return float(np.sin(values).sum()) if values.size else 0.0


def check_gradient(size: int, mode: Any, name: str, rows: np.ndarray) -> None:
    """By a factor of the rows, of each member's loss: a nonlinear function of its value."""
    build, oracle = GRAPHS[name]
    x, scale = pt.matrix("x", dtype="float64"), pytensor.shared(0.9, name="scale")
    gradient = pytensor.grad(pt.sin(build(x * scale)).sum(), scale)
    with warnings.catch_warnings():  # a mean of sums is not the serial value
        warnings.simplefilter("ignore", synk.ReductionWarning)
        f = synk.function([x], (gradient, "avg"), mode=mode)
    weights = [float(len(v)) for v in parts(rows, size)]

    def loss(factor: float) -> float:
        scaled = parts(rows * factor, size)
        each = [losses(oracle(scaled, weights, r)) for r in range(size)]
        return float(np.average(each, weights=weights))

    step = 1e-6
    slope = (loss(0.9 + step) - loss(0.9 - step)) / (2 * step)
    np.testing.assert_allclose(f(rows), slope, rtol=1e-6, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("name", GRAPHS)
def test_values_and_gradients(group: synk.Group, name: str) -> None:
    """Against numpy, with parts of different lengths."""
    check_values(group.size, FAST, [name], ROWS)


FEW = ["all_reduce avg", "all_gather", "rank"]  # a number, an array, and no exchange
MORE = ["reduce_scatter sum", "broadcast"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "names"),
    [
        ("NUMBA", FEW),
        *thorough(*(("NUMBA", MORE), *((m, None) for m in ("CVM", "FAST_RUN", "FAST_COMPILE")))),
    ],
)
def test_values_and_gradients_in_compiled_modes(mode: str, names: list[str] | None) -> None:
    with synk.Group(2):
        if names:  # numba compiles each for a second; gradients are made of the same operations
            check_values(2, mode, names, ROWS, [*FEW[1:], *MORE])
        else:
            more = ["all_reduce prod", "reduce_scatter max", "all_gather 0-d"]
            check_values(2, mode, [*FEW, *MORE, *more], ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, *thorough(3)])
def test_values_and_gradients_in_jax(size: int) -> None:
    """Where members have equally many rows; gathering others is refused by name."""
    pytest.importorskip("jax")
    rows = np.concatenate([ROWS, ROWS[:1] + 0.5])
    with synk.Group(size, "cpu", start="exec"):
        names = ["all_gather", "rank"]
        if size > 2:  # JAX compiles each; in Python: the test above
            names += ["all_reduce avg", "all_reduce max", "broadcast", "reduce_scatter sum"]
        check_values(size, "JAX", names, rows)
        check_values(size, "JAX", ["all_reduce sum"], ROWS)
        x = pt.matrix("x", dtype="float64")
        f = synk.function([x], ops.all_gather(x).sum(), mode="JAX")
        with pytest.raises(synk.InputError, match="as many rows as the others"):
            f(ROWS)
        assert float(f(rows)) == pytest.approx(rows.sum())


@pytest.mark.each_choice
@pytest.mark.parametrize("dtype", ["bool", "float16", "float32", "int8", "int64", "complex128"])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (400, 3)])
def test_it_equals_the_plain_collective(
    group2: synk.Group, dtype: str, op: str, shape: tuple[int, ...]
) -> None:
    """To the last bit, also an average of integers; arrays of all kinds of lengths."""
    if dtype == "complex128" and op in ("max", "min"):
        pytest.skip("complex numbers have no order")
    rng = np.random.default_rng(3)
    values = [5 * rng.normal(size=shape) for _ in range(2)]
    values = [np.asarray(v > 0 if dtype == "bool" else v).astype(dtype) for v in values]
    s: Any = pytensor.shared(values[0], name="s", shape=(None,) * len(shape))
    if dtype == "bool" and op == "sum":
        with pytest.raises(synk.InputTypeError, match="a bool cannot hold their sum"):
            ops.all_reduce(s, op)
        return
    f = synk.function([], ops.all_reduce(s, op), mode=FAST)
    synk.broadcast(s)
    synk.set_value(1, s, values[1])
    found = np.asarray(f())
    synk.all_reduce(s, op)
    plain = s.get_value()
    assert (found.dtype, found.shape) == (plain.dtype, plain.shape)
    assert found.tobytes() == plain.tobytes()


def test_members_without_rows_take_part(group: synk.Group) -> None:
    """They give nothing, and get what the others get: also their variables."""
    x = pt.vector("x", dtype="float64")
    kept = pytensor.shared(np.zeros(2), name="kept")
    most, mean = ops.all_reduce(x.max(), "max"), ops.all_reduce(x.mean(), "avg")
    every = [most, mean, ops.all_reduce(x.sum()), ops.broadcast(x[0]), ops.all_gather(x)]
    f = synk.function([x], every, updates=[(kept, kept + pt.stack([most, mean]))], mode=FAST)
    total = np.zeros(2)
    for rows in ([2.0], [5.0, 3.0], [1.0, 2.0, 6.0, 0.5]):
        found = f(np.array(rows))
        wanted = [max(rows), np.mean(rows), sum(rows), rows[0], rows]
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)
        total += [max(rows), np.mean(rows)]
        for rank in range(group.size):
            np.testing.assert_allclose(synk.get_value(rank, kept), total, rtol=1e-12)
    synk.check_consistency(kept)


def test_a_share_of_a_member_without_rows(group: synk.Group) -> None:
    """Of what the others reduce it would get its part, but it keeps only what is equal in all."""
    x, kept = pt.vector("x", dtype="float64"), pytensor.shared(np.zeros(0), name="kept")
    new = ops.reduce_scatter(x.sum() * pt.arange(1.0, 6.0))
    f = synk.function([x], updates=[(kept, new, "avg", "local")], mode=FAST)
    f(np.array([2.0]))  # rows are what a member's own value comes from, so the others keep theirs
    found = [synk.get_value(r, kept) for r in range(group.size)]
    wanted = [parts(2 * np.arange(1.0, 6.0), group.size)[0], *[np.zeros(0)] * (group.size - 1)]
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_root_without_rows_is_refused(group2: synk.Group) -> None:
    x = pt.vector("x", dtype="float64")
    f = synk.function([x], ops.broadcast(x.sum(), 1), mode=FAST)
    assert f(np.array([1.0, 2.0])) == 2.0
    with pytest.raises(synk.InputError, match="rank 1: it has no rows"):
        f(np.array([1.0]))
    g = synk.function([x], ops.broadcast(x.sum(), 2), mode=FAST)
    with pytest.raises(synk.InputError, match="ranks 0 to 1"):
        g(np.array([1.0, 2.0]))
    assert f(np.array([1.0, 3.0])) == 3.0


def test_what_is_equal_in_all_members(group: synk.Group, recwarn: Any) -> None:
    """Outputs need no reduction and updates part no members, so nothing is warned of."""
    x, w = pt.vector("x", dtype="float64"), pytensor.shared(2.0, name="w")
    spread = ops.all_reduce(x.std(), "max")  # of no reduction over rows
    f = synk.function([x], [spread, x / spread], updates=[(w, w - spread)], mode=FAST)
    rows = np.array([1.0, 3.0, 4.0, 8.0, 9.0])
    most = max(p.std() for p in parts(rows, group.size))
    for step in (1, 2):
        found, each = f(rows)
        assert found == pytest.approx(most)
        np.testing.assert_allclose(each, rows / most)
        values = [synk.get_value(r, w) for r in range(group.size)]
        assert values == [pytest.approx(2.0 - step * most)] * group.size
    assert not [str(w.message) for w in recwarn if w.category.__module__.startswith("synk")]


def test_a_mean_of_members_values(group2: synk.Group) -> None:
    """Of Platoon: each member takes a step of its own, then all take the mean."""
    x, w = pt.vector("x", dtype="float64"), pytensor.shared(0.0, name="w")
    own = synk.function([x], updates=[(w, w + x.sum(), "avg", "local")], mode=FAST)
    meet = synk.function([], updates=[(w, ops.all_reduce(w, "avg"))], mode=FAST)
    own(np.array([1.0, 2.0, 6.0]))
    assert [synk.get_value(r, w) for r in (0, 1)] == [3.0, 6.0]
    meet()
    assert [synk.get_value(r, w) for r in (0, 1)] == [4.5, 4.5]
    synk.check_consistency(w)
    w.set_value(1.0)  # the master's value is that of all again
    assert synk.function([], ops.all_gather(w), mode=FAST)().tolist() == [1.0, 1.0]


def test_an_update_by_the_rank_parts_members(group2: synk.Group) -> None:
    w = pytensor.shared(0, name="w")
    synk.function([], updates=[(w, ops.rank() * 10)], mode=FAST)()
    assert [synk.get_value(r, w) for r in (0, 1)] == [0, 10]
    with pytest.warns(synk.LocalUpdateWarning, match="will differ"):
        synk.function([], updates=[(w, w + ops.rank())], mode=FAST)
    with pytest.raises(synk.GroupError, match="w"):
        synk.check_consistency(w)


# Losses that are means over rows, in several forms: how many members there are changes nothing.
LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "centred": lambda x, w: (pt.tanh((x - ops.all_reduce(x.mean(0), "avg")) @ w) ** 2).mean(),
    "centred by w": lambda x, w: ((x @ w - ops.all_reduce((x @ w).mean(), "avg")) ** 4).mean(),
    "sums": lambda x, w: (
        (pt.exp(ops.all_reduce((x @ w).sum()) / 9) + ops.all_reduce(pt.sqr(x @ w).sum())) / 7
        + (w**2).sum()
    ),
    "largest": lambda x, w: (x @ w / ops.all_reduce(abs(x @ w).max(), "max")).mean(),
    "gathered": lambda x, w: (pt.tanh((x @ w)[:, None] - ops.all_gather(x @ w)[None]) ** 2).mean(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_training_equals_one_member(group: synk.Group, name: str) -> None:
    """Value, gradient and update, with parts of different lengths and more members than rows."""
    rows, found = np.random.default_rng(1).normal(size=(7, 2)), []
    for make in (make_train_function, make_train_function_pytensor):
        x = pt.matrix("x", dtype="float64")
        w = pytensor.shared(np.array([0.4, -0.7]), name="w")
        loss = LOSSES[name](x, w)
        train = make(loss, [w], x, None, updates.sgd, 0.1, mode="FAST_COMPILE")
        batches = [slice(0, 7), slice(2, 7), slice(3, 5), slice(0, 1)]
        found.append([[float(train(rows, batch=b)) for b in batches], w.get_value()])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_the_gradient_of_a_gradient(group: synk.Group) -> None:
    """It is the serial one: what `Weighing.transposed` gives twice is the operation itself."""
    x, w = pt.vector("x", dtype="float64"), pt.scalar("w", dtype="float64")
    total = ops.all_reduce(pt.sin(x * w).sum())
    slope = pytensor.grad(total**2 / 10, w)
    f = synk.function([x], (slope, "avg"), bcast_inputs=[w], mode=FAST)
    rows = np.array([0.3, 0.9, 1.4, 2.0])
    sines, cosines = np.sin(0.8 * rows), rows * np.cos(0.8 * rows)
    assert f(rows, 0.8) == pytest.approx(2 * sines.sum() * cosines.sum() / 10)
    twice = ops._ops.AllReduce("sum", ops.PLAIN.transposed.transposed)
    assert twice == ops._ops.AllReduce("sum")


def names_of(turn: Any) -> list[str]:
    """The operations that a turn follows from, the last one first."""
    found = []
    while turn.owner is not None:
        if isinstance(turn.owner.op, CollectiveOp):
            found.append(str(turn.owner.op))
        turn = turn.owner.inputs[-1]
    return found


def test_all_collectives_are_in_one_order() -> None:
    """Each depends on the one before, and the last output on all: also unused and equal ones."""
    x = pt.vector("x", dtype="float64")
    a, b = ops.all_reduce(x.sum(), "max"), ops.all_reduce(x.sum(), "min")
    c = ops.all_reduce(x.sum(), "max")
    values, turn = ordered([a + b, c * 0, ops.all_gather(x).shape[0]])
    before = names_of(turn)
    assert len(before) == 4
    f = pytensor.function([x], [*values, turn], mode="FAST_RUN")
    after = [v for v in f.maker.fgraph.outputs if v.owner is not None][-1]
    while not isinstance(getattr(after.owner, "op", None), CollectiveOp):
        after = after.owner.inputs[0]
    assert names_of(after) == before
    assert [float(v) for v in f(np.array([1.0, 2.0]))] == [6.0, 0.0, 2.0, 0.0]


def test_the_order_follows_from_the_graph_only() -> None:
    """A graph that was pickled, as for workers, gives the same one."""
    from synkhronos._transport.serialization import pack_graph, unpack_graph

    x = pt.vector("x", dtype="float64")
    some = [ops.all_reduce(x.sum() + i, op) for i, op in enumerate(("max", "min", "sum", "prod"))]
    outputs = [some[2] * some[0], some[3] - some[1], *some]
    packed = pack_graph(outputs, lambda obj: None, {})
    again = unpack_graph(packed, lambda number: None)
    assert names_of(ordered(outputs)[1]) == names_of(ordered(again)[1])


@pytest.mark.parametrize("mode", [FAST, *thorough("NUMBA", "FAST_RUN")])
def test_constants_are_not_folded(group: synk.Group, mode: Any) -> None:
    """A collective of a constant counts the members."""
    f = synk.function([], ops.all_reduce(1.0), mode="FAST_RUN" if mode is FAST else mode)
    assert f() == group.size


def loop(x: Any, steps: Any) -> Any:
    """A loop whose state is reduced in each step, and whose members add other rows."""

    def step(state: Any, x: Any) -> Any:
        mean = ops.all_reduce((x - state).mean(), "avg")
        return state + 0.5 * mean + ops.all_reduce(pt.sin(x * state).sum())

    return pytensor.scan(
        step,
        outputs_info=[pt.constant(0.5, dtype="float64")],
        non_sequences=[x],
        n_steps=steps,
        return_updates=False,
    )[-1]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["FAST_COMPILE", *thorough("NUMBA", "FAST_RUN")])
def test_in_a_loop(mode: str) -> None:
    """Value, gradient and order are those of one member, for two and three."""
    rows = np.array([0.1, 0.5, -0.3, 0.8, 0.4])
    state, x = 0.5, rows
    for _ in range(3):
        state = state + 0.5 * (x - state).mean() + np.sin(x * state).sum()
    for size in (2, 3):
        with synk.Group(size):
            x, steps = pt.vector("x", dtype="float64"), pt.lscalar("steps")
            last = loop(x, steps)
            scale = pytensor.shared(1.0, name="scale")
            slope = pytensor.grad(loop(x * scale, steps) ** 2, scale)
            f = synk.function([x], [(last, "avg"), (slope, "avg")], bcast_inputs=[steps], mode=mode)
            value, by_scale = f(rows, 3)
        found = pytensor.function(
            [x, steps], [last, pytensor.grad(loop(x * scale, steps) ** 2, scale)], mode=mode
        )(rows, 3)
        np.testing.assert_allclose([value, by_scale], found, rtol=1e-10)
        assert value == pytest.approx(state)


@pytest.mark.thorough
def test_in_a_loop_in_jax() -> None:
    pytest.importorskip("jax")
    rows = np.array([0.1, 0.5, -0.3, 0.8])
    x = pt.vector("x", dtype="float64")
    with synk.Group(2, "cpu", start="exec"):
        value = synk.function([x], (loop(x, 3), "avg"), mode="JAX")(rows)
    alone = pytensor.function([x], loop(x, 3), mode="FAST_COMPILE")(rows)
    np.testing.assert_allclose(value, alone, rtol=1e-10)


def test_members_with_other_numbers_of_steps(group2: synk.Group) -> None:
    """They would meet in other steps: an error in all, and the group goes on."""
    x = pt.vector("x", dtype="float64")
    f = synk.function([x], (loop(x, x.shape[0]), "avg"), mode="FAST_COMPILE")
    with pytest.raises(synk.InputError, match="1 steps in one member and 2 in another"):
        f(np.array([0.1, 0.5, 0.3]))
    assert np.isfinite(f(np.array([0.1, 0.5, 0.3, 0.2])))


def test_in_a_graph_within_the_graph(group: synk.Group) -> None:
    """Of an OpFromGraph, twice, with its gradient."""
    from pytensor.compile.builders import OpFromGraph

    a = pt.vector("a", dtype="float64")
    centre = OpFromGraph([a], [a - ops.all_reduce(a.mean(), "avg")])
    x, scale = pt.vector("x", dtype="float64"), pytensor.shared(1.5, name="scale")
    value = (centre(centre(x**2) * scale) ** 2).mean()
    f = synk.function([x], [value, (pytensor.grad(value, scale), "avg")], mode="FAST_COMPILE")
    rows = np.array([1.0, 2.0, 4.0, 7.0, 8.0])
    variance = (rows**2).var()
    np.testing.assert_allclose(f(rows), [2.25 * variance, 3.0 * variance], rtol=1e-12)


def until(x: Any) -> Any:
    def step(state: Any) -> Any:
        new = ops.all_reduce(state) + 1
        return new, scan_until(new > 10)

    return pytensor.scan(step, outputs_info=[x.sum()], n_steps=9, return_updates=False)[-1]


REFUSED: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "gather": (lambda x: ops.all_reduce(x, "gather"), synk.InputError, '"sum", "avg"'),
    "a reduction": (lambda x: ops.all_reduce(x, "median"), synk.InputError, "median"),
    "None": (lambda x: ops.reduce_scatter(x, None), synk.InputError, "op=None"),
    "bools": (lambda x: ops.all_reduce(x > 1), synk.InputTypeError, "cast it"),
    "0-d": (lambda x: ops.reduce_scatter(x.sum()), synk.InputTypeError, "use all_reduce"),
    "an object": (lambda x: ops.all_reduce(object()), synk.InputTypeError, "all_reduce"),
    "a root": (
        lambda x: ops.broadcast(x, "a"),
        synk.InputTypeError,
        "root='a': give an integer of at least 0",
    ),
    "a negative root": (
        lambda x: ops.broadcast(x, -1),
        synk.InputError,
        "root=-1: give an integer of at least 0",
    ),
    "until": (until, synk.InputError, "ends on a condition"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(group2: synk.Group, case: str) -> None:
    """When the graph or the function is made, by name."""
    build, kind, text = REFUSED[case]
    x = pt.vector("x", dtype="float64")
    with pytest.raises(kind, match=re.escape(text)):
        synk.function([x], build(x), mode=FAST)


def test_what_functions_refuse(group2: synk.Group) -> None:
    """Slices; sums as losses; collectives in an update rule, whose members have chunks each."""
    x, w = pt.vector("x", dtype="float64"), pytensor.shared(1.0, name="w")
    f = synk.function([x], ops.all_reduce(x.sum()), mode=FAST)
    with pytest.raises(synk.InputError, match="compute each part at once"):
        f(np.arange(4.0), num_slices=2)
    assert f(np.arange(4.0)) == 6.0
    centred = x * w - ops.all_reduce((x * w).mean(), "avg")
    with pytest.raises(synk.InputError, match="is not a mean over rows"):
        make_train_function((centred**2).sum(), [w], x, None, updates.sgd, 0.1, mode=FAST)

    def clip(gradients: list[Any]) -> list[Any]:
        return [g / ops.all_reduce(abs(g), "max") for g in gradients]

    loss = ((x * w) ** 2).mean()
    with pytest.raises(synk.InputError, match="leave them out"):
        make_train_function(loss, [w], x, None, updates.sgd, 0.1, clip=clip, mode=FAST)


def test_unequal_shapes_are_an_error_in_all_members(group2: synk.Group) -> None:
    x = pt.vector("x", dtype="float64")
    f = synk.function([x], (ops.all_reduce(x), "gather"), mode=FAST)
    for _ in range(2):
        with pytest.raises(synk.InputError, match="differ in shape"):
            f(np.arange(3.0))
        np.testing.assert_array_equal(f(np.arange(4.0)), [2.0, 4.0, 2.0, 4.0])


class Strict(pytensor.graph.op.Op):
    """Raises where its input is negative."""

    __props__ = ()

    def make_node(self, x: Any) -> Any:
        return pytensor.graph.basic.Apply(self, [x], [x.type()])

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        if np.min(inputs[0]) < 0:
            raise ArithmeticError("negative")
        output_storage[0][0] = inputs[0].copy()


@pytest.mark.parametrize("bad", [0, 1])
def test_a_member_that_fails_between_two_exchanges(group2: synk.Group, bad: int) -> None:
    """The others leave with its error; nothing has changed, and the next call is right."""
    x, w = pt.vector("x", dtype="float64"), pytensor.shared(0.0, name="w")
    once = ops.all_reduce(x.sum(), "max")
    twice = ops.all_reduce(Strict()(x + 0 * once).sum())
    f = synk.function([x], twice, updates=[(w, w + twice)], mode=FAST)
    rows = np.arange(1.0, 5.0)
    assert f(rows) == 10.0
    rows[2 * bad] *= -1
    with pytest.raises(ArithmeticError, match="negative"):
        f(rows)
    assert [synk.get_value(r, w) for r in (0, 1)] == [10.0, 10.0]
    assert f(np.ones(4)) == 4.0


def test_a_task_cannot_meet_the_master(group2: synk.Group) -> None:
    """A command of `Group.start` is without the master: refused by name, and no hang."""
    x = pt.vector("x", dtype="float64")
    f = synk.function([x], ops.all_reduce(x.sum()), mode=FAST)
    posted: list[Any] = []
    real = group2.runner.run
    group2.runner.run = lambda c, *a, **k: posted.append(c) or real(c, *a, **k)
    assert f(np.arange(4.0)) == 6.0
    assert f(np.arange(4.0)) == 6.0
    del group2.runner.run
    call = posted[-1]
    with pytest.raises(synk.WorkerError, match=r"Group\.start"):
        group2.start(call).wait()
    assert f(np.arange(4.0)) == 6.0


@pytest.mark.parametrize("collective", [ops.all_reduce, ops.broadcast])
def test_a_batch_of_values_is_one_exchange(collective: Callable[..., Any]) -> None:
    x, batch = pt.vector("x"), pt.matrix("batch")
    found = vectorize_graph(collective(x), {x: batch})
    assert isinstance(found.owner.op, CollectiveOp)
    assert found.owner.inputs[0] is batch


def test_outside_of_a_call_and_alone() -> None:
    """Each returns the value of the one member."""
    x = pt.vector("x", dtype="float64")
    every = [ops.all_reduce(x, op) for op in OPS]
    every += [ops.all_gather(x), ops.reduce_scatter(x), ops.broadcast(x), x + ops.rank()]
    for value in pytensor.function([x], every, mode="FAST_COMPILE")(np.arange(3.0)):
        np.testing.assert_array_equal(value, np.arange(3.0))
    with synk.Group(2):
        f = synk.function([x], ops.all_reduce(x.sum()), mode=FAST)
        assert f.as_pytensor(np.arange(4.0)) == 6.0
