"""Where starting a group might hang (promise 11), beyond what tests/engine/test_groups.py has."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from selection import thorough
from user_scripts import LIMIT, run_script

BEGIN = """
    import sys, threading, time
    import numpy as np, pytensor.tensor as pt, synkhronos as synk
    from pytensor.compile.mode import Mode
    FAST = Mode("py", None)  # as in the tests
    x = pt.matrix("x", dtype="float64")
    def work():
        synk.fork(2)
        how = synk._engine.group.current().channel.started
        f = synk.function([x], (x.T @ x).sum(), mode=FAST)
        for _ in range(5):
            assert f(np.ones((300, 300))) == 300**3
        synk.close()
        return how
"""

BEFORE = {
    "the threads of OpenBLAS": ("a = np.ones((900, 900)); a @ a; print(work())", "fork"),
    "a thread pool": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(4) as pool:\n"
        "    list(pool.map(time.sleep, [0.01] * 8))\n"
        "    print(pool.submit(work).result())",
        "exec",
    ),
    "threads that hold locks": (
        "stop = threading.Event()\n"
        "def hammer():\n"
        "    while not stop.is_set():\n"
        "        print(end='', flush=True); np.ones(1000).sum(); time.sleep(0.0002)\n"
        "threads = [threading.Thread(target=hammer) for _ in range(2)]\n"
        "for t in threads: t.start()\n"
        "print(work()); stop.set()\n"
        "for t in threads: t.join()",
        "exec",
    ),
    "a thread that waits for orders, as below pytest-xdist": (
        "import os; orders, _ = os.pipe()\n"
        "threading.Thread(target=os.read, args=(orders, 1), daemon=True).start()\n"
        "print(work())",
        "exec",
    ),
    "multiprocessing, by fork": (
        "import multiprocessing\n"
        "with multiprocessing.get_context('fork').Pool(1) as pool:\n"
        "    print(pool.apply(work))",
        "fork",
    ),
    "a group, as the child of its master": (
        "import os\n"
        "synk.fork(2)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    sys.stdout.write(work() + '\\n'); sys.stdout.flush(); os._exit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0",
        "fork",
    ),
}

REPEATED = (  # what another one checks as well, of which two are in tests/engine/test_groups.py
    *("a thread pool", "threads that hold locks", "multiprocessing, by fork"),
    "a thread that waits for orders, as below pytest-xdist",
)


@pytest.mark.parametrize(
    "before",
    [pytest.param(b, marks=pytest.mark.thorough) if b in REPEATED else b for b in BEFORE],
)
def test_started_after(tmp_path: Path, before: str) -> None:
    text, wanted = BEFORE[before]
    printed = run_script(tmp_path, textwrap.dedent(BEGIN) + text)
    assert printed.split() == wanted.split()


def test_after_torch(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = "import torch\na = torch.ones(900, 900, requires_grad=True)\n(a @ a).sum().backward()\n"
    printed = run_script(tmp_path, textwrap.dedent(BEGIN) + text + "print(work())")
    assert printed.strip() == "exec"


@pytest.mark.parametrize("how", thorough("-", "-c"))  # of a file: tests/engine/test_groups.py
def test_scripts_without_a_file(tmp_path: Path, how: str) -> None:
    """Given as an argument, or on standard input."""
    text = textwrap.dedent(BEGIN).replace("synk.fork(2)", 'synk.fork(2, start="exec")')
    text += "print(work())"
    done = subprocess.run(
        [sys.executable, "-W", "error", how, *([text] if how == "-c" else [])],
        input=text if how == "-" else "",
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=LIMIT,
        start_new_session=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "exec\n"), done.stderr
