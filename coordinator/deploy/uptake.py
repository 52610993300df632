"""Which devices took over the models that were just published, as their own statuses show it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from covey.coordinator.deploy.publish import subscribed
from covey.shared.errors import DecodeError
from covey.shared.mqtt.link import Link, Message
from covey.shared.mqtt.retained import until_quiet
from covey.shared.sentences import some
from covey.shared.wire.documents import AgentStatus
from covey.shared.wire.topics import AgentTopic, Topics

MOST_S = 60.0  # to read the statuses of a whole fleet
MAX_NAMES = 5  # of devices in a sentence
REJECTED, NOT_YET = 1, 3  # exit codes


@dataclass
class Uptake:
    """What devices make of one publication. Devices without `--model-dir` take no part in it.

    Args:
        run, round, serial: of the publication.
        devices: that it is for; empty for all.
    """

    run: str
    round: int
    serial: int
    devices: Collection[str] = ()
    newest: dict[str, AgentStatus] = field(default_factory=dict)

    def take(self, status: AgentStatus) -> None:
        if not self.devices or status.agent in self.devices:
            self.newest[status.agent] = status

    @property
    def taken(self) -> list[str]:
        """Devices that use a model of the publication."""
        return [agent for agent in self._judged() if self._uses_it(agent)]

    @property
    def rejected(self) -> dict[str, str]:
        """Devices that keep another model, with their newest decision."""
        notes: dict[str, str] = {}
        for agent in self._judged():
            model = self.newest[agent].model
            if model is not None and not self._uses_it(agent):
                notes[agent] = model.note
        return notes

    @property
    def undecided(self) -> list[str]:
        """Devices that are online and keep models, and have not judged the publication yet."""
        return [
            agent
            for agent, status in sorted(self.newest.items())
            if status.online and status.model is not None and status.model.serial < self.serial
        ]

    @property
    def offline(self) -> list[str]:
        """Agents that judge it when they connect again, if they keep models."""
        return [agent for agent, status in sorted(self.newest.items()) if not status.online]

    def _judged(self) -> list[str]:
        return [
            agent
            for agent, status in sorted(self.newest.items())
            if status.online and status.model is not None and status.model.serial >= self.serial
        ]

    def _uses_it(self, agent: str) -> bool:
        model = self.newest[agent].model
        return model is not None and (model.run, model.round) == (self.run, self.round)

    def to_json(self) -> dict[str, Any]:
        return {
            "taken": self.taken,
            "rejected": self.rejected,
            "undecided": self.undecided,
            "offline": self.offline,
        }

    @property
    def exit_code(self) -> int:
        """1: a device rejected the models; 3: none did, and some have not answered; 0: all took them over."""
        if self.rejected:
            return REJECTED
        return NOT_YET if self.undecided or self.offline else 0

    @property
    def sentence(self) -> str:
        """For a person."""
        rejected = list(self.rejected)
        parts = [f"{len(self.taken)} took it over", f"{len(rejected)} rejected it{_of(rejected)}"]
        if self.undecided:
            parts.append(f"{len(self.undecided)} have not answered yet{_of(self.undecided)}")
        if self.offline:
            parts.append(f"{len(self.offline)} are offline{_of(self.offline)}")
        return "devices: " + ", ".join(parts)


def _of(agents: Sequence[str]) -> str:
    return f" ({some(agents, MAX_NAMES)})" if agents else ""


def sample(devices: Iterable[str], share: float, version: str) -> list[str]:
    """A share of devices, at least one. A larger share of the same version has the devices of a smaller one.

    Args:
        devices: all that could try it.
        share: above 0, at most 1.
        version: names what is tried: another version meets other devices first.
    """
    ranked = sorted(
        devices, key=lambda agent: hashlib.blake2b(f"{version}/{agent}".encode()).digest()
    )
    return sorted(ranked[: max(1, math.ceil(share * len(ranked) - 1e-9))])


async def observe(link: Link, topics: Topics, uptake: Uptake, within_s: float) -> None:
    """Read the statuses of devices until all that are online have judged the publication, or the time is over.

    Raises:
        UserError: the broker cannot be reached.
    """
    await subscribed(link, [topics.every_status])
    async for message in until_quiet(link, within_s, is_awaited=lambda: bool(uptake.undecided)):
        status = _status_in(message, topics)
        if status is not None:
            uptake.take(status)


async def statuses(link: Link, topics: Topics) -> dict[str, AgentStatus]:
    """The newest status of each agent that the broker knows."""
    nothing = Uptake("", 0, 0)
    await observe(link, topics, nothing, MOST_S)
    return nothing.newest


def _status_in(message: Message, topics: Topics) -> AgentStatus | None:
    match topics.parse(message.topic):
        case AgentTopic(agent, "status"):
            try:
                status = AgentStatus.from_bytes(message.payload)
            except DecodeError:  # cleared, or of another version
                return None
            return status if status.agent == agent else None
    return None
