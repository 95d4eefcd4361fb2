"""Functions that take turns: the steps of a serial pair, resumed in the middle of a cycle."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from modes import FAST
from selection import thorough

import synkhronos as synk
from synkhronos import rules, zoo
from synkhronos.extensions import (
    LocalFunction,
    make_local_train_function,
    make_train_function,
    make_train_function_pytensor,
    updates,
)
from synkhronos.extensions.updates import apply_rule
from synkhronos.training import Alternate, Event, Pair, Trainer, clipped, guarded

pytest.importorskip("pytensor_ml", reason="pytensor-ml is not installed (synkhronos[nn])")
import ring

ROWS, BATCH, EPOCHS = 23, 5, 3
DATA = ring.points(ROWS)


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    with pytensor.config.change_flags(floatX="float64", cxx=""):
        yield


def serial_functions(pair: Pair) -> list[tuple[str, Any, Any]]:
    """The serial functions of a cycle, in their order, each with its name and inputs."""
    found = []
    for name, net, rule, steps in (
        ("critic", pair.critic, pair.critic_optimizer, pair.critic_steps),
        ("generator", pair.generator, pair.generator_optimizer, 1),
    ):
        train = make_train_function_pytensor(
            net.loss, net.params, list(net.inputs), None, rule, updates=net.updates, mode=FAST
        )
        found += [(name, train, net.inputs)] * steps
    return found


def serial(pair: Pair, data: np.ndarray = DATA, epochs: int = EPOCHS) -> dict[str, Any]:
    """The losses and the parameters of plain PyTensor functions that take turns."""
    cycle = serial_functions(pair)
    losses: dict[str, Any] = {"critic": [], "generator": []}
    for number, (rows, words) in enumerate(ring.batches(len(data), BATCH, epochs)):
        name, train, inputs = cycle[number % len(cycle)]
        given = (data[rows], words) if len(inputs) == 2 else (words,)
        losses[name].append(float(train(*given)))
    return losses | {p.name: p.get_value() for p in pair.params}


def trained(pair: Pair, data: np.ndarray = DATA, epochs: int = EPOCHS) -> dict[str, Any]:
    """As `serial`, of a trainer of the current group."""
    losses: dict[str, Any] = {"critic": [], "generator": []}

    def note(event: Event) -> None:
        if event.kind == "step":
            losses[event.values["part"]].append(event.values["loss"])

    trainer = Trainer(pair.alternate(FAST), augment=pair.words, callbacks=[note], progress=False)
    history = trainer.fit(data, batch=BATCH, epochs=epochs)
    assert len(history) == epochs
    assert {"loss_critic", "loss_generator"} <= set(history.columns)
    return losses | {p.name: p.get_value() for p in pair.params}


def alike(found: dict[str, Any], expected: dict[str, Any], most: float = 1e-12) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=most, atol=most, err_msg=name)


LOSSES = ["wasserstein", *thorough("log", "squared")]


@pytest.mark.parametrize("loss", LOSSES)
def test_members_make_the_steps_of_the_serial_pair(loss: str) -> None:
    """1, 2 and 3 members, with batches that they cannot divide evenly."""
    expected = serial(ring.pair(loss))
    start = {p.name: p.get_value() for p in ring.pair(loss).params if ".w" in p.name}
    assert all(abs(expected[name] - value).max() > 1e-4 for name, value in start.items())
    for size in (1, 2, 3):
        with synk.Group(size):
            alike(trained(ring.pair(loss)), expected)


class Broken(Exception):
    pass


class Breaks:
    """Raises after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def __call__(self, event: Event) -> None:
        if event.kind == "step" and event.step == self.step:
            raise Broken


def run(folder: Path, swap: Any = None, breaks: int | None = None, size: int = 2) -> Any:
    """A run in a folder, which saves after each second step; its values, history and steps."""
    with synk.Group(size):
        cycle = ring.pair("wasserstein").alternate(FAST, swap=swap)
        callbacks = [] if breaks is None else [Breaks(breaks)]
        trainer = Trainer(
            cycle, augment=cycle.inputs[-1], callbacks=callbacks, folder=folder, progress=False
        )
        trainer.fit(DATA, batch=BATCH, epochs=EPOCHS, save_every=2, resume="auto")
        cycle.settle()
        values = [v.get_value() for v in (*cycle.params, *cycle.state)]
        history = [{k: v for k, v in row.items() if k != "seconds"} for row in trainer.history]
        return values, history, cycle.turn


