"""`map`: models of one graph, items in slots, how they end, and what a folder holds."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import re
import signal
import stat
import time
import weakref
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import fleet_cases as cases
import numpy as np
import pymc as pm
import pytensor.sparse
import pytest
from fork_to import fork_to
from modes import FAST
from pymc.sampling.mcmc import assign_step_methods
from scipy import sparse
from selection import thorough

import synkhronos as synk
from synkhronos._errors import InputError, InputTypeError, SynkhronosError
from synkhronos.pymc._density.nutpie import compiled_soon
from synkhronos.pymc._map import compilations, where
from synkhronos.pymc._map.bar import Bar
from synkhronos.pymc._map.compilations import Compilations
from synkhronos.pymc._map.digests import digest_of
from synkhronos.pymc._map.fitted import Sampled
from synkhronos.pymc._map.names import file_of, seed_of
from synkhronos.pymc._map.one_graph import one_graph
from synkhronos.pymc._map.parent import Fleet, Item
from synkhronos.pymc._map.record import Record
from synkhronos.pymc._map.results import Folder, packed_result, texts_of, write_result

QUIET = {"progressbar": False, "quiet": True, "compute_convergence_checks": False}
SHORT = {"draws": 20, "tune": 20, "chains": 2, "nuts_sampler": "nutpie"}


@pytest.mark.parametrize("name", cases.MAKERS)
def test_models_of_one_graph_have_one_key(name: str) -> None:
    """Whatever the length; a model of the graph with the data of another has its log-density."""
    make = cases.MAKERS[name]
    first, other = one_graph(make(1, 30)), one_graph(make(2, 40))
    assert first.key == other.key
    assert first.data.keys() == other.data.keys()
    model, shared = first.make()
    for key, value in other.data.items():
        shared[key].set_value(value)
    wanted = make(2, 40)
    at = wanted.initial_point()
    found = model.compile_logp(mode=FAST)(at)
    assert found == pytest.approx(wanted.compile_logp(mode=FAST)(at), rel=1e-12)
    assert found != make(1, 30).compile_logp(mode=FAST)(at)


def test_shared_variables_of_a_model_keep_their_values() -> None:
    """Those of a copy are its own, whatever data it gets; sparse data are compiled for itself."""
    first, other = cases.shared_variable(1, 30), cases.shared_variable(2, 40)
    before = first.plain.get_value()
    _, shared = one_graph(first).make()
    shared["x"].set_value(other.plain.get_value())
    assert np.array_equal(first.plain.get_value(), before)
    matrix = pytensor.shared(sparse.csr_matrix(np.eye(3)), name="design")
    with pm.Model() as model:
        pm.Normal(
            "y", pytensor.sparse.dot(matrix, pm.Normal("a", shape=(3, 1))), observed=[[1.0]] * 3
        )
    with pytest.raises(NotImplementedError, match="design is a shared variable of Sparse"):
        one_graph(model)


def plain(
    width: float = 1.0, rows: int = 30, upper: float = 2.0, name: str = "a", start: Any = None
) -> Any:
    with pm.Model() as model:
        a = pm.Uniform(name, 0, upper, initval=start)
        pm.Normal("y", a, width, observed=np.arange(rows))
    return model


def per_row(rows: int = 30) -> Any:
    x = np.arange(float(rows))
    with pm.Model() as model:
        pm.Normal("y", pm.Deterministic("mean", pm.Normal("a") * x), 1, observed=x)
    return model


def bounded(at: float) -> Any:
    with pm.Model() as model:
        below = pm.Truncated("a", pm.Normal.dist(), lower=np.array([at, at]), shape=2)
        pm.Normal("y", below.sum(), 1, observed=np.arange(9.0))
    return model


def transformed(upper: float) -> Any:
    with pm.Model() as model:
        a = pm.Normal("a", transform=pm.distributions.transforms.Interval(0, upper))
        pm.Normal("y", a, 1, observed=np.arange(9.0))
    return model


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (plain(), plain(width=2.0)),
        (plain(), plain(upper=3.0)),
        (plain(), plain(name="b")),
        (plain(start=0.5), plain(start=0.75)),
        (plain(start=np.array(0.5)), plain()),
        (per_row(), per_row(40)),
        (bounded(0.0), bounded(-np.inf)),
        (transformed(1.0), transformed(2.0)),
    ],
    ids=[
        "number",
        "bound",
        "name",
        "start",
        "no start",
        "shape of a Deterministic",
        "no bound",
        "transform",
    ],
)
def test_other_graphs_have_other_keys(one: Any, other: Any) -> None:
    assert one_graph(one).key == one_graph(one).key
    assert one_graph(one).key != one_graph(other).key


def test_a_model_keeps_its_initial_values_and_checks() -> None:
    model = plain(start=0.5)
    model.check_bounds = False
    made, _ = one_graph(model).make()
    assert not made.check_bounds
    assert made.initial_point(0) == model.initial_point(0) != plain().initial_point(0)


def test_a_model_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, by nutpie; draws are those of the item's own data, whatever came before."""
    items = [(1, 30), (2, 40), (1, 30)]
    differentiated = 0

    def assign(*args: Any, **kwargs: Any) -> Any:
        nonlocal differentiated
        differentiated += 1
        return assign_step_methods(*args, **kwargs)

    compiled = Compilations()
    monkeypatch.setattr(compiled, "_assign", assign)
    with compiled_soon(), compiled:  # as each process of `map`
        drawn = [pm.sample(model=cases.model_of(i), random_seed=3, **SHORT, **QUIET) for i in items]
        assert compiled.count == 1
        assert differentiated == 1
    slopes = [found["posterior"]["slopes"].values for found in drawn]
    assert np.array_equal(slopes[0], slopes[2])
    assert not np.array_equal(slopes[0], slopes[1])
    assert [found["observed_data"]["y"].size for found in drawn] == [30, 40, 30]


