"""The aggregators of a run, one near each broker: what they should add up, and the sums that they send.

A broker's reports go one of two ways in each step. If its aggregator is there and the step can be summed, the aggregator gets
an order and the task, and the coordinator reads no report of that broker. Otherwise the coordinator reads them itself. A
step changes to the direct way at most once: then its agents are asked for their reports, and late sums are dropped.
"""

from __future__ import annotations

import io
import json
import time
from dataclasses import asdict, dataclass
from functools import partial

from covey.coordinator.checks import MAX_OTHER_BYTES
from covey.coordinator.engine.step import Stage, Step
from covey.coordinator.record.notices import (
    AggregatorDown,
    AggregatorExcluded,
    AggregatorUp,
    SumRefused,
)
from covey.coordinator.run.effects import Effect, SumTaken
from covey.coordinator.run.happenings import SumCame
from covey.coordinator.serve.desk import Desk, apart, happen, orders_of
from covey.coordinator.serve.direct import AggregatorItem, Direct
from covey.extras.scale import partial_sums
from covey.shared.errors import DecodeError
from covey.shared.mqtt.link import Received
from covey.shared.mqtt.program import Publish, Show
from covey.shared.programs.timers import earliest
from covey.shared.strategies.base import ClientId
from covey.shared.wire.aggregates import (
    TASK,
    AggregatorOrder,
    AggregatorStatus,
    AggregatorTask,
    PartialSum,
)
from covey.shared.wire.format import FORMAT, speaks_other
from covey.shared.wire.messages import ModelRef, Part, digest
from covey.shared.wire.parts import Assembler, part_count, split, taken
from covey.shared.wire.topics import PlainTopic

BYTES_PER_SUMMED_VALUE = 64  # of a partial sum: grids of eight bytes, of which a usual sum has two
BYTES_PER_SUMMED_REPORT = 4096  # of everything in it but the sums
STATUS_WITHIN_S = 1.0  # after a connection, an aggregator has answered the roll call
MAX_AGE_S = 600.0  # an incomplete sum is kept this long
NO_STEP = 0
# what checks and sums of reports read of a scenario: all that leaves the coordinator, whose brokers' addresses hold passwords
FOR_AGGREGATORS = {
    *("name", "seed", "task", "training", "strategy", "rounds"),
    *("evaluation", "wire", "aggregation", "records", "privacy"),
}


@dataclass(frozen=True)
class SumArrived(AggregatorItem):
    """All parts of a partial sum are here."""

    content: bytes


@dataclass(frozen=True)
class AggregatorSeen(AggregatorItem):
    """An aggregator came, or is gone."""

    is_up: bool
    excluded: str = ""  # why it is not given any work


@dataclass(frozen=True)
class OrderNotTaken(AggregatorItem):
    """The broker has not taken the newest order of its aggregator."""


@dataclass(frozen=True)
class OrderFacts:
    """What the contents of an aggregator's order depend on."""

    step: int
    is_direct: bool
    cohort: int  # invited agents so far
    settled: int  # messages of aggregators so far


@dataclass
class _Site:
    """One broker, and the aggregator near it."""

    session: str = ""  # of the aggregator that is online; "" without one
    excluded: str = ""  # the session of one that speaks another format
    was_connected: bool = False  # this broker was asked for the aggregator's status
    step: int = NO_STEP  # the open step, as far as this broker knows it
    is_direct: bool = True  # the coordinator reads this broker's reports itself
    is_subscribed: bool = False  # to the reports
    decide_at: float = 0.0  # until then (s) wait for the status of an aggregator
    was_undecided: bool = False  # while orders of the open step were published
    order: OrderFacts | None = None  # what the newest order holds
    has_task: int = NO_STEP  # the step whose task the broker retains


