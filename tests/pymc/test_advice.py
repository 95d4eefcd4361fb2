"""Advice: what is measured, what follows from it, how it is shown."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pymc as pm
import pytest
from selection import thorough

import synkhronos as synk
from synkhronos.pymc._group import advice as _advice
from synkhronos.pymc._group import parallel
from synkhronos.pymc._group.advice import Advice, ModeAdvice, gradient_of

DEMOS = Path(__file__).parent.parent.parent / "demos" / "pymc"


def timing(mode: str = "NUMBA", **given: object) -> ModeAdvice:
    """A second for all rows, a tenth for the rest, a hundredth for a round."""
    known = {
        "plain": 2.0,
        "plain_threads": 1.5,
        "rest": 0.1,
        "parts": {1: 1.0, 2: 0.5, 4: 0.25, 8: 0.125},
        "round": 0.01,
    } | given
    return ModeAdvice(mode, **known)  # type: ignore[arg-type]


def of(*modes: ModeAdvice) -> Advice:
    return Advice(("y",), (100,), 4, modes)


def test_predictions_follow_from_the_measurements() -> None:
    found = timing()
    assert found.share == pytest.approx(1.0 / 1.1)
    assert found.seconds(1) == pytest.approx(1.1)  # alone there is no round
    assert found.seconds(2) == pytest.approx(0.1 + 0.5 + 0.01)
    assert found.seconds(16) == pytest.approx(0.1 + 0.0625 + 0.01)
    assert of(found).speedup(4) == pytest.approx(1.5 / 0.36)
    slowed = timing(sampler=1.0)  # whose own time stays what it is
    assert slowed.seconds(4) == found.seconds(4)
    assert of(slowed).speedup(4) == pytest.approx(2.5 / 1.36)


def test_the_fastest_mode_and_the_plan_for_chains() -> None:
    advice = Advice(("y",), (100,), 4, (timing(), timing("CVM", rest=0.01, plain=1.0)))
    assert advice.mode == "CVM"
    assert advice.speedup(4, "NUMBA") == pytest.approx(1.0 / 0.36)
    # a process for each chain wastes nothing on rounds and on the rest
    plan = advice.chains(4)
    assert (plan.members, plan.at_once, str(plan)) == (
        1,
        4,
        "4 chains, 4 at once with 1 member each",
    )
    # two chains leave half of the cores: two members each
    assert (advice.chains(2).members, advice.chains(2).at_once) == (2, 2)
    assert str(advice.chains(1)) == "1 chain with 4 members"
    assert advice.chains(1, together=3).members == 3


def test_the_verdict_names_as_many_members_as_pay() -> None:
    dear = timing("CVM", rest=0.01, plain=1.0, round=2.0)  # a round costs more than it saves
    advice = Advice(("y",), (100,), 4, (timing(plain=9.0, rest=8.0), dear))
    assert (advice.mode, advice.members) == ("CVM", 1)
    assert "fastest divided: CVM, 1010.000 ms with 1 member." in str(advice)
    assert "on one core, with the density of synk.pymc.fast: 1000.000 ms; plain: " in str(advice)
    assert str(advice.chains(1)) == "1 chain with 1 member"


def test_what_does_not_pay_is_predicted_not_to() -> None:
    heavy = timing(rest=5.0, plain=6.0, plain_threads=6.0)
    assert of(heavy).speedup(8) < 1.2
    tiny = timing(rest=0.0, parts={1: 0.001, 2: 0.0005}, plain=0.001)
    assert of(tiny).speedup(2) < 0.1


@pytest.mark.parametrize("best", ["NUMBA", "JAX"])
def test_table_and_sentence_compare_with_the_best_plain_mode(best: str) -> None:
    """Whichever mode this is: that of the fastest members, or another one."""
    jax = timing("JAX", plain=9.0, plain_threads=0.5 if best == "JAX" else 9.0, rest=3.0)
    advice = of(timing(), jax)
    plain = {"NUMBA": 1.5, "JAX": 0.5}[best]
    assert advice.mode == "NUMBA"
    assert advice.plain.mode == best
    headline, _, numba, other, sentence, *_ = str(advice).splitlines()
    assert f"the plain model in its best mode ({best}, all threads)" in headline
    columns = [float(line.split()[-2]) for line in (numba, other)]  # of 4 members
    assert columns == pytest.approx([plain / 0.36, plain / 3.26], abs=0.006)
    assert f"Sampling is {plain / 0.36:.2f} times as fast" in sentence


def test_modes_without_time_or_code_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is read and proved once, whatever the number of modes."""
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), 1, observed=np.arange(100.0))
    proofs: list[object] = []
    prove = parallel.prove
    monkeypatch.setattr(parallel, "prove", lambda *given: proofs.append(given) or prove(*given))
    monkeypatch.setattr(_advice.seconds_of, "__defaults__", (0.002,))
    tried = ["FAST_COMPILE", "no such mode", "FAST_COMPILE"], ["C"]
    monkeypatch.setattr(parallel, "modes_to_measure", lambda: tried)
    with synk.Group(1):
        advice = synk.pymc.advise(model)
        assert [m.mode for m in advice.modes] == ["FAST_COMPILE"] * 2
        assert advice.left_out == ("no such mode", "C")
        assert len(proofs) == 1
        assert "logp" not in vars(model)
        text = str(advice)
        assert text.splitlines()[4].split()[:2] == ["no", "such"]
        assert text.endswith(
            'not measured: no such mode, C; modes=["no such mode", "C"] does, or says why not'
        )
        with pytest.raises(ValueError, match="no such mode"):
            synk.pymc.advise(model, modes="no such mode")
        assert "logp" not in vars(model)
        monkeypatch.setattr(parallel, "_SECONDS", 0.0)
        assert synk.pymc.advise(model).left_out == ("no such mode", "FAST_COMPILE", "C")


