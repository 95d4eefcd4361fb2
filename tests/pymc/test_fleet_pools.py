"""`map` on pools: one suite for all of them, and what becomes of items whose workers end."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fleet_cases as cases
import pool_cases
import pool_kills
import pytest
from launching import remove_segments, segments
from pool_programs import command
from recipes import recipes
from selection import thorough
from stand_pool import Loss, Stand
from user_scripts import ended

import synkhronos as synk
from synkhronos._errors import InputError, InputTypeError, SynkhronosError
from synkhronos._transport.pools import batches as pool_batches
from synkhronos._transport.pools import stations
from synkhronos._transport.pools.chosen import pool_of
from synkhronos._transport.pools.pool import Pool
from synkhronos.pymc._map import batches
from synkhronos.pymc._map.bar import Bar
from synkhronos.pymc._map.pace import AHEAD, BATCH_SECONDS, Pace, batch_size
from synkhronos.pymc._map.parent import Item
from synkhronos.pymc._map.pooled import PACKAGES as COMPARED
from synkhronos.pymc._map.pooled import Job, PooledItems
from synkhronos.pymc._map.record import Record
from synkhronos.pymc._map.results import Folder, packed_result


@pytest.mark.timeout(120)
def test_an_executor_is_as_slots(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool_cases.ends(pool, tmp_path)


def test_workers_import_little_before_they_start_a_process() -> None:
    """PyTensor and PyMC take seconds, which the process then takes as well."""
    code = (
        "import sys, synkhronos.pymc._map.batches, synkhronos.search._station\n"
        "from synkhronos._transport.pools import _executors, _mpi\n"
        "found = {'pytensor', 'pymc', 'scipy', 'numba'} & sys.modules.keys()\n"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "kind", thorough("threads", "processes", "dask", "dask-threads", "ray", "mpi")
)
def test_pools_are_alike(kind: str, tmp_path: Path) -> None:
    """All cases hold for each of them."""
    done = ended(tmp_path, command(kind, 2, pool_cases.__file__, kind, str(tmp_path)), limit=850)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(" s\n") == len(pool_cases.CASES), done.stdout
    assert "all cases" in done.stdout


_STATES = ("idle", "starts", "fits", "returned")  # of a worker


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kind", "state"),
    thorough(
        *((kind, state) for kind in ("dask", "ray") for state in _STATES),
        *(("dask", "scheduler"), ("dask", "frozen"), ("dask", "added")),
    ),
)
def test_a_process_is_killed(kind: str, state: str, tmp_path: Path) -> None:
    """One of three workers: nothing is lost. The scheduler: the call says so."""
    done = ended(tmp_path, command(kind, 3, pool_kills.__file__, kind, state, str(tmp_path)), 580)
    assert done.returncode == 0, done.stdout
    assert "as it must be" in done.stdout


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_rank_is_killed(tmp_path: Path) -> None:
    """MPI ends the launch, and another one goes on."""
    line = command("mpi", 3, pool_kills.__file__, "mpi", "launch", str(tmp_path))
    before = segments()
    first = ended(tmp_path, line)
    remove_segments(before)
    assert first.returncode != 0
    assert "MPI goes on without a rank" not in first.stdout
    second = ended(tmp_path, line)
    assert second.returncode == 0, second.stdout
    assert "as it must be" in second.stdout


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_the_head_of_ray_is_killed(tmp_path: Path) -> None:
    """Ray ends the script, or the call says so; the same call in slots goes on."""
    line = command("ray", 3, pool_kills.__file__, "ray", "head", str(tmp_path))
    first = ended(tmp_path, line, 240)
    assert first.returncode != 0 or "the call has said so" in first.stdout, first.stdout
    second = ended(tmp_path, line, 240)
    assert second.returncode == 0, second.stdout
    assert "as it must be" in second.stdout


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "example",
    thorough(
        "recipe-cluster-executor", "recipe-cluster-dask", "recipe-cluster-ray", "recipe-cluster-mpi"
    ),
)
def test_examples_of_engines(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the page, each as a script."""
    kind = example.rpartition("-")[2]
    monkeypatch.setenv("RAY_worker_niceness", "0")
    script = tmp_path / "script.py"
    script.write_text("\n".join(recipes()[name] for name in ("recipe-cluster-model", example)))
    done = ended(tmp_path, command(kind, 2, str(script)), 580)
    assert done.returncode == 0, done.stdout
    assert "8 fits" in done.stdout
    assert len(list((tmp_path / "fits").glob("*.fit"))) == 8


