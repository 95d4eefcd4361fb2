"""Alternate: several training functions take turns over one stream of batches, as for GANs."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Generator, Iterable
from typing import Any

import numpy as np
import pytensor
from pytensor.compile.sharedvalue import SharedVariable

from synkhronos._api.collectives import gather, permute, set_value
from synkhronos._checks import check_integer, shown
from synkhronos._engine.process_bound import ProcessBound
from synkhronos._engine.variables import watch
from synkhronos._errors import InputError, InputTypeError
from synkhronos.extensions._apart.separate import LocalFunction
from synkhronos.extensions._step.function import TrainFunction
from synkhronos.extensions._step.step_report import Rows, StepReport, steps_of
from synkhronos.extensions._step.training_function import TrainingFunction
from synkhronos.rules.swap import Swap

_STEPS, _SWAPS = 0, 1

type Part = TrainFunction | LocalFunction


class Alternate(TrainingFunction, ProcessBound):
    """Training functions that take turns in a fixed cycle; each call makes one step of one of them.

    A `Trainer` takes it in place of a training function. Each step gets the next batch, so 5 steps
    of one function and 1 of another use 6 batches. The history has the mean loss of each
    function's steps as ``loss_NAME``; ``loss`` is the mean over all steps.

    Parameters
    ----------
    parts : sequence of (training function, steps)
        Of `make_train_function`, or all of `make_local_train_function`, with different names. The
        first one makes its number of steps, then the second one, and so on; then the cycle begins
        anew. An input may be of some functions only.
    swap : rules.Swap, optional
        Of functions of `make_local_train_function`: after each of its periods, counted in steps of
        the cycle, random pairs of members exchange the first function's parameters and states. The
        pairs follow from its seed and the number of the exchange. With an odd number of members one
        of them keeps its own.

    Attributes
    ----------
    group : Group
    name : str
        The functions' names.
    mode
        The compilation mode of the first function; None: PyTensor's default.
    parts : list of training functions
    names : list of str
        Theirs.
    inputs : list of Variable
        Those with rows, of all functions: first those of the first one.
    params, state, streams, settings : list of SharedVariable
        Of all functions, for checkpoints. `state` also counts steps, so that a resumed run goes on
        at its place in the cycle. Of local functions, ``params`` and ``state`` hold the values of
        all members, stacked, as `settle` has brought them.

    Raises
    ------
    InputError, InputTypeError
        An argument is wrong, or functions do not fit together.

    Notes
    -----
    Cost: that of the functions' steps, and about 5 us. An exchange is a `synkhronos.permute`.
    `settle` of local functions gathers all members' values in the master: one round.

    Cycle: Goodfellow et al., `arXiv:1406.2661 <https://arxiv.org/abs/1406.2661>`_, algorithm 1.
    Exchanges: Im et al., `arXiv:1612.04021 <https://arxiv.org/abs/1612.04021>`_.

    Examples
    --------
    >>> import numpy as np, pytensor, pytensor.tensor as pt, synkhronos as synk
    >>> from synkhronos.extensions import make_train_function, updates
    >>> from synkhronos.training import Alternate, Trainer
    >>> x, a, b = pt.dvector("x"), pytensor.shared(0.0, name="a"), pytensor.shared(0.0, name="b")
    >>> with synk.Group(2):
    ...     how = {"update_rule": updates.sgd, "learning_rate": 0.25, "mode": "FAST_COMPILE"}
    ...     first = make_train_function(((a - x) ** 2).mean(), [a], x, name="first", **how)
    ...     second = make_train_function(((b - a - x) ** 2).mean(), [b], x, name="second", **how)
    ...     trainer = Trainer(Alternate([(first, 2), (second, 1)]), progress=False)
    ...     history = trainer.fit(np.full(60, 3.0), batch=2, epochs=1)
    >>> float(a.get_value().round(2)), float(b.get_value().round(1)), history.columns[3:5]
    (3.0, 6.0, ['loss_first', 'loss_second'])
    """

    _instead = "a Trainer with folder= keeps a run, which resumes"

    def __init__(self, parts: Iterable[tuple[Part, int]], *, swap: Swap | None = None) -> None:
        pairs = _checked(parts)
        self.parts = [train for train, _ in pairs]
        self.names = [train.name for train in self.parts]
        self.name = ", ".join(self.names)
        self.group = self.parts[0].group
        self.mode = self.parts[0].mode
        self._measured = [made for train in self.parts for made in train._measured]
        self.inputs = list(dict.fromkeys(v for train in self.parts for v in train.inputs))
        self._turns = [part for part, (_, steps) in enumerate(pairs) for _ in range(steps)]
        self._places = [[self.inputs.index(v) for v in train.inputs] for train in self.parts]
        self._local = not self.parts[0].one_model
        _check_swap(swap, self._local)
        self._swap = swap
        self._progress = pytensor.shared(np.zeros(2, np.int64), name="steps and swaps of the cycle")
        self._latest = 0
        self.same_rows, *others = [train.same_rows for train in self.parts]
        self.same_rows.share(others)
        self._own: list[SharedVariable] = []
        self._stacked: list[SharedVariable] = []
        params, state = self._all("params"), self._all("state")
        state = [v for v in state if v not in params]
        if self._local:
            self._own = [*params, *state]
            self._stacked = [_stack(v, self.group.size) for v in self._own]
            params, state = self._stacked[: len(params)], self._stacked[len(params) :]
        self._watched = [watch(v) for v in self._stacked]
        self.params = params
        self.state = [*state, self._progress]
        self.streams = self._all("streams")
        named = {*params, *state, *self._own}
        self.settings = [v for v in self._all("settings") if v not in named]

    def _all(self, name: str) -> list[SharedVariable]:
        return list(dict.fromkeys(v for train in self.parts for v in getattr(train, name)))

    def __repr__(self) -> str:
        turns = ", ".join(
            f"{self.names[part]} {len(list(steps))}"
            for part, steps in itertools.groupby(self._turns)
        )
        return f"<synkhronos.training.Alternate of {turns} in {self.group!r}>"

    @property
    def on_gpus(self) -> bool:
        """Whether members compute on GPUs."""
        return self.parts[0].on_gpus

    @property
    def compiled(self) -> bool:
        """Whether each function has made a step."""
        return all(train.compiled for train in self.parts)

    @property
    def steps(self) -> int:
        """Steps so far, of all functions."""
        return int(self._progress.get_value(borrow=True)[_STEPS])

    @property
    def turn(self) -> str:
        """The name of the function that makes the next step."""
        return self.names[self._next()]

    @property
    def latest(self) -> str:
        """The name of the function that has made the latest step."""
        return self.names[self._latest]

    def _next(self) -> int:
        return self._turns[self.steps % len(self._turns)]

    def __call__(
        self,
        *args: object,
        batch: object = None,
        num_slices: int | str = 1,
        timeout: float | None = None,
    ) -> Any:
        """Make the next step, by the function whose turn it is.

        Parameters
        ----------
        *args
            One for each of `inputs`: Data or numpy arrays. A function gets its own ones.
        batch, num_slices, timeout
            As for the function. Local functions have one slice.

        Returns
        -------
        float, or list
            As the function returns it.

        Raises
        ------
        Exception
            Of the function, or of an exchange. The same function makes the next step then.
        """
        if len(args) != len(self.inputs):
            names = ", ".join(map(str, self.inputs))
            raise InputError(f"Alternate: {len(args)} inputs, where these are needed: {names}")
        options = {} if self._local else {"num_slices": num_slices}
        if self._local and num_slices not in (1, "auto"):
            raise InputError(f"Alternate: num_slices={shown(num_slices)}: local steps have one")
        with self.group.active():
            self._spread()
            self._swap_if_due()
            part = self._next()
            given = [args[i] for i in self._places[part]]
            found = self.parts[part](*given, batch=batch, timeout=timeout, **options)
        self._latest = part
        self._count(1, 0)
        return found

    def take_back(self) -> None:
        """Give the turn of the latest step, which its rule has left out, to the same function."""
        self._count(-1, 0)

    def _count(self, steps: int, swaps: int) -> None:
        self._progress.set_value(self._progress.get_value(borrow=True) + np.array([steps, swaps]))

    def _swap_if_due(self) -> None:
        """Exchange values, if an exchange is due that has not been made."""
        if self._swap is None:
            return
        steps, swaps = self._progress.get_value(borrow=True).tolist()
        if swaps < steps // self._swap.period:
            first = self.parts[0]
            permute([*first.params, *first.state], self._swap.partners(swaps, self.size))
            self._count(0, 1)

    def settle(self) -> None:
        """Bring the values of all members of local functions into `params` and `state`."""
        if not self._local:
            return
        with self.group.active():
            self._spread()
            found = gather(self._own)
        values = found if len(self._own) > 1 else [found]
        for entry, value in zip(self._watched, values, strict=True):
            entry.storage[0] = entry.seen = np.asarray(value)

    def _spread(self) -> None:
        """Give each member its values, if they have been set, as by a checkpoint."""
        changed = [i for i, entry in enumerate(self._watched) if entry.is_set]
        if not changed:
            return
        variables = [self._own[i] for i in changed]
        values = [self._stacked[i].get_value(borrow=True) for i in changed]
        for rank in range(self.size):
            set_value(rank, variables, [np.array(v[rank]) for v in values])
        for i in changed:
            self._watched[i].seen = self._watched[i].storage[0]

    @property
    def by_node(self) -> list[SharedVariable]:
        """As for `TrainFunction`, of all functions."""
        return [v for train in self.parts for v in train.by_node]

    def collect(self) -> None:
        """Bring the rows of `by_node` to the master, as `TrainFunction.collect` does."""
        for train in self.parts:
            train.collect()

    def reports(self, feed: Rows, slices: int | str) -> Generator[StepReport]:
        """Make a step of each batch of the rest of an epoch, by the function whose turn it is."""
        step = functools.partial(self, num_slices=slices)
        return steps_of(step, feed, lambda: self.latest)

    def gradients(self, *args: object, batch: object = None) -> list[np.ndarray]:
        """The gradients of the latest step's function, as for `TrainFunction.gradients`."""
        train: Any = self.parts[self._latest]
        if self._local:
            raise InputError(f"Alternate: {train.name} is local, and has no gradient over all rows")
        return train.gradients(*[args[i] for i in self._places[self._latest]], batch=batch)


