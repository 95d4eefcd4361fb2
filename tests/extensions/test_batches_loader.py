"""Batches: every row once an epoch, continued anywhere. Loader: right rows, a clean end (S91)."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytensor.tensor as pt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from user_scripts import run_script

import synkhronos as synk
from synkhronos.extensions._rows import loader as waiting_module
from synkhronos.extensions._rows import reader as loader_module
from synkhronos.extensions._rows.by_master import MasterLoop
from synkhronos.extensions._rows.by_nodes import Job, NodeReader
from synkhronos.extensions._rows.source import Source
from synkhronos.extensions.batches import Batches
from synkhronos.extensions.loader import Loader

pytestmark = pytest.mark.usefixtures("lasting_groups")

Array = np.ndarray


def rows_of(batches: Any) -> list[list[int]]:
    return [rows.tolist() for rows in batches]


def with_blocks(kind: dict[str, Any], cuts: list[int] | None) -> dict[str, Any]:
    """Blocks that end at these rows; some may be empty."""
    if cuts is None:
        return kind
    edges = [0, *sorted(min(c, kind["n"]) for c in cuts), kind["n"]]
    return {**kind, "blocks": np.diff(edges).tolist()}


plain_kinds = st.fixed_dictionaries(
    {
        "n": st.integers(1, 40),
        "size": st.integers(1, 12),
        "seed": st.integers(0, 2**70),
        "shuffle": st.booleans(),
        "last": st.sampled_from(["keep", "drop"]),
        "window": st.integers(1, 12),
    }
)
block_cuts = st.none() | st.lists(st.integers(0, 40), max_size=12)
kinds = st.builds(with_blocks, plain_kinds, block_cuts).filter(
    lambda k: k["last"] == "keep" or k["size"] <= k["n"]
)


@given(kinds, st.integers(1, 3))
def test_every_row_once_an_epoch(kind: dict[str, Any], epochs: int) -> None:
    batches = Batches(**kind)
    n, size = kind["n"], kind["size"]
    for epoch in range(epochs):
        assert batches.epoch == epoch
        found = list(batches)
        assert len(found) == len(batches)
        assert all(b.dtype == np.int64 for b in found)
        assert {len(b) for b in found[:-1]} <= {size}
        seen = np.concatenate(found)
        assert len(np.unique(seen)) == len(seen)
        assert set(seen) <= set(range(n))
        left = n % size
        if kind["last"] == "keep":
            assert len(seen) == n
            assert len(found[-1]) == (left or size)
        else:
            assert len(seen) == n - left
        if not kind["shuffle"]:
            assert seen.tolist() == list(range(len(seen)))


@given(kinds, st.integers(0, 3), st.data())
def test_the_order_is_a_function_of_seed_and_epoch(
    kind: dict[str, Any], epoch: int, data: st.DataObject
) -> None:
    """Not of what was read before, how, or of the batches' size."""
    straight = Batches(**kind)
    for _ in range(epoch):
        rows_of(straight)
    hasty = Batches(**kind)
    for _ in range(epoch):
        wanted = data.draw(st.integers(1, 4))
        for _ in itertools.islice(hasty, wanted):
            pass
        if hasty.epoch < straight.epoch and wanted >= len(hasty):
            hasty.restore(hasty.state())
    assert rows_of(hasty) == rows_of(straight)
    other = Batches(**{**kind, "size": 1, "last": "keep"})
    other.restore({**other.state(), "epoch": epoch})
    assert np.concatenate(list(other)).tolist() == straight.order(epoch).tolist()


