"""`synk run` for real: exit codes, what the script sees, logs, restarts, signals, no orphans."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from launching import KINDS, launcher
from selection import thorough
from user_scripts import alive

from synkhronos._errors import InputError, StartFailed
from synkhronos._host.launch_settings import LaunchSettings
from synkhronos._host.polling import readable
from synkhronos.cli import _mpi_launcher
from synkhronos.cli._command_line import main
from synkhronos.cli._run.plan import Plan
from synkhronos.cli._run.process import Process
from synkhronos.cli._run.reach import check_reached
from synkhronos.cli._run.signals import SignalDescriptor

LIMIT = 120  # seconds; a hang fails
FLAGS = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]


def script(folder: Path, text: str, name: str = "script.py") -> str:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return str(path)


def program(folder: Path, name: str, text: str) -> None:
    """A stand-in for a program on the PATH."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{textwrap.dedent(text)}")
    path.chmod(0o755)


@contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[str]]:
    """`synk run` in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "synkhronos", "run", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def await_gone(pids: list[int]) -> None:
    until = time.monotonic() + 30  # the kernel's part takes milliseconds
    while left := alive(pids):
        assert time.monotonic() < until, left
        time.sleep(0.01)


# what any program sees of the way in which it was started
SEEN = """
import os, pickle, sys
class Own: pass
spec = __spec__ and (__spec__.name, __spec__.origin)
seen = [__name__, sys.argv, sys.path[0], globals().get("__file__"), spec, __package__]
seen += [sys.modules["__main__"].__dict__ is globals(), sys.flags, sys.orig_argv, os.getcwd()]
seen += [pickle.loads(pickle.dumps(Own())).__module__, open(0).read()]
print(seen)
"""


@pytest.mark.parametrize("how", ["script", "module", "code"])
def test_a_program_is_run_as_python_runs_it(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """All that it can see of its start is the same."""
    monkeypatch.chdir(tmp_path)
    script(tmp_path, SEEN, "seen.py")
    words = {"script": ["seen.py"], "module": ["-m", "seen"], "code": ["-c", SEEN]}[how]
    words += ["--lr", "-n", "3", "--"]
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    serial = [sys.executable, *FLAGS, *words]
    with open(os.devnull) as nothing:
        plain = subprocess.run(
            serial, capture_output=True, text=True, timeout=LIMIT, check=True, stdin=nothing
        )
    assert main(["run", *words]) == 0
    out, err = capfd.readouterr()
    assert (out, err) == (plain.stdout, "")
    assert "'__main__', ['" in out


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("pass", 0),
        ("raise ValueError('mine')", 1),
        ("import sys; sys.exit('text')", 1),
        ("import sys; sys.exit(17)", 17),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 139),
        ("raise KeyboardInterrupt", 130),
    ],
)
def test_exit_codes_of_scripts(code: str, wanted: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-c", code]) == wanted
    assert ("ValueError: mine" in capfd.readouterr().err) == ("mine" in code)


GROUP = """
import os, signal, sys, time
import numpy as np, pytensor.tensor as pt, synkhronos as synk

x = pt.vector("x", dtype="float64")
size = synk.fork()
f = synk.function([x], (x.sum(), "sum"), mode="FAST_COMPILE")
assert f(np.ones(10)) == 10
worker = synk.current_group().channel.pid(1)
def signalled(number):
    os.kill(worker, number)
    if number == signal.SIGKILL:
        time.sleep(0.05)
    f(np.ones(10))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "options", "wanted", "said"),
    [
        ("signalled(signal.SIGKILL)", (), 4, "exit code 4: a member died"),
        ("signalled(signal.SIGSTOP)", ("--timeout", "0.5"), 5, "exit code 5: a member did not"),
    ],
)
def test_a_death_and_a_stall(
    end: str, options: tuple[str, ...], wanted: int, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The traceback is shown as usual; then the code says what it was."""
    assert main(["run", "-n", "2", *options, "-c", GROUP + end]) == wanted
    err = capfd.readouterr().err
    assert re.search(r"^synkhronos\.(WorkerDied|GroupTimeout): ", err, re.MULTILINE)
    assert said in err


@pytest.mark.slow
def test_no_start(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A group that the machine has no room for, and a launcher that is not there."""
    text = """
    import resource, synkhronos as synk
    synk.size
    resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))
    synk.fork()
    """
    assert main(["run", "-n", "8", script(tmp_path, text)]) == 3
    err = capfd.readouterr().err
    assert "StartFailed: a group of 8 members cannot be started" in err
    assert "exit code 3: the group was not started" in err


def test_a_program_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["run", "--launcher", "srun", "--nodes", "2", "-c", "pass"]) == 3
    assert "synk run: srun was not found" in capfd.readouterr().err


