"""What a server that lies can compute, with the colluders among the members: the closure of all that it holds.

`Server` may do anything: it chooses members, lists and unmask lists, gives different ones to different agents, drops what
it likes, and repeats. It keeps every message. Colluders give it their secrets, sign everything and answer everything.
`Server.exposed` rebuilds each secret of which it has enough shares, strikes out the masks that it can compute, and returns
the combinations of masked vectors in which no other masks are left, as combinations of the agents' updates.

Orders are real ones, another one for each member if the server likes, and a start is what the agent makes of its own. An
agent whose order has nothing to learn has no update: the server knows its vector.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any

import numpy as np

from covey.extras.secure import derivation as de
from covey.extras.secure.agent_state import AgentState, OwnSum, SendAnswer, SendJoin, SendMasked
from covey.extras.secure.derivation import secret_of, share_from_bytes
from covey.extras.secure.integers import digest_of
from covey.extras.secure.messages import (
    Answer,
    CellInbox,
    Join,
    JoinList,
    ReportHead,
    Terms,
    UnmaskList,
    UnmaskRow,
)
from covey.extras.secure.parameters import Group
from covey.extras.secure.phases import start_of_work
from covey.extras.secure.primitives import KEY_BYTES, agreement, signature
from covey.extras.secure.tests.group import LENGTH, Device, terms_of
from covey.shared.numerics.vectors import Vector
from covey.shared.wire.messages import Work
from tests.agent.orders import TASK, ref, work

FIELD = 2**31 - 1  # combinations are looked for with factors from a prime field
Row = dict[tuple[Any, ...], int]  # a combination: factor of each column that is not 0


NOTHING = {
    **TASK.for_agents(),
    "scale": 0.0,
}  # a task whose samples are all alike, so that nothing is learned


@dataclass(frozen=True)
class Asked:
    """What an agent receives for a sum."""

    work: Work
    model: Vector

    def start(self, secret: bytes) -> de.OrderStart:
        """What an agent with this secret starts from."""
        begins = slice(None)
        return start_of_work(self.work, (self.model,), 1, messages=0, begins=begins, secret=secret)


def asked(number: int = 0, **changes: Any) -> Asked:
    """An order of a round, from the same model in each."""
    return Asked(work(ref(), round_=number, **changes), np.linspace(0, 1, LENGTH, dtype=np.float32))


@dataclass(frozen=True)
class Masked:
    """A masked vector that an honest agent has sent."""

    agent: str
    vector: bytes  # digest of the integers under the masks: an agent may have sent different ones
    place: int
    listing: bytes  # D


@dataclass
class Attempt:
    """One sum that the server began."""

    server: Server
    members: list[Device]
    content: bytes
    orders: Mapping[str, Asked]  # of those that differ from `order`
    order: Asked
    joins: dict[int, Join] = field(default_factory=dict)
    heads: dict[tuple[bytes, int], ReportHead] = field(default_factory=dict)  # by list and place
    lists: dict[bytes, JoinList] = field(default_factory=dict)
    unmasks: dict[bytes, UnmaskList] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)
    secrets: dict[int, OwnSum] = field(default_factory=dict)  # of colluders

    @property
    def terms(self) -> Terms:
        return Terms.from_bytes(self.content)

    @property
    def name(self) -> bytes:
        return de.name_of_terms(self.content)

    def honest(self) -> list[int]:
        """The places of honest members."""
        return [place for place in self.places() if not self.colludes(place)]

    def places(self) -> range:
        return range(1, len(self.members) + 1)

    def colludes(self, place: int) -> bool:
        return self.members[place - 1].name in self.server.colluders

    def begun(self, member: Device) -> de.OrderStart:
        """What a member starts from, by its own order."""
        order = self.orders.get(member.name, self.order)
        return order.start(member.machine.identity.secret)

    def gather_joins(self, places: Iterable[int] | None = None) -> None:
        for place in places or self.places():
            member = self.members[place - 1]
            if self.colludes(place):
                member.state = AgentState(boxes=member.state.boxes)
            sent = member.join(self.content, self.begun(member))
            for effect in sent:
                if isinstance(effect, SendJoin):
                    self.joins[place] = Join.from_bytes(effect.content)
            if self.colludes(place) and member.state.sum is not None:
                self.secrets[place] = member.state.sum

    def list_of(self, places: Iterable[int]) -> bytes:
        """A list of these members, as far as they joined."""
        rows = [
            de.row_of_join(self.joins[place]) for place in sorted(set(places) & set(self.joins))
        ]
        content = JoinList(terms=self.name, rows=rows).to_bytes()
        self.lists[content] = JoinList.from_bytes(content)
        return content

    def gather_reports(self, listing: bytes, places: Iterable[int] | None = None) -> None:
        """Give a list to honest members, who train and report if they accept it."""
        listed = [row.place for row in self.lists[listing].rows]
        for place in places or listed:
            if self.colludes(place):
                continue
            member = self.members[place - 1]
            cells = b"".join(
                self.joins[dealer].pair_for(place) for dealer in listed if dealer != place
            )
            inbox = CellInbox(listing=de.name_of_list(listing), cells=cells).to_bytes()
            sent = member.train(
                self.begun(member)._replace(digest=self.terms.start), self.terms.scale
            ) + member.take_list(listing, inbox)
            self.capture(member, place, sent)

    def capture(self, member: Device, place: int, sent: Iterable[object]) -> None:
        for effect in sent:
            if isinstance(effect, SendMasked):
                head = ReportHead.from_bytes(effect.content)
                self.heads[head.listing, place] = head
                vector = digest_of(member.vectors[self.terms.start])
                masked = Masked(member.name, vector, place, head.listing)
                if masked not in self.server.masked:
                    self.server.masked.append(masked)
            if isinstance(effect, SendAnswer):
                answer = Answer.from_bytes(effect.content)
                if answer not in self.answers:
                    self.answers.append(answer)

    def unmask_of(self, listing: bytes, places: Iterable[int]) -> bytes:
        """An unmask list with the reports of these members: those of colluders are made up."""
        named = de.name_of_list(listing)
        listed = {row.place for row in self.lists[listing].rows}
        rows = []
        for place in sorted(set(places) & listed):
            if self.colludes(place):
                rows.append(self._made_up(named, place))
            elif (named, place) in self.heads:
                rows.append(de.row_of_head(self.heads[named, place]))
        content = UnmaskList(listing=named, rows=rows).to_bytes()
        self.unmasks[content] = UnmaskList.from_bytes(content)
        return content

    def _made_up(self, named: bytes, place: int) -> UnmaskRow:
        secret = self.members[place - 1].machine.identity.secret
        signed = de.signed_of_unmask_row(self.name, named, place)
        return UnmaskRow(place=place, signature=signature(secret, signed))

    def gather_answers(self, unmask: bytes, places: Iterable[int] | None = None) -> None:
        """Ask honest members, by default those on the list."""
        reported = [row.place for row in self.unmasks[unmask].rows]
        for place in places or reported:
            if not self.colludes(place):
                member = self.members[place - 1]
                self.capture(member, place, member.unmask(unmask))

    # -- the closure ---------------------------------------------------------------------------------------------------

    def known(self) -> dict[tuple[de.CellKind, int], bytes]:
        """The seeds and mask secrets that the server has or can rebuild, by kind and dealer."""
        shares: dict[tuple[de.CellKind, int], dict[int, int]] = {}
        for dealer, holder, kind, key in self._cell_keys():
            pair = self.joins[dealer].pair_for(holder)
            share = de.share_in_cell(pair, kind, key, terms=self.name, dealer=dealer, holder=holder)
            if share is not None:
                shares.setdefault((kind, dealer), {})[holder] = share
        for answer in self.answers:
            share = share_from_bytes(answer.share)
            if share is not None:
                kind = de.SEED if answer.place in self._reported(answer) else de.MASK
                shares.setdefault((kind, answer.place), {})[answer.place] = share
        secrets: dict[tuple[de.CellKind, int], bytes] = {}
        for what, held in shares.items():
            enough = dict(list(held.items())[: self.terms.threshold])
            secret = secret_of(enough)
            if len(enough) == self.terms.threshold and secret is not None:
                secrets[what] = secret
        for place, own in self.secrets.items():
            secrets[de.SEED, place] = own.seed
            secrets[de.MASK, place] = own.mask_secret
        return secrets

    def _cell_keys(self) -> Iterable[tuple[int, int, de.CellKind, bytes]]:
        """Dealer, holder, kind and key of each cell that the server can open."""
        for holder, own in self.secrets.items():
            agreed = agreement(own.box_secret)
            for dealer in self.joins:
                if dealer != holder:
                    shared = agreed(self.terms.members[dealer - 1].box.key)
                    for kind in (de.SEED, de.MASK):
                        yield (
                            dealer,
                            holder,
                            kind,
                            de.cell_key(shared, self.name, kind, dealer, holder),
                        )
        for answer in self.answers:
            unmask = self._unmask(answer)
            listed = next(
                made
                for content, made in self.lists.items()
                if de.name_of_list(content) == unmask.listing
            )
            reported = self._reported(answer)
            others = [row.place for row in listed.rows if row.place != answer.place]
            for index, dealer in enumerate(others):
                kind = de.SEED if dealer in reported else de.MASK
                key = answer.keys[index * KEY_BYTES : (index + 1) * KEY_BYTES]
                yield dealer, answer.place, kind, key

    def _unmask(self, answer: Answer) -> UnmaskList:
        """The unmask list of an answer."""
        return next(
            made
            for content, made in self.unmasks.items()
            if de.name_of_unmask(content) == answer.unmask
        )

    def _reported(self, answer: Answer) -> set[int]:
        return {row.place for row in self._unmask(answer).rows}

    def unknown_masks(self, masked: Masked) -> Row:
        """The masks of a vector that the server cannot compute, with their signs."""
        secrets = self.known()
        listed = next(
            made
            for content, made in self.lists.items()
            if de.name_of_list(content) == masked.listing
        )
        left: Row = {}
        if (de.SEED, masked.place) not in secrets:
            left["self", masked.listing, masked.place] = 1
        for row in listed.rows:
            if row.place != masked.place and not {
                (de.MASK, row.place),
                (de.MASK, masked.place),
            } & set(secrets):
                low, high = sorted((row.place, masked.place))
                left["pair", masked.listing, low, high] = de.sign_of(masked.place, row.place)
        return left


@dataclass
class Server:
    """Everything that is not an honest agent."""

    colluders: set[str] = field(default_factory=set)
    attempts: list[Attempt] = field(default_factory=list)
    masked: list[Masked] = field(default_factory=list)

    def offer(
        self,
        members: Sequence[Device],
        group: Group | None = None,
        order: Asked | None = None,
        orders: Mapping[str, Asked] | None = None,
        **fields: object,
    ) -> Attempt:
        """Terms for these members, in order of id, from the order of all but those in `orders`."""
        ordered = sorted(members, key=lambda member: member.name)
        order = order or asked()
        begun = order.start(b"")
        terms = terms_of(
            ordered, group=group, begun=begun, attempt=len(self.attempts) + 1, **fields
        )
        attempt = Attempt(self, list(ordered), terms.to_bytes(), orders or {}, order)
        self.attempts.append(attempt)
        attempt.gather_joins()
        return attempt

    def exposed(self) -> list[Row]:
        """Independent combinations of updates that the server can compute, by agent and vector."""
        rows = []
        for masked in self.masked:
            attempt = next(
                attempt
                for attempt in self.attempts
                if any(de.name_of_list(content) == masked.listing for content in attempt.lists)
            )
            order = attempt.orders.get(masked.agent, attempt.order)
            learned = order.work.task != NOTHING
            update = {(masked.agent, masked.vector): 1} if learned else {}
            rows.append((attempt.unknown_masks(masked), update))
        return _without(rows)

    def fewest(self) -> int:
        """The fewest agents in a combination that the server can compute; 0 if there is none."""
        basis = self.exposed()
        agents = sorted({column[0] for row in basis for column in row})
        for count in range(1, len(agents) + 1):
            for few in combinations(agents, count):
                outside = [
                    {column: factor for column, factor in row.items() if column[0] not in few}
                    for row in basis
                ]
                if rank(outside) < len(basis):
                    return count
        return 0

    def promise_holds(self, honest: int) -> bool:
        """Each combination has at least `honest` agents, and that many of them with one common factor."""
        basis = self.exposed()
        if 0 < self.fewest() < honest:
            return False
        for factors in product((-1, 0, 1), repeat=len(basis)):
            total: Row = {}
            for factor, row in zip(factors, basis, strict=True):
                total = _plus(total, row, factor)
            counts: dict[int, int] = {}
            for factor in total.values():
                counts[factor] = counts.get(factor, 0) + 1
            if total and max(counts.values()) < honest:
                return False
        return True


def _plus(row: Row, other: Row, factor: int) -> Row:
    total = dict(row)
    for column, value in other.items():
        total[column] = (total.get(column, 0) + factor * value) % FIELD
    return {column: value for column, value in total.items() if value}


def _without(rows: list[tuple[Row, Row]]) -> list[Row]:
    """Combinations of the rows in which nothing of the first halves is left: their second halves, independent."""
    rows = list(rows)
    while found := next(((left, right) for left, right in rows if left), None):
        rows.remove(found)
        left, right = found
        column, factor = next(iter(left.items()))
        inverse = pow(factor, -1, FIELD)
        reduced = []
        for other_left, other_right in rows:
            times = -other_left.get(column, 0) * inverse % FIELD
            reduced.append((_plus(other_left, left, times), _plus(other_right, right, times)))
        rows = reduced
    return _independent([right for _, right in rows])


def _independent(rows: Iterable[Row]) -> list[Row]:
    basis: list[Row] = []
    for row in rows:
        if rank([*basis, row]) > len(basis):
            basis.append(row)
    return basis


def rank(rows: Iterable[Row]) -> int:
    rows, count = [row for row in rows if row], 0
    while rows:
        pivot = rows.pop()
        column, factor = next(iter(pivot.items()))
        inverse, count = pow(factor, -1, FIELD), count + 1
        reduced = (_plus(row, pivot, -row.get(column, 0) * inverse % FIELD) for row in rows)
        rows = [row for row in reduced if row]
    return count
