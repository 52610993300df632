"""The messages of a secure sum: from a member who signs what it likes, and from a coordinator who sends what it likes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from random import Random
from typing import Any

from pydantic import ValidationError

from covey.extras.secure import coordinator as co
from covey.extras.secure.agent_state import AgentState, Refuse, SendAnswer, SendJoin, SendMasked
from covey.extras.secure.derivation import (
    commitment_of,
    name_of_list,
    signed_of_answer,
    signed_of_head,
    signed_of_join,
)
from covey.extras.secure.messages import (
    Answer,
    CellInbox,
    Join,
    JoinList,
    ReportHead,
    Terms,
    UnmaskList,
)
from covey.extras.secure.primitives import signature
from covey.extras.secure.tests.group import NOW, Device, Site, site, start, token_of
from covey.shared.errors import DecodeError
from covey.shared.wire.framing import Packed
from tests.fuzz.mutate import mutated_tree
from tests.fuzz.target import Target
from tests.fuzz.wire_targets import hostile_message

LIAR = 5  # the place of the hostile member; that of place 4 has not sent its message yet
SIGNED = 0.6  # of the inputs, which the liar has signed
PLACED = 0.3  # of these, for another member

Message = Join | ReportHead | Answer


# -- to the coordinator --------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def sums() -> dict[str, tuple[Site, Message]]:
    """For each stage a sum that waits for two members, and the honest message of one of them, the liar."""
    here = site()
    liar = here.members[LIAR - 1]
    found: dict[str, tuple[Site, Message]] = {}

    def stop(name: str, kind: type[Message], sent: list[object]) -> None:
        content = next(
            effect.content
            for effect in sent
            if isinstance(effect, SendJoin | SendMasked | SendAnswer)
        )
        stopped = replace(here, records=[], log=[])
        stopped.state = here.state
        found[name] = (stopped, kind.from_bytes(content))
        here.receive(sent, LIAR)

    def join(place: int) -> list[object]:
        return here.members[place - 1].join(here.content, here.begun)

    def report(place: int) -> list[object]:
        member = here.members[place - 1]
        sent = member.train(here.begun, here.terms.scale)
        return sent + member.take_list(here.state.listing, here.inbox(place))

    for place in range(1, LIAR - 1):
        here.receive(join(place), place)
    stop("join", Join, join(LIAR))
    here.receive(join(LIAR - 1), LIAR - 1)
    for place in range(1, LIAR - 1):
        here.receive(report(place), place)
    stop("report", ReportHead, report(LIAR))
    here.receive(report(LIAR - 1), LIAR - 1)
    here.take(here.machine.reports_closed(here.state, LIAR, is_last_call=True))
    for place in (1, 2):  # with one more answer the threshold is reached
        here.receive(here.members[place - 1].unmask(here.state.unmask), place)
    stop("answer", Answer, liar.unmask(here.state.unmask))
    return found


def signed(message: Message, liar: Device) -> Message:
    """The message with the liar's signature of its content."""
    match message:
        case Join():
            said = signed_of_join(
                message.terms, message.place, message.mask_key, commitment_of(message)
            )
        case ReportHead():
            said = signed_of_head(
                message.terms, message.listing, message.place, message.vector, message.lacking
            )
        case Answer():
            said = signed_of_answer(message.unmask, message.place, message.keys, message.share)
    own = signature(liar.machine.identity.secret, said)
    return message.model_copy(update={"signature": own})


def from_member(rng: Random) -> tuple[str, bytes]:
    stage, (here, sample) = rng.choice(sorted(sums().items()))
    if rng.random() < SIGNED:
        try:
            tree = mutated_tree(rng, sample.model_dump())
            if rng.random() < PLACED:
                tree = {**sample.model_dump(), "place": rng.randint(1, LIAR)}
            changed = type(sample).model_validate(tree)
            return stage, signed(changed, here.members[LIAR - 1]).to_bytes()
        except ValidationError:
            pass
    return stage, hostile_message(sample, rng)


def take_from_member(made: tuple[str, bytes]) -> str:
    """The sum takes no message for another member, and can be closed after what it has taken."""
    stage, content = made
    here, sample = sums()[stage]
    machine = here.machine
    takes: dict[str, Callable[[co.SumState, bytes], co.SumsTransition]] = {
        "join": machine.joined,
        "report": machine.reported,
        "answer": machine.answered,
    }
    after = takes[stage](here.state, content).state
    if after == here.state:
        return "known"
    if type(sample).from_bytes(content).place != LIAR:
        raise AssertionError(f"a {stage} was taken that its member has not signed")
    after = machine.joins_closed(after).state
    after = machine.reports_closed(after, LIAR, is_last_call=True).state
    after = machine.answers_closed(after).state
    return type(after.end).__name__


# -- to an agent ---------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def orders() -> dict[str, tuple[Device, AgentState, Packed, bytes]]:
    """For each stage a member, its state, the honest message of the coordinator, and the member's inbox."""
    here = site()
    member = here.members[0]
    found: dict[str, tuple[Device, AgentState, Packed, bytes]] = {}
    found["terms"] = (member, member.state, Terms.from_bytes(here.content), b"")
    here.gather_joins()
    member.train(here.begun, here.terms.scale)
    inbox = here.inbox(1)
    found["list"] = (member, member.state, JoinList.from_bytes(here.state.listing), inbox)
    listing = here.state.listing
    found["inbox"] = (member, member.state, CellInbox.from_bytes(inbox), listing)
    here.gather_reports()
    found["unmask"] = (member, member.state, UnmaskList.from_bytes(here.state.unmask), b"")
    return found


def from_coordinator(rng: Random) -> tuple[str, bytes]:
    stage, (_, _, sample, _) = rng.choice(sorted(orders().items()))
    return stage, hostile_message(sample, rng)


def take_from_coordinator(made: tuple[str, bytes]) -> str:
    """An agent refuses, or does what it is asked for; it opens nothing of who has not reported."""
    stage, content = made
    member, state, sample, other = orders()[stage]
    machine = member.machine
    match stage:
        case "terms":
            step = machine.offered(state, content, start(), NOW, token_of("fuzz"))
        case "list":
            inbox = CellInbox.from_bytes(other).model_copy(
                update={"listing": name_of_list(content)}
            )
            step = machine.listed(state, content, inbox.to_bytes())
        case "inbox":
            step = machine.listed(state, other, content)
        case _:
            step = machine.unmask(state, content)
    refused = [effect.reason for effect in step.then if isinstance(effect, Refuse)]
    if refused:
        return refused[0]
    if isinstance(sample, UnmaskList):
        strangers = [row for row in UnmaskList.from_bytes(content).rows if row not in sample.rows]
        if strangers:
            raise AssertionError(f"an agent has opened the mask of {strangers}, unsigned")
    return ""


def secure_targets() -> list[Target]:
    allowed: tuple[type[Exception], ...] = (DecodeError,)
    ways: list[tuple[str, Callable[[Random], Any], Callable[[Any], str]]] = [
        ("secure.member", from_member, take_from_member),
        ("secure.coordinator", from_coordinator, take_from_coordinator),
    ]
    return [
        Target(name, make, lambda _, take=take: take, allowed, 2)  # type: ignore[misc]
        for name, make, take in ways
    ]
