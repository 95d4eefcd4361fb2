"""Cores: which ones this process may use, how members share them, and numbers of threads.

Cores come from the affinity mask and the CPU quotas of the process's cgroups. Each worker is bound
to its share for its whole life. The master is the user's process: its BLAS threads are limited only
during its part of a call, and close() restores the user's settings.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

from synkhronos._checks import shown
from synkhronos._compiling.memory import trim
from synkhronos._errors import InputError, InputTypeError
from synkhronos._host import cgroups
from synkhronos._host.thread_pools import ThreadLimits, thread_pools

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # <malloc.h>
_libc = ctypes.CDLL(None)
_CPUS = "/sys/devices/system/cpu"


def available() -> list[int]:
    """The cores that this process may use, at most as many as the CPU quota allows.

    Hyper-threads of one physical core are adjacent, so that one member gets them, and so are cores
    of one NUMA domain.
    """
    if not hasattr(os, "sched_getaffinity"):  # macOS, Windows
        return list(range(os.cpu_count() or 1))
    cores = sorted(os.sched_getaffinity(0), key=lambda core: (domain(core), _place(core), core))
    quota = _quota()
    return cores[: max(1, min(len(cores), quota))] if quota else cores


def of_slurm_task() -> int | None:
    """The cores that Slurm gives to each task of this job; None: nobody has asked for a number.

    On some clusters it does not bind tasks to them, so `available` may have more.
    """
    given = os.environ.get("SLURM_CPUS_PER_TASK", "")
    return int(given) if given.isdigit() and int(given) else None


def physical() -> int:
    """The number of physical cores among them."""
    return len({_place(core) for core in available()})


def domains() -> int:
    """The number of NUMA domains among them."""
    return len({domain(core) for core in available()})


def _place(core: int) -> tuple[int, int]:
    """The package and the physical core of a logical core."""
    folder = f"{_CPUS}/cpu{core}/topology"
    try:
        return int(_text(f"{folder}/physical_package_id")), int(_text(f"{folder}/core_id"))
    except (OSError, ValueError):
        return (0, core)


def _text(file: str) -> bytes:
    """All of a small file of the kernel: `sample` reads some each time, and `Path` takes longer."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)


def domain(core: int) -> int:
    """The NUMA domain of a core: its memory is nearer than that of others."""
    try:
        names = os.listdir(f"{_CPUS}/cpu{core}")
    except OSError:
        return 0
    numbers = [name.removeprefix("node") for name in names if name.startswith("node")]
    return min((int(number) for number in numbers if number.isdecimal()), default=0)


