"""Runs of `sample` in a folder: what is drawn does not depend on interruptions, nor on calls."""

from __future__ import annotations

import errno
import functools
import json
import os
import resource
import shutil
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.sparse
from pytensor.compile.builders import OpFromGraph
from pytensor.sparse import structured_dot as sparse_dot
from xarray import DataTree, Variable
from xarray.core.indexing import LazilyIndexedArray

import synkhronos as synk
from synkhronos._compiling.kept.digests import Unkeyed
from synkhronos._errors import InputError, InputTypeError
from synkhronos._transport.serialization import pack_graph
from synkhronos.pymc._chains import chain_folder, chain_model, kernel, nodes, stored_chains
from synkhronos.pymc._chains.blocks import TEXT, Block, StoredDraws, length_of
from synkhronos.pymc._chains.chain_folder import opened
from synkhronos.pymc._chains.chain_settings import settings_of
from synkhronos.pymc._chains.kernel import Kernel
from synkhronos.pymc._chains.stored_chains import StoredChains, current
from synkhronos.pymc._density.metric import Choice
from synkhronos.pymc._density.nutpie import compiled_soon

nutpie = pytest.importorskip("nutpie")

pytestmark = pytest.mark.together  # nutpie compiles the model once
TUNE = 60
# of `pm.sample`
PLAIN: dict[str, Any] = {"tune": TUNE, "chains": 2, "cores": 2, "random_seed": 4, "quiet": True}
PLAIN |= {"compute_convergence_checks": False, "backend": "numba", "progressbar": False}


def normal(observed: float = 1.0, name: str = "a", first: str = "a") -> pm.Model:
    with pm.Model(coords={"part": ["x", "y", "z"]}) as model:
        if first == "scale":
            scale = pm.HalfNormal("scale")
        a = pm.Normal(name, 0, [1, 10, 0.1], dims="part")
        if first != "scale":
            scale = pm.HalfNormal("scale")
        pm.Deterministic("sum", a.sum() * scale)
        pm.Normal("seen", a[0], scale, observed=np.full(8, observed))
    return model


@pytest.fixture(scope="module")
def model() -> pm.Model:
    return normal()


@pytest.fixture(scope="module")
def compiled(model: pm.Model) -> Any:
    with compiled_soon():
        return nutpie.compile_pymc_model(model, backend="numba")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_folder, "BLOCK", 20)
    monkeypatch.setattr(chain_model, "_model_key", _key)
    monkeypatch.setattr(chain_model, "_outputs", _outputs)


_key = functools.cache(chain_model._model_key)
_outputs = functools.cache(chain_model._outputs)


@pytest.fixture
def sampled(model: pm.Model, compiled: Any) -> Callable[..., DataTree]:
    """Samples into a folder as `synk.pymc.sample` does, with a model that is compiled."""

    def sample(
        place: Path,
        draws: int = 50,
        chains: int = 2,
        cores: int = 2,
        first: int = 0,
        **settings: Any,
    ) -> DataTree:
        with opened(place, model, 4, {}) as folder:
            return StoredChains(folder, first).sample(
                nutpie.sample,
                compiled,
                draws=draws,
                tune=TUNE,
                chains=chains,
                cores=cores,
                seed=0,
                save_warmup=True,
                progress_bar=False,
                progress_callback=list,
                **settings,
            )

    return sample


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.npy"))
    }


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, BaseException], None]:
    """Let the write of a block fail, counted from now on; the earlier ones are made."""
    write, left = Block.write, [10**6, RuntimeError()]

    def failing(self: Block, path: Path) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise left[1]
        write(self, path)

    def stop(after: int, by: BaseException) -> None:
        left[:] = after, by

    monkeypatch.setattr(Block, "write", failing)
    return stop


class Lost(Exception):
    """Stands for the end of a process."""


