"""Functions: made like pytensor.function, called with data that is scattered over the members."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable

from synkhronos._api.auto_slices import Temporaries
from synkhronos._api.call_cache import Latest
from synkhronos._api.data import Data, Staging
from synkhronos._api.make_data import data
from synkhronos._api.outputs import Outputs, mode_name
from synkhronos._api.scattered_data import ScatteredData
from synkhronos._api.serial import Serial
from synkhronos._engine.commands.base import Command
from synkhronos._engine.commands.call import Argument, Call
from synkhronos._engine.compilations import Compilations
from synkhronos._engine.compile import Plan, plan
from synkhronos._engine.group import Group, current
from synkhronos._engine.replicas import Replica
from synkhronos._engine.shipping import distribute_in
from synkhronos._engine.variables import Entry, new_values
from synkhronos._errors import BatchError, InputError, InputTypeError, enduring
from synkhronos._host.arena import ArrayRef
from synkhronos._plan.reductions import Reduction
from synkhronos._plan.rows import Picks, Selection, Span, edges, per_member, select, where

log = logging.getLogger("synkhronos")

_BY_VALUE_BYTES = 1 << 15  # smaller broadcast arrays travel inside the command


class Function:
    """A compiled function that every member of a group has; made by `synk.function`.

    Attributes
    ----------
    name : str or None

    Examples
    --------
    >>> import pytensor, pytensor.tensor as pt, synkhronos as synk
    >>> x, s = pt.vector("x", dtype="float64"), pytensor.shared(0.0, name="s")
    >>> with synk.Group(2):
    ...     f = synk.function([x], {"mean": x.mean(), "rows": 2 * x}, updates=[(s, s + 1)])
    >>> f.output_modes, f.update_modes, f.get_shared()
    ({'mean': 'avg', 'rows': 'gather'}, {s: None}, [s])
    """

    def __init__(self, group: Group, plan_: Plan) -> None:
        self._group = group
        self._plan = plan_
        self._number = plan_.recipe.number
        self.name = plan_.recipe.name
        self._what = f"function {self.name or f'#{self._number}'}"
        self._replica = Replica(plan_.recipe)
        self._lock = group.lock
        self.refused = False  # it could not be shipped when it was last tried
        self.extra: tuple[int, ...] = ()  # outputs of the recipe that stay in the members
        self._staging = Staging(group.arena)
        self._temporaries: Temporaries | None = None
        scattered = plan_.scattered
        # inputs as the recipe has them: the scattered first
        self._order = sorted(range(len(scattered)), key=lambda i: not scattered[i])
        self._outputs = Outputs(plan_, self._what)
        self._serial: Any = None
        self.restart()
        group.member.replicas[self._number] = self._replica
        group.functions[self._number] = self
        weakref.finalize(self, _forget, group.forgotten, group.member.replicas, self._number)

    def __repr__(self) -> str:
        inputs = ", ".join(n or "?" for n in self._plan.names)
        return f"<synkhronos.Function {self.name or self._number}({inputs}) in {self._group!r}>"

    @property
    def output_modes(self) -> Any:
        """The reduction of each output, in the form in which the outputs were given.

        "inferred" where the members' values are reduced in parts and finished by the master.
        """
        return self._outputs.modes()

    @property
    def update_modes(self) -> dict[SharedVariable, str | None]:
        """How the values of slices (and of members, for "all" updates) make each new value.

        "inferred" where slices are reduced in parts and finished after.
        """
        updates = self._plan.recipe.updates
        return {u.shared: mode_name(u.reduction, u.slicing.finish) for u in updates}

    def get_shared(self) -> list[SharedVariable]:
        """The shared variables that the function uses or updates."""
        return list(self._plan.shareds)

    @enduring
    def __call__(
        self,
        *args: Any,
        output_subset: Sequence[Any] | None = None,
        batch: Any = None,
        batch_s: Any = None,
        num_slices: int | str = 1,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run the function in all members.

        Parameters
        ----------
        *args, **kwargs
            The inputs, in order or by name: Data (not copied), numpy arrays, or scalars. All
            scattered inputs have the same number of rows.
        output_subset : sequence of int (or keys), optional
            Compute these outputs only, in this order.
        batch : int, slice, index list or array, boolean mask, optional
            Rows of the scattered inputs to use, selected before they are divided.
        batch_s : the same, or one for each member, optional
            Rows of each member's sliceable shared variables.
        num_slices : int or "auto"
            Cut each member's part into so many pieces, computed one after the other from the
            same values. "auto": the fewest that keep its temporaries below 256 MB.
        timeout : float, optional
            Seconds that other members may keep the master waiting; default: the group's.

        Returns
        -------
        object
            Reduced outputs as the outputs were given: one array, a list, or a dict.

        Raises
        ------
        InputError, BatchError, InputTypeError
            Before anything has moved.
        WorkerError
            A member raised; no value of any member has changed.

        Notes
        -----
        Cost: one round; a copy of numpy inputs; for each output of more than 64 KB one reduction.
        """
        # another thread's call would use the same memory for its arrays
        with self._lock if timeout is None else self._group.limited(timeout):
            self._wake()
            call = self._next_call(args, kwargs, output_subset, batch, batch_s, num_slices)
            return self._run(call, output_subset)

    def _next_call(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        output_subset: Sequence[Any] | None,
        batch: Any,
        batch_s: Any,
        num_slices: int | str,
    ) -> Call:
        """The latest call if it serves again, else a new one."""
        # defaults may be others next time
        plain = batch_s is None and not kwargs and len(args) == len(self._plan.inputs)
        how = num_slices, None if output_subset is None else repr(output_subset)
        call = self._latest.find(how, args, batch, self._entries) if plain else None
        if call is None:
            call = self._make_call(
                args, kwargs, output_subset, batch, batch_s, num_slices, self._latest.post
            )
            if plain:
                self._latest.keep(call, how, args, batch)
        return call

    def _make_call(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        output_subset: Sequence[Any] | None,
        batch: Any,
        batch_s: Any,
        num_slices: int | str,
        post: Callable[[np.ndarray], ArrayRef] | None = None,
    ) -> Call:
        self._group.check_idle(self._what)
        given = self._bind(args, kwargs)
        subset = self._outputs.subset(output_subset)
        selection, rows = self._select(given, batch)
        per_rank = self._batch_s(batch_s)
        slices = self._slices(num_slices, given, rows, subset)
        if not self._shipped:
            distribute_in(self._group, (self,))
        new = new_values(self._entries)
        partials = self._partials(subset)
        borders = None if rows is None else self._borders(rows, given, selection)
        cut = self._compilations.cut(partials + self.extra, slices, borders)
        posted = self._posted(selection, post)
        arguments = tuple(self._argument(i, given[i], selection, posted) for i in self._order)
        return Call(
            function=self._number,
            arguments=arguments,
            edges=borders,
            outputs=partials,
            reductions=self._reductions(partials, subset),
            slices=slices,
            batch_s=per_rank,
            new=new,
            first=cut.first and (self._group.size > 1 or self._plan.recipe.jax),
            pure=self._plan.pure and new is None,
            extra=self.extra,
            pieces=cut.pieces,
        )

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Each input's value, checked and of the input's dtype."""
        names, inputs = self._plan.names, self._plan.inputs
        if len(args) > len(inputs):
            raise InputTypeError(f"{self._what} takes {len(inputs)} inputs, found {len(args)}")
        values: list[Any] = list(args) + [None] * (len(inputs) - len(args))
        have = [i < len(args) for i in range(len(inputs))]
        for name, value in kwargs.items():
            if name not in names:
                known = ", ".join(n for n in names if n)
                raise InputTypeError(f"{self._what} has no input {name!r}; it has: {known}")
            i = names.index(name)
            if have[i]:
                raise InputTypeError(f"{self._what}: input {name!r} is given twice")
            values[i], have[i] = value, True
        for i, default in enumerate(self._plan.defaults):
            if not have[i]:
                if default is None:
                    raise InputTypeError(f"{self._what}: input {self._label(i)} is missing")
                values[i] = _default(default)
        return [self._checked(i, value) for i, value in enumerate(values)]

    def _label(self, index: int) -> str:
        return repr(self._plan.names[index]) if self._plan.names[index] else f"number {index}"

    def _checked(self, index: int, value: Any) -> Any:
        kind: Any = self._plan.types[index]
        if isinstance(value, Data):
            if value._group is not self._group:
                other = "another" if value._group.alive else "a closed"
                raise InputError(
                    f"{self._what}: input {self._label(index)} is Data of {other} group: "
                    "synk.data(it) makes a copy in this one"
                )
            if value.dtype != np.dtype(kind.dtype) or value.ndim != kind.ndim:
                raise InputTypeError(
                    f"{self._what}: input {self._label(index)} is {kind.dtype} with {kind.ndim} "
                    f"dimensions, found {value!r}"
                )
            return value
        if not hasattr(kind, "ndim") or hasattr(kind, "format"):  # no tensor, or a sparse one
            return kind.filter(value)
        if value is None:
            raise InputTypeError(f"{self._what}: input {self._label(index)} is None: give a value")
        try:
            plain = np.asarray(value) if hasattr(value, "__array__") else value
            filtered = kind.filter(
                plain, allow_downcast=self._plan.recipe.options.get("allow_input_downcast")
            )
        except (TypeError, ValueError, AttributeError) as exc:
            raise InputTypeError(
                f"{self._what}: input {self._label(index)} is {kind}: {exc}"
            ) from None
        # strided or read-only arrays would make numba compile the function anew
        return np.require(filtered, requirements=["C", "W"])

    def _select(self, given: list[Any], batch: Any) -> tuple[dict[int, Selection], int | None]:
        """Which rows of each scattered input, and how many."""
        scattered = [i for i, s in enumerate(self._plan.scattered) if s]
        if not scattered:
            if batch is not None:
                raise InputError(f"{self._what} has no scattered inputs: batch= selects nothing")
            return {}, None
        mini = [i for i in scattered if isinstance(given[i], Data) and given[i].minibatch]
        lengths = {i: len(given[i]) for i in scattered if i not in mini}
        if len(set(lengths.values())) > 1:
            found = ", ".join(f"{self._label(i)}: {n}" for i, n in lengths.items())
            raise InputError(f"{self._what}: scattered inputs differ in length ({found})")
        length = next(iter(lengths.values()), None)
        if batch is None and length is None:
            length = min(len(given[i]) for i in mini)
        selection = select(batch, length)
        rows = {i: selection for i in lengths}
        for i in mini:
            rows[i] = self._shifted(i, given[i], selection, whole=batch is None)
        return rows, len(selection)

    def _shifted(self, index: int, value: Data, rows: Selection, whole: bool) -> Selection:
        """Rows of minibatch Data: the lowest row of the batch is its row 0."""
        low, high = (0 if whole else rows.lowest()), rows.highest()
        if (whole and len(value) != len(rows)) or high - low >= max(len(value), 1) > 0 < len(rows):
            raise BatchError(
                f"{self._what}: minibatch input {self._label(index)} has {len(value)} rows, the "
                f"batch reaches from row {low} to {high}"
            )
        return rows.shifted(low)

    def _borders(
        self, rows: int, given: list[Any], selection: dict[int, Selection]
    ) -> tuple[int, ...]:
        """Where the members' parts of the rows begin and end."""
        size = self._group.size
        for i, picked in selection.items():
            if isinstance(given[i], ScatteredData):
                return where(picked, edges(len(given[i]), size))
        return edges(rows, size)

    def _batch_s(self, batch_s: Any) -> tuple[Any, ...] | None:
        if batch_s is None:
            return None
        shareds = self._plan.recipe.sliceables
        if not shareds:
            raise InputError(f"{self._what} has no sliceable_shareds: batch_s selects nothing")
        found = per_member(batch_s, self._group.size)
        entries = [self._group.member.variables.find(s) for s in shareds]
        for rank, wanted in enumerate(found):
            alike = all(e is None or not e.differs for e in entries)
            if rank == self._group.rank or alike:
                select(wanted, len(shareds[0].container.storage[0]), "batch_s")
        # arrays of the user's may change before they are pickled
        return tuple(np.array(b) if isinstance(b, np.ndarray | list | tuple) else b for b in found)

    def _slices(
        self, num_slices: int | str, given: list[Any], rows: int | None, subset: list[int]
    ) -> int:
        whole = self._plan.undivided(subset)
        if num_slices == "auto":
            if whole:
                return 1
            per_rank = None if rows is None else -(-rows // self._group.size)
            if self._temporaries is None:
                self._temporaries = Temporaries(self._plan.recipe)
            return self._temporaries.fewest_slices([_here(given[i]) for i in self._order], per_rank)
        if isinstance(num_slices, bool) or not isinstance(num_slices, int | np.integer):
            raise InputTypeError(f'num_slices={num_slices!r}: give an int or "auto"')
        if num_slices < 1:
            raise InputError(f"num_slices={num_slices}: at least 1")
        if num_slices > 1 and whole:
            raise InputError(
                f"{self._what}: num_slices={num_slices}: nothing proves how slices make {whole}, "
                "or pass num_slices=1"
            )
        return int(num_slices)

    def _partials(self, subset: list[int]) -> tuple[int, ...]:
        return tuple(sorted({p for i in subset for p in self._plan.outputs[i].partials}))

    def _reductions(
        self, partials: tuple[int, ...], subset: list[int]
    ) -> tuple[Reduction | None, ...]:
        found = {p: self._plan.recipe.reductions[p] for p in partials}
        for i in subset:
            output = self._plan.outputs[i]
            if not output.fixed and self._differs(output.shareds):
                found[output.partials[0]] = Reduction.AVG
        return tuple(found[p] for p in partials)

    def _differs(self, shareds: Sequence[SharedVariable]) -> bool:
        """Whether members hold different values of one of these."""
        if self._group.size == 1:
            return False
        entries = [self._group.member.variables.find(s) for s in shareds]
        return any(e is not None and e.differs for e in entries)

    def _posted(
        self, selection: dict[int, Selection], post: Callable[[np.ndarray], ArrayRef] | None
    ) -> dict[int, ArrayRef]:
        """The one list of rows that all inputs have, in memory that the members read."""
        rows = next(iter(selection.values()), None)
        alike = all(s is rows for s in selection.values())
        if post is None or not isinstance(rows, Picks) or not alike or self._group.size == 1:
            return {}
        return dict.fromkeys(selection, post(rows.rows))

    def _argument(
        self,
        index: int,
        value: Any,
        selection: dict[int, Selection],
        posted: dict[int, ArrayRef],
    ) -> Argument:
        rows = selection.get(index)
        if isinstance(value, Data):
            return Argument(value.ref, posted.get(index, rows))
        if self._group.size == 1:
            return Argument(value, rows)
        if rows is not None:
            return Argument(self._staging.copy(index, value, rows), Span(0, len(rows)))
        if isinstance(value, np.ndarray) and value.nbytes > _BY_VALUE_BYTES:
            return Argument(self._staging.copy(index, value, Span(0, len(value))))
        return Argument(value)

    def _run(
        self,
        call: Call,
        output_subset: Sequence[Any] | None,
        command: Command | None = None,
    ) -> Any:
        """Run a call, or a command that answers as the call does; returns the user's outputs."""
        subset = self._outputs.subset(output_subset)
        then = self._outputs.finishing(call.outputs, subset)
        found = self._group.run(command or call, self._what, then)
        if call.first or call.pieces is not None:
            self._compilations.note(call)
        if then is None:
            found = self._outputs.chosen(call.outputs, subset, found)
        return self._outputs.structured(found, subset)

    def as_pytensor(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function in the master only, as pytensor.function would.

        Parameters
        ----------
        *args, **kwargs
            The inputs: Data, numpy arrays or scalars.

        Returns
        -------
        object
            The outputs, not reduced. Updates change the master's variables, whose values then
            travel to the other members with the next call.

        Examples
        --------
        >>> import pytensor.tensor as pt, synkhronos as synk
        >>> x = pt.vector("x", dtype="float64")
        >>> with synk.Group(2):
        ...     f = synk.function([x], (x.sum(), None), mode="FAST_COMPILE")
        ...     f([1.0, 2.0]), f.as_pytensor([1.0, 2.0])  # the master's part, and all rows
        (array(1.), array(3.))
        """
        values = [_array(v) for v in self._bind(args, kwargs)]
        if self._serial is None:
            self._serial = Serial(self._plan)
        found = self._serial(values)
        return self._outputs.structured(found)

    as_theano = as_pytensor

    def build_inputs(
        self,
        *args: Any,
        force_cast: bool = False,
        oversize: float = 1.0,
        minibatch: bool | Sequence[bool] = False,
        **kwargs: Any,
    ) -> Any:
        """Make one Data for each input.

        Parameters
        ----------
        *args, **kwargs
            The arrays, in order or by name; None for empty Data.
        force_cast, oversize
            As for `synk.data`.
        minibatch : bool, or one for each input

        Returns
        -------
        Data, or tuple of Data

        Examples
        --------
        >>> import numpy as np, pytensor.tensor as pt, synkhronos as synk
        >>> x, w = pt.matrix("x", dtype="float64"), pt.vector("w", dtype="float64")
        >>> with synk.Group(2):
        ...     synk.function([x], x @ w, bcast_inputs=[w]).build_inputs(np.ones((4, 3)), w=None)
        (<synkhronos.Data 'x' float64 (4, 3)>, <synkhronos.Data 'w' float64 (0,)>)
        """
        names = self._plan.names
        given = list(args) + [None] * (len(names) - len(args))
        for name, value in kwargs.items():
            if name not in names:
                raise InputTypeError(f"{self._what} has no input {name!r}")
            if names.index(name) < len(args):
                raise InputTypeError(f"{self._what}: input {name!r} is given twice")
            given[names.index(name)] = value
        if len(given) > len(names):
            raise InputError(f"{self._what} takes {len(names)} inputs, found {len(given)}")
        flags = [minibatch] * len(names) if isinstance(minibatch, bool) else list(minibatch)
        if len(flags) != len(names):
            raise InputError(
                f"{self._what} has {len(names)} inputs, minibatch={minibatch} is for {len(flags)}: "
                "give one bool for all, or one for each"
            )
        with self._group.active():
            made = tuple(
                data(v, var=x, minibatch=m, force_cast=force_cast, oversize=oversize)
                for v, x, m in zip(given, self._plan.inputs, flags, strict=True)
            )
        return made[0] if len(made) == 1 else made

    def restart(self) -> None:
        """Note that no other member has the function (any more)."""
        self._wake = self._group.wake
        self._shipped = False
        self._compilations = Compilations(self._plan.recipe, self._group.infer)
        self._entries: list[Entry] = []
        self._latest = Latest(self._group, self._staging, self._order)

    def ship(self, entries: list[Entry]) -> None:
        """Note that all members have the function now."""
        self._shipped = True
        self._entries = entries


def _default(value: Any) -> Any:
    """An input's default now: In takes values, shared variables and their containers."""
    container = getattr(value, "container", value)
    return getattr(container, "storage", [value])[0]


def _forget(forgotten: list[int], replicas: dict[int, Replica], number: int) -> None:
    replicas.pop(number, None)
    forgotten.append(number)


def _array(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, Data) else value


def _here(value: Any) -> Any:
    """The rows that this machine has."""
    return value.data if isinstance(value, Data) else value


def function(
    inputs: Any,
    outputs: Any = None,
    bcast_inputs: Any = None,
    updates: Any = None,
    givens: Any = None,
    sliceable_shareds: Any = None,
    **kwargs: Any,
) -> Function:
    """Make a function that runs in all members; in place of pytensor.function.

    Parameters
    ----------
    inputs : list of Variable or In
        Scattered: each member gets its part of the rows. 0-d inputs are broadcast.
    outputs : Variable, list or dict of them, or pairs (variable, reduction)
        reduction is "avg" (or "mean"), "sum", "prod", "min", "max", "gather" (concatenate over
        members) or None (the master's own value). Without one it is inferred from the graph where
        it can be proved, else "avg", weighted by rows, with a warning.
    bcast_inputs : list of Variable or In, optional
        Every member gets these whole.
    updates : dict or list of (shared, new[, reduction[, "all"]]), optional
        Applied in each member, to its own replica; `reduction` says how the values of slices
        combine. With "all" the value is reduced over the members too, like an output.
    givens : dict or list of pairs, optional
    sliceable_shareds : list of SharedVariable, optional
        Shared variables whose rows `batch_s` and `num_slices` select.
    **kwargs
        For pytensor.function: name, mode, on_unused_input, allow_input_downcast, ...

    Returns
    -------
    Function

    Raises
    ------
    NotForked
        There is no group.
    InputError, InputTypeError
        The arguments do not go together.

    Notes
    -----
    Cost: nothing is shipped or compiled before the first call, or `distribute`. Then the master
    compiles first and the others load the machine code from PyTensor's cache.

    Examples
    --------
    >>> import numpy as np, pytensor.tensor as pt, synkhronos as synk
    >>> _ = synk.fork(2)
    >>> x = pt.vector("x", dtype="float64")
    >>> f = synk.function([x], [x.mean(), (x ** 2, "sum")[0].sum()])
    >>> [float(v) for v in f(np.array([1.0, 2.0, 6.0]))]
    [3.0, 41.0]
    >>> synk.close()
    """
    group = current("synk.function")
    made = plan(
        group.number(),
        inputs,
        outputs,
        bcast_inputs,
        updates,
        givens,
        sliceable_shareds,
        group.infer,
        dict(kwargs),
    )
    return Function(group, made)
