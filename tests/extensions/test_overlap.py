"""`overlap=True` in a group of one node: no effect; and what it does not go with."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from overlap_cases import Layers, data, summing_processes

import synkhronos as synk
from synkhronos import rules
from synkhronos._errors import InputError, InputTypeError
from synkhronos.extensions import HalfPrecision, TopK


@pytest.mark.parametrize("exchange", [None, HalfPrecision()], ids=str)
def test_on_one_node_nothing_changes(exchange: Any) -> None:
    with synk.Group(2):
        plain, net = Layers(exchange=exchange), Layers(exchange=exchange, overlap=True)
        assert not net.train._planned.plan.order
        assert plain.steps(data(2)) == net.steps(data(2))
        for a, b in zip(plain.values(), net.values(), strict=True):
            np.testing.assert_array_equal(a, b)
        assert os.getpid() not in summing_processes()


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"exchange": TopK(0.1)}, InputError, r"overlap=True and exchange=TopK\(density=0.1\)"),
        ({"rule": rules.Average(3)}, InputError, "overlap=True is for gradients, and with Average"),
        ({"mode": "JAX"}, InputError, "overlap=True: the JAXLinker of this mode"),
        ({"mode": "C"}, InputError, "overlap=True: the CLinker of this mode"),
        ({"overlap": 1}, InputTypeError, "overlap=1"),
    ],
    ids=str,
)
def test_what_it_does_not_go_with(options: dict[str, Any], kind: type, says: str) -> None:
    with synk.Group(1), pytest.raises(kind, match=says):
        Layers(**{"overlap": True} | options)
