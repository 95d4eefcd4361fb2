"""Groups of every size, and after every test: no process, descriptor or memory left."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytensor  # noqa: F401
import pytest
from gpu_commands import Exchange
from selection import COLLECTED, Collected, examples, mark_thorough

import synkhronos as synk
from synkhronos._compiling import progress
from synkhronos._compiling.kept import folder as folders
from synkhronos._compiling.kept.folder import Folder
from synkhronos._engine.group_options import GroupOptions
from synkhronos.testing import nodes

pytest_plugins = ["synkhronos.testing.plugin", "sharing"]

# under mpirun: the number of processes, each of which has so many members
NODES = nodes.serve_first()
MEMBERS = int(os.environ.get("SYNK_TEST_MEMBERS", "1"))
MANY_SECONDS = 3600  # the limit of a test with --many
SIZES = (1, 2, 3) if NODES == 1 else (NODES * MEMBERS,)

# how long an example takes depends on what else the machine does
hypothesis.settings.register_profile(
    "shared machine",
    deadline=None,
    max_examples=examples(100),
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("shared machine")

# what Hypothesis has found once, also for tests that run in another folder
os.environ.setdefault(
    "HYPOTHESIS_STORAGE_DIRECTORY", str(Path(__file__).parents[1] / ".hypothesis")
)

# a slow machine adds lines of progress to the log: only tests that ask for them get them
progress.FIRST = 3600.0

# a test run in the background starts with SIGINT ignored, one by nohup with SIGHUP, and its scripts
# would too
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# no test depends on what earlier runs have left, see `keeping`
os.environ[folders.SETTING] = "0"

# PyTensor has read its settings of this process: these are for the scripts that tests start
if scripts_mode := os.environ.get("SYNK_TEST_SCRIPTS_MODE"):
    flags = f"{os.environ.get('PYTENSOR_FLAGS', '')},mode={scripts_mode}"
    os.environ["PYTENSOR_FLAGS"] = flags.strip(",")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The fault tests' numbers: a sample of them, or those of scripts/chaos."""
    parser.addoption("--many", action="store_true", help="the whole numbers of the fault tests")


@pytest.fixture(scope="session")
def trials(request: pytest.FixtureRequest) -> Callable[[Any, Any], Any]:
    """Which or how many trials: few, or with --many, many."""
    return lambda few, many: many if request.config.getoption("many") else few


@pytest.fixture(autouse=True)
def _closed(nothing_is_left: None) -> Iterator[None]:
    """After each test the group of `fork` ends, and nothing is left."""
    yield
    synk.close()


@pytest.fixture(params=SIZES, ids=lambda n: f"size{n}")
def size(request: pytest.FixtureRequest) -> int:
    """The number of members."""
    return int(request.param)


@pytest.fixture(scope="module")
def lasting_groups(request: pytest.FixtureRequest) -> Iterator[dict[int, synk.Group]]:
    """One group of each size for a whole module: to fork a new one takes longer than most tests.

    A module has them by `usefixtures`, so that they start before what a test holds is counted. Its
    tests with the marker `new_group` get new ones all the same.
    """
    tests = [item for item in request.session.items if item.path == request.path]
    used = {name for item in tests for name in getattr(item, "fixturenames", ())}
    sizes = SIZES if "group" in used else (2,) if "group2" in used else ()
    made = {size: synk.Group(size) for size in sizes} if NODES == 1 else {}
    yield made
    for each in made.values():
        each.close()


@pytest.fixture
def group(size: int, request: pytest.FixtureRequest) -> Iterator[synk.Group]:
    """A group of each size, the current one."""
    with of_size(size, _lasting_of(request)) as made:
        yield made


@pytest.fixture
def group2(request: pytest.FixtureRequest) -> Iterator[synk.Group]:
    """A group of two."""
    with of_size(2, _lasting_of(request)) as made:
        yield made


def _lasting_of(request: pytest.FixtureRequest) -> Mapping[int, synk.Group]:
    """The lasting groups that this test may use."""
    if "lasting_groups" not in request.fixturenames or request.node.get_closest_marker("new_group"):
        return {}
    return request.getfixturevalue("lasting_groups")


@contextlib.contextmanager
def of_size(size: int, lasting: Mapping[int, synk.Group]) -> Iterator[synk.Group]:
    """A lasting group that is alive, else a new one.

    Where nodes have workers it is the same one while it lives, to save the start.
    """
    if size in lasting and lasting[size].alive:
        with lasting[size].active():
            yield lasting[size]
        return
    each, rest = divmod(size, NODES)
    if rest or (NODES > 1 and each != MEMBERS):
        pytest.skip(f"a group of {size} on {NODES} nodes of {MEMBERS} members")
    if NODES == 1 or MEMBERS == 1:
        with synk.Group(each) as made:
            yield made
        return
    if not _lasting or not _lasting[0].alive:
        _lasting[:] = [synk.Group(each)]
    with _lasting[0].active():
        yield _lasting[0]


