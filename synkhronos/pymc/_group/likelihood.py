"""One evaluation: members compute their rows; the master adds the results in the order of ranks."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from synkhronos._api.data import Data
from synkhronos._api.group_function import GroupFunction
from synkhronos._api.make_data import data
from synkhronos._api.request import Request
from synkhronos._backends.jax import runs_jax
from synkhronos._compiling.compile_cache import fills_cache_of_numba
from synkhronos._compiling.graph_types import ModeLike
from synkhronos._compiling.lean.mode import mode_of
from synkhronos._compiling.progress import telling
from synkhronos._engine.commands.base import Command, CommandCache
from synkhronos._engine.commands.call import Call, compile_alone, compute_call
from synkhronos._engine.function_plan import plan
from synkhronos._engine.group import Group, Task
from synkhronos._engine.replicas import Answer, Replica, Variant
from synkhronos._engine.shipping import distribute_in
from synkhronos._engine.variables import watch
from synkhronos._errors import InputError, WorkerError
from synkhronos._host.arena import ArrayRef
from synkhronos.pymc._density.proof import return_memory
from synkhronos.pymc._reading.facts import is_smooth

if TYPE_CHECKING:
    from synkhronos._engine.member import Member
    from synkhronos.pymc._density.likelihood import DividedTerms, Likelihood

_F8 = np.dtype(np.float64)
_LOOK_SECONDS = 0.005
_FEW_ROWS = 2000  # take one member about as long as a command takes
_LOAD_SECONDS = 0.2  # at least, that a worker may take for machine code that the cache has


@dataclass(frozen=True)
class AllocateResults(Command):
    """Allocate a vector for each result in each member; the master reads them in place."""

    number: int  # by which members name the vectors
    lengths: tuple[int, ...]

    def run(self, member: Member) -> None:
        """Allocate, and map the vectors of the other members."""
        comm = member.communicator
        mine = [comm.empty((n,), _F8) for n in self.lengths]
        for vector in mine:
            vector[...] = 0
        exposed = comm.expose(mine)
        of = [list(ranks) for ranks in zip(*exposed, strict=True)]
        member.installed.keep(self.number, Results(of))


@dataclass
class Results:
    """The result vectors of a model: of each result, those of the members of a node."""

    of: list[list[np.ndarray]]


@dataclass(frozen=True)
class FillCache(Command):
    """One worker compiles the functions of calls into the cache, for all members."""

    calls: tuple[Call, ...]

    def run(self, member: Member) -> None:
        """Compile in the first worker; the others rewrite their graphs, which no cache holds."""
        first = min(rank for rank in range(member.size) if rank != member.master)
        for call in self.calls:
            compile_alone(call, member, wholly=member.rank == first)


@dataclass(frozen=True)
class ReturnMemory(Command):
    """All members return the memory that a proof of many rows has left."""

    def run(self, member: Member) -> None:
        """Return it."""
        return_memory()


@dataclass(frozen=True)
class Evaluate(Command):
    """The log-density and its gradient."""

    # one for each divided term; their outputs stay in the members. The first is what is summed
    calls: tuple[Call, ...]
    # for each call, the arrays for gradients by its latents, and the output that each is: latents
    # that are added have the same one. Each member writes its rows
    gradients: tuple[tuple[tuple[ArrayRef, int], ...], ...]
    number: int  # the number of the result vectors
    start: int = 0  # the first of these vectors that is written
    repeats = True
    pure = True

    def run(self, member: Member) -> Any:
        """Evaluate this member's rows; members of other nodes than the master's report results."""
        home = member.communicator.home
        vectors = [ranks[home.rank] for ranks in self._results(member)]
        written: list[tuple[ArrayRef, int, np.ndarray]] = []
        for call, targets, vector in zip(self.calls, self.gradients, vectors, strict=True):
            part, outputs = compute_call(call, member)
            if not part.variant.rows:
                vector[...] = 0
                continue
            vector[...] = outputs[0]
            if targets:
                assert call.edges is not None
                lo, hi = call.edges[member.rank], call.edges[member.rank + 1]
                for target, output in targets:
                    rows = member.view(target)[lo:hi]
                    rows[...] = outputs[output]
                    written.append((target, lo, rows))
        if 0 <= member.master - (member.rank - home.rank) < home.size:
            return None
        numbers = [number for vector in vectors for number in vector.tolist()]
        return (numbers, written) if written else numbers

    def _results(self, member: Member) -> list[list[np.ndarray]]:
        found = member.installed.of(Results, self.number).of
        return found[self.start : self.start + len(self.calls)]

    def answer(self, member: Member, own: Any, reports: dict[int, Any]) -> list[np.ndarray]:
        """The sums over the members, in the order of ranks."""
        found = []
        for ranks in self._results(member):
            total = ranks[0].copy()
            for vector in ranks[1:]:
                total += vector
            found.append(total)
        for _, report in sorted(reports.items()):
            numbers, written = report if type(report) is tuple else (report, ())
            at = 0
            for total in found:
                total += numbers[at : at + total.size]
                at += total.size
            for target, lo, rows in written:
                member.view(target)[lo : lo + len(rows)] = rows
        return found


class GroupLikelihood:
    """A likelihood in one group: functions, data in shared memory, and the command."""

    def __init__(self, group: Group, likelihood: Likelihood, mode: ModeLike) -> None:
        self.group = group
        self._likelihood = likelihood
        names = ", ".join(likelihood.names)
        self._what, self._doing = f"the log-density of {names}", f"compiling and proving {names}"
        self._mode = mode
        self._number = group.inventory.number()
        weakref.finalize(self, group.inventory.forgotten.append, self._number)
        self._functions = [self._make(part) for part in likelihood.parts]
        self._evaluates: CommandCache[list[Evaluate]] = CommandCache()
        self._data = [watch(shared) for part in likelihood.parts for shared in part.shareds]
        size = likelihood.size
        with group.active():
            self._theta = data(shape=(size,), dtype="float64")
            self._rows = [data(dtype=v.type.dtype, ndim=v.type.ndim) for v in likelihood.latents]
            self._gradients = {
                i: data(dtype=v.type.dtype, ndim=v.type.ndim)
                for i, v in enumerate(likelihood.latents)
                if is_smooth(v)
            }
        self._arrays: list[tuple[list[Data], list[Data]]] = [([], []) for _ in self._functions]
        forms = [part.form for part in likelihood.parts]
        few = sum(form.cost for form in forms) <= _FEW_ROWS
        repeat = all(form.described for form in forms) and not likelihood.latents
        self._is_small = few and repeat and not runs_jax(mode_of(mode))
        # once they are compiled, with and without gradient
        self._alone: list[list[Callable[[Sequence[object]], Answer]]] = []
        count = len(self._functions)
        lengths = (size + 1,) * count + (1,) * count
        group.run(AllocateResults(self._number, lengths), self._what)

    def _make(self, part: DividedTerms) -> GroupFunction:
        mode = mode_of(self._mode)
        outputs = part.outputs_for(mode, self.group.vectorised)
        recipe = plan(
            self.group.inventory.number(),
            part.scattered,
            [(outputs[0], "sum"), *[(v, "gather") for v in outputs[1:-1]], (outputs[-1], "sum")],
            part.broadcast,
            None,
            None,
            None,
            self.group.infer,
            self.group.vectorised,
            {"mode": mode, "name": f"logp of {', '.join(part.names)}"}
            | {"on_unused_input": "ignore"},
        )
        return GroupFunction(self.group, recipe)

    def __call__(
        self, theta: np.ndarray, latents: Sequence[np.ndarray], gradient: bool = True
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """[log-density, gradient by theta], and the gradients by latents.

        Without gradient: [log-density], and nothing else.
        """
        group = self.group
        if len(theta) != self._likelihood.size:
            raise InputError(
                f"{self._what}: its parameters had {self._likelihood.size} elements when the model "
                f"was divided, now they have {len(theta)}: close it and divide it again"
            )
        with group.runner.reserved(self._what):
            if self._alone:
                return self._sum_alone(theta, self._alone[not gradient]), []
            group.runner.wake()
            commands = self._write(theta, latents)
            command = commands[not gradient]
            found = group.runner.run(command, self._what)
            if command.calls[0].first:
                commands[not gradient] = self._compiled(command)
                if gradient and self._is_small:
                    self._alone = [self.alone(), self.alone(gradient=False)]
            total = found[0]
            for more in found[1:]:
                total += more
            kept = self._gradients.values() if gradient else ()
            return total, [np.array(d.data) for d in kept]

    def _sum_alone(
        self, theta: np.ndarray, functions: Sequence[Callable[[Sequence[object]], Answer]]
    ) -> np.ndarray:
        """Compute all rows in this process: they are so few that a command would take longer."""
        total = np.zeros(())
        for part, function in zip(self._likelihood.parts, functions, strict=True):
            rows, whole = part.arrays()
            total = total + np.asarray(function([*rows, theta, *whole]).outputs[0])
        return total

    def _write(self, theta: np.ndarray, latents: Sequence[np.ndarray]) -> list[Evaluate]:
        """Write the parameters where members read them; the commands with and without gradient."""
        np.copyto(self._theta.writable, theta)
        self._theta.wrote()
        for target, value in zip(self._rows, latents, strict=True):
            if target.shape != value.shape:
                target.set_shape(value.shape)
            np.copyto(target.writable, value)
            target.wrote()
        places = tuple([target.stamp for target in self._rows])
        commands = self._evaluates.find(places, self._data)
        if commands is None:
            commands = self._prepare(latents)
            self._evaluates.keep(places, commands)
        return commands

    def alone(self, gradient: bool = True) -> list[Callable[[Sequence[object]], Answer]]:
        """The function of each part, compiled in this process since it evaluated its own rows.

        Without gradient, it is compiled when it is first called. Each takes the part's arrays with
        rows, theta, and the arrays that members need whole.
        """
        replicas = [self.group.member.replicas[f.number] for f in self._functions]

        def of(replica: Replica) -> Callable[[Sequence[object]], Answer]:
            *others, last = range(len(replica.recipe.outputs))
            variant = Variant(tuple(others) if gradient else (last,))
            return lambda arguments: replica.run(variant, arguments, (), (1,))

        return [of(replica) for replica in replicas]

    def compile_beside(
        self, theta: np.ndarray, latents: Sequence[np.ndarray], work: Callable[[], object]
    ) -> None:
        """Let a worker compile the functions into the cache, while the master does `work`.

        If the cache has them already, `work` is left out. So it is in a mode without such a cache,
        and on several nodes, each of which may have a cache of its own.
        """
        group = self.group
        cached = all(fills_cache_of_numba(f.plan.recipe.mode) for f in self._functions)
        if group.size == 1 or group.member.communicator.nodes > 1 or not cached:
            return
        with group.runner.reserved(self._what), telling(self._doing, group.channel.compiling):
            group.runner.check_idle(self._what)
            command = self._write(theta, latents)[0]
            task = group.runner.start(FillCache(command.calls), self._what)
            try:
                if not self._is_soon_done(task, command):
                    work()
            finally:
                with contextlib.suppress(WorkerError):  # which the first evaluation raises
                    group.runner.await_reserved(task)

    def _is_soon_done(self, task: Task, command: Evaluate) -> bool:
        """Do the master's own share; whether the worker takes no longer than from a full cache."""
        began = time.monotonic()
        with telling(self._doing):
            for call in command.calls:
                compile_alone(call, self.group.member, wholly=False)
        now = time.monotonic()
        until = now + max(now - began, _LOAD_SECONDS)  # to load takes about as long as to rewrite
        while not task.done and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)
        return task.done

    def _prepare(self, latents: Sequence[np.ndarray]) -> list[Evaluate]:
        """Write the model's data where the members read them, and make the commands."""
        self._evaluates.clear()
        values = [entry.storage[0] for entry in self._data]
        for i, target in self._gradients.items():
            target.set_shape(latents[i].shape)
        made = [self._prepare_part(i, part) for i, part in enumerate(self._likelihood.parts)]
        distribute_in(self.group, self._functions)
        commands = [self._command(made, gradient) for gradient in (True, False)]
        for entry, value in zip(self._data, values, strict=True):
            entry.seen = value
        return commands

    def _command(
        self, made: Sequence[tuple[GroupFunction, list[Data]]], gradient: bool
    ) -> Evaluate:
        calls = []
        for f, arguments in made:
            last = len(f.plan.outputs) - 1
            call = f.make(Request(arguments), tuple(range(last)) if gradient else (last,))
            calls.append(replace(call, outputs=(), reductions=(), extra=call.outputs, pure=True))
        if not gradient:
            return Evaluate(tuple(calls), ((),) * len(calls), self._number, len(calls))
        gradients = tuple(map(self._gradients_of, self._likelihood.parts, self._functions))
        return Evaluate(tuple(calls), gradients, self._number)

    def _gradients_of(
        self, part: DividedTerms, f: GroupFunction
    ) -> tuple[tuple[ArrayRef, int], ...]:
        """The arrays for gradients by the latents of a part, each with its output."""
        targets = [self._gradients[i].ref for i in part.latents if i in self._gradients]
        _, *outputs, _ = [o.partials[0] for o in f.plan.outputs]
        return tuple(zip(targets, outputs, strict=True))

    def _prepare_part(self, i: int, part: DividedTerms) -> tuple[GroupFunction, list[Data]]:
        held_rows, held_whole = self._arrays[i]
        rowed, whole = part.arrays()
        self._store(held_rows, rowed)
        self._store(held_whole, whole)
        latents = [self._rows[k] for k in part.latents]
        return self._functions[i], [*latents, *held_rows, self._theta, *held_whole]

    def _store(self, held: list[Data], arrays: Sequence[np.ndarray]) -> None:
        with self.group.active():
            if not held:
                held += [data(a) for a in arrays]
                return
        for target, array in zip(held, arrays, strict=True):
            target.set_value(array, force_cast=True)

    def _compiled(self, command: Evaluate) -> Evaluate:
        """The command once the functions are compiled everywhere: no call is the first any more."""
        for f, call in zip(self._functions, command.calls, strict=True):
            f.compiled(call)
        calls = tuple([replace(call, first=False) for call in command.calls])
        return replace(command, calls=calls)
