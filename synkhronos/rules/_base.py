"""The base of rules: checked values, and pure code on flat vectors.

A rule says how members change one another's parameters. An engine says when: all members meet in a
command (round rules), or each exchanges with a centre in its turn (free rules). The code of a rule
gets numpy vectors and writes into them. It works element by element, so vectors may be chunks of
longer ones.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, Self, override

import numpy as np

from synkhronos._checks import Checked
from synkhronos._errors import InputError

Vector = np.ndarray
Vectors = Sequence[Vector]
# (gradient, parameters and states, where their new values go)
Optimizer = Callable[[Vector, Vectors, Vectors], None]

STARTS_AS_CENTRE = ("read", "last")  # those of a member's own vectors; others start at zero
STATES = ("keep", "average", "reset")

# meets: all members, in a command. turns: each with a centre, one at a time. gossip: each with
# another one. races: all change one copy. nodes: the members of a node in one way, nodes meet.
type Way = Literal["meets", "turns", "gossip", "races", "nodes"]
type By = Literal["group", "member"]


@dataclass(frozen=True)
class Rule(Checked, ABC):
    """The base of all rules.

    Attributes
    ----------
    numbers : tuple of str
        The fields that `set` changes while the rule is in use.
    """

    numbers: ClassVar[tuple[str, ...]] = ()

    @property
    @abstractmethod
    def way(self) -> Way:
        """In which way members exchange: "meets", "turns", "gossip", "races" or "nodes"."""

    @property
    def meets(self) -> bool:
        """Whether all members meet, or each exchanges by itself."""
        return self.way == "meets"

    @property
    def counts_batches_by(self) -> By:
        """Whether a batch is of all members together ("group"), or of one ("member")."""
        return "group" if self.meets else "member"

    def for_members(self, members: int) -> Self:
        """The rule with each field that depends on the number of members.

        Raises
        ------
        InputError
            The rule does not work with this number of members.
        """
        del members
        return self

    def with_numbers(self, numbers: dict[str, Any]) -> Self:
        """The rule with other numbers.

        Raises
        ------
        InputError, InputTypeError
            A name is not one of `numbers`, or a value is out of range.
        """
        for name in numbers:
            if name not in self.numbers:
                raise InputError(
                    f"{self}: set() changes {', '.join(self.numbers) or 'nothing'}, not {name!r}"
                )
        return replace(self, **numbers)

    def __str__(self) -> str:
        values = [(f, getattr(self, f.name)) for f in fields(self)]
        given = [f"{f.name}={_shown(value)}" for f, value in values if value != f.default]
        return f"{type(self).__name__}({', '.join(given)})"

    @override
    def _given(self, field: str) -> tuple[str, object]:
        name, value = super()._given(field)
        return f"rules.{name}", value


def way_of(value: object) -> Way | None:
    """The way of a rule; None if the value is not a rule."""
    return value.way if isinstance(value, Rule) else None


def _shown(value: object) -> str:
    if isinstance(value, functools.partial):
        given = [repr(v) for v in value.args]
        given += [f"{name}={v!r}" for name, v in value.keywords.items()]
        return f"{_shown(value.func)}({', '.join(given)})"
    if callable(value):
        return str(getattr(value, "__name__", value))
    return repr(value) if way_of(value) is None else str(value)


@dataclass(frozen=True)
class RoundRule(Rule):
    """The base of rules whose members all meet after every `period` steps.

    Attributes
    ----------
    outer : tuple of str
        The centre's vectors beside the parameters; zeros at first.
    by_rows : bool
        Whether the mean of the members is weighted by their rows since the last meeting.
    swaps : bool
        Whether members go on from the values of their `partners`, and not from the centre.
    """

    outer: ClassVar[tuple[str, ...]] = ()
    by_rows: ClassVar[bool] = True
    swaps: ClassVar[bool] = False
    period: int

    @property
    @override
    def way(self) -> Way:
        return "meets"

    @property
    def warmup(self) -> int:
        """The first steps, which are synchronous."""
        return 0

    @property
    def state(self) -> str:
        """The fate of the optimizer's states at a meeting: "keep", "average" or "reset"."""
        return "keep"

    @property
    def policy(self) -> str:
        """The effect of a meeting on the optimizer's states: "keep", "average" or "reset"."""
        return self.state

    def partners(self, number: int, members: int) -> list[int]:
        """For each rank, the rank whose values it gets in a meeting; its own unless they swap."""
        del number
        return list(range(members))

    def meeting(
        self, members: Vectors, centre: Vector, outer: Vectors, mean: Vector, count: int
    ) -> None:
        """Change the parameters of the members and the centre.

        Parameters
        ----------
        members : sequence of vector
            The parameters of the members on this node.
        centre, outer
            The centre and its vectors; every node has a copy.
        mean : vector
            The mean of all members' parameters.
        count : int
            Of all members.
        """
        del count
        self.move(centre, outer, mean)
        for w in members:
            w[...] = centre

    def move(self, centre: Vector, outer: Vectors, mean: Vector) -> None:
        """Change the centre, from which all members go on; parameters as for `meeting`."""
        raise NotImplementedError