def test_wrong_usage(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "none.py"]) == 2
    assert "synk run: none.py: there is no such script" in capfd.readouterr().err
    (tmp_path / "file").touch()
    assert main(["launch", "--log-dir", str(tmp_path / "file" / "logs"), "-c", "pass"]) == 2
    assert "logs: Not a directory" in capfd.readouterr().err


def test_dry_run_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    path = script(tmp_path, "")
    logs = tmp_path / "logs"
    assert main(["run", "--dry-run", "-n", "2", "--log-dir", str(logs), path, "-v"]) == 0
    assert capfd.readouterr().out.split() == [
        "SYNKHRONOS_MEMBERS=2",
        f"SYNKHRONOS_LOG_DIR={logs}",
        "SYNKHRONOS_NODES=1",
        "SYNKHRONOS_START=1",
        *(sys.executable, *FLAGS, path, "-v"),
    ]
    assert not logs.exists()


FOLLOWS = """
import os, subprocess, sys
import synkhronos as synk
from synkhronos._engine.group import current

code = "from synkhronos._host import launch_settings as s; print('child', s.launch_settings())"
subprocess.run([sys.executable, "-P", "-c", code], check=True)
if not os.fork():
    print("fork", synk.fork(3), flush=True)
    synk.close()
    os._exit(0)
os.wait()
print("fork()", synk.fork(), [str(d) for d in current().devices], current().runner._options.timeout)
with synk.Group(3) as second:
    print("a second group", second.size)
synk.close()
print("the same number", synk.fork(2))
synk.close()
for wrong in ({"members": 3}, {"devices": ["cpu"] * 2}, {"timeout": 7}):
    try:
        synk.fork(**wrong)
    except synk.InputError as exc:
        print(exc)
print("independent", synk.fork(mpi=False), flush=True)
synk.close()
del os.environ["SYNKHRONOS_START"]  # as if the user had exported the others: they are defaults
print("defaults", synk.fork(3))
"""


