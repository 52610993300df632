"""A run on the terminal: what needs `runs`."""

from __future__ import annotations

from covey.extras.runs.state import history
from tests.coordinator.test_watch import record


def test_the_history_joins_a_round_with_its_evaluation() -> None:
    rows = history(record(2))
    assert [(row.number, row.figure, row.loss) for row in rows] == [(1, 0.05, 1.0), (2, 0.1, 0.5)]
    assert rows[1].by_cluster == (0.05, 0.075)
    assert (rows[0].seconds, rows[1].seconds) == (3.0, 6.0), "evaluations count for the next round"
