"""Weights in files of safetensors, and those of PyTorch: the oracle is numpy in PyTorch's layouts.

`docs/howto/other_frameworks.rst` shows these lines.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from modes import FAST

from synkhronos import nn


@pytest.fixture
def weights() -> dict[str, np.ndarray]:
    """As ``state_dict()`` of a PyTorch network names and lays them out."""
    rng = np.random.default_rng(2)
    shapes = {
        "conv.weight": (5, 3, 3, 2),  # channels out, in, height, width
        "conv.bias": (5,),
        "up.weight": (5, 4, 2, 2),  # channels in, out, height, width
        "up.bias": (4,),
        "fc.weight": (6, 4 * 8 * 10),  # units out, in
        "fc.bias": (6,),
    }
    return {name: rng.normal(size=shape) for name, shape in shapes.items()}


def by_numpy(w: dict[str, np.ndarray], images: np.ndarray) -> np.ndarray:
    """The formulas of torch.nn.Conv2d, ConvTranspose2d (stride 2), Flatten and Linear, by loops."""
    n, _, height, width = images.shape
    out = np.zeros((n, 5, height - 2, width - 1))
    for i, j in np.ndindex(height - 2, width - 1):
        seen = images[:, :, i : i + 3, j : j + 2]
        out[:, :, i, j] = np.einsum("nchw,ochw->no", seen, w["conv.weight"]) + w["conv.bias"]
    larger = np.zeros((n, 4, 2 * out.shape[2], 2 * out.shape[3]))
    for i, j in np.ndindex(out.shape[2:]):
        spread = np.einsum("nc,cohw->nohw", out[:, :, i, j], w["up.weight"])
        larger[:, :, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2] += spread
    larger += w["up.bias"][:, None, None]
    return larger.reshape(n, -1) @ w["fc.weight"].T + w["fc.bias"]


def test_layouts_of_pytorch(weights: dict[str, np.ndarray]) -> None:
    """Convolution, its transpose, and units after images that PyTorch flattens channels first."""
    images = np.random.default_rng(3).normal(size=(2, 3, 6, 6))
    x = pt.tensor("x", dtype="float64", shape=(None, 6, 6, 3))
    kernel = weights["conv.weight"].transpose(2, 3, 1, 0)
    found = nn.conv2d(x, kernel) + weights["conv.bias"]
    up = weights["up.weight"].transpose(2, 3, 0, 1)
    found = nn.conv_transpose2d(found, up, strides=2) + weights["up.bias"]
    units = weights["fc.weight"].reshape(6, 4, 8, 10).transpose(2, 3, 1, 0).reshape(-1, 6)
    found = found.reshape((x.shape[0], 320)) @ units + weights["fc.bias"]
    scores = pytensor.function([x], found, mode=FAST)(images.transpose(0, 2, 3, 1))
    np.testing.assert_allclose(scores, by_numpy(weights, images), rtol=1e-10, atol=1e-10)


def test_weights_in_a_file(weights: dict[str, np.ndarray], tmp_path: Path) -> None:
    """By name, in rows: safetensors 0.8 writes other values of an array that is transposed."""
    from safetensors.numpy import load_file, save_file

    params = [pytensor.shared(np.asfortranarray(v), name=n) for n, v in weights.items()]
    file = tmp_path / "weights.safetensors"
    save_file({p.name: np.ascontiguousarray(p.get_value()) for p in params}, file)
    for p in params:
        p.set_value(np.zeros_like(p.get_value()))
    found = load_file(file)
    for p in params:
        p.set_value(found.pop(p.name))
    assert not found
    for p in params:
        np.testing.assert_array_equal(p.get_value(), weights[p.name])
