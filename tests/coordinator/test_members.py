"""What the coordinator knows of its agents: kept over a restart, and gone with one deletion."""

from __future__ import annotations

import json
from dataclasses import asdict, fields

from covey.coordinator.engine.members import COLUMNS, Member, Members


def restarted(members: Members) -> Members:
    saved = {**members.engine_json(), "timing": {}}
    return Members.from_json(
        json.loads(json.dumps(saved)), json.loads(json.dumps(members.to_json()))
    )


def test_every_fact_that_a_checkpoint_keeps_of_an_agent_is_there_after_a_restart() -> None:
    members = Members()
    members.join("a")
    for name in COLUMNS:
        setattr(members["a"], name, 7)
    again = restarted(members)
    assert {name: getattr(again["a"], name) for name in COLUMNS} == dict.fromkeys(COLUMNS, 7)


def test_who_was_there_in_quarantine_or_in_trouble_is_so_after_a_restart() -> None:
    members = Members()
    for client in ("a", "b", "c"):
        members.join(client)
    members.leave("a")
    members.bar("b", "not finite")
    members["b"].refused = (3, 8)
    members.note_trouble("c", "failing", 5, 1, "no memory")
    again = restarted(members)
    assert (again.known, again.present) == ({"a", "b", "c"}, {"b", "c"})
    assert (again.trusted, again["b"].quarantine, again["b"].refused) == (
        {"c"},
        "not finite",
        (3, 8),
    )
    assert again.troubles() == members.troubles() != {}


def test_an_agent_that_comes_back_is_new_but_for_its_accepted_step() -> None:
    members = Members()
    for one in fields(Member):
        setattr(members.of("a"), one.name, "a" if one.name == "id" else 7)
    members.forget("a")
    assert restarted(members).accepted("a") == members.accepted("a") == 7
    assert asdict(members.of("a")) == asdict(Member("a", accepted=7))


def test_an_accepted_report_counts_in_a_checkpoint_once_its_step_is_over() -> None:
    members = Members()
    members.join("a")
    members["a"].accepted = 3
    members.accept("a", 4)
    assert (members.accepted("a"), restarted(members).accepted("a")) == (4, 3)
    members.take_back("a")
    assert members.accepted("a") == 3
    members.accept("a", 5)
    members.settle()
    assert restarted(members).accepted("a") == 5
