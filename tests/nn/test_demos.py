"""The demos of networks come to the losses of their serial twins."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from mnist_files import shared_data
from user_scripts import LIMIT

pytest.importorskip("pytensor_ml", reason="pytensor-ml is not installed (synkhronos[nn])")
DEMOS = Path(__file__).parent.parent.parent / "demos"
LOSS = re.compile(r"loss (\d+\.\d{5,})")


def losses(
    script: str, arguments: str, data: str = "", limit: float = LIMIT
) -> tuple[np.ndarray, str]:
    """What a demo says; without cxx, PyTensor waits for no compiler."""
    flags = f"{os.environ.get('PYTENSOR_FLAGS', '')},cxx="
    done = subprocess.run(
        [sys.executable, str(DEMOS / script), *arguments.split()],
        env=os.environ | {"PYTENSOR_FLAGS": flags, "SYNKHRONOS_DATA": data},
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return np.array([float(v) for v in LOSS.findall(done.stdout)]), done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["FAST_COMPILE", "JAX"])
def test_resnet(mode: str) -> None:
    """A short one, over batch normalisation of all members' rows; in float64, to 8 digits."""
    if mode == "JAX":
        pytest.importorskip("jax")
    small = "--depth 14 --size 32 --batch 2 --rows 10 --classes 5 --steps 4 --dtype float64"
    found, said = losses("resnet/train_resnet.py", f"{small} --mode {mode} --members 2 --compare")
    ours, serial = found[:4], found[4:]
    assert "2 members" in said
    assert "1 process" in said
    np.testing.assert_allclose(ours, serial, rtol=1e-8)
    assert np.ptp(ours) > 0.01
    [apart] = re.findall(r"of the losses, by step: (.*)", said)
    assert max(float(v) for v in apart.split(", ")) < 1e-8


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.timeout(4 * LIMIT)
def test_resnet_50() -> None:
    """The whole net, before its rounding grows."""
    small = "--batch 4 --size 64 --steps 2 --dtype float64 --mode FAST_COMPILE"
    arguments = f"{small} --members 2 --compare"
    found, _ = losses("resnet/train_resnet.py", arguments, limit=3 * LIMIT)
    np.testing.assert_allclose(found[:2], found[2:], rtol=1e-10)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.skipif(not shared_data(), reason="MNIST is not there")
def test_a_cnn_learns_mnist() -> None:
    """With dropout, in mode JAX, from the 8,000 images that the test set leaves to train on."""
    pytest.importorskip("jax")
    cnn = "mnist/train_cpu_data.py", "cnn 100 3 --members 2 --mode JAX"
    _, said = losses(*cnn, data=shared_data())
    assert float(re.findall(r"test accuracy: (\d+\.\d\d) %", said)[0]) >= 97


@pytest.mark.thorough
@pytest.mark.slow
def test_resnet_in_one_process() -> None:
    """In float32 rounding grows: the first step alone is compared."""
    pytest.importorskip("jax")
    small = "--depth 14 --size 32 --batch 2 --rows 10 --classes 5 --steps 2"
    serial, _ = losses("resnet/train_serial.py", f"{small} --members 2")
    ours, _ = losses("resnet/train_resnet.py", f"{small} --members 2")
    assert len(serial) == 2
    np.testing.assert_allclose(ours[0], serial[0], rtol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["FAST_COMPILE", "JAX"])
def test_lstm(mode: str) -> None:
    """Not in numba, which compiles the loops and their gradients for minutes."""
    if mode == "JAX":
        pytest.importorskip("jax")
    small = f"--rows 600 --batch 100 --epochs 3 --hidden 8 --steps 6 --mode {mode}"
    ours, said = losses("lstm/train_lstm.py", f"{small} --members 2")
    serial, _ = losses("lstm/train_lstm.py", f"{small} --serial")
    assert "test accuracy" in said
    np.testing.assert_allclose(ours, serial, rtol=1e-4)
    assert ours[-1] < ours[0]
