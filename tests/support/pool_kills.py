"""What becomes of a call of `synk.pymc.map` if a process of its pool is killed; as a program.

python pool_kills.py KIND WHAT FOLDER
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pool_cases import opened

import synkhronos as synk
from synkhronos._errors import SynkhronosError
from synkhronos.pymc._map.names import file_of

ITEMS = 12
LIMIT = 120.0  # seconds for a state to be reached, and for processes to end


class Noted:
    """Notes in a folder which process, of which worker, begins an item."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder = folder
        self.seconds = seconds

    def __call__(self, item: int) -> int:
        """The item."""
        with open(self.folder / "begun", "a") as file:
            file.write(f"{os.getppid()} {os.getpid()} {item}\n")
        time.sleep(self.seconds)
        return item

    def begun(self) -> list[tuple[int, int, int]]:
        """Worker, process and item, in order."""
        path = self.folder / "begun"
        lines = path.read_text().splitlines() if path.exists() else []
        return [tuple(int(word) for word in line.split()) for line in lines]  # type: ignore[misc]


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found


def wait_for(reached: Callable[[], Any]) -> Any:
    """What it returns, once that is true."""
    until = time.monotonic() + LIMIT
    while time.monotonic() < until:
        if found := reached():
            return found
        time.sleep(0.01)
    raise AssertionError("it was not reached")


def gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@contextlib.contextmanager
def at(reached: Callable[[], Any], act: Callable[[Any], None]) -> Iterator[None]:
    """Act in another thread once a state is reached, which must be so within the context."""
    errors: list[BaseException] = []

    def watch() -> None:
        try:
            act(wait_for(reached))
        except BaseException as exc:
            errors.append(exc)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        watcher.join()
    if errors:
        raise errors[0]


def kill(pid: int) -> None:
    """By a signal that nobody can catch."""
    os.kill(pid, signal.SIGKILL)


def _workers(pool: Any, folder: Path) -> list[int]:
    """The workers of a pool, found by a call of map."""
    folder.mkdir()
    fit = Noted(folder, 0.2)
    synk.pymc.map(fit, range(3 * ITEMS), on=pool, progressbar=False)
    return sorted({worker for worker, *_ in fit.begun()})


def worker(kind: str, state: str, folder: Path) -> None:
    """One of three workers is killed in a state: nothing is lost, and nothing is left."""
    with opened(kind, 3) as pool:
        workers = _workers(pool, folder / "before")
        victim = workers[0]
        fit = Noted(folder, 0.3)
        results, old = folder / "results", set(children(victim))
        before: set[Path] = set()
        reached: dict[str, Callable[[], Any]] = {
            "idle": lambda: victim,
            "starts": lambda: set(children(victim)) - old and victim,
            "fits": lambda: next((w for w, *_ in fit.begun()), None),
            "returned": lambda: list(results.glob("*.fit")) and fit.begun()[-1][0],
        }

        def act(pid: int) -> None:
            before.update(results.glob("*.fit"))
            kill(pid)

        if state == "idle":
            kill(victim)
            fits = synk.pymc.map(fit, range(ITEMS), on=pool, folder=results)
        else:
            with at(reached[state], act):
                fits = synk.pymc.map(fit, range(ITEMS), on=pool, folder=results)
        assert fits.failed == {}, fits.failed
        assert dict(fits) == {i: i for i in range(ITEMS)}
        calls = [item for *_, item in fit.begun()]
        assert set(calls) == set(range(ITEMS))
        assert len(calls) <= 2 * ITEMS
        known = {path.name for path in before}
        for item in range(ITEMS):
            if file_of(item) in known:  # its result had come before
                assert calls.count(item) == 1, (item, calls)
        processes = {process for _, process, _ in fit.begun()}
    wait_for(lambda: all(map(gone, processes)))


def launch(kind: str, state: str, folder: Path) -> None:
    """A rank is killed: MPI ends the launch, and the same call goes on with what is left."""
    del state
    fit, results = Noted(folder, 0.3), folder / "results"
    first = not results.exists()
    known = set(results.glob("*.fit"))
    begun = len(fit.begun())
    with opened(kind, 3) as pool:
        if first:
            with at(lambda: list(results.glob("*.fit")) and fit.begun()[-1][0], kill):
                synk.pymc.map(fit, range(ITEMS), on=pool, folder=results)
            raise AssertionError("MPI goes on without a rank")
        fits = synk.pymc.map(fit, range(ITEMS), on=pool, folder=results)
    assert dict(fits) == {i: i for i in range(ITEMS)}
    assert known
    assert len(fit.begun()) - begun == ITEMS - len(known)
    assert all(gone(process) for _, process, _ in fit.begun()[:begun])