@pytest.mark.parametrize("seconds", [0.05, 0.1, 0.7, 3.0])
@pytest.mark.parametrize("overhead", [0.005, 0.02])
def test_batches_make_a_pools_milliseconds_few(seconds: float, overhead: float) -> None:
    """At most 3 % of the time of items from 50 ms on, and all workers end together."""
    left, slots, batches_made, last = 10_000, 8, 0, 0
    pace = Pace()
    assert batch_size(pace.seconds, left, slots) == 1
    pace.note([30.0, *[seconds] * 9])  # the first one was compiled
    while left:
        last = batch_size(pace.seconds, left, slots)
        left -= last
        batches_made += 1
        assert last * seconds <= max(seconds, 2 * BATCH_SECONDS)
    assert last == 1
    assert batches_made * overhead <= 0.03 * 10_000 * seconds


def fitted(items: list[Any]) -> dict[str, Any]:
    """All items have their names as results."""
    return {"ends": [(packed_result(n, d, 1, n), "", "", 0.01) for n, d, _ in items]}


def run_on(pool: Pool, folder: Folder, names: str) -> Record:
    with Bar("", 1, enabled=False) as bar:
        record = Record(folder, bar)
        items = [Item(name, (4 + i, 5 + i), name) for i, name in enumerate(names)]
        job = Job(b"head" + names.encode(), 4, 1, 1, None)
        PooledItems(items, job, pool, folder, record).run()
        return record


def test_items_of_a_lost_batch_come_once_again(tmp_path: Path) -> None:
    """Each in a batch of its own, so that only the guilty one fails."""
    folder, pool = Folder(tmp_path / "f"), Stand(fitted)

    def act(items: list[Any]) -> dict[str, Any]:
        names = [name for name, *_ in items]
        if "c" in names:
            raise Loss(f"worker of {names}")
        return fitted(items)

    pool.act = act
    record = run_on(pool, folder, "abcdefgh")
    assert record.failed.keys() == {"c"}
    assert "its worker has ended 2 times: worker of ['c']" in record.failed["c"]
    assert {n: folder.read(n) for n in "abdefgh"} == {n: n for n in "abdefgh"}
    names = [[name for name, *_ in batch] for batch in pool.batches]
    assert sum("c" in batch for batch in names) == 2
    assert ["c"] in names
    assert pool.everyone == [stations.end_job]


def test_few_batches_are_ahead(tmp_path: Path) -> None:
    """At most two for each slot; an interrupt gives all of them up."""
    pool = Stand(fitted)

    def never(items: list[Any]) -> dict[str, Any]:
        if len(pool.batches) == 2 * AHEAD:
            pool.said = "it is gone"
        raise LookupError

    pool.act = never
    with pytest.raises(SynkhronosError, match=r"map: Stand: it is gone. The results so far are in"):
        run_on(pool, Folder(tmp_path / "f"), "abcdefghijkl")
    assert (len(pool.batches), pool.cancelled) == (2 * AHEAD, 2 * AHEAD)
    assert pool.everyone == [stations.end_job]


