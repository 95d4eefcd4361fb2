"""Models that were compiled with data of some lengths get other data: their code is for these."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from comparing import IN_PYTHON
from pytensor.compile.builders import OpFromGraph

nutpie = pytest.importorskip("nutpie", reason="nutpie is not installed")
from test_nutpie import called  # noqa: E402

from synkhronos._compiling.direct.unfit import UnfitError  # noqa: E402
from synkhronos._compiling.kept.folder import Folder  # noqa: E402
from synkhronos.pymc._density.nutpie import data_stay  # noqa: E402
from synkhronos.pymc._kept import entry, models  # noqa: E402
from synkhronos.pymc._kept.models import KeptModel, kept_model, leading  # noqa: E402


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    found = Folder(tmp_path / "kept")
    monkeypatch.setattr(models, "kept_folder", lambda: found)
    token = data_stay.set(True)  # as in `sample`
    yield found
    data_stay.reset(token)


@dataclass(frozen=True)
class Lengths:
    """The rows, the elements of another array, and a number that is a length."""

    rows: int
    others: int
    steps: int

    def data(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng([self.rows, self.others, self.steps])
        return {
            "x": rng.normal(size=(self.rows, 2)),
            "group": rng.integers(3, size=self.rows),
            "values": rng.normal(size=self.rows),
            "others": rng.normal(size=self.others),
            "steps": np.array(self.steps),
        }


class Several:
    """A model whose data have open lengths, with its log-density and gradient by Python."""

    def __init__(self, lengths: Lengths) -> None:
        with pm.Model() as self.model:
            x, group, values, others, steps = (
                pm.Data(name, value) for name, value in lengths.data().items()
            )
            a, b = pm.Normal("a", shape=3), pm.Normal("b", shape=2)
            pm.Cauchy("y", a[group] + x @ b, 1, observed=values)
            pairs = x[:, 0][:, None] * pt.exp(a[0]) - others
            pm.Potential("pairs", -pt.sqr(pairs).sum())
            pm.Potential("walk", -pt.sqr(pt.cumsum(pt.alloc(pt.tanh(b[0]), steps))).sum())
        outputs = [self.model.logp(), *self.model.dlogp()]
        self._expected = self.model.compile_fn(outputs, mode=IN_PYTHON)

    def set(self, lengths: Lengths) -> None:
        with self.model:
            pm.set_data(lengths.data())

    def compiled(self) -> Any:
        with leading(kept_model(self.model)):
            return nutpie.compile_pymc_model(self.model)

    def check(self, found: Any) -> None:
        """Compare a compiled model with Python."""
        for seed in range(2):
            point = np.random.default_rng(seed).normal(size=5)
            code, value, gradient = called(found, point)
            assert code == 0
            wanted = np.hstack(self._expected({"a": point[:3], "b": point[3:]}))
            np.testing.assert_allclose(np.append(value, gradient), wanted, rtol=1e-10)


FIRST = Lengths(7, 4, 5)
OTHERS = [
    Lengths(9, 4, 5),
    Lengths(4, 7, 5),  # as those of another array before
    Lengths(6, 6, 6),
    Lengths(7, 4, 2),  # arrays have the same lengths
    Lengths(1, 4, 5),
    Lengths(7, 1, 1),
    Lengths(1, 1, 1),
]


def test_the_rewritten_graph_has_code_for_each_length(monkeypatch: pytest.MonkeyPatch) -> None:
    several = Several(FIRST)
    assert several.compiled().logp_func is not None  # it was compiled
    monkeypatch.setattr(nutpie.compile_pymc, "_make_functions", None)
    for lengths in (*OTHERS, FIRST):
        several.set(lengths)
        found = several.compiled()
        assert entry.is_fixed(found)
        several.check(found)


def test_code_is_kept_for_each_length(monkeypatch: pytest.MonkeyPatch) -> None:
    several, lengths = Several(FIRST), [FIRST, *OTHERS[:2]]
    for each in lengths:
        several.set(each)
        several.compiled()
    monkeypatch.setattr(models, "with_lengths", None)
    monkeypatch.setattr(nutpie.compile_pymc, "_make_functions", None)
    for each in lengths:
        several.set(each)
        several.check(several.compiled())


@pytest.mark.parametrize("below", [(0, 1, 0), (1, 0, 1)])
def test_code_for_indices_from_0_on_is_not_used_for_those_below(below: tuple[int, ...]) -> None:
    """Of the same lengths: what is kept refuses them, and code is written for them."""
    several, data = Several(FIRST), FIRST.data()
    for is_below in below:
        with several.model:
            pm.set_data(data | {"group": data["group"] - 3 * is_below})
        found = several.compiled()
        assert entry.is_fixed(found)
        several.check(found)


@dataclass(frozen=True)
class Squared:
    """Squares a number, with a gradient of the user's that has a pickle or not."""

    pullback: Callable[..., list[Any]] | None

    def __call__(self, number: Any) -> Any:
        x = pt.scalar("x")
        return OpFromGraph([x], [pt.sqr(x)], pullback=self.pullback)(number)


