"""Data sets that many know, from a folder, a download, or another library."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from synkhronos._checks import options_checked, shown
from synkhronos._errors import InputError, SourceError, needing
from synkhronos._warnings import log
from synkhronos.training.sources._idx import read_idx
from synkhronos.training.sources._paths import cache_folder

FOLDER = "SYNKHRONOS_DATA"  # the environment variable
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
SHA256 = {
    "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
FILES = tuple(f"{name}.gz" for name in SHA256)
# asked in a separate process, which a time limit can end in spite of slow resolvers or mirrors
_ANSWERS = """
import sys, requests
requests.head(sys.argv[1], timeout=3, allow_redirects=True).raise_for_status()
"""
PATIENCE = 3  # seconds for a mirror to answer

Pair = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Split:
    """A data set in three parts; each is (rows, labels): float32 from 0 to 1, and int32.

    An iteration gives the three parts.

    Attributes
    ----------
    train, validation, test : tuple of two arrays
    where : str
        What it is and where it was found, for a line of a log.
    """

    train: Pair
    validation: Pair
    test: Pair
    where: str

    def __iter__(self) -> Iterator[Pair]:
        return iter((self.train, self.validation, self.test))


@options_checked
def known(name: str, instead: str | None = None) -> Split:
    """Load a data set into memory: the same rows in the same order each time.

    Parameters
    ----------
    name : {"mnist", "digits"}
        "mnist": 28 x 28 pixels, from the folder that the environment variable SYNKHRONOS_DATA
        names, or a folder in it; else a download (extra: data), which is kept for later runs and
        checked by SHA-256. Without the files of its training set, most of the test set is trained
        on. "digits": 8 x 8 pixels, which are a part of scikit-learn.
    instead : {"mnist", "digits"}, optional
        Another to load if this one is nowhere; `where` then says why.

    Returns
    -------
    Split
        ``train``, ``validation`` and ``test``, each of rows and labels.

    Raises
    ------
    InputError
        The name is not known.
    SourceError
        It was not found anywhere; the message lists the places.
    BackendMissing
        scikit-learn is not installed.

    Examples
    --------
    >>> from synkhronos.training import sources
    >>> x, y = sources.known("digits").train
    >>> x.shape, x.dtype.name, y[:5].tolist()
    ((1297, 64), 'float32', [6, 6, 6, 2, 5])
    """
    if name == "digits":
        return _digits()
    if name == "mnist":
        lacking: list[str] = []
        found = _in_folder(lacking) or _downloaded(lacking)
        if found is not None:
            return found
        why = f"no MNIST ({'; '.join(lacking)})"
        if instead is None:
            raise SourceError(f"known: {why}")
        other = known(instead)
        return replace(other, where=f"{why}, {other.where} instead")
    raise InputError(f'known: {shown(name)}: there are "mnist" and "digits"')


def _in_folder(lacking: list[str]) -> Split | None:
    given = os.environ.get(FOLDER)
    if not given:
        return None
    root = Path(given)
    folders = [root, *sorted(p for p in root.glob("*") if p.is_dir())]
    for files, what in ((FILES, "MNIST"), (FILES[2:], "the test set of MNIST")):
        for folder in folders:
            if all((folder / file).exists() for file in files):
                return _read([folder / file for file in files], f"{what} in {folder}")
    lacking.append(f"{FOLDER}={given} holds no files of MNIST")
    return None


def _downloaded(lacking: list[str]) -> Split | None:
    try:
        import pooch
    except ImportError:
        lacking.append("pooch is not installed")
        return None
    pooch.get_logger().setLevel(logging.WARNING)
    folder = cache_folder("mnist")
    have = all((folder / name).exists() for name in FILES)
    for mirror in MIRRORS:
        host = mirror.split("/")[2]
        if not have and not answers(mirror + FILES[-1]):
            lacking.append(f"{host} does not answer")
            continue
        if not have:
            log.warning("known: downloading MNIST from %s", mirror)
        try:
            paths = [
                pooch.retrieve(
                    mirror + name,
                    f"sha256:{digest}",
                    name,
                    folder,
                    downloader=pooch.HTTPDownloader(timeout=10),
                )
                for name, digest in zip(FILES, SHA256.values(), strict=True)
            ]
        except (OSError, ValueError) as exc:  # the connection, the checksum
            lacking.append(f"{host}: {type(exc).__name__}")
            continue
        return _read(paths, f"MNIST in {folder}")
    return None


def answers(url: str) -> bool:
    command = [sys.executable, "-P", "-c", _ANSWERS, url]
    try:
        return not subprocess.run(command, capture_output=True, timeout=PATIENCE).returncode
    except subprocess.TimeoutExpired:
        return False


def _digits() -> Split:
    with needing("scikit-learn", "demo"):
        from sklearn.datasets import load_digits
    found, numbers = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(numbers))
    pair = (found[order] / 16).astype(np.float32), numbers[order].astype(np.int32)
    train, validation, test = (_part(pair, *e) for e in ((1297,), (1297, 1547), (1547, None)))
    return Split(train, validation, test, "scikit-learn's digits of 8x8 pixels")


def _read(paths: Iterable[str | os.PathLike[str]], where: str) -> Split:
    """Divide images into training, validation and test.

    With four files, the last sixth of the training set is for validation. With two files, the first
    8/10 are for training. These images are sorted by their writers, so the others are used for
    validation and for test alternately.
    """
    files = list(paths)
    arrays = [read_idx(path) for path in files]
    for path, array in zip(files, arrays, strict=True):
        if array.dtype != np.uint8:
            raise SourceError(f"{path} is not a whole IDX file of bytes: it holds {array.dtype}")
    pairs = []
    for pixels, labels in zip(arrays[::2], arrays[1::2], strict=True):
        if pixels.ndim != 3 or labels.shape != pixels.shape[:1]:
            raise SourceError(f"{files[0]}: images of shape {pixels.shape}, labels {labels.shape}")
        rows = pixels.reshape(len(pixels), -1).astype(np.float32) / np.float32(255)
        pairs.append((rows, labels.astype(np.int32)))
    n = len(pairs[0][1])
    if len(pairs) == 2:
        first = n * 5 // 6
        return Split(_part(pairs[0], first), _part(pairs[0], first, None), pairs[1], where)
    first = n * 8 // 10
    validation, test = (_part(pairs[0], start, None, 2) for start in (first, first + 1))
    return Split(_part(pairs[0], first), validation, test, where)


def _part(pair: Pair, *edges: int | None) -> Pair:
    rows, labels = pair
    return rows[slice(*edges)], labels[slice(*edges)]
