"""Advice on functions: what is measured, what follows from it, and that nothing changes."""

from __future__ import annotations

import logging
import threading

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from modes import FAST

import synkhronos as synk
from synkhronos._api.advice import Advice, Timing
from synkhronos._compiling import progress
from synkhronos.extensions import make_train_function, updates

PARTS = {1: 1.0, 2: 0.5, 4: 0.25, 8: 0.125}


@pytest.fixture(autouse=True)
def _few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synkhronos._api.advice.seconds_of.__defaults__", (0.0,))


def timing(**given: object) -> Timing:
    known = {"plain": 1.0, "plain_threads": 0.6, "rest": 0.0, "parts": PARTS, "round": 0.01}
    return Timing("NUMBA", **(known | given))  # type: ignore[arg-type]


def test_predictions_lie_between_and_beyond_what_was_measured() -> None:
    found = timing()
    assert found.seconds(1) == 1.0
    assert found.seconds(2) == pytest.approx(0.51)
    assert found.seconds(3) == pytest.approx(0.01 + 1 / 3)
    assert found.seconds(16) == pytest.approx(0.01 + 1 / 16)
    fixed = timing(parts={k: 0.1 + t for k, t in PARTS.items()})  # a tenth for any rows
    assert fixed.seconds(16) == pytest.approx(0.11 + 1 / 16)
    assert timing(parts={2: 0.5}).seconds(4) == pytest.approx(0.26)
    # more members never compute longer, whatever the noise of the measurement
    assert timing(parts={1: 1.0, 4: 0.2, 8: 0.3}).seconds(16) <= 0.31


def test_the_verdict_compares_with_all_threads() -> None:
    advice = Advice(("function f",), (100,), 2, (timing(),))
    assert (advice.members, advice.mode) == (2, "NUMBA")
    text = str(advice)
    assert text.splitlines()[0].startswith("function f (100 rows): time of a call, and speed-up")
    assert text.splitlines()[2].split()[5] == "1.18"  # of 2 members: as the sentence says
    assert text.splitlines()[-1] == (
        "Fastest with 2 members, one for each core: 510.000 ms. That is 1.18 times as fast as "
        "plain PyTensor with all threads."
    )


def test_where_one_process_with_all_threads_is_fastest() -> None:
    """Large products of few rows: BLAS divides them with less to exchange."""
    advice = Advice(("train",), (128,), 2, (timing(round=0.15),))
    assert advice.members == 1
    assert str(advice).endswith(
        "One process with all threads is fastest, synk.fork(1): 600.000 ms; 2 members: 650.000 ms."
    )
    assert "600.000 ms; one thread: 1000.000 ms." in str(
        Advice(("train",), (128,), 2, (timing(round=2.0),))
    )


def test_where_one_member_is_fastest() -> None:
    advice = Advice(("function f",), (100,), 4, (timing(round=2.0, plain_threads=1.0),))
    assert advice.members == 1
    assert str(advice).endswith(
        "One member is fastest: a second one would save 500,000.0 us of a call, and cost "
        "2,000,000 us. Two members pay from about 400 rows in a call."
    )
    assert "one core: nothing" in str(Advice(("f",), (100,), 1, (timing(),)))


def test_a_busy_machine() -> None:
    assert "load 99.5 on" in str(Advice(("f",), (), 4, (timing(),), 99.5))


def test_a_function(group: synk.Group) -> None:
    x, s = pt.matrix("x", dtype="float64"), pytensor.shared(np.zeros(()), name="s")
    f = synk.function([x], pt.exp(x), updates=[(s, s + x.mean(), "avg", "all")], mode=FAST)
    data = synk.data(np.ones((40, 300)))
    advice = synk.advise(f, data, batch=np.arange(0, 40, 2))
    [found] = advice.modes
    assert (advice.rows, found.mode) == ((20,), "PERFORM")  # a mode without a name
    assert s.get_value() == 0
    assert set(found.parts) == {1, 2, 4, 8}
    assert found.plain == found.parts[1] > 0
    assert found.round >= 5e-6
    assert 0 < advice.speedup(1) <= 1.0  # the plain function may gain from threads
    np.testing.assert_allclose(f(data)[3, 3], np.e)
    assert s.get_value() == 1


def test_arrays_that_are_copied_and_outputs_that_are_moved() -> None:
    x = pt.matrix("x", dtype="float64")
    with synk.Group(1):
        data = np.ones((2000, 300))
        f = synk.function([x], x.sum(), mode=FAST)
        g = synk.function([x], 2 * x, mode=FAST)
        copied = synk.advise(f, data).best.round - synk.advise(f, synk.data(data)).best.round
        moved = synk.advise(g, synk.data(data)).best.round
    assert copied > 50e-6  # 4.8 MB
    assert moved > 20e-6 + 50e-6


def test_a_training_step(group: synk.Group) -> None:
    x, y = pt.matrix("x", dtype="float64"), pt.vector("y", dtype="float64")
    w, rate = pytensor.shared(np.zeros(3), name="w"), pt.scalar("rate", dtype="float64")
    loss = ((x @ w - y) ** 2).mean()
    train = make_train_function(
        loss, [w], x, y, updates.adam, rate, bcast_inputs=[rate], mode=FAST, name="train"
    )
    advice = synk.advise(train, np.ones((10, 3)), np.ones(10), 0.1, batch=[1, 2, 3, 4])
    assert (advice.names, advice.rows) == (("function train",), (4,))
    assert advice.best.plain > 0
    assert not w.get_value().any()
    assert not any(np.any(s.get_value()) for s in train.state)
    train(np.ones((10, 3)), np.ones(10), 0.1)
    assert w.get_value().all()


def test_rows_of_shared_variables() -> None:
    s = pytensor.shared(np.ones((40, 3)), name="s")
    with synk.Group(1):
        f = synk.function([], s.sum(axis=1).mean(), sliceable_shareds=[s], mode=FAST)
        assert synk.advise(f).rows == (40,)
    with synk.Group(2):
        f = synk.function([], s.sum(axis=1).mean(), sliceable_shareds=[s], mode=FAST)
        with pytest.raises(synk.InputError, match="group of one"):
            synk.advise(f)


def test_what_is_not_a_function() -> None:
    with pytest.raises(synk.InputTypeError, match=r"found str\. For a PyMC model use synk.pymc"):
        synk.advise("f")


def test_what_takes_long_is_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a function, and of a training function; no thread is left."""
    monkeypatch.setattr(progress, "FIRST", 0.001)
    monkeypatch.setattr(progress._LogLines, "pause", 0.001)
    x, w = pt.dvector("x"), pytensor.shared(np.zeros(()), name="w")
    loss = ((w - x) ** 2).mean()
    with caplog.at_level(logging.INFO, "synkhronos"), synk.Group(2):
        f = synk.function([x], loss, mode=FAST, name="f")
        train = make_train_function(loss, [w], x, None, updates.sgd, 0.1, mode=FAST, name="step")
        for each in (f, train):
            synk.advise(each, np.ones(10))
    assert "measuring f: " in caplog.text
    assert "measuring step: " in caplog.text
    assert threading.active_count() == 1
