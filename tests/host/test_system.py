"""Systems other than Linux: what happens there, and that the ways are named; the Dockerfile."""

from __future__ import annotations

import fnmatch
import json
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

import synkhronos as synk
from synkhronos._host import system
from synkhronos.cli._command_line import main

ROOT = Path(__file__).parent.parent.parent


def test_the_ways_are_named() -> None:
    assert system.trouble("linux") == ""
    assert "this is macOS: run it in a Linux container: the repository has a Dockerfile" in (
        system.trouble("darwin")
    )
    assert "this is Windows: use WSL2 (wsl --install" in system.trouble("win32")
    assert "this is freebsd14: use a Linux machine" in system.trouble("freebsd14")


def test_on_macos_a_group_does_not_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("synkhronos._engine.group.trouble", lambda: system.trouble("darwin"))
    with pytest.raises(synk.StartFailed, match=r"this is macOS: .* Dockerfile"):
        synk.fork(2)
    monkeypatch.setattr(
        "synkhronos.cli._doctor.examination.trouble", lambda: system.trouble("darwin")
    )
    assert main(["doctor", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    [finding] = report["findings"]
    assert finding["state"] == "bad"
    assert finding["text"].startswith("groups need Linux 5.3")
    assert "docker build" in finding["fix"]


def test_on_windows_names_that_need_a_group_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    for name in ("fork", "training"):
        match = f"synkhronos.{name} cannot be imported: groups .* Windows"
        with pytest.raises(ImportError, match=match):
            synk.__getattr__(name)


OTHER = """
    import os, select, signal, sys, sysconfig
    import ctypes, shutil, subprocess, tempfile  # Python's own choose by the system
    sysconfig.get_config_vars()
    for name in ("fork", "memfd_create", "eventfd", "pidfd_open", "sched_getaffinity", "pipe2"):
        delattr(os, name)
    del select.epoll, signal.pidfd_send_signal
    sys.platform = {platform!r}
    if sys.platform == "win32":
        sys.modules.update(dict.fromkeys(["fcntl", "resource"]))
        for name in ("SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGKILL"):
            delattr(signal, name)
    """


def on(platform: str, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a script by a Python that lacks what this system lacks."""
    whole = textwrap.dedent(OTHER.format(platform=platform)) + textwrap.dedent(script)
    return subprocess.run(
        [sys.executable, "-P", "-c", whole, *words],
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
    )


SYNK = "import runpy; runpy.run_module('synkhronos', run_name='__main__')"
SYSTEMS = pytest.mark.parametrize(("platform", "name"), [("darwin", "macOS"), ("win32", "Windows")])


@SYSTEMS
def test_help_says_what_works(platform: str, name: str) -> None:
    done = on(platform, SYNK, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    said = " ".join(done.stdout.split())
    assert f"on {name} synkhronos.pymc.fast works, the faster density of PyMC models" in said
    assert f"groups need Linux 5.3 or later (memfd, eventfd, pidfd), and this is {name}" in said
    assert "Report what works on this machine" in said


def test_on_linux_help_says_nothing_of_systems(capsys: pytest.CaptureFixture[str]) -> None:
    assert system.works("linux") == ""
    assert main(["--help"]) == 0
    assert "synkhronos.pymc.fast" not in capsys.readouterr().out


@SYSTEMS
def test_an_import_says_what_works(platform: str, name: str) -> None:
    """To a person at a prompt, else to the log: a script's stderr stays its own."""
    said = f"on {name} synkhronos.pymc.fast works, "
    assert (done := on(platform, "import synkhronos")).returncode == 0
    assert done.stdout + done.stderr == ""
    done = on(platform, "sys.ps1 = '>>> '; import synkhronos")
    assert done.stderr.startswith(f"synkhronos: {said}")
    assert done.stderr.count("\n") == 1
    logged = "import logging; logging.basicConfig(level='INFO'); import synkhronos"
    for prompt in ("", "sys.ps1 = '>>> '; "):
        done = on(platform, prompt + logged)
        assert done.stderr.startswith(f"INFO:synkhronos:{said}")
        assert done.stderr.count("\n") == 1


def test_verbs_on_windows(tmp_path: Path) -> None:
    """Those that need nothing of Linux work; the others end with a sentence."""
    assert on("win32", SYNK, "new", "pymc", str(tmp_path / "a")).returncode == 0
    assert (tmp_path / "a" / "glm.py").exists()
    assert on("win32", SYNK, "completion", "fish").returncode == 0
    for verb in ("doctor", "top", "run a.py", "train a.toml", "report a", "bench a:b"):
        done = on("win32", SYNK, *verb.split())
        assert (done.returncode, done.stdout) == (1, ""), verb
        assert done.stderr.startswith(f"synk {verb.split()[0]}: on Windows synkhronos.pymc.fast"), (
            done.stderr
        )
        assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_on_macos_the_package_is_imported() -> None:
    """A process without what macOS lacks imports the package, and is told at `fork`."""
    script = """
        import fcntl, os, select, signal, sys
        import numpy, pytensor  # theirs may know the real system
        lacking = {
            os: ["memfd_create", "MFD_CLOEXEC", "MFD_ALLOW_SEALING", "eventfd", "eventfd_read",
                 "eventfd_write", "EFD_CLOEXEC", "EFD_NONBLOCK", "pidfd_open", "P_PIDFD",
                 "sched_getaffinity", "sched_setaffinity", "pipe2", "posix_fallocate"],
            fcntl: ["F_SETSIG", "F_GETSIG", "F_ADD_SEALS", "F_SEAL_SHRINK"],
            select: ["epoll"],
            signal: ["pidfd_send_signal"],
        }
        for module, names in lacking.items():
            for name in names:
                delattr(module, name)
        sys.platform = "darwin"
        import synkhronos as synk
        try:
            synk.fork(2)
        except synk.StartFailed as exc:
            assert "this is macOS" in str(exc)
        else:
            raise AssertionError
        """
    done = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_dockerfile_fits_the_project() -> None:
    """Docker is not needed: sources exist and are sent, extras and the Python version fit."""
    text = (ROOT / "Dockerfile").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ignored = (ROOT / ".dockerignore").read_text().split()
    sent = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    sources = [name for line in re.findall(r"COPY (.*) /\S+", text) for name in line.split()]
    assert {"pyproject.toml", "synkhronos"} <= set(sources)
    for name in sources:
        assert (ROOT / name).exists()
        assert any(fnmatch.fnmatch(name, pattern) for pattern in sent), name
    [extras] = re.findall(r"/source\[([\w,]+)\]", text)
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    [version] = re.findall(r"FROM python:(\d+\.\d+)", text)
    assert f"Programming Language :: Python :: {version}" in project["classifiers"]
