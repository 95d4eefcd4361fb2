"""The same script under mpirun: groups of several nodes, one after the other, and how jobs end."""

from __future__ import annotations

from pathlib import Path

import pytest
from launching import Launcher, job, launcher, run
from selection import thorough

EARLY_LIMIT = 90.0  # seconds, with the imports; without the end of the job it is a hang

GROUPS = """
    import gc, sys
    from dataclasses import dataclass
    import numpy as np, pytensor, pytensor.tensor as pt
    import synkhronos as synk
    from synkhronos._host import arena as _arena
    from synkhronos._engine.commands.base import Command
    from synkhronos._engine.group import current

    @dataclass(frozen=True)
    class Arenas(Command):
        pure = True

        def run(self, member):
            return len(_arena._arenas)

        def answer(self, member, own, reports):
            return own, reports[member.size // 2]  # the leaders'

    pytensor.config.mode = "FAST_COMPILE"
    gc.disable()
    x = pt.matrix("x", dtype="float64")
    rows = np.arange(60.0).reshape(20, 3)
    serial = pytensor.function([x], [x.sum(), x.max(0), x * 2])
    for round in range(2):
        f = d = None  # and with them the memory of the group before
        pytensor.config.floatX = ("float64", "float32")[round % 2]  # the others do not see it
        size = synk.fork(int(sys.argv[1]))
        found = current().run(Arenas())
        assert found == (1, 1), found
        f = synk.function([x], [x.sum(), x.max(0), x * 2])
        d = synk.data(rows)
        for _ in range(3):
            for found, wanted in zip(f(d), serial(rows), strict=True):
                np.testing.assert_allclose(found, wanted)
        d[3:5] = -1.0
        changed = rows.copy()
        changed[3:5] = -1.0
        np.testing.assert_allclose(f(d)[2], changed * 2)
        print("group", round, "of", size, flush=True)
        synk.close()
    assert d.data[3, 0] == -1.0
    print("good end")
"""


@pytest.mark.parametrize(
    ("ranks", "members"),
    [
        *thorough((2, 1), (3, 1)),
        (2, 2),
    ],
)
def test_groups_one_after_the_other(
    mpi: Launcher, tmp_path: Path, ranks: int, members: int
) -> None:
    """Every process runs the script; all but the first stop in `fork` and serve.

    Memory goes with its group, in all leaders, at once: no collection of cycles is awaited.
    """
    said = run(mpi, ranks, tmp_path, GROUPS, str(members)).splitlines()
    wanted = [f"group {i} of {ranks * members}" for i in range(2)]
    assert [line for line in said if line.startswith("group")] == wanted
    assert said.count("good end") == 1


@pytest.mark.parametrize(
    ("ending", "code"),
    [("sys.exit(3)", 3), *thorough(("", 0), ("raise ValueError('the end')", 1))],
)
def test_exit_codes(mpi: Launcher, tmp_path: Path, ending: str, code: int) -> None:
    """What the first process ends with is the job's, whether the group was closed or not."""
    text = f"import sys, synkhronos as synk\nsynk.fork(1)\n{ending}\n"
    with job(mpi, 2, tmp_path, text) as made:
        found = made.wait()
        assert (found == 0) == (code == 0), made.text
        assert ("ValueError: the end" in made.text) == ("ValueError" in ending)
        made.check_gone()


EARLY = """
    import os, sys, time
    from pathlib import Path
    import synkhronos as synk

    def has_mpi(pid):
        return "libmpi" in Path(f"/proc/{{pid}}/maps").read_text()

    rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK"))
    if rank == sys.argv[1]:
        until = time.monotonic() + 60
        while not Path("pid").exists() or not has_mpi(Path("pid").read_text()):
            assert time.monotonic() < until
            time.sleep(0.01)
        time.sleep(3.0)  # the other one is in MPI_Init
        {ending}
    Path("new").write_text(str(os.getpid()))
    Path("new").rename("pid")
    synk.fork(1)
"""


