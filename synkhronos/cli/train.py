"""Train as a config says: a TOML file, and values in place of its own.

The group starts with as many members as -n, `synk run` or the config says, else one for each core.
Progress goes to stderr. The last line, on stdout, has the values of the last epoch.

Examples:
  synk new train                             write a first config.toml, and its network
  synk train config.toml
  synk train config.toml -n 2 batch=256 optimizer.rate=1e-3
  synk train config.toml --fast-dev-run      3 steps and a validation; writes nothing
  synk train config.toml --resume            go on from the latest checkpoint
  synk run --nodes 2 -m synkhronos train config.toml

exit codes: 0 trained, 1 failed, 2 a wrong line or config, 3 the group cannot start, 4 a member
died, 5 a member stalled, 75 stopped by a signal with a checkpoint: run it again, 130 Ctrl-C
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from synkhronos.cli._numbers import count, integers
from synkhronos.cli._parser import Parser
from synkhronos.cli._say import complain, say


def arguments(parser: Parser) -> None:
    """Add the arguments of this verb."""
    add = parser.add_argument
    add("config", metavar="CONFIG", help="a TOML file")
    add(
        "values", metavar="KEY=VALUE", nargs="*", default=[], help="in place of a value of the file"
    )
    add("-n", "--members", type=count, metavar="N", help="members of the group, on each node")
    add("--resume", action="store_true", help="go on from the latest checkpoint, if there is one")
    add(
        "--fast-dev-run",
        action="store_true",
        help="make 3 steps, and validate as many batches; compile fast; write nothing",
    )
    add(
        "--verify",
        type=integers(0),
        nargs="?",
        const=3,
        metavar="K",
        help="make the first K steps (3) again by serial PyTensor, and compare",
    )
    add("--print-config", action="store_true", help="print all settings as TOML; do not train")
    parser.mixed = True  # options may stand between CONFIG and the values


def run(options: argparse.Namespace) -> int:
    """Read the config, and train."""
    from synkhronos._errors import InputError
    from synkhronos.training import config, configured

    try:
        found = config.read(options.config, options.values)
    except InputError as exc:
        complain(f"synk train: {exc}")
        return 2
    if options.print_config:
        sys.stdout.write(found.toml())
        return 0
    trainer = configured.train(
        found,
        members=options.members,
        resume="auto" if options.resume else None,
        verify=options.verify,
        quick=options.fast_dev_run,
    )
    say(_summary(trainer))
    for when, tested in trainer.tested.items():
        values = [f"{name} {v:.6g}" for name, v in tested.items() if isinstance(v, float)]
        say(f"test {when} training: {', '.join(values)}")
    return 0


def _summary(trainer: Any) -> str:
    """The values of the last epoch, with as many digits as do not depend on the members."""
    if not len(trainer.history):
        return f"step {trainer.step}: no epoch was ended"
    last = trainer.history[-1]
    left_out = ("epoch", "step", "rows", "seconds")
    values = [f"{k} {v:.6g}" for k, v in last.items() if k not in left_out and v is not None]
    return f"epoch {last['epoch']}, step {last['step']}: {', '.join(values)}"
