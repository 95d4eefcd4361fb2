"""What happens around calls: handlers, replaced and removed files, descriptors, other writers."""

from __future__ import annotations

import os
import resource
import shutil
import threading
from typing import Any

import numpy as np
import pytest
from entering import enter_at_each_line
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from oracle import JOBS, WIDTH, rows_of
from order_calls import Calls
from order_draws import seeds, which

import synkhronos as synk
from synkhronos.extensions.checkpoints import Checkpoints

MANY = 1100  # descriptors: more than select takes
ENTRIES = 40  # runs, of which one is made: it enters at each 40th line


class Surroundings(Calls):
    """Each changes nothing of what calls return, or raises and changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[int] = []  # descriptors of the program

    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.folder / "ckpt", self.variables, keep=2)

    @rule(which=which, run=st.integers(0, ENTRIES - 1), number=seeds)
    def enter(self, which: int, run: int, number: int) -> None:
        """A handler calls: it gets its result before or after the other call, else an error."""
        side = self.side(which)
        self.tame_in(side)
        function, crew = self.function_in(side, "local"), side.crew
        outer, inner = rows_of("table", 5, number), rows_of("table", 4, number + 1)

        def call(rows: Any) -> None:
            assert float(function(rows)) == rows.sum()

        told = enter_at_each_line(lambda: call(outer), lambda: call(inner), ENTRIES, [run])
        self.counts.faults["entered by a handler"] += told.total()
        for rows in (outer, *[inner] * told["made"]):
            crew.take(JOBS["local"].expect(crew, rows, crew.parts(rows))[1])

    @rule(which=which, number=seeds, first=st.booleans())
    def replace_a_map(self, which: int, number: int, first: bool) -> None:
        """Another file gets the name of a mapped one: members have the same rows, or raise."""
        side = self.side(which)
        path, new = self.folder / f"rows {self.steps}", self.folder / "new"
        old = rows_of("table", 6, number) + 1.0
        old.tofile(path)
        with side.group.active():
            sums = self.function(side, "sums")
            data = synk.data(np.memmap(path, "float64", "r", shape=(6, WIDTH)))
            wanted = sums(old, 1.0)
            if first:
                self.keep(sums(data, 1.0)[0], np.asarray(wanted[0]))
            (old * 100).tofile(new)
            new.replace(path)
            self.counts.faults["replaced a map"] += 1
            if first:
                self.keep(sums(data, 1.0)[0], np.asarray(wanted[0]))
            else:
                with pytest.raises((synk.InputError, synk.WorkerError), match="is not the file"):
                    sums(data, 1.0)
            data.set_value(np.memmap(path, "float64", "r", shape=(6, WIDTH)))
            self.keep(sums(data, 1.0)[0], np.asarray(sums(old * 100, 1.0)[0]))

    @precondition(lambda self: not self.open)
    @rule()
    def open_many(self) -> None:
        """Groups that start from now on have descriptors above 1,024."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < 2 * MANY:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(2 * MANY, hard), hard))
        self.counts.faults["many descriptors"] += 1
        self.open = [os.open("/dev/null", os.O_RDONLY) for _ in range(MANY)]

    @precondition(lambda self: self.open)
    @rule()
    def close_many(self) -> None:
        for descriptor in self.open:
            os.close(descriptor)
        self.open = []

    @precondition(lambda self: self.saved)
    @rule()
    def remove_the_folder(self) -> None:
        """There is nothing to restore, and the next save makes it again."""
        self.counts.faults["removed a folder"] += 1
        shutil.rmtree(self.folder / "ckpt")
        self.saved.clear()
        assert self.checkpoints().restore(missing="ignore") is None

    @rule(which=which)
    def save_twice_at_once(self, which: int) -> None:
        """Another writer saves into the folder meanwhile: both are whole, one after the other."""
        self.counts.faults["second writer"] += 1
        steps, failed = (10, 11), []

        def save(step: int) -> None:
            try:
                writer = self.checkpoints()
                writer.adopt()
                writer.save(step, text="x")
            except Exception as exc:
                failed.append(exc)

        threads = [threading.Thread(target=save, args=(step,)) for step in steps]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed, failed
        found = self.checkpoints().steps()
        assert sorted(found) == list(steps)
        values = {name: value.copy() for name, value in self.masters.items()}
        self.saved = {step: values for step in found}

    def finish(self, look: bool) -> None:
        self.close_many()
        super().finish(look)
