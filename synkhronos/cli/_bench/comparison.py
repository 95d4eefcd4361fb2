"""``synk bench``: the processes of all numbers of members, which take turns."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from synkhronos._api.tables import Table, busy, percent
from synkhronos._engine.exit_codes import DEATH, USAGE
from synkhronos._errors import BackendMissing
from synkhronos._host import cores
from synkhronos._host.files import check_place
from synkhronos._transport.processes.interpreter import lifeline, start_interpreter
from synkhronos.cli._say import complain, say
from synkhronos.cli._scaling import STRONG, WEAK, Curve, Measurement, curves_of, write_csv


class Failed(Exception):
    """A process has ended; it has said why on standard error."""

    def __init__(self, members: int, code: int) -> None:
        super().__init__(f"with {members} member{'s' * (members > 1)}: see above")
        self.code = code if code > 0 else DEATH


class BenchProcess:
    """The process of one number of members; a context that ends it."""

    def __init__(
        self, function: str, members: int, devices: str | None, lifeline: int | None
    ) -> None:
        self.members = members
        self._process = start_interpreter(
            "synkhronos.cli._bench.bench_process",
            {"function": function, "members": members, "devices": devices},
            lifeline=lifeline,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __enter__(self) -> BenchProcess:
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is not None:
            self._process.kill()
        self._process.communicate()

    def ready(self) -> dict[str, object]:
        """Wait until it can make steps; returns its environment."""
        return self._answer()

    def measure(self, rows: int, seconds: float) -> dict[str, Any]:
        """Let it make steps."""
        self._ask([rows, seconds])
        return self._answer()

    def _ask(self, value: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{json.dumps(value)}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            self._ended()

    def _answer(self) -> dict[str, object]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._ended()
        return dict(json.loads(line))

    def _ended(self) -> None:
        raise Failed(self.members, self._process.wait() or 1)


def bench(options: argparse.Namespace) -> int:
    """Measure, print tables, and write what was asked; returns the exit code."""
    module, colon, name = options.function.partition(":")
    if not (module and colon and name.isidentifier()):
        complain(
            f"synk bench: found {options.function!r}, give MODULE:FUNCTION, as in mine:training"
        )
        return USAGE
    for path in filter(None, (options.csv, options.plot)):
        if not Path(path).absolute().parent.is_dir():  # before minutes of measuring
            complain(f"synk bench: {path}: there is no such folder")
            return USAGE
        check_place(path)
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        raise BackendMissing("matplotlib", "report")
    sizes = sorted(set(options.members or default_sizes(cores.physical())))
    try:
        found = [m for some in at_once(sizes, options.devices) for m in measured(some, options)]
    except Failed as exc:
        complain(f"synk bench: {options.function} has failed {exc}")
        return exc.code
    for curve in curves_of(found):
        table_of(curve).show()
    if options.csv:
        write_csv(options.csv, found)
    if options.plot:
        from synkhronos.cli._plots import scaling_file

        scaling_file(options.plot, curves_of(found))
    return 0


def default_sizes(most: int) -> list[int]:
    """1, 2, 4, ... and the number of cores.

    >>> default_sizes(6)
    [1, 2, 4, 6]
    """
    return sorted({most, *(1 << i for i in range(most.bit_length()) if 1 << i <= most)})


def at_once(sizes: Sequence[int], devices: str | None) -> list[list[int]]:
    """The numbers of members whose processes live at the same time; on GPUs one, for its memory."""
    return [[size] for size in sizes] if devices not in (None, "cpu") else [list(sizes)]


def measured(sizes: Sequence[int], options: argparse.Namespace) -> Iterator[Measurement]:
    """Start a process for each number of members, and let them take turns."""
    scaling = WEAK if options.weak else STRONG
    with lifeline() as held, ExitStack() as stack:
        processes = []
        for size in sizes:  # one after the other: the first one compiles for all
            made = stack.enter_context(BenchProcess(options.function, size, options.devices, held))
            where = made.ready()
            processes.append(made)
            if len(processes) == 1:
                say(header(where))
                total = len(sizes) * len(options.batch) * options.seconds
                say(f"measuring {options.function} for about {total:.0f} s")
                sys.stdout.flush()
        for number in range(1, options.rounds + 1):
            for batch in options.batch:
                for each in processes:
                    rows = batch * each.members if options.weak else batch
                    got = each.measure(rows, options.seconds / options.rounds)
                    yield Measurement(
                        function=options.function,
                        scaling=scaling,
                        batch=batch,
                        members=each.members,
                        round=number,
                        rows=rows,
                        steps=got["steps"],
                        seconds=got["seconds"],
                        rows_per_second=rows * got["steps"] / got["seconds"],
                    )


def header(where: dict[str, Any]) -> str:
    """The machine and the versions, in one line."""
    packages, blas = where["packages"], where.get("blas", [])
    names = ("synkhronos", "pytensor", "numpy")
    kinds = {f"{b['name']} {b['core_type']}" for b in blas}
    parts = [
        f"{where['cores']['may_use']} cores, {where['cores']['physical']} of them physical",
        where["system"]["machine"],
        f"Python {where['system']['python']}",
        *(f"{name} {packages[name]}" for name in names),
        *sorted(kinds),
    ]
    if (mode := where["pytensor"]["mode"]) != "Mode":  # PyTensor's default
        parts.append(f"mode {mode}")
    if preset := where["variables"].get("OPENBLAS_CORETYPE"):
        parts.append(f"OPENBLAS_CORETYPE={preset}")
    return ", ".join(parts)


def table_of(curve: Curve) -> Table:
    """A row for each number of members."""
    columns = ["members", "rows", "rows/s", "low", "high", "ms a step", "speed-up", "efficiency"]
    rows = [
        [
            f"{p.members}",
            f"{p.rows:,}",
            *(f"{rate:,.0f}" for rate in (p.rate, p.low, p.high)),
            f"{1000 * p.rows / p.rate:.3f}",
            f"{p.speedup:.2f}",
            percent(p.efficiency),
        ]
        for p in curve.points
    ]
    return Table(
        f"{curve.title}; median of {curve.rounds} round{'s' * (curve.rounds > 1)}",
        columns,
        rows,
        verdict(curve, cores.physical(), os.getloadavg()[0]),
    )


def verdict(curve: Curve, physical: int, load: float) -> str:
    """A sentence on the largest speed-up, and on what makes figures doubtful."""
    best, smallest = max(curve.points, key=lambda p: p.rate), curve.points[0].members
    text = f"{best.members} members make the most rows per second, {best.speedup:.2f} times those "
    text += f"of {smallest}."
    if best.members == smallest:
        text = "More members do not make more rows per second." * (len(curve.points) > 1)
    if curve.points[-1].members > physical:
        text += f" With more than {physical} members, they share cores."
    if other := busy(load):
        text += f" {other}: measure again when it is idle."
    return text.strip()
