"""Each script answers --help, before it installs, compiles or computes anything."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from selection import thorough
from user_scripts import LIMIT

ROOT = Path(__file__).parents[2]
SOURCED = ["_help", "_setup"]  # by the scripts
SCRIPTS = sorted({p.name for p in (ROOT / "scripts").iterdir()} - {*SOURCED})
FIRST = ["demos/mnist/train_fit.py"]


def programs() -> list[str]:
    """The Python scripts that are run by their names."""
    places = ("demos/**/*.py", "benchmarks/*.py", "docs/figures/*.py")
    names = sorted(str(path.relative_to(ROOT)) for place in places for path in ROOT.glob(place))
    return [n for n in names if f"python {n}" in (ROOT / n).read_text()]


def helped(command: list[str], folder: Path) -> str:
    ended = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert not ended.stderr
    return ended.stdout


def script_in(folder: Path, name: str) -> Path:
    """A copy of a script, in a folder that has nothing else which it could use."""
    scripts = folder / "scripts"
    scripts.mkdir()
    for each in (name, *SOURCED):
        shutil.copy(ROOT / "scripts" / each, scripts)
    return scripts / name


@pytest.mark.parametrize("given", [["--help"], ["--more", "-h", "2"]])
@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts(name: str, given: list[str], tmp_path: Path) -> None:
    """With the lines at its top, wherever it is asked for them, and without an environment."""
    script = script_in(tmp_path, name)
    said = helped([str(script), *given], tmp_path)
    assert said.splitlines()[0] == script.read_text().splitlines()[1].removeprefix("# ")
    assert {path.name for path in tmp_path.rglob("*")} == {"scripts", name, *SOURCED}


@pytest.mark.parametrize("text", ["A loop.", "A loop.\n\n    python loop.py\n"])
def test_a_benchmark_by_its_name(text: str, tmp_path: Path) -> None:
    script = script_in(tmp_path, "bench")
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "loop.py").write_text(f'"""{text}"""\n\n"""More."""\n')
    assert (
        helped([str(script), "loop", "--rounds", "3", "--help"], tmp_path).strip() == text.strip()
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FIRST, *thorough(*sorted({*programs()} - {*FIRST}))])
def test_programs(name: str, tmp_path: Path) -> None:
    said = " ".join(helped([sys.executable, str(ROOT / name), "--help"], tmp_path).split())
    text = (ROOT / name).read_text()
    first = text.partition('"""')[2].splitlines()[0]
    assert " ".join(first.split()) in said or "usage:" in said
    caches = {".pytensor", ".cache", ".config"}  # of PyTensor and matplotlib
    assert {path.name for path in tmp_path.iterdir()} <= caches


def test_the_other_demos_are_modules() -> None:
    """A program says how it is run, so that it is among those that are asked for help."""
    demos = {str(path.relative_to(ROOT)) for path in ROOT.glob("demos/**/*.py")}
    for name in demos - {*programs()}:
        assert not re.search("^if __name__", (ROOT / name).read_text(), re.MULTILINE), name
