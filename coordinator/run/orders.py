"""Orders: what each agent should do now, and the models that orders name.

In buffered rounds an order is brief where it can be. Brokers retain one content that orders share, the newest. It changes
with the learning rate, as at an evaluation with settings of its own: an older order that is published again then is whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from covey.coordinator.engine.members import MAX_FAILURE_CHARS
from covey.coordinator.engine.rounds import RoundEngine
from covey.coordinator.engine.step import Asked, Stage, Step
from covey.coordinator.record.store import Store
from covey.coordinator.run.effects import DropModel, SendModel, SendOrder
from covey.coordinator.run.own_orders import OwnOrders, version_key
from covey.coordinator.run.run_state import RunState
from covey.shared import extras
from covey.shared.errors import DecodeError
from covey.shared.numerics.vectors import Vector
from covey.shared.scenario.scenario import Scenario
from covey.shared.seeds import generator
from covey.shared.storage.files import naming
from covey.shared.strategies.base import ClientId, Order, Phase, Setup, Training
from covey.shared.strategies.part_local import model_of, with_own
from covey.shared.strategies.phase_names import AHEAD, CARD, EVALUATE, MOMENTS
from covey.shared.wire.brief_work import brief_of, shared_of
from covey.shared.wire.codec import Codec, decode_model, encode_model
from covey.shared.wire.messages import (
    BASE,
    SETTINGS,
    BriefWork,
    ModelRef,
    OrderMessage,
    Work,
    digest,
)
from covey.shared.wire.parts import part_count

MAX_WORKS = 256  # that are kept for further agents: a method may have a model for each agent alone
Addressed = tuple[tuple[str, ...], int | None]  # keys of models, and a cluster
Kind = tuple[str, tuple[str, ...], int | None]  # the same with a phase


class OrderBook:
    """Makes orders from the engine's open step or its pace, and the strategy's state.

    A model is encoded once for each state of the strategy and kept in a file, so that it can be published again. Call
    `forget_models` when the state changes.
    """

    def __init__(
        self,
        scenario: Scenario,
        setup: Setup,
        *,
        engine: RoundEngine,
        facts: RunState,
        store: Store,
    ) -> None:
        self._scenario = scenario
        self._setup = setup
        self._strategy = scenario.method
        self._engine = engine
        self._members = engine.members
        self._facts = facts
        self._room = store.room
        self._folder = store.folder / "outgoing"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._models: dict[str, SendModel] = {}  # by key: those that orders of this state name
        self._step = 0  # the step of the works below
        self.shared: SendModel | None = None  # what all orders of the newest step share
        self._works: dict[Addressed, Work] = {}  # of the open step, the newest of each kind
        self._briefs: dict[bytes, BriefWork] = {}  # by digest of the work, next to what all share
        self._state: Any = None  # the newest
        self._assigned: Mapping[ClientId, int] = {}  # the cluster of each agent in it
        # an agent at hand is evaluated in between, in no time; others finish an order of their own first
        self.evaluates_busy = False
        self.own = OwnOrders(self._folder, store)
        # of this state: agents with the same models share one work, which is made and checked once
        self._newest: dict[Kind, Work] = {}
        self._newest_settings: dict[Kind, bytes] = {}  # what these share with others: its digest
        self._present: dict[str, SendModel] = {}  # versions of the models of this state, by key
        # digests of what own orders share with others; those that an earlier process made have none
        self._settings: dict[int, bytes] = {}
        self._serial = 0  # of the newest order; grows with every order of this process

    def __repr__(self) -> str:
        return f"<OrderBook: {self._serial} orders, models {sorted(self._models)}>"

    def order_of(self, client: ClientId, state: Any) -> SendOrder:
        """What this agent should do now: its own order, its work in the open step, or nothing."""
        engine = self._engine
        own = engine.pace.orders.get(client)
        if own is not None and not self._is_asked_first(client):
            number = own.step
            work = self.own.works[number]
            brief = self._brief_of_own(number, work) if client in self._members.readers else None
            message = self._message(
                client, number, number - 1, cluster=work.cluster, work=work, brief=brief
            )
            return SendOrder(client, message)
        closed = engine.number
        number = 0
        asked = None
        brief = None
        step = engine.step
        if step is not None and engine.stage is Stage.OPEN:
            closed = step.number - 1
            if step.owes_report(client) and client not in step.failed:
                number = step.number
                asked = self._work(client, step, state)
        if asked is not None and client in self._members.readers:
            brief = self._brief(asked, number)
        cluster = self._clusters(state).get(client)
        return SendOrder(
            client, self._message(client, number, closed, cluster=cluster, work=asked, brief=brief)
        )

    def _message(
        self,
        client: ClientId,
        number: int,
        closed: int,
        *,
        cluster: int | None,
        work: Work | None,
        brief: BriefWork | None = None,
    ) -> OrderMessage:
        """An order for this work, in its brief form if there is one; None for nothing to do."""
        self._serial += 1
        return OrderMessage(
            run=self._facts.run,
            serial=self._serial,
            step=number,
            accepted=self._members.accepted(client),
            closed=closed,
            again=self._facts.incarnation,
            cluster=cluster,
            work=None if brief else work,
            brief=brief,
            refused=self._why_refused(client),
            use=work is not None and self._is_for_use(work.phase),
        )

    def _why_refused(self, client: ClientId) -> str:
        """Why reports of this agent do not count, for its owner; empty if they do."""
        member = self._members.get(client)
        if member is None or member.quarantine is None:
            return "" if member is None else member.refusal
        release = f"`coordinator lab release {client}`"
        return f"this agent is in quarantine, until {release}: {member.quarantine}"[
            :MAX_FAILURE_CHARS
        ]

    def _is_asked_first(self, client: ClientId) -> bool:
        """Whether the open step of all agents comes before this agent's own order."""
        step = self._engine.step
        if not self.evaluates_busy or step is None or self._engine.stage is not Stage.OPEN:
            return False
        return client in step.awaited

    def _is_for_use(self, phase: str) -> bool:
        """Whether a device may use the model of an order: in each round, or that of the evaluation after all rounds."""
        match self._scenario.rounds.publish:
            case "rounds":
                return True
            case "end":
                return phase == EVALUATE and self._engine.round >= self._engine.rules.rounds
        return False

    def is_made(self, client: ClientId) -> bool:
        """False between the engine's decision on another order of this agent and the order itself."""
        order = self._engine.pace.orders.get(client)
        return order is None or order.step in self.own.works

    def asked_for(self, client: ClientId, number: int, state: Any) -> bytes:
        """The digest of the work of an own order, whether it is open or its report waits, or of the open step that invited the agent."""
        work = self.own.works.get(number)
        if work is not None:
            return work.digest
        step = self._engine.step
        assert step is not None  # noqa: S101 - the engine refuses reports of any other
        assert step.number == number  # noqa: S101
        asked = step.asked.get(client)
        return self._work(client, step, state).digest if asked is None else asked.work

    def models_of(self, orders: Sequence[SendOrder]) -> list[SendModel]:
        """The models that these orders name, each once."""
        works = [send.work for send in orders]
        keys = dict.fromkeys(ref.key for work in works if work is not None for ref in work.models)
        return [self._sent(key) for key in keys]

    def volume(self, work: Work | BriefWork) -> tuple[int, int]:
        """Values (float32 numbers) and bytes (encoded) of the models of a work."""
        values = sum([self._sent(ref.key).values for ref in work.models])
        return values, sum([ref.size for ref in work.models])

    def digests(self) -> dict[str, str]:
        """The digests of the present models, by key."""
        return {key: self._models[key].ref.digest.hex() for key in sorted(self._models)}

    def forget_models(self) -> None:
        """The strategy's state has changed: its models are encoded again when an order names them."""
        self._models.clear()
        self._works.clear()
        self._briefs.clear()
        self._present.clear()
        self._newest.clear()
        self._newest_settings.clear()

    def forget_clusters(self) -> None:
        """An agent is not known any more, and the newest state knows it."""
        self._state, self._assigned = None, {}

    def file_of(self, key: str) -> Path:
        """The file with the encoded model behind a key that an order of the open step names. It stays until the next fold."""
        return self._sent(key).path

    def content_of(self, key: str) -> bytes:
        """The encoded model behind such a key."""
        return self.file_of(key).read_bytes()

    def parts_of_own_model(self, client: ClientId) -> int:
        """How many parts of a model for this agent alone are published now."""
        sent = self._models.get(f"@{client}")
        return 0 if sent is None else sent.ref.parts

    def base(self, wanted: bytes) -> Vector:
        """The model with this digest, decoded as agents see it: deltas refer to it. Raises DecodeError where no order names it."""
        for sent in (*self.own.versions.values(), *self._models.values()):
            if sent.ref.digest == wanted:
                return self._decoded(sent)
        raise DecodeError("no base", f"no model of this step has digest {wanted.hex()}")

    def _decoded(self, send: SendModel) -> Vector:
        """A model (d,) as agents see it."""
        return decode_model(self._room.write(send.path.read_bytes), self._setup.whole)

    def keys(self) -> Sequence[str]:
        """The keys of the models that orders of this state name."""
        return tuple(self._models)

    def bases(self) -> dict[str, bytes]:
        """The encoded models that orders of this state name, by digest in hexadecimal digits, but for those of single agents."""
        bases: dict[str, bytes] = {}
        for key, sent in self._models.items():
            if key == BASE or key.startswith("@"):
                continue
            name = sent.ref.digest.hex()
            bases[name] = sent.path.read_bytes()
        return bases

    def _sent(self, key: str) -> SendModel:
        """The model that orders name by this key."""
        return self.own.versions.get(key) or self._models[key]

    def _clusters(self, state: Any) -> Mapping[ClientId, int]:
        """The cluster of each agent. Some methods look at all agents to find them: not again for each order."""
        if state is not self._state:
            self._state = state
            self._assigned = self._strategy.assignment(state)
        return self._assigned

    def _work(self, client: ClientId, step: Step, state: Any) -> Work:
        """The work of an agent. Agents with the same models share one object: it is made and checked once."""
        if step.number != self._step:
            self._works.clear()
            self._step = step.number
        asked = step.asked.get(client)
        own = self._own_order(client, step.phase, state) if asked is None else asked.order
        order = self._as_sent(client, step.phase, own)
        addressed = (order.models, order.cluster)
        work = self._works.get(addressed)
        if work is None or work.numbers != order.numbers:
            models = [self._model(key, step.number, state).ref for key in order.models]
            work = self._work_with(step.phase, order, models)
            if len(self._works) >= MAX_WORKS:
                self._works.clear()
            self._works[addressed] = work
        step.asked[client] = Asked(own, work.digest)
        return work

    def _brief(self, work: Work, step: int) -> BriefWork:
        """The work of an order that names what all share by its digest."""
        shared = self.shared
        if shared is None or shared.about != step:
            shared = self._new_shared(work, step)
            self.shared = shared
        return self._brief_with(shared, work)

    def _brief_with(self, shared: SendModel, work: Work) -> BriefWork:
        """Agents with the same work share one object: it is made and checked once."""
        brief = self._briefs.get(work.digest)
        if brief is None:
            brief = self._briefs[work.digest] = brief_of(work, shared.ref)
        return brief

    def _new_shared(self, work: Work, step: int) -> SendModel:
        self._briefs.clear()
        content = shared_of(work).to_bytes()
        path = self._folder / SETTINGS
        self._room.write(lambda: _write_new(path, content))
        return SendModel(ref=self._ref(SETTINGS, content), path=path, about=step, values=0)

    def _work_with(self, phase: Phase, order: Order, models: list[ModelRef]) -> Work:
        """The work of a phase for an agent whose order the strategy has made."""
        scenario = self._scenario
        wire = scenario.wire
        codec = Codec(wire.codec, wire.delta, keep=wire.keep)
        training = self._training(phase)
        privacy = None
        if scenario.privacy is not None:
            privacy = scenario.privacy.for_agents(scenario.rounds.count)
        return Work(
            phase=phase.name,
            round=self._engine.round,
            seed=scenario.seed,
            strategy=scenario.strategy.model_dump(mode="json"),
            training=training.model_dump(mode="json"),
            task=scenario.task.for_agents(),
            layout=self._setup.whole.to_wire(),
            scaling=self._facts.scaling,
            models=models,
            numbers=dict(order.numbers),
            cluster=order.cluster,
            sizes=dict(phase.sizes),
            codec=codec.to_wire(),
            evaluation=scenario.evaluation.for_agents(),
            part_bytes=wire.part_bytes,
            privacy=privacy,
        )

    def _training(self, phase: Phase) -> Training:
        if EVALUATE in (phase.name, phase.draw):
            return self._scenario.tuning
        return self._scenario.training.in_round(self._engine.round, self._scenario.rounds.count)

    def _own_order(self, client: ClientId, phase: Phase, state: Any) -> Order:
        if phase.name == MOMENTS:
            return Order()
        if phase.name == EVALUATE and not phase.sizes:
            return self._strategy.serve(state, client)
        return self._strategy.order(state, phase, client)

    def _as_sent(self, client: ClientId, phase: Phase, order: Order) -> Order:
        """The method's order with what the run adds: for the judge, and what does not travel."""
        if CARD in order.numbers:
            order = replace(order, numbers={**order.numbers, CARD: self._scenario.min_cell})
        if EVALUATE in (phase.name, order.numbers.get(AHEAD)):
            order = replace(order, numbers={**order.numbers, **self._for_the_judge()})
        member = self._members.get(client)
        owns = member is not None and member.owns is not None
        return with_own(order, self._setup, owns=owns)

    def _for_the_judge(self) -> dict[str, Any]:
        """What the last evaluation states for the judge on a device; empty for any other evaluation."""
        is_last = self._engine.round >= self._engine.rules.rounds
        if not is_last or not self._scenario.evaluation.judges:
            return {}
        told = self._facts.fleets if self._facts.evaluated == self._engine.round else []
        in_run = extras.part("judge", "in_run")
        numbers: dict[str, Any] = in_run.order_numbers(len(told), told[-1] if told else None)
        return numbers

    def _model(self, key: str, step: int, state: Any) -> SendModel:
        if key not in self._models:
            self._models[key] = self._encoded(key, step, state)
        return self._models[key]

    def _encoded(self, key: str, step: int, state: Any) -> SendModel:
        model = model_of(self._strategy, state, key, self._setup)
        content = self._content(key, model)
        path = self._folder / key
        self._room.write(lambda: _write_new(path, content))
        return SendModel(self._ref(key, content), path, step, model.size)

    def _content(self, key: str, model: Vector) -> bytes:
        """A model as it travels to agents."""
        if key == BASE and (base := self._scenario.task.base) is not None:
            return base.content()
        wire = self._scenario.wire
        codec = Codec(wire.down)
        rng = generator(self._scenario.seed, "down", self._engine.round, key)
        return encode_model(model, self._setup.whole.digest, codec, rng)

    def _ref(self, key: str, content: bytes) -> ModelRef:
        """The reference to an encoded model in an order."""
        wire = self._scenario.wire
        size = len(content)
        parts = part_count(size, wire.part_bytes)
        return ModelRef(key=key, digest=digest(content), parts=parts, size=size)

    # -- orders of single agents -------------------------------------------------------------------

    def make(self, client: ClientId, number: int, phase: Phase, state: Any) -> None:
        """Make an order of the agent's own, on the newest models."""
        order = self._as_sent(client, phase, self._own_order(client, phase, state))
        models = [self._version(key, number, state).ref for key in order.models]
        kind = (phase.name, order.models, order.cluster)
        work = self._newest.get(kind)
        if work is None or work.numbers != dict(order.numbers):
            work = self._work_with(phase, order, models)
            self._newest[kind] = work
            self._newest_settings.pop(kind, None)
        if self._members.readers:
            self._share(kind, number, work)
        self.own.keep(
            number, work, self._message(client, number, number - 1, cluster=work.cluster, work=work)
        )

    def _version(self, key: str, number: int, state: Any) -> SendModel:
        """The present version of a model."""
        known = self._present.get(key)
        if known is not None:
            return known
        model = model_of(self._strategy, state, key, self._setup)
        content = self._content(key, model)
        ref = self._ref(version_key(key, content), content)
        send = SendModel(ref, self._folder / ref.key, about=number, values=model.size)
        self.own.keep_version(send, content)
        self._present[key] = send
        return send

    def _share(self, kind: Kind, number: int, work: Work) -> None:
        """Let the brokers retain what this order shares with others."""
        settings = self._newest_settings.get(kind)
        if settings is None:
            settings = digest(shared_of(work).to_bytes())
            self._newest_settings[kind] = settings
        self._settings[number] = settings
        if not self.is_outdated(number) and self.shared is not None:
            return
        if self._engine.stage is Stage.OPEN:
            return  # agents still fetch what the orders of the open step share
        self.shared = self._new_shared(work, number)

    def _brief_of_own(self, number: int, work: Work) -> BriefWork | None:
        """The work without what all share, as long as brokers retain that."""
        shared = self.shared
        if shared is None or self._settings.get(number) != shared.ref.digest:
            return None
        return self._brief_with(shared, work)

    def is_outdated(self, number: int) -> bool:
        """Whether an order was brief, and the brokers no longer retain what it left out."""
        settings = self._settings.get(number)
        if settings is None or self.shared is None:
            return False
        return settings != self.shared.ref.digest

    def tidy(self) -> list[DropModel]:
        """Forget own orders that are over, and versions of models that are not needed any more."""
        dropped = self.own.tidy(self._engine.pace.numbers(), self._present.values())
        self._settings = {
            number: settings
            for number, settings in self._settings.items()
            if number in self.own.works
        }
        return dropped

    def start_of(self, number: int, key: str) -> Vector:
        """The model (d,) behind a key of an own order, as its agent has it."""
        return self._decoded(self.own.start_of(number, key))

    def restore(self) -> None:
        """Take up the own orders that an earlier process has left in files."""
        setup = self._setup
        own = 0 if setup.rest is None else setup.rest.size
        self.own.restore(self._engine.pace.numbers(), setup.layout.size, own)


def _write_new(path: Path, content: bytes) -> None:
    """Write a file that a coordinator which starts again makes again. Who reads the old one keeps it: a rename in its place would
    have some file systems (ext4) write the content to the disk at once, which takes about a millisecond."""
    with naming(path):
        path.unlink(missing_ok=True)
        path.write_bytes(content)
