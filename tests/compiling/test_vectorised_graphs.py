"""Where vectorised functions replace PyTensor's, where they do not, and that values stay."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

import numba
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.distributions.dist_math import I1e
from pytensor.scalar.basic import Second
from pytensor.scalar.math import TriGamma
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import All
from pytensor.tensor.rewriting.fused_elemwise import FusedElemwise
from pytensor.tensor.subtensor import AdvancedIncSubtensor
from rewritten import in_python, rewritten
from selection import thorough

import synkhronos as synk
from synkhronos._compiling.lean.mode import lean
from synkhronos._compiling.vectorised import rewrite
from synkhronos._compiling.vectorised.op import Vectorised, has_vectorised
from synkhronos._compiling.vectorised.rewrite import vectorising
from synkhronos._compiling.vectorised.table import TABLE
from synkhronos.extensions import make_train_function, updates

CPU = numba.core.codegen.get_host_cpu_features()
VALUE = np.array([0.3, 0.5, 1.5, 2.5, 20.0])


def replaced(compiled: Any) -> bool:
    """Whether a function computes with vectorised operations."""
    return "ectorised_" in pytensor.printing.debugprint(compiled, file="str")


def all_of(x: Any) -> Any:
    """Each function of the table, at numbers that all of them take."""
    arguments = {"log1mexp": (-x,), "power": (x, x - 1)}
    return [
        Elemwise(kind(pytensor.scalar.upgrade_to_float_no_complex))(*arguments.get(name, (x,)))
        for kind, (_, name) in TABLE.items()
    ]


@in_python
@pytest.mark.parametrize("dtype", ["float64", *thorough("float32")])
def test_values_and_gradients_are_those_of_the_plain_functions(dtype: str, made: Any) -> None:
    """Also where the caller's flags allow changes of sums, which PyTensor's do."""
    x = pt.vector("x", dtype=dtype)
    wanted = all_of(x)
    gradients = [
        pt.grad(v.sum(), x) for v in wanted if not isinstance(v.owner.op.scalar_op, TriGamma | I1e)
    ]
    value = VALUE.astype(dtype)
    fast = pytensor.function([x], wanted, mode=lean("NUMBA"))
    assert replaced(fast)
    plain = pytensor.function([x], wanted + gradients, mode="FAST_COMPILE")
    rtol = 1e-13 if dtype == "float64" else 3e-5
    both = [*fast(value), *made([x], gradients)(value)]
    for found, expected in zip(both, plain(value), strict=True):
        assert found.dtype == dtype
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol)


def test_each_entry_of_the_table_names_a_function() -> None:
    package = "synkhronos._compiling.vectorised"
    for module, name in TABLE.values():
        assert callable(getattr(import_module(f"{package}.{module}"), name))


@pytest.mark.parametrize("function", [pt.erf, pt.erfc, lambda x: x**1.7, pt.exp])
def test_few_elements_keep_functions_with_short_branches(function: Any) -> None:
    for count, few in ((1, True), (16, True), (17, False), (None, False)):
        x = pt.vector("x", dtype="float64", shape=(count,))
        assert replaced(rewritten([x], function(x))) is (not few or function is pt.exp)


def test_loops_are_fused() -> None:
    x = pt.vector("x", dtype="float64")
    fast = rewritten([x], pt.exp(2 * x) * pt.tanh(x))
    assert replaced(fast)
    assert len(fast.maker.fgraph.apply_nodes) == 1


def scalar_operations(graph: Any) -> list[Any]:
    """Those of the elementwise operations of a graph, also inside of fused ones."""
    found = []
    for node in graph.toposort():
        scalar = getattr(node.op, "scalar_op", None)
        inner = getattr(scalar if scalar is not None else node.op, "fgraph", None)
        if inner is not None:
            found += [n.op for n in inner.toposort()] if scalar is not None else []
            found += scalar_operations(inner) if scalar is None else []
        elif scalar is not None:
            found.append(scalar)
    return found


@pytest.mark.each_choice
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp", "logaddexp"])
@in_python
def test_functions_inside_of_symbolic_operations_are_replaced(
    name: str, dtype: str, made: Any
) -> None:
    x = pt.matrix("x", dtype=dtype)
    of = {
        "softmax": lambda: pt.special.softmax(x, axis=-1),
        "log_softmax": lambda: pt.special.log_softmax(x, axis=-1),
        "logsumexp": lambda: pt.logsumexp(x, axis=-1),
        "logaddexp": lambda: pt.logaddexp(x, -x),
    }[name]
    wanted = [of(), pt.grad((of() ** 2).sum(), x)]
    value = np.linspace(-30, 30, 12).reshape(3, 4).astype(dtype)
    fast = made([x], wanted)
    operations = scalar_operations(fast.maker.fgraph)
    assert any(isinstance(op, Vectorised) for op in operations)
    assert not {type(op).__name__ for op in operations} & {"Exp", "Log", "Log1p", "Softplus"}
    plain = pytensor.function([x], wanted, mode="FAST_COMPILE")
    rtol = 1e-13 if dtype == "float64" else 3e-5
    for found, expected in zip(fast(value), plain(value), strict=True):
        assert found.dtype == dtype
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol)


def test_gradients_inside_of_symbolic_operations_are_simplified() -> None:
    """PyMC does so before it compiles, and nutpie does not."""
    x = pt.tensor("x", dtype="float64", shape=(300, 2))
    fast = rewritten([x], pt.grad(pt.logsumexp(x, axis=1).sum(), x))
    operations = scalar_operations(fast.maker.fgraph)
    assert not any(isinstance(op, Second) for op in operations)
    assert sum(isinstance(op, Vectorised) for op in operations) == 1


def test_integers_are_cast_first() -> None:
    n = pt.vector("n", dtype="int64")
    fast = rewritten([n], pt.gammaln(n))
    assert replaced(fast)
    np.testing.assert_allclose(fast([3, 11]), [np.log(2), np.log(3628800)], rtol=1e-15)


def test_other_dtypes_and_other_modes_keep_their_functions() -> None:
    z, x = pt.vector("z", dtype="complex128"), pt.vector("x", dtype="float64")
    assert not rewrite.is_replaced(pt.exp(z))
    assert rewrite.is_replaced(pt.exp(x))
    assert not rewrite.is_replaced(x)
    for mode in ("FAST_COMPILE", "CVM", "JAX"):
        assert lean(mode) == mode


def test_a_group_says_whether_functions_are_replaced() -> None:
    x = pt.vector("x", dtype="float64")
    w = pytensor.shared(np.ones(1))
    for wanted in (True, False):
        with synk.Group(1, vectorised=wanted) as group:
            f = synk.function([x], pt.tanh(x).sum(), mode="NUMBA")
            loss = pt.tanh(w.sum() * x).sum()
            step = make_train_function(loss, [w], x, None, updates.sgd, 0.1)
            assert abs(f(VALUE) - np.tanh(VALUE).sum()) < 1e-12
            step(VALUE)
            found = group.member.replicas.values()
            made = [each.function for replica in found for each in replica._compiled.values()]
            assert len(made) == 2
            assert [replaced(m) for m in made] == [wanted] * len(made)


def test_without_the_code_plain_functions_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTensor's or numba's own parts may change."""
    monkeypatch.setattr(rewrite, "usable", lambda module: False)
    x = pt.vector("x", dtype="float64")
    assert not replaced(rewritten([x], pt.tanh(x)))


