"""Which agents of a broker are online, and when the coordinator heard each of them last, as the broker retains it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from covey.broker.access.acl import ANY, id_of
from covey.broker.access.members import StoredUser
from covey.extras.users.folder import BrokerFolder
from covey.shared.errors import DecodeError, UserError
from covey.shared.mqtt import credentials
from covey.shared.mqtt.credentials import COORDINATOR
from covey.shared.mqtt.link import Link
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.mqtt.retained import until_quiet, why_not_up
from covey.shared.wire.documents import AgentStatus
from covey.shared.wire.roster_view import RosterView
from covey.shared.wire.topics import AgentTopic, Topics

CONNECT_S = 5.0
MOST_S = 60.0  # to read the statuses of a whole fleet


@dataclass(frozen=True)
class LastSeen:
    """What others know of an agent."""

    online: bool
    last: (
        float | None
    )  # when its newest message came, in seconds since 1970; None: no coordinator heard it


async def seen(folder: BrokerFolder) -> dict[str, LastSeen]:
    """The agents that have been connected, by user.

    Raises:
        UserError: the broker cannot be reached.
    """
    own = credentials.read(folder.file(COORDINATOR))
    url = own.url
    async with MqttLink(url, client_id=f"covey-list-{uuid.uuid4().hex[:8]}") as link:
        if why := await why_not_up(link, CONNECT_S):
            raise UserError(f"{why}; the list does not show who is online")
        return await retained(link, folder.entries())


async def retained(link: Link, entries: Mapping[str, StoredUser]) -> dict[str, LastSeen]:
    """The state of these users that a broker retains, over a link that is up."""
    users = {
        (entry.federation, id_of(name)): name
        for name, entry in entries.items()
        if entry.role == "agent" and entry.federation != ANY
    }
    rosters = {federation: RosterView() for federation, _ in users}
    found: dict[str, LastSeen] = {}
    await link.subscribe(
        [
            *[Topics(federation).roster for federation in rosters],
            *[Topics(federation).status(agent) for federation, agent in users],
        ]
    )
    async for item in until_quiet(link, MOST_S):
        federation = item.topic.split("/")[1]
        topics, roster = Topics(federation), rosters[federation]
        try:
            place = topics.parse(item.topic)
            if isinstance(place, AgentTopic):
                online = AgentStatus.from_bytes(item.payload).online
                found[users[federation, place.agent]] = LastSeen(online, None)
                continue
            roster.take(topics, item.topic, item.payload)
        except DecodeError:
            continue  # others may have written it
        if item.topic == topics.roster and (further := roster.further_topics(topics)):
            await link.subscribe(further)
    for federation, roster in rosters.items():
        rows = {} if roster.message is None else roster.message.agents
        for agent, row in rows.items():
            user = users.get((federation, agent), "")
            if user in found:
                found[user] = LastSeen(found[user].online, row.get("seen"))
    return found
