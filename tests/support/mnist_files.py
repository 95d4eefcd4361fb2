"""MNIST's files, and where a copy of them may be."""

from __future__ import annotations

from pathlib import Path

FILES = [f"{s}-{k}-ubyte.gz" for s in ("train", "t10k") for k in ("images-idx3", "labels-idx1")]


def shared_data() -> str:
    """A folder with the test set of MNIST; "" where there is none, and digits do."""
    for parent in Path(__file__).parents:
        if (parent / "shared" / "data" / "mnist-10k" / FILES[-1]).exists():
            return str(parent / "shared" / "data")
    return ""
