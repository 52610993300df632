"""The run: engine, strategy, spool, checkpoint and records put together, without a network.

Events go in, effects come out: what is to be published. The service sends effects over a link; the
in-process driver hands them to local clients. Both therefore compute the same bytes.

Order of writing, so that a kill between any two lines loses nothing:
a step is in the checkpoint before its first order is sent; a report is in the spool before its agent is
told that it was accepted; a fold is in the checkpoint before its reports leave the spool.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from covey.coordinator.engine.events import (
    Action,
    Ask,
    Close,
    Event,
    Failed,
    Finished,
    Folded,
    FoldFailed,
    Ignored,
    Invite,
    Open,
    Plan,
    Planned,
    Quarantined,
    Refused,
    Released,
    Reported,
    SetAside,
    Unreadable,
    Void,
)
from covey.coordinator.engine.rounds import RoundEngine, Rules, Stage, Step
from covey.coordinator.run import folding, mixtures, records
from covey.coordinator.run.audit_trail import FILE as AUDIT_FILE
from covey.coordinator.run.audit_trail import Trail, head_of
from covey.coordinator.run.checkpoint import Checkpoint
from covey.coordinator.run.disk_space import Room
from covey.coordinator.run.notices import (
    AgentQuarantined,
    AgentReleased,
    LinesLost,
    Means,
    Notice,
    PhaseFolded,
    Record,
    ReportDamaged,
    ReportIgnored,
    ReportRefused,
    ReportSetAside,
    RoundsStopped,
    RoundVoid,
    WorkFailed,
)
from covey.coordinator.run.private_fold import Ledger, PrivateFold, noise_key
from covey.coordinator.run.report_checks import EVALUATE, MOMENTS, check_vector, checked_numbers
from covey.coordinator.run.sketches import sketched
from covey.coordinator.run.spool import Spool
from covey.coordinator.run.truth import FILE as TRUTH_FILE
from covey.coordinator.run.truth import mixtures_of
from covey.shared.client import decode_model, encode_model
from covey.shared.errors import DecodeError
from covey.shared.files import write_atomically
from covey.shared.numerics.vectors import Vector
from covey.shared.scenario.scenario import Scenario
from covey.shared.seeds import generator
from covey.shared.strategies.base import (
    ClientId,
    Order,
    Phase,
    Report,
    Reports,
    Setup,
    Training,
    View,
)
from covey.shared.wire.codec import Codec, decode
from covey.shared.wire.messages import ModelRef, OrderMessage, ReportContent, Work, digest
from covey.shared.wire.parts import part_count

MOST_PER_VALUE = 8  # bytes: topk sends an index and a value
BESIDE_VECTORS = 2 << 20  # bytes of a report for everything else in it
NOBODYS_LIE = frozenset({"other run"})  # an honest agent may send these: they count against nobody


@dataclass(frozen=True)
class SendModel:
    """Publish the content of `path` in parts, retained."""

    ref: ModelRef
    path: Path
    about: int
    values: int  # float32 numbers before encoding


@dataclass(frozen=True)
class SendOrder:
    """Publish an agent's desired state, retained."""

    client: ClientId
    order: OrderMessage


@dataclass(frozen=True)
class Question:
    """Ask an agent whether it is there."""

    client: ClientId


@dataclass(frozen=True)
class Announce:
    """Show a notice to the observer."""

    notice: Notice


@dataclass(frozen=True)
class Done:
    """The run is over; `why` is empty unless it was given up."""

    why: str


Effect = SendModel | SendOrder | Question | Announce | Done


