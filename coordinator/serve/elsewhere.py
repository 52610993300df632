"""Agents that are online in other federations of the broker: a hint while a run waits and no agent is in its own."""

from __future__ import annotations

from covey.shared.errors import DecodeError
from covey.shared.mqtt.link import Received
from covey.shared.wire.documents import AgentStatus

EVERY_STATUS = "covey/+/agents/+/status"  # a user of one federation gets none of them
LOOK_S = 3.0  # a broker sends what it retains at once
MAX_AGENTS = 10_000
MAX_NAMES = 3  # of federations in a sentence


class Elsewhere:
    """Looks once for agents in other federations.

    Args:
        federation: the run's own.

    Attributes:
        has_looked: whether it began to look.
        looks: whether it does so now.
    """

    def __init__(self, federation: str) -> None:
        self._federation = federation
        self._online: dict[str, set[str]] = {}  # agents by federation
        self.has_looked = False
        self.looks = False

    def __repr__(self) -> str:
        return f"<Elsewhere: {self._online}>"

    def take(self, message: Received) -> bool:
        """Note the status of an agent of another federation. False for any other message."""
        match message.topic.split("/"):
            case ["covey", federation, "agents", agent, "status"] if federation != self._federation:
                count = sum(map(len, self._online.values()))
                if self.looks and count < MAX_AGENTS and _is_online(message.payload):
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
