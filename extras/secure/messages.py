"""The messages of secure sums, as frozen strict models in the form of `covey.shared.wire.messages`.

Fleet keys sign entries and the list of expelled serials. The coordinator publishes terms, list and unmask list; an agent
sends a join, the head of its report, and an answer. Each of them is named by the hash of its bytes, and what refers to it
has this name. extras/secure/protocol.md has the way of one sum.

An idle agent imports this module, so it needs neither numpy nor `cryptography`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, model_serializer, model_validator

from covey.extras.secure.parameters import LARGEST_GROUP, Group, Scale, least_deviation
from covey.shared.wire.framing import Count, Message, Name, Packed

CELL_BYTES = 49  # a sealed share: 33 bytes and 16 of the tag
PAIR_BYTES = (
    2 * CELL_BYTES
)  # the cells for one member: a share of the seed, then one of the mask secret
LABEL_TERMS, LABEL_LIST, LABEL_UNMASK, LABEL_ENTRY = "terms", "list", "unmask", "entry"
MANY = 1 << 16  # expelled serials of a fleet
MOST_LISTS = 8  # of expelled entries, that members of a sum show one another

Hash = Annotated[bytes, Field(min_length=32, max_length=32)]
Key = Annotated[bytes, Field(min_length=32, max_length=32)]
Signature = Annotated[bytes, Field(min_length=64, max_length=64)]
Place = Annotated[int, Field(ge=1, le=LARGEST_GROUP)]  # of a member in the terms, from 1
Places = Annotated[list[Place], Field(max_length=LARGEST_GROUP)]
Cells = Annotated[bytes, Field(max_length=LARGEST_GROUP * PAIR_BYTES)]
Positive = Annotated[float, Field(gt=0)]


class Row(Message):
    """What occurs once for each member of a group: it travels as a list of its values, without their names."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, values: Any) -> Any:
        if not isinstance(values, list):
            return values
        return dict(zip(cls.model_fields, values, strict=len(values) == len(cls.model_fields)))

    @model_serializer
    def _values(self) -> list[Any]:
        return [getattr(self, name) for name in type(self).model_fields]


class Entry(Packed):
    """An agent of a federation and its signing key, signed by the fleet key."""

    max_bytes: ClassVar[int] = 1 << 12

    federation: Name
    agent: Name
    serial: Count
    key: Key  # Ed25519
    since: Count  # Unix seconds
    until: Count
    signature: Signature


class Expelled(Packed):
    """The serials of entries that no longer count, signed by the fleet key. A newer version has all of an older one."""

    max_bytes: ClassVar[int] = 1 << 20

    federation: Name
    version: Count
    serials: Annotated[list[Count], Field(max_length=MANY)]
    signature: Signature


class Box(Row):
    """A key of an agent for one sum, signed by it: the cells of two members are sealed under what their boxes share."""

    number: Count
    key: Key  # X25519
    signature: Signature


class Member(Row):
    """An agent of a group: what its entry has besides the federation, and its box."""

    agent: Name
    serial: Count
    key: Key
    since: Count
    until: Count
    signature: Signature  # of the entry
    box: Box

    @classmethod
    def of(cls, entry: Entry, box: Box) -> Member:
        return cls(box=box, **entry.model_dump(exclude={"federation"}))

    def entry(self, federation: str) -> Entry:
        """The entry, of which the fleet key has signed the values."""
        own = {name: getattr(self, name) for name in Entry.model_fields if name != "federation"}
        return Entry(federation=federation, **own)


class Introduction(Packed):
    """What an agent shows before a sum: its entry, its box, what its order starts from, the list of expelled entries that it
    knows, and the fewest members that its owner requires."""

    max_bytes: ClassVar[int] = 1 << 20

    entry: Entry
    box: Box
    start: Hash
    expelled: bytes
    least: Count = 0