def test_a_worker_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The call ends without it, with its results."""
    thawed, told = threading.Event(), threading.Event()

    class Frozen(Stand):
        def everywhere(self, function: Callable[..., object], argument: object) -> None:
            thawed.wait(60)
            told.set()

    monkeypatch.setattr(pool_batches, "_END_SECONDS", 0.1)
    folder = Folder(tmp_path / "f")
    run_on(Frozen(fitted), folder, "ab")
    assert "Stand has not given up its batches for 0.1 seconds: a worker does not" in caplog.text
    assert folder.read("b") == "b"
    thawed.set()
    assert told.wait(60)


def test_a_pool_that_is_broken_or_has_no_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(Stand):
        def submit(self, run: Any, data: object, batch: Any) -> Future[Any]:
            raise RuntimeError("cannot schedule new futures after shutdown")

    class Closed(Stand):
        def held(self, data: bytes) -> object:
            raise RuntimeError("is closed")

    class Silent(Stand):
        def slots(self) -> int:
            raise RuntimeError("does not answer")

    for kind in (Broken, Closed, Silent):
        with pytest.raises(SynkhronosError, match="map: Stand runs no batches: RuntimeError"):
            run_on(kind(fitted), Folder(tmp_path / "a"), "abc")
    pool = Broken(fitted)
    pool.said = "it is gone"
    said = r"it is gone \(RuntimeError: .*\)\. The results so far are in '.*/a'"
    with pytest.raises(SynkhronosError, match=said):
        run_on(pool, Folder(tmp_path / "a"), "abc")
    with pytest.raises(SynkhronosError, match="The results so far are gone: with folder= they"):
        run_on(pool, Folder(None), "abc")

    def cancelled(items: list[Any]) -> dict[str, Any]:
        raise LookupError

    monkeypatch.setattr(pool_batches, "_START_SECONDS", 0.5)
    with pytest.raises(SynkhronosError, match=r"has had no worker of 1 cores for 0.5 seconds"):
        run_on(Stand(cancelled, slots=0), Folder(tmp_path / "b"), "abc")

    class Gone(Stand):
        def submit(self, run: Any, data: object, batch: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.set_exception(CancelledError())
            return future

    with pytest.raises(SynkhronosError, match="runs no batches: CancelledError"):
        run_on(Gone(fitted), Folder(tmp_path / "c"), "abc")


def test_a_pool_that_has_lost_its_workers_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time without workers counts from then on, however long a batch has run before."""
    now = [0.0]

    class Silence:
        """Of the ends of batches: each look takes 100 s."""

        def put(self, future: object) -> None:
            pass

        def get(self, timeout: float) -> None:
            now[0] += 100
            raise queue.Empty

    class Leaving(Stand):
        def slots(self) -> int:
            return 2 if now[0] < 1800 else 0

    def never(items: list[Any]) -> dict[str, Any]:
        raise LookupError

    clock = SimpleNamespace(monotonic=lambda: now[0])
    ends = SimpleNamespace(SimpleQueue=Silence, Empty=queue.Empty)
    monkeypatch.setattr(pool_batches, "time", clock)
    monkeypatch.setattr(pool_batches, "queue", ends)
    with pytest.raises(SynkhronosError, match="has had no worker of 1 cores for 600 seconds"):
        run_on(Leaving(never), Folder(tmp_path / "f"), "a")
    assert now[0] == 2400  # it was seen with workers at 1700


def test_secrets_of_an_address_are_in_no_traceback(tmp_path: Path) -> None:
    """Also not in that of the cause."""

    class Closed(Stand):
        said_by_pool = "no answer from tls://me:pw@host:8786"

        def slots(self) -> int:
            raise OSError(self.said_by_pool)

    pool = Closed(fitted)
    with pytest.raises(SynkhronosError, match=r"tls://\*\*\*@host:8786") as told:
        run_on(pool, Folder(tmp_path / "a"), "abc")
    assert "pw@" not in "".join(traceback.format_exception(told.value))
    pool.said_by_pool = "no answer"
    with pytest.raises(SynkhronosError) as told:
        run_on(pool, Folder(tmp_path / "a"), "abc")
    assert isinstance(told.value.__cause__, OSError)  # without a secret it is shown


def test_workers_that_fit_nothing_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(b"", 0, 2, 1, None).common()
    assert (
        "has 1 cores, and members=2: give each worker more"
        in batches.run_batch(b"", job, 1)["wrong"]
    )
    other = {**job, "versions": {**stations.versions_here(COMPARED), "pymc": "1.0", "new": "2"}}
    said = batches.run_batch(b"", other, 2)["wrong"]
    here = stations.versions_here(["pymc"])["pymc"]
    assert f"pymc {here} in place of 1.0, new None in place of 2" in said
    monkeypatch.setattr(stations, "trouble", lambda: "this is no Linux")
    assert "cannot start processes: this is no Linux" in batches.run_batch(b"", job, 2)["wrong"]
    with pytest.raises(SynkhronosError, match="map: Stand: the worker on x has"):
        run_on(Stand(lambda _: {"wrong": "the worker on x has"}), Folder(tmp_path / "f"), "ab")


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"on": 3}, "on=3: give a Client of Dask, 'ray', an MPIPoolExecutor, or an Executor"),
        ({"on": "dask"}, "on='dask': give a Client of Dask"),
        ({"on": ThreadPoolExecutor(1), "cores": 1}, "cores= is for slots of this machine"),
        ({"on": ThreadPoolExecutor(1), "log_dir": "x"}, "log_dir= is for slots of this machine"),
    ],
)
def test_what_is_not_a_pool(given: dict[str, Any], error: str) -> None:
    with pytest.raises((InputError, InputTypeError), match=f"map: {error}"):
        synk.pymc.map(cases.ended, ["a"], **given)


def test_ray_needs_a_connection() -> None:
    pytest.importorskip("ray", reason="synkhronos[cluster]")
    with pytest.raises(InputError, match=r"on='ray': .* call ray.init\(\) before"):
        pool_of("map", "ray", 1)


