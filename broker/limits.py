"""What a broker of ours lets one client, and all of them together, take of it.

One table for both brokers. Everything follows from two numbers: how many agents are expected, and how long a packet may be.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from covey.shared.errors import UserError

KIB = 1 << 10
MIB = 1 << 20
DEFAULT_AGENTS = 1000
DEFAULT_PART = 512 * KIB  # wire.part_bytes where a scenario does not say otherwise
ENVELOPE = 16 * KIB  # of a packet beside the part in it: topic, digest, numbers
ROSTER_ROW = 400  # bytes of one agent in the roster that the coordinator publishes
MIN_PACKET_BYTES = 16 * KIB
MIN_MEMORY_BYTES = 256 * MIB


@dataclass(frozen=True)
class Limits:
    """`agents`: as many as are expected. `packet` and `memory` in bytes, None: what fits the agents and the machine."""

    agents: int = DEFAULT_AGENTS
    packet: int | None = None
    memory: int | None = None

    def __post_init__(self) -> None:
        if self.agents < 1:
            raise UserError(f"--agents {self.agents}: expected at least 1")
        if self.packet is not None and self.packet < MIN_PACKET_BYTES:
            raise UserError(
                f"--max-packet {self.packet}: expected at least {MIN_PACKET_BYTES} bytes; a packet must hold a part "
                "(wire.part_bytes of the scenario) and 4 KiB"
            )
        if self.memory is not None and self.memory < MIN_MEMORY_BYTES:
            raise UserError(
                f"--memory {self.memory >> 20}: expected at least {MIN_MEMORY_BYTES >> 20} (MiB)"
            )

    @property
    def packet_bytes(self) -> int:
        """The longest packet: a part of the default size, or the roster of all agents where that is longer."""
        return self.packet or max(DEFAULT_PART, ROSTER_ROW * self.agents) + ENVELOPE

    @property
    def memory_bytes(self) -> int:
        """What the broker may hold in all: half of the machine's memory."""
        return self.memory or max(_machine_bytes() // 2, MIN_MEMORY_BYTES)

    @property
    def connections(self) -> int:
        """Twice the agents, since one that reconnects may be there twice for a moment, and some for people's tools."""
        return 2 * self.agents + 64

    @property
    def queued_messages(self) -> int:
        """For one client that does not keep up: the reports of all agents at once, in twenty parts each."""
        return max(20 * self.agents, 20_000)

    @property
    def queued_bytes(self) -> int:
        """For one client that does not keep up."""
        return self.memory_bytes // 4

    @property
    def in_flight_bytes(self) -> int:
        """Sent to one client and not acknowledged: Mosquitto keeps a copy of each such message for each client."""
        return max(16 * MIB, 8 * self.packet_bytes)


IN_FLIGHT = 1000  # messages sent to a client and not acknowledged
SESSION_HOURS = (
    1  # a persistent session whose client stays away is forgotten; Covey itself uses none
)


def _machine_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):  # a system that does not say
        return 4096 * MIB
