"""scripts/gpu-check: what it says without a GPU, and what its report says of what it found."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import synkhronos as synk

ROOT = Path(__file__).parent.parent


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script's module."""
    spec = importlib.util.spec_from_file_location("gpu", ROOT / "benchmarks" / "gpu.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu", module)  # its dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_without_a_gpu(tmp_path: Path) -> None:
    if synk.get_n_gpu():
        pytest.skip("this machine has a GPU")
    done = subprocess.run(
        [ROOT / "scripts" / "gpu-check", "--out", tmp_path],
        env={"PATH": "/usr/bin:/bin", "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "this machine has no NVIDIA GPU" in done.stderr
    assert not list(tmp_path.iterdir())


def test_what_is_missing(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synk, "get_n_gpu", lambda: 1)

    def version(package: str) -> str:
        if package == "nccl4py":
            raise gpu.importlib.metadata.PackageNotFoundError(package)
        return "1"

    monkeypatch.setattr(gpu.importlib.metadata, "version", version)
    assert gpu.missing().startswith("gpu-check: nccl4py is not installed: pip install")
    monkeypatch.setattr(gpu.importlib.metadata, "version", lambda package: "1")
    assert gpu.missing() == ""


def report(ratio: float = 1.01, state: str = "passed", error: str = "") -> dict[str, Any]:
    row: dict[str, Any] = {
        "network": "mlp",
        "devices": "cuda:0",
        "milliseconds": {"1 member": 0.5, "plain JAX": 0.4},
        "images per second": {"1 member": 4096000.0, "plain JAX": 5120000.0},
        "step over PyTensor alone": ratio,
        "step over plain JAX": 1.25,
    }
    other = {"network": "mlp", "devices": "cuda:0,cuda:0", "error": error}
    return {
        "date": "2026-01-01",
        "machine": {
            "gpus": ["NVIDIA Z1, 99 GiB"],
            "NCCL": 23203,
            "versions": {"jax": "9.9"},
            "Python": "3.12",
            "Linux": "6",
            "cores": 4,
        },
        "tests": {"cases": {"one": state, "two": "passed"}, "output": ""},
        "tables": [row, *([other] if error else [])],
    }


def test_a_report(gpu: ModuleType) -> None:
    assert gpu.verdict(report()) == []
    text = gpu.page(report())
    assert "2026-01-01, NVIDIA Z1, 99 GiB; NCCL 23203" in text
    assert "2 of 2 passed" in text
    assert "   * - mlp\n     - cuda:0\n     - 1 member\n     - 0.500\n     - 4,096,000\n" in text
    assert "1.010 of PyTensor's own function (goal: at most 1.05), and 1.250 of plain JAX" in text
    assert text.endswith("Nothing is amiss.\n")


def test_a_report_of_failures(gpu: ModuleType) -> None:
    """A test that failed or was skipped, a goal missed, a table that could not be made."""
    for state in ("failed", "skipped"):
        assert gpu.verdict(report(state=state)) == [f"test one: {state}"]
    [slow] = gpu.verdict(report(ratio=1.2))
    assert slow == "mlp on cuda:0: a step takes 1.200 of PyTensor alone, goal 1.05"
    [broken] = gpu.verdict(report(error="Traceback\n  x\nMemoryError: no room\n"))
    assert broken == "mlp on cuda:0,cuda:0: MemoryError: no room"
    none = report() | {"tests": {"cases": {}, "output": "a mess"}}
    assert gpu.verdict(none) == ["the tests did not run"]
    assert "What is not as it should be: test one: failed." in gpu.page(report(state="failed"))