def test_lines_and_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    advice = Advice(("y", "z"), (100, 2000), 2, (timing(),))
    text = str(advice)
    assert "y, z (100, 2,000 rows)" in text
    assert "NUMBA" in text.splitlines()[2]
    assert "91 %" in text
    assert "2.46" in text  # 2 members
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    advice.show()
    table = capsys.readouterr().out
    assert "2.46" in table
    assert "┃" in table
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    advice.show()
    assert capsys.readouterr().out == f"{text}\n"


def test_a_model_is_measured() -> None:
    r, rows = np.random.default_rng(0), 60_000
    with pm.Model() as model:
        b, noise = pm.Normal("b", shape=3), pm.Normal("noise", shape=rows)
        x = r.normal(size=(rows, 3))
        pm.Poisson("y", pm.math.exp(x @ b + noise), observed=r.poisson(1, rows))
    advice = synk.pymc.advise(model, members=2, modes=["FAST_COMPILE"])
    assert "logp" not in vars(model)
    [found] = advice.modes
    assert advice.names == ("y",)
    assert advice.rows == (rows,)
    assert found.rest > 0
    assert found.parts[8] < found.parts[1]
    assert 0 < found.share < 1
    assert 0 < found.round <= 100e-6 + 10e-9 * (rows + 3)
    assert found.sampler >= 0


def test_what_a_sampler_does_between_gradients_is_measured() -> None:
    with pm.Model() as model:
        x = pm.Normal("x", shape=200_000)
        pm.Potential("y", -x.sum())
    gradient = gradient_of(model, "FAST_COMPILE")
    before = gradient.point.copy()
    gradient.known().amid_sampling()()
    np.testing.assert_array_equal(gradient.point, before)
    np.testing.assert_array_equal(gradient.known()(), gradient())
    calls: list[np.ndarray] = []
    made = gradient.model_function._pytensor_function
    gradient.model_function._pytensor_function = lambda q: calls.append(q) or made(q)
    gradient.amid_sampling()()
    assert len(calls) == 2  # at the start, and one for the leaf
    np.testing.assert_allclose(calls[1], before, atol=1e-9)


def test_what_cannot_be_divided_is_not_advised_on() -> None:
    with pm.Model() as model:
        pm.Normal("mu")
    with synk.Group(1), pytest.raises(synk.InputError, match="nothing to divide"):
        synk.pymc.advise(model)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(
    "demo",
    [
        "glmm",
        *thorough("logistic", "hierarchical_poisson"),
    ],
)
def test_demo(demo: str) -> None:
    small = "--rows 100 --members 2 --draws 25 --tune 25 --max-treedepth 4"
    small += " --modes FAST_COMPILE --mode FAST_COMPILE"
    done = subprocess.run(
        [sys.executable, str(DEMOS / f"{demo}.py"), *small.split()],
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "The posteriors agree."
    assert "FAST_COMPILE" in done.stdout
    assert "times as fast" in done.stdout