@pytest.mark.each_choice
@pytest.mark.parametrize("who", ["0", "1"])
@pytest.mark.parametrize("ending", ["raise ValueError('too early')", "sys.exit('too early')"])
def test_a_bad_end_before_fork_ends_the_job(
    mpi: Launcher, tmp_path: Path, ending: str, who: str
) -> None:
    """The others wait in `fork` for a process that will not come.

    They are awaited there: the launcher of Open MPI 5.0.11 may hang by itself where a process
    connects to it just while it ends the job (PMIX_ERR_UNREACH).
    """
    with job(mpi, 2, tmp_path, EARLY.format(ending=ending), who) as made:
        assert made.wait(EARLY_LIMIT) != 0, made.text
        assert "too early" in made.text
        made.check_gone()


def test_a_script_without_a_group_ends_as_any_other(mpi: Launcher, tmp_path: Path) -> None:
    """One of its processes by itself, the other by `sys.exit`."""
    text = """
        import os, sys, synkhronos
        if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")) == "1":
            sys.exit(0)
    """
    with job(mpi, 2, tmp_path, text) as made:
        assert made.wait(EARLY_LIMIT) == 0, made.text
        made.check_gone()


@pytest.mark.thorough  # that of the job: the tests above
def test_a_bad_end_of_a_process_alone_is_its_own(tmp_path: Path) -> None:
    """With `mpi=False` nobody waits for it; MPICH leaves processes alone that speak no MPI."""
    text = """
        import os, time
        from pathlib import Path
        import synkhronos as synk
        synk.fork(1, mpi=False)
        if os.environ["PMI_RANK"] == "1":
            Path("new").write_text(str(os.getpid()))
            Path("new").rename("pid")
            raise ValueError("of one process")
        until = time.monotonic() + 20
        while not Path("pid").exists() or Path("/proc", Path("pid").read_text()).exists():
            assert time.monotonic() < until
            time.sleep(0.01)
        time.sleep(0.3)
        print("the other goes on")
    """
    with job(launcher("mpich"), 2, tmp_path, text) as made:
        made.wait(EARLY_LIMIT)
        assert "the other goes on" in made.text
        made.check_gone()


@pytest.mark.thorough
def test_a_launcher_started_by_a_launched_script(tmp_path: Path) -> None:
    """The inner script's processes are one group too."""
    text = """
        import os, subprocess, sys
        import synkhronos as synk

        size = synk.fork(1)
        print("size", size, flush=True)
        if len(sys.argv) == 2:
            ours = ("PMI", "MPI", "HYDI")
            environ = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
            command = [sys.argv[1], "-n", "3", sys.executable, sys.argv[0], "inner", "job"]
            subprocess.run(command, env=environ, check=True, timeout=60)
            subprocess.run(command[3:], check=True, timeout=60)
    """
    mpich = launcher("mpich")
    said = run(mpich, 2, tmp_path, text, mpich.command[0]).splitlines()
    assert said == ["size 2", "size 3", "size 1"]


def test_processes_that_serve_end_as_python_does(mpi: Launcher, tmp_path: Path) -> None:
    """What the script has opened before is flushed, what it has registered is run."""
    text = """
        import atexit, os, tempfile
        import synkhronos as synk

        rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK"))
        folder = tempfile.TemporaryDirectory(prefix="temporary-", dir=".")
        log = open(f"log-{rank}", "w")
        log.write("a line")
        atexit.register(lambda: print("exit", rank, "later", flush=True))
        synk.fork(2)
    """
    said = run(mpi, 2, tmp_path, text)
    assert sorted(line for line in said.splitlines() if "later" in line) == [
        "exit 0 later",
        "exit 1 later",
    ], said
    assert [(tmp_path / f"log-{rank}").read_text() for rank in range(2)] == ["a line"] * 2
    assert not list(tmp_path.glob("temporary-*"))


