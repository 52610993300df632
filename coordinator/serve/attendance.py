"""Who comes and who leaves: the statuses of agents, and links that come up or are lost."""

from __future__ import annotations

import time
from collections.abc import Sequence

from covey.coordinator.engine.events import Joined, Left, LinkBack, LinkLost
from covey.coordinator.record import notices
from covey.coordinator.run.effects import Effect, SendModel, SendOrder
from covey.coordinator.serve import publisher
from covey.coordinator.serve.desk import ORDERS, STATUS, Desk, apart, happen, orders_of
from covey.coordinator.serve.direct import Direct
from covey.coordinator.serve.hearing import AWAY_S
from covey.shared.mqtt.link import Down, Up
from covey.shared.mqtt.program import Show, Subscribe
from covey.shared.wire.documents import AgentStatus

ANSWER_EVERY_S = 1.0  # agents that know another coordinator than this one are answered together


def call_roll_again(desk: Desk) -> None:
    """Statuses are lost, or agents are missing: ask all agents to publish theirs again."""
    desk.intake.call_roll_again()
    desk.own_status.call_roll()
    desk.timers.stop(STATUS)
    desk.effects += desk.own_status.publish()


def take(desk: Desk, agents: Sequence[str], now: float) -> list[Effect]:
    """What follows from the statuses of these agents that wait."""
    events: list[Joined | Left] = []
    moved: list[str] = []
    for agent in agents:
        for status, retained, shard in desk.intake.take_statuses(agent):
            events += _seen(desk, status, retained, shard, now)
        has_moved, before = desk.placement.take_moved(agent)
        if has_moved:  # to a broker that does not have its order
            moved.append(agent)
        if before is not None:
            publisher.take_back_order(desk, agent, before)
        if desk.roster.is_expelled(agent):
            publisher.clear(desk, agent)
    if not events and not moved:
        return []
    return _handle_together(desk, events, moved, now)


def unreachable(desk: Desk, agents: Sequence[str], now: float) -> list[Effect]:
    """What follows when these agents were not heard since their broker was lost."""
    if not agents:
        return []
    desk.placement.gone(agents)
    desk.show.changed(now)
    left = desk.roster.unreachable(agents)
    return _handle_together(desk, left, [], now)


def left(desk: Desk, agent: str, now: float) -> list[Effect]:
    """Effects of the fact that an agent is not heard because it floods: it counts as offline until it is heard again."""
    why = f"it sent far more than it could need, and is not heard for {AWAY_S:g} s"
    desk.run.audit.blame("left", agent, why)
    observe_peer(desk, notices.AgentLeft(agent, why), now)
    desk.intake.drop_statuses(agent)
    desk.intake.roll_at = now  # others may have been missed in the flood
    # it may have left before with a status, and no round waits for what is not heard
    return [*unreachable(desk, [agent], now), *happen(desk, Left(agent, at_once=True), now=now)]


def observe_peer(desk: Desk, notice: notices.Notice, now: float) -> None:
    """Show what a peer has caused; of a flood only the first notices of each minute."""
    if desk.flood.admit("", "", now):
        desk.effects.append(Show(notice))


def _handle_together(
    desk: Desk, events: Sequence[Joined | Left], moved: Sequence[str], now: float
) -> list[Effect]:
    """What follows from agents that come and go; those who come for the first time, or to another broker, get an order."""
    known = desk.run.engine.known
    new = {event.client for event in events} - known
    effects = happen(desk, *events, now=now)
    effects += orders_of(desk, sorted(new & known))
    for order in orders_of(desk, [one for one in moved if one in known and one not in new]):
        models = desk.run.orders.models_of([order])
        # other brokers do not have the models that are for this agent alone
        effects += [model for model in models if model.ref.key.startswith("@")]
        effects.append(order)
    return effects


def _seen(
    desk: Desk, status: AgentStatus, retained: bool, shard: int, now: float
) -> list[Joined | Left]:
    """What a status changes in the roster, as events of the run."""
    agent = status.agent
    epoch = desk.own_status.epoch(shard)
    events = desk.roster.seen(status, retained=retained, epoch=epoch, now=time.time())
    # a restarted agent has not counted its samples yet, and may report what it finished before
    if any(isinstance(event, Joined) for event in events):
        members = desk.run.members
        members.of(agent).samples = (status.samples, status.test_samples)
        # its program may have changed
        (members.readers.add if status.brief else members.readers.discard)(agent)
    if status.problem and status.online:
        observe_peer(desk, notices.AgentExcluded(agent, status.problem), now)
    is_here = status.online and not retained
    if is_here:
        desk.silent.heard(agent)
    elif desk.placement.take_rival(agent):
        desk.intake.roll_at = now
    if is_here and status.epoch != epoch:
        # it knows another coordinator than this one; the retained status may not convince it
        desk.timers.begin(STATUS, now + ANSWER_EVERY_S)
    desk.show.changed(now)
    return events


