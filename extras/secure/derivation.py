"""What both ends compute from the messages of a sum: names, what is signed, and the keys of cells and masks.

Shamir's scheme: any `threshold` shares of a secret rebuild it, and fewer are as likely for every other secret.

Source: A. Shamir, How to share a secret, Communications of the ACM 22 (11), 1979. The field has the smallest prime above
2**256, so that any 32 bytes are a secret. A share is the value of a random polynomial at a place from 1.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from covey.extras.secure import messages
from covey.extras.secure.messages import (
    CELL_BYTES,
    Answer,
    Box,
    Entry,
    Expelled,
    Join,
    JoinList,
    ListRow,
    ReportHead,
    Terms,
    UnmaskList,
    UnmaskRow,
)
from covey.extras.secure.parameters import Scale
from covey.extras.secure.primitives import Token, derived, hashed, is_signed, number, unsealed
from covey.shared.errors import DecodeError

PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33
_DRAWN_BYTES = 48  # for one coefficient: 2**384 values over the field leave a bias below 2**-127


def split(
    secret: bytes, threshold: int, places: Sequence[int], token: Token, prime: int = PRIME
) -> dict[int, int]:
    """The share of each place.

    Args:
        secret: 32 bytes, little-endian, below `prime`.
        threshold: shares that rebuild the secret.
        places: numbers from 1, all different.
        token: random bytes.
        prime: of the field; the tests use a small one.

    Raises:
        ValueError: the threshold is below 1 or above the number of places, or places repeat or are not in the field.
    """
    if not 1 <= threshold <= len(places):
        raise ValueError(f"threshold {threshold} of {len(places)} shares")
    if len(set(places)) != len(places) or not all(0 < place < prime for place in places):
        raise ValueError("places must be different numbers from 1")
    drawn = (int.from_bytes(token(_DRAWN_BYTES), "little") % prime for _ in range(threshold - 1))
    polynomial = [int.from_bytes(secret, "little"), *drawn]
    shares = {}
    for place in places:
        value = 0
        for coefficient in reversed(polynomial):
            value = (value * place + coefficient) % prime
        shares[place] = value
    return shares


@lru_cache(maxsize=16)  # the secrets of a group are rebuilt from the shares of the same places
def factors_at_zero(places: tuple[int, ...], prime: int = PRIME) -> list[int]:
    """Lagrange's factors: the secret is the sum of factor times share over these places."""
    factors = []
    for place in places:
        above, below = 1, 1
        for other in places:
            if other != place:
                above = above * other % prime
                below = below * (other - place) % prime
        factors.append(above * pow(below, -1, prime) % prime)
    return factors


def rebuilt(shares: Mapping[int, int], prime: int = PRIME) -> int:
    """The value at place 0 of the polynomial through these shares: the secret, if they are `threshold` true shares.

    Raises:
        ValueError: there are no shares.
    """
    if not shares:
        raise ValueError("no shares")
    factors = factors_at_zero(tuple(shares), prime)
    return (
        sum(factor * share for factor, share in zip(factors, shares.values(), strict=True)) % prime
    )


def secret_of(shares: Mapping[int, int]) -> bytes | None:
    """The secret of 32 bytes that these shares rebuild; None if they rebuild no such secret, so that one is false."""
    value = rebuilt(shares)
    return value.to_bytes(SECRET_BYTES, "little") if value < 2**256 else None


def share_to_bytes(share: int) -> bytes:
    """A share: 33 bytes, little-endian."""
    return share.to_bytes(SHARE_BYTES, "little")


def share_from_bytes(content: bytes | None) -> int | None:
    """The share in 33 bytes, or None if there is none."""
    if content is None or len(content) != SHARE_BYTES:
        return None
    share = int.from_bytes(content, "little")
    return share if share < PRIME else None


CellKind = Literal["cell b", "cell m"]  # a share of the seed, or of the mask secret
SEED: CellKind = "cell b"
MASK: CellKind = "cell m"


class Stream(NamedTuple):
    """The key of a mask, and the sign with which it is added."""

    sign: int  # 1 or -1
    key: bytes

    @property
    def opposite(self) -> Stream:
        """The stream that takes this mask away."""
        return Stream(-self.sign, self.key)


class OrderStart(NamedTuple):
    """What an order starts from, as each agent computes it from its own order."""

    digest: bytes
    content: bytes  # a `sketch` of each model that training begins with, or that is evaluated; only to join a sum
    order: bytes  # names the order without models and numbers, and then its phase: half of the bytes each


def start_of(work: bytes, models: Sequence[bytes], content: bytes, order: bytes) -> OrderStart:
    """The start of an order.

    Args:
        work: the whole order, packed.
        models: digests in the order in which the order has them.
        content, order: as the start has them.
    """
    return OrderStart(hashed("start", work, *models), content, order)


