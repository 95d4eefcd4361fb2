"""Collectives: the values of shared variables moved and combined, numpy as the oracle.

The numbers S44, S46, ... are the defects of the system of 2017 that a test holds.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from selection import thorough

import synkhronos as synk
from synkhronos._plan.rows import edges
from synkhronos._proofs.reductions import Reduction, combine
from synkhronos.testing.conformance import DTYPES

pytestmark = pytest.mark.usefixtures("lasting_groups")

OPS = ("avg", "sum", "prod", "min", "max")
SHAPES: tuple[tuple[int, ...], ...] = ((), (4,), (3, 2), (2, 3, 2), (1, 2, 1, 3), (0, 3))

Array = np.ndarray


def shared(value: Any, name: str | None = None) -> Any:
    return pytensor.shared(np.asarray(value), name=name)


def values_for(dtype: str, shape: tuple[int, ...], size: int) -> list[Array]:
    """A value for each rank, small enough for products."""
    found = []
    for rank in range(size):
        draw = np.random.default_rng(rank)
        found.append(np.asarray(draw.integers(0, 5, shape)).astype(dtype))
    return found


def told_of(group: synk.Group) -> Any:
    """Within it, the master warns of values that differ; a group of one never does."""
    return pytest.warns(synk.ReplicaWarning) if group.size > 1 else contextlib.nullcontext()


def spread(variable: Any, values: list[Array]) -> None:
    """Give each member a value of its own."""
    for rank, value in enumerate(values):
        synk.set_value(rank, variable, value)


def everywhere(variable: Any, size: int) -> list[Array]:
    return [synk.get_value(rank, variable) for rank in range(size)]


def reduced(values: list[Array], op: str, weights: list[float] | None = None) -> Array:
    """The reduction in plain numpy: int and bool averages are float64."""
    first = values[0]
    if op == "avg":
        wide = values if first.dtype.kind in "fc" else [v.astype(float) for v in values]
        wide = [v.astype("float32") for v in wide] if first.dtype == np.float16 else wide
        given = weights or [1.0] * len(values)
        if first.dtype.kind not in "fc":  # their sums are exact
            total = sum(v * w for v, w in zip(wide, given, strict=True))
            return np.asarray(total / sum(given))
        found = sum(v * (w / sum(given)) for v, w in zip(wide, given, strict=True))
        return np.asarray(found).astype(first.dtype)
    ufunc = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[op]
    total = values[0]
    for value in values[1:]:
        total = ufunc(total, value)
    return np.asarray(total, dtype=first.dtype)


def held(value: Array, dtype: Any) -> Array:
    """A reduced value in a variable's dtype: averages of integers and bools are rounded."""
    dtype = np.dtype(dtype)
    return (np.rint(value) if dtype.kind in "biu" else value).astype(dtype)


def same(found: Any, wanted: Any) -> None:
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    loose = {"float16": 2e-3, "float32": 1e-6, "complex64": 1e-6}.get(found.dtype.name, 1e-13)
    np.testing.assert_allclose(found, wanted, rtol=loose)


@pytest.mark.each_choice
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_verb_on_every_dtype_and_shape(group: synk.Group, dtype: str) -> None:
    """S44, S47, S48, S51, S52, S53: any ndim, 0-d and empty too, on every rank."""
    variables = [shared(np.zeros(s, dtype), f"v{i}") for i, s in enumerate(SHAPES)]
    columns = [values_for(dtype, s, group.size) for s in SHAPES]
    rows = list(zip(*columns, strict=True))
    for rank in range(group.size):
        synk.set_value(rank, variables, list(rows[rank]))
    for rank in range(group.size):
        for found, wanted in zip(synk.get_value(rank, variables), rows[rank], strict=True):
            same(found, wanted)
    for found, column in zip(synk.gather(variables), columns, strict=True):
        same(found, np.stack(column))
    for found, column in zip(synk.gather(variables, nd_up=0), columns, strict=True):
        same(found, np.concatenate([np.atleast_1d(v) for v in column]))
    assert synk.get_shapes(variables) == [[s] * group.size for s in SHAPES]
    assert synk.get_lengths(variables[1:]) == [[s[0]] * group.size for s in SHAPES[1:]]
    synk.broadcast(variables)
    for variable, value in zip(variables, rows[0], strict=True):
        for found in everywhere(variable, group.size):
            same(found, value)


@pytest.mark.each_choice
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_op_on_every_dtype(group: synk.Group, dtype: str) -> None:
    """S44, S51, S52: reduce, all_reduce, reduce_scatter over all shapes, against numpy."""
    variables = [shared(np.zeros(s, dtype), f"v{i}") for i, s in enumerate(SHAPES)]
    columns = [values_for(dtype, s, group.size) for s in SHAPES]
    cut, at = variables[2], edges(3, group.size)
    for op in OPS:
        if (dtype, op) == ("bool", "sum"):
            for verb in (synk.reduce, synk.reduce_scatter, synk.all_reduce):
                with pytest.raises(synk.InputTypeError, match="a bool cannot hold their sum"):
                    verb(cut, op)
            continue
        for rank in range(group.size):
            synk.set_value(rank, variables, [column[rank] for column in columns])
        wanted = [reduced(column, op) for column in columns]
        for a, b in zip(synk.reduce(variables, op, in_place=False), wanted, strict=True):
            same(a, b)
        for variable, column in zip(variables, columns, strict=True):
            same(variable.get_value(), column[0])
        synk.reduce_scatter(cut, op)
        for rank in range(group.size):
            same(synk.get_value(rank, cut), held(wanted[2], dtype)[at[rank] : at[rank + 1]])
        spread(cut, columns[2])
        synk.all_reduce(variables, op)
        for rank in range(group.size):
            for found, value in zip(synk.get_value(rank, variables), wanted, strict=True):
                same(found, held(value, dtype))


