"""Training on GPUs: what is trained stays in each member. The path is forced, see `start`."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from gpu_commands import DiesInUpdate, Traffic
from selection import thorough
from training_cases import LOSSES, RULES, Net, compare, loss_of

import synkhronos as synk
from synkhronos._backends import jax as jax_backend
from synkhronos.extensions import TopK, make_train_function, updates
from synkhronos.extensions._step.fused import Fused
from synkhronos.extensions._step.resident import Resident
from synkhronos.extensions.checkpoints import Checkpoints

pytestmark = [
    pytest.mark.together,
    # not imported here: groups of other tests are forked from this process
    pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed"),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Skipping Assert:UserWarning"),
]
Start = Callable[..., synk.Group]


@pytest.fixture(
    params=(
        *thorough(1),
        2,
        *thorough(3),
    ),
    ids=lambda n: f"size{n}",
)
def gpus(request: pytest.FixtureRequest, gpu_pair: synk.Group, start: Start) -> synk.Group:
    """A group of each size."""
    return gpu_pair if request.param == 2 else start(request.param)


@pytest.mark.parametrize("rule", ["adam", *thorough("sgd", "nadam")])
def test_rules_equal_serial(gpus: synk.Group, rule: str) -> None:
    function, arguments = RULES[rule]
    compare(lambda net: {"rule": function, "mode": "JAX", **arguments})


def test_a_sparse_exchange_is_refused(gpu_pair: synk.Group) -> None:
    """Residuals lie in the host's memory, and gradients never get there."""
    net = Net()
    with pytest.raises(synk.InputError, match=r"TopK\(density=0.1\): members compute on GPUs"):
        make_train_function(
            *(net.loss, net.params, net.x, net.y, updates.sgd, 0.1),
            exchange=TopK(0.1),
            mode="JAX",
        )


@pytest.mark.thorough  # on cores: test_train.py
def test_odd_batches_and_slices(gpu_pair: synk.Group) -> None:
    """Fewer rows than members, micro-batches, listed rows."""
    how = {"rule": updates.momentum, "learning_rate": 0.1, "mode": "JAX"}
    for rows, slices in ((1, 1), (23, 3)):
        compare(lambda net: dict(how), rows=rows, num_slices=slices, steps=4)
    compare(lambda net: dict(how), batch=[3, 1, 4, 1, 5, 9, 2, 6], steps=4)


@pytest.mark.thorough  # on cores: test_train.py
@pytest.mark.parametrize(
    "kind",
    ["masked mean", *thorough(*(k for k in LOSSES if k != "masked mean"))],
)
def test_losses_are_exact(gpu_pair: synk.Group, kind: str) -> None:
    compare(
        lambda net: {
            "loss": loss_of(net, kind),
            "rule": updates.adam,
            "learning_rate": 0.01,
            "mode": "JAX",
        },
        steps=4,
    )


