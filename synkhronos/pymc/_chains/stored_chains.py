"""A run in a folder: chains block after block, and the tree of all draws.

A chain is a sequence of blocks: its tuning, then blocks of 100 draws. Each is sampled with a seed
that follows from (the seed of the run, the chain, the number of the block), and starts where the
block before ended. So what is drawn does not depend on when a run was interrupted, nor on the
number of calls that have made it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextvars import ContextVar
from dataclasses import astuple, dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
from pymc import Model
from xarray import Dataset, DataTree, Variable
from xarray.core.indexing import LazilyIndexedArray

from synkhronos._checks import shown
from synkhronos._compiling.progress import tell
from synkhronos._compiling.terminal import is_terminal
from synkhronos._errors import InputError
from synkhronos._host.system import trouble
from synkhronos.pymc._chains.blocks import TEXT, Block, StoredDraws, kinds_of, length_of
from synkhronos.pymc._chains.chain_folder import ChainFolder, opened
from synkhronos.pymc._chains.chain_settings import settings_of
from synkhronos.pymc._chains.kernel import STATISTICS, UNCONSTRAINED, Kernel
from synkhronos.pymc._chains.progress import ChainProgress, ShownChains, line_of, while_read
from synkhronos.pymc._density.adaptation import sampled_by
from synkhronos.pymc._density.metric import DIAG, LOW_RANK, Choice

_LOOK_SECONDS, _LINE_SECONDS = 0.1, 60.0
_OF_PYMC = ("step", "callback", "trace")  # arguments that only its own samplers take
_MOST_UNWRITTEN = 2  # blocks of a chain that wait for the disk
_WARMUP = "warmup_"
_RUN = "synkhronos_run"  # an attribute of the posterior


def check_shared(stored: StoredChains, chains: int) -> None:
    """Raise an InputError if chains of other nodes are not seen here."""
    folder = stored.folder
    if lost := [chain for chain in range(chains) if not folder.tuning(chain).exists()]:
        raise InputError(
            f"folder={str(folder.path)!r}: chain {lost[0]} was sampled on another node, and is not "
            "there: name a folder in a file system that all nodes share"
        )


class _Stopped(Exception):
    """The run ends before a chain has all its draws."""


@dataclass(frozen=True)
class StoredChains:
    """Chains of a run, or some of them.

    Attributes
    ----------
    folder : ChainFolder
    first : int
        The number of the first chain.
    """

    folder: ChainFolder
    first: int = 0

    def sample(
        self,
        sample: Callable[..., Any],  # nutpie's
        compiled: Any,
        *,
        draws: int,
        tune: int,
        chains: int,
        cores: int,
        seed: int,
        save_warmup: bool,
        progress_bar: bool,
        progress_callback: Callable[[list[ChainProgress]], object],
        **settings: Any,
    ) -> DataTree:
        """As `nutpie.sample`: sample what is missing, and return all."""
        del seed, progress_bar  # the folder has a seed; PyMC shows the progress
        draws, tune = int(draws), int(tune)  # numpy's are none of JSON
        kernel = Kernel(sample, compiled, settings, self.folder.has_chosen)
        numbers = range(self.first, self.first + chains)
        stop = threading.Event()
        sampled = [_Chain(self.folder, number, kernel, tune, draws, stop) for number in numbers]
        for chain in sampled:
            tell(str(chain))
        found = [chain.made for chain in sampled]
        try:
            with ShownChains(self.folder.path, found) as shown:
                told = while_read(progress_callback, _Lines(found))

                def show(chains: list[ChainProgress]) -> None:
                    shown.write(chains)
                    told(chains)

                _sample_all(sampled, cores, show, stop)
        except KeyboardInterrupt:
            draws = max(chain.done for chain in sampled)
            if not draws:
                raise
            tell(f"interrupted: {draws} draws of a chain are kept; the same call goes on with them")
            self.folder.ended = "interrupted"
        else:
            self.folder.ended = "returned"
        if kernel.stuck:
            of = f"{kernel.stuck} of {chains} chains"
            tell(f"{LOW_RANK} has left {of} stuck: {DIAG} has tuned them")
        template = self._template(compiled, save_warmup, numbers)
        attrs = kernel.attributes(draws, tune, chains, self.folder.seed[0])
        template[STATISTICS].attrs.update(attrs)
        return filled(template, self.folder, numbers, min(draws, max(c.done for c in sampled)))

    def chosen(self, choose: Callable[[], Choice]) -> Choice:
        """The choice of the run's first call: with another metric, draws were of another run."""
        return Choice(*self.folder.chosen(lambda: astuple(choose())))

    def _template(self, compiled: Any, save_warmup: bool, chains: Iterable[int]) -> DataTree:
        """A tree of one draw, with all groups, dims and coordinates but those of draws.

        One of these chains is tuned, be it not the first one.
        """
        from_dict = import_module("arviz_base").from_dict
        groups: dict[str, dict[str, np.ndarray]] = {}
        dims = {name: list(found) for name, found in (compiled.dims or {}).items()}
        tuned = next(path for path in map(self.folder.tuning, chains) if length_of(path))
        for field, kind in kinds_of(tuned).items():
            group, _, name = field.partition("/")
            dtype = object if kind == TEXT else kind.base
            value = np.full((1, 1, *kind.shape), None if kind == TEXT else 0, dtype)
            groups.setdefault(group, {})[name] = value
            if group == STATISTICS and kind.shape:
                dims[name] = ["unconstrained_parameter"]
        if save_warmup:
            groups |= {f"{_WARMUP}{group}": found for group, found in groups.items()}
        ordered = {name: groups[name] for name in sorted(groups, key=lambda n: UNCONSTRAINED in n)}
        tree: DataTree = from_dict(
            ordered, dims=dims, coords=dict(compiled.coords), save_warmup=True
        )
        return tree