@pytest.mark.each_choice
@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "int64", *thorough("float64", "int32", "uint8")]
)
def test_large_values(group: synk.Group, dtype: str) -> None:
    """Values that are reduced in chunks, in place: twice, and beside small ones."""
    length = 50_003
    s, small = shared(np.zeros(length, dtype), "s"), shared(np.zeros(3, dtype), "small")
    values, few = (values_for(dtype, (n,), group.size) for n in (length, 3))
    for op in (*OPS, *OPS):
        spread(s, values)
        spread(small, few)
        wanted = reduced(values, op)
        same(synk.reduce(s, op, in_place=False), wanted)
        synk.all_reduce([s, small], op)
        for rank in range(group.size):
            both = synk.get_value(rank, [s, small])
            same(both[0], held(wanted, dtype))
            same(both[1], held(reduced(few, op), dtype))


@pytest.mark.pairwise
@pytest.mark.parametrize("verb", ["reduce", "all_reduce", "reduce_scatter"])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize("length", [6, 40_000])
def test_weighted_means(group: synk.Group, verb: str, dtype: str, length: int) -> None:
    """Weights by rank, as exact means over unequal parts need."""
    s = shared(np.zeros((length, 2), dtype), "s")
    values = values_for(dtype, (length, 2), group.size)
    spread(s, values)
    weights = [3.0, 0.0, 1.0, 2.0][: group.size]
    wanted = reduced(values, "avg", weights)
    if verb == "reduce":
        same(synk.reduce(s, in_place=False, weights=weights), wanted)
        synk.reduce(s, "avg", weights=np.array(weights))
        same(s.get_value(), held(wanted, dtype))
    elif verb == "all_reduce":
        synk.all_reduce(s, weights=tuple(weights))
        for found in everywhere(s, group.size):
            same(found, held(wanted, dtype))
    else:
        synk.reduce_scatter(s, weights=weights)
        at = edges(length, group.size)
        for rank, found in enumerate(everywhere(s, group.size)):
            same(found, held(wanted, dtype)[at[rank] : at[rank + 1]])


WEIGHTED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "reduce": (synk.reduce, ("avg", True, True)),
    "all_reduce": (synk.all_reduce, ("avg", True)),
    "reduce_scatter": (synk.reduce_scatter, ("avg",)),
    "sync": (synk.sync, ("avg",)),
}


@pytest.mark.parametrize("verb", WEIGHTED)
def test_weights_by_position(group2: synk.Group, verb: str) -> None:
    """They still count, with a warning; given twice, or with one argument more, an error."""
    collective, before = WEIGHTED[verb]
    assert (
        inspect.signature(collective).parameters["weights"].kind is inspect.Parameter.KEYWORD_ONLY
    )
    s = shared(np.zeros(2), "s")
    spread(s, [np.array([1.0, 2.0]), np.array([5.0, 6.0])])
    with pytest.warns(synk.DeprecatedWarning, match=rf"{verb}: .* write weights=\[3, 1\]") as told:
        collective(s, *before, [3, 1])
    assert told[0].filename == __file__
    assert s.get_value()[0] == 2.0
    for wrong in (
        lambda: collective(s, *before, [3, 1], weights=[3, 1]),
        lambda: collective(s, *before, [3, 1], 1),
    ):
        with pytest.raises(TypeError, match="positional argument"):
            wrong()


def test_integers_keep_their_precision(group: synk.Group) -> None:
    """S51: no detour through float64."""
    big = 2**62 // group.size - 1
    for length in (3, 40_000):
        s = shared(np.full(length, big, "int64"))
        spread(s, [np.full(length, big - rank, "int64") for rank in range(group.size)])
        total = sum(big - rank for rank in range(group.size))
        assert set(synk.reduce(s, "sum", in_place=False).tolist()) == {total}
        synk.all_reduce(s, "sum")
        for found in everywhere(s, group.size):
            assert set(found.tolist()) == {total}


def test_the_example_of_two_matrices(group2: synk.Group) -> None:
    """S51: [[0, 1], [2, 3]] and [[4, 5], [6, 7]] sum to [[4, 6], [8, 10]]."""
    s = shared(np.zeros((2, 2)))
    spread(s, [np.arange(4.0).reshape(2, 2), np.arange(4.0, 8.0).reshape(2, 2)])
    assert synk.reduce(s, "sum", in_place=False).tolist() == [[4, 6], [8, 10]]


