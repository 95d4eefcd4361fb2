"""ONNX files: onnxruntime, another program, computes what PyTensor does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synkhronos as synk
from synkhronos import interop, zoo
from synkhronos.interop import _onnx

MISSING = [n for n in ("jax2onnx", "onnxruntime") if find_spec(n) is None]
needs = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
# of libraries that jax2onnx imports
quiet = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(autouse=True)
def single() -> Iterator[None]:
    with pytensor.config.change_flags(floatX="float32"):
        yield


def agrees(file: Path, net: Any, x: np.ndarray) -> None:
    """onnxruntime computes the scores of PyTensor, to 1e-4."""
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    [given], [made] = session.get_inputs(), session.get_outputs()
    assert (given.name, made.name) == ("x", "scores")
    [found] = session.run(None, {"x": x})
    wanted = pytensor.function(net.inputs[:1], net.outputs, mode="FAST_COMPILE")(x)
    assert found.dtype == wanted.dtype == "float32"
    np.testing.assert_allclose(found, wanted, atol=1e-4, rtol=1e-4)
    assert np.ptp(wanted) > 0.1


def test_a_model_ends_at_its_inputs() -> None:
    """What an input is computed from is no part of the model: neither draws nor float64."""
    x = pt.tensor("x", shape=(None, 3), dtype="float64")
    _, noise = pytensor.shared(np.random.default_rng(0)).normal(size=x.shape)
    hidden = (x + noise).astype("float32")
    scores = pt.tanh(hidden)
    [found], [given] = _onnx._graph(scores, [hidden])
    _onnx._check([found], [given], None)
    rows = np.ones((2, 3), "float32")
    np.testing.assert_allclose(found.eval({given: rows}, mode="FAST_COMPILE"), np.tanh(rows))
    with pytest.raises(synk.InputError, match="random numbers"):
        _onnx._check([scores], [hidden], None)


def cnn() -> Any:
    """Convolutions by both of our ways in JAX, pooling, a rectifier and a layer of units."""
    from pytensor_ml.layers import Input, Linear
    from pytensor_ml.model import Model

    from synkhronos.nn import Conv2D, MaxPool2D
    from synkhronos.training import Net

    x = Input("x", (None, 8, 8, 1), "float32")
    few = Conv2D("few", in_channels=1, out_channels=12, kernel_size=3, padding="same")
    many = Conv2D("many", in_channels=12, out_channels=4, kernel_size=3, padding="same")
    found = MaxPool2D(kernel_size=2, stride=2)(pt.maximum(few(x), 0))
    found = pt.maximum(many(found), 0)
    scores = Linear("last", n_in=64, n_out=3)(found.reshape((found.shape[0], 64)))
    scores.name = "scores"
    Model(scores).initialize(seed=0)
    return Net(loss=scores.sum(), params=[], inputs=[x, pt.ivector("y")], outputs=scores)


@needs
@quiet
@pytest.mark.thorough
def test_mlp_with_any_number_of_rows(tmp_path: Path) -> None:
    net = zoo.mlp(20, (16,), classes=5)
    place = interop.to_onnx(net, tmp_path / "mlp.onnx")
    assert place == tmp_path / "mlp.onnx"
    for n in (1, 7):
        agrees(place, net, np.random.default_rng(0).normal(size=(n, 20)).astype("float32"))


@needs
@quiet
@pytest.mark.thorough
def test_convolutions_with_a_fixed_number_of_rows(tmp_path: Path) -> None:
    net, x = cnn(), np.random.default_rng(0).normal(size=(4, 8, 8, 1)).astype("float32")
    agrees(interop.to_onnx(net, tmp_path / "cnn.onnx", rows=4), net, x)
    with pytest.raises(synk.InputError, match="rows=1"):
        interop.to_onnx(net, tmp_path / "other.onnx")
    assert not (tmp_path / "other.onnx").exists()


@needs
@quiet
@pytest.mark.thorough
def test_refused(tmp_path: Path) -> None:
    """Before anything is written."""
    file, x = tmp_path / "net.onnx", pt.tensor("x", dtype="float32", shape=(None, 4))
    wide, open_ = pt.dmatrix("wide"), pt.fmatrix("open")
    rng = pytensor.shared(np.random.default_rng(0))
    _, drawn = pt.random.normal(size=x.shape, rng=rng, return_next_rng=True)
    cases: list[tuple[Any, list[Any] | None, str]] = [
        (synk.ops.all_reduce(x), [x], "collectives"),
        (x * drawn.astype("float32"), [x], "random numbers"),
        (wide * 2, [wide], "wide is float64"),
        (x * pytensor.shared(np.ones(4), name="weight"), [x], "weight is float64"),
        (open_ * 2, [open_], "input open"),
        (x * 2, None, "inputs="),
        (None, [x], "no outputs"),
        (pt.linalg.svd(x)[1], [x], "cannot convert"),
    ]
    for outputs, inputs, words in cases:
        wrong = TypeError if inputs is None or outputs is None else synk.InputError
        with pytest.raises(wrong, match=words):
            interop.to_onnx(outputs, file, inputs=inputs)
    for rows in (0, True, 1.5):
        with pytest.raises(synk.InputError, match="rows="):
            interop.to_onnx(x * 2, file, inputs=[x], rows=rows)  # type: ignore[arg-type]
    assert not file.exists()


def test_jax2onnx_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax2onnx", None)
    with pytest.raises(synk.BackendMissing, match=r"synkhronos\[onnx\]"):
        interop.to_onnx(None, "net.onnx")
