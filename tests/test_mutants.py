"""The faults of `tests.mutants` can be planted: playing all of them takes minutes, and a line that moved is seen at once."""

from __future__ import annotations

import pytest

from scripts.size import ROOT
from tests.mutants import MUTANTS, Mutant


@pytest.mark.whole
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_has_its_line_once_and_a_test_that_sees_it(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text().count(mutant.line) == 1
    file, _, name = mutant.test.partition("::")
    assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text()
