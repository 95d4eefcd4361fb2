"""Functions: made like pytensor.function; calls divide their inputs over the members."""

# These rules hold here:
#
# * `Function` is what users hold: arguments, documents, measurements. `GroupFunction` makes and
#   runs the commands, also for training functions and PyMC's, which do not use this class.
# * The plan is made here, in the master. Members learn of the function at its first call.
# * A call reserves the runner until its result is made, and wakes the workers before it looks at
#   its arguments: both take place at the same time.
# * `report` with arguments, and `timed`, change no variable: calls that would are undone.
# * `as_pytensor` is the one way past the group. It computes in the master only, and what it sets is
#   sent with the next call.

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable

from synkhronos._api.advice import Advised, Timing
from synkhronos._api.data import Data
from synkhronos._api.group_function import GroupFunction
from synkhronos._api.outputs import mode_name
from synkhronos._api.report import Measurements, Report
from synkhronos._api.request import Request
from synkhronos._api.serial import Serial
from synkhronos._api.timed_parts import TimedParts
from synkhronos._compiling.progress import telling
from synkhronos._compiling.traces import untraced
from synkhronos._engine.function_plan import Plan, plan
from synkhronos._engine.group import Group, current
from synkhronos._engine.process_bound import ProcessBound
from synkhronos._errors import WorkerDied
from synkhronos._warnings import place_of_user

# Of a report with arguments: seconds of calls, and the fewest of them.
_SECONDS, _CALLS = 0.5, 5


