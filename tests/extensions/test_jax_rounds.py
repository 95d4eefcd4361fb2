"""Round rules in mode JAX on CPUs: as in other modes."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np
import pytest
from apart import Apart
from training_cases import RULES, Net

import synkhronos as synk
from synkhronos import rules
from synkhronos.extensions import make_train_function

pytestmark = [
    pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed"),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Skipping Assert:UserWarning"),
]


@pytest.fixture(scope="module")
def _pair() -> Iterator[synk.Group]:
    made = synk.Group(2, start="exec")
    yield made
    made.close()


@pytest.fixture
def pair(_pair: synk.Group) -> Iterator[synk.Group]:
    with _pair.active():
        yield _pair


@pytest.mark.thorough  # in FAST: test_rounds.py; in JAX, resident: test_jax_resident_rounds.py
@pytest.mark.parametrize(
    "rule",
    [
        rules.DiLoCo(3, state="average"),
        *(rules.Average(3), rules.EASGD(3, meet=True), rules.Swap(3)),
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", ["JAX", "NUMBA"])
def test_rules_equal_members_one_after_the_other(pair: synk.Group, mode: str, rule: object) -> None:
    """Calls and `steps`; parts of three lengths, and without rows."""
    function, options = RULES["adam"]
    net, twin = Net(), Apart(2, rule, function, options)
    train = make_train_function(
        net.loss, net.params, net.x, net.y, function, rule=rule, mode=mode, **options
    )
    x, y = net.data(23)
    data = train.build_inputs(x, y)
    batches = [slice(0, 11), slice(4, 5), slice(3, 14), slice(11), slice(2, 13), slice(0, 11)]
    for batch in batches[:4]:
        train(*data, batch=batch)
    train.steps(*data, batches[4:] * 2, 4)
    for batch in batches + batches[4:]:
        twin.step(x, y, batch)
    train.meet()
    twin.meet()
    for a, b in zip(net.values(), twin.centre, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
