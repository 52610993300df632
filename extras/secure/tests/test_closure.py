"""With all messages and keys of the server side and of the colluders, no combination of sums holds fewer than t - c honest agents.

Each rule of the agent is switched off once: then the same server computes a combination of fewer agents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from covey.extras.secure import agent as at
from covey.extras.secure import derivation as de
from covey.extras.secure.agent_state import AgentState, AgentTransition, OwnSum, SecureIdentity
from covey.extras.secure.derivation import share_to_bytes
from covey.extras.secure.locks import Lock
from covey.extras.secure.messages import JoinList, ListRow, Terms, UnmaskList, UnmaskRow
from covey.extras.secure.owners_policy import OwnersPolicy
from covey.extras.secure.parameters import Group, Scale, group_of
from covey.extras.secure.primitives import Token, public_key
from covey.extras.secure.tests.closure import NOTHING, Asked, Attempt, Server, asked
from covey.extras.secure.tests.group import NOW, Device, device

# 5 honest members and 1 colluder; a sum has at least t - c = 3 honest ones
GROUP = Group(members=6, threshold=4, colluders=1, least=4)
HONEST = GROUP.threshold - GROUP.colluders


def fleet(count: int, colluders: int, kind: type[at.SecureAgent]) -> tuple[Server, list[Device]]:
    """Honest agents with the rules of `kind`, then colluders."""
    honest = [device(number, kind=kind) for number in range(1, count + 1)]
    others = [device(90 + number) for number in range(1, colluders + 1)]
    return Server({member.name for member in others}), [*honest, *others]


def summed(attempt: Attempt, reported: list[int] | None = None) -> None:
    """A sum as it should be, of all who joined; or of those whom the server calls reported."""
    listing = attempt.list_of(attempt.places())
    attempt.gather_reports(listing)
    attempt.gather_answers(attempt.unmask_of(listing, reported or attempt.places()))


def test_an_honest_sum_holds_all_its_members() -> None:
    server, members = fleet(5, 1, at.SecureAgent)
    summed(server.offer(members, GROUP))
    assert server.fewest() == 5
    assert server.promise_holds(HONEST)


def test_before_the_answers_the_server_has_nothing() -> None:
    server, members = fleet(5, 1, at.SecureAgent)
    attempt = server.offer(members, GROUP)
    attempt.gather_reports(attempt.list_of(attempt.places()))
    assert server.exposed() == []


def test_single_agents_fall_as_soon_as_the_threshold_colludes() -> None:
    server, members = fleet(2, 4, at.SecureAgent)
    attempt = server.offer(members, GROUP)
    attempt.gather_reports(attempt.list_of(attempt.places()))
    assert server.fewest() == 1
    assert len(server.exposed()) == 2


def test_one_colluder_less_than_the_threshold_opens_nothing_alone() -> None:
    server, members = fleet(3, 3, at.SecureAgent)
    attempt = server.offer(members, GROUP)
    attempt.gather_reports(attempt.list_of(attempt.places()))
    assert server.exposed() == []


@pytest.mark.parametrize("seed", range(8))
def test_a_server_that_does_anything_computes_no_sum_of_fewer_honest_agents(seed: int) -> None:
    """It repeats, splits lists and unmask lists, drops messages, and comes back to earlier attempts."""
    server, promise = campaign(seed)
    assert server.promise_holds(promise)


def test_the_server_that_does_anything_opens_several_sums_of_one_start() -> None:
    """Otherwise the test above would show nothing."""
    opened = [len(campaign(seed)[0].exposed()) for seed in range(16)]
    assert sum(opened) >= 16
    assert sum(count >= 2 for count in opened) >= 3


@cache
def campaign(seed: int) -> tuple[Server, int]:
    """A random server, and the number of honest agents that each of its combinations must hold."""
    chance = np.random.default_rng(seed)
    colluders = int(chance.choice([0, 1, 1, 2]))
    server, members = fleet(int(chance.choice([6, 8, 9])), colluders, at.SecureAgent)
    others = members[len(members) - colluders :]
    honest = members[: len(members) - colluders]
    promises = []
    for _ in range(int(chance.choice([2, 3]))):
        # agents that have answered refuse: the server mostly invites others
        unlocked = [member for member in honest if not member.state.locks or chance.random() < 0.1]
        count = min(len(unlocked), int(chance.integers(3, 7)))
        invited = [unlocked[i] for i in chance.permutation(len(unlocked))[:count]]
        n = count + colluders
        threshold = max(3, (n + colluders) // 2 + 1)
        group = Group(n, threshold, colluders, threshold)
        if group.fault:
            continue
        promises.append(threshold - colluders)
        attempt = server.offer([*invited, *others], group)
        step(chance, attempt)
        for member in invited:
            if (
                chance.random() < 0.1
            ):  # the time of its sum runs out: it works again in the next one
                member.take(member.machine.tick(member.state, NOW + attempt.terms.seconds))
        for earlier in server.attempts:
            if chance.random() < 0.4:
                step(chance, earlier)
    return server, min(promises, default=3)


def step(chance: np.random.Generator, attempt: Attempt) -> None:
    """Lists for random members, then unmask lists for random members, often no more of them than are needed."""
    joined = list(attempt.joins)
    for _ in range(int(chance.choice([1, 1, 2]))):
        listing = attempt.list_of(place for place in joined if chance.random() < 0.95)
        listed = [row.place for row in attempt.lists[listing].rows]
        asked = [place for place in listed if chance.random() < 0.95]
        if asked:
            attempt.gather_reports(listing, asked)
    for listing in list(attempt.lists):
        for _ in range(int(chance.choice([1, 1, 2]))):
            reported = [place for place in joined if chance.random() < 0.9]
            unmask = attempt.unmask_of(listing, reported)
            asked = [place for place in joined if not attempt.colludes(place)]
            if chance.random() < 0.7:
                needed = attempt.terms.threshold - attempt.terms.colluders
                asked = [asked[i] for i in chance.permutation(len(asked))[:needed]]
            if asked:
                attempt.gather_answers(unmask, asked)


# -- each rule off -----------------------------------------------------------------------------------------------------


class NoLocks(at.SecureAgent):
    """Rule 3 without the lock."""

    def _check_lock(self, state: AgentState, start: bytes) -> None:
        pass

    def _check_content(self, state: AgentState, lock: Lock) -> None:
        pass


def void_and_repeat(kind: type[at.SecureAgent]) -> Server:
    """The same start again, with one agent less."""
    server, members = fleet(6, 0, kind)
    summed(server.offer(members, group_of(6, 0.0)))
    summed(server.offer(members[:5], group_of(5, 0.0)))
    return server


class AnyStart(at.SecureAgent):
    """Rule 1 without the comparison of the start."""

    def _compare_start(self, terms: Terms, start: de.OrderStart) -> None:
        pass

    def _check_content(self, state: AgentState, lock: Lock) -> None:
        pass


def another_start(kind: type[at.SecureAgent]) -> Server:
    """Terms whose start is not that of the order: the lock does not find it again."""
    server, members = fleet(6, 0, kind)
    for attempt, count in enumerate((6, 5)):
        made_up = asked(attempt + 1).start(b"").digest
        summed(server.offer(members[:count], group_of(count, 0.0), start=made_up))
    return server


class AnyContent(at.SecureAgent):
    """Rule 3 without the memory of models."""

    def _check_content(self, state: AgentState, lock: Lock) -> None:
        pass


def another_round(kind: type[at.SecureAgent]) -> Server:
    """The same training by an order of another round, with one agent less."""
    server, members = fleet(6, 0, kind)
    for number, count in enumerate((6, 5)):
        summed(server.offer(members[:count], group_of(count, 0.0), asked(number)))
    return server


def others_answer(kind: type[at.SecureAgent]) -> Server:
    """The same without the first one, by an order of another round: those who answered report, and others answer."""
    server, members = fleet(7, 2, kind)
    for number, (some, group, asked_for) in enumerate(
        [(members, group_of(9, 0.2), [1, 2, 3, 4]), (members[1:], group_of(8, 0.0), [4, 5, 6])]
    ):
        attempt = server.offer(some, group, asked(number))
        listing = attempt.list_of(attempt.places())
        if attempt.joins:
            attempt.gather_reports(listing)
            attempt.gather_answers(attempt.unmask_of(listing, attempt.places()), asked_for)
    return server


def one_of_two_used(kind: type[at.SecureAgent]) -> Server:
    """A colluder makes the first sum look useless: the server knows what it has added, and has the sum of the others."""
    server, members = fleet(6, 1, kind)
    for number, some in enumerate((members, members[1:])):
        summed(server.offer(some, group_of(len(some), 0.2), asked(number)))
    return server


class ContentAtTheAnswer(at.SecureAgent):
    """Rule 1 without the memory of models, which is asked before the answer alone."""

    def _check_models(self, state: AgentState, terms: Terms, start: de.OrderStart) -> None:
        pass

    def _answer(self, state: AgentState, own: OwnSum, content: bytes) -> bytes:
        answer = super()._answer(state, own, content)
        reported = {row.place for row in UnmaskList.from_bytes(content).rows}
        for lock in Lock.all_of(Terms.from_bytes(own.terms), own.order, own.content, reported):
            self._check_content(state, lock)
        return answer


class UnusedLocksNothing(at.SecureAgent):
    """Rule 3 as it would be if the coordinator's word that a sum was out of range opened the models again."""

    def _locked(self, state: AgentState, own: OwnSum, content: bytes) -> AgentState:
        locked = super()._locked(state, own, content)
        locks = [
            lock._replace(content=de.SKETCH.pack(*[1e9] * 4)) for lock in Lock.all_in(locked.locks)
        ]
        return locked.changed(locks=b"".join(lock.packed() for lock in locks))


