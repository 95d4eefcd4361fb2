"""The facts for a bug report: what they hold, and what they cost."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from synkhronos._host import environment as host
from synkhronos.cli._command_line import main


def test_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in [n for n in os.environ if n.startswith(host._PREFIXES) or n in host._VARIABLES]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("PYTENSOR_FLAGS", "floatX=float64")
    monkeypatch.setenv("A_PASSWORD", "secret")
    assert main(["env"]) == 0
    out, err = capsys.readouterr()
    assert not err
    lines = out.splitlines()
    titles = ["system", "packages", "PyTensor", "machine", "environment variables"]
    assert [line for line in lines if not line.startswith("  ")] == titles
    assert f"  python: {platform.python_version()}, CPython" in lines
    assert f"  numpy: {np.__version__}" in lines
    assert f"  pytensor: {importlib.metadata.version('pytensor')}" in lines
    assert lines[-2:] == ["  OMP_NUM_THREADS: 3", "  PYTENSOR_FLAGS: floatX=float64"]
    assert any(line.startswith("  BLAS: ") and "threads" in line for line in lines)
    assert "secret" not in out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """One object, whose facts are those of the machine."""
    assert main(["env", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["packages"]["numpy"] == np.__version__
    assert found["system"]["kernel"] == f"Linux {platform.release()}"
    cores = found["cores"]
    assert 1 <= cores["physical"] <= cores["may_use"] <= cores["bound_to"] <= cores["machine"]
    assert 0 < found["memory"]["free"] <= found["memory"]["most"]
    assert found["gpus"]["visible"] <= found["gpus"]["count"]


def test_where_little_is_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(host.thread_pools, "thread_pools", list)
    monkeypatch.setattr(host, "_model", lambda: None)
    monkeypatch.setattr(host, "_PREFIXES", ("NOT_SET_",))
    monkeypatch.setattr(host, "_VARIABLES", ())
    assert main(["env"]) == 0
    out = capsys.readouterr().out
    assert f"packages\n  not installed: {', '.join(host.PACKAGES)}\n" in out
    assert "  BLAS: none was found" in out
    assert "  processor: unknown" in out
    assert out.endswith("environment variables\n  none\n")
    monkeypatch.setattr(host, "trouble", lambda: "groups need Linux")
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    assert main(["env"]) == 0
    assert "machine\n" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("count", "visible", "text"),
    [(0, None, "0 from NVIDIA, 0 visible"), (2, "1", "2 from NVIDIA, 1 visible")],
)
def test_gpus(
    count: int,
    visible: str | None,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(host, "get_n_gpu", lambda: count)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    main(["env"])
    assert f"  GPUs: {text}\n" in capsys.readouterr().out


@pytest.mark.slow
def test_nothing_is_imported_for_its_version() -> None:
    code = (
        "import sys\nfrom synkhronos.cli._command_line import main\nmain(['env', '--json'])\n"
        "late = {'jax', 'numba', 'mpi4py', 'pymc', 'rich', 'pandas', 'pyarrow', 'safetensors'}\n"
        "assert not late & set(sys.modules), late & set(sys.modules)"
    )
    command: list[Any] = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=270, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["packages"]["jax"]
