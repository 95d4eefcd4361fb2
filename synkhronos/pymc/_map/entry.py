"""The process in a slot: it asks for items, fits them, and writes their results."""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import traceback
import warnings
from collections.abc import Mapping
from typing import Any

import pytensor

from synkhronos._transport.processes.slot_pipe import Pipe
from synkhronos._transport.serialization import unpack_graph
from synkhronos.pymc._density.nutpie import compiled_soon
from synkhronos.pymc._map.compilations import Compilations
from synkhronos.pymc._map.fitted import Sampled
from synkhronos.pymc._map.names import seed_of
from synkhronos.pymc._map.results import write_result


def main(task: Mapping[str, Any]) -> None:
    """Fit items, until the parent has no more."""
    with (
        contextlib.closing(Pipe(task["requests"], task["replies"])) as pipe,
        os.fdopen(task["held"], "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held,
        compiled_soon(),
        Compilations(),
    ):
        logging.getLogger("pymc").setLevel(logging.ERROR)
        sampled = None
        while "at" in (asked := pipe.ask({"next": True})):
            try:
                sampled = sampled or _job(held, task)
                _fit(sampled, held, asked, task)
            except Exception as exc:
                text = "".join(traceback.format_exception(exc))
                said = traceback.format_exception_only(exc)[-1].strip()
                pipe.send({"raised": said, "traceback": text})
            else:
                pipe.send({"done": True})
        pipe.send({"ends": True})


def _job(held: mmap.mmap, task: Mapping[str, Any]) -> Sampled:
    job = unpack_graph(held[: task["length"]])
    for name, value in job["settings"].items():
        setattr(pytensor.config, name, value)
    return Sampled(job["fit"], job["arguments"], task["members"])


def _fit(
    sampled: Sampled, held: mmap.mmap, asked: Mapping[str, Any], task: Mapping[str, Any]
) -> None:
    begin, end = asked["at"]
    seed = seed_of(int(task["entropy"]), asked["name"])
    with warnings.catch_warnings():
        result = sampled(unpack_graph(held[begin:end]), seed)
    write_result(task["folder"], asked["name"], asked["item"], result)
