"""``synk cache`` and the line of ``synk doctor``: what is kept between runs."""

from __future__ import annotations

import pytest

import synkhronos as synk
from synkhronos._compiling.kept.folder import SETTING, Folder
from synkhronos.cli._command_line import main
from synkhronos.cli._doctor import examination


def test_it_is_shown_and_emptied(
    keeping: Folder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keeping.write("0a", b"1" * 1_000_000)
    assert main(["cache"]) == 0
    assert capsys.readouterr().out == f"{keeping.path}: 1 entry, 1.0 of 500 MB\n"
    monkeypatch.setenv(SETTING, "0")
    assert main(["cache", "--clear"]) == 0
    off = "0 entries, 0.0 MB; SYNKHRONOS_KEEP=0, so nothing is added"
    assert capsys.readouterr().out == f"{keeping.path}: {off}\n"
    assert not list(keeping.path.iterdir())


def test_doctor_names_it(keeping: Folder) -> None:
    keeping.write("0a", b"1" * 1_000_000)
    [found] = examination._kept()
    assert (found.state, found.fix) == ("ok", "")
    assert f"1 entries, 0.00 GiB of 0.47 GiB in {keeping.path}" in found.text
    keeping.path.chmod(0o777)
    [found] = examination._kept()
    assert found.state == "note"
    assert "another user owns it or may write to it" in found.text
    assert found.fix == "Remove the folder, or set SYNKHRONOS_KEEP=0"


def test_a_folder_of_others_is_not_emptied(keeping: Folder) -> None:
    keeping.write("0a", b"")
    keeping.path.chmod(0o777)
    with pytest.warns(synk.UnusedWarning, match="another user owns it"):
        assert main(["cache", "--clear"]) == 1
    keeping.path.chmod(0o700)
    assert keeping.read("0a") == b""
