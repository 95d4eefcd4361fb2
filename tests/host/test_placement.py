"""Members on large machines: cores by NUMA domain and socket, from trees of /sys made here."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from synkhronos._host import cores as _cores
from synkhronos._host.arena import Arena
from synkhronos.cli._doctor import examination


@dataclass(frozen=True)
class Machine:
    """Sockets, the NUMA domains of each, their cores, and the hyper-threads of a core."""

    sockets: int
    domains: int
    cores: int
    threads: int

    def write(self, folder: Path) -> list[int]:
        """Make its tree of /sys; returns the logical cores.

        As Linux does, it counts the first hyper-threads of all cores before the second ones.
        """
        sizes = (self.threads, self.sockets, self.domains, self.cores)
        for cpu, (_, socket, domain, core) in enumerate(itertools.product(*map(range, sizes))):
            topology = folder / f"cpu{cpu}" / "topology"
            topology.mkdir(parents=True)
            (topology / "physical_package_id").write_text(f"{socket}\n")
            (topology / "core_id").write_text(f"{domain * self.cores + core}\n")
            (topology.parent / f"node{socket * self.domains + domain}").mkdir()
        return list(range(len(list(folder.iterdir()))))


TWO_SOCKETS, EIGHT_DOMAINS = Machine(2, 1, 32, 2), Machine(2, 4, 8, 2)  # 64 cores each
Place = Callable[[Machine], list[int]]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Put this process on a machine, of which it may use all cores."""

    def on(machine: Machine) -> list[int]:
        there = machine.write(tmp_path)
        monkeypatch.setattr(_cores, "_CPUS", tmp_path)
        monkeypatch.setattr(_cores, "_quota", lambda: 0)
        monkeypatch.setattr(os, "cpu_count", lambda: len(there))
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(there))
        return there

    yield on
    monkeypatch.undo()


def sockets_of(share: list[int]) -> set[int]:
    return {_cores._place(core)[0] for core in share}


def domains_of(share: list[int]) -> set[int]:
    return {_cores.domain(core) for core in share}


@pytest.mark.parametrize("machine", [TWO_SOCKETS, EIGHT_DOMAINS])
@pytest.mark.parametrize("size", [2, 4, 7, 8, 63, 64])
def test_cores_of_members(place: Place, machine: Machine, size: int) -> None:
    """Each core once, hyper-threads together, one domain where there are enough members."""
    there = place(machine)
    assert _cores.physical() == 64  # the default number of members
    shares = _cores.divided(None, None, size)
    assert sorted(itertools.chain(*shares)) == there
    held = [{_cores._place(core) for core in share} for share in shares]
    assert sum(map(len, held)) == 64, "two members have hyper-threads of one core"
    if size in (2, 4, 8):
        assert all(len(sockets_of(share)) == 1 for share in shares)
    if size >= machine.sockets * machine.domains:
        assert all(len(domains_of(share)) == 1 for share in shares)
        assert max(map(len, held)) - min(map(len, held)) <= 64 // size


@pytest.mark.parametrize("machine", [TWO_SOCKETS, EIGHT_DOMAINS])
def test_more_members_than_cores_share_hyperthreads(place: Place, machine: Machine) -> None:
    place(machine)
    shares = _cores.divided(None, None, 128)
    assert sorted(itertools.chain(*shares)) == list(range(128))
    assert all(len(share) == 1 for share in shares)
    pairs = zip(shares[::2], shares[1::2], strict=True)
    assert all(_cores._place(a) == _cores._place(b) for [a], [b] in pairs)


@pytest.mark.parametrize(
    ("machine", "processes"), [(TWO_SOCKETS, 2), (EIGHT_DOMAINS, 2), (EIGHT_DOMAINS, 8)]
)
def test_leaders_of_a_launch(place: Place, machine: Machine, processes: int) -> None:
    """Each process of a launch has whole sockets or domains; its leader has the first cores."""
    there = place(machine)
    slices = [_cores.slice_of_launch(p, processes, ()) for p in range(processes)]
    assert sorted(itertools.chain(*slices)) == there
    kind = sockets_of if processes == 2 else domains_of
    assert [kind(found) for found in slices] == [{i} for i in range(processes)]
    for number, found in enumerate(slices):
        leader, *others = _cores.shares(found, 4)
        first = number * machine.sockets * machine.domains // processes
        assert domains_of(leader) == {first}
        assert not {_cores._place(core) for core in leader} & {
            _cores._place(core) for share in others for core in share
        }


def test_the_affinity_of_one_socket(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """`numactl -N 1` or a launcher gave it the second socket."""
    ours = [core for core in place(EIGHT_DOMAINS) if sockets_of([core]) == {1}]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(ours))
    assert (_cores.physical(), _cores.domains()) == (32, 4)
    assert [domains_of(share) for share in _cores.divided(None, None, 4)] == [{4}, {5}, {6}, {7}]


@pytest.mark.parametrize(("machine", "domains"), [(TWO_SOCKETS, 2), (EIGHT_DOMAINS, 8)])
def test_the_doctor_names_domains(place: Place, machine: Machine, domains: int) -> None:
    place(machine)
    found = next(examination._machine())
    assert (found.state, found.text) == (
        "ok",
        "64 physical cores; this process may use 128 logical ones, in "
        f"{domains} NUMA domains: {domains} or more members each stay in one",
    )


def test_the_doctor_is_silent_of_one_domain(place: Place) -> None:
    place(Machine(1, 1, 4, 1))
    assert next(examination._machine()).text.endswith("may use 4 logical ones")


def test_members_touch_their_own_memory_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes a page from the domain of the core that asks first.

    So the master's start gives no memory to the regions of others, and a member's allocation only
    to its own. A worker is bound to its cores before it owns its region.
    """
    asked: list[tuple[int, int]] = []
    allocate = os.posix_fallocate

    def noted(fd: int, offset: int, length: int) -> None:
        asked.append((offset, length))
        allocate(fd, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", noted)
    arena = Arena(3)
    try:
        assert (asked, os.fstat(arena.own_fd()).st_blocks) == ([], 0)
        for mine in (0, 2):
            asked.clear()
            arena.own(mine)
            array = arena.empty((1 << 17,), "float64")
            assert asked == [(arena.offset(array), array.nbytes)]
            assert arena.offset(array) // arena.region_bytes == mine
            assert 512 * os.fstat(arena.own_fd()).st_blocks >= array.nbytes
            del array
    finally:
        arena.close_fd()