@given(kinds, st.data())
def test_restore_continues_exactly(kind: dict[str, Any], data: st.DataObject) -> None:
    """From a state taken anywhere, by way of JSON: the same batches as without a stop."""
    batches = Batches(**kind)
    stop = data.draw(st.integers(0, 2 * len(batches)))
    wanted, state = [], json.dumps(batches.state())
    for _ in range(4):
        for rows in batches:
            wanted.append((batches.epoch, rows.tolist()))
            if len(wanted) == stop:
                state = json.dumps(batches.state())
    resumed = Batches(**kind)
    list(itertools.islice(resumed, data.draw(st.integers(0, 3))))
    resumed.restore(json.loads(state))
    found = []
    while len(found) < len(wanted) - stop:
        found += [(resumed.epoch, rows.tolist()) for rows in resumed]
    assert found == wanted[stop:]


def test_the_order_of_a_seed_is_for_ever() -> None:
    """These were drawn when this was written: no version of numpy may change them."""
    assert Batches(8, 8).order(0).tolist() == [6, 3, 1, 4, 5, 2, 7, 0]
    assert Batches(8, 8, seed=3).order(5).tolist() == [2, 5, 3, 6, 0, 7, 4, 1]


def test_the_order_of_blocks_is_for_ever() -> None:
    blocks = Batches(9, 9, seed=3, blocks=[3, 0, 1, 2, 3], window=2)
    assert blocks.order(0).tolist() == [6, 7, 8, 3, 4, 5, 1, 0, 2]
    assert (
        Batches(9, 9, seed=3).order(0).tolist() == Batches(9, 9, seed=3, window=2).order(0).tolist()
    )


@given(kinds, st.integers(0, 3))
def test_at_most_window_blocks_are_open(kind: dict[str, Any], epoch: int) -> None:
    """From its first row in the order to its last, a block counts as open; each opens once."""
    batches = Batches(**kind)
    if batches.blocks is None or not batches.shuffle:
        return
    block_of = np.repeat(np.arange(len(batches.blocks)), batches.blocks)[batches.order(epoch)]
    places = [np.flatnonzero(block_of == b) for b in np.unique(block_of)]
    opened = [sum(p[0] <= i <= p[-1] for p in places) for i in range(batches.n)]
    assert max(opened) <= batches.window
    if len(places) > 1 == batches.window:
        assert (np.diff(block_of) != 0).sum() == len(places) - 1


