"""A config and its network, for tests of `synk train`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytensor
import pytest
from modes import FAST

MINE = """
import numpy as np, pytensor, pytensor.tensor as pt
from synkhronos.training import Net, metrics

def net(columns=3, rate=0.0):
    x, y = pt.matrix("x", dtype="float64"), pt.vector("y", dtype="float64")
    w = pytensor.shared(np.zeros(columns), name="w")
    error = x @ w - y
    return Net(
        loss=(error**2).mean(), params=[w], inputs=[x, y], outputs=x @ w,
        metrics={"far": abs(error).max()},
    )

def rows(n=61, seed=1):
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(n, 3))
    return x, x @ [1.0, 2.0, 3.0] + 0.1 * draw.normal(size=n)

def others():
    return rows(20, 2)

def nothing():
    return 3

def lists():
    return [[1.0, 2.0, 3.0]], [4.0]
"""
CONFIG = """
model = "mine:net"
optimizer = { name = "adam", rate = 0.1 }
batch = 20
epochs = 3
progress = false
[data]
train = "mine:rows"
validation = "mine:others"
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder, with config.toml and mine.py; modules of the folder are forgotten."""
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "config.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two versions within a second
    with pytensor.config.change_flags(mode=FAST):
        yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
