"""The list of guards that mutants.py takes out is of the package as it is (promise 23)."""

from __future__ import annotations

import pytest
from mutants import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.guard)
def test_the_guard_can_be_taken_out(mutant: Mutant) -> None:
    compile(mutant.mutated(), mutant.module, "exec")
