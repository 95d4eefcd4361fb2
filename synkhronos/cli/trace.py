"""Show where the time of a traced run went, and convert its trace for viewers.

`fit(trace=100)`, `Group(trace="trace.bin")` and `group.trace("trace.bin")` write traces. The JSON
file is in the Trace Event Format, which ui.perfetto.dev and chrome://tracing read: a process for
each node, and a track for each member.

Examples:
  synk trace runs/a                        # writes runs/a/trace.json
  synk trace trace.bin --to trace.json.gz
"""

from __future__ import annotations

import argparse
from pathlib import Path

from synkhronos.cli._say import say


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("run", metavar="RUN", help="the folder of a run, or a file trace.bin")
    parser.add_argument(
        "--to",
        metavar="FILE",
        help="the file to write, .json or .json.gz (beside the trace, as trace.json)",
    )


def run(options: argparse.Namespace) -> int:
    """Convert, and print a summary."""
    from synkhronos._api.tables import Table, percent
    from synkhronos._engine.trace import Trace
    from synkhronos.training._run.tracing import FILE

    given = Path(options.run)
    source = given / FILE if given.is_dir() else given
    trace = Trace.load(source)
    target = Path(options.to or source.with_suffix(".json"))
    trace.save(target)
    seconds = trace.seconds()
    names = sorted({name for each in seconds for name in each}, key=lambda n: -seconds[0].get(n, 0))
    whole = trace.length or 1.0
    rows = [
        [str(m.rank), str(m.pid), *(percent(each.get(name, 0.0) / whole) for name in names)]
        for m, each in zip(trace.members, seconds, strict=True)
    ]
    said = [f"{target} holds {sum(len(m.spans) for m in trace.members):,} spans."]
    if trace.lost:
        said.append(f"{trace.lost:,} older spans were overwritten.")
    if len({m.node for m in trace.members}) > 1:
        said.append(f"The clocks of the nodes agree within {1e6 * trace.error:.0f} us.")
    title = f"{trace.length:.3f} s; shares of this time, inner spans included"
    say(str(Table(title, ["rank", "pid", *names], rows, " ".join(said))))
    return 0
