"""A run that is broken off and resumed ends with the bits of the unbroken one."""

from __future__ import annotations

import errno
import functools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from fork_to import fork_to
from modes import FAST
from selection import thorough
from user_scripts import LIMIT

import synkhronos as synk
from synkhronos.extensions import updates
from synkhronos.extensions._step.update import FlatUpdate
from synkhronos.extensions.checkpoints import Checkpoints
from synkhronos.training import (
    Event,
    Recorder,
    Trainer,
    ema,
    fit,
    read_metrics,
)
from synkhronos.training._run import signals

# a run with all that has a state: schedule, moments, averages, generators, patience, best list,
# a rate that falls, running means
RUN = """
import functools, os, sys
import numpy as np, pytensor, pytensor.tensor as pt
import synkhronos as synk
from pytensor.compile.mode import Mode
from synkhronos.extensions import updates
from synkhronos.training import Best, EarlyStopping, Plateau, fit, scheduled

FAST = Mode(linker="py", optimizer=None)  # as tests/support/modes.py

def run(folder, callbacks=(), resume="auto", members=2, restarts=0, **options):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(103, 6))
    targets = rows @ rng.normal(size=6) + rng.normal(size=103)
    x, y = pt.dmatrix("x"), pt.dvector("y")
    w = pytensor.shared(np.zeros(6), name="w")
    factor = pytensor.shared(np.float64(1), name="factor")
    mean = pytensor.shared(np.zeros(6), name="mean")
    noise = pytensor.shared(np.random.default_rng(3), name="noise")
    following, drop = pt.random.bernoulli(0.9, size=x.shape, rng=noise, return_next_rng=True)
    loss = (((x * drop) @ w - y) ** 2).mean()
    adam = scheduled(updates.adam, lambda step: factor * 0.3 / (1 + 0.01 * step))
    new = [(mean, 0.9 * mean + 0.1 * x.mean(axis=0), "avg", "all"), (noise, following)]
    with pytensor.config.change_flags(mode=FAST), synk.Group(members, max_restarts=restarts):
        made = fit(
            loss, [w], [x, y], (rows, targets),
            optimizer=adam, ema=0.9, updates=new, batch=20, epochs=4,
            validation=(rows, targets), metrics={"loss": ((x @ w - y) ** 2).mean()},
            callbacks=[Plateau(factor, patience=2), Best(keep=2),
                       EarlyStopping(patience=3), *callbacks],
            folder=folder, resume=resume, save_every=2, progress=False, **options,
        )
        values = {v.name: v.get_value() for v in made.values()}
        stream = noise.get_value().bit_generator.state["state"]
        history = [{k: v for k, v in row.items() if k != "seconds"} for row in made.history]
        best = sorted(os.listdir(os.path.join(folder, "best")))
        return values, stream, history, best, made.reason
"""
exec(RUN)
run: Callable[..., Any] = globals()["run"]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What an unbroken run ends with."""
    return run(tmp_path_factory.mktemp("unbroken") / "run")


def same(found: Any, expected: Any) -> None:
    """Equal to the last bit."""
    assert found[0].keys() == expected[0].keys()
    for name, value in expected[0].items():
        np.testing.assert_array_equal(found[0][name], value, err_msg=name)
    assert found[1:] == expected[1:]


class Breaks:
    """Raises at the given event; or sends a signal to this process."""

    def __init__(
        self, kind: str, step: int, number: int = 0, error: type[Exception] = OSError
    ) -> None:
        self.at = kind, step
        self.number = number
        self.error = error

    def __call__(self, event: Event) -> None:
        if (event.kind, event.step) == self.at:
            if not self.number:
                raise self.error("broken off")
            os.kill(os.getpid(), self.number)


# 6 steps make an epoch: in the middle, the last step of an epoch, its validation, its end
@pytest.mark.each_choice
@pytest.mark.parametrize("kind", ["step", "saved", *thorough("epoch", "validated")])
@pytest.mark.parametrize("step", [6, 18])
def test_resumed_after_an_exception(tmp_path: Path, unbroken: Any, kind: str, step: int) -> None:
    with pytest.raises(OSError, match="broken off"):
        run(tmp_path / "run", [Breaks(kind, step)])
    same(run(tmp_path / "run"), unbroken)


def test_broken_off_before_the_first_checkpoint(tmp_path: Path, unbroken: Any) -> None:
    """What it has recorded does not count."""
    with pytest.raises(OSError, match="broken off"):
        run(tmp_path / "run", [Breaks("step", 1)])
    same(run(tmp_path / "run"), unbroken)
    lines = read_metrics(tmp_path / "run")
    assert [line["step"] for line in lines if line["kind"] == "end"] == [24]


@pytest.mark.each_choice
@pytest.mark.parametrize("step", [3, 13, 18])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, *thorough(signal.SIGUSR1)])
def test_resumed_after_a_signal(
    tmp_path: Path, unbroken: Any, step: int, number: signal.Signals
) -> None:
    """The step ends, a checkpoint is written; 75 is "run again"."""
    kind = KeyboardInterrupt if number == signal.SIGINT else SystemExit
    with pytest.raises(kind) as caught:
        run(tmp_path / "run", [Breaks("step", step, number)])
    if kind is SystemExit:
        assert caught.value.code == 75
    lines = read_metrics(tmp_path / "run")
    assert [line for line in lines if line["kind"] == "saved"][-1]["step"] == step
    assert lines[-1]["reason"] == number.name
    same(run(tmp_path / "run"), unbroken)
    assert signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL)


def test_a_full_disk(tmp_path: Path, unbroken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """OSError; the earlier checkpoints are whole, and the run goes on from them."""
    saves = []
    write = Checkpoints._save_arrays

    def full(self: Checkpoints, *args: Any) -> None:
        write(self, *args)
        saves.append(args)
        if len(saves) == 7:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Checkpoints, "_save_arrays", full)
    with pytest.raises(OSError, match="No space left"):
        run(tmp_path / "run")
    monkeypatch.undo()
    same(run(tmp_path / "run"), unbroken)


def test_a_full_disk_hides_no_other_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it keep the callbacks from being told of the end."""
    write, told = Recorder.write, list[str]()

    def full(self: Recorder, kind: str, /, **values: Any) -> None:
        if kind == "end":
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, kind, **values)

    def callback(event: Event) -> None:
        told.append(event.kind)

    monkeypatch.setattr(Recorder, "write", full)
    with pytest.raises(ZeroDivisionError):
        run(tmp_path / "run", [callback, Breaks("step", 3, error=ZeroDivisionError)])
    assert told[-1] == "end"
    with pytest.raises(OSError, match="No space left"):
        run(tmp_path / "other", [callback])
    assert told[-1] == "end"


