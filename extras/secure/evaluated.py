"""What the coordinator takes over from an evaluation under secure sums: averages, and no figure of an agent."""

from __future__ import annotations

from itertools import chain
from typing import Any

from covey.coordinator.fold import limits
from covey.coordinator.fold.folding import FoldOutcome
from covey.coordinator.fold.means import Means
from covey.shared.scenario.scenario import Scenario


def outcome(scenario: Scenario, state: Any) -> FoldOutcome:
    """Of the fold of its last phase, which gave this state. Raises UnsoundFoldError for averages that are not finite."""
    secured = scenario.sums
    figures = None if secured is None else secured.figures(state)
    assert figures is not None  # noqa: S101 - no other phase is the last of an evaluation
    means = Means(evaluation=figures.modes, by_cluster=figures.by_cluster or None)
    limits.check_json(means.to_json(), "its averages")
    agents = sorted(chain(*figures.groups))
    fleet = None if figures.fleet is None else dict(figures.fleet)
    return FoldOutcome(state, means, evaluation={client: {} for client in agents}, fleet=fleet)
