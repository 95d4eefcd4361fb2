"""These tests need an NVIDIA GPU; elsewhere they are skipped, and say why."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

import synkhronos as synk
from synkhronos._backends import nccl as nccl_backend
from synkhronos._host.devices import has_plugin

HERE = Path(__file__).parent


def missing() -> str:
    """What these tests lack here, in words; nothing where they can run."""
    if not synk.get_n_gpu():
        return "this machine has no NVIDIA GPU"
    if importlib.util.find_spec("jax") is None or not has_plugin():
        return 'JAX has no plugin for CUDA: pip install "synkhronos[cuda12]" or "[cuda13]"'
    if not nccl_backend.is_installed():
        return 'nccl4py is not installed: pip install "synkhronos[cuda12]" or "[cuda13]"'
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is here."""
    reason = missing()
    if not reason:  # this process and the scripts it starts are on one GPU
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.3")
        return
    for item in items:  # of all folders: to look through the parents of each takes a second
        if str(item.path).startswith(f"{HERE}{os.sep}"):
            item.add_marker(pytest.mark.skip(reason=reason))