@pytest.mark.parametrize("always", [False, *thorough(True)])
def test_back_to_a_checkpoint_after_a_torn_update(
    tmp_path: Path, unbroken: Any, monkeypatch: pytest.MonkeyPatch, always: bool
) -> None:
    """A worker raises in the middle of an update: once, or again and again."""
    apply, flag, steps = FlatUpdate.apply, tmp_path / "failed", [0]

    def failing(self: FlatUpdate, given: Any, scalars: Any) -> None:
        apply(self, given, scalars)
        steps[0] += 1
        if synk.rank() == 1 and steps[0] >= 9 and (always or not flag.exists()):
            flag.touch()
            raise ZeroDivisionError("in the update")

    monkeypatch.setattr(FlatUpdate, "apply", failing)
    if always:
        with pytest.raises(synk.WorkerError, match="in the update"):
            run(tmp_path / "run", torn="restore")
        return
    with pytest.raises(synk.WorkerError, match="in the update"):
        run(tmp_path / "other")
    flag.unlink()
    steps[0] = 0
    same(run(tmp_path / "run", torn="restore"), unbroken)


def test_back_to_a_checkpoint_after_a_death_in_an_update(
    tmp_path: Path, unbroken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker dies there: the workers are restarted, and half of the values are new."""
    apply, flag, steps = FlatUpdate.apply, tmp_path / "died", [0]

    def dying(self: FlatUpdate, given: Any, scalars: Any) -> None:
        steps[0] += 1
        if synk.rank() == 1 and steps[0] == 9 and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        apply(self, given, scalars)

    monkeypatch.setattr(FlatUpdate, "apply", dying)
    with pytest.raises(synk.WorkerDied, match="rank 1"):
        run(tmp_path / "other", torn="restore")  # no restart is left
    flag.unlink()
    steps[0] = 0
    same(run(tmp_path / "run", torn="restore", restarts=1), unbroken)
    assert flag.exists()


@pytest.mark.thorough  # of any program: tests/faults/test_interrupts.py
def test_an_interrupt_leaves_no_traceback(tmp_path: Path) -> None:
    """The run has said where it ended; Python's exit is that of a Ctrl-C. Others are shown."""
    code = (
        "import os, signal\n"
        "from synkhronos.training._run.signals import Signals\n"
        "if other := os.fork():\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))\n"
        "with Signals(False) as signals:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "if not other: raise KeyError('a defect')\n"
        "try: signals.act()\n"
        "except KeyboardInterrupt: pass\n"
        "signals.act()\n"
    )
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGINT, "1\n")
    others, shown, own = done.stderr.partition("KeyError: 'a defect'\n")
    assert shown
    for said, traceback in ((others, True), (own, False)):
        assert "SIGINT: the run ends after this step" in said
        assert ("Traceback" in said) == traceback


