"""Agents that cost rounds and bring nothing are invited more seldom. Pure.

An agent that is there and lets the steps that invite it close without its report, or that cannot do its work where others
can, is not invited for 2^k rounds after the k-th time in a row, from the second time on, and for at most `LONGEST` rounds. A report
ends that. So one agent that answers roll calls and never reports costs less with every round, and a device that has
recovered is back after a while without intervention.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from covey.shared.strategies.base import ClientId

PATIENCE = 2  # times in a row
LONGEST = 16  # rounds

Kind = Literal["silent", "failing"]


@dataclass(frozen=True)
class Trouble:
    """Work of an agent that came to nothing, the newest of some in a row."""

    kind: Kind
    times: int  # in a row
    step: int  # the newest
    until: int  # complete rounds with which it is invited again
    why: str  # of the newest; empty for silence
    has_reported: bool  # before it: perhaps the agent is slow

    @property
    def words(self) -> str:
        """A line for the operator: how often, why, and until when."""
        reason = self.why or "online, but no report came in time"
        return f"{self.times} times in a row: {reason}; invited again from round {self.until + 1}"


class Rests:
    """The agents whose newest work came to nothing."""

    def __init__(self) -> None:
        self.troubles: dict[ClientId, Trouble] = {}
        self._reporters: set[ClientId] = set()

    def __repr__(self) -> str:
        return f"<Rests: {len(self.troubles)} agents>"

    def note(
        self, client: ClientId, kind: Kind, step: int, round_: int, why: str = ""
    ) -> Trouble | None:
        """Count work that came to nothing, once per step. Returns the trouble if the agent rests from now on.

        Args:
            client: the agent.
            kind: of the trouble.
            step: the number of the step or order.
            round_: complete rounds.
            why: the agent's reason.
        """
        before = self.troubles.get(client)
        if before is not None and before.step == step:
            return None
        times = 1 if before is None else before.times + 1
        rest = min(2**times, LONGEST) if times >= PATIENCE else 0
        has_reported = client in self._reporters
        trouble = Trouble(kind, times, step, round_ + rest, why, has_reported)
        self.troubles[client] = trouble
        return trouble if rest else None

    def reported(self, client: ClientId) -> None:
        """The agent's work has come to something."""
        self._reporters.add(client)
        self.troubles.pop(client, None)

    def forget(self, client: ClientId) -> None:
        """Nothing counts on the agent any more."""
        self._reporters.discard(client)
        self.troubles.pop(client, None)

    @property
    def suspects(self) -> frozenset[ClientId]:
        """Agents in trouble that have never reported, as far as is known."""
        return frozenset(
            client for client, trouble in self.troubles.items() if not trouble.has_reported
        )

    def unheard(self, clients: Iterable[ClientId]) -> None:
        """These agents did not answer a roll call: as a laptop that sleeps they were not there, and not silent."""
        for client in clients:
            trouble = self.troubles.get(client)
            if trouble is not None and trouble.kind == "silent":
                del self.troubles[client]

    def returned(self, client: ClientId) -> None:
        """The agent was away and is back: what it could not do before, it may be able to do now."""
        trouble = self.troubles.get(client)
        if trouble is not None and trouble.kind == "failing":
            del self.troubles[client]

    def at(self, round_: int) -> dict[ClientId, Trouble]:
        """The agents that rest after this number of complete rounds."""
        return {client: one for client, one in self.troubles.items() if one.until > round_}

    def to_json(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {client: asdict(trouble) for client, trouble in self.troubles.items()}

    def restore(self, saved: Mapping[str, Any], known: Collection[ClientId]) -> None:
        """Continue from a checkpoint. Who of the known agents had reported is not in it: all have the benefit of the doubt."""
        self._reporters = set(known)
        self.troubles = {client: Trouble(**fields) for client, fields in saved.items()}
