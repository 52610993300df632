"""Makes what a run writes for people and programs while it runs: lines of the record and of the audit log, and sketches."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from covey.coordinator.disk.spool import Circumstances
from covey.coordinator.engine.events import Close
from covey.coordinator.engine.rounds import RoundEngine
from covey.coordinator.engine.step import Step
from covey.coordinator.fold.folding import FoldOutcome
from covey.coordinator.fold.means import means_by_cluster
from covey.coordinator.record import records
from covey.coordinator.record.notices import PhaseFolded
from covey.coordinator.record.store import Store
from covey.shared import extras
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies import phase_names
from covey.shared.strategies.base import ClientId, Reports


@dataclass(frozen=True)
class FoldedStep:
    """A closed step whose reports are in the strategy's state, as its line of the record describes it."""

    step: Step
    close: Close
    outcome: FoldOutcome
    clusters_before: Mapping[ClientId, int]
    circumstances: Mapping[ClientId, Circumstances]  # of the reporters
    fold_s: float


class Recorder:
    """The record, the audit log and the sketches of one run, which go into its store."""

    def __init__(self, scenario: Scenario, engine: RoundEngine, store: Store) -> None:
        self._scenario = scenario
        self._engine = engine
        self._store = store
        # when the open step's first order was made, or this process took the step up: on the monotonic clock
        self._opened_at = time.monotonic()

    def __repr__(self) -> str:
        return f"<Recorder of {self._store!r}>"

    def step_opened(self) -> None:
        """The time of a step begins."""
        self._opened_at = time.monotonic()

    def note_start(self) -> None:
        scenario = self._scenario
        digest = records.scenario_digest(scenario)
        self._store.note(
            "start", name=scenario.name, method=scenario.strategy.name, scenario=digest
        )

    def note_resume(self, reports: Sequence[ClientId]) -> None:
        engine = self._engine
        self._store.note("resume", round=engine.round, step=engine.number, reports=len(reports))

    def note_orders(self, cohort: Sequence[ClientId], models: Mapping[str, str]) -> None:
        """One audit line for all who get an order: what they are asked for, with which models."""
        step = self._engine.step
        if step is None:
            return
        self._store.note(
            "order",
            step=step.number,
            round=self._engine.round,
            attempt=self._engine.attempt,
            phase=step.phase.name,
            method=self._scenario.strategy.name,
            cohort=sorted(cohort),
            models=models,
        )

    def note_fold(self, folded: FoldedStep) -> None:
        """One audit line for all reports of a step, by digest: until then the spool is the receipt."""
        self._store.note(
            "fold",
            step=folded.close.step,
            round=self._engine.round,
            phase=folded.step.phase.name,
            reporters={client: one.digest for client, one in folded.circumstances.items()},
            missing=list(folded.close.missing),
        )

    def phase_record(
        self,
        folded: FoldedStep,
        state: Any,
        traffic: Mapping[str, int],
        privacy: dict[str, Any] | None,
    ) -> PhaseFolded:
        """The line of the record about a fold; `state` is the strategy's after it."""
        step = folded.step
        close = folded.close
        strategy = self._scenario.method
        own_phase = step.phase.name not in phase_names.OF_THE_RUN
        clusters = strategy.assignment(state)
        came_about = folded.circumstances
        devices = records.counted({client: one.device for client, one in came_about.items()})
        only_cpus = not set(devices) - {"cpu"}
        means = folded.outcome.means
        if step.phase.name == phase_names.EVALUATE and step.phase.is_evaluation and clusters:
            means = replace(means, by_cluster=means_by_cluster(folded.outcome.evaluation, clusters))
        return PhaseFolded(
            phase=step.phase.name,
            ends_round=step.phase.ends_round,
            round=self._engine.round,
            step=close.step,
            invited=sorted(step.cohort),
            reported=list(close.reporters),
            missing=list(close.missing),
            client_state={
                client: one.client_state
                for client, one in came_about.items()
                if one.client_state != "whole"
            },
            devices={} if only_cpus else devices,
            cluster_sizes=records.sizes(clusters, self._engine.members.expelled),
            moved=_moved(folded.clusters_before, clusters),
            means=means,
            seconds=round(time.monotonic() - self._opened_at, 6),
            train_seconds=round(sum(one.seconds for one in came_about.values()), 6),
            fold_seconds=round(folded.fold_s, 6),
            traffic=dict(traffic),
            notes=dict(strategy.shown(state).notes) if own_phase else {},
            privacy=privacy,
            took=_took(step, close.reporters),
            deadline_s=None if step.adapted_s is None else round(step.adapted_s, 3),
        )

    def keep_sketches(self, step: Step, state: Any, reports: Reports, values: int) -> None:
        """Sketches of the reported models, for pictures, where the scenario asks for them; `values` of a whole model."""
        scenario = self._scenario
        size = scenario.sketch
        if not size or step.phase.name in phase_names.OF_THE_RUN or not extras.has("dashboard"):
            return
        found = extras.part("dashboard", "sketches").sketched(
            scenario.method, state, reports, size=size, seed=scenario.seed, values=values
        )
        if found is not None:
            self._store.sketches(found, step.number)


def _took(step: Step, reporters: Sequence[ClientId]) -> list[float]:
    """How long each reporter took; empty after a restart in the step, and where no time passes."""
    times = [step.took.get(one, -1.0) for one in reporters]
    return [round(one, 3) for one in times] if min(times, default=0.0) >= 0.0 and any(times) else []


def _moved(before: Mapping[ClientId, int], after: Mapping[ClientId, int]) -> int:
    """How many agents are in another cluster than before; those that have left all clusters do not count."""
    moved = 0
    for client, cluster in before.items():
        if client in after and after[client] != cluster:
            moved += 1
    return moved
