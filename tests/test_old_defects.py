"""What the system of 2017 had around its functions, and this one must not have.

The numbers are its defects: S54 to S57, S79, S80, S83, S85, S86, S92, S93, S97.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import setuptools

import synkhronos as synk
from synkhronos._transport import serialization

ROOT = Path(__file__).parent.parent
INSTALLED = Path(synk.__file__).parent


def sockets_of(pid: int) -> list[str]:
    found = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(os.readlink(fd))
        except OSError:
            continue
    return [link for link in found if link.startswith("socket:")]


def test_nothing_is_lost_or_waited_for(group: synk.Group) -> None:
    """S54, S55: the first message arrives as the last does, and none is dropped on the way."""
    s = pytensor.shared(np.zeros(3), "s")
    for n in range(300):
        synk.broadcast(s, np.full(3, float(n)))
        if n in (0, 150, 299):
            assert all((synk.get_value(r, s) == n).all() for r in range(group.size))
    synk.all_reduce(s, "sum")
    assert (synk.get_value(group.size - 1, s) == 299 * group.size).all()
    synk.all_gather(s)
    assert synk.get_lengths(s) == [3 * group.size] * group.size


def test_no_ports_and_no_servers() -> None:
    """S56, S57: no member opens a socket, and there is no process beside the members."""
    before = set(sockets_of(os.getpid()))
    with synk.Group(3) as group:
        s = pytensor.shared(np.zeros(3), "s")
        synk.all_reduce(s)
        task = Path(f"/proc/{os.getpid()}/task")
        children = {int(p) for t in task.iterdir() for p in (t / "children").read_text().split()}
        workers = {group.channel.pid(rank) for rank in range(1, 3)}
        assert children == workers
        assert set(sockets_of(os.getpid())) == before
        for pid in workers:
            assert set(sockets_of(pid)) <= before


def test_the_package_is_whole() -> None:
    """S79: what is installed has every folder of the sources that holds modules."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = setuptools.find_packages(str(ROOT), **config["packages"]["find"])
    starters = ROOT / "synkhronos" / "cli" / "_new" / "starters"  # data for `synk new`
    data = {p.relative_to(ROOT) for p in starters.rglob("*") if p.suffix in (".py", ".toml", ".sh")}
    assert len(data) == 6
    assert all((INSTALLED.parent / path).exists() for path in data)
    for root in (ROOT, INSTALLED.parent):
        files = {p.relative_to(root) for p in (root / "synkhronos").rglob("*.py")} - data
        folders = {file.parent for file in files}
        assert sorted(found) == sorted(".".join(f.parts) for f in folders)


def test_a_function_travels_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """S80: one recipe for all variants, packed when it is first needed, and never again."""
    packed: list[Any] = []
    pack = serialization.pack_graph

    def counted(value: Any, *args: Any) -> bytes:
        packed.append(value)
        return pack(value, *args)

    monkeypatch.setattr(serialization, "pack_graph", counted)
    with synk.Group(2):
        x, s = pt.matrix("x", dtype="float64"), pytensor.shared(np.zeros(()), "s")
        updates = [(s, s + x.sum(), None, "local")]
        f = synk.function([x], [x.mean(), x.sum()], updates=updates, mode="FAST_COMPILE")
        g = synk.function([x], x.max(), mode="FAST_COMPILE")
        rows = np.ones((6, 2))
        for options in ({}, {"num_slices": 2}, {"batch": [0, 3]}, {"output_subset": [1]}):
            f(rows, **options)
        g(rows)
        shipped = [p[1] for p in packed if isinstance(p, tuple)]  # behind what they compute
        recipes = [r for found in shipped for r in found if hasattr(r, "sliceables")]
        assert [r.number for r in recipes] == [1, 2]


def test_no_settings_are_needed_before_the_import(tmp_path: Path) -> None:
    """S83, S93: a fresh interpreter without flags, where every warning is an error."""
    script = tmp_path / "plain.py"
    script.write_text(
        "import sys\n"
        "import synkhronos as synk, numpy as np, pytensor.tensor as pt\n"
        "foreign = {'theano', 'pygpu', 'zmq', 'lasagne', 'posix_ipc', 'jax', 'mpi4py'}\n"
        "assert not foreign & {m.partition('.')[0] for m in sys.modules}\n"
        "synk.fork(2)\n"
        "x = pt.vector('x', dtype='float64')\n"
        "print(float(synk.function([x], x.sum(), mode='FAST_COMPILE')(np.ones(5))))\n"
    )
    environment = {k: v for k, v in os.environ.items() if "FLAGS" not in k}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        capture_output=True,
        text=True,
        timeout=270,
        env=environment | {"PYTHONPATH": str(INSTALLED.parent)},
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "5.0\n"), done.stderr


def test_a_call_is_one_round(group2: synk.Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """S85, S86: gradient, reduction and update are one command, and no semaphore is in it."""
    posted: list[Any] = []
    post = group2.channel.post
    x, w = pt.matrix("x", dtype="float64"), pytensor.shared(np.ones(2), "w")
    loss = ((x @ w) ** 2).mean()
    step = [(w, w - 0.1 * pytensor.grad(loss, w), "avg", "all")]
    f = synk.function([x], loss, updates=step, mode="FAST_COMPILE")
    d = synk.data(np.eye(2))
    f(d)
    monkeypatch.setattr(group2.channel, "post", lambda *a: posted.append(a[0]) or post(*a))
    f(d)
    f(d)
    assert len(posted) == 2
    assert posted[0] is posted[1]
    imported = {
        name
        for path in INSTALLED.rglob("*.py")
        if "multiprocessing" in (text := path.read_text())  # most need not be parsed
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in [getattr(node, "module", None) or "", *(a.name for a in node.names)]
    }
    assert not {m for m in imported if m.startswith("multiprocessing")}


def test_no_row_of_an_epoch_is_dropped(group: synk.Group) -> None:
    """S92: the demos of 2017 left out the rest that did not fill a batch for every worker."""
    x = pt.vector("x", dtype="float64")
    f = synk.function([x], x.sum(), mode="FAST_COMPILE")
    d = synk.data(np.arange(23.0))
    assert sum(float(f(d, batch=slice(a, a + 5))) for a in range(0, 23, 5)) == 253.0


def test_counters_and_buffers_do_not_wear_out(group2: synk.Group) -> None:
    """S97: counters are 64 bits wide, and lists of rows of any length leave no memory behind."""
    assert group2.channel.node.words.of[0].itemsize == 8
    x = pt.vector("x", dtype="float64")
    f = synk.function([x], x.sum(), mode="FAST_COMPILE")
    d = synk.data(np.ones(1000))
    f(d, batch=np.zeros(200_000, int))
    taken = os.fstat(group2.arena.fd).st_blocks
    for length in (10, 150_000, 200_000, 1):
        for _ in range(5):
            assert f(d, batch=np.zeros(length, int)) == length
    assert os.fstat(group2.arena.fd).st_blocks <= taken + (1 << 20) // 512