@dataclass
class Turn:
    """One member's turn at the centre.

    Attributes
    ----------
    staleness : int
        Versions that others have committed since this member last read the centre.
    rows : float
        Rows of the member's steps since its last exchange.
    present : int
        Members that take part at this time.
    counts : list of float
        The centre's counts: see `FreeRule.counts`. `TurnRule.plan` changes them.
    read : float
        The first count when the member last read the centre.
    waiting : bool
        The member has contributed, and waits for others.
    does : str
        What `TurnRule.plan` has decided: "exchange"; "read" the centre and change nothing there;
        "wait" for others, and do nothing; or a word of the rule's own.
    refused : bool
        The member's steps since its last exchange are dropped, and their rows are used again.
    waits : bool
        The member waits for others after this turn.
    closes : float
        Rows of all contributions, if this turn applies their mean. Else 0.
    optimizer : callable, optional
        ``optimizer(gradient, vectors, new)``: a step of the optimizer at the centre. `vectors` are
        the centre's parameters and the optimizer's states; `new` is where their new values go.
    """

    staleness: int
    rows: float
    present: int
    counts: list[float]
    read: float = 0.0
    waiting: bool = False
    does: str = "exchange"
    refused: bool = False
    waits: bool = False
    closes: float = 0.0
    optimizer: Optimizer | None = None

    @property
    def moves(self) -> bool:
        """Whether this turn changes the centre's parameters."""
        return self.does == "exchange" or bool(self.closes)


@dataclass(frozen=True)
class FreeRule(Rule):
    """The base of rules whose members never meet."""

    @property
    def interval(self) -> float:
        """Steps of a member from one exchange to the next; infinite if there is none."""
        return 1

    @property
    def bound(self) -> int | None:
        """How many steps a member may be ahead of the slowest one."""
        return None

    @property
    def centre(self) -> Callable[..., object] | None:
        """The optimizer at the centre."""
        return None

    @property
    def beside(self) -> tuple[str, ...]:
        """The centre's vectors beside the parameters; zeros at first."""
        return ()

    @property
    def counts(self) -> tuple[str, ...]:
        """Numbers that belong to a version of the centre; zeros at first."""
        return ()


@dataclass(frozen=True)
class TurnRule(FreeRule):
    """The base of rules whose members each exchange with a centre, one at a time.

    Attributes
    ----------
    own : tuple of str
        A member's vectors beside its parameters. Those of STARTS_AS_CENTRE begin as the centre,
        others at zero.
    """

    own: ClassVar[tuple[str, ...]] = ()
    period: int

    @property
    @override
    def way(self) -> Way:
        return "turns"

    @property
    @override
    def interval(self) -> float:
        return self.period

    def plan(self, turn: Turn) -> None:
        """Decide what the member does in its turn, and change `turn.counts`."""

    def ready(self, turn: Turn) -> bool:
        """Whether a member that waits for others has something to do at the centre."""
        del turn
        return True

    def exchange(self, turn: Turn, w: Vector, own: Vectors, centre: Vectors, new: Vectors) -> None:
        """Read the centre, write the new one, change the member's vectors.

        Parameters
        ----------
        turn : Turn
            As `plan` has left it.
        w, own
            The member's parameters and its other vectors.
        centre, new : sequence of vector
            The parameters, the vectors beside them, then the states of the optimizer at the centre.
        """
        raise NotImplementedError
