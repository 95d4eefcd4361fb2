"""Readers of the folder of a run: records, the page of `synk report`, exports."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from mutations import damaged, integers, json_of, once_in
from strangers import Reader, Tree

import synkhronos as synk
from synkhronos.cli._report.summary import read_run
from synkhronos.training._record import recorder
from synkhronos.training._record.exporters.exporter import _end_of, export
from synkhronos.training._record.run_folder import read_metrics, read_starts, writer_of

ERRORS = (synk.InputError,)
STARTS = {
    "format": 1,
    "starts": [
        {
            "time": "2026-11-20T10:00:00+00:00",
            "pid": 4711,
            "host": "vm",
            "argv": ["python", "train.py"],
            "cwd": "/home/me",
            "config": {"epochs": 3, "optimizer": {"name": "adam", "rate": 0.1}, "list": [[1], {}]},
            "environment": {"python": "3.12", "packages": {"numpy": "2.5"}},
        }
    ],
}
LINES: tuple[dict[str, Any], ...] = (
    {"kind": "start", "time": 1.0, "step": 0},
    {"kind": "step", "time": 2.0, "step": 1, "loss": 0.5},
    {
        "kind": "epoch",
        "time": 3.0,
        "step": 2,
        "epoch": 1,
        "loss": 0.25,
        "val_loss": "NaN",
        "rows": 10,
        "seconds": 1.0,
        "reading": 0.1,
        "phases": {"compute": [0.1, 0.2], "wait": [0.1, 0.0], "between": [0.2, 0.1]},
        "confusion": [[1, 2], [3, 4]],
    },
    {"kind": "saved", "time": 4.0, "step": 2, "path": "ckpt/step-00000002", "epoch": 1},
    {"kind": "warning", "time": 5.0, "step": 2, "what": "ReplicaWarning", "text": "differ"},
    {"kind": "resumed", "time": 6.0, "step": 1},
    {"kind": "step", "time": 7.0, "step": 2, "loss": 0.3, "val_acc": True},
    {"kind": "end", "time": 8.0, "step": 2, "reason": "epochs"},
)


@st.composite
def run_cases(draw: st.DrawFn) -> Tree:
    starts = draw(json_of(STARTS)) if draw(st.booleans()) else json.dumps(STARTS).encode()
    lines = [json.dumps(line).encode() for line in LINES]
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(LINES) - 1))
        lines[at] = draw(json_of(LINES[at]))
    metrics = b"\n".join(lines) + draw(st.sampled_from((b"\n", b"")))
    if draw(once_in(8)):
        metrics = draw(damaged(metrics))
    lock = f"{draw(integers | st.just(os.getpid()))} {os.uname().nodename}".encode()
    return {
        "run.json": starts,
        "metrics.jsonl": metrics,
        ".lock": draw(damaged(lock)) if draw(once_in(3)) else lock,
    }


def read_a_run(folder: Path) -> None:
    starts, lines = read_starts(folder), read_metrics(folder)
    assert all(isinstance(each, dict) for each in [*starts, *lines])
    pid = writer_of(folder)
    assert pid is None or isinstance(pid, int)
    run = read_run(folder, 0, "a")
    assert all(isinstance(v, str) for v in (*run.config.values(), *run.last.values()))
    assert all(len(x) == len(y) for x, y in run.curves.values())
    with _end_of(folder, None) as ended:
        ended(0)
    recorder._starts(folder, resume=True)


def read_a_page(folder: Path) -> None:
    from synkhronos.cli._report.page import page

    text = page([read_run(folder, 0, "a")], [])
    assert text.encode()
    assert "<script" not in text


def read_exported(folder: Path) -> None:
    place, count = export(folder, "csv")
    assert count <= len(LINES) + 9
    assert not count or Path(place).exists()


READERS = (
    Reader("records", lambda canary: run_cases(), read_a_run, "run.json", ERRORS),
    Reader("page", lambda canary: run_cases(), read_a_page, "case", ERRORS, share=20),
    Reader("export", lambda canary: run_cases(), read_exported, "case", ERRORS),
)
