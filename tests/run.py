"""Run a selection of the tests, and say how long it took and which files took most.

    python -P tests/run.py default | quick | all | lowest | newest | companions

First the tests that may run beside others, in two processes more than there are cores, since many
tests wait; then those with the marker `alone`, one after the other. What the first of the processes
writes is shown at once.

A test that forks a group takes three quarters of the processor time where the process has not
imported PyMC. So each process of the first kind is two, one after the other.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]
DEAREST = 10  # files
SELECTIONS = {"default": "not thorough", "quick": "not thorough and not slow", "all": ""}
SELECTIONS["lowest"] = SELECTIONS["newest"] = SELECTIONS["quick"]
SELECTIONS["companions"] = SELECTIONS["default"]
ENGINE = ("plan", "host", "backends", "transport", "engine", "api", "test_architecture.py")
EXTRAS = (  # what each optional library does for us
    *("extensions/test_checkpoints.py", "fuzz", "interop", "nn", "ops", "search", "sklearn", "zoo"),
    *("training/sources", "training/test_config.py", "training/test_exporters.py"),
    *("training/test_history.py", "cli/test_report.py", "cli/test_train.py", "mpi/test_launch.py"),
    *("pymc/test_models.py", "pymc/test_sample.py", "pymc/test_docs.py"),
)
LARGE = ("tests/pymc", "tests/sklearn", "tests/training/test_metrics.py")  # PyMC, scikit-learn
PROMISES = "tests/test_promises.py"  # it looks at all tests
NONE_WENT_WRONG = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


def run(selection: str, parts: Mapping[str, Sequence[str]], folder: Path, shown: bool) -> list[int]:
    """Run pytest for each part, with its arguments; the exit statuses.

    Whoever runs the same part at the same time takes tests that no other has taken. Each has a
    folder of its own for tmp_path: processes that share one clean it up at the same time, and one
    of them may then fail after its last test.
    """
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "no:zarr", "-m", selection]  # zarr's plugin takes half a second to import
    folder.mkdir()
    codes = []
    for name, arguments in parts.items():
        files = f"--junit-xml={folder / name}.xml", f"--basetemp={folder / name}"
        taken = f"--taken={folder.with_name(f'taken {name}')}"
        given = folder / f"{name}.txt"  # so that the command stays short: runs record it
        given.write_text("\n".join(arguments))
        whole = [*command, f"@{given}", *files, taken]
        with (folder / "output").open("a") as output:
            to: dict[str, Any] = {} if shown else {"stdout": output, "stderr": subprocess.STDOUT}
            codes.append(subprocess.run(whole, cwd=ROOT, check=False, **to).returncode)
    return codes


def run_beside(selection: str, paths: list[str], folder: Path) -> list[int]:
    """Run the tests that may run beside others; the exit statuses."""
    files = test_files(paths or ["tests"])
    large = [f for f in files if f.startswith(LARGE)]
    small = [f for f in files if f != PROMISES and f not in large]
    parts = {kind: files for kind, files in (("small", small), ("large", large)) if files}
    promises = {} if paths else {"promises": ["-k", Path(PROMISES).stem]}
    folders = [folder / str(number) for number in range(len(os.sched_getaffinity(0)) + 2)]
    with ThreadPoolExecutor(len(folders)) as pool:
        others = [
            pool.submit(run, selection, turned(parts, i / len(folders)), folders[i], False)
            for i in range(1, len(folders))
        ]
        codes = run(selection, promises | parts, folders[0], True)
    for each in folders[1:]:
        print((each / "output").read_text(), flush=True)
    return codes + [code for other in others for code in other.result()]


def turned(parts: Mapping[str, Sequence[str]], by: float) -> dict[str, list[str]]:
    """The parts with their files in turned orders: from the one at this fraction on.

    pytest compiles each file of tests once. Processes that begin at the same file would all do it.
    """
    found = {}
    for kind, files in parts.items():
        start = int(by * len(files))
        found[kind] = [*files[start:], *files[:start]]
    return found


def save_time(selection: str) -> None:
    """Set environment variables that make tests cheaper."""
    # its new threads spin for 25 ms before they sleep, and each group makes it start some
    os.environ["OPENBLAS_THREAD_TIMEOUT"] = "4"
    # PyTensor would note for each variable where it was made: a tenth of the time of compiling
    flags = [os.environ.get("PYTENSOR_FLAGS", ""), "traceback__limit=0"]
    if selection != "all":
        flags.append("cxx=")  # PyTensor would call a C compiler for each constant that it folds
        # LLVM would optimise at level 3 what these tests run once or twice
        os.environ.setdefault("NUMBA_OPT", "1")
        # a script that forks a group imports PyTensor's numba code, 0.7 s, where this is the mode
        os.environ["SYNK_TEST_SCRIPTS_MODE"] = "FAST_COMPILE"
    os.environ["PYTENSOR_FLAGS"] = ",".join(filter(None, flags))


def test_files(paths: list[str]) -> list[str]:
    """The files of tests in these folders, or that are named."""
    given = [ROOT / path for path in paths]
    files = [f for path in given for f in (path.rglob("test_*.py") if path.is_dir() else [path])]
    return sorted(str(f.relative_to(ROOT)) for f in files)


def apart(paths: list[str]) -> list[str]:
    """The files with the marker `alone`: all the others need not be collected again."""
    return [f for f in test_files(paths or ["tests"]) if "mark.alone" in (ROOT / f).read_text()]


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
    parts = {
        "quick": ENGINE,
        "lowest": (*ENGINE, *EXTRAS),
        "newest": (*ENGINE, *EXTRAS),
        "companions": ("pymc",),
    }.get(given.selection, ())
    paths = [f"tests/{part}" for part in parts]
    save_time(given.selection)
    beside, alone = (
        " and ".join(filter(None, [SELECTIONS[given.selection], marked]))
        for marked in ("not alone", "alone")
    )
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        codes = run_beside(beside, paths, Path(name))
        if last := apart(paths):
            codes += run(alone, {"alone": last}, Path(name) / "alone", True)
        reports = sorted(Path(name).glob("*/*.xml"))
        print(summary(reports, time.time() - given.began), flush=True)
    return next((code for code in codes if code not in NONE_WENT_WRONG), 0)


if __name__ == "__main__":
    sys.exit(main())
