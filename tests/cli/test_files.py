"""Files that cannot be written: one sentence and exit code 1, for all verbs and paths."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from configs import place as place
from unprivileged import unprivileged

from synkhronos._host.files import check_place
from synkhronos.cli import _command_line as command_line
from synkhronos.cli import doctor
from synkhronos.training import Recorder

Said = Callable[..., str]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """What a command line that fails says, in one line."""

    def run(*words: Any, code: int = 1) -> str:
        with unprivileged():
            found = command_line.main(list(map(str, words)))
        err = capsys.readouterr().err
        assert (found, "Traceback" in err) == (code, False), err
        [line] = [line for line in err.splitlines() if line.startswith("synk ")]
        return line

    return run


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Path]:
    """A folder in which this user may not write."""
    folder = tmp_path / "locked"
    folder.mkdir()
    (folder / "file").write_text("")
    (folder / "file").chmod(0o444)
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with Recorder(tmp_path / "run") as recorder:
        recorder.write("epoch", step=1, epoch=0, loss=0.5)
        recorder.write("end", step=1, epoch=0, reason="epochs")
    return tmp_path / "run"


LINES: dict[str, list[str]] = {
    "new": ["new", "function", "--to", "{0}/a.py"],
    "new folder": ["new", "train", "--to", "{0}/a"],
    "new from": [
        *("new", "--from", "pydtnn", "--to", "{0}/a.toml", "--"),
        *("pydtnn_benchmark", "--model=simplemlp", "--dataset=mnist"),
    ],
    "report": ["report", "{1}", "--out", "{0}/a.html"],
    "export csv": ["export", "{1}", "--to", "csv", "--to-folder", "{0}/a"],
    "export": ["export", "{1}", "--to-folder", "{0}/a"],
    "bench csv": ["bench", "mine:net", "--csv", "{0}/a.csv"],
    "bench plot": ["bench", "mine:net", "--plot", "{0}/a.svg"],
    "train": ["train", "config.toml", "folder={0}/a", "-n", "1"],
    "search best": ["search", "config.toml", "batch~20,30", "--best", "{0}/a.toml"],
    "search db": ["search", "config.toml", "batch~20,30", "--storage", "{0}/a.db"],
    "search log": ["search", "config.toml", "batch~20,30", "--storage", "{0}/a.journal"],
    "search out": ["search", "config.toml", "batch~20,30", "--log-dir", "{0}/a"],
}


@pytest.mark.parametrize("line", LINES)
def test_a_folder_of_another_user(
    line: str, place: Path, locked: Path, run: Path, said: Said
) -> None:
    words = [word.format(locked, run) for word in LINES[line]]
    text = said(*words)
    assert re.match(rf"synk {words[0]}: .*{locked}/a.*: Permission denied", text), text
    assert sorted(p.name for p in locked.iterdir()) == ["file"]


def test_logs_of_a_script(locked: Path, said: Said) -> None:
    """As other wrong lines of synk run: code 2."""
    for folder in (locked, locked / "a"):
        text = said("run", "--log-dir", folder, "-c", "print(1)", code=2)
        assert "--log-dir" in text
        assert "Permission denied" in text


def test_a_trace(locked: Path, said: Said) -> None:
    import numpy as np
    import pytensor.tensor as pt

    import synkhronos as synk

    x = pt.dvector("x")
    folder = locked.parent / "run"
    folder.mkdir()
    with synk.Group(1) as group, group.trace(folder / "trace.bin"):
        synk.function([x], x.sum(), mode="FAST_COMPILE")(np.ones(3))
    assert f"{locked}/a.json: Permission denied" in said("trace", folder, "--to", locked / "a.json")


PATHS = {
    "a folder": ("{0}", "Is a directory: choose another path"),
    "below a file": ("{0}/file/a", "Not a directory: choose another path"),
    "too long": ("{0}/" + 300 * "a", "File name too long: choose a shorter name"),
}


@pytest.mark.parametrize("kind", PATHS)
@pytest.mark.parametrize("verb", ["new", "report", "export", "trace", "train"])
def test_paths_that_are_no_place(
    kind: str, verb: str, place: Path, locked: Path, run: Path, said: Said
) -> None:
    pattern, why = PATHS[kind]
    path = pattern.format(locked)
    lines = {
        "new": ["new", "train", "--force", "--to", f"{path}/b"],
        "report": ["report", run, "--out", path],
        "export": ["export", run, "--to", "csv", "--to-folder", path],
        "train": ["train", "config.toml", f"folder={path}", "-n", "1"],
    }
    if verb == "trace" or kind == "a folder":
        with pytest.raises(OSError, match=re.escape(why.partition(":")[0])):
            check_place(path)
        return
    text = said(*lines[verb])
    assert text.startswith(f"synk {verb}: ")
    assert any(word in text for word in (why, "no such folder", "Not a directory", "too long"))


def test_a_full_disk(run: Path, said: Said) -> None:
    """/dev/full is one; the error comes when the file is closed, without its name."""
    text = said("report", run, "--out", "/dev/full")
    assert text == (
        "synk report: No space left on device: free some space, or choose a place on another disk"
    )


def failing(error: BaseException) -> Callable[[object], int]:
    def fails(options: object) -> int:
        raise error

    return fails


def test_caches_of_pytensor(monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    """In a home that cannot be written."""
    error = PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/home/a/.pytensor")
    monkeypatch.setattr(doctor, "run", _of_the_package(failing(error)))
    assert "PYTENSOR_FLAGS=base_compiledir=FOLDER" in said("doctor")


def test_notes_say_what_to_do(monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    error = OSError(errno.ENOSPC, "No space left on device", "a/run.json")
    error.add_note("while it was full")
    monkeypatch.setattr(doctor, "run", _of_the_package(failing(error)))
    assert said("doctor") == "synk doctor: a/run.json: No space left on device: while it was full"


def test_errors_of_the_users_code_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """So do those that are not about files."""
    missing = FileNotFoundError(errno.ENOENT, "No such file", "mine.csv")
    monkeypatch.setattr(doctor, "run", failing(missing))
    with pytest.raises(FileNotFoundError):
        command_line.main(["doctor"])
    monkeypatch.setattr(doctor, "run", _of_the_package(failing(ConnectionResetError(104, "reset"))))
    with pytest.raises(ConnectionResetError):
        command_line.main(["doctor"])


def _of_the_package(function: Callable[[object], int]) -> Callable[[object], int]:
    """The function as if it stood in a file of the package."""
    code = function.__code__.replace(co_filename=command_line.__file__)
    return type(function)(code, {}, "run", None, function.__closure__)  # type: ignore[call-arg]


def test_a_reader_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `synk env | head -1`: no traceback."""
    kept = os.dup(1)
    try:
        monkeypatch.setattr(doctor, "run", failing(BrokenPipeError(errno.EPIPE, "Broken pipe")))
        assert command_line.main(["doctor"]) == 1
    finally:
        os.dup2(kept, 1)
        os.close(kept)