def nothing_for_others(kind: type[at.SecureAgent]) -> Server:
    """The orders of all but one agent have nothing to learn, and the terms have the start of that one."""
    server, members = fleet(6, 0, kind)
    orders = {member.name: asked(task=NOTHING) for member in members[1:]}
    attempt = server.offer(members, group_of(6, 0.0), orders=orders)
    if attempt.joins:
        summed(attempt)
    return server


class AnyList(at.SecureAgent):
    """Rule 2 without the limit to one list."""

    def __init__(self, identity: SecureIdentity, policy: OwnersPolicy) -> None:
        super().__init__(identity, policy)
        self.begun: dict[bytes, OwnSum] = {}

    def offered(self, *given: object, **named: object) -> AgentTransition:
        made = super().offered(*given, **named)  # type: ignore[arg-type]
        if made.state.sum is not None:
            self.begun[made.state.sum.name] = made.state.sum
        return made

    def _listed_again(self, state: AgentState, own: OwnSum, content: bytes) -> AgentTransition:
        fresh = self._with_list(self.begun[own.name], content, self.inbox)
        state = state.changed(sum=fresh)
        return AgentTransition(state, self._masking(state))

    def listed(self, state: AgentState, content: bytes, inbox: bytes) -> AgentTransition:
        self.inbox = inbox
        return super().listed(state, content, inbox)