@pytest.mark.parametrize("first", ["from mpi4py import MPI", *thorough("")])
def test_a_killed_job_leaves_no_named_memory(mpi: Launcher, tmp_path: Path, first: str) -> None:
    """Also where the script has initialised MPI before, with the launcher killed too."""
    text = f"{first}\nimport time\nimport synkhronos as synk\nsynk.fork(1)\n"
    with job(mpi, 2, tmp_path, text + "print('ready', flush=True)\ntime.sleep(60)\n") as made:
        made.await_line("ready")
        made.kill()
        made.check_gone()


MESSAGES = """
    import time
    from synkhronos._backends import mpi as _mpi

    world = _mpi.World()
    edge = _mpi._BUFFER_BYTES
    lengths = [9, edge - 1, edge, 40, edge + 1, 1_000_003, 9, 3 * edge, 10]
    others = [r for r in range(world.size) if r != world.rank]
    world.listen(others)
    for k, length in enumerate(lengths):
        for to in others:
            world.send(to, bytes([world.rank, k]) + b"x" * (length - 2))
    found, ready = {r: [] for r in others}, False
    while any(len(f) < len(lengths) for f in found.values()):
        if (one := world.receive()) is not None:
            source, message = one
            if message == b"all have come":  # before the last ones of another process
                ready = True
                continue
            assert message[0] == source and set(message[2:]) == {ord("x")}
            found[source].append((message[1], len(message)))
    assert all(f == list(enumerate(lengths)) for f in found.values()), found
    if world.rank != 1:
        assert world.receive() is None
    if world.rank == 0:
        world.send(1, b"all have come")
    while world.rank == 1 and not ready and world.receive() is None:
        pass
    if world.rank == 1:  # it stands still between the announcement and the message
        world._send(0, _mpi._LENGTH.pack(3 * edge), _mpi._SMALL)
        time.sleep(0.5)
        world._send(0, b"y" * 3 * edge, _mpi._LARGE)
    if world.rank == 0:
        looks = 0
        while (one := world.receive()) is None:
            looks += any(inbox._large is not None for inbox in world._inboxes)
        assert looks > 1 and one == (1, b"y" * 3 * edge)
    world.finalize()
    if world.rank == 0:
        print("good end")
"""


def test_messages_of_all_lengths_in_order(mpi: Launcher, tmp_path: Path) -> None:
    """Those that fit into the waiting buffer, and those that do not, between all leaders."""
    assert "good end" in run(mpi, 3, tmp_path, MESSAGES)


OFFERS = """
    import time
    from pathlib import Path
    from synkhronos._backends import mpi as _mpi

    world = _mpi.World()
    world.listen([1 - world.rank])
    for length in (40, 3 * _mpi._BUFFER_BYTES):
        if world.rank == 1:  # many, while the other does not look
            for n in range(1000):
                world.offer(0, b"%04d" % n + b"x" * length)
            assert not world._sending
            Path(f"offered-{length}").touch()
            world.send(0, b"the end of these")
        else:
            while not Path(f"offered-{length}").exists():
                time.sleep(0.01)
            found = []
            while not found or not found[-1].startswith(b"the"):
                if (one := world.receive()) is not None:
                    found.append(one[1])
            # the first fills the waiting buffer, and may make way for another one
            assert 2 <= len(found) <= 3, [f[:4] for f in found]
            assert found[0] == b"0000" + b"x" * length
            world.send(1, b"and another one")
        while world.rank == 1 and world.receive() is None:
            pass
    if world.rank == 1:
        world.offer(0, b"of the last command")
        world.send(0, b"its report")
    while world.rank == 0 and (one := world.receive()) != (1, b"its report"):
        assert one in (None, (1, b"of the last command"))
    world.finalize()
    if world.rank == 0:
        print("good end")
"""


def test_offers_do_not_pile_up(mpi: Launcher, tmp_path: Path) -> None:
    """One at a time is on its way, however long nobody receives it."""
    assert "good end" in run(mpi, 2, tmp_path, OFFERS)