def test_reduce_not_in_place_leaves_everything(group: synk.Group) -> None:
    """S50, S66: neither the master's variable nor the others' change; nccl= makes no difference."""
    s, t = shared(np.zeros(4), "s"), shared(np.float32(0), "t")
    for variable in (s, t):
        spread(variable, values_for(variable.dtype, variable.get_value().shape, group.size))
    before = [everywhere(v, group.size) for v in (s, t)]
    own = s.get_value(borrow=True)
    for nccl in (True, False):
        found = synk.reduce([s, t], "sum", in_place=False, nccl=nccl)
        for value, column in zip(found, before, strict=True):
            same(value, reduced(column, "sum"))
    assert s.get_value(borrow=True) is own
    for v, column in zip((s, t), before, strict=True):
        for a, b in zip(everywhere(v, group.size), column, strict=True):
            same(a, b)


def test_reduce_in_place_changes_the_master_alone(group: synk.Group) -> None:
    s = shared(np.zeros(3))
    values = values_for("float64", (3,), group.size)
    spread(s, values)
    assert synk.reduce(s, "max") is None
    same(s.get_value(), reduced(values, "max"))
    for rank in range(1, group.size):
        same(synk.get_value(rank, s), values[rank])


@pytest.mark.parametrize("length", [3, 30_000])
def test_results_are_writable_and_fresh(group: synk.Group, length: int) -> None:
    """S62, S63: what comes back is the user's own, and the same type from every verb."""
    s = shared(np.arange(float(length)), "s")
    makers: dict[str, Callable[[], Array]] = {
        "gather": lambda: synk.gather(s),
        "concatenated": lambda: synk.gather(s, nd_up=0),
        "reduce": lambda: synk.reduce(s, "max", in_place=False),
        "get_value": lambda: synk.get_value(group.size - 1, s),
        "own value": lambda: synk.get_value(0, s),
    }
    for name, made in makers.items():
        first, second = made(), made()
        own = s.get_value(borrow=True)
        assert type(first) is np.ndarray, name
        assert first.flags.writeable, name
        assert not np.shares_memory(first, second), name
        assert not np.shares_memory(first, own), name
        first[...] = -1
        np.testing.assert_array_equal(own, np.arange(float(length)), err_msg=name)
        np.testing.assert_array_equal(made(), second, err_msg=name)


def test_values_are_copied_in(group: synk.Group) -> None:
    """S62: the user's array is not the variable's, in any verb."""
    s = shared(np.zeros(4))
    value = np.arange(4.0)
    for give in (
        lambda: synk.broadcast(s, value),
        lambda: synk.set_value(0, s, value),
        lambda: synk.set_value(group.size - 1, s, value),
        lambda: synk.scatter(s, value),
    ):
        give()
        assert not np.shares_memory(s.get_value(borrow=True), value)
    d = synk.data(value)
    for give in (lambda: synk.broadcast(s, d), lambda: synk.scatter(s, d)):
        give()
        assert not np.shares_memory(s.get_value(borrow=True), d.data)
        d[...] = 9
        assert s.get_value().max() < 9
        d[...] = value


@pytest.mark.parametrize("kind", ["array", "data", "list", "strided", "Fortran", "read-only"])
def test_values_of_every_kind(group: synk.Group, kind: str) -> None:
    """S46, S47, S60, S64: numpy of any layout, Data, nested lists."""
    plain = np.arange(24.0).reshape(6, 4)
    give: Any = {
        "array": lambda: plain.copy(),
        "data": lambda: synk.data(plain),
        "list": lambda: plain.tolist(),
        "strided": lambda: np.repeat(np.repeat(plain, 2, 0), 3, 1)[::2, ::3],
        "Fortran": lambda: np.asfortranarray(plain),
        "read-only": lambda: np.broadcast_to(plain, (1, 6, 4))[0],
    }[kind]()
    s = shared(np.zeros((1, 1)), "s")
    synk.broadcast(s, give)
    for found in everywhere(s, group.size):
        same(found, plain)
    synk.scatter(s, give)
    same(synk.gather(s, nd_up=0), plain)
    synk.scatter(s, give, batch=[5, 0, 0, -1])
    same(synk.gather(s, nd_up=0), plain[[5, 0, 0, -1]])
    synk.set_value(group.size - 1, s, give)
    same(synk.get_value(group.size - 1, s), plain)
    synk.set_value(group.size - 1, s, give, batch=slice(1, 3))
    same(synk.get_value(group.size - 1, s), plain[1:3])


def test_the_masters_own_value_may_be_strided(group: synk.Group) -> None:
    """S64: set by the user, in any layout, and moved by every verb."""
    plain = np.arange(24.0).reshape(4, 6)
    for value in (plain.T, plain[::2, ::3], np.asfortranarray(plain), plain[::-1]):
        s = shared(np.zeros((1, 1)))
        s.set_value(value, borrow=True)
        for found in everywhere(s, group.size):
            same(found, value)
        same(synk.reduce(s, "max", in_place=False), value)
        synk.all_reduce(s, "sum")
        same(s.get_value(), value * group.size)


