"""Many models on the engines of `synk.pymc.map(on=)`: small models, pauses, a million models.

    python benchmarks/pymc_pools.py [--models 400] [--items 2000] [--draws 500] [--rounds 3]
        [--calls 2] [--parts models pauses scale idle]
        [--on loop slots executor dask dask-lean ray mpi]

models   small models on 2 workers of one core: a loop of `pm.sample` (20 models are measured),
         slots of this machine, and each engine. Its workers have started, and have not imported
         anything; the second call is the same one on workers that have. Contenders take turns,
         each in a process of its own; the least seconds count. dask-lean has all settings of
         the part `idle`.
pauses   items that wait 50 ms: the time that is not theirs, in % of it, and that slots do not take,
         which start processes as well
scale    seconds of the script for an item, a batch and a result, and what follows for 1,000,000
         models on 1,000 workers, if nothing else bounds them:

             seconds = max(N * fit / W, N * (item + result) + N / size * batch) + start

         with N models, W workers, and batches of `size` items, see `pymc._map.pace`

idle     what processes of Dask take while their tasks wait, in % of a core, by settings of Dask
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import logging
import operator
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
from common import describe_machine, show
from pymc_fleet import model_of

WORKERS = 2
LOOP = 20  # models of the loop that are measured
PAUSE = 0.05  # seconds
MODELS, FAR = 1_000_000, 1_000  # of the prediction
IDLE = 8.0  # seconds in which processes of Dask wait
STEPS = (  # settings of Dask, which is left as it is at first; each row has those above it
    {},
    {"distributed.worker.profile.enabled": False},
    {"distributed.admin.tick.interval": "1s"},
    {"distributed.worker.memory.monitor-interval": "2s"},
    {"distributed.admin.system-monitor.interval": "5s"},
)
LEAN = functools.reduce(operator.or_, STEPS)
FITS = (0.07, 1.0, 10.0)  # seconds of a model
RESULTS = (10_000, 1_000_000)  # bytes of a result
START = 10.0  # seconds of a worker until its first model is compiled


def pause(item: int) -> int:
    time.sleep(PAUSE)
    return item


@contextmanager
def dask_of(workers: int, settings: dict[str, Any]) -> Iterator[Any]:
    """A client of workers, which have as many threads as there are slots."""
    import dask
    from distributed import Client, LocalCluster

    given = {"n_workers": workers, "threads_per_worker": WORKERS // workers}
    with (
        dask.config.set(settings),
        LocalCluster(**given, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(workers)
        yield client


@contextmanager
def engine(kind: str) -> Iterator[Any]:
    """What `on=` takes, with workers of one core."""
    if kind == "slots":
        yield None
    elif kind == "executor":
        with ThreadPoolExecutor(WORKERS) as pool:
            yield pool
    elif kind.startswith("dask"):
        with dask_of(WORKERS, LEAN if kind == "dask-lean" else {}) as client:
            yield client
    elif kind == "ray":
        import ray

        os.environ.update(RAY_worker_niceness="0")  # else 15, beside whatever else runs
        os.environ.update(PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
        ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False)
        nap = ray.remote(lambda: time.sleep(1.0))
        ray.get([nap.remote() for _ in range(WORKERS)])  # its workers have started
        yield ray
        ray.shutdown()
    else:
        from mpi4py.futures import MPIPoolExecutor

        with MPIPoolExecutor() as pool:
            pool.bootup(wait=True)
            yield pool


def contend(kind: str, part: str, count: int, draws: int, calls: int) -> None:
    """Print the seconds of each call of one contender."""
    from synkhronos.pymc import map as fleet

    logging.getLogger("synkhronos").setLevel(logging.ERROR)
    make: Callable[[int], Any] = functools.partial(model_of, graphs=1, rows=200)
    given: dict[str, Any] = {"draws": draws, "tune": draws, "chains": 2, "nuts_sampler": "nutpie"}
    if kind == "loop":
        import pymc as pm

        quiet = {"progressbar": False, "quiet": True, "compute_convergence_checks": False}
        began = time.perf_counter()
        for number in range(count):
            pm.sample(model=make(number), random_seed=number, **given, **quiet)
        print("took", time.perf_counter() - began)
        return
    if part == "pauses":
        make, given = pause, {}
    with engine(kind) as on:
        for _ in range(calls):
            began = time.perf_counter()
            fits = fleet(make, range(count), on=on, random_seed=1, progressbar=False, **given)
            print("took", time.perf_counter() - began)
            assert not fits.failed, fits.failed


def measured(kind: str, part: str, count: int, draws: int, calls: int) -> list[float]:
    contender = [__file__, "--contend", json.dumps([kind, part, count, draws, calls])]
    command = [sys.executable, *contender]
    if kind == "mpi":
        launcher = shutil.which("mpiexec", path=f"{sys.prefix}/bin:{os.environ['PATH']}")
        command = [str(launcher), "-n", str(WORKERS + 1), sys.executable]
        command += ["-m", "mpi4py.futures", *contender]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return [float(x.split()[1]) for x in done.stdout.splitlines() if x.startswith("took")]


def contest(part: str, kinds: list[str], count: int, options: argparse.Namespace) -> None:
    """A table of all contenders."""
    counts = {kind: LOOP if kind == "loop" else count for kind in kinds}
    calls = options.calls if part == "models" else 1
    runs: dict[str, list[list[float]]] = {kind: [] for kind in kinds}
    for _ in range(options.rounds):
        for kind, each in counts.items():
            runs[kind].append(measured(kind, part, each, options.draws, calls))
    least = {
        kind: [min(found) * count / counts[kind] for found in zip(*each, strict=True)]
        for kind, each in runs.items()
    }
    if part == "models":
        rows = []
        for kind, found in least.items():
            cells = [(s, f"{s / of:.2f}") for s, of in zip(found, least["slots"], strict=False)]
            cells += [("", "")] * (calls - len(cells))  # the loop has one call
            rows.append([kind, *itertools.chain(*cells)])
        names = itertools.product(range(1, calls + 1), ("s", "of slots"))
        columns = [f"call {call}, {name}" for call, name in names]
        show(f"{count} models on {WORKERS} cores", ["engine", *columns], rows)
        return
    best = {kind: found[0] for kind, found in least.items()}
    whole = count * PAUSE / WORKERS
    rows = [
        [
            kind,
            each,
            f"{100 * (each / whole - 1):.1f}",
            f"{100 * (each - best['slots']) / whole:.1f}",
        ]
        for kind, each in best.items()
    ]
    columns = ["engine", "s", "% above the items", "% above slots"]
    show(f"{count} items of {PAUSE:g} s", columns, rows)


class Ready(Executor):
    """Workers that have the results of all items already; it notes the batches."""

    def __init__(self, contents: bytes) -> None:
        self.contents = contents
        self.batches = 0

    def submit(self, *given: Any, **_: Any) -> Future[Any]:  # type: ignore[override]
        """A batch that has ended, of items that take 0.07 s."""
        batch = next(value for value in given if isinstance(value, dict))
        self.batches += 1
        future: Future[Any] = Future()
        future.set_result({"ends": [(self.contents, "", "", 0.07) for _ in batch["items"]]})
        return future


def far_seconds(costs: dict[str, float], fit: float) -> dict[str, float]:
    """The seconds of the prediction, by what bounds them."""
    from synkhronos.pymc._map.pace import batch_size

    size = batch_size(fit, MODELS, FAR)
    each = costs["item"] + costs["result"] + costs["batch"] / size
    return {"workers": MODELS * fit / FAR + START, "script": MODELS * each + START}


def scale(items: int) -> None:
    """The costs of the script, and what follows from them."""
    rows = []
    for nbytes in RESULTS:
        costs = script_costs(items, nbytes)
        for fit in FITS:
            found = far_seconds(costs, fit)
            first = max(found, key=lambda name: found[name])
            cells = [1e6 * costs[name] for name in ("item", "batch", "result")]
            rows.append([f"{fit:g} s, {nbytes:,} bytes", *cells, *found.values(), first])
    columns = ["a model, its result", "item, us", "batch, us", "result, us"]
    columns += ["workers, s", "script, s", "bound by"]
    show(f"{MODELS:,} models on {FAR:,} workers", columns, rows)


def script_costs(items: int, nbytes: int) -> dict[str, float]:
    """Seconds of the script for an item, a batch, and a result of some bytes."""
    from synkhronos._transport.pools._executors import ExecutorPool
    from synkhronos.pymc._map import pooled
    from synkhronos.pymc._map.bar import Bar
    from synkhronos.pymc._map.digests import digest_of
    from synkhronos.pymc._map.packing import packed_for
    from synkhronos.pymc._map.parent import Item
    from synkhronos.pymc._map.record import Record
    from synkhronos.pymc._map.results import Folder, packed_result, write_result

    began = time.perf_counter()
    packed = [packed_for("map", "", i) for i in range(items)]
    placed = [Item(i, (0, len(each)), digest_of(i)) for i, each in enumerate(packed)]
    item = (time.perf_counter() - began) / items
    contents = packed_result("0", "0", 0, np.zeros(nbytes // 8))
    with tempfile.TemporaryDirectory() as place:
        began = time.perf_counter()
        for i in range(items):
            write_result(place, i, contents, lasting=False)
        result = (time.perf_counter() - began) / items
    ready = Ready(contents)
    folder = Folder(None)
    # without the writes, which take most of the time and vary
    with Bar("", items, enabled=False) as bar, patch.object(pooled, "write_result"):
        job = pooled.Job(packed[0], 0, 1, 1, None)
        began = time.perf_counter()
        pool = ExecutorPool(ready, 1)
        pooled.PooledItems(placed, job, pool, folder, Record(folder, bar)).run()
        whole = time.perf_counter() - began
    return {"item": item, "batch": whole / ready.batches, "result": result}


def idle() -> None:
    """A table of what the script, with the scheduler, and the workers take."""
    import psutil

    rows, settings = [], {}
    for step in STEPS:
        settings |= step
        cells: list[str] = []
        for workers in (WORKERS, 1):
            with dask_of(workers, settings) as client:
                found = [os.getpid(), *client.run(os.getpid).values()]
                processes = [psutil.Process(pid) for pid in found]
                waits = client.map(time.sleep, [IDLE + 2] * WORKERS, pure=False)
                time.sleep(1.0)  # until they have begun
                before = [sum(each.cpu_times()[:2]) for each in processes]
                time.sleep(IDLE)
                after = [sum(each.cpu_times()[:2]) for each in processes]
                script, *others = [a - b for a, b in zip(after, before, strict=True)]
                cells += [f"{100 * each / IDLE:.1f}" for each in (script, sum(others))]
                client.gather(waits)
        said = "\n".join(f"{name.partition('.')[2]}: {value}" for name, value in step.items())
        rows.append([said or "as they are", *cells])
    columns = ["settings of Dask", "script", f"{WORKERS} workers", "script", "1 worker"]
    show("Dask without work, in % of a core", columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (
        ("models", 400),
        ("items", 2000),
        ("draws", 500),
        ("rounds", 3),
        ("calls", 2),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    kinds = ["loop", "slots", "executor", "dask", "dask-lean", "ray", "mpi"]
    parts = ["models", "pauses", "scale", "idle"]
    parser.add_argument("--on", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--contend", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contend:
        contend(*json.loads(options.contend))
        return
    describe_machine()
    kinds = list(dict.fromkeys(["slots", *options.on]))
    if "models" in options.parts:
        contest("models", kinds, options.models, options)
    if "pauses" in options.parts:
        contest("pauses", [kind for kind in kinds if kind != "loop"], options.items, options)
    if "scale" in options.parts:
        scale(options.items)
    if "idle" in options.parts:
        idle()


if __name__ == "__main__":
    main()
