"""Traces: rings of spans, clocks of other nodes, nesting, files, and traces of real groups."""

from __future__ import annotations

import gzip
import json
import math
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from failing_ops import Fussy
from hypothesis import given
from hypothesis import strategies as st
from modes import FAST

import synkhronos as synk
from synkhronos._engine import runner as runner_module
from synkhronos._engine.spans import NAMED, RUN, SPAN, Spans
from synkhronos._engine.trace import MemberTrace, Trace, nested, on_the_master_clock
from synkhronos.extensions import make_train_function, updates
from synkhronos.testing.faults import Fault


def taken(spans: Spans) -> tuple[list[Any], int]:
    raw, lost = spans.taken()
    return np.frombuffer(raw, SPAN).tolist(), lost


def test_a_ring_keeps_the_latest_spans() -> None:
    spans = Spans(3)
    assert taken(spans) == ([], 0)
    for i in range(5):
        spans.number = 10 + i
        spans.add(i, i + 0.5, 1)
        if i == 2:
            assert taken(spans) == ([(k, k + 0.5, 1, 10 + k) for k in range(3)], 0)
    assert taken(spans) == ([(k, k + 0.5, 1, 10 + k) for k in (2, 3, 4)], 2)


def test_names_get_kinds_of_their_own() -> None:
    spans = Spans(4)
    for name in ("f", "g", "f"):
        spans.add_named(0.0, 1.0, name)
    assert [kind for _, _, kind, _ in taken(spans)[0]] == [NAMED, NAMED + 1, NAMED]
    assert spans.names == ["f", "g"]


@given(
    st.floats(-1e6, 1e6),
    st.floats(-1e-4, 1e-4),
    st.lists(st.floats(0, 1000), min_size=1, max_size=5),
)
def test_times_of_another_clock(offset: float, drift: float, times: list[float]) -> None:
    """A clock that is ahead, and runs faster: times come back as the master's clock shows them."""

    def theirs(master: float) -> float:
        return master + offset + drift * master

    spans = np.zeros(len(times), SPAN)
    spans["start"], spans["end"] = [theirs(t) for t in times], [theirs(t + 1) for t in times]
    at = [(t, theirs(t) - t) for t in (0.0, 1000.0)]
    found = on_the_master_clock(spans, *at)
    # drift of drift is left out, and floats of large offsets are coarse
    np.testing.assert_allclose(found["start"], times, atol=1001 * drift**2 + 1e-8)
    np.testing.assert_allclose(found["end"] - found["start"], 1, atol=2 * drift**2 + 1e-8)


def is_nested(spans: Iterable[tuple[float, float]]) -> bool:
    spans = sorted(spans, key=lambda s: (s[0], -s[1]))
    return all(b[0] >= a[1] or b[1] <= a[1] for i, a in enumerate(spans) for b in spans[i + 1 :])


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), max_size=12))
def test_spans_are_nested(given_: list[tuple[int, int]]) -> None:
    """Only the begin of a span moves, and never beyond its end."""
    spans = np.zeros(len(given_), SPAN)
    spans["start"] = [a for a, _ in given_]
    spans["end"] = [a + length for a, length in given_]
    spans["number"] = range(len(given_))
    found = list(nested(spans))
    assert is_nested((start, end) for start, end, _, _ in found)
    for start, end, _, number in found:
        assert spans["start"][number] <= start < end == spans["end"][number]
    alone = [s for s in spans if is_nested([(s["start"], s["end"])])]
    assert len(found) <= len(alone)


def traced(group: synk.Group, path: Path | None = None) -> Trace:
    """A trace of three calls of f, two steps of train, and a span of the user's."""
    x = pt.matrix("x", dtype="float64")
    w = pytensor.shared(np.zeros(5), name="w")
    loss = ((x @ w - 1) ** 2).mean()
    f = synk.function([x], x.sum(), name="f", mode=FAST)
    train = make_train_function(loss, [w], x, None, updates.sgd, 0.1, mode=FAST, name="train")
    rows = np.ones((12, 5))
    f(rows), train(rows)
    with group.trace(path) as trace:
        for _ in range(3):
            f(rows)
        with group.span("mine"):
            train(rows), train(rows)
    f(rows)
    return trace


def check_format(events: list[dict[str, Any]]) -> None:
    """The Trace Event Format: what viewers need of each event, and spans that are nested."""
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    for event in events:
        assert isinstance(event["name"], str)
        if event["ph"] == "X":
            assert event["dur"] > 0
            assert event["ts"] >= 0
            assert (event["pid"], event["tid"]) in named
            track = tracks.setdefault((event["pid"], event["tid"]), [])
            track.append((event["ts"], round(event["ts"] + event["dur"], 3)))
        elif event["ph"] == "C":
            assert math.isfinite(event["ts"])
            assert all(isinstance(value, int) for value in event["args"].values())
        else:
            assert event["ph"] == "M"
            assert event["name"] in ("process_name", "thread_name")
            assert isinstance(event["args"]["name"], str)
    for spans in tracks.values():
        # times are rounded to nanoseconds
        assert is_nested((start + 0.002, end - 0.002) for start, end in spans if end - start > 0.01)


