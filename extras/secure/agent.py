"""An agent's half of secure sums: what it joins, reports and answers, and what it refuses.

`SecureAgent` decides, and knows neither clock nor disk: state, message, time and random bytes go in, and a `AgentTransition` comes out.
The caller syncs the state of a step to disk before it carries out the effects, and after a full disk it carries out none and
keeps the state that it had. A program that was killed carries out `resumed` of the state on its disk: the same bytes again.

The six rules, each of which keeps a sum from being compared with another one (docs/secure-sums.md):

1. Join under terms that the owner's policy allows, for the start of one's own order, unless the start is locked.
2. Report for one list per terms, if it has the own row unchanged.
3. Answer one unmask list per sum, if it has the own report. The start is locked from then on, in all runs, and its models for
   sums with other members: they are not joined.
4. One vector per start.
5. One masked vector per terms. A lost one is a failure; the work is not done again.
6. One sum at a time: everything of the sum before is erased.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from covey.extras.secure.agent_state import (
    KEPT_BOXES,
    AgentState,
    AgentTransition,
    Effect,
    EraseVectors,
    MakeMasked,
    OwnBox,
    OwnSum,
    OwnVector,
    RefusalError,
    Refuse,
    SecureIdentity,
    SendAnswer,
    SendJoin,
    SendMasked,
    ShowBox,
)
from covey.extras.secure.derivation import (
    MASK,
    SEED,
    OrderStart,
    Stream,
    about_cell,
    cell_key,
    commitment_of,
    fault_of_list,
    fault_of_unmask,
    name_of_list,
    name_of_scale,
    name_of_seed,
    name_of_terms,
    name_of_unmask,
    pair_key,
    row_of_head,
    row_of_join,
    self_key,
    share_in_cell,
    share_to_bytes,
    sign_of,
    signed_of_answer,
    signed_of_box,
    signed_of_expelled,
    signed_of_head,
    signed_of_join,
    signed_of_unmask_row,
    signers_of,
    split,
)
from covey.extras.secure.locks import SUMMED_BEFORE, Lock
from covey.extras.secure.memberships import Memberships, name_of_agent
from covey.extras.secure.messages import (
    PAIR_BYTES,
    Answer,
    Box,
    CellInbox,
    Entry,
    Expelled,
    Join,
    JoinList,
    ReportHead,
    Terms,
    UnmaskList,
)
from covey.extras.secure.owners_policy import OwnersPolicy
from covey.extras.secure.parameters import Scale
from covey.extras.secure.primitives import (
    KEY_BYTES,
    Agreement,
    BadKeyError,
    Token,
    agreement,
    hashed,
    is_signed,
    public_key,
    sealed,
    signature,
)
from covey.shared.errors import DecodeError

NAME_BYTES = 16  # of the name of terms that were left

SHOWN_BEFORE = "shown before"  # the reason for a signature, a vote or a choice too many
FIRST_CHOICES = 4  # before any sum
SHOWN = struct.Struct("<16s16s")  # of what, in which federation; the start of the order
ANOTHER_LIST = "another list"
ANOTHER_UNMASK = "another unmask list"
NOT_STEADY = "not steady"


class SecureAgent:
    """The decisions of one agent. It has no state of its own: each method maps a state to a `AgentTransition`."""

    def __init__(self, identity: SecureIdentity, policy: OwnersPolicy) -> None:
        self.identity = identity
        self.policy = policy
        self.entry = Entry.from_bytes(identity.entry)

    def new_box(self, state: AgentState, token: Token) -> AgentTransition:
        """Show a box for the next sum."""
        secret, count = token(KEY_BYTES), state.newest_box + 1
        key = public_key(secret)
        signed = self._signed(signed_of_box(self.entry.federation, self.entry.agent, count, key))
        box = Box(number=count, key=key, signature=signed)
        boxes = [*state.boxes, OwnBox(box=box, secret=secret)][-KEPT_BOXES:]
        return AgentTransition(state.changed(boxes=boxes, newest_box=count), (ShowBox(box),))

    def new_expelled(self, state: AgentState, content: bytes) -> AgentTransition:
        """A list of expelled serials: the newest one that the fleet key signed counts."""
        try:
            expelled = Expelled.from_bytes(content)
        except DecodeError as error:
            return AgentTransition(state, (Refuse("expelled", str(error)),), syncs=False)
        signed = signed_of_expelled(expelled)
        if expelled.federation != self.entry.federation or not is_signed(
            self.identity.fleet, expelled.signature, signed
        ):
            refusal = Refuse("expelled", "the list is not signed by the fleet key")
            return AgentTransition(state, (refusal,), syncs=False)
        if state.expelled and expelled.version <= Expelled.from_bytes(state.expelled).version:
            return AgentTransition(state, (), syncs=False)
        return AgentTransition(state.changed(expelled=content))

    def offered(
        self, state: AgentState, content: bytes, start: OrderStart, now: float, token: Token
    ) -> AgentTransition:
        """Terms of a sum. The agent joins, or refuses.

        Args:
            state: of the agent.
            content: the terms.
            start: of the agent's own order.
            now: Unix time in seconds.
            token: random bytes.
        """
        if state.sum is not None and state.sum.terms == content:
            return self.resumed(state)
        try:
            terms, signers = self._acceptable(state, content, start, now)
            place, box = self._own_place(state, terms)
            own = self._joined(
                content, terms, place, box=box, signers=signers, start=start, now=now, token=token
            )
        except RefusalError as refusal:
            return AgentTransition(state, (refusal.effect,), syncs=False)
        except DecodeError as error:
            return AgentTransition(state, (Refuse(error.reason, error.detail),), syncs=False)
        unused = [kept for kept in state.boxes if kept.box.number > box.box.number]
        after = self._without_sum(state).changed(sum=own, boxes=unused)
        return AgentTransition(after, (SendJoin(own.join),))

    def made(self, state: AgentState, start: bytes, digest: bytes, scale: Scale) -> AgentTransition:
        """The vector of a start is on disk, in this scale. Only the first one counts."""
        known = state.vector(start)
        if known is not None and known != digest:
            return self._failed(state, "another vector", "a vector was made for this start before")
        if known is None:
            state = state.changed(
                vectors=[
                    *state.vectors,
                    OwnVector(start=start, digest=digest, scale=name_of_scale(scale)),
                ]
            )
        return AgentTransition(state, self._masking(state))

    def listed(self, state: AgentState, content: bytes, inbox: bytes) -> AgentTransition:
        """The list of members, and the cells for this agent."""
        own = state.sum
        if own is None:
            return AgentTransition(state, (Refuse("no sum"),), syncs=False)
        if own.listing:
            return self._listed_again(state, own, content)
        try:
            after = self._with_list(own, content, inbox)
        except RefusalError as refusal:
            return AgentTransition(state, (refusal.effect,), syncs=False)
        except DecodeError as error:
            return AgentTransition(state, (Refuse(error.reason, error.detail),), syncs=False)
        state = state.changed(sum=after)
        return AgentTransition(state, self._masking(state))

    def masked(self, state: AgentState, terms: bytes, digest: bytes) -> AgentTransition:
        """The masked vector for these terms is on disk: the report may be sent."""
        own = state.sum
        if own is None or own.name != terms or not own.listing:
            return AgentTransition(state, (Refuse("no sum"),), syncs=False)
        if own.head:
            if ReportHead.from_bytes(own.head).vector != digest:
                return self._failed(state, "another masked vector", "one was reported before")
            return self.resumed(state)
        named = name_of_list(own.listing)
        head = ReportHead(
            terms=own.name,
            listing=named,
            place=own.place,
            vector=digest,
            lacking=own.lacking,
            row=self._signed(signed_of_unmask_row(own.name, named, own.place)),
            signature=self._signed(signed_of_head(own.name, named, own.place, digest, own.lacking)),
        ).to_bytes()
        spent = state.spent + _rho(Terms.from_bytes(own.terms))
        after = own.model_copy(update={"head": head, "seed": b"", "mask_secret": b""})
        return AgentTransition(state.changed(sum=after, spent=spent), (SendMasked(head),))

    def lost(self, state: AgentState) -> AgentTransition:
        """The vector of the start, or the masked one, is damaged or gone: the agent fails and makes no other."""
        return self._failed(state, "lost vector", "the file of a vector is damaged or gone")

    def unmask(self, state: AgentState, content: bytes) -> AgentTransition:
        """The list of those whose reports are in the sum."""
        own = state.sum
        if own is None or not own.head:
            return AgentTransition(state, (Refuse("no sum"),), syncs=False)
        if own.answer:
            if own.unmask == name_of_unmask(content):
                return self.resumed(state)
            return AgentTransition(state, (Refuse(ANOTHER_UNMASK),), syncs=False)
        try:
            answer = self._answer(state, own, content)
            memberships = self._steady(state, own, content)
        except RefusalError as refusal:
            return AgentTransition(state, (refusal.effect,), syncs=False)
        except DecodeError as error:
            return AgentTransition(state, (Refuse(error.reason, error.detail),), syncs=False)
        after = own.model_copy(
            update={
                "answer": answer,
                "unmask": name_of_unmask(content),
                "seed_keys": b"",
                "mask_keys": b"",
                "own_share": b"",
            }
        )
        locked = self._locked(state, own, content).changed(
            sum=after, vectors=[], memberships=memberships
        )
        return AgentTransition(locked, (*_erased(state), SendAnswer(answer)))

    def closed(self, state: AgentState) -> AgentTransition:
        """The round is over, the run was left, or this agent was expelled: only locks and account are left."""
        if state.sum is None and not state.vectors:
            return AgentTransition(state, (), syncs=False)
        after = self._without_sum(state).changed(vectors=[])
        return AgentTransition(after, _erased(state))

    def tick(self, state: AgentState, now: float) -> AgentTransition:
        """Forget a sum whose time has run out."""
        own = state.sum
        if own is None or now < own.joined_at + Terms.from_bytes(own.terms).seconds:
            return AgentTransition(state, (), syncs=False)
        return self.closed(state)

    def shows(self, state: AgentState, what: str, start: bytes) -> AgentTransition:
        """Something of this agent alone is shown for the order with this start, once it has been made.

        A signature and a vote are shown once in a federation, whatever the run, and choices up to twice as often as sums were
        answered: a coordinator chooses the models that they compare. This very order gets what it got before.
        """
        kind, order = (
            hashed("shown", self.entry.federation.encode(), what.encode())[:16],
            start[:16],
        )
        before = [of for known, of in SHOWN.iter_unpack(state.shown) if known == kind]
        if order in before:
            return AgentTransition(state, (), syncs=False)
        sums = len({lock.start for lock in Lock.all_in(state.locks)})
        most = FIRST_CHOICES + 2 * sums if what == "choice" else 1
        if len(before) >= most:
            why = f"this device shows {most} in this federation, a {what} of its own"
            return AgentTransition(state, (Refuse(SHOWN_BEFORE, why),), syncs=False)
        return AgentTransition(state.changed(shown=state.shown + SHOWN.pack(kind, order)))

    def resumed(self, state: AgentState) -> AgentTransition:
        """What was last to be sent, after a restart or on demand: the same bytes."""
        own = state.sum
        if own is None:
            return AgentTransition(state, (), syncs=False)
        if own.answer:
            return AgentTransition(state, (SendAnswer(own.answer),), syncs=False)
        if own.head:
            return AgentTransition(state, (SendMasked(own.head),), syncs=False)
        return AgentTransition(state, (SendJoin(own.join), *self._masking(state)), syncs=False)

    # -- rule 1 --------------------------------------------------------------------------------------------------------

    def _acceptable(
        self, state: AgentState, content: bytes, start: OrderStart, now: float
    ) -> tuple[Terms, list[bytes]]:
        """The terms, and the signing keys of all members. Raises RefusalError, or DecodeError from entries."""
        terms = Terms.from_bytes(content)
        if terms.federation != self.entry.federation:
            raise RefusalError("another federation")
        if terms.fault:
            raise RefusalError("unsafe terms", terms.fault)
        if refusal := self.policy.refusal(terms, self.entry.agent):
            raise RefusalError("owner", refusal)
        most = self.policy.most_spent
        if most is not None and state.spent + _rho(terms) > most:
            raise RefusalError("owner", "the privacy that the owner allows is spent")
        if _has_left(state, name_of_terms(content)):
            raise RefusalError("left before")
        self._compare_start(terms, start)
        self._check_lock(state, start.digest)
        self._check_models(state, terms, start)
        self._check_scale(state, terms)
        serials = Expelled.from_bytes(state.expelled).serials if state.expelled else []
        return terms, signers_of(terms, serials, self.identity.fleet, now)

    def _compare_start(self, terms: Terms, start: OrderStart) -> None:
        """Members with other models would share no masks, and no lock."""
        if terms.start != start.digest:
            raise RefusalError("another start", "the terms do not belong to this agent's order")

    def _check_lock(self, state: AgentState, start: bytes) -> None:
        if any(lock.is_of(start) for lock in Lock.all_in(state.locks)):
            raise RefusalError(SUMMED_BEFORE)

    def _check_models(self, state: AgentState, terms: Terms, start: OrderStart) -> None:
        """Who has answered for these models joins the same members alone, all of whom must report. So those who answered the
        sum with the oldest list are in no other one, even if others answer for that."""
        members = range(1, len(terms.members) + 1) if terms.least == len(terms.members) else ()
        for lock in Lock.all_of(terms, start.order, start.content, members):
            self._check_content(state, lock)

    def _check_content(self, state: AgentState, lock: Lock) -> None:
        if any(before.forbids(lock) for before in Lock.all_in(state.locks)):
            raise RefusalError(SUMMED_BEFORE, "from the same models, with other members")

    def _check_scale(self, state: AgentState, terms: Terms) -> None:
        """The vector of a start is used again in every attempt: with another scale it would count wrongly."""
        scale = name_of_scale(terms.scale)
        if any(own.start == terms.start and own.scale != scale for own in state.vectors):
            raise RefusalError("another scale", "the vector of this start was made in another one")

    def _own_place(self, state: AgentState, terms: Terms) -> tuple[int, OwnBox]:
        for place, member in enumerate(terms.members, start=1):
            if member.entry(terms.federation) == self.entry:
                for own in state.boxes:
                    if own.box == member.box:
                        return place, own
                raise RefusalError("unknown box", f"number {member.box.number}")
        raise RefusalError("no member", "the terms do not name this agent's entry")

    def _joined(
        self,
        content: bytes,
        terms: Terms,
        place: int,
        *,
        box: OwnBox,
        signers: list[bytes],
        start: OrderStart,
        now: float,
        token: Token,
    ) -> OwnSum:
        """New secrets, and the join that deals them."""
        named = name_of_terms(content)
        seed, mask_secret = token(32), token(32)
        places = range(1, len(terms.members) + 1)
        shares = {
            SEED: self._dealt(seed, terms.threshold, places, token),
            MASK: self._dealt(mask_secret, terms.threshold, places, token),
        }
        cells, agreed = b"", agreement(box.secret)
        for other, member in enumerate(terms.members, start=1):
            if other == place:
                continue
            shared = shared_secret(agreed, member.box.key)
            about = about_cell(named, place, other)
            for kind in (SEED, MASK):
                key = cell_key(shared, named, kind, place, other)
                cells += sealed(key, share_to_bytes(shares[kind][other]), about)
        join = Join(
            terms=named,
            place=place,
            mask_key=public_key(mask_secret),
            seed=name_of_seed(named, place, seed),
            cells=cells,
            signature=bytes(64),
        )
        message = signed_of_join(named, place, join.mask_key, commitment_of(join))
        signed = join.model_copy(update={"signature": self._signed(message)})
        return OwnSum(
            terms=content,
            content=start.content,
            order=start.order,
            joined_at=now,
            place=place,
            signers=signers,
            join=signed.to_bytes(),
            seed=seed,
            mask_secret=mask_secret,
            box_secret=box.secret,
            own_share=share_to_bytes(shares[SEED][place]),
        )

    def _dealt(
        self, secret: bytes, threshold: int, places: Sequence[int], token: Token
    ) -> dict[int, int]:
        return split(secret, threshold, places, token)

    # -- rule 2 --------------------------------------------------------------------------------------------------------

    def _listed_again(self, state: AgentState, own: OwnSum, content: bytes) -> AgentTransition:
        if own.listing == content:
            return self.resumed(state)
        return AgentTransition(state, (Refuse(ANOTHER_LIST),), syncs=False)

    def _with_list(self, own: OwnSum, content: bytes, inbox: bytes) -> OwnSum:
        """The sum with its list and the keys of its cells. Raises RefusalError or DecodeError."""
        joined = JoinList.from_bytes(content)
        terms = Terms.from_bytes(own.terms)
        if joined.terms != own.name:
            raise RefusalError("list", "it belongs to other terms")
        if row_of_join(Join.from_bytes(own.join)) not in joined.rows:
            raise RefusalError("not listed", "the list does not have this agent's join")
        if fault := fault_of_list(joined, own.signers, terms.least):
            raise RefusalError("list", fault)
        self._check_members(terms, [row.place for row in joined.rows])
        cells = CellInbox.from_bytes(inbox)
        others = [row for row in joined.rows if row.place != own.place]
        if cells.listing != name_of_list(content) or len(cells.cells) != len(others) * PAIR_BYTES:
            raise RefusalError("inbox", "its cells do not belong to the list")
        with_boxes, with_mask_keys = agreement(own.box_secret), agreement(own.mask_secret)
        seed_keys, mask_keys, lacking = b"", b"", []
        for index, row in enumerate(others):
            shared = shared_secret(with_boxes, terms.members[row.place - 1].box.key)
            shared_secret(with_mask_keys, row.mask_key)
            pair = cells.cells[index * PAIR_BYTES : (index + 1) * PAIR_BYTES]
            keys = {
                kind: cell_key(shared, own.name, kind, row.place, own.place)
                for kind in (SEED, MASK)
            }
            shares = [
                share_in_cell(pair, kind, key, terms=own.name, dealer=row.place, holder=own.place)
                for kind, key in keys.items()
            ]
            if None in shares:
                lacking.append(row.place)
            seed_keys += keys[SEED]
            mask_keys += keys[MASK]
        return own.model_copy(
            update={
                "listing": content,
                "seed_keys": seed_keys,
                "mask_keys": mask_keys,
                "lacking": lacking,
                "box_secret": b"",
            }
        )

    def _masking(self, state: AgentState) -> tuple[Effect, ...]:
        """Make the masked vector, once the list and the vector are there."""
        own = state.sum
        if own is None or not own.listing or own.head:
            return ()
        start = Terms.from_bytes(own.terms).start
        if state.vector(start) is None:
            return ()
        return (MakeMasked(own.name, start, _streams(own)),)

    # -- rule 3 --------------------------------------------------------------------------------------------------------

    def _answer(self, state: AgentState, own: OwnSum, content: bytes) -> bytes:
        """The answer to an unmask list. Raises RefusalError or DecodeError."""
        unmask = UnmaskList.from_bytes(content)
        terms = Terms.from_bytes(own.terms)
        if unmask.listing != name_of_list(own.listing):
            raise RefusalError("unmask list", "it belongs to another list")
        self._check_own_report(own, unmask)
        self._check_lock(state, terms.start)
        listed = [row.place for row in JoinList.from_bytes(own.listing).rows]
        if fault := fault_of_unmask(unmask, own.name, listed, own.signers, terms.least):
            raise RefusalError("unmask list", fault)
        reported = {row.place for row in unmask.rows}
        self._check_members(terms, reported)
        keys = b""
        for index, place in enumerate(place for place in listed if place != own.place):
            source = own.seed_keys if place in reported else own.mask_keys
            keys += source[index * KEY_BYTES : (index + 1) * KEY_BYTES]
        named = name_of_unmask(content)
        message = signed_of_answer(named, own.place, keys, own.own_share)
        return Answer(
            unmask=named,
            place=own.place,
            keys=keys,
            share=own.own_share,
            signature=self._signed(message),
        ).to_bytes()

    def _check_members(self, terms: Terms, places: Iterable[int]) -> None:
        """What the owner demands of members holds for those who take part: terms name whom the coordinator may leave out."""
        agents = (terms.members[place - 1].agent for place in places)
        if refusal := self.policy.refusal_of_members(agents, self.entry.agent):
            raise RefusalError("owner", refusal)

    def _steady(self, state: AgentState, own: OwnSum, content: bytes) -> Memberships:
        """The sums that were answered, with this one. Raises RefusalError if it is too near to one of them.

        Up to c of those who are in one sum alone may work for the coordinator: t of them have t - c honest ones.
        """
        if not self.policy.steady:
            return state.memberships
        terms = Terms.from_bytes(own.terms)
        members = [terms.members[row.place - 1] for row in UnmaskList.from_bytes(content).rows]
        names = [name_of_agent(terms.federation, member.agent) for member in members]
        if fault := state.memberships.fault(names, terms.threshold):
            raise RefusalError(NOT_STEADY, f"{fault} (secure_steady)")
        return state.memberships.with_sum(names, terms.threshold)

    def _check_own_report(self, own: OwnSum, unmask: UnmaskList) -> None:
        """Only those whose reports are in a sum answer for it."""
        if row_of_head(ReportHead.from_bytes(own.head)) not in unmask.rows:
            raise RefusalError("not in the sum", "the list does not have this agent's report")

    def _locked(self, state: AgentState, own: OwnSum, content: bytes) -> AgentState:
        reported = {row.place for row in UnmaskList.from_bytes(content).rows}
        locks = Lock.all_of(Terms.from_bytes(own.terms), own.order, own.content, reported)
        return state.changed(locks=state.locks + b"".join(lock.packed() for lock in locks))

    # -- rules 5 and 6 -------------------------------------------------------------------------------------------------

    def _failed(self, state: AgentState, reason: str, detail: str) -> AgentTransition:
        """The sum is left for good: no other vector is sent for its terms."""
        return AgentTransition(self._without_sum(state), (Refuse(reason, detail),))

    def _without_sum(self, state: AgentState) -> AgentState:
        """Everything of the present sum is erased, apart from the name of its terms."""
        if state.sum is None:
            return state
        return state.changed(sum=None, left=state.left + state.sum.name[:NAME_BYTES])

    def _signed(self, message: bytes) -> bytes:
        return signature(self.identity.secret, message)


def shared_secret(agreed: Agreement, public: bytes) -> bytes:
    """The secret that two keys share. Raises RefusalError for a key of small order."""
    try:
        return agreed(public)
    except BadKeyError:
        raise RefusalError("bad key", "a key of another member shares no secret") from None


def _streams(own: OwnSum) -> tuple[Stream, ...]:
    """The masks of a report: one of its own, and one with each other listed member."""
    named, agreed = name_of_list(own.listing), agreement(own.mask_secret)
    streams = [Stream(1, self_key(own.seed, named, own.place))]
    for row in JoinList.from_bytes(own.listing).rows:
        if row.place != own.place:
            key = pair_key(agreed(row.mask_key), named, own.place, row.place)
            streams.append(Stream(sign_of(own.place, row.place), key))
    return tuple(streams)


def _has_left(state: AgentState, terms: bytes) -> bool:
    spans = range(0, len(state.left), NAME_BYTES)
    return any(state.left[at : at + NAME_BYTES] == terms[:NAME_BYTES] for at in spans)


def _erased(state: AgentState) -> tuple[EraseVectors, ...]:
    """Without vectors there is nothing to erase: the work that lies there may be that of the next start."""
    starts = tuple(own.start for own in state.vectors)
    return (EraseVectors(starts),) if starts else ()


def _rho(terms: Terms) -> float:
    """What a report under these terms spends: rho of the noise that a sum has at least."""
    return 1.0 / (2.0 * terms.multiplier**2) if terms.multiplier else 0.0
