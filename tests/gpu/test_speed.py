"""What a step of one member costs beside PyTensor's own function, on a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "gpu.py"
MOST = 1.05


@pytest.mark.parametrize("network", ["mlp"])
def test_a_step_of_one_member(network: str) -> None:
    """At most 1.05 times the same PyTensor-JAX function alone, by medians of turns."""
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--measure", network, "cuda:0"],
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["step over PyTensor alone"] <= MOST, found