def test_what_members_do(group: synk.Group) -> None:
    trace = traced(group)
    assert (trace.master, trace.error, trace.lost) == (group.rank, 0, 0)
    assert [m.rank for m in trace.members] == list(range(group.size))
    events = list(trace.events())
    check_format(events)
    for rank in range(group.size):
        names = [e["name"] for e in events if e["ph"] == "X" and e["tid"] == rank]
        assert names.count("function f") == 3
        assert names.count("function train") == 2
        assert names.count("compute") == names.count("update") == 2
        assert names.count("mine") == (rank == group.rank)
    counts = [e["args"]["members"] for e in events if e["ph"] == "C"]
    assert counts[-1] == 0
    assert 1 <= max(counts) <= group.size
    seconds = trace.seconds()[group.rank]
    assert seconds["mine"] >= seconds["function train"] >= seconds["compute"] > 0
    assert trace.length >= seconds["mine"]
    assert f"Trace of {group.size} members" in repr(trace)


def test_files(group2: synk.Group, tmp_path: Path) -> None:
    trace = traced(group2, tmp_path / "trace.bin")
    loaded = Trace.load(tmp_path / "trace.bin")
    assert list(loaded.events()) == list(trace.events())
    trace.save(tmp_path / "trace.json")
    loaded.save(tmp_path / "trace.json.gz")
    text = (tmp_path / "trace.json").read_bytes()
    assert gzip.decompress((tmp_path / "trace.json.gz").read_bytes()) == text
    check_format(json.loads(text)["traceEvents"])


def test_what_is_refused(group2: synk.Group, tmp_path: Path) -> None:
    for begin in (group2.trace("trace.txt").__enter__, lambda: synk.Group(2, trace="trace.txt")):
        with pytest.raises(synk.InputError, match=r"trace.txt: end its name in .json"):
            begin()
    for wrong in (0, -1, True, 2.5):
        with pytest.raises(synk.InputError, match=r"spans=.*: give an integer of at least 1"):
            group2.trace(spans=wrong).__enter__()
    with group2.trace(), pytest.raises(synk.GroupError, match="traced already"):
        group2.trace().__enter__()
    (tmp_path / "a.bin").write_bytes(b"no")
    (tmp_path / "b.bin").write_bytes(b"synkhronos trace 2\n{}\n")
    (tmp_path / "c.bin").write_bytes(b"synkhronos trace 1\n{}\n")
    with group2.trace(tmp_path / "d.bin"):
        group2.run(Fault("nap", ranks=()))
    (tmp_path / "d.bin").write_bytes((tmp_path / "d.bin").read_bytes()[:-1])  # cut off
    for name in ("a.bin", "b.bin", "c.bin", "d.bin", "missing.bin"):
        with pytest.raises(synk.InputError, match="is not a trace"):
            Trace.load(tmp_path / name)


def test_failures_are_traced_too(group2: synk.Group) -> None:
    x = pt.vector("x", dtype="float64")
    f = synk.function([x], (Fussy()(x).sum(), "sum"), name="f", mode=FAST)
    f(np.ones(4))
    with group2.trace() as trace:
        with pytest.raises(synk.WorkerError):
            f(np.array([1.0, 1.0, -1.0, 1.0]))
        f(np.ones(4))
    for rank in (0, 1):
        names = [e["name"] for e in trace.events() if e["ph"] == "X" and e["tid"] == rank]
        assert names.count("function f") == 2
    with pytest.raises(KeyError), group2.trace() as trace:
        raise KeyError("the user's")
    assert len(trace.members) == 2


def test_the_whole_life_of_a_group(tmp_path: Path) -> None:
    with synk.Group(2, trace=tmp_path / "trace.bin"):
        x = pt.vector("x", dtype="float64")
        f = synk.function([x], x.sum(), name="f", mode=FAST)
        f(np.ones(4)), f(np.ones(4))
    trace = Trace.load(tmp_path / "trace.bin")
    for seconds in trace.seconds():
        assert {"compile", "function f"} <= set(seconds)
    assert trace.members[1].spans["kind"].tolist().count(RUN) >= 3


def test_a_trace_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The group is closed all the same."""
    group = synk.Group(2, trace=tmp_path / "missing" / "trace.bin")
    group.close()
    assert "the trace was not written: FileNotFoundError" in caplog.text


def test_a_member_that_stands_still_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The group waits for its spans for a while only, and is closed."""
    monkeypatch.setattr(runner_module, "LEAVE_SECONDS", 0.3)
    group = synk.Group(2, trace=tmp_path / "trace.bin")
    os.kill(group.channel.pid(1), signal.SIGSTOP)
    group.close()
    assert "the trace was not written: GroupTimeout" in caplog.text
    assert not (tmp_path / "trace.bin").exists()


def test_after_a_restart(group2: synk.Group) -> None:
    """Restarted members are not traced; the trace stays empty, and the group goes on."""
    with synk.Group(2, max_restarts=1) as group:
        x = pt.vector("x", dtype="float64")
        f = synk.function([x], x.sum(), mode=FAST)
        with group.trace() as trace:
            f(np.ones(4))
            group.channel.kill([1])
            assert f(np.ones(4)) == 4
        assert trace.members == []
        with group.trace() as trace:
            f(np.ones(4))
        assert len(trace.members[1].spans) > 0


def test_many_members_of_nodes() -> None:
    """Ranks of another node are on a process of their own, and carry its host's name."""
    spans = np.array([(0.0, 1.0, RUN, 1)], SPAN)
    members = [MemberTrace(r, 2 * (r // 2), f"host{r // 2}", r, spans, [], r) for r in range(4)]
    trace = Trace(members, 0, 1e-6)
    assert trace.lost == 6
    events = list(trace.events())
    check_format(events)
    named = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert named == {0: "node of rank 0 (host0)", 2: "node of rank 2 (host1)"}
