"""Who else can reach what: other users, the network, subprocesses, later owners of memory.

The numbers of threats (T1 ...) are those of docs/explanation/trust.rst.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from selection import thorough
from user_scripts import ended, run_script, script_command

import synkhronos as synk
from synkhronos._engine.commands.base import Command

STARTS = ("fork", "exec")


@pytest.mark.parametrize("start", STARTS)
def test_subprocesses_inherit_nothing(start: str) -> None:
    """T8: neither the master's nor a worker's subprocess holds the arena, bells or lifeline."""

    @dataclass(frozen=True)
    class Inherited(Command):  # here, since a fresh interpreter cannot import this module
        """What a subprocess of a member finds open that is not its own."""

        def run(self, member: Any) -> tuple[str]:
            done = subprocess.run(
                ["ls", "-l", "/proc/self/fd"],
                close_fds=False,
                capture_output=True,
                text=True,
                check=True,
            )
            return (done.stdout,)

        def answer(self, member: Any, own: Any, reports: dict[int, Any]) -> list[str]:
            return [own[0], *(r[0] for r in reports.values())]

    with synk.Group(2, start=start) as group:
        found = group.run(Inherited())
        assert len(found) == 2
        for listing in found:
            assert not re.search(r"memfd|eventfd|pidfd|synkhronos", listing), listing


def test_a_worker_cannot_take_memory_from_under_the_others(group2: synk.Group) -> None:
    """T10: the arena is sealed against shrinking; it would be a SIGBUS for all."""
    with pytest.raises(PermissionError):
        os.ftruncate(group2.arena.fd, 0)
    assert synk.data(np.ones(5)).data.sum() == 5


def test_freed_memory_comes_back_as_zeros(group2: synk.Group) -> None:
    """T9: nobody reads what somebody else has freed."""
    size = (1 << 20,)
    secret = synk.data(np.full(size, 7.0))
    at = group2.arena.offset(secret.data)
    del secret
    again = group2.arena.empty(size, np.dtype(float))
    assert group2.arena.offset(again) == at
    assert not again.any()


def test_core_dumps_leave_the_data_out(group2: synk.Group) -> None:
    """T9: a core file of a member has none of the arena in it."""
    d = synk.data(np.ones(1000))
    address = d.data.ctypes.data
    for block in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text()):
        low, high = (int(x, 16) for x in block.split(" ", 1)[0].split("-"))
        if low <= address < high:
            assert " dd" in re.search(r"VmFlags:(.*)", block)[1]
            return
    raise AssertionError("the arena is not mapped")


@pytest.mark.skipif(os.getuid() != 0, reason="it takes root to be someone else")
def test_other_users_see_nothing(group2: synk.Group, tmp_path: Path) -> None:
    """T1: what the members hold open cannot be opened by `nobody`."""
    d = synk.data(np.ones(1000))
    pids = [os.getpid(), group2.channel.pid(1)]
    script = (
        "import os, sys\n"
        "for pid in sys.argv[1:]:\n"
        "    for place in ('fd', 'map_files', 'mem'):\n"
        "        try:\n"
        "            found = os.listdir(f'/proc/{pid}/{place}') if place != 'mem' else ['']\n"
        "            for name in found:\n"
        "                open(f'/proc/{pid}/{place}/{name}'.rstrip('/'), 'rb').read(1)\n"
        "                print('opened', pid, place, name)\n"
        "        except PermissionError:\n"
        "            pass\n"
        "print('done')\n"
    )
    python = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
    done = subprocess.run(
        [python, "-I", "-c", script, *map(str, pids)],
        user=65534,
        capture_output=True,
        text=True,
        cwd="/",
        check=False,
    )
    if "Permission denied" in done.stderr and not done.stdout:
        pytest.skip("no interpreter here that `nobody` may run")
    assert done.stdout == "done\n", done.stdout + done.stderr
    assert len(d) == 1000


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_no_ports_and_no_files(tmp_path: Path) -> None:
    """T2, T3: a run binds nothing, listens to nothing, and makes no file outside its caches."""
    cache, log, script = tmp_path / "cache", tmp_path / "log", tmp_path / "script.py"
    script.write_text(
        "import os, numpy as np, pytensor, pytensor.tensor as pt, synkhronos as synk\n"
        "import tempfile; tempfile.gettempdir(), os.access('/imported', os.R_OK)\n"
        "synk.fork(3)\n"
        "x, s = pt.dmatrix('x'), pytensor.shared(np.ones(100_000))\n"
        "f = synk.function([x], [x.sum(), x.T @ x], mode='FAST_COMPILE')\n"
        "d = synk.data(np.ones((10, 3)))\n"
        "assert f(d)[0] == 30\n"
        "synk.all_reduce(s, 'sum'); synk.scatter(s); synk.gather(s, nd_up=0)\n"
        "synk.close()\n"
    )
    files = "access,faccessat,faccessat2,open,openat,creat,mknod,mkdir,shmget,semget"
    calls = f"clone,{files},socket,bind,listen,connect,accept,accept4"
    # no stop at the calls that are not traced
    strace = ["strace", "-f", "--seccomp-bpf", "-qq", "-o", log, "-e", f"trace={calls}"]
    subprocess.run(
        [*strace, sys.executable, script],
        env=os.environ
        | {"PYTENSOR_FLAGS": f"cxx=,base_compiledir={cache}", "NUMBA_CACHE_DIR": "/nil"},
        check=True,
        timeout=270,
    )
    everything = log.read_text().splitlines()
    assert len(everything) > 1000
    # what the libraries do as they are imported (PyTensor tries the compiler) is theirs
    begin = next(i for i, line in enumerate(everything) if '"/imported"' in line)
    lines = everything[begin:]
    assert sum("clone" in line for line in lines) >= 2
    network = [x for x in lines if re.search(r"\b(bind|listen|accept4?|connect|socket)\(", x)]
    assert not [x for x in network if re.search(r"\b(bind|listen|accept)", x)], network
    made = [x for x in lines if re.search(r"O_CREAT|\b(creat|mknod|mkdir|shmget|semget)\(", x)]
    allowed = re.compile(rf'"({re.escape(str(cache))}|/dev/null|/tmp/tmp|.*__pycache__)')
    assert not [x for x in made if not allowed.search(x) and "= -1" not in x], made


def test_the_value_of_a_variable_is_in_no_message(group2: synk.Group) -> None:
    """T12: errors, stacks and logs name variables and shapes, not what is in them."""
    canary = 8_675_309.125
    x = pt.vector("x", dtype="float64")
    w = pytensor.shared(np.full(3, canary), name="w")
    f = synk.function([x], ((x * w).sum(), "sum"), mode="FAST_COMPILE")
    with pytest.raises(ValueError, match="broadcast") as caught:
        f(np.full(9, canary))  # parts of 5 and 4, which do not go with 3
    error: BaseException | None = caught.value
    while error is not None:
        assert str(canary)[:7] not in str(error)
        error = error.__cause__


IMPORTED = """
    import sys
    def others():
        # the top-level modules that are not Python's own
        found = {name.partition(".")[0] for name in sys.modules}
        return {n for n in found if n not in sys.stdlib_module_names and not n.startswith("_")}

    import numpy as np, pytensor, pytensor.tensor as pt, pytensor.link.numba.dispatch
    x, modes = pt.dvector("x"), ("FAST_COMPILE", None)
    for mode in modes:
        assert pytensor.function([x], x.sum(), mode=mode)(np.ones(3)) == 3
    before = others()
    import synkhronos as synk
    from synkhronos._engine.commands.base import Command
    class Imported(Command):
        def run(self, member):
            return others()
        def answer(self, member, own, reports):
            return own | reports[1]
    synk.fork(2, start=sys.argv[1])
    s = pytensor.shared(np.ones(30_000), name="s")
    for mode in modes:
        f = synk.function([x], x.sum(), updates=[(s, s + 1)], mode=mode)
        assert f(synk.data(np.ones(5))) == 5
    synk.all_reduce(s)
    print(*sorted(synk._engine.group.current().run(Imported()) - before))
