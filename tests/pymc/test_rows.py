"""Terms that share their parameters among all rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from comparing import check_equal, evaluated, plainly, points
from pytensor.gradient import grad_not_implemented
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from selection import thorough

import synkhronos as synk
from synkhronos.pymc._density.likelihood import Likelihood
from synkhronos.pymc._reading.reading import read

ROWS = 31
CUTS = np.linspace(-1, 1, 3)


def cutpoints() -> Any:
    ordered = pm.distributions.transforms.ordered
    return pm.Normal("cuts", CUTS, 1, shape=3, transform=ordered, initval=CUTS)


SHARED: dict[str, Callable[[Any], Any]] = {
    "p": lambda y: pm.Categorical("y", p=pm.Dirichlet("p", np.ones(4)), observed=y),
    "logit_p": lambda y: pm.Categorical("y", logit_p=pm.Normal("p", shape=4), observed=y),
    "OrderedLogistic": lambda y: pm.OrderedLogistic(
        "y", eta=pm.Normal("eta"), cutpoints=cutpoints(), observed=y
    ),
    "OrderedProbit": lambda y: pm.OrderedProbit("y", eta=0, cutpoints=cutpoints(), observed=y),
}


def model_of(kind: str) -> pm.Model:
    with pm.Model() as model:
        SHARED[kind](np.random.default_rng(0).integers(0, 4, ROWS))
    return model


@pytest.mark.parametrize(
    ("kind", "members"),
    [("p", 3), *thorough(("p", 1), ("logit_p", 2), ("OrderedLogistic", 2), ("OrderedProbit", 3))],
)
def test_categories_of_rows_with_one_vector_of_probabilities(kind: str, members: int) -> None:
    model = model_of(kind)
    at = points(model, 2)
    plain = plainly(model, at)
    with synk.pymc.parallel(model, members=members) as parallel:
        assert parallel.names == ["y"]
        check_equal(plain, evaluated(model, at))


def test_features_of_integers_are_cast_once() -> None:
    """Members get them as floats: products of one dtype compile and run faster."""
    r = np.random.default_rng(0)
    with pm.Model() as model:
        eta = r.integers(0, 2, (ROWS, 3)) @ pm.Normal("b", shape=3)
        pm.OrderedLogistic("y", eta=eta, cutpoints=cutpoints(), observed=r.integers(0, 4, ROWS))
    [part] = Likelihood(read(model)).parts
    features = [v.type.dtype for v in part.scattered if v.type.shape[1:] == (3,)]
    assert features == ["float64"]


def test_one_column_of_features() -> None:
    """PyTensor makes a product of it, which stretches the column to the width of what follows."""
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        x = pm.Data("x", rng.normal(size=(ROWS, 1)))
        mu = (x @ pm.Normal("b", shape=1))[:, None] * np.array([1.0, 2.0])
        pm.Normal("y", mu, 1, observed=rng.normal(size=(ROWS, 2)))
    at = points(model, 2)
    plain = plainly(model, at)
    with synk.pymc.parallel(model, members=2):
        check_equal(plain, evaluated(model, at))


def _spread(x: Any, k: Any, mu: Any) -> Any:
    return pt.alloc((x[:, 0] - mu) ** 2, k.shape[0], x.shape[0])


def _spread_like_data(x: Any, k: Any, mu: Any) -> Any:
    return pt.broadcast_to(((x[:, 0] - mu) ** 2)[:, None], x.shape)


def _repeated(x: Any, k: Any, mu: Any) -> Any:
    return pt.repeat(((x[:, 0] - mu) ** 2)[:, None], k.shape[0], axis=1)


def _folded(x: Any, k: Any, mu: Any) -> Any:
    folded = (x - mu).reshape((x.shape[0], k.shape[0], x.shape[1] // k.shape[0]))
    return pt.sqr(folded.sum(axis=2))


def _folded_rest(x: Any, k: Any, mu: Any) -> Any:
    return pt.sqr((x - mu).reshape((x.shape[0], 2, -1)).sum(axis=2))


@pytest.mark.parametrize(
    "spread", [_spread, _folded, *thorough(_spread_like_data, _repeated, _folded_rest)]
)
def test_lengths_of_other_axes_follow_the_data(spread: Callable[..., Any]) -> None:
    """Members would compute other sums with the lengths that data had at the division."""
    with pm.Model() as model:
        x = pm.Data("x", np.arange(4.0 * ROWS).reshape(ROWS, 4))
        k = pm.Data("k", np.zeros(2))
        pm.Potential("p", -spread(x, k, pm.Normal("mu")).sum())
    with synk.pymc.parallel(model, members=2) as parallel:
        assert parallel.names == ["p"]
        at = points(model, 2)
        evaluated(model, at)
        with model:
            pm.set_data({"x": np.arange(6.0 * ROWS).reshape(ROWS, 6), "k": np.zeros(3)})
        divided = evaluated(model, at)
    check_equal(plainly(model, at), divided)


def _first_of_parameters(draw: Any) -> Any:
    return pm.Normal("eta", shape=2 * ROWS)[:ROWS]


def _first_of_data(draw: Any) -> Any:
    return pm.Data("x", draw.normal(size=(2 * ROWS, 3)))[:ROWS] @ pm.Normal("b", shape=3)


@pytest.mark.parametrize("mean", [_first_of_parameters, _first_of_data])
def test_the_first_of_more_values_are_the_rows(mean: Callable[..., Any]) -> None:
    draw = np.random.default_rng(0)
    with pm.Model() as model:
        pm.Normal("y", mean(draw), 1, observed=draw.normal(size=ROWS))
    copy = synk.pymc.fast(model)  # whose log-density is proved
    assert copy.logp.reading.names == ["y"]


@pytest.mark.parametrize(
    "rows",
    [lambda x, mu: x[:ROWS] - mu, lambda x, mu: (x - mu).reshape((ROWS, -1)).sum(axis=1)],
    ids=["taken", "folded"],
)
def test_a_number_that_the_user_wrote_stays_where_data_get_longer(rows: Any) -> None:
    with pm.Model() as model:
        x = pm.Data("x", np.arange(2.0 * ROWS).reshape(ROWS, 2))
        pm.Potential("p", -pt.sqr(rows(x, pm.Normal("mu"))).sum())
    copy = synk.pymc.fast(model)
    for each in (model, copy):
        pm.set_data({"x": np.arange(4.0 * ROWS).reshape(2 * ROWS, 2)}, each)
    at = points(model, 1)
    check_equal(plainly(model, at), evaluated(copy, at))


def test_an_index_that_only_happens_to_have_length_1() -> None:
    """With other data it pairs with the rows: members get what it selects."""
    draw = np.random.default_rng(0)
    with pm.Model() as model:
        table, which = pm.Normal("table", shape=(2, 4)), pm.Data("which", [0])
        mean = table[which, draw.integers(0, 4, ROWS)]
        pm.Normal("y", mean, 1, observed=draw.normal(size=ROWS))
    at = points(model, 2)
    many = {"which": draw.integers(0, 2, ROWS)}
    with synk.pymc.parallel(model, members=2), model:
        pm.set_data(many)
        divided = evaluated(model, at)
    check_equal(plainly(model, at), divided)


class Squares(Op):
    """-((y - mean) ** 2) by Python, with a gradient; `mixes` makes each row depend on the first."""

    __props__ = ("mixes",)

    def __init__(self, mixes: bool = False) -> None:
        self.mixes = mixes

    def make_node(self, *inputs: Any) -> Apply:
        y, mean = map(pt.as_tensor, inputs)
        return Apply(self, [y, mean], [y.type()])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        y, mean = inputs
        output_storage[0][0] = -((y - mean) ** 2) + (y[0] if self.mixes else 0)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        y, mean = inputs
        by_mean = (cotangents[0] * 2 * (y - mean)).sum(keepdims=mean.ndim == 1)
        return [grad_not_implemented(self, 0, y), by_mean]


def black_box(mixes: bool = False) -> pm.Model:
    with pm.Model() as model:
        y = np.random.default_rng(3).normal(size=ROWS)
        pm.CustomDist("y", pm.Normal("mean"), observed=y, logp=Squares(mixes))
    return model


@pytest.mark.filterwarnings("ignore:Numba will use object mode")
@pytest.mark.parametrize("declared", [Squares, "y"])
def test_an_operation_of_which_only_its_author_knows_that_it_keeps_rows_apart(
    declared: Any,
) -> None:
    model = black_box()
    at = points(model, 2)
    plain = plainly(model, at)
    with synk.Group(3):
        with pytest.raises(synk.InputError, match=r"Squares.*may mix rows.*row_wise=\[Squares\]"):
            synk.pymc.parallel(model)
        with synk.pymc.parallel(model, row_wise=[declared]) as parallel:
            assert parallel.names == ["y"]
            check_equal(plain, evaluated(model, at))


@pytest.mark.filterwarnings("ignore:Numba will use object mode")
def test_a_potential_is_declared() -> None:
    with pm.Model() as model:
        y = np.random.default_rng(3).normal(size=ROWS)
        pm.Potential("p", Squares()(pt.as_tensor(y), pm.Normal("mean")).sum())
    at = points(model, 2)
    plain = plainly(model, at)
    with synk.Group(2):
        with pytest.raises(synk.InputError, match=r'Potential p .* declare it: row_wise=\["p"\]'):
            synk.pymc.parallel(model)
        with synk.pymc.parallel(model, row_wise=["p"]) as parallel:
            assert parallel.names == ["p"]
            check_equal(plain, evaluated(model, at))


def test_a_wrong_declaration_is_not_believed() -> None:
    wanted = "Squares.* computes other values from rows 4 to 14 alone than from all 31 rows"
    with synk.Group(2), pytest.raises(synk.InputError, match=wanted):
        synk.pymc.parallel(black_box(mixes=True), row_wise=["y"])


@pytest.mark.parametrize("wrong", [["mean"], [Squares()], "y", [3]])
def test_what_cannot_be_declared(wrong: Any) -> None:
    with synk.Group(1), pytest.raises(synk.SynkhronosError, match="row_wise"):
        synk.pymc.parallel(black_box(), row_wise=wrong)


def by_steps(y: Any, mean: Any) -> Any:
    """A loop over rows; the row before is data, too."""
    before = pt.concatenate([[0.0], y[:-1]])
    step = lambda a, b, m: -((a - m.sum() * b) ** 2)  # noqa: E731
    return pytensor.scan(step, [y, before], non_sequences=[mean], return_updates=False)


def carried(y: Any, mean: Any) -> Any:
    """Each step needs the one before."""
    step = lambda a, state, m: m.sum() * state + a  # noqa: E731
    return -(pytensor.scan(step, [y], [pt.zeros(())], [mean], return_updates=False) ** 2)


def by_counted_steps(y: Any, mean: Any) -> Any:
    """Each step reads the number of all rows, which is also that of the steps."""
    count = y.shape[0]
    step = lambda a, m, n: -((a - m.sum()) ** 2) / n  # noqa: E731
    return pytensor.scan(
        step, [y], non_sequences=[mean, count], n_steps=count, return_updates=False
    )


def looped(logp: Callable[[Any, Any], Any], data: bool = False) -> pm.Model:
    with pm.Model() as model:
        y = np.random.default_rng(3).normal(size=ROWS)
        observed = pm.Data("data", y) if data else y
        pm.CustomDist("y", pm.Normal("mean"), observed=observed, logp=logp)
    return model


@pytest.mark.parametrize(
    ("logp", "members"), [(by_counted_steps, 3), *thorough((by_steps, 1), (by_steps, 2))]
)
def test_a_loop_whose_steps_are_rows_of_data(logp: Any, members: int) -> None:
    model = looped(logp)
    at = points(model, 2)
    plain = plainly(model, at)
    with synk.pymc.parallel(model, members=members) as parallel:
        assert parallel.names == ["y"]
        check_equal(plain, evaluated(model, at))


def test_a_loop_over_rows_of_data_that_get_another_length() -> None:
    """A loop cuts its sequences to the shortest, which takes no row away."""
    model = looped(by_steps, data=True)
    at = points(model, 2)
    lengths = (ROWS, ROWS + 8, 5)
    plain, divided = [], []
    for rows in lengths:
        pm.set_data({"data": np.arange(float(rows))}, model)
        plain += evaluated(model, at)
    with synk.pymc.parallel(model, members=2) as parallel:
        assert parallel.names == ["y"]
        for rows in lengths:
            pm.set_data({"data": np.arange(float(rows))}, model)
            divided += evaluated(model, at)
    check_equal(plain, divided)


def fixed_steps(y: Any, mean: Any) -> Any:
    """The loop takes as many rows as its author wrote, not those of longer data."""
    step = lambda a, m: -((a - m) ** 2)  # noqa: E731
    return pytensor.scan(
        step, [y], non_sequences=[mean], n_steps=pt.minimum(ROWS, y.shape[0]), return_updates=False
    )


@pytest.mark.parametrize(
    ("logp", "data"), [(carried, False), (fixed_steps, True)], ids=["state", "steps that are fixed"]
)
def test_a_loop_whose_steps_may_not_be_the_rows(logp: Any, data: bool) -> None:
    with synk.Group(2), pytest.raises(synk.InputError, match=r"mixes rows|steps through the rows"):
        synk.pymc.parallel(looped(logp, data))


class WholeOnly(Squares):
    """It refuses parts of the rows."""

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        if len(inputs[0]) < ROWS:
            raise ValueError("too few")
        super().perform(node, inputs, output_storage)


def test_an_operation_that_takes_no_parts_is_not_row_wise() -> None:
    wanted = "WholeOnly.* computes nothing from rows 0 to 3 alone: ValueError: too few"
    with synk.Group(2), pytest.raises(synk.InputError, match=wanted):
        synk.pymc.parallel(looped(WholeOnly()), row_wise=[WholeOnly])


@pytest.mark.filterwarnings("ignore:Numba will use object mode")
def test_a_declared_log_density_may_reorder_its_data() -> None:
    model = looped(lambda y, mean: Squares()(y, mean) * y[::-1] ** 2)
    at = points(model, 2)
    plain = plainly(model, at)
    with synk.pymc.parallel(model, members=2, row_wise=["y"]):
        check_equal(plain, evaluated(model, at))