def test_models_that_cannot_be_copied_are_compiled_for_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pm.Model() as model:
        pm.Normal("a", initval=pm.Normal("b") + 1)
    found = Compilations()
    monkeypatch.setattr(found, "_compile", lambda given, **_: given)
    assert found.compiled(model, backend="numba") is model
    assert found.compiled(model, backend="jax") is model
    assert found.count == 2


def test_data_that_change_between_two_calls_are_read_again() -> None:
    """Of one model, whose step methods were assigned before."""
    model = cases.named_data(1, 30)
    found = Compilations()
    found.assigned(model)
    with model:
        pm.set_data({"x": np.zeros(30)})
    found.assigned(model)
    seen, graph = found._read
    assert seen is model
    assert graph is not None
    assert not graph.data["x"].any()


def test_few_compiled_models_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kept:
        shared_var_keys: tuple[()] = ()

    found = Compilations()
    monkeypatch.setattr(compilations, "_MOST", 2)
    monkeypatch.setattr(found, "_compile", lambda *_, **__: Kept())
    monkeypatch.setattr(compilations.Compiled, "with_data", lambda self, *_: self)
    keys = [found.compiled(plain(width=width), backend="numba") for width in (1.0, 2.0, 1.0, 3.0)]
    assert keys[0] is keys[2]
    assert found.count == 3
    assert found.compiled(plain(width=1.0), backend="numba") is keys[0]
    found.compiled(plain(width=2.0), backend="numba")
    assert found.count == 4


