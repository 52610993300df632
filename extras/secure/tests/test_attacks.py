"""Each attack on a sum that is known, with its outcome: what agents and coordinator refuse, and what they give in reasons."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from covey.extras.secure import agent as at
from covey.extras.secure import coordinator as co
from covey.extras.secure import derivation as de
from covey.extras.secure.agent_state import KEPT_BOXES, Refuse, SecureIdentity, SendAnswer, SendJoin
from covey.extras.secure.locks import SUMMED_BEFORE, Lock
from covey.extras.secure.messages import (
    Answer,
    CellInbox,
    Entry,
    Join,
    JoinList,
    Member,
    ReportHead,
    Terms,
    UnmaskList,
)
from covey.extras.secure.owners_policy import OwnersPolicy
from covey.extras.secure.parameters import Group, group_of, noised_scale
from covey.extras.secure.primitives import hashed, signature, signing_key
from covey.extras.secure.tests.group import (
    LENGTH,
    NOW,
    Device,
    Site,
    copy_of,
    device,
    devices,
    entry_of,
    expelled_of,
    killed,
    site,
    site_at,
    start,
    terms_of,
    token_of,
)
from covey.shared.errors import DecodeError
from covey.shared.wire.framing import VERSION, Packed, checksum_of
from tests.night import examples

SMALL_ORDER = [bytes(32), b"\x01" + bytes(31)]


def offered(members: list[Device], terms: Terms, begun: de.OrderStart | None = None) -> str:
    """The reason for which the first member refuses these terms; empty if it joins."""
    first = members[0]
    first.refusals.clear()
    sent = first.join(terms.to_bytes(), begun)
    assert bool(sent) != bool(first.refusals)
    return first.refused


def without(listing: bytes, place: int) -> bytes:
    """The list without one member."""
    joined = JoinList.from_bytes(listing)
    rows = [row for row in joined.rows if row.place != place]
    return joined.model_copy(update={"rows": rows}).to_bytes()


def inbox_for(here: Site, listing: bytes, place: int) -> bytes:
    """The true cells for a member, under another list."""
    dealers = [row.place for row in JoinList.from_bytes(listing).rows if row.place != place]
    cells = b"".join(here.state.joins[dealer].pair_for(place) for dealer in dealers)
    return CellInbox(listing=de.name_of_list(listing), cells=cells).to_bytes()


def unmask_of(here: Site, places: list[int]) -> bytes:
    """The unmask list with the true reports of these members."""
    rows = [de.row_of_head(here.state.heads[place]) for place in places]
    return UnmaskList(listing=de.name_of_list(here.state.listing), rows=rows).to_bytes()


# -- joins -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"threshold": 3}, "unsafe terms"),  # 2 t <= n + c
        ({"least": 3}, "unsafe terms"),  # below the threshold
        ({"colluders": 3}, "unsafe terms"),
        ({"levels": 2**30}, "unsafe terms"),  # sums could overflow
        ({"cap": 2**30}, "unsafe terms"),
        ({"deviation": 3.0}, "unsafe terms"),  # weights under noise; too coarse
        ({"multiplier": 1.0}, "unsafe terms"),  # less noise than is said
        ({"cap": 1, "deviation": 20.0, "multiplier": 1.0}, "unsafe terms"),
        ({"start": bytes(32)}, "another start"),
        ({"federation": "other"}, "another federation"),
    ],
)
def test_terms_that_do_not_protect_are_refused(change: dict[str, Any], reason: str) -> None:
    members = devices(5)
    assert offered(members, terms_of(members).model_copy(update=change)) == reason
    assert offered(members, terms_of(members)) == ""


def test_a_group_below_three_shares_is_refused() -> None:
    members = devices(3)
    terms = terms_of(members, group=Group(3, 2, 0, 2))
    assert offered(members, terms) == "unsafe terms"


@pytest.mark.parametrize(
    ("policy", "refused"),
    [
        (OwnersPolicy(least=5), True),
        (OwnersPolicy(least=4), False),
        (OwnersPolicy(colluders=0.5), True),
        (OwnersPolicy(clip=0.5), True),
        (OwnersPolicy(multiplier=1.0), True),
        (OwnersPolicy(most_spent=1.0), True),
        (OwnersPolicy(known=frozenset({"a02", "a09"}), known_least=2), True),
        (OwnersPolicy(known=frozenset({"a02", "a03"}), known_least=2), False),
    ],
)
def test_terms_below_the_owners_bounds_are_refused(policy: OwnersPolicy, refused: bool) -> None:
    members = [device(1, policy), *devices(5)[1:]]
    assert offered(members, terms_of(members)) == ("owner" if refused else "")


def test_another_model_for_one_member_is_refused() -> None:
    members = devices(5)
    other = start(models=(b"another model",))
    assert offered(members, terms_of(members), other) == "another start"


def test_terms_of_its_own_for_one_member_give_a_join_that_does_not_count() -> None:
    here = site(5)
    other = here.terms.model_copy(update={"sum": bytes(16)})
    (sent,) = here.members[0].join(other.to_bytes())
    assert isinstance(sent, SendJoin)
    with pytest.raises(DecodeError, match="another sum"):
        here.machine.joined(here.state, sent.content)


def test_an_old_box_is_refused_by_its_owner() -> None:
    members = devices(5)
    old = terms_of(members)
    for _ in range(KEPT_BOXES):
        members[0].show_box()
    assert offered(members, old) == "unknown box"


def test_a_box_is_used_once() -> None:
    members = devices(5)
    first = terms_of(members)
    assert offered(members, first) == ""
    assert offered(members, first.model_copy(update={"sum": bytes(16)})) == "unknown box"


def test_a_box_that_its_member_did_not_sign_is_refused() -> None:
    members = devices(5)
    terms = terms_of(members)
    stranger = device(9).show_box().box
    forged = [*terms.members[:4], terms.members[4].model_copy(update={"box": stranger})]
    assert offered(members, terms.model_copy(update={"members": forged})) == "box"


@pytest.mark.parametrize("key", SMALL_ORDER)
def test_a_box_of_small_order_is_refused(key: bytes) -> None:
    members = devices(5)
    terms = terms_of(members)
    last = members[4]
    signed = de.signed_of_box("farm", last.name, 1, key)
    secret = last.machine.identity.secret
    box = terms.members[4].box.model_copy(
        update={"key": key, "number": 1, "signature": signature(secret, signed)}
    )
    bad = [*terms.members[:4], terms.members[4].model_copy(update={"box": box})]
    assert offered(members, terms.model_copy(update={"members": bad})) == "bad key"
    assert members[0].state.sum is None


def with_entry(members: list[Device], place: int, entry: Entry) -> str:
    """The reason for which the first member refuses terms in which a member has another entry."""
    terms = terms_of(members)
    changed = list(terms.members)
    member = Member.of(entry, changed[place - 1].box)
    changed[place - 1] = member.model_copy(update={"agent": changed[place - 1].agent})
    first = members[0]
    first.join(terms.model_copy(update={"members": changed}).to_bytes())
    return first.refused


def test_entries_that_the_fleet_key_did_not_sign_or_that_ran_out_are_refused() -> None:
    members = devices(5)
    key = members[4].machine.entry.key
    assert with_entry(members, 5, entry_of("a05", 5, key, secret=bytes(32))) == "entry"
    assert with_entry(members, 5, entry_of("a06", 6, key)) == "entry"  # of another agent
    old = members[4].machine.entry.model_copy(update={"until": int(NOW) - 1})
    signed = signature(bytes(range(32)), de.signed_of_entry(old))
    assert with_entry(members, 5, old.model_copy(update={"signature": signed})) == "entry"
    assert "is not valid now" in members[0].refusals[-1].detail


def test_one_key_under_two_names_is_refused() -> None:
    members = devices(5)
    key = members[3].machine.entry.key
    box = members[4].machine.identity.secret
    assert box
    double = Device(
        "a05",
        at.SecureAgent(
            SecureIdentity(
                entry_of("a05", 5, key).to_bytes(),
                members[3].machine.identity.secret,
                members[3].machine.identity.fleet,
            ),
            OwnersPolicy(),
        ),
        token_of("double"),
        members[4].update,
    )
    fleet = [*members[:4], double]
    assert offered(fleet, terms_of(fleet)) == "same key"


def test_an_expelled_member_is_refused_also_after_an_older_list() -> None:
    members = devices(5)
    first = members[0]
    first.take(first.machine.new_expelled(first.state, expelled_of(2, [5])))
    assert offered(members, terms_of(members)) == "entry"
    assert "is expelled" in first.refusals[-1].detail
    first.take(first.machine.new_expelled(first.state, expelled_of(1, [])))
    assert offered(members, terms_of(members)) == "entry"
    first.take(first.machine.new_expelled(first.state, expelled_of(3, [], secret=bytes(32))))
    assert offered(members, terms_of(members)) == "entry"
    first.take(first.machine.new_expelled(first.state, expelled_of(3, [])))
    assert offered(members, terms_of(members)) == ""


def test_the_coordinator_refuses_joins_that_others_made_or_that_are_replayed() -> None:
    here = site_at("join", 5)
    again = Site(here.members, terms_of(here.members, attempt=2))
    join = here.state.joins[2]
    with pytest.raises(DecodeError, match="another sum"):
        again.machine.joined(again.state, join.to_bytes())
    replayed = join.model_copy(update={"terms": again.machine.name})
    with pytest.raises(DecodeError, match="secure signature"):
        again.machine.joined(again.state, replayed.to_bytes())


@pytest.mark.parametrize("key", SMALL_ORDER)
def test_the_coordinator_refuses_a_join_of_small_order(key: bytes) -> None:
    here = site(5)
    with pytest.raises(DecodeError, match="bad key"):
        here.machine.joined(here.state, signed_join(here, 2, mask_key=key).to_bytes())


def test_the_coordinator_refuses_the_mask_key_of_another() -> None:
    here = site(5)
    here.receive(here.members[0].join(here.content), 1)
    copied = signed_join(here, 2, mask_key=here.state.joins[1].mask_key)
    with pytest.raises(DecodeError, match="another member has this mask key"):
        here.machine.joined(here.state, copied.to_bytes())


def signed_join(here: Site, place: int, **fields: Any) -> Join:
    """A join with other fields, signed by its member."""
    member = here.members[place - 1]
    (sent,) = member.join(here.content)
    assert isinstance(sent, SendJoin)
    join = Join.from_bytes(sent.content).model_copy(update=fields)
    message = de.signed_of_join(join.terms, place, join.mask_key, de.commitment_of(join))
    return join.model_copy(update={"signature": signature(member.machine.identity.secret, message)})


# -- lists -------------------------------------------------------------------------------------------------------------


def test_a_second_list_is_refused() -> None:
    here = site_at("join", 6)
    first = here.members[0]
    first.train(here.begun, here.terms.scale)
    assert first.take_list(here.state.listing, here.inbox(1))
    other = without(here.state.listing, 6)
    assert first.take_list(other, inbox_for(here, other, 1)) == []
    assert first.refused == at.ANOTHER_LIST


def test_a_list_without_the_own_join_is_refused() -> None:
    here = site_at("join", 6)
    first = here.members[0]
    other = without(here.state.listing, 1)
    assert first.take_list(other, here.inbox(1)) == []
    assert first.refused == "not listed"


def test_a_list_below_the_least_number_is_refused() -> None:
    here = site_at("join", 5)
    other = without(without(here.state.listing, 5), 4)
    assert here.members[0].take_list(other, inbox_for(here, other, 1)) == []
    assert here.members[0].refused == "list"


@pytest.mark.parametrize("name", ["mask_key", "commitment", "signature", "place"])
def test_a_list_with_a_changed_row_is_refused(name: str) -> None:
    here = site_at("join", 5)
    joined = JoinList.from_bytes(here.state.listing)
    row = joined.rows[1]
    value = 1 if name == "place" else getattr(joined.rows[2], name)
    rows = [joined.rows[0], row.model_copy(update={name: value}), *joined.rows[2:]]
    other = joined.model_copy(update={"rows": rows}).to_bytes()
    assert here.members[0].take_list(other, inbox_for(here, here.state.listing, 1)) == []
    assert here.members[0].refused == "list"


@pytest.mark.parametrize("key", SMALL_ORDER)
def test_a_listed_mask_key_of_small_order_is_refused(key: bytes) -> None:
    """A colluder signs it, and the coordinator lists it."""
    here = site_at("join", 5)
    bad = signed_join(Site(here.members, here.terms), 5, mask_key=key)
    joined = JoinList.from_bytes(here.state.listing)
    rows = [*joined.rows[:4], de.row_of_join(bad)]
    other = joined.model_copy(update={"rows": rows}).to_bytes()
    assert here.members[0].take_list(other, inbox_for(here, other, 1)) == []
    assert here.members[0].refused == "bad key"


def test_cells_that_do_not_open_are_reported_and_too_many_make_the_sum_void() -> None:
    here = site_at("join", 5)
    for place in range(1, 6):
        cells = CellInbox.from_bytes(here.inbox(place))
        spoiled = bytes(98) + cells.cells[98:] if place != 1 else cells.cells
        inbox = cells.model_copy(update={"cells": spoiled}).to_bytes()
        member = here.members[place - 1]
        member.train(here.begun, here.terms.scale)
        here.receive(member.take_list(here.state.listing, inbox), place)
    assert here.state.heads[2].lacking == [1]
    here.take(here.machine.reports_closed(here.state, 5, is_last_call=True))
    assert here.end == co.SumVoid("cells do not open", (1,))


# -- unmask lists ------------------------------------------------------------------------------------------------------


def test_an_unmask_list_that_calls_all_but_a_few_missing_is_refused() -> None:
    here = site_at("report", 8)
    few = unmask_of(here, [1, 2, 3])
    assert here.members[0].unmask(few) == []
    assert here.members[0].refused == "unmask list"


def test_who_reported_and_is_called_missing_does_not_answer_and_the_sum_is_without_it() -> None:
    here = site_at("report", 8)
    victim = here.members[0]
    here = copy_of(here, state=replace(here.state, unmask=unmask_of(here, [2, 3, 4, 5, 6, 7, 8])))
    assert victim.unmask(here.state.unmask) == []
    assert victim.refused == "not in the sum"
    here.gather_answers()
    assert here.opened().tobytes() == here.plain(range(2, 9)).tobytes()


def test_who_is_missing_cannot_be_called_reported() -> None:
    here = site_at("join", 6)
    here.gather_reports([1, 2, 3, 4, 5])
    unmask = UnmaskList.from_bytes(here.state.unmask)
    made_up = unmask.rows[0].model_copy(update={"place": 6})
    forged = unmask.model_copy(update={"rows": [*unmask.rows, made_up]}).to_bytes()
    assert here.members[0].unmask(forged) == []
    assert here.members[0].refused == "unmask list"


def test_a_second_unmask_list_is_refused_and_the_first_one_answered_with_the_same_bytes() -> None:
    here = site_at("report", 6)
    first = here.members[0]
    answered = first.unmask(here.state.unmask)
    assert answered
    assert first.unmask(unmask_of(here, [1, 2, 3, 4, 5])) == []
    assert first.refused == at.ANOTHER_UNMASK
    assert first.unmask(here.state.unmask) == answered


def test_an_unmask_list_before_the_own_report_is_refused() -> None:
    here = site_at("report", 5)
    late = Site(devices(5), here.terms)
    assert late.members[0].unmask(here.state.unmask) == []
    assert late.members[0].refused == "no sum"


def test_an_answer_that_its_member_did_not_sign_does_not_count() -> None:
    here = site_at("report", 5)
    (sent,) = here.members[0].unmask(here.state.unmask)
    assert isinstance(sent, SendAnswer)
    answer = Answer.from_bytes(sent.content)
    forged = answer.model_copy(update={"keys": bytes(len(answer.keys))})
    with pytest.raises(DecodeError, match="secure signature"):
        here.machine.answered(here.state, forged.to_bytes())


def test_reports_and_answers_of_an_earlier_attempt_do_not_count_in_the_next_one() -> None:
    """Its list has the same members; the sums, and so all names, differ."""
    first = site_at("report", 5)
    (answer,) = first.members[0].unmask(first.state.unmask)
    assert isinstance(answer, SendAnswer)
    members = devices(5)  # the same keys
    again = Site(members, terms_of(members, attempt=2))
    again.gather_joins()
    with pytest.raises(DecodeError, match="another list"):
        again.machine.reported(again.state, first.state.heads[1].to_bytes())
    again.gather_reports()
    with pytest.raises(DecodeError, match="another unmask list"):
        again.machine.answered(again.state, answer.content)


def test_keys_that_open_nothing_leave_the_sum_to_the_other_answers() -> None:
    here = site_at("report", 5)
    liar = here.members[0]
    (sent,) = liar.unmask(here.state.unmask)
    assert isinstance(sent, SendAnswer)
    answer = Answer.from_bytes(sent.content)
    keys = bytes(len(answer.keys))
    message = de.signed_of_answer(answer.unmask, 1, keys, answer.share)
    signed = signature(liar.machine.identity.secret, message)
    false = answer.model_copy(update={"keys": keys, "signature": signed})
    here.receive([SendAnswer(false.to_bytes())], 1)
    here.gather_answers([2, 3, 4])
    assert here.end == co.PassedOver("the cells of a member do not open")
    more = site_at("report", 5)
    more.receive([SendAnswer(false.to_bytes())], 1)
    more.gather_answers([2, 3, 4, 5])
    assert more.opened().tobytes() == more.plain(range(1, 6)).tobytes()


# -- repetitions -------------------------------------------------------------------------------------------------------


def test_void_and_repeat_after_an_answer_is_refused() -> None:
    here = site_at("answer", 6)
    fewer = here.members[:5]
    assert offered(fewer, terms_of(fewer, attempt=2)) == SUMMED_BEFORE


def test_the_same_scenario_a_second_time_is_refused_until_the_next_round() -> None:
    members = site_at("answer", 5).members
    for member in members:
        member.take(member.machine.closed(member.state))
    assert offered(members, terms_of(members, run="run-2")) == SUMMED_BEFORE
    later = start("round 2", (b"a trained model",))
    assert offered(members, terms_of(members, run="run-2", begun=later), later) == ""


@pytest.mark.parametrize(("count", "least"), [(6, 6), (6, 5), (5, 5), (7, 7)])
def test_the_same_models_are_summed_again_with_the_same_members_alone(
    count: int, least: int
) -> None:
    """All of them must report: else the unmask list could leave one out."""
    members = devices(7)
    for attempt, chosen in enumerate((members[:6], members[:count]), 1):
        begun = start(f"round {attempt}")
        most = min(least, len(chosen))
        terms = terms_of(chosen, begun=begun, attempt=attempt, least=most)
        here = Site(chosen, terms, begun)
        here.gather_joins()
        here.gather_reports()
        here.gather_answers()
    may = (count, least) == (6, 6)
    assert members[0].refused == ("" if may else SUMMED_BEFORE)
    assert isinstance(here.end, co.Opened) == may


def test_no_lock_is_forgotten_and_a_hundred_thousand_take_ten_megabytes() -> None:
    here = site_at("answer", 6)
    member = here.members[0]
    names = [number.to_bytes(16, "little") for number in range(100_000)]
    many = b"".join(Lock(name, name, name, hashed("m", name)).packed() for name in names)
    member.state = member.state.changed(locks=member.state.locks + many, sum=None)
    assert len(member.state.to_bytes()) < 10_000_000
    again = Site(here.members[:5], terms_of(here.members[:5], attempt=2))
    again.gather_joins([1])
    assert member.refused == SUMMED_BEFORE


def test_a_coordinator_restored_from_an_older_copy_gets_no_second_sum() -> None:
    here = site_at("join", 6)
    joins = [record for record in here.records if record.name not in ("list", "join-6")]
    here.gather_reports()
    here.gather_answers()
    state = here.machine.restored(joins)
    old = copy_of(here, state=state, records=list(joins), log=[])
    old.take(old.machine.joins_closed(state))
    assert old.state.listing != here.state.listing
    first = here.members[0]
    assert first.take_list(old.state.listing, old.inbox(1)) == []
    assert first.refused == at.ANOTHER_LIST
    assert offered(here.members, terms_of(here.members, attempt=2)) == SUMMED_BEFORE


def test_a_killed_coordinator_publishes_the_same_bytes_and_opens_the_same_sum() -> None:
    here = site_at("report", 6)
    again = killed(here)
    published = [
        effect for effect in here.log if isinstance(effect, co.PublishToMembers | co.FillInbox)
    ]
    assert [
        e for e in again.log[len(here.log) :] if type(e) in (co.PublishToMembers, co.FillInbox)
    ] == (published)
    again.gather_answers()
    assert again.opened().tobytes() == here.plain(range(1, 7)).tobytes()
    assert killed(again).end == again.end


def test_the_end_of_a_sum_survives_a_kill() -> None:
    void = site(5)
    void.gather_joins([1, 2])
    assert killed(void).end == void.end
    passed = site_at("report", 5)
    passed.gather_answers([1])
    assert killed(passed).end == passed.end


# -- disks and time ----------------------------------------------------------------------------------------------------


def test_nothing_is_sent_that_is_not_on_disk() -> None:
    here = site(5)
    first = here.members[0]
    first.disk_is_full = True
    here.gather_joins()
    assert first.sent == []
    assert first.state.sum is None
    again = site_at("join", 5)
    first = again.members[0]
    first.train(again.begun, again.terms.scale)
    first.disk_is_full = True
    assert first.take_list(again.state.listing, again.inbox(1)) == []
    first.disk_is_full = False
    again.gather_reports()
    first.disk_is_full = True
    assert first.unmask(again.state.unmask) == []
    assert first.state.locks == b""
    first.disk_is_full = False
    assert first.unmask(again.state.unmask)


def test_secrets_leave_the_disk_as_soon_as_they_are_not_needed() -> None:
    here = site_at("join", 5)
    first = here.members[0]
    joined = first.state.sum
    assert joined is not None
    here.gather_reports()
    reported = first.state
    assert reported.sum is not None
    for secret in (joined.seed, joined.mask_secret, joined.box_secret):
        assert secret not in reported.to_bytes()
    keys = (reported.sum.own_share, reported.sum.seed_keys[:32], reported.sum.mask_keys[:32])
    here.gather_answers()
    for secret in (*keys[:1], keys[2]):
        assert secret not in first.state.model_copy(update={"sum": None}).to_bytes()
    assert first.state.sum is not None
    assert first.state.sum.mask_keys == b""
    first.take(first.machine.closed(first.state))
    left = first.state.model_dump()
    assert left["sum"] is None
    assert left["vectors"] == []
    assert first.vectors == {}


def test_a_damaged_vector_is_a_failure_and_nothing_else_is_sent_for_the_terms() -> None:
    here = site_at("join", 5)
    here.gather_reports()
    first = here.members[0]
    first.take(first.machine.lost(first.state))
    assert first.refused == "lost vector"
    assert first.unmask(here.state.unmask) == []
    assert offered(here.members, here.terms) in ("left before", "unknown box")
    assert first.take_list(here.state.listing, here.inbox(1)) == []


def test_a_second_vector_for_one_start_is_a_failure() -> None:
    here = site_at("join", 5)
    first = here.members[0]
    first.train(here.begun, here.terms.scale)
    first.take(first.machine.made(first.state, here.begun.digest, bytes(32), here.terms.scale))
    assert first.refused == "another vector"
    assert first.state.sum is None


def test_another_scale_for_a_vector_that_was_made_is_refused() -> None:
    here = site_at("join", 5)
    here.gather_reports([1, 2, 3])
    assert offered(here.members, terms_of(here.members, attempt=2, clip=2.0)) == "another scale"
    assert offered(here.members, terms_of(here.members, attempt=3)) == ""


def test_a_second_masked_vector_for_the_same_terms_is_a_failure() -> None:
    here = site_at("report", 5)
    first = here.members[0]
    assert first.take(first.machine.masked(first.state, here.machine.name, bytes(32))) == []
    assert first.refused == "another masked vector"


def test_a_sum_is_forgotten_when_its_time_has_run_out() -> None:
    here = site_at("report", 5)
    first = here.members[0]
    first.take(first.machine.tick(first.state, NOW + 3599.0))
    assert first.state.sum is not None
    first.take(first.machine.tick(first.state, NOW + 3600.0))
    assert first.state.sum is None
    assert first.unmask(here.state.unmask) == []


def test_the_second_copy_of_an_agent_gets_no_place_in_the_sum() -> None:
    here = site(5)
    first = here.members[0]
    copy = Device(first.name, first.machine, token_of("copy"), first.update, state=first.state)
    here.receive(first.join(here.content), 1)
    (sent,) = copy.join(here.content)
    assert isinstance(sent, SendJoin)
    with pytest.raises(DecodeError, match="has another one"):
        here.machine.joined(here.state, sent.content)
    for place in (2, 3, 4, 5):
        here.receive(here.members[place - 1].join(here.content), place)
    copy.train(here.begun, here.terms.scale)
    assert copy.take_list(here.state.listing, here.inbox(1)) == []
    assert copy.refused == "not listed"


def test_the_account_of_an_agent_counts_each_report() -> None:
    here = site_at("join", 5)
    first = here.members[0]
    noised = Terms.from_bytes(here.content).model_copy(update={"multiplier": 2.0}).to_bytes()
    first.train(here.begun, here.terms.scale)
    own = first.state.sum
    assert own is not None
    # the list was made for the terms without noise: the account alone is looked at
    listed = first.machine.listed(first.state, here.state.listing, here.inbox(1)).state
    assert listed.sum is not None
    with_noise = listed.changed(sum=listed.sum.model_copy(update={"terms": noised}))
    assert with_noise.sum is not None
    made = first.machine.masked(with_noise, with_noise.sum.name, bytes(32))
    assert made.state.spent == pytest.approx(1 / 8)


def test_a_device_joins_no_sum_that_would_exceed_its_owners_bound_on_privacy() -> None:
    """The account has the reports of all runs."""
    policy = OwnersPolicy(most_spent=1.0)
    for spent, outcome in ((0.5, ""), (0.6, "owner")):
        members = [device(1, policy), *devices(5)[1:]]
        members[0].state = members[0].state.changed(spent=spent)
        scale = noised_scale(group_of(5).honest, LENGTH, 1.0, 1.0)
        noised = {"levels": scale.levels, "deviation": scale.deviation, "multiplier": 1.0, "cap": 1}
        assert offered(members, terms_of(members).model_copy(update=noised)) == outcome


# -- any bytes ---------------------------------------------------------------------------------------------------------


VALUES = st.none() | st.integers(-1, 2**60) | st.binary(max_size=40) | st.text(max_size=3)


@st.composite
def damaged(draw: st.DrawFn, message: Packed) -> bytes:
    """A message in which a field has another value, or a byte."""
    is_whole, is_inside = draw(st.booleans()), draw(st.booleans())
    if not is_whole:
        damaged_bytes = bytearray(message.to_bytes())
        damaged_bytes[draw(st.integers(0, len(damaged_bytes) - 1))] ^= draw(st.integers(1, 255))
        return bytes(damaged_bytes)
    fields = message.model_dump()
    name = draw(st.sampled_from(sorted(fields)))
    value: Any = fields[name]
    match value:
        case list() if value and is_inside:
            index = draw(st.integers(0, len(value) - 1))
            dropped = [*value[:index], *value[index + 1 :]]
            value = draw(st.sampled_from([dropped, [*value, value[index]], value[::-1]]))
        case bytes() if value and is_inside:
            index = draw(st.integers(0, len(value) - 1))
            value = value[:index] + bytes([value[index] ^ 1]) + value[index + 1 :]
        case _:
            value = draw(VALUES)
    body: bytes = msgpack.packb({**fields, name: value}, use_bin_type=True)
    content = bytes([VERSION]) + checksum_of(body) + body
    assume(content != message.to_bytes())
    return content


OFFERED = site(5)
REPORTED = site_at("report", 5)
JOINED = site_at("join", 5)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_damaged_messages_are_refused_by_agents(data: st.DataObject) -> None:
    """Whatever arrives, an agent refuses it, ignores it or repeats what it sent."""
    agent = OFFERED.members[0]
    content = data.draw(damaged(OFFERED.terms))
    made = agent.machine.offered(agent.state, content, start(), NOW, agent.token)
    assert isinstance(made.then[0], Refuse | SendJoin)
    first = JOINED.members[0]
    listing = data.draw(damaged(JoinList.from_bytes(JOINED.state.listing)))
    inbox = data.draw(damaged(CellInbox.from_bytes(JOINED.inbox(1))))
    for one, other in ((listing, JOINED.inbox(1)), (JOINED.state.listing, inbox)):
        made = first.machine.listed(first.state, one, other)
        assert isinstance((*made.then, Refuse(""))[0], Refuse)
    reported = REPORTED.members[0]
    unmask = data.draw(damaged(UnmaskList.from_bytes(REPORTED.state.unmask)))
    made = reported.machine.unmask(reported.state, unmask)
    # one row less may be enough: then the vector is erased first, and the answer comes last
    assert isinstance(made.then[-1], Refuse | SendAnswer)


@settings(max_examples=examples(20), deadline=None)
@given(st.data())
def test_damaged_messages_are_refused_by_the_coordinator(data: st.DataObject) -> None:
    here = REPORTED
    join = data.draw(damaged(here.state.joins[1]))
    with pytest.raises(DecodeError):
        here.machine.joined(here.machine.begun().state, join)
    head: ReportHead = here.state.heads[1]
    before = replace(here.state, unmask=b"", heads={})
    with pytest.raises(DecodeError):
        here.machine.reported(before, data.draw(damaged(head)))
    answer = Answer(
        unmask=de.name_of_unmask(here.state.unmask),
        place=1,
        keys=bytes(4 * 32),
        share=bytes(33),
        signature=bytes(64),
    )
    with pytest.raises(DecodeError):
        here.machine.answered(here.state, data.draw(damaged(answer)))


def test_the_signing_key_of_an_entry_is_that_of_the_device() -> None:
    member = device(1)
    assert member.machine.entry.key == signing_key(member.machine.identity.secret)