@pytest.mark.parametrize("by_user", [False, True])
def test_a_model_is_kept_whose_loop_has_operations_that_note_their_gradients(
    by_user: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_hand = (
        (lambda inputs, outputs, gradients: [2 * inputs[0] * gradients[0]]) if by_user else None
    )
    squared = Squared(by_hand)
    with pm.Model() as model:
        a = pm.Normal("a")
        rows = pt.as_tensor(np.arange(4.0))
        sums = pytensor.scan(
            lambda row, before, a: pt.tanh(squared(before + row * a)),
            sequences=rows,
            outputs_info=pt.zeros(()),
            non_sequences=a,
            return_updates=False,
        )
        pm.Potential("loop", sums[-1])
    with leading(kept_model(model)):
        first = nutpie.compile_pymc_model(model)
    monkeypatch.setattr(nutpie.compile_pymc, "_make_functions", None)
    with leading(kept_model(model)):
        again = nutpie.compile_pymc_model(model)
    expected = model.compile_fn([model.logp(), *model.dlogp()], mode=IN_PYTHON)({"a": 0.3})
    for found in (first, again):
        code, value, gradient = called(found, np.array([0.3]))
        assert code == 0
        np.testing.assert_allclose(np.append(value, gradient), np.hstack(expected), rtol=1e-12)


def test_data_that_the_graph_is_not_for_have_no_code(folder: Folder) -> None:
    """No rows; rows that PyTensor would have to repeat, which it refuses; and other columns."""
    several = Several(FIRST)
    several.compiled()
    [kept] = [path for path in folder.path.iterdir() if path.stat().st_size > 1000]
    first = folder.read(kept.stem)
    assert first is not None
    data = FIRST.data()
    outside = data | {"group": data["group"] + 3}
    for wrong in (
        Lengths(0, 4, 5).data(),
        Lengths(7, 0, 5).data(),
        Lengths(7, 4, 0).data(),
        data | {"values": data["values"][:1]},
        data | {"x": data["x"][:1]},
        data | {"x": data["x"][:, :1]},
        outside,
    ):
        with several.model:
            pm.set_data(wrong)
        with pytest.raises(IndexError if wrong is outside else UnfitError):
            entry.with_lengths(first, KeptModel(models.Graphs(several.model), folder).graphs)


def of_constants(rows: int, others: int) -> str:
    """The key of a model whose arrays are constants of its graph."""
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        a = pm.Normal("a")
        pm.Cauchy("y", a * rng.normal(size=rows), 1, observed=rng.normal(size=rows))
        pm.Cauchy("z", a, 1, observed=rng.normal(size=others))
    return models.Graphs(model).key


def test_the_key_tells_which_lengths_of_constants_are_equal() -> None:
    """Or 1: then PyTensor repeats elements."""
    key = of_constants(210, 230)
    assert key == of_constants(240, 250)
    different = {key, of_constants(230, 230), of_constants(240, 1), of_constants(240, 0)}
    assert len(different) == 4
