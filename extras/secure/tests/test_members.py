"""Who takes part: what an owner demands of members holds for lists and unmask lists, not for terms alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from covey.agent.policy import PrivacyDemand
from covey.extras.secure import agent as at
from covey.extras.secure import memberships
from covey.extras.secure.agent_state import AgentState
from covey.extras.secure.coordinator import Opened
from covey.extras.secure.integers import total_of
from covey.extras.secure.memberships import Memberships, name_of_agent
from covey.extras.secure.owners_policy import OwnersPolicy
from covey.extras.secure.parameters import Group, group_of
from covey.extras.secure.secure_folder import SecureFolder
from covey.extras.secure.tests.closure import Server
from covey.extras.secure.tests.group import LENGTH, Device, Site, device, devices, start, terms_of

# a01 is the victim, a02 to a07 are known to its owner, a08 and a09 are strangers: t 6, of which four are known
NUMBERS = Group(members=9, threshold=6, colluders=1, least=6)
FOUR_KNOWN = OwnersPolicy(known=frozenset(f"a{i:02}" for i in range(2, 8)), known_least=4)


def site_of(policy: OwnersPolicy) -> Site:
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
    here = site_of(replace(FOUR_KNOWN, known=frozenset(f"a{i:02}" for i in range(1, 7))))
    here.gather_joins([1])
    assert here.members[0].refused == "owner"


@pytest.mark.parametrize("demands", [False, True])
def test_strangers_that_hold_a_threshold_of_shares_are_refused_in_the_terms(demands: bool) -> None:
    """Ten known members join and are lost: 17 strangers read the report alone, whatever is answered."""
    known = frozenset(f"a{i:02}" for i in range(2, 12))
    policy = OwnersPolicy(known=known, known_least=10 if demands else 0)
    members = [device(1, policy), *devices(28)[1:]]
    server = Server({member.name for member in members[11:]})
    attempt = server.offer(members, group_of(28, 0.2))
    attempt.gather_reports(attempt.list_of(range(1, 29)), [1])
    assert server.fewest() == (0 if demands else 1)
    assert [refusal.reason for refusal in members[0].refusals[:1]] == ["owner"] * demands


# -- sums of nearly the same members -----------------------------------------------------------------------------------

STEADY = OwnersPolicy(steady=True)


OF_SUMS = {
    "secure_least": 5,
    "secure_colluders": 0.3,
    "secure_clip": 1.0,
    "secure_noise": 1.0,
    "secure_epsilon": 1.0,
    "secure_known": ("a",),
    "secure_known_least": 1,
    "secure_steady": True,
}


@pytest.mark.parametrize("key", [k for k in PrivacyDemand.model_fields if k.startswith("secure_")])
def test_each_key_about_sums_reaches_the_device(key: str) -> None:
    if key != "secure_clear":  # about orders, not sums
        demand = PrivacyDemand.model_validate({key: OF_SUMS[key]})
        assert demand.of_sums() != PrivacyDemand().of_sums()


def steady_devices(count: int, policy: OwnersPolicy = STEADY) -> list[Device]:
    return [device(number, policy) for number in range(1, count + 1)]


def summed(
    members: list[Device], round: int, absent: tuple[int, ...] = (), asked: tuple[int, ...] = ()
) -> Site:
    """A round of these members. Their updates are the same in each: the model has hardly moved."""
    begun = start(f"round {round}", (b"model %d" % round,))
    here = Site(members, terms_of(members, begun=begun, attempt=round), begun)
    here.gather_joins()
    here.gather_reports([place for place in here.state.listed if place not in absent])
    here.gather_answers(asked)
    return here


def difference(*signed: tuple[int, Site]) -> np.ndarray:
    """What a combination of sums has of the updates, by weight."""
    values, weight = np.zeros(LENGTH), 0
    for sign, here in signed:
        total = total_of(here.opened(), len(here.state.reported), here.terms.scale)
        values = values + sign * total.values * here.terms.scale.unit
        weight += sign * total.weight
    return values / weight


@pytest.mark.parametrize("absent", [False, True])
@pytest.mark.parametrize("policy", [STEADY, OwnersPolicy()])
def test_two_rounds_that_differ_by_one_member_give_its_update_unless_agents_are_steady(
    policy: OwnersPolicy, absent: bool
) -> None:
    """The coordinator leaves the eighth out, of the terms or as one that did not report."""
    members = steady_devices(8, policy)
    first = summed(members, 1)
    second = summed(members, 2, (8,)) if absent else summed(members[:-1], 2)
    if policy.steady:
        assert not isinstance(second.end, Opened)
        assert newest(members[0]) == (
            at.NOT_STEADY,
            "1 members differ from a sum that was answered, 5 must (secure_steady)",
        )
        assert isinstance(summed(members, 3).end, Opened)  # the same members
    else:
        left = difference((1, first), (-1, second))
        assert np.allclose(left, members[-1].update, atol=1e-5)


def test_the_rule_of_one_agent_protects_the_others_and_theirs_protects_it() -> None:
    alone = [*steady_devices(7, OwnersPolicy()), device(8, STEADY)]
    left = difference((1, summed(alone, 1)), (-1, summed(alone[:-1], 2)))
    assert np.allclose(left, alone[-1].update, atol=1e-5)
    others = [*steady_devices(7), device(8)]
    summed(others, 1)
    assert not isinstance(summed(others[:-1], 2).end, Opened)


def test_pairs_are_compared_and_four_sums_can_still_be_combined() -> None:
    """The limit of the rule: blocks p, q, r, s of four and one further agent, (p q one) + (r s) - (p r) - (q s)."""
    members = steady_devices(17)
    p, q, r, s, one = members[:4], members[4:8], members[8:12], members[12:16], members[16:]
    with_one, *others = (
        summed(some, number)
        for number, some in enumerate(([*p, *q, *one], [*r, *s], [*p, *r], [*q, *s]), start=1)
    )
    assert not any(member.refusals for member in members)
    left = difference((1, with_one), (1, others[0]), (-1, others[1]), (-1, others[2]))
    assert np.allclose(left, one[0].update, atol=1e-5)


def test_a_coordinator_that_asks_others_gets_a_sum_that_more_than_one_member_lacks() -> None:
    """The limit of the rule: only the colluder, which forgets, answers both sums; 7 and 8 are left together."""
    members = steady_devices(8)
    first = summed(members, 1, asked=(1, 2, 3, 7, 8))
    members[0].state = AgentState()
    second = summed(members[:6], 2, asked=(1, 4, 5, 6))
    left = difference((1, first), (-1, second))
    assert np.allclose(
        left, np.average([m.update for m in members[6:]], axis=0, weights=(7, 8)), atol=1e-5
    )
    members = steady_devices(8)
    summed(members, 1, asked=(1, 2, 3, 7, 8))
    members[0].state = AgentState()
    assert not isinstance(summed(members[:7], 2, asked=(1, 4, 5, 6)).end, Opened)  # but not 8 alone


def named(*agents: int) -> list[bytes]:
    return [name_of_agent("farm", f"a{agent}") for agent in agents]


def test_a_sum_has_the_members_of_an_earlier_one_or_differs_by_the_larger_number() -> None:
    kept = Memberships().with_sum(named(*range(6)), 4)
    assert kept.fault(named(*range(6)), 4) is None
    assert (
        kept.fault(named(*range(2, 6), 8), 3) is not None
    )  # by three, where one of both asks for four
    assert kept.fault(named(*range(2, 6), 8), 4) is not None
    assert kept.fault(named(*range(2, 6), 8, 9), 4) is None
    assert kept.fault(named(*range(2, 6), 8, 9), 5) is not None


def test_the_order_of_members_and_of_sums_does_not_matter() -> None:
    kept = Memberships().with_sum(named(3, 1, 2), 3).with_sum(named(9, 8, 7), 3)
    assert kept.fault(named(2, 3, 1), 3) is None
    assert "1 members differ" in (kept.fault(named(7, 8), 3) or "")
    assert len(kept.with_sum(named(2, 3, 1), 3).sums) == 2


def test_a_restarted_agent_knows_the_sums_that_it_has_answered(tmp_path: Path) -> None:
    members = steady_devices(8)
    summed(members, 1)
    for member in members:
        place = tmp_path / member.name
        SecureFolder(place, member.machine.identity, simulated=True).save(member.state)
        member.state = SecureFolder(place, member.machine.identity, simulated=True).state()
        member.take(member.machine.closed(member.state))
    assert not isinstance(summed(members[:-1], 2).end, Opened)


@pytest.mark.parametrize(("most", "count"), [("MOST_SUMS", 1), ("MOST_AGENTS", 8)])
def test_a_full_memory_answers_the_members_that_it_has_alone(
    most: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memberships, most, count)
    members = steady_devices(16)
    summed(members[:8], 1)
    summed([*members[:3], *members[8:]], 2)
    assert members[0].refused == at.NOT_STEADY
    assert "full" in members[0].refusals[-1].detail
    assert isinstance(summed(members[:8], 3).end, Opened)