@pytest.mark.slow
def test_groups_follow(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """That of the script does; not those of its children, nor a second one beside it."""
    options = ["-n", "2", "-D", "cpu", "--timeout", "60"]
    code = main(["run", *options, script(tmp_path, FOLLOWS)])
    out, err = capfd.readouterr()
    assert (code, err) == (0, "")
    assert out.splitlines()[:5] == [
        f"child {LaunchSettings()}",
        *("fork 3", "fork() 2 ['cpu', 'cpu'] 60.0", "a second group 3", "the same number 2"),
    ]
    numbers, devices, limit, *last = out.splitlines()[5:]
    assert numbers == (
        "members=3 in the script, and 2 by synk run (-n, SYNKHRONOS_MEMBERS): leave members "
        "out of the script to follow synk run, or give both the same"
    )
    assert "devices=['cpu', 'cpu'] in the script, and 'cpu' by synk run" in devices
    assert "timeout=7 in the script, and 60.0 by synk run" in limit
    assert last == ["independent 2", "defaults 3"]


@pytest.mark.slow
def test_exec_workers_know_main(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Definitions of a module run as -m reach workers that are fresh interpreters."""
    text = """
    import os
    from dataclasses import dataclass
    import synkhronos as synk
    from synkhronos._engine.commands.base import Command

    @dataclass(frozen=True)
    class Tell(Command):
        pure = True
        def run(self, member):
            print("from", member.rank, len(os.environ["SYNKHRONOS_SCRIPT"]) > 0)

    with synk.Group(start="exec") as group:
        group.run(Tell())
    """
    script(tmp_path, text, "own_module.py")
    words = ["-n", "2", "-x", f"PYTHONPATH={tmp_path}:{os.environ.get('PYTHONPATH', '')}"]
    assert main(["run", *words, "-m", "own_module"]) == 0
    assert sorted(capfd.readouterr().out.splitlines()) == ["[rank 1] from 1 True", "from 0 True"]


PRINTS = """
import sys
from dataclasses import dataclass
import synkhronos as synk
from synkhronos._engine.commands.base import Command

@dataclass(frozen=True)
class Print(Command):
    pure = True
    def run(self, member):
        print("member", member.rank)

with synk.Group() as group:
    group.run(Print())
print("an error", file=sys.stderr)
print("no end", end="")
"""


@pytest.mark.slow
def test_logs_and_tee(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each rank's lines are in its file, whatever is shown; a further run appends."""
    path, logs = script(tmp_path, PRINTS), tmp_path / "logs"
    assert main(["run", "-n", "3", "--log-dir", str(logs), "--tee", "0,2", path]) == 0
    out, err = capfd.readouterr()
    assert out.splitlines() == ["member 0", "[rank 2] member 2", "no end"]
    assert err == "an error\n"
    texts = {file.name: _lines(file) for file in logs.iterdir()}
    assert set(texts) == {"rank-0.log", "rank-1.log", "rank-2.log"}
    first, *rest, last = texts["rank-0.log"]
    assert first.startswith("synk run: start 1 of at most 1: ")
    assert sorted(rest) == ["an error", "member 0", "no end"]
    assert last == "synk run: exit code 0"
    assert texts["rank-1.log"] == ["member 1", last]
    assert main(["run", "--log-dir", str(logs), "--tee", "none", "-c", "print('again')"]) == 0
    assert capfd.readouterr() == ("", "")
    assert "again" in _lines(logs / "rank-0.log")
    assert _lines(logs / "rank-1.log")[:2] == ["member 1", last]
    assert len(_lines(logs / "rank-1.log")) == 4


def _lines(file: Path) -> list[str]:
    """Lines of a log, without the time, which each of them has."""
    lines = file.read_text().splitlines()
    found = [re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (.*)", line) for line in lines]
    assert all(found), lines
    return [line[1] for line in found if line]


def test_a_question_is_shown_before_it_is_answered() -> None:
    """The beginning of a line is passed on, though the script's output is a pipe."""
    code = "import time; print('sure? ', end='', flush=True); time.sleep(60)"
    with started("--tee", "0", "-c", code) as process:
        assert process.stdout is not None
        assert process.stdout.read(6) == "sure? "
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT) == 130


SPAM = """
import os, sys, time
sys.stderr.write("begun\\n"); sys.stderr.flush()
while True:
    os.write(1, b"x" * 99 + b"\\n")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_while_nobody_reads_the_output(number: signal.Signals) -> None:
    """A stopped pager, or a full pipe of a supervisor: the script ends as it would alone."""
    with started("--tee", "0", "-c", SPAM) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "begun\n"
        time.sleep(1.0)  # all pipes and buffers are full
        process.send_signal(number)
        assert process.wait(LIMIT) == 128 + number


def test_a_slow_reader_gets_everything() -> None:
    """More than all pipes and buffers hold, of a script that has ended."""
    code = "for i in range(60_000): print(i, 'x' * 60)"
    with started("--tee", "0", "-c", code) as process:
        assert process.stdout is not None
        time.sleep(1.0)
        lines = process.stdout.read().splitlines()
        assert process.wait(LIMIT) == 0
    assert len(lines) == 60_000
    assert lines[-1].startswith("59999 x")


RESTARTS = """
import os, sys
print("start", os.environ["SYNKHRONOS_START"], os.environ.get("SYNKHRONOS_RESUME"), flush=True)
if os.environ["SYNKHRONOS_START"] < "3":
    CODE
"""


@pytest.mark.parametrize(
    ("end", "most", "starts", "wanted"),
    [
        ("os.kill(os.getpid(), 9)", "5", 3, 0),
        ("sys.exit(4)", "2", 3, 0),
        ("sys.exit(75)", "1", 2, 75),
        ("sys.exit(5)", "0", 1, 5),
        ("sys.exit(1)", "5", 1, 1),
        ("sys.exit(3)", "5", 1, 3),
        ("os.kill(os.getpid(), 2)", "5", 1, 130),
    ],
)
def test_restarts(
    end: str, most: str, starts: int, wanted: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """After a death, a stall, a signal, or code 75; and not after what would come again."""
    assert main(["run", "--max-restarts", most, "-c", RESTARTS.replace("CODE", end)]) == wanted
    out, err = capfd.readouterr()
    lines = [f"start {i} {'auto' if i > 1 else None}" for i in range(1, starts + 1)]
    assert out.splitlines() == lines
    assert err.count("; restart ") == starts - 1


FIT = """
import functools, os, signal, sys
import numpy as np, pytensor, pytensor.tensor as pt, synkhronos as synk
from modes import FAST
from synkhronos.extensions import updates
from synkhronos.training import fit

def interrupt(event):
    start = os.environ["SYNKHRONOS_START"]
    if event.kind == "start":
        print("start", start, "from step", event.step, flush=True)
    if event.kind == "step" and (start, event.step) == ("1", 13):
        os.kill(os.getpid(), signal.SIGUSR1)
x = pt.vector("x", dtype="float64")
w = pytensor.shared(np.zeros(()), name="w")
rate = functools.partial(updates.sgd, learning_rate=0.1)
with synk.Group():
    run = fit(((w - x) ** 2).mean(), [w], [x], np.arange(40.0), optimizer=rate, batch=4, epochs=3,
              folder=sys.argv[1], callbacks=[interrupt], verify=15, progress=False, mode=FAST)
print("end", run.step)
"""


@pytest.mark.thorough  # restarts: test_restarts; fits that go on: training/test_resume.py
@pytest.mark.slow
def test_a_restarted_fit_goes_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """From its checkpoint, though the script does not ask for it."""
    support = Path(__file__).parents[1] / "support"
    words = ["-x", f"PYTHONPATH={support}:{os.environ.get('PYTHONPATH', '')}"]
    path = script(tmp_path, FIT)
    assert main(["run", "-n", "2", "--max-restarts", "2", *words, path, str(tmp_path / "a")]) == 0
    out, err = capfd.readouterr()
    assert out.splitlines() == ["start 1 from step 0", "start 2 from step 13", "end 30"]
    why = "exit code 75: it was stopped, and a checkpoint was written: run it again"
    assert f"synk run: {why}; restart 1 of 2" in err


COUNTS = """
import os, signal, sys, time
got = []
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda n, frame: got.append(n))
print("ready", os.getpid(), flush=True)
while not got:
    time.sleep(0.01)
time.sleep(0.2)
print(got, flush=True)
sys.exit(75)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP])
def test_a_signal_reaches_the_script_once(number: signal.Signals) -> None:
    """It then ends by itself; its code is passed on, and there is no restart."""
    with started("--max-restarts", "3", "-c", COUNTS) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready")
        process.send_signal(number)
        out, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, out) == (75, f"[{number.value}]\n")
    assert "restart" not in err