class Aggregators(Direct):
    """The aggregators near the brokers of a run.

    Args:
        desk: of the service.
    """

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._sites = [_Site() for _ in range(desk.shards)]
        self._task: tuple[int, bytes, ModelRef] | None = None  # of a step: its content
        self._summable = (NO_STEP, False)  # the newest step, and whether its method allows sums
        self._parts = Assembler(
            lambda sender, part: desk.run.new_sink(part.size),
            largest_bytes=1,
            per_sender=4,
            total_bytes=1 << 50,  # on disk: bounded by contents per aggregator and their size
            max_age_s=MAX_AGE_S,
        )

    def __repr__(self) -> str:
        online = sum(bool(site.session) for site in self._sites)
        return f"<Aggregators: {online} of {len(self._sites)} online>"

    # -- what comes in -----------------------------------------------------------------------------

    def read(self, topic: PlainTopic, message: Received, now: float) -> AggregatorItem | None:
        """The item of a message on an aggregator's topics. Raises DecodeError for one that must be refused."""
        if not message.payload:
            return None
        if topic.leaf == "aggregator/status":
            return self._status(message)
        if topic.leaf == "aggregator/sum":
            return self._part(message, now)
        return None  # our own

    def _status(self, message: Received) -> AggregatorSeen | None:
        status = AggregatorStatus.from_bytes(message.payload)
        site = self._sites[message.shard]
        if status.online:
            # a broker retains "online" also of one that died with it: only an answer to a roll call counts
            if message.retained or status.session in (site.session, site.excluded):
                return None
            if status.format != FORMAT:
                site.excluded = status.session
                who = f"the aggregator of broker {message.shard}"
                why = speaks_other(who, status.format, status.version, "this coordinator")
                return AggregatorSeen(message.shard, is_up=False, excluded=why)
            site.session = status.session
            return AggregatorSeen(message.shard, is_up=True)
        if status.session != site.session:
            return None  # the last will of one that was replaced
        site.session = ""
        return AggregatorSeen(message.shard, is_up=False)

    def _part(self, message: Received, now: float) -> SumArrived | None:
        part = Part.from_bytes(message.payload)
        sender = _sender(message.shard)
        self._parts.largest_bytes = max(self._parts.largest_bytes, self._largest_sum)
        sink = self._parts.feed(sender, part, now)
        if sink is None:
            return None
        # it comes again until an order settles it
        self._parts.forget(sender, part.digest)
        return SumArrived(message.shard, taken(sink))

    @property
    def _largest_sum(self) -> int:
        """Bytes that no message of an aggregator can exceed in the open step."""
        step = self._run.engine.step
        if step is None:
            return MAX_OTHER_BYTES
        values = sum(abs(size) for size in step.phase.sizes.values())
        # every cluster may have a mean of each vector
        models = 1 + len(self._run.strategy.clusters(self._run.state))
        sums = BYTES_PER_SUMMED_VALUE * values * models
        return MAX_OTHER_BYTES + sums + (BYTES_PER_SUMMED_REPORT * len(self._run.engine.known))

    def take(self, item: AggregatorItem, now: float) -> list[Effect]:
        """What follows from an item."""
        match item:
            case AggregatorSeen(shard, excluded=why) if why:
                self._desk.effects.append(Show(AggregatorExcluded(shard, why)))
            case AggregatorSeen(shard, is_up):
                notice = AggregatorUp(shard) if is_up else AggregatorDown(shard)
                self._desk.effects.append(Show(notice))
                self._sites[shard].order = None
            case OrderNotTaken(shard):
                self._sites[shard].order = None
            case SumArrived(shard, content):
                return self._accept(shard, content, now)
        return []

    def _accept(self, shard: int, content: bytes, now: float) -> list[Effect]:
        """Hand a message of an aggregator to the run."""
        site = self._sites[shard]
        run = self._run
        step = run.engine.step
        is_late = step is None or site.step != step.number or site.is_direct
        if is_late:
            return []
        site.order = None  # the next one settles it
        placement = self._desk.placement
        origin = partial_sums.AggregatorAgents(
            lambda client: placement.lives(client, shard), run.samples_of
        )
        try:
            summed = PartialSum.from_bytes(content)
        except DecodeError as error:
            self._refuse(shard, error)
            return []
        effects = happen(self._desk, SumCame(content, summed, origin), now=now)
        [taken] = [effect for effect in effects if isinstance(effect, SumTaken)]
        if taken.error is not None:
            self._refuse(shard, taken.error)
        if taken.counts:
            self._note(summed)
        return effects

    def _refuse(self, shard: int, error: DecodeError) -> None:
        why = str(error)
        self._run.audit.blame("refuse", f"aggregator-{shard}", why)
        self._desk.roster.refuse(error.reason)
        self._desk.effects.append(Show(SumRefused(shard, why)))

    def _note(self, summed: PartialSum) -> None:
        """Show in the roster what the aggregator has had from its agents."""
        wall_s = time.time()
        for report in summed.reports:
            self._desk.roster.reported(report.client, wall_s, worked=True)
        for failure in summed.failures:
            self._desk.roster.reported(failure.client, wall_s, worked=False)
        for refusal in summed.refusals:
            self._desk.roster.refuse(refusal.reason, refusal.client)

    # -- what goes out -----------------------------------------------------------------------------

    def connected(self, shard: int, now: float) -> list[str]:
        """The subscriptions on a broker that comes up; it may have forgotten what it retained."""
        site = self._sites[shard]
        site.was_connected = True
        self.retained_is_unknown(shard)
        site.decide_at = now + STATUS_WITHIN_S
        filters = [self._topics.aggregator_status, self._topics.aggregator_sum]
        site.is_subscribed = site.is_direct and site.step != NO_STEP
        if site.is_subscribed:
            filters.append(self._topics.every_report)
        return filters

    def retained_is_unknown(self, shard: int) -> None:
        """Publish order and task of this broker's aggregator again: another coordinator may have overwritten them."""
        self._sites[shard].order = None
        self._sites[shard].has_task = NO_STEP

    def lost(self, shard: int) -> None:
        """A broker is gone, perhaps with the aggregator near it: that has to answer a roll call before it counts again."""
        site = self._sites[shard]
        if site.session:
            site.session = ""
            self._desk.effects.append(Show(AggregatorDown(shard)))

    @property
    def wake_at(self) -> float | None:
        """When `prepare` has something to do at the latest; None: nothing."""
        if self._open_step() is None:
            return None
        return earliest(*[site.decide_at for site in self._sites if site.was_undecided])

    def prepare(self, now: float) -> list[Effect]:
        """Publish what each aggregator should do, before any order of the open step is published.

        Returns:
            orders that ask agents for reports which their aggregator will not send.
        """
        step = self._open_step()
        if step is None:
            return []  # the next step brings the next order
        effects: list[Effect] = []
        for shard, site in enumerate(self._sites):
            is_up = shard in self._desk.placement.up or len(self._sites) == 1
            # a broker may be up before its subscriptions are made: nothing is known of its aggregator then
            if is_up and site.was_connected:
                effects += self._prepare(shard, site, step, now)
        return effects

    def forget(self) -> None:
        """An agent was forgotten, whose name is in tasks, orders and sums: nothing of the open step stays with aggregators."""
        for shard in range(len(self._sites)):
            self._parts.drop(_sender(shard))
        self.close()

    def close(self) -> None:
        """The run is over: aggregators have nothing to do, and nothing is left at their brokers."""
        for shard, site in enumerate(self._sites):
            self._publish_order(shard, AggregatorOrder(run=self._run.id, step=site.step))
            site.order = None
            if self._task is not None and site.has_task != NO_STEP:
                ref = self._task[2]
                parts = map(self._topics.aggregator_task, range(ref.parts))
                cleared = [Publish([(topic, b"")], shard=shard) for topic in parts]
                self._desk.effects += cleared
                site.has_task = NO_STEP
        self._task = None

    def _open_step(self) -> Step | None:
        return self._run.engine.step if self._run.engine.stage is Stage.OPEN else None

    def _prepare(self, shard: int, site: _Site, step: Step, now: float) -> list[Effect]:
        if not site.session and now < site.decide_at:
            site.was_undecided = True
            return []
        is_new = step.number != site.step
        is_summed = bool(site.session) and self._may_be_summed(step)
        is_asked = site.was_undecided
        site.was_undecided = False
        if is_new:
            site.step = step.number
            site.is_direct = not is_summed
        elif not is_summed and not site.is_direct:
            site.is_direct = True
            is_asked = True
        self._publish(shard, site, step)
        return self._ask(shard, step) if is_asked else []

    def _may_be_summed(self, step: Step) -> bool:
        """Whether the reports of a step may come as sums. The method is asked once."""
        run = self._run
        number, is_summable = self._summable
        if number != step.number:
            is_summable = partial_sums.is_summable(run.scenario, step, run.state, run.orders.keys())
            self._summable = (step.number, is_summable)
        return is_summable and not run.is_direct

    def _ask(self, shard: int, step: Step) -> list[Effect]:
        """Orders for the agents of a broker that have not reported: an order makes an agent send its report."""
        return [*orders_of(self._desk, self._awaited(shard, step))]

    def _awaited(self, shard: int, step: Step) -> list[ClientId]:
        awaited: list[ClientId] = []
        for client in step.cohort:
            if client not in step.reported and self._desk.placement.where(client) == shard:
                awaited.append(client)
        return awaited

    def _publish(self, shard: int, site: _Site, step: Step) -> None:
        """The order of one aggregator, where it has changed, and the subscription that fits it."""
        folding = self._run.folding
        settled = () if folding is None else folding.settled
        facts = OrderFacts(step.number, site.is_direct, len(step.cohort), len(settled))
        if facts == site.order:
            return
        agents: dict[ClientId, int | None] = {}
        task: ModelRef | None = None
        if not site.is_direct:
            task = self._publish_task(shard, site, step)
            for client in self._awaited(shard, step):
                agents[client] = self._run.samples_of(client)
        order = AggregatorOrder(
            run=self._run.id, step=step.number, task=task, agents=agents, settled=list(settled)
        )
        self._subscribe(shard, site)
        self._publish_order(shard, order)
        site.order = facts

    def _publish_order(self, shard: int, order: AggregatorOrder) -> None:
        messages = [(self._topics.aggregator_order, order.to_bytes())]
        self._desk.effects.append(Publish(messages, shard=shard, then=partial(_not_taken, shard)))

    def _subscribe(self, shard: int, site: _Site) -> None:
        """Read this broker's reports, or leave them to its aggregator."""
        if site.is_direct == site.is_subscribed:
            return
        site.is_subscribed = site.is_direct
        self._desk.effects += self._desk.hearing.reports(shard, wanted=site.is_direct)

    def _publish_task(self, shard: int, site: _Site, step: Step) -> ModelRef:
        """Publish the task of a step, unless this broker retains it."""
        task = self._task
        if task is None or task[0] != step.number:
            content = apart(self._desk, lambda: self._task_of(step))
            task = (step.number, content, self._ref(content))
            self._task = task
            for other in self._sites:
                other.has_task = NO_STEP
        _, content, ref = task
        if site.has_task != step.number:
            self._publish_parts(shard, content, ref, step.number)
            site.has_task = step.number
        return ref

    def _publish_parts(self, shard: int, content: bytes, ref: ModelRef, step: int) -> None:
        parts = split(
            io.BytesIO(content),
            digest=ref.digest,
            size=ref.size,
            part_bytes=self._run.scenario.wire.part_bytes,
            about=step,
        )
        topic_of = self._topics.aggregator_task
        messages = ((topic_of(part.index), part.to_bytes()) for part in parts)
        self._desk.effects.append(Publish(messages, shard=shard))

    def _task_of(self, step: Step) -> bytes:
        run = self._run
        phase = asdict(step.phase)
        manifest, arrays = run.store.checkpoint.exported(run.strategy.for_terms(run.state))
        task = AggregatorTask(
            run=run.id,
            step=step.number,
            scenario=run.scenario.model_dump_json(include=FOR_AGGREGATORS),
            phase=json.dumps(phase),
            state=manifest,
            arrays=arrays,
            layout=run.setup.whole.to_wire(),
            bases=run.orders.bases() if run.scenario.wire.delta else {},
        )
        return task.to_bytes()

    def _ref(self, content: bytes) -> ModelRef:
        size = len(content)
        parts = part_count(size, self._run.scenario.wire.part_bytes)
        return ModelRef(key=TASK, digest=digest(content), parts=parts, size=size)


def _sender(shard: int) -> str:
    return f"aggregator {shard}"


def _not_taken(shard: int, taken: bool) -> OrderNotTaken | None:
    return None if taken else OrderNotTaken(shard)
