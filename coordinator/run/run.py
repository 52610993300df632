"""The run: engine, strategy, store and records put together, without a network.

Events go in, effects come out: what is to be published. The service sends effects over a link; the
in-process driver hands them to local clients. Both therefore compute the same bytes.

The store has everything that an event leads to before anything else happens. One `commit` makes all that came together
survive a power cut, and only then does the caller get the effects: `handle_all` decides on this order.

In buffered rounds every agent has an order of its own. A report that waits in a buffer is in the spool under the number of
its order. A fold gathers its reports under a number of its own; from there on it is that of a synchronous round.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from covey.coordinator.checks import MAX_OTHER_BYTES, largest_report_of, read_report
from covey.coordinator.disk.checkpoint import Checkpoint
from covey.coordinator.disk.spool import Circumstances
from covey.coordinator.disk.versions import ModelVersion
from covey.coordinator.engine import events
from covey.coordinator.engine.members import MAX_FAILURE_CHARS
from covey.coordinator.engine.pace import Pace
from covey.coordinator.engine.rounds import RoundEngine
from covey.coordinator.engine.rules import RoundRules
from covey.coordinator.fold import limits, stale_reports
from covey.coordinator.fold.folding import (
    Folding,
    FoldOutcome,
    Guilty,
    Hopeless,
    Missing,
    Reasons,
    Sound,
)
from covey.coordinator.fold.stale_reports import Began
from covey.coordinator.record import notices, records
from covey.coordinator.record.event_log import Arrival, Restarted
from covey.coordinator.record.recorder import FoldedStep, Recorder
from covey.coordinator.record.store import Ends, Store
from covey.coordinator.run import early_stop
from covey.coordinator.run.effects import (
    Announce,
    Effect,
    Question,
    ReportTaken,
    RunOver,
    SendOrder,
)
from covey.coordinator.run.folder import IN_PROCESS, Origin
from covey.coordinator.run.orders import OrderBook
from covey.coordinator.run.own_orders import lost_orders
from covey.coordinator.run.run_state import RunState, next_phase, note_outcome
from covey.shared.errors import HONEST_REFUSALS, DecodeError
from covey.shared.numerics.vectors import Vector
from covey.shared.scenario.fleet_statistics import resolved
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import ClientId, Phase, Reports, Setup, View
from covey.shared.strategies.part_local import whole_models
from covey.shared.strategies.phase_names import AHEAD, EVALUATE, MOMENTS, TRAIN
from covey.shared.wire.messages import ReportContent, digest

if TYPE_CHECKING:
    from covey.coordinator.fold.private_sums import PrivateSums

Effects = list[Effect]


def _private_sums(
    folder: Path, scenario: Scenario, ledger: dict[str, Any], *, resumed: bool
) -> PrivateSums | None:
    """What makes the sums of a run whose `privacy` section adds noise, and keeps its account; None without one."""
    if scenario.privacy is None or not scenario.privacy.has_noise:
        return None
    from covey.coordinator.fold.private_sums import private_sums

    return private_sums(folder, scenario, scenario.privacy, ledger, resumed=resumed)


@dataclass(frozen=True)
class ReportCame:
    """A report of an agent is here as a whole, and nothing of it is known."""

    client: ClientId
    content: Callable[[], bytes]  # called once; the caller keeps nothing of it
    digest: bytes = b""  # of the content, if the caller has compared it already


class Came(ABC):
    """Something else that came over the wire, with its rules in a module of its own."""

    @abstractmethod
    def taken(self, run: Run, now: float) -> Effects:
        """The effects, before it is on the disk."""


@dataclass(frozen=True)
class GivenUp:
    """The run ends without its last round. It can be resumed: nothing of this is in the checkpoint."""

    why: str


Happening = events.Event | ReportCame | Came | GivenUp


class Run:
    """One run in one folder. Not thread-safe: one caller at a time."""

    def __init__(
        self,
        folder: Path,
        scenario: Scenario,
        setup: Setup,
        *,
        engine: RoundEngine,
        facts: RunState,
        store: Store,
    ) -> None:
        self.folder = folder
        self.scenario = scenario
        self.setup = setup
        self.strategy = scenario.method
        self.engine = engine
        self.members = engine.members
        self.facts = facts
        self.store = store
        self.folding: Folding | None = None  # of the newest step; None once it is over
        self.direct_phases: set[str] = set()  # aggregators cannot add their reports up
        self.orders = OrderBook(scenario, setup, engine=engine, facts=facts, store=store)
        self.recorder = Recorder(scenario, engine, store)
        self.state: Any = None  # the strategy's; its arrays are mapped from the checkpoint
        self.traffic: Counter[str] = Counter(facts.traffic)  # totals of values and bytes
        self.privacy: PrivateSums | None = None  # None without a `privacy` section
        self._began = time.monotonic()  # of this session
        # the engine's decisions that are not performed yet
        self._decisions: deque[events.Action] = deque()
        engine.pace.trains_on = facts.trains_on

    def __repr__(self) -> str:
        return f"<Run {self.facts.run} in {self.folder}: {self.engine!r}>"

    @classmethod
    def start(
        cls,
        folder: Path,
        scenario: Scenario,
        setup: Setup,
        *,
        rules: RoundRules,
        run: str,
        now: float,
        audit_key: bytes | None = None,
        origin: Origin | None = None,
    ) -> Self:
        """A new run in an empty folder, from nothing or from a finished run."""
        Store.cleared(folder)
        store = Store(folder, run, arrivals=rules.is_buffered, audit_key=audit_key)
        engine = RoundEngine(rules, now)
        # without a broker an evaluation takes no time
        facts = RunState(run, trains_on=rules.is_buffered and run != IN_PROCESS)
        this = cls(folder, scenario, setup, engine=engine, facts=facts, store=store)
        if origin is None:
            this.state = this.strategy.init(setup)
        else:
            this.state = origin.state(scenario, setup)
            facts.scaling = origin.scaling
            facts.origin = origin.to_json()
        this.recorder.note_start()
        this.privacy = _private_sums(folder, scenario, facts.ledger, resumed=False)
        store.changed()
        store.commit(this)
        return this

    @classmethod
    def resume(
        cls,
        folder: Path,
        scenario: Scenario,
        setup: Setup,
        *,
        rules: RoundRules,
        now: float,
        audit_key: bytes | None = None,
        lost: Collection[int] = (),
    ) -> tuple[Self, Effects]:
        """The run as its checkpoint has it, and what follows at once.

        `lost`: buffered rounds: orders whose reports count as lost, besides those that are not to be found.
        """
        checkpoint = Checkpoint(folder / "checkpoint")
        fresh = scenario.method.init(setup)
        saved = checkpoint.to_continue(fresh)
        saved_engine = saved["engine"]
        try:
            facts = RunState.from_json(saved["run"])
        except TypeError:  # keys of another version
            raise checkpoint.of_another_format() from None
        # the time, in milliseconds, lets it grow even if an old checkpoint was put back
        facts.incarnation = max(facts.incarnation + 1, int(1000 * time.time()))
        open_step = saved_engine["step"]
        number = 0 if open_step is None else open_step["number"]
        store = Store(
            folder,
            facts.run,
            Ends.from_json(saved["run"]),
            arrivals=rules.is_buffered,
            audit_key=audit_key,
        )
        spool = store.reports
        single = spool.sound(number)
        sums = spool.sums(number)
        summed: list[ClientId] = []
        if sums:
            from covey.coordinator.fold.partial_sums import clients_of, restore_sums

            summed = clients_of(sums.values())
        reported = sorted([*single, *summed])
        if facts.stopped:
            rules = replace(rules, rounds=saved_engine["round"])
        without = set(lost)
        if rules.is_buffered:
            without |= lost_orders(
                folder / "outgoing", Pace.from_json(saved_engine["stream"], ()), spool
            )
        engine, actions = RoundEngine.restore(
            rules, saved_engine, reported, now, without, run=saved["run"]
        )
        this = cls(folder, scenario, setup, engine=engine, facts=facts, store=store)
        store.happened(Arrival(now, Restarted(number, tuple(reported), tuple(sorted(without)))))
        this.orders.restore()
        this._keep_waiting()
        this.recorder.note_resume(reported)
        this.state = store.checkpoint.state(fresh)
        step = engine.step
        this.privacy = _private_sums(folder, scenario, facts.ledger, resumed=True)
        if step is not None:
            this.folding = this._folding_of(number, step.phase)
            if sums:
                restore_sums(this.folding, spool, this.state)
        for client in reported:
            this.members.accept(client, number)
        if this.privacy is not None and reported:  # the checkpoint may be older than these reports
            name = open_step["phase"]["name"]
            for client, report in spool.reports(number, reported):
                this.privacy.enter(name, number, client, report)
        store.changed()
        store.commit(this)  # with a higher incarnation, before anything is decided
        effects: Effects = [Announce(notices.ReportDamaged(why)) for why in spool.damaged]
        if store.rounds.lost:
            effects.append(this._recorded(notices.LinesLost(store.rounds.lost)))
        effects += this._perform_all(actions, now)
        store.commit(this)
        return this, effects

    def train_on(self) -> None:
        """In buffered rounds, give orders during evaluations too, from the start of the run."""
        self.facts.trains_on = True
        self.engine.pace.trains_on = True

    # -- events ------------------------------------------------------------------------------------

    def handle(self, event: Happening, now: float) -> Effects:
        """The effects of an event, once everything that it has changed is on the disk."""
        [effects] = self.handle_all([event], now)
        return effects

    def handle_all(self, happenings: Iterable[Happening], now: float) -> list[Effects]:
        """The effects of each of these, once everything that they have changed is on the disk: with one wait for it.

        Agents of a large fleet come and report by the hundred; a checkpoint of the whole fleet for each of them would
        be too much.
        """
        found = [self._decided(one, now) for one in happenings]
        self.store.commit(self)
        return found

    def _decided(self, happening: Happening, now: float) -> Effects:
        match happening:
            case ReportCame():
                return self._received(happening, now)
            case Came():
                return happening.taken(self, now)
            case events.Failed():
                return self.failed(happening, now)
            case events.Reported(client, step) if self.engine.refusal(client, step):
                return self.ignored(client, step, now)
            case GivenUp(why):
                self.engine.give_up()
                return self._finish(why)
        return self._engine_handles(happening, now)

    def _engine_handles(self, event: events.Event, now: float) -> Effects:
        """What an event of the roster, the clock or the operator leads to."""
        self.store.happened(Arrival(now, event))
        is_at_work = (
            isinstance(event, events.Reported | events.Failed | events.VoteRefused)
            and event.client in self.engine.pace.orders
        )
        # reports of a step of all agents are safe in the spool; also a kill does not end a pause
        if is_at_work or isinstance(event, events.Paused | events.Resumed):
            self.store.changed()
        effects = self._perform_all(self.engine.handle(event, now), now)
        if isinstance(event, events.Joined):
            effects += self._whole_order(event.client)
        return effects

    def _whole_order(self, client: ClientId) -> Effects:
        """An agent that is back may have lost what its brief order shares with others, and the brokers may have it no more."""
        order = self.engine.pace.orders.get(client)
        if order is None or not self.orders.is_outdated(order.step):
            return []
        return [self.order_of(client)]

    def _received(self, came: ReportCame, now: float) -> Effects:
        """A report counts, or it is shown why not, and that counts against its sender."""
        client = came.client
        try:
            # no name for the content: `accepted` drops the last reference to it
            effects = self.accepted(client, came.content(), now, came.digest)
        except DecodeError as error:
            self.store.audit.blame("refuse", client, str(error))
            effects = self.refused(client, error, now)
            return [*effects, ReportTaken(error.reason)]
        return [*effects, ReportTaken()]

    def accept(self, client: ClientId, content: bytes, now: float) -> Effects:
        """Check a report and keep it. Raises DecodeError for one that must be dropped."""
        effects = self.accepted(client, content, now)
        self.store.commit(self)
        return effects

    def accepted(
        self, client: ClientId, content: bytes, now: float, content_digest: bytes = b""
    ) -> Effects:
        """The same before it is on the disk.

        `content_digest` is the digest of the content if the caller has compared it already.
        """
        content_digest = content_digest or digest(content)
        report = ReportContent.from_bytes(content, verified=True)
        del content  # of a large model each copy counts; the caller keeps none
        if report.run != self.facts.run:
            raise DecodeError("other run", f"report of run {report.run}, this is {self.facts.run}")
        if report.client != client:
            raise DecodeError("other sender", f"report of {report.client} came from {client}")
        if report.failure is not None:
            return self.failed(events.Failed(client, report.step, report.failure), now)
        number = report.step
        why = self.engine.refusal(client, number)
        if why:
            self.store.audit.blame("ignored", client, why)
            return self.ignored(client, number, now)
        work = self.orders.work_of(client, number, self.state)
        if report.work != work.digest:
            raise DecodeError(
                "other work", f"the report came from other work than step {number} asks for"
            )
        is_own = self.engine.pace.is_at_work(client, number)
        phase = self._own_phase(client) if is_own else self._folding.phase
        if phase.name != work.phase:
            raise DecodeError(
                "other phase", f"report of phase {work.phase}, now due is {phase.name}"
            )
        checked = read_report(
            report,
            phase,
            self.scenario,
            train_samples=self.samples_of(client),
            base=self.orders.base,
        )
        member = self.members.of(client)
        member.refusal = ""
        self.store.reports.keep(
            number,
            client,
            checked,
            seconds=report.seconds,
            client_state=report.client_state,
            device=report.device,
        )
        reported = events.Reported(client, number)
        if is_own:
            self.store.reports.kept.add(number)
            member.accepted = number
            keys = self.orders.own.keys_of(number)
            reported = stale_reports.reported(
                self.strategy,
                self.state,
                phase,
                client=client,
                number=number,
                report=checked,
                keys=keys,
            )
        else:
            self._folding.add(client, checked, self.state)
            self.members.accept(client, number)
        self.store.note("accept", agent=client, step=number, report=content_digest.hex())
        if self.privacy is not None:
            self.privacy.enter(phase.name, number, client, checked)
        effects = self._engine_handles(reported, now)
        # the order is made now, when the engine knows of the report
        return [*effects, self.order_of(client)]

    def ignored(self, client: ClientId, step: int, now: float) -> Effects:
        """What follows from a report that the engine refuses: the agent learns what is due now."""
        # the engine refuses it again, and remembers it for the agent's story
        reported = events.Reported(client, step)
        return [*self._engine_handles(reported, now), self.order_of(client)]

    def _folding_of(self, number: int, phase: Phase) -> Folding:
        """The fold of a step that has just been opened, or closed in buffered rounds."""
        return Folding(
            self.scenario,
            self.store.reports,
            number,
            phase,
            newcomers=self.engine.rules.newcomers,
            members=self.members,
            usual=self.facts.usual,
            privacy=self.privacy,
            parameters=self.setup.layout.parameters,
        )

    @property
    def _folding(self) -> Folding:
        """The fold of a step that is open, or has just been closed."""
        assert self.folding is not None  # noqa: S101 - the engine has looked at the step
        return self.folding

    @property
    def is_direct(self) -> bool:
        """Whether the coordinator turned out to need the reports of the newest step themselves, and not sums of them."""
        folding = self.folding
        if folding is None:
            return False
        return folding.is_direct or folding.phase.name in self.direct_phases

    def samples_of(self, client: ClientId) -> int | None:
        """The training samples of an agent's status; None if it has none, or if its data may have drifted since."""
        fleet = self.scenario.fleet
        if fleet is not None and fleet.drift is not None:
            return None
        samples = self.members.of(client).samples
        return None if samples is None else samples[0]

    def _own_phase(self, client: ClientId) -> Phase:
        """The phase of one agent's own order: a round's training, or a newcomer's entry."""
        engine = self.engine
        view = View(round=engine.round, rounds=engine.rules.rounds, attempt=0, present=(client,))
        return self.strategy.plan(self.state, view)

    def accepted_together(
        self, step: int, reports: Mapping[ClientId, bytes], now: float
    ) -> Effects:
        """What follows from reports, given by their digests, whose sum lies in the spool."""
        for client, content_digest in reports.items():
            self.members.accept(client, step)
            self.members[client].refusal = ""
            self.store.note("accept", agent=client, step=step, report=content_digest.hex())
        effects = self._engine_handles(events.ReportedTogether(tuple(reports), step), now)
        return [*effects, *self.orders.orders_of(reports, self.state)]

    def failed(self, failed: events.Failed, now: float) -> Effects:
        """An agent reports that it could not do its work."""
        client, step, why = failed.client, failed.step, failed.why
        self.store.audit.blame("failed", client, f"step {step}: {why}")
        # perhaps the values that it keeps are lost: the next order brings initial ones
        member = self.members.of(client)
        member.owns = None
        # people count from one; after the last round agents are evaluated
        member.count_failure(min(self.engine.round + 1, self.engine.rules.rounds), why)
        effects = self._engine_handles(failed, now)
        return [*effects, Announce(notices.WorkFailed(client, step, why)), self.order_of(client)]

    def refused(self, client: ClientId, error: DecodeError, now: float) -> Effects:
        """What follows from a report that must be dropped: it is shown, and counts against its sender."""
        why = str(error)
        shown = Announce(notices.ReportRefused(client, why))
        if error.reason == "other run":
            return [shown]
        # its next orders tell the agent
        self.members.of(client).refusal = why[:MAX_FAILURE_CHARS]
        effects: Effects = []
        if error.reason not in HONEST_REFUSALS:
            effects = self._engine_handles(events.VoteRefused(client, why), now)
        return [shown, *effects, self.order_of(client)]

    @property
    def largest_report(self) -> int:
        """Bytes that no report of the open step can exceed, in any codec."""
        step = self.engine.step
        return MAX_OTHER_BYTES if step is None else largest_report_of(step.phase)

    def order_of(self, client: ClientId) -> SendOrder:
        """What this agent should do now."""
        return self.orders.order_of(client, self.state)

    def desired(self) -> Effects:
        """All that should be retained at the broker now: models first, then the order of each agent."""
        orders = self._orders_of_all()
        return [*self.orders.models_of(orders), *orders]

    def _orders_of_all(self) -> list[SendOrder]:
        return self.orders.orders_of(sorted(self.engine.known), self.state)

    # -- performing what the engine decides ----------------------------------------------------------

    def _perform_all(self, decisions: Iterable[events.Action], now: float) -> Effects:
        """Perform what the engine decides, until it waits for an event.

        A decision that the engine needs an answer to is the last one of several: nothing is overtaken.
        """
        effects: Effects = []
        self._decisions.extend(decisions)
        while self._decisions:
            decision = self._decisions.popleft()
            effects += self._perform(decision, now)
            # these change nothing of the run by themselves
            if not isinstance(decision, events.PlanPhase | events.Ask | events.Ignored):
                self.store.changed()
        return effects

    def _answer(self, event: events.Event, now: float) -> None:
        """Let the engine know what came of its decision; what it decides then is performed next."""
        self._decisions.extend(self.engine.handle(event, now))

    def _perform(self, action: events.Action, now: float) -> Effects:
        match action:
            case events.PlanPhase(view):
                effects = self._plan(view, now)
            case events.Close():
                effects = self._close(action, now)
            case events.Open(step, phase=phase, cohort=cohort):
                self.folding = self._folding_of(step, phase)
                self.recorder.step_opened()
                effects = self._invite(cohort)
            case events.Invite(_, client):
                effects = self._invite([client])
            case events.Give():
                effects = self._give(action)
            case events.Void():
                effects = self._void(action)
            case events.Quarantined():
                effects = self._quarantined(action)
            case events.Rested():
                effects = self._rested(action)
            case events.Released(client):
                effects = self._released(client)
            case events.Forgotten(client):
                effects = self._forgotten(client)
            case events.Ask(clients):
                effects = [Question(client) for client in clients]
            case events.Ignored(event, why):
                effects = [Announce(notices.ReportIgnored(getattr(event, "client", None), why))]
            case events.Finished(why):
                effects = self._finish(why)
        return effects

    def _plan(self, view: View, now: float) -> Effects:
        """Answer with the next phase, or with None where the run is over."""
        stopped = self._stop_early(view.round, view.rounds)
        if stopped:
            view = self.engine.end_rounds()
        phase = next_phase(self.scenario, self.state, self.facts, engine=self.engine, view=view)
        self._answer(events.Planned(phase, self._buffer_sizes(phase)), now)
        return stopped

    def _buffer_sizes(self, phase: Phase | None) -> Mapping[int, int] | None:
        """The agents of each cluster, if the phase is a round that takes place in buffers."""
        if not self.engine.rules.is_buffered or phase is None or phase.name != TRAIN:
            return None
        if not self.strategy.buffer.is_ready(self.state):
            return None
        return Counter(self.strategy.assignment(self.state).values())

    def _give(self, give: events.Give) -> Effects:
        """Make orders of single agents; the checkpoint knows them before they are sent."""
        for client, number in give.orders:
            self.orders.make(client, number, self._own_phase(client), self.state)
        orders = self.orders.orders_of([client for client, _ in give.orders], self.state)
        models = self.orders.models_of(orders)
        self._count_down(orders)
        self.store.note("give", round=self.engine.round, orders=dict(give.orders))
        dropped = self.orders.tidy()
        return [*dropped, *models, *orders]

    def _quarantined(self, action: events.Quarantined) -> Effects:
        client, refused, why = action.client, action.refused, action.why
        self.store.note("quarantine", agent=client, refused=refused, why=why)
        line = self._recorded(notices.AgentQuarantined(client, refused, why, self.engine.round))
        return [line, self.order_of(client)]

    def _rested(self, action: events.Rested) -> Effects:
        self.store.note("resting", agent=action.client, kind=action.kind, why=action.why)
        notice = notices.AgentRests(
            action.client, action.kind, action.times, action.until, action.why, self.engine.round
        )
        return [self._recorded(notice)]

    def _released(self, client: ClientId) -> Effects:
        self.store.note("release", agent=client)
        line = self._recorded(notices.AgentReleased(client, self.engine.round))
        return [line, self.order_of(client)]

    def _forgotten(self, client: ClientId) -> Effects:
        """The engine has forgotten the agent: no report, model or list of the run has it any more."""
        self.facts.odd = [one for one in self.facts.odd if client not in one["devices"]]
        if self.folding is not None:
            self.folding.remove(client)
            self.folding.is_direct = True  # an aggregator's sum may have its report
        step = self.engine.step
        own_steps = () if step is None else (step.number,)
        reports = self.store.reports
        for number in {*own_steps, *reports.kept}:
            reports.discard(number, client)
        self.state = self.strategy.forget(self.state, client)
        self.orders.forget_clusters()
        self.store.note("forget", agent=client)
        return [self._recorded(notices.AgentForgotten(client, self.engine.round))]

    def _finish(self, why: str) -> Effects:
        self.store.note("finish", round=self.engine.round, why=why)
        return [*self._orders_of_all(), RunOver(why)]

    def _recorded(self, record: notices.Record) -> Announce:
        """Write a line of the record and show it."""
        self.store.line(record)
        return Announce(record)

    def _stop_early(self, done: int, rounds: int) -> Effects:
        """The line that gives the method's reason to need no more rounds; empty where it needs more."""
        if done >= rounds:
            return []
        why = self.strategy.stop_reason(self.state) or early_stop.reason(
            self.scenario, self.facts.history
        )
        if not why:
            return []
        self.facts.stopped = why
        self.store.note("stopped", round=done, why=why)
        return [self._recorded(notices.RoundsStopped(done, rounds, why))]

    def _keep_best(self) -> None:
        """Keep the models on disk if the newest evaluation is the best so far."""
        figure = early_stop.best_figure(self.scenario, self.facts.history, self.engine.round)
        if figure is None:
            return
        version = self.version(figure)
        if version.models:  # they never leave the devices in some methods
            self.store.best(version)

    def version(self, figure: Mapping[str, Any]) -> ModelVersion:
        """The models as they are now; `figure` is that of their evaluation, or empty."""
        assignment = self.strategy.assignment(self.state)
        return ModelVersion(
            run=self.facts.run,
            round=self.engine.round,
            task=self.task_of_models,
            layout=self.setup.whole,
            models=self.models,
            assignment=dict(assignment),
            figure=figure,
        )

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

    def _invite(self, cohort: Sequence[ClientId]) -> Effects:
        """Orders for these agents and the models that they name; the checkpoint knows the step before they are sent."""
        orders = self.orders.orders_of(cohort, self.state)
        models = self.orders.models_of(orders)
        self._count_down(orders)
        self.recorder.note_orders(cohort, self.orders.digests())
        return [*models, *orders]

    def _count_down(self, orders: Sequence[SendOrder]) -> None:
        """Count what the models of these orders carry."""
        for send in orders:
            work = send.work
            if work is None:
                continue
            values, size = self.orders.volume(work)
            self.traffic["down_vectors"] += values
            self.traffic["down_models"] += size
            if EVALUATE in (work.phase, work.numbers.get(AHEAD)):  # papers do not count it
                self.traffic["evaluation_vectors"] += values
                self.traffic["evaluation_models"] += size

    def _void(self, void: events.Void) -> Effects:
        """Forget the reports of a step that came to nothing."""
        step, why, round_ = void.step, void.why, self.engine.round
        self._count_up(step, self.store.reports.who(step))
        self.store.note("void", round=round_, step=step, why=why)
        self.members.settle()
        self.folding = None
        self.store.step_over(step)
        line = self._recorded(notices.RoundVoid(round_, step, why))
        return [line, *self.orders.orders_of(void.cohort, self.state)]

    # -- the fold ----------------------------------------------------------------------------------

    def _close(self, close: events.Close, now: float) -> Effects:
        """Fold a closed step, or set the reports aside that make its fold fail."""
        step = self.engine.step
        assert step is not None  # noqa: S101 - the engine has just closed it
        number = close.step
        buffer = close.buffer
        if buffer is not None:
            self.store.reports.gather(number, zip(close.reporters, buffer.steps, strict=True))
            self.folding = self._folding_of(number, step.phase)
        phase = replace(
            step.phase,
            cohort=tuple(sorted(step.cohort)),
            buffer=None if buffer is None else buffer.cluster,
        )
        began = time.monotonic()
        match self._folding.close(close.reporters, phase, self.state, self._began_with(close)):
            case Missing(reasons):
                return self._ask_again(number, reasons, now)
            case Guilty(reasons):
                return self._set_aside(number, reasons, now)
            case Hopeless(why):
                self._answer(events.FoldFailed(why), now)
                return []
            case Sound(outcome, reports, moves):
                circumstances = self.store.reports.circumstances(number, close.reporters)
                clusters_before = dict(self.strategy.assignment(self.state))
                self._count_up(number, close.reporters)
                self._take(phase, reports, outcome, circumstances)
                self.facts.usual |= limits.usual_steps(moves)
                fold_s = time.monotonic() - began
                folded = FoldedStep(
                    step,
                    close,
                    outcome,
                    clusters_before=clusters_before,
                    circumstances=circumstances,
                    fold_s=fold_s,
                )
                return self._folded(folded, reports, now)

    def _began_with(self, close: events.Close) -> dict[ClientId, Began]:
        """What the agents of stale reports began with."""
        if close.buffer is None or close.buffer.cluster is None:
            return {}
        orders = zip(close.reporters, close.buffer.steps, close.buffer.staleness, strict=True)
        return {
            client: Began(
                phase=self._own_phase(client),
                keys=self.orders.own.keys_of(step),
                start=partial(self.orders.start_of, step),
                folds=folds,
            )
            for client, step, folds in orders
            if folds
        }

    def _take(
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

    def _folded(self, folded: FoldedStep, reports: Reports, now: float) -> Effects:
        """The state has the reports. Once the engine knows it, the record follows, and the spool is emptied."""
        close = folded.close
        privacy = None
        if self.privacy is not None:
            privacy = self.privacy.spent()
        record = self.recorder.phase_record(folded, self.state, self.traffic, privacy)
        record = replace(record, clock_s=self.facts.clock)
        buffer = close.buffer
        if buffer is not None:
            record = replace(record, buffer=buffer.cluster, staleness=list(buffer.staleness))
        self.recorder.note_fold(folded.step, close)
        self.folding = None
        self.orders.forget_models()
        self.members.settle()

        self._answer(events.Folded(), now)
        line = self._recorded(record)
        self.recorder.keep_sketches(folded.step, self.state, reports, self.setup.layout.size)
        if folded.step.phase.is_evaluation:
            self._keep_best()
        self.store.step_over(close.step)
        return [line, *self.orders.orders_of(close.missing, self.state)]

    def _ask_again(self, step: int, unreadable: Reasons, now: float) -> Effects:
        """Accepted reports are gone from the spool. Their agents keep them until the step is closed."""
        effects: Effects = []
        for client, why in unreadable.items():
            self.members.take_back(client)
            damage = f"the accepted report of step {step} cannot be read ({why})"
            notice = notices.ReportDamaged(f"{damage}; {client} is asked for it again")
            effects.append(Announce(notice))
        self.facts.incarnation += 1
        if self.store.reports.summed(step):
            self._folding.forget_sums()
        self._answer(events.Unreadable(tuple(unreadable), step), now)
        # the others get another order next
        asked = [client for client in unreadable if self.orders.is_made(client)]
        return [*effects, *self.orders.orders_of(asked, self.state)]

    def _set_aside(self, step: int, guilty: Reasons, now: float) -> Effects:
        """Take these reports out of the step and name their senders; the step continues with the others."""
        effects: Effects = []
        round_ = self.engine.round
        for client, why in guilty.items():
            self._count_up(step, [client])
            self._folding.remove(client)
            self.store.reports.discard(step, client)
            self.store.audit.blame("set_aside", client, f"step {step}: {why}")
            effects.append(self._recorded(notices.ReportSetAside(client, round_, step, why)))
        effects += self.orders.orders_of(guilty, self.state)
        self._answer(events.SetAside(dict(guilty)), now)
        return effects

    def _count_up(self, step: int, clients: Iterable[ClientId]) -> None:
        """Count what reports carried, once their step is over: until then the spool knows it, also after a kill."""
        self.traffic["up_vectors"] += self.store.reports.values(step, clients)

    # -- the checkpoint ------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """What a checkpoint has besides the strategy's state: scenario, engine, and this run's own memory."""
        self._keep_waiting()
        self.facts.traffic = dict(self.traffic)
        saved = self.facts.to_json() | self.members.to_json()
        saved["seconds"] = self.seconds
        return {
            "scenario": records.scenario_digest(self.scenario),
            "engine": self.engine.snapshot(),
            "run": saved,
        }

    def _keep_waiting(self) -> None:
        """The spool keeps the reports that wait, whatever else it drops."""
        self.store.reports.kept = {report.step for report in self.engine.pace.waiting()}

    @property
    def seconds(self) -> float:
        """Wall time of the run, earlier sessions included."""
        return self.facts.seconds + time.monotonic() - self._began
