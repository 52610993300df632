"""A whole sum: it has the bytes of the plain integers, or it is void or passed over, also where members vanish or programs are killed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from covey.extras.secure import agent as at
from covey.extras.secure import coordinator as co
from covey.extras.secure.agent_state import AgentState
from covey.extras.secure.locks import SUMMED_BEFORE, Lock
from covey.extras.secure.messages import Join
from covey.extras.secure.primitives import Token
from covey.extras.secure.tests.group import (
    Site,
    device,
    devices,
    killed,
    site,
    site_at,
    start,
    terms_of,
)


def test_a_sum_of_all_has_the_bytes_of_the_plain_integers() -> None:
    here = site_at("answer", 5)
    assert here.opened().tobytes() == here.plain(range(1, 6)).tobytes()


def test_a_sum_with_missing_members_has_the_bytes_of_those_who_reported() -> None:
    here = site(8)
    here.gather_joins([1, 2, 3, 5, 6, 7, 8])
    here.gather_reports([1, 2, 5, 6, 8])
    here.gather_answers([8, 6, 5, 2, 1])
    assert here.opened().tobytes() == here.plain([1, 2, 5, 6, 8]).tobytes()


def test_the_mean_of_a_sum_is_the_weighted_mean_of_the_updates() -> None:
    here = site_at("answer", 5)
    weights = [member.examples for member in here.members]
    expected = np.average([member.update for member in here.members], axis=0, weights=weights)
    assert np.allclose(here.mean(), expected, atol=1e-4)


def test_answers_of_the_threshold_open_a_sum() -> None:
    here = site_at("report", 8)
    here.gather_answers([2, 3, 5, 7, 8])
    assert here.opened().tobytes() == here.plain(range(1, 9)).tobytes()


def test_too_few_joins_make_a_sum_void() -> None:
    here = site(5)
    here.gather_joins([1, 2])
    assert here.end == co.SumVoid("2 members joined, 4 required")


def test_too_few_reports_make_a_sum_void() -> None:
    here = site_at("join", 5)
    here.gather_reports([1, 2, 3])
    assert here.end == co.SumVoid("3 members reported, 4 required")


def test_the_unmask_list_waits_for_enough_who_are_connected_until_the_deadline() -> None:
    here = site_at("join", 5)
    for place in (1, 2, 3, 4, 5):
        member = here.members[place - 1]
        member.train(here.begun, here.terms.scale)
        here.receive(member.take_list(here.state.listing, here.inbox(place)), place)
    assert here.machine.reports_closed(here.state, 3, is_last_call=False).then == ()
    ended = here.machine.reports_closed(here.state, 3, is_last_call=True)
    assert ended.then == (co.SumVoid("3 of those who reported are connected, 4 must answer"),)


def test_too_few_answers_pass_a_group_over() -> None:
    here = site_at("report", 5)
    here.gather_answers([1, 2, 3])
    assert here.end == co.PassedOver("3 members answered, 4 must")


def test_a_lost_vector_makes_a_sum_void_before_the_unmask_list_alone() -> None:
    here = site_at("join", 5)
    lost = here.machine.lost(here.state, 2)
    assert lost.then == (co.SumVoid("the masked vector of place 2 was lost"),)
    here.gather_reports()
    assert here.machine.lost(here.state, 2).then == ()


class FalseDealer(at.SecureAgent):
    """A member that deals shares of other secrets than it announces."""

    def _dealt(
        self, secret: bytes, threshold: int, places: Sequence[int], token: Token
    ) -> dict[int, int]:
        return super()._dealt(bytes(32), threshold, places, token)


def test_members_that_refuse_are_not_awaited() -> None:
    here = site(8)
    for place in (7, 8):
        here.take(here.machine.refused(here.state, place, SUMMED_BEFORE))
    for place in range(1, 7):
        assert not here.state.listing
        here.receive(here.members[place - 1].join(here.content), place)
    assert here.state.listed == (1, 2, 3, 4, 5, 6)


@pytest.mark.parametrize("seed", range(24))
def test_each_sum_is_that_of_its_reporters_or_void_or_passed_over(seed: int) -> None:
    """Members vanish at any stage, and coordinator and agents are killed between any two inputs."""
    chance = np.random.default_rng(seed)
    here = site(int(chance.choice([4, 5, 8])))
    places = list(range(1, len(here.members) + 1))

    def left() -> list[int]:
        return [place for place in places if chance.random() > 0.12]

    def shaken(sent: list[object], place: int) -> None:
        nonlocal here
        member = here.members[place - 1]
        if chance.random() < 0.3:  # killed after the sync: the same bytes again
            again = member.take(
                member.machine.resumed(AgentState.from_bytes(member.state.to_bytes()))
            )
            assert again[: len(sent)] == sent
        for _ in range(chance.choice([1, 1, 2])):
            here.receive(sent, place)
        if chance.random() < 0.3:
            here = killed(here)

    for place in map(int, chance.permutation(left())):
        if not here.state.listing:
            shaken(here.members[place - 1].join(here.content), place)
    here.take(here.machine.joins_closed(here.state))
    if not here.end:
        for place in map(int, chance.permutation(left())):
            if place in here.state.listed:
                member = here.members[place - 1]
                sent = member.train(here.begun, here.terms.scale)
                shaken(sent + member.take_list(here.state.listing, here.inbox(place)), place)
        online = sum(chance.random() > 0.05 for _ in here.state.heads)
        here.take(here.machine.reports_closed(here.state, online, is_last_call=True))
    if not here.end:
        for place in map(int, chance.permutation(left())):
            if place in here.state.reported:
                shaken(here.members[place - 1].unmask(here.state.unmask), place)
        here.take(here.machine.answers_closed(here.state))
    match here.end:
        case co.Opened(reported):
            assert here.opened().tobytes() == here.plain(reported).tobytes()
        case co.SumVoid():
            assert not here.state.unmask
        case co.PassedOver():
            assert here.state.unmask
        case None:
            raise AssertionError("the sum has no end")


def test_after_a_void_agents_send_the_same_vector_under_new_masks() -> None:
    here = site_at("join", 5)
    here.gather_reports([1, 2, 3])
    first = {place: here.vectors[place].tobytes() for place in (1, 2, 3)}
    again = Site(here.members, terms_of(here.members, attempt=2))
    again.gather_joins()
    again.gather_reports()
    again.gather_answers()
    assert again.opened().tobytes() == again.plain(range(1, 6)).tobytes()
    assert all(again.vectors[place].tobytes() != first[place] for place in first)


def test_a_next_round_is_a_sum_of_its_own() -> None:
    members = devices(5)
    for number in (1, 2, 3):
        begun = start(f"round {number}", (f"model {number}".encode(),))
        here = Site(members, terms_of(members, begun=begun, attempt=number), begun)
        here.gather_joins()
        here.gather_reports()
        here.gather_answers()
        assert here.opened().tobytes() == here.plain(range(1, 6)).tobytes()
        for member in members:
            member.take(member.machine.closed(member.state))
            assert member.state.sum is None
            assert member.state.vectors == []
            assert len(Lock.all_in(member.state.locks)) == number


def test_false_cells_name_the_dealer_and_pass_the_group_over() -> None:
    members = [*devices(4), device(5, kind=FalseDealer)]
    here = Site(members, terms_of(members))
    here.gather_joins()
    here.gather_reports()
    here.gather_answers()
    assert here.end == co.PassedOver("the cells of a05 do not fit together", (5,))


def test_a_join_has_about_100_bytes_for_each_other_member() -> None:
    here = site_at("join", 8)
    sizes = [len(record.content) for record in here.records if record.name.startswith("join")]
    assert max(sizes) < 7 * 98 + 300
    assert len(Join.from_bytes(here.records[1].content).cells) == 7 * 98
