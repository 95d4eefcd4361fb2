"""A real IPython kernel: what a notebook user does, cell after cell; the notebook of the docs."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager
from selection import thorough
from user_scripts import alive

LIMIT = 270  # seconds for one cell; a hang fails
DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOK = DOCS / "notebooks" / "sampling.ipynb"
sys.path.append(str(DOCS / "figures"))

type Cell = Callable[[str], str]
type Outputs = list[dict[str, Any]]  # of a cell, as notebooks keep them
OUTPUTS = ("stream", "error", "display_data", "execute_result")


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[KernelManager]:
    """A kernel in a process of its own, ended the way a notebook's is."""
    manager = KernelManager(kernel_name="python3", connection_file=str(tmp_path / "kernel.json"))
    manager.start_kernel(cwd=str(tmp_path))
    yield manager
    manager.shutdown_kernel(now=True)
    manager.context.destroy()


@pytest.fixture
def outputs(kernel: KernelManager) -> Iterator[Callable[[str], Outputs]]:
    """Run one cell."""
    client = kernel.client()
    client.start_channels()
    client.wait_for_ready(timeout=LIMIT)

    def run(code: str) -> Outputs:
        found: Outputs = []

        def take(message: dict) -> None:
            if message["msg_type"] in OUTPUTS:
                found.append({"output_type": message["msg_type"], **message["content"]})

        client.execute_interactive(code, timeout=LIMIT, output_hook=take)
        return found

    yield run
    client.stop_channels()


@pytest.fixture
def cell(outputs: Callable[[str], Outputs]) -> Cell:
    """Run one cell; return what it printed, an error's name and text included."""

    def printed(out: dict[str, Any]) -> str:
        if out["output_type"] == "error":
            return f"{out['ename']}: {out['evalue']}"
        return out.get("text", "")

    return lambda code: "".join(map(printed, outputs(code))).strip()


def test_cells(cell: Cell) -> None:
    """Fork, functions, Data, worker prints, errors, the stop button, fork again; in one kernel."""
    assert cell("import os, numpy as np, pytensor.tensor as pt, synkhronos as synk") == ""
    assert cell("synk.fork(2)\nx = pt.dvector('x')") == ""
    assert cell("f = synk.function([x], (x ** 2).sum(), mode='FAST_COMPILE')") == ""
    first = cell("print(f(np.arange(5.0)))")  # before it, lines tell of a slow compilation
    assert first.splitlines()[-1] == "30.0"
    assert cell("d = synk.data(np.ones(7))\nprint(f(d, batch=[0, 3, 3]))") == "3.0"
    assert cell("f(np.ones((2, 2)))").startswith("InputTypeError")
    assert cell("print(f(d))") == "7.0"
    # the stop button ends a long call, and the group still works after it
    stop = "threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()"
    long = f"import threading, signal\n{stop}\nwhile True: f(np.ones(3))"
    assert cell(long).startswith("KeyboardInterrupt")
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


@pytest.mark.parametrize("how", thorough("shutdown", "kill"))  # of a script: test_faults.py
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


def cells() -> list[dict[str, Any]]:
    """Those with code of the notebook of the documentation."""
    return [c for c in json.loads(NOTEBOOK.read_text())["cells"] if c["cell_type"] == "code"]


def test_the_notebook_kept_its_outputs() -> None:
    kept = [out for cell in cells() for out in cell["outputs"]]
    assert "error" not in {out["output_type"] for out in kept}
    assert {"text/html", "image/png"} <= {kind for out in kept for kind in out.get("data", ())}
    assert all(cell["execution_count"] == i for i, cell in enumerate(cells(), 1))


@pytest.mark.thorough
def test_the_notebook_in_a_kernel(outputs: Callable[[str], Outputs]) -> None:
    """Tables and printed lines are those that it kept; logged lines tell of the machine."""
    pytest.importorskip("pymc", reason="PyMC is not installed (synkhronos[pymc])")
    for cell in cells():
        found = outputs("".join(cell["source"]))
        assert texts(found) == texts(cell["outputs"])


def texts(outputs: Outputs) -> list[str]:
    """What a cell prints and returns, but for pictures."""
    assert "error" not in {out["output_type"] for out in outputs}, outputs
    printed = "".join("".join(out["text"]) for out in outputs if out.get("name") == "stdout")
    returned = [out["data"] for out in outputs if out["output_type"] == "execute_result"]
    return [printed, *("".join(data["text/plain"]) for data in returned)]


CONF = """
extensions = ["myst_nb"]
html_theme = "furo"
html_static_path, html_css_files = ["_static"], ["pages.css"]
nb_execution_mode, nb_merge_streams = "off", True
suppress_warnings = ["myst.xref_missing"]  # links to other pages
"""
MEASURED = """
const inside = [...document.querySelectorAll('.cell_output, .cell_input')];
return {
    page: document.documentElement.scrollWidth,
    outputs: document.querySelectorAll('.cell_output').length,
    beyond: inside.filter(e => e.getBoundingClientRect().right > innerWidth).length,
    pictures: [...document.querySelectorAll('.cell_output img')].map(
        e => [e.naturalWidth > 0, e.getBoundingClientRect().right <= innerWidth]),
    text: document.querySelector('article').innerText,
}"""


@pytest.mark.thorough
def test_the_notebook_in_a_browser(tmp_path: Path) -> None:
    """Everything is there, and nothing is wider than the page."""
    pytest.importorskip("myst_nb", reason="the extra docs is not installed")
    from browser import ask, browser

    if browser() is None:
        pytest.skip("there is no browser")
    for name in ("notebooks", "_static"):
        shutil.copytree(DOCS / name, tmp_path / "docs" / name)
    (tmp_path / "docs" / "conf.py").write_text(CONF)
    (tmp_path / "docs" / "index.rst").write_text(
        "Pages\n=====\n\n.. toctree::\n\n   notebooks/sampling\n"
    )
    made = [sys.executable, "-P", "-m", "sphinx", "-W", "-q", tmp_path / "docs", tmp_path / "html"]
    subprocess.run([*map(str, made)], check=True, timeout=270)
    page = tmp_path / "html" / "notebooks" / "sampling.html"
    for width in (1280, 390):
        found = ask(page, width, MEASURED)
        assert found["page"] == width
        assert found["outputs"] == sum(bool(cell["outputs"]) for cell in cells())
        assert not found["beyond"]
        assert found["pictures"] == [[True, True]]
        for cell in cells():
            for word in " ".join(texts(cell["outputs"])).split():
                assert word in found["text"]