@pytest.mark.timeout(120)
def test_items_that_fail_are_named_and_the_rest_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Seeds follow from names: for any number of slots, in any order, whatever items there are."""
    caplog.set_level(logging.WARNING, "synkhronos")
    items = {name: name for name in ("raises", "dies", "late", "second", "third", "first")}
    given = {"folder": tmp_path, "random_seed": 1, "limit": 10, "cores": 2}
    fits = synk.pymc.map(cases.ended, items, **given)
    fit = Sampled(cases.ended, {}, 1)
    names = ["first", "second", "third", "fourth"]
    here = {name: fit(name, seed_of(1, name)) for name in names}
    assert dict(fits) == {name: here[name] for name in names[:3]}
    assert len({value for pair in here.values() for value in pair}) == 8
    assert fits.failed.keys() == {"raises", "dies", "late"}
    assert "ArithmeticError: this item raises" in fits.failed["raises"]
    assert "fleet_cases.py" in fits.failed["raises"]
    assert "killed by SIGKILL" in fits.failed["dies"]
    assert "longer than limit=10 seconds" in fits.failed["late"]
    assert json.loads((tmp_path / "failed.json").read_text()) == fits.failed
    assert {r.getMessage().split()[1] for r in caplog.records} == fits.failed.keys()
    assert "raises" not in fits
    with pytest.raises(SynkhronosError, match="item raises has failed: ArithmeticError"):
        fits["raises"]
    with pytest.raises(KeyError):
        fits["fourth"]
    found = [fits.get(name, "none") for name in ("raises", "fourth", "first")]
    assert found == ["none", "none", here["first"]]


@pytest.mark.timeout(120)
def test_a_folder_is_resumed(tmp_path: Path) -> None:
    """Items with a result are not fitted again; new ones and failed ones are."""
    results, place = tmp_path / "results", tmp_path / "place"
    place.mkdir()
    (place / "b").touch()
    fit = cases.Counted(place)
    first = synk.pymc.map(fit, {"a": "a", "b": "b"}, folder=results, random_seed=1, cores=1)
    assert isinstance(first, synk.pymc.Fits)
    assert (dict(first), list(first.failed)) == ({"a": "a"}, ["b"])
    assert sorted(fit.calls()) == ["a", "b"]
    (place / "b").unlink()
    items = {"c": "c", "b": "b", "a": "a"}
    again = synk.pymc.map(fit, items, folder=results, cores=1)
    assert (dict(again), again.failed) == (items, {})
    assert sorted(fit.calls()) == ["b", "c"]
    assert json.loads((results / "failed.json").read_text()) == {}
    whole = synk.pymc.map(fit, items, folder=results, random_seed=1)
    assert (dict(whole), fit.calls()) == (items, [])
    with pytest.raises(InputError, match=r"random_seed=2, and the results in .* have 1"):
        synk.pymc.map(fit, items, folder=results, random_seed=2)
    with pytest.raises(InputError, match="another item named a: remove it"):
        synk.pymc.map(fit, {"a": "other"}, folder=results)
    results.chmod(0o770)
    with pytest.raises(InputError, match=r"another user may write to .* results are pickles"):
        synk.pymc.map(fit, items, folder=results)
    assert fit.calls() == []


def test_items_with_a_result_are_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []

    def in_memory(data: bytes, name: str) -> None:
        sent.append(data)
        raise LookupError

    items = {"a": b"a" * 10_000, "b": b"b" * 100}
    Folder(tmp_path).entropy(1, 1)
    write_result(tmp_path, "a", packed_result("a", digest_of(items["a"]), 1, 1))
    monkeypatch.setattr("synkhronos.pymc._map.mapped.in_memory", in_memory)
    with pytest.raises(LookupError):
        synk.pymc.map(cases.ended, items, folder=tmp_path)
    assert (items["a"] in sent[0], items["b"] in sent[0]) == (False, True)


def test_a_task_of_an_array_has_a_folder_and_a_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNKHRONOS_PART", "2/3")
    for given in ({"folder": tmp_path / "fits"}, {"random_seed": 1}):
        with pytest.raises(InputError, match=r"task 2 of 3 of an array.* give folder= and random"):
            synk.pymc.map(cases.ended, ["a"], **given)
    found = synk.pymc.map(cases.ended, ["a"], folder=tmp_path / "fits", random_seed=1)
    assert (dict(found), found.failed) == ({}, {})


@pytest.fixture
def result(tmp_path: Path) -> tuple[Folder, Path]:
    """A folder with the result 1 of the item "a", and its file."""
    folder = Folder(tmp_path / "results")
    folder.entropy(1, 1)
    write_result(folder.path, "a", packed_result("a", "digest", 1, 1))
    assert folder.has("a", "digest")
    assert folder.read("a") == 1
    return folder, folder.path / file_of("a")


def test_results_are_for_their_owner_only(result: tuple[Folder, Path]) -> None:
    """T5: a file or a folder that a group or others may write to is not unpickled."""
    folder, file = result
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(p.stat().st_mode) for p in folder.path.iterdir()} == {0o600}
    for place, mode in ((file, 0o620), (file, 0o602), (folder.path, 0o770), (folder.path, 0o702)):
        before = stat.S_IMODE(place.stat().st_mode)
        place.chmod(mode)
        with pytest.raises(InputError, match="another user may write to"):
            Folder(folder.path).read("a")
        place.chmod(before)
    assert folder.read("a") == 1


@pytest.mark.skipif(os.getuid() != 0, reason="it takes root to give a file to another user")
def test_results_of_another_user_are_refused(result: tuple[Folder, Path]) -> None:
    folder, file = result
    os.chown(file, 65534, -1)
    for look in (lambda: folder.read("a"), lambda: folder.has("a", "digest")):
        with pytest.raises(InputError, match="another user may write to"):
            look()
    os.chown(folder.path, 65534, -1)
    with pytest.raises(InputError, match="another user may write to"):
        Folder(folder.path)


DAMAGE = {
    "empty": lambda whole: b"",
    "no head": lambda whole: whole.partition(b"\n")[2],
    "half": lambda whole: whole[:-3],
    "longer": lambda whole: whole + b"x",
    "a bit": lambda whole: whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:],
    "list": lambda whole: b"[1]\n" + whole,
    "other keys": lambda whole: b"{}\n" + whole,
    "binary": lambda whole: b"\xff\xfe\n",
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_result_is_missing(
    result: tuple[Folder, Path], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is named, and never counts as done."""
    folder, file = result
    file.write_bytes(DAMAGE[kind](file.read_bytes()))
    assert not folder.has("a", "digest")
    assert f"{file} is damaged: item a is fitted again" in caplog.text
    with pytest.raises(SynkhronosError, match=re.escape(str(file))):
        folder.read("a")
    write_result(folder.path, "a", packed_result("a", "digest", 1, 2))
    assert folder.has("a", "digest")
    assert folder.read("a") == 2