@pytest.mark.slow
def test_no_orphans() -> None:
    """SIGKILL for `synk run` ends the script and its workers."""
    code = GROUP + "print(os.getpid(), worker, flush=True)\ntime.sleep(100)"
    with started("-n", "2", "-c", code) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(alive(pids)) == 2
        process.kill()
        await_gone(pids)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_script_without_handlers_is_ended(number: signal.Signals, code: int) -> None:
    text = "import os, time; print(os.getpid(), flush=True); time.sleep(100)"
    with started("-c", text) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.send_signal(number)
        process.communicate(timeout=LIMIT)
        await_gone([pid])
    assert process.returncode == code


def test_a_script_that_does_not_end_is_killed() -> None:
    """In time after SIGTERM."""
    words = (sys.executable, "-c", "import time; time.sleep(100)")
    plan = Plan("fork", words, os.environ, {}, LaunchSettings(nodes=1, start=1), shown=frozenset())
    with SignalDescriptor() as signals:
        before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # in the script, too
        try:
            process = Process(plan, signals, None, grace=0.1)
            os.kill(os.getpid(), signal.SIGTERM)
            assert process.wait() == -signal.SIGKILL
            assert process.asked_to_end == {signal.SIGTERM}
        finally:
            signal.signal(signal.SIGTERM, before)