def test_lists_and_numbers_as_values(group: synk.Group) -> None:
    """S60: for any float dtype; several variables, one value for each."""
    s, k = shared(np.zeros(2, "float32"), "s"), shared(np.float32(0), "k")
    n = shared(np.int32(0), "n")
    synk.broadcast(s, [1.0, 2.5])
    same(synk.get_value(group.size - 1, s), np.array([1.0, 2.5], "float32"))
    synk.broadcast(k, 1.5)
    synk.set_value(group.size - 1, n, 7)
    assert synk.get_value(group.size - 1, [k, n]) == [1.5, 7]
    synk.broadcast([s], [[3, 4]])
    synk.broadcast([s, k], [[3, 4], 2])
    same(synk.get_value(group.size - 1, s), np.array([3, 4], "float32"))
    synk.broadcast([k], [np.float32(8)])
    synk.broadcast([s], [np.array([5, 6], "float32")])
    assert [v.tolist() for v in synk.get_value(group.size - 1, [s, k])] == [[5, 6], 8]


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_scatter_and_the_one_split_rule(group: synk.Group, rows: int) -> None:
    """S58, S59: parts as in a call, members without rows included; several variables at once."""
    values, labels = np.arange(2.0 * rows).reshape(rows, 2), np.arange(rows)
    s, t = shared(np.zeros((1, 2)), "s"), shared(np.zeros(1, "int64"), "t")
    at = edges(rows, group.size)
    synk.scatter([s, t], [values, labels])
    for rank in range(group.size):
        found = synk.get_value(rank, [s, t])
        same(found[0], values[at[rank] : at[rank + 1]])
        same(found[1], labels[at[rank] : at[rank + 1]])
    assert synk.get_lengths(t) == np.diff(at).tolist()
    assert synk.get_shapes([s, t])[0] == [(n, 2) for n in np.diff(at)]
    for batch in (None, 1, slice(None, None, -1), [0, 0, rows - 1], np.arange(rows) % 2 == 0):
        synk.scatter([s, t], [values, labels], batch=batch)
        picked = (
            labels[:1] if isinstance(batch, int) else labels if batch is None else labels[batch]
        )
        same(synk.gather(t, nd_up=0), picked)
        same(synk.gather(s, nd_up=0), values[picked])


def test_scatter_of_values_that_are_not_aligned(group2: synk.Group) -> None:
    """As records after a header are."""
    s = shared(np.zeros((1, 2)), "s")
    values = np.arange(8.0).reshape(4, 2)
    synk.scatter(s, np.frombuffer(bytes(1) + values.tobytes(), offset=1).reshape(4, 2))
    same(synk.gather(s, nd_up=0), values)


def test_scatter_of_the_masters_own_value(group: synk.Group) -> None:
    s = shared(np.arange(5.0))
    synk.scatter(s)
    same(synk.gather(s, nd_up=0), np.arange(5.0))
    synk.scatter([s])  # what the master has now
    assert sum(synk.get_lengths(s)) == edges(5, group.size)[1]


def test_unequal_lengths_are_joined(group: synk.Group) -> None:
    """S13, S49, S61: gather and all_gather with what is there, zero rows included."""
    s = shared(np.zeros((0, 2)))
    values = [np.full((rank * 2, 2), float(rank)) for rank in range(group.size)]
    spread(s, values)
    same(synk.gather(s, nd_up=0), np.concatenate(values))
    assert synk.get_lengths(s) == [2 * rank for rank in range(group.size)]
    if group.size > 1:
        with pytest.raises(synk.InputError, match="nd_up=0"):
            synk.gather(s)
        for rank, value in enumerate(values):
            same(synk.get_value(rank, s), value)
    for nccl in (True, False):
        synk.all_gather(s, nccl=nccl)
        for found in everywhere(s, group.size):
            same(found, np.concatenate(values))
        spread(s, values)


def test_all_gather_of_many(group: synk.Group) -> None:
    """S49, S70: a list of variables, of several dtypes, in one round."""
    variables = [shared(np.full((n + 1, 2), n, f"float{32 * (1 + n % 2)}")) for n in range(6)]
    synk.all_gather(variables)
    for n, v in enumerate(variables):
        for found in everywhere(v, group.size):
            same(found, np.full(((n + 1) * group.size, 2), n, v.dtype))
    with pytest.raises(synk.InputError, match="0-d"):
        synk.all_gather([variables[0], shared(1.0, "flat")])
    with pytest.raises(synk.InputError, match="0-d"):
        synk.get_lengths(shared(1.0))