def test_the_switch_holds_within_its_context() -> None:
    with vectorising(False):
        assert rewrite.tags() == ()
        with vectorising(True):
            assert rewrite.tags()
        assert rewrite.tags() == ()
    assert rewrite.tags()


def test_operations_are_equal_if_they_replace_the_same() -> None:
    exp, log = (Vectorised(op) for op in (pytensor.scalar.exp, pytensor.scalar.log))
    assert exp == Vectorised(pytensor.scalar.exp)
    assert hash(exp) == hash(Vectorised(pytensor.scalar.exp))
    assert exp != log
    assert str(exp) == "vectorised_exp"


def test_a_vectorised_operation_has_the_derivative_of_the_plain_one() -> None:
    x = pt.vector("x", dtype="float64")
    y = Elemwise(Vectorised(pytensor.scalar.math.gammaln))(x)
    gradient = pytensor.function([x], pt.grad(y.sum(), x), mode="FAST_COMPILE")
    plain = pytensor.function([x], pt.psi(x), mode="FAST_COMPILE")
    np.testing.assert_allclose(gradient(VALUE), plain(VALUE))


def loops(compiled: Any) -> list[tuple[int | None, ...]]:
    """The lengths of the axes of each loop with vectorised functions, as far as known."""
    nodes = [
        node
        for outer in compiled.maker.fgraph.toposort()
        for node in (outer.op.fgraph.apply_nodes if hasattr(outer.op, "fgraph") else [outer])
    ]
    found = [n for n in nodes if isinstance(n.op, Elemwise) and has_vectorised(n.op.scalar_op)]
    return [node.outputs[0].type.shape for node in found]


