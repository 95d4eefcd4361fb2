"""Rules are checked values: what each of them refuses, how it is shown, what may change."""

import functools
import math
import pickle
from dataclasses import FrozenInstanceError, fields
from typing import get_args

import numpy as np
import pytest

from synkhronos import rules
from synkhronos._errors import InputError, InputTypeError
from synkhronos.extensions import updates
from synkhronos.rules._base import Way

NUMBERS = [
    (rules.SlowMo, "momentum", 1.0),
    (rules.SlowMo, "lr", None),
    (rules.DiLoCo, "momentum", 1.0),
    (rules.DiLoCo, "lr", None),
    (rules.EASGD, "alpha", 1.0),
    (rules.GEM, "lr", None),
    (rules.GEM, "momentum", 1.0),
    (rules.GEM, "kappa", None),
    (rules.GoSGD, "probability", 1.0),
]
WHOLE = [
    (rules.Average, "period", 1),
    (rules.Average, "warmup", 0),
    (rules.SlowMo, "period", 1),
    (rules.DiLoCo, "period", 1),
    (rules.Swap, "period", 1),
    (rules.Swap, "seed", 0),
    (rules.EASGD, "period", 1),
    (rules.Downpour, "period", 1),
    (rules.Downpour, "quorum", 1),
    (rules.Downpour, "bound", 0),
    (rules.GEM, "period", 1),
    (rules.GoSGD, "seed", 0),
]
WORDS = [
    (rules.Average, "state", rules.Average().state),
    (rules.SlowMo, "state", "keep"),
    (rules.DiLoCo, "state", "keep"),
    (rules.Downpour, "scale", "inverse"),
]
CALLABLES = [(rules.Downpour, "centre")]
FLAGS = [(rules.EASGD, "meet", True)]
CLASSES = [getattr(rules, name) for name in rules.__all__]
BASES = (rules.Rule, rules.FreeRule, rules.TurnRule, rules.RoundRule)
EASGD_MEETS = rules.EASGD(meet=True)
RULES = [c for c in CLASSES if c not in (*BASES, rules.Nodes)]  # Nodes has rules as fields


def refused(error, rule, name, value):
    with pytest.raises(error) as caught:
        rule(**{name: value})
    text = str(caught.value)
    assert type(caught.value) is error
    assert text.startswith(f"rules.{rule.__name__}: {name}=")
    return text


def test_each_field_is_in_a_table():
    table = {(rule, name) for rule, name, _ in [*NUMBERS, *WHOLE, *WORDS, *FLAGS]}
    table |= {*CALLABLES}
    assert table == {(rule, f.name) for rule in RULES for f in fields(rule)}


@pytest.mark.parametrize(("rule", "name", "most"), NUMBERS)
def test_numbers(rule, name, most):
    for value in (np.nan, np.inf, -np.inf, -0.1, -1, np.float32("nan"), 10**400):
        assert "give a number of at least 0" in refused(InputError, rule, name, value)
    if most is not None:
        assert "at least 0 and at most 1" in refused(InputError, rule, name, most + 0.001)
    for value in ("1", True, np.True_, 1j, np.complex64(1), [0.5], np.array(0.5), np.array([0.5])):
        assert "give a number of at least 0" in refused(InputTypeError, rule, name, value)
    for value in (0, 1, 0.5, np.float32(0.5), np.float64(0.5), np.int8(1), np.uint64(0)):
        found = getattr(rule(**{name: value}), name)
        assert found == value
        assert type(found) in (int, float)


@pytest.mark.parametrize(("rule", "name", "least"), WHOLE)
def test_whole_numbers(rule, name, least):
    for value in (least - 1, -5, np.int64(least - 1)):
        assert f"give an integer of at least {least}" in refused(InputError, rule, name, value)
    for value in (1.0, "1", True, np.True_, np.nan, np.inf, np.float64(2), [1], np.array(1)):
        assert f"give an integer of at least {least}" in refused(InputTypeError, rule, name, value)
    for value in (least, 7, np.int64(7), np.uint8(7), 10**12):
        found = getattr(rule(**{name: value}), name)
        assert (found, type(found)) == (value, int)


@pytest.mark.parametrize(("rule", "name", "default"), WORDS)
def test_words(rule, name, default):
    assert getattr(rule(), name) == default
    for value in ("Keep", "", None, 1, True, b"keep", [default], np.array(["keep", "reset"])):
        assert f'use "{default}"' in refused(InputError, rule, name, value)
    assert getattr(rule(**{name: np.str_(default)}), name) == default


