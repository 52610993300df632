"""The coordinator's half of one secure sum: it collects joins, reports and answers, and opens the sum.

`SecureSum` decides, and knows neither clock nor disk. A `SumsTransition` has records, which the caller syncs to disk before it carries
out the effects; the state of a killed coordinator is `restored` from its records, and `resumed` publishes the same bytes.
Masked vectors are no part of it: the caller keeps them, or a sum of them mod 2**32, under the digests of their heads.

A sum ends in one of three ways. *Opened*: the masks of the sum are known. *Void*: nothing was revealed, and another sum may
take its place. *Passed over*: an unmask list was published, so the same start is never tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from covey.extras.secure.derivation import (
    MASK,
    SEED,
    CellKind,
    Stream,
    is_answer_signed,
    is_head_signed,
    is_row_signed,
    name_of_list,
    name_of_seed,
    name_of_terms,
    name_of_unmask,
    pair_key,
    row_of_head,
    row_of_join,
    secret_of,
    self_key,
    share_from_bytes,
    share_in_cell,
    sign_of,
)
from covey.extras.secure.messages import (
    PAIR_BYTES,
    Answer,
    CellInbox,
    Join,
    JoinList,
    ReportHead,
    Terms,
    UnmaskList,
)
from covey.extras.secure.primitives import KEY_BYTES, BadKeyError, agreement, public_key
from covey.shared.errors import DecodeError

TERMS, LIST, UNMASK, END = "terms", "list", "unmask", "end"
JOIN, REPORT, ANSWER = "join", "report", "answer"
_PROBE = b"\x01" + bytes(31)  # a secret that shows whether a public key is of small order


@dataclass(frozen=True)
class Record:
    """What a restart needs. Names are "terms", "list", "unmask", and "join-3", "report-3", "answer-3" for place 3."""

    name: str
    content: bytes


# -- effects -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PublishToMembers:
    """A retained content for all members: "terms", "list" or "unmask"."""

    what: str
    content: bytes


@dataclass(frozen=True)
class FillInbox:
    """The cells for one member."""

    place: int
    content: bytes


@dataclass(frozen=True)
class Have:
    """The member need not send this again: "join", "report" or "answer"."""

    place: int
    what: str


@dataclass(frozen=True)
class Opened:
    """The sum of the reported vectors, plus these masks, is the sum of their integers."""

    reported: tuple[int, ...]
    streams: tuple[Stream, ...]


@dataclass(frozen=True)
class SumVoid:
    """Nothing was revealed. `blamed` should not be drawn again."""

    reason: str
    blamed: tuple[int, ...] = ()


@dataclass(frozen=True)
class PassedOver:
    """The group's cluster keeps its model."""

    reason: str
    blamed: tuple[int, ...] = ()


End = Opened | SumVoid | PassedOver
Effect = PublishToMembers | FillInbox | Have | Opened | SumVoid | PassedOver


@dataclass(frozen=True)
class SumState:
    """One sum. The `bytes` of terms, list and unmask list are what was published."""

    terms: bytes
    signers: tuple[bytes, ...]  # signing keys in order of places
    joins: Mapping[int, Join] = field(default_factory=dict)
    listing: bytes = b""
    heads: Mapping[int, ReportHead] = field(default_factory=dict)
    unmask: bytes = b""
    answers: Mapping[int, Answer] = field(default_factory=dict)
    refused: Mapping[int, str] = field(default_factory=dict)  # reasons of members
    end: End | None = None

    @property
    def listed(self) -> tuple[int, ...]:
        """Places on the list."""
        return _places(JoinList, self.listing) if self.listing else ()

    @property
    def reported(self) -> tuple[int, ...]:
        """Places on the unmask list."""
        return _places(UnmaskList, self.unmask) if self.unmask else ()


@lru_cache(maxsize=64)
def _places(kind: type[JoinList] | type[UnmaskList], content: bytes) -> tuple[int, ...]:
    """The places of the rows of a list. They are asked for with each message."""
    return tuple(row.place for row in kind.from_bytes(content).rows)


@dataclass(frozen=True)
class SumsTransition:
    """What follows from an input: the records must be on disk before an effect is carried out."""

    state: SumState
    records: tuple[Record, ...] = ()
    then: tuple[Effect, ...] = ()


Decide = Callable[[SumState], SumsTransition]


