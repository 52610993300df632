"""What one client, and all clients together, may use of a broker that Covey starts.

Both brokers share these limits. All of them follow from two numbers: the agents to expect, and the longest packet.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from covey.shared.errors import UserError

KIB = 1 << 10
MIB = 1 << 20
DEFAULT_AGENTS = 1000
DEFAULT_PART = 512 * KIB  # the default of wire.part_bytes
ENVELOPE = 16 * KIB  # what a packet holds in addition to a part: topic, digest, numbers
ROSTER_ROW = 400  # bytes of one agent in the roster that the coordinator publishes
MIN_PACKET_BYTES = 16 * KIB
MIN_MEMORY_BYTES = 256 * MIB
MAX_PACKET_BYTES = 268_435_455  # of MQTT: 3.1.1, section 2.2.3
MAX_MEMORY_BYTES = (1 << 63) - 1  # that Mosquitto can count
MAX_AGENTS = 100_000_000  # whose queue of 20 messages each Mosquitto can count


@dataclass(frozen=True)
class Limits:
    """Limits of one broker. The properties are what the brokers apply.

    Raises:
        UserError: a limit is too low for Covey to work, or higher than a broker can apply.
    """

    agents: int = DEFAULT_AGENTS  # how many to expect
    packet: int | None = None  # longest packet in bytes; None: enough for this many agents
    memory: int | None = None  # of the broker in bytes; None: half of the machine's

    def __post_init__(self) -> None:
        if self.agents < 1:
            raise UserError(f"--agents {self.agents}: expected at least 1")
        if self.agents > MAX_AGENTS:
            raise UserError(
                f"--agents {self.agents}: expected at most {MAX_AGENTS}; divide a larger fleet over several brokers"
            )
        if self.packet is not None and self.packet > MAX_PACKET_BYTES:
            raise UserError(
                f"--max-packet {self.packet}: expected at most {MAX_PACKET_BYTES} bytes, the longest packet of MQTT; "
                "models travel in parts, so wire.part_bytes of the scenario plus 16384 is enough"
            )
        if self.packet is not None and self.packet < MIN_PACKET_BYTES:
            raise UserError(
                f"--max-packet {self.packet}: expected at least {MIN_PACKET_BYTES} bytes; a packet must hold a part "
                "(wire.part_bytes of the scenario) and 4 KiB"
            )
        if self.memory is not None and self.memory < MIN_MEMORY_BYTES:
            raise UserError(
                f"--memory {self.memory >> 20}: expected at least {MIN_MEMORY_BYTES >> 20} (MiB)"
            )
        if self.memory is not None and self.memory > MAX_MEMORY_BYTES:
            raise UserError(
                f"--memory {self.memory >> 20}: expected at most {MAX_MEMORY_BYTES >> 20} (MiB); "
                "omit it for half of the machine's memory"
            )

    @property
    def packet_bytes(self) -> int:
        """The longest packet: a part of the default size or the roster of all agents, whichever is longer."""
        enough = max(DEFAULT_PART, ROSTER_ROW * self.agents) + ENVELOPE
        return self.packet or min(enough, MAX_PACKET_BYTES)

    @property
    def memory_bytes(self) -> int:
        """The memory of the whole broker: half of the machine's by default."""
        return self.memory or max(_machine_bytes() // 2, MIN_MEMORY_BYTES)

    @property
    def connections(self) -> int:
        """Twice the agents, because one that reconnects may briefly be connected twice, and some for other tools."""
        return 2 * self.agents + 64

    @property
    def queued_messages(self) -> int:
        """Queue of one client that does not keep up: the reports of all agents at once, in twenty parts each."""
        return max(20 * self.agents, 20_000)

    @property
    def retained_messages(self) -> int:
        """Retained by the embedded broker: a new subscription with a wildcard is compared to each of them."""
        return self.queued_messages

    @property
    def queued_bytes(self) -> int:
        """Queue of one client that does not keep up, in bytes."""
        return self.memory_bytes // 4

    @property
    def in_flight_bytes(self) -> int:
        """Sent to one client and not acknowledged. Mosquitto keeps a copy of each such message for each client."""
        return max(16 * MIB, 8 * self.packet_bytes)


IN_FLIGHT = 1000  # messages sent to a client and not acknowledged
# A persistent session ends once its client has been away for this long. Covey itself uses none.
SESSION_HOURS = 1


def _machine_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):  # the system does not report it
        return 4096 * MIB
