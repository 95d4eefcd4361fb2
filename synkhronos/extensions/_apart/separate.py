"""A training function whose members each train values of their own and never meet."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.tensor.random.type import RandomType

from synkhronos._api.function import Function, function
from synkhronos._compiling.graph_types import ModeLike, Variables
from synkhronos._engine.function_arguments import roots, substituted
from synkhronos._engine.graph_collectives import has_collectives
from synkhronos._engine.group import Group, current
from synkhronos._engine.process_bound import ProcessBound
from synkhronos._errors import InputError, InputTypeError
from synkhronos._plan.rows import select
from synkhronos.extensions._step.listed_inputs import listed_inputs
from synkhronos.extensions._step.same_rows import INTEGERS, SameRows
from synkhronos.extensions._step.step_report import Rows, StepReport, steps_of
from synkhronos.extensions._step.training_function import TrainingFunction
from synkhronos.extensions.updates import apply_rule
from synkhronos.extensions.updates._slots import check_loss, gradients, trainable


class LocalFunction(TrainingFunction, ProcessBound):
    """A training function whose members have values of their own; of `make_local_train_function`.

    Attributes
    ----------
    group : Group
    name : str
    inputs : list of Variable
        Those with rows.
    params : list of SharedVariable
        In each member, its own.
    state : list of SharedVariable
        The update rule's states, and what `updates` changes; in each member, its own.
    streams : list of SharedVariable
        The random generators that the loss draws from.
    settings : list of SharedVariable
        What else a step reads.
    mode
        The compilation mode that it was made with; None: PyTensor's default.

    Examples
    --------
    >>> import numpy as np, pytensor, pytensor.tensor as pt, synkhronos as synk
    >>> from synkhronos.extensions import make_local_train_function, updates
    >>> x, w = pt.vector("x", dtype="float64"), pytensor.shared(np.zeros(()), name="w")
    >>> with synk.Group(1):
    ...     train = make_local_train_function(((w - x) ** 2).mean(), [w], x, None, updates.sgd, 0.5)
    ...     train.params, train.state, train.settings
    ([w], [], [])
    """

    one_model = False
    _instead = "save its values by synk.gather of each parameter, and make the function again"

    def __init__(
        self,
        group: Group,
        name: str,
        inputs: Sequence[Variable],
        params: Sequence[SharedVariable],
        state: Sequence[SharedVariable],
        compiled: Function,
        mode: ModeLike,
    ) -> None:
        self.group = group
        self.name = name
        self.inputs = list(inputs)
        self.params = list(params)
        self.state = list(state)
        self._compiled = compiled
        found = compiled.get_shared()
        self.streams = [v for v in found if isinstance(v.type, RandomType)]
        named = {*self.params, *self.state, *self.streams}
        self.settings = [v for v in found if v not in named]
        self.mode = mode
        self.same_rows = SameRows(len(self.inputs))
        self._stepped = False

    def __repr__(self) -> str:
        return f"<synkhronos.extensions.LocalFunction {self.name} in {self.group!r}>"

    @property
    def on_gpus(self) -> bool:
        """Whether members compute on GPUs."""
        return bool(self.group.member.communicator.on_gpus)

    @property
    def compiled(self) -> bool:
        """Whether a step has been made, so that the next one need not compile."""
        return self._stepped

    def __call__(self, *args: object, batch: object = None, timeout: float | None = None) -> Any:
        """Make one step in each member, on its part of the rows.

        Parameters
        ----------
        *args
            The inputs, as for a function.
        batch : optional
            Rows to use, as for a function. An integer means the first rows; ten such calls in a row
            on the same inputs raise a BatchWarning.
        timeout : float, optional
            Seconds that the master waits for other members.

        Returns
        -------
        float
            The mean of the members' losses, weighted by rows, each before its update.

        Raises
        ------
        InputError
            An argument is wrong, or there are fewer rows than members. No value has changed.
        WorkerError
            A member raised. No value has changed.

        Notes
        -----
        Cost: one round, in which only losses leave a member.
        """
        rows = len(args[0]) if args and hasattr(args[0], "__len__") else 0
        chosen = rows if batch is None else len(select(batch, rows))
        if chosen < self.size:
            raise InputError(
                f"{self.name}: {chosen} rows for {self.size} members: each member needs one, for "
                'its own step: use larger batches, or Batches(..., last="drop")'
            )
        if type(batch) in INTEGERS:
            self.same_rows.note(f"function {self.name}", args, {}, batch)
        found = self._compiled(*args, batch=batch, timeout=timeout)
        self._stepped = True
        return found

    def reports(self, feed: Rows, slices: int | str) -> Generator[StepReport]:
        """Make a step of each batch of the rest of an epoch; a local step has one slice."""
        del slices
        return steps_of(self, feed)


def make_local_train_function(
    loss: Variable,
    params: Sequence[SharedVariable],
    x: Variables,
    y: Variables | None = None,
    update_rule: Callable[..., object] | None = None,
    *args: object,
    updates: object = None,
    givens: object = None,
    mode: ModeLike = None,
    name: str | None = None,
    **kwargs: object,
) -> LocalFunction:
    """Make a function that trains in each member values of its own: no gradient leaves a member.

    It is for several functions that share variables, such as the two of a GAN, whose members train
    pairs of their own. Collectives move values between members: `synkhronos.permute` exchanges
    networks, `synkhronos.broadcast` makes all equal. For one function, ``make_train_function(...,
    rule=...)`` has rules by which members meet.

    Parameters
    ----------
    loss : 0-d variable
        Of the rows of one member.
    params : list of SharedVariable
    x, y : variable or list of them; y may be None
        The scattered inputs.
    update_rule, *args, **kwargs
        As for `make_train_function`.
    updates, givens, mode, name
        As for `synkhronos.function`; `updates` change each member's own value.

    Returns
    -------
    LocalFunction
        ``train(x_data, y_data, batch=None) -> loss``.

    Raises
    ------
    InputError, InputTypeError
        Arguments are wrong, or the loss has collectives over members, such as those of
        `synkhronos.nn.BatchNorm`.

    Notes
    -----
    Each member holds all parameters and states.

    Examples
    --------
    >>> import numpy as np, pytensor, pytensor.tensor as pt, synkhronos as synk
    >>> from synkhronos.extensions import make_local_train_function, updates
    >>> x, w = pt.vector("x", dtype="float64"), pytensor.shared(np.zeros(()), name="w")
    >>> with synk.Group(2):
    ...     train = make_local_train_function(
    ...         ((w - x) ** 2).mean(), [w], x, None, updates.sgd, 0.5, mode="FAST_COMPILE"
    ...     )
    ...     loss = train(np.array([1.0, 3.0]))
    ...     synk.gather(w).tolist()
    [1.0, 3.0]
    """
    group = current("make_local_train_function")
    inputs = listed_inputs("make_local_train_function", x, y)
    if update_rule is None:
        raise InputTypeError(
            "make_local_train_function: no update rule was given: pass one, such as "
            "synkhronos.extensions.updates.adam"
        )
    check_loss(loss)
    places = roots(inputs)
    [loss], changes = substituted([loss], updates, givens, inputs, places)
    if has_collectives([loss]):
        raise InputError(
            f"make_local_train_function: the loss {loss} contains collectives over members (of "
            "synk.ops, or synchronised batch normalisation), but each member trains alone: use "
            "values of each member's rows, such as pytensor-ml's own BatchNorm"
        )
    kept = trainable(params)
    new = apply_rule(update_rule, gradients(loss, params, kept), kept, args, kwargs)
    label = name or "train"
    streams = [(c.shared, c.new) for c in changes if isinstance(c.shared.type, RandomType)]
    others = [(c.shared, c.new) for c in changes if not isinstance(c.shared.type, RandomType)]
    own = [(v, value, "avg", "local") for v, value in (*new.items(), *others)]
    made = function(places, (loss, "avg"), updates=[*own, *streams], mode=mode, name=label)
    state = [v for v, *_ in own if v not in kept]
    return LocalFunction(group, label, inputs, kept, state, made, mode)
