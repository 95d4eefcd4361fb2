"""Modules of `training` that programs import stay where they were."""

from __future__ import annotations

import importlib

import pytest

from synkhronos import training

PATHS = [
    *("augmentation.augmentation_words", "history.History", "recorder.Recorder"),
    *("callbacks.Best", "callbacks.EarlyStopping", "callbacks.Plateau", "callbacks.Target"),
    *("fit.fit", "metrics.Metric", "net.Net", "trainer.Trainer", "optimizers.ema"),
]


@pytest.mark.parametrize("path", PATHS)
def test_a_module_has_the_public_name(path: str) -> None:
    name, _, public = path.partition(".")
    module = importlib.import_module(f"synkhronos.training.{name}")
    assert getattr(module, public) is getattr(training, public)
