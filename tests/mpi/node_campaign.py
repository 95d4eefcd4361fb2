"""The fault campaign over nodes: each fault in each state, counted. scripts/chaos runs it; tests, a
sample.

    python tests/mpi/node_campaign.py [--kills N] [--seed N] [--stages N] [--mpi mpich]

Each point is a job of `node_program.py`. Nodes are processes of the launch on this machine; for a
link that is cut they are in two network namespaces.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from campaign import Counts, Point, chosen, run
from hosts import two_hosts
from launching import KINDS, Launcher, launcher
from node_program import STATES, Job

from synkhronos.testing.killing import CALLS, GONE, NEVER, STOP, Outcome

PROGRAM = Path(__file__).parent / "node_program.py"
LAYOUTS = ((2, 1), (2, 2), (3, 1))  # nodes, members of each
COMPUTING = ("call", "step", "overlap", "round", "free")  # states in which a member can raise
FAULTS = ("kill", "stop", "exception", "cut, healed", "cut")
LIMIT = 60.0  # seconds for a process of a trial to come to its place, or to end
PROMPT = 2.0  # seconds from a worker's death to the exception
OVER = 10.0  # seconds from the death of a process of the launch, or from an error, to the end
STALLED = 5.0  # the group's limit where a member is stopped or the link is cut
PATIENCE = 30.0  # seconds in which the last process must have ended to be measured
SHORT, LONG = 1.5, 9.0  # seconds for which a link is cut: without a limit, and beyond it


def job_of(found: Outcome) -> Job:
    """What the trial was."""
    return Job.of(found.argument)


def fault_of(found: Outcome) -> str:
    """One of FAULTS."""
    job = job_of(found)
    if job.cut:
        return "cut" if job.timeout else "cut, healed"
    if job.raises is not None:
        return "exception"
    return "stop" if found.fault == STOP else "kill"


def judge(found: Outcome) -> str:
    """What is wrong with an outcome; nothing if all is as promised."""
    if found.hung:
        return f"hung for {LIMIT:.0f} s: {found.events} {found.printed[-2000:]}"
    left = [what for what in found.left if job_of(found).state != "start" or not _is_known(what)]
    if left:
        return f"left {left}"
    healed = found.said("healed") or 0.0
    if found.gone - max(found.ended, healed) > (OVER if healed else GONE):
        return f"the last process ended {found.gone - found.ended:.1f} s after the launcher"
    fault = fault_of(found)
    if fault == "kill" and found.reached:
        return _after_kill(found)
    if fault == "stop" and found.reached:
        return _after_stop(found)
    if fault == "cut":
        return _stalled(found, 1)
    if fault == "exception":
        wrong = _names(found, "WorkerError", job_of(found).raises or 0)
        if wrong:
            return wrong
    return _went_on(found)


def _is_known(left: str) -> bool:
    """Whether it is MPICH's, of a job that was killed in MPI's start: see the page of promises."""
    return left.startswith("/dev/shm/mpich_shm_")


def _went_on(found: Outcome, last: str = "finished") -> str:
    if found.status or found.said(last) is None or found.said("again") is None:
        return f"did not go on, status {found.status}: {found.events} {found.printed[-2000:]}"
    return ""


def _after_kill(found: Outcome) -> str:
    job = job_of(found)
    assert found.died is not None
    if not _is_worker(found):
        if not found.status:
            return f"the launcher's status is 0: {found.events}"
        if found.ended - found.died > OVER:
            return f"ended after {found.ended - found.died:.1f} s: {found.events}"
        return ""
    if found.said("finished") is not None:  # it was killed as the group ended
        return _went_on(found)
    rank = int(found.victim.split()[-1])
    if found.victim.startswith("start"):
        rank = rank * job.members + 1
        if found.said("WorkerDied") is None:
            return _names(found, "StartFailed", rank) or _went_on(found, "StartFailed")
    wrong = _names(found, "WorkerDied", rank)
    said = found.said("WorkerDied")
    if not wrong and said is not None and said - found.died > PROMPT:
        return f"noticed after {said - found.died:.2f} s"
    return wrong or _went_on(found, "WorkerDied")


def _is_worker(found: Outcome) -> bool:
    """Whether the victim is no process of the launch."""
    if found.victim.startswith("start"):
        return "worker" in found.victim
    return found.victim != "master" and int(found.victim.split()[1]) % job_of(found).members > 0


def _after_stop(found: Outcome) -> str:
    if found.said("finished") is not None:  # what a member does as its group ends keeps nobody
        return _over(found)
    return _stalled(found, int(found.victim.split()[1]))


def _stalled(found: Outcome, rank: int) -> str:
    """The master has named the node within the limit, and the job has ended badly."""
    job = job_of(found)
    wrong = _names(found, "GroupTimeout", rank if job.cut == [] else job.members)
    if not wrong and not found.status:
        return "the launcher's status is 0"
    return wrong or _over(found)


def _over(found: Outcome) -> str:
    """It has ended in time after what the master said last."""
    last = max(at for at, text in found.events if text != "healed")
    return f"ended after {found.ended - last:.1f} s" if found.ended - last > OVER else ""


def _names(found: Outcome, error: str, rank: int) -> str:
    """Whether the master has said an error with the rank, and the node unless it is its own."""
    node = rank // job_of(found).members
    said = next((text for _, text in found.events if text.startswith(error)), "")
    if rank == 0:  # its own exception, which has a note
        said = next((text for _, text in found.events if "rank 0" in text), "")
        return "" if said else f"no error of rank 0: {found.events}"
    place = (
        f"rank {rank} (pid" if error != "StartFailed" else f"rank {rank % job_of(found).members}"
    )
    wanted = [place, *([f"node {node} ("] if node else [])]
    missing = [words for words in wanted if words not in said]
    return f"{error} does not name {missing}: {found.events}" if missing else ""


def _state(point: Point) -> str:
    return Job.of(point.argument).state


def victims(job: Job) -> list[str]:
    """The processes to kill or stop in a state."""
    if job.state == "start":
        nodes = range(job.nodes)
        workers = [f"start of a worker of node {n}" for n in nodes] if job.members > 1 else []
        return [*(f"start of node {n}" for n in nodes), *workers]
    return ["master", *(f"rank {rank}" for rank in range(1, job.nodes * job.members))]


def jobs(mpi: Launcher) -> Iterator[Job]:
    """A job without a fault for each layout and state."""
    for (nodes, members), state in itertools.product(LAYOUTS, STATES):
        yield Job(nodes, members, state, list(mpi.command), mpi.environment)


def unharmed(mpi: Launcher) -> list[Point]:
    """Each victim in each state, without a fault."""
    return [Point(v, NEVER, argument=str(job)) for job in jobs(mpi) for v in victims(job)]


def killed(seen: Sequence[Outcome], wanted: int, draw: random.Random) -> Iterator[Point]:
    """Kills of each victim, spread over what it did in each state."""
    for i, found in enumerate(seen):
        yield from chosen(found, wanted * (i + 1) // len(seen) - wanted * i // len(seen), draw)


def stopped(mpi: Launcher, draw: random.Random) -> Iterator[Point]:
    """Each member but the master is stopped in each state but the start."""
    for job in jobs(mpi):
        limited = str(dataclasses.replace(job, timeout=STALLED))
        for victim in victims(job)[1:] if job.state != "start" else ():
            yield Point(victim, draw.randrange(1, 12), CALLS, STOP, limited)


def raised(mpi: Launcher) -> Iterator[Point]:
    """Each member raises in each state in which it computes."""
    for job in jobs(mpi):
        for rank in range(job.nodes * job.members) if job.state in COMPUTING else ():
            yield Point("", 0, argument=str(dataclasses.replace(job, raises=rank)))


def cut(mpi: Launcher, folder: Path) -> Iterator[Point]:
    """The link of two hosts is cut in each state: for a while, and for longer than the limit."""
    with two_hosts(folder) as hosts:
        for job in jobs(hosts.launcher(mpi)):
            if job.nodes == 2 and job.state != "start":
                given = dataclasses.replace(job, cut=hosts.cut(), heal=hosts.heal(), seconds=SHORT)
                yield Point("", 0, argument=str(given))
                if job.state != "end":  # an idle group waits for nothing
                    given = dataclasses.replace(given, timeout=STALLED, seconds=LONG)
                    yield Point("", 0, argument=str(given))


class Table:
    """Counts by state and fault, and the names of MPICH's memory that jobs have left."""

    def __init__(self) -> None:
        self.cells: dict[tuple[str, str], Counts] = defaultdict(lambda: Counts(judge))
        self.named: set[str] = set()

    def add(self, found: Outcome) -> None:
        """Judge one outcome."""
        job = job_of(found)
        fault = fault_of(found)
        counts = self.cells[job.state, fault]
        before = len(counts.wrong)
        counts.add(found)
        self.named.update(filter(_is_known, found.left))
        for line in counts.wrong[before:]:
            print(f"{job.nodes} x {job.members}, {job.state}, {fault}: {line}", flush=True)

    def wrong(self) -> int:
        """How many outcomes are not as promised."""
        return sum(len(counts.wrong) for counts in self.cells.values())

    def show(self) -> None:
        """Print it: trials, and of these those that went wrong."""
        rows = [["state", *FAULTS]]
        for state in STATES:
            counts = [self.cells[state, fault] for fault in FAULTS]
            rows.append([state, *(f"{_trials(c)}, {len(c.wrong)} wrong" for c in counts)])
        totals = [sum(_trials(self.cells[s, fault]) for s in STATES) for fault in FAULTS]
        rows.append(["all", *map(str, totals)])
        for row in rows:
            print(f"{row[0]:12}" + "".join(f"{text:>16}" for text in row[1:]))
        print(f"MPICH's named memory, left by jobs killed in MPI's start: {len(self.named)} files")
        delays = sorted(d for state in STATES for d in self.cells[state, "kill"].delays)
        if delays:
            middle, longest = delays[len(delays) // 2], delays[-1]
            print(
                f"from a worker's death to the exception: {1e3 * middle:.0f} ms (median), "
                f"{1e3 * longest:.0f} ms (max) in {len(delays)} cases"
            )


def _trials(counts: Counts) -> int:
    """Those in which the fault came; kills and stops may come after the victim's end."""
    return counts.points if counts.points else counts.beyond


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=220)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stages", type=int, default=2, help="trials at a time")
    parser.add_argument("--mpi", choices=KINDS, default=KINDS[0])
    parser.add_argument("--faults", nargs="*", choices=("kill", "stop", "exception", "cut"))
    args = parser.parse_args()
    draw, mpi, table = random.Random(args.seed), launcher(args.mpi), Table()
    wanted = args.faults or ("kill", "stop", "exception", "cut")
    began = time.monotonic()
    work: list[Point] = []
    if "kill" in wanted:
        seen: list[Outcome] = []
        run(unharmed(mpi), args.stages, seen.append, PROGRAM, LIMIT, PATIENCE)
        work += killed(seen, args.kills, draw)
    if "stop" in wanted:
        work += stopped(mpi, draw)
    if "exception" in wanted:
        work += raised(mpi)
    draw.shuffle(work)
    for early in (False, True):  # apart, since all jobs see each other's named memory
        these = [point for point in work if (_state(point) == "start") is early]
        run(these, args.stages, table.add, PROGRAM, LIMIT, PATIENCE)
    if "cut" in wanted:
        with tempfile.TemporaryDirectory() as folder:
            try:
                for point in cut(mpi, Path(folder)):
                    run([point], 1, table.add, PROGRAM, LIMIT, PATIENCE)
            except pytest.skip.Exception as exc:
                print(f"no link was cut: {exc}")
    table.show()
    print(f"{time.monotonic() - began:.0f} s")
    return bool(table.wrong())


if __name__ == "__main__":
    sys.exit(main())
