"""Which metric samples in less time: the choice from recorded warm-ups, and where it is made."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytest
from fleet_cases import tilted
from xarray import Dataset

import synkhronos as synk
from synkhronos._errors import InputError
from synkhronos._host.thread_pools import ThreadLimits
from synkhronos.pymc._chains import members, sampling
from synkhronos.pymc._density import adaptation, metric
from synkhronos.pymc._density.adaptation import (
    AUTO,
    Auto,
    adapted,
    check_adaptation,
    choosing,
    sampled_by,
)
from synkhronos.pymc._density.metric import Choice, Warmup, draws_of_warmup, without_warmup
from synkhronos.pymc._density.nutpie import compiled_soon, expected_metric
from synkhronos.pymc._group import parallel
from synkhronos.pymc._map.fitted import Sampled

USUAL, SHORT = (1000, 1000), (500, 500)  # draws and tune
ROWS = 1.7e-4  # seconds of a gradient of 10,000 rows
FIELDS = ("draws", "gradients", "steps")


def choice(warmup: Warmup, seconds: float, draws: int, tune: int) -> Choice:
    return choice_and_last(warmup, seconds, draws, tune)[0]


def choice_and_last(warmup: Warmup, seconds: float, draws: int, tune: int) -> tuple[Choice, bool]:
    with ThreadLimits(1):
        return metric.choice(warmup, seconds, draws, tune)


@functools.cache
def recorded(name: str) -> Warmup:
    """Short warm-ups with nutpie's metric diag; single precision.

    "kid scores" and "eight schools" are models of benchmarks/catalogue, "election88" and
    "cumulative" of benchmarks/pymc_gallery_models.py, and "blr" of posteriordb; the other one is a
    Gaussian process whose exponential is the mean of 11 counts. A "longer" one has 200 draws, and a
    "shorter" one 50.
    """
    with np.load(Path(__file__).with_name("warmups.npz")) as file:
        return Warmup(*(file[f"{name}/{field}"].astype(float) for field in FIELDS))


def normal(covariance: np.ndarray, draws: int = 100, seed: int = 0) -> Warmup:
    """Draws of a normal posterior, with the gradients of its log-density."""
    size = (2, draws, len(covariance))
    found = np.random.default_rng(seed).normal(size=size) @ np.linalg.cholesky(covariance).T
    return Warmup(found, -found @ np.linalg.inv(covariance), np.full(size[:2], 31.0))


@pytest.mark.parametrize(
    ("name", "seconds", "expected", "why"),
    [
        ("kid scores", 0.0, "low_rank", "3 of 5 directions are stretched"),
        ("eight schools", ROWS, "diag", "none of its 10 directions"),
        ("election88", ROWS, "diag", "23 of 90 directions seem stretched, which 20 draws"),
        ("counts of a process", ROWS, "diag", "does not hold for another"),
        ("cumulative", ROWS, "low_rank", "5 of 113 directions are stretched"),
        ("cumulative", 0.0, "diag", "its updates with 113 parameters take about 0.28 s"),
    ],
)
def test_choices_of_recorded_warmups(name: str, seconds: float, expected: str, why: str) -> None:
    """low_rank had 60, 0.85, 0.46, 0.5 and 6.4 times the effective draws of diag for a gradient."""
    found = choice(recorded(name), seconds, *USUAL)
    assert found.name == expected
    assert why in found.why
    assert (found.gain >= 1.3) == (expected == "low_rank")
    assert found == choice(recorded(name), seconds, *USUAL)


def test_a_chain_that_stands_still_far_out_is_on_its_way() -> None:
    """One chain of both is for 100 draws where a scale is 8 times too large, and hardly moves.

    low_rank had 7.4 times the effective draws of diag for a gradient in this model.
    """
    first, is_last = choice_and_last(recorded("blr"), ROWS, *USUAL)
    assert (first.name, is_last) == ("diag", False)
    assert "chains are on their way to the posterior after 100 draws" in first.why
    found, is_last = choice_and_last(recorded("blr longer"), ROWS, *USUAL)
    assert (found.name, is_last) == ("low_rank", True)


@pytest.mark.parametrize("far", [0.0, 6.0, 60.0])
def test_drift_is_1_in_the_posterior_and_grows_with_the_square_of_a_way(far: float) -> None:
    """Whatever the scales are, and whether a chain moves or stands still."""
    turn = np.array([[2.0, 0.0], [30.0, 0.1]])
    inverse = np.linalg.inv(turn @ turn.T)
    there = np.random.default_rng(0).normal(size=(2, 4000, 2))

    def drift(away: np.ndarray) -> float:
        draws = (there + away) @ turn.T
        return metric.drift(Warmup(draws, -draws @ inverse, np.ones(draws.shape[:2])))

    moves = far * np.linspace(-1, 1, 4000)[:, None] * np.array([1.0, 1.0])  # its half goes far
    stands = np.array([far, 0.0])[:, None, None]
    assert drift(moves) == pytest.approx(1 + far**2 / 12, rel=0.05)
    assert drift(stands) == pytest.approx(1 + far**2 / 4, rel=0.05)


@pytest.mark.parametrize("name", ["eight schools", "counts of a process", "election88"])
def test_chains_of_posteriors_that_are_not_normal_have_arrived(name: str) -> None:
    """Whatever the metric that they learn, and however far from normal they are."""
    assert choice_and_last(recorded(name), 0.0, *USUAL)[1] is True


@pytest.mark.parametrize("condition", [9.0, 400.0])
def test_the_gain_for_a_normal_is_the_root_of_its_condition(condition: float) -> None:
    """A metric with both directions leaves nothing, whatever the scales of the parameters are."""
    turn = np.linalg.qr(np.random.default_rng(3).normal(size=(6, 6)))[0]
    turned = (turn * np.array([condition, 1, 1, 1, 1, 1])) @ turn.T
    scales = np.diag([1e3, 1, 1, 1e-3, 1, 1])
    found = choice(normal(scales @ turned @ scales), 1e-3, *USUAL)
    of_diag = (np.diag(np.linalg.inv(turned)) / np.diag(turned)) ** 0.25
    values = np.linalg.eigvalsh(turned * np.outer(of_diag, of_diag))
    assert found.name == "low_rank"
    assert found.gain == pytest.approx(math.sqrt(values.max() / values.min()), rel=0.35)


def test_parameters_without_correlation_keep_diag() -> None:
    assert choice(normal(np.diag([1e4, 1.0, 1e-4])), ROWS, *USUAL).name == "diag"


def test_what_one_chain_learns_must_hold_for_another() -> None:
    """Each chain is narrow in another direction, as in a funnel."""
    one = normal(np.array([[1.0, 0.99], [0.99, 1.0]]))
    other = normal(np.array([[1.0, -0.99], [-0.99, 1.0]]))
    both = [
        np.stack([a[0], b[1]])
        for a, b in ((one.draws, other.draws), (one.gradients, other.gradients))
    ]
    found = choice(Warmup(both[0], both[1], one.gradients_of_draw), ROWS, *USUAL)
    assert found.name == "diag"
    assert choice(one, ROWS, *USUAL).name == "low_rank"


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_draws_that_do_not_move_keep_diag(value: float) -> None:
    still = normal(np.eye(3))
    still.gradients[1, :, 0] = value
    assert "did not move" in choice(still, ROWS, *USUAL).why


def test_no_warmup_where_it_cannot_pay() -> None:
    """Too few draws for one, or updates of low_rank that take longer than any gain saves."""
    assert draws_of_warmup(*USUAL) == 100
    assert draws_of_warmup(500, 500) == 50
    assert draws_of_warmup(400, 200) == draws_of_warmup(5000, 100) == 0
    assert metric.draws_of_warmups(*USUAL) == [100, 200]
    assert metric.draws_of_warmups(500, 500) == [50, 100, 200]
    assert metric.draws_of_warmups(400, 200) == [0]
    few = without_warmup(5, ROWS, 300, 300)
    assert few is not None
    assert "are too few" in few.why
    large = without_warmup(800, 1e-5, *USUAL)
    assert large is not None
    assert (large.name, "800 parameters" in large.why) == ("diag", True)
    assert without_warmup(800, 0.1, *USUAL) is None
    assert without_warmup(5, 0.0, *USUAL) is None


class Chain:
    """A chain in nutpie's raw trace."""

    def __init__(self, columns: dict[str, np.ndarray]) -> None:
        self._columns, self.num_rows = columns, len(columns["n_steps"])

    def column(self, name: str) -> Any:
        arrow = pytest.importorskip("arro3.core")  # of nutpie
        found = self._columns[name]
        flat = arrow.Array.from_numpy(found.ravel())
        if found.ndim == 1:
            return flat
        ends = np.arange(0, found.size + 1, found.shape[1], dtype=np.int64)
        return arrow.list_array(arrow.Array.from_numpy(ends), flat)

    def slice(self, first: int, count: int) -> Chain:
        return Chain({name: each[first : first + count] for name, each in self._columns.items()})