def test_all_blocks_in_the_window_are_mixed_from_the_first_row_to_the_last() -> None:
    order = Batches(8000, 100, blocks=[500] * 16, window=4).order(0) // 500
    for rows in (order[:60], order[3000:3060], order[-60:]):
        assert len(np.unique(rows)) == 4
    assert len(np.unique(order[:2500])) > 4
    turns = [
        np.unique(Batches(8000, 1, blocks=[500] * 16, window=1).order(e)[:500] // 500)
        for e in range(4)
    ]
    assert len(np.unique(turns)) > 1, "another order of the blocks in each epoch"


def test_epochs_and_seeds_differ() -> None:
    found = [Batches(50, 50, seed=s).order(e).tolist() for s in (0, 1, 2**32) for e in (0, 1, 2)]
    assert len({tuple(order) for order in found}) == len(found)


def test_a_loop_left_early_leaves_its_epoch() -> None:
    batches = Batches(6, 2, shuffle=False)
    rows = next(iter(batches))
    assert (batches.epoch, rows.tolist()) == (0, [0, 1])
    assert rows_of(batches) == [[0, 1], [2, 3], [4, 5]]
    assert batches.epoch == 2
    iter(batches)
    assert rows_of(batches)
    assert batches.epoch == 3, "an iterator that was never asked is no loop"


def test_going_back_within_a_loop_ends_it() -> None:
    batches = Batches(6, 2, shuffle=False)
    start = batches.state()
    seen = []
    for rows in batches:
        seen.append(rows.tolist())
        if len(seen) == 2:
            batches.restore(start)
    assert seen == [[0, 1], [2, 3]]
    assert rows_of(batches) == [[0, 1], [2, 3], [4, 5]]
    assert batches.epoch == 1


def test_another_size_takes_the_rows_that_are_left() -> None:
    batches = Batches(10, 2)
    first = next(iter(batches))
    wider = Batches(10, 3, last="drop")
    wider.restore(batches.state())
    found = list(wider)
    assert [len(b) for b in found] == [3, 3]
    assert np.concatenate([first, *found]).tolist() == batches.order(0)[:8].tolist()


def test_one_loop_at_a_time() -> None:
    batches = Batches(6, 2)
    outer = iter(batches)
    next(outer)
    next(iter(batches))
    with pytest.raises(synk.InputError, match="another loop"):
        next(outer)


def test_a_batch_is_the_users_own() -> None:
    batches = Batches(4, 2)
    before = batches.order(0)
    for rows in batches:
        rows[:] = -1
    assert sorted(before) == sorted(np.concatenate(list(Batches(4, 2))))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"n": 0, "size": 1}, "n=0"),
        ({"n": 3, "size": 0}, "size=0"),
        ({"n": 3, "size": -2}, "size=-2"),
        ({"n": 3.0, "size": 1}, "n=3.0"),
        ({"n": True, "size": 1}, "n=True"),
        ({"n": 3, "size": 1, "seed": -1}, "seed=-1"),
        ({"n": 3, "size": 1, "seed": None}, "seed=None"),
        ({"n": 3, "size": 1, "shuffle": "no"}, "shuffle='no'"),
        ({"n": 3, "size": 1, "last": "cut"}, "last='cut'"),
        ({"n": 3, "size": 4, "last": "drop"}, "3 rows do not fill one batch of 4"),
        ({"n": 3, "size": 1, "blocks": [2, 2]}, "the 2 blocks have 4 rows .* and n=3"),
        ({"n": 3, "size": 1, "blocks": [4, -1]}, "the shortest -1"),
        ({"n": 3, "size": 1, "blocks": [1.5, 1.5]}, "are not the numbers of rows"),
        ({"n": 3, "size": 1, "blocks": 3}, "blocks=3"),
        ({"n": 3, "size": 1, "blocks": [3], "window": 0}, "window=0"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(synk.InputError, match=said):
        Batches(**arguments)


@pytest.mark.parametrize(
    "change",
    [
        *({"n": 7}, {"seed": 1}, {"shuffle": False}, {"row": 6}, {"row": -1}, {"epoch": -1}),
        {"blocks": "0123456789abcdef", "window": 8},
    ],
)
def test_a_state_that_is_not_theirs_changes_nothing(change: dict[str, Any]) -> None:
    batches = Batches(6, 2)
    next(iter(batches))
    before = batches.state()
    with pytest.raises(synk.InputError):
        batches.restore({**before, **change})
    for nonsense in ({}, None, [1], {**before, "row": "2"}):
        with pytest.raises(synk.InputError, match="not a state of batches"):
            batches.restore(nonsense)  # type: ignore[arg-type]
    assert batches.state() == before


def test_a_state_knows_its_blocks() -> None:
    """Other lengths, another window, and none at all are other orders."""
    batches = Batches(6, 2, blocks=[3, 3])
    for other in ({"blocks": [2, 4]}, {"blocks": [3, 3], "window": 3}, {}):
        with pytest.raises(synk.InputError, match="the order of the rows would be another"):
            batches.restore(Batches(6, 2, **other).state())
        with pytest.raises(synk.InputError, match="blocks="):
            Batches(6, 2).restore(batches.state())
    assert "blocks" not in Batches(6, 2).state()
    assert "2 blocks, 8 of them mixed" in repr(batches)


# ---- the loader


X = np.arange(33.0).reshape(11, 3)
Y = np.arange(11, dtype="int32") * 10


class Rising:
    """Like a data set of h5py: no row twice, and rising."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self.shape, self.dtype = array.shape, array.dtype

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, rows: Array) -> Array:
        assert (np.diff(rows) > 0).all(), "rows must rise"
        return self.array[rows]


class Bare:
    """A length and an index, and nothing else."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, rows: Array) -> Array:
        return self.array[rows]


def on_disk(folder: Path, array: Array) -> np.memmap:
    np.save(folder / "array.npy", array)
    return np.load(folder / "array.npy", mmap_mode="r")


SOURCES: dict[str, Callable[[Path], Any]] = {
    "array": lambda folder: X,
    "strided": lambda folder: np.asfortranarray(X),
    "foreign bytes": lambda folder: X.astype(">f8"),
    "memmap": lambda folder: on_disk(folder, X),
    "rising": lambda folder: Rising(X),
    "bare": lambda folder: Bare(X),
    "function": lambda folder: lambda rows: X[rows],
}


def loader_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "synkhronos-loader"]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    """No thread of a loader is left, and none has to be waited for."""
    yield
    gc.collect()
    assert loader_threads() == []


