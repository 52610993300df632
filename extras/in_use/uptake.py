"""Read at the broker what devices use: their retained statuses, next to the deployments that the broker holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from covey.extras.runs.devices import status_in
from covey.shared.errors import DecodeError, UserError
from covey.shared.mqtt.link import Down, Link, Received
from covey.shared.mqtt.retained import until_quiet
from covey.shared.wire.deployments import Deployment
from covey.shared.wire.documents import AgentStatus, CoordinatorStatus
from covey.shared.wire.roster_view import RosterView
from covey.shared.wire.topics import Topics

ECHO_S = 10.0  # then a deployment that was published must have come back
ATTEMPTS = 20  # to reach the broker
PAUSE_S = 0.5  # between two of them
REPORTED_S = 0.1  # what the link has reported is there at once
MOST_S = 60.0  # to read the statuses of a whole fleet


@dataclass(frozen=True)
class InForce:
    """What a broker holds."""

    all_devices: Deployment | None = None
    candidate: Deployment | None = None  # that some devices try

    @property
    def newest(self) -> Deployment | None:
        """The one with the greatest serial."""
        both = [one for one in (self.all_devices, self.candidate) if one is not None]
        return max(both, key=lambda one: one.serial, default=None)


def in_force_of(newest: Mapping[str, Deployment], topics: Topics) -> InForce:
    """The deployments in force, from the newest one of each topic."""
    all_devices, candidate = newest.get(topics.deployment), newest.get(topics.candidate)
    is_over = (
        all_devices is not None and candidate is not None and all_devices.serial > candidate.serial
    )
    return InForce(all_devices, None if is_over else candidate)


def deployment_in(message: Received, topics: Topics) -> Deployment | None:
    """The deployment in a message; None if it holds none."""
    if message.topic not in (topics.deployment, topics.candidate):
        return None
    try:
        return Deployment.from_bytes(message.payload)
    except DecodeError:  # cleared, or of another version
        return None


@dataclass
class RetainedFleet:
    """What a broker retains of a federation: the newest status of each agent, the deployments, and the coordinator's word.

    Attributes:
        topics: of the federation.
        statuses: by agent.
        deployments: by topic.
        coordinator: its status; None if it was never there.
        pages: of the roster.
        others: agents of other federations, with the name of theirs.
        served: other federations where a coordinator has been.
    """

    topics: Topics
    statuses: dict[str, AgentStatus] = field(default_factory=dict)
    deployments: dict[str, Deployment] = field(default_factory=dict)
    coordinator: CoordinatorStatus | None = None
    pages: RosterView = field(default_factory=RosterView)
    others: dict[str, str] = field(default_factory=dict)
    served: set[str] = field(default_factory=set)

    @property
    def held(self) -> InForce:
        return in_force_of(self.deployments, self.topics)

    def take(self, message: Received) -> None:
        """Take note of a message, if it is one of these."""
        status = status_in(message, self.topics)
        if status is not None:
            self.statuses[status.agent] = status
        deployment = deployment_in(message, self.topics)
        if deployment is not None:
            self.deployments[message.topic] = deployment
        with suppress(DecodeError):
            if message.topic == self.topics.coordinator_status:
                self.coordinator = CoordinatorStatus.from_bytes(message.payload)
            elif not self.pages.take(self.topics, message.topic, message.payload):
                self._take_other(message)

    def _take_other(self, message: Received) -> None:
        """Take note of another federation on the same broker."""
        match message.topic.split("/"):
            case [_, federation, "coordinator", "status"]:
                self.served.add(federation)
            case [_, federation, "agents", agent, "status"] if federation != self.topics.federation:
                if AgentStatus.from_bytes(message.payload).online:
                    self.others[agent] = federation

    @property
    def elsewhere(self) -> dict[str, str]:
        """Agents that are in a federation which has had no coordinator."""
        return {one: where for one, where in self.others.items() if where not in self.served}


async def subscribed(link: Link, topics: Sequence[str]) -> None:
    """Subscribe to topics as soon as the link is connected. Raises UserError if the broker cannot be reached."""
    for _ in range(ATTEMPTS):
        if await link.subscribe(topics):
            return
        await asyncio.sleep(PAUSE_S)
    why = await _newest_end(link)
    reason = f" ({why})" if why else ""
    raise UserError(
        f"the broker cannot be reached{reason}; check address and credentials with `broker doctor`"
    )


async def _newest_end(link: Link) -> str:
    """Why the newest connection ended, as far as the link has reported it. The caller names the broker."""
    why = ""
    with suppress(TimeoutError):
        async with asyncio.timeout(REPORTED_S):
            async for incoming in link.incoming():
                if isinstance(incoming, Down):
                    why = incoming.reason
    return why


async def in_force(link: Link, topics: Topics) -> InForce:
    """What the broker holds. A candidate that is older than what all devices should use is over.

    Raises:
        UserError: the broker cannot be reached.
    """
    await subscribed(link, [topics.deployment, topics.candidate])
    return await held(link, topics)


async def held(
    link: Link, topics: Topics, until: int | None = None, quiet_s: float | None = None
) -> InForce:
    """The deployments that the broker retains, or those that arrive until one has this serial."""
    newest: dict[str, Deployment] = {}
    async for message in until_quiet(
        link, ECHO_S, quiet_s=quiet_s, is_awaited=lambda: until is not None
    ):
        found = deployment_in(message, topics)
        if found is not None:
            newest[message.topic] = found
            if until is not None and found.serial >= until:
                break
    return in_force_of(newest, topics)


async def survey(link: Link, topics: Topics) -> RetainedFleet:
    """Everything that the broker retains. Raises UserError if it cannot be reached."""
    fleet = RetainedFleet(topics)
    await subscribed(link, [topics.deployment, topics.candidate, topics.every_status])
    await follow(link, fleet)
    return fleet


async def follow(
    link: Link,
    fleet: RetainedFleet,
    within_s: float = MOST_S,
    is_awaited: Callable[[], bool] = lambda: False,
) -> None:
    """Take what arrives, until there was silence and nothing is awaited, or the time is over."""
    async for message in until_quiet(link, within_s, is_awaited=is_awaited):
        fleet.take(message)
