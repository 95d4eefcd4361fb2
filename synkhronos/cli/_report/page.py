"""The page of ``synk report``: one HTML file, without script and without what is elsewhere."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

import synkhronos
from synkhronos.cli._plots import Line, color_of, curves_svg, printable, scaling_svgs
from synkhronos.cli._report.summary import SPLIT, Run
from synkhronos.cli._scaling import Curve

_FIGURES = 24  # of curves
_MARKED = 30  # points; of fewer, each is drawn
# shades of a colour that no run has
_PARTS = dict(zip(SPLIT, ("#4b3f8f", "#7d70c0", "#ada4dc", "#d6d1ee", "#8c8c8c"), strict=True))


@dataclass(frozen=True)
class Row:
    """A row of a table with one column for each run."""

    name: str
    values: Sequence[str]

    @property
    def differs(self) -> bool:
        """Whether the runs have different values."""
        return len(set(self.values)) > 1


def page(runs: Sequence[Run], scaling: Sequence[Curve]) -> str:
    """The page.

    Parameters
    ----------
    runs : sequence of Run
    scaling : sequence of Curve
        Of ``synk bench``.
    """
    titles = list(dict.fromkeys(title for run in runs for title in run.curves))
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["percent"] = lambda share: f"{100 * share:.0f} %"
    template = resources.files("synkhronos.cli._report").joinpath("report.html.j2")
    text = environment.from_string(template.read_text(encoding="utf-8")).render(
        title=", ".join(run.name for run in runs) or "scaling",
        runs=runs,
        figures=[Markup(svg) for svg in _figures(runs, titles[:_FIGURES])],
        left_out=titles[_FIGURES:],
        configs=_rows([run.config for run in runs]),
        environments=_rows([run.environment for run in runs]),
        last=_rows([run.last for run in runs]),
        colors=[color_of(run.number) for run in runs],
        parts=_PARTS,
        curves=scaling,
        scaling=[Markup(svg) for svg in scaling_svgs(scaling, "scaling", len(runs))],
        curve_colors=[color_of(len(runs) + i) for i in range(len(scaling))],
        now=datetime.datetime.now().isoformat(" ", "minutes"),
        version=synkhronos.__version__,
    )
    return printable(text)


def _figures(runs: Sequence[Run], titles: Sequence[str]) -> Iterator[str]:
    for number, title in enumerate(titles):
        lines = []
        for run in runs:
            if title in run.curves:
                steps, values = run.curves[title]
                marks = len(steps) <= _MARKED
                lines.append(Line(run.name, run.number, steps, values, marks))
        yield curves_svg(title, lines, f"curve {number}")


def _rows(tables: Sequence[Mapping[str, str]]) -> list[Row]:
    """A row for each name that occurs."""
    names = dict.fromkeys(name for table in tables for name in table)
    return [Row(name, [table.get(name, "") for table in tables]) for name in names]