SWAPS = {"one pair": None, "a pair of each member": rules.Swap(period=2, seed=1)}


# a cycle has 3 steps, an epoch has 5; resumed after steps 4, 8 and 12: each at another place
@pytest.mark.parametrize("what", ["a pair of each member", *thorough("one pair")])
@pytest.mark.parametrize("step", [5, *thorough(9, 14)])
def test_resumed_in_the_middle_of_a_cycle(tmp_path: Path, what: str, step: int) -> None:
    """Equal to the last bit: values of all members, states, history, whose turn it is."""
    expected = run(tmp_path / "whole", SWAPS[what])
    with pytest.raises(Broken):
        run(tmp_path / "broken", SWAPS[what], step)
    found = run(tmp_path / "broken", SWAPS[what])
    assert len(found[0]) == len(expected[0]) > 15
    for a, b in zip(found[0], expected[0], strict=True):
        np.testing.assert_array_equal(a, b)
    assert found[1:] == expected[1:]


def noted(rule: Callable[..., Any], states: list[Any]) -> Callable[..., Any]:
    """The rule, which also puts the variables that it updates into a list."""

    def made(*args: Any, **kwargs: Any) -> Any:
        found = apply_rule(rule, *args, (), kwargs)
        states.extend(found)
        return found

    return made


