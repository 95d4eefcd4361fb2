"""Stacks as messages show them: the user's lines, with the frames of the engine folded."""

from __future__ import annotations

import itertools
import os
import re
import sys
from dataclasses import dataclass

from synkhronos._transport.processes.worker import fork_worker

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+),? in (?P<function>.*)$')
_ENGINE = ("synkhronos", "pytensor", "numba", "jax")  # between a call and the user's operation
_LIBRARY = (os.path.join(os.path.dirname(os.__file__), ""), "<frozen")
_START = re.compile(f'^  File "{re.escape(fork_worker.__code__.co_filename)}".* in fork_worker$')


def folded(text: str) -> str:
    """A stack or traceback in which each run of the engine's frames is one line.

    The text of Python's traceback, or of faulthandler. Nothing is folded if no frame is the user's:
    then the engine's own are of interest.
    """
    blocks = _blocks(text)
    whole = not any(b.owner == "user" for b in blocks)
    lines: list[str] = []
    for owner, run in itertools.groupby(blocks, key=lambda b: b.owner):
        if owner == "engine" and not whole:
            n = len(list(run))
            lines.append(f"  [{n} frame{'s' * (n > 1)} of the engine]")
        else:
            lines += [line for block in run for line in block.lines]
    return "\n".join(lines)


def place_of(text: str) -> str:
    """The user's innermost line in a stack or traceback, as "file:line, in function"; or empty."""
    own = [b.lines[0] for b in _blocks(text) if b.owner == "user"]
    found = _FRAME.match(own[0 if "most recent call first" in text else -1]) if own else None
    if found is None:
        return ""
    return f"{os.path.basename(found['file'])}:{found['line']}, in {found['function']}"


@dataclass
class _Block:
    """A frame with the lines that belong to it, or a line between frames (owner: empty)."""

    owner: str
    lines: list[str]


def _blocks(text: str) -> list[_Block]:
    blocks: list[_Block] = []
    for line in text.splitlines():
        if found := _FRAME.match(line):
            blocks.append(_Block(_owner(found["file"], found["function"]), [line]))
        elif blocks and blocks[-1].owner and line.startswith("    "):
            blocks[-1].lines.append(line)
        else:
            blocks.append(_Block("", [line]))
        if _START.match(line):
            break  # what follows is where the master has forked this worker
    return blocks


def _owner(file: str, function: str) -> str:
    """The owner of a frame: "engine", "library" or "user"."""
    if (file, function) == ("<string>", "<module>"):  # the first code of a worker started by exec
        return "engine"
    modules = [sys.modules.get(name) for name in _ENGINE]
    # ArviZ has a module in the place of JAX that imports it once getattr reads any attribute.
    specs = [object.__getattribute__(m, "__spec__") for m in modules if m is not None]
    places = [str(spec.origin) for spec in specs]
    if any(file.startswith(os.path.join(os.path.dirname(place), "")) for place in places):
        return "engine"
    return "library" if file.startswith(_LIBRARY) or "site-packages" in file else "user"
