"""Publishes the offline status of agents whose credentials were revoked.

Neither Mosquitto nor the embedded broker publishes the last will of a removed user. Therefore the coordinator's user
publishes the status instead. If an agent answers that it is online, the broker has not read the new users yet, and the
status is published again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from covey.broker.access.acl import id_of
from covey.shared.errors import DecodeError, UserError
from covey.shared.mqtt import credentials
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.mqtt.credentials import COORDINATOR
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.mqtt.retained import until_quiet, why_not_up
from covey.shared.wire.documents import AgentStatus
from covey.shared.wire.topics import Topics

if TYPE_CHECKING:
    from covey.broker.folder import BrokerFolder

CONNECT_S = 20.0  # a refusal comes at once, but TLS may take long on a busy machine
# No agent may answer for this long. A broker reads changed users within 1 s (`RELOAD_S`).
QUIET_S = 2.5
WITHIN_S = 30.0
ANY_FEDERATION = "+"
UNKNOWN = "unknown"  # session of an agent without a status


async def publish(folder: BrokerFolder, agents: Mapping[str, str], why: str) -> str:
    """Publish the offline status of expelled agents.

    Args:
        folder: of the broker, with the coordinator's credentials.
        agents: federation by name of the agent.
        why: the problem that the status gives.

    Returns:
        Why the coordinator could not be informed, or "". The credentials are revoked in any case.
    """
    named = {
        name: federation for name, federation in agents.items() if federation != ANY_FEDERATION
    }
    if not named:
        return "the federation of these agents is unknown, so the coordinator was not informed"
    try:
        coordinator = credentials.read(folder.file(COORDINATOR))
        url = coordinator.url
    except (OSError, UserError) as error:
        return f"the coordinator was not informed: {error}"
    try:
        return await _publish(url, named, why)
    except TimeoutError:
        return "an agent still answers although its credentials are revoked; check that `broker up --home` serves this folder"


async def _publish(url: BrokerUrl, agents: Mapping[str, str], why: str) -> str:
    topics = {}
    for name, federation in agents.items():
        topics[Topics(federation).status(id_of(name))] = id_of(name)
    sessions = dict.fromkeys(topics, UNKNOWN)
    async with MqttLink(url, client_id=f"covey-expulsion-{id(topics):x}") as link:
        problem = await why_not_up(link, CONNECT_S)
        if problem:
            return f"the broker at {url} cannot be reached ({problem}), so the coordinator was not informed"
        async with asyncio.timeout(WITHIN_S):
            await link.subscribe(list(topics))
            due = dict(topics)
            while True:
                for topic, name in due.items():
                    await link.publish(topic, _offline(name, sessions[topic], why), retain=True)
                due = await _answers(link, topics, sessions, why)
                if not due:
                    return ""


async def _answers(
    link: MqttLink, topics: Mapping[str, str], sessions: dict[str, str], why: str
) -> dict[str, str]:
    """The topics whose status must be published again, with the agents' names; empty after `QUIET_S` of silence.

    Args:
        link: subscribed to the topics.
        topics: the agents' names.
        sessions: the session of each status heard last; updated here.
        why: the problem that our own status gives.
    """
    due: dict[str, str] = {}
    async for item in until_quiet(link, QUIET_S, quiet_s=QUIET_S):
        if item.topic not in topics:
            continue
        status = _read(item.payload)
        name = topics[item.topic]
        if status is None or status.online:
            due[item.topic] = name
        if status is None or status.problem == why:
            continue
        if status.session != sessions[item.topic]:
            # an offline status counts only for the session that it names
            sessions[item.topic] = status.session
            due[item.topic] = name
    return due


def _offline(name: str, session: str, why: str) -> bytes:
    return AgentStatus(agent=name, session=session, online=False, problem=why).to_bytes()


def _read(payload: bytes) -> AgentStatus | None:
    try:
        return AgentStatus.from_bytes(payload)
    except DecodeError:
        return None
