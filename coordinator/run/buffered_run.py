"""A run with buffered rounds: what a `Run` does differently if every agent has an order of its own.

A report that waits in a buffer is in the spool under the number of its order, and in the checkpoint before its agent
learns that it was accepted. A fold gathers its reports under a number of its own; from there on it is that of a
synchronous round. Reports that began with an older model are carried over to the present one first:

    w_i' = w + (1 + s)^-a * (w_i - w_i,start)

w is the cluster's model now, w_i what agent i trained, w_i,start the version that it began with and s the folds of
that model since then. The fold takes w_i' as if the agent had begun with w. If all agents have equally many samples, the mean of these is
FedBuff's update (Nguyen et al. 2022, algorithm 1, server learning rate 1). Our deviation: FedBuff's mean is uniform, ours
counts samples. Robust rules and clipping see the same steps. A fresh report (s = 0) is folded as it came.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

from covey.coordinator.engine.buffered import BufferedEngine
from covey.coordinator.engine.events import (
    ANY,
    NONE,
    Close,
    Event,
    Failed,
    Give,
    Joined,
    Refused,
    Reported,
)
from covey.coordinator.engine.rounds import RoundEngine
from covey.coordinator.engine.rules import Rules
from covey.coordinator.engine.step import Step
from covey.coordinator.engine.stream import Stream
from covey.coordinator.run.buffered_orders import BufferedOrderBook, lost_orders
from covey.coordinator.run.event_log import Arrival, Restarted, arrivals_journal
from covey.coordinator.run.fold_trial import FoldTrial
from covey.coordinator.run.folder import IN_PROCESS
from covey.coordinator.run.orders import OrderBook
from covey.coordinator.run.origin import Origin
from covey.coordinator.run.run import Effects, Performed, Run
from covey.coordinator.run.run_state import RunState
from covey.coordinator.run.spool import Spool
from covey.shared.errors import DecodeError
from covey.shared.numerics.vectors import Vector, combine
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import MODEL, ClientId, Phase, Report, Setup, View
from covey.shared.strategies.phase_names import TRAIN

ClientReports = list[tuple[ClientId, Report]]


class BufferedRun(Run):
    """One run with buffered rounds in one folder."""

    engine_kind: ClassVar[type[RoundEngine]] = BufferedEngine
    order_book: ClassVar[type[OrderBook]] = BufferedOrderBook
    engine: BufferedEngine
    orders: BufferedOrderBook

    def __init__(
        self,
        folder: Path,
        scenario: Scenario,
        setup: Setup,
        engine: RoundEngine,
        facts: RunState,
        audit_key: bytes | None = None,
    ) -> None:
        super().__init__(folder, scenario, setup, engine, facts, audit_key)
        self.log = arrivals_journal(folder, facts.events, self.room)
        self.engine.trains_on = facts.trains_on

    @classmethod
    def start(
        cls,
        folder: Path,
        scenario: Scenario,
        setup: Setup,
        rules: Rules,
        run: str,
        now: float,
        audit_key: bytes | None = None,
        origin: Origin | None = None,
    ) -> Self:
        this = super().start(folder, scenario, setup, rules, run, now, audit_key, origin)
        if run != IN_PROCESS:  # there an evaluation takes no time
            this.train_on()
        return this

    def train_on(self) -> None:
        """Give orders during evaluations too, from the start of the run."""
        self.facts.trains_on = True
        self.engine.trains_on = True

    @classmethod
    def lost_orders(cls, folder: Path, engine: Mapping[str, Any], spool: Spool) -> Collection[int]:
        # no number is lost yet: this is the stream as it was saved
        stream = Stream.from_json(engine["stream"], ())
        numbers: list[int] = [order.step for order in stream.orders.values()]
        lost: set[int] = set()
        for report in stream.waiting():
            numbers.append(report.step)
            if report.client not in spool.sound(report.step):
                lost.add(report.step)
        lost |= lost_orders(folder / "outgoing", numbers)
        return lost

    def _resumed(self, reported: Sequence[ClientId], lost: Collection[int], now: float) -> None:
        self.log.add(Arrival(now, Restarted(tuple(reported), tuple(sorted(lost)))))
        self.orders.restore()
        self._keep_waiting()

    # -- reports -----------------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> Effects:
        self.log.add(Arrival(now, event))
        if isinstance(event, Reported | Failed | Refused):
            # an agent at work; reports of a step of all agents are safe in the spool
            is_at_work = event.client in self.engine.stream.orders
            self._has_changed = self._has_changed or is_at_work
        effects = super().handle(event, now)
        if isinstance(event, Joined):
            effects += self._whole_order(event.client)
        return effects

    def _whole_order(self, client: ClientId) -> Effects:
        """An agent that is back may have lost what its brief order shares with others, and the brokers may have it no more."""
        order = self.engine.stream.orders.get(client)
        if order is None or not self.orders.is_outdated(order.step):
            return []
        return [self.order_of(client)]

    def _phase_of(self, client: ClientId, number: int) -> Phase:
        if not self.engine.is_at_work(client, number):
            return super()._phase_of(client, number)
        phase = self._phase_for(client)
        work = self.orders.work_of(client, number, self.state)
        if phase.name != work.phase:
            what = f"report of phase {work.phase}, now due is {phase.name}"
            raise DecodeError("other phase", what)
        return phase

    def _phase_for(self, client: ClientId) -> Phase:
        """The phase of one agent's order: a round's training, or a newcomer's entry."""
        view = View(
            round=self.engine.round, rounds=self.engine.rules.rounds, attempt=0, present=(client,)
        )
        return self.strategy.plan(self.state, view)

    def _reported(self, client: ClientId, number: int, report: Report) -> Reported:
        if not self.engine.is_at_work(client, number):
            return super()._reported(client, number, report)
        phase = self._phase_for(client)
        is_entry = phase.name != TRAIN
        if is_entry:
            return Reported(client, number, phase=phase)
        cluster = self.strategy.buffer_of(self.state, client, report)
        key = self._started_from(client, report, number)
        began_with = None if key is None else int(key) if key.isdecimal() else NONE
        if self.strategy.ages_together():
            began_with = ANY
        return Reported(client, number, cluster, began_with)

    def _accept(self, client: ClientId, step: int) -> None:
        if not self.engine.is_at_work(client, step):
            super()._accept(client, step)
            return
        self.facts.accepted[client] = step
        self.spool.kept.add(step)

    # -- orders ------------------------------------------------------------------------------------

    def _buffer_sizes(self, phase: Phase | None) -> Mapping[int, int] | None:
        if phase is None or phase.name != TRAIN:
            return None
        if not self.strategy.may_buffer(self.state):
            return None
        return Counter(self.strategy.assignment(self.state).values())

    def _give(self, give: Give) -> Effects:
        """Make new orders; the checkpoint knows them before they are sent."""
        clients: list[ClientId] = []
        for client, number in give.orders:
            self.orders.make(client, number, self._phase_for(client), self.state)
            clients.append(client)
        orders = self.orders.orders_of(clients, self.state)
        models = self.orders.models_of(orders)
        for send in orders:
            values, size = self.orders.volume(send)
            self.traffic["down_vectors"] += values
            self.traffic["down_models"] += size
        self.audit.note("give", round=self.engine.round, orders=dict(give.orders))
        dropped = self.orders.tidy()
        self._has_changed = True
        return [*dropped, *models, *orders]

    # -- the fold ----------------------------------------------------------------------------------

    def _close(self, close: Close) -> Performed:
        buffer = close.buffer
        if buffer is not None:
            self.spool.gather(close.step, zip(close.reporters, buffer.steps, strict=True))
        return super()._close(close)

    def _prepared(self, close: Close, reports: ClientReports) -> ClientReports:
        buffer = close.buffer
        if buffer is None or buffer.cluster is None:
            return reports
        reporters = close.reporters
        step_of = dict(zip(reporters, buffer.steps, strict=True))
        staleness_of = dict(zip(reporters, buffer.staleness, strict=True))
        prepared: ClientReports = []
        for client, report in reports:
            staleness = staleness_of[client]
            if staleness:
                report = self._carried_over(client, report, step_of[client], staleness)
            prepared.append((client, report))
        return prepared

    def _carried_over(self, client: ClientId, report: Report, step: int, staleness: int) -> Report:
        """A stale report as if its agent had begun with the present model."""
        key = self._started_from(client, report, step)
        if key is None:
            return report
        share = staleness_weight(staleness, self.scenario.rounds.staleness)
        trained = report.vectors[MODEL]
        start = self.orders.start_of(step, key)
        present = self.strategy.model(self.state, key)
        terms: list[tuple[Vector, float]] = [(present, 1.0), (trained, share), (start, -share)]
        carried = combine(terms)
        vectors = dict(report.vectors)
        vectors[MODEL] = carried
        return replace(report, vectors=vectors)

    def _started_from(self, client: ClientId, report: Report, step: int) -> str | None:
        """The key of the model that the agent began with: the only one of its order, or the one that it chose."""
        keys = self.orders.keys_of(step)
        if len(keys) == 1:
            [only] = keys
            return only
        chosen = self.strategy.base(self.state, self._phase_for(client), client, report, MODEL)
        if chosen not in keys:
            return None
        return chosen

    def _trial(self, step: Step) -> FoldTrial:
        return replace(super()._trial(step), buffered=self.engine.folds_a_buffer)

    # -- the checkpoint ----------------------------------------------------------------------------

    def _save(self) -> None:
        self._keep_waiting()
        self.log.flush()
        self.facts.events = self.log.count
        super()._save()
        self.orders.remove_useless_files()

    def _keep_waiting(self) -> None:
        """The spool keeps the reports that wait, whatever else it drops."""
        self.spool.kept = {report.step for report in self.engine.stream.waiting()}


def staleness_weight(staleness: int, exponent: float) -> float:
    """(1 + s)^-a: what a report counts after s folds of the model that it began with (Nguyen et al. 2022, section 5)."""
    age = 1 + staleness
    weight: float = age**-exponent
    return weight


def run_kind(scenario: Scenario) -> type[Run]:
    """The class of a scenario's runs."""
    if scenario.rounds.mode == "buffered":
        return BufferedRun
    return Run
