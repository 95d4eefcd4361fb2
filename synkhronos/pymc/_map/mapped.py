"""`map`: many models, fitted in slots of cores."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from synkhronos._checks import check_integer, or_none, shown
from synkhronos._errors import InputError, InputTypeError, StartFailed
from synkhronos._host.launch_settings import launch_settings
from synkhronos._host.system import trouble
from synkhronos._transport.processes.interpreter import lifeline
from synkhronos._transport.processes.slots import in_memory
from synkhronos.pymc._density.adaptation import check_adaptation
from synkhronos.pymc._map.bar import Bar
from synkhronos.pymc._map.digests import digest_of
from synkhronos.pymc._map.names import named
from synkhronos.pymc._map.packing import packed_for, packed_job
from synkhronos.pymc._map.parent import Fleet, Item, Settings
from synkhronos.pymc._map.pooled import Job, PooledItems
from synkhronos.pymc._map.record import Record
from synkhronos.pymc._map.results import Fits, Folder
from synkhronos.pymc._map.where import where_of


def map(
    fit: Callable[..., object],
    items: Iterable[object] | Mapping[Hashable, object],
    *,
    on: object = None,
    cores: int | None = None,
    members: int = 1,
    folder: str | os.PathLike[str] | None = None,
    random_seed: int | None = None,
    limit: float | None = None,
    log_dir: str | os.PathLike[str] | None = None,
    progressbar: bool = True,
    **kwargs: Any,
) -> Fits:
    """Fit many models, or one model to many data sets, on all cores.

    Processes in slots of cores take the items one by one. A process compiles a model once for all
    items whose models have the same graph and other data: a model function that is called for each
    item is recognised. Data are those of `pm.Data`, observed values, and arrays in the graph.

    Parameters
    ----------
    fit : callable
        Gets an item; returns a model, or a model and a dict of data for `pm.set_data`. Then the
        model is sampled. Anything else that it returns is the result, such as draws that it has
        sampled itself by `pm.sample`. If it has an argument `random_seed`, it gets the item's seed.
    items : iterable or mapping
        A mapping names them. Else their names are 0, 1, 2 and so on.
    on : Client, "ray", MPIPoolExecutor or Executor, optional
        Where the items are fitted: by the workers of a client of Dask, of Ray, of mpi4py, or of an
        executor of ``concurrent.futures``. Default: in slots of this machine.
    cores : int, optional
        The number of cores of this machine. Default, and at most: all that this process may use; in
        a job of Slurm the default is its ``--cpus-per-task``.
    members : int
        The cores of a slot: for the chains of a model, or for ``fork()`` and `sample` in `fit`. A
        worker of `on` uses the cores that it was given.
    folder : path or str, optional
        A folder for the results, or an address of fsspec, such as ``"s3://bucket/fits"``. The same
        call finds them there, and fits the items that are missing or have failed. Other arguments
        of `pm.sample` are for these only, and a warning says so. Default: a temporary one, which
        lasts as long as the result.
    random_seed : int, optional
        Each item has a seed that follows from this one and its name.
    limit : float, optional
        Seconds for an item. The process of one that takes longer is killed; the item has failed.
    log_dir : path, optional
        A folder for what the processes print, in files ``slot-N.log``. Default: they print here.
        With `on` they print where the workers do.
    progressbar : bool
    **kwargs
        Arguments of `pm.sample`: draws, tune, chains, nuts_sampler, target_accept and so on; and
        adaptation, as for `sample`.

    Returns
    -------
    Fits
        A mapping from names to results, which are read when asked for. ``failed`` has the reasons
        of items without one.

    Raises
    ------
    InputError, InputTypeError
        An argument is not possible, or the folder has results of other items or another seed.
        Nothing was started.
    SynkhronosError
        The first ten items have all failed, and `folder` has no result of the others; or processes
        do not start. With `on`: a worker has other versions of the packages, or the workers are
        gone.
    KeyboardInterrupt
        Ctrl-C. The results in `folder` stay.

    Notes
    -----
    Cost: each slot starts an interpreter and imports PyMC, which takes about 3 s, and compiles each
    graph once. An item then costs its model function, some milliseconds to recognise the graph, and
    its sampling.

    With `on` items go in batches of about a second. Each worker starts such an interpreter, in
    which items are fitted as in a slot, with the same results bit by bit on equal processors.

    In a task of ``synk run --array`` the call fits a part of the items, and returns these.

    A draw depends on the seed, the name of the item and its data only: not on the number of
    slots, the order of items, or what else is fitted.

    Results are pickles: a folder that another user may write to is refused, also one that a group
    may write to. The files are readable for their owner only. A damaged result counts as missing.
    At an address each result is signed with a key of yours, and one that is not is refused.

    Examples
    --------
    >>> import synkhronos as synk
    >>> def fit(item, random_seed):
    ...     return item + 1
    >>> fits = synk.pymc.map(fit, {"a": 1, "b": 2}, cores=1)
    >>> dict(fits), fits.failed
    ({'a': 2, 'b': 3}, {})
    """
    if not callable(fit):
        raise InputTypeError(f"map: fit={shown(fit)}: give a function of an item")
    if trouble():
        raise StartFailed(trouble())
    for name in ("model", "random_seed"):
        if name in kwargs:
            raise InputError(f"map: {name}= is not for all items: fit returns a model for each")
    check_adaptation(kwargs.get("adaptation"), {**kwargs})
    where = where_of("map", on, cores, members, limit, log_dir)
    asked = or_none(check_integer, "map: random_seed", random_seed, 0)
    found = named(items)
    part, parts = launch_settings().part
    if parts > 1:
        if folder is None or asked is None:
            raise InputError(
                f"map: this is task {part} of {parts} of an array, which share a folder and a "
                "seed: give folder= and random_seed="
            )
        found = dict(list(found.items())[part - 1 :: parts])
    packed = {name: packed_for("map", f"item {name}", item) for name, item in found.items()}
    head = packed_job("map", fit, kwargs)
    place = Folder(folder, f"-{part}-of-{parts}" if parts > 1 else "")
    fresh = int(np.random.SeedSequence().generate_state(2, np.uint64)[0])
    entropy = place.entropy(asked, fresh, kwargs)
    digests = {name: digest_of(item) for name, item in found.items()}
    missing = place.missing(digests)
    packed = {name: data for name, data in packed.items() if name in missing}
    left = list(_placed(digests, packed, len(head)))
    place.warn_of_others()
    failed: Mapping[Hashable, str] = {}
    if left:
        data = b"".join([head, *packed.values()])
        packed.clear()  # items of all processes are in memory once, beside those of the user
        with (
            Bar("fitting", len(left), progressbar) as bar,
            place.keeping(),
            Record(place, bar, len(left) < len(found)) as record,
        ):
            if where.pool is not None:
                given = Job(data, len(head), where.members, entropy, where.limit)
                PooledItems(left, given, where.pool, place, record).run()
            else:
                with in_memory(data, "synk-items") as held, lifeline() as end:
                    del data
                    own = where.members, entropy, str(place.path), where.log_dir
                    settings = Settings(held, len(head), end, *own)
                    slots = where.slots(len(left))
                    Fleet(slots, settings, record, where.limit or math.inf).fit(left)
        failed = record.failed
    else:
        place.note_failed({})
    return Fits(place, list(found), failed)


def _placed(
    digests: Mapping[Hashable, str], packed: Mapping[Hashable, bytes], begin: int
) -> Iterator[Item]:
    for name, data in packed.items():
        yield Item(name, (begin, begin + len(data)), digests[name])
        begin += len(data)
