"""What an agent keeps on disk for secure sums, and what it does next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from covey.extras.secure.derivation import SKETCH, Stream, name_of_terms
from covey.extras.secure.memberships import Memberships
from covey.extras.secure.messages import Box, Hash, Key, Places
from covey.extras.secure.parameters import LARGEST_GROUP
from covey.shared.wire.framing import Count, Message, Packed

KEPT_BOXES = 2
MOST_SKETCHES = 1024  # of the models of an evaluation


@dataclass(frozen=True)
class SecureIdentity:
    """Who an agent is in its federation."""

    entry: bytes  # signed by the fleet key
    secret: bytes  # of the signing key
    fleet: bytes  # the fleet's public key


class OwnBox(Message):
    """A box with its secret."""

    box: Box
    secret: Key


class OwnVector(Message):
    """The vector that was made for a start, noise included. The vector itself lies in a file."""

    start: Hash
    digest: Hash
    scale: Hash


class OwnSum(Message):
    """The sum that an agent takes part in. A secret that is no longer needed is empty."""

    terms: bytes
    content: Annotated[
        bytes, Field(min_length=SKETCH.size, max_length=MOST_SKETCHES * SKETCH.size)
    ]  # of the start, as `order`
    order: bytes
    joined_at: float  # Unix seconds
    place: int
    signers: Annotated[list[Key], Field(max_length=LARGEST_GROUP)]
    join: bytes
    seed: bytes
    mask_secret: bytes
    box_secret: bytes
    own_share: bytes  # of the seed
    listing: bytes = b""
    seed_keys: bytes = b""  # of the cells of each other listed member, in order of places
    mask_keys: bytes = b""
    lacking: Places = Field(default_factory=list)
    head: bytes = b""
    answer: bytes = b""
    unmask: bytes = b""  # the name of the list that was answered

    @property
    def name(self) -> bytes:
        """T of the design."""
        return name_of_terms(self.terms)


class AgentState(Packed):
    """All that an agent keeps on disk for secure sums."""

    boxes: Annotated[list[OwnBox], Field(max_length=KEPT_BOXES)] = Field(default_factory=list)
    newest_box: Count = 0
    locks: bytes = b""  # one after the other
    left: bytes = b""  # names of terms that were joined and left
    shown: bytes = b""  # what was shown of this agent alone, one after the other
    memberships: Memberships = Field(default_factory=Memberships)  # of sums that were answered
    vectors: list[OwnVector] = Field(default_factory=list)
    sum: OwnSum | None = None
    expelled: bytes = b""  # the newest list that was seen
    # zero-concentrated differential privacy that the reports have spent, in rho (Bun and Steinke 2016): each counts 1 / 2 z^2
    spent: float = 0.0

    def changed(self, **fields: object) -> AgentState:
        return self.model_copy(update=fields)

    def vector(self, start: bytes) -> bytes | None:
        """The digest of the vector that was made for a start."""
        return next((own.digest for own in self.vectors if own.start == start), None)


# -- effects -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShowBox:
    """Put the box into the status."""

    box: Box


@dataclass(frozen=True)
class SendJoin:
    content: bytes


@dataclass(frozen=True)
class MakeMasked:
    """Add the masks to the vector of the start, sync the masked vector to disk, and call `masked` with its digest."""

    terms: bytes  # name
    start: bytes
    streams: tuple[Stream, ...]


@dataclass(frozen=True)
class SendMasked:
    """The masked vector, and its head."""

    content: bytes


@dataclass(frozen=True)
class SendAnswer:
    content: bytes


@dataclass(frozen=True)
class Refuse:
    """Report the reason why nothing is sent. It is one of few, so that it can be counted."""

    reason: str
    detail: str = ""


@dataclass(frozen=True)
class EraseVectors:
    """Delete the files of the vectors of these starts, masked or not, and of the work that they were made of."""

    starts: tuple[bytes, ...]


Effect = ShowBox | SendJoin | MakeMasked | SendMasked | SendAnswer | Refuse | EraseVectors


@dataclass(frozen=True)
class AgentTransition:
    """What follows from an input: if `syncs`, `state` must be on disk before an effect is carried out."""

    state: AgentState
    then: tuple[Effect, ...] = ()
    syncs: bool = True


class RefusalError(Exception):
    """Why an agent does not do what a message asks for."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}")
        self.effect = Refuse(reason, detail)
