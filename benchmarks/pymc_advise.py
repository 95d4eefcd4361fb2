"""How long `synk.pymc.advise` takes for an ordinal model, with empty caches and with full ones.

    python benchmarks/pymc_advise.py [--rows 30000]

Each figure is of a fresh process; the first one has an empty home, so nothing is compiled yet.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile

from common import describe_machine, show

ADVISE = """
import sys, time
import numpy as np, pymc as pm, synkhronos as synk
rows = int(sys.argv[1])
draw = np.random.default_rng(1)
x, y = draw.normal(size=(rows, 8)), draw.integers(0, 5, rows)
cuts = np.linspace(-2, 2, 4)
with pm.Model() as model:
    b = pm.Normal("b", shape=8)
    ordered = pm.distributions.transforms.ordered
    c = pm.Normal("c", mu=cuts, sigma=1, shape=4, transform=ordered, initval=cuts)
    pm.OrderedLogistic("y", eta=pm.math.dot(x, b), cutpoints=c, observed=y)
began = time.perf_counter()
advice = synk.pymc.advise(model)
print(f"{time.perf_counter() - began:.1f}", ",".join(m.mode for m in advice.modes))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=30_000)
    options = parser.parse_args()
    describe_machine()
    rows = []
    with tempfile.TemporaryDirectory() as home:
        for caches in ("empty", "full"):
            done = subprocess.run(
                [sys.executable, "-P", "-c", ADVISE, str(options.rows)],
                env={**os.environ, "HOME": home},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            rows.append([caches, *done.stdout.split()[-2:]])
    show("advise", ["caches", "seconds", "modes measured"], rows)


if __name__ == "__main__":
    main()
