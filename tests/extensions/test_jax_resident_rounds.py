"""Round rules on GPUs: members' values stay in JAX's memory. The path is forced, see `start`."""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from apart import Apart
from gpu_commands import FailsOnce, Traffic
from selection import thorough
from training_cases import RULES, Net

import synkhronos as synk
from synkhronos import rules
from synkhronos._backends import jax as jax_backend
from synkhronos.extensions import make_train_function, updates
from synkhronos.extensions._apart.resident import ResidentOwnValues

pytestmark = [
    pytest.mark.together,
    pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed"),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Skipping Assert:UserWarning"),
]
Start = Callable[..., synk.Group]
TOLERANCE = {"float64": 1e-10, "float32": 3e-4}


def _in_mode_jax(name: str) -> ModuleType:
    """A test module of round rules on cores, with functions in mode JAX."""
    spec = importlib.util.spec_from_file_location(f"{name}_in_jax", Path(__file__).with_name(name))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.FAST = "JAX"  # type: ignore[attr-defined]
    return module


@pytest.fixture
def group(gpu_pair: synk.Group) -> synk.Group:
    """For the tests of other modules."""
    return gpu_pair


group2 = group
ROUNDS, MEETINGS = _in_mode_jax("test_rounds.py"), _in_mode_jax("test_round_meetings.py")
# here with fewer cases: JAX compiles for each length of a part
_FEWER = ("test_rules_equal_members_one_after_the_other", "test_many_steps_in_one_command")
for _name, _test in [*vars(ROUNDS).items(), *vars(MEETINGS).items()]:
    if _name.startswith("test_") and _name not in _FEWER:
        globals()[_name] = pytest.mark.thorough(_test)


def train_of(net: Net, rule: Any, optimizer: str = "momentum") -> Any:
    """A training function of a net."""
    function, options = RULES[optimizer]
    return make_train_function(
        net.loss, net.params, net.x, net.y, function, rule=rule, mode="JAX", **options
    )


def equal_members_one_after_the_other(
    size: int, rule: Any, optimizer: str = "adam", dtype: str = "float64"
) -> None:
    """Calls, `steps`, parts of two lengths, a member without rows, a meeting within a period."""
    net, twin = Net(dtype), Apart(size, rule, *RULES[optimizer], dtype=dtype)
    train = train_of(net, rule, optimizer)
    x, y = net.data(23)
    data = train.build_inputs(x, y)
    batches = [slice(0, 11), slice(4, 5), slice(3, 14), slice(11), slice(2, 13), slice(0, 11)]

    def same() -> None:
        for a, b in zip(net.values(), twin.centre, strict=True):
            assert a.dtype == dtype
            np.testing.assert_allclose(a, b, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])

    for batch in batches[:4]:
        train(*data, batch=batch)
        twin.step(x, y, batch)
        same()
    train.meet()
    twin.meet()
    train.steps(*data, batches * 2, 10)
    for batch in (batches * 2)[:10]:
        twin.step(x, y, batch)
    same()
    train.meet()
    twin.meet()
    same()
    for rank in range(size):
        for p, value in zip(net.params, net.values(), strict=True):
            np.testing.assert_array_equal(synk.get_value(rank, p), value)


@pytest.mark.parametrize(
    "name", ["swap", *thorough(*(n for n in ROUNDS.ROUND_RULES if n != "swap"))]
)
def test_rules_equal_members_one_after_the_other(gpu_pair: synk.Group, name: str) -> None:
    dtype = "float32" if "reset" in name else "float64"
    equal_members_one_after_the_other(2, ROUNDS.ROUND_RULES[name], dtype=dtype)


@pytest.mark.parametrize("size", [1, *thorough(3)])
def test_groups_of_other_sizes(start: Start, size: int) -> None:
    start(size)
    equal_members_one_after_the_other(size, rules.EASGD(3, meet=True), "momentum")


@pytest.mark.parametrize("warmup", thorough(0, 5))
def test_steps_have_the_bits_of_calls(gpu_pair: synk.Group, warmup: int) -> None:
    ROUNDS.test_many_steps_in_one_command(gpu_pair, "over meetings", warmup, True)


