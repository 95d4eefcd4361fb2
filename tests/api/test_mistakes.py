"""Usual mistakes get the messages that the page docs/errors.rst shows."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from doctest import ELLIPSIS, OutputChecker
from typing import Any

import pytensor
import pytest
from mistakes import BEFORE, GROUPS, Mistake

import synkhronos as synk


@pytest.fixture
def namespace() -> Iterator[dict[str, Any]]:
    """What the code finds: the names of BEFORE, and its group."""
    found: dict[str, Any] = {"__name__": "mistake"}
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        run(ast.parse(BEFORE).body, found)
        yield found
    synk.close()


def run(statements: list[ast.stmt], namespace: dict[str, Any]) -> None:
    exec(compile(ast.Module(statements, []), "mistake.py", "exec"), namespace)


@pytest.mark.parametrize(
    "mistake", [m for group in GROUPS.values() for m in group], ids=lambda m: m.code.split("\n")[-1]
)
def test_mistake(mistake: Mistake, namespace: dict[str, Any]) -> None:
    if mistake.needs:
        pytest.importorskip(mistake.needs)
    *before, last = ast.parse(mistake.code).body
    run(before, namespace)
    with pytest.raises(Exception) as raised:  # noqa: PT011 (its text is compared)
        run([last], namespace)
    found = f"{type(raised.value).__name__}: {raised.value}"
    assert OutputChecker().check_output(f"{mistake.message}\n", f"{found}\n", ELLIPSIS), found
    assert len(found) < 500
