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
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from covey.coordinator.disk.checkpoint import Checkpoint
from covey.coordinator.engine import events
from covey.coordinator.engine.members import MAX_FAILURE_CHARS
from covey.coordinator.engine.pace import Pace
from covey.coordinator.engine.rounds import RoundEngine
from covey.coordinator.engine.rules import RoundRules
from covey.coordinator.record import notices
from covey.coordinator.record.store import Ends, Store
from covey.coordinator.run import early_stop
from covey.coordinator.run.closing import close
from covey.coordinator.run.effects import (
    Announce,
    Effect,
    Question,
    ReportTaken,
    RunOver,
    SendOrder,
    SumTaken,
)
from covey.coordinator.run.folder import IN_PROCESS, Origin
from covey.coordinator.run.happenings import GivenUp, Happening, Refused, ReportCame, SumCame, Told
from covey.coordinator.run.own_orders import lost_orders
from covey.coordinator.run.parts import Parts
from covey.coordinator.run.report_acceptance import taken
from covey.coordinator.run.run_state import RunState, next_phase
from covey.shared import extras
from covey.shared.errors import HONEST_REFUSALS, DecodeError, PublicError
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import ClientId, Phase, Setup, View
from covey.shared.strategies.phase_names import AHEAD, EVALUATE, EXCHANGES, OF_THE_RUN, TRAIN
from covey.shared.wire.parts import FileSink

if TYPE_CHECKING:
    from covey.extras.private.private_sums import PrivateSums

Effects = list[Effect]


def _private_sums(
    folder: Path, scenario: Scenario, ledger: dict[str, Any], *, resumed: bool
) -> PrivateSums | None:
    """What makes the sums of a run whose `privacy` section adds noise, and keeps its account; None without one."""
    if scenario.privacy is None or not scenario.privacy.has_noise:
        return None
    private_sums = extras.part("private", "private_sums", "privacy")
    sums: PrivateSums = private_sums.private_sums(
        folder, scenario, scenario.privacy, ledger, resumed=resumed
    )
    return sums


