"""A function as a group runs it: shipped to the members, and called by commands."""

# These rules hold here:
#
# * One call at a time: the caller has reserved the runner, since each call uses the arena memory of
#   the one before.
# * A command is kept, to be posted again, only if a repetition changes nothing but staged arrays
#   and rows. One that compiles, carries new values or cuts slices by itself is not.
# * What a kept command depends on is in its key, or is asked anew: whether the user has set a
#   variable.
# * After a restart nobody has the function: `restart` drops all that says so.
# * A function that the user drops is freed in all members by the next command that defines
#   something.

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable

from synkhronos._api.arguments import Arguments
from synkhronos._api.data import Data
from synkhronos._api.make_data import data
from synkhronos._api.outputs import Outputs
from synkhronos._api.request import Request
from synkhronos._api.staging import Staged, Staging
from synkhronos._compiling.progress import telling
from synkhronos._engine.commands.base import Command, CommandCache
from synkhronos._engine.commands.call import Argument, Call
from synkhronos._engine.commands.clocks import MakeClocks, MeasuredCall, Rehearsed
from synkhronos._engine.compilations import Compilations
from synkhronos._engine.function_plan import Plan
from synkhronos._engine.group import Group
from synkhronos._engine.replicas import Replica
from synkhronos._engine.shippable import Shippable
from synkhronos._engine.shipping import distribute_in
from synkhronos._engine.variables import Entry, new_values
from synkhronos._errors import InputError, InputTypeError
from synkhronos._host.arena import ArrayRef
from synkhronos._plan.rows import Picks, Selection, Span
from synkhronos._proofs.reductions import Reduction

_Then = Callable[[list[object]], list[object]] | None

_BY_VALUE_BYTES = 1 << 15  # smaller broadcast arrays travel inside the command


@dataclass(frozen=True)
class _Posted:
    """A call that may be posted again as it is, once `staged` holds its new arrays and rows."""

    call: Call
    command: Command
    then: _Then  # what `Outputs.finishing` has given
    staged: Staged | None  # None where the call takes all rows of Data
    alone: bool  # it needs no transaction: it changes nothing, in a group of one


