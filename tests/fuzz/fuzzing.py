"""Tries the readers of files with very many files that are nearly right.

python tests/fuzz/fuzzing.py [--examples N] [--seed N] [READER ...]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import files_of_runs
import files_of_states
import files_of_users
import memory_of_groups
import rows_of_chunks
import rows_of_numpy
import rows_of_others
import rows_of_tables
from strangers import Reader, tried

READERS: dict[str, Reader] = {
    reader.name: reader
    for module in (
        *(rows_of_numpy, rows_of_chunks, rows_of_others, rows_of_tables),
        *(files_of_runs, files_of_states, files_of_users, memory_of_groups),
    )
    for reader in module.READERS
}
BATCH = 1000  # examples of one process


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=20_000, help="of each reader")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("readers", nargs="*", metavar="READER", default=list(READERS))
    args = parser.parse_args()
    wrong = 0
    for name in args.readers:
        began, counts = time.monotonic(), {"read": 0, "refused": 0, "wrong": 0}
        for seed in range(args.seed, args.seed + -(-args.examples // BATCH)):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    found = tried(READERS[name], Path(folder), BATCH, seed)
                except AssertionError as exc:
                    print(f"{name}, seed {seed}: {exc}", flush=True)
                    found = {"wrong": 1}
            for word, count in found.items():
                counts[word] += count
        said = ", ".join(f"{count} {word}" for word, count in counts.items())
        print(f"{name}: {said}; {time.monotonic() - began:.0f} s", flush=True)
        wrong += counts["wrong"]
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