class Run(Parts):
    """One run in one folder. Not thread-safe: one caller at a time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.audit = self.store.audit  # takes what others have to say of peers, too
        self.room = self.store.room  # on the run's disk
        # the engine's decisions that are not performed yet
        self._decisions: deque[events.Action] = deque()

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
        store = Store(folder, run, audit_key=audit_key)
        engine = RoundEngine(rules, now)
        # without a broker an evaluation takes no time
        facts = RunState(run, trains_on=rules.is_buffered and run != IN_PROCESS)
        this = cls(
            folder=folder, scenario=scenario, setup=setup, engine=engine, facts=facts, store=store
        )
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
    ) -> tuple[Self, Effects]:
        """The run as its checkpoint has it, and what follows at once.

        Args:
            folder: of the run.
            scenario: of the run.
            setup: its initial models.
            rules: of its rounds.
            now: the time.
            audit_key: of the audit log.
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
        store = Store(folder, facts.run, Ends.from_json(saved["run"]), audit_key=audit_key)
        spool = store.reports
        single = spool.sound(number)
        summed: list[ClientId] = []
        if spool.sum_files(number):
            partial_sums = extras.part("scale", "partial_sums")
            summed = partial_sums.clients_of(spool, number)
        reported = sorted([*single, *summed])
        if facts.stopped:
            rules = replace(rules, rounds=saved_engine["round"])
        lost: set[int] = set()
        if rules.is_buffered:
            lost = lost_orders(
                folder / "outgoing", Pace.from_json(saved_engine["stream"], ()), spool
            )
        engine, actions = RoundEngine.restore(
            rules, saved_engine, reported, now, lost, run=saved["run"]
        )
        this = cls(
            folder=folder, scenario=scenario, setup=setup, engine=engine, facts=facts, store=store
        )
        this.orders.restore()
        this.keep_waiting()
        this.recorder.note_resume(reported)
        this.state = store.checkpoint.state(fresh)
        step = engine.step
        this.privacy = _private_sums(folder, scenario, facts.ledger, resumed=True)
        if step is not None:
            this.folding = this.folding_of(number, step.phase)
            if summed:
                partial_sums.restore_sums(this.folding, spool, this.state)
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
            effects.append(this.recorded(notices.LinesLost(store.rounds.lost)))
        effects += this._perform_all(actions, now)
        store.commit(this)
        return this, effects

    def simulate(self, *, evaluates_busy: bool) -> None:
        """Agents are simulated and can train again: nothing waits for the disk.

        `evaluates_busy`: an evaluation takes no time, and asks agents that are at work on an order of their own, too.
        """
        self.store.durable = False
        self.orders.evaluates_busy = evaluates_busy

    def clock_shows(self, now: float) -> None:
        """The virtual time of a simulation (s)."""
        self.facts.clock = now

    def count_wire(self, way: Literal["down", "up"], size: int) -> None:
        """Count an MQTT packet, by its bytes."""
        self.traffic[f"wire_{way}"] += size

    def new_sink(self, size: int) -> FileSink:
        """A file on the run's disk that takes a content of this size in bytes."""
        return self.store.reports.new_sink(size)

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
            case SumCame():
                return self._summed(happening, now)
            case events.Failed() | Refused():
                return self._told(happening, now)
            case events.Reported(client, step) if self.engine.refusal(client, step):
                return self._told(happening, now)
            case GivenUp(why):
                self.engine.give_up()
                return self._finish(why)
        return self._engine_handles(happening, now)

    def _engine_handles(self, event: events.Event, now: float) -> Effects:
        """What an event of the roster, the clock or the operator leads to."""
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
            # no name for the content: `taken` drops the last reference to it
            event = taken(self, client, came.content(), came.digest)
        except DecodeError as error:
            self.audit.blame("refuse", client, str(error))
            effects = self._told(Refused(client, error), now)
            return [*effects, ReportTaken(error.reason)]
        return [*self._told(event, now), ReportTaken()]

    def accept(self, client: ClientId, content: bytes, now: float) -> Effects:
        """What follows from a report. Raises DecodeError for one that must be dropped."""
        effects = self._told(taken(self, client, content), now)
        self.store.commit(self)
        return effects

    def _summed(self, came: SumCame, now: float) -> Effects:
        """What follows from an aggregator's sum, and last what became of it."""
        sum_acceptance = extras.part("scale", "sum_acceptance")

        try:
            if not sum_acceptance.counted(self, came):
                return [SumTaken(counts=False)]
        except DecodeError as error:
            return [SumTaken(counts=False, error=error)]
        effects: Effects = []
        for event in sum_acceptance.events_of(self, came):
            effects += self._told(event, now)
        return [*effects, SumTaken(counts=True)]

    def _told(self, event: Told, now: float) -> Effects:
        """What follows from reports that came: the next orders of their senders, which know of them, where there is work."""
        match event:
            case events.ReportedTogether(clients):
                effects = self._engine_handles(event, now)
                return [*effects, *self.orders_of(clients)]
            case events.Failed():
                return self._failed(event, now)
            case Refused(client, error):
                return self._refused(client, error, now)
            case events.Reported(client):
                effects = self._engine_handles(event, now)
                step = self.engine.step
                if step is None or step.number == event.step or not step.owes_report(client):
                    return effects
                return [*effects, self.order_of(client)]

    def _failed(self, failed: events.Failed, now: float) -> Effects:
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

    def _refused(self, client: ClientId, error: DecodeError, now: float) -> Effects:
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
                effects = close(self, action, partial(self._answer, now=now))
            case events.Open(step, phase=phase, cohort=cohort):
                self.folding = self.folding_of(step, phase)
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
        known = self.strategy.facts.planned.union(OF_THE_RUN, EXCHANGES)
        if phase is not None and phase.name not in known:
            raise PublicError(
                f"the method {self.strategy.name} plans the phase {phase.name!r}, which agents refuse, as its facts do not name "
                f"it; write facts = replace(Base.facts, phases=({phase.name!r},)) with the facts of its base"
            )
        self._answer(events.Planned(phase, self._buffer_sizes(phase)), now)
        return stopped

    def _buffer_sizes(self, phase: Phase | None) -> Mapping[int, int] | None:
        """The agents of each cluster, if the phase is a round that takes place in buffers."""
        if not self.engine.rules.is_buffered or phase is None or phase.name != TRAIN:
            return None
        if not self.strategy.buffer.is_ready(self.state):
            return None
        return Counter(self.assignment.values())

    def _give(self, give: events.Give) -> Effects:
        """Make orders of single agents; the checkpoint knows them before they are sent."""
        for client, number in give.orders:
            self.orders.make(client, number, self.own_phase(client), self.state)
        orders = self.orders_of([client for client, _ in give.orders])
        models = self.orders.models_of(orders)
        self._count_down(orders)
        self.store.note("give", round=self.engine.round, orders=dict(give.orders))
        dropped = self.orders.tidy()
        return [*dropped, *models, *orders]

    def _quarantined(self, action: events.Quarantined) -> Effects:
        client, refused, why = action.client, action.refused, action.why
        self.store.note("quarantine", agent=client, refused=refused, why=why)
        line = self.recorded(notices.AgentQuarantined(client, refused, why, self.engine.round))
        return [line, self.order_of(client)]

    def _rested(self, action: events.Rested) -> Effects:
        self.store.note("resting", agent=action.client, kind=action.kind, why=action.why)
        notice = notices.AgentRests(
            action.client, action.kind, action.times, action.until, action.why, self.engine.round
        )
        return [self.recorded(notice)]

    def _released(self, client: ClientId) -> Effects:
        self.store.note("release", agent=client)
        line = self.recorded(notices.AgentReleased(client, self.engine.round))
        return [line, self.order_of(client)]

    def _forgotten(self, client: ClientId) -> Effects:
        """The engine has forgotten the agent: no report, model or list of the run has it any more."""
        if self.folding is not None:
            self.folding.forget(client)
        step = self.engine.step
        own_steps = () if step is None else (step.number,)
        if step is not None:
            step.asked.clear()
        reports = self.store.reports
        for number in {*own_steps, *reports.kept}:
            reports.discard(number, client)
        self.state = self.strategy.forget(self.state, client)
        self.orders.forget_clusters()
        self.store.note("forget", agent=client)
        return [self.recorded(notices.AgentForgotten(client, self.engine.round))]

    def _finish(self, why: str) -> Effects:
        self.store.note("finish", round=self.engine.round, why=why)
        return [*self.orders_of(sorted(self.engine.known)), RunOver(why)]

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
        return [self.recorded(notices.RoundsStopped(done, rounds, why))]

    def _invite(self, cohort: Sequence[ClientId]) -> Effects:
        """Orders for these agents and the models that they name; the checkpoint knows the step before they are sent."""
        orders = self.orders_of(cohort)
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
        reporters = self.store.reports.who(step)
        self.count_up(step, reporters)
        self.store.note("void", round=round_, step=step, why=why, reporters=reporters)
        self.members.settle()
        self.folding = None
        self.store.step_over(step)
        line = self.recorded(notices.RoundVoid(round_, step, why))
        return [line, *self.orders_of(void.cohort)]
