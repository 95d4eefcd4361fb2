"""Chains over several nodes: each node samples some of them, in a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytensor
from pymc import Model
from pymc.stats.convergence import log_warnings, run_convergence_checks
from pymc.util import get_random_generator
from xarray import Dataset, DataTree, concat

from synkhronos._compiling.kept.folder import is_keeping
from synkhronos._compiling.progress import tell
from synkhronos._engine.commands.base import Command
from synkhronos._engine.group import Group, Task
from synkhronos._engine.member import Member
from synkhronos._errors import InputError, SynkhronosError
from synkhronos._host.cores import share_out
from synkhronos._host.launch_settings import without_settings
from synkhronos._host.polling import readable
from synkhronos._transport.processes.child_process import ChildProcess
from synkhronos._transport.processes.interpreter import lifeline, start_interpreter
from synkhronos._transport.processes.stopped import StoppedProcesses
from synkhronos._transport.processes.worker import signals_blocked
from synkhronos._transport.serialization import pack_graph, unpack_graph
from synkhronos.pymc._chains.progress import ChainProgress, ChainRecords
from synkhronos.pymc._chains.stored_chains import (
    StoredChains,
    check_shared,
    current,
    filled,
    how_ended,
)

_LOOK_SECONDS = 0.05  # between two looks at the other nodes
_RUNS, _FAILED = 1, 2  # counts that leaders send to the master
_END_SECONDS = 30.0  # for a killed process to be gone

# Arguments that act in the process that samples, or whose results cannot be joined.
_OF_ONE_PROCESS = ("callback", "trace")

DRAWS, RAISED = b"D", b"E"  # the first byte of an answer, which is written last


@dataclass(frozen=True)
class NodeChains:
    """The chains of all nodes."""

    model: Model
    arguments: Sequence[Mapping[str, Any]]  # of `synk.pymc.sample`, for each node
    settings: Mapping[str, str]  # of PyTensor. The script may have changed them


class ChainsProcess:
    """A fresh interpreter that samples one node's chains; a context manager, which ends it.

    A fresh interpreter is needed since MPI allows neither forks nor the threads of samplers.
    """

    def __init__(self, packed: bytes, node: int, cores: Sequence[int], watched: int = 0) -> None:
        # of its `watched` chains, which tell how far they are instead of showing it
        self._records: ChainRecords | None = None
        self._stopped = StoppedProcesses("sample")
        with contextlib.ExitStack() as undo:
            chains = os.memfd_create("synk-chains")
            undo.callback(os.close, chains)
            self._answer = os.memfd_create("synk-draws")
            undo.callback(os.close, self._answer)
            with os.fdopen(os.dup(chains), "wb") as file:
                file.write(packed)
            task = {"chains": chains, "answer": self._answer, "node": node}
            descriptors = [chains, self._answer]
            if watched:
                task["watched"], task["progress"] = watched, os.memfd_create("synk-progress")
                undo.callback(os.close, task["progress"])
                self._records = ChainRecords(task["progress"], watched)
                descriptors.append(task["progress"])
            held = undo.enter_context(lifeline())
            with signals_blocked():  # an interrupt would lose a process that nobody knows yet
                popen = start_interpreter(
                    "synkhronos.pymc._chains.node_main",
                    task,
                    descriptors=descriptors,
                    lifeline=held,
                    cores=cores,
                    environ=without_settings(os.environ),
                )
                self._child = ChildProcess(popen.pid, popen)
                undo.callback(os.close, self._child.pidfd)
                undo.callback(self._stop)
            self._undo = undo.pop_all()

    def __enter__(self) -> ChainsProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self._undo.close()

    def _stop(self) -> None:
        self._child.kill()
        self.wait(_END_SECONDS)
        self._child.reap()

    def wait(self, seconds: float) -> bool:
        """Wait so long at most; returns whether the process has ended."""
        self._stopped.look([self._child.pid])
        return bool(readable(self._child.pidfd, seconds=seconds))

    @property
    def progress(self) -> list[ChainProgress]:
        """How far its chains are, if it is to tell that."""
        return [] if self._records is None else self._records.read()

    def interrupt(self) -> None:
        """Let the process end with the draws that it has; without any, it is killed."""
        chains = self.progress
        if not any(chain.started for chain in chains):
            self._child.kill()
        elif not all(chain.done for chain in chains):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._child.pidfd, signal.SIGINT)

    def draws(self) -> bytes | None:
        """The pickled draws of a process that has ended; None if it has none."""
        found = self._read()
        return found[1:] if found[:1] == DRAWS else None

    def _read(self) -> bytes:
        self._child.reap()
        with os.fdopen(os.dup(self._answer), "rb") as file:
            file.seek(0)  # the process has written through the same file position
            return file.read()

    def answer(self) -> bytes:
        """The pickled draws of a process that has ended.

        Raises
        ------
        Exception
            That of the process.
        """
        found = self._read()
        if found[:1] == DRAWS:
            return found[1:]
        if found[:1] == RAISED:
            raise unpack_graph(found[1:])
        while_it = "writes the draws of" if found else "samples"
        stored = current()
        kept = "with folder= draws are kept, and the same call goes on with them"
        if stored is not None:
            kept = f"the same call goes on with the draws in {str(stored.folder.path)!r}"
        raise SynkhronosError(
            f"the process that {while_it} this node's chains has ended: {self._child.ended}; {kept}"
        )


def write_answer(fd: int, kind: bytes, packed: bytes) -> None:
    """Write the answer of a process: one that dies meanwhile leaves none."""
    with os.fdopen(fd, "wb") as file:
        file.seek(len(kind))
        file.write(packed)
        file.flush()
        file.seek(0)
        file.write(kind)


@dataclass(frozen=True)
class SampleChains(Command):
    """Sample chains on the nodes that are not the master's."""

    packed: bytes  # a pickled `NodeChains`

    def run(self, member: Member) -> bytes | None:
        """Sample the chains of this node, if the member is its leader."""
        if member.on_node.above is None:
            return None
        node = member.communicator.node
        with ChainsProcess(self.packed, node, member.on_node.cores) as process:
            while not process.wait(_LOOK_SECONDS):
                if member.stopping:
                    return None
                member.progress(_RUNS)
            try:
                return process.answer()
            except BaseException:
                member.progress(_FAILED)
                raise


