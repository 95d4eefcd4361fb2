"""The process of a node's chains: it runs `synk.pymc.sample` on the cores of the node."""

from __future__ import annotations

import os
import traceback
from typing import Any

import pytensor

from synkhronos._errors import SynkhronosError
from synkhronos._transport.serialization import pack_graph, unpack_graph
from synkhronos.pymc._chains.nodes import DRAWS, RAISED, NodeChains, write_answer
from synkhronos.pymc._chains.progress import ChainRecords, write_progress
from synkhronos.pymc._chains.sampling import sample


def main(task: dict[str, Any]) -> None:
    """Sample the chains that are described in the file ``task["chains"]``, and write the draws."""
    if "progress" in task:
        write_progress(ChainRecords(task["progress"], task["watched"]))
    try:
        answer = DRAWS, pack_graph(_sampled(task["chains"], task["node"]))
    except BaseException as exc:
        answer = RAISED, _packed(exc)
    write_answer(task["answer"], *answer)


def _sampled(fd: int, node: int) -> Any:
    with os.fdopen(fd, "rb") as file:
        file.seek(0)
        chains: NodeChains = unpack_graph(file.read())
    for name, value in chains.settings.items():
        setattr(pytensor.config, name, value)
    return sample(chains.model, **chains.arguments[node])


def _packed(exc: BaseException) -> bytes:
    """The exception with its traceback as a note; where it cannot be pickled, another one."""
    text = "".join(traceback.format_exception(exc))
    try:
        exc.add_note(f"in the process that samples the chains of a node:\n{text}")
        packed = pack_graph(exc)
        unpack_graph(packed)  # some classes can be pickled, and not be made again
        return packed
    except Exception:
        return pack_graph(SynkhronosError(f"{type(exc).__name__}:\n{text}"))
