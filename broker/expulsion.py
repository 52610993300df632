"""Says in an agent's name that it is offline, once its credentials are revoked: no last will does.

Mosquitto drops the last will of a user whom a reload removes, and so does the embedded broker: an expelled agent has no last
word. So the coordinator's user publishes it. An agent that is still connected answers at once that it lives; then the broker
has not read the new users yet, and the same is said again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from covey.shared.errors import DecodeError, UserError
from covey.shared.mqtt import credentials
from covey.shared.mqtt.broker_url import BrokerUrl, Tls
from covey.shared.mqtt.credentials import COORDINATOR
from covey.shared.mqtt.link import Down, Message, Up
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.wire.messages import AgentStatus
from covey.shared.wire.topics import Topics

if TYPE_CHECKING:
    from covey.broker.folder import BrokerFolder

CONNECT_S = 20.0  # a refusal comes at once; a busy machine may take a while for TLS
QUIET_S = (
    2.5  # a broker reads changed users within RELOAD_S, which is 1 s; so long nobody must answer
)
WITHIN_S = 30.0
ANY_FEDERATION = "+"
UNKNOWN = "unknown"  # session of an agent that has no status


async def publish(home: BrokerFolder, agents: Mapping[str, str], why: str) -> str:
    """Publish the offline status of these agents (name to federation) with `why` as its problem.

    Returns "" or, in words, why it could not be done; the credentials are void in any case.
    """
    named = {
        name: federation for name, federation in agents.items() if federation != ANY_FEDERATION
    }
    if not named:
        return "the federation of these agents is not known, so the coordinator was not informed"
    try:
        coordinator = credentials.read(home.file(COORDINATOR))
        url = BrokerUrl.parse(coordinator.broker, Tls(ca=Path(coordinator.ca)))
    except (OSError, UserError) as error:
        return f"the coordinator was not informed: {error}"
    try:
        return await _publish(url, named, why)
    except TimeoutError:
        return "an agent still answers after its credentials were revoked: is `broker up --home` of this folder running?"


async def _publish(url: BrokerUrl, agents: Mapping[str, str], why: str) -> str:
    topics = {Topics(federation).status(name): name for name, federation in agents.items()}
    known = dict.fromkeys(topics, UNKNOWN)
    async with MqttLink(url, client_id=f"covey-farewell-{id(topics):x}") as link:
        if trouble := await _connected(link):
            return f"the broker at {url} was not reached ({trouble}), so the coordinator was not informed"
        async with asyncio.timeout(WITHIN_S):
            await link.subscribe(list(topics))
            due = dict(topics)
            while True:
                for topic, name in due.items():
                    await link.publish(topic, _offline(name, known[topic], why), retain=True)
                due = await _answers(link, topics, known, why)
                if not due:
                    return ""


async def _connected(link: MqttLink) -> str:
    """Wait for the connection; why there is none, or ""."""
    try:
        async with asyncio.timeout(CONNECT_S):
            async for item in link.incoming():
                if isinstance(item, Up):
                    return ""
                if isinstance(item, Down):
                    return item.why
    except TimeoutError:
        pass
    return "no answer"


async def _answers(
    link: MqttLink, topics: Mapping[str, str], known: dict[str, str], why: str
) -> dict[str, str]:
    """The topics whose agents are online or were never heard as we said it; empty after `QUIET_S` of silence."""
    due: dict[str, str] = {}
    try:
        async with asyncio.timeout(QUIET_S):
            async for item in link.incoming():
                if not isinstance(item, Message) or item.topic not in topics:
                    continue
                status = _read(item.payload)
                if (
                    status is not None
                    and status.session != known[item.topic]
                    and status.problem != why
                ):
                    known[item.topic] = (
                        status.session
                    )  # a last will counts only for the session that it names
                    due[item.topic] = topics[item.topic]
                elif status is None or status.online:
                    due[item.topic] = topics[item.topic]
    except TimeoutError:
        pass
    return due


def _offline(name: str, session: str, why: str) -> bytes:
    return AgentStatus(agent=name, session=session, online=False, problem=why).to_bytes()


def _read(payload: bytes) -> AgentStatus | None:
    try:
        return AgentStatus.from_bytes(payload)
    except DecodeError:
        return None
