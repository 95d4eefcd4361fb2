"""The command line of ``synk``: help, version, exit codes; verbs are found, not imported."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import synkhronos as synk
from synkhronos.cli import _command_line as command_line
from synkhronos.cli import doctor, run
from synkhronos.cli._parser import parsers_for, verbs

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


def test_a_script_in_the_place_of_a_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    """``python -m synkhronos script.py`` runs it with functions of PyMC replaced."""
    found: list[argparse.Namespace] = []

    def noted(options: argparse.Namespace) -> int:
        found.append(options)
        return 7

    monkeypatch.setattr(run, "run", noted)
    assert command_line.main(["model.py", "--dry-run", "doctor"]) == 7
    [options] = found
    assert (options.verb, options.pymc, options.dry_run) == ("run", True, False)
    assert options.program == ["model.py", "--dry-run", "doctor"]


def test_help_names_each_verb(capsys: pytest.CaptureFixture[str]) -> None:
    command_line.main(["--help"])
    out = capsys.readouterr().out
    assert re.search(r"^    doctor +Report what works on this machine", out, re.MULTILINE)
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
    for given, code, said in ((None, 0, ""), (7, 7, ""), ("no\ndata", 1, "no\ndata\n")):
        raises(SystemExit(given))
        assert command_line.main(["doctor"]) == code
        assert capsys.readouterr() == ("", said)
    raises(KeyError("a defect"))  # its traceback is needed
    with pytest.raises(KeyError):
        command_line.main(["doctor"])


def test_as_a_module_and_as_a_script() -> None:
    """Both run the same `main`; the help of each verb is quick, as it imports nothing large."""
    [script] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"].values()
    assert script == "synkhronos.__main__:main"
    code = (
        "import runpy, sys; sys.argv = ['synk', *sys.argv[1:]]\n"
        "try: runpy.run_module('synkhronos', run_name='__main__')\n"
        "finally: assert not {'numpy', 'pytensor', 'rich', 'synkhronos._plan'} & {*sys.modules}"
    )
    for verb in ([], *([verb.name] for verb in verbs())):
        command = [sys.executable, "-P", "-c", code, *verb, "--help"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=270, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert " ".join(["usage: synk", *verb]) in done.stdout


def test_each_verb_shows_examples_and_explains_its_arguments() -> None:
    _, parsers = parsers_for(None)
    for verb in verbs():
        assert f"  synk {verb.name}" in verb.text.partition("Examples:\n")[2], verb.name
        for action in parsers[verb.name]._actions:
            assert action.help, (verb.name, action.dest)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("trian config.toml", "did you mean train?"),
        ("launhc script.py", "did you mean launch?"),
        ("report --bnech a.csv", "did you mean --bench?"),
        ("report --bnech=a.csv", "did you mean --bench?"),
        ("export runs/a --to tensorbord", "did you mean tensorboard?"),
        ("train", "are required: CONFIG\n"),
    ],
)
def test_a_wrong_word(line: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(line.split()) == 2
    assert words in capsys.readouterr().err


def test_usage_says_what_is_optional() -> None:
    _, parsers = parsers_for(None)
    assert parsers["train"].format_usage().endswith("CONFIG [KEY=VALUE ...]\n")
    for verb, parser in parsers.items():
        for action in parser._actions:
            assert action.nargs != "*" or not action.required, verb


@pytest.mark.parametrize("columns", [60, 80])
def test_help_is_as_wide_as_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No line is longer, no word is lost, and what fits is as it was written."""
    monkeypatch.setenv("COLUMNS", "200")
    _, parsers = parsers_for(None)
    whole = {verb: "".join(each.format_help().split()) for verb, each in parsers.items()}
    for verb in verbs():
        assert verb.text in parsers[verb.name].format_help()
    monkeypatch.setenv("COLUMNS", str(columns))
    for verb_, parser in parsers.items():
        text = parser.format_help()
        # argparse does not break the names of an option
        lines = [line for line in text.splitlines() if not line.startswith("  -")]
        assert max(map(len, lines)) <= columns, verb_
        assert "".join(text.split()) == whole[verb_]


def test_completion_for_fish(capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each verb, and one for each option of each verb; quotes are closed."""
    assert command_line.main(["completion", "fish"]) == 0
    lines = capsys.readouterr().out.splitlines()
    _, parsers = parsers_for(None)
    for verb in verbs():
        words = shlex.quote(" ".join((verb.name, *verb.aliases)))
        named = words if " " in words else f"'{words}'"
        assert [line for line in lines if f" -n '__fish_use_subcommand' -a {named} " in line]
        seen = f"-n '__fish_seen_subcommand_from {' '.join((verb.name, *verb.aliases))}'"
        for option in parsers[verb.name]._option_string_actions:
            flag = f" -l {option[2:]} " if option.startswith("--") else f" -s {option[1:]} "
            assert [line for line in lines if seen in line and flag in f"{line} "], option
    for line in lines:
        assert line.replace("\\\\", "").replace("\\'", "").count("'") % 2 == 0, line
    [kinds] = [line for line in lines if " -l to " in line and "_from export'" in line]
    assert "-x -a 'tensorboard csv mlflow'" in kinds


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command_line.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for verb in verbs():
        assert verb.name in script
    assert "--json" in script
    if shell == "bash":
        (tmp_path / "complete").write_text(script)
        lines = (
            f"source {tmp_path / 'complete'}; COMP_WORDS=(synk do); COMP_CWORD=1; "
            "COMP_LINE='synk do'; COMP_POINT=7; compopt() { :; }; "
            "$(complete -p synk | sed 's/.*-F \\([^ ]*\\).*/\\1/'); echo ${COMPREPLY[@]}"
        )
        done = subprocess.run(
            ["bash", "-c", lines], capture_output=True, text=True, timeout=270, check=False
        )
        assert (done.stdout, done.stderr) == ("doctor\n", "")
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert command_line.main(["completion", shell]) == 1
    assert "pip install shtab" in capsys.readouterr().err


def test_an_import_of_the_package_is_light() -> None:
    """Names are there when they are used, also by a pickle, and in `dir`."""
    code = (
        "import sys, pickle, synkhronos as synk\n"
        "assert 'numpy' not in sys.modules\n"
        "assert {'fork', 'training', '__version__'} <= {*dir(synk)}\n"
        "import synkhronos._errors as errors\n"
        "assert repr(errors.GroupClosed) == \"<class 'synkhronos.GroupClosed'>\"\n"
        "assert 'numpy' not in sys.modules\n"
        "assert pickle.loads(pickle.dumps(errors.GroupClosed)) is synk.GroupClosed\n"
        "assert 'numpy' in sys.modules\n"
        "assert repr(synk.Data) == \"<class 'synkhronos.Data'>\"\n"
        "assert synk.nn.__name__ == 'synkhronos.nn'\n"
        "try: synk.frok\n"
        "except AttributeError as exc: assert \"no attribute 'frok'\" in str(exc)\n"
        "else: raise AssertionError\n"
        "from synkhronos import *\n"
        "assert fork is synk.fork\n"
    )
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=270, check=False)
    assert (done.returncode, done.stderr) == (0, "")
