"""Make one page of runs: curves, where time went, checkpoints, warnings, environment.

The page is one HTML file without script. It needs no other file and no network, so it can be sent,
or kept with the results. Runs that go on, or were killed, are shown as far as they are.

Exit codes:
  0  done
  1  there is no run, or a library is missing
  2  the command line is wrong

Examples:
  synk report runs/a                             # runs/a/report.html
  synk report runs/a runs/b --out compared.html
  synk report runs/a --bench scaling.csv         # with the measurements of synk bench
"""

from __future__ import annotations

import argparse

from synkhronos.cli._say import complain, say


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("folders", metavar="RUN", nargs="*", default=[], help="the folders of runs")
    parser.add_argument(
        "-o", "--out", metavar="FILE", help="the page (default: report.html, of one run there)"
    )
    parser.add_argument(
        "--bench",
        metavar="FILE",
        nargs="+",
        default=[],
        help="CSV files of synk bench, for a figure of the scaling",
    )


def run(options: argparse.Namespace) -> int:
    """Write the page, and say where it is."""
    from synkhronos.cli._report.report import report

    if not options.folders and not options.bench:
        complain("synk report: give the folder of a run, or --bench with a CSV file")
        return 2
    say(str(report(options.folders, options.bench, options.out)))
    return 0