SKETCH = struct.Struct("<4d")  # `covey.extras.secure.phases` makes them
NEAR = 2.0**-20  # distance of two sketches: models that differ in nothing that a sum could show


def are_near(one: bytes, other: bytes) -> bool:
    """Whether two sketches are those of the same model, up to what a sum could show."""
    return one == other or math.dist(SKETCH.unpack(one), SKETCH.unpack(other)) <= NEAR


def sketches_in(content: bytes) -> list[bytes]:
    """Of each model, as a start has them."""
    return [content[at : at + SKETCH.size] for at in range(0, len(content), SKETCH.size)]


# -- names and signed hashes -------------------------------------------------------------------------------------------


def name_of_terms(content: bytes) -> bytes:
    """T of the design."""
    return hashed(messages.LABEL_TERMS, content)


def name_of_list(content: bytes) -> bytes:
    """D of the design."""
    return hashed(messages.LABEL_LIST, content)


def name_of_unmask(content: bytes) -> bytes:
    """U of the design."""
    return hashed(messages.LABEL_UNMASK, content)


def places_in_bytes(places: Iterable[int]) -> bytes:
    return b"".join(map(number, places))


def name_of_scale(scale: Scale) -> bytes:
    """Of the scale in which a vector was made."""
    numbers = struct.pack("<dQQd", scale.clip, scale.cap, scale.levels, scale.deviation)
    return hashed("scale", numbers)


def signed_of_entry(entry: Entry) -> bytes:
    """What the fleet key signs of an entry."""
    numbers = (number(entry.serial), number(entry.since), number(entry.until))
    return hashed(
        "signed entry", entry.federation.encode(), entry.agent.encode(), entry.key, *numbers
    )


def signed_of_expelled(expelled: Expelled) -> bytes:
    """What the fleet key signs of the list of expelled serials."""
    serials = map(number, expelled.serials)
    return hashed(
        "signed expelled", expelled.federation.encode(), number(expelled.version), *serials
    )


def signed_of_box(federation: str, agent: str, box_number: int, key: bytes) -> bytes:
    return hashed("signed box", federation.encode(), agent.encode(), number(box_number), key)


def name_of_seed(terms: bytes, place: int, seed: bytes) -> bytes:
    """The commitment to a seed."""
    return hashed("seed", terms, number(place), seed)


def commitment_of(join: Join) -> bytes:
    """To the seed and all cells of a join."""
    return hashed("commitment", join.seed, hashed("cells", join.cells))


def signed_of_join(terms: bytes, place: int, mask_key: bytes, commitment: bytes) -> bytes:
    return hashed("signed join", terms, number(place), mask_key, commitment)


def signed_of_head(
    terms: bytes, listed: bytes, place: int, vector: bytes, lacking: Iterable[int]
) -> bytes:
    return hashed(
        "signed head", terms, listed, number(place), vector, places_in_bytes(sorted(lacking))
    )


def signed_of_unmask_row(terms: bytes, listed: bytes, place: int) -> bytes:
    return hashed("signed unmask row", terms, listed, number(place))


def signed_of_answer(unmask: bytes, place: int, keys: bytes, share: bytes) -> bytes:
    return hashed("signed answer", unmask, number(place), keys, share)


def row_of_join(join: Join) -> ListRow:
    """The row of the list with what the others need of a join."""
    return ListRow(
        place=join.place,
        mask_key=join.mask_key,
        commitment=commitment_of(join),
        signature=join.signature,
    )


def row_of_head(head: ReportHead) -> UnmaskRow:
    """The row of the unmask list with what the others need of a report."""
    return UnmaskRow(place=head.place, signature=head.row)


# -- signatures of rows ------------------------------------------------------------------------------------------------


def is_row_signed(signer: bytes, terms: bytes, row: ListRow) -> bool:
    message = signed_of_join(terms, row.place, row.mask_key, row.commitment)
    return is_signed(signer, row.signature, message)


def is_head_signed(signer: bytes, head: ReportHead) -> bool:
    """Whether a member signed its report, and the row of the unmask list by which others know of it."""
    message = signed_of_head(head.terms, head.listing, head.place, head.vector, head.lacking)
    is_row_signed = is_unmask_row_signed(signer, head.terms, head.listing, row_of_head(head))
    return is_row_signed and is_signed(signer, head.signature, message)


def is_unmask_row_signed(signer: bytes, terms: bytes, listed: bytes, row: UnmaskRow) -> bool:
    return is_signed(signer, row.signature, signed_of_unmask_row(terms, listed, row.place))


def is_answer_signed(signer: bytes, answer: Answer) -> bool:
    message = signed_of_answer(answer.unmask, answer.place, answer.keys, answer.share)
    return is_signed(signer, answer.signature, message)


