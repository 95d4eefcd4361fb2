"""Divergences: which variables they come with, and what to try."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pymc as pm
import pytest
from diverging_models import DIVERGING, GOOD, recorded, schools
from xarray import Dataset, DataTree

import synkhronos as synk
from synkhronos._errors import InputError
from synkhronos.pymc._chains import sampling
from synkhronos.pymc._diverged import explanation, positions
from synkhronos.pymc._diverged.ranks import Ranks, Rotations
from synkhronos.pymc._diverged.scales import scales_of

SCHOOLS = "non-centre theta, or give tau a prior that excludes 0"
FOUND = {  # the first place, and what to try
    "schools": ("the scale of theta (tau)", SCHOOLS),
    "funnel": ("the scale of x (y)", "non-centre x"),
    "horseshoe": ("the smallest scale of beta (lam, tau)", "non-centre beta"),
}


def rng() -> np.random.Generator:
    return np.random.default_rng(20260302)


def tree_of(diverging: np.ndarray, **draws: np.ndarray) -> DataTree:
    """A run of two chains, by the draws of both in turn."""

    def by_chain(values: np.ndarray) -> np.ndarray:
        return np.asarray(values).reshape(2, -1, *np.shape(values)[1:])

    posterior = {
        name: (
            ("chain", "draw", *(f"{name}_{i}" for i in range(np.ndim(values) - 1))),
            by_chain(values),
        )
        for name, values in draws.items()
    }
    stats = {"diverging": (("chain", "draw"), by_chain(diverging))}
    return DataTree.from_dict({"posterior": Dataset(posterior), "sample_stats": Dataset(stats)})


def test_recorded_runs_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """Better by the positions that nutpie has stored, which are nearer to the cause."""
    for make in DIVERGING:
        model, (what, advice), ranks = make(), FOUND[make.__name__], []
        for stored in (False, True):
            found = synk.pymc.explain_divergences(recorded(make.__name__, stored), model)
            place = found.places[0]
            assert (place.what, place.advice, place.side) == (what, advice, "low")
            assert place.chance <= 0.05
            assert stored or place.chance >= 1 / found.draws  # the run itself is a rotation
            assert found.stored == stored
            assert f"divergences come with low values of {what}: {advice}." in str(found)
            found.show()
            assert capsys.readouterr().out == f"{found}\n"
            ranks.append(place.rank)
        assert ranks[1] < ranks[0] - 0.1


def test_divergences_at_random_draws_come_with_no_variable() -> None:
    """Scales and variables are tested apart, and each test errs in 5 % of the runs."""
    named, model = 0, schools()
    for seed in range(12):
        shuffled = np.random.default_rng(seed).permuted
        run = recorded("schools", changed=functools.partial(shuffled, axis=None))
        found = synk.pymc.explain_divergences(run, model)
        named += bool(found.places)
        said = "come with no variable in particular: try a larger target_accept; nuts="
        assert (said in found.said) == (not found.places)
    assert named <= 4  # of Binomial(12, 0.1), in 99 % of the cases


def first(count: int) -> Callable[[np.ndarray], np.ndarray]:
    """The first divergences alone."""
    return lambda all_: all_ & (all_.cumsum().reshape(all_.shape) <= count)


def test_too_few_divergences_tell_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    model = schools()
    found = synk.pymc.explain_divergences(recorded("schools", changed=first(9)), model)
    assert (found.count, found.draws, found.places) == (9, 1000, ())
    assert str(found) == "9 divergences in 1,000 draws are too few to tell what they come with"
    for stored in (False, True):
        none = synk.pymc.explain_divergences(recorded("schools", stored, first(0)), model)
        none.show()
        assert capsys.readouterr().out == "no draw diverged\n"


def test_mean_ranks_are_those_of_mann_and_whitney() -> None:
    """Brute force: pairs of a divergence and a draw; equal ones count as a half."""
    values = rng().integers(0, 6, 40).astype(float)
    diverging = rng().random(40) < 0.3
    ranks = Ranks.of(values, values[diverging])
    pairs = np.sign(values[diverging][:, None] - values[None]) / 2 + 0.5
    rotations = Rotations(diverging)
    assert rotations.add(ranks) == pytest.approx(pairs.mean())
    assert rotations.add(Ranks.of(np.exp(values), np.exp(values[diverging]))) == pytest.approx(
        pairs.mean()
    )


def test_chance_is_the_share_of_rotations_with_as_large_a_deviation_of_any_quantity() -> None:
    diverging = rng().random(50) < 0.3
    rotations, all_ranks = Rotations(diverging), []
    for scale in (1.0, 0.1):
        values = np.cumsum(rng().normal(0, scale, 50)) + rng().normal(size=50)
        all_ranks.append(Ranks.of(values, values[diverging]))
        rotations.add(all_ranks[-1])
    most = [
        max(abs(ranks.draws[np.roll(diverging, k)].mean() - 0.5) for ranks in all_ranks)
        for k in range(50)
    ]
    for mean in (0.4, 0.55, 0.9):
        assert rotations.chance(mean) == np.mean([m >= abs(mean - 0.5) for m in most])


def test_the_graph_tells_the_scale_of_each_variable() -> None:
    found: dict[str, tuple[tuple[str, ...], bool, bool]] = {}
    with pm.Model() as model:
        s, t, u = pm.HalfNormal("s"), pm.Exponential("t", 1), pm.Normal("u")
        many = [
            *(pm.Normal("n", 0, s), pm.StudentT("st", 3, sigma=s * t), pm.HalfCauchy("hc", s)),
            *(pm.Normal("precision", 0, tau=s), pm.MvNormal("mv", np.zeros(2), s * np.eye(2))),
            *(pm.ZeroSumNormal("zs", s, shape=3), pm.LogNormal("ln", 0, pm.math.exp(u))),
            pm.GaussianRandomWalk("walk", sigma=s, init_dist=pm.Normal.dist(), steps=3),
            pm.AR("ar", [0.5], sigma=s, init_dist=pm.Normal.dist(), steps=3),
        ]
        constant, shape = pm.Normal("constant", s, 2), pm.Beta("shape", s, 1)
        z, w, x = (pm.Normal(name, shape=4) for name in "zwx")
        pm.Deterministic("a", (z * s)[[0, 0, 3]] * t)
        pm.Deterministic("b", w * pm.math.exp(u))
        pm.Deterministic("c", x * constant * shape)  # neither is known to be a scale
        pm.Normal("y", sum(v.sum() for v in many), t, observed=[0.0, 1.0])
    for scale in scales_of(model):
        found[scale.of] = scale.names, scale.centred, scale.observed
    of_s = ("n", "hc", "precision", "mv", "zs", "walk", "ar")
    assert found == dict.fromkeys(of_s, (("s",), True, False)) | {
        "st": (("s", "t"), True, False),
        "ln": (("u",), True, False),
        "y": (("t",), True, True),
        "z": (("s", "t"), False, False),
        "w": (("u",), False, False),
    }


def near(name: str, make: Any, free: np.ndarray, low: bool) -> explanation.Place:
    """The first place of divergences at the lowest 5 % of a variable, or the highest."""
    with pm.Model() as model:
        make(name)
    diverging = free <= np.quantile(free, 0.05) if low else free >= np.quantile(free, 0.95)
    run = tree_of(diverging, **{name: 1 / (1 + np.exp(-free))})
    return synk.pymc.explain_divergences(run, model).places[0]


def test_bounds_and_tails_are_named() -> None:
    wide, step = rng().normal(0, 2, 1000), "try a larger target_accept"
    narrow = 0.1 * wide
    for make, draws, low, advice in [
        (lambda name: pm.HalfNormal(name), wide, True, f"a prior that excludes 0, or {step}"),
        (lambda name: pm.HalfNormal(name), narrow, True, step),
        (lambda name: pm.HalfNormal(name), wide, False, "a prior with a lighter tail"),
        (lambda name: pm.Beta(name, 1, 1), wide, True, f"excludes 0, or {step}"),
        (lambda name: pm.Beta(name, 1, 1), wide, False, f"excludes 1, or {step}"),
        (lambda name: pm.Uniform(name, 0, 2), wide, True, f"excludes its lower bound, or {step}"),
        (lambda name: pm.Pareto(name, 1, 0.0), wide, False, step),
        (lambda name: pm.Normal(name), wide, True, step),
    ]:
        place = near("p", make, draws, low)
        assert place.what == "p"
        assert place.side == ("low" if low else "high")
        assert place.advice.endswith(advice)


def test_scales_of_observed_and_of_standard_variables_are_named() -> None:
    sigma, z = np.exp(rng().normal(0, 2, 1000)), rng().normal(size=(1000, 3))
    with pm.Model() as observed:
        pm.Normal("y", 0, pm.HalfNormal("sigma"), observed=[1.0, 2.0])
    found = synk.pymc.explain_divergences(tree_of(sigma < 0.05, sigma=sigma), observed).places[0]
    assert (found.what, found.advice.partition(",")[0]) == (
        "the scale of y (sigma)",
        "give sigma a prior that excludes 0",
    )
    with pm.Model() as standard:
        pm.Deterministic("x", pm.Normal("z", shape=3) * pm.HalfNormal("sigma"))
    for diverging, side in ((sigma < 0.05, "low"), (sigma > 20, "high")):
        run = tree_of(diverging, sigma=sigma, z=z)
        found = synk.pymc.explain_divergences(run, standard).places[0]
        assert (found.what, found.side) == ("the factor of z (sigma)", side)
        assert "centre z if it is well known from the data" in found.advice
        assert ("give sigma a prior with a lighter tail" in found.advice) == (side == "high")


def test_a_scale_of_very_many_numbers_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    run, model = recorded("funnel"), DIVERGING[1]()
    assert synk.pymc.explain_divergences(run, model).places[0].what == "the scale of x (y)"
    monkeypatch.setattr(positions, "_MOST_NUMBERS", 999)
    found = synk.pymc.explain_divergences(run, model)
    assert found.places[0].names in (("x",), ("y",))


def test_an_element_is_named_by_its_coordinates() -> None:
    with pm.Model() as model:
        pm.Normal("x", shape=3)
    values = rng().normal(size=(1000, 3))
    run = tree_of(values[:, 1] < -2, x=values)
    named = run["posterior"].to_dataset().assign_coords(x_0=["Oslo", "Rome", "Bonn"])
    run["posterior"] = DataTree(named)
    assert synk.pymc.explain_divergences(run, model).places[0].what == "x[Rome]"


def test_draws_of_an_interrupted_chain_are_left_out() -> None:
    run, model = recorded("schools"), schools()
    whole = synk.pymc.explain_divergences(run, model)
    for values in run["posterior"].data_vars.values():
        values[1, 400:] = np.nan
    found = synk.pymc.explain_divergences(run, model)
    assert (whole.draws, found.draws) == (1000, 900)
    assert found.count <= whole.count


def test_other_trees_are_refused_with_what_they_lack() -> None:
    run, model = recorded("funnel"), schools()
    with pytest.raises(InputError, match=r"no variable of the model, which has \['mu', 'tau'"):
        synk.pymc.explain_divergences(run, model)
    unknown = DataTree.from_dict({"posterior": run["posterior"].to_dataset()})
    with pytest.raises(InputError, match=r"it has \['posterior'\]. Sample by NUTS"):
        synk.pymc.explain_divergences(unknown, model)


def told(given: Mapping[str, Any], run: Any, caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines on divergences, where `pm.sample` returns this."""
    caplog.clear()
    with caplog.at_level(logging.INFO, "synkhronos"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "pm_sample", lambda **_: run)
        assert synk.pymc.sample(model=schools(), chains=2, cores=1, **given) is run
    return [record.message for record in caplog.records if "diverge" in record.message]


