"""What the statuses of agents mean: who comes, who leaves, and who has moved to another broker."""

from __future__ import annotations

import time
from collections.abc import Sequence

from covey.coordinator.engine.events import Joined, Left
from covey.coordinator.record.notices import AgentExcluded, Notice
from covey.coordinator.run.effects import Effect
from covey.coordinator.run.run import Run
from covey.coordinator.serve import publisher
from covey.coordinator.serve.desk import STATUS, Desk, while_the_run_works
from covey.shared.mqtt.program import Show
from covey.shared.wire.documents import AgentStatus

ANSWER_EVERY_S = 1.0  # agents that know another coordinator than this one are answered together


def call_roll_again(desk: Desk) -> None:
    """Statuses of unknown agents were dropped in a flood: ask all agents to publish theirs again."""
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
    with while_the_run_works(desk):
        return _handle_together(desk.run, events, moved, now)


def unreachable(desk: Desk, agents: Sequence[str], now: float) -> list[Effect]:
    """What follows when these agents were not heard since their broker was lost."""
    if not agents:
        return []
    desk.placement.gone(agents)
    desk.show.changed(now)
    left = desk.roster.unreachable(agents)
    with while_the_run_works(desk):
        return _handle_together(desk.run, left, [], now)


def observe_peer(desk: Desk, notice: Notice, now: float) -> None:
    """Show what a peer has caused; of a flood only the first notices of each minute."""
    if desk.flood.admit("", "", now):
        desk.effects.append(Show(notice))


def _handle_together(
    run: Run, events: Sequence[Joined | Left], moved: Sequence[str], now: float
) -> list[Effect]:
    """What follows from agents that come and go; those who come for the first time, or to another broker, get an order."""
    effects: list[Effect] = []
    came: set[str] = set()
    with run.one_checkpoint():
        for event in events:
            agent = event.client
            was_known = agent in run.engine.known
            effects += run.handle(event, now)
            if agent in run.engine.known and not was_known:
                effects.append(run.order_of(agent))
                came.add(agent)
        for agent in moved:
            if agent in run.engine.known and agent not in came:
                order = run.order_of(agent)
                models = run.orders.models_of([order])
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
        desk.run.samples[agent] = (status.samples, status.test_samples)
        # its program may have changed
        readers = desk.run.orders.readers
        (readers.add if status.brief else readers.discard)(agent)
    if status.problem and status.online:
        observe_peer(desk, AgentExcluded(agent, status.problem), now)
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
