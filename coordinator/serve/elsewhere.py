"""Agents that are online in other federations of the broker: a hint while a run waits and no agent is in its own."""

from __future__ import annotations

from covey.shared.errors import DecodeError
from covey.shared.mqtt.link import Link, Message
from covey.shared.wire.documents import AgentStatus

EVERY_STATUS = "covey/+/agents/+/status"  # a user of one federation gets none of them
LOOK_S = 3.0  # a broker sends what it retains at once
MAX_AGENTS = 10_000
MAX_NAMES = 3  # of federations in a sentence


class Elsewhere:
    """Looks once for agents in other federations.

    Args:
        link: to the broker, or to several.
        federation: the run's own.
    """

    def __init__(self, link: Link, federation: str) -> None:
        self._link = link
        self._federation = federation
        self._online: dict[str, set[str]] = {}  # agents by federation
        self._has_looked = False
        self.due: float | None = None  # when to stop looking

    def __repr__(self) -> str:
        return f"<Elsewhere: {self._online}>"

    async def look(self, now: float) -> None:
        """Begin, the first time."""
        if not self._has_looked:
            self._has_looked = True
            self.due = now + LOOK_S
            await self._link.subscribe([EVERY_STATUS])

    async def stop(self) -> None:
        self.due = None
        await self._link.unsubscribe([EVERY_STATUS])

    def take(self, message: Message) -> bool:
        """Note the status of an agent of another federation. False for any other message."""
        match message.topic.split("/"):
            case ["covey", federation, "agents", agent, "status"] if federation != self._federation:
                count = sum(map(len, self._online.values()))
                if self.due is not None and count < MAX_AGENTS and _is_online(message.payload):
                    self._online.setdefault(federation, set()).add(agent)
                return True
        return False

    @property
    def sentence(self) -> str:
        """A hint for an operator while no agent is here."""
        text = (
            f"this run is in federation {self._federation!r}, which agents join with `agent start --federation "
            f"{self._federation}` or with credentials for it"
        )
        found = sorted(self._online.items(), key=lambda one: -len(one[1]))
        if not found:
            return text
        places = [f"{len(agents)} in {name!r}" for name, agents in found[:MAX_NAMES]]
        return (
            f"{text}. Agents are online in other federations of this broker: {', '.join(places)}; "
            "`federation` in the scenario chooses one"
        )


def _is_online(payload: bytes) -> bool:
    try:
        return AgentStatus.from_bytes(payload).online
    except DecodeError:
        return False
