"""Groups of every size, and after every test: no process, descriptor or memory left."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import synkhronos as synk

pytest_plugins = ["synkhronos.testing.plugin"]

MANY_SECONDS = 3600  # the limit of a test with --many
SIZES = (1, 2, 3)

# a test run in the background starts with SIGINT ignored, and its scripts would too
signal.signal(signal.SIGINT, signal.default_int_handler)


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


@pytest.fixture
def group(size: int) -> Iterator[synk.Group]:
    """A group of each size, the current one."""
    with synk.Group(size) as made:
        yield made


@pytest.fixture
def group2() -> Iterator[synk.Group]:
    """A group of two."""
    with synk.Group(2) as made:
        yield made


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers, the same in every run."""
    return np.random.default_rng(20171013)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What runs JAX in this process comes last: no group can be forked from it afterwards.

    With --many each test may last.
    """
    if config.getoption("many"):
        for item in items:
            item.add_marker(pytest.mark.timeout(MANY_SECONDS))
    items.sort(key=lambda item: "jax" in item.nodeid.lower())


def pytest_sessionfinish() -> None:
    """No group may outlive the tests."""
    synk.close()
    left = list(Path("/dev/shm").glob("*synk*"))
    assert not left, left
