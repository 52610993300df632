"""What a run sends to its agents, as retained messages on their topics: orders, models, and questions.

The order of the messages is the caller's: a model is published before the orders that name it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from covey.coordinator.run.effects import SendModel, SendOrder
from covey.coordinator.run.run import Run
from covey.coordinator.serve.desk import Desk, orders_of
from covey.shared.mqtt.profiles import publish_bytes
from covey.shared.mqtt.program import Look, Publish
from covey.shared.wire.documents import ASKED, AgentStatus
from covey.shared.wire.parts import split
from covey.shared.wire.topics import Topics


@dataclass(frozen=True)
class NotTaken:
    """The broker has not taken the newest order of an agent."""

    client: str


def orders(desk: Desk, sends: Sequence[SendOrder]) -> None:
    """Publish an agent's order each; `NotTaken` follows for each of them that its broker does not take.

    An agent whose broker is unknown gets its order when it is seen; one whose broker is down, when that is up again.
    """
    placed = [_current(desk, send) for send in sends if desk.placement.reaches(send.client)]
    _share(desk, placed)
    for send in placed:
        client = send.client
        topic = desk.topics.order(client)
        payload = send.order.to_bytes()
        desk.run.count_wire("down", packet_bytes(topic, payload))
        desk.unpublished.pop(client, None)
        then = partial(_not_taken, client)
        desk.effects.append(Publish([(topic, payload)], lane=("order", client), then=then))


def _not_taken(client: str, taken: bool) -> NotTaken | None:
    return None if taken else NotTaken(client)


def _current(desk: Desk, send: SendOrder) -> SendOrder:
    """The order, made again if it shares a content that is not the newest: brokers retain that one alone."""
    brief = send.order.brief
    newest = desk.run.orders.shared
    if brief is None or newest is None or brief.shared.digest == newest.ref.digest:
        return send
    [order] = orders_of(desk, [send.client])
    return order


def _share(desk: Desk, sends: Sequence[SendOrder]) -> None:
    """Publish what these orders share, unless that is retained since the link came up."""
    shared = desk.run.orders.shared
    if shared is None or shared.ref.digest == desk.shared:
        return
    if any(send.order.brief is not None for send in sends):
        model(desk, shared)
        desk.shared = shared.ref.digest


def model(desk: Desk, send: SendModel, shard: int | None = None) -> None:
    """Publish a model in parts, with one of them in memory at a time.

    Args:
        desk: of the service.
        send: the model.
        shard: the only broker that needs it; None: every broker that has agents of the model gets it.
    """
    _hear(desk, send)
    desk.effects.append(Publish(partial(_parts, desk.run, desk.topics, send), shard=shard))


def _hear(desk: Desk, send: SendModel) -> None:
    """Subscribe to a part of this model if it is larger than any before: a broker may deliver what is small, and drop it."""
    size = min(send.ref.size, desk.run.scenario.wire.part_bytes)
    if size > desk.heard and not send.ref.key.startswith("@"):
        desk.heard = size
        desk.effects.append(Look([f"{desk.topics.model(send.ref.key)}/0"]))


async def _parts(
    run: Run, topics: Topics, send: SendModel
) -> AsyncGenerator[tuple[str, bytes], None]:
    ref = send.ref
    base = topics.model(ref.key)
    part_bytes = run.scenario.wire.part_bytes
    with await opened(run, send.path) as file:
        parts = split(
            file, digest=ref.digest, size=ref.size, part_bytes=part_bytes, about=send.about
        )
        for part in parts:
            yield f"{base}/{part.index}", part.to_bytes()


async def opened(run: Run, path: Path) -> BinaryIO:
    """A file of the run, once nothing stands in its way: a thread waits for that."""
    try:
        return path.open("rb")
    except OSError:
        return await asyncio.to_thread(run.room.write, lambda: path.open("rb"))


def drop_model(desk: Desk, key: str, parts: int) -> None:
    """Clear a model that no order names any more."""
    base = desk.topics.model(key)
    _clear(desk, [f"{base}/{part}" for part in range(parts)])


def ask(desk: Desk, agent: str) -> None:
    """Ask an agent that the roster has as online whether it is there.

    It is published as offline: if it lives, it answers at once; if not, this stays retained.
    """
    entry = desk.roster.entry(agent)
    if entry is None or not entry.status.online:
        return
    question = AgentStatus(agent=agent, session=entry.status.session, online=False, problem=ASKED)
    desk.effects.append(Publish([(desk.topics.status(agent), question.to_bytes())]))


def take_back_order(desk: Desk, agent: str, shard: int) -> None:
    """Clear the order of an agent at a broker where it does not live any more."""
    desk.effects.append(Publish([(desk.topics.order(agent), b"")], shard=shard))


def clear(desk: Desk, agent: str) -> None:
    """Take back the orders, models and reports that are retained for an agent that is gone for good."""
    topics = desk.topics
    own_model = topics.model(f"@{agent}")
    parts = range(desk.run.orders.parts_of_own_model(agent))
    _clear(desk, [topics.order(agent), topics.report(agent), topics.deployment_share(agent)])
    _clear(desk, [f"{own_model}/{part}" for part in parts])


def forget(desk: Desk, agent: str) -> None:
    """Clear everything that is retained for an agent, its own status included."""
    desk.unpublished.pop(agent, None)
    clear(desk, agent)
    _clear(desk, [desk.topics.status(agent)])


def _clear(desk: Desk, topics: Sequence[str]) -> None:
    desk.effects += [Publish([(topic, b"")]) for topic in topics]


def packet_bytes(topic: str, payload: bytes) -> int:
    """Bytes of the PUBLISH packet that carries this payload."""
    return publish_bytes(len(topic.encode()), len(payload))
