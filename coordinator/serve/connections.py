"""Links that come up or are lost: roll calls, subscriptions, and all that a broker should retain."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from covey.coordinator.engine.events import LinkBack, LinkLost
from covey.coordinator.run.effects import Effect, SendModel, SendOrder
from covey.coordinator.run.notices import (
    LinkDown,
    LinkUp,
    Observer,
    ShardDown,
    ShardUp,
    SubscriptionsRefused,
)
from covey.coordinator.run.run import Run
from covey.coordinator.serve.aggregators import Aggregators
from covey.coordinator.serve.intake import Intake
from covey.coordinator.serve.items import Items, Wake
from covey.coordinator.serve.own_status import OwnStatus
from covey.coordinator.serve.placement import Placement, SilentShards
from covey.coordinator.serve.postponed import PostponedOrders
from covey.coordinator.serve.publisher import Publisher
from covey.coordinator.serve.roster_show import RosterShow
from covey.shared.mqtt.link import Down, Link, Up
from covey.shared.mqtt.subscriptions import SubscriptionKeeper
from covey.shared.wire.topics import Topics

Handle = Callable[[LinkBack | LinkLost], Awaitable[list[Effect]]]


class Connections:
    """The connections to one broker or several.

    Args:
        run: knows what should be retained.
        shards: the links to the single brokers.
        topics: of the federation.
        items: woken when subscriptions work again.
        intake: calls the roll again after refused subscriptions.
        publisher: publishes models.
        postponed: gets the orders that nobody waits for.
        own_status: is published on each broker that comes up.
        aggregators: leave some of the reports to others.
        show: publishes the roster again where a broker may have forgotten it.
        placement: on which broker each agent lives.
        silent: agents of brokers that were lost.
        now: the time (s).
        handle: hands an event to the run.
        observer: gets every change.
        subscriptions: on each broker; they call `refused`.
    """

    def __init__(
        self,
        run: Run,
        shards: Sequence[Link],
        topics: Topics,
        *,
        items: Items,
        intake: Intake,
        publisher: Publisher,
        postponed: PostponedOrders,
        own_status: OwnStatus,
        aggregators: Aggregators,
        show: RosterShow,
        placement: Placement,
        silent: SilentShards,
        now: Callable[[], float],
        handle: Handle,
        observer: Observer,
        subscriptions: Sequence[SubscriptionKeeper],
    ) -> None:
        self._run = run
        self._shards = shards
        self._topics = topics
        self._items = items
        self._intake = intake
        self._publisher = publisher
        self._postponed = postponed
        self._own_status = own_status
        self._aggregators = aggregators
        self._show = show
        self._placement = placement
        self._silent = silent
        self._now = now
        self._handle = handle
        self._observer = observer
        # brokers that are connected and hold all that is retained
        self._served: set[int] = set()
        self._subscriptions = subscriptions

    def __repr__(self) -> str:
        served = len(self._served)
        return f"<Connections: {served} of {len(self._shards)} brokers served>"

    async def up(self, up: Up) -> list[Effect]:
        """A (re)connected link: call the roll and publish again all that should be retained."""
        shard = up.shard
        is_first = not (self._served - {shard})
        self._served.add(shard)
        self._own_status.call_roll_on(shard)
        if len(self._shards) > 1:
            self._observer(ShardUp(shard, up.broker))
            self._silent.back(shard, self._now())
            self._show.lost(self._now())
        if is_first:
            self._silent.first_back(self._now())
            self._observer(LinkUp())
        topics = self._topics
        filters = [
            topics.every_status,
            topics.control,
            topics.coordinator_status,
            *self._aggregators.connected(shard),
        ]
        self._publisher.retained_is_unknown()
        keeper = self._subscriptions[shard]
        keeper.connected()
        await keeper.add(filters)
        effects: list[Effect] = []
        if is_first:
            effects = await self._handle(LinkBack())
        await self._own_status.publish_on(shard)
        desired = await self.retained_by(shard)
        return [*desired, *effects]

    async def down(self, down: Down) -> list[Effect]:
        """A link is lost. Time stands still if it was the last one; else its agents are absent before long."""
        shard = down.shard
        self._served.discard(shard)
        self._aggregators.lost(shard)
        if len(self._shards) > 1:
            agents = self._placement.online_on(shard)
            self._observer(ShardDown(shard, down.why, len(agents)))
            self._silent.lost(shard, agents, self._now())
        if self._served:
            return []
        self._silent.all_lost()
        self._observer(LinkDown(down.why))
        return await self._handle(LinkLost())

    async def retained_by(self, shard: int) -> list[Effect]:
        """All that a broker should retain: models, then the orders of the agents that live there.

        Only orders with work are among the effects; the others are postponed. With several brokers the models are
        published here, because the others have them.
        """
        desired = await asyncio.to_thread(self._run.desired)
        accepted = self._run.facts.accepted
        if len(self._shards) == 1:
            return self._postponed.keep_idle(desired, accepted)
        orders: list[Effect] = []
        for effect in desired:
            match effect:
                case SendModel():
                    await self._publisher.model(effect, self._shards[shard])
                case SendOrder(client) if self._placement.where(client) == shard:
                    orders.append(effect)
        return self._postponed.keep_idle(orders, accepted)

    def close(self) -> None:
        """Ask for refused subscriptions no longer."""
        for keeper in self._subscriptions:
            keeper.close()

    def refused(self, topics: tuple[str, ...]) -> None:
        """Report the subscriptions that fail. Once they work, call the roll again, for answers were missed."""
        self._observer(SubscriptionsRefused(list(topics)))
        named = ", ".join(topics) or "none any more"
        self._run.audit.blame("subscriptions_refused", "broker", named)
        if not topics:
            self._intake.roll_at = self._now()
            self._items.wake(Wake())