def test_a_batch_is_on_one_machine_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines with too few CPUs are no slots, together neither; nor are those that are gone."""
    pytest.importorskip("ray", reason="synkhronos[cluster]")
    from synkhronos._transport.pools import _ray

    nodes = [
        {"Alive": True, "Resources": {"CPU": 7.0}},
        {"Alive": True, "Resources": {"GPU": 1.0}},
        {"Alive": True, "Resources": {"CPU": 3.0}},
        {"Alive": False, "Resources": {"CPU": 64.0}},
    ]
    cluster = SimpleNamespace(
        is_initialized=lambda: True,
        remote=lambda **_: lambda function: SimpleNamespace(remote=function),
        nodes=lambda: nodes,
        cluster_resources=lambda: {"CPU": 10.0},
    )
    monkeypatch.setattr(_ray, "ray", cluster)
    assert [pool_of("map", "ray", members).slots() for members in (1, 2, 4, 8)] == [10, 4, 1, 0]


@pytest.fixture
def here() -> Iterator[Any]:
    """The stations of a process of its own."""
    yield (found := stations.Here())
    for job in "ab":
        found.end(job)


class Still(stations.Station):
    """A station without processes."""

    closed = stopped = False

    def close(self) -> None:
        """Note it."""
        self.closed = True

    def stop(self) -> None:
        """Note it."""
        self.stopped = True


class Once(Still):
    """One for one batch."""

    rests = False


def test_a_station_lasts_from_batch_to_batch(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """For its own call; it ends with the call, after an error, and when no batch comes."""
    with here.station(Still, {"job": "a", "members": 1}, 2) as first:
        pass
    with here.station(Still, {"job": "b", "members": 1}, 2) as other:
        assert other is not first
    with here.station(Still, {"job": "a", "members": 1}, 2) as again:
        assert again is first
        here.end("a")
        assert first.stopped
        assert not first.closed
    assert first.closed
    batch = {"job": "b", "members": 1}
    with pytest.raises(ArithmeticError), here.station(Still, batch, 2) as second:
        raise ArithmeticError
    assert second is other
    assert other.closed
    monkeypatch.setattr(stations, "_REST_SECONDS", 0.05)
    with here.station(Still, {"job": "b", "members": 1}, 2) as third:
        pass
    until = time.monotonic() + 60
    while not third.closed and time.monotonic() < until:
        time.sleep(0.01)
    assert third.closed
    here.end("b")
    with (
        pytest.raises(SynkhronosError, match="the call has ended"),
        here.station(Still, {"job": "b", "members": 1}, 2),
    ):
        pass


def test_stations_of_calls_that_have_ended_end_with_the_next_call(
    here: Any, tmp_path: Path
) -> None:
    """Most pools cannot tell a worker earlier."""
    pool = Stand(fitted)
    given: list[dict[str, Any]] = []

    def submit(run: Callable[..., object], data: object, batch: Any) -> Future[Any]:
        given.append(batch)
        return Stand.submit(pool, run, data, batch)

    pool.submit = submit  # type: ignore[method-assign]
    for folder in ("one", "two"):
        run_on(pool, Folder(tmp_path / folder), "a")
        with here.station(Still, given[-1], 1) as station:
            given[-1]["station"] = station
    first, second = given
    assert first["job"] in second["ended"]
    assert first["station"].closed
    assert not second["station"].closed
    here.end(second["job"])
    assert second["station"].closed


def test_a_station_for_one_batch(here: Any) -> None:
    with here.station(Once, {"job": "a", "members": 1}, 1) as first:
        assert not first.closed
    assert first.closed
    with here.station(Once, {"job": "a", "members": 1}, 1) as second:
        assert second is not first


def test_batches_of_a_worker_share_its_cores(here: Any) -> None:
    """The third one of three batches waits, if there are cores for two."""
    inside, let_go, order = threading.Semaphore(0), threading.Event(), []

    def use(name: str) -> None:
        with here.station(Still, {"job": "a", "members": 2}, 4):
            order.append(name)
            inside.release()
            assert let_go.wait(60)

    users = [threading.Thread(target=use, args=[str(i)]) for i in range(3)]
    for each in users:
        each.start()
    assert inside.acquire(timeout=60)
    assert inside.acquire(timeout=60)
    assert not inside.acquire(timeout=0.1)
    let_go.set()
    for each in users:
        each.join()
    assert len(order) == 3


def test_threads_of_an_executor_work_together(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They share the cores of this process; another process has those of a batch."""
    from synkhronos._transport.pools import _executors

    monkeypatch.setattr(_executors, "available", lambda: [0, 1])
    both = threading.Barrier(2)

    def meet(data: bytes, batch: Mapping[str, Any], cores: int) -> int:
        with here.station(Still, batch, cores):
            both.wait(60)
        return cores

    with ThreadPoolExecutor(2) as executor:
        pool = pool_of("map", executor, 1)
        ends = [pool.submit(meet, b"", {"job": "a", "members": 1}) for _ in range(2)]
        assert [end.result() for end in ends] == [2, 2]
    assert _executors._in_worker(lambda *_, cores: cores, b"", {}, 1, os.getpid() + 1) == 1


