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
HANG = 60.0  # seconds


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


@pytest.mark.thorough  # where there is no GPU: the test above
def test_the_tests_are_run(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has become of each."""
    if synk.get_n_gpu():
        pytest.skip("this machine has a GPU")
    found = gpu.tests(time.monotonic() + 4 * HANG)
    assert set(found["cases"].values()) == {"skipped"}, found["output"]
    assert {"test_free_rules_are_refused", "test_a_death_in_an_exchange"} < set(found["cases"])
    assert (found["ended"], found["output"]) == (True, "")


@pytest.mark.parametrize(
    ("heeds", "cases"), [(True, {"test_one": "passed"}), *thorough((False, {}))]
)
def test_the_time_ends_before_the_tests(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heeds: bool, cases: object
) -> None:
    """They are interrupted, and those that have passed count; if they do not heed it, killed."""
    handler = "default_int_handler" if heeds else "SIG_IGN"
    (tmp_path / "tests" / "gpu").mkdir(parents=True)
    (tmp_path / "tests" / "gpu" / "test_two.py").write_text(
        "import pathlib, signal\n"
        "def test_one(): pass\n"
        "def test_two():\n"
        f"    signal.signal(signal.SIGINT, signal.{handler})\n"
        "    pathlib.Path('reached').touch()\n"
        "    while True: signal.pause()\n"
    )

    class Late(subprocess.Popen):
        """The time ends when the second test has begun."""

        def communicate(self, *given: Any, timeout: float | None = None) -> Any:
            if timeout is not None and timeout > gpu.LEAVING_SECONDS:
                until = time.monotonic() + HANG
                while not (tmp_path / "reached").exists() and time.monotonic() < until:
                    time.sleep(0.01)
                raise subprocess.TimeoutExpired(self.args, timeout)
            return super().communicate(*given, timeout=timeout)

    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    monkeypatch.setattr(gpu, "LEAVING_SECONDS", HANG if heeds else 0)
    monkeypatch.setattr(subprocess, "Popen", Late)
    found = gpu.tests(time.monotonic() + 2 * HANG)
    assert (found["cases"], found["ended"]) == (cases, False)
    assert ("1 passed" in found["output"]) == heeds


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
    first, long, pair, every = gpu.tables(list(gpu.NETWORKS), time.monotonic() + 100)
    assert first == {"network": "mlp", "devices": "cuda:0"}
    assert long["error"] == "did not end within 100 s"
    assert (pair["devices"], every["devices"]) == ("cuda:0,cuda:0", "cuda:0,cuda:1,cuda:2")
    assert limits["mlp", "cuda:0"] == gpu.TABLE_SECONDS["mlp"]
    assert limits["resnet50", "cuda:0"] <= 100
    late = gpu.tables(list(gpu.NETWORKS), time.monotonic() + 5)
    assert [t["error"] for t in late] == ["no time was left"] * 4
    [alone] = gpu.tables(["resnet50"], time.monotonic() + 5)
    assert (alone["network"], alone["devices"]) == ("resnet50", "cuda:0")
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
        "tests": {"cases": {"one": state, "two": "passed"}, "ended": True, "output": ""},
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
    for ended, wrong in (
        (True, "the tests did not run"),
        (False, "the time ended before the tests"),
    ):
        none = report() | {"tests": {"cases": {}, "ended": ended, "output": "a mess"}}
        assert gpu.verdict(none) == [wrong]
    assert "Amiss: test one: failed." in gpu.page(report(state="failed"))


@pytest.mark.parametrize(
    ("only", "parts", "asked"),
    [
        ([], ["tests", "mlp", "resnet50"], (100.0, 165.0)),
        (["tests"], ["tests"], (145.0, 165.0)),
        (["resnet50"], ["resnet50"], (None, 165.0)),
    ],
)
def test_parts(
    gpu: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    only: list[str],
    parts: list[str],
    asked: tuple[float | None, float],
) -> None:
    """Those that are asked for, each within its share of the time; the report has no others."""
    found = report()
    limits: dict[str, float] = {}

    def tests(until: float) -> Any:
        limits["tests"] = until
        return found["tests"]

    def tables(networks: list[str], until: float) -> Any:
        limits["tables"] = until
        return [{**found["tables"][0], "network": name} for name in networks]

    monkeypatch.setattr(gpu, "missing", lambda: "")
    monkeypatch.setattr(gpu, "machine", lambda: found["machine"])
    monkeypatch.setattr(gpu, "tests", tests)
    monkeypatch.setattr(gpu, "tables", tables)
    monkeypatch.setattr(gpu.time, "monotonic", lambda: 0.0)
    chosen = ["--only", *only] if only else []
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(tmp_path), "--minutes", "3", *chosen])
    assert gpu.main() == 0
    assert (limits.get("tests"), limits["tables"]) == asked
    text = (tmp_path / "gpu_report.rst").read_text()
    marks = {name: f"   * - {name}\n" for name in gpu.NETWORKS} | {"tests": "2 of 2 passed"}
    assert [name for name in gpu.PARTS if marks[name] in text] == parts
    assert ("list-table" in text) == (parts != ["tests"])
