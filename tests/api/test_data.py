"""Data: a numpy-like array that all members see, growing and freed like any other.

The numbers S32 to S45 are the defects of the system of 2017 that a test holds.
"""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from physical_memory import physical_memory

import synkhronos as synk
from synkhronos.testing.conformance import DTYPES

pytestmark = pytest.mark.usefixtures("lasting_groups")

Array = np.ndarray

SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (5,), (3, 0), (0, 3), (2, 3), (2, 1, 3, 1, 2))


def bytes_taken(group: synk.Group) -> int:
    """The physical memory of the group's arena."""
    return physical_memory(group.arena)


def seen_by_members(d: synk.Data) -> Array:
    """The contents as the members read them, each its part of the rows (or all, for 0-d)."""
    x = pt.tensor("x", dtype=d.dtype.name, shape=(None,) * d.ndim)
    if d.ndim:
        return synk.function([x], (x, "gather"), mode="FAST_COMPILE")(d)
    n = pt.vector("n", dtype="int8")
    f = synk.function(
        [n], (x, "gather"), bcast_inputs=[x], mode="FAST_COMPILE", on_unused_input="ignore"
    )
    found = f(np.zeros(d.group.size, "int8"), d)
    assert (found == found[0]).all()
    return found[0]


@pytest.mark.each_choice
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_shape(group: synk.Group, dtype: str) -> None:
    """S34, S35, S44: 0-d, empty, bool, float16 and complex; members read what was written."""
    for shape in SHAPES:
        value = np.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape) % 2).astype(dtype)
        d = synk.data(value)
        assert (d.dtype, d.ndim, d.shape, d.size) == (value.dtype, len(shape), shape, value.size)
        assert d.alloc_size >= d.size
        np.testing.assert_array_equal(d.data, value, strict=True)
        assert d.writable.flags.writeable
        assert d.data.flags.c_contiguous
        empty = synk.data(shape=shape, dtype=dtype)
        np.testing.assert_array_equal(empty.data, np.zeros(shape, dtype), strict=True)
        empty[...] = value
        for each in (d, empty):
            np.testing.assert_array_equal(seen_by_members(each), value)


def test_where_dtype_and_ndim_come_from(group2: synk.Group) -> None:
    """From var first, then from what is given, then from the value."""
    x = pt.matrix("x", dtype="float32")
    made = synk.data(var=x)
    assert (made.dtype, made.ndim, made.shape, made.name) == (np.float32, 2, (0, 0), "x")
    made = synk.data([[1, 2]], var=x)
    assert (made.dtype, made.data.tolist()) == (np.float32, [[1.0, 2.0]])
    assert synk.data([1, 2]).dtype == np.int64
    assert synk.data([1, 2], dtype="float32").dtype == np.float32
    assert synk.data(1.5).shape == ()
    assert synk.data(dtype="int8", ndim=3).shape == (0, 0, 0)
    assert synk.data(dtype=np.float64, shape=(2, 3)).shape == (2, 3)
    assert synk.data(var=x, shape=(4, 2)).shape == (4, 2)
    assert synk.data(np.ones(2), shape=(2,)).size == 2
    assert synk.data(var=x, name="other").name == "other"
    assert synk.data(np.ones(2)).name is None


def test_data_without_a_value_say_so(group2: synk.Group) -> None:
    """Until a value or a shape is given; an empty value is one."""
    x = pt.matrix("x", dtype="float32")
    d = synk.data(var=x)
    assert repr(d) == "<synkhronos.Data 'x' float32 2-d, no value yet>"
    d.set_value(np.zeros((0, 3), "float32"))
    assert repr(d) == "<synkhronos.Data 'x' float32 (0, 3)>"
    assert repr(synk.data([])) == "<synkhronos.Data float64 (0,)>"
    assert repr(synk.data(var=x, shape=(0, 0))) == "<synkhronos.Data 'x' float32 (0, 0)>"
    assert repr(synk.data(shape=3, dtype="int8")) == "<synkhronos.Data int8 (3,)>"


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"dtype": "float32"},
        {"ndim": 2},
        {"shape": (2, 2)},
        {"value": np.ones((2, 2)), "ndim": 1},
        {"value": np.ones(2), "shape": (3,)},
        {"value": np.ones(2), "dtype": "float32"},
        {"value": np.ones(2), "dtype": "int64"},
        {"value": 1.5, "dtype": "int64"},
        {"value": "text"},
        {"value": np.array([None])},
        {"value": np.array(["2020"], "datetime64[D]")},
        {"value": [[1], [2, 3]]},
        {"dtype": "float128", "ndim": 1},
        {"dtype": "no dtype", "ndim": 1},
        {"dtype": "float32", "shape": (2, -1)},
        {"dtype": "float32", "ndim": 1, "shape": (2, 2)},
        {"dtype": "float32", "ndim": -1},
        {"dtype": "float32", "ndim": 1.0},
        {"var": 3},
        {"value": np.ones(2), "oversize": 0.5},
        {"value": np.ones(2), "oversize": np.nan},
    ],
    ids=str,
)
def test_what_cannot_be_made(group2: synk.Group, arguments: dict[str, Any]) -> None:
    with pytest.raises(synk.InputError) as caught:
        synk.data(**arguments)
    assert str(caught.value).count("synk.data") < 2


