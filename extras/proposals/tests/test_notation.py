"""Files whose numbers, times and letters are not spelled as most programs spell them: what needs `proposals`."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.agent.data.tables import load_table
from covey.extras.proposals.describe import describe_table, found_notation
from covey.extras.proposals.proposal import checked, propose
from covey.extras.proposals.proposal_data import describe
from covey.shared.scenario.columns import Notation
from tests.agent.test_notation import GERMAN, USUAL, encoded
from tests.agent.test_task_columns import written


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["38,0", "7", "-0,25"], Notation(decimal=",")),
        (["1,234", "2,500"], Notation()),  # thousands, or hardly more than one
        (["38,0", "1.5"], Notation()),  # two notations in one column
        (["red, green", "2,5"], Notation()),
        (["31.12.2025", "1.1.2026"], Notation(dates=("%d.%m.%Y",))),
        (["31/12/2025 10:00", "01/02/2026 11:00"], Notation(dates=("%d/%m/%Y %H:%M",))),
        (["03/04/2025", "05/06/2025"], Notation()),  # days or months first
        (["2025-12-31", "2026-01-01"], Notation()),
        (["20251231", "20260101"], Notation()),
    ],
)
def test_a_notation_with_one_reading_is_found(
    tmp_path: Path, cells: list[str], expected: Notation
) -> None:
    path = written(tmp_path, "a;b", *(f"{cell};1" for cell in cells))
    assert found_notation(path).notation == expected


def test_a_proposal_reads_the_one_device_that_differs(tmp_path: Path) -> None:
    sources = [written(tmp_path, *USUAL, name=f"gw-{number}.csv") for number in range(3)]
    odd = encoded(tmp_path, GERMAN, "cp1252")
    proposal = propose([describe(str(path)) for path in (*sources, odd)])
    found = checked(proposal).task
    assert found.read == Notation(decimal=",", dates=("%d.%m.%Y %H:%M",), encoding="cp1252")
    assert found.columns == ("zeit", "größe")  # stück counts the rows
    assert f"decimal commas on {odd}" in " ".join(proposal.to_yaml().replace("#", " ").split())
    for path in (*sources, odd):
        assert len(load_table(path, task=found).targets)
    assert describe_table(odd).column("größe").kind == "number"
