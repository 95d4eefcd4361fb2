"""Round rules in real groups: equal to members that train one after the other in this process."""

from __future__ import annotations

import functools
import math
import warnings
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from apart import Apart
from modes import FAST
from selection import thorough
from training_cases import RULES, Net, lars, loss_of, whitened

import synkhronos as synk
from synkhronos import nn, rules
from synkhronos._transport.communicators.solo import Solo
from synkhronos.extensions import Batches, HalfPrecision, make_train_function, updates

pytestmark = pytest.mark.usefixtures("lasting_groups")

ROUND_RULES = {
    "average": rules.Average(3),
    "average states": rules.Average(3, state="average"),
    "reset states": rules.Average(3, state="reset"),
    "slowmo": rules.SlowMo(3, momentum=0.6, lr=0.9),
    "slowmo, average": rules.SlowMo(3, state="average"),
    "diloco": rules.DiLoCo(3),
    "diloco, reset": rules.DiLoCo(3, state="reset"),
    "easgd": rules.EASGD(3, meet=True),
    "swap": rules.Swap(3, seed=4),
}
TOLERANCE = {"float64": 1e-10, "float32": 3e-4}


def made(net: Net, rule: Any, optimizer: Any, **options: Any) -> Any:
    """The training function of a net."""
    loss = options.pop("loss", net.loss)
    return make_train_function(
        loss, net.params, net.x, net.y, optimizer, rule=rule, mode=FAST, **options
    )


