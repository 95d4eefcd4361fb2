"""The doctor: what it finds here, what it says where something is missing, what it exits with."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from synkhronos._backends import nccl as nccl_backend
from synkhronos.cli._command_line import main
from synkhronos.cli._doctor import examination, mpi_round_trip


def run(*arguments: str) -> tuple[int, str, str]:
    """The exit code, the output, and the error output: progress, where compiling takes long."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "synkhronos", *arguments],
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_a_version_whose_private_names_were_not_tried() -> None:
    tried = examination.NUMBA.tried.split(" and ")[-1]
    assert examination._tried("numba", tried) == examination._tried("rich", "0.1") == ""
    assert examination._tried("numba", "0.1") == f"; {examination.NUMBA.tried} was tried"


def reported(text: str) -> dict[tuple[str, str], dict[str, str]]:
    """The findings of a report in JSON, of which none is bad."""
    report = json.loads(text)
    assert report["works"] is True
    found = {(f["about"], f["name"]): f for f in report["findings"]}
    assert not [f for f in found.values() if f["state"] == "bad"]
    assert "2 processes form a group" in found["MPI", "round trip"]["text"]
    assert found["libraries", "pytensor-ml"]["state"] == "ok"
    assert not [f for f in found.values() if f["state"] == "ok" and "not installed" in f["text"]]
    sizes = [f["text"] for f in found.values() if re.search(r"\d (B|.iB|.B)\b", f["text"])]
    assert all("GiB" in text for text in sizes)
    assert all(f["text"] == "active" for (about, _), f in found.items() if about == "guards")
    return found


@pytest.mark.thorough  # four modes, of which one imports JAX in each member
def test_all_modes_here() -> None:
    """The machine that runs the tests can do everything."""
    code, out, said = run("doctor", "--json")
    assert code == 0, out + said
    found = reported(out)
    assert {name for about, name in found if about == "modes"} == set(examination.MODES)
    for mode in ("FAST_COMPILE", "NUMBA", "JAX"):
        assert "2 members started by" in found["modes", mode]["text"]


@pytest.mark.slow
def test_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As JSON, and the same findings as text, with one mode."""
    monkeypatch.setattr(examination, "MODES", {"FAST_COMPILE": ""})
    findings = list(examination.examine())
    monkeypatch.setattr(examination, "examine", lambda: iter(findings))
    assert main(["doctor", "--json"]) == 0
    found = reported(capsys.readouterr().out)
    assert "2 members started by" in found["modes", "FAST_COMPILE"]["text"]
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "versions"
    assert "a group can be started; 0 bad" in lines
    assert lines[-1].endswith("start a group: import synkhronos as synk; synk.fork()")


@pytest.mark.parametrize(
    ("mode", "state", "said"),
    [(0o755, "ok", ""), (0o775, "note", "another user may write"), (0o757, "note", "chmod go-w")],
)
def test_who_may_write_compiled_code(
    mode: int, state: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T5: libraries unpickle from the folder."""
    tmp_path.chmod(mode)
    config = SimpleNamespace(base_compiledir=str(tmp_path))
    monkeypatch.setattr(examination, "pytensor", SimpleNamespace(config=config))
    [found] = examination._caches()
    assert found.state == state
    assert said in found.text + found.fix
    assert not list(tmp_path.iterdir())