class _Lines:
    """Lines of the log, where no table is drawn."""

    def __init__(self, found: Sequence[int]) -> None:
        self._found, self._next = found, time.monotonic() + _LINE_SECONDS

    def __call__(self, chains: Sequence[ChainProgress]) -> None:
        if time.monotonic() >= self._next and not is_terminal(sys.stderr):
            self._next += _LINE_SECONDS
            tell(line_of(chains, self._found))


def how_ended(attrs: Mapping[Hashable, Any]) -> str:
    """How the call has ended that has returned a posterior with these attributes."""
    return str(json.loads(attrs[_RUN])["calls"][-1]["ended"])


def filled(template: DataTree, folder: ChainFolder, chains: Sequence[int], draws: int) -> DataTree:
    """The tree with the draws of a folder in place of its own, read when they are used."""
    found = {}
    for name, node in template.subtree_with_keys:
        data = node.to_dataset(inherit=False)
        if {"chain", "draw"} <= set(data.dims):
            group = str(name)
            is_tuning = group.startswith(_WARMUP)
            paths = [
                list(
                    itertools.takewhile(
                        length_of,
                        [folder.tuning(chain)] if is_tuning else folder.blocks(chain, draws),
                    )
                )
                for chain in chains
            ]
            length, block = draws, folder.block
            if is_tuning:
                length = block = max(length_of(path) for each in paths for path in each)
            data = _stored(data, group.removeprefix(_WARMUP), paths, block, length)
        found[name] = data
    tree = DataTree.from_dict(found)
    tree["posterior"].attrs[_RUN] = json.dumps(
        {"folder": str(folder.path), "random_seed": folder.seed, "calls": folder.calls}
    )
    return tree


def _stored(data: Dataset, group: str, paths: Any, block: int, draws: int) -> Dataset:
    """The dataset with values that are read from files."""
    variables = {}
    for name, variable in data.data_vars.items():
        kind = TEXT if variable.dtype == object else np.dtype((variable.dtype, variable.shape[2:]))
        values = StoredDraws(paths, f"{group}/{name}", block, draws, kind)
        variables[name] = Variable(variable.dims, LazilyIndexedArray(values), variable.attrs)
    others = {name: found for name, found in data.coords.items() if name not in ("chain", "draw")}
    coords = {"chain": np.arange(len(paths)), "draw": np.arange(draws)}
    return Dataset(variables, coords, data.attrs).assign_coords(others)