def scheduler(kind: str, state: str, folder: Path) -> None:
    """Dask's scheduler ends or freezes: the call says so; results are there for another pool."""
    del kind
    from distributed import Client

    from synkhronos._transport.pools import _dask

    how, said = signal.SIGKILL, "its scheduler is gone"
    if state == "frozen":
        how, said = signal.SIGSTOP, "its scheduler has not answered for 3 seconds"
        _dask._ANSWER_SECONDS = 3.0
    programs: list[subprocess.Popen[bytes]] = []

    def start(*words: str) -> subprocess.Popen[bytes]:
        programs.append(subprocess.Popen([sys.executable, "-m", *words], cwd=folder))
        return programs[-1]

    place = folder / "scheduler.json"
    try:
        first = start(
            *("distributed.cli.dask_scheduler", "--scheduler-file", str(place), "--port", "0"),
            *("--no-dashboard", "--host", "127.0.0.1"),
        )
        wait_for(place.exists)
        options = [
            "--scheduler-file",
            str(place),
            "--nthreads",
            "1",
            "--no-dashboard",
            "--no-nanny",
        ]
        start("distributed.cli.dask_worker", *options)
        fit, results = Noted(folder, 0.3), folder / "results"
        with Client(scheduler_file=str(place)) as client:
            began: list[float] = []

            def act(_: object) -> None:
                began.append(time.monotonic())
                os.kill(first.pid, how)

            with (
                at(lambda: list(results.glob("*.fit")), act),
                pytest.raises(SynkhronosError, match=f"map: Dask.* {said}"),
            ):
                synk.pymc.map(fit, range(200), on=client, folder=results)
            assert time.monotonic() - began[0] < LIMIT
            kill(first.pid)  # a client waits for a frozen one
        assert list(results.glob("*.fit"))
    finally:
        for program in programs:
            program.kill()
            program.wait()
    wait_for(lambda: all(gone(process) for _, process, _ in fit.begun()))


def head(kind: str, state: str, folder: Path) -> None:
    """Ray's head ends: no call waits for it for ever, and slots go on with what is left."""
    del kind, state
    fit, results = Noted(folder, 0.3), folder / "results"
    if results.exists():
        known, begun = set(results.glob("*.fit")), len(fit.begun())
        fits = synk.pymc.map(fit, range(ITEMS * 5), folder=results, cores=1)
        assert dict(fits) == {i: i for i in range(ITEMS * 5)}
        assert known
        assert len(fit.begun()) - begun == ITEMS * 5 - len(known)
        assert all(gone(process) for _, process, _ in fit.begun()[:begun])
        return
    os.environ.update(RAY_gcs_rpc_server_reconnect_timeout_s="5")
    with opened("ray", 3) as pool:
        [gcs] = [pid for pid in children(os.getpid()) if "gcs_server" in _name(pid)]
        with (
            at(lambda: list(results.glob("*.fit")) and gcs, kill),
            pytest.raises(SynkhronosError, match="map: Ray"),
        ):
            synk.pymc.map(fit, range(ITEMS * 5), on=pool, folder=results)
    sys.stdout.write("the call has said so\n")


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


def added(kind: str, state: str, folder: Path) -> None:
    """A worker is added while items are fitted, and gets some of them."""
    del kind, state
    with opened("dask", 1) as pool:
        fit, results = Noted(folder, 0.5), folder / "results"
        with at(lambda: list(results.glob("*.fit")), lambda _: pool.cluster.scale(2)):
            fits = synk.pymc.map(fit, range(60), on=pool, folder=results)
        assert dict(fits) == {i: i for i in range(60)}
        assert len({worker for worker, *_ in fit.begun()}) == 2


def main(kind: str, what: str, folder: str) -> None:
    """Kill, and say that all was as it must be."""
    logging.getLogger("synkhronos").setLevel(logging.ERROR)
    acts = {"launch": launch, "scheduler": scheduler, "added": added, "head": head}
    acts["frozen"] = scheduler
    acts.get(what, worker)(kind, what, Path(folder))
    sys.stdout.write("as it must be\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