@pytest.mark.parametrize(("rule", "name", "value"), FLAGS)
def test_flags(rule, name, value):
    for wrong in (1, 0, None, "yes", np.array(True)):
        assert "give True or False" in refused(InputTypeError, rule, name, wrong)
    assert getattr(rule(**{name: np.bool_(value)}), name) is value


@pytest.mark.parametrize(("rule", "name"), CALLABLES)
def test_callables(rule, name):
    for wrong in ("adam", 0.1, True, [updates.sgd], np.array(1.0)):
        assert "is not an update rule" in refused(InputTypeError, rule, name, wrong)
    for value in (None, updates.sgd, functools.partial(updates.sgd, learning_rate=1)):
        assert getattr(rule(**{name: value}), name) is value


@pytest.mark.parametrize(("rule", "name"), [(r, n) for r, n, _ in [*NUMBERS, *WHOLE]])
def test_none(rule, name):
    """Only where it means something."""
    if name in ("alpha", "quorum", "bound"):
        assert getattr(rule(**{name: None}), name) is None
    else:
        refused(InputTypeError, rule, name, None)


def test_quorum_and_bound():
    with pytest.raises(InputError, match="use quorum= or bound=, not both"):
        rules.Downpour(quorum=2, bound=1)


@pytest.mark.parametrize("members", [1, 2, 3, 4, 8])
def test_alpha_of_meetings(members):
    limit = 2 / (members + 1)
    for alpha in (limit, min(1.0, limit * 1.01), 1.0):
        with pytest.raises(InputError) as caught:
            rules.EASGD(alpha=alpha, meet=True).for_members(members)
        assert str(caught.value) == (
            f"EASGD(meet=True, alpha={alpha:g}) on {members} members diverges, the limit is "
            f"2/(members + 1) = {limit:.3g}: leave alpha out ({0.9 / members:.3g})"
        )
        assert rules.EASGD(alpha=alpha).for_members(members).alpha == alpha  # in turns
    assert rules.EASGD(alpha=0.99 * limit, meet=True).for_members(members).alpha == 0.99 * limit
    for meet in (False, True):
        assert rules.EASGD(meet=meet).for_members(members).alpha == 0.9 / members


def test_alpha_of_meetings_in_words():
    with pytest.raises(InputError) as caught:
        rules.EASGD(meet=True, alpha=0.5).for_members(4)
    assert str(caught.value) == (
        "EASGD(meet=True, alpha=0.5) on 4 members diverges, the limit is 2/(members + 1) = 0.4: "
        "leave alpha out (0.225)"
    )


@pytest.mark.parametrize("rule", RULES)
def test_numbers_change_in_use(rule):
    made = rule()
    names = {name for r, name, _ in NUMBERS if r is rule}
    assert set(made.numbers) == names
    for name in names:
        changed = made.with_numbers({name: np.float32(0.25)})
        assert (getattr(changed, name), type(changed)) == (0.25, rule)
        assert made == rule()
        with pytest.raises(InputError, match=f"{name}=-1"):
            made.with_numbers({name: -1})
        with pytest.raises(InputTypeError, match=f"{name}='x'"):
            made.with_numbers({name: "x"})
    for name in ("period", "none_such"):
        known = ", ".join(made.numbers) or "nothing"
        with pytest.raises(InputError) as caught:
            made.with_numbers({name: 1})
        assert str(caught.value) == f"{made}: set() changes {known}, not {name!r}"
    assert made.with_numbers({}) == made


@pytest.mark.parametrize("rule", RULES)
def test_values(rule):
    """Frozen, equal by fields, the same after pickling; for any number of members."""
    made = rule()
    assert str(made) == f"{rule.__name__}()"
    assert made == rule()
    assert hash(made) == hash(rule())
    assert pickle.loads(pickle.dumps(made)) == made
    name = fields(rule)[0].name if fields(rule) else "period"
    with pytest.raises(FrozenInstanceError):
        setattr(made, name, 1)
    for members in (1, 2, 7):
        assert isinstance(made.for_members(members), rule)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (rules.Average(10, state="reset"), "Average(period=10, state='reset')"),
        (rules.EASGD(np.int32(5), np.float64(0.5)), "EASGD(period=5, alpha=0.5)"),
        (rules.EASGD(meet=np.True_), "EASGD(meet=True)"),
        (rules.Downpour(quorum=3, scale="none"), "Downpour(scale='none', quorum=3)"),
        (
            rules.Downpour(centre=functools.partial(updates.sgd, learning_rate=1.0), bound=2),
            "Downpour(centre=sgd(learning_rate=1.0), bound=2)",
        ),
        (rules.Downpour(5, updates.sgd), "Downpour(period=5, centre=sgd)"),
        (rules.DiLoCo(500, 0.7, 0.9), "DiLoCo()"),
        (rules.GEM(kappa=1), "GEM(kappa=1)"),
        (rules.Hogwild(), "Hogwild()"),
        (rules.Swap(2, seed=4), "Swap(period=2, seed=4)"),
    ],
)
def test_text(rule, text):
    assert str(rule) == text