class Function(ProcessBound, Advised):
    """A function that all members of a group run together; made by `synk.function`.

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

    _instead = (
        "pickle the values of its variables, [v.get_value() for v in f.get_shared()], and make the "
        "function again"
    )

    def __init__(self, group: Group, plan_: Plan) -> None:
        self._function = GroupFunction(group, plan_)
        self._serial: Serial | None = None
        self._measurements = Measurements(group, plan_.recipe.number)
        self.name = plan_.recipe.name

    def __repr__(self) -> str:
        function = self._function
        inputs = ", ".join(n or "?" for n in function.plan.names)
        return f"<synkhronos.Function {function.label}({inputs}) in {function.group!r}>"

    @property
    def graph(self) -> tuple[list[Variable], list[Variable]]:
        """The inputs with rows, and the outputs as expressions of them."""
        return self._function.plan.graph

    @property
    def output_modes(self) -> Any:
        """The reduction of each output, in the structure of the outputs.

        "inferred": the members' values are reduced, and the master computes the output from them.
        """
        return self._function.outputs.modes()

    @property
    def update_modes(self) -> dict[SharedVariable, str | None]:
        """The reduction over slices of each update (over members too for "all" updates).

        "inferred": the values of slices are reduced, and the new value is computed from them.
        """
        updates = self._function.plan.recipe.updates
        return {u.shared: mode_name(u.reduction, u.slicing.finish) for u in updates}

    def get_shared(self) -> list[SharedVariable]:
        """The shared variables that the function uses or updates."""
        return list(self._function.plan.shareds)

    def __call__(
        self,
        *args: Any,
        output_subset: Sequence[object] | None = None,
        batch: object = None,
        batch_s: object = None,
        num_slices: int | str = 1,
        timeout: float | None = None,
        **kwargs: object,
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
            The rows of the scattered inputs to use; they are selected, then divided.
        batch_s : the same, or one for each member, optional
            Rows of each member's sliceable shared variables.
        num_slices : int or "auto"
            Each member computes its rows in this many slices, one after the other, all from the
            same values of shared variables. "auto": the smallest number that keeps the member's
            temporaries below 256 MB.
        timeout : float, optional
            Seconds that the master waits for other members; compiling does not count. Default:
            the group's.

        Returns
        -------
        object
            Reduced outputs in the structure of the outputs: one array, a list, or a dict. Without
            outputs an empty list. Values of other types than arrays are those of PyTensor.

        Raises
        ------
        InputError, BatchError, InputTypeError
            An argument is wrong. Nothing has been sent.
        WorkerError
            A member raised. No value has changed in any member.

        Notes
        -----
        Cost: one round; a copy of numpy inputs; one reduction for each output above 64 KB.
        """
        function = self._function
        asked = Request(args, kwargs, output_subset, batch, batch_s, num_slices)
        while True:  # as `retried`, whose call would take 3 % of the shortest calls
            try:
                with function.runner.reserved(function.what, timeout):
                    # first of all: after a pause what follows takes as long as their waking up
                    function.runner.wake()
                    return function.call(asked)
            except WorkerDied as exc:
                if not exc.again:
                    raise

    def report(
        self,
        *args: Any,
        output_subset: Sequence[object] | None = None,
        batch: object = None,
        batch_s: object = None,
        num_slices: int | str = 1,
        **kwargs: object,
    ) -> Report:
        """Measure where the time of a call goes in each member, and say what binds.

        With the arguments of a call: that call is repeated for half a second, and changes no
        variable. Without arguments: the report on the calls that were made inside of `measured`,
        since the previous report.

        Parameters
        ----------
        *args, output_subset, batch, batch_s, num_slices, **kwargs
            As for a call.

        Returns
        -------
        Report
            A table and a sentence; ``show()`` prints them, ``as_dict()`` gives plain numbers.

        Raises
        ------
        InputError
            The arguments are wrong, or there are none and no call has been measured.

        Notes
        -----
        Cost: the calls, and up to 10 us more for each. Calls that are not measured cost nothing.

        Examples
        --------
        >>> import numpy as np, pytensor.tensor as pt, synkhronos as synk
        >>> x = pt.matrix("x", dtype="float64")
        >>> with synk.Group(2):
        ...     f = synk.function([x], pt.exp(x).sum(), name="f")
        ...     f.report(np.ones((1000, 100)))
        function f: ... calls of 1,000 rows in 2 members; milliseconds of a call
        ...
        """
        function = self._function
        asked = Request(args, kwargs, output_subset, batch, batch_s, num_slices)
        if args or kwargs or batch is not None or not function.plan.inputs:
            with function.runner.reserved(function.what), self._measuring(undone=True):
                function.rehearse(asked)  # compiles
                function.rehearse(asked)
                self._measurements.skip()
                until = time.perf_counter() + _SECONDS
                calls = 0
                while calls < _CALLS or time.perf_counter() < until:
                    function.runner.wake()
                    function.rehearse(asked)
                    calls += 1
        return self._measurements.report(
            function.what,
            "Give the arguments of a call, as in report(x, batch=rows), or make calls "
            "inside of `with f.measured():` first",
        )

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """A context whose calls are measured, for a `report` afterwards.

        Calls that compile are not counted.

        >>> import numpy as np, pytensor.tensor as pt, synkhronos as synk
        >>> x = pt.matrix("x", dtype="float64")
        >>> with synk.Group(2):
        ...     f = synk.function([x], pt.exp(x).sum(), name="f")
        ...     data = synk.data(np.ones((1000, 100)))
        ...     with f.measured():
        ...         for first in range(0, 1000, 100):
        ...             value = f(data, batch=slice(first, first + 100))
        >>> f.report().calls, f.report().rows
        (9, 100)
        """
        with contextlib.ExitStack() as stack:
            with self._function.runner.reserved(self._function.what):
                stack.enter_context(self._measuring())
            yield

    @contextlib.contextmanager
    def _measuring(self, undone: bool = False) -> Iterator[None]:
        """As `GroupFunction.measured`, for reports; entered while the runner is reserved."""
        self._function.make_clocks()
        with self._function.measured(undone):
            self._measurements.use()
            yield

    def timed(self, asked: Request) -> tuple[str, int | None, Timing]:
        """Measure a call for `synk.advise`; changes no variable."""
        function = self._function
        with (
            function.runner.reserved(function.what),
            function.telling("measuring"),
            contextlib.ExitStack() as stack,
        ):
            parts = TimedParts(function, asked)
            called: Callable[[], object] = functools.partial(function.call, asked)
            if not function.plan.pure:
                function.make_clocks()
                stack.enter_context(function.measured(undone=True))
                called = functools.partial(function.rehearse, asked)
            return function.what, parts.rows, parts.timing(called)

    def as_pytensor(
        self, *args: object, output_subset: Sequence[object] | None = None, **kwargs: object
    ) -> Any:
        """Run the function only in the master, as pytensor.function would.

        Parameters
        ----------
        *args, **kwargs
            The inputs: Data, numpy arrays or scalars.
        output_subset : sequence of int (or keys), optional
            Return these outputs only, in this order; all are computed.

        Returns
        -------
        object
            The outputs, not reduced. Updates change the master's variables; the next call sends
            their values to the other members.

        Examples
        --------
        >>> import pytensor.tensor as pt, synkhronos as synk
        >>> x = pt.vector("x", dtype="float64")
        >>> with synk.Group(2):
        ...     f = synk.function([x], (x.sum(), None), mode="FAST_COMPILE")
        ...     f([1.0, 2.0]), f.as_pytensor([1.0, 2.0])  # the master's rows; all rows
        (array(1.), array(3.))
        """
        function = self._function
        values = [
            v.readable if isinstance(v, Data) else v for v in function.arguments.bind(args, kwargs)
        ]
        if self._serial is None:
            with function.telling():
                serial = Serial(function.plan)
                found = serial(values)
            self._serial = serial
        else:
            found = self._serial(values)
        if output_subset is None:
            return function.outputs.structured(found)
        subset = function.outputs.subset(output_subset)
        return function.outputs.structured([found[i] for i in subset], subset)

    as_theano = as_pytensor

    def build_inputs(
        self,
        *args: object,
        force_cast: bool = False,
        oversize: float = 1.0,
        minibatch: bool | Sequence[bool] = False,
        **kwargs: object,
    ) -> Data | tuple[Data, ...]:
        """Make one Data for each input.

        Parameters
        ----------
        *args, **kwargs
            The arrays, in order or by name. An input that is None, or not given, gets empty Data:
            set its value later.
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
        (<synkhronos.Data 'x' float64 (4, 3)>, <synkhronos.Data 'w' float64 1-d, no value yet>)
        """
        return self._function.build_inputs(args, kwargs, force_cast, oversize, minibatch)