def test_a_second_interrupt_is_at_once(tmp_path: Path) -> None:
    def twice(event: Event) -> None:
        if event.step == 3 and event.kind == "step":
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(LIMIT)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", [twice])


@pytest.fixture
def usual_alarm() -> Iterator[None]:
    """SIGALRM has no handler: a limit of the test's time does not go on meanwhile."""
    left, every = signal.setitimer(signal.ITIMER_REAL, 0)
    handler = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, left, every)


@pytest.mark.usefixtures("usual_alarm")
@pytest.mark.parametrize("first", [(), (signal.SIGINT,)])
def test_sigterm_limits_the_step(first: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a Ctrl-C, which the run names as its reason."""
    ended: list[int] = []
    monkeypatch.setattr(signals, "GRACE", 0.02)
    monkeypatch.setattr(signals, "end", ended.append)
    with signals.Signals(True) as noted:
        for number in (*first, signal.SIGTERM, signal.SIGTERM):
            os.kill(os.getpid(), number)
        until = time.monotonic() + LIMIT
        while not ended and time.monotonic() < until:
            time.sleep(0.001)
    assert ended == [signal.SIGTERM]
    assert noted.received == (*first, signal.SIGTERM)[0]
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def test_a_fork_ends_by_sigterm() -> None:
    """Else the end of a `multiprocessing.Pool` in a callback would take half a minute."""
    with signals.Signals(True):
        pid = fork_to(lambda: os.kill(os.getpid(), signal.SIGTERM))
        assert os.waitpid(pid, 0)[1] == signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL


def test_resumed_by_another_number_of_members(tmp_path: Path, unbroken: Any) -> None:
    """It goes on, with a warning about the generators."""
    with pytest.raises(OSError, match="broken off"):
        run(tmp_path / "run", [Breaks("epoch", 18)])
    with pytest.warns(synk.ReplicaWarning, match="saved by 2 members"):
        found = run(tmp_path / "run", members=1)
    assert len(found[2]) == 4
    assert found[2][:2] == unbroken[2][:2]
    # the checkpoint is that of step 12: one member adds up the rows of the third in another order
    assert found[2][2] == pytest.approx(unbroken[2][2], rel=1e-12)


def test_what_is_there_already(tmp_path: Path, unbroken: Any) -> None:
    """A folder with a run needs resume=; a finished one has nothing left to do."""
    same(run(tmp_path / "run"), unbroken)
    with pytest.raises(synk.InputError, match="resume"):
        run(tmp_path / "run", resume=None)
    same(run(tmp_path / "run"), unbroken)
    with pytest.raises(synk.InputError, match="no checkpoint of step 5"):
        run(tmp_path / "run", resume=5)


def test_a_second_fit_goes_on(group2: synk.Group, tmp_path: Path) -> None:
    """As one fit of all epochs; with a folder too."""
    found = []
    for parts in ([4], [1, 3, 4]):
        x, w = pt.dmatrix("x"), pytensor.shared(np.zeros(3), name="w")
        rows = np.random.default_rng(0).normal(size=(50, 3))
        with pytensor.config.change_flags(mode=FAST):
            trainer: Any = fit(
                ((x - w) ** 2).mean(),
                [w],
                x,
                rows,
                optimizer=ema(functools.partial(updates.adam, learning_rate=0.1)),
                batch=7,
                epochs=parts[0],
                folder=tmp_path / str(len(parts)),
                progress=False,
            )
            for epochs in parts[1:]:
                trainer.fit(rows, batch=7, epochs=epochs)
        found.append((w.get_value(), trainer.history["loss"]))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]
    assert isinstance(trainer, Trainer)


KILLED = (
    RUN
    + """
print("ready", flush=True)
run(sys.argv[1])
"""
)


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    path = tmp_path / "run.py"
    path.write_text(KILLED)
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, str(path), str(tmp_path / "run")]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.thorough  # of a loop: tests/faults/test_resume.py
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_kills_at_any_moment(
    tmp_path: Path,
    unbroken: Any,
    script: Callable[[], subprocess.Popen[bytes]],
    trials: Callable[[Any, Any], Any],
) -> None:
    """After each kill the record can be read, and the run goes on to the same bits."""
    rng = random.Random(0)
    seconds, ended = 4.0, 0
    for trial in range(trials(1, 200)):
        process = script()
        begin = time.monotonic()
        number = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)[trial % 3]
        try:
            process.wait(rng.uniform(0.0, seconds))
        except subprocess.TimeoutExpired:
            process.send_signal(number)
            process.wait(LIMIT)
        if process.returncode == 0:
            ended += 1
            seconds = min(seconds, time.monotonic() - begin)
            same(run(tmp_path / "run"), unbroken)
            for path in sorted((tmp_path / "run").rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
        if (tmp_path / "run" / "metrics.jsonl").exists():
            read_metrics(tmp_path / "run")
    same(run(tmp_path / "run"), unbroken)
