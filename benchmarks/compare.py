"""The same benchmarks on this tree and on an earlier commit, taking turns; ratios within rounds.

    python benchmarks/compare.py COMMIT [NAME ...] [--rounds 3] [--only TEXT] [--all]

Each round runs a benchmark once with each package, in the one order and the other by turns. A
ratio is this tree's figure divided by the commit's, of the same round, so that it holds while the
machine's speed drifts. A benchmark that imports the package's own modules runs as it stood in the
commit. Figures that differ by more than 3 % are marked; --all shows the others too.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from common import FIGURES, describe_machine, show

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TOLERANCE = 0.03
ARGUMENTS = {
    "dispatch": ["--busy", "0", "--blocks", "3"],
    "all_reduce": [],
    "training": ["--rounds", "5"],
    "fit": [],
    "saves": [],
    "pymc_gradient": ["--rounds", "10", "--no-jax"],
    "mpi": [],
}


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """The tree of a commit, with this tree's common.py, which records the figures."""
    with tempfile.TemporaryDirectory(prefix="synkhronos-compare-") as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            shutil.copy(HERE / "common.py", tree / "benchmarks")
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def script(name: str, tree: Path) -> Path:
    """This tree's benchmark, or the tree's own where it imports private modules."""
    path = HERE / f"{name}.py"
    if not path.exists():
        raise SystemExit(f"There is no benchmark {name}: scripts/bench --list names them.")
    return tree / "benchmarks" / path.name if "synkhronos._" in path.read_text() else path


def run(name: str, tree: Path) -> dict[str, float]:
    """The figures of a benchmark with a tree's package."""
    with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as file:
        environ = os.environ | {"PYTHONPATH": str(tree), FIGURES: file.name}
        command = [sys.executable, str(script(name, tree)), *ARGUMENTS.get(name, [])]
        subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL)
        return dict(json.loads(line) for line in file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit", help="the commit to compare with")
    parser.add_argument("names", nargs="*", default=list(ARGUMENTS), help="benchmarks")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="show figures with this text in their names")
    parser.add_argument("--all", action="store_true", help="show figures within 3 %% as well")
    options = parser.parse_args()
    describe_machine()
    with checkout(options.commit) as before:
        for name in options.names:
            rounds: list[tuple[dict[str, float], dict[str, float]]] = []
            for i in range(options.rounds):
                trees = (before, ROOT) if i % 2 == 0 else (ROOT, before)
                found = {tree: run(name, tree) for tree in trees}
                rounds.append((found[before], found[ROOT]))
            report(name, rounds, options.only, options.all)


def report(
    name: str,
    rounds: list[tuple[dict[str, float], dict[str, float]]],
    only: str,
    everything: bool,
) -> None:
    """Print the ratios of a benchmark."""
    shared = [
        figure
        for figure in rounds[0][0]
        if only in figure and all(figure in a and figure in b and a[figure] for a, b in rounds)
    ]
    rows = []
    for figure in shared:
        ratios = [after[figure] / before[figure] for before, after in rounds]
        if everything or abs(median(ratios) - 1) > TOLERANCE:
            values = [median([r[i][figure] for r in rounds]) for i in (0, 1)]
            rows.append([figure, *values, *[f"{f(ratios):.3f}" for f in (median, min, max)]])
    title = f"{name}: {len(rows)} of {len(shared)} figures shown, {len(rounds)} rounds"
    show(title, ["figure", "before", "now", "ratio", "least", "largest"], rows)


if __name__ == "__main__":
    main()