def test_an_interrupted_run_has_the_bits_of_one_that_was_not(
    sampled: Any, tmp_path: Path, stopping: Any
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    expected = sampled(whole)
    assert len(files_of(whole)) == 2 * (1 + 3)
    counts = []
    for after in (0, 1, 2, 1, 0, 2, 1, 1):
        stopping(after, Lost())
        try:
            found = sampled(parts)
            break
        except Lost:
            counts.append(len(files_of(parts)))
    else:
        raise AssertionError("it never ends")
    assert counts[0] == 0
    assert len(set(counts)) > 3
    assert files_of(parts) == files_of(whole)
    for group in ("posterior", "sample_stats"):
        assert found[group].to_dataset().equals(expected[group].to_dataset())
    calls = json.loads(found.posterior.attrs["synkhronos_run"])["calls"]
    assert [call["ended"] for call in calls] == [*["Lost"] * len(counts), "returned"]
    assert calls[0]["found"] == {}
    assert calls[-1]["found"].keys() == {"chain-0", "chain-1"}


def test_more_draws_and_more_chains_are_added_to_a_run(sampled: Any, tmp_path: Path) -> None:
    few, many = tmp_path / "few", tmp_path / "many"
    first = sampled(few, draws=30, chains=1)
    before = files_of(few)
    grown = sampled(few, draws=50)
    sampled(many)
    assert files_of(few) == files_of(many)
    assert before.keys() < files_of(few).keys()
    np.testing.assert_array_equal(first.posterior["a"], grown.posterior["a"][:1, :30])
    fewer = sampled(few, draws=30)
    np.testing.assert_array_equal(fewer.posterior["a"], grown.posterior["a"][:, :30])
    assert files_of(few) == files_of(many)


def test_processes_with_some_of_the_chains_fill_one_folder(
    sampled: Any, model: pm.Model, tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    expected = sampled(whole)
    trees = [pack_graph(sampled(parts, chains=1, first=first)) for first in (0, 1)]
    assert files_of(parts) == files_of(whole)
    with opened(parts, model, 4, {}) as folder:
        token = stored_chains._current.set(StoredChains(folder))
        try:
            given = nodes._arguments_of(1, [1, 1], {"chains": 2})
            assert given["folder"] == StoredChains(folder, 1)
            found = nodes.joined(trees, model, {"chains": 2, "quiet": True})
            for group in ("posterior", "sample_stats", "warmup_posterior"):
                assert found[group].to_dataset().equals(expected[group].to_dataset())
            assert stored_chains.how_ended(found.posterior.attrs) == "returned"
            nodes.joined(trees[:1], model, {"chains": 2, "quiet": True})
            assert folder.ended == "interrupted"  # a process was killed, since it had no draws
            stored_chains.check_shared(StoredChains(folder), 2)
            shutil.rmtree(parts / "chain-1")  # on another node, without a common file system
            with pytest.raises(InputError, match="chain 1 was sampled on another node"):
                stored_chains.check_shared(StoredChains(folder), 2)
        finally:
            stored_chains._current.reset(token)


@pytest.fixture
def compiled_once(monkeypatch: pytest.MonkeyPatch, compiled: Any) -> None:
    monkeypatch.setattr(nutpie, "compile_pymc_model", lambda model, **given: compiled)


@pytest.mark.usefixtures("compiled_once")
def test_a_tree_is_that_of_pymc(model: pm.Model, tmp_path: Path) -> None:
    given = {**PLAIN, "discard_tuned_samples": False, "nuts": {"store_divergences": True}}
    given["idata_kwargs"] = {"include_transformed": True}
    ours = synk.pymc.sample(50, model=model, folder=tmp_path, **given)
    theirs = pm.sample(50, model=model, **given)
    pairs = list(zip(theirs.subtree_with_keys, ours.subtree_with_keys, strict=True))
    assert len(pairs) == 9
    for (name, other), (same, tree) in pairs:
        assert same == name
        a, b = other.to_dataset(inherit=False), tree.to_dataset(inherit=False)
        assert list(a.data_vars) == list(b.data_vars)
        assert list(a.coords) == list(b.coords)
        for variable in a.data_vars:
            assert (a[variable].dims, a[variable].dtype) == (b[variable].dims, b[variable].dtype)
        for coordinate in a.coords:
            assert a.coords[coordinate].equals(b.coords[coordinate])
        assert a.attrs.keys() == b.attrs.keys() - {"synkhronos_run"}
    stats = ours.sample_stats
    assert not stats["tuning"].any()
    assert ours.warmup_sample_stats["tuning"].all()
    step = ours.warmup_sample_stats["step_size_bar"].values[:, -1:]
    np.testing.assert_array_equal(stats["step_size_bar"], np.broadcast_to(step, (2, 50)))
    update = ours.warmup_sample_stats["transformation_index"].values[:, -1:]
    np.testing.assert_array_equal(stats["transformation_index"], np.broadcast_to(update, (2, 50)))
    diverging = ours.warmup_sample_stats["diverging"].values
    assert diverging.any()
    texts = ours.warmup_sample_stats["divergence_message"].values
    np.testing.assert_array_equal(diverging, [[t is not None for t in row] for row in texts])


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"observed": 2.0}, r"other data \(seen\)"),
        ({"name": "b"}, "another model"),
        ({"first": "scale"}, r"another order \(scale_log__, a\).*: start Python with PYTHONHASH"),
        ({"tune": 61}, "tune=60, and now tune=61"),
        ({"random_seed": 5}, r"random_seed=\[4\], and now \[5\]"),
        ({"nuts": {"target_accept": 0.9}}, "nuts={}, and now nuts={'target_accept': 0.9}"),
        ({"target_accept": 0.9}, "nuts={}, and now nuts={'target_accept': 0.9}"),
        ({"nuts_sampler_kwargs": {"maxdepth": 9}}, "and now nuts={'maxdepth': 9}"),
        ({"idata_kwargs": {"include_transformed": True}}, "and now include_transformed=True"),
        ({"initvals": {"scale": np.array(2.0)}}, "and now initvals={'scale': 2.0}"),
        ({"compile_kwargs": {"initial_points": {"a": np.zeros(30)}}}, "and now initvals={'a': '"),
        ({"compile_kwargs": {"jitter_rvs": set()}}, r"and now jitter_rvs=\[\]"),
        ({"adaptation": "auto"}, "adaptation='diag', and now adaptation='auto'"),
        ({"nuts": {"adaptation": "low_rank"}}, "and now adaptation='low_rank'"),
        ({"var_names": ("a", "scale")}, r"var_names=None, and now var_names=\['a', 'scale'\]"),
    ],
)
def test_a_folder_of_another_run_is_refused_by_name(
    model: pm.Model, tmp_path: Path, other: dict[str, Any], words: str
) -> None:
    begin(model, tmp_path)
    made = {name: other.pop(name) for name in ("observed", "name", "first") if name in other}
    before = tree_of(tmp_path)
    with pytest.raises(InputError, match=words):
        begin(normal(**made) if made else model, tmp_path, **other)
    assert tree_of(tmp_path) == before