def _quota() -> int:
    """The lowest CPU quota of this process's cgroups in whole cores, 0 for none."""
    found = []
    for version, folder in cgroups.folders("cpu"):
        with contextlib.suppress(OSError, ValueError):
            files = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            limit, period = map(int, b" ".join(_text(f"{folder}/{f}") for f in files).split())
            if limit > 0:  # no limit is -1, or the word "max", which raises ValueError
                found.append(-(-limit // period))
    return min(found, default=0)


def shares(cores: Sequence[int], size: int) -> list[list[int]]:
    """Divide cores of this machine among `size` members, as `share_out` does."""
    return share_out(cores, size, domain, _place)


def share_out(
    cores: Sequence[int],
    size: int,
    domain_of: Callable[[int], int] = lambda core: 0,
    physical_of: Callable[[int], Hashable] = lambda core: core,
) -> list[list[int]]:
    """Divide cores among `size` members, adjacent ones together; too few cores are shared.

    If there are as many members as NUMA domains, or more, each has cores of one domain only. If
    there are enough physical cores, no two members have hyper-threads of the same one.

    >>> share_out([0, 1, 2, 3, 4], 2), share_out([0, 1], 3)
    ([[0, 1, 2], [3, 4]], [[0], [1], [0]])
    >>> share_out(range(8), 3, domain_of=lambda core: core // 4)
    [[0, 1], [2, 3], [4, 5, 6, 7]]
    >>> share_out(range(6), 2, physical_of=lambda core: core // 2)
    [[0, 1, 2, 3], [4, 5]]
    """
    if size >= len(cores):
        return [[cores[r % len(cores)]] for r in range(size)]
    domains = [list(found) for _, found in itertools.groupby(cores, domain_of)]
    if 1 < len(domains) <= size:
        members = [1] * len(domains)
        for _ in range(size - len(domains)):  # where most cores are left for each
            members[max(range(len(domains)), key=lambda i: len(domains[i]) / members[i])] += 1
        divided = (
            share_out(found, count, physical_of=physical_of)
            for found, count in zip(domains, members, strict=True)
        )
        return [share for found in divided for share in found]
    units = [list(found) for _, found in itertools.groupby(cores, physical_of)]
    if len(units) < size:
        units = [[core] for core in cores]
    small, extra = divmod(len(units), size)
    starts = [r * small + min(r, extra) for r in range(size + 1)]
    return [list(itertools.chain(*units[a:b])) for a, b in itertools.pairwise(starts)]


def bound_to_one() -> bool:
    """Whether this process may use only one of several cores."""
    return len(os.sched_getaffinity(0)) == 1 < (os.cpu_count() or 1)


def slice_of_launch(place: int, size: int, siblings: Sequence[int]) -> list[int]:
    """This process's share of the cores that a launcher gives to its processes on this machine.

    Parameters
    ----------
    place, size : int
        The process's number among the launcher's processes on this machine, and their number.
    siblings : sequence of int
        The children of its parent: the same processes, unless a shell is between.
    """
    ours = os.sched_getaffinity(0)
    if len(siblings) == size:
        same = [pid for pid in siblings if _affinity(pid) == ours]
        place, size = same.index(os.getpid()), len(same)
    elif len(ours) < (os.cpu_count() or 1):  # most likely the launcher bound it to cores of its own
        place, size = 0, 1
    return shares(available(), size)[place]


def _affinity(pid: int) -> set[int]:
    try:
        return os.sched_getaffinity(pid)
    except OSError:  # it has ended
        return set()


def divided(devices: Any, cores: object, size: int) -> list[list[int]]:
    """The cores of each member, as the user asked for or by `share_out`.

    Raises
    ------
    InputError, InputTypeError
        This process may not use them, or they are not a list of cores.
    """
    if cores is not None and not isinstance(cores, Iterable):
        raise InputTypeError(f"cores={shown(cores)}: give the numbers of the cores, such as [0, 1]")
    if devices is None:
        given = available() if cores is None else list(cores)
        _check_ours(given, f"cores={shown(cores)}")
        return shares(given, size)
    found = [list(d) if hasattr(d, "__iter__") else [d] for d in devices]
    for given in found:
        _check_ours(given, f"devices={shown(devices)}")
    return found


def _check_ours(cores: Sequence[object], what: str) -> None:
    ours = os.sched_getaffinity(0)
    if not cores or not all(core in ours for core in cores):
        raise InputError(
            f"{what}: a member needs at least one core, and this process may only use cores "
            f"{sorted(ours)} (see taskset and os.sched_getaffinity)"
        )


def environment(threads: int) -> dict[str, str]:
    """Environment variables that limit a new process to `threads` threads."""
    names = (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "NUMBA_NUM_THREADS",
        "BLIS_NUM_THREADS",
    )
    return dict.fromkeys(names, str(threads))


def bind(cores: Iterable[int], task: int = 0) -> None:
    """Bind a thread, by default this one, to cores; it stays where it is if a sandbox refuses."""
    with contextlib.suppress(OSError):
        os.sched_setaffinity(task, cores)


def bind_worker(cores: Sequence[int]) -> None:
    """Bind this process and its thread pools to its cores, for its whole life.

    numba reads its number of threads from the environment when it compiles next. A number that is
    right is left, see `MasterCores`.
    """
    bind(cores)
    os.environ.update(environment(len(cores)))
    for library in thread_pools():
        if library.get_num_threads() != len(cores):
            library.set_num_threads(len(cores))
    keep_freed_memory()


class MasterCores:
    """The master's cores, and its limits while it works as a member (`thread_limits`).

    Workers are forked under such limits too, and inherit them. To set a number in a forked process
    starts all of OpenBLAS's threads there, one per core of the machine, and they spin for 25 ms.
    """

    def __init__(self, cores: Sequence[int]) -> None:
        self.cores = list(cores)
        self.thread_limits = ThreadLimits(len(self.cores))
        self._touched: dict[int, set[int]] = {}

    @contextlib.contextmanager
    def confined(self) -> Iterator[None]:
        """Run this thread only on the master's cores; threads that it starts (XLA) inherit that."""
        before = os.sched_getaffinity(0)
        known = set(os.listdir("/proc/self/task"))
        try:
            bind(self.cores)
            yield
        finally:
            bind(before)
            for task in set(os.listdir("/proc/self/task")) - known:
                self._touched[int(task)] = before

    def keep_place(self) -> None:
        """Move this thread to the master's cores if the scheduler has put it on another one.

        Two members that spin on one core look busy to the scheduler, so it leaves them there. The
        user's affinity mask is restored at once.
        """
        if _libc.sched_getcpu() not in self.cores:
            before = os.sched_getaffinity(0)
            try:
                bind(self.cores)
            finally:
                bind(before)

    def release(self) -> None:
        """Unbind the threads that `confined` bound, and restore the user's settings."""
        self.thread_limits.__exit__()
        for task, cores in self._touched.items():
            bind(cores, task)
        self._touched.clear()


def keep_freed_memory() -> None:
    """Keep freed memory in the process, since page faults of a large result cost more than its use.

    glibc returns large blocks to the kernel at once, and each page of the next block costs a page
    fault: 38 ms against 4.4 ms for a gradient of 25 million numbers.
    """
    _mallopt(_M_MMAP_THRESHOLD, 1 << 30)
    _mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


def give_freed_memory_back() -> None:
    """Undo keep_freed_memory: set the thresholds that glibc reaches by itself, and trim."""
    _mallopt(_M_MMAP_THRESHOLD, 32 << 20)
    _mallopt(_M_TRIM_THRESHOLD, 64 << 20)
    trim()


def _mallopt(option: int, value: int) -> None:
    mallopt = getattr(_libc, "mallopt", None)
    if mallopt is not None:  # musl does not have it
        mallopt(option, value)