def chains_of_nodes(chains: int, nodes: int) -> list[int]:
    """The numbers of chains, the larger ones first.

    >>> chains_of_nodes(5, 2)
    [3, 2]
    """
    return [len(share) for share in share_out(range(chains), nodes)]


def sample_over_nodes(group: Group, model: Model, arguments: Mapping[str, Any]) -> DataTree:
    """Sample each node's share of the chains on that node, and join the draws.

    The group spans the nodes, which are no more than the chains. Its members rest meanwhile.
    """
    counts = chains_of_nodes(arguments["chains"], group.member.communicator.nodes)
    packed = packed_chains(model, arguments, counts, "other nodes")
    chains = ", ".join(map(str, counts))
    tell(f"{sum(counts)} chains on {len(counts)} nodes: {chains}")
    task = group.start(SampleChains(packed), "sample")
    own = None
    try:
        with ChainsProcess(packed, 0, group.member.on_node.cores) as process:
            while not (failed := task.failed or _FAILED in task.progress()):
                if process.wait(_LOOK_SECONDS):
                    break
            if not failed:
                own = process.answer()
    except BaseException:
        _abandon(task)
        raise
    if own is None:
        task.stop()
    found = task.wait()  # raises the error of a node that has failed
    assert own is not None
    if (stored := current()) is not None:
        check_shared(stored, arguments["chains"])
    return joined([own, *(found[rank] for rank in sorted(found))], model, arguments)


def _abandon(task: Task) -> None:
    task.stop()
    with contextlib.suppress(Exception):
        task.wait()


