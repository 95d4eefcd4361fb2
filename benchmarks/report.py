"""Scaling on this machine: a table, CSV files and plots, in one folder.

It measures speed-up and efficiency of a training step from 1 member up to one per core, the
bandwidth of all_reduce by size, and the phases of a step.

    python benchmarks/report.py [FOLDER] [--steps 40] [--rounds 5]
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from all_reduce import Timed
from common import describe_machine, show
from training import Contender, contender

import synkhronos as synk

BATCH = 500
LENGTHS = [1 << k for k in range(1, 25, 2)]  # float32 elements: 8 bytes to 32 MB


def members() -> list[int]:
    """1, 2, ... up to the default size of a group."""
    most = synk.fork()
    synk.close()
    return [n for n in range(1, most + 1) if n <= 4 or n % 4 == 0 or n == most]


def scaling(rounds: int, steps: int) -> list[dict[str, Any]]:
    """Time a training step with 1, 2, ... members, in turns."""
    found = {
        n: Contender([contender("synk-numba", "nesterov", BATCH, n, 1, *pin(n))], BATCH)
        for n in members()
    }
    for i in range(rounds + 1):
        for c in found.values():
            c.run(steps, count=i > 0)
    one = median(found[1].rates)
    rows = []
    for n, c in found.items():
        c.close()
        rate = median(c.rates)
        row = {"members": n, "samples/s": round(rate), "speed-up": round(rate / one, 3)}
        row |= {"efficiency": round(rate / one / n, 3), "step ms": round(1e3 * BATCH / rate, 3)}
        rows.append(row | {f"{k} ms": round(median(v), 3) for k, v in c.phases.items()})
    return rows


def pin(n: int) -> tuple[int, ...]:
    """Give a single member one core: a group of one does not limit itself."""
    return (0,) if n == 1 else ()


def bandwidth() -> list[dict[str, Any]]:
    """Time all_reduce with the default number of members, by size."""
    with synk.Group() as group:
        found = []
        for n in LENGTHS:
            us = group.run(Timed(n))[0] if group.size > 1 else float("nan")
            row = {"members": group.size, "bytes": 4 * n, "us": round(us, 2)}
            found.append(row | {"GB/s": round(4 * n / us / 1e3, 3)})
    return found


def plot(folder: Path, steps: list[dict[str, Any]], sizes: list[dict[str, Any]]) -> None:
    """Three pictures."""
    n = [r["members"] for r in steps]
    figure, axes = plt.subplots(1, 3, figsize=(15, 4.2), layout="constrained")
    axes[0].plot(n, n, "--", color="0.6", label="ideal")
    axes[0].plot(n, [r["speed-up"] for r in steps], "o-", label="training step")
    axes[0].set(title="Speed-up", xlabel="members", ylabel="times 1 member", xticks=n)
    axes[0].legend()
    axes[1].loglog([r["bytes"] for r in sizes], [r["GB/s"] for r in sizes], "o-")
    title = f"all_reduce over {sizes[0]['members']} members"
    axes[1].set(title=title, xlabel="bytes", ylabel="GB/s of each member's vector")
    phases = [k.removesuffix(" ms") for k in steps[0] if k.endswith(" ms") and k != "step ms"]
    low = np.zeros(len(steps))
    for phase in phases:
        ms = np.array([r[f"{phase} ms"] for r in steps])
        axes[2].bar([str(m) for m in n], ms, bottom=low, label=phase)
        low += ms
    axes[2].set(title="Where a step's time goes", xlabel="members", ylabel="ms")
    axes[2].legend()
    figure.savefig(folder / "report.png", dpi=120)


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", default="benchmarks/results", type=Path)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        describe_machine()
        steps, sizes = scaling(args.rounds, args.steps), bandwidth()
        for title, rows in (("A training step", steps), ("all_reduce", sizes)):
            show(title, list(rows[0]), [list(r.values()) for r in rows])
    print(text.getvalue())
    (args.folder / "report.txt").write_text(text.getvalue())
    write(args.folder / "training.csv", steps)
    write(args.folder / "all_reduce.csv", sizes)
    plot(args.folder, steps, sizes)
    print(f"written: {args.folder}/report.txt, training.csv, all_reduce.csv, report.png")


if __name__ == "__main__":
    main()
