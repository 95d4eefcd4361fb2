"""Figures as SVG, drawn by matplotlib: curves of runs, and scaling."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from matplotlib import rc_context, rcdefaults, rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, NullFormatter, StrMethodFormatter

from synkhronos.cli._scaling import Curve

# Okabe and Ito's colours without their yellow and black, so that they are told apart with any
# vision, and on dark and light ground (https://jfly.uni-koeln.de/color)
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_DASHES = ("-", "--", ":", "-.")
# Colours of the page, which follow the reader's choice of dark or light: what is drawn in these is
# replaced by the page's own
_INK, _GRID = "#010101", "#020202"
_STEEP = 30  # values are shown by logarithms where the largest is this number of times the smallest
_MANY = 10_000  # values from here on are shown with k, M, ...
_LARGEST = 1e150  # beyond this, matplotlib's arithmetic overflows
# of matplotlib's SVG: what describes the file, styles and names of parts that would be those of all
# figures of a page, and fonts, which are the page's
_LEFT_OUT = [
    re.compile(pattern, re.DOTALL)
    for pattern in (
        *("<metadata>.*?</metadata>", "<style.*?</style>", r"<defs>\s*</defs>"),
        *(r'(?<=<g) id="[^"]*"', r"font-family: [^;\"]*;? ?"),
    )
]
# control characters, halves of a pair of UTF-16, and code points that are no characters
_NOT_ALLOWED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_LONGEST = 60  # characters of a text in a figure
_WIDE = 4.6  # inches; a page of 400 pixels shows it at 80 %


@dataclass(frozen=True)
class Line:
    """One line of a figure."""

    name: str
    number: int  # of its colour, and of its dashes after all colours
    # what is not finite is left out
    x: Sequence[float]
    y: Sequence[float]
    marks: bool = False  # draw each point


def printable(text: str) -> str:
    """The text without characters that neither SVG nor HTML allows."""
    return _NOT_ALLOWED.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def color_of(number: int) -> str:
    """The colour of a line."""
    return COLORS[number % len(COLORS)]


def curves_svg(title: str, lines: Sequence[Line], name: str) -> str:
    """Lines over the step, as an SVG element for a page.

    Parameters
    ----------
    title : str
    lines : sequence of Line
    name : str
        Of the figure in its page: its own, since identifiers are made of it.
    """
    with _style(name):
        figure = Figure((_WIDE, 2.9), layout="constrained")
        axes = figure.add_subplot()
        values = [y for line in lines for _, y in _draw(axes, line)]
        if values and min(values) > 0 and max(values) > _STEEP * min(values):
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
        elif values and max(map(abs, values)) >= _MANY:
            axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_title(_short(title), loc="left")
        axes.set_xlabel("step")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        _clear(axes)
        return _element(figure, title)


def scaling_svgs(curves: Sequence[Curve], name: str, first: int = 0) -> list[str]:
    """Rows per second, and efficiency, over the number of members: two SVG elements for a page.

    `first` is the number of the first curve's colour, after those of the page's runs.
    """
    found = []
    for number, draw in enumerate((_rates, _efficiency)):
        with _style(f"{name} {number}"):
            figure = Figure((_WIDE, 2.9), layout="constrained")
            found.append(_element(figure, draw(figure.add_subplot(), curves, first)))
    return found


def scaling_file(path: str, curves: Sequence[Curve]) -> None:
    """Write both to an SVG file, black on white, with the names of the curves."""
    with _style("scaling", page=False):
        figure = Figure((2 * _WIDE, 3.2), layout="constrained")
        rates, shares = figure.subplots(1, 2)
        _rates(rates, curves)
        _efficiency(shares, curves)
        figure.legend(loc="outside lower left", frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None}, facecolor="white")


def _rates(axes: Axes, curves: Sequence[Curve], first: int = 0) -> str:
    for number, curve in enumerate(curves, first):
        members, color = [p.members for p in curve.points], color_of(number)
        rates = [p.rate for p in curve.points]
        axes.plot(members, rates, color=color, marker="o", markersize=4, label=_short(curve.title))
        low, high = [p.low for p in curve.points], [p.high for p in curve.points]
        axes.fill_between(members, low, high, color=color, alpha=0.2, linewidth=0)
        ideal = [rates[0] * m / members[0] for m in members]
        axes.plot(members, ideal, color=color, linestyle=":", linewidth=1)
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    return _over_members(axes, curves, "rows per second; dotted: ideal")


def _efficiency(axes: Axes, curves: Sequence[Curve], first: int = 0) -> str:
    for number, curve in enumerate(curves, first):
        members = [p.members for p in curve.points]
        shares = [100 * p.efficiency for p in curve.points]
        axes.plot(members, shares, color=color_of(number), marker="o", markersize=4)
    axes.axhline(100, color=rcParams["axes.edgecolor"], linestyle=":", linewidth=1)
    return _over_members(axes, curves, "efficiency, %")


def _over_members(axes: Axes, curves: Sequence[Curve], title: str) -> str:
    sizes = sorted({p.members for curve in curves for p in curve.points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.xaxis.minorticks_off()
    axes.set_xlabel("members")
    axes.set_ylim(bottom=0)
    axes.set_title(title, loc="left")
    _clear(axes)
    return title


def _draw(axes: Axes, line: Line) -> list[tuple[float, float]]:
    """Draw a line; returns the points that could be drawn."""
    points = [
        (x, y)
        for x, y in zip(line.x, line.y, strict=True)
        if abs(x) < _LARGEST and abs(y) < _LARGEST  # also False for NaN
    ]
    few = line.marks or len(points) == 1
    axes.plot(
        [x for x, _ in points],
        [y for _, y in points],
        color=color_of(line.number),
        linestyle=_DASHES[line.number // len(COLORS) % len(_DASHES)],
        marker="o" if few else None,
        markersize=3,
    )
    return points


def _short(text: str) -> str:
    text = printable(text.replace("\n", " "))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _clear(axes: Axes) -> None:
    """Without a box; a light grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=_GRID, linewidth=0.6)
    axes.set_axisbelow(True)


@contextmanager
def _style(name: str, page: bool = True) -> Iterator[None]:
    """Settings of matplotlib: those of the user do not count.

    Texts are texts, not paths, and no formulas: names of metrics may hold a dollar.
    """
    ink = {
        key: _INK if page else "black"
        for key in ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    }
    with rc_context():
        rcdefaults()
        rcParams.update(
            {
                **ink,
                "font.size": 9,
                "axes.titlesize": 10,
                "lines.linewidth": 1.5,
                "svg.fonttype": "none",
                "svg.hashsalt": name,
                "text.parse_math": False,
            }
        )
        yield


def _element(figure: Figure, title: str) -> str:
    """The figure as an element of a page, whose colours and width it takes."""
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue()
    head, _, body = text[text.index("<svg") :].partition(">")
    found = re.search(r'viewBox="([\d. ]+)"', head)
    assert found is not None
    for part in _LEFT_OUT:
        body = part.sub("", body)
    body = body.replace(_INK, "currentColor").replace(_GRID, "var(--grid)")
    label = html.escape(printable(title))
    return f'<svg viewBox="{found[1]}" role="img" aria-label="{label}">{body.strip()}'
