"""The small CNN of `cnn.py` trained by PyTorch, by one process or by DDP over gloo.

python benchmarks/cnn_torch.py RULE BATCH PROCESSES
"""

from __future__ import annotations

from typing import Any

import torch_peer  # before contenders, for which it prepares the command line

import cnn_contenders  # isort: skip
import numpy as np
import torch
from torch import nn


def network() -> Any:
    """The same network with the same weights; in PyTorch channels come first."""
    one, four, eight = cnn_contenders.FILTERS
    net = nn.Sequential(
        nn.Conv2d(one, four, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(four, eight, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(cnn_contenders.FLAT, cnn_contenders.HIDDEN),
        nn.ReLU(),
        nn.Linear(cnn_contenders.HIDDEN, cnn_contenders.CLASSES),
    )
    with torch.no_grad():
        for p, w in zip(net.parameters(), cnn_contenders.weights(), strict=True):
            p.copy_(torch.from_numpy(w.transpose(3, 2, 0, 1).copy() if w.ndim == 4 else w.T.copy()))
    return net


def data() -> tuple[np.ndarray, np.ndarray]:
    """Images with channels first, and labels as the peer takes them."""
    images, labels = cnn_contenders.data()
    return images.transpose(0, 3, 1, 2).copy(), np.eye(cnn_contenders.CLASSES)[labels]


torch_peer.network = network
torch_peer.contenders.data = data

if __name__ == "__main__":
    torch_peer.main()