@pytest.mark.thorough  # on cores: test_round_meetings.py
def test_a_run_is_resumed(gpu_pair: synk.Group, tmp_path: Path) -> None:
    """With a warm-up, dropout and a running mean."""
    rule = rules.Average(3, state="average", warmup=2)
    MEETINGS.test_a_run_is_resumed_to_the_last_bit(gpu_pair, tmp_path, rule)


class Small:
    """A function with one parameter, of which two members treat a part each in a meeting."""

    def __init__(self, rule: Any, optimizer: Any = updates.momentum) -> None:
        x = pt.matrix("x", dtype="float64")
        self.w = pytensor.shared(np.ones(9000), name="w")
        loss = ((x[:, 0] * self.w.sum() / 9000 - x[:, 1]) ** 2).mean()
        self.train = make_train_function(
            loss, [self.w], x, None, optimizer, 0.1, rule=rule, mode="JAX"
        )
        self.data = self.train.build_inputs(np.random.default_rng(0).normal(size=(12, 2)))

    def make(self, steps: int) -> None:
        for _ in range(steps):
            self.train(self.data)

    def values(self) -> list[np.ndarray]:
        return [v.get_value() for v in (self.w, *self.train.state)]


def equal(found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_is_copied(gpu_pair: synk.Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """A meeting's parameters to the device, once in a period; states that are kept, never."""
    work = Small(rules.Average(3))
    work.make(1)
    gpu_pair.run(Traffic())
    local, momentum = work.train._planned.kept, work.train.state[0]
    assert isinstance(local, ResidentOwnValues)
    real, copied = jax_backend.held, []

    def held(value: Any) -> Any:
        copied.append(value.nbytes)
        return real(value)

    monkeypatch.setattr(jax_backend, "held", held)
    own = {v: np.array(view) for v, view in local._views.items()}
    before = [local._held[v][0] for v in (work.w, momentum)]
    work.make(1)
    assert copied == []
    assert all(value.is_deleted() for value in before)  # overwritten
    work.make(1)  # they meet at its end
    assert copied == []
    assert local._held[work.w][0] is local._views[work.w]
    assert jax_backend.is_held(local._held[momentum][0])
    np.testing.assert_array_equal(local._views[momentum], own[momentum])
    work.make(1)
    assert copied == [9000 * 8]
    work.train.meet()  # which also publishes the states
    work.train.steps(work.data, [slice(None)] * 3, 3)
    assert copied == [9000 * 8] * 3  # with a copy of the states, in case that a step fails
    assert isinstance(work.w.get_value(borrow=True), np.ndarray)
    for exchanges, _ in gpu_pair.run(Traffic()):
        assert exchanges == []


@pytest.mark.parametrize("how", ["steps", *thorough("call")])
def test_a_member_that_raises_in_a_step(gpu_pair: synk.Group, how: str) -> None:
    """All values and the count are as before, the members' own ones too."""
    found = []
    for fails in (True, False):
        work = Small(rules.SlowMo(4))
        work.make(2)
        if fails:
            before = work.values()
            gpu_pair.run(FailsOnce(1, "flat", calls=2 if how == "steps" else 1))
            with pytest.raises(synk.WorkerError, match="no luck"):
                work.make(1) if how == "call" else work.train.steps(work.data, [slice(12)] * 2)
            equal(work.values(), before)
        work.make(1)
        work.train.meet()
        found.append(work.values())
    equal(*found)


def test_a_failure_while_values_are_overwritten(
    gpu_pair: synk.Group, caplog: pytest.LogCaptureFixture
) -> None:
    """All members begin at the last meeting again."""
    work, twin = Small(rules.Average(3)), Small(rules.Average(3))
    work.make(3)
    work.train.meet()
    for v, value in zip((twin.w, *twin.train.state), work.values(), strict=True):
        v.set_value(value)
    work.make(1)
    gpu_pair.run(FailsOnce(1, "apply"))
    with caplog.at_level(logging.WARNING, "synkhronos"), pytest.raises(synk.WorkerError):
        work.make(1)
    assert "the steps since the last meeting" in caplog.text
    for each in (work, twin):
        each.make(3)
    equal(work.values()[:-1], twin.values()[:-1])


def test_a_failure_while_the_centre_is_written(gpu_pair: synk.Group) -> None:
    """Nobody can use what is half written, until the user has set it."""
    work = Small(rules.Average(2), updates.sgd)
    work.make(3)
    old = work.w.get_value()
    gpu_pair.run(FailsOnce(1, "treat"))
    with pytest.raises(synk.WorkerError, match="no luck"):
        work.make(1)
    for call in (lambda: work.make(1), work.train.meet):
        with pytest.raises(synk.StateTorn):
            call()
    work.w.set_value(old)
    work.make(2)
    assert (work.w.get_value() != old).all()
    np.testing.assert_array_equal(synk.get_value(1, work.w), work.w.get_value())


@pytest.mark.thorough
@pytest.mark.parametrize("where", ["computed", "meet"])
def test_an_interrupt_loses_no_period(
    gpu_pair: synk.Group, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Ctrl-C while the master computes, or meets: whole values, and on."""
    work, twin = Small(rules.SlowMo(3)), Small(rules.SlowMo(3))
    work.make(2)
    method = getattr(ResidentOwnValues, where)

    def interrupted(*args: Any) -> Any:
        found = method(*args)
        signal.raise_signal(signal.SIGINT)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(ResidentOwnValues, where, interrupted)
        with pytest.raises(KeyboardInterrupt):
            work.make(1)
    made = int(work.train.state[-1].get_value()[0])
    assert made == (2 if where == "computed" else 3)
    work.make(6 - made)
    twin.make(6)
    equal(work.values(), twin.values())


@pytest.mark.thorough
def test_a_death_with_restarts(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """Training goes on from the last meeting, with states that a meeting averages."""
    group = start(2, max_restarts=1)
    work, twin = (Small(rules.Average(3, state="average")) for _ in range(2))
    work.make(5)
    os.kill(group.channel.pid(1), signal.SIGKILL)
    with caplog.at_level(logging.WARNING, "synkhronos"):
        work.make(3)
    assert group.restarts == 1
    assert "the steps since the last meeting (2) are lost" in caplog.text
    twin.make(6)
    equal(work.values()[:-1], twin.values()[:-1])


@pytest.mark.thorough
def test_a_death_in_a_meeting(start: Start) -> None:
    group = start(2)
    work = Small(rules.Average(2), updates.sgd)
    work.make(1)
    group.run(FailsOnce(1, "treat", "SIGKILL"))
    with pytest.raises(synk.WorkerDied, match="rank 1"):
        work.make(1)
    start(2)
    with pytest.raises(synk.StateTorn):
        synk.broadcast(work.w)
    work.w.set_value(np.ones(9000))


@pytest.mark.parametrize(
    "rule", [rules.EASGD(2), rules.Nodes(rules.EASGD(2), rules.Average(2))], ids=str
)
def test_rules_without_meetings_of_members_are_refused(gpu_pair: synk.Group, rule: Any) -> None:
    net = Net()
    with pytest.raises(synk.InputError, match=r"compute on GPUs: use a round rule"):
        train_of(net, rule)


@pytest.mark.thorough  # of training functions: test_train.py
def test_outputs_that_are_parameters(gpu_pair: synk.Group) -> None:
    """They are values of their own, which no step overwrites; a statistic too."""
    x, w = pt.vector("x", dtype="float64"), pytensor.shared(np.ones(3), name="w")
    last = pytensor.shared(np.zeros(3), name="last")
    train = make_train_function(
        *(((w.sum() * x) ** 2).mean(), [w], x, None, updates.sgd, 0.01),
        outputs=[(w, "avg"), (w.reshape((3, 1)), "avg")],
        updates=[(last, w)],
        rule=rules.Average(2),
        mode="JAX",
    )
    data = train.build_inputs(np.ones(6))
    seen, wanted = [], 1.0
    for _ in range(4):
        _, value, column = train(data)
        seen.append(value)
        np.testing.assert_allclose(column[:, 0], value)
    for value in seen:
        np.testing.assert_allclose(value, wanted)
        wanted -= 0.01 * 2 * 3 * wanted
    np.testing.assert_allclose(w.get_value(), wanted)
    np.testing.assert_allclose(last.get_value(), seen[-1])
