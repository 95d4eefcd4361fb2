"""How often a dataset is resident: 1 GB in Data with 4 members, by PSS.

PSS (proportional set size) counts a page that n processes map as 1/n in each.

    python benchmarks/memory.py [GIGABYTES]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytensor.tensor as pt
from common import describe_machine, show

import synkhronos as synk

MEMBERS = 4


def pss(pid: int) -> int:
    """Bytes of a process, shared pages divided among those who map them."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def main() -> None:
    describe_machine()
    nbytes = int(float(sys.argv[1] if len(sys.argv) > 1 else 1) * 1e9)
    x = pt.fmatrix("x")
    with synk.Group(MEMBERS) as group:
        f = synk.function([x], x.sum())
        pids = [os.getpid(), *(w.pid for w in group._channel.workers)]
        f(synk.data(np.ones((1000, 250), "float32")))
        before = [pss(pid) for pid in pids]
        d = synk.data(shape=(nbytes // 1000, 250), dtype="float32")
        d.data[...] = 1
        assert f(d) == d.size
        after = [pss(pid) for pid in pids]
    rows = [
        [f"rank {r}", b / 1e6, a / 1e6] for r, (b, a) in enumerate(zip(before, after, strict=True))
    ]
    rows.append(["all", sum(before) / 1e6, sum(after) / 1e6])
    show("Resident memory (PSS), MB", ["", "without the data", "with the data"], rows)
    times = (sum(after) - sum(before)) / nbytes
    print(
        f"a dataset of {nbytes / 1e9:.1f} GB with {MEMBERS} members is resident {times:.2f} times"
    )


if __name__ == "__main__":
    main()
