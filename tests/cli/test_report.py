"""``synk report``: a page that stands alone, of whatever runs have left."""

from __future__ import annotations

import json
import math
import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from measurements import measurement

import synkhronos as synk
from synkhronos.cli._command_line import main
from synkhronos.cli._plots import color_of
from synkhronos.cli._report import summary
from synkhronos.cli._report.page import _PARTS
from synkhronos.cli._report.report import names, report
from synkhronos.cli._scaling import write_csv
from synkhronos.training import Recorder
from synkhronos.training._record import recorder

VOID = {"meta", "br", "hr", "img", "input", "link"}  # elements without an end


class Page(HTMLParser):
    """A page, parsed strictly: each element ends where it should."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), "an attribute stands there twice"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        """What a reader sees, words apart by single spaces."""
        return " ".join(" ".join(self.texts).split())

    def check_that_it_stands_alone(self) -> None:
        """No script, and nothing from elsewhere."""
        names = {tag for tag, _ in self.tags}
        assert not names & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
        identifiers = [a["id"] for _, a in self.tags if "id" in a]
        for tag, attributes in self.tags:
            for name, value in attributes.items():
                assert not name.startswith("on"), (tag, name)
                if name in ("src", "href", "xlink:href", "action", "srcset"):
                    assert str(value).startswith("#"), (tag, value)
                    assert str(value)[1:] in identifiers
                assert "javascript:" not in str(value).lower()
        assert len(set(identifiers)) == len(identifiers)
        styles = " ".join(self.texts + [str(a.get("style")) for _, a in self.tags])
        assert not re.search(r"@import|url\((?!#)", styles)
        policies = [a["content"] for _, a in self.tags if a.get("http-equiv")]
        assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"system": {"python": "3.12"}, "packages": {"jax": None}, "blas": [{"threads": 2}]}
    monkeypatch.setattr(recorder, "environment", lambda: facts)


def recorded(folder: Path, config: dict[str, Any], **others: Any) -> Path:
    """A run of three epochs."""
    with Recorder(folder, config) as made:
        for epoch in range(3):
            step = 10 * (epoch + 1)
            for i in (5, 2):
                made.write("step", step=step - i, epoch=epoch, loss=1 / step, rows=50)
            made.write("validated", step=step, epoch=epoch, val_acc=0.8 + epoch / 20)
            phases = {"compute": [3.0, 2.0], "wait": [0.0, 1.0], "between": [1.0, 1.0]}
            values = {"loss": 1 / step, "rows": 100, "seconds": 4.0, "val_acc": 0.8 + epoch / 20}
            line = {**values, "phases": phases, "reading": 0.5, **others}
            made.write("epoch", step=step, epoch=epoch, **line)
            made.write("saved", step=step, epoch=epoch, path=f"elsewhere/ckpt/step-{step}")
        made.write("warning", step=30, epoch=3, what="WARNING", text="rank 1 is late")
        made.write("end", step=30, epoch=3, reason="epochs")
    (folder / "ckpt").mkdir()
    (folder / "ckpt" / "step-30").touch()
    return folder


def page_of(*folders: Path, tables: tuple[Path, ...] = (), out: Path | None = None) -> Page:
    path = report([str(f) for f in folders], [str(t) for t in tables], out and str(out))
    found = Page(path.read_text(encoding="utf-8"))
    found.check_that_it_stands_alone()
    return found


def test_two_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = recorded(tmp_path / "one", {"rate": 0.1, "batch": 50})
    two = recorded(tmp_path / "two", {"rate": 0.2, "batch": 50}, extra=2.0)
    given = ["report", str(one), str(two), "--out", str(tmp_path / "both.html")]
    assert main(given) == 0
    assert capsys.readouterr().out == f"{tmp_path}/both.html\n"
    page = Page((tmp_path / "both.html").read_text())
    page.check_that_it_stands_alone()
    text = page.text
    assert text.startswith("one, two")
    assert text.count("ended: epochs") == 2
    assert text.count("30 steps, 3 epochs") == 2
    drawn = [a["aria-label"] for tag, a in page.tags if tag == "svg"]
    titles = ["loss", "rows per second", "extra", "val_acc", "loss, of the epoch so far"]
    assert sorted(filter(None, drawn)) == sorted(titles)
    # of member 0: 9 of 12 seconds; half of the script's time was waiting for rows
    assert "compute exchange wait read script member 0 75 % 0 % 0 % 12 % 12 %" in text
    assert "member 1 50 % 0 % 25 % 12 % 12 %" in text
    assert text.count("WARNING rank 1 is late") == 2
    assert (
        "3 written; those that are still there: file step epochs done written step-30 30 2" in text
    )
    assert "Marked rows differ. one two rate 0.1 0.2 batch 50 50" in text
    marked = [a.get("class") for tag, a in page.tags if tag == "tr"]
    assert marked.count("differs") == 1
    assert "system.python 3.12 3.12 blas[0].threads 2 2" in text
    check_looks((tmp_path / "both.html").read_text(), runs=2)
    assert "packages" not in text  # what is not installed


def check_looks(text: str, runs: int, curves: int = 0) -> None:
    """A colour has one meaning, and a table is as wide as the page, in a box of its own."""
    drawn = [color_of(i) for i in range(runs + curves)]
    assert len(set(drawn)) == len(drawn)
    assert not set(drawn) & set(_PARTS.values())
    page = Page(text)
    boxes = [a for tag, a in page.tags if a.get("class") == "wide"]
    assert len(boxes) == sum(tag == "table" for tag, _ in page.tags)
    assert all(box["tabindex"] == "0" for box in boxes)  # it can be scrolled by keys
    assert re.search(r"^table {.* width: 100%; }$", text, re.MULTILINE)
    swatches = set(re.findall(r'class="swatch" style="background: (#\w+)"', text))
    assert swatches <= {*drawn, *_PARTS.values()}


def test_one_run_and_its_place(tmp_path: Path) -> None:
    page = page_of(recorded(tmp_path / "one", {}))
    assert (tmp_path / "one" / "report.html").exists()
    assert "Marked rows" not in page.text
    assert names(["a/", "b/../c"]) == ["a", "c"]


VISIBLE = "<script>alert(1)</script>\"'&]]>--> $\\frac{$ {{ 7 * 7 }} {% raw %} "
HOSTILE = f"{VISIBLE}\x00\x1b\x85\ud800\ufffe"


def test_hostile_texts(tmp_path: Path) -> None:
    """In each place that a text can come to; none is more than a text."""
    folder = recorded(tmp_path / f"a{'<b>&$x'}", {HOSTILE: {"x": HOSTILE}}, **{HOSTILE: 1.0})
    (folder / "ckpt" / "'\"<i>").touch()
    lines = [
        {"kind": "warning", "step": HOSTILE, "what": HOSTILE, "text": HOSTILE, "time": HOSTILE},
        {"kind": "saved", "step": HOSTILE, "path": "x/'\"<i>", "time": 1e300},
        {"kind": "saved", "path": f"x/{HOSTILE}"},
        {"kind": HOSTILE, "step": 3, HOSTILE: 2.0},
        {"kind": "epoch", "step": 3, HOSTILE * 9: 2.0, "phases": {HOSTILE: [1.0, 2.0]}},
        {"kind": "end", "reason": HOSTILE},
    ]
    with open(folder / "metrics.jsonl", "a") as file:
        file.writelines(f"{json.dumps(line)}\n" for line in lines)
    run = json.loads((folder / "run.json").read_text())
    run["starts"][0] |= {"argv": [HOSTILE], "cwd": HOSTILE, "time": HOSTILE, "host": [HOSTILE]}
    (folder / "run.json").write_text(json.dumps(run))
    table = tmp_path / "a.csv"
    write_csv(table, [measurement(1, 1, 5.0, function="<script>$\\frac{$")])
    page = page_of(folder, tables=(table,))
    shown = f"{VISIBLE}\\x00\\x1b\\x85\\xd800\\xfffe"
    assert page.text.count(shown) >= 8
    assert f"ended: {shown}" in page.text
    assert "<script>$\\frac{$, strong scaling" in page.text
    assert "'\"<i>" in page.text


def lines_of(case: str) -> Iterator[Any]:
    """Lines of odd runs."""
    epoch = {"kind": "epoch", "step": 1, "epoch": 0, "loss": 0.5, "rows": 10, "seconds": 1.0}
    if case == "one line":
        yield epoch
    elif case == "not finite":
        for i, value in enumerate(("NaN", "Infinity", "-Infinity", 1e308, -1e308, 0.5)):
            yield {**epoch, "step": i, "loss": value, "val_a": "NaN"}
    elif case == "other types":
        yield {**epoch, "loss": "low", "rows": "many", "seconds": None, "phases": 3}
        yield {**epoch, "step": "two", "phases": {"compute": [1, "x"]}, "time": "late"}
        yield {**epoch, "step": True, "phases": {"compute": []}, "seconds": 0}
        yield {**epoch, "step": 1e999, "phases": {"compute": [1.0], "wait": [1.0, 2.0]}}
        yield {"kind": None, "loss": [1, 2], "reading": "x"}
        yield {"loss": 1, "step": -5}
        yield {"kind": "saved", "path": None}
        yield {"kind": "warning"}
    elif case == "more members later":
        yield {**epoch, "phases": {"compute": [1.0], "between": [1.0]}, "reading": 9e9}
        yield {**epoch, "phases": {"compute": [1.0, 1.0], "between": [1.0, 1.0]}}


@pytest.mark.parametrize(
    "case", ["no lines", "one line", "not finite", "other types", "more members later"]
)
def test_odd_runs(case: str, tmp_path: Path) -> None:
    """Shown as far as they are; the line at the end is torn."""
    with open(tmp_path / "metrics.jsonl", "w") as file:
        file.writelines(f"{json.dumps(line)}\n" for line in lines_of(case))
        file.write('{"kind": "end", "reas')
    if case == "no lines":
        recorded(tmp_path / "other", {})
        os.rename(tmp_path / "other" / "run.json", tmp_path / "run.json")
    (tmp_path / "run.json").open("a").close()
    page = page_of(tmp_path)
    assert "has no end: killed, or on another machine" in page.text
    if case == "more members later":
        assert "member 0 50 % 0 % 0 % 50 % 0 %" in page.text


def test_a_run_that_goes_on_and_one_that_failed(tmp_path: Path) -> None:
    with Recorder(tmp_path / "a") as made:
        made.write("step", step=1, loss=1.0)
        found = summary.read_run(tmp_path / "a", 0, "a")
        assert (found.state, found.ended) == (f"goes on (process {os.getpid()})", True)
        made.write("end", step=1, reason="")
    found = summary.read_run(tmp_path / "a", 0, "a")
    assert (found.state, found.ended) == ("ended by an exception", False)


def test_long_runs_are_thinned() -> None:
    """As many points as a reader sees; peaks stay."""
    lines: list[dict[str, Any]] = [
        {"kind": "step", "step": i, "loss": math.nan if i % 7 == 0 else math.sin(i)}
        for i in range(100_000)
    ]
    lines[77_777]["loss"] = 50.0
    found = summary.curves(lines)
    steps, values = found["loss, of the epoch so far"]
    assert len(steps) <= 1000
    assert steps == sorted(steps)
    assert max(v for v in values if not math.isnan(v)) == 50.0
    assert dict(zip(steps, values, strict=True))[77_777] == 50.0


def test_scaling(tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    rates = {1: 1000.0, 2: 1800.0, 4: 3000.0}
    write_csv(table, [measurement(n, i, r) for n, r in rates.items() for i in (1, 2)])
    out = tmp_path / "page.html"
    assert main(["report", "--bench", str(table), "--out", str(out)]) == 0
    page = Page(out.read_text())
    page.check_that_it_stands_alone()
    drawn = [a["aria-label"] for tag, a in page.tags if tag == "svg"]
    assert drawn == ["rows per second; dotted: ideal", "efficiency, %"]
    assert "4 100 3,000 3,000 3,000 3.00 75 %" in page.text
    check_looks(out.read_text(), runs=0, curves=1)
    for svg in re.findall(r"<svg.*?</svg>", out.read_text(), re.DOTALL):
        ElementTree.fromstring(svg.replace("xlink:href", "href"))  # well-formed


def test_colors_of_runs_and_of_scaling(tmp_path: Path) -> None:
    """The first curve's is none that a run has."""
    one, table, out = recorded(tmp_path / "one", {}), tmp_path / "a.csv", tmp_path / "page.html"
    write_csv(table, [measurement(n, i, 1000.0 * n) for n in (1, 2) for i in (1, 2)])
    assert main(["report", str(one), "--bench", str(table), "--out", str(out)]) == 0
    text = out.read_text()
    check_looks(text, runs=1, curves=1)
    curves, scaling = text.split("<h2>Scaling</h2>")
    assert color_of(0) in curves
    assert color_of(1) not in curves
    assert color_of(1) in scaling
    assert color_of(0) not in scaling


def test_what_cannot_be_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["report"]) == 2
    assert "give the folder of a run" in capsys.readouterr().err
    with pytest.raises(synk.InputError, match="there is no run to report"):
        report([str(tmp_path)], [], None)
    with pytest.raises(synk.InputError, match="there is no run to report"):
        report([str(tmp_path / "other")], [], None)
    with pytest.raises(synk.InputError, match="there is no such folder"):
        report([], [], str(tmp_path / "other" / "page.html"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["report", str(tmp_path)]) == 1
    assert 'pip install "synkhronos[report]"' in capsys.readouterr().err
