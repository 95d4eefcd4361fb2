"""The command line of ``synk``: help, version, exit codes; verbs are found, not imported."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import synkhronos as synk
from synkhronos.cli import _command_line as command_line
from synkhronos.cli import doctor

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], 0),
        (["--help"], 0),
        (["doctor", "--help"], 0),
        (["doctor", "--xml"], 2),
        (["nurse"], 2),
        (["--nurse"], 2),
    ],
)
def test_usage(arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(arguments) == code
    out, err = capsys.readouterr()
    assert "usage: synk" in (err if code else out)
    assert not (out if code else err)


def test_help_names_each_verb(capsys: pytest.CaptureFixture[str]) -> None:
    command_line.main(["--help"])
    out = capsys.readouterr().out
    assert "doctor    Report what works on this machine" in out
    assert "0 done, 1 failed, 2 wrong usage" in out
    command_line.main(["doctor", "--help"])
    out = capsys.readouterr().out
    assert "usage: synk doctor [-h] [--json]" in out
    assert "exit codes: 0 a group can be started, 1 none can" in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["--version"]) == 0
    assert capsys.readouterr().out == f"synkhronos {synk.__version__}\n"


def test_a_verb_that_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raises(error: BaseException) -> None:
        def run(options: object) -> int:
            raise error

        monkeypatch.setattr(doctor, "run", run)

    raises(synk.InputError("no such folder"))
    assert command_line.main(["doctor"]) == 1
    assert capsys.readouterr().err == "synk doctor: no such folder\n"
    raises(KeyboardInterrupt())
    assert command_line.main(["doctor"]) == 130
    raises(KeyError("a defect"))  # its traceback is needed
    with pytest.raises(KeyError):
        command_line.main(["doctor"])


@pytest.mark.slow
def test_as_a_module_and_as_a_script() -> None:
    """Both run the same `main`; help imports no verb."""
    [script] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"].values()
    assert script == "synkhronos.__main__:main"
    code = (
        "import runpy, sys; sys.argv = ['synk', '--help']\n"
        "try: runpy.run_module('synkhronos', run_name='__main__')\n"
        "finally: assert not [m for m in sys.modules if m.startswith('synkhronos.cli.doctor')]"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: synk" in done.stdout
