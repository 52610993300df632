"""One coordinator per federation of a broker: a second one would give the agents of the first other orders."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from pathlib import Path

from covey.shared.errors import DecodeError, UserError
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.mqtt.link import Down, Received, Up
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.wire.documents import Control, CoordinatorStatus
from covey.shared.wire.topics import Topics

ANSWER_S = 5.0  # a coordinator that is busy answers late


def already_running(name: str, federation: str) -> UserError:
    """The error that ends a coordinator which is not alone."""
    return UserError(
        f"another coordinator is at work in federation {federation!r} on this broker (scenario {name}); stop it, or "
        "keep the two apart with the key `federation` in the scenario (agents: --federation, or --also to take part in both)"
    )


def continued_elsewhere(name: str, folder: Path) -> UserError:
    """The error that ends a coordinator whose run another one has taken up, from a copy of its folder."""
    return UserError(
        f"another coordinator has taken up this run (scenario {name}) after this one, from a copy of its folder; agents "
        f"follow the newer one. Continue there, and keep {folder} only as a backup: do not resume it"
    )


async def ensure_single_coordinator(url: BrokerUrl, federation: str) -> None:
    """Raise UserError if a coordinator is at work in the federation. A broker that cannot be reached has none.

    A retained "online" proves nothing, for coordinator and broker may have died together: a coordinator that is online is asked.
    """
    topics, suspect = Topics(federation), False
    ask = Control(command="tell").to_bytes()
    with contextlib.suppress(TimeoutError, DecodeError):
        async with (
            asyncio.timeout(ANSWER_S),
            MqttLink(url, client_id=f"covey-question-{uuid.uuid4().hex[:8]}") as link,
        ):
            async for incoming in link.incoming():
                match incoming:
                    case Up():
                        await link.subscribe([topics.coordinator_status, topics.control])
                        await link.publish(topics.control, ask)
                    case Down():
                        return
                    case Received(topics.control, payload) if payload == ask and not suspect:
                        return  # a retained status comes before our own question
                    case Received(topics.coordinator_status, payload, retained):
                        status = CoordinatorStatus.from_bytes(payload)
                        if not status.online or status.state in ("finished", "stopped"):
                            return
                        if not retained:
                            raise already_running(status.name, federation)
                        suspect = True