class _Writer:
    """A thread that writes the blocks of a chain in their order, beside the sampling.

    A context: at its end all are written, also those of a run that stops.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._left: deque[Future[None]] = deque()

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._pool.shutdown()
        if kind is None:
            self._wait(0)

    def write(self, block: Callable[[], None]) -> None:
        """Let a block be written; raises the error of an earlier one."""
        self._wait(_MOST_UNWRITTEN - 1)
        self._left.append(self._pool.submit(block))

    def _wait(self, most: int) -> None:
        while self._left and (len(self._left) > most or self._left[0].done()):
            self._left.popleft().result()


class _Chain:
    """One chain of a run: what of it is there, and how the rest is made."""

    def __init__(
        self,
        folder: ChainFolder,
        number: int,
        kernel: Kernel,
        tune: int,
        draws: int,
        stop: threading.Event,  # of all chains
    ) -> None:
        self._folder, self._number, self._kernel = folder, number, kernel
        self._tune, self._draws = tune, draws
        self._paths = folder.blocks(number, draws)
        self._tuning = folder.tuning(number)
        self._is_tuned = length_of(self._tuning) == tune
        self.missing = self._missing()
        self._began = time.monotonic()
        self._drawn = self.made  # with blocks that are not on the disk yet
        self._divergences = 0  # of blocks that this call has made
        self._latest = ChainProgress(self._is_tuned, self.made, tune + draws, range(0), 0, 0.0, 0)
        self._stop = stop

    def __str__(self) -> str:
        name = f"chain {self._number}"
        if not self._is_tuned:
            return f"{name}: begins with its tuning"
        if not self.missing:
            return f"{name}: all {self._draws:,} draws are there"
        return f"{name}: goes on after {self.done:,} of {self._draws:,} draws"

    @property
    def done(self) -> int:
        """The draws that are on the disk, without those that tune."""
        there = len(self._paths) - len(self.missing)
        return min(self._draws, there * self._folder.block) if self._is_tuned else 0

    @property
    def made(self) -> int:
        """All draws that are on the disk."""
        return self.done + self._tune * self._is_tuned

    @property
    def progress(self) -> ChainProgress:
        """How far it is, with draws that are not on the disk yet."""
        return self._latest

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return self._is_tuned and not self.missing

    def _missing(self) -> list[int]:
        """The blocks that are to be made, also those without the state that a later one needs."""
        found = {i for i in range(len(self._paths)) if not self._has(i)}
        for i in reversed(range(len(self._paths) - 1)):
            if i + 1 in found and i not in found and Block.read(self._paths[i]) is None:
                found.add(i)
        return sorted(found)

    def _length(self, block: int) -> int:
        return min(self._folder.block, self._draws - block * self._folder.block)

    def _has(self, block: int) -> bool:
        return length_of(self._paths[block]) >= self._length(block)

    def sample(self) -> None:
        """Sample what is missing, block after block; the latest are written beside the next one.

        Raises
        ------
        InputError
            A block cannot be written.
        """
        self._look()
        tuned = Block.read(self._tuning) if self._is_tuned else None
        if tuned is None:
            tuned = self._kernel.tuned(self._tune, self._seed(0), self._run)
            self._folder.write(self._tuning, tuned)
            self._is_tuned = True
            self._drawn = self.made
        with _Writer() as writer:
            self._draw(tuned, writer)

    def _draw(self, tuned: Block, writer: _Writer) -> None:
        """Draw the blocks that are missing."""
        state, last = tuned.state, -1
        for block in list(self.missing):
            self._look()
            if block > 0 and last != block - 1:
                if (before := Block.read(self._paths[block - 1])) is None:  # it was there just now
                    raise InputError(f"{self._paths[block - 1]} is gone: call again to sample it")
                state = before.state
            first = self._tune + block * self._folder.block
            place = range(first, first + self._length(block))
            found = self._kernel.drawn(state, tuned.state, place, self._seed(block + 1), self._run)
            self._drawn += len(place)
            self._divergences += int(found.draws[f"{STATISTICS}/diverging"].sum())
            # the sampler has not counted the first draw of a block, which is one of its tuning
            known = range(self._divergences)
            self._latest = replace(self._latest, finished_draws=self._drawn, divergent_draws=known)
            writer.write(functools.partial(self._keep, block, found))
            state, last = found.state, block

    def _keep(self, block: int, found: Block) -> None:
        self._folder.write(self._paths[block], found)
        self.missing.remove(block)

    def _seed(self, number: int) -> int:
        return self._folder.seed_of(self._number, number)

    def _look(self) -> None:
        """Raise `_Stopped` if the run stops: a fast block ends before `_run` looks."""
        if self._stop.is_set():
            raise _Stopped

    def _run(self, start: Callable[..., Any]) -> Any:
        """The result of a sampler, unless the run stops before."""
        sampler = start(progress_callback=self._hear)
        while True:
            try:
                return sampler.wait(timeout=_LOOK_SECONDS)
            except TimeoutError:
                if self._stop.is_set():
                    sampler.cancel()
                    raise _Stopped from None

    def _hear(self, chains: Sequence[Any]) -> None:
        [chain] = chains
        self._latest = ChainProgress(
            started=True,
            finished_draws=self._drawn + chain.finished_draws,
            total_draws=self._tune + self._draws,
            divergent_draws=range(self._divergences + chain.divergences),
            latest_num_steps=chain.latest_num_steps,
            step_size=chain.step_size,
            runtime_ms=int(1e3 * (time.monotonic() - self._began)),
        )


def _sample_all(
    chains: Sequence[_Chain],
    cores: int,
    show: Callable[[list[ChainProgress]], object],
    stop: threading.Event,
) -> None:
    """Sample chains in threads, as many at a time as there are cores; an error stops all."""
    pool = ThreadPoolExecutor(max(1, min(cores, len(chains))))
    try:
        left = {pool.submit(chain.sample) for chain in chains if not chain.complete}
        while left:
            done, left = wait(left, _LOOK_SECONDS, FIRST_EXCEPTION)
            show([chain.progress for chain in chains])
            for future in done:
                future.result()
    finally:
        _end(pool, stop)


def _end(pool: ThreadPoolExecutor, stop: threading.Event) -> None:
    """Wait for threads, which write, also through another Ctrl-C: the folder is locked so long."""
    again = None
    while True:
        try:
            stop.set()
            pool.shutdown(cancel_futures=True)
            break
        except KeyboardInterrupt as exc:
            again = exc
    if again is not None:
        raise again


_current: ContextVar[StoredChains | None] = ContextVar("_current", default=None)


def current() -> StoredChains | None:
    """The chains that this call samples into a folder; None without one."""
    return _current.get()


def _check_sampler(model: Model, given: Mapping[str, Any]) -> None:
    """Raise an InputError if others than nutpie are to sample some of the variables."""
    if discrete := sorted(str(v.name) for v in model.discrete_value_vars):
        raise InputError(
            "folder=: only nutpie goes on with a run, not the step methods of discrete variables "
            f"({', '.join(discrete)}). Leave folder out, or sum over these variables, as "
            "marginalize of pymc-extras does"
        )
    of_others = [name for name in _OF_PYMC if given.get(name) is not None]
    if given.get("nuts_sampler") not in (None, "nutpie"):
        of_others.append("nuts_sampler")
    if not given.get("return_inferencedata", True):
        of_others.append("return_inferencedata")
    starts = given.get("initvals")
    if not isinstance(starts, dict | None):
        raise InputError(
            f"folder=: initvals={shown(starts)}: give one dict for all chains, since nutpie samples"
        )
    for name in of_others:
        raise InputError(
            f"folder=: only nutpie goes on with a run, not {name}={shown(given[name])}: leave one "
            "of them out. pm.sample takes no state of a step method to begin with"
        )


@contextlib.contextmanager
def sampling_into(
    folder: object, model: Model, given: dict[str, Any], adaptation: str | None = None
) -> Iterator[None]:
    """A context in which `pm.sample` samples into a folder by nutpie, in this thread.

    Parameters
    ----------
    folder : path or StoredChains
    model : pymc.Model
    given : dict
        Arguments of `pm.sample`, which name nutpie afterwards.
    adaptation : str, optional
        "auto" chooses the metric.

    Raises
    ------
    InputError
        Another sampler is asked for, or the folder is not one of this run.
    NameGone
        nutpie lacks what a run needs.
    """
    _check_sampler(model, given)
    if why := trouble():
        raise InputError(f"folder=: leave it out, since only Linux locks a folder; {why}")
    given["nuts_sampler"] = "nutpie"
    with contextlib.ExitStack() as stack:
        if not isinstance(folder, StoredChains):  # which a process with some of the chains gets
            settings = settings_of(model, given, adaptation)
            found = opened(folder, model, given.get("random_seed"), settings)
            folder = StoredChains(stack.enter_context(found))
        stack.enter_context(sampled_by(folder.sample, folder.chosen))
        token = _current.set(folder)
        stack.callback(_current.reset, token)
        yield
