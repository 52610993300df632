"""A fold, tried: what the reports of a closed step make of the state, before the run takes it over."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from covey.coordinator.fold import limits
from covey.coordinator.fold.arrivals import Arrivals
from covey.coordinator.fold.means import Means, means_of
from covey.coordinator.fold.private_sums import PrivateSums
from covey.coordinator.fold.statistics import pooled_statistics
from covey.shared.client import VOTE
from covey.shared.numerics.votes import Vote
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies import phase_names
from covey.shared.strategies.base import ClientId, Phase, Report, Reports, Sums
from covey.shared.strategies.reading import alternative, fold, sums_of

MAX_REASON = 300  # characters of a fold's failure that are kept

Figures = dict[str, Any]
Scaling = dict[
    str, Any
]  # the fleet's statistics, as `covey.shared.scenario.fleet_statistics` describes them


@dataclass(frozen=True)
class Outcome:
    """The strategy's state after a fold, and all else that the run takes over from it."""

    state: Any
    means: Means  # of the reporters, for the record
    scaling: Scaling | None = None  # of the phase that finds moments
    evaluation: Mapping[ClientId, Figures] = field(default_factory=dict)  # by mode
    votes: Mapping[ClientId, Vote] = field(default_factory=dict)  # of the evaluation


@dataclass(frozen=True)
class FoldTrial:
    """Folds the reports of one phase as often as needed; nothing of the run changes."""

    scenario: Scenario
    state: Any  # the strategy's, before the fold
    phase: Phase
    newcomers: Collection[ClientId]
    trained: Collection[ClientId]  # agents that a training round has drawn so far
    privacy: PrivateSums | None
    step: int  # number of the step that the phase was
    parameters: int | None = (
        None  # P, the values at the front of a model that are trained; None: all
    )

    def outcome(self, reports: Reports, arrivals: Arrivals | None = None) -> Outcome:
        """The fold of these reports. Raises whatever a report makes it raise.

        With `arrivals` the means are those that were added up when the reports arrived; the outcome is the same.
        """
        settings = self.scenario.aggregation
        fair = limits.capped(reports, settings)
        match self.phase.name:
            case phase_names.MOMENTS:
                moments = [report.numbers for _, report in fair]
                scaling = pooled_statistics(moments, self.scenario.task, settings)
                limits.check_json(scaling, "the scaling")
                means = self._means(fair)
                return Outcome(self.state, means, scaling=scaling)
            case phase_names.EVALUATE:
                votes = self._votes(fair)
                claims = {
                    client: {mode: row for mode, row in report.numbers.items() if mode != VOTE}
                    for client, report in fair
                }
                evaluation = limits.fair_figures(claims, settings)
                means = self._means(_with_numbers(fair, evaluation))
                state = self.state
                fallback = self.scenario.strategy.fallback
                if votes and fallback is not None:
                    against = {client: vote.is_against for client, vote in votes.items()}
                    state = fallback.voted(state, against)
                return Outcome(state, means, evaluation=evaluation, votes=votes)
            case _:
                state = self._folded(fair, arrivals)
                limits.check_sound(self.scenario.strategy, state)
                return Outcome(state, self._means(fair))

    def steps(self, reports: Reports) -> list[limits.Step]:
        """How far the reports moved from their models; empty where this refuses no report.

        Where this cannot be computed, the fold fails as well and finds the report that is to blame.
        """
        if self.phase.name in phase_names.OF_THE_RUN:
            return []
        if self.scenario.aggregation.refuse_beyond is None:
            return []
        privacy = self.scenario.privacy
        is_private = privacy is not None and privacy.client is not None
        if is_private:
            # every report is clipped; and whom to refuse must not depend on what the others sent
            return []
        strategy = self.scenario.strategy
        try:
            return limits.steps_of(strategy, self.state, self.phase, reports)
        except (OSError, MemoryError):
            raise
        except Exception:
            return []

    def _votes(self, reports: Reports) -> dict[ClientId, Vote]:
        """Those of agents that were asked: a method without alternatives asks none."""
        strategy = self.scenario.strategy
        votes: dict[ClientId, Vote] = {}
        for client, report in reports:
            if VOTE in report.numbers and alternative(strategy, self.state, client):
                votes[client] = Vote.from_wire(report.numbers[VOTE])
        return votes

    def _folded(self, reports: Reports, arrivals: Arrivals | None) -> Any:
        """The strategy's state, from sums that are there already or are made now."""
        strategy = self.scenario.strategy
        settings = self.scenario.aggregation
        if arrivals is not None:
            sums: Sums = arrivals.sums(self.state, self.phase, reports)
        else:
            if settings.clips:
                steps = limits.steps_of(strategy, self.state, self.phase, reports)
                reports = limits.clip(strategy, self.state, reports, steps, settings)
            if self.privacy is not None:
                sums, reports = self.privacy.sums(
                    self.state, self.phase, reports, settings.average, step=self.step
                )
            else:
                sums = sums_of(strategy, self.state, self.phase, reports, settings.average)
        return fold(strategy, self.state, self.phase, sums, reports, self.parameters)

    def _means(self, reports: Reports) -> Means:
        means = means_of(
            reports,
            self.phase.name,
            self.scenario.evaluation.weight,
            self.newcomers,
            self.trained,
            self.scenario.aggregation.max_samples.share,
        )
        limits.check_json(means.to_json(), "its averages")
        return means


def failure_of(error: Exception) -> str:
    """Why a fold failed that no report is to blame for, for the record."""
    kind = type(error).__name__
    reason = f"the fold failed: {kind}: {error}"
    return reason[:MAX_REASON]


def _with_numbers(
    reports: Reports, numbers: Mapping[ClientId, Figures]
) -> list[tuple[ClientId, Report]]:
    changed: list[tuple[ClientId, Report]] = []
    for client, report in reports:
        with_numbers = replace(report, numbers=numbers[client])
        changed.append((client, with_numbers))
    return changed