class GroupFunction(Shippable):
    """The common base of `Function`, `TrainFunction` and PyMC's rounds, which each hold one."""

    def __init__(
        self,
        group: Group,
        plan: Plan,
        # the plan's outputs that calls return; the others are computed too and stay in the members.
        # Default: all are returned
        n_outputs: int | None = None,
    ) -> None:
        self.group = group
        self.runner = group.runner
        self.plan = plan
        self.number = plan.recipe.number  # by which commands name the function
        self.label = plan.recipe.label  # its name, or where it was made
        self.what = f"function {self.label}"  # by which messages name it
        self.arguments = Arguments(group, plan, self.what)
        self.outputs = Outputs(plan, n_outputs, self.what)
        self.refused = False
        self._measured_as: Callable[[Call], Command] | None = None
        self._extra = self.outputs.kept
        self._staging = Staging(group.arena)
        self.restart()
        self._replica = group.member.replicas[self.number] = Replica(plan.recipe)
        group.inventory.functions[self.number] = self
        weakref.finalize(
            self, _forget, group.inventory.forgotten, group.member.replicas, self.number
        )

    def restart(self) -> None:
        """Note that no other member has the function, or none has it any more."""
        self.shipped = False
        self._measured_as = None
        self.entries: list[Entry] = []  # the shared variables, once it is shipped
        self._compilations = Compilations(self.plan.recipe, self.group.infer)
        self._posted: CommandCache[_Posted] = CommandCache()

    def ship(self, entries: list[Entry]) -> None:
        """Note that all members have the function now."""
        self.shipped = True
        self.entries = entries

    def _replaces(self, entry: Entry) -> bool:
        """Whether the function sets a variable without reading it."""
        return entry.variable.container not in self.plan.read

    def call(
        self,
        asked: Request,
        # makes the command of a call, with the call's answer; always the same for one function.
        # Default: the command is the call
        command_of: Callable[[Call], Command] | None = None,
    ) -> Any:
        """Run the function in all members; the result is that of `Function`.

        The caller has reserved the runner: another call would use the same memory.

        Four ways lead to the result, the shortest last:

        * A new call is made, checked and compiled.
        * A call of a known form, with other arrays or rows, is made and posted.
        * A call like the latest one is posted again; new arrays and rows are only copied.
        * In a group of one, the latter is computed at once, if it changes nothing.
        """
        args, batch, slices = asked.args, asked.batch, asked.slices
        subset = self.outputs.all if asked.subset is None else self.outputs.subset(asked.subset)
        # a default may have another value next time
        plain = (
            asked.batch_s is None
            and not asked.kwargs
            and len(args) == len(self.plan.inputs)
            and type(slices) in (int, str)
        )
        found = None
        if plain:
            # an equal stamp is the same Data, place and shape; -1 is a value, which `rewrite`
            # compares
            stamps = tuple([a.stamp if type(a) is Data else -1 for a in args])
            # the edition counts changes of whether members differ, on which reductions depend
            key = stamps, subset, batch is None, slices, self.runner.member.changes.edition
            found = self._posted.find(key, self.entries)
            # written over what members read in the latest call: all have reported since
            if found is not None and found.staged:
                if self.runner.ended:  # a fork shares this memory with the master
                    self.runner.check(self.what)
                if not found.staged.rewrite(args, batch):
                    found = None
        if found is None:
            call = self.make(asked, subset, plain)
            then = self.outputs.finishing(call.outputs, subset)
            make_command = command_of or self._measured_as
            command = call if make_command is None else make_command(call)
            if plain:
                self._keep(key, call, command, then, args, batch)
        else:
            call, command, then = found.call, found.command, found.then
        part = self._replica.last_part if found is not None and found.alone else None
        if part and part.call is call and part.repetition and part.scalars is not None:
            part.take_rows()
            values = self.runner.run_alone(part.repetition, self.what)
            values = [np.array(values[i], dtype) for i, _, dtype in part.scalars]
            values = values if then is None else then(values)
        elif call.first:
            with self.telling():
                values = self.runner.run(command, self.what, then)
        else:
            values = self.runner.run(command, self.what, then)
        if call.first or call.slice_lengths is not None:
            self.compiled(call)
        if then is None:
            values = self.outputs.chosen(call.outputs, subset, values)
        return self.outputs.structured(values, subset)

    def returned(self, call: Call, values: list[object]) -> Any:
        """The result of a call of all outputs, of their reduced values."""
        subset = self.outputs.all
        then = self.outputs.finishing(call.outputs, subset)
        found = self.outputs.chosen(call.outputs, subset, values) if then is None else then(values)
        return self.outputs.structured(found, subset)

    def _keep(
        self,
        key: object,
        call: Call,
        command: Command,
        then: _Then,
        args: Sequence[object],
        batch: object,
    ) -> None:
        """Remember a call whose repetition changes only what is staged."""
        self._posted.clear()
        if call.first or call.new or call.slice_lengths:
            return
        staged = None
        if batch is not None or any([type(a) is not Data for a in args]):
            staged = self._staging.staged(call, self.arguments.order, args, batch)
            if staged is None:
                return
        alone = self.group.size == 1 and command is call and call.pure
        self._posted.keep(key, _Posted(call, command, then, staged, alone))

    def telling(self, doing: str = "compiling") -> contextlib.AbstractContextManager[None]:
        """A context in which the function is compiled; the user is told of it while it lasts."""
        named = self.plan.recipe.name or self.what
        return telling(f"{doing} {named}", self.runner.channel.compiling)

    def compiled(self, call: Call) -> None:
        """Note that the members have computed this call, and compiled what it needs."""
        self._compilations.note(call)

    def make_clocks(self) -> None:
        """Let the members make the clocks of `measured`, while the runner is reserved."""
        if self.number not in self.runner.member.measured.clocks:
            self.runner.run(MakeClocks(self.number), self.what)

    @contextlib.contextmanager
    def measured(self, undone: bool = False) -> Iterator[None]:
        """A context in which the members measure the phases of calls; they have made clocks.

        With `undone` a call that would change a variable raises `Rehearsed`, and changes none.
        """
        self._posted.clear()
        self._measured_as = lambda call: MeasuredCall(call, undone)
        try:
            yield
        finally:
            self._measured_as = None
            self._posted.clear()

    def rehearse(self, asked: Request) -> None:
        """Run a call inside of `measured`, and undo it if it would change a variable."""
        try:
            self.call(asked)
        except Rehearsed as done:
            self.compiled(done.call)

    def make(
        self, asked: Request, subset: tuple[int, ...] | None = None, post: bool = False
    ) -> Call:
        """Make the command of a call; the function is shipped if it has to be.

        Parameters
        ----------
        asked : Request
        subset : tuple of int, optional
            The outputs that it asks for, where the caller has looked them up.
        post : bool
            Leave a list of rows in the arena. The call must run before the next one is made.
        """
        group, arguments = self.group, self.arguments
        self.runner.check_idle(self.what)
        given = arguments.bind(asked.args, asked.kwargs)
        subset = self.outputs.subset(asked.subset) if subset is None else subset
        selection, rows = arguments.select(given, asked.batch)
        per_rank = arguments.batch_s(asked.batch_s)
        slices = arguments.slices(asked.slices, given, rows, subset)
        if not self.shipped:
            distribute_in(group, (self,))
        new = new_values(self.entries, self._replaces)
        partials = self.outputs.partials(subset)
        borders = None if rows is None else arguments.borders(rows, given, selection)
        cut = self._compilations.cut(partials + self._extra, slices, borders)
        posted = self._posted_rows(given, selection) if post else {}
        return Call(
            function=self.number,
            arguments=tuple(
                [self._argument(i, given[i], selection, posted) for i in arguments.order]
            ),
            edges=borders,
            outputs=partials,
            reductions=self._reductions(partials, subset),
            slices=slices,
            batch_s=per_rank,
            new=new,
            first=cut.first,
            pure=self.plan.pure and new is None,
            extra=self._extra,
            slice_lengths=cut.slice_lengths,
        )

    def build_inputs(
        self,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        force_cast: bool,
        oversize: float,
        minibatch: bool | Sequence[bool],
    ) -> Data | tuple[Data, ...]:
        """Make one Data for each input; parameters and result are those of `Function`."""
        inputs, what = self.plan.inputs, self.what
        n = len(inputs)
        if len(args) > n:
            raise InputError(f"{what} takes {n} inputs, found {len(args)}")
        given = list(args) + [None] * (n - len(args))
        for name, value in kwargs.items():
            i = self.arguments.index(name)
            if i < len(args):
                raise InputTypeError(f"{what}: input {name!r} is given twice")
            given[i] = value
        flags = [minibatch] * n if isinstance(minibatch, bool) else list(minibatch)
        if len(flags) != n:
            raise InputError(
                f"{what} has {n} inputs, and minibatch= has {len(flags)} values: "
                "give one bool for all inputs, or one for each"
            )
        with self.group.active():
            made = tuple(
                data(v, var=x, minibatch=m, force_cast=force_cast, oversize=oversize)
                for v, x, m in zip(given, inputs, flags, strict=True)
            )
        return made[0] if len(made) == 1 else made

    def _reductions(
        self, partials: tuple[int, ...], subset: tuple[int, ...]
    ) -> tuple[Reduction | None, ...]:
        found = {p: self.plan.recipe.reductions[p] for p in partials}
        for i in subset:
            output = self.plan.outputs[i]
            if not output.fixed and self._any_differs(output.shareds):
                found[output.partials[0]] = Reduction.AVG
        return tuple([found[p] for p in partials])

    def _any_differs(self, shareds: Sequence[SharedVariable]) -> bool:
        """Whether members hold different values of one of these shared variables."""
        if self.group.size == 1:
            return False
        entries = [self.runner.member.variables.find(s) for s in shareds]
        return any(e is not None and e.differs for e in entries)

    def _posted_rows(
        self, given: Sequence[object], selection: dict[int, Selection]
    ) -> dict[int, ArrayRef]:
        """The one list of rows that all inputs have, in memory that the members read."""
        rows = next(iter(selection.values()), None)
        if not isinstance(rows, Picks) or not all(s is rows for s in selection.values()):
            return {}
        # in a group of one arrays are not copied to that memory
        if self.group.size == 1 and not all(isinstance(given[i], Data) for i in selection):
            return {}
        return dict.fromkeys(selection, self._staging.post(rows.rows))

    def _argument(
        self, index: int, value: Any, selection: dict[int, Selection], posted: dict[int, ArrayRef]
    ) -> Argument:
        rows = selection.get(index)
        if isinstance(value, Data):
            return Argument(value.ref, posted.get(index, rows))
        if self.group.size == 1:
            return Argument(value, rows)
        if rows is not None:
            return Argument(self._staging.copy(index, value, rows), Span(0, len(rows)))
        if isinstance(value, np.ndarray) and value.nbytes > _BY_VALUE_BYTES:
            return Argument(self._staging.copy(index, value, Span(0, len(value))))
        return Argument(value)


def _forget(forgotten: list[int], replicas: dict[int, Replica], number: int) -> None:
    replicas.pop(number, None)
    forgotten.append(number)
