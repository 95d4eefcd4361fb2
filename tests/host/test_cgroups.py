"""Limits of cgroups: of the process's own and of all above it, on the machines that users have."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from limits import control_group, enter, run_after

from synkhronos._host import cgroups, cores, memory_limits

_V1 = "30 23 0:26 {root} /sys/fs/cgroup/{name} rw,nosuid shared:9 - cgroup cgroup rw,{name}\n"
_V2 = "25 23 0:22 {root} {point} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
_OTHER = "23 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n24 23 0:21 / /x rw - tmpfs  rw\n"


def v1(root: str = "/") -> str:
    """The mounts of version 1: cpu and cpuacct together, as most distributions have it."""
    names = ("cpuset", "cpu,cpuacct", "memory", "pids")
    return _OTHER + "".join(_V1.format(root=root, name=name) for name in names)


def v2(root: str = "/", point: str = "/sys/fs/cgroup") -> str:
    return _OTHER + _V2.format(root=root, point=point)


def own(path: str) -> str:
    """/proc/self/cgroup of version 1."""
    names = ("pids", "memory", "cpu,cpuacct", "cpuset", "name=systemd")
    return "".join(f"{i}:{name}:{path}\n" for i, name in enumerate(names, 2))


@dataclass(frozen=True)
class Machine:
    """/proc/self/cgroup, the mounts, and files below /sys/fs/cgroup; what is right."""

    cgroup: str
    mounts: str
    files: dict[str, str]
    cores: int
    memory: tuple[int, ...] = ()

    def write(self, folder: Path) -> Path:
        """Make it; returns its /proc."""
        system, process = f"{folder}/sys/fs/cgroup", folder / "proc" / "self"
        process.mkdir(parents=True)
        (process / "cgroup").write_text(self.cgroup)
        (process / "mountinfo").write_bytes(
            self.mounts.replace("/sys/fs/cgroup", system).encode()
            + b"9 9 0:9 / /\xe9 rw - x x rw\n"
            + b"9 9 0:9 / /a\x0c\xe2\x80\xa8b rw - x x rw\n"  # the kernel writes them as they are
        )
        for name, text in self.files.items():
            path = Path(system, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
        return process.parent


def quota_v1(folder: str, microseconds: int) -> dict[str, str]:
    path = f"cpu,cpuacct{folder}"
    return {f"{path}/cpu.cfs_quota_us": str(microseconds), f"{path}/cpu.cfs_period_us": "100000"}


def memory_v1(folder: str, most: int) -> dict[str, str]:
    path = f"memory{folder}"
    return {
        f"{path}/memory.limit_in_bytes": str(most),
        f"{path}/memory.usage_in_bytes": "1000",
        f"{path}/memory.stat": "cache 5\ntotal_inactive_file 100",
    }


def memory_v2(folder: str, most: int | str) -> dict[str, str]:
    return {
        f"{folder}/memory.max": str(most),
        f"{folder}/memory.current": "1000",
        f"{folder}/memory.stat": "anon 7\ninactive_file 100",
    }


USER = "user.slice/user-1000.slice"
JOB = "slurm/uid_1000/job_7"
STEP = "system.slice/slurmstepd.scope/job_7"
MACHINES = {
    "no limit, version 2": Machine(
        "0::/init.scope\n", v2(), {"init.scope/cpu.max": "max 100000"}, 0
    ),
    "no limit, version 1": Machine(own("/"), v1(), quota_v1("", -1), 0),
    "a slice of systemd": Machine(
        f"0::/{USER}/run-u5.scope\n",
        v2(),
        {
            f"{USER}/cpu.max": "50000 100000",
            f"{USER}/run-u5.scope/cpu.max": "max 100000",
            **memory_v2(f"{USER}/run-u5.scope", "max"),
            **memory_v2(USER, 50_000),
            **memory_v2("user.slice", 70_000),
        },
        1,
        (50_000, 70_000),
    ),
    "Slurm, version 1": Machine(
        own(f"/{JOB}/step_0/task_0"),
        v1(),
        {
            **quota_v1("", -1),
            **quota_v1(f"/{JOB}", 310_000),
            **quota_v1(f"/{JOB}/step_0", 400_000),
            **quota_v1(f"/{JOB}/step_0/task_0", -1),
            **memory_v1(f"/{JOB}", 50_000),
            **memory_v1(f"/{JOB}/step_0", 40_000),
        },
        4,
        (40_000, 50_000),
    ),
    "Slurm, version 2": Machine(
        f"0::/{STEP}/step_0/user/task_0\n",
        v2(),
        {
            f"{STEP}/cpu.max": "300000 100000",
            f"{STEP}/step_0/user/task_0/cpu.max": "max 100000",
            **memory_v2(f"{STEP}/step_0", 60_000),
        },
        3,
        (60_000,),
    ),
    "Docker, version 1, without a namespace": Machine(
        own("/docker/012/inner"),
        v1("/docker/012"),
        {
            **quota_v1("", 400_000),
            **quota_v1("/inner", 150_000),
            **memory_v1("", 80_000),
            **memory_v1("/inner", 70_000),
        },
        2,
        (70_000, 80_000),
    ),
    "Docker, version 2, without a namespace": Machine(
        "0::/system.slice/docker-012.scope\n",
        v2("/system.slice/docker-012.scope"),
        {"cpu.max": "200000 100000", **memory_v2(".", 90_000)},
        2,
        (90_000,),
    ),
    "Docker, version 2, with a namespace": Machine(
        "0::/\n", v2(), {"cpu.max": "150000 100000", **memory_v2(".", 90_000)}, 2, (90_000,)
    ),
    "Docker, version 1, with a namespace": Machine(
        own("/"), v1(), {**quota_v1("", 50_000), **memory_v1("", 90_000)}, 1, (90_000,)
    ),
    "a mount from before the namespace": Machine(
        "0::/\n", v2("/../.."), {"cpu.max": "700000 100000"}, 7
    ),
    "a cgroup outside of the namespace": Machine(
        "0::/../other\n",
        v2(),
        {"cpu.max": "200000 100000", "../other/cpu.max": "100000 100000"},
        2,
    ),
    "the mount of another container comes first": Machine(
        "0::/a/b\n",
        v2("/c", "/sys/fs/cgroup/of_another") + v2(),
        {"of_another/cpu.max": "100000 100000", "a/cpu.max": "600000 100000"},
        6,
    ),
    "systemd's hybrid": Machine(
        f"{own('/' + USER)}0::/{USER}/session-1.scope\n",
        v1() + v2("/", "/sys/fs/cgroup/unified"),
        {
            **quota_v1(f"/{USER}", 250_000),
            **memory_v1(f"/{USER}", 50_000),
            f"unified/{USER}/session-1.scope/cgroup.procs": "",
        },
        3,
        (50_000,),
    ),
    "without cgroups": Machine("", _OTHER, {}, 0),
}


@pytest.mark.parametrize("name", MACHINES)
def test_limits_on(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = MACHINES[name]
    monkeypatch.setattr(cgroups, "_PROC", machine.write(tmp_path))
    assert cores._quota() == machine.cores
    # the machine itself is the first limit
    monkeypatch.setattr(
        memory_limits, "_machine", lambda: memory_limits.Limit(1 << 50, 1 << 50, "")
    )
    found = sorted((limit.most, limit.free) for limit in memory_limits.limits()[1:])
    assert found == [(most, most - 900) for most in machine.memory]


def test_nothing_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where descriptors are used up: there is no quota then, and nothing is remembered."""
    machine = MACHINES["a slice of systemd"]
    monkeypatch.setattr(cgroups, "_PROC", tmp_path / "proc")
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(machine.cgroup)
    assert cores._quota() == 0
    (tmp_path / "proc" / "self" / "cgroup").unlink()
    (tmp_path / "proc" / "self").rmdir()
    machine.write(tmp_path)
    assert cores._quota() == 1


CORES = "from synkhronos._host import cores; print(len(cores.available()), cores.available())"
QUOTA = {1: {"cpu.cfs_quota_us": "50000"}, 2: {"cpu.max": "50000 100000"}}
FIRST = str(min(os.sched_getaffinity(0)))
SET = {1: {"cpuset.mems": "0", "cpuset.cpus": FIRST}, 2: {"cpuset.cpus": FIRST}}


@pytest.mark.parametrize(("controller", "settings"), [("cpu", QUOTA), ("cpuset", SET)])
def test_a_cgroup_of_this_machine(
    controller: str, settings: dict[int, dict[str, str]], tmp_path: Path
) -> None:
    """The process's own, below the root of the mount."""
    with control_group(controller, settings) as made:
        if isinstance(made, str):
            pytest.skip(made)
        ended = run_after(enter(made[1]), tmp_path, CORES)
    assert ended.printed == f"1 [{FIRST}]\n", ended.printed
