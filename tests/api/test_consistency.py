"""check_consistency and sync: what is equal, what is not, and what is said about it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synkhronos as synk
from synkhronos._api.consistency import Checksums, check_consistency, checksum, difference, sync
from synkhronos.testing.conformance import DTYPES

pytestmark = pytest.mark.usefixtures("lasting_groups")

SHAPES: tuple[tuple[int, ...], ...] = ((), (4,), (3, 2), (0, 3))


def shared(value: Any, name: str | None = None) -> Any:
    return pytensor.shared(np.asarray(value), name=name)


def rounds(group: synk.Group, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that the group runs from now on."""
    seen: list[str] = []
    run = group.runner.run

    def count(command: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(type(command).__name__)
        return run(command, *args, **kwargs)

    monkeypatch.setattr(group.runner, "run", count)
    return seen


@pytest.mark.each_choice
@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_values_of_every_dtype_take_one_round(
    group: synk.Group, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = [shared(np.ones(s, dtype), f"v{i}") for i, s in enumerate(SHAPES)]
    check_consistency(variables)
    seen = rounds(group, monkeypatch)
    check_consistency(variables)
    check_consistency("v1")
    assert seen == ["Checksums", "Checksums"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_other_element_is_found(group2: synk.Group, dtype: str) -> None:
    s, other = shared(np.zeros((2, 3), dtype), "s"), shared(np.zeros(2, dtype), "other")
    changed = np.zeros((2, 3), dtype)
    changed[1, 2] = 1
    synk.set_value(1, s, changed)
    with pytest.raises(synk.GroupError) as caught:
        check_consistency([other, s])
    text = str(caught.value)
    assert "1 of 2 variables" in text
    assert "s (rank 1): 1 of 6 elements, by at most 1\n" in text
    assert "other (" not in text
    assert group2.alive
    assert np.array_equal(synk.get_value(1, s), changed)
    synk.broadcast(s)
    check_consistency([other, s])


def test_every_rank_and_variable_is_named() -> None:
    with synk.Group(3):
        a, b = shared(np.zeros(4), "a"), shared(np.zeros(2, "int32"), "b")
        synk.set_value(1, a, np.array([0, 1, 0, -2.5]))
        synk.set_value(2, a, np.array([0, 0.25, 0, 0]))
        synk.set_value(2, b, np.array([7, 0], "int32"))
        with pytest.raises(synk.GroupError) as caught:
            check_consistency(["a", b])
    assert re.findall(r"^  (.*)$", str(caught.value), re.MULTILINE) == [
        "a (rank 1): 2 of 4 elements, by at most 2.5",
        "a (rank 2): 1 of 4 elements, by at most 0.25",
        "b (rank 2): 1 of 2 elements, by at most 7",
    ]


def test_values_made_to_differ_on_purpose_are_reported(group2: synk.Group) -> None:
    s = shared(np.zeros(5), "s")
    synk.scatter(s, np.arange(5.0))
    with pytest.raises(synk.GroupError, match=r"s \(rank 1\): float64 \(2,\) instead of float64 "):
        check_consistency(s)


def test_a_value_that_the_user_has_set_counts_everywhere(group: synk.Group) -> None:
    s = shared(np.zeros(3), "s")
    check_consistency(s)
    s.set_value(np.arange(3.0))
    check_consistency(s)
    assert np.array_equal(synk.get_value(group.size - 1, s), np.arange(3.0))


def test_generators_are_left_out(group: synk.Group, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, s = pytensor.shared(np.random.default_rng(3), name="rng"), shared(1.0, "s")
    check_consistency([rng, s])
    seen = rounds(group, monkeypatch)
    check_consistency(rng)
    assert seen == []


def test_what_is_no_variable(group: synk.Group) -> None:
    with pytest.raises(synk.InputError, match="nobody"):
        check_consistency("nobody")
    with pytest.raises(synk.InputTypeError):
        check_consistency(3)  # type: ignore[arg-type]
    with pytest.raises(synk.InputError, match="twice"):
        check_consistency([shared(1.0, "s")] * 2)


def test_without_a_group() -> None:
    with pytest.raises(synk.NotForked):
        check_consistency(shared(1.0))
    with pytest.raises(synk.NotForked):
        sync(shared(1.0))


def test_a_bit_is_enough() -> None:
    """0.0 and -0.0, nan and nan: it is bytes that are compared."""
    a = np.array([1.0, 0.0, np.nan])
    assert checksum(a) == checksum(a.copy())
    for other in (np.array([1.0, -0.0, np.nan]), a[:2], a.reshape(1, 3), a.view("int64")):
        assert checksum(a) != checksum(other)
    wide = np.arange(24.0).reshape(2, 3, 4)
    for view in (wide.T, wide[:, ::2], wide[::-1], np.asfortranarray(wide)):
        assert checksum(view) == checksum(view.copy())


@pytest.mark.parametrize(
    ("mine", "other", "said"),
    [
        (np.array([0.0]), np.array([-0.0]), "1 of 1 elements, by at most 0"),
        (np.array([1.0, 2, 3]), np.array([np.nan, 5, 3]), "by at most 3 (1 of them not finite)"),
        (np.array(1.0), np.array(np.inf), "by at most nan (1 of them not finite)"),
        (np.array(-1e308), np.array(1.7e308), "by at most inf"),
        (np.array([-128, 0], "int8"), np.array([127, 0], "int8"), "by at most 255"),
        (np.array(-(2**63)), np.array(2**63 - 1), "by at most 18446744073709551615"),
        (np.array([True, False]), np.array([True, True]), "1 of 2 elements, by at most 1"),
        (np.array(3 + 4j, "complex64"), np.array(0j, "complex64"), "by at most 5"),
        (np.zeros(2, "float32"), np.zeros(2), "float64 (2,) instead of float32 (2,)"),
    ],
)
def test_how_differences_are_described(mine: Any, other: Any, said: str) -> None:
    assert difference(mine, other).endswith(said)


def test_local_statistics_are_averaged(group: synk.Group) -> None:
    """Running means that every member has kept for its own rows."""
    x, mean = pt.vector("x", dtype="float64"), shared(0.0, "mean")
    f = synk.function(
        [x], updates=[(mean, 0.9 * mean + x.mean(), "avg", "local")], mode="FAST_COMPILE"
    )
    rows = np.arange(6.0)
    f(rows)
    parts = [p.mean() for p in np.array_split(rows, group.size)]
    if group.size > 1:
        with pytest.raises(synk.GroupError):
            check_consistency(mean)
    sync(mean)
    check_consistency(mean)
    assert float(mean.get_value()) == pytest.approx(np.mean(parts))


def test_weights_and_ops(group2: synk.Group) -> None:
    a, b = shared(np.zeros(2), "a"), shared(np.zeros(2, "float32"), "b")
    for variable in (a, b):
        synk.set_value(1, variable, np.array([4, 8], variable.dtype))
    sync([a, b], weights=[3, 1])
    assert a.get_value().tolist() == b.get_value().tolist() == [1, 2]
    synk.set_value(1, a, np.array([4.0, -8.0]))
    sync(a, "max")
    assert synk.get_value(1, a).tolist() == [4, 2]


def test_integers_must_agree(group2: synk.Group) -> None:
    mean, count = shared(np.zeros(1), "mean"), shared(np.array(4), "count")
    synk.set_value(1, mean, np.array([2.0]))
    sync([mean, count])
    assert mean.get_value().tolist() == [1]
    assert int(synk.get_value(1, count)) == 4
    synk.set_value(1, mean, np.array([2.0]))
    synk.set_value(1, count, np.array(6))
    with pytest.raises(synk.GroupError, match=r"count \(rank 1\): 1 of 1 elements, by at most 2"):
        sync([mean, count])
    assert mean.get_value().tolist() == [1]
    assert synk.get_value(1, mean).tolist() == [2]


def test_bad_words_are_refused_before_anything_moves(
    group2: synk.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    mean = shared(np.zeros(1), "mean")
    check_consistency(mean)
    seen = rounds(group2, monkeypatch)
    with pytest.raises(synk.InputError, match="median"):
        sync(mean, "median")
    with pytest.raises(synk.InputError, match="ranks"):
        sync(mean, weights=[1])
    assert seen == []


def test_the_command_changes_nothing() -> None:
    assert Checksums.pure


def test_workers_started_by_exec() -> None:
    with synk.Group(2, start="exec"):
        s = shared(np.zeros(2), "s")
        check_consistency(s)
        synk.set_value(1, s, np.ones(2))
        with pytest.raises(synk.GroupError, match="2 of 2 elements"):
            check_consistency(s)