START = """
    import os, sys
    import synkhronos as synk

    rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK"))
    eventfd = os.eventfd

    def none_left(*args):
        os.eventfd = eventfd
        raise OSError(24, "Too many open files")

    if rank == sys.argv[1]:
        os.eventfd = none_left
    try:
        synk.fork(2)
    except synk.GroupError as exc:
        print(f"{type(exc).__name__}: {exc}", flush=True)
    if len(sys.argv) == 2:
        print("then", synk.fork(2))
"""


@pytest.mark.parametrize("again", [True, *thorough(False)])
@pytest.mark.parametrize(
    ("who", "wanted"),
    [
        *thorough(("0", "StartFailed: a group of 2 members cannot be started: ")),
        ("1", "StartFailed: the nodes cannot be one group: node 1 ("),
    ],
)
def test_a_node_that_cannot_start_is_named(
    mpi: Launcher, tmp_path: Path, who: str, wanted: str, again: bool
) -> None:
    """The first process raises, once; the others serve what it starts next, until it ends."""
    said = run(mpi, 2, tmp_path, START, who, *([] if again else ["once"]), limit=EARLY_LIMIT)
    errors = [line for line in said.splitlines() if "Error" in line or "Failed" in line]
    assert len(errors) == 1, said
    assert errors[0].startswith(wanted), said
    assert "a group of 2 members cannot be started: [Errno 24]" in errors[0], said
    assert ("then 4" in said) == again


DIFFERENT = """
    import os, sys
    rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK"))
    own = "floatX=float64" if rank == "0" else "floatX=float32"
    os.environ["PYTENSOR_FLAGS"] = f"{os.environ.get('PYTENSOR_FLAGS', '')},{own}"
    import pytensor, synkhronos as synk
    from synkhronos.testing import nodes

    if sys.argv[1] == "serve first":
        nodes.serve_first()
    for floatX in ("float64", "float64", "float32"):
        pytensor.config.floatX = floatX if rank == "0" else "float32"
        try:
            print("size", synk.fork(1), flush=True)
            synk.close()
        except synk.GroupError as exc:
            print("refused:", exc, flush=True)
"""


@pytest.mark.parametrize(("how", "refused"), [("fork", 2), *thorough(("serve first", 3))])
def test_what_differs_is_named_each_time(
    mpi: Launcher, tmp_path: Path, how: str, refused: int
) -> None:
    """Until it is mended; where the others serve first, what holds then is compared.

    Versions, mode and floatX are compared before anything else.
    """
    said = run(mpi, 2, tmp_path, DIFFERENT, how)
    wanted = "refused: the nodes cannot be one group: floatX is float32 on node 1"
    assert said.count(wanted) == refused, said
    assert said.count("float64 on node 0") == refused, said
    assert said.count("size 2") == 3 - refused, said


def test_others_serve_first_and_no_group_is_started(mpi: Launcher, tmp_path: Path) -> None:
    text = "from synkhronos.testing import nodes\nprint('of', nodes.serve_first())\n"
    assert "of 2" in run(mpi, 2, tmp_path, text, limit=EARLY_LIMIT)


def test_what_mpi_cannot_do_is_refused(mpi: Launcher, tmp_path: Path) -> None:
    """Before anything is started: another master, restarts, a second group over the nodes."""
    text = """
        import synkhronos as synk
        for options in ({"master_rank": 1}, {"max_restarts": 1}):
            try:
                synk.Group(2, **options)
            except synk.InputError as exc:
                print("refused:", exc, flush=True)
        first = synk.Group(1)
        second = synk.Group(1)  # of this machine alone
        print("sizes", first.size, second.size)
        try:
            synk.Group(1, mpi=True)
        except synk.GroupError as exc:
            print("refused:", exc)
    """
    said = run(mpi, 2, tmp_path, text)
    assert said.count("refused:") == 5, said  # the second process comes to its first group
    assert "sizes 2 1" in said


def test_without_a_launch_mpi_is_refused() -> None:
    """`mpi=True` outside of mpirun says what to do."""
    import synkhronos as synk

    with pytest.raises(synk.InputError, match="start the script by mpirun"):
        synk.Group(1, mpi=True)
