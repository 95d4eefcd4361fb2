"""The fault campaign: kill points by the thousand, counted. scripts/chaos runs it; tests, a sample.

    python tests/faults/campaign.py [--points N] [--shortages N] [--seed N] [--members N]

Each point is a run of `whole.py` in which one process is killed at one system call, or one system
call fails. Points are spread over all system calls of each victim, which are counted first.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue

from synkhronos.testing.killing import CALLS, GONE, KILL, LIMIT, NEVER, Outcome, Stage, points

SCENARIO = Path(__file__).parent / "whole.py"
MEMBERS = 3
VICTIMS = ("start", "master", "start of 1", "start of 2", "rank 1", "rank 2")
# System calls that fail as they do when something is short.
SHORTAGES = (
    ("memfd_create", "ENOMEM"),
    ("eventfd2", "EMFILE"),
    ("pidfd_open", "EMFILE"),
    ("pipe2", "EMFILE"),
    ("fcntl", "EINVAL"),
    ("ftruncate", "ENOSPC"),
    ("fallocate", "ENOSPC"),
    ("mmap", "ENOMEM"),
    ("clone", "EAGAIN"),  # processes; threads are made by clone3
)
SHORT_OF = ("start", "rank 1")  # the victims of these
PROMPT = 1.0  # seconds from a worker's death to the exception
LONGEST = 5.0  # seconds from a death to the end of all, a second group included


@dataclass
class Counts:
    """What a campaign has found; `judge` says what is wrong with an outcome."""

    judge: Callable[[Outcome], str]
    points: int = 0
    beyond: int = 0  # the victim came to its end before its k-th call
    wrong: list[str] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)  # from a death to the exception

    def add(self, found: Outcome) -> None:
        """Judge one outcome."""
        if not found.reached and not found.hung:
            self.beyond += 1
        else:
            self.points += 1
        fault = self.judge(found)
        if fault:
            self.wrong.append(f"{found.victim} at {found.calls} {found.k}: {fault}")
        said = found.said("WorkerDied")
        if said is not None and found.died is not None:
            self.delays.append(max(0.0, said - found.died))

    def report(self) -> str:
        """One line of figures."""
        delays = sorted(self.delays) or [0.0]
        p99 = delays[min(len(delays) - 1, int(0.99 * len(delays)))]
        return (
            f"{self.points}, {len(self.wrong)} wrong; from a worker's death to the exception "
            f"{1e3 * delays[len(delays) // 2]:.1f} ms (median), {1e3 * p99:.1f} ms (p99), "
            f"{1e3 * delays[-1]:.1f} ms (max) in {len(self.delays)} cases"
        )


def judge(found: Outcome) -> str:
    """What is wrong with an outcome; nothing if all is as promised."""
    if found.hung:
        return f"hung for {LIMIT:.0f} s: {found.events} {found.printed[-2000:]}"
    if found.left:
        return f"left {found.left}"
    if found.died is not None and found.ended - found.died > LONGEST:
        return f"took {found.ended - found.died:.1f} s: {found.events}"
    worker, killed = found.victim.startswith(("rank", "start of")), found.fault == KILL
    if found.reached and killed and not worker:
        return "" if found.status == signal.SIGKILL else f"ended with status {found.status}"
    if found.status or found.said("again") is None:
        return f"ended with status {found.status}: {found.events} {found.printed[-2000:]}"
    if not killed:
        return ""
    said, finished = found.said("WorkerDied"), found.said("finished")
    if said is None and finished is None:
        return f"no word of a death: {found.events}"
    if said is not None and found.died is not None and said - found.died > PROMPT:
        return f"noticed after {said - found.died:.2f} s"
    if not found.reached and finished is None:
        return f"failed though nothing was killed: {found.events}"
    return ""


def spread[T](places: Sequence[T], wanted: int, draw: random.Random) -> Iterator[T]:
    """All of the places, or one from each of as many stretches as wanted."""
    if wanted >= len(places):
        yield from places
        return
    for i in range(wanted):
        first, last = len(places) * i // wanted, len(places) * (i + 1) // wanted
        yield places[draw.randrange(first, last)]


@dataclass(frozen=True)
class Point:
    """A trial to make: the k-th of these calls."""

    victim: str
    k: int
    calls: str = CALLS
    fault: str = KILL
    argument: str = str(MEMBERS)


def measured(
    stage: Stage,
    victim: str,
    wanted: int,
    draw: random.Random,
    calls: str = CALLS,
    fault: str = KILL,
    argument: str = str(MEMBERS),
) -> list[Point]:
    """Points spread over what the victim does, which is seen first."""
    return chosen(stage.trial(victim, NEVER, calls, fault, argument), wanted, draw)


def chosen(seen: Outcome, wanted: int, draw: random.Random) -> list[Point]:
    """Points spread over what a victim did in a trial without a fault."""
    places = spread(points(seen.made), wanted, draw)
    return [Point(seen.victim, k, name, seen.fault, seen.argument) for name, k in places]


def run(
    work: Sequence[Point],
    stages: int,
    add: Callable[[Outcome], None],
    scenario: Path = SCENARIO,
    limit: float = LIMIT,
    gone: float = GONE,
) -> None:
    """Add the outcomes of all points, several stages at a time."""
    queue: Queue[Point] = Queue()
    for point in work:
        queue.put(point)
    lock = threading.Lock()

    def serve() -> None:
        with Stage(scenario, limit, gone) as stage:
            while True:
                try:
                    p = queue.get_nowait()
                except Empty:
                    return
                try:
                    found = stage.trial(p.victim, p.k, p.calls, p.fault, p.argument)
                except RuntimeError as exc:  # it did not come to the place: as bad as a hang
                    found = Outcome(p.victim, p.k, p.calls, p.fault, argument=p.argument)
                    found.printed = str(exc)
                with lock:
                    add(found)

    threads = [threading.Thread(target=serve) for _ in range(stages)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=2000, help="at which processes are killed")
    parser.add_argument("--shortages", type=int, default=200, help="system calls that fail")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stages", type=int, default=2, help="trials at a time")
    parser.add_argument("--members", type=int, default=MEMBERS, help="of the group")
    args = parser.parse_args()
    draw, members = random.Random(args.seed), str(args.members)
    with Stage(SCENARIO) as stage:
        wanted = args.points // len(VICTIMS)
        kills = [p for v in VICTIMS for p in measured(stage, v, wanted, draw, argument=members)]
        share = args.shortages // (len(SHORTAGES) * len(SHORT_OF))
        short = [
            p
            for victim in SHORT_OF
            for calls, error in SHORTAGES
            for p in measured(stage, victim, share, draw, calls, f"error={error}", members)
        ]
    wrong = []
    for what, work in (("kill points", kills), ("system calls that failed", short)):
        draw.shuffle(work)
        began = time.monotonic()
        counts = Counts(judge)
        run(work, args.stages, counts.add)
        print(f"{what}: {counts.report()}; {time.monotonic() - began:.0f} s", flush=True)
        wrong += counts.wrong
    for line in wrong:
        print(line)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