def test_a_signal_that_is_ignored_stays_so() -> None:
    """Under nohup, the end of the terminal ends nothing."""
    code = "import time; print('ready', flush=True); time.sleep(0.3); print('end')"
    words = [sys.executable, "-P", "-m", "synkhronos", "run", "--tee", "all", "-c", code]
    with subprocess.Popen(
        ["/bin/sh", "-c", 'trap "" HUP; exec "$@"', "sh", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        assert process.communicate(timeout=LIMIT)[0] == "end\n"
    assert process.returncode == 0


# a new session, of which the terminal is the controlling one
_AT_A_TERMINAL = """
import os, sys
os.login_tty(os.open(sys.argv[1], os.O_RDWR))
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


# print that a signal has come, and wait until `synk run` has taken the one that it got
_TAKEN = """print("first", flush=True)
def waits():
    with open(f"/proc/{os.getppid()}/status") as file:
        pending = [int(line.split()[1], 16) for line in file if line.startswith("ShdPnd")]
    return pending[0] >> signal.SIGINT - 1 & 1
while waits():
    time.sleep(0.01)
"""


def test_at_a_terminal_ctrl_c_reaches_the_script_once() -> None:
    """The terminal sends it to both processes, so `synk run` does not pass it on.

    It sleeps until the script has handled the first one: two that wait would be one.
    """
    master, slave = os.openpty()
    code = COUNTS.replace("time.sleep(0.2)\n", f"{_TAKEN}time.sleep(0.2)\n")
    words = ["-P", "-m", "synkhronos", "run", "-c", code]
    process = subprocess.Popen(
        [sys.executable, "-c", _AT_A_TERMINAL, os.ttyname(slave), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        _read_until(master, b"ready")
        process.send_signal(signal.SIGSTOP)
        os.write(master, b"\x03")
        _read_until(master, b"first")
        process.send_signal(signal.SIGCONT)
        assert b"[2]" in _read_until(master, b"]")
        assert process.wait(LIMIT) == 75
    finally:
        process.kill()
        process.wait()
        os.close(slave)
        os.close(master)


def _read_until(descriptor: int, wanted: bytes) -> bytes:
    found = b""
    while wanted not in found:
        assert readable(descriptor, seconds=LIMIT), found
        found += os.read(descriptor, 1024)
    return found


ON_NODES = """
import os, signal, sys, time
from dataclasses import dataclass
import synkhronos as synk
from synkhronos._engine.commands.base import Command

@dataclass(frozen=True)
class Print(Command):
    pure = True
    def run(self, member):
        print("member", member.rank)

got = []
sys.stdout.write("before fork\\n")
size = synk.fork()
[handled] = [line.split()[1] for line in open("/proc/self/status") if line.startswith("SigCgt")]
taken = bool(int(handled, 16) >> signal.SIGUSR1 - 1 & 1)
signal.signal(signal.SIGUSR1, lambda number, frame: got.append(number))
if "RUN" in os.environ:
    os.kill(int(os.environ["RUN"]), signal.SIGTERM)
    while not got:
        time.sleep(0.01)
synk.current_group().run(Print())
print("size", size, taken, got, sys.argv[1:])
if sys.argv[1] == "dies":
    os.kill(os.getpid(), 9)
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", [KINDS[0], *thorough(*KINDS[1:])])
def test_two_nodes_by_mpirun(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Both on this machine, with other numbers of members; the script's code comes through.

    SIGTERM reaches the script as SIGUSR1, which MPI has not taken. Leaders ignore it, and go on.
    """
    mpi = launcher(kind)
    monkeypatch.setattr(_mpi_launcher, "launcher", lambda: mpi.command[0])
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # it would cut lines, which then mix
    path, logs = script(tmp_path, ON_NODES), tmp_path / "logs"
    hosts = ["-H", "localhost:2,localhost:1", "-x", f"RUN={os.getpid()}", "--log-dir", str(logs)]
    assert main(["run", *hosts, path, "17"]) == 17
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == [
        *("[rank 1] member 1", "[rank 2] member 2", "before fork", "before fork", "member 0"),
        f"size 3 False [{signal.SIGUSR1.value}] ['17']",
    ]
    assert re.match(r"synk run: RUN=\d+ .*SYNKHRONOS_MEMBERS=2,1 .* -n 2 .*script.py 17\n", err)
    for rank in (0, 1, 2):
        printed = [line for line in _lines(logs / f"rank-{rank}.log") if "member" in line]
        assert printed == [f"member {rank}"]


@pytest.mark.thorough
def test_a_node_that_dies(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The launcher ends the job; `synk run` starts it again."""
    words = ["--nodes", "2", "--max-restarts", "1"]
    assert main(["run", *words, script(tmp_path, ON_NODES), "dies"]) == 4
    out, err = capfd.readouterr()
    assert out.count("size 2") == 2
    assert "exit code 4: a member died; restart 1 of 1" in err


@pytest.mark.slow
def test_srun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A stand-in that runs the program once, and so starts fewer processes than were asked for."""
    program(
        tmp_path,
        "srun",
        f"""
        echo "$@" > {tmp_path}/words
        while [ "${{1#--}}" != "$1" ]; do shift; done
        exec "$@"
    """,
    )
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", "4(x2)")
    code = "import os; print('nodes', os.environ['SYNKHRONOS_NODES'])"
    assert main(["run", "-c", code]) == 0
    out, err = capfd.readouterr()
    assert out == "nodes 2\n"
    words = (tmp_path / "words").read_text()
    assert words.startswith("--nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=4 ")
    assert err.startswith("synk run: SYNKHRONOS_NODES=2 SYNKHRONOS_START=1 srun --nodes=2 ")
    # a launcher and mpi4py that do not fit would start two scripts that know nothing of each other
    assert main(["run", "-c", "import synkhronos as synk; synk.fork()"]) == 3
    assert "synk run has started 2 processes, one a node, and this one finds 1" in (
        capfd.readouterr().err
    )


ARRAY = """
    import synkhronos as synk

    def fit(item, random_seed):
        return item, random_seed

    if __name__ == "__main__":
        fits = synk.pymc.map(fit, range(5), folder="fits", random_seed=1, cores=1)
        print(*[f"{item}:{seed}" for item, seed in fits.values()])
"""


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_an_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A stand-in for sbatch keeps the job; its tasks have other items, and one run has all."""
    program(
        tmp_path,
        "sbatch",
        """
        for word in "$@"; do last=${word#--wrap=}; done
        echo "$last" > job
        echo 4711
    """,
    )
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.chdir(tmp_path)
    path = script(tmp_path, ARRAY)
    words = ["--array", "3", "--sbatch-args=--time=4:0:0 --partition=short", path]
    assert main(["run", "--dry-run", *words]) == 0
    line = capfd.readouterr().out
    assert line.startswith("sbatch --parsable --array=1-3 --time=4:0:0 --partition=short '--wrap=")
    assert "SYNKHRONOS_PART=$SLURM_ARRAY_TASK_ID/3 exec" in line
    assert not (tmp_path / "job").exists()
    assert main(["run", *words]) == 0
    assert capfd.readouterr().err == "synk run: submitted job 4711, an array of 3 tasks\n"
    tasks = []
    for task in "123":
        environ = {**os.environ, "SLURM_ARRAY_TASK_ID": task}
        done = subprocess.run(
            ["sh", "job"], env=environ, stdout=subprocess.PIPE, text=True, check=True
        )
        tasks.append(done.stdout.strip())
    assert [re.findall(r"(\d+):", line) for line in tasks] == [["0", "3"], ["1", "4"], ["2"]]
    names = sorted(p.name for p in (tmp_path / "fits").iterdir() if p.suffix == ".json")
    assert names == [*(f"failed-{i}-of-3.json" for i in (1, 2, 3)), "seed.json"]
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "fits").glob("*.fit")}
    assert main(["run", path]) == 0
    whole = capfd.readouterr().out.split()
    assert sorted(" ".join(tasks).split()) == whole
    assert before == {p: p.stat().st_mtime_ns for p in (tmp_path / "fits").glob("*.fit")}


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (("--nodes", "2", "x.py"), 2, "--array and --nodes: each task of an array runs the script"),
        (("--log-dir", "x", "--resume", "x.py"), 2, "--array and --log-dir, --resume: each task"),
        (("--pymc-folder", "night", "x.py"), 2, "--array and --pymc-folder: each task of an array"),
        (("--pymc", "-c", "print()"), 2, "--pymc is for a script or a module"),
        (("-x", "NOT_SET_HERE", "x.py"), 2, "-x NOT_SET_HERE: it is not set here"),
        (("--sbatch-args=-J 'a", "x.py"), 2, '--sbatch-args "-J \'a": No closing quotation'),
        ((), 2, "name a script, or a module with -m, or code with -c"),
        (("missing.py",), 2, "missing.py: there is no such script"),
        (("x.py",), 3, "sbatch was not found, and --array submits a job by it"),
    ],
)
def test_no_array(
    words: tuple[str, ...],
    code: int,
    error: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    script(tmp_path, "", "x.py")
    assert main(["run", "--array", "3", *words]) == code
    assert error in capfd.readouterr().err


def test_sbatch_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program(tmp_path, "sbatch", "echo 'sbatch: error: invalid partition' >&2; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    words = ["run", "--array", "3", script(tmp_path, "")]
    assert main(words) == 3
    assert "sbatch has refused the job: sbatch: error: invalid partition" in capfd.readouterr().err
    (tmp_path / "sbatch").write_text("no program")
    assert main(words) == 3
    assert "sbatch cannot be started: Exec format error" in capfd.readouterr().err


def test_an_array_of_a_script_of_synk_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its tasks inherit no settings of the script that submits it, beside which none would count.

    Secrets are not shown.
    """
    program(tmp_path, "sbatch", f"env > {tmp_path}/environ; echo 1")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SYNKHRONOS_START", "1")
    monkeypatch.setenv("SYNKHRONOS_SCRIPT", "1")
    monkeypatch.setenv("SYNKHRONOS_PART", "2/7")
    words = ["--array", "3", "-x", "HUB_TOKEN=abc", script(tmp_path, ""), "--password", "def"]
    assert main(["run", *words]) == 0
    assert not re.findall("SYNKHRONOS_(START|SCRIPT|PART)", (tmp_path / "environ").read_text())
    capfd.readouterr()
    assert main(["run", "--dry-run", *words]) == 0
    shown = capfd.readouterr().out
    assert "HUB_TOKEN=***" in shown
    assert not {"abc", "def"} & set(re.findall(r"\w+", shown))


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--sbatch-args=--time=1",), "--sbatch-args are for --array"),
        (("--launcher-args=--x 'a",), '--launcher-args "--x \'a": No closing quotation'),
    ],
)
def test_further_options_that_are_none(
    words: tuple[str, ...], error: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *words, script(tmp_path, "")]) == 2
    assert error in capfd.readouterr().err


@pytest.mark.parametrize("given", ["0/3", "4/3", "3", "a/b", "1/2/3", "-1/3"])
def test_parts_that_are_none(given: str) -> None:
    assert LaunchSettings.of({"SYNKHRONOS_PART": "2/3"}).part == (2, 3)
    assert LaunchSettings(part=(2, 3)).environment() == {"SYNKHRONOS_PART": "2/3"}
    with pytest.raises(InputError, match="give a part and their number"):
        LaunchSettings.of({"SYNKHRONOS_PART": given})


def test_hosts_are_tried_before_a_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """At the same time, with a limit; each that does not answer is named."""
    program(
        tmp_path,
        "ssh",
        f"""
        echo "$@" >> {tmp_path}/words
        case "$6" in
            good) exit 0;;
            slow) exec sleep 100;;
            silent) exit 255;;
            *) echo "noise" >&2; echo "ssh: $6: no route" >&2; exit 255;;
        esac
    """,
    )
    program(tmp_path, "mpirun", "echo started")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(_mpi_launcher, "launcher", lambda: str(tmp_path / "mpirun"))
    monkeypatch.setattr("synkhronos.cli._run.reach._OWN_SECONDS", 0.0)
    began = time.monotonic()
    hosts = "good,slow,bad,silent"
    assert main(["run", "-H", hosts, "--start-timeout", "0.5", "-c", "pass"]) == 3
    assert time.monotonic() - began < 30
    out, err = capfd.readouterr()
    assert "started" not in out
    assert err.startswith(
        "synk run: 3 of 4 hosts cannot be reached by ssh: slow: no answer; "
        "bad: ssh: bad: no route; silent: ssh ended with code 255. `ssh -o BatchMode=yes"
    )
    assert "-o BatchMode=yes -o ConnectTimeout=1 -- good true" in (tmp_path / "words").read_text()
    assert main(["run", "-H", "good", "-c", "pass"]) == 0
    assert capfd.readouterr().out == "started\n"
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(StartFailed, match="ssh is not installed"):
        check_reached(["good"], 1.0)
