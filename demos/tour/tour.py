"""Synkhronos in a minute: a PyMC model, a training step, and `fit`, each beside the plain way.

    python demos/tour/tour.py

It ends with exit code 1 if results differ by more than rounding.
"""

import argparse
import os
import platform
import subprocess
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path

from comparing import show
from telling import say, telling

NO_GAIN = (
    "Members do not help where a call takes well under a millisecond, where large matrix products "
    "already use all cores, or where memory is the limit: docs/howto/no_speedup.rst."
)


def main():
    args = arguments()
    with digits_compiled_ahead() if args.ahead else nullcontext():
        with telling("importing PyMC"):
            import survey
        say(machine())
        say("\n1. A PyMC model")
        model = survey.survey(args.rows)
        rows = list(survey.gradients(model))
    rows += survey.sampling(model, args.draws)
    if args.scripts:
        import again

        rows += again.scripts(args.scripts)

    import digits

    say("\n2. A training step")
    train, held_out = digits.images()
    rows += digits.step(train, args.hidden, args.batch)
    say("\n3. A trained network")
    rows += digits.fitting(train, held_out, args.hidden, args.epochs)
    show(rows)
    say(NO_GAIN)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default, text in (
        ("rows", 30_000, "of the PyMC model"),
        ("draws", 150, "of each chain, after as many to tune"),
        ("scripts", 1, "that sample a small model with filled caches"),
        ("ahead", 1, "processes that compile parts 2 and 3 meanwhile"),
        ("hidden", 2048, "units of the network"),
        ("batch", 1024, "rows of a training step"),
        ("epochs", 15, "of fit"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{text} ({default})")
    return parser.parse_args()


@contextmanager
def digits_compiled_ahead():
    """Compile the parts 2 and 3 into PyTensor's cache meanwhile: compiling takes only one core."""
    script = Path(__file__).with_name("digits.py")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, script], **quiet) as ahead:
        try:
            yield
            if ahead.poll() is None:
                with telling("compiling parts 2 and 3, which another process has begun"):
                    ahead.wait()
        finally:
            ahead.terminate()


def machine():
    """The cores, their load, and the versions on which the figures depend."""
    import numpy
    import pymc
    import pytensor

    import synkhronos

    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    busy = ", busy: expect less" if load > cores else ""
    modules = synkhronos, pytensor, pymc, numpy
    versions = ", ".join(f"{m.__name__} {m.__version__}" for m in modules)
    return f"{cores} cores, load {load:.1f}{busy}; Python {platform.python_version()}, {versions}"


if __name__ == "__main__":
    main()