def test_sample_tells_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    run = recorded("schools")
    count = int(run["sample_stats"]["diverging"].sum())
    line = f"{count} divergences come with low values of the scale of theta (tau): {SCHOOLS} "
    assert told({}, run, caplog) == [f"{line}(see synk.pymc.explain_divergences)"]
    assert not told({"quiet": True}, run, caplog)
    assert not told({"compute_convergence_checks": False}, run, caplog)


def test_of_draws_on_the_disk_a_bounded_number_is_read(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line counts all divergences, and says what those among evenly spaced draws come with."""
    run, read = recorded("schools"), []
    explained = explanation.explained

    def recording(tree: DataTree, model: pm.Model) -> explanation.Divergences:
        read.append(tree.posterior.sizes["draw"])
        return explained(tree, model)

    monkeypatch.setattr(explanation, "explained", recording)
    count, whole = int(run["sample_stats"]["diverging"].sum()), run.posterior.sizes["draw"]
    numbers = sum(run.posterior[rv.name].size for rv in schools().free_RVs)
    for most, draws, words in (
        (numbers, whole, f"{count} divergences come with low values of the scale of theta (tau)"),
        (numbers // 2, whole // 2, f"{count} divergences come with low values of the scale of"),
        (20, 0, f"{count} draws diverge: synk.pymc.explain_divergences reads all of them"),
    ):
        monkeypatch.setattr(explanation, "_MOST_READ", most)
        with caplog.at_level(logging.INFO, "synkhronos"):
            caplog.clear()
            explanation.tell_of_divergences(run, schools(), count, on_disk=True)
        assert words in caplog.text
        assert read.pop() <= draws + 1


def test_sample_is_silent_if_few_draws_diverge_or_it_does_not_know(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = recorded("schools")
    unknown = DataTree.from_dict({"posterior": run["posterior"].to_dataset()})
    for other in (recorded("schools", changed=first(9)), unknown, "a trace"):
        assert not told({}, other, caplog)
    monkeypatch.setattr(explanation, "Quantities", None)  # a defect here loses no draws
    assert not told({}, run, caplog)


@pytest.mark.thorough
@pytest.mark.parametrize("make", DIVERGING)
@pytest.mark.parametrize("sampler", ["nutpie", "pymc"])
def test_real_runs_are_explained(
    sampler: str, make: Callable[[], pm.Model], caplog: pytest.LogCaptureFixture
) -> None:
    """target_accept=0.7 makes divergences certain."""
    with caplog.at_level(logging.INFO, "synkhronos"):
        synk.pymc.sample(
            1000,
            model=make(),
            chains=4,
            cores=2,
            random_seed=1,
            nuts_sampler=sampler,
            nuts={"target_accept": 0.7},
            compile_kwargs={"mode": "NUMBA"},
            progressbar=False,
        )
    what, advice = FOUND[make.__name__]
    lines = [r.message for r in caplog.records if "divergences come" in r.message]
    assert len(lines) == 1
    assert f"come with low values of {what}: {advice} " in lines[0]


@pytest.mark.thorough
@pytest.mark.parametrize("make", GOOD)
def test_good_models_get_no_line(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "synkhronos"):
        synk.pymc.sample(
            1000,
            model=make(),
            chains=4,
            cores=2,
            random_seed=1,
            nuts_sampler="nutpie",
            compile_kwargs={"mode": "NUMBA"},
            progressbar=False,
        )
    assert not [r.message for r in caplog.records if "diverge" in r.message]
