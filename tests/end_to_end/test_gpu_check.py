"""scripts/gpu-check: what it says without a GPU, and what its report says of what it found."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from selection import thorough
from user_scripts import run_script

import synkhronos as synk
from synkhronos._host import devices as _devices

ROOT = Path(__file__).parents[2]


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
    monkeypatch.setattr(_devices, "has_plugin", lambda: False)
    assert gpu.missing() == (
        "gpu-check: JAX's plugin for CUDA is not installed: pip install "
        '"synkhronos[cuda12,test]" or "synkhronos[cuda13,test]"'
    )
    monkeypatch.setattr(_devices, "has_plugin", lambda: True)
    assert gpu.missing() == ""


def test_the_tests_are_run(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has become of each; where they do not end, that."""
    if synk.get_n_gpu():
        pytest.skip("this machine has a GPU")
    found = gpu.tests(time.monotonic() + 100)
    assert set(found["cases"].values()) == {"skipped"}, found["output"]
    assert {"test_a_step_of_one_member[mlp]", "test_a_death_in_an_exchange"} < set(found["cases"])
    assert found["output"] == ""
    found = gpu.tests(time.monotonic() + 0.1)
    assert found == {"cases": {}, "output": "the tests did not end within 0 s"}


def test_which_tables_are_made(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in a process of its own, within what is left of the time."""
    limits = {}

    def run(command: list[str], timeout: float, **how: Any) -> Any:
        name, devices = command[-2:]
        limits[name, devices] = timeout
        if name == "resnet50":
            raise subprocess.TimeoutExpired(command, timeout)
        found = json.dumps({"network": name, "devices": devices})
        return subprocess.CompletedProcess(command, 0, f"a word\n{found}\n", "")

    monkeypatch.setattr(gpu.subprocess, "run", run)
    monkeypatch.setattr(synk, "get_n_gpu", lambda: 3)
    first, long, pair, every = gpu.tables(time.monotonic() + 100)
    assert first == {"network": "mlp", "devices": "cuda:0"}
    assert long["error"] == "did not end within 100 s"
    assert (pair["devices"], every["devices"]) == ("cuda:0,cuda:0", "cuda:0,cuda:1,cuda:2")
    assert limits["mlp", "cuda:0"] == gpu.TABLE_SECONDS["mlp"]
    assert limits["resnet50", "cuda:0"] <= 100
    assert [t["error"] for t in gpu.tables(time.monotonic() + 5)] == ["no time was left"] * 4
    assert set(gpu.TABLE_SECONDS) == set(gpu.NETWORKS)


def test_a_table_that_cannot_be_made(gpu: ModuleType) -> None:
    if synk.get_n_gpu():
        pytest.skip("this machine has a GPU")
    found = gpu.table("mlp", "cuda:0", time.monotonic() + 60)
    assert "no NVIDIA driver" in found["error"].splitlines()[-1]


def test_the_machine(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    found = gpu.machine()
    assert found["versions"]["numpy"] == np.__version__
    assert found["cores"] >= 1
    assert "nvidia-smi" in found["gpus"][0]
    json.dumps(found)


MEASURED = """
    import importlib.util, json, sys, warnings
    warnings.simplefilter("ignore", UserWarning)  # of PyTensor alone
    spec = importlib.util.spec_from_file_location("gpu", sys.argv[1])
    gpu = sys.modules["gpu"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gpu)
    gpu.TURNS, gpu.TURN_SECONDS = 2, 0
    small = {
        "mlp": lambda: gpu.mlp((20, 16, 16, 10), 64),
        "resnet50": lambda: gpu.resnet50(14, 32, 10, 8),
    }
    gpu.NETWORKS = {sys.argv[2]: small[sys.argv[2]]}
    make, losses = gpu.contenders, {}
    def contenders(*args):
        steps = make(*args)
        losses.update({n: [float(step()) for _ in range(2)] for n, step in steps.items()})
        return steps
    gpu.contenders = contenders
    table = gpu.measure(*sys.argv[2:])
    print(json.dumps([table, losses]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "devices"),
    thorough(("mlp", "cpu,cpu"), ("resnet50", "cpu")),
)
def test_measuring(tmp_path: Path, network: str, devices: str) -> None:
    """On cores, in small: the contenders make the same steps."""
    if network == "resnet50":
        pytest.importorskip("pytensor_ml")
    said = run_script(tmp_path, MEASURED, str(ROOT / "benchmarks" / "gpu.py"), network, devices)
    table, losses = json.loads(said.splitlines()[-1])
    names = {"2 members"} if "," in devices else {"1 member", "PyTensor alone", "plain JAX"}
    assert set(table["milliseconds"]) == set(table["images per second"]) == set(losses) == names
    assert min(table["milliseconds"].values()) > 0
    assert (table["network"], table["devices"]) == (network, devices)
    assert ("step over plain JAX" in table) == (len(names) == 3)
    for found in losses.values():
        np.testing.assert_allclose(found, next(iter(losses.values())), 1e-3)


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