class Nutpie:
    """``nutpie.sample``, with a recorded warm-up; notes its calls.

    `seen` are the numbers of draws of both chains, at each look before the warm-up ends.
    """

    def __init__(
        self,
        *warmups: Warmup,
        error: BaseException | None = None,
        diverging: np.ndarray | bool = False,
        seen: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.seen = list(seen)
        self.calls: list[dict[str, Any]] = []
        shape = np.broadcast_shapes(np.shape(diverging), (4, 10))
        self.steps, self._diverging = np.ones(shape), np.broadcast_to(diverging, shape)
        self.cancelled = 0
        self._warmups, self._error = {len(w.draws[0]): w for w in warmups}, error
        self._warmup = warmups[0]

    def __call__(self, compiled: Any, **given: Any) -> Any:
        self.calls.append(given)
        if given.get("store_gradient"):
            self._warmup = self._warmups[given["tune"]]
            return self
        stats = {"n_steps": self.steps, "diverging": self._diverging}
        return SimpleNamespace(
            adaptation=given.get("adaptation"),
            posterior=SimpleNamespace(chain=range(4)),
            sample_stats=Dataset({k: (("chain", "draw"), v) for k, v in stats.items()}),
        )

    def wait(self, *, timeout: float | None = None) -> Any:
        if self._error is not None:
            raise self._error
        if timeout is not None and self.seen:
            raise TimeoutError
        count = len(self._warmup.draws[0])
        return self._trace(count, count)

    def inspect(self) -> Any:
        return self._trace(*self.seen.pop(0))

    def _trace(self, *draws: int) -> Any:
        warmup = self._warmup
        columns = {
            "unconstrained_draw": warmup.draws,
            "gradient": warmup.gradients,
            "n_steps": warmup.gradients_of_draw,
        }
        chains = [Chain({k: v[i] for k, v in columns.items()}) for i in range(2)]
        found = [chain.slice(0, n) for chain, n in zip(chains, draws, strict=True)]
        return SimpleNamespace(get_arrow_trace=lambda: ([], found))

    def cancel(self) -> None:
        self.cancelled += 1


GIVEN = {"draws": 1000, "tune": 1000, "chains": 4, "cores": 1, "seed": 5}
COMPILED = SimpleNamespace(n_dim=5)


def test_auto_chooses_once_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """The short warm-up has a seed of its own: the choice is that of the model."""
    caplog.set_level("INFO", "synkhronos")
    nutpie, kept = Nutpie(recorded("kid scores")), dict[object, Choice]()

    def remembered(key: Any, find: Callable[[], Choice]) -> Choice:
        if key not in kept:
            kept[key] = find()
        return kept[key]

    sample = choosing(nutpie)
    assert sample(COMPILED, **GIVEN).adaptation is None  # not asked
    with adapted(Auto(0.0, remembered)):
        assert sample(COMPILED, **GIVEN).adaptation == "low_rank"
        assert sample(COMPILED, **GIVEN | {"seed": 6}).adaptation == "low_rank"
        assert sample(COMPILED, **GIVEN, adaptation="draw_diag").adaptation == "draw_diag"
    assert sample(COMPILED, **GIVEN).adaptation is None
    _, warmup, first, second, named, _ = nutpie.calls
    assert (warmup["seed"], warmup["tune"], warmup["cores"]) == (1, 100, 1)
    assert first == GIVEN | {"adaptation": "low_rank"}
    assert second == first | {"seed": 6}
    assert named == GIVEN | {"adaptation": "draw_diag"}
    said = "metric low_rank: 17 times the effective draws a second of diag are expected of low_rank"
    assert caplog.text.count(said) == 2


def _as_it_is(sample: Callable[..., Any], *args: Any, **given: Any) -> Any:
    return sample(*args, **given)


def test_few_draws_are_sampled_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    """As nutpie is asked to. A run in a folder may get more draws later, and keeps a choice."""
    pytest.importorskip("nutpie")
    caplog.set_level("INFO", "synkhronos")
    nutpie, few = Nutpie(recorded("kid scores")), GIVEN | {"draws": 100, "tune": 100}
    with adapted(Auto()):
        choosing(nutpie)(COMPILED, **few)
    assert (nutpie.calls, caplog.text) == ([few], "")
    with adapted(Auto()), sampled_by(_as_it_is, lambda choose: choose()):
        choosing(nutpie)(COMPILED, **few)
    assert nutpie.calls[1:] == [few | {"adaptation": "diag"}]


def test_a_warmup_that_fails_is_no_reason_to_fail() -> None:
    nutpie = Nutpie(recorded("kid scores"), error=RuntimeError("no initial point"))
    with adapted(Auto()):
        assert choosing(nutpie)(COMPILED, **GIVEN).adaptation == "diag"
    assert nutpie.cancelled


def test_chains_that_low_rank_leaves_stuck_are_sampled_by_diag(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In about one of 30 chains of a model with far scales; Ctrl-C is not taken for it."""
    caplog.set_level("INFO", "synkhronos")
    still = np.arange(4)[:, None] == 2
    nutpie = Nutpie(recorded("kid scores"), diverging=still)
    with adapted(Auto()):
        assert choosing(nutpie)(COMPILED, **GIVEN).adaptation == "diag"
        assert "low_rank has left 1 of 4 chains stuck: diag again" in caplog.text
        assert [call["adaptation"] for call in nutpie.calls] == ["diag", "low_rank", "diag"]
        assert nutpie.calls[-1]["seed"] == GIVEN["seed"]
        nutpie.steps[3, 5:] = 0  # draws that are missing
        assert choosing(nutpie)(COMPILED, **GIVEN).adaptation == "low_rank"


def test_a_run_in_a_folder_is_sampled_once() -> None:
    """It has noticed stuck chains itself: another call would return the same draws."""
    pytest.importorskip("nutpie")
    nutpie = Nutpie(recorded("kid scores"), diverging=np.arange(4)[:, None] == 2)
    with adapted(Auto()), sampled_by(_as_it_is, lambda choose: choose()):
        assert choosing(nutpie)(COMPILED, **GIVEN).adaptation == "low_rank"
    assert [call["adaptation"] for call in nutpie.calls] == ["diag", "low_rank"]


@pytest.mark.parametrize("name", ["kid scores", "eight schools", "counts of a process"])
def test_the_choice_is_the_same_however_often_the_warmup_is_looked_at(name: str) -> None:
    """Half of the draws make it if they are clear, and all of them otherwise."""
    found = [choice(recorded(name), 0.0, *USUAL)]
    looks: list[list[tuple[int, int]]] = [
        [(100, 100)], [(0, 0), (49, 80), (50, 51), (90, 99)], [(100, 0)]
    ]  # fmt: skip
    for seen in looks:
        nutpie = Nutpie(recorded(name), seen=seen)
        found.append(adaptation.choice_for(nutpie, COMPILED, 0.0, *USUAL))
        assert nutpie.cancelled == 1
    assert found == found[:1] * 4
    clear = metric.early_choice(recorded(name).first(50), 0.0, *USUAL)
    assert clear == (None if name == "counts of a process" else found[0])
    assert len(nutpie.seen) == 0


@pytest.mark.parametrize("seen", [(), [(40, 50), (50, 50), (90, 100), (100, 100)]])
@pytest.mark.parametrize(
    ("of_call", "names"),
    [(USUAL, ["blr", "blr longer"]), (SHORT, ["kid scores shorter", "kid scores"])],
)
def test_a_longer_warmup_follows_where_chains_are_on_their_way(
    of_call: tuple[int, int], names: Sequence[str], seen: Sequence[tuple[int, int]]
) -> None:
    """Another one starts anew; it ends as soon as half of its draws are clear, too."""
    first, second = map(recorded, names)
    nutpie = Nutpie(first, second, seen=seen)
    with ThreadLimits(1):
        found = adaptation.choice_for(nutpie, COMPILED, ROWS, *of_call)
    assert found == choice(second, ROWS, *of_call)
    assert found.name == "low_rank"
    assert [call["tune"] for call in nutpie.calls] == [len(w.draws[0]) for w in (first, second)]
    assert nutpie.cancelled == 2


def test_chains_that_stay_on_their_way_keep_diag() -> None:
    """They get 200 draws at most."""
    first = recorded("blr")
    parts = first.draws, first.gradients, first.gradients_of_draw
    nutpie = Nutpie(first, Warmup(*(np.repeat(part, 2, axis=1) for part in parts)))
    with ThreadLimits(1):
        found = adaptation.choice_for(nutpie, COMPILED, ROWS, *USUAL)
    assert [call["tune"] for call in nutpie.calls] == [100, 200]
    assert found.name == "diag"
    assert found.why == "chains are on their way to the posterior after 200 draws"


def test_an_interrupt_of_the_warmup_ends_it_and_the_call() -> None:
    nutpie = Nutpie(recorded("kid scores"), error=KeyboardInterrupt())
    with adapted(Auto()), pytest.raises(KeyboardInterrupt):
        choosing(nutpie)(COMPILED, **GIVEN)
    assert (nutpie.cancelled, len(nutpie.calls)) == (1, 1)


@pytest.mark.parametrize(
    ("asked", "nuts", "text"),
    [
        ("dense", {}, 'adaptation=\'dense\': give one of "auto", "diag"'),
        ("diag", {"mass_matrix_gamma": 1e-3}, 'is an option of adaptation="low_rank"'),
        ("auto", {"mass_matrix_eigval_cutoff": 3.0}, 'is an option of adaptation="low_rank"'),
        (None, {"mass_matrix_gamma": 1e-3}, 'this is adaptation="auto"'),
        ("diag", {"adaptation": "low_rank"}, "name the metric once"),
        ("diag", {"adaptation": "auto"}, "name the metric once"),
        (
            "low_rank",
            {"use_grad_based_mass_matrix": False},
            'nuts={"use_grad_based_mass_matrix": False}: name the metric once',
        ),
        ("diag", {"sampler": "mclmc", "mass_matrix_gamma": 1e-3}, 'this is adaptation="diag"'),
        (None, {"adaptation": "lowrank"}, '"auto", "diag", "draw_diag", "low_rank", "flow"'),
    ],
)
def test_what_is_not_possible_is_said_before_compiling(
    asked: Any, nuts: dict[str, Any], text: str
) -> None:
    for call in (
        lambda: synk.pymc.sample(tilted(2), adaptation=asked, nuts=nuts),
        lambda: synk.pymc.map(tilted, [2], adaptation=asked, nuts=nuts),
    ):
        with pytest.raises(InputError) as caught:
            call()
        assert text in str(caught.value)


def test_a_metric_of_nutpie_is_refused_with_another_sampler() -> None:
    with pytest.raises(InputError, match='is a metric of nutpie, and "pymc" samples this model'):
        synk.pymc.sample(tilted(2), adaptation="low_rank", nuts_sampler="pymc")


def test_what_the_user_of_nutpie_names_is_obeyed() -> None:
    nuts = {"adaptation": "low_rank", "mass_matrix_gamma": 1e-3}
    assert check_adaptation(AUTO, {"nuts": nuts}) == "low_rank"
    assert check_adaptation("low_rank", {"nuts": nuts}) == "low_rank"
    assert check_adaptation(AUTO, {"nuts": {"adaptation": "flow"}}) == "flow"
    assert check_adaptation(AUTO, {"nuts": {"use_grad_based_mass_matrix": False}}) is None
    assert check_adaptation(AUTO, {"nuts": {"sampler": "mclmc"}}) is None
    assert check_adaptation("low_rank", {"nuts": {"sampler": "mclmc"}}) == "low_rank"
    assert check_adaptation(AUTO, {"nuts": {"sampler": "nuts"}}) == AUTO
    for given in ({}, {"nuts": {"target_accept": 0.9}}):
        assert check_adaptation(None, given) == check_adaptation(AUTO, given) == AUTO
    older = {"nuts_sampler_kwargs": {"low_rank_modified_mass_matrix": True}}
    assert check_adaptation(None, older) is None


@pytest.fixture
def arguments(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Auto | None]]:
    """The arguments that `pm.sample` gets, and the choice that it is to make."""
    found: list[tuple[Any, Auto | None]] = []

    def noted(**given: Any) -> None:
        assert not ("nuts" in given and "nuts_sampler_kwargs" in given)  # PyMC refuses both
        nuts = given.get("nuts", given.get("nuts_sampler_kwargs"))
        found.append((nuts, adaptation._asked.get()))

    monkeypatch.setattr(sampling, "pm_sample", noted)
    monkeypatch.setattr("synkhronos.pymc._map.fitted.pm_sample", noted)
    return found


def test_the_argument_reaches_nutpie(arguments: list[tuple[Any, Auto | None]]) -> None:
    """In `sample`, in the processes of `map`, and in `everywhere`."""
    given = {"nuts_sampler": "nutpie", "nuts": {"target_accept": 0.9}}
    named = {"target_accept": 0.9, "adaptation": "low_rank"}
    seed = np.random.SeedSequence(1)
    synk.pymc.sample(tilted(2), adaptation="low_rank", quiet=True, **given)
    Sampled(tilted, given | {"adaptation": "low_rank"}, 1)(1, seed)
    synk.pymc.sample(tilted(2), quiet=True, **given)
    synk.pymc.sample(tilted(2), adaptation=AUTO, quiet=True, **given)
    Sampled(tilted, given | {"adaptation": AUTO}, 1)(2, seed)
    asked = {"target_accept": 0.9, "adaptation": AUTO}  # in nutpie's own argument
    synk.pymc.sample(tilted(2), quiet=True, **given | {"nuts": asked})
    Sampled(tilted, given | {"nuts": asked}, 1)(1, seed)
    assert asked["adaptation"] == AUTO
    Sampled(tilted, given, 1)(1, seed)
    with synk.pymc.everywhere(quiet=True):
        pm.sample(model=tilted(2), **given)
    older = {"nuts_sampler": "nutpie", "nuts_sampler_kwargs": {"target_accept": 0.9}}
    for own in (older, older | {"nuts_sampler_kwargs": named}):
        synk.pymc.sample(tilted(2), adaptation="low_rank", quiet=True, **own)
        Sampled(tilted, own | {"adaptation": "low_rank"}, 1)(1, seed)
    by_older_name, arguments[-4:] = arguments[-4:], []
    assert by_older_name == [(named, None)] * 4
    *first, default, auto, mapped, by_nuts, mapped_by_nuts, mapped_by_default, anywhere = arguments
    assert first == [(named, None)] * 2
    all_auto = (default, auto, mapped, by_nuts, mapped_by_nuts, mapped_by_default, anywhere)
    for nuts, choice_of in all_auto:
        assert nuts == given["nuts"]
        assert choice_of is not None
    assert auto[1] is not None
    assert 0 < auto[1].seconds < 1e-4


def test_each_item_has_settings_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """`pm.sample` writes the target into them, and refuses it twice."""
    found: list[dict[str, Any]] = []

    def writes(**given: Any) -> None:
        assert "target_accept" not in given["nuts"]
        given["nuts"]["target_accept"] = given["target_accept"]
        found.append(given["nuts"])

    monkeypatch.setattr("synkhronos.pymc._map.fitted.pm_sample", writes)
    fit = Sampled(tilted, {"adaptation": "low_rank", "target_accept": 0.9}, 1)
    for item in (1, 2):
        fit(item, np.random.SeedSequence(item))
    assert found == [{"adaptation": "low_rank", "target_accept": 0.9}] * 2


def test_processes_of_chains_choose_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a seed of its own each of them has the same choice."""
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(members, "sample_in_processes", lambda *given: found.append(given[2]))
    monkeypatch.setattr(sampling._cores, "available", lambda: [0, 0, 0, 0])
    given = {"members_per_chain": 2, "chains": 2, "nuts_sampler": "nutpie", "quiet": True}
    synk.pymc.sample(tilted(2), adaptation=AUTO, **given)
    [arguments] = found
    assert arguments["adaptation"] == AUTO


def test_nutpie_is_as_it_was_afterwards() -> None:
    nutpie = pytest.importorskip("nutpie")
    own = nutpie.sample
    with compiled_soon():
        assert nutpie.sample.__wrapped__ is own
    assert nutpie.sample is own


@pytest.mark.thorough  # it measures for seconds
def test_advice_tells_the_metric_if_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[float] = []

    def expected(model: pm.Model, seconds: float) -> str:
        found.append(seconds)
        return "metric low_rank: why"

    monkeypatch.setattr(parallel, "expected_metric", expected)
    advice = synk.pymc.advise(tilted(2), members=1, modes=["FAST_COMPILE"], metric=True)
    assert advice.metric == "metric low_rank: why"
    assert str(advice).endswith("\nmetric low_rank: why")
    [seconds] = found
    assert 0 < seconds < 1e-4


@pytest.mark.thorough
def test_advice_warms_nutpie_up() -> None:
    pytest.importorskip("nutpie")
    with pytensor.config.change_flags(mode="NUMBA"):
        assert expected_metric(tilted(2), 0.0).startswith("metric low_rank: ")


@pytest.mark.thorough
def test_auto_draws_what_the_metric_that_it_chooses_draws(tmp_path: Path) -> None:
    """Also into a folder."""
    pytest.importorskip("nutpie")
    given = {"draws": 400, "tune": 400, "chains": 2, "random_seed": 4, "progressbar": False}
    given |= {"nuts_sampler": "nutpie", "quiet": True, "compute_convergence_checks": False}
    given |= {"compile_kwargs": {"mode": "NUMBA"}}
    found = {
        name: synk.pymc.sample(tilted(2), adaptation=name, **given)
        for name in ("auto", "low_rank", "diag")
    }
    draws = {name: tree.posterior["b"].values for name, tree in found.items()}
    np.testing.assert_array_equal(draws["auto"], draws["low_rank"])
    stored = synk.pymc.sample(tilted(2), folder=tmp_path / "run", **given)
    settings = json.loads(stored["sample_stats"].attrs["inference_library_settings"])
    assert settings["adaptation"] == "low_rank"
    steps = {name: int(tree.sample_stats["n_steps"].sum()) for name, tree in found.items()}
    assert steps["diag"] > 3 * steps["auto"]
    assert draws["auto"][..., 1].mean() == pytest.approx(0.6, abs=0.1)
