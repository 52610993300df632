"""The agent's state machine, pure: events in with their time, actions out. No socket, clock, file or array.

The coordinator publishes the desired state (the order); the session compares it with what was done, and acts.

- One order at a time. A step whose report lies in the outbox is answered again, never worked again.
- An order for another step cancels the work on the old one.
- `order.accepted == step` commits the memory of that step; a step that was closed without it is dropped.
- An accepted report is kept until its step is closed. A coordinator of a later life (`again`) that asks for it once
  more has lost it, and gets it once more.
- A report is sent when it is made, at every sight of its order, soon after every `Up` and roll call, and on a
  doubling timer, until its fate is known; not while the coordinator is known to be away.
- Orders never go back: one that knows less than what was seen on this connection, or than the disk, is stale.
- Another run has a report and a memory of its own. It begins where the coordinator that lives names it, not where
  an order does alone: a broker that came back with an old database has orders of runs that are long over.
- A task or an order that breaks the rules of this device is refused before anything of it is fetched or built.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from enum import Enum

from covey.agent.device import events as e
from covey.agent.policy import DEFAULT_RULES, Rules
from covey.shared.mqtt.duplicate_ids import DuplicateIds, Reaction
from covey.shared.mqtt.link import Down, Up
from covey.shared.wire.messages import (
    AgentStatus,
    CoordinatorStatus,
    ModelRef,
    OrderMessage,
    bounded_labels,
)
from covey.shared.wire.topics import Topics

ROLL_SPREAD_S = 0.5  # answers to a roll call come within this time
NUDGE_S = 1.0  # after `Up` or a roll call the order is awaited this long before the report goes out unasked
RETRY_S = 2.0  # first wait for the fate of a report; doubles
RETRY_LIMIT_S = 60.0
STALL_S = 3.0  # first wait for the next part of a model; doubles
STALL_LIMIT_S = 60.0
REFUSED = "refused by this device"  # among the reasons for which messages are dropped


class Phase(Enum):
    IDLE = "idle"  # nothing ordered, or a report in the outbox
    FETCHING = "fetching"  # an order names models that are not on disk
    WORKING = "working"


class Session:
    """Feed it events with the time they happened; carry out the actions it returns, in order.

    Call again with Tick() at `wake_at`. `dropped` is the shell's to count in: messages refused, by reason.
    """

    def __init__(
        self,
        agent: str,
        topics: Topics,
        *,
        session: str,
        version: str = "",
        outboxed: e.Outboxed | None = None,
        models: Sequence[bytes] = (),
        rules: Rules = DEFAULT_RULES,
        seed: int = 0,
    ) -> None:
        self.dropped: dict[str, int] = {}
        self._agent, self._session, self._version = agent, session, version
        self._topics = topics
        self._rules = rules
        self._duplicate_ids = DuplicateIds(session)
        self._random = random.Random(f"{agent}/{seed}")  # noqa: S311 - spreads load, guards nothing
        self._up = False
        self._coordinator: CoordinatorStatus | None = None
        self._epoch = ""  # the roll call that our next status answers
        self._inspection = e.Inspected("")
        self._inspecting = ""
        self._refused: tuple[str, ...] = ()  # subscriptions: without them we are deaf
        self._phase = Phase.IDLE
        self._work: OrderMessage | None = None  # what is fetched for or worked on; None when idle
        self._order: OrderMessage | None = None  # the newest that was not stale
        outboxed = outboxed or e.Outboxed()
        self._run, self._accepted, self._outbox = outboxed.run, outboxed.accepted, outboxed.step
        self._kept = outboxed.kept  # step of an accepted report that is still on disk
        self._confirmed = outboxed.confirmed  # `again` of the order that said `accepted`
        self._aside = outboxed.aside  # what is on disk of the run before
        self._live_run = ""  # the run of the coordinator that lives, as far as we know
        self._live_session = ""  # that coordinator's session
        self._parked: OrderMessage | None = None  # of a run that no coordinator has named yet
        self._held = set(models)  # digests of the models on disk
        self._newest: dict[str, bytes] = {}  # by key, of those that arrived since the last order
        self._subscribed: tuple[str, ...] = ()  # topics of model parts
        self._sending = False
        self._once_more = False  # the coordinator asked again while the report was on its way
        self._answered = 0  # `order.again` that the last sending answered
        self._sent_from = 0.0
        self._retries = self._stalls = 0
        self._published: AgentStatus | None = None  # None: nobody knows us
        self._serial = 0  # of the newest status
        self._roll_at: float | None = None
        self._retry_at: float | None = None
        self._stall_at: float | None = None

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def wake_at(self) -> float | None:
        timers = (self._roll_at, self._retry_at, self._stall_at, self._duplicate_ids.announce_at)
        return min((at for at in timers if at is not None), default=None) if self._up else None

    @property
    def status(self) -> AgentStatus:
        """What the agent says about itself now."""
        seen = self._inspection
        return AgentStatus(
            agent=self._agent,
            session=self._session,
            serial=self._serial,
            version=self._version,
            online=True,
            epoch=self._epoch,
            task=seen.task,
            samples=seen.samples,
            test_samples=seen.test_samples,
            labels=bounded_labels(seen.labels),
            problem=self._deafness or seen.problem,
            cluster=self._order.cluster if self._order else None,
            busy=self._work is not None,
            step=self._work.step if self._work else 0,
            run=self._run,
            accepted=self._accepted,
            dropped=dict(self.dropped),
        )

    @property
    def will(self) -> AgentStatus:
        """What others should read when this agent is gone."""
        return AgentStatus(
            agent=self._agent, session=self._session, version=self._version, online=False
        )

    def handle(self, event: e.Event, now: float) -> list[e.Action]:
        return self._react(event, now) + self._settle_subscriptions() + self._settle_status()

    def _react(self, event: e.Event, now: float) -> list[e.Action]:
        match event:
            case Up():
                return self._came_up(now)
            case Down():
                self._up = False
                return self._stop_sending()
            case e.OwnStatusSeen(status, retained):
                return self._own_status_seen(status, retained, now) if self._up else []
            case e.CoordinatorSeen(status, retained):
                return self._coordinator_seen(status, retained, now)
            case e.Inspected():
                return self._inspected(event)
            case e.OrderSeen(order):
                return self._order_arrived(order, now)
            case e.PartSeen():
                self._stalls = 0
                return self._watch_for_stall(now)
            case e.ModelReady(key, digest):
                return self._model_ready(key, digest, now)
            case e.WorkDone(step):
                return self._work_done(step, now)
            case e.WorkFailed(step, why):
                return (
                    [e.ReportFailure(self._work, why)]
                    if self._work and self._work.step == step
                    else []
                )
            case e.Sent(step, whole):
                return self._sent(step, whole, now)
            case e.ReportDamaged(step):
                return self._report_damaged(step, now)
            case e.ModelDamaged(digest):
                return self._model_damaged(digest, now)
            case e.SubscriptionsRefused(topics):
                return self._subscriptions_refused(topics)
            case e.Tick():
                return self._tick(now)

    # link and status

    def _came_up(self, now: float) -> list[e.Action]:
        self._up = True
        self._published = None  # our last will was published meanwhile
        self._retries = self._stalls = 0
        self._nudge(now)
        own = (self._topics.order(self._agent), self._topics.status(self._agent))
        subscriptions = (self._topics.coordinator_status, *own, *self._subscribed)
        return [e.Subscribe(subscriptions), *self._watch_for_stall(now)]

    @property
    def _deafness(self) -> str | None:
        """Why this agent hears nothing, for others to read; None where it hears."""
        if not self._refused:
            return None
        return f"the broker refuses the subscription to {self._refused[0]}; check its access rules for this agent"

    def _subscriptions_refused(self, topics: tuple[str, ...]) -> list[e.Action]:
        self._refused = topics
        return [e.Notify(self._deafness or "the broker refuses no subscription any more")]

    def _settle_status(self) -> list[e.Action]:
        """A roll call alone is answered by its timer; whatever else others may see goes out at once."""
        if not self._up:
            return []
        status, known = self.status, self._published
        unseen = {
            "epoch": status.epoch,
            "dropped": status.dropped,
            "serial": status.serial,
            "run": status.run,
            "accepted": status.accepted,
        }
        return [] if known and known.model_copy(update=unseen) == status else self._publish()

    def _publish(self) -> list[e.Action]:
        self._serial += 1
        self._published, self._roll_at = self.status, None
        return [e.PublishStatus(self._published)]

    def _own_status_seen(self, status: AgentStatus, retained: bool, now: float) -> list[e.Action]:
        if not status.online:  # who reads of its own death says that it lives
            return self._publish()
        if retained or status.session == self._session:
            return []
        match self._duplicate_ids.observe(status.session, now):
            case Reaction.ANNOUNCE:
                return self._publish()
            case Reaction.YIELD_ID:
                return [e.GiveWay()]
        return []

    # the coordinator's status

    def _coordinator_seen(
        self, status: CoordinatorStatus, retained: bool, now: float
    ) -> list[e.Action]:
        if status.online and retained and status.session < self._live_session:
            return []  # the broker has it from before a crash: a coordinator that lives will say so itself
        before, self._coordinator = self._coordinator, status
        if not status.online:
            return []
        self._live_run, self._live_session = status.run, status.session
        return self._roll_called(status, before, now) + self._unpark(now)

    def _unpark(self, now: float) -> list[e.Action]:
        """Take up the order that had come before its coordinator."""
        order = self._parked
        if order is None or order.run != self._live_run:
            return []
        return self._order_arrived(order, now)

    def _roll_called(
        self, status: CoordinatorStatus, before: CoordinatorStatus | None, now: float
    ) -> list[e.Action]:
        if status.epoch != self._epoch:
            self._epoch = status.epoch
            self._roll_at = now + self._random.uniform(0, ROLL_SPREAD_S)
            self._nudge(now)
        elif before is not None and not before.online:
            self._nudge(now)
        if status.task is None or status.task_digest in ("", self._inspecting):
            return []
        self._inspecting = status.task_digest
        refusal = self._rules.refuses_task(status.task)
        if refusal is not None:
            self._count_refusal()
            return self._inspected(e.Inspected(status.task_digest, problem=refusal))
        return [e.Inspect(status.task, status.task_digest)]

    def _inspected(self, seen: e.Inspected) -> list[e.Action]:
        if seen.task != self._inspecting:  # the task changed while the worker looked
            return []
        before, self._inspection = self._inspection, seen
        if not seen.problem:
            return []
        known = (seen.problem, seen.detail) == (before.problem, before.detail)
        return [] if known else [e.Notify(seen.detail or seen.problem)]

    # orders

    def _order_arrived(self, order: OrderMessage, now: float) -> list[e.Action]:
        is_other_run = self._run != "" and order.run != self._run
        if is_other_run and order.run != self._live_run:
            self._parked = order
            return []
        self._parked = None
        return [] if self._is_stale(order) else self._order_seen(order, now)

    def _order_seen(self, order: OrderMessage, now: float) -> list[e.Action]:
        refusal = self._rules.refuses(order, self._agent)
        self._order = order if refusal is None else order.model_copy(update={"work": None})
        actions = self._switch_run(order, now)
        actions += self._compare_accepted(order)
        actions += self._settle_report(order)
        if self._work is not None and not self._wants(order, self._work.step):
            actions += self._stop_working()
        if self._outbox:
            return actions + self._answer(order, now)
        if self._wants(order, order.step) and self._phase is not Phase.WORKING:
            if refusal is not None:
                return actions + self._refuse(order, refusal)
            actions += self._fetch(order)
        return actions + self._go_on(now)

    def _answer(self, order: OrderMessage, now: float) -> list[e.Action]:
        """The order asks for the report in the outbox, or only tells of other things and the timer goes on."""
        self._once_more = self._once_more or (self._sending and order.again > self._answered)
        asked = order.step == self._outbox or order.again > self._answered
        return self._send(now) if asked else []

    def _is_stale(self, order: OrderMessage) -> bool:
        """Late duplicates, and what a broker still held from before its crash.

        A coordinator of a later life that knows less than we do is not stale: it has lost something.
        """
        newest = self._order
        if newest is not None and newest.run == order.run and order.age < newest.age:
            return True
        knows_less = order.run == self._run and order.accepted < self._accepted
        return knows_less and order.again <= self._confirmed

    def _wants(self, order: OrderMessage, step: int) -> bool:
        return order.work is not None and order.step == step > max(
            order.accepted, order.closed, self._accepted
        )

    def _switch_run(self, order: OrderMessage, now: float) -> list[e.Action]:
        if order.run == self._run:
            return []
        actions = self._stop_sending()
        if self._work is not None:
            actions += self._stop_working()
        left = self._aside
        if self._run:
            left = e.Outboxed(self._run, self._accepted, self._outbox, self._kept, self._confirmed)
        back = (
            self._aside
            if self._aside is not None and self._aside.run == order.run
            else e.Outboxed(order.run)
        )
        self._aside = left
        self._run, self._accepted, self._outbox = back.run, back.accepted, back.step
        self._kept, self._confirmed = back.kept, back.confirmed
        self._nudge(now)  # a report of the run that is back may still wait
        return [*actions, e.SwitchRun(order.run)]

    def _compare_accepted(self, order: OrderMessage) -> list[e.Action]:
        """Does the coordinator know of other accepted work than we do? Then one of us has lost something."""
        if order.accepted > self._accepted and order.accepted != self._outbox:
            actions = self._stop_sending()
            self._accepted, self._confirmed = order.accepted, order.again
            self._outbox = self._kept = 0
            return [*actions, e.LoseMemory(order.accepted, order.again)]
        asks_again = order.work is not None and order.closed < order.step <= self._accepted
        if order.accepted < self._accepted and asks_again:
            self._accepted, self._confirmed = order.accepted, order.again
            self._outbox = self._kept if self._kept == order.step else 0
            self._kept = 0
            return [e.GoBack(order.accepted)]
        return []

    def _settle_report(self, order: OrderMessage) -> list[e.Action]:
        step = self._outbox
        if not step:
            return self._settle_kept(order)
        if order.accepted == step:
            self._accepted, self._confirmed = step, order.again
            self._outbox, self._kept = 0, step
            return [
                *self._stop_sending(),
                e.CommitMemory(step, order.again),
                *self._settle_kept(order),
            ]
        if step <= max(order.accepted, order.closed) or order.step > step:
            self._outbox = 0
            return [*self._stop_sending(), e.DropReport(step)]
        return []

    def _settle_kept(self, order: OrderMessage) -> list[e.Action]:
        """A step that is closed, or followed by another one, is never asked for again."""
        step = self._kept
        if not step or step > max(order.closed, order.step - 1, order.accepted - 1):
            return []
        self._kept = 0
        return [e.DropReport(step)]

    # work

    def _refuse(self, order: OrderMessage, why: str) -> list[e.Action]:
        """Answer an order that breaks a rule of this device, and do nothing of what it says."""
        self._count_refusal()
        self._phase, self._work, self._stall_at = Phase.WORKING, order, None
        return [e.OrderRefused(order.step, why), e.ReportFailure(order, why)]

    def _count_refusal(self) -> None:
        self.dropped[REFUSED] = self.dropped.get(REFUSED, 0) + 1

    def _fetch(self, order: OrderMessage) -> list[e.Action]:
        wanted = frozenset(ref.digest for ref in _refs(order))
        known = self._work is not None and _refs(self._work) == _refs(order)
        self._phase, self._work = Phase.FETCHING, order
        if known:
            return []
        self._stalls = 0
        self._held &= wanted
        self._newest = {ref.key: ref.digest for ref in _refs(order)}
        return [e.KeepModels(wanted)]

    def _go_on(self, now: float) -> list[e.Action]:
        if self._phase is not Phase.FETCHING or self._work is None:
            return []
        if self._missing():
            return self._watch_for_stall(now)
        self._phase, self._stall_at = Phase.WORKING, None
        return [e.StartWork(self._work)]

    def _model_ready(self, key: str, digest: bytes, now: float) -> list[e.Action]:
        self._held.add(digest)
        self._newest[key] = digest
        if self._phase is not Phase.IDLE:
            return self._go_on(now)
        # nobody ordered it yet: with delivery "all" the newest models are held ahead of their order
        self._held = set(self._newest.values())
        return [e.KeepModels(frozenset(self._held))]

    def _stop_working(self) -> list[e.Action]:
        started = self._phase is Phase.WORKING
        self._phase, self._work, self._stall_at = Phase.IDLE, None, None
        return [e.CancelWork()] if started else []

    def _work_done(self, step: int, now: float) -> list[e.Action]:
        if self._work is None or self._work.step != step:
            return [e.DropReport(step)]
        self._phase, self._work = Phase.IDLE, None
        self._outbox, self._kept, self._retries, self._once_more = step, 0, 0, False
        return self._send(now)

    def _model_damaged(self, digest: bytes, now: float) -> list[e.Action]:
        """Fetch it again, and begin the work again once it is there."""
        self._held.discard(digest)
        if self._work is None or digest not in {ref.digest for ref in _refs(self._work)}:
            return []
        self._phase, self._stalls = Phase.FETCHING, 0
        return self._go_on(now)

    def _missing(self) -> list[ModelRef]:
        return [ref for ref in _refs(self._work) if ref.digest not in self._held]

    def _settle_subscriptions(self) -> list[e.Action]:
        wanted = self._part_topics()
        new = tuple(topic for topic in wanted if topic not in self._subscribed)
        old = tuple(topic for topic in self._subscribed if topic not in wanted)
        self._subscribed = wanted
        if not self._up:
            return []
        return [*([e.Unsubscribe(old)] if old else []), *([e.Subscribe(new)] if new else [])]

    def _part_topics(self) -> tuple[str, ...]:
        everything = self._coordinator is not None and self._coordinator.delivery == "all"
        refs = self._missing() if self._phase is Phase.FETCHING else []
        if everything:
            last = _refs(self._work or self._order)
            if not last:  # nothing to do now: stay where the last order has put us
                return self._subscribed
            refs = last
        return self._topics_of(refs)

    def _topics_of(self, refs: Sequence[ModelRef]) -> tuple[str, ...]:
        topics = (
            f"{self._topics.model(ref.key)}/{part}" for ref in refs for part in range(ref.parts)
        )
        return tuple(dict.fromkeys(topics))

    def _watch_for_stall(self, now: float) -> list[e.Action]:
        if self._phase is Phase.FETCHING:
            self._stall_at = now + min(STALL_S * 2**self._stalls, STALL_LIMIT_S)
        return []

    # the report

    def _nudge(self, now: float) -> None:
        """Send soon; the order that is about to arrive sends at once, or makes it needless."""
        if self._outbox and not self._sending:
            self._retries, self._retry_at = 0, now + NUDGE_S

    def _send(self, now: float) -> list[e.Action]:
        self._retry_at = None
        away = self._coordinator is not None and not self._coordinator.online
        if not self._outbox or self._sending or not self._up or away:
            return []
        self._sending, self._sent_from = True, now
        self._answered = self._order.again if self._order else 0
        return [e.SendReport(self._outbox)]

    def _sent(self, step: int, whole: bool, now: float) -> list[e.Action]:
        if not self._sending or step != self._outbox:
            return []
        self._sending = False
        if self._once_more:
            self._once_more = False
            return self._send(now)
        # a report that took a minute to send is not sent again after two seconds
        wait = min(RETRY_S * 2**self._retries, RETRY_LIMIT_S) * self._random.uniform(0.75, 1.25)
        self._retry_at = now + max(wait, now - self._sent_from if whole else 0.0)
        self._retries = min(self._retries + 1, 16)
        return []

    def _report_damaged(self, step: int, now: float) -> list[e.Action]:
        """Do the work again, if it is still wanted."""
        if step != self._outbox:
            return []
        self._outbox = 0
        actions = self._stop_sending()
        order = self._order
        if order is None or not self._wants(order, step):
            return actions  # an order that asks for it will come, or none will
        return actions + self._fetch(order) + self._go_on(now)

    def _stop_sending(self) -> list[e.Action]:
        was, self._sending, self._once_more, self._retry_at = self._sending, False, False, None
        return [e.StopSending()] if was else []

    def _tick(self, now: float) -> list[e.Action]:
        actions: list[e.Action] = []
        if not self._up:
            return actions
        if self._roll_at is not None and now >= self._roll_at:
            actions += self._publish()
        if self._duplicate_ids.announce_at is not None and now >= self._duplicate_ids.announce_at:
            self._duplicate_ids.announce_at = None
            actions += self._publish()
        if self._retry_at is not None and now >= self._retry_at:
            actions += self._send(now)
        if self._stall_at is not None and now >= self._stall_at:
            self._stalls = min(self._stalls + 1, 16)
            self._watch_for_stall(now)
            actions.append(
                e.Subscribe(self._topics_of(self._missing()))
            )  # the broker sends retained parts again
        return actions


def _refs(order: OrderMessage | None) -> list[ModelRef]:
    return order.work.models if order is not None and order.work is not None else []