def begin(model: pm.Model, folder: Path, **given: Any) -> None:
    asked = {"tune": TUNE, "random_seed": 4, **given}
    if (adaptation := asked.pop("adaptation", None)) not in (None, "auto"):  # as `sample` does
        asked["nuts"] = {**asked.get("nuts", {}), "adaptation": adaptation}
    with stored_chains.sampling_into(folder, model, asked, adaptation):
        pass


@pytest.mark.parametrize(
    ("first", "again"),
    [
        ({"var_names": ("a", "scale")}, {"var_names": ["a", "scale"]}),
        ({"tune": np.int64(1000)}, {"tune": None}),
        ({"nuts": {"maxdepth": np.int64(8)}}, {"nuts": {"max_treedepth": 8}}),
        ({"nuts": {"adaptation": "diag", "store_divergences": False}}, {"nuts": None}),
        ({"target_accept": np.float64(0.9)}, {"nuts": {"target_accept": 0.9}}),
        (
            {"initvals": {"a": np.arange(3)}},
            {"compile_kwargs": {"initial_points": {"a": [0, 1, 2]}}},
        ),
        ({"idata_kwargs": {"include_transformed": False}}, {}),
        ({"target_accept": 0.8, "nuts": {"maxdepth": 10}}, {}),
        ({"nuts": {"adaptation": "low_rank", "max_treedepth": 10}}, {"adaptation": "low_rank"}),
        ({"adaptation": "auto", "nuts": {"target_accept": 0.8}}, {"adaptation": "auto"}),
    ],
)
def test_one_setting_in_two_forms_is_the_same(
    model: pm.Model, tmp_path: Path, first: dict[str, Any], again: dict[str, Any]
) -> None:
    for given in (first, again, first):
        begin(model, tmp_path, **given)