@pytest.mark.each_choice
@pytest.mark.parametrize("sort", [False, True])
@pytest.mark.parametrize("kind", SOURCES)
def test_each_batch_is_exactly_its_rows(
    group2: synk.Group, tmp_path: Path, kind: str, sort: bool
) -> None:
    """Of all sources, over epochs, the last batch shorter; labels beside them in step."""
    source = SOURCES[kind](tmp_path)
    loader = Loader([source, Y], Batches(11, 4, seed=5), sort=sort or kind == "rising")
    for epoch in range(3):
        wanted = list(Batches(11, 4, seed=5).order(epoch)[i : i + 4] for i in (0, 4, 8))
        found = [(np.array(x), np.array(y)) for x, y in loader]
        assert [len(x) for x, _ in found] == [4, 4, 3]
        for rows, (x, y) in zip(wanted, found, strict=True):
            np.testing.assert_array_equal(x, X[rows])
            np.testing.assert_array_equal(y, Y[rows])
            assert (x.dtype, y.dtype) == (np.float64, np.int32)
    assert loader.batches.epoch == 3


def test_tables_of_pandas_give_rows_by_number(group2: synk.Group) -> None:
    """Their own index would take labels, and of a frame the names of columns."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    labels = np.random.default_rng(0).permutation(11)
    frame, series = pandas.DataFrame(X, labels), pandas.Series(Y, labels)
    order = Batches(11, 4).order(0)
    found = [(np.array(x), np.array(y)) for x, y in Loader([frame, series], Batches(11, 4))]
    np.testing.assert_array_equal(np.concatenate([x for x, _ in found]), X[order])
    np.testing.assert_array_equal(np.concatenate([y for _, y in found]), Y[order])


def test_the_data_go_into_functions(group: synk.Group) -> None:
    """Sums over the batches of an epoch are the sum over the data, on any number of members."""
    x, y = pt.matrix("x", dtype="float64"), pt.ivector("y")
    f = synk.function([x, y], [(x.sum(), "sum"), (y.sum(), "sum")], mode="FAST_COMPILE")
    with Loader((X, Y), Batches(11, 4)) as loader:
        for _ in range(2):
            totals = np.sum([f(a, b) for a, b in loader], axis=0)
            assert totals.tolist() == [X.sum(), Y.sum()]


def test_two_sets_take_turns_and_are_never_made_anew(group2: synk.Group) -> None:
    loader = Loader(X, Batches(11, 4))
    places, sets = set(), []
    for _ in range(3):
        for x in loader:
            assert isinstance(x, synk.Data)
            assert x.alloc_size == 12
            places.add(x.data.__array_interface__["data"][0])
            sets.append(id(x))
    assert len(places) == len(set(sets)) == 2
    assert sets[:3] == sets[3:6]
    assert sets[0] != sets[1] == sets[4]


def test_the_set_in_use_is_never_written(group2: synk.Group) -> None:
    """The thread has read ahead as far as it may, and the batch at hand is untouched."""
    asked: list[int] = []

    def source(rows: Array) -> Array:
        asked.append(len(rows))
        return X[rows]

    batches = Batches(11, 2, shuffle=False)
    for number, x in enumerate(Loader(source, batches)):
        before = np.array(x)
        until = time.monotonic() + 5
        while len(asked) < min(number + 2, 6) and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(0.005)
        assert len(asked) == min(number + 2, 6), "one ahead, not two"
        np.testing.assert_array_equal(x.data, before)
        np.testing.assert_array_equal(before, X[2 * number : 2 * number + 2])


def test_what_functions_may_return(group2: synk.Group) -> None:
    """One array or a tuple, and other shapes and dtypes later, as Data can hold them."""

    def several(rows: Array) -> tuple[Array, Array]:
        return X[rows], Y[rows]

    for x, y in Loader(several, Batches(11, 4)):
        np.testing.assert_array_equal(Y[np.isin(X, x).all(axis=1)], np.sort(y.data))
    triples = list(Loader([several, Y], Batches(11, 11)))
    assert [len(t) for t in triples] == [3]

    def growing(rows: Array) -> Array:
        width = 2 + int(rows[0])
        return np.full((len(rows), width), rows[0], "float32" if rows[0] else "float64")

    found = [np.array(x) for x in Loader(growing, Batches(5, 2, shuffle=False))]
    assert [a.shape for a in found] == [(2, 2), (2, 4), (1, 6)]
    assert [a.flat[0] for a in found] == [0, 2, 4]


def test_scalars_per_row_and_empty_rows(group2: synk.Group) -> None:
    found = [np.array(a) for a, _ in Loader([np.arange(4), np.zeros((4, 0))], Batches(4, 3))]
    assert sorted(np.concatenate(found)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        ([[1, 2, 3]], "source 0 .list."),
        ([X, "text"], "source 1 .str."),
        ({"x": X}, "source 0 .dict."),
        (None, "source 0 .NoneType."),
        (np.array(3.0), "source 0 .ndarray. does not take an array as index"),
        ([], "no source"),
        ([X, Y[:5]], "source 1 .ndarray. has 5 rows, the batches 11"),
        ([np.array(["a"] * 11)], "PyTensor has no dtype"),
    ],
)
def test_bad_sources(group2: synk.Group, sources: Any, said: str) -> None:
    with pytest.raises(synk.InputError, match=said):
        Loader(sources, Batches(11, 4))


def test_bad_batches_and_no_group(group2: synk.Group) -> None:
    with pytest.raises(synk.InputTypeError, match="not a Batches"):
        Loader(X, [[1, 2]])  # type: ignore[arg-type]
    group2.close()
    with pytest.raises(synk.NotForked):
        Loader(X, Batches(11, 4))


@pytest.mark.parametrize(
    ("returns", "said"),
    [
        (lambda rows: X[rows][:-1], "shape .3, 3. for 4 rows"),
        (lambda rows: 3.0, "shape .. for 4 rows"),
        (lambda rows: X[rows] if rows[0] < 4 else X[rows] + 1j, "complex128"),
        (lambda rows: X[rows] if rows[0] < 4 else (X[rows], Y[rows]), "2 arrays for batch 2"),
    ],
)
def test_sources_that_return_nonsense(group2: synk.Group, returns: Any, said: str) -> None:
    with pytest.raises(synk.InputError, match=said):
        list(Loader(returns, Batches(11, 4, shuffle=False)))
    assert loader_threads() == []


def test_what_a_source_raises_is_raised_in_the_loop(group2: synk.Group) -> None:
    """With its traceback and a note; the state says that its batch is still to come."""

    def fails_at_four(rows: Array) -> Array:
        if 4 in rows:
            raise LookupError("row four is gone")
        return X[rows]

    loader = Loader([Y, fails_at_four], Batches(11, 2, shuffle=False))
    seen = []
    steps = iter(loader)
    seen += [next(steps)[0].data.tolist() for _ in range(2)]
    with pytest.raises(LookupError, match="row four is gone") as caught:
        next(steps)
    assert seen == [[0, 10], [20, 30]]
    assert loader.batches.state()["row"] == 4
    assert "fails_at_four" in "".join(traceback.format_tb(caught.value.__traceback__))
    assert "source 1 (function) was read for batch 3 of epoch 1" in caught.value.__notes__[0]
    assert loader_threads() == []


class Locked(Bare):
    """A source that cannot be opened the first time."""

    tries = 0

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        self.tries += 1
        if self.tries == 1:
            raise PermissionError("it is locked")
        yield


def test_a_source_that_cannot_be_opened(group2: synk.Group) -> None:
    """Its error is raised in the loop; the next loop tries again."""
    loader = Loader([Y, Locked(X)], Batches(11, 2, shuffle=False))
    with pytest.raises(PermissionError, match="it is locked") as caught:
        list(loader)
    assert "source 1 (Locked) was opened" in caught.value.__notes__[0]
    assert loader_threads() == []
    assert [len(y) for y, _ in loader] == [2, 2, 2, 2, 2, 1]


def test_a_source_that_a_node_cannot_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """All batches that were asked for have the error, and the next loop tries again."""
    monkeypatch.setattr("synkhronos.extensions._rows.by_nodes.LOOK_SECONDS", 0.05)
    slots = [(np.zeros((4, *X.shape[1:])),) for _ in range(2)]
    reader = NodeReader([Source(Locked(X), 0, 11)], Batches(11, 4, shuffle=False), False, slots)
    jobs = [Job(loop, 0, n, 4 * n, 4 * n + 4, n) for loop in range(2) for n in range(2)]
    for loop in range(2):
        for job in jobs[2 * loop : 2 * loop + 2]:
            reader.ask(job, (0, 4))
        if loop:
            reader.take(jobs[2])
            reader.take(jobs[3])
            break
        with pytest.raises(PermissionError, match="it is locked"):
            reader.take(jobs[0])
    np.testing.assert_array_equal([slot[0] for slot in slots], [X[:4], X[4:8]])
    with pytest.raises(synk.GroupError, match="thread is gone"):
        reader.take(jobs[0])


def test_a_loop_left_early_ends_the_thread_at_once(group2: synk.Group) -> None:
    loader = Loader(X, Batches(11, 2, shuffle=False))
    for x in loader:
        assert len(loader_threads()) == 1
        assert x.data.tolist() == X[:2].tolist()
        break
    assert loader_threads() == []
    assert loader.batches.state()["row"] == 2, "however far the thread has read"
    assert [x.data[0, 0] for x in loader] == [0, 6, 12, 18, 24, 30]
    assert loader_threads() == []


def test_an_exception_in_the_loop_ends_the_thread(group2: synk.Group) -> None:
    def train(loader: Loader) -> None:
        for _ in loader:
            raise KeyboardInterrupt

    with Loader(X, Batches(11, 2)) as loader, pytest.raises(KeyboardInterrupt):
        train(loader)
    assert loader_threads() == []


def test_closing_in_the_middle(group2: synk.Group) -> None:
    loader = Loader(X, Batches(11, 2))
    steps = iter(loader)
    next(steps)
    loader.close()
    loader.close()
    assert loader_threads() == []
    with pytest.raises(synk.InputError, match="has ended this loop"):
        next(steps)
    steps = iter(loader)
    next(steps)
    assert len(list(loader)) == 6
    with pytest.raises(synk.InputError, match="has ended this loop"):
        next(steps)


def test_the_end_of_the_group_ends_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_module, "LOOK_SECONDS", 0.02)
    with synk.Group(2) as group:
        loader = Loader(X, Batches(11, 2))
        steps = iter(loader)
        kept = next(steps)
        held = np.array(kept)
        other = iter(Loader(X, Batches(11, 2)))
        next(other)
        group.close()
        with pytest.raises(synk.GroupClosed):
            next(steps)
        np.testing.assert_array_equal(kept.data, held)
        until = time.monotonic() + 5
        while loader_threads() and time.monotonic() < until:
            time.sleep(0.005)
        assert loader_threads() == [], "nobody asks the other for more, and its thread sees it"
        with pytest.raises(synk.GroupClosed):
            list(loader)
        del other


@pytest.mark.new_group  # which the other thread sees
def test_a_consumer_that_is_gone_ends_the_thread(
    group2: synk.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_module, "LOOK_SECONDS", 0.02)
    kept: list[Any] = []

    def consume() -> None:
        kept.append(iter(Loader(X, Batches(11, 2))))
        next(kept[0])

    consumer = threading.Thread(target=consume)
    consumer.start()
    consumer.join()
    until = time.monotonic() + 5
    while loader_threads() and time.monotonic() < until:
        time.sleep(0.005)
    assert loader_threads() == []
    next(kept[0])  # batch 1 had been read
    with pytest.raises(synk.GroupError, match="the reading thread is gone"):
        list(kept[0])


def test_a_source_that_does_not_come_back(
    group2: synk.Group, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The loop does not wait for it for ever, and what it writes later is in nobody's way."""
    monkeypatch.setattr(loader_module, "JOIN_SECONDS", 0.05)
    release, first = threading.Event(), ["try"]

    def stuck(rows: Array) -> Array:
        if rows[0] == 4 and first:
            first.clear()
            release.wait(200)
            return X[rows] - 1000
        return X[rows]

    loader = Loader(stuck, Batches(11, 2, shuffle=False))
    begun = time.monotonic()
    with caplog.at_level(logging.WARNING, "synkhronos"):
        for number, _ in enumerate(loader):
            if number == 1:
                break
    assert time.monotonic() - begun < 100
    assert "has not ended within" in caplog.text
    seen = []
    for x in loader:
        if not seen:
            release.set()
            for thread in loader_threads()[:1]:
                thread.join(5)
        seen.append(x.data[:, 0].tolist())
    assert seen == [X[i : i + 2, 0].tolist() for i in range(0, 11, 2)]


