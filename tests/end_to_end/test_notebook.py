"""A real IPython kernel: what a notebook user does, cell after cell."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jupyter_client.manager import KernelManager
from user_scripts import alive

LIMIT = 60  # seconds for one cell; a hang fails
Cell = Callable[[str], str]


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[KernelManager]:
    """A kernel in a process of its own, ended the way a notebook's is."""
    manager = KernelManager(kernel_name="python3", connection_file=str(tmp_path / "kernel.json"))
    manager.start_kernel(cwd=str(tmp_path))
    yield manager
    manager.shutdown_kernel(now=True)
    manager.context.destroy()


@pytest.fixture
def cell(kernel: KernelManager) -> Iterator[Cell]:
    """Run one cell; return what it printed, an error's name and text included."""
    client = kernel.client()
    client.start_channels()
    client.wait_for_ready(timeout=LIMIT)

    def run(code: str) -> str:
        printed = []

        def take(message: dict) -> None:
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                printed.append(content["text"])
            elif kind == "error":
                printed.append(f"{content['ename']}: {content['evalue']}")

        client.execute_interactive(code, timeout=LIMIT, output_hook=take)
        return "".join(printed).strip()

    yield run
    client.stop_channels()


def test_cells(cell: Cell) -> None:
    """Fork, functions, Data, worker prints, an error, fork again; all in one kernel."""
    assert cell("import numpy as np, pytensor.tensor as pt, synkhronos as synk") == ""
    assert cell("synk.fork(2)\nx = pt.dvector('x')") == ""
    assert cell("f = synk.function([x], (x ** 2).sum(), mode='FAST_COMPILE')") == ""
    first = cell("print(f(np.arange(5.0)))")  # before it, lines tell of a slow compilation
    assert first.splitlines()[-1] == "30.0"
    assert cell("d = synk.data(np.ones(7))\nprint(f(d, batch=[0, 3, 3]))") == "3.0"
    assert cell("f(np.ones((2, 2)))").startswith("InputTypeError")
    assert cell("print(f(d))") == "7.0"
    again = cell("print(synk.fork(2))")
    assert again.endswith("2")
    assert "is alive already and is kept" in again
    assert cell("synk.fork(3)").startswith("GroupError: synk.fork(members=3): ")
    slow = """
import time
from synkhronos._compiling import progress
progress.SOON = 0.01
with progress.telling("compiling f"):
    time.sleep(0.5)
progress.SOON = 60
"""
    assert cell(slow).startswith("synkhronos: compiling f: 0 s")
    assert cell("synk.close()\nprint(synk.fork(3))") == "3"
    # a function of the closed group says so; one made now runs
    assert "closed" in cell("f(d)")
    assert (
        cell("f = synk.function([x], x.sum(), mode='FAST_COMPILE')\nprint(f(np.ones(4)))") == "4.0"
    )
    assert cell("synk.close()") == ""


def test_interrupt_of_a_cell(kernel: KernelManager, cell: Cell) -> None:
    """The stop button ends a long call, and the group still works after it."""
    cell("import os, numpy as np, pytensor.tensor as pt, synkhronos as synk; synk.fork(2)")
    cell("x = pt.dvector('x'); f = synk.function([x], x.sum(), mode='FAST_COMPILE')")
    cell("f(np.ones(3))")
    stop = "threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()"
    long = f"import threading, signal\n{stop}\nwhile True: f(np.ones(3))"
    assert cell(long).startswith("KeyboardInterrupt")
    assert cell("print(f(np.ones(3)))") == "3.0"


@pytest.mark.parametrize("how", ["shutdown", "kill"])
def test_workers_end_with_the_kernel(kernel: KernelManager, cell: Cell, how: str) -> None:
    """A kernel that is restarted or killed with a group open leaves no worker."""
    cell("import synkhronos as synk; g = synk.Group(3)")
    printed = cell("print(*(g.channel.pid(rank) for rank in (1, 2)))")
    workers = [int(word) for word in printed.split()]
    assert alive(workers) == workers
    if how == "kill":
        kernel.signal_kernel(signal.SIGKILL)
    else:
        kernel.shutdown_kernel()
    limit = time.monotonic() + LIMIT
    while alive(workers) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not alive(workers)
