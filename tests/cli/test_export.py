"""``synk export``: its arguments, and what it says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from synkhronos.cli._command_line import main


def test_where_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [{"kind": "step", "step": 1, "loss": 0.5}, {"kind": "end", "reason": "epochs"}]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    given = ["export", str(tmp_path), "--to", "csv", "--to-folder", str(tmp_path / "there")]
    for options in ([], ["--follow"]):
        assert main([*given, *options]) == 0
        assert capsys.readouterr().out == f"2 lines to {tmp_path}/there/metrics.csv\n"
    assert "step,1,0.5" in (tmp_path / "there" / "metrics.csv").read_text()
    assert main(["export", str(tmp_path)]) == 0
    assert list((tmp_path / "tensorboard").iterdir())
    assert capsys.readouterr().out == f"2 lines to {tmp_path}/tensorboard\n"


def test_what_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["export", str(tmp_path)]) == 1
    assert "synk export: " in (err := capsys.readouterr().err)
    assert "there is no run to export" in err
    assert main(["export", str(tmp_path), "--to", "excel"]) == 2
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    (tmp_path / "metrics.jsonl").touch()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["export", str(tmp_path)]) == 1
    assert 'pip install "synkhronos[tensorboard]"' in capsys.readouterr().err