@pytest.mark.thorough  # on cores: test_train.py
def test_gradients_without_a_step(gpu_pair: synk.Group) -> None:
    net, train, data = trained(None)
    before = net.values()
    wanted = pytensor.function(
        [net.x, net.y], pytensor.grad(net.loss, net.params), mode="FAST_COMPILE"
    )(*data)
    for a, b in zip(train.gradients(*data), wanted, strict=True):
        np.testing.assert_allclose(a, b, 1e-9, 1e-12)
    for a, b in zip(net.values(), before, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.thorough
def test_clipping_by_the_norm(gpu_pair: synk.Group) -> None:
    """A total over all parameters, which every member computes of the same sum."""

    def make(net: Net) -> dict[str, Any]:
        return {
            "rule": updates.momentum,
            "learning_rate": 0.5,
            "clip": lambda grads: updates.total_norm_constraint(grads, 0.05),
            "mode": "JAX",
        }

    compare(make, steps=5, dtype="float32", tolerance=1e-4)


def trained(group: synk.Group, steps: int = 3, **how: Any) -> tuple[Net, Any, tuple[Any, ...]]:
    net = Net()
    rule = {"learning_rate": 0.1, "mode": "JAX"} | how
    train = make_train_function(net.loss, net.params, net.x, net.y, updates.momentum, **rule)
    data = net.data(12)
    for _ in range(steps):
        train(*data)
    return net, train, data


def test_one_exchange_and_one_copy(gpu_pair: synk.Group) -> None:
    """A step sums one flat vector; it overwrites what it updates; nothing goes through the host."""
    net, train, data = trained(gpu_pair)
    gpu_pair.run(Traffic())
    before = [v.container.storage[0] for v in [*net.params, *train.state]]
    train(*data)
    assert all(value.is_deleted() for value in before)
    size = sum(np.size(v) for v in net.values())
    for counts, staged in gpu_pair.run(Traffic()):
        assert counts == [size]
        assert staged == 0
    found = [v.container.storage[0] for v in [*net.params, *train.state]]
    assert all(jax_backend.is_held(value) for value in found)
    assert train.seconds()["reduce"][1] > 0


def test_dtypes_are_summed_apart(gpu_pair: synk.Group) -> None:
    """float16 is summed in float32, as everywhere; each parameter keeps its dtype."""
    x = pt.matrix("x", dtype="float32")
    kinds = ("float16", "float32", "float64")
    params = [pytensor.shared(np.ones(3, k), name=k) for k in kinds]
    loss = sum(((x * p.astype("float32")) ** 2).sum() for p in params)
    train = make_train_function(loss, params, x, None, updates.sgd, 0.01, mode="JAX")
    rows = np.linspace(-1, 1, 15, dtype="float32").reshape(5, 3)
    train(rows)
    gpu_pair.run(Traffic())
    train(rows)
    assert [counts for counts, _ in gpu_pair.run(Traffic())] == [[3, 3, 3]] * 2
    w = np.ones(3)
    for _ in range(2):
        w = w - 0.01 * 2 * w * (rows.astype(float) ** 2).sum(axis=0)
    for p, tolerance in zip(params, (2e-3, 1e-6, 1e-6), strict=True):
        assert p.get_value().dtype == p.name
        np.testing.assert_allclose(p.get_value(), w, tolerance)


def test_values_are_the_masters_to_set(gpus: synk.Group, tmp_path: Path) -> None:
    """set_value, other functions, collectives and checkpoints see one value, and may change it."""
    net, train, data = trained(gpus)
    other, twin, _ = trained(gpus)
    f = synk.function([net.x], (net.x @ net.params[0]).sum(), mode="JAX")
    w0 = net.params[0]
    assert f(data[0]) == pytest.approx((data[0] @ w0.get_value()).sum())
    for n in (net, other):
        n.params[0].set_value(np.full((5, 7), 0.25))
    synk.all_reduce(w0)
    saved = Checkpoints(tmp_path, train)
    train(*data)
    saved.save(1)
    wanted = net.values()
    train(*data)
    saved.restore()
    for a, b in zip(net.values(), wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    train(*data)
    twin(*data)
    twin(*data)
    for p, q in zip(net.params, other.params, strict=True):
        np.testing.assert_array_equal(p.get_value(), q.get_value())
        for rank in range(gpus.size):
            np.testing.assert_array_equal(synk.get_value(rank, p), p.get_value())
    plain = pytensor.function([net.x], net.x @ w0, mode="FAST_COMPILE")
    np.testing.assert_allclose(plain(data[0]), data[0] @ w0.get_value())


@pytest.mark.thorough  # of two modes: test_functions_of_two_modes
def test_two_training_functions(gpus: synk.Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same parameters, in turn: the array that one leaves is the other's to overwrite."""
    found = []
    for mode in ("JAX", "FAST_COMPILE"):
        net = Net()
        how = {"learning_rate": 0.1, "mode": mode}
        trains = [
            make_train_function(net.loss, net.params, net.x, net.y, rule, **how)
            for rule in (updates.sgd, updates.momentum)
        ]
        data = net.data(12)
        for train in trains:
            train(*data)
        with monkeypatch.context() as patch:
            patch.setattr(jax_backend, "held", None)  # nothing is copied any more
            for train in (*trains, *trains):
                train(*data)
        found.append(net.values())
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, 1e-9)


def test_functions_of_two_modes(gpu_pair: synk.Group) -> None:
    """One has the parameters in the host's memory, the other on each GPU: in turn, one value."""
    net, twin = Net(), Net()

    def made(net: Net, mode: str) -> Any:
        return make_train_function(
            *(net.loss, net.params, net.x, net.y, updates.momentum, 0.1), mode=mode
        )

    host, device, serial = made(net, "FAST_COMPILE"), made(net, "JAX"), made(twin, "FAST_COMPILE")
    data, other = net.data(12), made(twin, "FAST_COMPILE")
    for on_device in (0, 1, 0, 0, 1, 1, 0, 1):
        (device if on_device else host)(*data)
        (other if on_device else serial)(*data)
    for n in (net, twin):
        n.params[0].set_value(np.full((5, 7), 0.25))
    device(*data)
    other(*data)
    for p, q in zip(net.params, twin.params, strict=True):
        for rank in range(2):
            np.testing.assert_allclose(synk.get_value(rank, p), q.get_value(), 1e-9)


def test_unequal_values_are_refused(gpu_pair: synk.Group) -> None:
    net, train, data = trained(None)
    synk.set_value(1, net.params[1], np.ones(7))
    with pytest.raises(synk.InputError, match=r"b0.*\[1\]"):
        train(*data)
    synk.set_value(1, net.params[1], net.params[1].get_value())
    train(*data)


def test_failures(gpu_pair: synk.Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the update nothing changes; in it, what was overwritten is torn until it is set."""
    net, train, data = trained(gpu_pair)
    before = net.values()
    with pytest.raises(synk.InputError):
        train(data[0], data[1][:5])
    for a, b in zip(net.values(), before, strict=True):
        np.testing.assert_array_equal(a, b)
    update = train._planned.kept

    def fails(*args: Any) -> None:
        raise MemoryError("in the middle")

    with monkeypatch.context() as patch:
        patch.setattr(update, "apply", fails)
        with pytest.raises(MemoryError):
            train(*data)
    with pytest.raises(synk.StateTorn):
        train(*data)
    for v in [*net.params, *train.state]:
        v.set_value(np.zeros(v.get_value(borrow=True).shape))
    train(*data)


def test_ctrl_c_waits_for_the_end_of_an_update(
    gpu_pair: synk.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, train, data = trained(gpu_pair)
    other, _, _ = trained(gpu_pair, 4)
    write = Resident.apply

    def interrupted(update: Resident, *args: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        write(update, *args)

    monkeypatch.setattr(Resident, "apply", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(*data)
    monkeypatch.undo()
    for p, q in zip(net.params, other.params, strict=True):
        np.testing.assert_array_equal(p.get_value(), q.get_value())


@pytest.mark.thorough  # on cores: test_train.py
@pytest.mark.parametrize("members", [1, *thorough(2)])  # the values are the master's
def test_values_outlive_the_group(start: Start, members: int) -> None:
    group = start(members)
    net, train, data = trained(group)
    wanted = net.values()
    group.close()
    for a, b in zip(net.values(), wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(synk.GroupClosed):
        train(*data)


@pytest.mark.thorough
def test_where_nccl_is_missing(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Gradients go through the host's memory, all else is as before."""
    monkeypatch.setenv("STANDIN_NCCL_FAILS", "1")
    start(2)
    with caplog.at_level(logging.WARNING):
        compare(lambda net: {"rule": updates.adam, "learning_rate": 0.01, "mode": "JAX"}, steps=4)
    assert len([r for r in caplog.records if "NCCL cannot serve" in r.getMessage()]) == 1


def test_other_modes_stay_on_the_cores(gpu_pair: synk.Group) -> None:
    """A training function of mode NUMBA or FAST_COMPILE keeps its flat vectors in shared memory."""
    compare(lambda net: {"rule": updates.adam, "learning_rate": 0.01}, steps=3)


@pytest.mark.filterwarnings("ignore::synkhronos.LocalUpdateWarning")
@pytest.mark.parametrize("kind", [*thorough("mean + L2"), "masked mean"])
def test_one_program_for_a_group_of_one(start: Start, kind: str) -> None:
    """Gradients and update are one; other lengths, shared scalars and 0-d inputs of the rule."""
    start(1)
    rate, found = pytensor.shared(0.1, name="rate"), []
    for mode in ("JAX", "FAST_COMPILE"):  # there the update is computed on the host
        net, beta = Net(), pt.dscalar("beta")
        mean, count = pytensor.shared(np.zeros(5), name="mean"), pytensor.shared(0, name="count")
        changes = [(mean, 0.9 * mean + net.x.mean(axis=0), "avg", "all")]
        changes.append((count, count + net.x.shape[0]))
        train = make_train_function(
            loss_of(net, kind),
            net.params,
            net.x,
            net.y,
            updates.momentum,
            rate,
            beta,
            outputs=[net.hits.sum()],
            bcast_inputs=[beta],
            updates=changes,
            mode=mode,
        )
        values = []
        for n, rows in enumerate((12, 12, 5, 7, 12, 5)):
            rate.set_value(0.1 / (1 + n))
            x, y = net.data(rows)
            values += train(x, y, 0.5 + 0.1 * n)
            if n == 3:
                mean.set_value(mean.get_value() + 1)
        kept = [v.get_value() for v in (mean, count, *train.state)]
        assert kept[1] == 12 + 12 + 5 + 7 + 12 + 5
        found.append([*values, *net.values(), *kept])
        is_one = mode == "JAX"
        assert bool(getattr(train._planned.kept, "fused", None)) == is_one
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, 1e-9)


@pytest.mark.parametrize("gpus", [1, *thorough(2, 3)], indirect=True)
def test_a_variable_that_is_read_changes_its_shape(gpus: synk.Group) -> None:
    """The step is compiled for it, and what it was compiled for before is not compiled again."""
    x, w = pt.dvector("x"), pytensor.shared(np.array(2.0), name="w")
    read = pytensor.shared(np.ones(3), name="read")
    loss = ((x * w) ** 2).mean() + (read * w).sum()
    train = make_train_function(loss, [w], x, None, updates.sgd, 0.01, mode="JAX")
    rows, wanted = np.arange(4.0), 2.0
    for length in (3, 5, 3):
        read.set_value(np.ones(length))
        train(rows)
        wanted -= 0.01 * (2 * wanted * (rows**2).mean() + length)
        assert w.get_value() == pytest.approx(wanted)
    if gpus.size == 1:
        assert len(train._planned.kept.fused._program._made) == 2


def test_failures_in_a_group_of_one(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """What JAX has not begun to overwrite is not torn, and need not be copied; what it has, is."""
    net, train, data = trained(start(1))
    before, run = net.values(), Fused.__call__

    def refuses(*args: Any) -> None:
        raise TypeError("before it begins")

    def breaks(*args: Any) -> None:
        run(*args)
        raise MemoryError("when it has begun")

    monkeypatch.setattr(Fused, "__call__", refuses)
    with pytest.raises(TypeError, match="before it begins"):
        train(*data)
    for a, b in zip(net.values(), before, strict=True):
        np.testing.assert_array_equal(a, b)
    monkeypatch.setattr(Fused, "__call__", run)
    with monkeypatch.context() as patch:
        patch.setattr(jax_backend, "held", None)  # nothing is copied
        train(*data)
    monkeypatch.setattr(Fused, "__call__", breaks)
    with pytest.raises(MemoryError, match="when it has begun"):
        train(*data)
    with pytest.raises(synk.StateTorn):
        train(*data)


def test_a_loss_that_draws(start: Start) -> None:
    """Random streams go on, in a group of one as well, which is then no one program."""
    start(1)
    rng = pytensor.shared(np.random.default_rng(3), name="rng")
    x, w = pt.vector("x"), pytensor.shared(np.zeros(()), name="w")
    after, draw = pt.random.normal(0, 1, size=x.shape, rng=rng, return_next_rng=True)
    loss = ((w - x - draw) ** 2).mean()
    how = {"updates": [(rng, after)], "mode": "JAX"}
    train = make_train_function(loss, [w], x, None, updates.sgd, 0.5, **how)
    losses = {float(train(np.ones(4))) for _ in range(3)}
    assert len(losses) == 3
    assert train._planned.kept.fused is None


@pytest.mark.thorough
def test_a_restart(start: Start) -> None:
    """The master has all that new workers need; the step is made again."""
    group = start(2, max_restarts=1)
    net, train, data = trained(group)
    other, twin, _ = trained(group)
    os.kill(group.channel.pid(1), signal.SIGKILL)
    train(*data)
    assert group.restarts == 1
    twin(*data)
    for p, q in zip(net.params, other.params, strict=True):
        np.testing.assert_array_equal(p.get_value(), q.get_value())
        np.testing.assert_array_equal(synk.get_value(1, p), p.get_value())


@pytest.mark.thorough  # on cores: test_train.py
def test_a_death_in_the_update(start: Start) -> None:
    """The master's values are overwritten, the other's are not: nobody may go on from such."""
    group = start(2)
    net, train, data = trained(group)
    group.run(DiesInUpdate())
    with pytest.raises(synk.WorkerDied, match="rank 1"):
        train(*data)
    start(1)
    f = synk.function([net.x], (net.x @ net.params[0]).sum(), mode="JAX")
    with pytest.raises(synk.StateTorn, match="w0"):
        f(data[0])
    net.params[0].set_value(np.ones((5, 7)))
    assert f(data[0]) == pytest.approx(7 * data[0].sum())
