"""A group whose members hold real keys, and an honest coordinator for it: everything in memory, from one seed."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from covey.extras.secure import agent as at
from covey.extras.secure import coordinator as co
from covey.extras.secure.agent_state import (
    AgentState,
    AgentTransition,
    EraseVectors,
    MakeMasked,
    Refuse,
    SecureIdentity,
    SendAnswer,
    SendJoin,
    SendMasked,
    ShowBox,
)
from covey.extras.secure.derivation import OrderStart, signed_of_entry, signed_of_expelled, start_of
from covey.extras.secure.integers import Integers, add_masks, digest_of, mean_of, to_integers
from covey.extras.secure.messages import Box, Entry, Expelled, Member, ReportHead, Terms
from covey.extras.secure.owners_policy import OwnersPolicy
from covey.extras.secure.parameters import Group, Scale, group_of, plain_scale
from covey.extras.secure.primitives import Token, hashed, signature, signing_key

FLEET_SECRET = bytes(range(32))
FLEET = signing_key(FLEET_SECRET)
FEDERATION = "farm"
LENGTH = 6  # values of an update
NOW = 1_000_000.0
DAY = 86_400


def token_of(seed: str) -> Token:
    """Bytes that repeat with the seed, and differ at each call."""
    calls = 0

    def token(count: int) -> bytes:
        nonlocal calls
        calls += 1
        return hashlib.shake_256(f"{seed}/{calls}".encode()).digest(count)

    return token


def entry_of(agent: str, serial: int, key: bytes, secret: bytes = FLEET_SECRET) -> Entry:
    """An entry, signed with the fleet key unless another secret is given."""
    entry = Entry(
        federation=FEDERATION,
        agent=agent,
        serial=serial,
        key=key,
        since=int(NOW) - DAY,
        until=int(NOW) + 90 * DAY,
        signature=bytes(64),
    )
    return entry.model_copy(update={"signature": signature(secret, signed_of_entry(entry))})


def expelled_of(version: int, serials: Iterable[int], secret: bytes = FLEET_SECRET) -> bytes:
    expelled = Expelled(
        federation=FEDERATION, version=version, serials=list(serials), signature=bytes(64)
    )
    signed = signature(secret, signed_of_expelled(expelled))
    return expelled.model_copy(update={"signature": signed}).to_bytes()


def start(name: str = "round 1", models: tuple[bytes, ...] = (b"model",)) -> OrderStart:
    return start_of(name.encode(), models, hashed("models", *models), bytes(16))


Tamper = Callable[[at.SecureAgent], None]


@dataclass
class Device:
    """An agent with its disk: vectors by start, masked vectors by terms, the synced state."""

    name: str
    machine: at.SecureAgent
    token: Token
    update: np.ndarray
    examples: int = 10
    state: AgentState = field(default_factory=AgentState)
    vectors: dict[bytes, Integers] = field(default_factory=dict)
    masked: dict[bytes, Integers] = field(default_factory=dict)
    disk_is_full: bool = False
    box: Box | None = None
    refusals: list[Refuse] = field(default_factory=list)
    sent: list[object] = field(default_factory=list)

    @property
    def member(self) -> Member:
        assert self.box is not None
        return Member.of(self.machine.entry, self.box)

    def take(self, step: AgentTransition) -> list[object]:
        """Sync, then carry out the effects. Returns what is sent: joins, reports and answers."""
        if step.syncs and self.disk_is_full:
            return []
        if step.syncs:
            # what lies on disk is what a restart has
            self.state = AgentState.from_bytes(step.state.to_bytes())
        sent: list[object] = []
        for effect in step.then:
            match effect:
                case ShowBox(box):
                    self.box = box
                case Refuse():
                    self.refusals.append(effect)
                case MakeMasked(terms, begun, streams):
                    vector = self.vectors[begun].copy()
                    add_masks(vector, streams)
                    self.masked[terms] = vector
                    sent += self.take(self.machine.masked(self.state, terms, digest_of(vector)))
                case EraseVectors(starts):
                    for gone in starts:
                        self.vectors.pop(gone, None)
                case _:
                    sent.append(effect)
        self.sent += sent
        return sent

    def show_box(self) -> Member:
        self.take(self.machine.new_box(self.state, self.token))
        return self.member

    def join(self, terms: bytes, begun: OrderStart | None = None) -> list[object]:
        step = self.machine.offered(self.state, terms, begun or start(), NOW, self.token)
        return self.take(step)

    def train(self, begun: OrderStart, scale: Scale) -> list[object]:
        """Make the vector of a start, once."""
        if begun.digest not in self.vectors:
            self.vectors[begun.digest] = to_integers(self.update, self.examples, scale)
        digest = digest_of(self.vectors[begun.digest])
        return self.take(self.machine.made(self.state, begun.digest, digest, scale))

    def take_list(self, content: bytes, inbox: bytes) -> list[object]:
        return self.take(self.machine.listed(self.state, content, inbox))

    def unmask(self, content: bytes) -> list[object]:
        return self.take(self.machine.unmask(self.state, content))

    @property
    def refused(self) -> str:
        """The newest reason for which this agent sent nothing."""
        return self.refusals[-1].reason if self.refusals else ""


def device(
    number: int, policy: OwnersPolicy | None = None, kind: type[at.SecureAgent] = at.SecureAgent
) -> Device:
    """Agent number 1, 2, ...: its keys and its update depend on the number alone."""
    name = f"a{number:02}"
    secret = hashlib.blake2b(name.encode(), digest_size=32).digest()
    entry = entry_of(name, number, signing_key(secret)).to_bytes()
    machine = kind(SecureIdentity(entry, secret, FLEET), policy or OwnersPolicy())
    update = np.random.default_rng(number).normal(0.0, 0.2, LENGTH)
    return Device(name, machine, token_of(name), update, examples=number)


def devices(count: int) -> list[Device]:
    return [device(number) for number in range(1, count + 1)]


def terms_of(
    members: Iterable[Device],
    *,
    group: Group | None = None,
    begun: OrderStart | None = None,
    attempt: int = 1,
    **fields: object,
) -> Terms:
    """Terms for members, who show a new box each."""
    members = list(members)
    numbers = group or group_of(len(members), 0.2)
    scale = plain_scale(len(members), 1.0, 1000)
    terms = Terms(
        federation=FEDERATION,
        run="run-1",
        step=1,
        sum=attempt.to_bytes(16, "little"),
        cluster="0",
        number=0,
        start=(begun or start()).digest,
        vectors={"model": LENGTH},
        clip=scale.clip,
        cap=scale.cap,
        levels=scale.levels,
        deviation=0.0,
        multiplier=0.0,
        threshold=numbers.threshold,
        colluders=numbers.colluders,
        least=numbers.least,
        seconds=3600.0,
        members=[member.show_box() for member in members],
    )
    return terms.model_copy(update=fields)


@dataclass
class Site:
    """A coordinator of one sum with its disk, and the members that it reaches."""

    members: list[Device]
    terms: Terms
    begun: OrderStart = field(default_factory=start)
    records: list[co.Record] = field(default_factory=list)
    log: list[co.Effect] = field(default_factory=list)
    vectors: dict[int, Integers] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.content = self.terms.to_bytes()
        self.machine = co.SecureSum(self.content)
        self.state = self.take(self.machine.begun())

    def take(self, step: co.SumsTransition) -> co.SumState:
        self.records += step.records
        self.log += step.then
        self.state = step.state
        return self.state

    @property
    def end(self) -> co.End | None:
        return self.state.end

    def receive(self, sent: Iterable[object], place: int) -> None:
        """Joins, reports and answers of a member."""
        for effect in sent:
            match effect:
                case SendJoin(content):
                    self.take(self.machine.joined(self.state, content))
                case SendMasked(content):
                    member = self.members[place - 1]
                    head = ReportHead.from_bytes(content)
                    self.vectors[place] = member.masked[head.terms]
                    self.take(self.machine.reported(self.state, content))
                case SendAnswer(content):
                    self.take(self.machine.answered(self.state, content))

    def inbox(self, place: int) -> bytes:
        return next(
            effect.content
            for effect in reversed(self.log)
            if isinstance(effect, co.FillInbox) and effect.place == place
        )

    def gather_joins(self, places: Iterable[int] | None = None) -> None:
        for place in places or range(1, len(self.members) + 1):
            member = self.members[place - 1]
            self.receive(member.join(self.content, self.begun), place)
        self.take(self.machine.joins_closed(self.state))

    def gather_reports(self, places: Iterable[int] | None = None) -> None:
        for place in places or self.state.listed:
            member = self.members[place - 1]
            sent = member.train(self.begun, self.terms.scale)
            sent += member.take_list(self.state.listing, self.inbox(place))
            self.receive(sent, place)
        online = len(self.state.heads)
        self.take(self.machine.reports_closed(self.state, online, is_last_call=True))

    def gather_answers(self, places: Iterable[int] | None = None) -> None:
        for place in places or self.state.reported:
            self.receive(self.members[place - 1].unmask(self.state.unmask), place)
        self.take(self.machine.answers_closed(self.state))

    def opened(self) -> Integers:
        """The sum without masks. Fails unless the sum was opened."""
        assert isinstance(self.end, co.Opened), self.end
        total = np.zeros(self.terms.length, np.uint32)
        for place in self.end.reported:
            total += self.vectors[place]
        add_masks(total, self.end.streams)
        return total

    def plain(self, places: Iterable[int]) -> Integers:
        """The sum of the integers of these members, as a run without masks makes it."""
        total = np.zeros(self.terms.length, np.uint32)
        for place in places:
            member = self.members[place - 1]
            total += to_integers(member.update, member.examples, self.terms.scale)
        return total

    def mean(self) -> np.ndarray:
        assert isinstance(self.end, co.Opened)
        return mean_of(self.opened(), len(self.end.reported), self.terms.scale).vector


def site(count: int = 5) -> Site:
    members = devices(count)
    return Site(members, terms_of(members))


def site_at(stage: str, count: int = 5) -> Site:
    """A site that has gone through "join", "report" or "answer" with all members."""
    made = site(count)
    made.gather_joins()
    if stage in ("report", "answer"):
        made.gather_reports()
    if stage == "answer":
        made.gather_answers()
    return made


def copy_of(here: Site, **fields: object) -> Site:
    """The same site with other fields."""
    again = copy.copy(here)
    again.records, again.log = list(here.records), list(here.log)
    vars(again).update(fields)
    return again


def killed(here: Site) -> Site:
    """The site after a kill of the coordinator: it has its records, and the vectors of its spool."""
    again = copy_of(here)
    state = again.machine.restored(here.records)
    again.take(again.machine.resumed(state))
    return again