"""


@pytest.mark.parametrize("start", ["exec", *thorough("fork")])  # whose worker imports less
def test_what_is_imported(tmp_path: Path, start: str) -> None:
    """T13: beside PyTensor and what it needs itself, only what the project says it needs."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    needs = {re.match(r"[\w-]+", text)[0] for text in project["dependencies"]}
    assert needs == {"pytensor", "numpy", "cloudpickle", "threadpoolctl"}
    assert set(run_script(tmp_path, IMPORTED, start).split()) - {"synkhronos"} <= needs


def test_workers_do_not_import_from_the_working_folder(tmp_path: Path) -> None:
    """T5: a script elsewhere that runs in a stranger's folder, and one in it that does not."""
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    mine.mkdir()
    theirs.mkdir()
    for name in ("json", "runpy", "numpy", "synkhronos", "pytensor", "cloudpickle"):
        (theirs / f"{name}.py").write_text(f"import os; os.mkdir({str(tmp_path / 'canary')!r})\n")
    (mine / "helper.py").write_text("from operator import add\n")
    command = script_command(
        mine,
        """
        import helper, numpy as np, pytensor.tensor as pt, synkhronos as synk
        x = pt.dvector("x")
        with synk.Group(2, start="exec"):
            print(helper.add(synk.function([x], x.sum(), mode="FAST_COMPILE")(np.ones(5)), 1))
        """,
    )
    done = ended(theirs, command)
    assert done.stdout.split() == ["6.0"], done.stdout
    assert not (tmp_path / "canary").exists()
