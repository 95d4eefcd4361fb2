"""Measurements of scaling: their file, and what follows from them."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from statistics import median

from synkhronos._errors import InputError
from synkhronos._host import files

_LARGEST = 1 << 53  # up to here a float holds each integer
STRONG, WEAK = "strong", "weak"


@dataclass(frozen=True)
class Measurement:
    """Some steps of one group, made one after the other."""

    function: str  # "module:function"
    scaling: str  # "strong" or "weak"
    batch: int  # rows of a step; with weak scaling those of each member
    members: int
    round: int  # measurements of one round were made one after the other, so they are compared
    rows: int  # of a step
    steps: int
    seconds: float
    rows_per_second: float


@dataclass(frozen=True)
class Point:
    """The result of several rounds for one number of members."""

    members: int
    rows: int
    # rows per second: the median of the rounds, and the ends
    rate: float
    low: float
    high: float
    speedup: float  # the median ratio to the smallest number of members, within rounds
    efficiency: float  # the speed-up for each member, beside that smallest number


@dataclass(frozen=True)
class Curve:
    """Points of one function, batch and kind of scaling, by the number of members."""

    function: str
    scaling: str
    batch: int
    rounds: int
    points: tuple[Point, ...]

    @property
    def title(self) -> str:
        """The function and the kind of scaling."""
        of = " of each member" if self.scaling == WEAK else ""
        return f"{self.function}, {self.scaling} scaling, batch {self.batch:,}{of}"


def curves_of(measurements: Iterable[Measurement]) -> list[Curve]:
    """The curves, in the order of their first measurements."""
    found: dict[tuple[str, str, int], list[Measurement]] = {}
    for each in measurements:
        found.setdefault((each.function, each.scaling, each.batch), []).append(each)
    return [_curve(key, of) for key, of in found.items()]


def _curve(key: tuple[str, str, int], of: Sequence[Measurement]) -> Curve:
    smallest = min(m.members for m in of)
    base = {m.round: m.rows_per_second for m in of if m.members == smallest}
    points = []
    for size in sorted({m.members for m in of}):
        some = [m for m in of if m.members == size]
        rates = [m.rows_per_second for m in some]
        ratios = [m.rows_per_second / base[m.round] for m in some if base.get(m.round, 0.0) > 0.0]
        speedup = median(ratios) if ratios else float("nan")
        points.append(
            Point(
                members=size,
                rows=some[0].rows,
                rate=median(rates),
                low=min(rates),
                high=max(rates),
                speedup=speedup,
                efficiency=speedup * smallest / size,
            )
        )
    return Curve(*key, max(m.round for m in of), tuple(points))


def write_csv(path: str | os.PathLike[str], measurements: Iterable[Measurement]) -> None:
    """Write a row for each measurement."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(field.name for field in fields(Measurement))
    writer.writerows(map(astuple, measurements))
    files.write(path, text.getvalue())


def read_csv(path: str | os.PathLike[str]) -> list[Measurement]:
    """Read the rows that `write_csv` has written; other columns are left out.

    Raises
    ------
    InputError
        The file cannot be read, or is not such a table.
    """
    kinds = {"int": int, "float": float, "str": str}
    try:
        found = [
            Measurement(*(kinds[str(f.type)](row[f.name]) for f in fields(Measurement)))
            for row in csv.DictReader(io.StringIO(files.read_text(path)))
        ]
        if not all(m.members > 0 and 0 < m.rows_per_second < math.inf for m in found):
            raise ValueError("members and rows per second are above 0")
        if any(isinstance(n, int) and abs(n) > _LARGEST for m in found for n in astuple(m)):
            raise ValueError(f"a number is above {_LARGEST:,}")
        return found
    except OSError as exc:
        raise InputError(
            f"{Path(path)}: {exc.strerror}: give a CSV of `synk bench --csv`"
        ) from None
    except (KeyError, TypeError, ValueError, csv.Error) as exc:
        raise InputError(
            f"{Path(path)} is not what `synk bench --csv` writes ({type(exc).__name__}: {exc})"
        ) from None
