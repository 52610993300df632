"""`coordinator release`: ask a running coordinator to invite an agent again that is in quarantine."""

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
    """Return once the coordinator's roster shows the agent out of quarantine.

    Raises UserError for an agent that is in none, for a broker that does not answer, and where no coordinator answers
    within `WITHIN_S` seconds. Who may publish on the control topic is the broker's rule: the coordinator's user alone.
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
                            f"{url}: {why}; check its address with `broker doctor {url}`"
                        )
                    case Message(topics.roster, payload):
                        held = _is_held(RosterMessage.from_bytes(payload), agent)
                        if asked and not held:
                            return
                        if not held:
                            raise UserError(
                                f"{agent} is not in quarantine; `coordinator status` lists who is"
                            )
                        if not asked:
                            asked = True
                            await link.publish(
                                topics.control, Control(command="release", agent=agent).to_bytes()
                            )
    except TimeoutError:
        pass
    except DecodeError as error:
        raise UserError(f"{url}: what is retained there is not Covey's ({error})") from None
    if asked:
        raise UserError(
            f"no coordinator released {agent} within {WITHIN_S:g} s; check that one runs and reads {url}"
        )
    raise UserError(f"{url}: no roster of federation {federation!r} came within {WITHIN_S:g} s")


def _is_held(roster: RosterMessage, agent: str) -> bool:
    if agent not in roster.agents:
        raise UserError(f"the coordinator knows no agent {agent}; `coordinator status` lists all")
    return bool(roster.agents[agent].get("quarantined"))