def test_interrupts_reach_a_waiting_loop(tmp_path: Path) -> None:
    """Ctrl-C while the loop waits for a slow source; the script then ends, with its group."""
    out = run_script(
        tmp_path,
        """
        import os, signal, threading, time
        import numpy as np, synkhronos as synk
        from synkhronos.extensions.batches import Batches
        from synkhronos.extensions.loader import Loader

        read = []

        def slow(rows):
            read.append(rows[0])
            if rows[0]:
                threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
                time.sleep(1)
            return rows

        synk.fork(2)
        loader = Loader(slow, Batches(4, 1, shuffle=False))
        try:
            for x in loader:
                pass
        except KeyboardInterrupt:
            print("interrupted", len(read) < 4, threading.active_count())
        """,
    )
    assert out.split() == ["interrupted", "True", "1"]


def test_a_script_that_ends_within_the_loop_ends(tmp_path: Path) -> None:
    begun = time.monotonic()
    out = run_script(
        tmp_path,
        """
        import atexit, sys, threading
        import numpy as np, synkhronos as synk
        from synkhronos.extensions.batches import Batches
        from synkhronos.extensions.loader import Loader

        atexit.register(lambda: print(threading.active_count(), "thread"))
        synk.fork(2)
        steps = iter(Loader(np.arange(9), Batches(9, 1)))
        next(steps)
        print("over")
        sys.exit(0)
        """,
    )
    assert out.split() == ["over", "1", "thread"]
    assert time.monotonic() - begun < 60


