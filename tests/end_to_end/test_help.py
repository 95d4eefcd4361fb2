"""Each script answers --help, before it installs, compiles or computes anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from selection import thorough
from user_scripts import LIMIT

ROOT = Path(__file__).parents[2]
SCRIPTS = [p.name for p in (ROOT / "scripts").iterdir() if p.name not in ("_setup", "gpu-check")]
FIRST = ["demos/demo_1.py", "demos/mnist/train_fit.py"]


def programs() -> list[str]:
    """The Python scripts that are run by their names."""
    found = sorted([*ROOT.glob("demos/**/*.py"), *ROOT.glob("benchmarks/*.py")])
    names = [str(path.relative_to(ROOT)) for path in found]
    return [n for n in names if f"python {n}" in (ROOT / n).read_text()]


def helped(command: list[str], folder: Path) -> str:
    ended = subprocess.run(
        [*command, "--help"],
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


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts(name: str, tmp_path: Path) -> None:
    """With the lines at its top, and without an environment."""
    (tmp_path / "_setup").write_text((ROOT / "scripts" / "_setup").read_text())
    script = tmp_path / name
    script.write_text((ROOT / "scripts" / name).read_text())
    script.chmod(0o755)
    said = helped([str(script)], tmp_path)
    assert said.splitlines()[0] == script.read_text().splitlines()[1].removeprefix("# ")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted({name, "_setup"})


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FIRST, *thorough(*sorted({*programs()} - {*FIRST}))])
def test_programs(name: str, tmp_path: Path) -> None:
    said = " ".join(helped([sys.executable, str(ROOT / name)], tmp_path).split())
    text = (ROOT / name).read_text()
    first = text.partition('"""')[2].splitlines()[0]
    assert " ".join(first.split()) in said or "usage:" in said
    assert {path.name for path in tmp_path.iterdir()} <= {".pytensor"}  # its cache
