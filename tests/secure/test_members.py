"""Who takes part: what an owner demands of members holds for lists and unmask lists, not for terms alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from covey.shared.secure import agent as at
from covey.shared.secure.coordinator import Opened
from covey.shared.secure.parameters import Group, group_of
from tests.secure.closure import Server
from tests.secure.group import Device, Site, device, devices, terms_of

# a01 is the victim, a02 to a07 are known to its owner, a08 and a09 are strangers: t 6, of which four are known
NUMBERS = Group(members=9, threshold=6, colluders=1, least=6)
FOUR_KNOWN = at.OwnersPolicy(known=frozenset(f"a{i:02}" for i in range(2, 8)), known_least=4)


def site_of(policy: at.OwnersPolicy) -> Site:
    members = [device(1, policy), *devices(9)[1:]]
    return Site(members, terms_of(members, group=NUMBERS))


def newest(victim: Device) -> tuple[str, str]:
    return victim.refusals[-1].reason, victim.refusals[-1].detail


# -- known members -----------------------------------------------------------------------------------------------------


def test_known_members_that_are_missing_from_the_list_get_no_report() -> None:
    here = site_of(FOUR_KNOWN)
    here.gather_joins([1, 2, 3, 4, 8, 9])
    here.gather_reports()
    assert newest(here.members[0]) == (
        "owner",
        "3 members are known to the owner, who requires 4 (secure_known_least)",
    )
    assert 1 not in here.state.heads


def test_known_members_that_are_missing_from_the_unmask_list_get_no_answer() -> None:
    here = site_of(FOUR_KNOWN)
    here.gather_joins()
    here.gather_reports([1, 2, 3, 4, 8, 9])
    here.gather_answers()
    assert here.members[0].refused == "owner"
    assert not isinstance(here.end, Opened)


def test_a_sum_with_enough_known_members_is_answered() -> None:
    here = site_of(FOUR_KNOWN)
    here.gather_joins()
    here.gather_reports([1, 2, 3, 4, 5, 8, 9])
    here.gather_answers()
    assert isinstance(here.end, Opened)
    assert not here.members[0].refusals


def test_the_own_id_among_the_known_ones_counts_for_nobody() -> None:
    here = site_of(replace(FOUR_KNOWN, known=frozenset(f"a{i:02}" for i in range(1, 5))))
    here.gather_joins([1])
    assert here.members[0].refused == "owner"


@pytest.mark.parametrize("demands", [False, True])
def test_strangers_that_hold_a_threshold_of_shares_are_refused_in_the_terms(demands: bool) -> None:
    """Ten known members join and are lost: 17 strangers read the report alone, whatever is answered."""
    known = frozenset(f"a{i:02}" for i in range(2, 12))
    policy = at.OwnersPolicy(known=known, known_least=10 if demands else 0)
    members = [device(1, policy), *devices(28)[1:]]
    server = Server({member.name for member in members[11:]})
    attempt = server.offer(members, group_of(28, 0.2))
    attempt.gather_reports(attempt.list_of(range(1, 29)), [1])
    assert server.fewest() == (0 if demands else 1)
    assert [refusal.reason for refusal in members[0].refusals[:1]] == ["owner"] * demands
