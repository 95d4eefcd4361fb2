"""What `synk doctor` looks at: one finding for each line of its report."""

# These rules hold here:
#
# * Each check yields findings. A probe that raises gives one, too: the report is for machines on
#   which things fail.
# * A finding says a fact, and in `fix` one thing to do. Nothing to do: no `fix`.
# * An optional part that is missing is "absent", and not "bad". That is for what should work, and
#   does not.
# * Nothing is left: groups are closed, processes awaited, files have no names. Only the groups of
#   `_modes` open a GPU.
# * What takes long comes last: a group in each mode, which may compile, then MPI.

from __future__ import annotations

import ctypes
import fcntl
import importlib.util
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt

from synkhronos._api.collectives import all_reduce
from synkhronos._api.function import function
from synkhronos._api.make_data import data
from synkhronos._backends import nccl as nccl_backend
from synkhronos._backends.mpi import launch
from synkhronos._compiling.kept.folder import kept_folder
from synkhronos._engine.group import Group
from synkhronos._errors import SynkhronosWarning
from synkhronos._host import cores as _cores
from synkhronos._host import files, memory_limits
from synkhronos._host.devices import get_n_gpu, has_plugin, visible_gpus
from synkhronos._host.environment import blas, driver
from synkhronos._host.polling import readable
from synkhronos._host.system import trouble
from synkhronos._host.versions import versions
from synkhronos._libraries.jax import JAX
from synkhronos._libraries.keras import KERAS
from synkhronos._libraries.numba import NUMBA
from synkhronos._libraries.nutpie import NUTPIE
from synkhronos._libraries.optuna import OPTUNA
from synkhronos._libraries.pymc import PYMC
from synkhronos._libraries.pytensor import PYTENSOR
from synkhronos._transport.processes.fork_safety import reasons_against_fork
from synkhronos.cli._doctor.mpi_round_trip import round_trip
from synkhronos.cli._mpi_launcher import launcher, version_of

# "absent": an optional part that is not installed; nothing is wrong
GOOD, NOTE, BAD, ABSENT = "ok", "note", "bad", "absent"
MODES = {"FAST_COMPILE": "", "NUMBA": "numba", "CVM": "", "JAX": "jax"}  # mode: library it needs
# by whether the communicator is linked by NCCL; None: the group has no GPUs
BY = {None: "", True: "; arrays move by NCCL", False: "; arrays go through the host's memory"}
# Optional libraries: what each is for, and the extra that installs it ("" if none does).
EXTRAS = {
    "jax": ("mode JAX, GPUs", "jax"),
    "pytensor-ml": ("networks, synkhronos.nn", "nn"),
    "pymc": ("models, synkhronos.pymc", "pymc"),
    "nutpie": ("a faster sampler for PyMC", "pymc"),
    "mpi4py": ("several machines", "mpich"),
    "distributed": ("many models on Dask, pymc.map(on=client)", "cluster"),
    "ray": ("many models on Ray, pymc.map(on='ray')", "cluster"),
    "nccl4py": ("arrays between GPUs", "cuda12"),
    "safetensors": ("checkpoints", "checkpoints"),
    "msgspec": ("configs of runs, synk train", "train"),
    "rich": ("tables at a terminal", "demo"),
    "h5py": ("HDF5 files, sources.hdf5", "data"),
    "zarr": ("zarr arrays, sources.zarr", "data"),
    "pyarrow": ("Parquet files, sources.parquet", "data"),
    "pillow": ("folders of images, sources.images", "data"),
    "fsspec": ("remote files of sources", "data"),
    "jinja2": ("synk report", "report"),
    "matplotlib": ("figures of synk report and synk bench", "report"),
    "tensorboardX": ("synk export to TensorBoard", "tensorboard"),
    "optuna": ("search, synk search", "search"),
    "scikit-learn": ("estimators, known data", "sklearn"),
    "keras": ("models of Keras", "keras"),
    "jax2onnx": ("networks as ONNX files", "onnx"),
    "torch": ("", ""),
}
LIBRARIES = (PYTENSOR, NUMBA, PYMC, NUTPIE, JAX, OPTUNA, KERAS)  # with their private names
DESCRIPTORS = 256  # a soft limit below this gets a note
_CUDA = 'pip install "synkhronos[cuda12]", or "synkhronos[cuda13]" if your driver supports CUDA 13'
_SECONDS = 10.0  # limit for a worker to end after its master was killed

_KILLED_MASTER = """
import sys, time
import synkhronos as synk
group = synk.Group(2)
sys.stdout.write(f"{group.channel.pid(1)}\\n")
sys.stdout.flush()
time.sleep(60)
"""


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    about: str  # the section of the report
    name: str
    state: str  # "ok", "note", "bad" or "absent"
    text: str  # the fact that was found
    fix: str = ""  # the remedy, in one line; empty if there is nothing to do