def test_conversions(group2: synk.Group) -> None:
    """Up-casts and literals are taken; what may lose something needs force_cast."""
    d = synk.data(dtype="float32", ndim=1)
    taken: list[Any] = [[1, 2.5], np.ones(2, "int16"), np.ones(2, "float16"), (3, 4), [True]]
    for value in taken:
        d.set_value(value)
        np.testing.assert_array_equal(d.data, np.asarray(value, "float32"))
    held = d.data.copy()
    for wrong in (np.ones(2), np.ones(2, "int64"), np.ones(2, "complex64"), np.ones((2, 2))):
        for act in (d.set_value, d.condition_data):
            with pytest.raises(synk.InputTypeError, match="float32") as caught:
                act(wrong)
            assert isinstance(caught.value, TypeError)
        np.testing.assert_array_equal(d.data, held)
    with pytest.raises(synk.InputTypeError, match="1 dimensions"):
        d.set_value(np.ones((2, 2)), force_cast=True)
    d.set_value(np.array([1.5, 2.5]), force_cast=True)
    assert d.data.tolist() == [1.5, 2.5]
    whole = synk.data(dtype="uint8", ndim=1)
    whole.set_value([0, 255])
    for numbers in ([256], [-1], [1.5]):
        with pytest.raises(synk.InputTypeError):
            whole.set_value(numbers)
    assert synk.data(np.array([1.9]), dtype="int32", force_cast=True).data.tolist() == [1]


def test_condition_data_is_a_dry_run(group2: synk.Group) -> None:
    """S42: what set_value would store, with nothing changed."""
    d = synk.data(np.arange(3.0))
    found = d.condition_data([[1, 2]][0])
    assert (found.dtype, found.tolist()) == (np.float64, [1.0, 2.0])
    assert d.condition_data(np.array([1], "int8")).dtype == np.float64
    small = synk.data(dtype="int8", ndim=1)
    assert small.condition_data(np.array([3.7]), force_cast=True).tolist() == [3]
    assert (small.condition_data([]).dtype, synk.data([], dtype="bool").shape) == ("int8", (0,))
    assert d.data.tolist() == [0, 1, 2]
    assert not np.shares_memory(d.data, found)


@pytest.mark.parametrize(
    ("dtype", "given"),
    [
        ("float32", [1.0, 1e300]),
        ("float32", -1e39),
        ("float16", [70_000]),
        ("complex64", [1e300j]),
        ("complex64", [complex(np.nan, -1e39)]),
    ],
)
def test_numbers_that_would_become_infinite(group2: synk.Group, dtype: str, given: Any) -> None:
    """A literal takes the dtype only if it fits; one that is infinite or NaN fits."""
    d = synk.data(dtype=dtype, ndim=np.ndim(given))
    s = pytensor.shared(np.zeros(np.shape(given), dtype), name="s")
    for act in (
        lambda: synk.data(given, dtype=dtype),
        lambda: d.set_value(given),
        lambda: synk.set_value(1, s, given),
    ):
        with pytest.raises(synk.InputTypeError, match=dtype):
            act()
    assert not np.any(d)
    assert not np.any(synk.get_value(1, s))
    d.set_value(np.full(np.shape(given), -np.inf).tolist())
    assert np.isinf(d).all()


