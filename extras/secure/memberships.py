"""Whose reports were in the sums that a device has answered, so that no two of them differ by few (`secure_steady`).

Two sums of nearly the same model, subtracted, are nearly the updates of the agents in one of them alone. A device with this
memory answers a sum whose members are those of an earlier one, or others in a number that leaves enough honest ones among
them. It compares pairs: more than two sums can be combined so that few agents are left, however much each two differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from covey.extras.secure.messages import Place
from covey.extras.secure.primitives import hashed
from covey.shared.wire.framing import Message

MOST_SUMS = 4096  # of different members; a full memory knows no further ones
MOST_AGENTS = 1 << 16
NAME_BYTES = 8  # of an agent: it keeps its id when its entry is signed again


def name_of_agent(federation: str, agent: str) -> bytes:
    """What a memory has of an agent."""
    return hashed("member", federation.encode(), agent.encode())[:NAME_BYTES]


def is_too_near(members: int, others: int, least: int) -> bool:
    """Whether two sums, as bits of their members, have not the same members, and differ by fewer than `least`."""
    return 0 < (members ^ others).bit_count() < least


class Summed(Message):
    """The members of a sum."""

    members: Annotated[bytes, Field(max_length=MOST_AGENTS // 8)]  # a bit of each, little-endian
    least: Place  # others that a further sum must have


class Memberships(Message):
    """The sums that were answered."""

    agents: Annotated[bytes, Field(max_length=NAME_BYTES * MOST_AGENTS)] = b""  # in order of bits
    sums: Annotated[list[Summed], Field(max_length=MOST_SUMS)] = Field(default_factory=list)

    def fault(self, names: Iterable[bytes], least: int) -> str | None:
        """Why a sum of these members may not be answered, or None.

        Args:
            names: of the members.
            least: members by which the sum must differ from each other one, if it differs at all.
        """
        members, agents = self._bits(names)
        for summed in self.sums:
            others, needed = int.from_bytes(summed.members, "little"), max(least, summed.least)
            if is_too_near(members, others, needed):
                count = (members ^ others).bit_count()
                return f"{count} members differ from a sum that was answered, {needed} must"
        if len(self._kept(members, least)) > MOST_SUMS or len(agents) > NAME_BYTES * MOST_AGENTS:
            return f"the memory of {MOST_SUMS} sums is full"
        return None

    def with_sum(self, names: Iterable[bytes], least: int) -> Memberships:
        """The memory after an answer. A sum of the same members takes no further place."""
        members, agents = self._bits(names)
        return Memberships(agents=agents, sums=self._kept(members, least))

    def _kept(self, members: int, least: int) -> list[Summed]:
        packed = members.to_bytes(-(-members.bit_length() // 8), "little")
        same = [one.least for one in self.sums if one.members == packed]
        others = [one for one in self.sums if one.members != packed]
        return [*others, Summed(members=packed, least=max([least, *same]))]

    def _bits(self, names: Iterable[bytes]) -> tuple[int, bytes]:
        """The members as bits, and all agents that have one."""
        known = len(self.agents) // NAME_BYTES
        place_of = {self.agents[i * NAME_BYTES : (i + 1) * NAME_BYTES]: i for i in range(known)}
        bits = 0
        for name in names:
            bits |= 1 << place_of.setdefault(name, len(place_of))
        return bits, b"".join(place_of)