def packed_chains(
    model: Model, arguments: Mapping[str, Any], counts: Sequence[int], to: str
) -> bytes:
    """The chains of all nodes, or processes, pickled; messages name them by `to`."""
    settings = {name: str(getattr(pytensor.config, name)) for name in ("mode", "floatX")}
    each = [_arguments_of(node, counts, arguments) for node in range(len(counts))]
    rng = get_random_generator(arguments.get("random_seed"))
    for given, count in zip(each, counts, strict=True):
        given["random_seed"] = get_random_generator(rng)  # a copy, which spawns those of its chains
        rng.spawn(count)
    try:
        return pack_graph(NodeChains(model, each, settings))
    except Exception as exc:  # of any object that the model refers to
        raise InputError(f"sample: the model or an argument cannot be sent to {to}: {exc}") from exc


def _arguments_of(node: int, counts: Sequence[int], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of one node's chains, without seed."""
    first = sum(counts[:node])
    given = {**arguments, "chains": counts[node]}
    given["compute_convergence_checks"] = False  # they need all chains
    if (stored := current()) is not None:
        given["folder"] = replace(stored, first=first)
    given["keep"] = is_keeping()
    if isinstance(given.get("initvals"), Sequence):
        given["initvals"] = given["initvals"][first : first + counts[node]]
    if node:
        given |= {"progressbar": False, "quiet": True}
    return given


def joined(packed: Sequence[bytes], model: Model, arguments: Mapping[str, Any]) -> DataTree:
    """One tree of all chains, numbered from 0, as `pm.sample` returns it."""
    trees = [unpack_graph(each) for each in packed]
    tree = _joined(trees) if (stored := current()) is None else _of_folder(trees, stored, arguments)
    if arguments.get("compute_convergence_checks", True) and not arguments.get("quiet"):
        log_warnings(run_convergence_checks(tree, model))
    return tree


def _of_folder(
    trees: Sequence[DataTree], stored: StoredChains, arguments: Mapping[str, Any]
) -> DataTree:
    posteriors = [tree["posterior"] for tree in trees]
    draws = max(posterior.sizes["draw"] for posterior in posteriors)
    returned = [how_ended(posterior.attrs) == "returned" for posterior in posteriors]
    whole = sum(p.sizes["chain"] for p in posteriors) == arguments["chains"] and all(returned)
    stored.folder.ended = "returned" if whole else "interrupted"
    return filled(trees[0], stored.folder, range(arguments["chains"]), draws)


def _joined(trees: Sequence[DataTree]) -> DataTree:
    joined = {}
    for name, node in trees[0].subtree_with_keys:
        found = node.to_dataset(inherit=False)
        if "chain" in found.dims:
            found = _in_one([tree[name].to_dataset(inherit=False) for tree in trees])
            found = found.assign_coords(chain=np.arange(found.sizes["chain"]))
            found.attrs = dict(node.attrs)
            times = [tree[name].attrs.get("sampling_time") for tree in trees]
            if None not in times:
                found.attrs["sampling_time"] = max(times)
        joined[name] = found
    tree = DataTree.from_dict(joined)
    tree.attrs = dict(trees[0].attrs)
    return tree


def _in_one(chains: Sequence[Dataset]) -> Dataset:
    """Chains of any lengths; as in nutpie, what is missing is NaN, or zero of other kinds."""
    missing = {
        name: np.nan if values.dtype.kind in "fc" else np.zeros((), values.dtype)[()]
        for name, values in chains[0].data_vars.items()
    }
    return concat(chains, "chain", join="outer", fill_value=missing)


def can_divide_chains(chains: int, nodes: int, arguments: Mapping[str, Any]) -> bool:
    """Whether nodes can sample chains apart from one another, and their draws be joined."""
    apart = not any(arguments.get(name) is not None for name in _OF_ONE_PROCESS)
    return 1 < nodes <= chains and apart and arguments.get("return_inferencedata", True)
