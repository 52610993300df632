"""Links that come up or are lost: roll calls, subscriptions, and all that a broker should retain."""

from __future__ import annotations

from covey.coordinator.engine.events import LinkBack, LinkLost
from covey.coordinator.record.notices import LinkDown, LinkUp, ShardDown, ShardUp
from covey.coordinator.run.effects import Effect, SendModel, SendOrder
from covey.coordinator.serve import publisher
from covey.coordinator.serve.desk import Desk, while_the_run_works
from covey.coordinator.serve.direct import Direct
from covey.shared.mqtt.link import Down, Up
from covey.shared.mqtt.program import Show, Subscribe


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

    def up(self, up: Up, now: float) -> list[Effect]:
        """A (re)connected link: call the roll and publish again all that should be retained."""
        desk, shard = self._desk, up.shard
        is_first = not (self._served - {shard})
        self._served.add(shard)
        desk.heard = 0
        desk.own_status.call_roll_on(shard)
        if desk.shards > 1:
            desk.effects.append(Show(ShardUp(shard, up.broker)))
            desk.silent.back(shard, now)
            desk.show.lost(now)
        if is_first:
            desk.silent.first_back(now)
            desk.effects.append(Show(LinkUp()))
        topics = desk.topics
        filters = [
            topics.every_status,
            topics.control,
            topics.coordinator_status,
            *self._aggregators.connected(shard, now),
        ]
        desk.effects.append(Subscribe(filters, shard))
        effects: list[Effect] = []
        if is_first:
            with while_the_run_works(desk):
                effects = desk.run.handle(LinkBack(), now)
        desk.effects.append(desk.own_status.publish_on(shard))
        return [*self.retained_again(shard), *effects]

    def down(self, down: Down, now: float) -> list[Effect]:
        """A link is lost. Time stands still if it was the last one; else its agents are absent before long."""
        desk, shard = self._desk, down.shard
        self._served.discard(shard)
        self._aggregators.lost(shard)
        if desk.shards > 1:
            agents = desk.placement.online_on(shard)
            desk.effects.append(Show(ShardDown(shard, down.why, len(agents))))
            desk.silent.lost(shard, agents, now)
        if self._served:
            return []
        desk.silent.all_lost()
        desk.effects.append(Show(LinkDown(down.why)))
        with while_the_run_works(desk):
            return desk.run.handle(LinkLost(), now)

    def retained_again(self, shard: int) -> list[Effect]:
        """All that a broker should retain, however much of it is still there: models, then the orders of the agents there.

        Only orders with work are among the effects; the others are postponed. With several brokers the models are
        published here, because the others have them.
        """
        desk = self._desk
        desk.shared = b""
        self._aggregators.retained_is_unknown(shard)
        with while_the_run_works(desk):
            desired = desk.run.desired()
        accepted = desk.run.facts.accepted
        if desk.shards == 1:
            return desk.postponed.keep_idle(desired, accepted)
        orders: list[Effect] = []
        for effect in desired:
            match effect:
                case SendModel():
                    publisher.model(desk, effect, shard)
                case SendOrder(client) if desk.placement.where(client) == shard:
                    orders.append(effect)
        return desk.postponed.keep_idle(orders, accepted)