def test_where_a_guard_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the guard and the remedy, and exits with 1 since no group starts."""

    def refuses(*args: Any) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(examination, "MODES", {"FAST_COMPILE": ""})
    monkeypatch.setattr(examination, "_deaths", lambda: iter(()))
    monkeypatch.setattr(os, "pidfd_open", refuses)
    monkeypatch.setattr(examination, "_mpi", lambda: iter(()))
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "bad     pidfd (a death is seen at once): OSError: [Errno 38]" in out
    assert "use Linux 5.3 or later" in out
    assert "bad     FAST_COMPILE: StartFailed: a group of 2 members cannot be started" in out
    assert "NO GROUP CAN BE STARTED; 2 bad" in out.splitlines()
    assert "next 1: pidfd (a death is seen at once): use Linux 5.3 or later" in out
    assert "run `synk doctor` again" in out.splitlines()[-1]


def test_a_killed_masters_worker_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "_SECONDS", 0.2)
    # not a worker at all: nothing ends it with its parent
    script = "import subprocess; print(subprocess.Popen(['sleep', '3']).pid, flush=True); input()"
    monkeypatch.setattr(examination, "_KILLED_MASTER", script)
    [found] = examination._deaths()
    assert (found.state, found.fix) == ("bad", "report this")


def test_a_group_that_cannot_start_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "_KILLED_MASTER", "raise OSError('no room')")
    [found] = examination._deaths()
    assert found.text == "no group could be started: OSError: no room"


def test_mpi_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(examination, "launcher", lambda: None)
        [found] = examination._mpi()
        assert (found.state, found.text) == ("absent", "mpiexec and mpirun were not found")
    monkeypatch.setattr(examination, "launcher", lambda: "/bin/true")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    _, found = examination._mpi()
    assert (found.state, found.text) == ("absent", "not tried: mpi4py is not installed")


def test_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its command is named with its version, or how it fails."""
    monkeypatch.setenv("PATH", str(tmp_path))
    [found] = examination._slurm()
    assert (found.state, found.text) == ("absent", "it was not found")
    command = tmp_path / "sbatch"
    command.write_text("#!/bin/sh\necho slurm 23.11.4\n")
    command.chmod(0o755)
    [found] = examination._slurm()
    assert (found.state, found.text) == ("ok", f"{command}: slurm 23.11.4")
    command.write_text("no program")
    [found] = examination._slurm()
    assert (found.state, "Exec format error" in found.text) == ("bad", True)


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("exit 3", "exit code 3"),
        ("echo wrong >&2; exit 1", "wrong"),
        ("echo found 1 1000.0 5", "2 processes formed a group of 1, and the sum of 1000"),
        ("sleep 100", "two processes have not answered for 1 s"),
    ],
)
def test_mpi_that_fails(
    script: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpi_round_trip, "SECONDS", 1.0)
    launcher = tmp_path / "mpiexec"
    launcher.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exit\n{script}\n')
    launcher.chmod(0o755)
    works, found = mpi_round_trip.round_trip(str(launcher))
    assert not works
    assert text in found


def test_what_moves_arrays_between_gpus(
    start: object, monkeypatch: pytest.MonkeyPatch
) -> None:  # with `start`, a stand-in for nccl4py is there
    monkeypatch.setattr(examination, "get_n_gpu", lambda: 1)
    [found] = [f for f in examination._nccl() if f.name == "NCCL"]
    assert (found.state, found.text) == ("ok", "2.32.3")
    with monkeypatch.context() as patch:
        patch.setattr(nccl_backend, "version", lambda: 22907)
        [found] = [f for f in examination._nccl() if f.name == "NCCL"]
    assert (found.state, found.text) == ("note", "2.29.7")
    assert "need 2.30" in found.fix
    monkeypatch.setitem(sys.modules, "nccl.bindings", None)
    [found] = [f for f in examination._nccl() if f.name == "NCCL"]
    assert found.state == "note"
    assert "nccl4py cannot be imported" in found.text
    monkeypatch.setattr(nccl_backend, "is_installed", lambda: False)
    [found] = [f for f in examination._nccl() if f.name == "NCCL"]
    assert (found.state, found.text) == ("note", "nccl4py is not installed")
    assert 'pip install "synkhronos[cuda12]"' in found.fix
    monkeypatch.setattr(examination, "get_n_gpu", lambda: 0)
    [found] = [f for f in examination._nccl() if f.name == "NCCL"]
    assert found.state == "absent"