def two_lists(kind: type[at.SecureAgent]) -> Server:
    """The second list pairs one agent with those whose mask secrets the unmask list of the first one gives away."""
    server, members = fleet(5, 1, kind)
    attempt = server.offer(members, GROUP)
    first = attempt.list_of(attempt.places())
    attempt.gather_reports(first, [1, 2, 3])
    unmask = attempt.unmask_of(first, [1, 2, 3, 6])
    attempt.gather_answers(unmask, [2, 3])
    second = attempt.list_of([1, 4, 5, 6])
    answered = attempt.members[0].state
    attempt.gather_reports(second, [1])
    attempt.members[0].state = answered  # it also answers for the first list
    attempt.gather_answers(unmask, [1])
    return server


class NotInTheSum(at.SecureAgent):
    """Rule 3 without the look for the own report: who is missing gives its share of its own mask secret."""

    dealt: dict[int, int]

    def _dealt(
        self, secret: bytes, threshold: int, places: Sequence[int], token: Token
    ) -> dict[int, int]:
        self.dealt = super()._dealt(secret, threshold, places, token)  # that of the mask comes last
        return self.dealt

    def _answer(self, state: AgentState, own: OwnSum, content: bytes) -> bytes:
        if own.place not in {row.place for row in UnmaskList.from_bytes(content).rows}:
            share = share_to_bytes(self.dealt[own.place])
            own = own.model_copy(update={"own_share": share})
        return super()._answer(state, own, content)

    def _check_own_report(self, own: OwnSum, unmask: UnmaskList) -> None:
        pass


def late_answers(kind: type[at.SecureAgent]) -> Server:
    """Those who reported too late answer for the others, who join again."""
    server, members = fleet(8, 1, kind)
    colluder = members[8]
    for names, late in (((0, 1, 2, 3, 4), (4, 5)), ((1, 2, 5, 6, 7), (4, 5))):
        attempt = server.offer([*(members[i] for i in names), colluder], GROUP)
        listing = attempt.list_of(attempt.places())
        attempt.gather_reports(listing)
        unmask = attempt.unmask_of(listing, set(attempt.places()) - set(late))
        # of those whose reports count, one alone answers: agent 1, then agent 6
        own = 1 if names[0] == 0 else 3
        attempt.gather_answers(unmask, [own, *late])
    return server