class Terms(Packed):
    """What the members of a group agree on before they join a sum."""

    max_bytes: ClassVar[int] = 1 << 24

    federation: Name
    run: Name
    step: Count
    sum: Annotated[bytes, Field(min_length=16, max_length=16)]  # new for each attempt
    cluster: Annotated[str, Field(max_length=64)]
    number: Count  # of the group in its cluster
    start: Hash  # what the order of every member starts from
    vectors: Annotated[dict[Name, Count], Field(max_length=1024)]  # names and lengths
    clip: Positive
    cap: Annotated[int, Field(ge=1, lt=2**31)]
    levels: Annotated[int, Field(ge=1, lt=2**31)]
    deviation: Annotated[float, Field(ge=0)]  # of each agent's noise, in units
    multiplier: Annotated[float, Field(ge=0)]  # of the noise, for the accounts
    threshold: Place
    colluders: Annotated[int, Field(ge=0, le=LARGEST_GROUP)]
    least: Place
    seconds: Positive  # after which an agent forgets the sum
    members: Annotated[
        list[Member], Field(min_length=1, max_length=LARGEST_GROUP)
    ]  # in order of id
    # lists of expelled entries that members have shown: each agent takes the newest that the fleet key signed
    expelled: Annotated[list[bytes], Field(max_length=MOST_LISTS)] = Field(default_factory=list)

    @property
    def group(self) -> Group:
        return Group(len(self.members), self.threshold, self.colluders, self.least)

    @property
    def scale(self) -> Scale:
        return Scale(self.clip, self.cap, self.levels, self.deviation)

    @property
    def length(self) -> int:
        """Of a masked vector."""
        return sum(self.vectors.values()) + self.scale.slots

    @property
    def fault(self) -> str | None:
        """Why no agent should join under these terms, whatever the owner's policy, or None."""
        agents = [member.agent for member in self.members]
        if agents != sorted(set(agents)):
            return "members must be different agents in order of id"
        fault = self.group.fault or self.scale.fault(len(agents))
        if fault:
            return fault
        length = sum(self.vectors.values())
        needed = least_deviation(self.group.honest, length, self.levels, self.multiplier)
        if self.deviation < needed * (1.0 - 1e-9):
            return f"noise of {self.deviation:.3g} units, {needed:.3g} needed for a multiplier of {self.multiplier}"
        return None


class Join(Packed):
    """An agent takes part: its keys for this sum, and shares of its secrets for each other member."""

    max_bytes: ClassVar[int] = 1 << 17

    terms: Hash
    place: Place
    mask_key: Key  # X25519
    seed: Hash  # of the seed
    cells: Cells  # a pair for each other member, in order of places
    signature: Signature  # of `row` below

    def pair_for(self, place: int) -> bytes:
        """The two cells for another member."""
        index = place - 1 if place < self.place else place - 2
        return self.cells[index * PAIR_BYTES : (index + 1) * PAIR_BYTES]


class ListRow(Row):
    """A member that joined, as its own signature confirms it."""

    place: Place
    mask_key: Key
    commitment: Hash  # to seed and cells
    signature: Signature


class JoinList(Packed):
    """The members that joined: whose masks a report carries."""

    max_bytes: ClassVar[int] = 1 << 18

    terms: Hash
    rows: Annotated[list[ListRow], Field(max_length=LARGEST_GROUP)]  # in order of places


class CellInbox(Packed):
    """What the other listed members have sealed for one agent: a pair of each, in order of places."""

    max_bytes: ClassVar[int] = 1 << 17

    listing: Hash  # of the list
    cells: Cells


class ReportHead(Packed):
    """The signed head of a masked report."""

    max_bytes: ClassVar[int] = 1 << 13

    terms: Hash
    listing: Hash  # of the list
    place: Place
    vector: Hash  # of the masked vector
    lacking: Places  # dealers whose cells did not open
    row: Signature  # of the row of the unmask list, which has neither of the two
    signature: Signature


class UnmaskRow(Row):
    """A member whose report is in the sum. It signs this once for a list, with the only vector that it sends for it."""

    place: Place
    signature: Signature


class UnmaskList(Packed):
    """The members whose reports are in the sum. The other listed ones are missing."""

    max_bytes: ClassVar[int] = 1 << 20

    listing: Hash  # of the list
    rows: Annotated[list[UnmaskRow], Field(max_length=LARGEST_GROUP)]  # in order of places


class Answer(Packed):
    """A reporter's half of the unmasking.

    `keys` opens one cell of each other listed member, in order of places: the share of its seed if its report is in the
    sum, else the share of its mask secret.
    """

    max_bytes: ClassVar[int] = 1 << 16

    unmask: Hash
    place: Place
    keys: Annotated[bytes, Field(max_length=32 * LARGEST_GROUP)]
    share: Annotated[bytes, Field(min_length=33, max_length=33)]  # of its own seed
    signature: Signature