def test_many_small_variables_travel_together(
    group: synk.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S70: hundreds of variables of all sizes in one command of each verb, whatever its size."""
    posted, post = [], group.channel.post
    monkeypatch.setattr(group.channel, "post", lambda *a: posted.append(a[0]) or post(*a))
    draw = np.random.default_rng(0)
    shapes = [tuple(draw.integers(0, 4, draw.integers(0, 4)).tolist()) for _ in range(200)]
    variables = [shared(np.full(s, n, "float64")) for n, s in enumerate(shapes)]
    synk.broadcast(variables)
    del posted[:]
    synk.broadcast(variables)
    synk.all_reduce(variables, "sum")
    assert [type(c).__name__ for c in posted] == ["Broadcast", "AllReduce"]
    for n, (v, found) in enumerate(
        zip(variables, synk.get_value(group.size - 1, variables), strict=True)
    ):
        same(found, np.full(shapes[n], n * group.size, "float64"))
        same(v.get_value(), found)


@pytest.mark.new_group
def test_names(group: synk.Group) -> None:
    """S68: a name stands for its variable in every verb."""
    x = pt.vector("x", dtype="float64")
    s, t = shared(np.arange(4.0), "s"), shared(np.ones(4), "t")
    f = synk.function([x], x.sum() * s.sum() + t.sum(), mode="FAST_COMPILE")
    same(synk.get_value(group.size - 1, "s"), np.arange(4.0))
    synk.broadcast("s", np.full(4, 2.0))
    synk.set_value(0, ["s", t], [np.full(4, 3.0), np.zeros(4)])
    same(synk.gather("s")[0], np.full(4, 3.0))
    synk.broadcast(["s", "t"])
    synk.all_reduce("s", "sum")
    assert synk.reduce("s", "max", in_place=False).tolist() == [3.0 * group.size] * 4
    synk.reduce("s", "min")
    assert synk.get_lengths("s") == [4] * group.size
    assert synk.get_shapes(["s"]) == [[(4,)] * group.size]
    synk.scatter("s", np.arange(3.0))
    synk.all_gather("s")
    synk.reduce_scatter("t", "max")
    same(synk.gather("s")[0], np.arange(3.0))
    assert f(np.ones(2)) is not None


def test_names_that_are_not_one_variable(group2: synk.Group) -> None:
    """S68: unknown names list the known, ambiguous ones say so."""
    a, b, c = shared(np.ones(2), "twin"), shared(np.zeros(2), "twin"), shared(0.0, "only")
    synk.broadcast([a, b, c])
    with pytest.raises(synk.InputError, match=r"'nobody'.*\bonly\b.*\btwin\b"):
        synk.get_value(1, "nobody")
    with pytest.raises(synk.InputError, match="2 shared variables are named 'twin'"):
        synk.all_reduce("twin")
    assert synk.get_value(1, "only") == 0.0
    same(synk.get_value(1, a), np.ones(2))


def test_variables_that_no_function_uses(group: synk.Group) -> None:
    """S68: any shared variable will do, made before or after others were used."""
    for n in range(3):
        s = shared(np.full(2, float(n)))
        synk.all_reduce(s, "sum")
        same(s.get_value(), np.full(2, float(n) * group.size))


BAD: dict[str, tuple[Callable[[Any, Any], Any], type[Exception]]] = {
    "unknown op": (lambda s, t: synk.all_reduce(s, "median"), ValueError),
    "gather as op": (lambda s, t: synk.reduce(s, "gather"), ValueError),
    "no op": (lambda s, t: synk.all_reduce(s, None), ValueError),  # type: ignore[arg-type]
    "rank too high": (lambda s, t: synk.get_value(7, s), ValueError),
    "negative rank": (lambda s, t: synk.set_value(-1, s, np.ones(3)), ValueError),
    "rank last": (lambda s, t: synk.get_value(s, 1), TypeError),
    "bool rank": (lambda s, t: synk.get_value(True, s), TypeError),
    "no variable": (lambda s, t: synk.broadcast(np.ones(3)), TypeError),
    "an expression": (lambda s, t: synk.all_reduce(s + 1), TypeError),
    "number in list": (lambda s, t: synk.gather([s, 3]), TypeError),
    "listed twice": (lambda s, t: synk.all_reduce([s, s]), ValueError),
    "ndim": (lambda s, t: synk.broadcast(s, np.ones((3, 1))), TypeError),
    "dtype": (lambda s, t: synk.set_value(1, s, np.ones(3, "complex128")), TypeError),
    "text": (lambda s, t: synk.broadcast(s, "abc"), TypeError),
    "nothing": (lambda s, t: synk.set_value(1, s, None), TypeError),
    "objects": (lambda s, t: synk.broadcast(s, np.array([None])), TypeError),
    "too few values": (lambda s, t: synk.broadcast([s, t], [np.ones(3)]), ValueError),
    "too many values": (lambda s, t: synk.broadcast([s, t], [np.ones(3)] * 3), ValueError),
    "clone": (lambda s, t: synk.broadcast([s, s.clone()]), ValueError),
    "None": (lambda s, t: synk.set_value(1, s, None), TypeError),
    "0-d": (lambda s, t: synk.scatter(shared(0.0), 3.0), ValueError),
    "no such rows": (lambda s, t: synk.scatter(s, np.ones(3), batch=[3]), IndexError),
    "no such rows to set": (lambda s, t: synk.set_value(1, s, np.ones(3), batch=4), IndexError),
    "batch": (lambda s, t: synk.scatter(s, np.ones(3), batch=1.5), TypeError),
    "nd_up": (lambda s, t: synk.gather(s, nd_up=2), ValueError),
    "weights": (lambda s, t: synk.all_reduce(s, weights=[1.0]), ValueError),
    "negative weights": (lambda s, t: synk.all_reduce(s, weights=[2.0, -1.0]), ValueError),
    "no weight": (lambda s, t: synk.reduce(s, weights=[0.0, 0.0]), ValueError),
    "weights that are none": (lambda s, t: synk.reduce(s, weights=[np.nan, 1.0]), ValueError),
    "a number as weights": (lambda s, t: synk.all_reduce(s, weights=2), TypeError),
    "words as weights": (lambda s, t: synk.reduce(s, weights=["a", "b"]), TypeError),
    "no end of weight": (lambda s, t: synk.reduce(s, weights=[np.inf, 1.0]), ValueError),
    "a row below": (lambda s, t: synk.set_value(1, s, np.ones(3), batch=[-4]), IndexError),
    "a row above": (lambda s, t: synk.set_value(0, s, np.ones(4), batch=[0, 4, 1]), IndexError),
    "rows of a number": (lambda s, t: synk.set_value(0, shared(1.0), 2.0, batch=0), ValueError),
    "weights of a sum": (lambda s, t: synk.all_reduce(s, "sum", weights=[1.0, 2.0]), ValueError),
    "an order of others": (lambda s, t: synk.permute(s, [0, 2]), ValueError),
    "a rank twice": (lambda s, t: synk.permute([s, t], [1, 1]), ValueError),
    "too short an order": (lambda s, t: synk.permute(s, [0]), ValueError),
    "no order": (lambda s, t: synk.permute(s, 1), TypeError),  # type: ignore[arg-type]
    "no ranks": (lambda s, t: synk.permute(s, [True, False]), TypeError),
    "words as ranks": (lambda s, t: synk.permute(s, "10"), TypeError),  # type: ignore[arg-type]
    "no rows to scatter": (lambda s, t: synk.reduce_scatter(shared(1.0)), ValueError),
}


@pytest.mark.each_choice
@pytest.mark.parametrize("what", BAD)
def test_bad_arguments(group2: synk.Group, what: str) -> None:
    """S60, S69, S71: refused before anything moves, and the group works on."""
    s, t = shared(np.zeros(3), "s"), shared(np.zeros(3), "t")
    values = [np.arange(3.0), np.arange(3.0) + 1]
    for v in (s, t):
        spread(v, values)
    act, error = BAD[what]
    with pytest.raises(error) as caught:
        act(s, t)
    assert isinstance(caught.value, synk.InputError)
    for v in (s, t):
        for found, value in zip(everywhere(v, 2), values, strict=True):
            same(found, value)
    synk.all_reduce([s, t], "sum")
    same(s.get_value(), values[0] + values[1])


ORDERS = {1: [[0]], 2: [[1, 0], [0, 1]], 3: [[1, 0, 2], [1, 2, 0], [2, 1, 0], [0, 1, 2]]}


@pytest.mark.parametrize("where", ["members' own memory", "shared memory"])
def test_values_move_by_a_permutation(group: synk.Group, where: str) -> None:
    """Rank r gets the values of rank order[r]: of any dtype and shape; what is equal stays."""
    kinds = {"int32": (), "float32": (3, 2), "float64": (0, 3), "bool": (30_000,)}
    variables = [shared(np.zeros(shape, dtype), dtype) for dtype, shape in kinds.items()]
    equal = shared(np.arange(3.0), "equal")
    for orders in ORDERS.get(group.size, [[*range(1, group.size), 0]]):
        columns = [values_for(v.dtype, v.get_value().shape, group.size) for v in variables]
        if where == "shared memory":
            synk.all_reduce(variables, "max")
        for rank in range(group.size):
            synk.set_value(rank, variables, [column[rank] for column in columns])
        synk.permute([*variables, equal], orders)
        synk.permute("float32", range(group.size))
        for variable, column in zip(variables, columns, strict=True):
            for rank, found in enumerate(everywhere(variable, group.size)):
                same(found, column[orders[rank]])
        for found in everywhere(equal, group.size):
            same(found, np.arange(3.0))
    if group.size > 1:
        variables[0].set_value(np.int32(7))
        with told_of(group):  # as of other collectives: members keep what they hold
            synk.permute(variables[0], [*range(1, group.size), 0])


def test_a_permutation_that_moves_nothing_costs_no_round(
    group2: synk.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    s, t = shared(np.zeros(2), "s"), shared(np.zeros(2), "t")
    spread(s, [np.zeros(2), np.ones(2)])
    synk.broadcast(t)
    monkeypatch.setattr(type(group2.runner), "run", None)  # whatever calls it fails
    synk.permute([s, t], [0, 1])
    synk.permute(t, [1, 0])
    with pytest.raises(TypeError):
        synk.permute(s, [1, 0])


VERBS = ["all_reduce", "reduce", "reduce in place", "reduce_scatter", "permute"]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("length", [3, 30_000])
def test_shapes_that_differ(group2: synk.Group, verb: str, length: int) -> None:
    """S61, S67: found by the members, an InputError; no value changes and the group goes on."""
    s, t = shared(np.zeros(length), "s"), shared(np.zeros(length), "t")
    values = [np.arange(float(length)), np.ones(length + 1)]
    spread(s, values)
    act = {
        "all_reduce": lambda: synk.all_reduce([t, s], "sum"),
        "reduce": lambda: synk.reduce([t, s], "sum", in_place=False),
        "reduce in place": lambda: synk.reduce([t, s], "sum"),
        "reduce_scatter": lambda: synk.reduce_scatter(s, "sum"),
        "permute": lambda: synk.permute([t, s], [1, 0]),
    }[verb]
    for _ in range(2):
        with pytest.raises(synk.InputError, match="shape"):
            act()
        for found, value in zip(everywhere(s, 2), values, strict=True):
            same(found, value)
        same(synk.gather(t), np.zeros((2, length)))
    synk.broadcast(s)
    synk.all_reduce(s, "sum")
    same(synk.get_value(1, s), values[0] * 2)


def test_a_mismatch_tears_nothing(group2: synk.Group) -> None:
    """S67: after the group has ended as its last act failed, the values are whole."""
    s = shared(np.zeros(30_000), "s")
    spread(s, [np.zeros(30_000), np.ones(30_001)])
    with pytest.raises(synk.InputError):
        synk.all_reduce(s)
    synk.close()
    group2.close()
    with synk.Group(2):
        same(synk.get_value(1, s), np.zeros(30_000))


@pytest.mark.each_choice
@pytest.mark.parametrize("length", [5, 50_001])
@pytest.mark.parametrize("op", ["avg", "sum", "prod"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_the_order_is_that_of_ranks(length: int, op: str, dtype: str) -> None:
    """S69: bit-equal in all members, whoever is the master, and equal to numpy rank by rank."""
    draw = np.random.default_rng(3)
    values = [draw.normal(size=length).astype(dtype) for _ in range(3)]
    found = []
    for master_rank in (0, 1, 2):
        with synk.Group(3, master_rank=master_rank):
            s = shared(np.zeros(length, dtype))
            spread(s, values)
            total = synk.reduce(s, op, in_place=False)
            synk.all_reduce(s, op)
            found += [total, s.get_value(), *everywhere(s, 3)]
    wanted = combine(values, Reduction(op))
    for value in found:
        np.testing.assert_array_equal(value, wanted, strict=True)


@pytest.mark.parametrize("master_rank", [1, 2])
def test_another_rank_as_master(master_rank: int) -> None:
    """S48, S58, S69: own values, parts and gathered rows follow the ranks."""
    with synk.Group(3, master_rank=master_rank):
        s = shared(np.zeros(2))
        values = [np.full(2, float(rank)) for rank in range(3)]
        spread(s, values)
        same(synk.gather(s), np.stack(values))
        same(s.get_value(), values[master_rank])
        same(synk.get_value(master_rank, s), values[master_rank])
        synk.scatter(s, np.arange(7.0))
        assert synk.get_lengths(s) == [3, 2, 2]
        same(s.get_value(), np.arange(7.0)[3 + 2 * (master_rank - 1) :][:2])
        synk.all_gather(s)
        same(synk.get_value(0, s), np.arange(7.0))
        synk.reduce_scatter(s, "max")
        same(synk.gather(s, nd_up=0), np.arange(7.0))
        s.set_value(np.full(2, 9.0))
        synk.broadcast(s)
        same(synk.get_value(0, s), np.full(2, 9.0))


def test_the_masters_set_value_counts(group: synk.Group) -> None:
    """A value set by the user is what collectives see in every member, before and after."""
    s = shared(np.ones(3))
    synk.all_reduce(s, "sum")
    s.set_value(np.full(3, 5.0))
    synk.all_reduce(s, "sum")
    same(s.get_value(), np.full(3, 5.0 * group.size))
    s.set_value(np.full(4, 2.0))  # of another shape, after it lived in the arena
    same(synk.get_value(group.size - 1, s), np.full(4, 2.0))
    s.set_value(np.zeros(2), borrow=True)
    same(synk.gather(s), np.zeros((group.size, 2)))


@pytest.mark.parametrize("verb", ["all_reduce", "gather", "reduce"])
def test_setting_a_variable_that_differs_is_told(group2: synk.Group, verb: str) -> None:
    """Members keep what they hold, in collectives as in calls; what replaces it says nothing."""
    s = shared(np.zeros(4), "spread_out")
    synk.scatter(s, np.arange(4.0))
    s.set_value(np.full(2, 7.0))
    act = getattr(synk, verb)
    with pytest.warns(synk.ReplicaWarning, match=r"spread_out.*synk\.broadcast"):
        act(s)
    act(s)  # and not again: warnings are errors
    s.set_value(np.arange(4.0))
    synk.scatter(s)
    same(synk.get_value(1, s), np.array([2.0, 3.0]))


def test_values_that_differ_are_reduced_as_they_are(group: synk.Group) -> None:
    """A variable made to differ keeps the others' values; the master's new one joins them."""
    s = shared(np.zeros(2))
    spread(s, [np.full(2, float(rank)) for rank in range(group.size)])
    s.set_value(np.full(2, 10.0))
    with told_of(group):
        synk.all_reduce(s, "sum")
    same(s.get_value(), np.full(2, 10.0 + sum(range(1, group.size))))


def test_functions_see_what_collectives_left(group: synk.Group) -> None:
    """Values in shared memory are the functions' own, through updates and back."""
    s, x = shared(np.ones(3), "s"), pt.vector("x", dtype="float64")
    f = synk.function([x], (s.sum() + 0 * x.sum(), "gather"), mode="FAST_COMPILE")
    step = synk.function([], updates=[(s, s * 2)], mode="FAST_COMPILE")
    rows, wanted = np.zeros(group.size), 3.0
    for _ in range(3):
        synk.all_reduce(s, "sum")
        wanted *= group.size
        same(f(rows), np.full(group.size, wanted))
        step()
        wanted *= 2
        same(f(rows), np.full(group.size, wanted))
        assert s.get_value(borrow=True).sum() == wanted


@pytest.mark.parametrize("length", [4, 30_000])
def test_values_after_the_end_are_the_users_own(size: int, length: int) -> None:
    """After close, values that lived in shared memory can be read, written, copied and pickled."""
    s, t = shared(np.ones(length), "s"), shared(np.arange(float(length)), "t")
    with synk.Group(size):
        synk.all_reduce([s, t], "sum")
        gathered = synk.gather(s)
        total = synk.reduce(t, "max", in_place=False)
    same(s.get_value(borrow=True), np.full(length, float(size)))
    s.get_value(borrow=True)[...] = 3
    assert pickle.loads(pickle.dumps(s)).get_value().sum() == 3 * length
    assert copy.deepcopy(t.get_value()).max() == (length - 1) * size
    gathered[...] = total
    f = pytensor.function([], s.sum(), mode="FAST_COMPILE")
    assert f() == 3 * length
    with pytest.raises(synk.NotForked):
        synk.all_reduce(s)
    with synk.Group(size):
        synk.all_reduce(s, "sum")
        same(synk.get_value(size - 1, s), np.full(length, 3.0 * size))
    same(s.get_value(), np.full(length, 3.0 * size))


@pytest.mark.parametrize(
    "act",
    [
        lambda s: synk.broadcast(s, np.ones(3)),
        lambda s: synk.set_value(1, s, np.ones(5)),
        lambda s: synk.set_value(1, s, np.ones(4), batch=[0, 1]),
        lambda s: synk.scatter(s, np.ones(4)),
        lambda s: synk.scatter(s, np.ones(8), batch=6),
        lambda s: synk.all_gather(s),
        lambda s: synk.reduce_scatter(s, "sum"),
    ],
    ids=[
        *("broadcast", "set_value", "set_value of rows", "scatter", "scatter of rows"),
        *("all_gather", "reduce_scatter"),
    ],
)
def test_static_shapes_are_kept(group2: synk.Group, act: Callable[[Any], Any]) -> None:
    """S60: a variable declared with a shape never gets a value of another one."""
    s = pytensor.shared(np.zeros(4), shape=(4,), name="s")
    with pytest.raises(synk.InputError):
        act(s)
    assert synk.get_shapes(s) == [(4,), (4,)]


def test_rows_that_fit_a_static_shape(group2: synk.Group) -> None:
    """The rows have to fit, not the array that they are chosen from, or divided from."""
    s = pytensor.shared(np.zeros(4), shape=(4,), name="s")
    rows = np.arange(8.0)
    synk.set_value(1, s, rows, batch=[7, 1, 1, 0])
    same(synk.get_value(1, s), rows[[7, 1, 1, 0]])
    synk.scatter(s, rows)
    same(synk.gather(s, nd_up=0), rows)
    synk.scatter(s, np.arange(9.0), batch=slice(None, 0, -1))
    same(synk.gather(s, nd_up=0), np.arange(8.0, 0, -1))


def test_generators_are_broadcast_and_nothing_else(group2: synk.Group) -> None:
    """Values that are no arrays: broadcast sends them, the other verbs say why they do not."""
    g = pytensor.shared(np.random.default_rng(1), name="g")
    synk.broadcast(g)
    synk.broadcast([g, shared(np.ones(2))])
    for act in (lambda: synk.all_reduce(g), lambda: synk.gather(g), lambda: synk.get_value(1, g)):
        with pytest.raises(synk.InputTypeError, match="not arrays"):
            act()
    assert isinstance(g.get_value(), np.random.Generator)


def test_nothing_to_do(group: synk.Group) -> None:
    """Empty lists are no error."""
    assert synk.gather([]) == []
    assert synk.get_value(0, []) == []
    assert synk.reduce([], in_place=False) == []
    assert synk.get_shapes([]) == []
    synk.broadcast([])
    synk.all_reduce([])


def test_no_group() -> None:
    s = shared(np.ones(2))
    for act in (lambda: synk.broadcast(s), lambda: synk.get_lengths(s), lambda: synk.scatter(s)):
        with pytest.raises(synk.NotForked, match=r"synk\.fork"):
            act()


@pytest.mark.parametrize("smaller", [0, 1])
def test_all_reduce_of_unequal_lengths_writes_nothing(group2: synk.Group, smaller: int) -> None:
    """Small values travel another way than large ones: members on both refuse alike."""
    small, large = shared(np.full(10, 1.0)), shared(np.ones(1000))
    changed = shared(np.full(10 if smaller else 1000, 3.0))
    for s in (small, large, changed):  # leaves what a member on the other way might read
        synk.all_reduce(s, "sum")
    synk.set_value(smaller, changed, np.full(10, 5.0))
    synk.set_value(1 - smaller, changed, np.full(1000, 7.0))
    for _ in range(3):
        with pytest.raises(synk.InputError, match="differ in shape or dtype"):
            synk.all_reduce(changed, "sum")
        same(synk.get_value(smaller, changed), np.full(10, 5.0))
        same(synk.get_value(1 - smaller, changed), np.full(1000, 7.0))
        for rank in range(2):
            same(synk.get_value(rank, small), np.full(10, 2.0))
            same(synk.get_value(rank, large), np.full(1000, 2.0))
    synk.broadcast(changed)
    synk.all_reduce(changed, "avg")