def test_start_values_of_a_model_are_settings() -> None:
    with pm.Model() as model:
        pm.Normal("a", initval=np.float64(1.5))
    assert settings_of(model, {}, None)["initvals"] == {"a": 1.5}
    with pytest.raises(InputError, match="tune=0: give an integer of at least 1"):
        settings_of(model, {"tune": 0}, None)


@pytest.mark.parametrize("sparse", [False, True])
def test_other_values_of_a_shared_variable_are_other_data(tmp_path: Path, sparse: bool) -> None:
    """One that is not `pm.Data`; also one of SciPy's, whose array would be that of an address."""

    def of(value: float) -> Any:
        return scipy.sparse.csr_matrix([[value]]) if sparse else np.array([[value]])

    shared = pytensor.shared(of(1.0), name="price")
    with pm.Model() as model:
        a = pm.Normal("a", shape=(1, 1))
        pm.Deterministic("cost", sparse_dot(shared, a) if sparse else shared * a)
    begin(model, tmp_path)
    shared.set_value(of(2.0))
    with pytest.raises(InputError, match=r"other data \(price\)"):
        begin(model, tmp_path)
    shared.set_value(of(1.0))
    begin(model, tmp_path)


@pytest.mark.parametrize("inside", [False, True])
def test_constants_of_a_model_without_a_key_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    def of(constant: float) -> pm.Model:
        with pm.Model() as model:
            a = pm.Normal("a")
            x = pt.scalar()
            times = OpFromGraph([x], [x * constant]) if inside else lambda x: x * constant
            pm.Potential("b", times(a))
        return model

    def unkeyed(*_: object) -> str:
        raise Unkeyed("it has an open file")

    monkeypatch.setattr(chain_model, "_model_key", _key.__wrapped__)
    monkeypatch.setattr(chain_model, "portable_key", unkeyed)
    for constant in (2.5, 2.5):
        begin(of(constant), tmp_path)
    with pytest.raises(InputError, match="another model"):
        begin(of(3.5), tmp_path)