def test_who_meets():
    meets = {rules.Average(), rules.SlowMo(), rules.DiLoCo(), rules.Swap(), rules.EASGD(meet=True)}
    assert all(rule.meets and isinstance(rule, rules.RoundRule) for rule in meets)
    free = [rules.EASGD(), rules.Downpour(), rules.Hogwild(), rules.GoSGD(), rules.GEM()]
    assert all(not rule.meets and isinstance(rule, rules.FreeRule) for rule in free)
    assert [rules.DiLoCo(state=s).policy for s in ("keep", "average", "reset")] == [
        "keep",
        "average",
        "reset",
    ]
    assert rules.Swap().policy == rules.EASGD(meet=True).policy == "keep"


def test_each_rule_has_one_way():
    ways = {
        "meets": [rules.Average(), rules.SlowMo(), rules.DiLoCo(), rules.Swap(), EASGD_MEETS],
        "turns": [rules.EASGD(), rules.Downpour(), rules.GEM()],
        "gossip": [rules.GoSGD()],
        "races": [rules.Hogwild()],
        "nodes": [rules.Nodes(None, rules.Average())],
    }
    assert set(ways) == set(get_args(Way.__value__))
    assert {type(rule) for each in ways.values() for rule in each} == {*RULES, rules.Nodes}
    for way, each in ways.items():
        assert [rule.way for rule in each] == [way] * len(each)
        by = "group" if way == "meets" else "member"
        assert {rule.counts_batches_by for rule in each} == {by}
    for base in (rules.Rule, rules.FreeRule):
        with pytest.raises(TypeError, match="abstract method"):
            base()


def test_what_a_rule_does_not_say_has_a_default():
    for rule in (rules.SlowMo(), rules.Swap(), EASGD_MEETS):
        assert (rule.warmup, rule.policy, rule.swaps) == (0, "keep", type(rule) is rules.Swap)
    assert EASGD_MEETS.partners(3, 4) == [0, 1, 2, 3]
    for rule in (rules.EASGD(4), rules.GEM(4), rules.GoSGD(), rules.Hogwild()):
        assert (rule.centre, rule.bound, rule.counts, rule.beside) == (None, None, (), ())
        assert rule.interval == getattr(rule, "period", 1)
    assert rules.EASGD(alpha=0).interval == math.inf
    assert rules.Downpour(bound=3).bound == 3


def test_nodes():
    between = rules.DiLoCo(period=100)
    made = rules.Nodes(rules.EASGD(period=5), between).for_nodes(members=3, nodes=2)
    assert made == rules.Nodes(rules.EASGD(period=5, alpha=0.3), between)
    assert str(rules.Nodes(None, between)) == "Nodes(inside=None, between=DiLoCo(period=100))"
    assert rules.Nodes(rules.EASGD(5), rules.EASGD(5, meet=True)).for_nodes(4, 3) == rules.Nodes(
        rules.EASGD(5, alpha=0.225), rules.EASGD(5, alpha=0.9 / 3, meet=True)
    )
    for wrong in (None, "diloco", rules.Downpour(), rules.EASGD(5)):
        with pytest.raises(InputTypeError, match="is not a round rule"):
            rules.Nodes(rules.EASGD(5), wrong)
    for wrong in ("easgd", rules.Average(5), rules.EASGD(5, meet=True)):
        with pytest.raises(InputTypeError, match="is not a free rule, or None"):
            rules.Nodes(wrong, between)
    with pytest.raises(InputError, match="do not swap"):
        rules.Nodes(None, rules.Swap(5))
    with pytest.raises(InputError, match="no centre"):
        rules.Nodes(rules.GoSGD(), between)
    with pytest.raises(InputError, match=r"the limit is 2/\(members \+ 1\)"):
        rules.Nodes(None, rules.EASGD(5, alpha=0.9, meet=True)).for_nodes(2, 2)
