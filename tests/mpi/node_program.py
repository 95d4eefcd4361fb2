"""A scenario over nodes: a launcher starts this file, whose group is in one state when a fault
comes; whatever happens, the master says so, and starts another group if it can."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import synkhronos as synk
from synkhronos import rules
from synkhronos._backends.mpi import launch
from synkhronos._engine.commands.base import Command
from synkhronos._engine.member import Member
from synkhronos.extensions import Batches, make_train_function, updates
from synkhronos.extensions.checkpoints import Checkpoints
from synkhronos.testing import leaks
from synkhronos.testing.killing import Trial

FAST = Mode("py", None)
ROWS = np.ones((24, 3))
LARGE = 20_000  # elements: more than leaders send with an agreement
TURNS = 4  # of the state, after the mark
FAILED = 3  # the exit code of a script that could not start another group


@dataclass(frozen=True)
class Job:
    """What a trial's argument says.

    Attributes
    ----------
    nodes, members : int
        The processes of the launch, and the members of each.
    state : str
        A key of STATES.
    command : list of str
        The launcher.
    timeout : float or None
        The group's limit in the state, and that for the start of the next group.
    raises : int or None
        The member whose next computation raises.
    cut, heal : list of list of str
        Commands that cut the link between two hosts, and heal it.
    seconds : float
        How long it is cut.
    """

    nodes: int
    members: int
    state: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    timeout: float | None = None
    raises: int | None = None
    cut: list[list[str]] = field(default_factory=list)
    heal: list[list[str]] = field(default_factory=list)
    seconds: float = 0.0

    @classmethod
    def of(cls, argument: str) -> Job:
        """The inverse of `str`."""
        return cls(**json.loads(argument))

    def __str__(self) -> str:
        return json.dumps(asdict(self))


def scenario(trial: Trial) -> None:
    """In the stage: become the launcher."""
    job = Job.of(trial.argument)
    os.environ.update(job.environment, PYTHONUNBUFFERED="1")
    program = [sys.executable, "-P", __file__, str(trial.folder), trial.victim, trial.argument]
    command = [*job.command, "-n", str(job.nodes), *program]
    if job.cut:
        if not (child := os.fork()):
            if not os.fork():  # no child of the launcher, which awaits its own
                interrupt(trial, job)
            os._exit(0)
        os.waitpid(child, 0)
    os.execvp(command[0], command)


def interrupt(trial: Trial, job: Job) -> None:
    """Cut the link when the state is reached, and heal it."""
    events = trial.folder / "events"
    while not (events.exists() and "ready" in events.read_text()):
        time.sleep(0.01)
    for command in job.cut:
        subprocess.run(command, check=True)
    trial.say("cut")
    time.sleep(job.seconds)
    for command in job.heal:
        subprocess.run(command, check=True)
    trial.say("healed")


def main(trial: Trial) -> int:
    """The program; all but the first process stay in `fork`."""
    job = Job.of(trial.argument)
    started = launch()
    assert started is not None
    trial.pause(f"start of node {started.rank}")
    os.register_at_fork(
        after_in_child=lambda: trial.pause(f"start of a worker of node {started.rank}")
    )
    try:
        work(trial, job)
        trial.say("finished")
    except synk.GroupTimeout as exc:
        trial.say(told(exc))
        return FAILED
    except Exception as exc:
        trial.say(told(exc))
        synk.close()
    try:
        again(job)
    except Exception as exc:
        trial.say(f"later {told(exc)}")
        return FAILED
    trial.say("again")
    return 0


def told(exc: BaseException) -> str:
    """An exception with all that it says."""
    notes = "".join(getattr(exc, "__notes__", ()))
    return f"{type(exc).__name__}: {exc} {exc.__cause__ or ''} {notes}"


def work(trial: Trial, job: Job) -> None:
    """The group, and the state in which the fault comes."""
    synk.fork(job.members)
    turn = STATES[job.state](trial.folder)
    turn()
    group = synk.current_group()
    before = group.run(Held())
    trial.mark(group)
    if job.timeout is not None:  # from here on: a busy machine takes long to compile
        group.channel.inspector.limit = job.timeout
    trial.say("ready")
    if job.raises is not None:
        raised(trial, job, turn)
    for _ in range(TURNS):
        turn()
    if job.cut:
        await_healed(trial, turn)
    assert group.run(Held()) == before
    synk.close()


def raised(trial: Trial, job: Job, turn: Callable[[], None]) -> None:
    """A turn in which a member raises; the next ones are right."""
    armed = trial.folder / f"raise {job.raises}"
    armed.touch()
    try:
        turn()
    except Exception as exc:
        trial.say(told(exc))
    armed.unlink()


def await_healed(trial: Trial, turn: Callable[[], None]) -> None:
    """Go on until the link has been cut and healed."""
    while "healed" not in (trial.folder / "events").read_text():
        turn()
        time.sleep(0.05)
    turn()


def again(job: Job) -> None:
    """A group of one member on each node, a function, a call."""
    synk.fork(1, timeout=job.timeout)
    x = pt.vector("x", dtype="float64")
    assert synk.function([x], x.sum(), mode=FAST)(np.ones(5)) == 5
    synk.close()


@dataclass(frozen=True)
class Held(Command):
    """How many children, descriptors of groups, and threads each member has."""

    pure = True

    def run(self, member: Member) -> list[int]:
        held = leaks.snapshot()
        return [len(held.children), len(held.descriptors), held.threads]

    def answer(self, member: Member, own: Any, reports: dict[int, Any]) -> list[list[int]]:
        return [own if rank == member.master else reports[rank] for rank in range(member.size)]


class Factor(Op):
    """The number 1, unless a file says that this member shall raise."""

    __props__ = ("folder",)

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def make_node(self) -> Apply:
        return Apply(self, [], [pt.dscalar()])

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        rank = 0 if Member.serving is None else Member.serving.rank
        if os.path.exists(f"{self.folder}/raise {rank}"):
            raise LookupError(f"by member {rank}")
        output_storage[0][0] = np.asarray(1.0)


def factor(folder: Path) -> Any:
    """It changes no value."""
    return Factor(str(folder))()


def call(folder: Path) -> Callable[[], None]:
    """Calls, with a small output, and one that is reduced between leaders."""
    x = pt.matrix("x", dtype="float64")
    total = (x * factor(folder)).sum()
    f = synk.function([x], [total, (total + pt.zeros(LARGE), "sum")], mode=FAST)

    def turn() -> None:
        small, large = f(ROWS)
        assert small == ROWS.sum() == large[-1], (small, large)

    return turn


def trained(folder: Path, **options: Any) -> tuple[Any, Any]:
    """A training function, and its parameters."""
    x = pt.matrix("x", dtype="float64")
    w = pytensor.shared(np.zeros(3), name="w")
    v = pytensor.shared(np.zeros(LARGE), name="v")
    y = (x * factor(folder)) @ w + v.mean() - 1.0
    return make_train_function(
        (y**2).mean(), [w, v], x, None, updates.momentum, 0.01, mode=FAST, **options
    ), w


def step(folder: Path, **options: Any) -> Callable[[], None]:
    """Training steps."""
    train, w = trained(folder, **options)

    def turn() -> None:
        before = w.get_value()
        assert np.isfinite(train(ROWS))
        assert (w.get_value() != before).all()

    return turn


def overlapping(folder: Path) -> Callable[[], None]:
    """Training steps whose gradients are added up while members compute."""
    return step(folder, overlap=True)


def rounds(folder: Path) -> Callable[[], None]:
    """Rounds of two steps and a meeting."""
    train, w = trained(folder, rule=rules.Average(2))

    def turn() -> None:
        before = w.get_value()
        for _ in range(2):
            train(ROWS)
        assert (w.get_value() != before).all()

    return turn


def free(folder: Path) -> Callable[[], None]:
    """A free rule on each node, between rounds of the nodes."""
    train, w = trained(folder, rule=rules.Nodes(rules.Downpour(), rules.Average(2)))
    data = train.build_inputs(ROWS)

    def turn() -> None:
        before = w.get_value()
        with train.start(data, Batches(len(ROWS), 3, seed=1), epochs=1) as run:
            run.wait()
        assert (w.get_value() != before).all()

    return turn


def checkpoint(folder: Path) -> Callable[[], None]:
    """Checkpoints, written and read, and a step, with which the other nodes get what was read."""
    train, _ = trained(folder)
    train(ROWS)
    saved = Checkpoints(folder / "checkpoints", train)
    numbers = itertools.count(1)

    def turn() -> None:
        number = next(numbers)
        saved.save(number)
        assert saved.restore()["step"] == number
        train(ROWS)

    return turn


def nothing(folder: Path) -> Callable[[], None]:
    """The fault comes at the start, or while the group ends."""
    return lambda: None


STATES: dict[str, Callable[[Path], Callable[[], None]]] = {
    "start": nothing,
    "call": call,
    "step": step,
    "overlap": overlapping,
    "round": rounds,
    "free": free,
    "checkpoint": checkpoint,
    "end": nothing,
}


if __name__ == "__main__":
    sys.exit(main(Trial(Path(sys.argv[1]), *sys.argv[2:])))
