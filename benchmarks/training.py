"""A training step of an MLP: Synkhronos, plain PyTensor, the machine's limit, JAX, torch.

784-800-800-10, float32. The time includes gathering shuffled batches. All contenders are alive at
once and take turns; the table gives medians over the rounds, and ratios within rounds. The limit is
two independent processes together, with half a batch and one core each.

    python benchmarks/training.py [--rule nesterov adam] [--batch 500 128 4096] [--rounds 7]
                                  [--torch PYTHON] [--csv FILE] [--preset Haswell]

`--torch` names an interpreter that has torch. `--preset` fixes OpenBLAS's core type; by default
OpenBLAS detects it, as for users.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from common import describe_machine, show

HERE = Path(__file__).parent
STEPS = {128: 120, 500: 40, 4096: 6}  # of a round, about a second each
BETTER = "ours, the better mode"
GOALS = (
    ("ours, NUMBA", "2 independent, NUMBA", 0.95),
    ("ours, NUMBA", "plain, NUMBA, 2 threads", 1.0),
    ("ours, JAX", "2 independent, JAX", 1.0),
    ("ours, JAX", "plain, JAX, 2 cores", 1.0),
    (BETTER, "jax, 2 cores", 1.0),
    (BETTER, "torch DDP, 2 x 1 thread", 2.5),
)


class Contender:
    """One way to train, in one process or two that run at the same time."""

    def __init__(self, commands: list[list[str]], batch: int) -> None:
        self.batch = batch
        self._processes = [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for command in commands
        ]
        self.settings = [json.loads(self._line(p).partition(" ")[2]) for p in self._processes]
        self.rates: list[float] = []
        self.phases: dict[str, list[float]] = {}
        self._steps = 0

    def _line(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(map(str, process.args))[:200]} has ended")  # type: ignore[arg-type]
        return line

    def run(self, steps: int, count: bool) -> None:
        """Make steps, and record the samples per second of all processes together."""
        for p in self._processes:
            assert p.stdin is not None
            p.stdin.write(f"{steps}\n")
            p.stdin.flush()
        found = [json.loads(self._line(p)) for p in self._processes]
        if not count:
            return
        self.rates.append(sum(steps * self.batch / f["seconds"] for f in found))
        self._steps += steps
        for phase, seconds in found[0]["phases"].items():
            self.phases.setdefault(phase, []).append(1e3 * median(seconds) / steps)

    def close(self) -> None:
        """End it."""
        for p in self._processes:
            assert p.stdin is not None
            p.stdin.close()
            p.wait(30)


def contender(
    kind: str, rule: str, batch: int, members: int, threads: int, *core: int
) -> list[str]:
    """The command line of one process."""
    words = [kind, rule, batch, members, threads, *core]
    return [sys.executable, str(HERE / "contenders.py"), *map(str, words)]


def field(rule: str, batch: int, torch: str | None) -> dict[str, Contender]:
    """All contenders, started."""
    found = {}
    for mode in ("numba", "jax"):
        name = mode.upper()
        plain = f"pytensor-{mode}"
        found[f"ours, {name}"] = Contender([contender(f"synk-{mode}", rule, batch, 2, 1)], batch)
        found[f"2 independent, {name}"] = Contender(
            [contender(plain, rule, batch // 2, 1, 1, core) for core in (0, 1)], batch // 2
        )
        two = "2 threads" if mode == "numba" else "2 cores"
        found[f"plain, {name}, {two}"] = Contender([contender(plain, rule, batch, 1, 2)], batch)
    found["jax, 2 cores"] = Contender([contender("jax", rule, batch, 1, 2)], batch)
    if torch:
        for size, name in (("2", "torch DDP, 2 x 1 thread"), ("1", "torch, 2 threads")):
            command = [torch, str(HERE / "torch_peer.py"), rule, str(batch), size]
            found[name] = Contender([command], batch)
    return found


def show_phases(contenders: dict[str, Contender]) -> None:
    """Print the phases of a step, for the contenders that report them."""
    telling = {n: c for n, c in contenders.items() if c.phases}
    names = list(next(iter(telling.values())).phases)
    show(
        "Where a step's time goes, ms (the members' median)",
        ("", *names, "step"),
        [
            [
                n,
                *(round(median(c.phases[k]), 3) for k in names),
                round(1e3 * c.batch / median(c.rates), 2),
            ]
            for n, c in telling.items()
        ],
    )


def measure(rule: str, batch: int, rounds: int, torch: str | None) -> list[dict[str, Any]]:
    """The rows of one table."""
    contenders = field(rule, batch, torch)
    kinds = {
        kind for c in contenders.values() for s in c.settings for kind in s.get("core type", [])
    }
    assert len(kinds) == 1, f"OpenBLAS works for other core types in some processes: {kinds}"
    steps = STEPS.get(batch, max(4, 20_000 // batch))
    for i in range(rounds + 1):
        for c in contenders.values():
            c.run(steps, count=i > 0)
    best = contenders["ours, NUMBA"].rates
    rows = []
    for name, c in contenders.items():
        ratio = median(a / b for a, b in zip(best, c.rates, strict=True))
        rows.append(
            {
                "rule": rule,
                "batch": batch,
                "contender": name,
                "samples/s": round(median(c.rates)),
                "low": round(min(c.rates)),
                "high": round(max(c.rates)),
                "ours NUMBA / it": f"{ratio:.3f}",
                **{f"{k} ms": round(median(v), 3) for k, v in c.phases.items()},
            }
        )
    title = f"{rule}, batch {batch}, OpenBLAS for {kinds.pop()}, median of {rounds} rounds"
    columns = ("contender", "samples/s", "low", "high", "ours NUMBA / it")
    show(title, columns, [[r[c] for c in columns] for r in rows])
    show_phases(contenders)
    rates = {name: c.rates for name, c in contenders.items()}
    rates[BETTER] = max(rates["ours, NUMBA"], rates["ours, JAX"], key=median)
    for ours, other, goal in GOALS:
        if other not in rates:
            continue
        ratio = median(a / b for a, b in zip(rates[ours], rates[other], strict=True))
        verdict = "met" if ratio >= goal else "MISSED"
        print(f"{ours} / {other}: {ratio:.3f} (goal {goal}: {verdict})")
    for c in contenders.values():
        c.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rule", nargs="+", default=["nesterov"], choices=["nesterov", "adam"])
    parser.add_argument("--batch", nargs="+", type=int, default=[500])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--torch", help="an interpreter that has torch")
    parser.add_argument("--csv", help="write all rows to this file")
    parser.add_argument("--preset", help="OpenBLAS's core type, in place of what it detects")
    args = parser.parse_args()
    os.environ.pop("OPENBLAS_CORETYPE", None)
    if args.preset:
        os.environ["OPENBLAS_CORETYPE"] = args.preset
    describe_machine()
    rows = [
        row
        for rule in args.rule
        for batch in args.batch
        for row in measure(rule, batch, args.rounds, args.torch)
    ]
    if args.csv:
        names = list(dict.fromkeys(k for row in rows for k in row))
        with Path(args.csv).open("w", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
