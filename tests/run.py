"""Run a selection of the tests, and say how long it took and which files took most.

    python -P tests/run.py default | quick | all

First the tests that may run beside others, in two processes more than there are cores, since many
tests wait; then those with the marker `alone`, one after the other. Of a run of pytest the first
process writes to the terminal.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]
DEAREST = 10  # files
SELECTIONS = {"default": "not thorough", "quick": "not thorough and not slow", "all": ""}
ENGINE = ("plan", "host", "backends", "transport", "engine", "api", "test_architecture.py")
NONE_WENT_WRONG = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


def run(selection: str, processes: int, paths: list[str], folder: Path) -> list[int]:
    """Run pytest in so many processes, which share the tests; their exit statuses.

    The first one writes to the terminal, the others to files that are shown afterwards. Each has a
    folder of its own for tmp_path: processes that share one clean it up at the same time, and one
    of them may then fail after its last test.
    """
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += [f"--taken={folder / 'taken'}", "-m", selection, *paths]
    started = []
    for number in range(processes):
        with (folder / f"{number}.txt").open("w") as output:
            report = f"--junit-xml={folder / f'{number}.xml'}"
            temporary = f"--basetemp={folder.with_name(f'{folder.name.split()[0]}-{number}')}"
            to = {"stdout": output, "stderr": subprocess.STDOUT} if number else {}
            started.append(subprocess.Popen([*command, report, temporary], cwd=ROOT, **to))
    codes = [process.wait() for process in started]
    for number in range(1, processes):
        print((folder / f"{number}.txt").read_text(), flush=True)
    return codes


def save_time(selection: str) -> None:
    """Set environment variables that make tests cheaper."""
    # its new threads spin for 25 ms before they sleep, and each group makes it start some
    os.environ["OPENBLAS_THREAD_TIMEOUT"] = "4"
    if selection != "all":
        # PyTensor would call a C compiler for each constant that it folds
        given = os.environ.get("PYTENSOR_FLAGS", "")
        os.environ["PYTENSOR_FLAGS"] = f"{given},cxx=".strip(",")
        # LLVM would optimise at level 3 what these tests run once or twice
        os.environ.setdefault("NUMBA_OPT", "1")


def apart(paths: list[str]) -> list[str]:
    """The files with the marker `alone`: all the others need not be collected again."""
    folders = [ROOT / path for path in paths or ["tests"]]
    files = [f for path in folders for f in (path.rglob("test_*.py") if path.is_dir() else [path])]
    return sorted(str(f.relative_to(ROOT)) for f in files if "mark.alone" in f.read_text())


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
    paths = [f"tests/{part}" for part in ENGINE] if given.selection == "quick" else []
    chosen = SELECTIONS[given.selection]
    save_time(given.selection)
    cores = len(os.sched_getaffinity(0))
    codes: list[int] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        for word, processes, where in (("not alone", cores + 2, paths), ("alone", 1, apart(paths))):
            folder = Path(name) / word
            folder.mkdir()
            marked = " and ".join(filter(None, [chosen, word]))
            codes += run(marked, processes, where, folder)
        reports = sorted(Path(name).rglob("*.xml"))
        print(summary(reports, time.time() - given.began), flush=True)
    return next((code for code in codes if code not in NONE_WENT_WRONG), 0)


if __name__ == "__main__":
    sys.exit(main())
