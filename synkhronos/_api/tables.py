"""Tables that users read: with rich at a terminal, as plain lines elsewhere."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from synkhronos._errors import printable


def percent(fraction: float) -> str:
    """A fraction for a reader."""
    return f"{100 * fraction:.0f} %"


def busy(load: float) -> str:
    """A clause on other work on this machine; empty unless its load is above that of a group."""
    processors = os.cpu_count() or 1
    if load < processors + 1:
        return ""
    return f"Other work keeps the machine busy (load {load:.1f} on {processors} cores)"


@dataclass(frozen=True)
class Table:
    """A headline, columns, rows of texts, and sentences below them; `str` gives plain lines."""

    headline: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    verdict: str

    def __str__(self) -> str:
        lines = [self.columns, *self.rows]
        width = [max(len(line[i]) for line in lines) for i in range(len(self.columns))]
        texts = [
            "  ".join(
                c.rjust(w) if i else c.ljust(w)
                for i, (c, w) in enumerate(zip(line, width, strict=True))
            ).rstrip()
            for line in lines
        ]
        return printable("\n".join([self.headline, *texts, self.verdict]), kept="\n")

    def show(self) -> None:
        """Print the table: with rich at a terminal if it is installed, else as plain lines."""
        if not sys.stdout.isatty() or importlib.util.find_spec("rich") is None:
            sys.stdout.write(f"{self}\n")
            return
        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text

        def plain(text: str) -> Text:  # of which rich takes nothing for markup
            return Text(printable(text, kept="\n"))

        table = RichTable(
            title=plain(self.headline),
            title_justify="left",
            caption=plain(self.verdict),
            caption_justify="left",
        )
        for i, column in enumerate(self.columns):
            table.add_column(plain(column), justify="right" if i else "left")
        for row in self.rows:
            table.add_row(*map(plain, row))
        drawn = Console().render(table)
        sys.stdout.write("".join(segment.text for segment in drawn))