def test_other_machines_of_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    from synkhronos._transport.pools import _mpi

    pool = _mpi.MPIPool(ThreadPoolExecutor(1))
    for size, local, elsewhere in ((4, 4, ""), (4, 2, "where other ranks are")):
        found = SimpleNamespace(size=size, local_size=local)
        monkeypatch.setattr(_mpi, "launch", lambda found=found: found)
        assert pool.elsewhere() == elsewhere
    monkeypatch.setattr(_mpi, "launch", lambda: None)
    assert pool.elsewhere() == ""
    assert pool_of("map", ThreadPoolExecutor(1), 1).elsewhere() == ""


def test_workers_of_dask() -> None:
    """Their cores, those on other machines, and a scheduler that is frozen."""
    pytest.importorskip("distributed", reason="synkhronos[cluster]")
    from synkhronos._transport.pools._dask import DaskPool

    workers = {"tcp://127.0.0.1:1": 5, "tcp://[::1]:1": 2}
    client = SimpleNamespace(status="running", scheduler=SimpleNamespace(ncores="asked"))
    client.get_executor = lambda pure: None
    client.sync = lambda ask, callback_timeout: dict(workers)
    pool = DaskPool(client, 2)
    assert (pool.slots(), pool.elsewhere()) == (3, "")
    workers["tcp://198.51.100.7:1"] = 2  # of RFC 5737: nobody has this address
    assert (pool.slots(), pool.elsewhere()) == (4, "198.51.100.7")
    client.status = "closed"
    client.sync = None
    assert pool.slots() == 4  # as it was last

    def frozen(ask: object, callback_timeout: float) -> None:
        raise TimeoutError(f"timed out after {callback_timeout}")

    client.status, client.sync = "running", frozen
    with pytest.raises(TimeoutError, match="its scheduler has not answered for 60 seconds"):
        pool.slots()


def test_an_event_loop_does_not_wait_for_itself() -> None:
    """A client of Dask whose loop runs in this thread."""
    pytest.importorskip("distributed", reason="synkhronos[cluster]")
    kind = type("Client", (), {"__module__": "distributed.client", "get_executor": str})
    client: Any = kind()
    client.asynchronous = True
    said = "map: on=<.*>: this thread runs the client's event loop.* give a Client without async"
    with pytest.raises(InputError, match=said):
        synk.pymc.map(cases.ended, ["a"], on=client)


def test_workers_of_dask_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is given the cores of all that live, since these are what their batches share."""
    pytest.importorskip("distributed", reason="synkhronos[cluster]")
    from distributed import Status

    from synkhronos._transport.pools import _dask

    class Worker:
        def __init__(self, nthreads: int) -> None:
            self.state, self.status = SimpleNamespace(nthreads=nthreads), Status.running

    def cores_in(worker: Worker) -> object:
        monkeypatch.setattr(_dask.distributed, "get_worker", lambda: worker)
        return _dask._in_worker(lambda *_, cores: cores, b"", {})

    one, two = Worker(1), Worker(2)
    assert [cores_in(worker) for worker in (one, two, one)] == [1, 3, 3]
    one.status = Status.closed
    assert cores_in(two) == 2
    two.status = Status.closing_gracefully
    assert cores_in(two) == 2  # it still has this batch


def test_cores_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's number; else its share of the machine."""
    from synkhronos._transport.pools import _mpi

    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "3")
    assert _mpi.cores_of_rank() == 3
    monkeypatch.delenv("SLURM_CPUS_PER_TASK")
    monkeypatch.setattr(_mpi, "available", lambda: list(range(8)))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(_mpi, "launch", lambda: None)
    assert _mpi.cores_of_rank() == 8
    monkeypatch.setattr(_mpi, "launch", lambda: type("Launch", (), {"local_size": 3}))
    assert _mpi.cores_of_rank() == 2
    monkeypatch.setattr(os, "cpu_count", lambda: 64)  # the launcher has bound it
    assert _mpi.cores_of_rank() == 8
