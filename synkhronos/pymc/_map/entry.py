"""The process in a slot: it asks for items, fits them, and writes their results."""

from __future__ import annotations

import contextlib
import logging
import traceback
import warnings
from collections.abc import Mapping
from typing import Any

import pytensor

from synkhronos._transport.processes.slot_pipe import Pipe
from synkhronos._transport.processes.slots import read_held, write_held
from synkhronos._transport.serialization import unpack_graph
from synkhronos.pymc._density.nutpie import compiled_soon
from synkhronos.pymc._map.compilations import Compilations
from synkhronos.pymc._map.fitted import Sampled
from synkhronos.pymc._map.names import seed_of
from synkhronos.pymc._map.results import packed_result, texts_of, write_result


def main(task: Mapping[str, Any]) -> None:
    """Fit items, until the parent has no more."""
    with (
        contextlib.closing(Pipe(task["requests"], task["replies"])) as pipe,
        compiled_soon(),
        Compilations(),
    ):
        logging.getLogger("pymc").setLevel(logging.ERROR)
        job = None
        while "at" in (asked := pipe.ask({"next": True})):
            try:
                job = job or _job(task)
                _fit(*job, asked, task)
            except Exception as exc:
                text = "".join(traceback.format_exception(exc))
                said = traceback.format_exception_only(exc)[-1].strip()
                pipe.send({"raised": said, "traceback": text})
            else:
                pipe.send({"done": True})
        pipe.send({"ends": True})


def _job(task: Mapping[str, Any]) -> tuple[Sampled, Mapping[str, str]]:
    """The function that fits an item, and the arguments of `pm.sample` as results note them."""
    job = unpack_graph(read_held(task["held"], 0, task["length"]))
    for name, value in job["settings"].items():
        setattr(pytensor.config, name, value)
    sampled = Sampled(job["fit"], job["arguments"], task["members"])
    return sampled, texts_of(job["arguments"])


def _fit(
    sampled: Sampled,
    arguments: Mapping[str, str],
    asked: Mapping[str, Any],
    task: Mapping[str, Any],
) -> None:
    entropy = int(task["entropy"])
    seed = seed_of(entropy, asked["name"])
    item = unpack_graph(read_held(task["held"], *asked["at"]))
    with warnings.catch_warnings():
        result = sampled(item, seed)
    packed = packed_result(asked["name"], asked["item"], entropy, result, arguments)
    if isinstance(task["place"], int):
        write_held(task["place"], packed)
    else:
        write_result(task["place"], asked["name"], packed)