@in_python
def test_short_axes_are_no_loops(made: Any) -> None:
    """The innermost loop of a matrix with few columns would be too short to be vectorised."""
    r = np.random.default_rng(0)
    a = pt.tensor("a", dtype="float64", shape=(None, 5))
    c = pt.tensor("c", dtype="float64", shape=(None, 1))
    u, v = pt.tensor("u", dtype="float64", shape=(5,)), pt.vector("v", dtype="float64")
    both, column, row = r.normal(size=(7, 5)), r.normal(size=(7, 1)), r.normal(size=5)
    inputs = [a, c, u, v]
    cases = {
        "one array": (pt.tanh(2 * a), (None,)),
        "rows of one": (pt.tanh(c) * pt.exp(c), (None,)),
        "two arrays": (pt.tanh(a + v), (None,)),
        "a column and a row": (pt.tanh(c * u), (None,)),
        "unknown lengths": (pt.tanh(c + v), (None, None)),
    }
    for what, (graph, axes) in cases.items():
        fast = made(inputs, graph)
        plain = pytensor.function(inputs, graph, mode="FAST_COMPILE", on_unused_input="ignore")
        assert loops(fast) == [axes], what
        for value in (both, np.asfortranarray(both), both[:0]):
            given = value, column[: len(value)], row, row
            found = fast(*given)
            assert found.shape == plain(*given).shape, what
            np.testing.assert_allclose(found, plain(*given), rtol=1e-15)


@in_python
def test_sums_over_axes_are_no_part_of_short_loops(made: Any) -> None:
    """Nor are the exponentials of rows and of columns computed for each of their pairs."""
    a = pt.tensor("a", dtype="float64", shape=(None,))
    u = pt.tensor("u", dtype="float64", shape=(5,))
    rates = pt.exp(a)[:, None] * pt.exp(u)
    terms = pt.switch(rates > 1, pt.log1p(rates), 0.5 * rates)
    outputs = [terms.sum(), terms.sum(axis=0), (terms * rates).sum(axis=1), pt.all(terms > 0)]
    fast = made([a, u], outputs)
    plain = pytensor.function([a, u], outputs, mode="FAST_COMPILE")
    assert [len(axes) for axes in loops(fast)] == [1, 1, 1]
    graph = fast.maker.fgraph
    alone = [node for node in graph.toposort() if str(node.op) == "Vectorised_exp"]
    assert {node.inputs[0] for node in alone} == set(graph.inputs)
    r = np.random.default_rng(0)
    for rows in (0, 1, 300):
        given = r.normal(size=rows), r.normal(size=5)
        for found, wanted in zip(fast(*given), plain(*given), strict=True):
            assert np.shape(found) == np.shape(wanted)
            np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_exponentials_of_the_same_rows_become_one() -> None:
    a, b = pt.vector("a", dtype="float64"), pt.vector("b", dtype="float64")
    fast = rewritten([a, b], pt.exp(a) * pt.exp(b))
    [node] = [n for n in fast.maker.fgraph.toposort() if isinstance(n.op, Elemwise)]
    inner = node.op.scalar_op.fgraph.apply_nodes
    assert sum(isinstance(n.op, Vectorised) for n in inner) == 1


