"""What the statuses of agents mean: who comes, who leaves, and who has moved to another broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from covey.coordinator.engine.events import Joined, Left
from covey.coordinator.run.effects import Effect, SendOrder
from covey.coordinator.run.notices import AgentExcluded, Observer
from covey.coordinator.run.run import Run
from covey.coordinator.serve.intake import Intake
from covey.coordinator.serve.own_status import OwnStatus
from covey.coordinator.serve.placement import Placement, SilentShards
from covey.coordinator.serve.publisher import Publisher
from covey.coordinator.serve.roster import Roster
from covey.coordinator.serve.roster_show import RosterShow
from covey.shared.mqtt.link import Link
from covey.shared.wire.documents import AgentStatus

ANSWER_EVERY_S = 1.0  # agents that know another coordinator than this one are answered together


class Attendance:
    """Keeps the roster by the statuses that the intake has read, and informs the run of those who come and leave.

    Args:
        run: gets the events.
        shards: the links to the single brokers.
        intake: has the statuses.
        roster: gets them.
        show: publishes the roster.
        publisher: publishes orders.
        own_status: names the roll calls.
        placement: on which broker each agent lives.
        silent: agents of brokers that were lost.
        now: the time (s).
        observe_peer: gets what an agent has caused.
    """

    def __init__(
        self,
        run: Run,
        shards: Sequence[Link],
        *,
        intake: Intake,
        roster: Roster,
        show: RosterShow,
        publisher: Publisher,
        own_status: OwnStatus,
        placement: Placement,
        silent: SilentShards,
        now: Callable[[], float],
        observe_peer: Observer,
    ) -> None:
        self._run = run
        self._shards = shards
        self._intake = intake
        self._roster = roster
        self._show = show
        self._publisher = publisher
        self._own_status = own_status
        self._placement = placement
        self._silent = silent
        self._now = now
        self._observe_peer = observe_peer

    def __repr__(self) -> str:
        agents = len(self._roster.entries)
        return f"<Attendance of {agents} agents>"

    async def call_roll_again(self) -> None:
        """Statuses of unknown agents were dropped in a flood: ask all agents to publish theirs again."""
        self._intake.call_roll_again()
        self._own_status.call_roll()
        await self._own_status.publish()

    async def take(self, agents: Sequence[str]) -> list[Effect]:
        """What follows from the statuses of these agents that wait."""
        events: list[Joined | Left] = []
        moved: list[str] = []
        for agent in agents:
            for status, retained, shard in self._intake.take_statuses(agent):
                events += self._seen(status, retained, shard)
            if await self._has_moved(agent):
                moved.append(agent)
            if self._roster.is_expelled(agent):
                await self._publisher.clear(agent)
        if not events and not moved:
            return []
        return await asyncio.to_thread(self._handle_together, events, moved, self._now())

    async def unreachable(self, agents: Sequence[str]) -> list[Effect]:
        """What follows when these agents were not heard since their broker was lost."""
        if not agents:
            return []
        self._placement.gone(agents)
        now = self._now()
        self._show.changed(now)
        left = self._roster.unreachable(agents)
        return await asyncio.to_thread(self._handle_together, left, [], now)

    def _handle_together(
        self, events: Sequence[Joined | Left], moved: Sequence[str], now: float
    ) -> list[Effect]:
        """What follows from agents that come and go; those who come for the first time, or to another broker, get an order."""
        effects: list[Effect] = []
        run = self._run
        came: set[str] = set()
        with run.one_checkpoint():
            for event in events:
                agent = event.client
                was_known = agent in run.engine.known
                effects += run.handle(event, now)
                is_known = agent in run.engine.known
                if is_known and not was_known:
                    order = run.order_of(agent)
                    effects.append(order)
                    came.add(agent)
            for agent in moved:
                if agent in run.engine.known and agent not in came:
                    order = run.order_of(agent)
                    effects += self._own_models(order)
                    effects.append(order)
        return effects

    def _seen(self, status: AgentStatus, retained: bool, shard: int) -> list[Joined | Left]:
        """What a status changes in the roster, as events of the run."""
        agent = status.agent
        wall_s = time.time()
        epoch = self._own_status.epoch(shard)
        events = self._roster.seen(status, retained=retained, epoch=epoch, now=wall_s)
        # a restarted agent has not counted its samples yet, and may report what it finished before
        if any(isinstance(event, Joined) for event in events):
            self._run.samples[agent] = (status.samples, status.test_samples)
            self._note_reader(status)
        if status.problem and status.online:
            self._observe_peer(AgentExcluded(agent, status.problem))
        now = self._now()
        is_here = status.online and not retained
        if is_here:
            self._silent.heard(agent)
        elif self._placement.take_rival(agent):
            self._intake.roll_at = now
        if is_here and status.epoch != epoch:
            # it knows another coordinator than this one; the retained status may not convince it
            self._own_status.due = self._own_status.due or now + ANSWER_EVERY_S
        self._show.changed(now)
        return events

    async def _has_moved(self, agent: str) -> bool:
        """Whether the agent has come to a broker that does not have its order. The one before gives it up."""
        has_moved, before = self._placement.take_moved(agent)
        if before is not None:
            await self._publisher.take_back_order(agent, self._shards[before])
        return has_moved

    def _note_reader(self, status: AgentStatus) -> None:
        """Remember whether this agent reads orders with a `brief`; its program may have changed."""
        readers = self._run.orders.readers
        if status.brief:
            readers.add(status.agent)
        else:
            readers.discard(status.agent)

    def _own_models(self, order: SendOrder) -> list[Effect]:
        """The models of an order that are for its agent alone: other brokers do not have them."""
        models = self._run.orders.models_of([order])
        return [model for model in models if model.ref.key.startswith("@")]
