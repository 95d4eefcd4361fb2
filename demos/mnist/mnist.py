"""The data, the command line and the training loop of the demos in this folder.

The data are MNIST, from the first of these places that has it:

* the folder named by the environment variable SYNKHRONOS_DATA, or a folder in it: the four files
  of MNIST, or only the two files of its test set, of which 8,000 images are then trained on;
* a download, which is kept for later runs (needs pooch);
* otherwise digits of 8x8 pixels, which are part of scikit-learn.
"""

import argparse
import gzip
import logging
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import models
import numpy as np
import pytensor
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
say = console.print

# The data.

MIRRORS = [
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
]
SHA256 = {
    "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
FILES = [f"{name}.gz" for name in SHA256]
# asked in a separate process, which a time limit can end in spite of slow resolvers or mirrors
ANSWERS = """
import sys, requests
requests.head(sys.argv[1], timeout=3, allow_redirects=True).raise_for_status()
"""
PATIENCE = 3  # seconds for a mirror to answer


class Split(NamedTuple):
    """Images, one row each, values from 0 to 1, float32; and labels, int32."""

    train: tuple[np.ndarray, np.ndarray]
    validation: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]


def load():
    """Load MNIST or its substitute, and print which; the same rows in every run."""
    lacking = []
    data, where = _local(lacking) or _downloaded(lacking) or _digits(lacking)
    numbers = [f"{len(labels):,}" for _, labels in data]
    say("{}: {} images to train, {} to validate, {} to test".format(where, *numbers))
    return data


def _local(lacking):
    name = os.environ.get("SYNKHRONOS_DATA")
    if not name:
        return None
    root = Path(name)
    folders = [root, *sorted(p for p in root.glob("*") if p.is_dir())]
    for files, what in [(FILES, "MNIST"), (FILES[2:], "the test set of MNIST")]:
        for folder in folders:
            if all((folder / name).exists() for name in files):
                return _read([folder / name for name in files]), f"{what} in {folder}"
    lacking.append(f"SYNKHRONOS_DATA={name} holds no files of MNIST")
    return None


def _downloaded(lacking):
    try:
        import pooch
    except ImportError:
        lacking.append("pooch is not installed")
        return None
    pooch.get_logger().setLevel(logging.WARNING)
    folder = Path(pooch.os_cache("synkhronos")) / "mnist"
    have = all((folder / name).exists() for name in FILES)
    for mirror in MIRRORS:
        if not have and not _answers(mirror + FILES[-1]):
            lacking.append(f"{mirror.split('/')[2]} does not answer")
            continue
        if not have:
            say(f"downloading MNIST from {mirror}")
        try:
            paths = [
                pooch.retrieve(
                    mirror + name,
                    f"sha256:{known}",
                    name,
                    folder,
                    downloader=pooch.HTTPDownloader(timeout=10),
                )
                for name, known in zip(FILES, SHA256.values(), strict=True)
            ]
        except (OSError, ValueError) as exc:  # the connection, the checksum
            lacking.append(f"{mirror.split('/')[2]}: {type(exc).__name__}")
            continue
        return _read(paths), f"MNIST in {folder}"
    return None


def _answers(url):
    command = [sys.executable, "-c", ANSWERS, url]
    try:
        return not subprocess.run(command, capture_output=True, timeout=PATIENCE).returncode
    except subprocess.TimeoutExpired:
        return False


def _digits(lacking):
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    pair = (images[order] / 16).astype("float32"), labels[order].astype("int32")
    data = Split(*(_rows(pair, *edges) for edges in [(1297,), (1297, 1547), (1547, None)]))
    return data, f"no MNIST ({'; '.join(lacking)}), scikit-learn's digits of 8x8 pixels instead"


def _read(paths):
    """Divide images into training, validation and test.

    With four files, the last sixth of the training set is for validation. With two files, the first
    8/10 are for training. These images are sorted by their writers, so the others are used for
    validation and for test alternately.
    """
    arrays = [read_idx(path) for path in paths]
    pairs = []
    for images, labels in zip(arrays[::2], arrays[1::2], strict=True):
        if images.ndim != 3 or labels.shape != images.shape[:1]:
            raise ValueError(f"{paths[0]}: images of shape {images.shape}, labels {labels.shape}")
        rows = images.reshape(len(images), -1).astype("float32") / np.float32(255)
        pairs.append((rows, labels.astype("int32")))
    n = len(pairs[0][1])
    if len(pairs) == 2:
        first = n * 5 // 6
        return Split(_rows(pairs[0], first), _rows(pairs[0], first, None), pairs[1])
    first = n * 8 // 10
    held_out = (_rows(pairs[0], start, None, 2) for start in (first, first + 1))
    return Split(_rows(pairs[0], first), *held_out)


def _rows(pair, *edges):
    images, labels = pair
    return images[slice(*edges)], labels[slice(*edges)]


def read_idx(path):
    """The array in a gzipped IDX file of bytes."""
    with gzip.open(path) as file:
        raw = file.read()
    zeros, kind, ndim = raw[:2], raw[2], raw[3]
    shape = np.frombuffer(raw, ">u4", ndim, 4)
    values = np.frombuffer(raw, np.uint8, offset=4 + 4 * ndim)
    if zeros != bytes(2) or kind != 8 or len(values) != math.prod(shape.tolist()):
        raise ValueError(f"{path} is not a whole IDX file")
    return values.reshape(shape)


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
