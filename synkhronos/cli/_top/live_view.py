"""What `synk top` draws."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import platform
import sys
import time
from collections.abc import Sequence
from typing import Any

from synkhronos._compiling.terminal import CLEAR
from synkhronos.cli._say import say
from synkhronos.cli._top.watched_chains import WatchedChains, look_at_chains
from synkhronos.cli._top.watched_groups import SHARES, Watch, WatchedGroup

_NOTHING = "no group of this user is running here"
_COLUMNS = ("rank", "pid", "state", "for", *SHARES, "memory")


def show(pid: int | None, interval: float, as_json: bool) -> int:
    """Print one look; returns 1 if a process was named that is in no group."""
    looks = Watch()
    looks.look(pid)
    time.sleep(interval)
    groups = looks.look(pid)
    chains = look_at_chains(pid)
    if as_json:
        found = {"time": time.time(), "host": platform.node()}
        found |= {"groups": [dataclasses.asdict(g) for g in groups]}
        text = json.dumps({**found, "chains": [dataclasses.asdict(c) for c in chains]})
    else:
        text = _all_plain(groups, chains)
    say(text)
    return 1 if pid is not None and not groups and not chains else 0


def watch(pid: int | None, interval: float) -> int:
    """Draw again and again until Ctrl-C."""
    looks = Watch()
    if importlib.util.find_spec("rich") is None:
        while True:
            sys.stdout.write(CLEAR)
            say(_all_plain(looks.look(pid), look_at_chains(pid)))
            sys.stdout.flush()
            time.sleep(interval)
    from rich.live import Live

    with Live(auto_refresh=False, screen=True) as live:
        while True:
            live.update(drawn(looks.look(pid), look_at_chains(pid)), refresh=True)
            time.sleep(interval)


def headline(group: WatchedGroup) -> list[str]:
    """The facts about the whole group, in lines."""
    rates = [
        f"{count(group.rates[name])} {name}/s"
        for name in ("rows", "steps", "commands")
        if group.rates.get(name)
    ]
    steps = [] if not group.steps else [f"step {group.steps:,}"]
    facts = [*([group.what] if group.what else []), *steps, *rates]
    lines = [f"{group.pid}  {group.command}", " | ".join(facts) or "no command yet"]
    return [*lines, group.note] if group.note else lines


def rows_of(group: WatchedGroup) -> list[list[str]]:
    """One row for each member."""
    found = []
    for m in group.members:
        state = f"{m.state}, LATE" if m.late else m.state
        shares = [f"{100 * m.share[name]:.0f} %" if m.share else "" for name in SHARES]
        memory = f"{m.memory / 1e9:.2f} GB"
        found.append([str(m.rank), str(m.pid), state, duration(m.seconds), *shares, memory])
    return found


def plain(group: WatchedGroup) -> str:
    """A group as plain lines."""
    lines = [list(_COLUMNS), *rows_of(group)]
    width = [max(len(line[i]) for line in lines) for i in range(len(_COLUMNS))]
    table = ["  ".join(t.ljust(w) for t, w in zip(line, width, strict=True)) for line in lines]
    return "\n".join([*headline(group), *(f"  {line.rstrip()}" for line in table)])


def _all_plain(groups: Sequence[WatchedGroup], chains: Sequence[WatchedChains]) -> str:
    parts = [*map(plain, groups), *("\n".join(lines_of(c)) for c in chains)]
    return "\n\n".join(parts) or _NOTHING


def lines_of(chains: WatchedChains) -> list[str]:
    """Chains that are sampled into a folder."""
    return [f"{chains.pid}  {chains.folder}", chains.said]


def drawn(groups: Sequence[WatchedGroup], chains: Sequence[WatchedChains] = ()) -> Any:
    """All groups, and chains, for rich."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[Any] = []
    for group in groups:
        first, *others = headline(group)
        parts += [Text(first, style="bold"), *map(Text, others)]
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for i, column in enumerate(_COLUMNS):
            table.add_column(column, justify="left" if i in (1, 2) else "right")
        for m, row in zip(group.members, rows_of(group), strict=True):
            style = "red" if m.late or m.state == "ended" else ""
            style = style or {"idle": "dim", "wait": "yellow"}.get(m.state, "")
            table.add_row(*map(Text, row), style=style)
        parts += [table, Text("")]
    for each in chains:
        first, *others = lines_of(each)
        parts += [Text(first, style="bold"), *map(Text, others), Text("")]
    if not parts:
        parts = [Text(_NOTHING, style="dim")]
    return Group(*parts, Text("Ctrl-C ends", style="dim"))


def count(number: float) -> str:
    """A number of a rate, with three digits."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def duration(seconds: float) -> str:
    """Seconds for a reader."""
    if seconds < 1:
        return f"{1e3 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
