"""Update rules beside those of torch and optax: how far 100 steps with equal arguments lead apart.

All get the same gradients, in float64, which do not depend on the parameters: random numbers of a
size of 1, 1e-3 or 1e-6. The figure is the distance between the two ends, divided by the length of
our way. For clipping it is the relative difference of one clipped gradient.

    python benchmarks/definitions.py PYTHON

PYTHON is an interpreter that has torch and optax.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from common import show
from definitions_peers import RATE, SIZES, STEPS, bounds, gradients, rates

from synkhronos.extensions import updates

MODE = "FAST_COMPILE"
CHANGING = " and a rate that changes"
# by the name of the peers' row: our rule, and its arguments
OURS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (updates.sgd, {}),
    "momentum": (updates.momentum, {"momentum": 0.9}),
    f"momentum{CHANGING}": (updates.momentum, {"momentum": 0.9}),
    "nesterov_momentum": (updates.nesterov_momentum, {"momentum": 0.9}),
    "adagrad": (updates.adagrad, {"epsilon": 1e-8}),
    "rmsprop": (updates.rmsprop, {"rho": 0.9, "epsilon": 1e-8}),
    "adadelta": (updates.adadelta, {"rho": 0.9, "epsilon": 1e-8}),
    "adam": (updates.adam, {"epsilon": 1e-8}),
    "adam with decay": (updates.adam, {"epsilon": 1e-8, "weight_decay": 0.1}),
    "adamax": (updates.adamax, {"epsilon": 1e-8}),
    "amsgrad": (updates.amsgrad, {"epsilon": 1e-8}),
    "nadam": (updates.nadam, {"epsilon": 1e-8}),
}


def end_of(name: str, size: float) -> np.ndarray:
    """Where our rule leads to."""
    rule, options = OURS[name]
    w, g, rate = pytensor.shared(np.ones(64), name="w"), pt.dvector("g"), pt.dscalar("rate")
    new = rule.rule([g], [w], learning_rate=rate, **options)
    step = pytensor.function([g, rate], [], updates=list(new.items()), mode=MODE)
    for gradient, value in zip(gradients(size), rates(CHANGING in name), strict=True):
        step(gradient, value)
    return np.asarray(w.get_value())


def clipped(bound: float) -> np.ndarray:
    """Our clipped gradient."""
    g = pt.as_tensor(gradients(1.0)[0])
    [found] = updates.total_norm_constraint([g], bound)
    return np.asarray(found.eval(mode=MODE))


def main() -> None:
    """Print two tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("python", help="an interpreter that has torch and optax")
    python = parser.parse_args().python
    peers = Path(__file__).with_name("definitions_peers.py")
    done = subprocess.run([python, peers], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    rows = []
    for name in OURS:
        for library in ("torch", "optax"):
            cells = []
            for size in SIZES:
                ours, theirs = end_of(name, size), np.array(found[library][name][str(size)])
                cells.append(np.linalg.norm(ours - theirs) / np.linalg.norm(ours - 1.0))
            rows.append((name, library, *(f"{c:.0e}" for c in cells)))
    versions = ", ".join(f"{k} {v}" for k, v in found["versions"].items())
    title = f"{STEPS} steps, rate {RATE}: relative difference ({versions})"
    show(title, ["rule", "library", *(f"gradients of {size:g}" for size in SIZES)], rows)
    rows = []
    for what, bound in bounds().items():
        ours = clipped(bound)
        for library in ("torch", "optax"):
            theirs = np.array(found[library]["clip"][what])
            rows.append((what, library, f"{np.linalg.norm(ours - theirs) / bound:.0e}"))
    show("clipping by the norm", ["the norm is", "library", "relative difference"], rows)


if __name__ == "__main__":
    main()
