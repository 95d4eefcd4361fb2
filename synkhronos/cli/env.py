"""Print versions, settings and the machine, to paste into a bug report.

It starts nothing, and takes no longer than the import of the package. `synk doctor` also tries what
works. The file run.json of a run holds the same facts.

Examples:
  synk env
  synk env --json > env.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from synkhronos.cli._say import say


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("--json", action="store_true", help="print one JSON object, for programs")


def run(options: argparse.Namespace) -> int:
    """Print the facts."""
    from synkhronos._host.environment import environment

    found = environment()
    text = json.dumps(found) if options.json else "\n".join(described(found))
    say(text)
    return 0


def described(found: dict[str, Any]) -> Iterator[str]:
    """The lines for people."""
    yield "system"
    yield from _entries(found["system"])
    yield "packages"
    yield from _entries({name: v for name, v in found["packages"].items() if v is not None})
    absent = [name for name, version in found["packages"].items() if version is None]
    if absent:
        yield f"  not installed: {', '.join(absent)}"
    yield "PyTensor"
    yield from _entries(found["pytensor"])
    if "cores" in found:
        yield "machine"
        yield from _entries(_machine(found))
    yield "environment variables"
    yield from _entries(found["variables"])
    if not found["variables"]:
        yield "  none"


def _entries(facts: dict[str, Any]) -> Iterator[str]:
    return (f"  {name}: {value}" for name, value in facts.items())


def _machine(found: dict[str, Any]) -> dict[str, str]:
    cores, memory, gpus = found["cores"], found["memory"], found["gpus"]
    libraries = [
        f"{b['name']} {b['version']}, {b['core_type'] or 'unknown core type'}, "
        f"{b['threads']} threads"
        for b in found["blas"]
    ]
    return {
        "BLAS": "; ".join(libraries) or "none was found",
        "cores": (
            f"{cores['may_use']} may be used, {cores['physical']} of them physical; this process "
            f"is bound to {cores['bound_to']} of {cores['machine']}"
        ),
        "processor": cores["model"] or "unknown",
        "memory": f"{memory['free'] / 2**30:.2f} GiB free; {memory['limit']} bytes",
        "GPUs": f"{gpus['count']} from NVIDIA, {gpus['visible']} visible",
        "NVIDIA driver": gpus["driver"] or "none",
    }
