"""Data, functions and calls, right ones and wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from oracle import DATA, FAST, FIXED, JOBS, Array, Raises, X, make_echo, make_rows, rows_of, same
from order_draws import batch_of, batches, chosen, seeds, which
from order_sides import Side, Sides

import synkhronos as synk
from synkhronos.extensions import make_train_function, updates
from synkhronos.testing.faults import Fault

RATE = 0.5  # of the training steps


class Calls(Sides):
    """Calls of functions, with Data and arrays."""

    @rule(which=which, kind=st.sampled_from(list(DATA)), length=st.integers(0, 9), number=seeds)
    def make_data(self, which: int, kind: str, length: int, number: int) -> None:
        with self.within(which) as side:
            array = rows_of(kind, length, number)
            if number % 2:
                self.hold(side, kind, array, oversize=1 + number % 3)
            else:
                self.hold(side, kind, np.zeros_like(array), shape=array.shape)

    @precondition(lambda self: self.held)
    @rule(which=which, start=which, stop=which, number=seeds)
    def write(self, which: int, start: int, stop: int, number: int) -> None:
        """Rows are written in place, also when the group has ended."""
        held = self.held[which % len(self.held)]
        place = slice(start, stop) if held.array.ndim else ()
        held.data[place] = number
        held.array[place] = number

    @precondition(lambda self: self.held)
    @rule(which=which, length=st.integers(0, 12), number=seeds, how=st.sampled_from("slfs"))
    def resize(self, which: int, length: int, number: int, how: str) -> None:
        held = self.held[which % len(self.held)]
        old, data = held.array, held.data
        if held.side not in self.sides:
            with pytest.raises(synk.GroupClosed):
                data.free_memory()
        elif how == "f":
            data.free_memory()
            held.array = np.zeros((0,) * old.ndim, old.dtype)
        elif how == "s" or not old.ndim:
            held.array = rows_of(held.kind, length, number)
            data.set_value(held.array, oversize=1 + number % 2)
        else:
            data.set_length(length, oversize=1 + number % 2)
            held.array = np.zeros((length, *old.shape[1:]), old.dtype)
            held.array[: len(old)] = old[:length]

    @precondition(lambda self: self.held)
    @rule(which=which, look=st.booleans())
    def drop(self, which: int, look: bool) -> None:
        """Data goes; a view of it may stay, whatever takes its place."""
        held = self.held.pop(which % len(self.held))
        if look:
            self.keep(held.data.data, held.array)

    def function(self, side: Side, job: str) -> Any:
        made = side.functions.get(job)
        if made is None:
            if job.startswith("echo "):
                made = make_echo(job.removeprefix("echo "))
            elif job == "rows":
                made = make_rows(self.variables)
            else:
                made = JOBS[job].make(self.variables)
            side.functions[job] = made
        return made

    def given(self, side: Side, kind: str, which: int, number: int) -> tuple[Any, Array]:
        """Data of a kind if there is one (or an array), and its value."""
        fit = [h for h in self.held if h.kind == kind and h.side is side and h.data.size]
        if fit and which:
            held = fit[which % len(fit)]
            return held.data, held.array
        array = rows_of(kind, number % 10, number)
        return array, array

    @rule(
        which=which,
        job=st.sampled_from(["sums", "means", "integers"]),
        data=which,
        number=seeds,
        batch=batches,
        slices=st.integers(1, 3),
    )
    def call(self, which: int, job: str, data: int, number: int, batch: Any, slices: int) -> None:
        self.calls(which, job, data, number, batch, slices, 1)

    @rule(
        which=which,
        job=st.sampled_from(["local", "everywhere", "checked"]),
        data=which,
        number=seeds,
        batch=batches,
        slices=st.integers(1, 3),
        times=st.integers(1, 3),
    )
    def call_with_updates(
        self, which: int, job: str, data: int, number: int, batch: Any, slices: int, times: int
    ) -> None:
        self.calls(which, job, data, number, batch, slices, times)

    @precondition(lambda self: self.latest is not None)
    @rule(times=st.integers(1, 3))
    def call_again(self, times: int) -> None:
        """The same once more, which may be posted as it is."""
        which, job, data, number, batch, slices = self.latest
        self.calls(which, job, data, number, batch, slices, times)

    def calls(
        self, which: int, job: str, data: int, number: int, batch: Any, slices: int, times: int
    ) -> None:
        self.latest = which, job, data, number, batch, slices
        with self.within(which) as side:
            function = self.function(side, job)
            given, array = self.given(side, JOBS[job].kind, data, number)
            batch = batch_of(batch, len(array))
            rows = chosen(array, batch)
            if len(rows) < JOBS[job].least:
                return
            args = given, *JOBS[job].more
            for _ in range(times):
                self.tame_all(side)
                try:
                    outputs, changes = JOBS[job].expect(side.crew, rows, side.crew.parts(rows))
                except Raises as wanted:
                    self.fails(side, wanted.ranks, function, args, batch=batch, num_slices=slices)
                    return
                found = function(*args, batch=batch, num_slices=slices)
                found = found if isinstance(found, list) else [found]
                assert len(found) == len(outputs)
                for a, b in zip(found, outputs, strict=True):
                    self.keep(a, np.asarray(b))
                side.crew.take(changes)

    def tame_all(self, side: Side) -> None:
        for name in FIXED:
            self.tame(side, name)

    def fails(self, side: Side, ranks: list[int], function: Any, args: Any, **how: Any) -> None:
        """The call raises what the members raise; nothing changes."""
        self.counts.faults["raised in a call"] += 1
        with pytest.raises(AssertionError, match="negative") as caught:
            function(*args, **how)
        error = caught.value
        assert isinstance(error, synk.WorkerError) != (side.crew.master in ranks)
        if isinstance(error, synk.WorkerError):
            assert set(error.ranks) <= set(ranks)

    @rule(which=which, data=which, batch=batches)
    def echo(self, which: int, data: int, batch: Any) -> None:
        """What the members read in Data is what stands there."""
        with self.within(which) as side:
            fit = [h for h in self.held if h.side is side and h.array.ndim and h.data.size]
            if fit:
                held = fit[data % len(fit)]
                batch = batch_of(batch, len(held.array))
                found = self.function(side, f"echo {held.kind}")(held.data, batch=batch)
                self.keep(found, chosen(held.array, batch))

    @rule(which=which, start=which, stop=which, slices=st.integers(1, 3))
    def call_with_sliceables(self, which: int, start: int, stop: int, slices: int) -> None:
        with self.within(which) as side:
            self.tame(side, "m")
            rows = [v[start:stop] for v in side.crew.values("m")]
            found = self.function(side, "rows")(batch_s=slice(start, stop), num_slices=slices)
            work = side.crew.working(rows)
            self.keep(found, np.asarray(sum(rows[r].sum(axis=0) for r in work), "float32"))

    @rule(which=which, number=seeds)
    def call_in_the_master(self, which: int, number: int) -> None:
        """as_pytensor: the master's values change, and the others get them, or keep their own."""
        side = self.side(which)
        self.tame_in(side)
        array = rows_of("table", number % 7, number)
        self.keep(self.function_in(side, "local").as_pytensor(array), np.asarray(array.sum()))
        self.masters["acc"] = self.masters["acc"] + array.sum(axis=0)
        self.masters["count"] = self.masters["count"] + 1

    def function_in(self, side: Side, job: str) -> Any:
        with side.group.active():
            return self.function(side, job)

    def tame_in(self, side: Side) -> None:
        with side.group.active():
            self.tame_all(side)

    @rule(which=which, data=which, number=seeds, slices=st.integers(1, 2))
    def train(self, which: int, data: int, number: int, slices: int) -> None:
        """A step of gradient descent, after which all members share one array."""
        with self.within(which) as side:
            self.tame_all(side)
            given, array = self.given(side, "table", data, number)
            if not len(array):
                return
            if "train" not in side.functions:
                w = self.variables["w"]
                side.functions["train"] = make_train_function(
                    (X @ w).mean(), [w], X, None, updates.sgd, RATE, mode=FAST
                )
            values = side.crew.values("w")
            if not all(np.array_equal(v, values[0]) for v in values):
                if not all(same(v, values[0]) for v in values):
                    with pytest.raises(synk.InputError, match="one value of each parameter"):
                        side.functions["train"](given)
                return
            loss = side.functions["train"](given, num_slices=slices)
            self.keep(loss, np.asarray((array @ values[0]).mean()))
            side.crew.alike("w", values[0] - RATE * array.mean(axis=0))

    @rule(which=which, job=st.sampled_from([*JOBS, "rows", "train"]))
    def forget(self, which: int, job: str) -> None:
        """A function is dropped; it may be made again."""
        self.side(which).functions.pop(job, None)

    @rule(which=which, data=which, number=seeds, what=st.integers(0, 7))
    def bad_call(self, which: int, data: int, number: int, what: int) -> None:
        """Nothing has changed, in any member."""
        with self.within(which) as side:
            f = self.function(side, "local")
            given, array = self.given(side, "table", data, number)
            strangers = [h.data for h in self.held if h.kind == "table" and h.side is not side]
            acts: list[Callable[[], Any]] = [
                lambda: f(given, batch=[len(array)]),
                lambda: f(),
                lambda: f(given, num_slices=0),
                lambda: f(strangers[0]) if strangers else f(given, other=1),
                lambda: synk.get_value(side.crew.size, self.variables["w"]),
                lambda: synk.all_reduce(self.variables["w"], "median"),
                lambda: synk.scatter(self.variables["count"]),
                lambda: synk.broadcast(self.variables["w"], np.ones((2, 2))),
            ]
            with pytest.raises(synk.InputError):
                acts[what]()

    @precondition(lambda self: self.ended)
    @rule(which=which, number=seeds)
    def use_what_has_ended(self, which: int, number: int) -> None:
        side = self.ended[which % len(self.ended)]
        with pytest.raises(synk.GroupClosed):
            side.group.run(Fault("ValueError", ()))
        array = rows_of("table", 3, number)
        for job, function in side.functions.items():
            if job in JOBS and JOBS[job].kind == "table":
                with pytest.raises(synk.GroupClosed):
                    function(array, *JOBS[job].more)
        with side.group.active(), pytest.raises(synk.GroupError):
            synk.get_value(0, self.variables["w"])
