"""Step methods are those of PyMC, from one graph and one gradient, which nutpie takes as well."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytest
from pymc.sampling import mcmc
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

from synkhronos.pymc._density.nutpie import sample
from synkhronos.pymc._density.step_methods import StepMethods

pytest.importorskip("nutpie", reason="nutpie is not installed")


class Rounded(Op):
    """An operation without a gradient."""

    def make_node(self, x: Any) -> Apply:
        return Apply(self, [x], [x.type()])

    def perform(self, node: Apply, inputs: Any, outputs: Any) -> None:
        outputs[0][0] = np.round(inputs[0])


def model(kind: str) -> pm.Model:
    with pm.Model() as found:
        a, b = pm.Normal("a"), pm.HalfNormal("b")
        if kind == "discrete":
            a = a + pm.Poisson("n", 2)
        if kind == "no gradient":
            a = Rounded()(a)
        if kind == "disconnected":
            pm.Flat("c")
        pm.Normal("y", a, b, observed=np.arange(3.0))
    return found


@pytest.mark.parametrize("kind", ["plain", "discrete", "no gradient"])
def test_each_parameter_has_the_step_method_of_pymc(kind: str) -> None:
    given = model(kind)
    wanted = mcmc.assign_step_methods(given)
    assert StepMethods().assigned(given) == wanted
    assert wanted[1].keys() == ({pm.NUTS} if kind == "plain" else wanted[1].keys())
    few = (pm.Slice, pm.Metropolis)
    assert StepMethods().assigned(given, methods=few) == mcmc.assign_step_methods(given, None, few)


def test_steps_that_are_given_and_wrong_ones() -> None:
    given = model("plain")
    step = pm.Slice(vars=[given.value_vars[0]], model=given)
    assert StepMethods().assigned(given, step) == mcmc.assign_step_methods(given, step)
    for wrong in ({"step": 3}, {"methods": [int]}):
        texts = []
        for assign in (mcmc.assign_step_methods, StepMethods().assigned):
            with pytest.raises((ValueError, AttributeError)) as error:
                assign(given, **wrong)  # type: ignore[operator]
            texts.append(str(error.value))
        assert texts[0] == texts[1]


def test_the_graph_is_made_once_and_of_this_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """So is the gradient, but for the one of the graph that nutpie has rewritten."""
    count = {"logp": 0, "grad": 0}
    logp, grad = pm.Model.logp, pytensor.grad

    def counted(name: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            count[name] += 1
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(pm.Model, "logp", counted("logp", logp))
    monkeypatch.setattr(pytensor, "grad", counted("grad", grad))
    given = {"draws": 5, "tune": 5, "chains": 1, "random_seed": 1, "nuts_sampler": "nutpie"}
    quiet = {"progressbar": False, "quiet": True, "compute_convergence_checks": False}
    found = [sample(model=model("plain"), **given, **quiet).posterior for _ in range(2)]
    assert count == {"logp": 2, "grad": 2}
    np.testing.assert_array_equal(found[0]["a"], found[1]["a"])
    steps, one = StepMethods(), model("plain")
    steps.assigned(one)
    assert steps.with_graph(model("plain")).__class__ is pm.Model
    steps.assigned(one)
    with_graph = steps.with_graph(one)
    assert with_graph.logp() is with_graph.logp()
    assert with_graph["a"] is one["a"]
    assert steps.with_graph(one) is one
