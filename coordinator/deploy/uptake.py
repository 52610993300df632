"""Read at the broker what devices use: their retained statuses, next to the deployments that the broker holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from covey.coordinator.deploy.publish import InForce, deployment_in, in_force_of, subscribed
from covey.shared.errors import DecodeError
from covey.shared.mqtt.link import Link, Message
from covey.shared.mqtt.retained import until_quiet
from covey.shared.wire.deployments import Deployment
from covey.shared.wire.documents import AgentStatus
from covey.shared.wire.topics import AgentTopic, Topics

MOST_S = 60.0  # to read the statuses of a whole fleet


@dataclass
class Fleet:
    """What a broker retains of a federation: the newest status of each agent, and the deployments."""

    topics: Topics
    statuses: dict[str, AgentStatus] = field(default_factory=dict)
    deployments: dict[str, Deployment] = field(default_factory=dict)  # by topic

    @property
    def held(self) -> InForce:
        return in_force_of(self.deployments, self.topics)

    def take(self, message: Message) -> None:
        """Take note of a message, if it is one of these."""
        status = status_in(message, self.topics)
        if status is not None:
            self.statuses[status.agent] = status
        deployment = deployment_in(message, self.topics)
        if deployment is not None:
            self.deployments[message.topic] = deployment


async def survey(link: Link, topics: Topics) -> Fleet:
    """Everything that the broker retains. Raises UserError if it cannot be reached."""
    fleet = Fleet(topics)
    await subscribed(link, [topics.deployment, topics.candidate, topics.every_status])
    await follow(link, fleet)
    return fleet


async def follow(
    link: Link,
    fleet: Fleet,
    within_s: float = MOST_S,
    is_awaited: Callable[[], bool] = lambda: False,
) -> None:
    """Take what arrives, until there was silence and nothing is awaited, or the time is over."""
    async for message in until_quiet(link, within_s, is_awaited=is_awaited):
        fleet.take(message)


def status_in(message: Message, topics: Topics) -> AgentStatus | None:
    """The status of an agent in a message; None if it holds none."""
    try:
        match topics.parse(message.topic):
            case AgentTopic(agent, "status"):
                status = AgentStatus.from_bytes(message.payload)
                return status if status.agent == agent else None
    except DecodeError:  # cleared, or of another version
        pass
    return None
