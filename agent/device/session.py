"""The agent's state machine, pure: events in with their time, actions out. No socket, clock, file or array.

The coordinator publishes the desired state (the order). The session compares it with what was done, and acts. It
composes four machines: `SessionPresence` (the agent's status), `Briefs` (what all orders share), `Fetching` (the models and the
work of one order) and `Delivery` (the report until the coordinator has it).

- One order at a time. A step whose report lies in the outbox is answered from there, never worked on again.
- An order for another step cancels the work on the old one.
- `order.accepted == step` commits the memory of that step. A step that was closed without it is dropped.
- An accepted report is kept until its step is closed. A restarted coordinator (a larger `order.again`) that asks for it
  has lost it, and gets it again.
- Orders never go back: one that knows less than an earlier order, or than the disk, is outdated.
- Another run has a report and a memory of its own. It begins when a running coordinator names it, not with an order
  alone: a broker that was restored from a backup holds orders of runs that ended long ago.
- A task or an order that breaks the rules of this device is refused before anything of it is fetched or built.
- No work begins while a condition of the owner does not hold. Work that has begun is finished and reported: only then
  do others read that the agent stays out. When all conditions hold again, an order that is still open is taken up.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from covey.agent.device.delivery import Delivery
from covey.agent.device.events import (
    Actions,
    ConditionsSeen,
    CoordinatorSeen,
    DataReplaced,
    DeployedModelDamaged,
    DeployedModelReady,
    DeployedPartSeen,
    DeploymentSeen,
    DeploymentSettled,
    DeploymentShareSeen,
    DropReport,
    Event,
    Inspect,
    Inspected,
    ModelDamaged,
    ModelReady,
    ModelSettled,
    Notify,
    OrderSeen,
    OutboxDamaged,
    Outboxed,
    OwnStatusSeen,
    PartSeen,
    RefusalSeen,
    ReportFailure,
    Sent,
    SettingsReady,
    Subscribe,
    Tick,
    VitalsSeen,
    WorkDone,
    WorkerGone,
)
from covey.agent.device.fetching import Briefs, Fetching, WorkState, is_exchange
from covey.agent.device.presence import NOT_LOOKED, SessionPresence, SessionProgress, Vitals
from covey.agent.device.story import Story, StoryContext, StorySentence, sentences
from covey.agent.policy import DEFAULT_RULES, OwnersRules, TasksOfDay
from covey.shared.mqtt.link import Down, Echo, Up
from covey.shared.mqtt.profiles import Profile
from covey.shared.mqtt.subscriptions import TopicsRefused
from covey.shared.programs.timers import earliest
from covey.shared.wire.documents import JUDGING, AgentStatus, CoordinatorStatus, ModelInUse
from covey.shared.wire.framing import MAX_TEXT
from covey.shared.wire.messages import OrderMessage, SharedWork
from covey.shared.wire.topics import Topics

if TYPE_CHECKING:
    from covey.extras.in_use.deployments import Deployments

REFUSED = "refused by this device"  # a key of `dropped`


class Session:
    """Feed it events with the time they happened; carry out the actions it returns, in order.

    Feed it `Tick()` at `wake_at`.

    Args:
        agent: the agent's id.
        topics: the topics of its federation.
        session: a name for this life of the agent; of two lives, the older one sorts first.
        version: the installed version of Covey, for others to read.
        outboxed: what the outbox holds at the start.
        models: digests of the models that are on disk at the start.
        model_in_use: that the device uses itself at the start; None for none.
        deployments: what the device does about models that are published for use; None if it keeps none.
        vitals: of the machine at the start.
        rules: what a coordinator may ask of this device.
        seed: of the random delays that spread the load of many agents.

    Attributes:
        dropped: how many messages were refused, by reason. The shell counts its own refusals in, too.
    """

    def __init__(
        self,
        agent: str,
        topics: Topics,
        *,
        session: str,
        version: str = "",
        outboxed: Outboxed | None = None,
        models: Sequence[bytes] = (),
        model_in_use: ModelInUse | None = None,
        deployments: Deployments | None = None,
        vitals: Vitals = NOT_LOOKED,
        rules: OwnersRules = DEFAULT_RULES,
        seed: int = 0,
    ) -> None:
        jitter = random.Random(f"{agent}/{seed}")  # noqa: S311 - spreads load, guards nothing
        self.dropped: dict[str, int] = {}
        self._agent = agent
        self._topics = topics
        self._rules = rules
        self._tasks = TasksOfDay(rules.policy)
        self._presence = SessionPresence(agent, session, version, vitals)
        self._fetching = Fetching(topics, models)
        self._briefs = Briefs(topics)
        self._delivery = Delivery(outboxed or Outboxed(), jitter)
        self._story = Story()
        self._model_in_use = model_in_use
        self._deployments = deployments
        # the newest order that was not outdated, without its work where our rules refuse it
        self._order: OrderMessage | None = None
        # an order of a run that no running coordinator has named yet
        self._parked: OrderMessage | None = None
        # why no work may begin now; empty if all conditions of the owner hold
        self._unmet = ""

    def __repr__(self) -> str:
        return f"<Session: {self._presence!r} {self._fetching!r} {self._delivery!r}>"

    @property
    def state(self) -> WorkState:
        return self._fetching.state

    @property
    def wake_at(self) -> float | None:
        """When to feed the next Tick; None for not at all, because the next event comes from outside."""
        if not self._presence.is_up:
            return None
        machines = (self._presence, self._fetching, self._briefs, self._delivery, self._deployments)
        return earliest(*[machine.wake_at for machine in machines if machine is not None])

    @property
    def waits_for(self) -> str:
        """Why a connected agent has nothing to do, for a person; empty if a coordinator works on its broker."""
        if not self._presence.is_up:
            return ""
        coordinator = self._presence.coordinator
        if coordinator is None:
            return (
                f"no coordinator has connected to this broker in federation {self._topics.federation!r} yet; start "
                "one with `coordinator run`, or compare --federation with its scenario"
            )
        if not coordinator.online:
            return "the coordinator is offline; this agent continues when it is back"
        if _is_over(coordinator):
            ended = "was given up" if coordinator.given_up else f"is {coordinator.state}"
            return f"run {coordinator.name} {ended}; waiting for the next one"
        return ""

    @property
    def status(self) -> AgentStatus:
        """The agent's status now."""
        return self._presence.status(self._progress)

    @property
    def will(self) -> AgentStatus:
        """The status that others read when this agent is gone."""
        return self._presence.will

    @property
    def goodbye(self) -> AgentStatus:
        """The status that others read when this agent has ended in order."""
        return self._presence.goodbye

    @property
    def _progress(self) -> SessionProgress:
        order = self._fetching.order
        model = self._model_in_use
        if model is not None and self._deployments is not None and self._deployments.judging:
            note = f"{JUDGING}{self._deployments.judging}"
            model = model.model_copy(update={"note": note[:MAX_TEXT]})
        return SessionProgress(
            # the exchanges of a secure sum take less time than others need to read of them
            busy=order is not None and not is_exchange(order),
            dropped=dict(self.dropped),
            model=model,
            unmet=self._briefs.withheld or ("" if self._is_engaged else self._unmet),
            refused=self._order.refused if self._order is not None else "",
        )

    @property
    def _is_engaged(self) -> bool:
        """Whether work is under way, or its report on its way."""
        return self._fetching.order is not None or self._delivery.undecided != 0

    @property
    def _circumstances(self) -> StoryContext:
        presence = self._presence
        return StoryContext(presence.coordinator, self._fetching.order, self._delivery.accepted)

    def story(self) -> tuple[StorySentence, ...]:
        """What happened to this agent, oldest first; at most `MAX_LINES` of the newest sentences."""
        return self._story.lines

    def handle(self, event: Event, now: float) -> Actions:
        """Take in one event that happened at `now`. Returns what the shell has to do, in order."""
        before = self._circumstances
        actions = self._react(event, now)
        progress = self._progress
        actions += self._settle_subscriptions(progress)
        actions += self._presence.announce(progress, now)
        for sentence in sentences(event, actions, before, self._circumstances):
            self._story.add(sentence, now)
        return actions

    def _react(self, event: Event, now: float) -> Actions:
        match event:
            case Up(profile=profile):
                return self._link_up(profile, now)
            case Down():
                self._presence.link_lost()
                return self._delivery.link_lost()
            case Echo(why):
                return [Notify(why)]
            case OwnStatusSeen(status, retained):
                return self._presence.own_status_seen(status, retained, now)
            case CoordinatorSeen(status, retained):
                return self._coordinator_seen(status, retained, now)
            case Inspected():
                return self._presence.inspected(event)
            case OrderSeen(order):
                return self._order_seen(order, now)
            case SettingsReady(digest, shared):
                return self._settings_ready(digest, shared, now)
            case PartSeen(topic, digest):
                self._fetching.part_arrived(topic, digest, now)
                self._briefs.part_arrived(topic, digest)
                return []
            case ModelReady(key, digest):
                return self._fetching.model_ready(key, digest, now)
            case ModelDamaged(digest):
                return self._fetching.model_damaged(digest, now)
            case WorkDone(step):
                return self._work_done(step, now)
            case WorkerGone(step, why):
                return self._work_failed(step, why)
            case Sent(step, whole, size):
                return self._delivery.sent(step, whole, now, size)
            case OutboxDamaged(step):
                return self._report_damaged(step, now)
            case TopicsRefused():
                return self._subscriptions_refused(event)
            case ModelSettled(model):
                self._model_in_use = model
                return []
            case DataReplaced(is_gone):
                return self._data_changed(is_gone, now)
            case VitalsSeen(disk_free, certificate):
                self._presence.vitals = Vitals(disk_free, certificate)
                return []
            case ConditionsSeen(unmet):
                return self._conditions_seen(unmet, now)
            case Tick():
                return self._tick(now)
        if self._deployments is not None:
            return self._of_deployment(self._deployments, event, now)
        return []

    def _of_deployment(self, deployments: Deployments, event: Event, now: float) -> Actions:
        """React to what concerns models for use."""
        match event:
            case DeploymentSeen(deployment, wall):
                return deployments.seen(deployment, now, wall)
            case DeploymentShareSeen(share):
                return deployments.share_seen(share, now)
            case DeployedPartSeen(topic, digest):
                return deployments.part_arrived(topic, digest, now)
            case DeployedModelReady(digest):
                return deployments.model_ready(digest)
            case DeployedModelDamaged(digest):
                return deployments.model_damaged(digest, now)
            case DeploymentSettled(serial):
                return deployments.settled(serial)
        return []

    def _tick(self, now: float) -> Actions:
        if not self._presence.is_up:
            return []
        self._presence.tick(now)
        actions = self._presence.announce(self._progress, now)
        actions += self._delivery.tick(now)
        actions += self._fetching.tick(now)
        actions += self._briefs.tick(now)
        if self._deployments is not None:
            actions += self._deployments.tick(now)
        return actions

    # the link and the coordinator

    def _link_up(self, profile: Profile, now: float) -> Actions:
        self._presence.link_up(now, fixed_client_id=profile.fixed_client_id)
        self._delivery.link_up(now)
        self._fetching.link_up(now)
        self._briefs.link_up(now)
        order = self._topics.order(self._agent)
        status = self._topics.status(self._agent)
        lasting = [self._topics.coordinator_status, order, status]
        windows = [self._fetching.parts, self._briefs.parts]
        if self._deployments is not None:
            self._deployments.link_up(now)
            lasting += self._deployments.own_topics
            windows.append(self._deployments.parts)
        parts: list[str] = []
        room = profile.subscriptions - len(lasting)
        for window in windows:  # the models of orders have half of the room
            share = room // 2 if window is windows[0] else room // 4
            window.fit(profile, share)
            window.need(window.needed)
            parts += window.subscribed
        return [Subscribe((*lasting, *parts))]

    def _subscriptions_refused(self, refused: TopicsRefused) -> Actions:
        """Without orders an agent stays out. Without deployments it only uses the models of its orders."""
        own: tuple[str, ...] = ()
        if self._deployments is not None:
            own = self._deployments.own_topics
        vital = tuple(topic for topic in refused.topics if topic not in own)
        actions: Actions = []
        if vital or not refused.topics or self._presence.deafness is not None:
            actions += self._presence.subscriptions_refused(replace(refused, topics=vital[:1]))
        if len(vital) < len(refused.topics) and not refused.accepted_before:
            actions.append(
                Notify(
                    "the broker's access rules withhold published models from this agent: renew them with "
                    "a newer `broker up`"
                )
            )
        return actions

    def _settle_subscriptions(self, progress: SessionProgress) -> Actions:
        coordinator = self._presence.coordinator
        is_for_all = coordinator is not None and coordinator.delivery == "all"
        # no model comes over a link that may be metered to an agent that gets no order
        everything = is_for_all and self._presence.problem(progress) is None
        is_up = self._presence.is_up
        actions = self._fetching.settle(self._order, everything=everything, is_up=is_up)
        return actions + self._briefs.settle(is_up=is_up)

    def _coordinator_seen(self, status: CoordinatorStatus, retained: bool, now: float) -> Actions:
        if self._presence.is_outdated(status, retained):
            return []
        before = self._presence.other_format
        is_news = self._presence.coordinator_seen(status, now)
        other_format = self._presence.other_format
        self._delivery.coordinator_offline = not status.online
        if not status.online:
            return []
        if is_news:
            self._delivery.nudge(now)
        if other_format:  # its task and its orders may mean something else
            return [Notify(other_format)] if other_format != before else []
        return self._compare_task(status, now) + self._take_up_parked_order(now)

    def _compare_task(self, status: CoordinatorStatus, now: float) -> Actions:
        """Compare the data with the coordinator's task, unless the rules of this device refuse the task."""
        if status.task is None or _is_over(status) or not self._presence.is_new_task(status):
            return []
        task = status.task
        refusal = self._rules.refuses_task(task) or self._tasks.refuses(task, now)
        if refusal is None:
            return [Inspect(task, status.task_digest, status.batch)]
        self._count_refusal()
        return self._presence.inspected(Inspected(status.task_digest, problem=refusal))

    def _data_changed(self, is_gone: bool, now: float) -> Actions:
        """Compare the changed data with the task of the present run, or with that of the next one.

        Between runs nobody reads it; that there is none is known all the same.
        """
        self._presence.compare_again()
        coordinator = self._presence.coordinator
        if coordinator is None or not coordinator.online or _is_over(coordinator):
            return self._presence.inspected(Inspected("", problem=GONE if is_gone else ""))
        return self._compare_task(coordinator, now)

    def _conditions_seen(self, unmet: str, now: float) -> Actions:
        """Stay out while a condition does not hold; then take up the order that is still open."""
        may_work_again = self._unmet != "" and unmet == ""
        is_news = self._unmet == "" and unmet != ""
        self._unmet = unmet
        if is_news:
            return [Notify(unmet)]
        if may_work_again and self._order is not None and self._presence.is_up:
            return self._follow(self._order, now)
        return []

    def _take_up_parked_order(self, now: float) -> Actions:
        order = self._parked
        if order is None or order.run != self._presence.live_run:
            return []
        return self._order_arrived(order, now)

    # orders

    def _order_seen(self, order: OrderMessage, now: float) -> Actions:
        """Follow an order, as soon as all is here that it names by a digest."""
        whole = self._briefs.whole(order, now)
        return [] if whole is None else self._order_arrived(whole, now)

    def _settings_ready(self, digest: bytes, shared: SharedWork, now: float) -> Actions:
        order = self._briefs.ready(digest, shared, now)
        return [] if order is None else self._order_arrived(order, now)

    def _order_arrived(self, order: OrderMessage, now: float) -> Actions:
        is_other_run = self._delivery.run not in ("", order.run)
        if is_other_run and order.run != self._presence.live_run:
            self._parked = order
            return []
        self._parked = None
        if self._is_outdated(order):
            return []
        return self._follow(order, now)

    def _is_outdated(self, order: OrderMessage) -> bool:
        """Whether this is a late duplicate, or what a broker kept from before its crash."""
        newest = self._order
        if newest is not None and newest.run == order.run and order.age < newest.age:
            return True
        return self._delivery.is_outdated(order)

    def _follow(self, order: OrderMessage, now: float) -> Actions:
        """Follow an order of the current run."""
        refusal = self._rules.refuses(order, self._agent)
        if refusal is None and order.work is not None:
            refusal = self._tasks.refuses(order.work.task, now)
        known = self._order.refused if self._order is not None else ""
        self._order = order if refusal is None else order.model_copy(update={"work": None})
        actions: Actions = []
        if order.refused not in ("", known):
            actions.append(RefusalSeen(order.refused))
        if order.run != self._delivery.run:
            actions += self._fetching.cancel()
            actions += self._delivery.switch_run(order.run, now)
        actions += self._delivery.reconcile(order)
        is_open = self._delivery.is_open(order)
        if not is_open or not self._fetching.is_for(order):
            actions += self._fetching.cancel()
        if self._delivery.undecided:
            return actions + self._delivery.answer(order, now)
        if is_open and self._fetching.state is not WorkState.WORKING:
            if refusal is not None:
                self._count_refusal()
                return actions + self._fetching.refuse(order, refusal)
            if self._unmet and self._fetching.order is None:
                # others read it in the status, and the coordinator asks another agent
                return actions
            actions += self._fetching.begin(order)
        return actions + self._fetching.proceed(now)

    def _count_refusal(self) -> None:
        self.dropped[REFUSED] = self.dropped.get(REFUSED, 0) + 1

    # work and reports

    def _work_done(self, step: int, now: float) -> Actions:
        order = self._fetching.order
        if order is None or order.step != step or order.work is None:
            return [DropReport(step)]
        self._fetching.finish()
        return self._delivery.made(step, order.work.digest, now)

    def _work_failed(self, step: int, why: str) -> Actions:
        order = self._fetching.order
        if order is None or order.step != step:
            return []
        return [ReportFailure(order, why)]

    def _report_damaged(self, step: int, now: float) -> Actions:
        """Do the work again, if it is still needed."""
        if step == 0 or step != self._delivery.undecided:
            return []
        actions = self._delivery.damaged()
        order = self._order
        if order is None or order.step != step or not self._delivery.is_open(order):
            return actions  # the coordinator sends an order if it still needs the report
        actions += self._fetching.begin(order)
        return actions + self._fetching.proceed(now)


GONE = "the given path does not exist, or is empty"


def _is_over(status: CoordinatorStatus) -> bool:
    """Whether this is what a coordinator left at its end. Its task is of no use to an agent that comes later."""
    return status.state in ("finished", "stopped")