class AnyUnmaskList(at.SecureAgent):
    """Rule 3 without the limit to one unmask list."""

    def unmask(self, state: AgentState, content: bytes) -> AgentTransition:
        return replace(super().unmask(state, content), state=state)


def two_unmask_lists(kind: type[at.SecureAgent]) -> Server:
    """One agent has reported by the first, and is missing by the second."""
    server, members = fleet(5, 1, kind)
    attempt = server.offer(members, GROUP)
    listing = attempt.list_of(attempt.places())
    attempt.gather_reports(listing)
    attempt.gather_answers(attempt.unmask_of(listing, attempt.places()))
    attempt.gather_answers(attempt.unmask_of(listing, [2, 3, 4, 5, 6]))
    return server


class WorkTwice(at.SecureAgent):
    """Neither rule 4 nor rule 5: a lost vector is made again, and masked for the same terms."""

    def __init__(self, identity: SecureIdentity, policy: OwnersPolicy) -> None:
        super().__init__(identity, policy)
        self.listed_sum: OwnSum | None = None

    def listed(self, state: AgentState, content: bytes, inbox: bytes) -> AgentTransition:
        made = super().listed(state, content, inbox)
        self.listed_sum = made.state.sum
        return made

    def made(self, state: AgentState, start: bytes, digest: bytes, scale: Scale) -> AgentTransition:
        known = state.vector(start)
        if known is not None and known != digest:
            state = state.changed(vectors=[], sum=self.listed_sum)
        return super().made(state, start, digest, scale)


def damaged_vector(kind: type[at.SecureAgent]) -> Server:
    """The files of one agent are lost, its data has changed, and it is asked again."""
    server, members = fleet(5, 0, kind)
    attempt = server.offer(members, group_of(5, 0.0))
    attempt.gather_reports(attempt.list_of(attempt.places()))
    victim = members[0]
    victim.vectors.clear()
    victim.masked.clear()
    victim.update = victim.update + 0.1
    sent = victim.train(attempt.begun(victim), attempt.terms.scale)
    attempt.capture(victim, 1, sent)
    return server


