"""Recipes of pages run, and give numbers that are known before."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from modes import FAST
from recipes import recipes, run_recipe

import synkhronos as synk
from synkhronos.extensions import Batches, make_train_function, updates

TESTS = Path(__file__).parents[1]


def test_each_recipe_has_a_test() -> None:
    texts = "".join(file.read_text() for file in TESTS.rglob("test_*.py"))
    named = set(re.findall(r'"(recipe-[\w-]+)"', texts))
    assert named == set(recipes())


def test_units_after_images_of_pytorch() -> None:
    r = np.random.default_rng(0)
    images, w = r.normal(size=(3, 4, 8, 10)), r.normal(size=(5, 4 * 8 * 10))  # as PyTorch has them
    weights = run_recipe("recipe-flattened", w=w)["weights"]
    ours = images.transpose(0, 2, 3, 1).reshape(3, -1)
    np.testing.assert_allclose(ours @ weights, images.reshape(3, -1) @ w.T, rtol=1e-12)


def test_patience_in_a_loop_of_ones_own() -> None:
    """The parameters are those with the least loss on rows that were held out."""
    r = np.random.default_rng(0)
    rows = r.normal(size=(60, 20))
    y_data = rows[:, 0] + r.normal(size=60)
    with synk.Group(2).active():
        x, y = pt.dmatrix("x"), pt.dvector("y")
        w = pytensor.shared(np.zeros(20), name="w")
        loss = ((x @ w - y) ** 2).mean()
        train = make_train_function(loss, [w], x, y, updates.sgd, 0.1, mode=FAST)
        validate = synk.function([x, y], loss, mode=FAST)
        seen: list[float] = []

        def validated(*args: object, **kwargs: object) -> float:
            seen.append(float(validate(*args, **kwargs)))
            return seen[-1]

        given = {"x_data": synk.data(rows), "y_data": synk.data(y_data)}
        done = run_recipe(
            "recipe-patience",
            np=np,
            w=w,
            train=train,
            validate=validated,
            batches=Batches(30, 10, seed=0),
            **given,
        )
        assert len(seen) == seen.index(min(seen)) + 1 + done["patience"]
        held = slice(30, None)
        assert float(validate(*given.values(), batch=held)) == pytest.approx(min(seen), rel=1e-12)
        plain = ((rows[held] @ w.get_value() - y_data[held]) ** 2).mean()
        assert plain == pytest.approx(min(seen), rel=1e-12)


@pytest.mark.thorough  # a process for each trial
@pytest.mark.timeout(300)
def test_a_study_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It finds the best value, and goes on where it has ended."""
    pytest.importorskip("optuna")
    from synkhronos.search import open_study, search

    def objective(trial):  # type: ignore[no-untyped-def]
        return 1 - (trial.suggest_float("x", -5, 5) - 2) ** 2

    monkeypatch.chdir(tmp_path)

    def fewer(objective, study, trials):  # type: ignore[no-untyped-def]
        return search(objective, study, trials=trials // 5)

    given = {"objective": objective, "search": fewer}
    given["open_study"] = functools.partial(open_study, seed=0)
    for _ in range(2):
        study = run_recipe("recipe-study", **given)["study"]
        assert len(study.trials) == 20
        assert study.best_params["x"] == pytest.approx(2, abs=0.5)
        assert study.best_value == pytest.approx(1, abs=0.25)


BEFORE_KERAS = """
import numpy as np
r = np.random.default_rng(0)
y = r.integers(0, 10, 500)
x = (r.normal(size=(10, 64))[y] + 0.1 * r.normal(size=(500, 64))).astype("float32")
"""
AFTER_KERAS = """
synk.close()
read = keras.models.load_model("trained.keras")
assert (np.asarray(read(x)).argmax(1) == y).all()      # ten clusters far apart
"""
BEFORE_ONNX = """
import numpy as np
x = np.random.default_rng(0).normal(size=(7, 784)).astype("float32")
"""
AFTER_ONNX = """
pytensor.config.mode = "FAST_COMPILE"
found = net.outputs.eval({net.inputs[0]: x})
np.testing.assert_allclose(scores, found, atol=1e-4)
"""


@pytest.mark.thorough  # JAX is imported and compiles
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "needed", "before", "after"),
    [
        ("recipe-keras", ["keras", "jax"], BEFORE_KERAS, AFTER_KERAS),
        ("recipe-onnx", ["onnxruntime", "jax2onnx"], BEFORE_ONNX, AFTER_ONNX),
    ],
    ids=["keras", "onnx"],
)
def test_other_frameworks(
    name: str, needed: list[str], before: str, after: str, tmp_path: Path
) -> None:
    if any(find_spec(module) is None for module in needed):
        pytest.skip(f"not installed: {', '.join(needed)}")
    script = tmp_path / "recipe.py"
    script.write_text(before + recipes()[name] + after)
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if k != "KERAS_BACKEND"},
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
    )
    assert done.returncode == 0, done.stderr