def function(
    inputs: object,
    outputs: object = None,
    bcast_inputs: object = None,
    updates: object = None,
    givens: object = None,
    sliceable_shareds: object = None,
    **kwargs: object,
) -> Function:
    """Make a function that runs in all members; in place of pytensor.function.

    Parameters
    ----------
    inputs : list of Variable or In
        Each member gets some of the rows of these. 0-d inputs are broadcast. The graph ends at the
        inputs: nothing above one is computed or updated.
    outputs : Variable, list or dict of them, or pairs (variable, reduction)
        reduction is "avg" (or "mean"), "sum", "prod", "min", "max", "gather" (concatenate over
        members) or None (the master's own value). Default: the reduction that is proved from the
        graph, else "avg", weighted by rows, with a `ReductionWarning`. So does a reduction that is
        provably not that of the output.
    bcast_inputs : list of Variable or In, optional
        Each member gets all of these.
    updates : dict or list of (shared, new[, reduction[, "all" or "local"]]), optional
        With "all" every member gets the value reduced over members, like an output. Else each
        member keeps the value of its own rows, and `reduction` combines the values of slices (None:
        as inferred). "local" says so on purpose: without it, an update that depends on scattered
        rows and on its own variable raises a `LocalUpdateWarning`.
    givens : dict or list of pairs, optional
    sliceable_shareds : list of SharedVariable, optional
        Shared variables of which `batch_s` and `num_slices` select rows.
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
        The arguments are wrong, or contradict each other.

    Notes
    -----
    Cost: the first call, or `distribute`, ships and compiles. The master compiles first; the others
    load the machine code from PyTensor's cache.

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
    text = f"proving {kwargs.get('name') or f'function at {place_of_user()}'}"
    with telling(text), untraced():
        made = plan(
            group.inventory.number(),
            inputs,
            outputs,
            bcast_inputs,
            updates,
            givens,
            sliceable_shareds,
            group.infer,
            group.vectorised,
            dict(kwargs),
        )
    return Function(group, made)