def test_a_result_that_is_gone(result: tuple[Folder, Path]) -> None:
    folder, file = result
    folder.forget("a")
    assert not file.exists()
    folder.forget("a")
    assert not folder.has("a", "digest")
    with pytest.raises(SynkhronosError, match=r"item a, .*\.fit', cannot be read: No such file"):
        folder.read("a")


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[1]", '{"random_seed": "1"}', "\xff", '{"random_seed": -1}', "[" * 100_000],
)
def test_a_damaged_seed(result: tuple[Folder, Path], text: str) -> None:
    folder, _ = result
    (folder.path / "seed.json").write_text(text, encoding="latin1")
    with pytest.raises(InputError, match=r"seed.json' is damaged: it has no random_seed"):
        folder.entropy(1, 1)


def test_results_of_another_seed(result: tuple[Folder, Path]) -> None:
    """Also if the note of the seed is gone; results without their seed are earlier ones."""
    folder, file = result
    (folder.path / "seed.json").unlink()
    again = Folder(folder.path)
    again.entropy(2, 2)
    with pytest.raises(InputError, match=r"result of item a by random_seed=1, and this call has 2"):
        again.has("a", "digest")
    file.write_bytes(file.read_bytes().replace(b'"seed": "1", ', b""))
    assert again.has("a", "digest")


