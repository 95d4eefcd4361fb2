"""The fault campaign: kill points by the thousand, counted. scripts/chaos runs it; tests, a sample.

    python tests/faults/campaign.py [--points N] [--seed N] [--victims NAME ...]

Each point is a run of `whole.py` in which one process is killed at one system call. Points are
spread over all system calls of each victim, which are counted first.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue

from synkhronos.testing.killing import LIMIT, NEVER, Outcome, Stage

SCENARIO = Path(__file__).parent / "whole.py"
VICTIMS = ("start", "master", "start of 1", "start of 2", "rank 1", "rank 2")
PROMPT = 1.0  # seconds from a worker's death to the exception
LONGEST = 5.0  # seconds from a death to the end of all, a second group included


@dataclass
class Counts:
    """What a campaign has found."""

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
        fault = judge(found)
        if fault:
            self.wrong.append(f"{found.victim} at call {found.k}: {fault}")
        said = found.said("WorkerDied")
        if said is not None and found.died is not None:
            self.delays.append(max(0.0, said - found.died))

    def report(self) -> str:
        """One line of figures."""
        delays = sorted(self.delays) or [0.0]
        p99 = delays[min(len(delays) - 1, int(0.99 * len(delays)))]
        return (
            f"{self.points} kill points, {len(self.wrong)} wrong; from a worker's death to the "
            f"exception {1e3 * delays[len(delays) // 2]:.1f} ms (median), {1e3 * p99:.1f} ms "
            f"(p99), {1e3 * delays[-1]:.1f} ms (max)"
        )


def judge(found: Outcome) -> str:
    """What is wrong with an outcome; nothing if all is as promised."""
    if found.hung:
        return f"hung for {LIMIT:.0f} s: {found.events} {found.printed[-2000:]}"
    if found.left:
        return f"left {found.left}"
    if found.died is not None and found.ended - found.died > LONGEST:
        return f"took {found.ended - found.died:.1f} s: {found.events}"
    worker = found.victim.startswith(("rank", "start of"))
    if found.reached and not worker:
        return "" if found.status == signal.SIGKILL else f"ended with status {found.status}"
    if found.status or found.said("again") is None:
        return f"ended with status {found.status}: {found.events} {found.printed[-2000:]}"
    said, finished = found.said("WorkerDied"), found.said("finished")
    if said is None and finished is None:
        return f"no word of a death: {found.events}"
    if said is not None and found.died is not None and said - found.died > PROMPT:
        return f"noticed after {said - found.died:.2f} s"
    if not found.reached and finished is None:
        return f"failed though nothing was killed: {found.events}"
    return ""


def spread(total: int, points: int, draw: random.Random) -> Iterator[int]:
    """Points over 1 .. total: all of them, or one from each of as many stretches as wanted."""
    if points >= total:
        yield from range(1, total + 1)
        return
    for i in range(points):
        yield draw.randint(total * i // points + 1, total * (i + 1) // points)


def run(work: Sequence[tuple[str, int]], stages: int) -> Counts:
    """All points, several stages at a time."""
    queue: Queue[tuple[str, int]] = Queue()
    for item in work:
        queue.put(item)
    counts, lock = Counts(), threading.Lock()

    def serve() -> None:
        with Stage(SCENARIO) as stage:
            while True:
                try:
                    victim, k = queue.get_nowait()
                except Empty:
                    return
                found = stage.trial(victim, k)
                with lock:
                    counts.add(found)

    threads = [threading.Thread(target=serve) for _ in range(stages)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--victims", nargs="+", default=VICTIMS, choices=VICTIMS)
    parser.add_argument("--stages", type=int, default=2)
    args = parser.parse_args()
    draw = random.Random(args.seed)
    with Stage(SCENARIO) as stage:
        lengths = {victim: stage.trial(victim, NEVER).calls for victim in args.victims}
    listed = ", ".join(f"{victim}: {n}" for victim, n in lengths.items())
    print(f"system calls of each victim: {listed}", flush=True)
    share = args.points // len(lengths)
    short = {v: n for v, n in lengths.items() if n <= share}
    rest = (args.points - sum(short.values())) // max(1, len(lengths) - len(short))
    work = [(v, k) for v, n in lengths.items() for k in spread(n, n if v in short else rest, draw)]
    draw.shuffle(work)
    began = time.monotonic()
    counts = run(work, args.stages)
    print(f"{counts.report()}; {time.monotonic() - began:.0f} s")
    for line in counts.wrong:
        print(line)
    return bool(counts.wrong)


if __name__ == "__main__":
    sys.exit(main())
