"""Which devices took over the models that were just published, as their own statuses show it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from covey.shared.errors import DecodeError
from covey.shared.mqtt.link import Link, Message
from covey.shared.sentences import some
from covey.shared.wire.documents import AgentStatus
from covey.shared.wire.topics import AgentTopic, Topics

QUIET_S = 1.0  # without a message: the broker has sent all statuses that it retains
MAX_NAMES = 5  # of devices in a sentence


@dataclass
class Uptake:
    """What devices make of one publication. Devices without `--model-dir` take no part in it.

    Args:
        run, round, serial: of the publication.
    """

    run: str
    round: int
    serial: int
    _newest: dict[str, AgentStatus] = field(default_factory=dict)

    def take(self, status: AgentStatus) -> None:
        self._newest[status.agent] = status

    @property
    def taken(self) -> list[str]:
        """Devices that use a model of the publication."""
        return [agent for agent in self._judged() if self._uses_it(agent)]

    @property
    def rejected(self) -> dict[str, str]:
        """Devices that keep another model, with their newest decision."""
        notes: dict[str, str] = {}
        for agent in self._judged():
            model = self._newest[agent].model
            if model is not None and not self._uses_it(agent):
                notes[agent] = model.note
        return notes

    @property
    def undecided(self) -> list[str]:
        """Devices that are online and keep models, and have not judged the publication yet."""
        return [
            agent
            for agent, status in sorted(self._newest.items())
            if status.online and status.model is not None and status.model.serial < self.serial
        ]

    @property
    def offline(self) -> list[str]:
        """Agents that judge it when they connect again, if they keep models."""
        return [agent for agent, status in sorted(self._newest.items()) if not status.online]

    def _judged(self) -> list[str]:
        return [
            agent
            for agent, status in sorted(self._newest.items())
            if status.online and status.model is not None and status.model.serial >= self.serial
        ]

    def _uses_it(self, agent: str) -> bool:
        model = self._newest[agent].model
        return model is not None and (model.run, model.round) == (self.run, self.round)

    def to_json(self) -> dict[str, Any]:
        return {
            "taken": self.taken,
            "rejected": self.rejected,
            "undecided": self.undecided,
            "offline": self.offline,
        }

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


async def observe(link: Link, topics: Topics, uptake: Uptake, within_s: float) -> None:
    """Read the statuses of devices until all that are online have judged the publication, or the time is over."""
    await link.subscribe([topics.every_status])
    loop = asyncio.get_running_loop()
    end = loop.time() + within_s
    try:
        async with asyncio.timeout(min(QUIET_S, within_s)) as limit:
            async for incoming in link.incoming():
                if not isinstance(incoming, Message) or not _takes(uptake, topics, incoming):
                    continue
                quiet = loop.time() + QUIET_S
                limit.reschedule(end if uptake.undecided else min(end, quiet))
    except TimeoutError:
        pass


def _takes(uptake: Uptake, topics: Topics, message: Message) -> bool:
    match topics.parse(message.topic):
        case AgentTopic(agent, "status"):
            try:
                status = AgentStatus.from_bytes(message.payload)
            except DecodeError:  # cleared, or of another version
                return False
            if status.agent == agent:
                uptake.take(status)
                return True
    return False