@pytest.mark.timeout(120)
def test_results_of_other_arguments(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning names them, if there are such results."""
    given: dict[str, Any] = {"folder": tmp_path, "random_seed": 1, "cores": 1, "chains": 2}

    def warned(names: str, **arguments: object) -> bool:
        caplog.clear()
        synk.pymc.map(cases.ended, {name: name for name in names.split()}, **given, **arguments)
        return f"results in {tmp_path} are of calls with draws=100, and stay" in caplog.text

    with monkeypatch.context() as patch:
        patch.setattr("synkhronos.pymc._map.mapped.Fleet", EachFails)
        assert not warned("raises", draws=50)
    assert not warned("first raises", draws=100, tune=5, step=object())
    assert not warned("first", draws=100, tune=5)
    assert warned("first", draws=200, tune=5)


def test_each_result_has_its_own_arguments(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whichever call was the last one; earlier results have those that the folder has noted."""
    far = {"a": np.arange(100.0)}
    for name, given in (("a", {"draws": 100}), ("b", {"draws": np.int64(200), "initvals": far})):
        write_result(tmp_path, name, packed_result(name, "", 1, name, texts_of(given)))

    def warned(names: str, **arguments: object) -> str:
        caplog.clear()
        folder = Folder(tmp_path)
        folder.entropy(1, 1, arguments)
        assert not folder.missing(dict.fromkeys(names, ""))
        folder.warn_of_others()
        return caplog.text

    assert not warned("b", draws=200, initvals=far, step=object())
    assert "are of calls with draws=100, initvals=None, and stay" in warned(
        "ab", draws=200, initvals=far
    )
    moved = {"a": far["a"] + (far["a"] == 99)}
    assert re.search(r"are of calls with initvals=\{'a': \[0.0, .*, and stay", warned(
        "b", draws=200, initvals=moved
    ))  # fmt: skip
    file = tmp_path / file_of("a")
    file.write_bytes(file.read_bytes().replace(b'"arguments": {"draws": "100"}, ', b""))
    assert not warned("a", draws=200)
    noted = {"random_seed": 1, "arguments": {"draws": 50}}
    (tmp_path / "seed.json").write_text(json.dumps(noted))
    assert "are of calls with draws=50, and stay" in warned("a", draws=200)
    assert not warned("a", draws=50)


@pytest.mark.thorough  # a part of its own: the tests above
@pytest.mark.timeout(120)
def test_a_map_in_an_item_of_a_part_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part that a user has exported divides the items of the script, and no others."""
    monkeypatch.setenv("SYNKHRONOS_PART", "2/2")
    fits = synk.pymc.map(cases.part, range(3), folder=tmp_path, random_seed=1, cores=1)
    assert dict(fits) == {1: (1, 1)}


def test_files_that_cannot_be_read(result: tuple[Folder, Path]) -> None:
    """The reason is said; they are not called damaged, and nothing is fitted again."""
    folder, file = result
    for path in (folder.path / "seed.json", file):
        path.unlink(missing_ok=True)
        path.mkdir()
    with pytest.raises(InputError, match=r"seed.json' cannot be read: Is a directory"):
        folder.entropy(1, 1)
    with pytest.raises(SynkhronosError, match=r"item a, .*\.fit', cannot be read: Is a directory"):
        folder.has("a", "digest")
    with pytest.raises(
        SynkhronosError, match=r"item a, .*\.fit', cannot be removed: Is a directory"
    ):
        folder.forget("a")


def test_many_items_fail(tmp_path: Path) -> None:
    """The note of all of them is not written for each, and is whole after an error."""
    folder, notes = Folder(tmp_path / "f"), []
    note = folder.note_failed

    def slow(failed: Mapping[Hashable, str]) -> None:
        notes.append(len(failed))
        time.sleep(0.01)
        note(failed)

    def fail(record: Record) -> None:
        record.done(Item("good", (0, 1), ""))
        for i in range(300):
            record.fail(Item(i, (0, 1), ""), "it raises")
        raise ArithmeticError

    folder.note_failed = slow  # type: ignore[method-assign]
    bar = Bar("", 1, enabled=False)
    with pytest.raises(ArithmeticError), Record(folder, bar) as record:
        fail(record)
    assert notes[0] == 1
    assert len(notes) < 30
    assert notes[-1] == 300
    assert len(json.loads((tmp_path / "f" / "failed.json").read_text())) == 300


@pytest.mark.timeout(120)
@pytest.mark.parametrize("end", ["drops it", "exits", "multiprocessing"])
def test_a_fork_leaves_a_temporary_folder_to_its_parent(end: str) -> None:
    """It lasts as long as the result in the process that has made it."""
    folder = Folder(None)
    path = folder.path
    (path / "result").touch()

    def in_a_fork() -> None:
        nonlocal folder
        if end == "drops it":
            del folder

    if end == "multiprocessing":
        process = multiprocessing.get_context("fork").Process(target=in_a_fork)
        process.start()
        process.join()
    elif pid := os.fork():
        os.waitpid(pid, 0)
    else:
        try:
            in_a_fork()
            if end == "exits":
                [ours] = [f for f in weakref.finalize._registry if f.peek()[0] is folder]
                ours()  # as all are called by `sys.exit`
        finally:
            os._exit(0)
    assert (path / "result").exists()
    del folder
    assert not path.exists()


def test_the_folder_of_a_killed_process_goes_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of a living process, and a new one, which may not be locked yet, stay."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def killed() -> None:
        folder = Folder(None)
        (folder.path / "result").touch()
        os.kill(os.getpid(), signal.SIGKILL)

    ours = Folder(None)
    assert os.waitpid(fork_to(killed), 0)[1] == signal.SIGKILL
    [left] = set(tmp_path.iterdir()) - {ours.path}
    for old in (False, True):
        for each in (ours.path, left):
            if old:
                os.utime(each, (0, 0))
        Folder(None)
        assert (ours.path.exists(), left.exists()) == (True, not old)


@pytest.mark.timeout(120)
def test_an_interrupt_leaves_the_results(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        synk.pymc.map(cases.interrupts, range(3), folder=tmp_path, cores=1, random_seed=1)
    assert len(list(tmp_path.glob("*.fit"))) == 1
    fits = synk.pymc.map(cases.interrupts, [0], folder=tmp_path, cores=1)
    assert dict(fits) == {0: 0}


@pytest.mark.timeout(120)
def test_a_fit_that_fails_always_ends_the_fleet() -> None:
    items = ["raises"] * 12
    with pytest.raises(SynkhronosError, match=r"the first 10 items have failed, .* this item rai"):
        synk.pymc.map(cases.ended, items, cores=1)


class Asking:
    """A process that has asked for an item."""

    asked, item, dead = True, None, True

    def __init__(self) -> None:
        self.replies: list[Mapping[str, Any]] = []
        self.limits: list[float] = []
        self.limit, self.reply = self.limits.append, self.replies.append


def test_a_process_that_has_ended_gets_no_item(tmp_path: Path) -> None:
    """So no item fails that has not run."""
    with Bar("", 1, enabled=False) as bar:
        record = Record(Folder(tmp_path), bar)
        fleet = Fleet([[0]], None, record, 7)  # type: ignore[arg-type]
        fleet._left = items = [Item("a", (0, 1), "")]
        process: Any = Asking()
        fleet.take(process, {"next": True})
        fleet.lost(process, "killed")
        assert (fleet._left, process.replies, record.failed) == (items, [], {})
        process.dead = False
        fleet.take(process, {"next": True})
        assert [reply["name"] for reply in process.replies] == ["a"]
        fleet.take(process, {"raised": "an error"})
        assert (list(record.failed), process.limits) == (["a"], [7, 7])


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kills", [1, *thorough(3)])
def test_processes_that_are_killed_while_they_start(
    kills: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one takes the items, unless none starts."""
    started, processes = Fleet.started, list[Any]()

    def killed(self: Fleet, cores: Any) -> Any:
        processes.append(started(self, cores))
        if len(processes) <= kills:
            processes[-1].kill()
        return processes[-1]

    monkeypatch.setattr(Fleet, "started", killed)
    given: dict[str, Any] = {"cores": 1, "progressbar": False}
    if kills == 1:
        assert dict(synk.pymc.map(cases.slow, [0.0, 0.1], **given)) == {0: 0.0, 1: 0.1}
        return
    with pytest.raises(SynkhronosError, match="3 processes did not start"):
        synk.pymc.map(cases.slow, [0.0, 0.1], **given)


class EachFails:
    """In place of a fleet: each item fails."""

    def __init__(self, *args: Any) -> None:
        self.record = args[2]

    def fit(self, items: list[Item]) -> None:
        """They are noted as failed."""
        for item in items:
            self.record.fail(item, "it raises")


def test_many_items_of_a_resumed_call_may_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder has a result of another item, so the function is not wrong."""
    folder = Folder(tmp_path)
    folder.entropy(1, 1)
    write_result(tmp_path, 0, packed_result("0", digest_of("a"), 1, "a"))
    monkeypatch.setattr("synkhronos.pymc._map.mapped.Fleet", EachFails)
    given: dict[str, Any] = {"folder": tmp_path, "random_seed": 1, "cores": 1}
    fits = synk.pymc.map(cases.ended, ["a", *["raises"] * 12], **given)
    assert dict(fits) == {0: "a"}
    assert list(fits.failed) == list(range(1, 13))
    with pytest.raises(SynkhronosError, match="the first 10 items have failed"):
        synk.pymc.map(cases.ended, {i: "raises" for i in range(1, 13)}, **given)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"fit": 1}, "fit=1: give a function"),
        ({"items": 3}, "items=3: give a list"),
        ({"items": "abc"}, "items='abc': give a list"),
        ({"items": []}, "there is no item"),
        ({"items": {1: 0, "1": 0}}, "two items are named 1"),
        ({"items": [open]}, None),
        ({"fit": lambda item, held=(i for i in ()): item}, "fit.* refers to what cannot be sent"),
        ({"cores": 0}, "cores=0"),
        ({"members": 1000}, "members=1000: there are"),
        ({"random_seed": -1}, "random_seed=-1"),
        ({"limit": -1}, "limit=-1"),
        ({"model": 1}, "model= is not for all items"),
        ({"folder": 3}, "folder=3: give a path, or an address as a text"),
        ({"folder": Path("s3://bucket/fits")}, "folder='s3:/bucket/fits': a path has one slash"),
    ],
)
def test_what_is_not_possible(
    given: dict[str, Any], error: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said before anything starts."""

    class Started(Exception):
        pass

    def start(*args: object, **kwargs: object) -> None:
        raise Started

    monkeypatch.setattr("synkhronos.pymc._map.mapped.Fleet", start)
    options = {"fit": cases.ended, "items": ["a"], **given}
    if error is None:
        with pytest.raises(Started):
            synk.pymc.map(**options)
        return
    with pytest.raises((InputError, InputTypeError), match=re.escape("map: ") + ".*" + error):
        synk.pymc.map(**options)


def test_slots_of_a_task_of_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm may have bound it to all cores; `cores` says another number."""
    monkeypatch.setattr(where, "available", lambda: list(range(8)))

    def slots(**given: Any) -> list[int]:
        return [len(cores) for cores in where.where_of("map", **given).slots(100)]

    assert slots() == [1] * 8
    for text, expected in (("3", 3), ("64", 8), ("0", 8), ("", 8), ("x", 8)):
        monkeypatch.setenv("SLURM_CPUS_PER_TASK", text)
        assert len(slots()) == expected
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "4")
    assert slots(members=2) == [2, 2]
    assert slots(cores=6, members=3) == [3, 3]
    with pytest.raises(InputError, match="members=5: there are 4 cores"):
        slots(members=5)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", thorough("model", "model and data"))
def test_draws_do_not_depend_on_slots(kind: str) -> None:
    """Models of several lengths are sampled by nutpie, in one slot and in two.

    Each process chooses their metric.
    """
    given: dict[str, Any] = {**SHORT, "random_seed": 1, "adaptation": "auto"}
    if kind == "model":
        fit, items = cases.tilted_of, {name: (ord(name), 200 + ord(name)) for name in "abcd"}
        given |= {"draws": 1000, "tune": 1000}
    else:
        fit, items = cases.SameModel(), {name: ord(name) for name in "abcd"}
    one = synk.pymc.map(fit, items, cores=1, **given)
    two = synk.pymc.map(fit, dict(reversed(items.items())), cores=2, **given)
    assert (one.failed, two.failed) == ({}, {})
    for name in items:
        said = json.loads(one[name]["sample_stats"].attrs["inference_library_settings"])
        assert said["adaptation"] == ("low_rank" if kind == "model" else "diag")
        for variable, values in one[name]["posterior"].data_vars.items():
            assert np.array_equal(values, two[name]["posterior"][variable]), (name, variable)
