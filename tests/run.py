"""Run a selection of the tests, and say how long it took and which files took most.

    python -P tests/run.py default | quick | all | lowest | newest | companions

First the tests that may run beside others, in two processes more than there are cores, since many
tests wait; then those with the marker `unhurried`, two for each core; then those with the marker
`alone`, one after the other. What the first of the processes writes is shown at once.

A test that forks a group takes three quarters of the processor time where the process has imported
neither PyMC nor numba. So the first kind has two collections, and each of its processes is two, one
after the other (`support/sharing.py`). The tests of promises are told of the tests of both.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]
DEAREST = 10  # files
SELECTIONS = {"default": "not thorough", "quick": "not thorough and not slow", "all": ""}
SELECTIONS["lowest"] = SELECTIONS["newest"] = SELECTIONS["quick"]
SELECTIONS["companions"] = SELECTIONS["default"]
ENGINE = ("proofs", "compiling", "plan", "host", "backends", "transport", "engine", "api")
ENGINE += ("test_architecture.py", "test_docstrings.py")
EXTRAS = (  # what each optional library does for us
    *("extensions/test_checkpoints.py", "fuzz", "interop", "nn", "ops", "search", "sklearn", "zoo"),
    *("training/sources", "training/test_config.py", "training/test_exporters.py"),
    *("training/test_history.py", "cli/test_report.py", "cli/test_train.py", "mpi/test_launch.py"),
    *("pymc/test_models.py", "pymc/test_sample.py", "pymc/test_docs.py"),
    "pymc/test_fleet_pools.py",
)
COMPANIONS = (  # what reads or calls PyMC; scripts/test --lowest has EXTRAS, with the same PyMC
    *("recipes", "companions", "bambi", "everywhere", "fast", "parallel", "samplers", "nutpie"),
    *("after", "late_arviz"),
)
LARGE = (  # those that import a large library, and most of those that compile by numba
    *("tests/pymc", "tests/compiling", "tests/libraries", "tests/nn", "tests/ops", "tests/search"),
    *("tests/sklearn", "tests/zoo", "tests/cli/test_report.py", "tests/cli/test_search.py"),
    *("tests/backends/test_machine_code.py", "tests/end_to_end/test_notebook.py"),
    *("tests/training/sources", "tests/training/test_alternate.py"),
    *(f"tests/training/test_{name}.py" for name in ("exporters", "kept", "metrics")),
)
XLA_FLAGS = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
PROMISES = "tests/test_promises.py"  # it looks at all tests
NONE_WENT_WRONG = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


def run(selection: str, parts: Mapping[Path, Sequence[str]], processes: int) -> list[int]:
    """Run pytest for each part, at the same time; the exit statuses.

    Parameters
    ----------
    selection : str
        Of markers.
    parts : mapping of Path to sequence of str
        The arguments of each; it leaves reports beside the path.
    """
    begun = [start(selection, given, place, processes) for place, given in parts.items()]
    try:
        return [each.wait() for each in begun]
    except KeyboardInterrupt:
        for each in begun:
            each.send_signal(signal.SIGINT)  # it may have reached this process only
        for each in begun:
            each.wait()
        raise


def start(
    selection: str, arguments: Sequence[str], place: Path, processes: int
) -> subprocess.Popen[bytes]:
    """Start pytest with these arguments."""
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "no:zarr", "-m", selection]  # zarr's plugin takes half a second to import
    command.append(f"--processes={processes}")
    given = place.with_suffix(".txt")  # so that the command stays short: runs record it
    given.write_text("\n".join(arguments))
    files = f"--junit-xml={place.with_suffix('.xml')}", f"--basetemp={place}"
    return subprocess.Popen([*command, f"@{given}", *files], cwd=ROOT)


def run_beside(selection: str, paths: list[str], folder: Path) -> list[int]:
    """Run the tests that may run beside others; the exit statuses."""
    files = test_files(paths or ["tests"])
    large = [f for f in files if f.startswith(LARGE)]
    small = [f for f in files if f != PROMISES and f not in large]
    parts = {kind: files for kind, files in (("small", small), ("large", large)) if files}
    if not paths:
        parts["large"] += [PROMISES, f"--whole={','.join(parts)}"]
    if large:
        parts["large"].append("--numba")
    processes = len(os.sched_getaffinity(0)) + 2
    return run(selection, {folder / kind: given for kind, given in parts.items()}, processes)


def save_time(selection: str) -> None:
    """Set environment variables that make tests cheaper."""
    # its new threads spin for 25 ms before they sleep, and each group makes it start some
    os.environ["OPENBLAS_THREAD_TIMEOUT"] = "4"
    # PyTensor would note for each variable where it was made: a tenth of the time of compiling
    flags = [os.environ.get("PYTENSOR_FLAGS", ""), "traceback__limit=0"]
    if selection != "all":
        os.environ["SYNK_TEST_EXAMPLES"] = "few"  # of Hypothesis: a third of them
        flags.append("cxx=")  # PyTensor would call a C compiler for each constant that it folds
        # LLVM would optimise at level 3 what these tests run once or twice. numba's caches do not
        # know the level, so such code has caches of its own.
        os.environ.setdefault("NUMBA_OPT", "1")
        # so would XLA, in a fifth of the time of tests of Keras models
        os.environ.setdefault("XLA_FLAGS", XLA_FLAGS)
        flags.insert(0, f"base_compiledir={Path(sys.prefix) / 'caches-of-tests'}")
        # a script that forks a group imports PyTensor's numba code, 0.7 s, where this is the mode
        os.environ["SYNK_TEST_SCRIPTS_MODE"] = "FAST_COMPILE"
    os.environ["PYTENSOR_FLAGS"] = ",".join(filter(None, flags))


def both(*markers: str) -> str:
    """The selection of tests that two others have in common."""
    return " and ".join(filter(None, markers))


def test_files(paths: list[str]) -> list[str]:
    """The files of tests in these folders, or that are named."""
    given = [ROOT / path for path in paths]
    files = [f for path in given for f in (path.rglob("test_*.py") if path.is_dir() else [path])]
    return sorted(str(f.relative_to(ROOT)) for f in files)


def marked(paths: list[str]) -> list[str]:
    """The files with such a marker: all the others need not be collected again."""
    wanted = re.compile(r"mark\.(alone|unhurried)\b")
    return [f for f in test_files(paths or ["tests"]) if wanted.search((ROOT / f).read_text())]


def summary(reports: list[Path], seconds: float) -> str:
    """The dearest files, and a last line as pytest's, over all reports."""
    spent: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for report in reports:
        for suite in ElementTree.parse(report).iter("testsuite"):
            for kind in ("tests", "failures", "errors", "skipped"):
                found[kind] += int(suite.get(kind, 0))
            for case in suite.iter("testcase"):
                spent[case.get("classname", "").replace(".", "/") + ".py"] += float(
                    case.get("time", 0)
                )
    found["passed"] = found["tests"] - found["failures"] - found["errors"] - found["skipped"]
    lines = ["", f"seconds  of {sum(spent.values()):.0f} in all processes"]
    lines += [f"{taken:7.1f}  {file}" for file, taken in spent.most_common(DEAREST)]
    kinds = {"failures": "failed", "passed": "passed", "skipped": "skipped", "errors": "errors"}
    counts = ", ".join(f"{found[kind]} {word}" for kind, word in kinds.items() if found[kind])
    clock = f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02}:{int(seconds) % 60:02}"
    return "\n".join([*lines, f"{counts} in {seconds:.2f}s ({clock})"])


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a selection of the tests.")
    parser.add_argument("selection", choices=SELECTIONS)
    parser.add_argument("--began", type=float, default=time.time(), help="seconds since the epoch")
    given = parser.parse_args()
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # also in the background, where SIGINT is ignored
        signal.signal(number, signal.default_int_handler)
    parts = {
        "quick": ENGINE,
        "lowest": (*ENGINE, *EXTRAS),
        "newest": (*ENGINE, *EXTRAS),
        "companions": [f"pymc/test_{name}.py" for name in COMPANIONS],
    }.get(given.selection, ())
    paths = [f"tests/{part}" for part in parts]
    save_time(given.selection)
    chosen = SELECTIONS[given.selection]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        temporary = folder / "tmp"  # PyTensor leaves a file there for each function of numba
        temporary.mkdir()
        os.environ["TMPDIR"] = str(temporary)
        codes = run_beside(both(chosen, "not alone and not unhurried"), paths, folder)
        if last := marked(paths):
            processes = 2 * len(os.sched_getaffinity(0))
            codes += run(both(chosen, "(alone or unhurried)"), {folder / "last": last}, processes)
        reports = sorted(folder.glob("*.xml"))
        print(summary(reports, time.time() - given.began), flush=True)
    return next((code for code in codes if code not in NONE_WENT_WRONG), 0)


if __name__ == "__main__":
    sys.exit(main())