def _stack(variable: SharedVariable, size: int) -> SharedVariable:
    """A variable for the values of all members."""
    value = np.asarray(variable.get_value(borrow=True))
    stacked = np.broadcast_to(value, (size, *value.shape)).copy()
    return pytensor.shared(stacked, name=f"{variable.name or 'unnamed'} of each member")


def _checked(parts: object) -> list[tuple[Part, int]]:
    """The functions and their steps; raise unless they can take turns."""
    pairs: list[Any] = list(parts) if isinstance(parts, Iterable) else [None]
    if not pairs or not all(isinstance(p, tuple | list) and len(p) == 2 for p in pairs):
        raise InputTypeError(
            f"Alternate: {shown(parts)}: give a list of pairs of a training function and its "
            "steps, such as [(critic, 5), (generator, 1)]"
        )
    for train, steps in pairs:
        if not isinstance(train, TrainingFunction) or isinstance(train, Alternate):
            raise InputTypeError(
                f"Alternate: {shown(train)} is not a training function of make_train_function or "
                "make_local_train_function"
            )
        if train.rule is not None:
            raise InputError(
                f"Alternate: {train!r}: by this rule each member has values of its own that other "
                "functions do not see: use make_local_train_function"
            )
        check_integer("Alternate: steps", steps, 1)
    functions = [train for train, _ in pairs]
    names = [train.name for train in functions]
    if len({*names}) < len(names) or not all(n.isidentifier() for n in names):
        raise InputError(
            f"Alternate: the functions are named {', '.join(names)}: give each a short name of its "
            'own, as in make_train_function(..., name="critic")'
        )
    if len({train.one_model for train in functions}) > 1:
        raise InputError(
            "Alternate: some functions are of make_train_function, others of "
            "make_local_train_function: use one of these for all"
        )
    if len({id(train.group) for train in functions}) > 1:
        raise InputError("Alternate: the functions belong to different groups: make them in one")
    return [(train, int(steps)) for train, steps in pairs]


def _check_swap(swap: object, local: bool) -> None:
    if swap is None:
        return
    if not isinstance(swap, Swap):
        raise InputTypeError(
            f"Alternate: swap={shown(swap)}: give a rule, as in rules.Swap(period=50, seed=0)"
        )
    if not local:
        raise InputError(
            f"Alternate: swap={swap}: members exchange networks of their own, and these functions "
            "train one for all: make them by make_local_train_function"
        )
