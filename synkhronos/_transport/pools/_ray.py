"""Ray: the only file that imports it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import ray

from synkhronos._errors import InputError
from synkhronos._transport.pools.pool import Pool


class RayPool(Pool):
    """The cluster to which this process has connected; a batch asks for a CPU for each member."""

    name = "Ray"

    def __init__(self, members: int) -> None:
        if not ray.is_initialized():
            raise InputError("on='ray': there is no connection: call ray.init() before")
        self._members = members
        # a batch whose worker has ended comes again from here, where its tries are counted
        remote: Any = ray.remote(num_cpus=members, max_retries=0)(_in_worker)
        self._call: Callable[..., Any] = remote.remote

    def slots(self) -> int:
        """See `Pool`; asks the head. The CPUs of a batch are those of one machine."""
        alive = (node["Resources"] for node in ray.nodes() if node["Alive"])
        return sum(int(each.get("CPU", 0)) // self._members for each in alive)

    def elsewhere(self) -> str:
        """See `Pool`."""
        here = ray.get_runtime_context().get_node_id()
        others = (n for n in ray.nodes() if n["Alive"] and n["NodeID"] != here)
        return next((str(n["NodeManagerHostname"]) for n in others), "")

    def held(self, data: bytes) -> object:
        """The data in Ray's store of objects, of which each machine has one copy."""
        return ray.put(data)

    def submit(self, run: Callable[..., object], data: object, batch: object) -> Future[Any]:
        """See `Pool`."""
        found: Future[Any] = self._call(run, data, batch, self._members).future()
        return found

    def cancel(self, future: Future[Any]) -> None:
        """See `Pool`; a batch that runs gets an interrupt."""
        ray.cancel(future.object_ref)  # type: ignore[attr-defined]

    def is_loss(self, exc: BaseException) -> bool:
        """Whether a worker or a machine has ended, and not a batch raised."""
        lost = isinstance(exc, ray.exceptions.RayError)
        return lost and not isinstance(exc, ray.exceptions.RayTaskError)


def _in_worker(run: Callable[..., object], data: object, batch: object, cores: int) -> object:
    return run(data, batch, cores=cores)
