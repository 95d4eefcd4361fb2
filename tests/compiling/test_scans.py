"""Scans of a few numbers: the same values and gradients as PyTensor's, in one loop of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from modes import FAST
from pytensor.scan.op import Scan
from pytensor.scan.utils import until
from rewritten import compiled, in_python, rewritten
from scan_graphs import (
    GRAPHS,
    LENGTH,
    TABLE,
    VALUES,
    M,
    V,
    X,
    autoregression,
    garch,
    hidden_states,
    last_and_all,
    learning,
    scanned,
    two_results,
    with_slopes,
)
from selection import thorough

from synkhronos._compiling.lean.mode import lean
from synkhronos._compiling.lean.scans import NumberScan
from synkhronos._libraries.pytensor import numba_funcify_and_cache_key


def kinds(function: Any) -> set[type]:
    ops = [node.op for node in function.maker.fgraph.apply_nodes]
    return {type(op) for op in ops if isinstance(op, Scan | NumberScan)}


@in_python
@pytest.mark.parametrize("graph", GRAPHS)
def test_values_and_slopes(made: Any, graph: Any) -> None:
    inputs, outputs = list(VALUES), with_slopes(graph)
    plain = pytensor.function(inputs, outputs, mode=FAST, on_unused_input="ignore")
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
    plain = pytensor.function(inputs, along, mode=FAST, on_unused_input="ignore")
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
    plain = pytensor.function(list(VALUES), outputs, mode=FAST, on_unused_input="ignore")
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
    plain = pytensor.function([V, X, index], graph(index), mode=FAST, on_unused_input="ignore")
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
