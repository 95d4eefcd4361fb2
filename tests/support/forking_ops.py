"""An operation that forks, and whose child does not end as it should; and one that waits.

Workers import them.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

from synkhronos._engine.member import Member


class Forks(Op):
    """Twice the value; in members of one kind a child returns another value, or leaves otherwise.

    Parameters
    ----------
    how : {"return", "raise", "exit", "print", "by C"}
        How the child leaves the operation.
    who : {"workers", "master"}
        Who forks.
    folder : str
        The pid of each child is the name of a file there.
    """

    __props__ = ("how", "who", "folder")

    def __init__(self, how: str, who: str, folder: str) -> None:
        self.how = how
        self.who = who
        self.folder = folder

    def make_node(self, x: Any) -> Apply:
        x = pt.as_tensor_variable(x)
        return Apply(self, [x], [x.type()])

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = np.asarray(2 * inputs[0])
        if (self.who == "workers") != (Member.serving is not None):
            return
        child = ctypes.PyDLL(None).fork() if self.how == "by C" else os.fork()
        if child:
            with open(os.path.join(self.folder, str(child)), "w") as note:
                note.write(str(os.waitpid(child, 0)[1]))
            return
        output_storage[0][0] *= 100
        if self.how == "raise":
            raise ValueError("the child raises")
        if self.how == "exit":
            sys.exit(3)
        if self.how == "print":
            print("the child prints", flush=True)


class Waits(Op):
    """The value, once a file is there; those who wait say so by files of their own beside it."""

    __props__ = ("file",)

    def __init__(self, file: str) -> None:
        self.file = file

    def make_node(self, x: Any) -> Apply:
        x = pt.as_tensor_variable(x)
        return Apply(self, [x], [x.type()])

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        Path(f"{self.file}-{os.getpid()}").touch()
        until = time.monotonic() + 60
        while not Path(self.file).exists():
            assert time.monotonic() < until
            time.sleep(0.001)
        output_storage[0][0] = np.array(inputs[0])


def ended(folder: Any) -> list[int]:
    """The wait statuses of all children so far."""
    return [int(note.read_text()) for note in folder.iterdir()]