def same(found: Any, wanted: Any, dtype: str = "float64") -> None:
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == dtype
        np.testing.assert_allclose(a, b, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def batches_of(steps: int) -> list[slice]:
    """Batches of many rows, of fewer than members, and in between."""
    return [slice(5 * i % 13, 5 * i % 13 + (11, 2, 7, 1)[i % 4]) for i in range(steps)]


@pytest.mark.each_choice
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize(
    "name",
    [thorough(n)[0] if n in ("slowmo, average", "diloco, reset") else n for n in ROUND_RULES],
)
def test_rules_equal_members_one_after_the_other(
    group: synk.Group, name: str, optimizer: str, dtype: str
) -> None:
    """Unequal parts, members without rows, a meeting before a period has ended."""
    rule, (function, options) = ROUND_RULES[name], RULES[optimizer]
    net, twin = Net(dtype), Apart(group.size, rule, function, options, dtype=dtype)
    train = made(net, rule, function, **options)
    x, y = net.data(23)
    for i, batch in enumerate(batches_of(11)):
        train(x, y, batch=batch)
        twin.step(x, y, batch)
        if i == 6:  # one step after a meeting
            train.meet()
            twin.meet()
        same(net.values(), twin.centre, dtype)
    train.meet()
    twin.meet()
    same(net.values(), twin.centre, dtype)
    for rank in range(group.size):
        for p, c in zip(net.params, net.values(), strict=True):
            np.testing.assert_array_equal(synk.get_value(rank, p), c)


@pytest.mark.each_choice
@pytest.mark.parametrize(
    "kind", ["sum + L2", "masked mean", *thorough("sum", "mean + L2", "log of sum")]
)
def test_losses(group2: synk.Group, kind: str) -> None:
    """A sum over a part stands for the sum over all; a penalty counts once."""

    def loss(net: Net, share: Any) -> Any:
        penalty = (net.params[0] ** 2).sum()
        mask = pt.cast(pt.gt(net.x[:, 0], 0), net.dtype)
        return {
            "sum": share * net.error.sum(),
            "mean + L2": net.loss + 0.01 * penalty,
            "sum + L2": share * net.error.sum() + 0.3 * penalty + 0.1 * abs(net.params[2]).sum(),
            "masked mean": (net.error * mask).sum() / mask.sum() + 0.01 * penalty,
            "log of sum": pt.log(share * net.error.sum()),
        }[kind]

    rule, options = rules.Average(2), {"learning_rate": 0.01}
    twin = Apart(group2.size, rule, updates.momentum, options, loss=loss)
    net = Net()
    train = made(net, rule, updates.momentum, loss=loss_of(net, kind), **options)
    x, y = net.data(23)
    for i in range(4):
        train(x, y, batch=slice(0, 15 + i))
        twin.step(x, y, slice(0, 15 + i))
    same(net.values(), twin.centre)


@pytest.mark.each_choice
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", *thorough("nesterov")])
@pytest.mark.parametrize("how", ["calls", "steps"])
def test_meeting_at_each_step_is_synchronous_training(
    group: synk.Group, optimizer: str, how: str
) -> None:
    function, options = RULES[optimizer]
    ours, theirs = Net(), Net()
    train = made(ours, rules.Average(1), function, **options)
    synchronous = made(theirs, None, function, **options)
    rows = 6 * group.size  # equal parts
    x, y = ours.data(rows)
    data = train.build_inputs(x, y)
    if how == "steps":
        found = train.steps(*data, [slice(None)] * 6, 6)
    else:
        found = [train(x, y) for _ in range(6)]
    np.testing.assert_allclose(found, [synchronous(x, y) for _ in range(6)], rtol=1e-12)
    same(ours.values(), theirs.values())


def loosely(grads: Any, params: Any, rate: float = 0.1) -> Any:
    """Adam's count, a norm of all gradients, and a state of another shape than its parameter."""
    norm = pt.sqrt(sum((g**2).sum() for g in grads))
    count = pytensor.shared(np.zeros(()), name="count")
    found = [(count, count + 1)]
    for p, g in zip(params, grads, strict=True):
        seen = pytensor.shared(np.zeros((), "int64"), name=f"seen {p.name}")
        total = pytensor.shared(np.zeros(2), name=f"total {p.name}")
        found.append((seen, seen + 2))
        found.append((total, total + pt.stack([g.sum(), 1.0])))
        found.append((p, p - rate * g / (1 + norm + count + total[1])))
    return found


@pytest.mark.each_choice
@pytest.mark.parametrize("optimizer", [lars, whitened, loosely])
@pytest.mark.parametrize("state", ["keep", "average", "reset"])
def test_norms_whole_units_and_loose_states(group: synk.Group, optimizer: Any, state: str) -> None:
    rule = rules.Average(2, state=state)
    net, twin = Net(), Apart(group.size, rule, optimizer, {})
    train = made(net, rule, optimizer)
    x, y = net.data(23)
    for _ in range(5):
        train(x, y)
        twin.step(x, y)
    train.meet()
    twin.meet()
    same(net.values(), twin.centre)


def test_clipping_and_a_rate_that_changes(group: synk.Group) -> None:
    """Each member clips its own gradient; a shared scalar and an input give the rate."""

    def clip(gradients: list[Any]) -> Any:
        return updates.total_norm_constraint(gradients, 0.05)

    net, rule = Net(), rules.SlowMo(2)
    rate, twin_rate = (pytensor.shared(0.5, name="rate") for _ in range(2))
    factor = pt.dscalar("factor")
    options = {"learning_rate": twin_rate}
    twin = Apart(group.size, rule, updates.momentum, options, clip=clip)
    train = made(
        net,
        rule,
        updates.momentum,
        learning_rate=rate * factor,
        clip=clip,
        bcast_inputs=[factor],
    )
    x, y = net.data(23)
    for i in range(5):
        rate.set_value(1.0 / (i + 1))
        twin_rate.set_value(0.5 * i / (i + 1))
        train(x, y, 0.5 * i)
        twin.step(x, y)
    train.meet()
    twin.meet()
    same(net.values(), twin.centre)


def test_slices_and_large_parameters(group: synk.Group) -> None:
    """Micro-batches; gradients that are read where they were computed."""
    one, many = Net(hidden=4000), Net(hidden=4000)
    x, y = one.data(23)
    for net, slices in ((one, 1), (many, 3)):
        train = made(net, rules.DiLoCo(2), updates.adam, learning_rate=0.01)
        for _ in range(3):
            train(x, y, num_slices=slices)
        train.meet()
    same(many.values(), one.values())


class Noisy:
    """A loss with dropout, a running mean, a count, and a statistic that no graph reads."""

    def __init__(self) -> None:
        self.x = pt.matrix("x", dtype="float64")
        self.w = pytensor.shared(np.ones(3), name="w")
        self.rng = pytensor.shared(np.random.default_rng(3), name="rng")
        self.mean = pytensor.shared(np.zeros(3), name="mean")
        self.count = pytensor.shared(np.zeros((), "int64"), name="count")
        self.last = pytensor.shared(np.zeros(3), name="last")
        after, drawn = pt.random.uniform(size=self.x.shape, rng=self.rng, return_next_rng=True)
        self.loss = (((self.x - self.mean) * pt.lt(drawn, 0.5) @ self.w - 1) ** 2).mean()
        average = self.x.mean(axis=0)
        self.updates = [
            (self.rng, after),
            (self.mean, 0.9 * self.mean + 0.1 * average),
            (self.count, self.count + 1),
            (self.last, average),
        ]

    def train(self, rule: Any, optimizer: Any = updates.adam, **options: Any) -> Any:
        return make_train_function(
            *(self.loss, [self.w], self.x, None, optimizer, 0.01),
            updates=self.updates,
            rule=rule,
            mode=FAST,
            **options,
        )

    def values(self) -> list[np.ndarray]:
        return [v.get_value() for v in (self.w, self.mean, self.count, self.last)]


@pytest.mark.each_choice
@pytest.mark.parametrize("warmup", [0, 2])
@pytest.mark.parametrize("slices", [1, 2])
def test_statistics_are_averaged_by_rows(group: synk.Group, warmup: int, slices: int) -> None:
    """Between meetings each member has its own; in a warm-up, and at meetings, all have one."""
    noisy = Noisy()
    train = noisy.train(rules.Average(2, warmup=warmup))
    assert {noisy.mean, noisy.count, noisy.last} <= set(train.settings)
    x = np.random.default_rng(0).normal(size=(11, 3))
    lengths = synk.part_lengths(len(x))
    assert len(set(lengths)) == min(group.size, 2)  # of several members, unequal
    means = np.zeros((group.size, 3))
    for step in range(warmup + 4):
        train(x, num_slices=slices)
        parts = np.array([part.mean(axis=0) for part in np.split(x, np.cumsum(lengths)[:-1])])
        means = 0.9 * means + 0.1 * parts
        whole = np.average(means, axis=0, weights=lengths)
        if step < warmup or (step - warmup) % 2:
            means[:] = whole
            np.testing.assert_allclose(noisy.mean.get_value(), whole)
            np.testing.assert_allclose(noisy.last.get_value(), x.mean(axis=0))
            assert noisy.count.get_value() == step + 1
    for rank in range(group.size):
        np.testing.assert_array_equal(synk.get_value(rank, noisy.mean), noisy.mean.get_value())


def test_updates_that_no_mean_can_be_are_refused(group2: synk.Group) -> None:
    net = Net()
    count = pytensor.shared(0.0, name="count")
    changes = [(count, count + net.x.sum(), "sum", "all")]
    with pytest.raises(
        synk.InputError, match=r'updates of count.*cannot be reduced by sum: use "avg"'
    ):
        made(net, rules.Average(2), updates.sgd, learning_rate=0.1, updates=changes)


def test_synchronised_batch_normalisation(group: synk.Group) -> None:
    """The members' statistics meet inside of the graph, in steps too."""
    rows, y = np.random.default_rng(1).normal(size=(12, 2)), np.arange(12.0)

    def trained(rule: Any, how: str) -> list[Any]:
        x, target = pt.matrix("x", dtype="float64"), pt.vector("y", dtype="float64")
        w = pytensor.shared(np.ones(2), name="w")
        out = nn.BatchNorm("n", n_in=2, affine=False)(x)
        loss = ((out @ w - target) ** 2).mean()
        running = nn.state_updates(loss)
        train = make_train_function(
            *(loss, [w], x, target, updates.sgd, 0.01), updates=running, rule=rule, mode=FAST
        )
        data = train.build_inputs(rows, y)
        if how == "steps":
            losses = train.steps(*data, [slice(None)] * 3, 3)
        else:
            losses = [train(*data) for _ in range(3)]
        return [np.asarray(losses), w.get_value(), *(v.get_value() for v, *_ in running)]

    wanted = trained(None, "calls")
    for how in ("calls", "steps"):
        for a, b in zip(trained(rules.Average(1), how), wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10)


CALLS = {
    "few": [3, 1, 2],
    "over meetings": [11],
    "to the next meeting": [None, 2, None, None],
    "fewer batches than steps": [7, 30],
}


@pytest.mark.each_choice
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("warmup", [0, 5])
@pytest.mark.parametrize("outputs", [False, True])
def test_many_steps_in_one_command(
    group: synk.Group, name: str, warmup: int, outputs: bool
) -> None:
    """Bit-equal to the same calls one by one, dropout and the first call of all included."""
    x = np.random.default_rng(0).normal(size=(40, 3))
    batches = [np.random.default_rng(i).permutation(40)[: 1 + 3 * i] for i in range(12)]
    found: list[Any] = []
    for how in ("steps", "calls"):
        noisy = Noisy()
        more = [noisy.x @ noisy.w, (noisy.x.sum(), "sum")] if outputs else []
        train = noisy.train(rules.Average(4, warmup=warmup, state="average"), outputs=more)
        data = train.build_inputs(x)
        if how == "steps":
            rows = iter(batches)
            taken = [v for n in CALLS[name] for v in train.steps(data, rows, *([n] if n else []))]
        else:
            taken = [train(data, batch=rows) for rows in batches[: len(found[0][0])]]
        train.meet()
        found.append((taken, noisy.values()))
    (ours, mine), (theirs, wanted) = found
    assert len(ours) == {"few": 6, "over meetings": 11, "to the next meeting": 12}.get(name, 12)
    for a, b in zip([*ours, mine], [*theirs, wanted], strict=True):
        for one, other in zip(*(v if isinstance(v, list) else [v] for v in (a, b)), strict=True):
            np.testing.assert_array_equal(one, other)


def test_steps_takes_what_the_user_has_set_once(group2: synk.Group) -> None:
    """A generator that was set advances from step to step in all members."""
    x = np.random.default_rng(0).normal(size=(40, 3))
    found = []
    for how in ("steps", "calls"):
        noisy = Noisy()
        train = noisy.train(rules.Average(4))
        data = train.build_inputs(x)
        train(data)
        train.meet()
        noisy.rng.set_value(np.random.default_rng(17))
        noisy.w.set_value(np.full(3, 2.0))
        if how == "steps":
            losses = train.steps(data, [slice(0, 20)] * 4).tolist()
        else:
            losses = [float(train(data, batch=slice(0, 20))) for _ in range(4)]
        found.append((losses, noisy.w.get_value().tolist()))
    assert found[0] == found[1]
    assert len(set(found[0][0])) == 4


def test_bad_arguments_of_steps(group2: synk.Group) -> None:
    noisy = Noisy()
    train = noisy.train(rules.Average(4))
    x = np.ones((6, 3))
    data = train.build_inputs(x)
    for call, error, text in (
        (lambda: train.steps(data), synk.InputTypeError, "takes 1 inputs, the batches and"),
        (lambda: train.steps(data, [], 2, n=3), synk.InputTypeError, "found 3 arguments"),
        (lambda: train.steps(x, [slice(2)], 2), synk.InputTypeError, "takes Data for inputs"),
        (
            lambda: train.steps(data, [], 0),
            synk.InputError,
            "steps: n=0: give an integer of at least 1",
        ),
        (
            lambda: train.steps(data, [], 1.5),
            synk.InputError,
            r"steps: n=1\.5: give an integer of at least 1",
        ),
        (
            lambda: train.steps(data, [], True),
            synk.InputError,
            "steps: n=True: give an integer of at least 1",
        ),
        (lambda: train.steps(data, 7, 2), synk.InputTypeError, "a list or an iterator, found 7"),
        (lambda: train.steps(data, Batches(6, 2), 2), synk.InputTypeError, "begins anew with each"),
        (lambda: train.steps(data, [slice(2), [9]], 2), IndexError, "9"),
    ):
        with pytest.raises(error, match=text):
            call()
    assert list(train.steps(data, [], 3)) == []
    assert noisy.count.get_value() == 0


def test_large_outputs(group: synk.Group) -> None:
    """Members reduce and gather what does not fit into a report."""
    rows, w = pt.matrix("x", dtype="float64"), pytensor.shared(np.ones(3), name="w")
    train = make_train_function(
        *(((rows @ w) ** 2).mean(), [w], rows, None, updates.sgd, 0.0),
        outputs=[(pt.outer(rows.sum(axis=0), pt.ones(4000)), "sum"), (rows, "gather")],
        rule=rules.Average(2),
        mode=FAST,
    )
    x = np.random.default_rng(0).normal(size=(6000, 3))
    data = train.build_inputs(x)
    for _, total, gathered in (train(data), train(data), *train.steps(data, [slice(None)] * 2)):
        np.testing.assert_allclose(total, np.outer(x.sum(axis=0), np.ones(4000)))
        np.testing.assert_array_equal(gathered, x)


def test_clipping_counts_large_units(group2: synk.Group) -> None:
    """Each member's norm is that of its own gradient, however many elements that has."""
    x, w = pt.dmatrix("x"), pytensor.shared(np.zeros(20_000), name="w")
    train = make_train_function(
        *((x @ w).mean(), [w], x, None, updates.sgd, 1.0),
        clip=functools.partial(updates.total_norm_constraint, max_norm=3.0),
        rule=rules.Average(1),
        mode=FAST,
    )
    rows = np.random.default_rng(0).normal(size=(2, 20_000))
    train(rows)
    clipped = 3.0 * rows / np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(w.get_value(), -clipped.mean(axis=0), rtol=1e-5)


@pytest.mark.parametrize("loss", ["mean", "sum"])
def test_batches_without_rows(group2: synk.Group, loss: str) -> None:
    noisy = Noisy()
    w, x = noisy.w, noisy.x
    error = (x @ w) ** 2
    train = make_train_function(
        *(error.mean() if loss == "mean" else error.sum(), [w], x, None, updates.sgd, 0.1),
        rule=rules.Average(2),
        mode=FAST,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a BatchWarning, and numpy's of a mean of nothing
        train(np.ones((0, 3)))
    train(np.ones((2, 3)))
    found = w.get_value()
    assert (found < 1).all()
    assert (found == found[0]).all()


def test_refusals(group2: synk.Group) -> None:
    net = Net()
    for rule, options, text in (
        (rules.Average(2), {"exchange": HalfPrecision("fp16")}, "exchange none: leave it out"),
        (rules.EASGD(2, alpha=0.7, meet=True), {}, "the limit is"),
    ):
        with pytest.raises(synk.InputError, match=text):
            made(net, rule, updates.sgd, learning_rate=0.1, **options)
    with pytest.raises(synk.InputTypeError, match=r"is not a rule of synkhronos\.rules"):
        made(net, "average", updates.sgd, learning_rate=0.1)


def test_memory_between_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was in it before is in no value, and no sum of it overflows."""

    random = np.random.default_rng(0)

    def used(self: Solo, shape: Any, dtype: np.dtype) -> np.ndarray:
        raw = random.bytes(dtype.itemsize * math.prod(shape))
        return np.frombuffer(raw, dtype).reshape(shape).copy()

    monkeypatch.setattr(Solo, "empty", used)
    function, options = RULES["adam"]
    with synk.Group(1):
        net = Net("float32")
        train = made(net, ROUND_RULES["diloco, reset"], function, **options)
        x, y = net.data(23)
        for batch in batches_of(11):
            assert np.isfinite(train(x, y, batch=batch))