@pytest.mark.skipif(not CPU or "+avx," not in f"{CPU},", reason="registers are for two numbers")
@pytest.mark.parametrize("exponent", ["number", "constant"])
def test_a_number_beside_an_array_becomes_part_of_the_loop(exponent: str) -> None:
    """PyTensor puts a function around that of the loop, or a cast before the constant."""
    x, a = pt.vector("x", dtype="float64"), pt.scalar("a", dtype="float64")
    graph = x ** pt.exp(a) if exponent == "number" else x**1.75
    with pytensor.config.change_flags(numba__cache=False):
        fast = pytensor.function([x, a], graph, mode=lean("NUMBA"), on_unused_input="ignore")
        expected = VALUE ** (np.exp(0.3) if exponent == "number" else 1.75)
        np.testing.assert_allclose(fast(VALUE, 0.3), expected, rtol=1e-15)
        [code] = fast.vm.jit_fn.inspect_asm().values()
    assert re.search(r"vf?n?m(ul|add|sub)\w*pd\s.*%[yz]mm", code)


@in_python
def test_sums_by_index_and_conditions_leave_loops_vectorised(made: Any) -> None:
    """numba does not vectorise a loop that adds to indexed elements, or compares all."""
    x, number = pt.vector("x", dtype="float64", shape=(90,)), pt.dscalar("number")
    rows = pt.matrix("rows", dtype="float64", shape=(90, 20))  # more than one step has
    at, zeros = pt.vector("at", dtype="int64", shape=(90,)), pt.zeros(3)
    cases = {
        "no function": (zeros[at].inc(pt.sqr(x * 2)), True),
        "a function": (zeros[at].inc(pt.sigmoid(x * 2) * 3), False),
        "of one number": (zeros[at].inc(pt.sqr(x) / pt.exp(number)), True),
        "of few": (zeros[at[:64]].inc(pt.sigmoid(x[:64] * 2) * 3), True),
        "an axis": (pt.zeros((3, 2))[at].inc(pt.exp(x)[:, None] * pt.ones((90, 2))), False),
        "in another loop": (pt.zeros((3, 20))[at].inc(pt.exp(x)[:, None] * rows), True),
        "a condition": (pt.all(pt.exp(x) > 0), False),
        "a condition without a function": (pt.all(x > 0), True),
    }
    r = np.random.default_rng(0)
    values = r.random(90), 0.5, r.random((90, 20)), r.integers(0, 3, 90)
    for what, (graph, joined) in cases.items():
        given = [x, number, rows, at]
        fast = made(given, graph)
        plain = pytensor.function(given, graph, mode="FAST_COMPILE", on_unused_input="ignore")
        np.testing.assert_allclose(fast(*values), plain(*values), rtol=1e-14, err_msg=what)
        loops = [n.op for n in fast.maker.fgraph.apply_nodes if isinstance(n.op, FusedElemwise)]
        assert any(adds_or_compares(loop.fgraph) for loop in loops) == joined, what


def adds_or_compares(graph: Any) -> bool:
    """Whether a loop adds up by indices, or compares all rows."""
    return any(isinstance(n.op, AdvancedIncSubtensor | All) for n in graph.apply_nodes)
