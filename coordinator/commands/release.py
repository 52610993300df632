"""`coordinator release`: ask the running coordinator to release an agent from quarantine."""

from __future__ import annotations

import asyncio
import uuid

from covey.shared.errors import DecodeError, UserError
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.mqtt.link import Down, Message, Up
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.wire.messages import Control, RosterMessage
from covey.shared.wire.topics import Topics

WITHIN_S = 5.0


async def release(url: BrokerUrl, federation: str, agent: str) -> None:
    """Publish the command and return once the coordinator's roster shows the agent released.

    Only the coordinator's user may publish on the control topic; the broker enforces that.

    Raises:
        UserError: the agent is not in quarantine, the broker does not answer, or no coordinator does
            within `WITHIN_S` seconds
    """
    topics = Topics(federation)
    asked = False
    try:
        async with (
            asyncio.timeout(WITHIN_S),
            MqttLink(url, client_id=f"covey-release-{uuid.uuid4().hex[:8]}") as link,
        ):
            async for incoming in link.incoming():
                match incoming:
                    case Up():
                        await link.subscribe([topics.roster])
                    case Down(why):
                        raise UserError(
                            f"{url}: {why}; check the address with `broker doctor {url}`"
                        )
                    case Message(topics.roster, payload):
                        quarantined = _in_quarantine(RosterMessage.from_bytes(payload), agent)
                        if asked and not quarantined:
                            return
                        if not quarantined:
                            raise UserError(
                                f"{agent} is not in quarantine; `coordinator status` lists the agents that are"
                            )
                        if not asked:
                            asked = True
                            await link.publish(
                                topics.control, Control(command="release", agent=agent).to_bytes()
                            )
    except TimeoutError:
        pass
    except DecodeError as error:
        raise UserError(f"{url}: its retained messages are not Covey's ({error})") from None
    if asked:
        raise UserError(
            f"no coordinator released {agent} within {WITHIN_S:g} s; check that one is running on {url}"
        )
    raise UserError(
        f"{url}: no roster of federation {federation!r} within {WITHIN_S:g} s; check --federation"
    )


def _in_quarantine(roster: RosterMessage, agent: str) -> bool:
    if agent not in roster.agents:
        raise UserError(
            f"the coordinator has no agent {agent}; `coordinator status` lists all of them"
        )
    return bool(roster.agents[agent].get("quarantined"))
