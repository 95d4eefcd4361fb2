"""Sums of one small vector that are repeated: compiled code gives what Python gave before."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import synkhronos as synk
from synkhronos._engine.commands.base import Command
from synkhronos._proofs.reductions import Reduction
from synkhronos._transport.communicators import shared_memory
from synkhronos._transport.shared_state.control_words import ASLEEP

pytestmark = pytest.mark.usefixtures("lasting_groups")

AFTER = 5


@dataclass(frozen=True)
class Sums(Command):
    """Sum a vector again and again, and compare each sum; `odd` is who does something else."""

    dtype: str
    length: int = 3
    times: int = 300
    odd: int = -1  # a rank
    does: str = ""
    at: tuple[int, ...] = (100,)

    def run(self, member: Any) -> int:
        comm = member.communicator.home
        rank = comm.rank
        vector = comm.empty((self.length,), np.dtype(self.dtype))
        before, shared_memory._COMPILE_AFTER = shared_memory._COMPILE_AFTER, AFTER
        try:
            for k in range(self.times):
                if k % 7 == 0:
                    comm.barrier()  # so that sums use both buffers in turn, and one twice
                vector[:] = self.of(rank, k)
                if rank == self.odd and k in self.at:
                    vector = self.differently(comm, vector)
                comm.all_reduce([vector], Reduction.SUM)
                vars(comm._node.waiter).pop("_signal", None)
                wanted = self.of(0, k)
                for r in range(1, comm.size):
                    wanted = wanted + self.of(r, k)
                assert np.array_equal(vector, wanted), (rank, k, vector, wanted)
        finally:
            shared_memory._COMPILE_AFTER = before
        return sum(of() is vector for of, _ in comm._repeated.values())

    def of(self, rank: int, k: int) -> np.ndarray:
        """The vector of a member in a turn."""
        return (0.1 * np.arange(self.length) + 1.7 * (rank + 1) * (k + 1)).astype(self.dtype)

    def differently(self, comm: Any, vector: np.ndarray) -> np.ndarray:
        """What the odd member does."""
        if self.does == "late":
            others = [comm._words[rank] for rank in range(comm.size) if rank != self.odd]
            until = time.monotonic() + 20
            time.sleep(0.05)  # naps are long then, of which one may end now without a ring
            while not all(words[ASLEEP] for words in others):
                assert time.monotonic() < until
                time.sleep(0.001)
            self.count_rings(comm._node.waiter)
        elif self.does == "raises":
            raise LookupError("on purpose")
        elif self.does == "dies":
            os._exit(7)
        elif self.does == "unlike":
            return comm.empty((self.length + 1,), vector.dtype)
        elif self.does == "protects":
            vector.flags.writeable = False
        return vector

    def count_rings(self, waiter: Any) -> None:
        """Add the members that the next sum wakes to `rings`, where it does so."""
        signal = waiter._signal

        def signalled(rank: int) -> None:
            rings.append(rank)
            signal(rank)

        waiter._signal = signalled


rings: list[int] = []  # in the process of a member


@dataclass(frozen=True)
class Rings(Command):
    """Return how many times the odd member has woken another one, and forget them."""

    odd: int

    def run(self, member: Any) -> int:
        comm = member.communicator.home
        found = np.array([len(rings)]) if comm.rank == self.odd else np.zeros(1, int)
        rings.clear()
        comm.all_reduce([found], Reduction.SUM)
        return int(found[0])


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_sums_are_those_of_python(group2: synk.Group, dtype: str) -> None:
    assert group2.run(Sums(dtype)) == 1


def test_three_are_added_in_the_order_of_ranks() -> None:
    with synk.Group(3) as group:
        assert group.run(Sums("float32")) == 1


@pytest.mark.parametrize(("dtype", "length"), [("int32", 3), ("float64", 129), ("float16", 3)])
def test_other_vectors_are_summed_by_python(group2: synk.Group, dtype: str, length: int) -> None:
    assert group2.run(Sums(dtype, length)) == 0


@pytest.mark.parametrize("odd", [0, 1])
def test_a_late_member_is_waited_for_and_wakes_the_other_one(group2: synk.Group, odd: int) -> None:
    assert group2.run(Sums("float64", odd=odd, does="late", at=(20, 90, 160, 230))) == 1
    assert group2.run(Rings(odd)) > 0


@pytest.mark.parametrize("odd", [0, 1])
def test_vectors_that_differ_are_an_error_in_all(group2: synk.Group, odd: int) -> None:
    with pytest.raises(synk.InputError, match="differ in shape or dtype"):
        group2.run(Sums("float64", odd=odd, does="unlike"))
    assert group2.run(Sums("float64")) == 1


def test_a_vector_that_is_protected_meanwhile_is_not_written(group2: synk.Group) -> None:
    with pytest.raises(synk.WorkerError, match="output array is read-only"):
        group2.run(Sums("float64", odd=1, does="protects", at=(299,)))
    assert group2.run(Sums("float64")) == 1


def test_a_member_that_raises_frees_the_others(group2: synk.Group) -> None:
    with pytest.raises(synk.WorkerError, match="on purpose"):
        group2.run(Sums("float64", odd=1, does="raises"))
    assert group2.run(Sums("float64")) == 1


def test_a_member_that_dies_ends_the_wait() -> None:
    with synk.Group(2) as group, pytest.raises(synk.WorkerDied, match="exited with code 7"):
        group.run(Sums("float64", odd=1, does="dies"))
