"""The examples in docstrings run."""

from __future__ import annotations

import pytest
from doc_examples import LARGE, check_examples, modules_of

# they read configs, by msgspec
CONFIGS = [f"synkhronos.training.{n}" for n in ("config", "configured")]
CONFIGS += [
    f"synkhronos.training._from_config.{n}" for n in ("metrics", "optimizer", "rows", "rules")
]
CONFIGS += ["synkhronos.search._configured"]
POOLS = {
    "synkhronos._transport.pools._dask": "distributed",
    "synkhronos._transport.pools._ray": "ray",
}


@pytest.mark.parametrize("name", modules_of("synkhronos", but=LARGE))
def test_examples_run(name: str) -> None:
    if name.startswith(("synkhronos.nn.layers", "synkhronos.zoo.")):
        pytest.importorskip("pytensor_ml", reason="pytensor-ml is not installed (synkhronos[nn])")
    if name in CONFIGS:
        pytest.importorskip("msgspec", reason="msgspec is not installed (synkhronos[train])")
    if name.startswith("synkhronos.search."):
        pytest.importorskip("optuna", reason="Optuna is not installed (synkhronos[search])")
    if name == "synkhronos.nn._jax":
        pytest.importorskip("jax", reason="JAX is not installed (the extra: synkhronos[jax])")
    if name in POOLS:
        pytest.importorskip(POOLS[name], reason=f"{POOLS[name]} is missing (synkhronos[cluster])")
    check_examples(name)