class SecureSum:
    """The decisions of the coordinator about one sum.

    Methods that take a message raise DecodeError for one that does not count: "secure stage" if it comes too late or too
    early, "secure sum" if it belongs to another sum, "secure signature", "secure join", "bad key".
    """

    def __init__(self, terms: bytes) -> None:
        self.terms = Terms.from_bytes(terms)
        self.name = name_of_terms(terms)
        self._begun = SumState(terms, tuple(member.key for member in self.terms.members))

    def begun(self) -> SumsTransition:
        """The sum is announced."""
        state = self._begun
        return SumsTransition(
            state, (Record(TERMS, state.terms),), (PublishToMembers(TERMS, state.terms),)
        )

    # -- joins ---------------------------------------------------------------------------------------------------------

    def joined(self, state: SumState, content: bytes) -> SumsTransition:
        """A member's join. The list follows once all have joined."""
        join = Join.from_bytes(content)
        if join.terms != self.name or join.place > len(state.signers):
            raise DecodeError("secure sum", "the join belongs to another sum")
        if state.joins.get(join.place) == join:
            return SumsTransition(state, (), (Have(join.place, JOIN),))
        if state.listing or state.end or join.place in state.joins:
            raise DecodeError("secure stage", "the list of joins is closed, or has another one")
        self._check_join(state, join)
        state = replace(state, joins={**state.joins, join.place: join})
        joined = SumsTransition(
            state, (Record(f"{JOIN}-{join.place}", content),), (Have(join.place, JOIN),)
        )
        return self._followed(joined, self._list_if_complete)

    def _check_join(self, state: SumState, join: Join) -> None:
        if len(join.cells) != PAIR_BYTES * (len(state.signers) - 1):
            raise DecodeError("secure join", "expected two cells for each other member")
        if not is_row_signed(state.signers[join.place - 1], self.name, row_of_join(join)):
            raise DecodeError("secure signature", f"the join of place {join.place}")
        if join.mask_key in {other.mask_key for other in state.joins.values()}:
            raise DecodeError("secure join", "another member has this mask key")
        try:
            agreement(_PROBE)(join.mask_key)
        except BadKeyError as error:
            raise DecodeError("bad key", str(error)) from None

    def refused(self, state: SumState, place: int, reason: str) -> SumsTransition:
        """A member refuses to take part, or failed. It is not awaited any longer."""
        if place in state.refused or state.end:
            return SumsTransition(state)
        state = replace(state, refused={**state.refused, place: reason})
        if not state.listing:
            return self._list_if_complete(state)
        return SumsTransition(state)

    def _list_if_complete(self, state: SumState) -> SumsTransition:
        awaited = set(range(1, len(state.signers) + 1)) - set(state.joins) - set(state.refused)
        return (
            SumsTransition(state)
            if awaited or state.listing or state.end
            else self.joins_closed(state)
        )

    def joins_closed(self, state: SumState) -> SumsTransition:
        """`join_s` is over: the list goes out, or the sum is void."""
        if state.listing or state.end:
            return SumsTransition(state)
        if len(state.joins) < self.terms.least:
            return self._void(
                state, f"{len(state.joins)} members joined, {self.terms.least} required"
            )
        rows = [row_of_join(state.joins[place]) for place in sorted(state.joins)]
        content = JoinList(terms=self.name, rows=rows).to_bytes()
        state = replace(state, listing=content)
        return SumsTransition(
            state, (Record(LIST, content),), (PublishToMembers(LIST, content), *_inboxes(state))
        )

    # -- reports -------------------------------------------------------------------------------------------------------

    def reported(self, state: SumState, content: bytes) -> SumsTransition:
        """The head of a member's report. The caller has compared the vector with its digest and keeps it."""
        head = ReportHead.from_bytes(content)
        if (
            head.terms != self.name
            or not state.listing
            or head.listing != name_of_list(state.listing)
        ):
            raise DecodeError("secure sum", "the report belongs to another list")
        if state.heads.get(head.place) == head:
            return SumsTransition(state, (), (Have(head.place, REPORT),))
        if state.unmask or state.end or head.place in state.heads:
            raise DecodeError("secure stage", "the sum is closed, or has another report")
        if head.place not in state.listed:
            raise DecodeError("secure sum", f"place {head.place} is not listed")
        signer = state.signers[head.place - 1]
        if not is_head_signed(signer, head):
            raise DecodeError("secure signature", f"the report of place {head.place}")
        state = replace(state, heads={**state.heads, head.place: head})
        return SumsTransition(
            state, (Record(f"{REPORT}-{head.place}", content),), (Have(head.place, REPORT),)
        )

    def lost(self, state: SumState, place: int) -> SumsTransition:
        """A masked vector was damaged on disk. Before the unmask list that makes the sum void."""
        if state.unmask or state.end:
            return SumsTransition(state)
        return self._void(state, f"the masked vector of place {place} was lost")

    def reports_closed(self, state: SumState, online: int, is_last_call: bool) -> SumsTransition:
        """No further report is awaited. All vectors were read again.

        Args:
            state: of the sum.
            online: those who reported and are connected now.
            is_last_call: the deadline is over; the step does not wait for more of them.
        """
        if state.unmask or state.end:
            return SumsTransition(state)
        if not state.listing or len(state.heads) < self.terms.least:
            return self._void(
                state, f"{len(state.heads)} members reported, {self.terms.least} required"
            )
        if blamed := self._bad_dealers(state):
            return self._void(state, "cells do not open", blamed)
        if online < self.terms.threshold:
            reason = (
                f"{online} of those who reported are connected, {self.terms.threshold} must answer"
            )
            return self._void(state, reason) if is_last_call else SumsTransition(state)
        rows = [row_of_head(state.heads[place]) for place in sorted(state.heads)]
        content = UnmaskList(listing=name_of_list(state.listing), rows=rows).to_bytes()
        state = replace(state, unmask=content)
        return SumsTransition(
            state, (Record(UNMASK, content),), (PublishToMembers(UNMASK, content),)
        )

    def _bad_dealers(self, state: SumState) -> tuple[int, ...]:
        """Members whose cells too many reporters could not open: their secrets might be lost."""
        most = self.terms.group.may_vanish
        complaints = dict.fromkeys(state.listed, 0)
        for head in state.heads.values():
            for place in complaints.keys() & set(head.lacking):
                complaints[place] += 1
        return tuple(place for place, count in complaints.items() if count > most)

    # -- answers -------------------------------------------------------------------------------------------------------

    def answered(self, state: SumState, content: bytes) -> SumsTransition:
        """A reporter's answer. The sum is opened as soon as enough have answered."""
        answer = Answer.from_bytes(content)
        if not state.unmask or answer.unmask != name_of_unmask(state.unmask):
            raise DecodeError("secure sum", "the answer belongs to another unmask list")
        if answer.place in state.answers or state.end:  # the threshold has answered: enough
            return SumsTransition(state, (), (Have(answer.place, ANSWER),))
        others = len(state.listed) - 1
        if answer.place not in state.reported or len(answer.keys) != KEY_BYTES * others:
            raise DecodeError("secure sum", f"place {answer.place} reported no such answer")
        if not is_answer_signed(state.signers[answer.place - 1], answer):
            raise DecodeError("secure signature", f"the answer of place {answer.place}")
        state = replace(state, answers={**state.answers, answer.place: answer})
        record = Record(f"{ANSWER}-{answer.place}", content)
        answered = SumsTransition(state, (record,), (Have(answer.place, ANSWER),))
        return self._followed(answered, self._opened_if_possible)

    def answers_closed(self, state: SumState) -> SumsTransition:
        """`unmask_s` is over: a sum that could not be opened is passed over."""
        if state.end or not state.unmask:
            return SumsTransition(state)
        reason = f"{len(state.answers)} members answered, {self.terms.threshold} must"
        if len(state.answers) >= self.terms.threshold:
            reason = "the cells of a member do not open"
        return self._ended(state, PassedOver(reason))

    def _opened_if_possible(self, state: SumState) -> SumsTransition:
        if len(state.answers) < self.terms.threshold:
            return SumsTransition(state)
        secrets: dict[int, bytes] = {}
        for place in state.listed:
            shares = self._shares_of(state, place)
            if len(shares) < self.terms.threshold:
                return SumsTransition(state)  # other answers may have the shares that are missing
            secret = secret_of(dict(list(shares.items())[: self.terms.threshold]))
            if secret is None or not self._fits(state, place, secret):
                reason = f"the cells of {self.terms.members[place - 1].agent} do not fit together"
                return self._ended(state, PassedOver(reason, (place,)))
            secrets[place] = secret
        return self._ended(state, Opened(state.reported, self._masks(state, secrets)))

    def _shares_of(self, state: SumState, dealer: int) -> dict[int, int]:
        """The shares of a member's secret that the answers open, in order of places."""
        kind = _kind_of(state, dealer)
        place_of = {place: index for index, place in enumerate(state.listed)}
        shares = {}
        for holder in sorted(state.answers):
            answer = state.answers[holder]
            if holder == dealer:
                share = share_from_bytes(answer.share)
            else:
                before = place_of[dealer] - (holder < dealer)  # the holder has no cell of its own
                start = KEY_BYTES * before
                key = answer.keys[start : start + KEY_BYTES]
                pair = state.joins[dealer].pair_for(holder)
                share = share_in_cell(
                    pair, kind, key, terms=self.name, dealer=dealer, holder=holder
                )
            if share is not None:
                shares[holder] = share
        return shares

    def _fits(self, state: SumState, place: int, secret: bytes) -> bool:
        """Whether a rebuilt secret is the one that the member has announced."""
        join = state.joins[place]
        if _kind_of(state, place) == SEED:
            return name_of_seed(self.name, place, secret) == join.seed
        return public_key(secret) == join.mask_key

    def _masks(self, state: SumState, secrets: Mapping[int, bytes]) -> tuple[Stream, ...]:
        """The opposite of the masks that are left in the sum of the reported vectors.

        Those are the masks of the reporters of their own, and the ones that reporters share with missing members.
        """
        named = name_of_list(state.listing)
        reported = state.reported
        left = [Stream(1, self_key(secrets[place], named, place)) for place in reported]
        for missing in state.listed:
            if missing in reported:
                continue
            agreed = agreement(secrets[missing])
            for place in reported:
                shared = agreed(state.joins[place].mask_key)
                key = pair_key(shared, named, place, missing)
                left.append(Stream(sign_of(place, missing), key))
        return tuple(stream.opposite for stream in left)

    # -- ends and restarts ---------------------------------------------------------------------------------------------

    def _void(self, state: SumState, reason: str, blamed: tuple[int, ...] = ()) -> SumsTransition:
        return self._ended(state, SumVoid(reason, blamed))

    def _ended(self, state: SumState, end: End) -> SumsTransition:
        record = Record(END, _END_WORDS[type(end)] + getattr(end, "reason", "").encode())
        return SumsTransition(replace(state, end=end), (record,), (end,))

    def _followed(self, first: SumsTransition, decide: Decide) -> SumsTransition:
        """A step and what follows from its state at once."""
        second = decide(first.state)
        return SumsTransition(
            second.state, first.records + second.records, first.then + second.then
        )

    def restored(self, records: Iterable[Record]) -> SumState:
        """The state of a coordinator that was killed, from the records on its disk. `resumed` opens an open sum again."""
        state = self._begun
        for record in records:
            kind, _, number = record.name.partition("-")
            match kind:
                case "join":
                    join = Join.from_bytes(record.content)
                    state = replace(state, joins={**state.joins, int(number): join})
                case "report":
                    head = ReportHead.from_bytes(record.content)
                    state = replace(state, heads={**state.heads, int(number): head})
                case "answer":
                    answer = Answer.from_bytes(record.content)
                    state = replace(state, answers={**state.answers, int(number): answer})
                case "list":
                    state = replace(state, listing=record.content)
                case "unmask":
                    state = replace(state, unmask=record.content)
                case "end":
                    state = replace(state, end=_end_of(record.content))
        return state

    def resumed(self, state: SumState) -> SumsTransition:
        """Publish what had been published, and decide what can be decided."""
        then: list[Effect] = [PublishToMembers(TERMS, state.terms)]
        if state.listing:
            then += [PublishToMembers(LIST, state.listing), *_inboxes(state)]
        if state.unmask:
            then.append(PublishToMembers(UNMASK, state.unmask))
        then += [Have(place, JOIN) for place in sorted(state.joins) if place not in state.heads]
        then += [Have(place, REPORT) for place in sorted(state.heads) if place not in state.answers]
        then += [Have(place, ANSWER) for place in sorted(state.answers)]
        first = SumsTransition(state, (), tuple(then))
        if state.end:
            return SumsTransition(state, (), (state.end,))
        decide = self._opened_if_possible if state.unmask else self._list_if_complete
        return self._followed(first, decide)


_END_WORDS: Mapping[type, bytes] = {Opened: b"o", SumVoid: b"v", PassedOver: b"p"}


def _end_of(content: bytes) -> End | None:
    """The end in a record, without blame; None for an open sum, whose masks are computed again."""
    reason = content[1:].decode(errors="replace")
    match content[:1]:
        case b"v":
            return SumVoid(reason)
        case b"p":
            return PassedOver(reason)
    return None


def _kind_of(state: SumState, dealer: int) -> CellKind:
    """Which secret of a member is rebuilt: never both."""
    return SEED if dealer in state.reported else MASK


def inbox_of(state: SumState, holder: int) -> bytes:
    """The cells for a listed member."""
    pairs = (state.joins[dealer].pair_for(holder) for dealer in state.listed if dealer != holder)
    named = name_of_list(state.listing)
    return CellInbox(listing=named, cells=b"".join(pairs)).to_bytes()


def _inboxes(state: SumState) -> list[FillInbox]:
    """The cells for each listed member."""
    return [FillInbox(holder, inbox_of(state, holder)) for holder in state.listed]
