"""The pool that the user has given."""

from __future__ import annotations

from concurrent.futures import Executor

from synkhronos._checks import shown
from synkhronos._errors import InputError, InputTypeError, needing
from synkhronos._transport.pools._executors import ExecutorPool
from synkhronos._transport.pools._mpi import MPIPool
from synkhronos._transport.pools.pool import Pool


def pool_of(what: str, on: object, members: int) -> Pool:
    """The pool for ``on=`` of the call `what`, whose batches use `members` cores each.

    Raises
    ------
    InputError, InputTypeError, BackendMissing
    """
    home = type(on).__module__.partition(".")[0]
    if home == "distributed" and hasattr(on, "get_executor"):
        from synkhronos._transport.pools._dask import DaskPool

        if getattr(on, "asynchronous", False):
            raise InputError(
                f"{what}: on={shown(on)}: this thread runs the client's event loop, which would "
                "stand still until the end: give a Client without asynchronous=True, or call in "
                "another thread, as in `await asyncio.to_thread(...)`"
            )
        return DaskPool(on, members)
    if on == "ray" or getattr(on, "__name__", "") == "ray":
        with needing("ray", "cluster"):
            from synkhronos._transport.pools._ray import RayPool

        return RayPool(members)
    if isinstance(on, Executor):
        return MPIPool(on) if home == "mpi4py" else ExecutorPool(on, members)
    raise InputTypeError(
        f"{what}: on={shown(on)}: give a Client of Dask, 'ray', an MPIPoolExecutor, or an Executor "
        "of concurrent.futures; None is for slots of this machine"
    )
