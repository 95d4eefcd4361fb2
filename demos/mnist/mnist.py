"""The data, the command line and the training loop of the demos in this folder.

The data are MNIST, from the first of these places that has it:

* the folder named by the environment variable SYNKHRONOS_DATA, or a folder in it: the four files
  of MNIST, or only the two files of its test set, of which 8,000 images are then trained on;
* a download, which is kept for later runs (needs pooch);
* otherwise digits of 8x8 pixels, which are part of scikit-learn.
"""

import argparse
import math
import sys
import time

import models
import numpy as np
import pytensor
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from synkhronos.training.sources import known

console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
say = console.print

# The data.


def load():
    """Load MNIST or its substitute, and print which; the same rows in every run."""
    if "--help" in sys.argv:  # of a program that takes no arguments
        raise SystemExit(print(sys.modules["__main__"].__doc__))
    data = known("mnist", instead="digits")
    numbers = [f"{len(labels):,}" for _, labels in data]
    say("{}: {} images to train, {} to validate, {} to test".format(data.where, *numbers))
    return data


# The command line.


def arguments(doc, members=True):
    """The arguments MODEL BATCH EPOCHS, as in the demos of 2017, and options."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    text = f"one of {models.KNOWN} (mlp)"
    parser.add_argument("model", nargs="?", default="mlp", metavar="MODEL", help=text)
    for name, default in [("batch", 500), ("epochs", 50)]:
        parser.add_argument(
            name,
            nargs="?",
            type=positive(int),
            default=default,
            metavar=name.upper(),
            help=f"({default})",
        )
    if members:
        parser.add_argument(
            "--members", type=positive(int), help="in the group (one for each physical core)"
        )
    parser.add_argument("--mode", help="of PyTensor, such as NUMBA or JAX")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--learning-rate",
        type=positive(float),
        default=0.1,
        help="of the first epoch; it then falls linearly to 0 (0.1)",
    )
    return parser


def parse(parser):
    """Parse the arguments and the model, and set PyTensor's mode."""
    args = parser.parse_args()
    if args.seed < 0:
        parser.error(f"--seed is {args.seed}: give a number of at least 0")
    try:
        args.sizes = models.parse(args.model)
        if args.mode:
            pytensor.config.mode = args.mode
    except ValueError as exc:
        parser.error(str(exc))
    return args


def positive(kind):
    def read(text):
        value = kind(text)
        if not 0 < value < math.inf:
            raise ValueError
        return value

    read.__name__ = f"positive {kind.__name__}"  # argparse says "invalid positive int value"
    return read


# The epochs.


def start(args, net, members=None):
    """Print the model and its size; return the learning rate, for the rule and for `run`."""
    group = f", {members} member{'s' * (members > 1)}" if members else ""
    say(f"{args.model}: {net.size():,} weights, batches of {args.batch} rows{group}")
    say("compiling (about a minute, the first time) ...")
    return pytensor.shared(np.float32(args.learning_rate), name="rate")


def run(args, rate, batches, step, validation):
    """Train, and print a line for each epoch.

    Parameters
    ----------
    rate : shared scalar, the learning rate
    batches : iterable with a length; each iteration is one epoch
    step : callable that takes a batch and returns the mean loss of its rows and their number
    validation : callable without arguments that returns the accuracy
    """
    columns = BarColumn(), MofNCompleteColumn(), TextColumn("steps,"), TimeRemainingColumn()
    hidden = not console.is_terminal
    # no thread that draws: the master has rows of its own to compute
    options = {"auto_refresh": False, "transient": True, "disable": hidden}
    with Progress(*columns, console=console, **options) as progress:
        task = progress.add_task("", total=args.epochs * len(batches))
        begin = drawn = time.perf_counter()
        for epoch in range(args.epochs):
            rate.set_value(np.float32(args.learning_rate * (1 - epoch / args.epochs)))
            total = rows = timed = 0
            for batch in batches:
                loss, n = step(batch)
                total, rows, timed = total + n * float(loss), rows + n, timed + n
                now = time.perf_counter()
                if epoch == 0 and rows == n:
                    say(f"... took {now - begin:.1f} s, the first step with it")
                    begin, timed = now, 0
                progress.advance(task)
                if now - drawn > 0.1:
                    progress.refresh()
                    drawn = now
            seconds = time.perf_counter() - begin
            say(
                f"epoch {epoch + 1:{len(str(args.epochs))}}/{args.epochs}: "
                f"loss {total / rows:.6f}, validation {validation():.2%}, "
                f"{seconds:.2f} s, {timed / max(seconds, 1e-9):.0f} rows/s".replace("%", " %")
            )
            begin = time.perf_counter()


def finish(accuracy):
    """The last line."""
    say(f"test accuracy: {100 * accuracy:.2f} %")
