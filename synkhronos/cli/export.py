"""Give what a run has recorded to TensorBoard, MLflow or a CSV file.

It reads metrics.jsonl in the run's folder, as a process of its own, also while the run goes on.
With `--follow` it takes further lines as they come, and ends with the run, or by Ctrl-C.

Exit codes:
  0  done
  1  there is no run, or a library is missing
  2  the command line is wrong

Examples:
  synk export runs/a                              # event files in runs/a/tensorboard
  synk export runs/a --follow &                   # beside a run: tensorboard --logdir runs
  synk export runs/a --to csv --to-folder tables  # tables/metrics.csv
  synk export runs/a --to mlflow                  # MLFLOW_TRACKING_URI says where
"""

from __future__ import annotations

import argparse

from synkhronos.cli._say import say


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("folder", metavar="RUN", help="the folder of the run")
    parser.add_argument(
        "--to",
        choices=["tensorboard", "csv", "mlflow"],
        default="tensorboard",
        help="what to export to (default: tensorboard)",
    )
    parser.add_argument(
        "--to-folder",
        "--logdir",
        metavar="FOLDER",
        help="where to write (default: the run's folder)",
    )
    parser.add_argument(
        "-f", "--follow", action="store_true", help="go on until the run ends, or Ctrl-C"
    )


def run(options: argparse.Namespace) -> int:
    """Export."""
    from synkhronos.training._record.exporters import export

    place, count = export(options.folder, options.to, options.to_folder, options.follow)
    say(f"{count:,} lines to {place}")
    return 0