LAYOUTS = ["strided", "reversed", "Fortran", "read-only", "big-endian", "unaligned"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_of_any_layout(group: synk.Group, layout: str) -> None:
    plain = np.arange(24.0).reshape(4, 6)
    value = {
        "strided": plain[::2, ::3],
        "reversed": plain[::-1, ::-1],
        "Fortran": np.asfortranarray(plain),
        "read-only": np.broadcast_to(plain[0], (4, 6)),
        "big-endian": plain.astype(">f8"),
        "unaligned": np.frombuffer(bytes(1) + plain.tobytes(), offset=1).reshape(4, 6),
    }[layout]
    d = synk.data(value)
    np.testing.assert_array_equal(d.data, value)
    np.testing.assert_array_equal(seen_by_members(d), value)
    assert d.dtype == np.float64


def test_numpy_indexing(group2: synk.Group) -> None:
    """Read and write with every kind of index, as on the array itself."""
    plain = np.arange(24.0).reshape(4, 6)
    d = synk.data(plain)
    indices: list[Any] = [
        0, -1, (1, 2), slice(1, 3), (slice(None), 2), ..., (..., None), [0, 2], ([0, 1], [2, 3]),
        plain > 5, plain[:, 0] > 5, (slice(None, None, -2), [1, 1]), np.array([[0, 1]]),
    ]  # fmt: skip
    for index in indices:
        np.testing.assert_array_equal(d[index], plain[index])
        plain[index] += 1
        d[index] += 1
        np.testing.assert_array_equal(d.data, plain)
        plain[index] = 0.5
        d[index] = 0.5
        np.testing.assert_array_equal(d.data, plain)
    with pytest.raises(IndexError):
        d[4]
    with pytest.raises(ValueError, match="shape"):
        d[0] = np.ones(5)
    scalar = synk.data(2.0)
    scalar[...] = 3
    assert scalar[()] == 3.0
    assert len(d) == 4
    with pytest.raises(TypeError):
        len(scalar)


def test_data_is_like_an_array(group2: synk.Group) -> None:
    d = synk.data(np.arange(3.0), name="d")
    np.testing.assert_array_equal(np.asarray(d), [0, 1, 2])
    assert np.asarray(d, "float32").dtype == np.float32
    assert np.sum(d) == 3
    assert list(d) == [0, 1, 2]
    copied = np.array(d)
    copied[0] = 5
    assert d[0] == 0
    np.testing.assert_array_equal(d.data + 1, [1, 2, 3])
    assert repr(d) == "<synkhronos.Data 'd' float64 (3,)>"
    assert "minibatch" in repr(synk.data(1.0, minibatch=True))


@pytest.mark.parametrize("name", ["data", "dtype", "ndim", "shape", "size", "alloc_size"])
def test_properties_are_fixed(group2: synk.Group, name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(synk.data(np.ones(2)), name, None)


def test_names_and_flags_may_change(group2: synk.Group) -> None:
    d = synk.data(np.ones(2), name="a", minibatch=True)
    assert (d.name, d.minibatch) == ("a", True)
    d.name, d.minibatch = "b", False
    assert (d.name, d.minibatch) == ("b", False)


def test_growth_keeps_the_contents(group: synk.Group) -> None:
    """S32: in length and in shape, within the memory held and beyond; new elements are 0."""
    d = synk.data(np.arange(6.0).reshape(3, 2))
    plain = np.arange(6.0).reshape(3, 2)
    shapes = [(5, 2), (2, 2), (4, 2), (4, 5), (3, 1), (6, 3), (0, 3), (2, 3), (100, 7), (1, 9)]
    for shape in shapes:
        d[...] += 1
        plain = plain + 1
        new = np.zeros(shape)
        both = tuple(slice(0, min(a, b)) for a, b in zip(shape, plain.shape, strict=True))
        new[both] = plain[both]
        plain = new
        d.set_shape(shape)
        np.testing.assert_array_equal(d.data, plain)
        np.testing.assert_array_equal(seen_by_members(d), plain)


STEPS = st.one_of(
    st.tuples(st.just("length"), st.integers(0, 12), st.sampled_from([1, 1.5, 3])),
    st.tuples(st.just("shape"), st.tuples(st.integers(0, 6), st.integers(0, 4)), st.just(1)),
    st.tuples(st.just("value"), st.tuples(st.integers(0, 9), st.integers(0, 4)), st.just(1.2)),
    st.tuples(st.just("fill"), st.integers(1, 9), st.just(1)),
    st.tuples(st.just("free"), st.just(0), st.just(1)),
)


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=st.lists(STEPS, max_size=8))
def test_any_history(group2: synk.Group, steps: list[tuple[str, Any, float]]) -> None:
    """S32, S33, S36, S38: contents are those of a numpy array; earlier views stay as they were."""
    d, plain = synk.data(dtype="float64", ndim=2), np.zeros((0, 0))
    views: list[tuple[Array, Array]] = []
    for n, (what, argument, oversize) in enumerate(steps):
        before = d.data
        if what == "value":
            plain = np.full(argument, float(n + 1))
            d.set_value(plain, oversize=oversize)
        elif what == "fill":
            plain[...] = argument
            d[...] = argument
        elif what == "free":
            plain = np.zeros((0, 0))
            d.free_memory()
        else:
            shape = (argument, plain.shape[1]) if what == "length" else argument
            new = np.zeros(shape)
            both = tuple(slice(0, min(a, b)) for a, b in zip(shape, plain.shape, strict=True))
            new[both] = plain[both]
            plain = new
            if what == "length":
                d.set_length(argument, oversize)
            else:
                d.set_shape(shape, oversize)
        np.testing.assert_array_equal(d.data, plain)
        assert d.alloc_size >= d.size
        if not np.shares_memory(before, d.data):
            views.append((before, before.copy()))
        for view, contents in views:
            if not np.shares_memory(view, d.data):
                np.testing.assert_array_equal(view, contents)


def test_lengths_of_fresh_data(group2: synk.Group) -> None:
    """S38: other dimensions are the ones given, not 0."""
    d = synk.data(shape=(0, 3), dtype="float32")
    d.set_length(4)
    assert d.shape == (4, 3)
    vector = synk.data(dtype="int8", ndim=1)
    vector.set_length(np.int64(3))
    assert vector.data.tolist() == [0, 0, 0]
    vector.set_shape(2)
    assert vector.shape == (2,)
    with pytest.raises(synk.InputError):
        synk.data(1.0).set_length(2)


@pytest.mark.parametrize("shape", [(2,), (2, -1), (1, 2, 3), (), -1, (2, 1.5), ("2", 1), None])
def test_shapes_that_cannot_be(group2: synk.Group, shape: Any) -> None:
    d = synk.data(np.ones((2, 2)))
    with pytest.raises(synk.InputError):
        d.set_shape(shape)
    with pytest.raises(synk.InputError):
        d.set_length(-1)
    with pytest.raises(synk.InputError):
        d.set_length(3, oversize=0.9)
    assert d.data.tolist() == [[1, 1], [1, 1]]


@pytest.mark.each_choice
@pytest.mark.parametrize("grow", ["set_length", "set_shape", "set_value"])
def test_the_peak_of_a_growth(
    group: synk.Group, monkeypatch: pytest.MonkeyPatch, grow: str
) -> None:
    """S37: while it grows Data takes its old memory and its new, and afterwards the new alone."""
    old, new = 1 << 20, 3 << 20
    d = synk.data(np.ones(old, "uint8"))
    before, peaks, empty = bytes_taken(group), [], group.arena.empty

    def measured(*args: Any) -> Array:
        found = empty(*args)
        found[...] = 0
        peaks.append(bytes_taken(group))
        return found

    monkeypatch.setattr(group.arena, "empty", measured)
    value = np.ones(new, "uint8") if grow == "set_value" else new
    getattr(d, grow)(value)
    slack = 1 << 16
    assert len(peaks) == 1
    assert peaks[0] <= before + new + slack
    gc.collect()
    assert bytes_taken(group) <= before - old + new + slack


def test_oversize(group: synk.Group) -> None:
    """S37, S41: any factor from 1; growth within it moves nothing and takes no more memory."""
    d = synk.data(np.ones(1000), oversize=7.5)
    assert (d.size, d.alloc_size) == (1000, 7500)
    taken, first = bytes_taken(group), d.data
    for length in (2000, 7500, 10, 7000):
        d.set_length(length)
        assert d.alloc_size == 7500
        assert np.shares_memory(d.data[:10], first[:10])
        assert bytes_taken(group) == taken
    d.set_value(np.zeros(7400))
    assert np.shares_memory(d.data, first)
    d.set_length(8000)
    assert d.alloc_size == 8000
    d.set_length(10, oversize=2)
    assert d.alloc_size >= 20
    d.set_value(np.ones(3000), oversize=4)
    assert (d.size, d.alloc_size) == (3000, 12_000)
    assert synk.data(np.ones(4), oversize=1).alloc_size == 4
    assert synk.data(np.float32(1), oversize=3).size == 1


def test_shrinking_gives_no_memory_back_but_free_memory_does(group: synk.Group) -> None:
    d = synk.data(np.ones(1 << 18))
    taken = bytes_taken(group)
    d.set_length(10)
    assert d.alloc_size == 1 << 18
    d.free_memory()
    gc.collect()
    assert (d.size, len(d), d.ndim, d.dtype) == (0, 0, 1, np.float64)
    assert d.alloc_size <= 1
    assert bytes_taken(group) <= taken - (1 << 21) + (1 << 13)
    d.set_value(np.arange(3.0))
    assert d.data.tolist() == [0, 1, 2]
    scalar, table = synk.data(5.0), synk.data(np.ones((2, 2)))
    scalar.free_memory()
    table.free_memory()
    assert scalar.data.tolist() == 0.0
    assert table.shape == (0, 0)


def test_views_outlive_a_reallocation(group: synk.Group) -> None:
    """S36: a view taken before keeps its memory, and nobody else is given it."""
    d = synk.data(np.full(5000, 3.0))
    view, part = d.writable, d[10:20]
    d.set_length(1_000_000)
    others = [synk.data(np.full(5000, 9.0)) for _ in range(20)]
    assert (view == 3).all()
    view[...] = 4
    assert (part == 4).all()
    assert (d[:5000] == 3).all()
    assert all((o.data == 9).all() for o in others)
    del d, others
    gc.collect()
    more = [synk.data(np.full(5000, 7.0)) for _ in range(20)]
    assert (view == 4).all()
    assert len(more) == 20


def test_memory_is_freed_with_the_last_reference(group: synk.Group) -> None:
    """S37, S43: of Data, of views, and of what a reallocation left behind."""
    synk.data(np.ones(10))
    gc.collect()
    before = bytes_taken(group)
    d = synk.data(np.ones(1 << 18))
    assert bytes_taken(group) >= before + (1 << 21)
    view = d[5:7]
    del d
    gc.collect()
    assert bytes_taken(group) >= before + (1 << 21)
    assert view.tolist() == [1, 1]
    del view
    gc.collect()
    assert bytes_taken(group) <= before + (1 << 13)
    d = synk.data(np.ones(1 << 17))
    d.set_length(1 << 18)
    gc.collect()
    assert bytes_taken(group) <= before + (1 << 21) + (1 << 13)
    del d
    gc.collect()
    assert bytes_taken(group) <= before + (1 << 13)


def test_members_hold_no_memory_of_dropped_data(group: synk.Group) -> None:
    """S43: on all members: after a call, too, and after a repeated one."""
    x = pt.vector("x", dtype="float64")
    f = synk.function([x], x.sum(), mode="FAST_COMPILE")
    assert f(synk.data(np.ones(4))) == 4
    gc.collect()
    before = bytes_taken(group)
    d = synk.data(np.ones(1 << 18))
    for _ in range(3):
        assert f(d) == 1 << 18
    del d
    gc.collect()
    assert f(synk.data(np.ones(4))) == 4
    gc.collect()
    assert bytes_taken(group) <= before + (1 << 15)


def test_a_thousand_data(group: synk.Group) -> None:
    """S39, S40, S43: made and dropped, or all held at once; no cap, no name, no descriptor."""
    descriptors = len(os.listdir("/proc/self/fd"))
    gc.collect()
    before = bytes_taken(group)
    for n in range(1500):
        synk.data(np.full(1000, n))
    gc.collect()
    assert bytes_taken(group) <= before + (1 << 14)
    held = [synk.data(np.full(3, n)) for n in range(1200)]
    assert all(d[0] == n for n, d in enumerate(held))
    assert len(os.listdir("/proc/self/fd")) == descriptors
    held[5].set_length(100)
    assert held[4].data.tolist() == [4] * 3
    assert held[6].data.tolist() == [6] * 3


def test_many_dimensions(group2: synk.Group) -> None:
    """S40: more than 16."""
    d = synk.data(shape=(1,) * 20 + (3,), dtype="int8")
    d[..., 1] = 5
    assert d.data.ravel().tolist() == [0, 5, 0]


@pytest.mark.parametrize(
    "shape", [(2**36 + 5,), (2**40,), (2**33, 2**20), (2**62,), (2**40, 2**40)]
)
def test_more_than_there_is(group2: synk.Group, shape: tuple[int, ...]) -> None:
    """S40, S45: dimensions beyond 32 bits, refused with figures where they cannot be held."""
    d = synk.data(np.arange(4.0).reshape((4,) + (1,) * (len(shape) - 1)))
    for act in (
        lambda: synk.data(shape=shape, dtype="float64"),
        lambda: d.set_shape(shape),
        lambda: d.set_length(shape[0], oversize=2.0**20),
    ):
        with pytest.raises(MemoryError) as caught:
            act()
        assert any(c.isdigit() for c in str(caught.value))
        assert d.data.ravel().tolist() == [0, 1, 2, 3]
        assert d.shape[0] == 4
    assert seen_by_members(d).ravel().tolist() == [0, 1, 2, 3]


def test_dimensions_beyond_32_bits(group2: synk.Group) -> None:
    """S40: of an array without elements, which anyone can hold."""
    d = synk.data(shape=(2**33, 0), dtype="float32")
    assert d.shape == (2**33, 0)
    d.set_shape((0, 2**40))
    assert d.shape == (0, 2**40)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of 40 rows of 50 float64, each element its own number."""
    path = tmp_path / "rows.bin"
    np.arange(2000.0).tofile(path)
    return path


@pytest.mark.each_choice
@pytest.mark.parametrize("mode", ["r", "r+"])
def test_memory_mapped_files(group: synk.Group, file: Path, mode: Any) -> None:
    """Each member maps the file for itself: nothing is loaded into shared memory."""
    mapped = np.memmap(file, "float64", mode, shape=(40, 50))
    gc.collect()
    before = bytes_taken(group)
    d = synk.data(mapped)
    assert bytes_taken(group) <= before + (1 << 12)
    assert d.shape == (40, 50)
    np.testing.assert_array_equal(d.data, mapped)
    np.testing.assert_array_equal(seen_by_members(d), mapped)
    x = pt.matrix("x", dtype="float64")
    f = synk.function([x], [(x * 1, "gather"), x.sum()], mode="FAST_COMPILE")
    for batch in (None, slice(5, 30), [3, 39, 0], slice(None, None, -1)):
        rows, total = f(d, batch=batch, num_slices=2)
        wanted = mapped if batch is None else mapped[batch]
        np.testing.assert_array_equal(rows, wanted)
        assert total == wanted.sum()


@pytest.mark.parametrize("rows", [slice(3, 20), slice(0, 0), slice(39, 40)])
def test_slices_of_memory_mapped_files(group: synk.Group, file: Path, rows: slice) -> None:
    """Windows that move over a file larger than memory, at any offset of it."""
    header = 8 * 50
    mapped = np.memmap(file, "float64", "r", offset=header, shape=(39, 50))
    d = synk.data(mapped[rows])
    np.testing.assert_array_equal(seen_by_members(d), mapped[rows])
    d.set_value(mapped[rows][1:])
    np.testing.assert_array_equal(seen_by_members(d), mapped[rows][1:])
    d.set_value(np.ones((2, 50)))
    d[0, 0] = 5
    assert seen_by_members(d)[0, 0] == 5
    assert mapped[0, 0] == 50.0


def test_mapped_files_may_become_ordinary_data(group: synk.Group, file: Path) -> None:
    """Growth, casts and layouts that no file has are copied, as any array."""
    mapped = np.memmap(file, "float64", "r", shape=(40, 50))
    d = synk.data(mapped)
    d.set_length(41)
    np.testing.assert_array_equal(d[:40], mapped)
    assert (d[40] == 0).all()
    np.testing.assert_array_equal(seen_by_members(d)[:40], mapped)
    d.set_value(mapped)
    d.set_shape((2, 3))
    np.testing.assert_array_equal(seen_by_members(d), mapped[:2, :3])
    cast = synk.data(mapped, dtype="float32", force_cast=True)
    np.testing.assert_array_equal(seen_by_members(cast), np.asarray(mapped, "float32"))
    d.set_value(mapped)
    d.free_memory()
    assert d.size == 0


@pytest.mark.parametrize("kind", ["transposed", "strided", "new", "without a name"])
def test_maps_of_every_kind(group: synk.Group, file: Path, kind: str) -> None:
    """What members cannot map is copied; a fresh file (w+) is mapped as any other."""
    with tempfile.TemporaryFile() as nameless:
        value = {
            "transposed": lambda: np.memmap(file, "float64", "r", shape=(40, 50)).T,
            "strided": lambda: np.memmap(file, "float64", "r", shape=(40, 50))[::2, ::3],
            "new": lambda: np.memmap(file.with_suffix(".new"), "float64", "w+", shape=(4, 5)),
            "without a name": lambda: np.memmap(nameless, "float64", "w+", shape=(4, 5)),
        }[kind]()
        if kind in ("new", "without a name"):
            value[...] = np.arange(20.0).reshape(4, 5)
        d = synk.data(value)
        np.testing.assert_array_equal(seen_by_members(d), value)
        del value, d


@pytest.mark.parametrize("kind", ["other", "shorter", "empty", "of both maps"])
def test_a_mapped_file_that_was_replaced_before(group: synk.Group, file: Path, kind: str) -> None:
    """The name leads to another file than the array: an error, and the Data stay as they were."""
    d = synk.data(np.ones((2, 50)))
    mapped = np.memmap(file, "float64", "r", shape=(40, 50))
    new = file.with_suffix(".new")
    new.write_bytes({"shorter": bytes(8), "empty": b""}.get(kind, bytes(16000)))
    new.replace(file)
    other = np.memmap(file, "float64", "r", shape=(40, 50)) if kind == "of both maps" else None
    for set_value in (synk.data, d.set_value):
        with pytest.raises(synk.InputError, match=r"maps a file that is not .* any more"):
            set_value(mapped[3:])
    assert (seen_by_members(d) == 1).all()
    if other is not None:
        d.set_value(other[1:])
        assert (seen_by_members(d) == 0).all()


def test_writes_to_a_mapped_file_reach_members(group: synk.Group, file: Path) -> None:
    """Mode r+: what the user writes through the map, members read in the next call."""
    mapped = np.memmap(file, "float64", "r+", shape=(40, 50))
    d = synk.data(mapped)
    x = pt.matrix("x", dtype="float64")
    f = synk.function([x], x.sum(), mode="FAST_COMPILE")
    for value in (1.0, 2.0):
        mapped[...] = value
        assert f(d) == value * 2000


def test_private_changes_of_a_map_are_copied(group: synk.Group, file: Path) -> None:
    """Mode c: what the user writes is not in the file, so members get the array."""
    mapped = np.memmap(file, "float64", "c", shape=(40, 50))
    mapped[3:] *= 100
    for value in (mapped, mapped[2:5]):
        d = synk.data(value)
        np.testing.assert_array_equal(seen_by_members(d), value)
        d[...] = -1
        assert (seen_by_members(d) == -1).all()
    assert mapped[39, 49] == 100 * np.fromfile(file)[-1]


def test_set_value_from_itself(group2: synk.Group) -> None:
    """Views of the data as its own new value: no element is read after it was overwritten."""
    d = synk.data(np.arange(10.0))
    d.set_value(d.data[::-1])
    assert d.data.tolist() == list(range(9, -1, -1))
    d.set_value(d.data[3:])
    assert d.data.tolist() == list(range(6, -1, -1))
    d.set_value(np.concatenate([d.data, d.data]))
    assert d.size == 14


def test_data_before_and_after_distribute(group: synk.Group) -> None:
    """At any time after the fork, without a meeting of the members."""
    x = pt.vector("x", dtype="float64")
    early = synk.data(np.ones(6))
    f = synk.function([x], x.sum(), mode="FAST_COMPILE")
    synk.distribute()
    late = synk.data(np.full(6, 2.0))
    assert (f(early), f(late)) == (6, 12)


def test_data_needs_a_group() -> None:
    with pytest.raises(synk.NotForked, match=r"synk\.fork"):
        synk.data(np.ones(2))


def test_data_after_the_end(size: int) -> None:
    """Contents can be read and written; what needs the group raises, and breaks nothing."""
    x = pt.vector("x", dtype="float64")
    with synk.Group(size):
        f = synk.function([x], x.sum(), mode="FAST_COMPILE")
        d, table = synk.data(np.arange(4.0)), synk.data(np.ones((2, 3)))
        view = d[1:3]
        assert f(d) == 6
    assert d.data.tolist() == [0, 1, 2, 3]
    d[0] = 9
    assert (d[0], d.shape, d.dtype, repr(d)) == (
        9,
        (4,),
        np.float64,
        "<synkhronos.Data float64 (4,)>",
    )
    assert view.tolist() == [1, 2]
    for act in (
        lambda: f(d),
        lambda: d.set_length(100_000),
        lambda: d.set_length(2),
        lambda: d.set_value(np.ones(99_999)),
        lambda: d.set_value(np.ones(2)),
    ):
        with pytest.raises(synk.GroupClosed):
            act()
        assert d.data.tolist() == [9, 1, 2, 3]
    d.set_value([9, 1, 2, 4])
    assert d.data.tolist() == [9, 1, 2, 4]
    try:
        table.free_memory()
    except synk.GroupClosed:
        assert table.data.tolist() == [[1] * 3] * 2
    assert table.data.ndim == 2
    with synk.Group(size), pytest.raises(synk.InputError, match="Data of a closed group"):
        synk.function([x], x.sum(), mode="FAST_COMPILE")(d)


def test_two_groups_have_data_of_their_own(group2: synk.Group) -> None:
    x = pt.vector("x", dtype="float64")
    f = synk.function([x], x.sum(), mode="FAST_COMPILE")
    d = synk.data(np.ones(5))
    with synk.Group(1):
        other = synk.data(np.full(5, 2.0))
        g = synk.function([x], x.sum(), mode="FAST_COMPILE")
        assert g(other) == 10
        assert f(d) == 5
    assert f(d) == 5
    assert other.data.sum() == 10


def test_masked_arrays_are_refused(group2: synk.Group) -> None:
    """numpy would drop the mask, and compute with what it hides."""
    hidden = np.ma.masked_equal([1.0, 2.0, -999.0], -999.0)
    whole = np.ma.masked_equal([1.0, 2.0, 3.0], -999.0)
    x, s = pt.dvector("x"), pytensor.shared(np.zeros(3), name="s")
    f = synk.function([x], x.sum(), mode="FAST_COMPILE")
    d = synk.data(whole)
    assert f(whole) == f(d) == 6
    for call in (
        lambda: f(hidden),
        lambda: f(x=hidden),
        lambda: synk.data(hidden),
        lambda: d.set_value(hidden),
        lambda: synk.broadcast(s, hidden),
    ):
        with pytest.raises(synk.InputTypeError, match="masked array"):
            call()
    assert d.data.tolist() == [1, 2, 3]


@pytest.mark.parametrize("after_a_call", [False, True])
def test_a_mapped_file_that_another_one_replaces(
    group2: synk.Group, tmp_path: Path, after_a_call: bool
) -> None:
    """Members would have other rows than the master; new Data of the new file are right."""
    path, x = tmp_path / "rows", pt.dvector("x")
    np.full(1000, 1.0).tofile(path)
    f = synk.function([x], (x.sum(), "sum"), mode="FAST_COMPILE")
    d = synk.data(np.memmap(path, "float64", "r"))
    if after_a_call:
        assert f(d) == 1000
    np.full(1000, 100.0).tofile(tmp_path / "new")
    os.replace(tmp_path / "new", path)
    if after_a_call:
        assert f(d) == 1000, "all members have it open"
        assert f(d, batch=slice(0, 10)) == 10
    else:
        with pytest.raises((synk.InputError, synk.WorkerError), match="is not the file any more"):
            f(d)
    d.set_value(np.memmap(path, "float64", "r"))
    assert f(d) == 100_000


def test_a_mapped_file_whose_name_is_gone(group2: synk.Group, tmp_path: Path) -> None:
    """It is copied."""
    path, x = tmp_path / "rows", pt.dvector("x")
    np.full(1000, 1.0).tofile(path)
    mapped = np.memmap(path, "float64", "r")
    path.unlink()
    f = synk.function([x], x.sum(), mode="FAST_COMPILE")
    assert f(synk.data(mapped)) == 1000
