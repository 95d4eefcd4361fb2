"""Runs as configs describe them: networks, optimizers, rules, rows and metrics by their names."""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from configs import place as place

import synkhronos as synk
from synkhronos import rules
from synkhronos.extensions import Batches, HalfPrecision, Loader, TopK, updates
from synkhronos.training import (
    Net,
    Trainer,
    config,
    configured,
    fit,
    read_metrics,
    sources,
)
from synkhronos.training._from_config import optimizer as optimizers
from synkhronos.training._from_config import rows as stored
from synkhronos.training._from_config import rules as named


def trained(place: Path, *values: str, **options: Any) -> Trainer:
    return configured.train(config.read(place / "config.toml", values), **options)


def test_a_config_trains_as_fit_does(place: Path) -> None:
    run = trained(place, "metrics=['r2']", members=2)  # beside those of the network
    assert run.history.columns[-3:] == ["val_loss", "val_far", "val_r2"]
    assert synk.current_group() is None
    [w] = run.train.params
    sys.path.insert(0, str(place))
    import mine

    net = mine.net()
    adam = functools.partial(updates.adam, learning_rate=0.1)
    with synk.Group(2):
        fit(net.loss, net.params, net.inputs, mine.rows(), optimizer=adam, batch=20, epochs=3,
            progress=False)  # fmt: skip
    np.testing.assert_array_equal(w.get_value(), net.params[0].get_value())


def test_two_threads_take_turns(place: Path) -> None:
    """Each has a group of its own, and PyTensor's settings of its config."""
    wanted = trained(place, "epochs=1", members=1).history["loss"]
    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(lambda _: trained(place, "epochs=1", members=1), range(2)))
    assert [run.history["loss"] for run in runs] == [wanted, wanted]


def test_it_uses_the_group_that_is_there(place: Path) -> None:
    synk.fork(1)
    run = trained(place, "epochs=1", "members=3")
    assert run.train.size == 1
    assert synk.current_group() is not None
    with pytest.raises(synk.InputError, match="members=3, and the current group has 1: close it"):
        trained(place, members=3)


def test_all_that_a_config_says_reaches_the_run(place: Path) -> None:
    """The folder with its checkpoints and the config, the best, the plateau, the stops."""
    values = (
        *(
            "folder=runs/a",
            "best={ metric = 'val_far', keep = 2, mode = 'max' }",
            "keep=all",
            "ema=0.9",
        ),
        *(
            "plateau={ patience = 1, factor = 0.5, least = 0.01, mode = 'max' }",
            "optimizer.rate=5.0",
        ),
        *(
            "stop=val_loss",
            "patience=40",
            "target=val_loss <= 1e-9",
            "clip=10.0",
            "guard=none",
            "epochs=6",
        ),
    )
    run = trained(place, *values)
    folder = place / "runs" / "a"
    assert len(list((folder / "ckpt").iterdir())) == 6
    assert len(list((folder / "best").iterdir())) == 2
    [rate] = [v for v in run.train.settings if v.name == "rate"]
    assert 0.01 <= float(rate.get_value()) < 5.0
    lines = read_metrics(folder)
    assert [line["kind"] for line in lines].count("epoch") == 6
    again = trained(place, *values, "epochs=7", resume="auto")
    assert (len(again.history), again.step) == (7, 28)
    with pytest.raises(synk.InputError, match="holds a run that began"):
        trained(place, *values)


def test_rows_for_tests_are_looked_at_before_and_after(place: Path) -> None:
    """With the values that callbacks have restored; a run that goes on has no first step."""
    values = "data.test=mine:others", "folder=runs/a", "best={ metric='val_loss', restore=true }"
    run = trained(place, *values, "epochs=2")
    assert list(run.tested) == ["before", "after"]
    assert run.tested["after"]["loss"] == min(run.history["val_loss"])
    assert run.tested["before"]["loss"] > run.tested["after"]["loss"]
    lines = [line for line in read_metrics(place / "runs" / "a") if line["kind"] == "tested"]
    assert [(line["when"], line["step"]) for line in lines] == [("before", 0), ("after", run.step)]
    assert [line["test_far"] for line in lines] == [t["far"] for t in run.tested.values()]
    again = trained(place, *values, resume="auto")
    assert list(again.tested) == ["after"]
    with pytest.raises(synk.InputError, match=r"data.test: the format of .*a.txt"):
        trained(place, "data.test=a.txt")


