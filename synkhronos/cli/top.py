"""Show what the members of this user's running groups do now.

Chains that `synk.pymc.sample` samples into a folder are shown too, with the time left. It reads
the memory of both, and asks them for nothing: no port, no file, and not one of another user. At a
terminal it draws twice a second until Ctrl-C; elsewhere it prints one look. On several nodes each
shows its own members: `ssh NODE synk top --json`.

states:
  compute, copy, exchange, wait, compile   what the member does inside of a command
  idle                                     a worker without a command
  script                                   the master, outside of commands
  train apart                              a long command, as for the rules that never meet
  ended                                    the process is gone

Examples:
  synk top
  synk top 4711                            # the group that this process is in
  synk top --json | jq '.groups[].rates'
"""

from __future__ import annotations

import argparse
import sys

from synkhronos.cli._numbers import numbers


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("pid", nargs="?", type=int, metavar="PID", help="a member's process")
    parser.add_argument("--json", action="store_true", help="print one look as a JSON object")
    parser.add_argument("--once", action="store_true", help="print one look, also at a terminal")
    parser.add_argument(
        "--interval",
        type=numbers(least=0.05, most=3600),
        default=0.5,
        metavar="SECONDS",
        help="the time between two looks (0.5)",
    )


def run(options: argparse.Namespace) -> int:
    """Look."""
    from synkhronos.cli._top.live_view import show, watch

    if options.json or options.once or not sys.stdout.isatty():
        return show(options.pid, options.interval, options.json)
    return watch(options.pid, options.interval)
