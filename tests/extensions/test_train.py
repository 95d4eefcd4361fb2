"""Training functions: equal to serial training for any rule, loss, split and number of members."""

from __future__ import annotations

import functools
import gc
import os
import signal
import time
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from modes import FAST
from pytensor.compile.mode import Mode
from selection import thorough
from training_cases import LOSSES, RULES, Net, compare, lars, loss_of, whitened

import synkhronos as synk
from synkhronos import extensions
from synkhronos.extensions import make_train_function, make_train_function_pytensor, updates
from synkhronos.extensions._step import update
from synkhronos.extensions._step.update import FlatUpdate
from synkhronos.training import guarded

pytestmark = pytest.mark.usefixtures("lasting_groups")


# all of them for fewer steps: test_updates.py
@pytest.mark.each_choice
@pytest.mark.parametrize("rule", [r if r in ("sgd", "adam") else thorough(r)[0] for r in RULES])
def test_rules_equal_serial(group: synk.Group, rule: str) -> None:
    function, arguments = RULES[rule]
    compare(lambda net: {"rule": function, **arguments}, steps=50)


@pytest.mark.each_choice
@pytest.mark.parametrize("rows", [1, 2, 5, 23])
def test_odd_batches(group: synk.Group, rows: int) -> None:
    """S87 to S89: fewer rows than members too."""
    compare(lambda net: {"rule": updates.adam, "learning_rate": 0.01}, rows=rows)


@pytest.mark.each_choice
@pytest.mark.parametrize("kind", LOSSES)
def test_losses_are_exact(group: synk.Group, kind: str) -> None:
    """Sums, means, penalties counted once, quotients and functions of them; no warning."""
    compare(
        lambda net: {
            "rule": updates.momentum,
            "learning_rate": 0.01,
            "loss": loss_of(net, kind),
        },
        steps=5,
    )


def test_build_inputs(group2: synk.Group) -> None:
    """One Data for each input, by position or by the names that a call takes."""
    x, y, rate = pt.dvector("x"), pt.dvector("y"), pt.dscalar("rate")
    w = pytensor.shared(np.zeros(()), name="w")
    loss = ((w * x - y) ** 2).mean()
    train = make_train_function(loss, [w], x, y, updates.sgd, rate, bcast_inputs=[rate], mode=FAST)
    rows = np.arange(5.0)
    made = train.build_inputs(rows, y_data=2 * rows, rate=0.0)
    assert [d.name for d in made] == ["x", "y", "rate"]
    assert train(*made) == train(rows, 2 * rows, 0.0) == 24.0
    made = train.build_inputs(x_data=rows.astype("float16"), oversize=2)
    assert (made[0].alloc_size, made[1].shape) == (10, (0,))
    with pytest.raises(synk.InputError, match=r"takes 3 inputs, found 4"):
        train.build_inputs(rows, rows, 0.1, rows)
    with pytest.raises(synk.InputTypeError, match="has no input 'z'; it has: x, y, rate"):
        train.build_inputs(rows, z=rows)


