"""The sums that an agent has answered: none of their starts is summed again, nor their models with other members."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from covey.extras.secure.derivation import are_near, sketches_in
from covey.extras.secure.messages import Terms
from covey.extras.secure.primitives import hashed

SUMMED_BEFORE = "summed before"  # the reason for a locked start
LOCK = struct.Struct("<16s16s16s32s")


class Lock(NamedTuple):
    """A start that was answered, with one of its models. Each takes 80 bytes, and none is ever forgotten."""

    start: bytes  # the first half
    order: bytes
    members: bytes  # names those whose reports are in the sum
    content: bytes  # the sketch of the model

    @classmethod
    def all_in(cls, packed: bytes) -> list[Lock]:
        return [cls(*fields) for fields in LOCK.iter_unpack(packed)]

    @classmethod
    def all_of(
        cls, terms: Terms, order: bytes, content: bytes, reported: Iterable[int]
    ) -> list[Lock]:
        """The locks of an answer: one that has another model in the place of one of several trains the others as before.

        Args:
            terms: of the sum.
            order, content: of its start.
            reported: the places of those whose reports are in it.
        """
        names = sorted(terms.members[place - 1].agent for place in reported)
        members = hashed("members", *(name.encode() for name in names))
        return [
            cls(terms.start[:16], order, members[:16], sketch) for sketch in sketches_in(content)
        ]

    def packed(self) -> bytes:
        content: bytes = LOCK.pack(*self)
        return content

    def is_of(self, start: bytes) -> bool:
        """Whether the sum of this start was answered."""
        return self.start == start[: len(self.start)]

    def forbids(self, other: Lock) -> bool:
        """Whether the other sum is from the same models, with other members: the two would give away who is in one of them alone,
        whatever else differs in their orders. The same order in a phase that the method declares to be other work is no second
        sum of it.
        """
        is_further = self.order[:8] == other.order[:8] and self.order != other.order
        is_same = self.members == other.members or is_further
        return not is_same and are_near(self.content, other.content)