def test_each_argument_of_fit_is_a_key() -> None:
    """Or what the network and the keys of the data and the callbacks give."""
    keys = {f.name for f in msgspec.structs.fields(config.Config)}
    of_the_net = {"net", "augment", "updates"}
    others = {"validation", "test", "callbacks", "givens", "name", "config"}
    assert set(inspect.signature(fit).parameters) - keys == of_the_net | others


def test_a_quick_run_writes_nothing(place: Path) -> None:
    before = sorted(place.iterdir())
    run = trained(place, "folder=runs/a", "resume=auto", "torn=restore", "batch=7", quick=True)
    assert run.step == configured.FEW
    assert run.history["rows"] == [21]
    assert "val_loss" in run.history.columns
    assert [p for p in sorted(place.iterdir()) if p.name != "__pycache__"] == before


def test_a_quick_run_compiles_fast(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless Python lacks an operation, or the mode is JAX."""
    assert trained(place, quick=True).train.mode == "FAST_COMPILE"
    assert trained(place, "epochs=1").train.mode is None
    modes: list[Any] = []

    def told(*args: Any, mode: Any, **options: Any) -> Any:
        modes.append(mode)
        if mode == "FAST_COMPILE":
            raise NotImplementedError
        return fit(*args, mode=mode, **options)

    monkeypatch.setattr(configured, "fit", told)
    assert trained(place, quick=True).step == configured.FEW
    assert modes == ["FAST_COMPILE", None]
    monkeypatch.setattr(configured, "runs_jax", lambda mode: True)
    assert trained(place, quick=True).train.mode is None


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (["torn=restore"], '^torn = "restore" needs a folder of checkpoints: give folder$'),
        (["guard=skip", "rule=Average"], '^guard = "skip" is for members'),
        (["verify=1", "rule=Average"], "^verify needs a new run"),
    ],
)
def test_messages_name_keys_as_the_file_does(place: Path, values: list[str], text: str) -> None:
    with pytest.raises(synk.InputError, match=text):
        trained(place, *values)


@pytest.mark.parametrize("key", ["train", "validation"])
def test_rows_of_another_shape(place: Path, key: str) -> None:
    """The message names the key; the network of the test declares no shape."""
    np.save(place / "x.npy", np.zeros((40, 5)))
    np.save(place / "y.npy", np.zeros(40))
    with pytest.raises(synk.InputError, match=rf"^data.{key}: .*x: a vector of 5.*\(3, 1\)"):
        trained(place, f'data.{key}=["x.npy", "y.npy"]')


def test_a_run_is_verified(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = ("epochs=1", "progress=true", "folder=a", "resume=auto")
    trained(place, *values, verify=2)
    assert "verified: 2 steps equal the serial ones" in capsys.readouterr().err
    with pytest.raises(synk.InputError, match=r"verify: .*/a holds a run: verify one that begins"):
        trained(place, *values, verify=2)


# values of the config, and what the message says
WRONG = [
    ("model=mine", "model: found 'mine', give \"module:function\""),
    ("model=yours:net", "model: there is no module 'yours' in "),
    ("model=mine:nets", "model: mine has no function 'nets'; did you mean net?"),
    ("model=mine:nothing", "model: mine:nothing returned 3, which has no loss: return a Net"),
    (
        "model_arguments.column=3",
        "model_arguments.column: net has no such argument; did you mean co",
    ),
    (
        "optimizer=adamm",
        "optimizer.name: there is no 'adamm'; did you mean adam?; there are adadel",
    ),
    (
        "optimizer.beta=3",
        "optimizer.beta: adam has no such argument; did you mean beta2?; there ar",
    ),
    (
        "optimizer.learning_rate=3",
        "optimizer.learning_rate: adam has no such argument; did you mea",
    ),
    ("optimizer=momentum", "optimizer.rate: missing, momentum has no default: give a number"),
    (
        "optimizer.schedule=cosinus",
        "optimizer.schedule: there is no 'cosinus'; did you mean cosine",
    ),
    ("model=.mine:net", "model: found '.mine:net', give \"module:function\""),
    ("optimizer.final=0.1", "optimizer.final: for a schedule only: give schedule, too"),
    ("optimizer.steps=3", "optimizer.steps: for a schedule only: give schedule, too"),
    (
        "optimizer={ name='adam', schedule='cosine' }",
        "optimizer.rate: missing, the schedule cosine",
    ),
    (
        "optimizer={ name='adam', schedule='cosine', rate=0.1, warmup=12 }",
        "optimizer.warmup: 12 of 12 steps leave none",
    ),
    (
        "optimizer={ name='adam', schedule='step', rate=0.1, steps=12, decay_every=3 }",
        "optimizer.steps: the schedule step has no such argument",
    ),
    (
        "optimizer={ name='adam', schedule='step', rate=0.1 }",
        "optimizer.decay_every: missing, step_decay needs it",
    ),
    (
        "optimizer={ name='adam', schedule='cosine', rate=0.1, power=2 }",
        "optimizer.power: adam has no such argument",
    ),
    ("rule=EASG", "rule: there is no rule 'EASG'; did you mean EASGD?; there are EASGD, GEM"),
    (
        "rule={ name='EASGD', alpha=3 }",
        "rule: rules.EASGD: alpha=3: give a number of at least 0 and at most 1",
    ),
    ("rule={ name='EASGD', force=3 }", "rule.force: EASGD has no such argument; there are period"),
    ("rule={ period=3 }", "rule.name: found None, give a name"),
    (
        "rule={ name='Downpour', centre={ name='adam', rate=-1 } }",
        "rule.centre.rate: found -1, give a number of more than 0",
    ),
    ("rule={ name='Downpour', centre={ rate=1 } }", "rule.centre.name: missing, give the name of"),
    (
        "rule={ name='Nodes', inside='EASGD', between='Sawp' }",
        "rule.between: there is no rule 'Saw",
    ),
    ("exchange=Topk", "exchange: there is no exchange 'Topk'; did you mean TopK?; there are TopK"),
    ("exchange=TopK", "exchange.density: missing, TopK needs it"),
    (
        "exchange={ name='TopK', density=2 }",
        "exchange: TopK: density=2: give a number of more",
    ),
    ("exchange={ name='HalfPrecision', bits=8 }", "exchange.bits: HalfPrecision has no such argu"),
    ("rule=EASGD", "member_batch: missing, give an integer of at least 1"),
    ("member_batch=5", "member_batch: members step together: take it out, as by member_batch="),
    ("batch=", "batch: missing, give an integer of at least 1"),
    (
        "metrics=['acc']",
        "metrics[0]: there is no metric 'acc'; did you mean accuracy?; there are f",
    ),
    (
        "metrics=['accuracy']",
        "metrics[0]: accuracy: scores are Vector(float64, shape=(?,)) and lab",
    ),
    ("metrics=[{ name='top_k' }]", "metrics[0].k: missing, top_k needs it"),
    ("data.train=a.txt", "data.train: the format of "),
    ("data.train=a.list", "data.train: the list "),
    ("data.train=[]", "data.train: found [], give a path or a list of paths"),
    ("data.train=known:letters", "data.train: known: 'letters': there are"),
    (
        "data.train=known:digits/tset",
        "data.train: known:digits has no part 'tset'; there are train",
    ),
    (
        "data.train=synthetic:3",
        "data.train: found 'synthetic:3', give synthetic:ROW,classes=N,n=RO",
    ),
    ("data.train=mine:nothing", "data.train: 'mine:nothing' gives 1 arrays, and the network has t"),
    ("data.train=mine:lists", "data.train: 'mine:lists' gives [[1.0, 2.0, 3.0]] for x, which has"),
    ("data.train=mine:rowss", "data.train: mine has no function 'rowss'; did you mean rows?"),
    ("data.train=a.h5", "data.train: hdf5 files hold several arrays: give data.arrays"),
    ("data.train=a.npy", "data.train: npy: "),
    ("data={ train='a.h5', arrays=[['x'], 'y'] }", "data.arrays[0]: found ['x'], give a name"),
    ("resume=auto", "folder: missing, and a run without one cannot be resumed: give a path"),
    ("mode=FASTER", "mode: found 'FASTER', PyTensor has no such mode"),
    (
        "plateau={ patience = 1 }",
        "plateau: the rate follows optimizer.schedule: leave one of them out",
    ),
]


@pytest.mark.parametrize(("value", "message"), WRONG, ids=[value for value, _ in WRONG])
def test_what_is_refused(place: Path, value: str, message: str) -> None:
    """A message begins with the path of the value."""
    schedule = "optimizer={ name='adam', rate=0.1, schedule='cosine' }"
    values = [schedule, value] if value.startswith("plateau") else [value]
    with pytest.raises(synk.SynkhronosError) as raised:
        trained(place, *values, members=1)
    assert str(raised.value).startswith(message)


def test_a_module_of_another_folder(place: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    trained(place, "epochs=1", members=1)
    other = tmp_path_factory.mktemp("other")
    for name in ("mine.py", "config.toml"):
        (other / name).write_text((place / name).read_text())
    with pytest.raises(synk.InputError, match=r"model: 'mine' is .* in this process, not"):
        trained(other, "epochs=1", members=1)


def test_an_import_that_fails_is_the_users(place: Path) -> None:
    (place / "mine.py").write_text("import nonesuch")
    with pytest.raises(ModuleNotFoundError, match="nonesuch"):
        trained(place, members=1)


OWN = """
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

class Twice(Op):
    def make_node(self, x):
        return Apply(self, [x], [x.type()])
    def perform(self, node, inputs, outputs):
        outputs[0][0] = 2 * inputs[0]
    def pullback(self, inputs, outputs, cotangents):
        return [2 * cotangents[0]]

def twice():
    x, y = pt.matrix("x", dtype="float64"), pt.vector("y", dtype="float64")
    w = pytensor.shared(np.zeros(3), name="w")
    return Net(loss=((Twice()(x @ w) - y) ** 2).mean(), params=[w], inputs=[x, y])
"""


def test_members_find_the_modules_of_the_folder(place: Path) -> None:
    """What a graph has of them is named, and not sent."""
    with (place / "mine.py").open("a") as file:
        file.write(OWN)
    values = ("model=mine:twice", "epochs=1", "reduction=avg")
    losses = [trained(place, *values, members=n).history["loss"][0] for n in (2, 1)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-12)


def test_any_object_with_the_attributes_is_a_net(place: Path) -> None:
    """As classes of Theano-MPI were: made by a call, with attributes."""
    (place / "mine.py").write_text(
        (place / "mine.py").read_text()
        + "class Model:\n    metrics = None\n    def __init__(self):\n"
        "        made = net()\n"
        "        self.loss, self.params, self.inputs = made.loss, made.params, made.inputs\n"
    )
    assert trained(place, "model=mine:Model", "epochs=1", members=1).step == 4
    assert Net(loss=1, params=[], inputs=[]).metrics == {}


@pytest.mark.parametrize("name", [*optimizers.OURS, *optimizers.THEIRS, "pytensor_ml.optim:adam"])
def test_optimizers_by_name(place: Path, name: str) -> None:
    pytest.importorskip("pytensor_ml", reason="pytensor-ml is not installed")
    made = optimizer(f"optimizer={{ name = '{name}', rate = 0.1 }}", place)
    w = pytensor.shared(np.ones(3), name="w")
    found = updates.rule_of(made)((w**2).sum(), [w])
    assert not np.allclose(dict(found)[w].eval(), 1.0)


def optimizer(value: str, place: Path, steps: int = 100) -> Any:
    settings = config.optimizer_of(
        config.read(place / "config.toml", [value]).optimizer, "optimizer"
    )
    return optimizers.ConfiguredOptimizer(settings, "optimizer", str(place)).made(steps)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("schedule = 'cosine'", [0.5, 0.25, 0.0]),
        ("schedule = 'cosine', final = 0.1, steps = 200", [0.5, 0.441421356, 0.3]),
        ("schedule = 'linear', warmup = 50", [0.0, 0.5, 0.0]),
        ("schedule = 'constant', warmup = 100", [0.0, 0.25, 0.5]),
        ("schedule = 'step', decay_every = 50, decay_factor = 0.5", [0.5, 0.25, 0.125]),
        ("schedule = 'exponential', final = 0.005", [0.5, 0.05, 0.005]),
        ("schedule = 'polynomial', power = 2.0", [0.5, 0.125, 0.0]),
        ("schedule = 'onecycle', pct_start = 0.5, pct_final = 0.75", [0.02, 0.5, 2e-6]),
    ],
)
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_schedules_by_name(place: Path, name: str, given: str, wanted: list[float]) -> None:
    """The rates of steps 0, 50 and 100: of our rules, and of those of pytensor-ml."""
    pytest.importorskip("pytensor_ml", reason="pytensor-ml is not installed")
    made = optimizer(f"optimizer={{ name = '{name}', rate = 0.5, {given} }}", place)
    w = pytensor.shared(np.float64(1.0), name="w")
    with pytensor.config.change_flags(floatX="float64"):
        found = dict(updates.rule_of(made)([w * 0 + 1.0], [w]))
    [clock] = [v for v in found if v.type.dtype.startswith("int")]
    for step, rate in zip((0, 50, 100), wanted, strict=True):
        clock.set_value(np.asarray(step, clock.type.dtype))
        moved = 1.0 - float(found[w].eval())
        if name == "sgd":
            assert moved == pytest.approx(rate, rel=1e-6, abs=1e-12)
        else:
            assert (moved > 0) == (rate > 1e-9)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (["exchange=HalfPrecision"], HalfPrecision()),
        (["exchange=TopK", "exchange.density=0.5"], TopK(0.5)),
        (["exchange={ name = 'HalfPrecision', stochastic = true }"], HalfPrecision("bf16", True)),
        ([], None),
    ],
)
def test_exchanges_by_name(place: Path, values: list[str], wanted: Any) -> None:
    found = config.read(place / "config.toml", values).exchange
    assert named.exchange_of(found, "exchange") == wanted


def test_the_old_key_of_an_exchange(place: Path) -> None:
    """The key compress means what its warning shows, and is refused beside the new one."""
    made = config.read(place / "config.toml", ["compress=fp16"])
    with pytest.warns(
        synk.DeprecatedWarning, match="is an old spelling: write exchange = "
    ) as told:
        found = configured._exchange(made)
    new = str(told[0].message).rpartition("write exchange = ")[2]
    other = config.read(place / "config.toml", [f"exchange={new}"])
    assert found == configured._exchange(other) == HalfPrecision("fp16")
    both = config.read(place / "config.toml", ["compress=fp16", "exchange=HalfPrecision"])
    with pytest.raises(synk.InputError, match="leave compress out"):
        configured._exchange(both)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("EASGD", rules.EASGD()),
        ("{ name = 'GEM', kappa = 1.0 }", rules.GEM(kappa=1.0)),
        (
            "{ name = 'Nodes', inside = 'Hogwild', between = { name = 'DiLoCo', period = 9 } }",
            rules.Nodes(rules.Hogwild(), rules.DiLoCo(9)),
        ),
    ],
)
def test_rules_by_name(place: Path, value: str, wanted: rules.Rule) -> None:
    found = config.read(place / "config.toml", [f"rule={value}"]).rule
    assert named.training_rule_of(found, "rule", str(place)) == wanted
    centre = {"name": "Downpour", "centre": {"name": "adam", "rate": 0.5}}
    made = named.training_rule_of(centre, "rule", str(place))
    assert str(made) == "Downpour(centre=adam(learning_rate=0.5))"


def test_members_train_apart(place: Path) -> None:
    values = ("rule={ name = 'EASGD', period = 2 }", "member_batch=10", "guard=none")
    with pytest.raises(
        synk.InputError, match=r"batch: with EASGD.* makes steps of its own: take it"
    ):
        trained(place, *values, members=2)
    values = (*values, "batch=", "epochs=1")
    run = trained(place, *values, members=2)
    assert run.history["rows"] == [61]
    with pytest.raises(synk.InputError, match=re.escape("optimizer.steps: missing, members count")):
        trained(place, *values, "optimizer.schedule=cosine", members=2)


DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(40, 3))
Y = X @ [1.0, 2.0, 3.0]


def write_npy(place: Path) -> str:
    np.save(place / "x.npy", X)
    np.save(place / "y.npy", Y)
    return 'data.train=["x.npy", "y.npy"]'


def write_npz(place: Path) -> str:
    np.savez(place / "a.npz", x=X[:25], y=Y[:25])
    np.savez(place / "b.npz", x=X[25:], y=Y[25:])
    return 'data={ train = ["a.npz", "b.npz"], arrays = ["x", "y"], memory = true }'


def write_hdf5(place: Path) -> str:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    for name, part in (("a.h5", slice(25)), ("b.h5", slice(25, None))):
        with h5py.File(place / name, "w") as file:
            file["features"], file["labels"] = X[part], Y[part]
    (place / "rows.list").write_text("# two files\na.h5\nb.h5\n")
    return 'data={ train = "rows.list", arrays = ["features", "labels"] }'


def write_parquet(place: Path) -> str:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    columns = {"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "y": Y}
    parquet.write_table(pa.table(columns), place / "a.parquet")
    return 'data={ train = "a.parquet", arrays = [["a", "b", "c"], "y"] }'


def write_csv(place: Path) -> str:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    for name, part in (("1.csv", slice(25)), ("2.csv", slice(25, None))):
        rows = np.column_stack([X[part], Y[part]]).tolist()
        lines = [";".join(map(repr, row)) for row in rows]
        (place / name).write_text("made by hand\na;b;c;y\n" + "\n".join(lines))
    return (
        'data={ train = ["1.csv", "2.csv"], arrays = [["a:c"], "y"], separator = ";", '
        'skip_lines = 1, cache = "cache" }'
    )


def write_zarr(place: Path) -> str:
    pytest.importorskip("zarr", reason="zarr is not installed")
    from zarr.api import asynchronous

    for name, array in (("x", X), ("y", Y)):
        asyncio.run(asynchronous.array(array, store=str(place / "a.zarr" / name)))
    return 'data={ train = "a.zarr", arrays = ["x", "y"] }'


@pytest.mark.parametrize(
    "write", [write_npy, write_npz, write_hdf5, write_parquet, write_csv, write_zarr]
)
def test_files_of_each_format(place: Path, write: Any) -> None:
    value = write(place)
    values = [value, "shuffle=false", "epochs=1"]
    if not value.startswith("data="):
        values.append("data.validation=mine:others")
    run = trained(place, *values, members=1)
    assert run.history["loss"][0] == pytest.approx(LOSS, rel=1e-9)
    found = config.read(place / "config.toml", values)
    few = configured.train(found, members=1, quick=True)
    assert few.history["rows"] == [40]


def expected_loss() -> float:
    """The loss of the first epoch over X and Y, by numpy."""
    w, m, v, total = np.zeros(3), np.zeros(3), np.zeros(3), 0.0
    for t, part in enumerate((slice(20), slice(20, 40)), 1):
        error = X[part] @ w - Y[part]
        total += float((error**2).sum())
        g = 2 * X[part].T @ error / 20
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        rate = 0.1 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        w = w - rate * m / (np.sqrt(v) + 1e-8)
    return total / 40


LOSS = expected_loss()


def test_rows_take_the_dtype_of_their_input(place: Path) -> None:
    """Of the same kind only: float64 of a file for a float32 network, and not text for numbers."""
    np.savez(place / "a.npz", x=X, y=np.arange(40))
    value = 'data={ train = "a.npz", arrays = ["x", "y"] }'
    x, y, words = (pt.fmatrix("x"), pt.ivector("y"), pt.lvector("words"))
    found = config.read(place / "config.toml", [value])
    rows, numbers = stored.rows_of(found, "train", [x, y])
    assert (rows.dtype, numbers.dtype) == ("float32", "int32")
    assert (rows.shape, len(rows), rows.blocks) == ((40, 3), 40, (40,))
    with rows.reading():
        np.testing.assert_array_equal(rows[[3, 1]], X[[3, 1]].astype("float32"))
    assert stored.rows_of(found, "train", [words, y])[0].dtype == "float64"  # which fit refuses
    few, _ = stored.first((rows, numbers), 7)
    assert (len(few), few.blocks) == (7, (7,))


def test_a_function_may_return_tables_and_data_sets(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of pandas, whose labels of rows mean nothing; of h5py, which takes rising rows only."""
    h5py, pandas = pytest.importorskip("h5py"), pytest.importorskip("pandas")
    module = ModuleType("mine_of_tables")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    labels = np.random.default_rng(0).permutation(40)
    with h5py.File(place / "a.h5", "w") as file:
        file["x"] = X
        module.rows = lambda: (file["x"], pandas.Series(Y, labels))  # type: ignore[attr-defined]
        text = 'data={ train = "mine_of_tables:rows", split = 0.25 }'
        found = config.read(place / "config.toml", [text])
        rows = stored.rows_of(found, "train", [pt.fmatrix("x"), pt.fvector("y")])
        (x, y), _ = stored.split(rows, 0.25)
        with synk.Group(1), Loader([x, y], Batches(30, 7)) as loader:
            parts = [(np.array(a), np.array(b)) for a, b in loader]
    order = Batches(30, 7).order(0)
    for given, part in zip((X, Y), zip(*parts, strict=True), strict=True):
        np.testing.assert_array_equal(np.concatenate(part), given[order].astype("float32"))


def test_the_last_rows_may_be_for_validation(place: Path) -> None:
    """Of arrays and of sources; both parts together are all rows, in their order."""
    np.savez(place / "a.npz", x=X, y=Y)
    text = 'data={ train = "a.npz", arrays = ["x", "y"], split = 0.25 }'
    kept = len(X) - len(X) // 4
    found = config.read(place / "config.toml", [text])
    rows = stored.rows_of(found, "train", [pt.dmatrix("x"), pt.dvector("y")])
    for given in (rows, (X, Y)):
        parts = stored.split(given, 0.25)
        for whole, first, last in zip((X, Y), *parts, strict=True):
            assert (len(first), len(last)) == (kept, len(X) - kept)
            order = np.array([3, 0, len(last) - 1])
            np.testing.assert_array_equal(np.asarray(last[order]), whole[kept:][order])
            np.testing.assert_array_equal(np.asarray(first[:]), whole[:kept])
    run = configured.train(config.read(place / "config.toml", [text, "epochs=2"]), members=2)
    assert len(run.history["val_loss"]) == 2
    assert run.history["rows"][0] == kept
    both = 'data={ train = "mine:rows", validation = "mine:others", split = 0.25 }'
    with pytest.raises(synk.InputError, match=r"data.split: data.validation names other rows"):
        configured.train(config.read(place / "config.toml", [both]), members=1)
    with pytest.raises(synk.InputError, match=r"data.split: 0.1 of 3 rows leaves one part"):
        stored.split((X[:3],), 0.1)


def _write_own_rows(place: Path) -> None:
    """A module whose function ``rows`` returns the arrays of ``a.npz``."""
    load = f"np.load({str(place / 'a.npz')!r})"
    code = f"import numpy as np\ndef rows(): return {load}['x'], {load}['y']\n"
    (place / "own.py").write_text(code)


def test_a_folder_of_images_by_channel_with_labels_from_one(place: Path) -> None:
    """As archives of PyDTNN have them: (rows, channels, height, width), and labels (rows, 1)."""
    images = np.arange(6 * 3 * 2 * 4, dtype="u1").reshape(6, 3, 2, 4)
    labels = np.array([[1], [5], [2], [3], [1], [5]])
    (place / "i").mkdir()
    for k in (0, 1):
        rows = slice(3 * k, 3 * k + 3)
        np.savez_compressed(place / "i" / f"train-{k:05}-01024", x=images[rows], y=labels[rows])
    text = 'data={ train = "i", format = "npz", arrays = ["x", "y"], axes = "NCHW", classes = 5 }'
    x, y = pt.tensor("x", dtype="uint8", shape=(None, 2, 4, 3)), pt.ivector("y")
    _write_own_rows(place)
    np.savez(place / "a.npz", x=images, y=labels)
    for train in ("i", "own:rows"):  # a source; arrays
        values = [text, "data.first_label=1", f"data.train={train!r}"]
        found = stored.rows_of(config.read(place / "config.toml", values), "train", [x, y])
        assert [(v.shape, v.dtype) for v in found] == [((6, 2, 4, 3), "uint8"), ((6,), "int32")]
        some = np.array([4, 1, 2])
        np.testing.assert_array_equal(found[0][some], np.moveaxis(images, 1, -1)[some])
        assert found[1][some].tolist() == [0, 4, 1]
    for values, message in (
        (["data.first_label=2"], "a label is 1, and the first class 2"),
        (["data.first_label=1", "data.classes=4"], "a label is 5, and the first class 1"),
    ):
        given = config.read(place / "config.toml", [text, *values])
        _, numbers = stored.rows_of(given, "train", [x, y])
        with pytest.raises(synk.SourceError, match=message):
            numbers[:]
    given = config.read(place / "config.toml", [text, "data.arrays=['y', 'y']"])
    with pytest.raises(synk.InputError, match=r'data.axes: "NCHW" is for images'):
        stored.rows_of(given, "train", [x, y])


def test_rows_get_a_shape_and_a_scale(place: Path) -> None:
    """The first input only; sources stay sources."""
    pixels = np.arange(5 * 4 * 6, dtype="u1").reshape(5, 4, 6)
    np.savez(place / "a.npz", x=pixels, y=np.arange(5))
    text = 'data={ train = "a.npz", arrays = ["x", "y"], shape = [6, 4, 1], scale = 255 }'
    x = pt.tensor("x", dtype="float32", shape=(None, 6, 4, 1))
    _write_own_rows(place)
    for train in ("a.npz", "own:rows"):  # a source; arrays
        found = config.read(place / "config.toml", [text, f"data.train={train!r}"])
        images, labels = stored.rows_of(found, "train", [x, pt.ivector("y")])
        assert (images.shape, images.dtype) == ((5, 6, 4, 1), np.float32)
        wanted = pixels.reshape(5, 6, 4, 1).astype("float32") / np.float32(255)
        np.testing.assert_array_equal(images[np.array([4, 1])], wanted[[4, 1]])
        assert labels[np.array([3])].tolist() == [3]
    for values, variable, message in (
        ([text, "data.shape=[5, 5]"], x, r"data.shape: \[5, 5\] has 25 values, and rows have"),
        ([text], pt.tensor4("x", dtype="uint8"), "data.scale: the input x is uint8"),
    ):
        found = config.read(place / "config.toml", values)
        with pytest.raises(synk.InputError, match=message):
            stored.rows_of(found, "train", [variable, pt.ivector("y")])


def test_members_that_train_apart_need_rows_in_memory(place: Path) -> None:
    """It is said before anything compiles."""
    np.savez(place / "a.npz", x=X, y=Y)
    values = [
        'data={ train = "a.npz", arrays = ["x", "y"] }',
        "rule={ name = 'EASGD', period = 2 }",
        "batch=",
    ]
    read = config.read(place / "config.toml", [*values, "member_batch=5"])
    with pytest.raises(synk.InputError, match=r"data.memory: with EASGD.*data.memory = true"):
        configured.train(read, members=2)
    held = config.read(place / "config.toml", [*values, "member_batch=5", "data.memory=true"])
    assert configured.train(held, members=2).step > 0


def test_images_for_validation_have_the_numbers_of_the_classes_in_training(place: Path) -> None:
    """Also where a class is not among them; in folders and in lists."""
    pytest.importorskip("PIL", reason="Pillow is not installed")
    from PIL import Image

    for part, names in (("train", ("cat", "dog", "emu")), ("held", ("emu",))):
        for name in names:
            (place / part / name).mkdir(parents=True)
            Image.fromarray(np.full((2, 3), 4095, "u2")).save(place / part / name / "1.png")
        lines = [f"{name}/1 {name}" for name in names]
        (place / part / "rows.txt").write_text("\n".join(lines))
    inputs = [pt.tensor4("x"), pt.lvector("y")]
    for more in (
        'train = "train", validation = "held"',
        'train = "train/rows.txt", validation = "held/rows.txt", format = "images", ending=".png"',
    ):
        text = f'data={{ {more}, dtype = "uint16", channels = "L" }}'
        found = config.read(place / "config.toml", [text])
        assert list(stored.rows_of(found, "train", inputs)[1]) == [0, 1, 2]
        images, labels = stored.rows_of(found, "validation", inputs)
        assert list(labels) == [2]
        assert np.unique(images[[0]]).tolist() == [4095]


def test_images_and_known_rows(place: Path) -> None:
    """Given to a network of images and labels; the parts of known data by their keys."""
    pytest.importorskip("PIL", reason="Pillow is not installed")
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    from PIL import Image

    rows_of = stored.rows_of
    for name in ("cat", "dog"):
        (place / "pets" / name).mkdir(parents=True)
        Image.new("RGB", (4, 2)).save(place / "pets" / name / "1.png")
    values = (
        "data={ train = 'pets', resize = [3, 5], channels = 'L', validation = 'known:digits' }",
    )
    found = config.read(place / "config.toml", values)
    inputs = [pytensor.tensor.tensor4("x"), pytensor.tensor.lvector("y")]
    images, labels = rows_of(found, "train", inputs)
    assert images.shape == (2, 1, 3, 5)
    assert list(labels) == [0, 1]
    assert len(rows_of(found, "validation", inputs)[0]) == 250
    test = config.read(place / "config.toml", ["data.validation=known:digits/test"])
    assert len(rows_of(test, "validation", inputs)[1]) == 250
    drawn = config.read(place / "config.toml", ["data.train=synthetic:2x3,classes=4,n=9,seed=5"])
    rows, numbers = rows_of(drawn, "train", inputs)
    wanted = sources.synthetic((2, 3), 4, 9, seed=5)
    np.testing.assert_array_equal(rows[:], wanted[:])
    np.testing.assert_array_equal(numbers[:], wanted.labels[:])