_lasting: list[synk.Group] = []


@pytest.fixture(scope="session", autouse=NODES > 1)
def _lasts() -> Iterator[None]:
    """What a group that outlives a test holds counts as held before the first test; so does MPI."""
    with of_size(SIZES[0], {}):
        pass
    yield
    for group in _lasting:
        group.close()


@pytest.fixture(scope="module")
def _standin() -> Iterator[None]:
    """The path of GPUs without one, for the tests of a module, see `start`."""
    with pytest.MonkeyPatch.context() as patch:
        _forget_standin()
        patch.syspath_prepend(str(Path(__file__).parent / "support" / "standin"))
        patch.setattr(GroupOptions, "members_per_gpu", 2)
        yield
    _forget_standin()


@pytest.fixture
def start(_standin: None) -> Iterator[Callable[..., synk.Group]]:
    """Starts groups that take the path of GPUs without one: arrays of JAX's stay what they are.

    Devices are "cpu", members think they share a GPU, and every member finds
    `tests/support/standin` in the place of nccl4py and cuda.core.
    """
    groups: list[synk.Group] = []
    if "nccl.bindings.nccl" in sys.modules:
        sys.modules["nccl.bindings.nccl"].calls.clear()  # of the tests before

    def made(size: int, **options: Any) -> synk.Group:
        groups.append(synk.Group(size, "cpu", start="exec", **options))
        return groups[-1].__enter__()

    yield made
    for group in reversed(groups):
        group.__exit__(None, None, None)


@pytest.fixture(scope="module")
def _gpu_pair(_standin: None) -> Iterator[synk.Group]:
    made = synk.Group(2, "cpu", start="exec")
    made.run(Exchange())  # links the members, whose threads last as long as the group
    yield made
    made.close()


@pytest.fixture
def gpu_pair(_gpu_pair: synk.Group) -> Iterator[synk.Group]:
    """Two members as `start` makes them, the same for a module: each new worker imports JAX."""
    with _gpu_pair.active():
        yield _gpu_pair


def _forget_standin() -> None:
    for name in [n for n in sys.modules if n.split(".")[0] in ("nccl", "cuda")]:
        del sys.modules[name]


@pytest.fixture
def keeping(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Folder:
    """A folder in which compiled functions and models are kept; it is empty."""
    monkeypatch.setenv(folders.SETTING, str(folders.MEGABYTES))
    monkeypatch.setattr(folders, "place", lambda: tmp_path / "kept")
    return Folder(tmp_path / "kept")


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers, the same in every run."""
    return np.random.default_rng(20171013)


@pytest.hookimpl(tryfirst=True)  # before cases are left out for their markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In the order of paths; what runs JAX in this process comes last: no group is forked after it.

    Under mpirun the tests are those of whatever group they are given. With --many each may last.
    """
    mark_thorough(items)
    default = [item for item in items if not item.get_closest_marker("thorough")]
    config.stash[COLLECTED] = [Collected.of(i) for i in default if isinstance(i, pytest.Function)]
    if config.getoption("many"):
        for item in items:
            item.add_marker(pytest.mark.timeout(MANY_SECONDS))
    if NODES > 1:
        items[:] = [i for i in items if {"group", "group2"} & set(getattr(i, "fixturenames", ()))]
    items.sort(key=lambda i: ("jax" in i.nodeid.lower() or "/gpu/" in i.nodeid, i.path))


def pytest_collection_finish() -> None:
    """Exempt what is imported by now from garbage collection, here and in all forks.

    Else each group that is forked copies the memory of all that its collector visits, which makes
    tests with groups take 1.7 times the processor time. Of later objects the oldest are visited
    more rarely than by default, 10: that was 3 of 26 s of `pymc/test_repeated.py`.
    """
    _find_constants()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], 100)


@hypothesis.settings(max_examples=3, derandomize=True, database=None)
@hypothesis.given(st.lists(st.integers(), min_size=200, max_size=200), st.text())
def _find_constants(_: list[int], __: str) -> None:
    """Hypothesis looks for constants in the tests before it takes one: here, for all forks.

    Each fork that draws its own cases would do so, in most of the time that it takes. The first
    text of a checkout takes 4 s: Hypothesis lists all characters, and keeps the list in a file.
    """


def pytest_sessionfinish() -> None:
    """No group may outlive the tests."""
    synk.close()
    left = list(Path("/dev/shm").glob("*synk*"))
    assert not left, left