def examine() -> Iterator[Finding]:
    """Yield all findings; takes several seconds, longer if a mode has to compile."""
    if why := trouble():
        yield Finding("system", platform.system(), BAD, *why.split(": ", 1))
        return
    checks = (_versions, _guards, _limits, _machine, _nccl, _extras, _caches, _kept, _start)
    for check in (*checks, _slurm, _deaths, _modes, _mpi):
        yield from check()


def _versions() -> Iterator[Finding]:
    for name, number in versions(("synkhronos", "pytensor", "numpy", "numba")).items():
        if number:
            yield Finding("versions", name, GOOD, number + _tried(name, number))
    yield Finding("versions", "Python", GOOD, platform.python_version())
    yield Finding("versions", "Linux", GOOD, f"{platform.release()}, {platform.machine()}")


def _tried(package: str, number: str) -> str:
    """Which versions of a library have the private names that are used, if this is another one."""
    for library in LIBRARIES:
        if library.package == package and number not in library.tried.split(" and "):
            return f"; {library.tried} was tried"
    return ""


def _guards() -> Iterator[Finding]:
    fix = "use Linux 5.3 or later, and a sandbox that allows this system call"
    probes: dict[str, Callable[[], object]] = {
        "memfd (shared memory without a name)": _probe_memfd,
        "eventfd (wakes a waiting member)": lambda: os.close(os.eventfd(0, os.EFD_CLOEXEC)),
        "pidfd (a death is seen at once)": lambda: os.close(os.pidfd_open(os.getpid())),
        "lifeline pipe (workers end with the master)": _probe_lifeline,
        "parent-death signal (workers end sooner)": _probe_pdeathsig,
    }
    for name, probe in probes.items():
        try:
            probe()
        except Exception as exc:
            yield Finding("guards", name, BAD, f"{type(exc).__name__}: {exc}", fix)
        else:
            yield Finding("guards", name, GOOD, "active")


