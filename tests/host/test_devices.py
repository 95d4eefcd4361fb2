"""Devices: what may be asked for, what each member's process is told, and who is named in errors.

There is no GPU here: the driver's list and JAX's plugin are stood in for.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from worker_commands import NCCL, Fails, Told

import synkhronos as synk
from synkhronos._backends import jax as jax_backend
from synkhronos._backends.mpi import Launch
from synkhronos._engine.group_options import GroupOptions
from synkhronos._host import devices as _devices
from synkhronos._host.devices import Device, choose, visible_gpus
from synkhronos.cli._doctor import examination
from synkhronos.testing.faults import Fault

ASKED: list[tuple[Any, int | None, list[str]]] = [
    (None, None, ["cpu"] * 5),
    (None, 3, ["cpu"] * 3),
    ("cpu", None, ["cpu"] * 5),
    ("cpu", 2, ["cpu"] * 2),
    (["cpu"], None, ["cpu"]),
    ("cuda", None, ["cuda:0", "cuda:1", "cuda:2"]),
    ("cuda", 2, ["cuda:0", "cuda:1"]),
    (["cuda"], None, ["cuda:0"]),
    ("CUDA:1", None, ["cuda:1"]),
    ("cuda:0,cuda:2", None, ["cuda:0", "cuda:2"]),
    (" cuda:2 , cuda:0 ", 2, ["cuda:2", "cuda:0"]),
    (["cuda:1", "cuda:1", "cpu"], None, ["cuda:1", "cuda:1", "cpu"]),
    (("cpu", "cuda:0"), None, ["cpu", "cuda:0"]),
    ([[0, 1], [2]], None, ["cpu", "cpu"]),
    ([0, 1, 1], None, ["cpu"] * 3),
    ([range(2), np.arange(2)], 2, ["cpu"] * 2),
]


@pytest.mark.parametrize(("asked", "members", "found"), ASKED)
def test_what_can_be_asked_for(asked: Any, members: int | None, found: list[str]) -> None:
    devices = choose(asked, members, ("4", "7", "GPU-9"), suited=5)
    assert [str(d) for d in devices] == found
    by_name = isinstance(asked, str) or "c" in str(asked)[:3]
    for device in devices:
        assert device.asked == by_name
        if device.kind == "cuda":
            assert device.visible == ("4", "7", "GPU-9")[device.number]
            assert device.sharers == found.count(str(device))


WRONG: list[tuple[Any, int | None, str]] = [
    ("cuda:3", None, r"CUDA shows cuda:0 to cuda:2 here.*needs no GPU"),
    (["cuda:0", "cuda:9"], None, r"CUDA shows cuda:0 to cuda:2 here"),
    ("cuda", 4, r"for 3 members, but 4 were asked for.*members that share a GPU"),
    ("cuda:0,cuda:1", 3, r"for 2 members, but 3 were asked for"),
    (["cuda", "cuda"], None, r'"cuda" by itself means a member for each GPU'),
    ("gpu:0", None, r"\['gpu:0'\] are not devices; known are"),
    ("cuda:", None, r"are not devices"),
    ("cuda:-1", None, r"are not devices"),
    ("", None, r"are not devices"),
    (["cuda:0", 1], None, r"list with the cores of each member"),
    (2, None, r"list with the cores of each member"),
    ([], None, r"for 0 members"),
    ([[0]], 2, r"for 1 members, but 2 were asked for"),
    (None, 0, r"give an integer of at least 1"),
    ("cpu", -1, r"give an integer of at least 1"),
]


@pytest.mark.parametrize(("asked", "members", "why"), WRONG)
def test_what_cannot(asked: Any, members: int | None, why: str) -> None:
    with pytest.raises(synk.InputError, match=why):
        choose(asked, members, ("0", "1", "2"), suited=5)


def test_without_a_driver() -> None:
    """It says so, before JAX is imported, let alone CUDA."""
    with pytest.raises(synk.InputError, match=r"no NVIDIA driver.*--gpus all.*needs no GPU"):
        choose("cuda", None, (), suited=5)
    for asked in ("cuda", "cuda:0", ["cuda"]):  # whatever number of members is named
        with pytest.raises(synk.InputError, match=r"no NVIDIA driver.*needs no GPU"):
            choose(asked, 2, (), suited=5)
    script = (
        "import sys, synkhronos as synk\n"
        "try:\n"
        "    synk.fork(devices='cuda:0')\n"
        "except synk.InputError as exc:\n"
        "    print('driver' in str(exc), 'jax' in sys.modules)\n"
    )
    if not synk.get_n_gpu():
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
        assert done.stdout == b"True False\n"


@pytest.mark.parametrize(
    ("value", "count", "found"),
    [
        (None, 3, ("0", "1", "2")),
        ("2,0", 3, ("2", "0")),
        ("1, GPU-8a", 3, ("1", "GPU-8a")),
        ("0,-1,2", 3, ("0",)),
        ("7,0", 3, ()),
        ("1,3,0", 3, ("1",)),
        ("", 3, ()),
        ("-1", 3, ()),
        ("0", 0, ()),
        (None, 0, ()),
    ],
)
def test_what_cuda_shows(value: str | None, count: int, found: tuple[str, ...]) -> None:
    environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    assert visible_gpus(environ, count) == found


@pytest.mark.parametrize(
    ("environ", "sharers", "name", "share"),
    [
        ({}, 1, "XLA_PYTHON_CLIENT_MEM_FRACTION", "0.75"),
        ({}, 3, "XLA_PYTHON_CLIENT_MEM_FRACTION", "0.25"),
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": ".9"}, 2, "XLA_PYTHON_CLIENT_MEM_FRACTION", "0.45"),
        ({"XLA_CLIENT_MEM_FRACTION": "0.6"}, 2, "XLA_CLIENT_MEM_FRACTION", "0.3"),
    ],
)
def test_shares_of_memory(environ: dict[str, str], sharers: int, name: str, share: str) -> None:
    """What JAX takes of a GPU is divided; JAX refuses to be told by both of its variables."""
    found = Device("cuda", 0, "5", sharers, True).environment(environ)
    assert {n: v for n, v in found.items() if "FRACTION" in n} == {name: share}
    assert found["CUDA_VISIBLE_DEVICES"] == "5"


@pytest.mark.parametrize("name", _devices._FRACTIONS)
def test_a_share_that_is_no_number(name: str) -> None:
    with pytest.raises(synk.InputError, match=rf"{name}='half' in the environment is not a number"):
        Device("cuda", 0, "5", 2, True).environment({name: "half"})


@pytest.fixture
def three_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of three GPUs of which CUDA shows two, and a JAX that can use them."""
    monkeypatch.setattr(_devices, "get_n_gpu", lambda: 3)
    monkeypatch.setattr(_devices, "has_plugin", lambda: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    told = ("JAX_PLATFORMS", "JAX_CUDA_VISIBLE_DEVICES", *NCCL, *_devices._FRACTIONS)
    for name in told:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("three_gpus")
def test_what_members_are_told() -> None:
    """Each process is shown one GPU; the master's environment is its own again afterwards.

    T4: on one node NCCL opens no port but the loopback device's.
    """
    before = dict(os.environ)
    with synk.Group(devices=["cuda:1", "cuda:0", "cpu", "cuda:0"]) as group:
        assert "exec" in repr(group)
        assert list(map(str, group.devices)) == ["cuda:1", "cuda:0", "cpu", "cuda:0"]
        master, one, two, three = group.run(Told())
        shared = {
            "JAX_PLATFORMS": "cuda,cpu",
            "CUDA_VISIBLE_DEVICES": "2",
            "JAX_CUDA_VISIBLE_DEVICES": "all",
            "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.375",
            "NCCL_SOCKET_IFNAME": "lo",
            "NCCL_RAS_ENABLE": "0",
            "NCCL_MULTI_RANK_GPU_ENABLE": "1",
        }
        assert one == three == shared
        assert two["JAX_PLATFORMS"] == "cpu"
        assert master == {
            "JAX_PLATFORMS": "cuda,cpu",
            "CUDA_VISIBLE_DEVICES": "2,0",
            "JAX_CUDA_VISIBLE_DEVICES": "1",
            "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.75",
            "NCCL_SOCKET_IFNAME": "lo",
            "NCCL_RAS_ENABLE": "0",
        }
        x = pt.dvector("x")
        assert synk.function([x], x.sum(), mode="FAST_COMPILE")(np.arange(5.0)) == 10
    assert dict(os.environ) == before
    assert not jax_backend._bound


@pytest.mark.usefixtures("three_gpus")
def test_what_cannot_be_started() -> None:
    """GPUs need fresh processes; a process has one JAX, and that one device."""
    before = dict(os.environ)
    with pytest.raises(synk.InputError, match="start by exec"):
        synk.Group(devices="cuda", start="fork")
    with pytest.raises(synk.InputError, match=r"CUDA shows cuda:0 to cuda:1 here"):
        synk.Group(devices="cuda:2")
    with synk.Group(devices="cuda:1") as first:
        with pytest.raises(synk.GroupError, match=r"master's is cuda:0, but it is cuda:1 in ano"):
            synk.Group(devices="cuda:0")
        with synk.Group(devices="cuda:1") as second:
            assert first.devices == second.devices
        assert os.environ["JAX_CUDA_VISIBLE_DEVICES"] == "1"
    assert dict(os.environ) == before
    assert not jax_backend._bound


@pytest.mark.usefixtures("three_gpus")
def test_no_gpu_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is what is said, and why, for any number of members."""
    for hides in ("-1", "7,0"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hides)
        for asked in ("cuda", "cuda:0"):
            with pytest.raises(synk.InputError, match=f"CUDA_VISIBLE_DEVICES='{hides}' shows none"):
                synk.Group(2, devices=asked)


@pytest.mark.usefixtures("three_gpus")
def test_what_the_user_had_set_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the last group that holds it has ended, in whatever order."""
    jax = pytest.importorskip("jax")
    monkeypatch.setattr(jax_backend, "has_run", lambda: False)
    names = ("jax_platforms", "jax_cuda_visible_devices")

    def options() -> list[Any]:
        return list(map(jax.config._read, names))

    former, before = options(), dict(os.environ)
    try:
        for name, value in zip(names, ("cpu", "0"), strict=True):
            jax.config.update(name, value)
        for asked, held in (("cpu", ["cpu", "0"]), ("cuda:1", ["cuda,cpu", "1"])):
            first, second = synk.Group(devices=[asked]), synk.Group(devices=[asked])
            told = dict(os.environ)
            assert told["JAX_PLATFORMS"] == held[0]
            assert options() == held
            first.close()
            assert (dict(os.environ), options()) == (told, held)
            second.close()
            assert (dict(os.environ), options()) == (before, ["cpu", "0"])
    finally:
        for name, value in zip(names, former, strict=True):
            jax.config.update(name, value)


@pytest.mark.usefixtures("three_gpus")
def test_a_second_group_where_jax_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL is told the same in the master as in the workers."""
    runs = False
    monkeypatch.setattr(jax_backend, "has_run", lambda: runs)
    monkeypatch.setattr(jax_backend, "_bound", [])  # what JAX started on stays there
    before = dict(os.environ)
    for _ in range(2):
        with synk.Group(devices=["cuda:1", "cuda:1"]) as group:
            master, worker = group.run(Told())
            assert [master.get(n) for n in NCCL] == [worker[n] for n in NCCL] == ["lo", "0", "1"]
            runs = True
        assert dict(os.environ) == before


@pytest.mark.usefixtures("three_gpus")
def test_a_gpu_is_divided_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the share of memory that cannot be another one."""
    twice = ["cuda:1", "cuda:1"]
    with (
        synk.Group(devices="cuda:1"),
        pytest.raises(synk.GroupError, match=r"cuda:1 is for 2 members.*group.*share of a GPU's"),
    ):
        synk.Group(devices=twice)

    class Gpu:
        platform, local_hardware_id = "gpu", 1

    jax = pytest.importorskip("jax")
    monkeypatch.setattr(jax, "devices", lambda: [Gpu])
    monkeypatch.setattr(jax_backend, "has_run", lambda: True)
    with pytest.raises(synk.GroupError, match=r"cuda:1 is for 2 members.*when JAX started"):
        synk.Group(devices=twice)
    with pytest.raises(synk.GroupError, match="runs on another one"):
        synk.Group(devices=["cuda:0", "cuda:0"])
    with synk.Group(devices="cuda:1"):
        pass


@pytest.mark.usefixtures("three_gpus")
def test_where_it_runs_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be moved no more; a device on which it runs may be asked for."""
    monkeypatch.setattr(jax_backend, "has_run", lambda: True)
    monkeypatch.setattr(jax_backend, "_runs_on", lambda device: str(device) == "cpu")
    for asked in ("cuda", "cuda:1"):
        with pytest.raises(
            synk.GroupError, match=r"JAX already runs on another one in this process.*fork"
        ):
            synk.Group(devices=asked)
    before = dict(os.environ)
    with synk.Group(devices=["cpu"]):
        assert dict(os.environ) == before


def test_without_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_devices, "get_n_gpu", lambda: 1)
    monkeypatch.setattr(_devices, "_PLUGINS", ("a_plugin_that_is_not_there",))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(synk.BackendMissing, match=r"plugin for CUDA.*\[cuda12\].*\[cuda13\]"):
        synk.Group(devices="cuda")
    assert synk.fork(2) == 2  # without a word the cores do


@pytest.mark.usefixtures("three_gpus")
def test_without_a_word() -> None:
    """In mode JAX members take the GPUs in turn, in other modes cores."""
    assert {d.kind for d in _devices.devices_for(None, None)} == {"cpu"}
    with pytensor.config.change_flags(mode="JAX"):
        assert list(map(str, _devices.devices_for(None, None))) == ["cuda:0", "cuda:1"]
        found = _devices.devices_for(None, 3)
        assert list(map(str, found)) == ["cuda:0", "cuda:1", "cuda:0"]
        assert [d.sharers for d in found] == [2, 1, 2]
        assert {d.kind for d in _devices.devices_for("cpu", 2)} == {"cpu"}
        found = _devices.devices_for(None, 3, 1)
        assert list(map(str, found)) == ["cuda:1", "cuda:0", "cuda:1"]


def options_of(members: int | None, devices: str | None, launch: Launch | None) -> GroupOptions:
    """What a group with these devices is opened with."""
    return GroupOptions.of(
        *(members, devices, None, launch),
        master=0,
        start=None,
        profile=False,
        debug=False,
        timeout=None,
        stall_warning=None,
        max_restarts=0,
    )


@pytest.mark.parametrize("devices", ["cpu", None])
def test_members_on_cores_share_no_gpu(devices: str | None) -> None:
    assert options_of(2, devices, None).members_per_gpu == 0


@pytest.mark.usefixtures("three_gpus")
def test_several_processes_of_a_launch_on_a_machine() -> None:
    """They take the GPUs in turn; NCCL may open ports, and finds members of others on its GPU."""
    for asked in (None, "cuda"):
        with pytensor.config.change_flags(mode="JAX"):
            for rank in range(3):
                launch = Launch("mpiexec", rank, 3, rank, 3)
                opening = options_of(None, asked, launch)
                assert list(map(str, opening.devices)) == [f"cuda:{rank % 2}"]
                assert opening.members_per_gpu == 1
                [told] = opening.environments
                assert {n: told[n] for n in NCCL if n in told} == {
                    "NCCL_RAS_ENABLE": "0",
                    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
                }


@pytest.mark.usefixtures("three_gpus")
def test_errors_name_the_device(caplog: pytest.LogCaptureFixture) -> None:
    with synk.Group(devices=["cpu", "cuda:1", "cpu", "cuda:0"]) as group:
        said = r"for rank 1 \(pid \d+, cuda:1, \w+\), rank 2 \(pid \d+, \w+\)"
        group.run(Fault("nap", (), False))  # fresh interpreters import what it needs
        # not before: faulthandler of Python 3.12 may crash while it walks the stack of an import
        group.channel.inspector.warning = 0.1
        with pytest.raises(synk.GroupTimeout, match=said):
            group.run(Fault("nap", (1, 2), False), timeout=0.3)
        assert re.search(said, caplog.text)
        with pytest.raises(synk.WorkerError, match=r"rank 1 \(pid \d+, cuda:1\) failed") as caught:
            group.run(Fails(1))
        assert caught.value.device == "cuda:1"
        with pytest.raises(synk.WorkerError, match=r"rank 2 \(pid \d+\) failed") as caught:
            group.run(Fails(2))
        assert caught.value.device == "cpu"
        os.kill(group.channel.pid(3), signal.SIGKILL)
        with pytest.raises(synk.WorkerDied, match=r"rank 3 \(pid \d+, cuda:0\)"):
            group.run(Fails(-1))
    with synk.Group(devices="cuda:0") as group:
        with pytest.raises(ValueError, match="no luck") as raised:
            group.run(Fails(0))
        assert "rank 0 on cuda:0, the master" in raised.value.__notes__[0]


@pytest.mark.parametrize("start", ["fork", "exec"])
def test_cores_by_name(start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are held to the CPU, workers that are forks too; afterwards nobody is."""
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    with synk.Group(2, devices="cpu", start=start) as group:
        assert [t["JAX_PLATFORMS"] for t in group.run(Told())] == ["cpu", "cpu"]
    assert "JAX_PLATFORMS" not in os.environ
    with synk.Group(2, start=start) as group:
        assert [t.get("JAX_PLATFORMS") for t in group.run(Told())] == [None, None]


def test_the_doctor_sees_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "get_n_gpu", lambda: 3)
    monkeypatch.setattr(examination, "has_plugin", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    found = examination._gpus()
    assert (found.state, found.text) == (
        "note",
        "3 from NVIDIA, 2 of them visible (CUDA_VISIBLE_DEVICES); JAX's CUDA plugin is not "
        "installed",
    )
    assert 'pip install "synkhronos[cuda12]", or "synkhronos[cuda13]"' in found.fix
    assert examination._devices_for("JAX") is None
    monkeypatch.setattr(examination, "has_plugin", lambda: True)
    assert examination._gpus().state == "ok"
    assert examination._devices_for("NUMBA") is None
    assert examination._devices_for("JAX") == ["cuda:0", "cuda:1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert examination._devices_for("JAX") == ["cuda:0", "cuda:0"]