def signatures_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules 2 and 3 without signatures."""
    monkeypatch.setattr(de, "is_row_signed", lambda *_: True)
    monkeypatch.setattr(de, "is_unmask_row_signed", lambda *_: True)


def forged_rows(kind: type[at.SecureAgent]) -> Server:
    """One agent is listed with members whose mask keys the server has made; the others are shown a report of it."""
    server, members = fleet(5, 1, kind)
    attempt = server.offer(members, GROUP)
    listing = attempt.list_of(attempt.places())
    attempt.gather_reports(listing, [2, 3, 4, 5])
    rows = [de.row_of_join(attempt.joins[1])]
    for place in (2, 3, 4):
        secret = bytes([place]) * 32
        attempt.secrets[place] = attempt.secrets[6].model_copy(
            update={"mask_secret": secret, "seed": secret}
        )
        rows.append(_row_of(attempt, place, public_key(secret)))
    alone = JoinList(terms=attempt.name, rows=rows).to_bytes()
    attempt.lists[alone] = JoinList.from_bytes(alone)
    attempt.gather_reports(alone, [1])
    for place in (2, 3, 4):  # the server made these keys up for the list of agent 1 alone
        if place in attempt.secrets and server.masked and server.masked[-1].agent != "a01":
            del attempt.secrets[place]
    named = de.name_of_list(listing)
    made_up = UnmaskRow(place=1, signature=bytes(64))
    true_rows = [de.row_of_head(attempt.heads[named, place]) for place in (2, 3, 4, 5)]
    unmask = UnmaskList(listing=named, rows=[made_up, *true_rows]).to_bytes()
    attempt.unmasks[unmask] = UnmaskList.from_bytes(unmask)
    attempt.gather_answers(unmask, [2, 3, 4, 5])
    return server


def _row_of(attempt: Attempt, place: int, mask_key: bytes) -> ListRow:
    return de.row_of_join(attempt.joins[place]).model_copy(update={"mask_key": mask_key})


def two_at_once(kind: type[at.SecureAgent]) -> Server:
    """Agents in two sums from one start: the answers for the first come from some, those for the second from others."""
    server, members = fleet(6, 1, kind)
    first = server.offer([*members[:5], members[6]], GROUP)
    listing = first.list_of(first.places())
    first.gather_reports(listing)
    second = server.offer(members[1:], GROUP)
    other = second.list_of(second.places())
    second.gather_reports(other)
    first.gather_answers(first.unmask_of(listing, first.places()), [1, 2, 3])
    second.gather_answers(second.unmask_of(other, second.places()), [3, 4, 5])
    return server


class TwoAtOnce(at.SecureAgent):
    """No rule 6: the secrets of the sum before are kept, and still used."""

    def __init__(self, identity: SecureIdentity, policy: OwnersPolicy) -> None:
        super().__init__(identity, policy)
        self.sums: list[OwnSum] = []

    def _without_sum(self, state: AgentState) -> AgentState:
        if state.sum is not None:
            self.sums.append(state.sum)
        return super()._without_sum(state)

    def unmask(self, state: AgentState, content: bytes) -> AgentTransition:
        listing = UnmaskList.from_bytes(content).listing
        for own in self.sums:
            if own.listing and de.name_of_list(own.listing) == listing:
                made = super().unmask(state.changed(sum=own), content)
                return replace(made, state=made.state.changed(sum=state.sum))
        return super().unmask(state, content)


def rounds_of_one_model(seed: int, kind: type[at.SecureAgent]) -> tuple[Server, int]:
    """Sums of one model by orders of three rounds, each answered by as few as it takes: first by those who have not answered.

    With the honest agents that each combination must hold."""
    chance = np.random.default_rng(seed)
    server, members = fleet(7, 2, kind)
    promises = []
    for number in range(3):
        some = [one for one in members[:7] if chance.random() < 0.85] + members[7:]
        group = group_of(len(some), float(chance.choice([0.0, 0.25])))
        if chance.random() < 0.2:
            group = replace(group, least=len(some))
        attempt = server.offer(some, group, asked(number))
        listing = attempt.list_of(attempt.places())
        if len(attempt.joins) < group.least:
            continue
        attempt.gather_reports(listing)
        unasked = sorted(
            (place for place in attempt.honest() if place in attempt.joins),
            key=lambda place: (bool(attempt.members[place - 1].state.locks), chance.random()),
        )
        needed = group.threshold - len(members[7:])
        attempt.gather_answers(attempt.unmask_of(listing, attempt.places()), unasked[:needed])
        promises.append(needed)
    return server, min(promises, default=3)


@pytest.mark.parametrize("seed", range(12))
def test_several_rounds_of_one_model_give_no_sum_of_fewer_honest_agents(seed: int) -> None:
    server, promise = rounds_of_one_model(seed, at.SecureAgent)
    assert server.promise_holds(promise)


def test_they_do_where_models_are_compared_before_the_answer_alone() -> None:
    runs = [rounds_of_one_model(seed, ContentAtTheAnswer) for seed in range(12)]
    assert not all(server.promise_holds(promise) for server, promise in runs)


ATTACKS = {
    "void and repeat": (void_and_repeat, NoLocks, 1),
    "another start": (another_start, AnyStart, 1),
    "another round": (another_round, AnyContent, 1),
    "others answer": (others_answer, ContentAtTheAnswer, 1),
    "a sum that is not used": (one_of_two_used, UnusedLocksNothing, 1),
    "nothing for others": (nothing_for_others, AnyStart, 1),
    "two lists": (two_lists, AnyList, 1),
    "late answers": (late_answers, NotInTheSum, 2),
    "two unmask lists": (two_unmask_lists, AnyUnmaskList, 1),
    "damaged vector": (damaged_vector, WorkTwice, 1),
    "two sums at once": (two_at_once, TwoAtOnce, 2),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_fails_with_all_rules(attack: str) -> None:
    run, _, _ = ATTACKS[attack]
    assert run(at.SecureAgent).promise_holds(HONEST)


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_succeeds_with_its_rule_switched_off(attack: str) -> None:
    run, off, agents = ATTACKS[attack]
    assert run(off).fewest() == agents


def test_a_start_of_fewer_fields_puts_members_with_other_orders_in_one_sum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mistake that this file once could not see: it took starts as given."""
    whole = Asked.start
    monkeypatch.setattr(
        Asked, "start", lambda own, secret: whole(replace(own, work=asked().work), secret)
    )
    assert nothing_for_others(at.SecureAgent).fewest() == 1


def test_forged_rows_are_refused() -> None:
    assert forged_rows(at.SecureAgent).promise_holds(HONEST)


def test_forged_rows_expose_an_agent_that_reads_no_signatures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    signatures_unread(monkeypatch)
    assert forged_rows(at.SecureAgent).fewest() == 1
