"""PyDTNN's data: folders of MNIST and of CIFAR-10 as it read them, and what it validated with."""

from __future__ import annotations

import argparse
import os
from typing import NamedTuple

from synkhronos.cli._new.translation.pydtnn_models import SEEN, SHAPES, STORED
from synkhronos.cli._new.translation.translation import Translation

_OTHER_ENDINGS = (".npy", ".h5", ".hdf5", ".hdf", ".zarr", ".parquet", ".pq", ".list")
_ENDINGS = (".npz", *_OTHER_ENDINGS)
_ARCHIVE = 1251  # images
# mean red, green and blue of ImageNet; of the training images of CIFAR-10, also their deviations
_COLOURS = [123.68, 116.779, 103.939]
_MEAN, _SPREAD = [125.3, 123.0, 113.9], [63.0, 62.1, 66.7]


class Rows(NamedTuple):
    """The known facts about the rows."""

    training: int | None  # rows of an epoch, if known
    validated: bool  # whether the old program had rows for validation
    # if rows are images of bytes: the mean and the scale to normalise them by
    pixels: dict[str, object] | None = None


def set_rows(out: Translation, old: argparse.Namespace) -> Rows:
    """Set where the rows come from."""
    if old.use_synthetic_data:
        side = STORED if old.model.startswith("alexnet") else SEEN
        shape = "x".join(map(str, SHAPES.get(old.dataset, (side, side, 3))))
        out.set(
            "data.train",
            f"synthetic:{shape},classes=10,n=60000",
            "The old rows were all zeros; these are random, in classes.",
        )
        out.set("data.validation", f"synthetic:{shape},classes=10,n=10000,seed=1")
        _test(out, old, f"synthetic:{shape},classes=10,n=10000,seed=2")
        return Rows(60_000, True)
    path = old.dataset_train_path
    if old.dataset == "mnist" and path is None:
        return _known(out, old)
    if path is not None and old.dataset == "imagenet" and not path.endswith(_OTHER_ENDINGS):
        return _imagenet(out, old)
    if path is None or path.endswith(_ENDINGS) or old.dataset not in SHAPES:
        return _named(out, old)
    train = _files(old.dataset, path, "train")
    test = _files(old.dataset, old.dataset_test_path or path, "test")
    out.set("data.train", _paths(out, train))
    if old.dataset == "cifar10":
        out.set("data.format", "cifar10")
        pixels: dict[str, object] = {"mean": _MEAN, "scale": _SPREAD}
        rows: int = 10_000 * len(train)
    else:
        out.set("data.shape", list(SHAPES["mnist"]))
        pixels = {"scale": 255}
        rows = _rows_of(train[0])
    validated = _validation(out, old, _paths(out, test))
    if old.validation_split and not old.test_as_validation:
        rows -= int(rows * old.validation_split)
    return Rows(rows, validated, pixels)


def _known(out: Translation, old: argparse.Namespace) -> Rows:
    """MNIST without a path: PyDTNN had the files beside its code."""
    out.set(
        "data.train",
        "known:mnist",
        "50,000 rows; 10,000 others are for validation. Files are looked for in the folder of the "
        "environment variable SYNKHRONOS_DATA.",
    )
    out.set("data.shape", list(SHAPES["mnist"]))
    part = "known:mnist/test" if old.test_as_validation else "known:mnist"
    out.set("data.validation", part)
    _test(out, old, "known:mnist")
    if old.validation_split and not old.test_as_validation:
        out.leave(
            f"--validation_split {old.validation_split}",
            "of known:mnist a sixth is for validation; files by --dataset_train_path are divided",
        )
    return Rows(50_000, True)


def _imagenet(out: Translation, old: argparse.Namespace) -> Rows:
    """Archives of ImageNet_converter.py: images by channel, and labels from 1."""
    out.set(
        "data.train",
        out.path(old.dataset_train_path),
        "All archives of a folder. Images of 227 pixels are cropped to 224, but for AlexNet: to "
        "train at a random place, to validate in the middle, where the old program always did.",
    )
    out.set("data.format", "npz")
    out.set("data.arrays", ["x", "y"])
    out.set("data.axes", "NCHW")
    out.set("data.first_label", 1)
    test = None if old.dataset_test_path is None else out.path(old.dataset_test_path)
    validated = _validation(out, old, test)
    rows = None
    if os.path.isdir(old.dataset_train_path):
        files = [f for f in os.listdir(old.dataset_train_path) if f.endswith(".npz")]
        rows = _ARCHIVE * len(files)
        if old.validation_split and not old.test_as_validation:
            rows -= int(rows * old.validation_split)
    return Rows(rows, validated, {"mean": _COLOURS})


def _named(out: Translation, old: argparse.Namespace) -> Rows:
    """Files that are named one by one, or of a data set that is not read here."""
    folder = old.dataset_train_path is not None and not old.dataset_train_path.endswith(_ENDINGS)
    train = out.path(old.dataset_train_path or f"{old.dataset}_train.npz")
    out.set(
        "data.train",
        f"{train.rstrip('/')}/train.list" if folder else train,
        "Files with the rows: .npz, .h5, .npy, ..., or a .list of them.",
    )
    out.set("data.arrays", ["x", "y"], "The names in the files, one for each input.")
    if folder:
        out.leave(
            f"--dataset {old.dataset}",
            "write its files anew, with x of shape (rows, height, width, channels) and y as labels "
            "from 0, (rows,); list them in train.list",
        )
    elif old.dataset_train_path is None:
        out.leave(f"--dataset {old.dataset}", "without --dataset_train_path: name its files")
    test = None if old.dataset_test_path is None or folder else out.path(old.dataset_test_path)
    return Rows(None, _validation(out, old, test, others=True))


def _validation(
    out: Translation, old: argparse.Namespace, test: object, others: bool = False
) -> bool:
    """Set the rows for validation, and for tests; whether the old program validated."""
    _test(out, old, test)
    if old.test_as_validation or (others and test is not None and not old.validation_split):
        if test is not None:
            out.set("data.validation", test)
        return test is not None
    if old.validation_split:
        text = "The last rows; the old program took others, in one piece."
        out.set("data.split", old.validation_split, f"--validation_split. {text}")
        return True
    return False


def _test(out: Translation, old: argparse.Namespace, test: object) -> None:
    """Set the rows of which metrics are evaluated before and after the training."""
    if old.evaluate and test is not None:
        out.set("data.test", test, "--evaluate: before the training, and after it.")


def _files(dataset: str, folder: str, part: str) -> list[str]:
    """The files of a part in a folder, gzipped if only those are there."""
    if dataset == "cifar10":
        numbers = [f"data_batch_{i}.bin" for i in range(1, 6)]
        names = numbers if part == "train" else ["test_batch.bin"]
    else:
        begin = "train" if part == "train" else "t10k"
        names = [f"{begin}-images-idx3-ubyte", f"{begin}-labels-idx1-ubyte"]
    paths = [os.path.join(folder, name) for name in names]
    return [p if os.path.exists(p) or not os.path.exists(f"{p}.gz") else f"{p}.gz" for p in paths]


def _paths(out: Translation, files: list[str]) -> list[str]:
    """Files as the config names them: one for each input, or several with both."""
    return [out.path(file) for file in files]


def _rows_of(file: str) -> int:
    """The rows of a file of IDX; those of MNIST if it is not there yet."""
    from synkhronos._errors import SynkhronosError
    from synkhronos.training import sources

    if not os.path.exists(file):
        return 60_000
    try:
        return len(sources.idx(file))
    except SynkhronosError:
        return 60_000
