"""Resident copies by PSS: a dataset with 4 members, Adam on 25 M parameters with 2 members.

PSS (proportional set size) counts a page that n processes map as 1/n in each.

    python benchmarks/memory.py [GIGABYTES] [MILLION_PARAMETERS]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
from common import answer_help, describe_machine, show

import synkhronos as synk
from synkhronos.extensions import make_train_function, updates

MEMBERS = 4


def pss(pid: int) -> int:
    """Bytes of a process; shared pages are divided among the processes that map them."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def all_pss(group: synk.Group) -> list[int]:
    """The same of all members."""
    return [pss(pid) for pid in (os.getpid(), *(w.pid for w in group.channel.workers))]


def report(title: str, what: str, before: list[int], after: list[int]) -> int:
    """Show both, and return the difference in bytes."""
    rows = [
        [f"rank {r}", b / 1e6, a / 1e6] for r, (b, a) in enumerate(zip(before, after, strict=True))
    ]
    rows.append(["all", sum(before) / 1e6, sum(after) / 1e6])
    show(f"{title}: resident memory (PSS), MB", ["", f"without {what}", f"with {what}"], rows)
    return sum(after) - sum(before)


def dataset(nbytes: int) -> None:
    x = pt.fmatrix("x")
    with synk.Group(MEMBERS) as group:
        f = synk.function([x], x.sum())
        f(synk.data(np.ones((1000, 250), "float32")))
        before = all_pss(group)
        d = synk.data(shape=(nbytes // 1000, 250), dtype="float32")
        d.data[...] = 1
        assert f(d) == d.size
        more = report("A dataset, 4 members", "the data", before, all_pss(group))
    print(f"{nbytes / 1e9:.1f} GB are resident {more / nbytes:.2f} times")


def training(count: int) -> None:
    """A linear model: its gradients are the only large temporaries."""
    x, y = pt.fmatrix("x"), pt.fmatrix("y")
    rows, columns = count // 5000, 5000
    with synk.Group(2) as group:
        w = pytensor.shared(np.zeros((4, 4), "float32"), name="w")
        loss = ((x @ w - y) ** 2).mean()
        small = make_train_function(loss, [w], x, y, updates.adam)
        small(np.ones((4, 4), "float32"), np.ones((4, 4), "float32"))
        before = all_pss(group)
        w = pytensor.shared(np.zeros((rows, columns), "float32"), name="w")
        loss = ((x @ w - y) ** 2).mean()
        train = make_train_function(loss, [w], x, y, updates.adam)
        data = np.ones((8, rows), "float32"), np.ones((8, columns), "float32")
        for _ in range(3):
            train(*data)
        more = report("Adam, 2 members", "the model", before, all_pss(group))
    vector = 4 * rows * columns
    print(
        f"{rows * columns / 1e6:.0f} M parameters: {more / vector:.2f} vectors of "
        f"{vector / 1e6:.0f} MB are resident: parameters and Adam's two states once (3), and at "
        "most 2 gradients in each of 2 members (4)"
    )
    assert more < 7.3 * vector


def main() -> None:
    answer_help(__doc__)
    describe_machine()
    dataset(int(float(sys.argv[1] if len(sys.argv) > 1 else 1) * 1e9))
    training(int(float(sys.argv[2] if len(sys.argv) > 2 else 25) * 1e6))


if __name__ == "__main__":
    main()
