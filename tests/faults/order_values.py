"""What is done to shared variables: set, moved and combined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule
from oracle import FIXED, reduced, same, start_value
from order_draws import batch_of, batches, chosen, free, names, seeds, which
from order_sides import Sides

import synkhronos as synk

WEIGHTS = {1: [(1,)], 2: [(1, 3), (0, 1)], 3: [(1, 1, 2), (2, 1, 1), (0, 1, 1)]}  # of no thirds


class Values(Sides):
    """Collectives, and what the user sets."""

    @rule(name=names, number=seeds, how=st.sampled_from(["set", "borrow", "write"]))
    def set_in_the_master(self, name: str, number: int, how: str) -> None:
        """The user's own set_value, or a write into the borrowed value."""
        variable, value = self.variables[name], start_value(name, number)
        if how == "write" and name != "big":  # of large values only a sample is watched
            variable.get_value(borrow=True)[...] = number
            value = np.full_like(self.masters[name], number)
        else:
            variable.set_value(value.copy(), borrow=how == "borrow")
        self.masters[name] = value

    @rule(name=free, number=seeds)
    def renew(self, name: str, number: int) -> None:
        """A variable is dropped, and another takes its place."""
        self.renewed = True
        self.masters[name] = value = start_value(name, number)
        self.variables[name] = pytensor.shared(value.copy(), name)
        for side in self.sides:
            side.crew.own.pop(name, None)
            if name == "m":
                side.functions.pop("rows", None)

    @rule(which=which, name=names, number=seeds, given=st.booleans())
    def broadcast(self, which: int, name: str, number: int, given: bool) -> None:
        with self.within(which) as side:
            value = start_value(name, number) if given else self.masters[name]
            synk.broadcast(self.variables[name], value.copy() if given else None)
            side.crew.alike(name, value)

    @rule(which=which, name=free, number=seeds, given=st.booleans(), batch=batches)
    def scatter(self, which: int, name: str, number: int, given: bool, batch: Any) -> None:
        with self.within(which) as side:
            value = start_value(name, number) if given else self.masters[name]
            rows = batch_of(batch, len(value))
            synk.scatter(self.variables[name], value if given else None, batch=rows)
            side.crew.each(name, side.crew.parts(chosen(value, rows)))

    @rule(which=which, name=names, stack=st.booleans())
    def gather(self, which: int, name: str, stack: bool) -> None:
        with self.within(which) as side:
            values = side.crew.values(name)
            if stack and len({v.shape for v in values}) > 1:
                with pytest.raises(synk.InputError):
                    synk.gather(self.variables[name])
                return
            found = synk.gather(self.variables[name], nd_up=int(stack))
            joined = (
                np.stack(values) if stack else np.concatenate([np.atleast_1d(v) for v in values])
            )
            self.keep(found, joined)

    @rule(which=which, name=names)
    def all_gather(self, which: int, name: str) -> None:
        with self.within(which) as side:
            self.tame(side, name)
            values = side.crew.values(name)
            if name in FIXED:
                if values[0].ndim == 0:
                    with pytest.raises(synk.InputError):
                        synk.all_gather(self.variables[name])
                return
            synk.all_gather(self.variables[name])
            side.crew.alike(name, np.concatenate(values))

    @rule(
        which=which,
        asked=st.lists(names, min_size=1, max_size=3, unique=True),
        op=st.sampled_from(["sum", "avg", "min", "max", "prod"]),
        weigh=st.booleans(),
        how=st.sampled_from(["all_reduce", "reduce", "in place", "reduce_scatter"]),
    )
    def reduce(self, which: int, asked: list[str], op: str, weigh: bool, how: str) -> None:
        with self.within(which) as side:
            crew = side.crew
            for name in asked:
                self.tame(side, name)
            if op == "prod":
                asked = [n for n in asked if self.masters[n].dtype.kind in "iu"] or ["k"]
                self.tame(side, "k")
            weights = WEIGHTS[crew.size][which % len(WEIGHTS[crew.size])]
            weights = weights if weigh and op == "avg" else None
            columns = [crew.values(name) for name in asked]
            variables = [self.variables[name] for name in asked]
            if how == "reduce_scatter":
                lengths = {c[crew.master].shape[:1] for c in columns}
                if len(lengths) > 1 or () in lengths or set(asked) & set(FIXED):
                    return
            uneven = any(len({v.shape for v in column}) > 1 for column in columns)
            kwargs: dict[str, Any] = {"op": op, "weights": weights}
            if how in ("reduce", "in place"):
                kwargs["in_place"] = how == "in place"
            verb = {"in place": "reduce"}.get(how, how)
            if uneven:
                with pytest.raises(synk.InputError):
                    getattr(synk, verb)(variables, **kwargs)
                return
            found = getattr(synk, verb)(variables, **kwargs)
            found = [found] if isinstance(found, np.ndarray) else found  # of one variable
            results = [reduced(column, op, weights) for column in columns]
            for i, (name, result) in enumerate(zip(asked, results, strict=True)):
                if how == "all_reduce":
                    crew.alike(name, result)
                elif how == "in place":
                    values = columns[i]
                    values[crew.master] = result
                    crew.each(name, values)
                elif how == "reduce_scatter":
                    crew.each(name, crew.parts(result))
                elif op != "avg" or result.dtype.kind not in "iu":
                    self.keep(found[i], result)

    @rule(which=which, rank=which, name=names, number=seeds)
    def set_value(self, which: int, rank: int, name: str, number: int) -> None:
        with self.within(which) as side:
            rank %= side.crew.size
            value = start_value(name, number)
            synk.set_value(rank, self.variables[name], value)
            values = side.crew.values(name)
            values[rank] = value
            side.crew.each(name, values)

    @rule(which=which, rank=which, name=names)
    def get(self, which: int, rank: int, name: str) -> None:
        with self.within(which) as side:
            rank %= side.crew.size
            variable, values = self.variables[name], side.crew.values(name)
            self.keep(synk.get_value(rank, variable), values[rank])
            assert synk.get_shapes(variable) == [v.shape for v in values]
            if values[0].ndim:
                assert synk.get_lengths(variable) == [len(v) for v in values]

    @rule(which=which, name=names)
    def compare(self, which: int, name: str) -> None:
        with self.within(which) as side:
            variable, values = self.variables[name], side.crew.values(name)
            if all(same(v, values[0]) for v in values):
                if not side.crew.differs(name):  # else they may differ in the last bit
                    synk.check_consistency(variable)
            else:
                with pytest.raises(synk.GroupError, match="1 of 1 variables differ"):
                    synk.check_consistency(variable)
