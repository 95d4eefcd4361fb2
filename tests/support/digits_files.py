"""scikit-learn's digits in the layouts that earlier systems read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from learning_cases import images_of_digits


def mnist_files(folder: Path) -> None:
    """Four files of IDX, as those of MNIST: bytes of 28 x 28 pixels, and labels."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (images, labels) in zip(("train", "t10k"), images_of_digits(24), strict=True):
        pixels = np.pad(images[..., 0] * 255, [(0, 0), (2, 2), (2, 2)]).astype("u1")
        _write_idx(folder / f"{name}-images-idx3-ubyte", pixels)
        _write_idx(folder / f"{name}-labels-idx1-ubyte", labels.astype("u1"))


def cifar_files(folder: Path) -> None:
    """Six files of records, as those of CIFAR-10: a label, and 3 x 32 x 32 bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, (images, labels) in zip(("train", "test"), images_of_digits(24), strict=True):
        pixels = np.pad(images[..., 0] * 255, [(0, 0), (4, 4), (4, 4)]).astype("u1")
        colours = np.repeat(pixels.reshape(len(pixels), 1, -1), 3, axis=1)
        records = np.column_stack([labels.astype("u1"), colours.reshape(len(pixels), -1)])
        names = (
            [f"data_batch_{i}.bin" for i in range(1, 6)] if part == "train" else ["test_batch.bin"]
        )
        for name, some in zip(names, np.array_split(records, len(names)), strict=True):
            (folder / name).write_bytes(some.tobytes())


def imagenet_archives(folder: Path) -> None:
    """Folders of archives, as PyDTNN's: bytes (rows, 3, 19, 19), labels (rows, 1) from 1."""
    for part, (images, labels) in zip(("train", "validation"), images_of_digits(16), strict=True):
        (folder / part).mkdir(parents=True)
        pixels = np.pad(images[..., 0] * 255, [(0, 0), (1, 2), (1, 2)]).astype("u1")
        pixels = np.repeat(pixels[:, None], 3, axis=1)
        for i, rows in enumerate(np.array_split(np.arange(len(labels)), 4)):
            np.savez_compressed(
                folder / part / f"{part}-{i:05}-00004", x=pixels[rows], y=1 + labels[rows, None]
            )


def hdf5_lists(folder: Path) -> None:
    """Lists of HDF5 files, as mpi_learn's: images (8, 8, 1), and labels one-hot, as float32."""
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    for name, (images, labels) in zip(("train", "test"), images_of_digits(8), strict=True):
        parts = np.array_split(np.arange(len(labels)), 3)
        for i, rows in enumerate(parts):
            with h5py.File(folder / f"mnist_{name}_{i}.h5", "w") as file:
                file["features"] = images[rows]
                file["labels"] = np.eye(10, dtype="float32")[labels[rows]]
        lines = [f"mnist_{name}_{i}.h5\n" for i in range(len(parts))]
        (folder / f"{name}_mnist.list").write_text("".join(lines))


def _write_idx(path: Path, array: np.ndarray) -> None:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(header + array.tobytes())
