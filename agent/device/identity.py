"""Who an agent is, and where its data and its state lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from covey.shared.wire.jobs import DataSource, DeviceData


@dataclass(frozen=True)
class Identity:
    """The name, the data and the folder of one agent.

    Attributes:
        agent: the id; unique in its federation.
        federation: the fleet that the agent belongs to.
        source: where its data comes from. The worker receives it unchanged.
        state: the folder of its outbox and its models.
        durable: whether the state survives a power cut (fsync after each write), not only a kill.
    """

    agent: str
    federation: str
    source: DataSource
    state: Path
    durable: bool = True

    @property
    def data(self) -> str | None:
        """The data of a device; None for a simulated agent, which has a share of its fleet's."""
        return self.source.data if isinstance(self.source, DeviceData) else None
