"""Rules of the method, without a run: reports go in, a state comes out."""

import numpy as np
from my_method import MyMethod, State

from covey.methods import SIGNATURE, Report


def signatures(*directions: list[float]) -> list[tuple[str, Report]]:
    """A report of each agent, which moved the model in this direction."""
    return [
        (f"agent-{number}", Report({SIGNATURE: np.array(direction, np.float32)}, examples=10))
        for number, direction in enumerate(directions)
    ]


def test_agents_that_move_alike_share_a_cluster() -> None:
    start = State(np.zeros(2, np.float32))
    reports = signatures([1.0, 0.0], [0.9, 0.1], [0.0, 1.0])
    formed = MyMethod().form_clusters(start, reports)
    assert formed.assign == {"agent-0": 0, "agent-1": 0, "agent-2": 1}
    assert len(formed.models) == 2


def test_a_newcomer_joins_the_leader_that_it_resembles() -> None:
    start = State(np.zeros(2, np.float32))
    formed = MyMethod().form_clusters(start, signatures([1.0, 0.0], [0.0, 1.0]))
    late = [("late", signatures([0.1, 1.0])[0][1])]
    assert MyMethod().assign_newcomers(formed, late).assign["late"] == 1
