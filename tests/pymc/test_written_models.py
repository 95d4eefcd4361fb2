"""The key of the graph that a model was written in: another one for each edit, or none."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import kept_models
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.distributions import transforms
from pymc.distributions.distribution import _support_point
from pymc.logprob.abstract import _logprob
from pymc.logprob.rewriting import logprob_rewrites_db
from pymc.logprob.transforms import LogTransform
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import node_rewriter, out2in
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.basic import NormalRV
from selection import thorough

from synkhronos._compiling.data.lifted import Data
from synkhronos._compiling.kept import known_code
from synkhronos._compiling.kept.digests import Unkeyed
from synkhronos._compiling.kept.folder import Folder
from synkhronos.pymc._kept import graphs, models, written
from synkhronos.pymc._kept.graphs import Graphs
from synkhronos.pymc._kept.written import Written

pytestmark = [
    pytest.mark.filterwarnings("ignore::pymc.exceptions.ImputationWarning"),
    pytest.mark.filterwarnings("ignore:.*RandomVariable:DeprecationWarning"),  # of pm.Simulator
]
Y = np.arange(6.0)


def model_of(build: Callable[[], object], **given: Any) -> pm.Model:
    with pm.Model(**given) as model:
        build()
    return model


def key(build: Callable[[], object], **given: Any) -> str:
    return Written(model_of(build, **given)).key


def is_made(found: Graphs) -> bool:
    """Whether there is a log-density, and not a note alone."""
    return "value" in vars(found)


def normal(
    scale: float = 1.0,
    shape: int = 3,
    name: str = "a",
    observed: object = Y,
    noise: object = 1.0,
    total_size: int | None = None,
    **given: Any,
) -> Callable[[], None]:
    def build() -> None:
        mean = pm.Normal(name, 0, scale, shape=shape, **given).sum()
        pm.Normal("y", mean, noise, observed=observed, total_size=total_size)

    return build


def of_value(value: np.ndarray, named: bool = False) -> Callable[[], None]:
    def build() -> None:
        data: Any = pm.Data("x", value) if named else pytensor.shared(value, name="x")
        pm.Normal("y", pm.Normal("a") * data, 1, observed=Y)

    return build


def edited(edit: Callable[[pm.Model], object]) -> Callable[[], None]:
    def build() -> None:
        normal()()
        edit(pm.modelcontext(None))

    return build


def renamed(model: pm.Model) -> None:
    model.rvs_to_values[model["a"]].name = "b"


def transformed(model: pm.Model) -> None:
    """The transform alone, with the value variable of before."""
    model.rvs_to_transforms[model["a"]] = transforms.log


def noted(model: pm.Model) -> None:
    model["a"].tag.lower_triangular = True


def walk() -> None:
    first = pm.Normal.dist(0, 1, shape=1)
    pm.AR("x", pm.Normal("rho", shape=2), constant=True, init_dist=first, shape=6)


def flipped() -> None:
    """A flag of an operation, which is neither in its graph nor in its inputs."""
    walk()
    pm.modelcontext(None)["x"].owner.op.constant_term = False


def cut(lower: float = -1.0, upper: float = 9.0) -> Callable[[], None]:
    return lambda: pm.Truncated("t", pm.Normal.dist(0, 1), lower, upper)


def few(size: int) -> Callable[[], None]:
    def build() -> None:
        pm.Normal("y", pm.Normal("a"), observed=pm.Minibatch(Y, batch_size=size), total_size=6)

    return build


def imputed(at: int) -> Callable[[], None]:
    def build() -> None:
        pm.Normal("y", pm.Normal("a"), 1, observed=np.ma.masked_array(Y, np.arange(6) == at))

    return build


ONE_BIT = Y.copy()
ONE_BIT[3] = np.nextafter(3.0, 4.0)

# an edit, and the model before it; without one that is `normal()`
EDITS: dict[str, Any] = {
    "a constant": (normal(2.0),),
    "a constant by one bit": (normal(np.nextafter(1.0, 2.0)),),
    "a length": (normal(shape=4),),
    "a name": (normal(name="b"),),
    "the name of a value": (edited(renamed),),
    "a distribution": (lambda: pm.Cauchy("a", 0, 1), lambda: pm.Normal("a", 0, 1)),
    "the order of variables": (
        lambda: (pm.Normal("a"), pm.Normal("b")),
        lambda: (pm.Normal("b"), pm.Normal("a")),
    ),
    "an observed value by one bit": (normal(observed=ONE_BIT),),
    "the dtype of data": (of_value(Y.astype("float32")), of_value(Y)),
    "that a value is missing": (imputed(2), normal(shape=1)),
    "which value is missing": (imputed(2), imputed(3)),
    "the whole number of rows": (normal(total_size=60), normal(total_size=61)),
    "that rows are some of more": (normal(total_size=60),),
    "rows of a minibatch": (few(3), few(4)),
    "the value of pm.Data": (of_value(Y, named=True), of_value(ONE_BIT, named=True)),
    "the value of a shared variable": (of_value(Y), of_value(ONE_BIT)),
    "the lengths of data": (normal(noise=np.ones(6)), normal(noise=np.ones(1))),
    "a transform": (normal(transform=transforms.ordered),),
    "a transform alone": (edited(transformed),),
    "a flag of a transform": (
        normal(transform=transforms.Ordered(positive=True)),
        normal(transform=transforms.Ordered(positive=False)),
    ),
    "the order of a transform": (
        normal(transform=transforms.Ordered(ascending=False)),
        normal(transform=transforms.Ordered(ascending=True)),
    ),
    "transforms in a chain": (
        normal(transform=transforms.Chain([transforms.log, transforms.ordered])),
        normal(transform=transforms.Chain([transforms.logodds, transforms.ordered])),
    ),
    "a bound of a transform": (
        normal(transform=transforms.Interval(-1, 2)),
        normal(transform=transforms.Interval(-1, 3)),
    ),
    "a bound that is not there": (
        normal(transform=transforms.Interval(-1, None)),
        normal(transform=transforms.Interval(None, -1)),
    ),
    "a bound of a distribution": (
        lambda: pm.Uniform("a", 0, 1),
        lambda: pm.Uniform("a", 0, 2),
    ),
    "axes of a transform": (
        lambda: pm.ZeroSumNormal("a", shape=(3, 3), n_zerosum_axes=1),
        lambda: pm.ZeroSumNormal("a", shape=(3, 3), n_zerosum_axes=2),
    ),
    "data of a transform": (
        lambda: pm.LKJCholeskyCov("a", n=2, eta=1, sd_dist=pm.HalfNormal.dist()),
        lambda: pm.LKJCholeskyCov("a", n=2, eta=2, sd_dist=pm.HalfNormal.dist()),
    ),
    "an initial value": (normal(initval=np.zeros(3)), normal(initval=np.ones(3))),
    "that there is an initial value": (normal(initval=np.zeros(3)),),
    "how a start is found": (normal(initval="prior"),),
    "a Deterministic": (edited(lambda model: pm.Deterministic("d", 2 * model["a"])),),
    "a Potential": (edited(lambda model: pm.Potential("p", model["a"].sum())),),
    "a constant of a Potential": (
        edited(lambda model: pm.Potential("p", model["a"].sum() * 2)),
        edited(lambda model: pm.Potential("p", model["a"].sum() * 3)),
    ),
    "a Potential in place of a Deterministic": (
        edited(lambda model: pm.Potential("d", model["a"].sum())),
        edited(lambda model: pm.Deterministic("d", model["a"].sum())),
    ),
    "a note of a variable": (edited(noted),),
    "a flag of an operation": (flipped, walk),
    "where a distribution is cut off": (cut(upper=8.0), cut()),
    "where a distribution is cut off below": (cut(lower=-2.0), cut()),
    "an inner graph": (
        lambda: pm.NormalMixture("m", [0.4, 0.6], [0.0, 1], 1, observed=Y),
        lambda: pm.NormalMixture("m", [0.5, 0.5], [0.0, 1], 1, observed=Y),
    ),
}


@functools.cache
def key_of_normal() -> str:
    """The key before most edits, made once."""
    found = key(normal())
    assert key(normal()) == found
    return found


@pytest.mark.parametrize("what", EDITS)
def test_an_edit_changes_the_key(what: str) -> None:
    after, *before = EDITS[what]
    found = key(after)
    assert key(after) == found
    assert found != (key(before[0]) if before else key_of_normal())


def test_an_edit_of_the_model_changes_the_key() -> None:
    first = key(normal())
    others = [key(normal(), check_bounds=False), key(normal(), name="m")]
    for length in (3, 4):

        def rows(length: int = length) -> None:
            pm.Normal("y", pm.Normal("a", dims="d").sum(), 1, observed=Y)

        others.append(key(rows, coords={"d": range(length)}))
    with pytensor.config.change_flags(cast_policy="numpy+floatX"):
        others.append(key(normal()))
    assert len({first, *others}) == 1 + len(others)


def test_data_that_are_set_change_the_key() -> None:
    model = model_of(of_value(Y, named=True))
    before = Written(model).key
    pm.set_data({"x": ONE_BIT}, model=model)
    assert Written(model).key != before
    pm.set_data({"x": Y}, model=model)
    assert Written(model).key == before


def test_which_of_two_equal_data_is_read_changes_the_key() -> None:
    def build(at: int) -> Callable[[], None]:
        def two() -> None:
            data = [pytensor.shared(Y, name="x") for _ in range(2)]
            pm.Normal("y", pm.Normal("a") * data[0] + data[1], data[at] ** 2 + 1, observed=Y)

        return two

    assert key(build(0)) != key(build(1))


class Twice(transforms.Transform):
    name, ndim_supp = "twice", 0

    def forward(self, value: Any, *inputs: Any) -> Any:
        return 2 * value

    def backward(self, value: Any, *inputs: Any) -> Any:
        return value / 2


class Doubled(Op):
    __props__ = ()

    def make_node(self, x: Any) -> Apply:
        return Apply(self, [x], [x.type()])

    def perform(self, node: Apply, inputs: Any, outputs: Any) -> None:
        outputs[0][0] = 2 * inputs[0]


class Small(pm.Model):
    def logp(self, *given: Any, **named: Any) -> Any:
        return super().logp(*given, **named)


def custom(**given: Any) -> Callable[[], None]:
    def build() -> None:
        pm.CustomDist("c", pm.Normal("a"), observed=Y, **given)

    return build


def patched_transform() -> None:
    """A method of this one transform, and not of its class."""
    own = LogTransform()
    own.backward = lambda value, *inputs: pt.exp(2 * value)  # type: ignore[method-assign]
    pm.HalfNormal("a", default_transform=own)


REFUSED = {
    "a log-density by a function": custom(logp=lambda value, a: -((value - a) ** 2)),
    "a graph by a function": custom(dist=lambda a, size: pm.Normal.dist(a, 1, size=size) * 2),
    "a simulation": lambda: pm.Simulator("s", lambda rng, a, size: a, pm.Normal("a"), observed=Y),
    "a function of an equation": lambda: pm.EulerMaruyama(
        "e", 0.1, lambda x, a: (-a * x, 1.0), (1.0,), init_dist=pm.Normal.dist(), shape=5
    ),
    "an operation": lambda: pm.Potential("p", Doubled()(pm.Normal("a"))),
    "a transform": lambda: pm.HalfNormal("a", default_transform=Twice()),
    "a transform in a chain": lambda: pm.Normal(
        "a", transform=transforms.Chain([transforms.log, Twice()])
    ),
    "bounds by a function": lambda: pm.Normal(
        "a", transform=transforms.Interval(bounds_fn=lambda *_: (0, None))
    ),
    "a method of a transform": patched_transform,
    "another log-density": edited(lambda model: setattr(model, "logp", lambda **_: None)),
}


@pytest.mark.parametrize("what", REFUSED)
def test_code_of_others_is_refused(what: str) -> None:
    with pytest.raises(Unkeyed):
        key(REFUSED[what])


@pytest.mark.parametrize("named", [True, False])
def test_large_data_are_not_read(named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    build = of_value(np.zeros(1_000), named)
    assert len(key(build)) > 10
    monkeypatch.setattr(known_code, "MOST_BYTES", 7_999)
    with pytest.raises(Unkeyed, match="more than 7999 bytes"):
        key(build)


def test_models_of_others_are_refused() -> None:
    with Small() as small:
        normal()()
    with pm.Model(), pm.Model(name="inner") as inner:
        normal()()
    for model in (small, inner):
        with pytest.raises(Unkeyed, match="another class"):
            Written(model)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (pm.Model, "logp"),
        (pm.model.core, "transformed_conditional_logp"),
        (pm.logprob.basic, "construct_ir_fgraph"),
        (pm.distributions.distribution, "support_point"),
        (LogTransform, "backward"),
        (NormalRV, "rng_fn"),
    ],
)
def test_functions_of_pymc_that_others_have_replaced_are_refused(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    def build() -> None:
        pm.Normal("y", pm.Normal("a"), pm.HalfNormal("s"), observed=Y)

    before = key(build)
    with monkeypatch.context() as patch:
        model = model_of(build)
        patch.setattr(owner, name, lambda *_, **__: None)
        with pytest.raises(Unkeyed, match="of others"):
            Written(model)
    assert key(build) == before


class OfTheUser:
    """Stands for a function of PyMC."""

    def __call__(self, *given: Any) -> None:
        """Compute nothing."""


@pytest.mark.parametrize(
    "other",
    [OfTheUser, OfTheUser(), OfTheUser().__call__, functools.partial(model_of), cache(model_of)],
    ids=["class", "object", "method", "partial", "cache"],
)
def test_what_others_have_put_in_place_of_functions_is_refused(
    monkeypatch: pytest.MonkeyPatch, other: object
) -> None:
    model = model_of(normal())
    monkeypatch.setattr(pm.distributions.continuous, "check_parameters", other)
    with pytest.raises(Unkeyed, match="of others"):
        Written(model)


@pytest.mark.parametrize("registry", [_logprob, _support_point])
def test_functions_that_others_have_registered_are_refused(registry: Any) -> None:
    own = registry.registry[NormalRV]
    try:
        registry.register(NormalRV, lambda *_, **__: None)
        with pytest.raises(Unkeyed, match="registered code for NormalRV"):
            key(normal())
    finally:
        registry.register(NormalRV, own)
    assert key(normal())


def test_a_distribution_by_others_of_an_operation_of_pymc_is_refused() -> None:
    """It is PyMC's function that is registered; that one calls the user's."""
    own = _logprob.registry[NormalRV]
    try:

        class Flat(pm.Continuous):
            rv_op = pm.Normal.rv_op

            def logp(value: Any, mu: Any, sigma: Any) -> Any:
                return 0 * value

        with pytest.raises(Unkeyed, match="registered code for NormalRV"):
            key(normal())
    finally:
        _logprob.register(NormalRV, own)


def test_what_others_make_elsewhere_refuses_no_model() -> None:
    before = key(normal())
    model_of(REFUSED["a log-density by a function"])
    assert key(normal()) == before


def test_rewrites_and_step_methods_of_others_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    @node_rewriter([Elemwise])
    def changed(fgraph: Any, node: Any) -> None:
        return None

    with monkeypatch.context() as patch:
        patch.setattr(written, "STEP_METHODS", [type("Mine", (pm.NUTS,), {})])
        with pytest.raises(Unkeyed, match="Mine"):
            key(normal())
    logprob_rewrites_db.register("a test's", out2in(changed), "basic", position=9)
    try:
        with pytest.raises(Unkeyed):
            key(normal())
    finally:
        name = "a test's"
        [rewriter] = logprob_rewrites_db.__db__[name]
        logprob_rewrites_db.remove_tags(name, "basic", "logprob_rewrites_db")
        logprob_rewrites_db.__db__[type(rewriter).__name__].remove(rewriter)
        del logprob_rewrites_db.__db__[name], logprob_rewrites_db.__position__[name]
        logprob_rewrites_db._names.remove(name)
    assert key(normal())


NAMES = ("schools", "regression", "with_data")
MORE = (
    "mixture",
    "imputed",
    "no_rows",
    "walk",
    "process",
    "covariance",
    "levels",
    "loop",
    "rows",
    "large",
    "other_rows",
)


@pytest.mark.parametrize("name", [*NAMES, *thorough(*MORE)])
def test_what_is_noted_is_what_would_be_made(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(tmp_path / "kept")
    model = kept_models.built(name)
    made = written.graphs_of(model, folder)
    other = kept_models.built(name) if name not in ("rows", "large") else model  # random data
    with monkeypatch.context() as patch:
        patch.setattr(graphs, "lifted", None)  # what each log-density goes through
        found = written.graphs_of(other, folder)
    assert found.key == made.key == Graphs(other).key
    assert found.initial_key(None) == made.initial_key({}) == Graphs(other).initial_key(None)
    assert len(found.shared) == len(made.shared)
    for one, before in zip(found.shared, made.shared, strict=True):
        assert isinstance(one, Data) == isinstance(before, Data)
        assert isinstance(one, Data) or other[str(one.name)] is one
        assert (one.type, one.name) == (before.type, before.name)
        assert np.array_equal(one.get_value(), before.get_value())
    assert str(found.value) == str(made.value)


def test_keys_are_equal_in_every_process(tmp_path: Path) -> None:
    code = "import json, kept_models as k; from synkhronos.pymc._kept.written import Written as W\n"
    code += f"print(json.dumps([W(k.built(n)).key for n in {NAMES}]))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    # not this process: other tests register rewrites and functions, which are a part of keys
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={**env, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
        )
        for seed in ("7", "8")
    ]
    one, other = [each.communicate(timeout=100)[0] for each in both]
    assert len(json.loads(one)) == len(NAMES)
    assert one == other


def test_values_that_are_set_are_those_that_are_read(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "kept")
    made = written.graphs_of(kept_models.built("with_data"), folder)
    model = kept_models.built("with_data")
    found = written.graphs_of(model, folder)
    assert not is_made(found)
    pm.set_data({"values": kept_models._Y + 1}, model=model)
    assert any(np.array_equal(value, kept_models._Y + 1) for value in found.values())
    other = written.graphs_of(model, folder)
    assert is_made(other)
    assert other.key == made.key


def test_a_note_that_cannot_be_read_is_written_anew(tmp_path: Path) -> None:
    folder, model = Folder(tmp_path / "kept"), kept_models.built("schools")
    folder.write(Written(model).key, b"of another version")
    made = written.graphs_of(model, folder)
    assert is_made(made)
    assert not is_made(written.graphs_of(model, folder))
    assert written.graphs_of(model, folder).key == made.key


def test_a_note_that_would_differ_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(tmp_path / "kept")
    data = Written._data

    def other(self: Written, source: Any) -> Any:
        found: Any = data(self, source)
        found.set_value(found.get_value() + 1)
        return found

    monkeypatch.setattr(Written, "_data", other)
    assert written.graphs_of(kept_models.built("regression"), folder).shared
    assert not folder.size()[0]


@pytest.mark.thorough
def test_only_the_note_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries that were not read for longest are removed: the model is compiled again."""
    folder = Folder(tmp_path / "kept")
    monkeypatch.setattr(models, "kept_folder", lambda: folder)
    first = kept_models.sampled("schools")
    note = f"{Written(kept_models.built('schools')).key}.kept"
    for path in folder.path.iterdir():
        if path.name != note:
            path.unlink()
    assert folder.size()[0] == 1
    assert kept_models.sampled("schools") == first
    assert folder.size()[0] > 1
