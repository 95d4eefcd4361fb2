"""Measure how a function scales: rows per second with 1, 2, 4, ... members.

MODULE:FUNCTION is called once for each number of members, in a fresh group. It returns a function
of the group and its data, as in `return train, x, y`: each step then takes rows at random. It may
also return a function of the number of rows, which makes one step.

The batch is the same for any number of members (strong scaling). With `--weak` it is the batch of
each member (weak scaling). Each number of members has a process of its own, and they take turns. On
GPUs one follows the other.

Exit codes:
  0    done
  1    the function has raised
  2    the command line is wrong
  3    a group cannot start
  4    a member died
  5    a member did not answer in time
  130  Ctrl-C

Examples:
  synk bench mine:training
  synk bench mine:training --batch 128 512 4096 --members 1 2 4 --csv scaling.csv
  synk bench mine:training --weak --batch 512 --plot weak.svg
  synk report runs/a --bench scaling.csv
"""

from __future__ import annotations

import argparse

from synkhronos.cli._numbers import count, numbers


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument(
        "function", metavar="MODULE:FUNCTION", help="modules of the current folder come first"
    )
    parser.add_argument(
        *("-b", "--batch", "--batch-size", "--batch_size"),
        metavar="N",
        type=count,
        nargs="+",
        default=[512],
        help="rows of a step (default: 512)",
    )
    parser.add_argument(
        *("-n", "--members", "--nproc-per-node"),
        metavar="N",
        type=count,
        nargs="+",
        help="numbers of members (default: 1, 2, 4, ... up to the physical cores)",
    )
    parser.add_argument("--devices", metavar="DEVICES", help='"cpu" or "cuda", as for synk.fork')
    parser.add_argument("--weak", action="store_true", help="the batch is that of each member")
    parser.add_argument(
        "--seconds",
        metavar="S",
        type=numbers(above=0),
        default=5.0,
        help="time for each number of members and batch (default: 5)",
    )
    parser.add_argument(
        "--rounds", metavar="N", type=count, default=5, help="measurements in it (default: 5)"
    )
    parser.add_argument("--csv", metavar="FILE", help="write each measurement as a row")
    parser.add_argument("--plot", metavar="FILE", help="draw the scaling as SVG")


def run(options: argparse.Namespace) -> int:
    """Measure, and print a table for each batch."""
    from synkhronos.cli._bench.comparison import bench

    return bench(options)