def test_each_member_trains_a_pair_and_swaps_critics() -> None:
    """Against serial pairs, one for each part of the rows, with exchanged critics."""
    period, members = 2, 3
    swap = rules.Swap(period, seed=3)
    moved: list[list[Any]] = [[] for _ in range(members)]
    pairs = [ring.pair("wasserstein") for _ in range(members)]
    rank_pairs = [
        dataclasses.replace(pair, critic_optimizer=noted(pair.critic_optimizer, states))
        for pair, states in zip(pairs, moved, strict=True)
    ]
    cycles = [serial_functions(pair) for pair in rank_pairs]
    exchanged = 0
    for number, (rows, words) in enumerate(ring.batches(ROWS, 6, EPOCHS)):
        if number and number % period == 0:
            values = [[v.get_value() for v in variables] for variables in moved]
            partners = swap.partners(number // period - 1, members)
            exchanged += partners != list(range(members))
            for variables, other in zip(moved, partners, strict=True):
                for v, value in zip(variables, values[other], strict=True):
                    v.set_value(value)
        for cycle, part in zip(cycles, np.array_split(np.arange(len(rows)), members), strict=True):
            _, train, inputs = cycle[number % 3]
            train(*((DATA[rows[part]], words[part]) if len(inputs) == 2 else (words[part],)))
    assert exchanged > 3
    pair = ring.pair("wasserstein")
    with synk.Group(members):
        trainer = Trainer(pair.alternate(FAST, swap=swap), augment=pair.words, progress=False)
        trainer.fit(DATA, batch=6, epochs=EPOCHS)
        found = synk.gather(pair.params)
    for i, value in enumerate(found):
        for rank in range(members):
            expected = pairs[rank].params[i].get_value()
            np.testing.assert_allclose(value[rank], expected, rtol=1e-12, atol=1e-12)
    assert np.ptp(found[0], axis=0).max() > 1e-4


def test_a_network_of_images_with_batch_normalisation() -> None:
    """A DCGAN: statistics over the rows of all members, and their running values."""
    data = np.random.default_rng(0).normal(size=(10, 8, 8, 1))

    def made() -> Pair:
        return zoo.dcgan(8, 1, latent=3, width=2)

    def running(pair: Pair) -> list[np.ndarray]:
        changed = [*(pair.critic.updates or ()), *(pair.generator.updates or ())]
        return [u[0].get_value() for u in changed]

    whole, expected = made(), None
    expected = serial(whole, data, 1)
    with synk.Group(2):
        ours = made()
        alike(trained(ours, data, 1), expected, 1e-9)
    for a, b in zip(running(ours), running(whole), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
        assert abs(b - b.mean()).max() > 1e-9


def parts(**options: Any) -> tuple[Any, Any]:
    """Two small training functions that share an input and a variable."""
    x = pt.dvector("x")
    a, b = (pytensor.shared(np.zeros(()), name=n) for n in "ab")
    how = {"mode": FAST, "update_rule": updates.sgd, "learning_rate": 0.25, **options}
    first = make_train_function(((a - x) ** 2).mean(), [a], x, name="first", **how)
    second = make_train_function(((b - a - x) ** 2).mean(), [b], x, name="second", **how)
    return first, second


def local(name: str = "own", **options: Any) -> LocalFunction:
    x, c = pt.dvector("x"), pytensor.shared(np.zeros(()), name="c")
    how = {"mode": FAST, "update_rule": updates.sgd, "learning_rate": 0.25, **options}
    return make_local_train_function(((c - x) ** 2).mean(), [c], x, name=name, **how)


def test_a_failed_step_is_made_again() -> None:
    """The same function has the turn, and the next call goes on."""
    with synk.Group(2):
        cycle = Alternate([(f, 2 - i) for i, f in enumerate(parts())])
        turns = []
        for _ in range(4):
            turns.append(cycle.turn)
            with pytest.raises(synk.InputError):
                cycle(np.array([np.nan])[:, None])
            cycle(np.array([1.0, 3.0]))
            assert cycle.latest == turns[-1]
        assert turns == ["first", "first", "second", "first"]
        assert cycle.steps == 4
        with pytest.raises(synk.InputError, match="2 inputs, where these are needed: x"):
            cycle(np.ones(2), np.ones(2))
        report = cycle.report()
        assert report.calls == 2  # the first one of each function is not counted
        assert report.what == "functions first, second"
        assert repr(cycle).startswith("<synkhronos.training.Alternate of first 2, second 1 in")


@pytest.mark.parametrize("swap", [None, rules.Swap(2)], ids=["one pair", "own pairs"])
def test_metrics_are_validated(swap: Any) -> None:
    """Of the values after each epoch, over all rows; the words are not among their inputs."""
    pair = ring.pair("log")
    [x, _] = pair.critic.inputs
    squares = ((x @ pair.critic.params[0]) ** 2).mean()
    with synk.Group(1):
        cycle = pair.alternate(FAST, swap=swap)
        assert cycle.mode is FAST
        trainer = Trainer(cycle, metrics={"m": squares}, augment=pair.words, progress=False)
        trainer.fit(DATA, batch=BATCH, epochs=2, validation=DATA)
    weights = pair.critic.params[0].get_value()
    assert trainer.history["val_m"][-1] == pytest.approx(((DATA @ weights) ** 2).mean(), rel=1e-12)


def test_a_step_that_is_not_finite_is_left_out() -> None:
    """The count of either function is looked at; rows are those of its own loss."""
    with synk.Group(2):
        cycle = Alternate([(f, 1) for f in parts(update_rule=guarded(updates.sgd))])
        data = np.ones(8)
        data[5] = np.inf
        trainer = Trainer(cycle, guard="skip", progress=False)
        history = trainer.fit(data, batch=2, epochs=1, shuffle=False)
        assert history["skipped"] == [1]
        values = [v.get_value() for v in cycle.params]
        assert np.isfinite(values).all()
        trainer = Trainer(cycle, progress=False)
        assert cycle.steps == 4
        with pytest.raises(synk.NonFinite, match="row 5 of the data"):
            trainer.fit(data, batch=2, epochs=1, shuffle=False)
        # the third step did not count: the same function makes it again, of the same rows
        assert (cycle.steps, cycle.turn, cycle.latest) == (6, "first", "first")
        assert trainer.fit(np.ones(8), batch=2, epochs=1, shuffle=False)["rows"] == [8]
        assert cycle.steps == 8


def test_local_steps_are_each_members_own() -> None:
    """No gradient leaves a member; a member without rows is refused."""
    with synk.Group(3):
        train = local()
        assert train(np.array([1.0, 3.0, 5.0])) == pytest.approx(35 / 3)
        [c] = train.params
        np.testing.assert_array_equal(synk.gather(c), [0.5, 1.5, 2.5])
        with pytest.raises(synk.InputError, match="2 rows for 3 members"):
            train(np.ones(5), batch=[0, 4])
        np.testing.assert_array_equal(synk.gather(c), [0.5, 1.5, 2.5])
        cycle = Alternate([(train, 1)])
        with pytest.raises(synk.InputError, match="num_slices=2: local steps have one"):
            cycle(np.ones(3), num_slices=2)
        with pytest.raises(synk.InputError, match="no step of own has been measured"):
            cycle.report()


BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no pairs": (lambda: Alternate([parts()[0]]), synk.InputTypeError, "a list of pairs"),  # type: ignore[list-item]
    "nothing": (lambda: Alternate([]), synk.InputTypeError, "a list of pairs"),
    "no function": (lambda: Alternate([(len, 1)]), synk.InputTypeError, "not a training function"),  # type: ignore[list-item]
    "no steps": (lambda: Alternate([(parts()[0], 0)]), synk.InputError, "steps=0"),
    "one name": (lambda: Alternate([(parts()[0], 1)] * 2), synk.InputError, "a short name of its"),
    "a rule": (
        lambda: Alternate([(parts(rule=rules.Average(2))[0], 1)]),
        synk.InputError,
        "use make_local_train_function",
    ),
    "mixed": (
        lambda: Alternate([(parts()[0], 1), (local(), 1)]),
        synk.InputError,
        "use one of these for all",
    ),
    "no rule of swaps": (
        lambda: Alternate([(local(), 1)], swap=3),  # type: ignore[arg-type]
        synk.InputTypeError,
        "swap=3: give a rule",
    ),
    "swaps of one network": (
        lambda: Alternate([(parts()[0], 1)], swap=rules.Swap()),
        synk.InputError,
        "make them by make_local_train_function",
    ),
    "no optimizer": (lambda: local(update_rule=None), synk.InputTypeError, "no update rule"),
    "statistics of all in local steps": (
        lambda: zoo.dcgan(8, 1, width=2, seed=None).alternate(FAST, swap=rules.Swap()),
        synk.InputError,
        "contains collectives over members",
    ),
    "critic_steps": (
        lambda: dataclasses.replace(ring.pair("log"), critic_steps=1.5).alternate(FAST),
        synk.InputError,
        "critic_steps=1.5: give an integer",
    ),
    "limit": (
        lambda: clipped(updates.sgd, -1),
        synk.InputError,
        "limit=-1: give a number of more than 0",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_refused(case: str) -> None:
    call, kind, message = BAD[case]
    with synk.Group(1), pytest.raises(kind, match=message):
        call()


def test_functions_of_two_groups_are_refused() -> None:
    with synk.Group(1):
        first, _ = parts()
    with synk.Group(1):
        _, second = parts()
    with pytest.raises(synk.InputError, match="different groups"):
        Alternate([(first, 1), (second, 1)])


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("loss", ring.RATES)
def test_all_modes_of_the_ring_are_found(loss: str) -> None:
    """By two members, in some thousand steps."""
    pair = ring.pair(loss, hidden=64, steps=ring.STEPS[loss])
    most = [0]

    def look(event: Event) -> None:
        if event.kind == "epoch":
            noise = np.random.default_rng(event.epoch).normal(size=(2000, 2))
            most.append(ring.found_modes(generate(noise)))
            if most[-1] == ring.MODES:
                event.trainer.stop("all found")

    with synk.Group(2):
        generate = synk.function([pair.latent], pair.samples)
        trainer = Trainer(pair.alternate(), augment=pair.words, callbacks=[look], progress=False)
        trainer.fit(ring.points(20_000), batch=128, epochs=100)
    assert max(most) == ring.MODES, most