def _probe_memfd() -> None:
    fd = os.memfd_create("synkhronos-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(fd, 0, 4096)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    finally:
        os.close(fd)


def _probe_lifeline() -> None:
    read, write = os.pipe2(os.O_CLOEXEC)
    try:
        fcntl.fcntl(read, fcntl.F_SETSIG, signal.SIGKILL)
        if fcntl.fcntl(read, fcntl.F_GETSIG) != signal.SIGKILL:
            raise OSError("F_SETSIG has no effect")
    finally:
        os.close(read)
        os.close(write)


def _probe_pdeathsig() -> None:
    get_pdeathsig, found = 2, ctypes.c_int()  # <sys/prctl.h>
    if ctypes.CDLL(None, use_errno=True).prctl(get_pdeathsig, ctypes.byref(found)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _limits() -> Iterator[Finding]:
    limit = memory_limits.available()
    yield Finding("limits", "memory", GOOD, f"{_gib(limit.free)} free of {_gib(limit.most)}")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = soft < DESCRIPTORS
    fix = f"raise it: ulimit -n {min(hard, 4096)}" if few else ""
    yield Finding("limits", "descriptors", NOTE if few else GOOD, f"{soft}", fix)
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if space != resource.RLIM_INFINITY:
        text = f"{_gib(space)} of address space"
        yield Finding("limits", "ulimit -v", NOTE, text, "remove the limit: ulimit -v unlimited")
    shm = os.statvfs("/dev/shm") if os.path.isdir("/dev/shm") else None
    size = "not mounted" if shm is None else _gib(shm.f_blocks * shm.f_frsize)
    yield Finding("limits", "/dev/shm", GOOD, f"{size}; not used by groups")


def _gib(count: int) -> str:
    """Bytes in the one unit of this report."""
    return f"{count / 2**30:.2f} GiB"


def _machine() -> Iterator[Finding]:
    cores, physical, domains = _cores.available(), _cores.physical(), _cores.domains()
    few = physical < 2
    fix = "give the process more cores (taskset, the container's cpus)" if few else ""
    text = f"{physical} physical cores; this process may use {len(cores)} logical ones"
    if domains > 1:
        text += f", in {domains} NUMA domains: {domains} or more members each stay in one"
    yield Finding("machine", "cores", NOTE if few else GOOD, text, fix)
    try:
        load = os.getloadavg()[0]
    except OSError:
        load = 0.0
    busy = load > 0.5 * physical
    yield Finding(
        *("machine", "load", NOTE if busy else GOOD, f"{load:.1f} in the last minute"),
        "end other work: all members of a call wait for the slowest" if busy else "",
    )
    for library in blas():
        kind = library["core_type"] or "unknown core type"
        text = f"{library['name']} {library['version']}, {kind}, {library['threads']} threads"
        yield Finding("machine", "BLAS", GOOD, text)
    if preset := os.environ.get("OPENBLAS_CORETYPE"):
        fix = "unset it, unless OpenBLAS detects the wrong core type"
        yield Finding("machine", "OPENBLAS_CORETYPE", NOTE, preset, fix)
    yield _gpus()


def _gpus() -> Finding:
    count = get_n_gpu()
    visible = visible_gpus(os.environ, count)
    text = f"{count} from NVIDIA"
    if count and len(visible) != count:
        text += f", {len(visible)} of them visible (CUDA_VISIBLE_DEVICES)"
    if visible and not has_plugin():
        fix = f'for devices="cuda": {_CUDA}'
        return Finding("machine", "GPUs", NOTE, f"{text}; JAX's CUDA plugin is not installed", fix)
    return Finding("machine", "GPUs", GOOD, text)


def _nccl() -> Iterator[Finding]:
    """The libraries that move arrays between GPUs; loads libnccl, opens no GPU."""
    gpus = visible_gpus(os.environ, get_n_gpu())
    if installed := driver():
        yield Finding("machine", "NVIDIA driver", GOOD, installed)
    if not nccl_backend.is_installed():
        text = "nccl4py is not installed"
        yield Finding("machine", "NCCL", NOTE if gpus else ABSENT, text, _CUDA if gpus else "")
        return
    try:
        number = nccl_backend.version()
    except nccl_backend.NotServed as exc:
        fix = "arrays on GPUs go through the host's memory, slowly, until this is repaired"
        text = str(exc).strip().partition("\n")[0]
        yield Finding("machine", "NCCL", NOTE if gpus else ABSENT, text, fix if gpus else "")
        return
    old = number < nccl_backend.SHARED_FROM
    text = f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    fix = "several members on one GPU need 2.30: pip install --upgrade nvidia-nccl-cu12 (or -cu13)"
    yield Finding("machine", "NCCL", NOTE if old else GOOD, text, fix if old else "")


def _extras() -> Iterator[Finding]:
    for name, number in versions(EXTRAS).items():
        if number:
            yield Finding("libraries", name, GOOD, number + _tried(name, number))
            continue
        use, extra = EXTRAS[name]
        fix = f'pip install "synkhronos[{extra}]"' if extra else ""
        text = f"not installed; for: {use}" if use else "not installed; not needed"
        yield Finding("libraries", name, ABSENT, text, fix)


def _caches() -> Iterator[Finding]:
    folder = Path(str(pytensor.config.base_compiledir))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            found = folder.stat()
    except OSError as exc:
        fix = "set PYTENSOR_FLAGS=base_compiledir=FOLDER to a folder that you can write to"
        yield Finding("caches", "PyTensor", BAD, f"{folder}: {exc.strerror}", fix)
        return
    if files.is_own(found):
        yield Finding("caches", "PyTensor", GOOD, str(folder))
        return
    text = f"{folder}: another user may write to it, and it holds code that your programs run"
    fix = f"chmod go-w {folder}, or set PYTENSOR_FLAGS=base_compiledir=FOLDER to one of your own"
    yield Finding("caches", "PyTensor", NOTE, text, fix)


def _kept() -> Iterator[Finding]:
    """The folder of what is kept between runs."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", SynkhronosWarning)
        found = kept_folder(even_if_off=True)
    if found is None:
        text, _, fix = str(told[0].message if told else "refused").partition(". ")
        yield Finding("caches", "kept", NOTE, text, fix)
        return
    count, size = found.size()
    text = f"{count} entries, {_gib(size)} of {_gib(found.limit)} in {found.path}"
    yield Finding("caches", "kept", GOOD, f"{text}; synk cache --clear empties it")


def _start() -> Iterator[Finding]:
    reasons = reasons_against_fork()
    how = "by exec, since " + "; ".join(reasons) if reasons else "by fork"
    fix = "start the group before these run: it then takes milliseconds" if reasons else ""
    yield Finding("start", "workers", NOTE if reasons else GOOD, how, fix)


def _deaths() -> Iterator[Finding]:
    """Kill a master, and check that its worker ends."""
    name = "a killed master's worker"
    master = subprocess.Popen(
        [sys.executable, "-P", "-c", _KILLED_MASTER], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert master.stdout is not None
    assert master.stderr is not None
    with master.stdout, master.stderr:
        line = master.stdout.readline()
        if not line:
            text = master.stderr.read().decode().strip().rpartition("\n")[2]
            master.wait()
            yield Finding("start", name, BAD, f"no group could be started: {text}")
            return
        worker = os.pidfd_open(int(line))
        master.kill()
        began = time.perf_counter()
        gone = bool(readable(worker, seconds=_SECONDS))
        took = 1e3 * (time.perf_counter() - began)
        os.close(worker)
        master.wait()
    if gone:
        yield Finding("start", name, GOOD, f"ended {took:.1f} ms later")
    else:
        yield Finding("start", name, BAD, f"still running after {_SECONDS:.0f} s", "report this")


def _modes() -> Iterator[Finding]:
    for mode, needs in MODES.items():
        if needs and importlib.util.find_spec(needs) is None:
            yield Finding("modes", mode, ABSENT, f"{needs} is not installed")
        elif mode == "CVM" and not pytensor.config.cxx:
            fix = "install g++ or clang++, if you want to use this mode"
            yield Finding("modes", mode, ABSENT, "no C++ compiler was found", fix)
        else:
            yield _round_trip(mode)


def _round_trip(mode: str) -> Finding:
    """Start two members, call a function and average a variable over them."""
    try:
        began = time.perf_counter()
        with Group(2, _devices_for(mode)) as group:
            started = time.perf_counter() - began
            x = pt.vector("x", dtype="float32")
            w = pytensor.shared(np.ones((), "float32"))
            f = function([x], (x * w).sum(), mode=mode, name=f"check of {mode}")
            rows = data(np.ones(1000, "float32"))
            began = time.perf_counter()
            total = float(f(rows))
            first = time.perf_counter() - began
            all_reduce(w)
            linked = getattr(group.member.communicator, "is_linked", None)
            times = []
            for _ in range(200):
                began = time.perf_counter()
                f(rows)
                times.append(time.perf_counter() - began)
            how = repr(group).split(", ")[2]
            on = " and ".join(dict.fromkeys(map(str, group.devices)))
    except Exception as exc:
        return Finding("modes", mode, BAD, f"{type(exc).__name__}: {exc}".partition("\n")[0])
    if total != 1000:
        return Finding("modes", mode, BAD, f"the sum of 1000 ones was {total}", "report this")
    return Finding(
        *("modes", mode, GOOD),
        f"2 members started by {how} on {on} in {1e3 * started:.0f} ms, first call {first:.2f} s, "
        f"then {1e6 * float(np.median(times)):.0f} us{BY[linked]}",
    )


def _devices_for(mode: str) -> list[str] | None:
    """Devices of the two members: in mode JAX the first GPUs, if JAX can use them."""
    gpus = visible_gpus(os.environ, get_n_gpu())
    if mode != "JAX" or not gpus or not has_plugin():
        return None
    return ["cuda:0", f"cuda:{min(1, len(gpus) - 1)}"]


def _slurm() -> Iterator[Finding]:
    """Find the command that submits job arrays."""
    command = shutil.which("sbatch")
    if command is None:
        fix = "for job arrays, synk run --array: use a machine of the cluster that submits jobs"
        yield Finding("Slurm", "sbatch", ABSENT, "it was not found", fix)
        return
    try:
        said = version_of(command)
    except (OSError, subprocess.TimeoutExpired) as exc:
        fix = "job arrays, synk run --array, are submitted by it"
        yield Finding("Slurm", "sbatch", BAD, f"{command}: {exc}", fix)
        return
    yield Finding("Slurm", "sbatch", GOOD, f"{command}: {said}")


def _mpi() -> Iterator[Finding]:
    """Run two processes under the launcher of MPI, if there is one."""
    command = launcher()
    if command is None:
        fix = 'for several machines: pip install "synkhronos[mpich]", or load the cluster\'s MPI'
        yield Finding("MPI", "launcher", ABSENT, "mpiexec and mpirun were not found", fix)
        return
    yield Finding("MPI", "launcher", GOOD, f"{command}: {version_of(command)}")
    if importlib.util.find_spec("mpi4py") is None:
        fix = 'for several machines: pip install "synkhronos[mpi]"'
        yield Finding("MPI", "round trip", ABSENT, "not tried: mpi4py is not installed", fix)
        return
    if launch() is not None:
        yield Finding("MPI", "round trip", NOTE, "not tried: this process runs under a launcher")
        return
    works, text = round_trip(command)
    fix = (
        "" if works else "mpi4py and the launcher must belong to one MPI: see docs/howto/nodes.rst"
    )
    yield Finding("MPI", "round trip", GOOD if works else BAD, text, fix)


def next_steps(findings: Sequence[Finding], works: bool) -> list[str]:
    """The next steps: mend what is bad, then look at the notes, then start."""
    steps = [
        f"{f.name}: {f.fix}"
        for state in (BAD, NOTE)
        for f in findings
        if f.state == state and f.fix
    ]
    if works:
        steps.append("start a group: import synkhronos as synk; synk.fork()")
    else:
        steps.append("then run `synk doctor` again; in a bug report include its output")
    return [f"next {i}: {step}" for i, step in enumerate(steps, 1)]