# -- links that come up or are lost: roll calls, subscriptions, and all that a broker should retain --------------------


class Connections:
    """The connections to one broker or several.

    Args:
        desk: of the service.
        aggregators: leave some of the reports to others, if the run has any.
    """

    def __init__(self, desk: Desk, aggregators: Direct) -> None:
        self._desk = desk
        self._aggregators = aggregators
        self._served: set[int] = set()  # brokers that are connected and hold all that is retained

    def __repr__(self) -> str:
        return f"<Connections: {len(self._served)} of {self._desk.shards} brokers served>"

    @property
    def served(self) -> int:
        """How many brokers are connected."""
        return len(self._served)

    def up(self, up: Up, now: float) -> list[Effect]:
        """A (re)connected link: call the roll and publish again all that should be retained."""
        desk, shard = self._desk, up.shard
        is_first = not (self._served - {shard})
        self._served.add(shard)
        desk.heard = 0
        desk.own_status.call_roll_on(shard)
        if desk.shards > 1:
            desk.effects.append(Show(notices.ShardUp(shard, up.broker)))
            desk.silent.back(shard, now)
            desk.show.lost(now)
        if is_first:
            desk.silent.first_back(now)
            desk.effects.append(Show(notices.LinkUp()))
        topics = desk.topics
        filters = [
            topics.every_status,
            topics.control,
            topics.coordinator_status,
            *self._aggregators.connected(shard, now),
        ]
        desk.hearing.connected(shard, filters)
        desk.effects.append(Subscribe(filters, shard))
        effects: list[Effect] = []
        if is_first:
            effects = happen(desk, LinkBack(), now=now)
        desk.effects.append(desk.own_status.publish_on(shard))
        return [*self.retained_again(shard), *effects]

    def down(self, down: Down, now: float) -> list[Effect]:
        """A link is lost. Time stands still if it was the last one; else its agents are absent before long."""
        desk, shard = self._desk, down.shard
        self._served.discard(shard)
        self._aggregators.lost(shard)
        if desk.shards > 1:
            agents = desk.placement.online_on(shard)
            desk.effects.append(Show(notices.ShardDown(shard, down.why, len(agents))))
            desk.silent.lost(shard, agents, now)
        if self._served:
            return []
        desk.silent.all_lost()
        desk.effects.append(Show(notices.LinkDown(down.why)))
        return happen(desk, LinkLost(), now=now)

    def retained_again(self, shard: int) -> list[Effect]:
        """All that a broker should retain, however much of it is still there: models, then the orders of the agents there.

        Only orders with work are among the effects; the others have their turns later. With several brokers the models are
        published here, because the others have them.
        """
        desk = self._desk
        desk.shared = b""
        self._aggregators.retained_is_unknown(shard)
        desired = apart(desk, desk.run.desired)
        if desk.shards == 1:
            return _idle_later(desk, desired)
        orders: list[Effect] = []
        for effect in desired:
            match effect:
                case SendModel():
                    publisher.model(desk, effect, shard)
                case SendOrder(client) if desk.placement.where(client) == shard:
                    orders.append(effect)
        return _idle_later(desk, orders)


def _idle_later(desk: Desk, effects: Sequence[Effect]) -> list[Effect]:
    """Let the orders without work wait for their turns, and return all other effects: thousands of orders take a broker and a
    fleet many seconds, and reports and statuses that arrive meanwhile must not wait for all of them.

    The agent whose report was accepted last has the first turn: it sends that report again if it does not learn of it.
    """
    urgent: list[Effect] = []
    idle: list[str] = []
    for effect in effects:
        if isinstance(effect, SendOrder) and not effect.order.step:
            idle.append(effect.client)
        else:
            urgent.append(effect)
    idle.sort(key=desk.run.members.accepted, reverse=True)
    if idle:
        desk.unpublished |= dict.fromkeys(idle)
        desk.timers.set(ORDERS, 0.0)
    return urgent
