"""All that a run consists of. Its own modules alone change it; everyone else reads it, and gives the run events."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.coordinator.checks import MAX_OTHER_BYTES, largest_report_of
from covey.coordinator.disk.spool import Circumstances
from covey.coordinator.disk.versions import ModelVersion
from covey.coordinator.engine.rounds import RoundEngine
from covey.coordinator.fold.folding import Folding, FoldOutcome
from covey.coordinator.record import records
from covey.coordinator.record.notices import Record
from covey.coordinator.record.recorder import Recorder
from covey.coordinator.record.store import Store
from covey.coordinator.run.effects import Announce, Effect, SendOrder
from covey.coordinator.run.orders import OrderBook
from covey.coordinator.run.run_state import RunState, note_outcome
from covey.shared.numerics.vectors import Vector
from covey.shared.scenario.fleet_statistics import resolved
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import ClientId, Phase, Reports, Setup, View
from covey.shared.strategies.part_local import whole_models
from covey.shared.strategies.phase_names import EVALUATE, MOMENTS

if TYPE_CHECKING:
    from covey.extras.private.private_sums import PrivateSums


@dataclass(kw_only=True, eq=False, repr=False)
class Parts:
    """What the modules of a run share, its models and orders, and its checkpoint."""

    folder: Path
    scenario: Scenario
    setup: Setup
    engine: RoundEngine
    facts: RunState
    store: Store
    state: Any = None  # the strategy's; its arrays are mapped from the checkpoint
    folding: Folding | None = None  # of the newest step; None once it is over
    privacy: PrivateSums | None = None  # None without a `privacy` section
    direct_phases: set[str] = field(default_factory=set)  # aggregators cannot add their reports up

    def __post_init__(self) -> None:
        scenario, engine, facts = self.scenario, self.engine, self.facts
        self.strategy = scenario.method
        self.members = engine.members
        self.orders = OrderBook(scenario, self.setup, engine=engine, facts=facts, store=self.store)
        self.recorder = Recorder(scenario, engine, self.store)
        self.traffic: Counter[str] = Counter(facts.traffic)  # totals of values and bytes
        self._began = time.monotonic()  # of this session
        engine.pace.trains_on = facts.trains_on

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} in {self.folder}: {self.engine!r}>"

    @property
    def id(self) -> str:
        """Names the run towards agents; never changes."""
        return self.facts.run

    @property
    def assignment(self) -> Mapping[ClientId, int]:
        """The cluster of each agent; empty for a method without an assignment."""
        return self.strategy.assignment(self.state)

    @property
    def models(self) -> tuple[Vector, ...]:
        """The models (d,), one per cluster; empty where they never leave the devices."""
        return whole_models(self.strategy, self.state, self.setup)

    @property
    def task_of_models(self) -> dict[str, Any]:
        """The task that the models solve, with the statistics that the fleet found and the tensors that devices keep."""
        task = resolved(self.scenario.task, self.facts.scaling).for_agents()
        split = self.setup.split
        kept = [] if split is None else [tensor.name for tensor in split.tensors("keep")]
        return {**task, "keep": kept} if kept else task

    def version(self, figure: Mapping[str, Any]) -> ModelVersion:
        """The models as they are now; `figure` is that of their evaluation, or empty."""
        return ModelVersion(
            run=self.id,
            round=self.engine.round,
            task=self.task_of_models,
            layout=self.setup.whole,
            models=self.models,
            assignment=dict(self.assignment),
            figure=figure,
        )

    @property
    def open_folding(self) -> Folding:
        """The fold of a step that is open, or has just been closed."""
        assert self.folding is not None  # noqa: S101 - the engine has looked at the step
        return self.folding

    def folding_of(self, number: int, phase: Phase) -> Folding:
        """The fold of a step that has just been opened, or closed in buffered rounds."""
        return Folding(
            self.scenario,
            self.store.reports,
            number,
            phase,
            asked=None if self.engine.step is None else self.engine.step.asked,
            newcomers=self.engine.rules.newcomers,
            members=self.members,
            usual=self.facts.usual,
            privacy=self.privacy,
            parameters=self.setup.layout.parameters,
        )

    def own_phase(self, client: ClientId) -> Phase:
        """The phase of one agent's own order: a round's training, or a newcomer's entry."""
        engine = self.engine
        view = View(round=engine.round, rounds=engine.rules.rounds, attempt=0, present=(client,))
        return self.strategy.plan(self.state, view)

    def samples_of(self, client: ClientId) -> int | None:
        """The training samples of an agent's status; None if it has none, or if its data may have drifted since."""
        fleet = self.scenario.fleet
        if fleet is not None and fleet.drift is not None:
            return None
        samples = self.members.of(client).samples
        return None if samples is None else max(samples[0], 1)  # one counts where it is hidden

    def order_of(self, client: ClientId) -> SendOrder:
        """What this agent should do now."""
        return self.orders.order_of(client, self.state)

    def orders_of(self, clients: Iterable[ClientId]) -> list[SendOrder]:
        """What these agents should do now."""
        return [self.orders.order_of(client, self.state) for client in clients]

    def desired(self) -> list[Effect]:
        """All that should be retained at the broker now: models first, then the order of each agent."""
        orders = self.orders_of(sorted(self.engine.known))
        return [*self.orders.models_of(orders), *orders]

    @property
    def largest_report(self) -> int:
        """Bytes that no report of the open step can exceed, in any codec."""
        step = self.engine.step
        return MAX_OTHER_BYTES if step is None else largest_report_of(step.phase)

    @property
    def is_direct(self) -> bool:
        """Whether the coordinator turned out to need the reports of the newest step themselves, and not sums of them."""
        folding = self.folding
        return folding is not None and (
            folding.is_direct or folding.phase.name in self.direct_phases
        )

    def recorded(self, record: Record) -> Announce:
        """Write a line of the record and show it."""
        self.store.line(record)
        return Announce(record)

    def keep_waiting(self) -> None:
        """The spool keeps the reports that wait, whatever else it drops."""
        self.store.reports.kept = {report.step for report in self.engine.pace.waiting()}

    def take(
        self,
        phase: Phase,
        reports: Reports,
        outcome: FoldOutcome,
        circumstances: Mapping[ClientId, Circumstances],
    ) -> None:
        """Make a fold the run's own."""
        self.state = outcome.state
        if self.privacy is not None:
            self.privacy.count_sums(phase, reports, self.state)
        note_outcome(
            self.facts,
            self.members,
            self.scenario,
            phase=phase,
            round_=self.engine.round,
            reports=reports,
            outcome=outcome,
            circumstances=circumstances,
        )
        # members of a secure sum have the same orders: each time what does not travel is among them
        is_told_once = self.setup.rest is not None and not self.scenario.is_summed
        if is_told_once and phase.name not in (MOMENTS, EVALUATE):
            for client, _ in reports:
                self.members.of(client).owns = self.engine.round

    def count_up(self, step: int, clients: Iterable[ClientId]) -> None:
        """Count what reports carried, once their step is over: until then the spool knows it, also after a kill."""
        self.traffic["up_vectors"] += self.store.reports.values(step, clients)

    @property
    def seconds(self) -> float:
        """Wall time of the run, earlier sessions included."""
        return self.facts.seconds + time.monotonic() - self._began

    def snapshot(self) -> dict[str, Any]:
        """What a checkpoint has besides the strategy's state: scenario, engine, and this run's own memory."""
        self.keep_waiting()
        self.facts.traffic = dict(self.traffic)
        saved = self.facts.to_json() | self.members.to_json()
        saved["seconds"] = self.seconds
        return {
            "scenario": records.scenario_digest(self.scenario),
            "engine": self.engine.snapshot(),
            "run": saved,
        }