@dataclass
class Facts:
    """What a checkpoint holds besides the engine and the strategy's state."""

    run: str
    again: int = 0  # restarts: tells agents that parts in transit were lost
    evaluated: int = -1  # the round after which was last evaluated
    lines: int = 0  # lines of rounds.jsonl that belong to this checkpoint
    seconds: float = 0.0  # of earlier sessions
    scaling: dict[str, list[float]] | None = None
    accepted: dict[ClientId, int] = field(default_factory=dict)
    trained: dict[ClientId, int] = field(
        default_factory=dict
    )  # by those drawn for one: the last training round
    evaluation: dict[ClientId, dict[str, Any]] = field(default_factory=dict)
    tracked: dict[ClientId, dict[str, float]] = field(default_factory=dict)
    traffic: dict[str, int] = field(default_factory=dict)
    usual: dict[str, float] = field(
        default_factory=dict
    )  # median norm of the newest steps, by name of the vector
    devices: dict[ClientId, str] = field(
        default_factory=dict
    )  # what each has computed on so far, or MIXED
    stopped: str = ""  # why the method ended the rounds before their number was reached
    audit: dict[str, Any] = field(
        default_factory=dict
    )  # the newest line of the audit log: sequence and hash
    ledger: dict[str, dict[ClientId, Any]] = field(
        default_factory=dict
    )  # of privacy: `private_fold.Ledger`


@dataclass(frozen=True)
class Outcome:
    """What a fold leads to, before anything has taken notice of it."""

    state: Any
    means: Means  # averages of the reporters, for the record
    scaling: dict[str, list[float]] | None = None
    evaluation: Mapping[ClientId, dict[str, Any]] = field(default_factory=dict)