# -- cells -------------------------------------------------------------------------------------------------------------


def about_cell(terms: bytes, dealer: int, holder: int) -> bytes:
    """The associated data of a cell."""
    return hashed("about cell", terms, number(dealer), number(holder))


def cell_key(shared: bytes, terms: bytes, kind: CellKind, dealer: int, holder: int) -> bytes:
    """The key of one cell, from the secret that the boxes of dealer and holder share."""
    return derived(shared, terms, kind, number(dealer), number(holder))


def share_in_cell(
    pair: bytes, kind: CellKind, key: bytes, *, terms: bytes, dealer: int, holder: int
) -> int | None:
    """The share in one of the two cells of a pair, or None if the key does not open it."""
    cell = pair[:CELL_BYTES] if kind == SEED else pair[CELL_BYTES:]
    return share_from_bytes(unsealed(key, cell, about_cell(terms, dealer, holder)))


# -- masks -------------------------------------------------------------------------------------------------------------


def self_key(seed: bytes, listed: bytes, place: int) -> bytes:
    """The key of the mask that a member adds for itself."""
    return derived(seed, listed, "self", number(place))


def pair_key(shared: bytes, listed: bytes, one: int, other: int) -> bytes:
    """The key of the mask of two members, from the secret that their mask keys share.

    The member with the lower place adds the mask, the other subtracts it.
    """
    low, high = sorted((one, other))
    return derived(shared, listed, "pair", number(low), number(high))


def sign_of(place: int, other: int) -> int:
    """With which sign a member adds the mask that it shares with another."""
    return 1 if place < other else -1


# -- checks of lists ---------------------------------------------------------------------------------------------------


def fault_of_list(joined: JoinList, signers: Sequence[bytes], least: int) -> str | None:
    """Why a list does not have the joins of enough members, or None."""
    places = [row.place for row in joined.rows]
    if places != sorted(set(places)) or not set(places) <= set(range(1, len(signers) + 1)):
        return "rows must be different members in order of places"
    if len(places) < least:
        return f"{len(places)} members joined, the terms require {least}"
    if len({row.mask_key for row in joined.rows}) < len(places):
        return "two members have the same mask key"
    for row in joined.rows:
        if not is_row_signed(signers[row.place - 1], joined.terms, row):
            return f"member {row.place} did not sign its row"
    return None


def fault_of_unmask(
    unmask: UnmaskList, terms: bytes, listed: Iterable[int], signers: Sequence[bytes], least: int
) -> str | None:
    """Why an unmask list does not have the reports of enough members, or None."""
    places = [row.place for row in unmask.rows]
    if places != sorted(set(places)) or not set(places) <= set(listed):
        return "rows must be different listed members in order of places"
    if len(places) < least:
        return f"{len(places)} members reported, the terms require {least}"
    for row in unmask.rows:
        if not is_unmask_row_signed(signers[row.place - 1], terms, unmask.listing, row):
            return f"member {row.place} did not sign its row"
    return None


# -- entries -----------------------------------------------------------------------------------------------------------


def signers_of(terms: Terms, expelled: Iterable[int], fleet: bytes, now: float) -> list[bytes]:
    """The signing key of each member, in order of places.

    Args:
        terms: the members.
        expelled: serials that no longer count.
        fleet: the fleet's key.
        now: Unix time in seconds.

    Raises:
        DecodeError: "entry" unless each member has an entry of its own that the fleet key signed and that is valid now,
            "box" unless each box is signed by its member, "same key" if two members have a key in common.
    """
    gone = set(expelled)
    signers, boxes = [], set()
    for member in terms.members:
        entry = member.entry(terms.federation)
        if fault := _fault_of_entry(entry, gone, fleet, now):
            raise DecodeError("entry", f"the entry of {member.agent} {fault}")
        if not is_box_signed(entry, member.box):
            raise DecodeError("box", f"{member.agent} did not sign its box")
        signers.append(entry.key)
        boxes.add(member.box.key)
    if len(set(signers)) < len(signers) or len(boxes) < len(signers):
        raise DecodeError("same key", "two members have a key in common")
    return signers


def is_box_signed(entry: Entry, box: Box) -> bool:
    message = signed_of_box(entry.federation, entry.agent, box.number, box.key)
    return is_signed(entry.key, box.signature, message)


def _fault_of_entry(entry: Entry, gone: set[int], fleet: bytes, now: float) -> str | None:
    if not is_signed(fleet, entry.signature, signed_of_entry(entry)):
        return "is not signed by the fleet key"
    if not entry.since <= now <= entry.until:
        return "is not valid now"
    return "is expelled" if entry.serial in gone else None
