"""Publishes the offline status of agents whose credentials were revoked, and clears what else is retained for expelled ones.

Neither Mosquitto nor the embedded broker publishes the last will of a removed user. Therefore the coordinator's user
publishes the status instead. If an agent answers that it is online, the broker has not read the new users yet, and the
status is published again. It stays retained, so that a coordinator that comes later learns of it too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from covey.broker.access.acl import ANY, id_of
from covey.shared.errors import DecodeError, UserError
from covey.shared.mqtt import credentials
from covey.shared.mqtt.credentials import COORDINATOR
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.mqtt.retained import until_quiet, why_not_up
from covey.shared.wire.documents import EXPELLED, AgentStatus
from covey.shared.wire.topics import Topics

if TYPE_CHECKING:
    from covey.extras.users.folder import BrokerFolder

CONNECT_S = 20.0  # a refusal comes at once, but TLS may take long on a busy machine
# No agent may answer for this long. A broker reads changed users within 1 s (`RELOAD_S`).
QUIET_S = 2.5
WITHIN_S = 30.0
AT_ONCE = 8  # filters with wildcards that the embedded broker lets one session hold


async def publish(folder: BrokerFolder, agents: Mapping[str, str], why: str) -> str:
    """Publish the offline status of agents, and clear all else that is retained for them if they are expelled.

    Args:
        folder: of the broker, with the coordinator's credentials.
        agents: federation by name of the agent.
        why: the problem that the status gives.

    Returns:
        What could not be done and why, or "". The credentials are revoked in any case.
    """
    words = {
        Topics(federation).status(id_of(user)): AgentStatus(
            agent=id_of(user), session="unknown", online=False, problem=why
        )
        for user, federation in agents.items()
        if federation != ANY
    }
    if not words:
        return "the federation of these agents is unknown, so the coordinator was not informed"
    try:
        url = credentials.read(folder.file(COORDINATOR)).url
    except (OSError, UserError) as error:
        return f"the coordinator was not informed: {error}"
    async with MqttLink(url, client_id=f"covey-expulsion-{id(words):x}") as link:
        if problem := await why_not_up(link, CONNECT_S):
            return f"the broker at {url} cannot be reached ({problem}), so the coordinator was not informed"
        try:
            async with asyncio.timeout(WITHIN_S):
                await _publish(link, words)
        except TimeoutError:
            return "an agent still answers although its credentials are revoked; check that `broker up --home` serves this folder"
        if why == EXPELLED and not await _clear(link, words):
            return "the broker was lost before all that it retains for these agents was cleared; `coordinator lab forget` clears it during a run"
    return ""


async def _publish(link: MqttLink, words: dict[str, AgentStatus]) -> None:
    """Publish these statuses, by topic, until no agent answers. Their sessions become those that the agents name."""
    await link.subscribe(list(words))
    due = set(words)
    while due:
        for topic in due:
            await link.publish(topic, words[topic].to_bytes(), retain=True)
        due = await _answers(link, words)


async def _answers(link: MqttLink, words: dict[str, AgentStatus]) -> set[str]:
    """The topics whose status must be published again; empty after `QUIET_S` of silence.

    Args:
        link: subscribed to the topics.
        words: the statuses that we publish, by topic. Updated here: each has the session of the agent's own status.
    """
    due: set[str] = set()
    async for item in until_quiet(link, QUIET_S, quiet_s=QUIET_S):
        if item.topic not in words:
            continue
        status, own = _read(item.payload), words[item.topic]
        if status is None or status.online:
            due.add(item.topic)
        if status and status.problem != own.problem and status.session != own.session:
            # an offline status counts only for the session that it names
            words[item.topic] = own.model_copy(update={"session": status.session})
            due.add(item.topic)
    return due


async def _clear(link: MqttLink, words: Mapping[str, AgentStatus]) -> bool:
    """Clear all that is retained next to these statuses: orders, models, reports. False if the link breaks."""
    filters = [f"{topic.rpartition('/')[0]}/#" for topic in words]
    done = True
    for first in range(0, len(filters), AT_ONCE):
        some = filters[first : first + AT_ONCE]
        done &= bool(await link.subscribe(some))
        async for item in until_quiet(link, WITHIN_S):
            if item.payload and item.topic not in words:
                done &= await link.publish(item.topic, b"", retain=True)
        done &= await link.unsubscribe(some)
    return done


def _read(payload: bytes) -> AgentStatus | None:
    try:
        return AgentStatus.from_bytes(payload)
    except DecodeError:
        return None