class Run:
    """One run in one folder. Not thread-safe: one caller at a time."""

    def __init__(
        self,
        folder: Path,
        scenario: Scenario,
        setup: Setup,
        engine: RoundEngine,
        facts: Facts,
        audit_key: bytes | None = None,
    ) -> None:
        self.folder, self.scenario, self.setup = folder, scenario, setup
        self.strategy = scenario.strategy
        self.engine, self.facts = engine, facts
        self.room = Room(folder)
        self.spool = Spool(folder / "spool", self.room)
        self.checkpoint = Checkpoint(folder / "checkpoint", self.room)
        self.rounds = records.Lines(folder / "rounds.jsonl", facts.lines, self.room)
        self.audit = Trail(folder, facts.run, key=audit_key, head=head_of(facts.audit))
        self.state: Any = None
        self.traffic: Counter[str] = Counter(facts.traffic)
        self.samples: dict[ClientId, tuple[int, int]] = {}  # train, test: told by the roster
        self._models: dict[str, SendModel] = {}  # by key, for the present state
        self._outgoing = folder / "outgoing"
        self._outgoing.mkdir(parents=True, exist_ok=True)
        self._began = time.monotonic()
        self._opened_at = 0.0
        self._serial = 0  # of the newest order
        self._accepted_before: dict[
            ClientId, int
        ] = {}  # of those who reported the open step: the step before it
        self.privacy: PrivateFold | None = None
        self._mixtures: mixtures.Shares | None = None  # the agents' true ones; None: not read yet

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
    ) -> Run:
        """A new run in an empty folder."""
        (folder / AUDIT_FILE).unlink(
            missing_ok=True
        )  # of an attempt that ended before its first checkpoint
        this = cls(folder, scenario, setup, RoundEngine(rules, now), Facts(run), audit_key)
        this.state = this.strategy.init(setup)
        this.audit.note(
            "start",
            name=scenario.name,
            method=scenario.strategy.name,
            scenario=records.scenario_digest(scenario),
        )
        this._keep_privacy(resumed=False)
        this._save()
        return this

    @classmethod
    def resume(
        cls,
        folder: Path,
        scenario: Scenario,
        setup: Setup,
        rules: Rules,
        now: float,
        audit_key: bytes | None = None,
    ) -> tuple[Run, list[Effect]]:
        """The run as its checkpoint has it, and what follows at once."""
        checkpoint = Checkpoint(folder / "checkpoint")
        saved = checkpoint.facts()
        facts = Facts(**saved["run"])
        facts.again = max(
            facts.again + 1, int(time.time())
        )  # grows even if an old checkpoint was put back
        number = (saved["engine"]["step"] or {}).get("number", 0)
        spool = Spool(folder / "spool")
        reported = spool.sound(number)
        if facts.stopped:
            rules = replace(rules, rounds=saved["engine"]["round"])
        engine, actions = RoundEngine.restore(rules, saved["engine"], reported, now)
        this = cls(folder, scenario, setup, engine, facts, audit_key)
        this.audit.note("resume", round=engine.round, step=engine.number, reports=len(reported))
        this.state = this.checkpoint.state(type(this.strategy.init(setup)))
        for client in reported:
            this._accept(client, number)
        this._keep_privacy(resumed=True)
        if this.privacy is not None and reported:  # the checkpoint may be older than these reports
            phase = saved["engine"]["step"]["phase"]["name"]
            for client, report in this.spool.reports(number, reported):
                this.privacy.enter(phase, number, client, report)
        this._save()
        found = [Announce(ReportDamaged(why)) for why in spool.damaged]
        if this.rounds.lost:
            found.append(this._write(LinesLost(this.rounds.lost)))
        return this, [*found, *this._carry_out(actions, now)]

    def _keep_privacy(self, *, resumed: bool) -> None:
        """Begin, or go on with, the account of a scenario with a `privacy` section."""
        privacy = self.scenario.privacy
        if privacy is None:
            return
        key = noise_key(self.folder, self.scenario, resumed=resumed)
        ledger = Ledger(**self.facts.ledger)
        self.facts.ledger = vars(ledger)
        self.privacy = PrivateFold(self.scenario, privacy, key, ledger)

    # -- events ------------------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Effect]:
        """What an event of the roster, the clock or the operator leads to."""
        return self._carry_out(self.engine.handle(event, now), now)

    def accept(self, client: ClientId, content: bytes, now: float) -> list[Effect]:
        """Check a report and put it into the spool. Raises DecodeError for one that must be dropped."""
        report = ReportContent.from_bytes(content)
        named = digest(content).hex()
        del content  # of a large model each copy counts; the caller keeps none
        if report.run != self.facts.run:
            raise DecodeError("other run", f"report of run {report.run}, this is {self.facts.run}")
        if report.client != client:
            raise DecodeError("other sender", f"report of {report.client} came from {client}")
        if report.failure is not None:
            self.audit.blame("failed", client, f"step {report.step}: {report.failure}")
            effects = self.handle(Failed(client, report.step, report.failure), now)
            notice = WorkFailed(client, report.step, report.failure)
            return [*effects, Announce(notice), self.order_of(client)]
        why = self.engine.refusal(client, report.step)
        if why:
            self.audit.blame("ignored", client, why)
            return [Announce(ReportIgnored(client, why)), self.order_of(client)]
        checked = self._checked(report)
        self.spool.keep(
            report.step, client, checked, report.seconds, report.client_state, report.device
        )
        self._accept(client, report.step)
        self.audit.note("accept", agent=client, step=report.step, report=named)
        if self.privacy is not None and self.engine.step is not None:
            self.privacy.enter(self.engine.step.phase.name, report.step, client, checked)
        effects = self.handle(Reported(client, report.step), now)
        return [
            *effects,
            self.order_of(client),
        ]  # asked for now, when the engine knows of the report

    def _accept(self, client: ClientId, step: int) -> None:
        """The report lies in the spool. The checkpoint learns of it with the fold: until then the spool knows."""
        self._accepted_before.setdefault(client, self.facts.accepted.get(client, 0))
        self.facts.accepted[client] = step

    def receive(self, client: ClientId, content: bytes, now: float) -> list[Effect]:
        """`accept`, or what follows from a report that is refused: it is recorded and counts against its sender."""
        try:
            return self.accept(client, content, now)
        except DecodeError as error:
            return self.refused(client, error, now)

    def refused(self, client: ClientId, error: DecodeError, now: float) -> list[Effect]:
        """What follows from a report that `accept` refused: it is shown, and counts against its sender."""
        shown: list[Effect] = [Announce(ReportRefused(client, str(error)))]
        if error.reason in NOBODYS_LIE:
            return shown
        return [*shown, *self.handle(Refused(client, str(error)), now), self.order_of(client)]

    @property
    def largest_report(self) -> int:
        """Bytes that no report of the open step can exceed, in any codec."""
        sizes = self.engine.step.phase.sizes if self.engine.step is not None else {}
        return BESIDE_VECTORS + MOST_PER_VALUE * sum(map(abs, sizes.values()))

    def desired(self) -> list[Effect]:
        """All that should be retained at the broker now: models first, then everybody's order."""
        orders = [self.order_of(client) for client in sorted(self.engine.known)]
        return [*self._wanted_models(orders), *orders]

    # -- carrying out what the engine says -----------------------------------------------------------

    def _carry_out(self, actions: Sequence[Action], now: float) -> list[Effect]:
        effects: list[Effect] = []
        for action in actions:
            match action:
                case Plan(view):
                    view, said = self._stopped(view)
                    effects += [*said, *self.handle(Planned(self._plan(view)), now)]
                case Open(cohort=cohort):
                    self._opened_at = time.monotonic()
                    effects += self._give_orders(cohort)
                    self._note_orders(cohort)
                    self._save()
                case Invite(_, client):
                    effects += self._give_orders([client])
                    self._note_orders([client])
                    self._save()
                case Close():
                    effects += self._close(action, now)
                case Void(step, why, cohort):
                    self._count_up(self.spool.reports(step, self.spool.who(step)))
                    self.audit.note("void", round=self.engine.round, step=step, why=why)
                    self._accepted_before.clear()
                    self._save()
                    self.spool.drop(step)
                    void = RoundVoid(self.engine.round, step, why)
                    effects += [self._write(void), *map(self.order_of, cohort)]
                case Quarantined(client, count, why):
                    self.audit.note("quarantine", agent=client, refused=count, why=why)
                    quarantined = AgentQuarantined(client, count, why, self.engine.round)
                    effects += [self._write(quarantined), self.order_of(client)]
                    self._save()
                case Released(client):
                    self.audit.note("release", agent=client)
                    released = AgentReleased(client, self.engine.round)
                    effects += [self._write(released), self.order_of(client)]
                    self._save()
                case Ask(clients):
                    effects += map(Question, clients)
                case Ignored(event, why):
                    agent = getattr(event, "client", None)
                    effects.append(Announce(ReportIgnored(agent, why)))
                case Finished(why):
                    self.audit.note("finish", round=self.engine.round, why=why)
                    self._save()
                    effects += [*map(self.order_of, sorted(self.engine.known)), Done(why)]
        return effects

    def _stopped(self, view: View) -> tuple[View, list[Effect]]:
        """The view after the method was asked whether it needs another round, and the line that says why not."""
        why = self.strategy.stop_reason(self.state) if view.round < view.rounds else ""
        if not why:
            return view, []
        self.facts.stopped = why
        self.audit.note("stopped", round=view.round, why=why)
        stopped = RoundsStopped(view.round, view.rounds, why)
        return self.engine.end_rounds(), [self._write(stopped)]

    def _plan(self, view: View) -> Phase | None:
        """The next phase: the run's own ones first, then what the strategy wants."""
        if self.scenario.task.standardise == "federated" and self.facts.scaling is None:
            return Phase(MOMENTS, "all", ends_round=False, quorum=0.5)
        every = self.scenario.evaluation.every
        phase = (
            self._entry(view) if view.round >= view.rounds else self.strategy.plan(self.state, view)
        )
        due = phase is None or (
            0 < view.round < view.rounds and every > 0 and view.round % every == 0
        )
        if due and self.facts.evaluated < view.round:
            return Phase(EVALUATE, "all", ends_round=False, may_be_empty=True)
        return phase

    def _entry(self, view: View) -> Phase | None:
        """After the last round: what the strategy wants of newcomers before it can serve them, and nothing else."""
        newcomers = self.engine.rules.newcomers
        phase = self.strategy.plan(self.state, view) if newcomers else None
        if (
            phase is None
            or phase.ends_round
            or isinstance(phase.cohort, str)
            or not newcomers & set(phase.cohort)
        ):
            return None
        return phase

    def _give_orders(self, cohort: Sequence[ClientId]) -> list[Effect]:
        orders = [self.order_of(client) for client in cohort]
        models = self._wanted_models(orders)
        for send in orders:
            if send.order.work is not None:
                refs = send.order.work.models
                values, size = (
                    sum(self._models[ref.key].values for ref in refs),
                    sum(ref.size for ref in refs),
                )
                self.traffic["down_vectors"] += values
                self.traffic["down_models"] += size
                if send.order.work.phase == EVALUATE:  # of the above: papers do not count it
                    self.traffic["evaluation_vectors"] += values
                    self.traffic["evaluation_models"] += size
        return [*models, *orders]

    def _note_orders(self, cohort: Sequence[ClientId]) -> None:
        """One audit line for all who get an order: what they are asked for, with which models."""
        step = self.engine.step
        if step is None:
            return
        models = {key: send.ref.digest.hex() for key, send in sorted(self._models.items())}
        self.audit.note(
            "order",
            step=step.number,
            round=self.engine.round,
            attempt=self.engine.attempt,
            phase=step.phase.name,
            method=self.strategy.name,
            cohort=sorted(cohort),
            models=models,
        )

    def _count_up(self, reports: Sequence[tuple[ClientId, Report]]) -> None:
        """Count what reports carried, once their step is over: until then the spool knows it, also after a kill."""
        self.traffic["up_vectors"] += sum(
            vector.size for _, report in reports for vector in report.vectors.values()
        )

    def _close(self, close: Close, now: float) -> list[Effect]:
        """Fold a closed step, or set the reports aside that make its fold fail."""
        step = self.engine.step
        assert step is not None  # noqa: S101 - the engine has just closed it
        phase = replace_cohort(step)
        unreadable = self.spool.unreadable(close.step, close.reporters)
        if unreadable:
            return self._ask_again(close.step, unreadable, now)
        began = time.monotonic()
        reports = self.spool.reports(close.step, close.reporters)
        steps = self._steps(phase, reports)
        if refused := folding.too_far(steps, self.scenario.aggregation, self.facts.usual):
            return self._set_aside(close.step, refused, now)
        try:
            outcome = self._outcome(phase, reports)
        except (OSError, MemoryError):
            raise
        except Exception as error:
            guilty = folding.guilty(lambda some: self._outcome(phase, some), reports)
            if guilty:
                return self._set_aside(close.step, guilty, now)
            why = f"the fold failed: {type(error).__name__}: {error}"[:300]
            return self._carry_out(self.engine.handle(FoldFailed(why), now), now)
        before = dict(self.strategy.assignment(self.state))
        self._count_up(reports)
        self._take(phase, reports, outcome)
        devices = self.spool.devices(close.step, close.reporters)
        for client, device in devices.items():
            before_it = self.facts.devices.get(client, device)
            self.facts.devices[client] = device if before_it == device else records.MIXED
        self.facts.usual |= folding.usual_steps(steps)
        row = self._row(step, close, outcome, before, devices, time.monotonic() - began)
        self.audit.note(
            "fold",
            step=close.step,
            round=self.engine.round,
            phase=step.phase.name,
            reporters=list(close.reporters),
            missing=list(close.missing),
        )
        self._models.clear()
        self._accepted_before.clear()
        actions = self.engine.handle(Folded(), now)
        line = self._write(row)
        self._keep_sketches(step, reports)
        self._save()
        self.spool.drop(close.step)
        return [line, *map(self.order_of, close.missing), *self._carry_out(actions, now)]

    def _keep_sketches(self, step: Step, reports: Reports) -> None:
        """For pictures: before the checkpoint that has this fold, so that a kill leaves none out."""
        size = self.scenario.sketch
        if not size or step.phase.name in (EVALUATE, MOMENTS):
            return
        found = sketched(
            self.strategy, self.state, reports, size, self.scenario.seed, self.setup.layout.size
        )
        if found is not None:
            self.room.write(lambda: found.save(self.folder, step.number))

    def _ask_again(self, step: int, unreadable: Mapping[ClientId, str], now: float) -> list[Effect]:
        """Accepted reports are gone from the spool. Their agents keep them until the step is closed."""
        effects: list[Effect] = []
        for client, why in unreadable.items():
            self.facts.accepted[client] = self._accepted_before.pop(client, 0)
            said = f"the accepted report of step {step} cannot be read ({why}); {client} is asked for it again"
            effects.append(Announce(ReportDamaged(said)))
        self.facts.again += 1
        actions = self.engine.handle(Unreadable(tuple(unreadable), step), now)
        self._save()
        return [*effects, *map(self.order_of, unreadable), *self._carry_out(actions, now)]

    def _steps(self, phase: Phase, reports: Reports) -> list[folding.Step]:
        """How far the reports moved. Where not even this can be said, the fold fails as well and finds whose fault it is."""
        if phase.name in (EVALUATE, MOMENTS) or self.scenario.aggregation.refuse_beyond is None:
            return []
        if self.scenario.privacy is not None and self.scenario.privacy.client is not None:
            return []  # every report is clipped; and whom to refuse must not depend on what the others sent
        try:
            return folding.steps_of(self.strategy, self.state, phase, reports)
        except (OSError, MemoryError):
            raise
        except Exception:
            return []

    def _set_aside(self, step: int, guilty: Mapping[ClientId, str], now: float) -> list[Effect]:
        """Take these reports out of the step, name their senders, and go on with what is left."""
        effects: list[Effect] = []
        for client, why in guilty.items():
            self._count_up(self.spool.reports(step, [client]))
            self.spool.discard(step, client)
            self.audit.blame("set_aside", client, f"step {step}: {why}")
            effects.append(self._write(ReportSetAside(client, self.engine.round, step, why)))
        effects += map(self.order_of, guilty)
        actions = self.engine.handle(SetAside(dict(guilty)), now)
        self._save()
        return [*effects, *self._carry_out(actions, now)]

    def _outcome(self, phase: Phase, reports: Reports) -> Outcome:
        """The fold, tried: nothing of the run changes. Raises whatever a report makes it raise."""
        settings = self.scenario.aggregation
        fair = folding.capped(reports, settings)
        weight, newcomers = self.scenario.evaluation.weight, self.engine.rules.newcomers
        state, scaling = self.state, None
        evaluation: dict[ClientId, dict[str, Any]] = {}
        match phase.name:
            case "moments":
                scaling = folding.pooled([report.numbers for _, report in fair], settings)
                folding.check_json(scaling, "the scaling")
            case "evaluate":
                told = {client: report.numbers for client, report in fair}
                evaluation = folding.fair_figures(told, settings)
                fair = [
                    (client, replace(report, numbers=evaluation[client])) for client, report in fair
                ]
            case _:
                steps = (
                    folding.steps_of(self.strategy, state, phase, fair) if settings.clips else []
                )
                clipped = folding.clip(self.strategy, state, fair, steps, settings)
                state = self._folded(phase, clipped)
                folding.check_sound(self.strategy, state)
        means = records.means(fair, phase.name, weight, newcomers, self.facts.trained)
        folding.check_json(means.to_json(), "its averages")
        return Outcome(state, means, scaling, evaluation)

    def _take(self, phase: Phase, reports: Reports, outcome: Outcome) -> None:
        """Make a fold the run's own."""
        self.state = outcome.state
        if self.privacy is not None:
            self.privacy.count_sums(phase, reports)
        self.facts.scaling = outcome.scaling or self.facts.scaling
        if phase.name == EVALUATE:
            self.facts.evaluated = self.engine.round
            self.facts.evaluation |= outcome.evaluation
        for client, report in reports:
            if phase.name == "train":
                self.facts.trained[client] = self.engine.round
            if "track" in report.numbers:  # of any phase that trains
                self.facts.tracked[client] = records.better(
                    self.facts.tracked.get(client), report.numbers
                )

    def parts_of_own_model(self, client: ClientId) -> int:
        """How many parts of a model for this agent alone are published now."""
        sent = self._models.get(f"@{client}")
        return 0 if sent is None else sent.ref.parts

    def _folded(self, phase: Phase, reports: Reports) -> Any:
        """The strategy's state after one of its phases."""
        average = self.scenario.aggregation.average
        if self.privacy is not None:
            return self.privacy.fold(self.state, phase, reports, average)
        return self.strategy.fold(self.state, phase, reports, average)

    # -- orders and models -------------------------------------------------------------------------

    def order_of(self, client: ClientId) -> SendOrder:
        """What this agent should do now."""
        step = self.engine.step if self.engine.stage is Stage.OPEN else None
        waits = (
            step is not None and client in step.cohort and client not in step.reported | step.failed
        )
        self._serial += 1
        order = OrderMessage(
            run=self.facts.run,
            serial=self._serial,
            step=step.number if step is not None and waits else 0,
            accepted=self.facts.accepted.get(client, 0),
            closed=self.engine.number - (1 if step is not None else 0),
            again=self.facts.again,
            cluster=self.strategy.assignment(self.state).get(client),
            work=self._work(client, step) if step is not None and waits else None,
        )
        return SendOrder(client, order)

    def _work(self, client: ClientId, step: Step) -> Work:
        order = self._strategy_order(client, step.phase)
        scenario, wire = self.scenario, self.scenario.wire
        return Work(
            phase=step.phase.name,
            round=self.engine.round,
            seed=scenario.seed,
            strategy=self.strategy.model_dump(mode="json"),
            training=self._training(step.phase).model_dump(mode="json"),
            task=scenario.task.for_agents(),
            layout=self.setup.layout.to_wire(),
            scaling=self.facts.scaling,
            models=[self._model(key, step.number).ref for key in order.models],
            numbers=dict(order.numbers),
            cluster=order.cluster,
            sizes=dict(step.phase.sizes),
            codec=Codec(wire.codec, wire.delta, wire.block, wire.keep).to_wire(),
            evaluation=scenario.evaluation.model_dump(mode="json"),
            part_bytes=wire.part_bytes,
            privacy=scenario.privacy.for_agents(scenario.rounds.count)
            if scenario.privacy is not None
            else None,
        )

    def _training(self, phase: Phase) -> Training:
        if phase.name == EVALUATE:
            return self.scenario.tuning
        return self.scenario.training.in_round(self.engine.round, self.scenario.rounds.count)

    def _strategy_order(self, client: ClientId, phase: Phase) -> Order:
        if phase.name == MOMENTS:
            return Order()
        if phase.name == EVALUATE:
            return self.strategy.serve(self.state, client)
        return self.strategy.order(self.state, phase, client)

    def _model(self, key: str, step: int) -> SendModel:
        """The model behind a key, encoded once per state and kept in a file for publishing again."""
        if key not in self._models:
            codec = Codec(self.scenario.wire.down, block=self.scenario.wire.block)
            rng = generator(self.scenario.seed, "down", self.engine.round, key)
            model = self.strategy.model(self.state, key)
            content = encode_model(model, self.setup.layout.digest, codec, rng)
            path = self._outgoing / key
            self.room.write(lambda: write_atomically(path, content))
            parts = part_count(len(content), self.scenario.wire.part_bytes)
            self._models[key] = SendModel(
                ModelRef(key=key, digest=digest(content), parts=parts, size=len(content)),
                path,
                step,
                model.size,
            )
        return self._models[key]

    def _wanted_models(self, orders: Sequence[SendOrder]) -> list[SendModel]:
        refs = [
            ref for send in orders if send.order.work is not None for ref in send.order.work.models
        ]
        return [self._models[key] for key in dict.fromkeys(ref.key for ref in refs)]

    def _checked(self, content: ReportContent) -> Report:
        """The report with decoded vectors. Raises DecodeError unless it is what the phase asked for."""
        step = self.engine.step
        assert step is not None  # noqa: S101 - refusal() has been asked
        sizes = step.phase.sizes
        if set(content.vectors) != set(sizes):
            raise DecodeError("wrong vectors", f"{sorted(content.vectors)}, want {sorted(sizes)}")
        vectors = {
            name: decode(encoded, length=sizes[name], bases=self._base)
            for name, encoded in content.vectors.items()
        }
        for name, vector in vectors.items():
            check_vector(name, vector)
        numbers = checked_numbers(step.phase, content, self.scenario)
        told = self.samples.get(content.client)
        if told is not None and content.examples > told[0]:
            raise DecodeError(
                "too many examples", f"{content.examples}, the agent has told of {told[0]}"
            )
        return Report(vectors, content.examples, numbers, content.steps, content.loss)

    def content_of(self, key: str) -> bytes:
        """The encoded model behind a key that an order of the open step names."""
        return self.file_of(key).read_bytes()

    def file_of(self, key: str) -> Path:
        """Where that content lies until the next fold."""
        return self._models[key].path

    def _base(self, wanted: bytes) -> Vector:
        """The model that a delta was taken against, as the agent has seen it."""
        for sent in self._models.values():
            if sent.ref.digest == wanted:
                return decode_model(sent.path.read_bytes(), self.setup.layout)
        raise DecodeError("no base", f"no model of this step has digest {wanted.hex()}")

    # -- records -----------------------------------------------------------------------------------

    def _row(
        self,
        step: Step,
        close: Close,
        outcome: Outcome,
        before: Mapping[ClientId, int],
        computed_on: Mapping[ClientId, str],
        fold_s: float,
    ) -> PhaseFolded:
        after = self.strategy.assignment(self.state)
        own_phase = step.phase.name not in (EVALUATE, MOMENTS)
        seconds = self.spool.seconds(close.step, close.reporters)
        devices = records.counted(computed_on)
        moved = [c for c, cluster in before.items() if c in after and after[c] != cluster]
        return PhaseFolded(
            phase=step.phase.name,
            ends_round=step.phase.ends_round,
            round=self.engine.round,
            step=close.step,
            invited=sorted(step.cohort),
            reported=list(close.reporters),
            missing=list(close.missing),
            client_state=self.spool.client_states(close.step, close.reporters),
            devices=devices if set(devices) - {"cpu"} else {},
            cluster_sizes=records.sizes(after),
            moved=len(moved),
            means=outcome.means,
            seconds=round(time.monotonic() - self._opened_at, 6),
            train_seconds=round(sum(seconds.values()), 6),
            fold_seconds=round(fold_s, 6),
            traffic=dict(self.traffic),
            notes=dict(self.strategy.notes(self.state)) if own_phase else {},
            membership=self._membership() if own_phase else None,
            privacy=self.privacy.spent() if self.privacy is not None else None,
        )

    def _membership(self) -> dict[str, Any] | None:
        """How well the method's memberships fit the true mixtures of a simulated fleet, where both are known."""
        if self._mixtures is None and (self.folder / TRUTH_FILE).exists():
            self._mixtures = mixtures_of(self.scenario, self.folder)
        return mixtures.membership(self.strategy.memberships(self.state), self._mixtures or {})

    def _write(self, record: Record) -> Announce:
        self.rounds.append(record.to_json())
        return Announce(record)

    def _save(self) -> None:
        self.facts.lines = self.rounds.count
        self.facts.traffic = dict(self.traffic)
        self.room.write(self.audit.sync)
        self.facts.audit = asdict(self.audit.head)
        accepted = (
            self.facts.accepted | self._accepted_before
        )  # of the open step the spool knows, also after a kill
        facts = vars(self.facts) | {"seconds": self.seconds, "accepted": accepted}
        scenario = records.scenario_digest(self.scenario)
        self.state = self.checkpoint.save(
            {"scenario": scenario, "engine": self.engine.snapshot(), "run": facts}, self.state
        )

    @property
    def seconds(self) -> float:
        """Wall time of the run, earlier sessions included."""
        return self.facts.seconds + time.monotonic() - self._began


def replace_cohort(step: Step) -> Phase:
    """The phase with the names of those who were invited."""
    return replace(step.phase, cohort=tuple(sorted(step.cohort)))
