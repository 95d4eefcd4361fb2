"""A part is cut into slices of any length only if the result is proved to be the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from synkhronos._engine.commands.call import Call
from synkhronos._engine.compilations import Compilations
from synkhronos._engine.function_plan import plan

# Functions are made here for their slices; `tests/api/test_warnings.py` holds what is warned of.
pytestmark = [
    pytest.mark.filterwarnings("ignore::synkhronos.LocalUpdateWarning"),
    pytest.mark.filterwarnings("ignore::synkhronos.ReductionWarning"),
]

# lengths of one member's parts that leave none for 3 rows, which are then 2 and 1
SOME = (5, 6, 7, 9)


class Graph:
    """Inputs and shared variables to make functions of."""

    def __init__(self) -> None:
        self.x, self.k = pt.matrix("x", dtype="float32"), pt.lvector("k")
        self.w = pytensor.shared(np.ones(4, "float32"), name="w")
        self.n = pytensor.shared(np.int64(0), name="n")
        self.rng = pytensor.shared(np.random.default_rng(1), name="rng")
        self.error = (self.x @ self.w) ** 2
        self.penalised = self.error.mean() + (self.w**2).sum()
        self.step = self.w - np.float32(0.1) * pytensor.grad(self.penalised, self.w)
        self.next, self.mask = pt.random.bernoulli(
            0.5, size=self.x.shape, rng=self.rng, return_next_rng=True
        )


def pieces_of(
    make: Callable[[Graph], dict[str, Any]], borders: tuple[int, ...] = (0, 3), infer: bool = True
) -> Any:
    """The slices of parts between these borders, after parts of SOME lengths in every member."""
    graph = Graph()
    options = {"outputs": None, "updates": None, "sliceable_shareds": None} | make(graph)
    made = plan(
        *(1, [graph.x, graph.k], options["outputs"], None, options["updates"], None),
        *(options["sliceable_shareds"], infer, True, {"mode": "JAX", "on_unused_input": "ignore"}),
    )
    compilations = Compilations(made.recipe, infer)
    outputs = tuple(range(len(made.recipe.outputs)))
    members = len(borders) - 1
    for rows in SOME:
        call = Call(*(1, (), tuple(range(0, (members + 1) * rows, rows)), outputs, ()))
        compilations.note(call)
    return compilations.cut(outputs, 1, borders).slice_lengths


CUT: dict[str, Callable[[Graph], dict[str, Any]]] = {
    "mean": lambda g: {"outputs": g.error.mean()},
    "sum": lambda g: {"outputs": g.error.sum()},
    "max": lambda g: {"outputs": g.error.max()},
    "rows": lambda g: {"outputs": g.error},
    "penalised": lambda g: {"outputs": g.penalised},
    "masked mean": lambda g: {"outputs": (g.error * g.k).sum() / g.k.sum()},
    "named as proved": lambda g: {"outputs": [(g.error.sum(), "sum"), (g.error, "gather")]},
    "own value of the master": lambda g: {"outputs": (g.error.mean(), None)},
    "gradients": lambda g: {"outputs": pytensor.grad(g.error.mean(), [g.w])},
    "count": lambda g: {"outputs": (g.k > 0).sum()},
    "without rows": lambda g: {"outputs": [g.error.mean(), g.w * 2]},
    "local update": lambda g: {"updates": [(g.w, g.step)]},
    "update of all": lambda g: {"updates": [(g.w, g.step, "avg", "all")]},
    "counter": lambda g: {"outputs": g.error.mean(), "updates": [(g.n, g.n + 1)]},
    "nothing": lambda g: {"outputs": g.w.sum()},
}

WHOLE: dict[str, Callable[[Graph], dict[str, Any]]] = {
    "std": lambda g: {"outputs": (g.error.std(), "avg")},
    "unproved": lambda g: {"outputs": pt.sort(g.error).cumsum()[-1]},
    "named otherwise": lambda g: {"outputs": (g.error.mean(), "sum")},
    "median of the master": lambda g: {"outputs": (pt.median(g.error), None)},
    "one of several": lambda g: {"outputs": [g.error.mean(), (g.error.std(), "avg")]},
    "unproved update": lambda g: {"updates": [(g.w, g.w + g.error.std())]},
    "update named otherwise": lambda g: {"updates": [(g.w, g.w + g.x.sum(0), "max")]},
    "integers that are averaged": lambda g: {"outputs": (g.n * 2, "avg")},
    "random": lambda g: {"outputs": (g.x * g.mask).sum(), "updates": [(g.rng, g.next)]},
}


@pytest.mark.parametrize("kind", CUT)
def test_cut(kind: str) -> None:
    assert pieces_of(CUT[kind]) == ((2, 1),)


@pytest.mark.parametrize("kind", WHOLE)
def test_not_cut(kind: str) -> None:
    assert pieces_of(WHOLE[kind]) is None


def test_without_inference_nothing_is_cut() -> None:
    assert pieces_of(CUT["mean"], infer=False) is None


def test_each_member_is_cut_by_itself() -> None:
    """A member that has compiled its length computes its part whole; an empty part is one slice."""
    assert pieces_of(CUT["mean"], (0, 11, 17, 20, 20)) == ((9, 2), (6,), (2, 1), (0,))
    assert pieces_of(CUT["mean"], (0, 9, 16, 21)) is None


def test_who_has_to_compile() -> None:
    """`first` is asked for once for each length of each member; other modes need it once."""
    x = pt.matrix("x", dtype="float32")
    for mode, lengths in (("JAX", True), ("FAST_COMPILE", False)):
        made = plan(1, [x], x.mean(), None, None, None, None, True, True, {"mode": mode})
        compilations = Compilations(made.recipe, True)
        seen = []
        for borders in [(0, 4, 7), (0, 4, 7), (0, 3, 7), (0, 4, 8)]:
            cut = compilations.cut((0,), 1, borders)
            seen.append(cut.first)
            compilations.note(Call(1, (), borders, (0,), (), slice_lengths=cut.slice_lengths))
        assert seen == [True, False, lengths, False]
