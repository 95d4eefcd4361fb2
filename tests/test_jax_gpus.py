"""Members whose arrays stay JAX's: NCCL's part, on a stand-in for nccl4py that moves host memory.

There is no GPU here. Devices are "cpu", the path of GPUs is forced, and `tests/standin` is found
in the place of `nccl` and `cuda` by every member.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import synkhronos as synk
from synkhronos._opening import Opening
from synkhronos.testing import conformance

pytest.importorskip("jax")
pytestmark = pytest.mark.slow

STANDIN = str(Path(__file__).parent / "standin")
Start = Callable[..., synk.Group]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts groups whose members think they share a GPU."""
    monkeypatch.syspath_prepend(STANDIN)
    monkeypatch.setattr(Opening, "on_one_gpu", 2)
    groups: list[synk.Group] = []

    def made(size: int, **options: Any) -> synk.Group:
        group = synk.Group(size, "cpu", start="exec", **options)
        groups.append(group)
        return group.__enter__()

    yield made
    for group in reversed(groups):
        group.__exit__(None, None, None)
    for name in [n for n in sys.modules if n.split(".")[0] in ("nccl", "cuda")]:
        del sys.modules[name]


@pytest.fixture(params=(2, 3), ids=lambda n: f"size{n}")
def gpus(request: pytest.FixtureRequest, start: Start) -> synk.Group:
    """A group of each size."""
    return start(request.param)


@pytest.mark.parametrize("dtype", [*conformance.DTYPES, "bfloat16"])
def test_conformance(gpus: synk.Group, dtype: str) -> None:
    """All verbs on arrays of JAX's, in every dtype; on numpy's too."""
    conformance.check_communicator(gpus, [dtype])
