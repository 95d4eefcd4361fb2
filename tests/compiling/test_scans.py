"""Scans of a few numbers: the same values and gradients as PyTensor's, in one loop of numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.scan.op import Scan
from pytensor.scan.utils import until
from rewritten import compiled, in_python, rewritten
from selection import thorough

from synkhronos._compiling.lean.mode import lean
from synkhronos._compiling.lean.scans import NumberScan
from synkhronos._libraries.pytensor import numba_funcify_and_cache_key

R = np.random.default_rng(0)
Y = R.normal(size=12)
CHOICES = R.integers(0, 3, size=12)
TABLE = R.normal(size=(40, 2))
X, V, M = pt.dscalar("x"), pt.vector("v", shape=(3,)), pt.matrix("m", shape=(2, 2))
LENGTH = pt.lscalar("length")
VALUES = {X: np.array(0.3), V: np.array([0.2, -0.4, 0.7]), M: np.array([[0.3, 0.2], [0.1, -0.5]])}
VALUES[LENGTH] = np.array(7)


def scanned(step: Callable[..., Any], **given: Any) -> Any:
    return pytensor.scan(step, return_updates=False, **given)


def garch() -> Any:
    return scanned(
        lambda y, s: pt.sqrt(0.1 + V[0] ** 2 * y**2 + X**2 * s**2),
        sequences=[pt.constant(Y)],
        outputs_info=[pt.constant(np.array(1.0))],
    )


def autoregression() -> Any:
    return scanned(
        lambda before, last: V[0] * last + V[1] * before + X,
        outputs_info=[{"initial": V[:2], "taps": [-2, -1]}],
        n_steps=LENGTH,
    )


def hidden_states() -> Any:
    def step(y: Any, state: Any) -> Any:
        return pt.logsumexp(state[:, None] + M, axis=0) - (y - V[:2]) ** 2

    return scanned(step, sequences=[pt.constant(Y)], outputs_info=[V[1:] * X])[-1]


def linear_states() -> Any:
    return scanned(lambda z: pt.tanh(M @ z) + z @ M, outputs_info=[V[:2]], n_steps=9)


def learning() -> Any:
    """The position that is learnt comes from data; so does a row of a long table."""

    def step(choice: Any, values: Any) -> Any:
        better = values[choice - 1] + X * (pt.constant(TABLE)[choice, 1] - values[choice - 1])
        return pt.set_subtensor(values[choice - 1], better)

    return scanned(step, sequences=[pt.constant(CHOICES)], outputs_info=[V])


def looked_up() -> Any:
    rows = pt.constant(R.integers(-40, 40, size=12))

    def step(row: Any, state: Any) -> Any:
        return X * state + pt.constant(TABLE)[row].sum() * pt.constant(TABLE)[3, 1]

    return scanned(step, sequences=[rows], outputs_info=[X])


def two_results() -> Any:
    """One of each step alone, and one of which the last five are asked for."""

    def step(y: Any, a: Any) -> Any:
        return pt.maximum(pt.sin(a + y * X), V[2]), pt.stack([a * y, X, a.sum()])

    a, b = scanned(step, sequences=[pt.constant(Y)], outputs_info=[X, None])
    return pt.concatenate([a[-5:], b.ravel()])


def last_and_all() -> Any:
    """The last value of one result, and all of two others."""

    def step(y: Any, a: Any) -> Any:
        return a * X + y, a * y, pt.concatenate([a[None], y[None]])

    a, b, c = scanned(step, sequences=[pt.constant(Y)], outputs_info=[V[0], None, None])
    return pt.concatenate([a[-1][None], b, c.ravel()])


def mixed_kinds() -> Any:
    """Counts, and truth values."""

    def step(y: Any, n: Any, z: Any) -> Any:
        up = pt.gt(y * z, 0.0)
        return n + pt.cast(up, "int64"), pt.where(up & pt.lt(n, 4), z * X, pt.special.softmax(V)[1])

    n, z = scanned(
        step, sequences=[pt.constant(Y)], outputs_info=[pt.constant(0, dtype="int64"), X]
    )
    return n * z


GRAPHS = [garch, autoregression, hidden_states, linear_states, learning, looked_up]
GRAPHS += [two_results, last_and_all, mixed_kinds]


def with_slopes(graph: Callable[[], Any]) -> list[Any]:
    """A result, the sum of its squares, and the slopes of that."""
    found = graph()
    value = (found**2 * pt.arange(1.0, found.size + 1).reshape(found.shape)).sum()
    slopes = pt.grad(value, [X, V, M], disconnected_inputs="ignore")
    return [found, value, *slopes]


def kinds(function: Any) -> set[type]:
    ops = [node.op for node in function.maker.fgraph.apply_nodes]
    return {type(op) for op in ops if isinstance(op, Scan | NumberScan)}


@in_python
@pytest.mark.parametrize("graph", GRAPHS)
def test_values_and_slopes(made: Any, graph: Any) -> None:
    inputs, outputs = list(VALUES), with_slopes(graph)
    plain = pytensor.function(inputs, outputs, mode="FAST_COMPILE", on_unused_input="ignore")
    found = made(inputs, outputs)
    assert kinds(found) == {NumberScan}
    for wanted, value in zip(plain(*VALUES.values()), found(*VALUES.values()), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-10, atol=1e-12)
        assert value.dtype == wanted.dtype
        assert value.shape == wanted.shape


@in_python
@pytest.mark.parametrize("graph", [autoregression, *thorough(garch, hidden_states, learning)])
def test_second_derivatives(made: Any, graph: Any) -> None:
    inputs, slopes = list(VALUES), with_slopes(graph)[2:]
    along = pt.grad(slopes[0] + slopes[1].sum(), [X, V, M], disconnected_inputs="ignore")
    plain = pytensor.function(inputs, along, mode="FAST_COMPILE", on_unused_input="ignore")
    found = made(inputs, along)
    assert NumberScan in kinds(found)
    for wanted, value in zip(plain(*VALUES.values()), found(*VALUES.values()), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-10, atol=1e-12)


def test_no_step() -> None:
    """A trace of no steps has the initial values."""
    found = rewritten([V, X, LENGTH], autoregression())
    assert kinds(found) == {NumberScan}
    assert found(VALUES[V], VALUES[X], 0).shape == (0,)


def test_machine_code() -> None:
    """Buffers that are circular, that are written twice, and that begin with no rows."""
    slope = pt.grad(autoregression().sum(), X)
    outputs = [slope, two_results(), last_and_all()]
    found = compiled(list(VALUES), outputs)
    assert kinds(found) == {NumberScan}
    values = [v.copy() for v in VALUES.values()]
    plain = pytensor.function(list(VALUES), outputs, mode="FAST_COMPILE", on_unused_input="ignore")
    for wanted, value in zip(plain(*values), found(*values), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-10, atol=1e-12)
    for given, value in zip(VALUES.values(), values, strict=True):
        np.testing.assert_array_equal(value, given)


def test_machine_code_is_kept_for_equal_loops() -> None:
    def key() -> str | None:
        function = rewritten(list(VALUES), with_slopes(learning))
        [*_, node] = [n for n in function.maker.fgraph.toposort() if type(n.op) is NumberScan]
        found: str | None = numba_funcify_and_cache_key(node.op, node)[1]
        return found

    first = key()
    assert first is not None
    assert first == key()


def reads(index: Any) -> Any:
    return scanned(lambda i, z: X * z + V[i], sequences=[index], outputs_info=[X])


def sets(index: Any) -> Any:
    def step(i: Any, z: Any) -> Any:
        return pt.set_subtensor(z[i], X)

    return scanned(step, sequences=[index], outputs_info=[V])


def looks_up(index: Any) -> Any:
    table = pt.constant(TABLE[:, 0])
    return scanned(lambda i, z: X * z + table[i], sequences=[index], outputs_info=[X])


@in_python
@pytest.mark.parametrize(("graph", "length"), [(reads, 3), (sets, 3), (looks_up, 40)])
def test_an_index_that_is_out_of_bounds(made: Any, graph: Any, length: int) -> None:
    index = pt.lvector("index")
    found = made([V, X, index], graph(index))
    assert kinds(found) == {NumberScan}
    given = VALUES[V], VALUES[X]
    for wrong in (length, -length - 1):
        with pytest.raises(IndexError, match="a step of a scan reads or writes"):
            found(*given, np.array([0, wrong]))
    plain = pytensor.function(
        [V, X, index], graph(index), mode="FAST_COMPILE", on_unused_input="ignore"
    )
    ends = np.array([0, length - 1, -length])
    np.testing.assert_allclose(found(*given, ends), plain(*given, ends))


def test_scans_beside_one_of_another_kind() -> None:
    """Its state is a generator of random numbers."""
    random = pt.random.type.random_generator_type("random")

    def draw(z: Any, generator: Any) -> Any:
        after, drawn = pt.random.normal(0, 1e-9, rng=generator, return_next_rng=True)
        return z * X + drawn, after

    outputs = [
        pytensor.scan(draw, outputs_info=[X, random], n_steps=3, return_updates=False)[0],
        scanned(lambda z: z * X, outputs_info=[V], n_steps=5),
    ]
    found = pytensor.function([V, X, random], outputs, mode=lean("NUMBA"))
    assert kinds(found) == {NumberScan, Scan}


def test_a_result_that_has_fewer_elements_than_its_state_stays() -> None:
    """PyTensor's code repeats it."""
    result = scanned(lambda z: pt.stack([z[0] * X]), outputs_info=[pt.zeros(3) + X], n_steps=3)
    found = pytensor.function([X], result, mode=lean("NUMBA"))
    assert kinds(found) == {Scan}


@pytest.mark.parametrize("case", ["ends early", "long states", "another operation"])
def test_other_scans_stay(case: str) -> None:
    def step(z: Any) -> Any:
        if case == "another operation":
            return pt.sort(z)[::-1] * X
        return (z * X, until(z.sum() < 1e-3)) if case == "ends early" else z * X

    initial = pt.concatenate([V] * 6) if case == "long states" else V
    result = scanned(step, outputs_info=[initial], n_steps=9)
    found = rewritten([V, X], result)
    assert kinds(found) == {Scan}
    z, steps = initial.eval({V: VALUES[V]}, mode="FAST_COMPILE"), []
    for _ in range(9):
        stop = case == "ends early" and z.sum() < 1e-3
        z = (np.sort(z)[::-1] if case == "another operation" else z) * VALUES[X]
        steps.append(z)
        if stop:
            break
    np.testing.assert_allclose(found(VALUES[V], VALUES[X]), steps)
