"""The engine's own tests under mpirun: the first process runs them on a group of all nodes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from launching import Job, launcher
from selection import thorough

TESTS = Path(__file__).parents[1]
CONFORMANCE = ["transport/test_communicators.py"]
COLLECTIVES = [*CONFORMANCE, "api/test_collectives.py"]
ENGINE = [
    *COLLECTIVES,
    "api/test_functions.py",
    "api/test_updates_in_calls.py",
    "engine/test_compilations.py",
]
REST = [
    "api/test_data.py",
    "api/test_consistency.py",
    "extensions/test_train.py",
    "extensions/test_checkpoints.py",
]

# In a group that several tests share: these count what a new one has, or list three members.
_SHARED = (
    "test_names",
    "test_outputs_keep_their_dtype",
    "test_one_variable_in_two_functions_is_one",
    "test_functions_dropped_are_forgotten",
    "test_batch_s",
    "test_batch_s_for_each_member",
    "test_means_over_scattered_sliceables_are_weighted",
)
_NOT_SHARED = " and ".join(f"not {name}" for name in _SHARED)


def check(
    kind: str,
    nodes: int,
    members: int,
    files: list[str],
    folder: Path,
    only: str = "",
    marked: str = "",
) -> None:
    """Run tests in a job; all pass, and nothing of the job is left."""
    command = [sys.executable, "-P", "-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider"]
    command += ["-p", "no:zarr"]  # zarr's plugin takes half a second to import
    command += [f"--rootdir={TESTS.parent}", "-c", str(TESTS.parent / "pyproject.toml")]
    command += ["-m", marked, "-k", only, *(str(TESTS / f) for f in files)]
    given = {"SYNK_TEST_MEMBERS": str(members), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    made = Job(launcher(kind), nodes, [*command, "-p", "pytest_timeout"], folder, **given)
    try:
        code = made.wait(limit=900)
        assert code == 0, made.text
        assert " passed" in made.text
        made.check_gone()
    finally:
        made.kill()


@pytest.mark.thorough  # functions and reductions: test_node_numbers.py
@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "members", "files", "only"),
    [
        (2, 1, ["api/test_functions.py"], "test_every_reduction or batch_s"),
        *thorough(
            (2, 2, ["api/test_collectives.py"], "weighted or every_verb and float32"),
            (2, 2, COLLECTIVES, "communicator or channel or every_verb and int8"),
        ),
    ],
)
def test_parts_of_the_engine(
    nodes: int, members: int, files: list[str], only: str, tmp_path: Path
) -> None:
    """Of what `test_engine` runs, that which differs most from one node."""
    check("mpich", nodes, members, files, tmp_path, only, "not thorough")


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.parametrize(
    ("kind", "nodes", "members", "files", "only"),
    [
        ("mpich", 2, 1, ENGINE + REST, ""),
        ("openmpi", 2, 1, ENGINE, ""),
        ("mpich", 3, 1, COLLECTIVES, ""),
        ("openmpi", 3, 1, ["api/test_functions.py"], "float32 or batch or gather or update"),
        ("mpich", 2, 2, ["api/test_collectives.py", "api/test_functions.py"], _NOT_SHARED),
        ("mpich", 2, 2, REST, "not test_rules_equal_serial or momentum or amsgrad"),
        ("openmpi", 2, 2, CONFORMANCE, ""),
    ],
)
def test_engine(
    kind: str, nodes: int, members: int, files: list[str], only: str, tmp_path: Path
) -> None:
    check(kind, nodes, members, files, tmp_path, only)
