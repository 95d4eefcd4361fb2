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