def test_seconds_of_waiting_are_those_of_the_source(
    group2: synk.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that goes on only in the source, while the loop waits, and in the loop's body."""
    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    monkeypatch.setattr(waiting_module, "time", clock)
    asked, take = threading.Semaphore(0), MasterLoop.take

    def taking(loop: MasterLoop, number: int) -> Any:
        asked.release()
        return take(loop, number)

    monkeypatch.setattr(MasterLoop, "take", taking)

    def source(rows: Array) -> Array:
        assert asked.acquire(timeout=60)
        clock.now += 1
        return X[rows]

    loader = Loader(source, Batches(11, 2, shuffle=False))
    found = []
    for x in loader:
        clock.now += 100
        found.append(x.data[0, 0])
    assert found == [0, 6, 12, 18, 24, 30]
    assert loader.waited == 6


def test_an_idle_thread_sleeps(group2: synk.Group) -> None:
    """Both batches are read and nobody asks: no processor time goes."""
    gc.collect()  # what earlier tests left would be collected meanwhile
    steps = iter(Loader(X, Batches(11, 2)))
    next(steps)
    time.sleep(0.05)
    begun = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - begun < 0.05
    steps.close()  # type: ignore[attr-defined]


def test_the_cursor_is_the_loops(group2: synk.Group) -> None:
    """A state taken in a loop continues, in another loader, with the next batch."""
    loader = Loader(Y, Batches(11, 3, seed=2))
    wanted = [y.data.tolist() for _ in range(2) for y in loader]
    loader = Loader(Y, Batches(11, 3, seed=2))
    for number, _ in enumerate(loader):
        if number == 1:
            state = loader.batches.state()
            break
    resumed = Loader(Y, Batches(11, 3, seed=2))
    resumed.batches.restore(state)
    assert [y.data.tolist() for _ in range(2) for y in resumed] == wanted[2:]
    start = resumed.batches.state()
    steps = [resumed.batches.restore(start) for _ in resumed]
    assert len(steps) == 1, "going back ends the loop under way"


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_kernel_reads_around_random_rows_only_on_request(
    group2: synk.Group, tmp_path: Path, shuffle: bool
) -> None:
    file = on_disk(tmp_path, X)

    def random() -> bool:
        text = Path("/proc/self/smaps").read_text().partition("array.npy")[2]
        flags = text.partition("VmFlags:")[2].partition("\n")[0]
        return "rr" in flags.split()

    loader = Loader(file, Batches(11, 4, shuffle=shuffle))
    assert not random()
    assert [random() for _ in loader] == [shuffle] * 3
    assert not random()


def test_a_large_file_is_not_loaded(tmp_path: Path) -> None:
    """A sparse file of 8 GB, as Data and through a loader: neither is read into memory."""
    out = run_script(
        tmp_path,
        """
        import os, re
        from pathlib import Path
        import numpy as np, synkhronos as synk
        import pytensor.tensor as pt
        from synkhronos.extensions.batches import Batches
        from synkhronos.extensions.loader import Loader

        def memory():
            main = Path("/proc/self/task") / str(os.getpid())
            pids = [os.getpid(), *(main / "children").read_text().split()]
            text = "".join([Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids])
            return sum(map(int, re.findall(r"^Pss: +(\\d+) kB", text, re.M))) / 1024

        rows, width = 1 << 20, 1 << 10
        file = np.memmap("big", "float64", "w+", shape=(rows, width))
        file[[5, rows - 1]] = 1.0
        file = np.memmap("big", "float64", "r", shape=(rows, width))
        synk.fork(2)
        x = pt.matrix("x", dtype="float64")
        f = synk.function([x], (x.sum(), "sum"), mode="FAST_COMPILE")
        f(np.zeros((4, width)))
        before = memory()
        d = synk.data(file)
        assert d.shape == (rows, width)
        assert f(d, batch=np.array([5, 7, rows - 1, 9])) == 2 * width
        print("data", memory() - before < 64)
        batches = Batches(rows, 64)
        with Loader(file, batches) as loader:
            for number, part in enumerate(loader):
                f(part)
                if number == 50:
                    break
        print("loader", memory() - before < 128)
        """,
    )
    assert out.split() == ["data", "True", "loader", "True"]