@pytest.mark.parametrize("kind", ["mean", "sum + L2", "masked mean"])
def test_dry_gradients(group2: synk.Group, kind: str) -> None:
    """The gradient of the whole, and no value changes."""
    net = Net()
    loss = loss_of(net, kind)
    train = make_train_function(
        loss, net.params, net.x, net.y, updates.sgd, learning_rate=0.1, mode=FAST
    )
    x, y = net.data(11)
    before = net.values()
    found = train.gradients(x, y)
    serial = pytensor.function([net.x, net.y], pytensor.grad(loss, net.params), mode=FAST)
    for g, wanted in zip(found, serial(x, y), strict=True):
        np.testing.assert_allclose(g, wanted, rtol=1e-10, atol=1e-12)
    for a, b in zip(net.values(), before, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.each_choice
@pytest.mark.parametrize("slices", [2, 3])
def test_micro_batches(group: synk.Group, slices: int) -> None:
    compare(lambda net: {"rule": updates.adam, "learning_rate": 0.01}, num_slices=slices, steps=4)


def test_float32(group: synk.Group) -> None:
    """Ten steps in float32; the dtype stays."""
    compare(
        lambda net: {"rule": updates.adam, "learning_rate": 0.01},
        dtype="float32",
        tolerance=2e-5,
    )


def test_large_units_are_read_where_they_are(group: synk.Group) -> None:
    """Units of several chunks, gradients that are not copied by who reads them."""
    compare(
        lambda net: {"rule": updates.nesterov_momentum, "learning_rate": 0.05},
        hidden=20_000,
        steps=3,
    )


def mixing(grads: Any, params: Any, learning_rate: float = 0.1) -> list[tuple[Any, Any]]:
    """The biases are updated with one another's gradients."""
    w0, b0, w1, b1, scale = params
    g0, h0, g1, h1, s = grads
    found = [(w0, w0 - learning_rate * g0), (w1, w1 - learning_rate * g1)]
    return [*found, (b0, b0 - h0 * h1[0]), (b1, b1 - h1 * h0[1]), (scale, scale - s)]


OTHER_RULES: dict[str, tuple[Any, dict[str, Any]]] = {
    "norms of parameters": (lars, {}),
    "matrix products": (whitened, {}),
    "several parameters at once": (mixing, {}),
    "global norm": (
        updates.adam,
        {"clip": functools.partial(updates.total_norm_constraint, max_norm=0.1)},
    ),
    "norms, then a norm of each": (
        lars,
        {"clip": functools.partial(updates.total_norm_constraint, max_norm=0.1)},
    ),
    "columns' norms": (
        lambda g, p: [
            (q, updates.norm_constraint(q - 0.1 * h, 0.5) if q.type.ndim == 2 else q - 0.1 * h)
            for q, h in zip(p, g, strict=True)
        ],
        {"clip": functools.partial(updates.total_norm_constraint, max_norm=0.1)},
    ),
}


@pytest.mark.each_choice
@pytest.mark.parametrize("kind", OTHER_RULES)
def test_other_rules_equal_serial(group: synk.Group, kind: str) -> None:
    """S87: totals over all elements first; what is not elementwise is applied whole."""
    rule, arguments = OTHER_RULES[kind]
    compare(lambda net: {"rule": rule, **arguments}, steps=6)


@pytest.mark.each_choice
@pytest.mark.parametrize("kind", ["global norm", "norms of each"])
def test_totals_over_large_units(group: synk.Group, kind: str) -> None:
    """A total counts the gradients that a member reads where it has computed them."""
    norm = updates.total_norm_constraint if kind == "global norm" else each_norm
    compare(
        lambda net: {
            "rule": updates.momentum,
            "learning_rate": 0.05,
            "clip": functools.partial(norm, max_norm=0.1),
        },
        hidden=20_000,
        steps=2,
    )


def each_norm(gradients: Any, max_norm: float) -> list[Any]:
    """Each gradient has this norm."""
    return [g * max_norm / pt.sqrt((g**2).sum()) for g in gradients]


@pytest.mark.parametrize("rank", [0, 1])
def test_gradients_that_are_not_finite_count_in_large_units(group2: synk.Group, rank: int) -> None:
    """`guarded` sees one in the chunk of the member that has computed it."""
    x, w = pt.dmatrix("x"), pytensor.shared(np.zeros(40_000), name="w")
    train = make_train_function(
        *((x @ w).mean(), [w], x, None, guarded(updates.sgd), 1.0), mode=FAST
    )
    rows = np.ones((2, 40_000))
    rows[rank, -rank] = np.nan
    train(rows)
    assert (w.get_value() == 0).all()
    train(np.ones((2, 40_000)))
    assert (w.get_value() == -1).all()


def test_names(group2: synk.Group) -> None:
    """The class that users annotate with, and the name that the serial twin had in 2017."""
    net = Net()
    train = make_train_function(net.loss, net.params, net.x, net.y, updates.sgd, 0.1, mode=FAST)
    assert isinstance(train, extensions.TrainFunction)
    assert extensions.make_train_function_theano is make_train_function_pytensor


def test_many_members() -> None:
    """More members than the update's loop takes gradients of."""
    with synk.Group(6):
        compare(lambda net: {"rule": updates.adam, "learning_rate": 0.01}, steps=3)


@pytest.mark.parametrize("how", ["shared", "input"])
def test_rates_change_without_compiling(group2: synk.Group, how: str) -> None:
    """A shared rate and a rate that is an input."""
    nets, steps = (Net(), Net()), []
    shared = pytensor.shared(np.float64(0.1))
    for net, make in zip(nets, (make_train_function, make_train_function_pytensor), strict=True):
        rate = shared if how == "shared" else pt.dscalar("rate")
        given = [] if how == "shared" else [rate]
        steps.append(
            make(
                net.loss,
                net.params,
                net.x,
                net.y,
                updates.adam,
                rate,
                bcast_inputs=given,
                mode=FAST,
            )
        )
    data = nets[0].data(9)
    for value in (0.1, 0.01, 0.3):
        shared.set_value(value)
        for step in steps:
            step(*data, *([] if how == "shared" else [value]))
    for a, b in zip(nets[0].values(), nets[1].values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_mixed_dtypes(group2: synk.Group) -> None:
    """float32 and float64 parameters, and an integer one that is left alone."""
    x = pt.dmatrix("x")
    a = pytensor.shared(np.ones((3, 2)), name="a")
    b = pytensor.shared(np.ones(2, "float32"), name="b")
    k = pytensor.shared(np.array(3), name="k")
    loss = ((x @ a + b) ** k).mean()
    with pytest.warns(synk.UnusedWarning, match=r"k \(int64\) have no gradient"):
        train = make_train_function(loss, [a, b, k], x, None, updates.adam, mode=FAST)
    train(np.ones((5, 3)))
    assert (a.get_value().dtype, b.get_value().dtype, k.get_value()) == ("float64", "float32", 3)
    assert (a.get_value() < 1).all()
    assert (b.get_value() < 1).all()


def test_outputs_and_data(group2: synk.Group) -> None:
    """More outputs with reductions; inputs as Data with a batch."""
    net = Net()
    train = make_train_function(
        net.loss,
        net.params,
        net.x,
        net.y,
        updates.sgd,
        0.1,
        outputs=[(net.hits, "gather"), net.hits.sum(), (net.loss, None)],
        mode=FAST,
    )
    x, y = net.data(20)
    rows = np.array([3, 19, 0, 7, 7])
    serial = pytensor.function([net.x, net.y], [net.loss, net.hits], mode=FAST)
    wanted = serial(x[rows], y[rows])
    loss, hits, count, _ = train(synk.data(x), synk.data(y), batch=rows)
    np.testing.assert_allclose(loss, wanted[0])
    np.testing.assert_array_equal(hits, wanted[1])
    assert count == wanted[1].sum()


def trained(steps: int = 3, **options: Any) -> tuple[Net, Any, tuple[np.ndarray, np.ndarray]]:
    net = Net()
    train = make_train_function(
        net.loss, net.params, net.x, net.y, updates.momentum, 0.1, mode=FAST, **options
    )
    data = net.data(12)
    for _ in range(steps):
        train(*data)
    return net, train, data


def continues(net: Net, train: Any, data: tuple[np.ndarray, np.ndarray]) -> None:
    """A step from the values that stand is the serial step."""
    before = net.values()
    velocity = [v.get_value() for v in train.state]
    grads = pytensor.function([net.x, net.y], pytensor.grad(net.loss, net.params), mode=FAST)
    wanted = [p + 0.9 * v - 0.1 * g for p, v, g in zip(before, velocity, grads(*data), strict=True)]
    train(*data)
    for p, w in zip(net.values(), wanted, strict=True):
        np.testing.assert_allclose(p, w, rtol=1e-10, atol=1e-12)


def test_values_are_one_on_the_node(group2: synk.Group) -> None:
    """All members' values are the same memory, and the user's set_value reaches it."""
    net, train, data = trained()
    arena = group2.arena
    for p in (*net.params, *train.state):
        assert arena.holds(p.get_value(borrow=True))
    net.params[0].set_value(np.full((5, 7), 0.25))
    net.params[4].set_value(1.5)
    other = synk.function([net.x], (net.x @ net.params[0]).sum(), mode=FAST)
    np.testing.assert_allclose(other(data[0]), (data[0] @ np.full((5, 7), 0.25)).sum())
    one = group2.member.communicator.nodes == 1  # other nodes get it as any value that is set
    assert arena.holds(net.params[0].get_value(borrow=True)) == one
    continues(net, train, data)
    assert (synk.get_value(1, net.params[4]) == net.params[4].get_value()).all()


@pytest.mark.parametrize("how", ["update", "sum", "broadcast", "avg"])
def test_leaving_and_joining_again(
    group2: synk.Group, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What gives every member a value of its own; the next step joins equal ones."""
    net, train, data = trained()
    w, b = net.params[0], net.params[1]
    caplog.set_level("INFO", "synkhronos")
    if how == "update":
        synk.function([], updates=[(b, b * 2)], mode=FAST)()
    elif how == "sum":
        synk.all_reduce([w, b], "sum")
    elif how == "broadcast":
        synk.broadcast(b, np.arange(7.0))
    else:
        before = w.get_value()
        synk.all_reduce([w, b], "avg")
        np.testing.assert_array_equal(w.get_value(), before)
    assert ("its own value" in caplog.text) == (how != "avg")
    np.testing.assert_array_equal(synk.get_value(1, b), b.get_value())
    continues(net, train, data)
    assert group2.arena.holds(b.get_value(borrow=True))
    np.testing.assert_array_equal(synk.get_value(1, b), b.get_value())


@pytest.mark.each_choice
@pytest.mark.parametrize("how", ["set_value", "set_value in the master", "scatter"])
def test_unequal_values_are_refused(group: synk.Group, how: str) -> None:
    net, train, data = trained()
    b = net.params[1]
    if group.size == 1:
        return
    if how.startswith("set_value"):
        synk.set_value(0 if "master" in how else group.size - 1, b, np.zeros(7))
    else:
        synk.scatter(b, np.arange(7.0 * group.size))
    before = [synk.get_value(r, b) for r in range(group.size)]
    with pytest.raises(synk.InputError, match=r"b0.*broadcast"):
        train(*data)
    for r, value in enumerate(before):  # the refusal has changed nothing
        np.testing.assert_array_equal(synk.get_value(r, b), value)
    synk.broadcast(b, np.linspace(0, 1, 7))
    continues(net, train, data)


def test_equal_values_are_joined(group2: synk.Group) -> None:
    """Set in one member to what all have: compared, found equal."""
    net, train, data = trained()
    synk.set_value(1, net.params[1], net.params[1].get_value())
    continues(net, train, data)


@pytest.mark.parametrize("rank", [0, 1])
def test_values_outlive_the_training_function(group2: synk.Group, rank: int) -> None:
    """Where one member has left the array that all had, its memory is still the other's value."""
    w, x = pytensor.shared(np.ones(3), "w"), pt.dmatrix("x")
    train = make_train_function((x @ w).mean(), [w], x, None, updates.sgd, 0.5, mode="FAST_COMPILE")
    train(np.ones((4, 3)))
    if rank == 0:
        synk.reduce(w, "sum", in_place=True)
    else:
        synk.set_value(1, w, np.full(3, 2.0))
    del train
    gc.collect()
    total = synk.function([x], x.sum(), mode="FAST_COMPILE")
    assert total(np.ones((4, 3))) == 12  # before it the members forget what was dropped
    others = [synk.data(np.full(3, 7.0)) for _ in range(20)]
    wanted = [np.ones(3), np.full(3, 0.5)] if rank == 0 else [np.full(3, 0.5), np.full(3, 2.0)]
    for r in range(2):
        np.testing.assert_array_equal(synk.get_value(r, w), wanted[r])
    assert len(others) == 20


def test_failure_before_the_update_changes_nothing(group2: synk.Group) -> None:
    net, train, data = trained()
    before = net.values()
    with pytest.raises((synk.WorkerError, IndexError)):
        train(data[0], np.array([0] * 11 + [99]))  # a label out of range, in the last member
    for a, b in zip(net.values(), before, strict=True):
        np.testing.assert_array_equal(a, b)
    continues(net, train, data)


@pytest.mark.parametrize("longest", [3, 10_000])
@pytest.mark.parametrize("member", [0, 1])
def test_outputs_that_cannot_be_combined_change_nothing(
    group2: synk.Group, longest: int, member: int
) -> None:
    """Small ones, which the master combines, or of which one is large enough for all members."""
    y, w = pt.lvector("y"), pytensor.shared(np.zeros(2), name="w")
    loss, outputs = ((y - w.sum()) ** 2).mean(), [(pt.bincount(y), "sum")]
    train = make_train_function(
        loss, [w], y, None, updates.momentum, 0.1, outputs=outputs, mode=FAST
    )
    _, counts = train(np.array([0, 1, 1, 1]))
    np.testing.assert_array_equal(counts, [1, 3])
    values = [v.get_value() for v in (w, *train.state)]
    labels = np.array([0, 1, 1, 1])
    labels[2 * member + 1] = longest
    with pytest.raises(synk.InputError, match="the parts' values have shapes"):
        train(labels)
    for variable, value in zip((w, *train.state), values, strict=True):
        np.testing.assert_array_equal(variable.get_value(), value)
    train(np.array([0, 1, 1, 1]))


def test_failure_in_the_update_leaves_state_torn(
    group2: synk.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every use raises StateTorn until values are set."""
    net, train, data = trained()
    update = group2.member.installed.of(FlatUpdate, train._planned.number)

    def fails(*args: Any) -> None:
        raise MemoryError("in the middle")

    monkeypatch.setattr(update, "apply", fails)
    with pytest.raises(MemoryError):
        train(*data)
    monkeypatch.undo()
    f = synk.function([net.x], (net.x @ net.params[0]).sum(), mode=FAST)
    for use in (lambda: train(*data), lambda: f(data[0]), lambda: synk.all_reduce(net.params[0])):
        with pytest.raises(synk.StateTorn):
            use()
    fresh = Net()
    for p, q in zip(net.params, fresh.params, strict=True):
        p.set_value(q.get_value())
    with pytest.raises(synk.StateTorn):  # the velocities are torn still
        train(*data)
    for v in train.state:
        v.set_value(np.zeros_like(v.get_value()))
    continues(net, train, data)
    assert f(data[0]) == pytest.approx((data[0] @ net.params[0].get_value()).sum())


def test_ctrl_c_waits_for_the_end_of_an_update(
    group: synk.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It arrives while the master writes: the step is whole in all members before it is heard."""
    net, train, data = trained()
    other, twin, _ = trained(4)
    update = group.member.installed.of(FlatUpdate, train._planned.number)
    write = update.apply

    def interrupted(*args: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        write(*args)

    monkeypatch.setattr(update, "apply", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(*data)
    monkeypatch.undo()
    for p, q in zip([*net.params, *train.state], [*other.params, *twin.state], strict=True):
        np.testing.assert_array_equal(p.get_value(), q.get_value())
    continues(net, train, data)


def test_a_death_in_the_update_leaves_state_torn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's chunk is as before, the master's is not: nobody may go on from such values."""
    master, write = os.getpid(), FlatUpdate.apply

    def dies(update: FlatUpdate, *args: Any) -> None:
        if os.getpid() != master and float(update.leaves[0]) == 0.5:
            os.kill(os.getpid(), signal.SIGKILL)
        write(update, *args)

    monkeypatch.setattr(FlatUpdate, "apply", dies)
    net, rate = Net(), pytensor.shared(0.1, name="rate")
    with synk.Group(2, start="fork"):
        train = make_train_function(
            net.loss, net.params, net.x, net.y, updates.sgd, rate, mode=FAST
        )
        data = net.data(12)
        train(*data)
        rate.set_value(0.5)
        with pytest.raises(synk.WorkerDied, match="rank 1"):
            train(*data)
    with synk.Group(2):
        f = synk.function([net.x], (net.x @ net.params[0]).sum(), mode=FAST)
        with pytest.raises(synk.StateTorn, match="w0"):
            f(data[0])
        net.params[0].set_value(np.ones((5, 7)))
        assert f(data[0]) == pytest.approx(7 * data[0].sum())


def test_values_outlive_the_group() -> None:
    synk.fork(2)
    net, train, data = trained()
    values = net.values()
    synk.close()
    for p, v in zip(net.params, values, strict=True):
        np.testing.assert_array_equal(p.get_value(), v)
    with pytest.raises(synk.GroupClosed):
        train(*data)
    synk.fork(3)
    again = make_train_function(net.loss, net.params, net.x, net.y, updates.sgd, 0.1, mode=FAST)
    again(*data)
    assert not np.array_equal(net.params[0].get_value(), values[0])


def test_two_training_functions(group2: synk.Group) -> None:
    """Another rule for the same parameters takes over, and back."""
    net, first, data = trained()
    second = make_train_function(net.loss, net.params, net.x, net.y, updates.sgd, 0.05, mode=FAST)
    second(*data)
    continues(net, first, data)
    second(*data)
    continues(net, first, data)


def test_dropout_is_reproducible(group2: synk.Group) -> None:
    """Two runs of one size are bit-identical; a mask for each row needs no warning."""
    found = []
    for _ in range(2):
        net = Net()
        rng = pytensor.shared(np.random.default_rng(3), name="rng")
        following, mask = pt.random.bernoulli(0.5, size=net.x.shape, rng=rng, return_next_rng=True)
        w = net.params[0]
        loss = (((net.x * mask) @ w) ** 2).mean()
        train = make_train_function(
            loss, [w], net.x, None, updates.adam, updates=[(rng, following)], mode=FAST
        )
        x, _ = net.data(30)
        found.append([float(train(x)) for _ in range(5)])
        assert train.streams == [rng]
    assert found[0] == found[1]
    assert len(set(found[0])) == 5


def test_errors(group2: synk.Group) -> None:
    net = Net()
    make = functools.partial(make_train_function, net.loss, net.params, net.x, net.y)
    with pytest.raises(synk.InputTypeError, match="no update rule"):
        make()
    with pytest.raises(synk.InputError, match="bcast_inputs"):
        make(updates.sgd, pt.dscalar("rate"))
    with pytest.raises(synk.InputError, match="neither by an output"):
        make(updates.sgd, 0.1, bcast_inputs=[pt.dscalar("unused")])
    rng = pytensor.shared(np.random.default_rng(0))

    def noisy(grads: Any, params: Any) -> list[tuple[Any, Any]]:
        _, noise = pt.random.normal(rng=rng, return_next_rng=True)
        return [(p, p - g + noise) for p, g in zip(params, grads, strict=True)]

    with pytest.raises(synk.InputError, match="random numbers"):
        make(noisy)


@pytest.mark.filterwarnings("ignore:Setting default_update is deprecated")
def test_default_updates_of_what_only_the_rule_reads(group: synk.Group) -> None:
    """A rate that halves itself; as in plain PyTensor, a step uses the value before."""
    x, found = pt.dvector("x"), []
    for make in (make_train_function, make_train_function_pytensor):
        w, rate = pytensor.shared(np.zeros(()), name="w"), pytensor.shared(1.0, name="rate")
        rate.default_update = rate * 0.5
        train = make(((w - x) ** 2).mean(), [w], x, None, updates.sgd, 0.25 * rate, mode=FAST)
        for _ in range(3):
            train(np.full(5, 8.0))
        assert rate.get_value() == 0.125
        found.append(w.get_value())
    assert found[0] == found[1] == 5.375


def test_the_rate_by_its_name_of_2017(group2: synk.Group) -> None:
    """As the rules themselves take it; a rule of the user's may have an own `lr`."""
    net = Net()

    def own(grads: Any, params: Any, lr: float) -> list[tuple[Any, Any]]:
        return [(p, p - lr * g) for p, g in zip(params, grads, strict=True)]

    for rule in (updates.sgd, functools.partial(updates.sgd), own):
        make_train_function(net.loss, net.params, net.x, net.y, rule, lr=0.1, mode=FAST)


def test_without_a_group() -> None:
    net = Net()
    with pytest.raises(synk.NotForked):
        make_train_function(net.loss, net.params, net.x, net.y, updates.sgd, 0.1)


def test_wrong_shapes(group2: synk.Group) -> None:
    net, train, data = trained()
    net.params[1].set_value(np.zeros(8))
    with pytest.raises(synk.InputError, match=r"b0 was set to shape \(8,\)"):
        train(*data)
    net.params[1].set_value(np.zeros(7))
    continues(net, train, data)


def test_unproved_losses_warn(group2: synk.Group) -> None:
    net = Net()
    with pytest.warns(synk.ReductionWarning, match="reduction="):
        train = make_train_function(
            net.error.std(), net.params, net.x, net.y, updates.sgd, 0.1, mode=FAST
        )
    train(*net.data(10))


def test_reductions_by_name(group2: synk.Group) -> None:
    """As elsewhere "mean" is "avg"; another word does not become a sum."""
    net = Net()
    arguments = net.loss, net.params, net.x, net.y, updates.sgd, 0.1
    found = [
        make_train_function(*arguments, reduction=word, mode=FAST).gradients(*net.data(5))
        for word in ("avg", "mean")
    ]
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)
    for wrong in ("max", "gather", "total", "average"):
        with pytest.raises(synk.InputError, match="reduction"):
            make_train_function(*arguments, reduction=wrong, mode=FAST)


@pytest.mark.parametrize("name", ["outputs", "bcast_inputs"])
def test_what_is_no_list(group2: synk.Group, name: str) -> None:
    net = Net()
    given: Any = {name: net.x.mean()}
    for make in (make_train_function, make_train_function_pytensor):
        with pytest.raises(synk.InputTypeError, match=f"{name}=.*a list"):
            make(net.loss, net.params, net.x, net.y, updates.sgd, 0.1, **given)
        for clip in (lambda grads: grads[0], lambda grads: None, lambda grads: grads[1:]):
            with pytest.raises(synk.InputError, match="clip must return a list"):
                make(net.loss, net.params, net.x, net.y, updates.sgd, 0.1, clip=clip)


def test_seconds(group2: synk.Group) -> None:
    """S95: where the time goes, for each member."""
    _, train, data = trained()
    before = train.seconds()
    train(*data)
    after = train.seconds()
    assert set(after) == {"scatter", "compute", "copy", "wait", "reduce", "update"}
    assert all(len(v) == 2 for v in after.values())
    assert all(after["compute"][r] > before["compute"][r] for r in range(2))


def test_report(group: synk.Group) -> None:
    """The steps since the previous report, without the one that compiles."""
    net = Net()
    train = make_train_function(net.loss, net.params, net.x, net.y, updates.adam, 0.1, mode=FAST)
    data = net.data(10)
    with pytest.raises(synk.InputError, match=r"no call .* has been measured\. Make"):
        train.report()
    train(*data)
    with pytest.raises(synk.InputError, match="Make at least two steps"):
        train.report()
    for _ in range(3):
        train(*data)
    found = train.report()
    assert (found.calls, found.rows, found.size) == (3, 10, group.size)
    assert all(t > 0 for p in ("compute", "update", "between") for t in found.seconds[p])
    time.sleep(0.3)  # neither a step's time, nor between steps
    train(*data, batch=[1, 3, 5, 7])
    later = train.report()
    assert (later.calls, later.rows, later.seconds["between"]) == (1, 4, (0.0,) * group.size)


def test_a_report_after_the_end() -> None:
    with synk.Group(2):
        net = Net()
        train = make_train_function(
            net.loss, net.params, net.x, net.y, updates.adam, 0.1, mode=FAST
        )
        for _ in range(3):
            train(*net.data(10))
    assert train.report().rows == 10


@pytest.mark.filterwarnings("ignore::synkhronos.ReductionWarning")
def test_a_mean_of_rows_inside_of_the_loss(group2: synk.Group) -> None:
    """The gradient is averaged where the part of the loss that rows enter is a vector, too."""
    x = pt.vector("x", dtype="float64")
    w = pytensor.shared(np.zeros(3), name="w")
    loss = ((w - x.mean()) ** 2).sum()
    train = make_train_function(loss, [w], x, None, updates.sgd, 0.5, mode=FAST)
    train(np.arange(4.0))
    np.testing.assert_allclose(w.get_value(), 1.5)


def _held(loss: Any, params: Any, rate: float) -> dict[Any, Any]:
    """Adam whose values stay where the gradient is large: a switch around each."""
    made = updates.adam.rule(loss, params, learning_rate=rate)
    [gradient] = [pytensor.grad(loss, p) for p in params] if not isinstance(loss, list) else loss
    keep = pt.gt(pt.sum(pt.gt(abs(gradient), 1e9)), 0)
    return {v: pt.switch(keep, v, new) for v, new in made.items()}


@pytest.mark.slow
@pytest.mark.parametrize("placed", [True, False])
@pytest.mark.parametrize("mode", [Mode("py", "fast_run"), *thorough("NUMBA")], ids=["py", "numba"])
def test_values_in_the_memory_of_another(
    group2: synk.Group, monkeypatch: pytest.MonkeyPatch, mode: Any, placed: bool
) -> None:
    """PyTensor may put the new value of one state into the memory of another, in Python as well."""
    if not placed:
        monkeypatch.setattr(update, "_in_place", lambda mode, places: mode)
    x = pt.dmatrix("x")
    rows = np.random.default_rng(0).normal(size=(8, 3))
    found = []
    for make, chosen in ((make_train_function, mode), (make_train_function_pytensor, FAST)):
        w = pytensor.shared(np.ones(3), name="w")
        train = make(pt.sqr(x @ w - 1).mean(), [w], x, None, _held, 0.1, mode=chosen)
        found.append([*(float(train(rows)) for _ in range(3)), *w.get_value()])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-12)
