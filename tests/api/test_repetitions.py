"""A call that is made again is posted again: only what has changed counts anew."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from modes import FAST
from pytensor.raise_op import Assert
from selection import thorough

import synkhronos as synk

pytestmark = pytest.mark.usefixtures("lasting_groups")


def posted(group: synk.Group, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The commands that are written out in full from now on."""
    if group.size == 1:
        return []
    found: list[object] = []
    channel = getattr(group.channel, "_local", group.channel)
    write = channel._write

    def noted(command: object) -> None:
        found.append(command)
        write(command)

    monkeypatch.setattr(channel, "_write", noted)
    return found


def test_lists_of_rows(
    group: synk.Group, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists of one length need no new command; others, and all else, do."""
    x, y = pt.dmatrix("x"), pt.lvector("y")
    w = pytensor.shared(np.ones(3), name="w")
    f = synk.function([x, y], [(x @ w * y).sum(), x.sum(axis=1)], mode=FAST)
    a, b = rng.random((50, 3)), rng.integers(0, 9, 50)
    data = synk.data(a), synk.data(b)

    def check(rows: object) -> None:
        total, sums = f(*data, batch=rows)
        wanted = np.array(rows)
        np.testing.assert_allclose(total, (a[wanted] @ w.get_value() * b[wanted]).sum())
        np.testing.assert_allclose(sums, a[wanted].sum(axis=1))

    check(rng.integers(0, 50, 10))
    written = posted(group, monkeypatch)
    for _ in range(5):
        check(rng.integers(0, 50, 10))
    assert len(written) <= 1  # the first call compiled, and is none to repeat
    check(rng.integers(0, 50, 11))
    check(rng.integers(0, 50, 10))
    check([-1, 0, 7, 7, 1, 2, 3, 4, 5, 6])  # counted from the end
    check(rng.integers(0, 50, 10))
    w.set_value(np.array([1.0, 2.0, 3.0]))
    check(rng.integers(0, 50, 10))
    check(rng.integers(0, 50, 10))
    assert f(*data)[0] == pytest.approx((a @ w.get_value() * b).sum())
    check(rng.integers(0, 50, 10))


def test_a_longer_list_in_between(group2: synk.Group) -> None:
    """A list that needs more memory moves the memory of lists, also where its call is not kept."""
    x = pt.dvector("x")
    f = synk.function([x], (x.sum(), "sum"), mode=FAST)
    data, rows = synk.data(np.arange(1000.0)), np.arange(10)
    for _ in range(3):
        assert f(data, batch=rows) == 45
    assert f(x=data, batch=np.arange(1000).repeat(100)) == 100 * 999 * 500
    assert f(data, batch=rows + 5) == 95
    assert f(data, batch=rows) == 45


def test_rows_out_of_range_are_found_each_time(group2: synk.Group) -> None:
    x = pt.dvector("x")
    f = synk.function([x], x.sum(), mode=FAST)
    d = synk.data(np.arange(5.0))
    for _ in range(3):
        assert f(d, batch=np.array([4, 4])) == 8
    for rows in ([0, 5], [-6, 0]):
        with pytest.raises(IndexError):
            f(d, batch=np.array(rows))
    assert f(d, batch=np.array([-1, 0])) == 4
    assert f(d, batch=np.array([0, 1])) == 1


def test_the_list_may_be_changed_after_the_call(group2: synk.Group) -> None:
    x = pt.dvector("x")
    f = synk.function([x], (x, "gather"), mode=FAST)
    d = synk.data(np.arange(5.0))
    rows = np.array([1, 2, 3])
    for _ in range(4):
        rows[:] = (rows + 1) % 5
        np.testing.assert_array_equal(f(d, batch=rows), d.data[rows])


def test_data_of_another_length(group2: synk.Group) -> None:
    x = pt.dvector("x")
    f = synk.function([x], x.sum(), mode=FAST)
    d = synk.data(np.arange(5.0))
    for _ in range(3):
        f(d, batch=np.array([4, 4]))
    d.set_value(np.ones(3))
    with pytest.raises(IndexError):
        f(d, batch=np.array([4, 4]))
    assert f(d, batch=np.array([2, 2])) == 2


def test_minibatch_data(group2: synk.Group) -> None:
    """Rows of minibatch Data go by their position in the batch, in each call."""
    x = pt.dvector("x")
    f = synk.function([x], (x, "gather"), mode=FAST)
    d = synk.data(np.arange(10.0), minibatch=True)
    for low in (0, 5, 20, 3, 3):
        rows = np.array([low, low + 2, low + 1])
        np.testing.assert_array_equal(f(d, batch=rows), [0, 1, 2])


def test_slices_of_listed_rows(group: synk.Group) -> None:
    """num_slices is part of what must be the same."""
    x = pt.dvector("x")
    f = synk.function([x], x.mean(), mode=FAST)
    d = synk.data(np.arange(20.0))
    for slices in (1, 3, 3, 1, 2):
        rows = np.arange(slices, slices + 9)
        assert f(d, batch=rows, num_slices=slices) == pytest.approx(d.data[rows].mean())


def test_arrays_of_one_shape(
    group: synk.Group, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrays like those of the call before need no new command; their contents count."""
    x, y, b = pt.dmatrix("x"), pt.dvector("y"), pt.dvector("b")
    f = synk.function([x, y], [(x.sum(axis=1) * y).sum(), (x + b, "gather")], [b], mode=FAST)
    y_data = synk.data(rng.random(40))

    def check(rows: np.ndarray, ys: object, bias: np.ndarray) -> None:
        total, shifted = f(rows, ys, bias)
        np.testing.assert_allclose(total, (np.asarray(rows).sum(axis=1) * np.asarray(ys)).sum())
        np.testing.assert_allclose(shifted, np.asarray(rows) + bias)

    long = 5000  # as bytes beside the command, where a short one is part of it
    check(rng.random((40, long)), rng.random(40), rng.random(long))
    written = posted(group, monkeypatch)
    for _ in range(4):
        check(rng.random((40, long)), rng.random(40), rng.random(long))
    assert len(written) <= 1  # the first call compiled, and is none to repeat
    check(rng.random((long, 40)).T, rng.random(40), rng.random(long))
    check(rng.random((40, long)), y_data, rng.random(long))
    y_data[3] = 7.0
    check(rng.random((40, long)), y_data, rng.random(long))
    check(rng.random((60, long)), rng.random(60), rng.random(long))  # the memory is another now
    check(rng.random((40, long)), rng.random(40), rng.random(long))
    check(rng.random((40, long)), rng.random(40), rng.random(long))
    check(rng.integers(0, 5, (40, long)), rng.random(40), rng.random(long))
    check(rng.random((40, 3)), rng.random(40), rng.random(3))
    check(rng.random((40, 3)), rng.random(40), rng.random(3))
    with pytest.raises(synk.InputError):
        f(rng.random((40, 3)), rng.random(41), rng.random(3))
    check(rng.random((40, 3)), rng.random(40), rng.random(3))


def test_repetitions_in_a_group_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """They need no transaction, but all that a user sees is as in one."""
    with synk.Group(1) as group:
        x = pt.dvector("x")
        w = pytensor.shared(np.float64(2.0), name="w")
        indexed = x[x[0].astype("int64")]
        f = synk.function([x], (x.sum() * w + indexed, "sum"), mode="FAST_RUN", name="f")
        values = np.ones(3)
        data = synk.data(values)
        commands: list[object] = []
        run = group.runner.run
        monkeypatch.setattr(
            group.runner, "run", lambda c, *rest: commands.append(c) or run(c, *rest)
        )
        found = [f(data) for _ in range(6)]
        assert [float(v) for v in found] == [7.0] * 6
        assert len({id(v) for v in found}) == 6
        assert len(commands) <= 3
        w.set_value(5.0)
        assert float(f(data)) == 16.0
        data[:] = 2
        assert [float(f(data)) for _ in range(3)] == [32.0] * 3
        data[:] = 3  # an index that x does not have
        with pytest.raises(IndexError) as raised:
            f(data)
        assert any("function f" in note for note in raised.value.__notes__)
        data[:] = 1
        assert float(f(data)) == 16.0
    with pytest.raises(synk.GroupClosed):
        f(data)


def test_a_repetition_in_a_group_of_one_keeps_the_group_busy() -> None:
    """As a signal handler would find it; and what a handler raises is raised once, unchanged."""
    with synk.Group(1):
        x = pt.dvector("x")
        f = synk.function([x], (x.sum(), "sum"), mode=FAST, name="f")
        data = synk.data(np.ones(3))
        for _ in range(3):
            f(data)
        part = f._function._replica.last_part
        again, raised = part.repetition, TimeoutError("of a handler")
        calls = []

        def interrupted() -> None:
            calls.append(1)
            raise raised

        part.repetition = lambda: f(data)
        with pytest.raises(synk.GroupError, match="busy"):
            f(data)
        part.repetition = interrupted
        with pytest.raises(TimeoutError) as found:
            f(data)
        assert found.value is raised
        assert calls == [1]
        assert any("function f" in note for note in raised.__notes__)
        part.repetition = again
        assert float(f(data)) == 3.0


@pytest.mark.parametrize("mode", [FAST, *thorough("NUMBA")])
@pytest.mark.parametrize("listed", [True, False])
def test_an_error_of_a_repetition_tells_the_shapes(
    group2: synk.Group, mode: str, listed: bool
) -> None:
    """As that of a first call does; and the next repetition computes again."""
    x, most = pt.dmatrix("x"), pytensor.shared(9.0, name="most")
    checked = Assert("too large")(x, pt.le(x.max(), most))
    f = synk.function([x], (checked.sum(), "sum"), mode=mode)
    rows = np.arange(12.0).reshape(6, 2) % 5
    data, batch = synk.data(rows), np.array([1, 0, 4, 5]) if listed else None
    wanted, *others = [float(f(data, batch=batch)) for _ in range(3)]
    assert others == [wanted, wanted]
    for place in ("a repetition", "the call after an error"):
        data[0] = 99.0
        with pytest.raises(AssertionError, match="too large") as caught:
            f(data, batch=batch)
        said = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
        assert f"arrays of x ({2 if listed else 3}, 2)" in said, place
        data[0] = rows[0]
        assert float(f(data, batch=batch)) == wanted, place