def tree_of(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_stranger_s_folder_is_refused(model: pm.Model, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match=r"something else, such as 'thesis\.tex'"):
        begin(model, tmp_path)
    assert os.listdir(tmp_path) == ["thesis.tex"]
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(InputError, match=r"run\.json is damaged"):
        begin(model, tmp_path)
    file = tmp_path / "thesis.tex"
    with pytest.raises(InputError, match="exists"):
        begin(model, file)
    with pytest.raises(InputTypeError, match="give a path"):
        begin(model, 3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"folder='s3:/bucket/run': .* this is an address: give a"):
        begin(model, Path("s3://bucket/run"))


def test_a_second_process_is_refused(model: pm.Model, tmp_path: Path) -> None:
    with opened(tmp_path, model, 4, {}), pytest.raises(InputError, match="another call"):
        begin(model, tmp_path)  # a lock of the same process counts too
    with pytest.raises(InputError, match="tune=None, and now tune=60"):
        begin(model, tmp_path)


def test_a_fork_that_outlives_a_call_does_not_lock_its_folder(
    model: pm.Model, tmp_path: Path
) -> None:
    with opened(tmp_path, model, 4, {}):
        [own] = [fd for fd in os.listdir("/proc/self/fd") if points_to(fd, tmp_path)]
        held = os.dup(int(own))  # what a fork has
    try:
        with opened(tmp_path, model, 4, {}):
            pass
    finally:
        os.close(held)


def points_to(descriptor: str, path: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}") == str(path)
    except OSError:
        return False


def test_draws_without_their_run_are_refused(model: pm.Model, tmp_path: Path) -> None:
    """They may be of another model: a user removes a damaged run.json."""
    begin(model, tmp_path)
    (tmp_path / "run.json").unlink()
    (tmp_path / ".0123456789abcdef.new").write_text("half")  # of a call that was killed
    begin(model, tmp_path)
    (tmp_path / "chain-0").mkdir()
    (tmp_path / "run.json").unlink()
    with pytest.raises(InputError, match=r"no run\.json, and .* such as 'chain-0'"):
        begin(model, tmp_path)


def test_other_systems_are_refused_at_once(
    model: pm.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_chains, "trouble", lambda: "this is macOS")
    with pytest.raises(InputError, match=r"only Linux.*this is macOS"):
        begin(model, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_threads_leave_in_any_order(model: pm.Model, tmp_path: Path) -> None:
    """One samples into a folder and one does not: nutpie's function is restored by the last."""
    before, one, another = nutpie.sample, ExitStack(), ExitStack()
    one.enter_context(stored_chains.sampling_into(tmp_path, model, {}))
    another.enter_context(compiled_soon())
    inside = nutpie.sample
    one.close()
    assert nutpie.sample is inside is not before
    another.close()
    assert nutpie.sample is before


def test_a_stop_is_seen_before_each_block(
    model: pm.Model, compiled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of less than a tenth of a second end before a wait for them does."""
    stop, sampled = threading.Event(), kernel.Kernel._sampled

    def stopped(*args: Any) -> Any:
        found = sampled(*args)
        stop.set()
        return found

    with opened(tmp_path, model, 4, {}) as folder:
        made = kernel.Kernel(nutpie.sample, compiled, {})
        chain = stored_chains._Chain(folder, 0, made, TUNE, 50, stop)
        monkeypatch.setattr(kernel.Kernel, "_sampled", stopped)
        for count in (1, 2):
            with pytest.raises(stored_chains._Stopped):
                chain.sample()
            with pytest.raises(stored_chains._Stopped):
                chain.sample()
            assert len(files_of(tmp_path)) == count
            stop.clear()


def test_a_chain_writes_beside_its_sampling() -> None:
    """At most two blocks wait for the disk; they are written in their order."""
    released, written = threading.Event(), []

    def write(number: int) -> None:
        assert released.wait(60)
        written.append(number)

    with stored_chains._Writer() as writer, ThreadPoolExecutor(1) as pool:
        for number in range(2):
            writer.write(functools.partial(write, number))
        third = pool.submit(writer.write, functools.partial(write, 2))
        with pytest.raises(TimeoutError):
            third.result(0.05)
        assert not written
        released.set()
        third.result(60)
    assert written == [0, 1, 2]


def test_an_error_of_a_write_ends_the_chain() -> None:
    with pytest.raises(Lost), stored_chains._Writer() as writer:
        writer.write(raising(Lost()))
    with stored_chains._Writer() as writer:
        writer.write(raising(Lost()))
        with pytest.raises(Lost):
            list(map(writer.write, [list, list]))


def test_another_interrupt_waits_for_threads_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """They write, and so the folder must stay locked."""
    stop, ended, shutdown = threading.Event(), [], ThreadPoolExecutor.shutdown
    interrupts = [KeyboardInterrupt()]

    def interrupted(pool: ThreadPoolExecutor, *args: Any, **given: Any) -> None:
        if interrupts:
            raise interrupts.pop()
        shutdown(pool, *args, **given)

    def sample() -> None:
        assert stop.wait(60)
        ended.append(True)

    chain: Any = SimpleNamespace(sample=sample, complete=False, progress=None)
    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stored_chains._sample_all([chain], 1, raising(KeyboardInterrupt()), stop)
    assert ended


def test_a_run_keeps_the_metric_that_was_chosen(model: pm.Model, tmp_path: Path) -> None:
    """Of more draws, another one may be expected to be better."""
    found = []
    for name in ("low_rank", "diag"):
        with stored_chains.sampling_into(tmp_path, model, {"random_seed": 4}, "auto"):
            found.append(current().chosen(functools.partial(Choice, name, 2.0, "why")))
    assert found == [Choice("low_rank", 2.0, "why")] * 2
    assert current() is None


@pytest.mark.parametrize("damaged", [False, True])
def test_processes_that_choose_at_once_have_one_metric(
    model: pm.Model, tmp_path: Path, damaged: bool
) -> None:
    """Draws of two metrics have other statistics, and no tree can have both."""
    place = tmp_path / "metric.json"

    def late() -> tuple[str, float, str]:
        place.write_text("[" if damaged else '["diag", 1.0, "the first"]')
        return "low_rank", 2.0, "the second"

    first, second = ["diag", 1.0, "the first"], ["low_rank", 2.0, "the second"]
    with opened(tmp_path, model, 4, {}) as folder:
        for _ in range(2):
            assert list(folder.chosen(late)) == (second if damaged else first)


def test_a_chain_that_a_chosen_metric_leaves_stuck_is_tuned_by_diag(
    model: pm.Model, tmp_path: Path, sampled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's own metric is obeyed. The same call reads the same chain."""
    diag, low_rank = sampled(tmp_path / "diag"), sampled(tmp_path / "own", adaptation="low_rank")
    place = tmp_path / "chosen"
    with opened(place, model, 4, {}) as folder:
        folder.chosen(lambda: ("low_rank", 2.0, "why"))
    second = low_rank.warmup_sample_stats["step_size"].values[1]
    monkeypatch.setattr(
        kernel, "_is_stuck", lambda found: np.array_equal(found.stat("step_size"), second)
    )
    for _ in range(2):
        found = sampled(place, adaptation="low_rank")
        for chain, other in enumerate((low_rank, diag)):
            for group in ("posterior", "warmup_posterior"):
                ours, expected = (tree[group]["a"].values[chain] for tree in (found, other))
                np.testing.assert_array_equal(ours, expected)
        assert not found.warmup_sample_stats["num_eigenvalues"].values[1].any()
    own = sampled(tmp_path / "named", adaptation="low_rank")
    np.testing.assert_array_equal(own.posterior["a"], low_rank.posterior["a"])


@pytest.mark.parametrize(("last", "stuck"), [(6, True), (5, False), (0, False)])
def test_a_stuck_chain_diverges_at_the_end_of_its_tuning(last: int, stuck: bool) -> None:
    """A metric without a usable step size, for low_rank of about one of 30 chains."""
    diverging = np.arange(TUNE) >= TUNE - last
    diverging[:30] = True
    assert kernel._is_stuck(SimpleNamespace(stat=lambda _: diverging)) == stuck


@pytest.mark.usefixtures("compiled_once")
def test_only_nutpie_goes_on(model: pm.Model, tmp_path: Path, sampled: Any) -> None:
    of_pymc = {"step": [], "callback": print, "trace": {}, "return_inferencedata": False}
    for name, value in (of_pymc | {"nuts_sampler": "pymc"}).items():
        with pytest.raises(InputError, match=f"only nutpie goes on with a run, not {name}="):
            synk.pymc.sample(5, model=model, folder=tmp_path, **{name: value})
    for starts in ([{"a": 0.0}, {"a": 1.0}], [{"a": 0.0, "b": 1.0}]):
        with pytest.raises(InputError, match=r"initvals=.*give one dict for all chains"):
            synk.pymc.sample(5, model=model, folder=tmp_path, initvals=starts)
    with pm.Model() as counts:
        pm.Poisson("k", 2)
    with pytest.raises(InputError, match=r"discrete variables \(k\)"):
        synk.pymc.sample(5, model=counts, folder=tmp_path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="diag, draw_diag, low_rank by NUTS"):
        sampled(tmp_path, adaptation="flow")
    with pytest.raises(InputTypeError, match="give an integer"):
        begin(model, tmp_path, random_seed=-1)


def test_a_seed_that_was_not_given_is_kept(model: pm.Model, tmp_path: Path) -> None:
    found = []
    for seed in (None, None):
        with opened(tmp_path, model, seed, {}) as folder:
            found.append(folder.seed)
    assert found[0] == found[1]
    with opened(tmp_path, model, found[0][0], {}) as folder:
        assert folder.seed_of(0, 1) == folder.seed_of(0, 1)
        assert len({folder.seed_of(c, n) for c in range(9) for n in range(9)}) == 81


def test_a_full_disk_ends_the_call_and_the_next_goes_on(
    sampled: Any, tmp_path: Path, stopping: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping(3, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    with pytest.raises(InputError, match=r"No space left on device.*the same call goes on"):
        sampled(tmp_path)
    before = files_of(tmp_path)
    assert len(before) == 3
    stopping(100, Lost())
    with monkeypatch.context() as patch:
        for path in (f"{tmp_path}2", None):  # of a call in the user's model
            error = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            patch.setattr(kernel.Kernel, "drawn", raising(error))
            with pytest.raises(FileNotFoundError):
                sampled(tmp_path)
    sampled(tmp_path)
    assert before.items() <= files_of(tmp_path).items()


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*args: object, **given: object) -> None:
        raise error

    return fail


def test_an_error_of_the_last_bytes_is_raised(tmp_path: Path) -> None:
    """numpy writes small arrays through a buffer of C, and does not see an error of its end."""
    block = Block(np.zeros(150), {"position": np.zeros(3)})
    limits, by = resource.getrlimit(resource.RLIMIT_FSIZE), signal.SIGXFSZ
    before = signal.signal(by, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        with pytest.raises(OSError, match="File too large"):
            block.write(tmp_path / "draws")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(by, before)
    assert not os.listdir(tmp_path)


def test_lines_of_the_log_tell_how_far_a_run_is(
    sampled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(stored_chains, "_LINE_SECONDS", 0.0)
    monkeypatch.setattr(stored_chains, "tell", said.append)
    drawn = Kernel.drawn

    def diverging(self: Kernel, *of: Any) -> Block:
        found = drawn(self, *of)
        found.draws["sample_stats/diverging"] = True
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Kernel, "drawn", diverging)
        sampled(tmp_path, draws=20)
    assert said[:2] == ["chain 0: begins with its tuning", "chain 1: begins with its tuning"]
    assert "2 chains, 160 of 160 draws (tuning too), 40 divergences" in said[-1]
    del said[:]
    sampled(tmp_path, draws=30, chains=3)
    assert said[1] == "chain 1: goes on after 20 of 30 draws"


def test_an_interrupt_returns_the_draws_so_far(sampled: Any, tmp_path: Path, stopping: Any) -> None:
    stopping(0, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        sampled(tmp_path)
    stopping(5, KeyboardInterrupt())
    found = sampled(tmp_path, cores=1)
    assert found.posterior["a"].shape == (2, 50, 3)
    assert np.isfinite(found.posterior["a"].values[0]).all()
    assert np.isnan(found.posterior["a"].values[1]).all()
    calls = json.loads(found.posterior.attrs["synkhronos_run"])["calls"]
    assert [call["ended"] for call in calls] == ["KeyboardInterrupt", "interrupted"]


def test_an_interrupt_while_the_first_chain_is_tuned_returns_the_others(
    sampled: Any, tmp_path: Path, stopping: Any
) -> None:
    sampled(tmp_path, draws=30)
    shutil.rmtree(tmp_path / "chain-0")
    stopping(0, KeyboardInterrupt())
    found = sampled(tmp_path, draws=30)
    assert found.posterior["a"].shape == (2, 30, 3)
    assert np.isfinite(found.posterior["a"].values[1]).all()
    assert np.isnan(found.posterior["a"].values[0]).all()


def test_a_shortage_of_descriptors_is_no_missing_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its draws would be sampled again, or be missing in the result."""
    Block(np.zeros(20), {}).write(tmp_path / "draws")
    assert length_of(tmp_path / "draws") == 20
    error = OSError(errno.EMFILE, "Too many open files")
    monkeypatch.setattr(np.lib.format, "open_memmap", raising(error))
    with pytest.raises(OSError, match="Too many open files"):
        length_of(tmp_path / "draws")
    assert length_of(tmp_path / "none") == 0


def test_a_block_without_its_state_is_sampled_again(sampled: Any, tmp_path: Path) -> None:
    sampled(tmp_path, chains=1)
    before = files_of(tmp_path)
    for name in ("000001", "000000"):
        path = tmp_path / "chain-0" / f"draws-{name}.npy"
        path.write_bytes(path.read_bytes()[:-9])
        assert length_of(path) == 20  # the draws are whole
    (tmp_path / "chain-0" / "draws-000002.npy").unlink()
    sampled(tmp_path, chains=1)
    assert files_of(tmp_path) == before


def test_a_damaged_block_is_sampled_again(sampled: Any, tmp_path: Path) -> None:
    sampled(tmp_path, chains=1)
    before = files_of(tmp_path)
    paths = sorted(tmp_path.rglob("draws-*.npy"))
    paths[0].write_bytes(b"nothing")
    paths[1].write_bytes(paths[1].read_bytes()[:-900])
    assert [length_of(path) for path in paths[:2]] == [0, 0]
    (tmp_path / "chain-0" / ".0123456789abcdef.new").write_bytes(b"half")
    sampled(tmp_path, chains=1)
    assert files_of(tmp_path) == before
    assert not list(tmp_path.rglob(".*.new"))


def records(count: int, start: int) -> Block:
    kinds = [("posterior/x", "f8", (2, 3)), ("posterior/\u03bb", "i8", ()), ("s/text", TEXT, ())]
    draws = np.zeros(count, kinds)
    draws["posterior/x"] = np.arange(6 * count).reshape(count, 2, 3) + start
    draws["posterior/\u03bb"] = np.arange(count) + start
    return Block(draws, {"step": np.array(0.5)}, {"s/text": {0: f"from {start}"}})


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_a_metric_of_low_rank_follows_from_transformed_draws(rank: int) -> None:
    """nutpie tells the scales and where they changed, and draws before and after its map."""
    rng, length, draws = np.random.default_rng(rank), 6, 25
    directions = np.linalg.qr(rng.normal(size=(length, length)))[0].T[:rank]
    factors, scales = np.array([-0.8, 3.0, 9.0])[:rank], rng.uniform(0.01, 5, length)
    moved = rng.normal(size=(draws, length))
    points = scales * (moved + (moved @ directions.T * factors) @ directions + rng.normal(size=6))
    points[:5] = rng.normal(size=(5, length))  # of an earlier map
    told = np.full((draws, length), np.nan)
    told[1], told[4] = 7.0, scales
    stats = {"mass_matrix_stds": told, "unconstrained_draw": points, "transformed_position": moved}
    found = kernel._low_rank(SimpleNamespace(stat=stats.__getitem__))
    np.testing.assert_array_equal(found["scales"], scales)
    assert len(found["factors"]) == rank
    np.testing.assert_allclose(
        (found["directions"].T * found["factors"]) @ found["directions"],
        (directions.T * factors) @ directions,
        atol=1e-9,
    )
    np.testing.assert_allclose(found["directions"] @ found["directions"].T, np.eye(rank), atol=1e-9)


def test_stored_draws_are_indexed_as_arrays(tmp_path: Path) -> None:
    paths = [[tmp_path / f"{c} {b}" for b in range(3 - c)] for c in range(2)]
    whole = np.full((2, 11, 2, 3), np.nan)
    for c, chain in enumerate(paths):
        for b, path in enumerate(chain):
            count = 4 if b < 2 else 3
            records(count, 100 * c + 10 * b).write(path)
            whole[c, 4 * b : 4 * b + count] = records(count, 100 * c + 10 * b).draws["posterior/x"]
    found = Variable(
        ("chain", "draw", "i", "j"),
        LazilyIndexedArray(StoredDraws(paths, "posterior/x", 4, 11, np.dtype(("f8", (2, 3))))),
    )
    plain = Variable(found.dims, whole)
    keys: list[dict[str, Any]] = [
        *({}, {"draw": 5}, {"draw": -1, "chain": 1}, {"draw": slice(None, None, -3)}),
        *({"draw": [9, 2, 2], "j": [0, 2]}, {"i": 1, "draw": slice(2, 7)}, {"chain": [1], "j": 0}),
        {"draw": np.arange(11) > 6, "i": slice(1, None)},
    ]
    for key in keys:
        np.testing.assert_array_equal(found.isel(key).values, plain.isel(key).values, str(key))
    texts = StoredDraws(paths, "s/text", 4, 11, TEXT)
    assert Variable(("c", "d"), LazilyIndexedArray(texts)).values[1].tolist() == [
        *("from 100", None, None, None, "from 110", None, None, None, None, None, None)
    ]
    again = Block.read(paths[0][0])
    assert again is not None
    assert again.state["step"].shape == ()
    assert again.texts == {"s/text": {0: "from 0"}}
