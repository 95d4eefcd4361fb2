"""A training step of a small CNN: Synkhronos, plain PyTensor, the machine's limit, JAX, torch.

28x28x1, convolutions of 4 and 8 filters of 3x3, pooling of 2x2, 128 units, 10 classes; float32,
Nesterov's momentum, 64 rows for each member. The time includes gathering shuffled batches. All
contenders are alive at once and take turns; the table gives medians over the rounds, and ratios
within rounds. The limit is two independent processes together, with one core each. Two more that
only wait for one another at each step show what that costs.

    python benchmarks/cnn.py [--batch 64] [--rounds 7] [--modes jax numba] [--torch PYTHON]
                             [--pytensor-ml]

`--torch` names an interpreter that has torch; `--pytensor-ml` adds that package's own layers.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from common import describe_machine, show
from training import Contender, show_phases

HERE = Path(__file__).parent
OURS = "ours, 2 members, JAX"
STEPS = 80  # of a round and 64 rows, about half a second


def command(kind: str, batch: int, members: int, threads: int, *place: int | str) -> list[str]:
    """The command line of one process; `place`: its core, and a file to meet another one in."""
    words = [kind, "nesterov", batch, members, threads, *place]
    return [sys.executable, str(HERE / "cnn_contenders.py"), *map(str, words)]


def field(
    batch: int, modes: Sequence[str], torch: str | None, layers: bool, place: str
) -> dict[str, Contender]:
    """All contenders, started; `batch` is a member's, `place` a file for those that meet."""
    found = {}
    for mode in dict.fromkeys(modes):
        name, plain = mode.upper(), f"pytensor-{mode}"
        found[f"ours, 2 members, {name}"] = Contender(
            [command(f"synk-{mode}", 2 * batch, 2, 1)], 2 * batch
        )
        found[f"2 independent, {name}"] = Contender(
            [command(plain, batch, 1, 1, core) for core in (0, 1)], batch
        )
        found[f"plain, {name}, 1 core"] = Contender([command(plain, batch, 1, 1, 0)], batch)
    found["2 that meet, JAX"] = Contender(
        [command("pytensor-jax", batch, 1, 1, core, place) for core in (0, 1)], batch
    )
    found["ours, 1 member, JAX"] = Contender([command("synk-jax", batch, 1, 1, 0)], batch)
    found["JAX, its own operations, 1 core"] = Contender(
        [command("jax-lax", batch, 1, 1, 0)], batch
    )
    if layers:
        found["pytensor-ml's layers, JAX, 1 core"] = Contender(
            [command("pytensorml-jax", batch, 1, 1, 0)], batch
        )
    if torch:
        for size, name in ((2, "torch DDP, 2 x 1 thread"), (1, "torch, 2 threads")):
            words = [torch, str(HERE / "cnn_torch.py"), "nesterov", str(size * batch), str(size)]
            found[name] = Contender([words], size * batch)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=64, help="rows of a member")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--modes", nargs="+", default=["jax", "numba"], help="of ours (both)")
    parser.add_argument("--torch", help="an interpreter that has torch")
    parser.add_argument("--pytensor-ml", action="store_true", help="its own layers, too")
    args = parser.parse_args()
    describe_machine()
    with tempfile.NamedTemporaryFile() as place:
        place.write(bytes(128))
        place.flush()
        how = ["jax", *args.modes], args.torch, args.pytensor_ml
        contenders = field(args.batch, *how, place.name)  # each opens it before it is ready
    for i in range(args.rounds + 1):
        for c in contenders.values():
            c.run(max(4, STEPS * 64 // args.batch), count=i > 0)
    ours = contenders[OURS].rates
    ratios = {
        name: median(a / b for a, b in zip(ours, c.rates, strict=True))
        for name, c in contenders.items()
    }
    show(
        f"CNN, {args.batch} rows a member, median of {args.rounds} rounds",
        ("contender", "samples/s", "low", "high", f"{OURS} / it"),
        [
            [name, *(f"{f(c.rates):,.0f}" for f in (median, min, max)), f"{ratios[name]:.3f}"]
            for name, c in contenders.items()
        ],
    )
    show_phases(contenders)
    for other, goal in (("2 independent, JAX", 0.95), ("torch DDP, 2 x 1 thread", 1.3)):
        if other in ratios:
            verdict = "met" if ratios[other] >= goal else "MISSED"
            print(f"{OURS} / {other}: {ratios[other]:.3f} (goal {goal}: {verdict})")
    for c in contenders.values():
        c.close()


if __name__ == "__main__":
    main()
