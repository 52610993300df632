"""The roster of a large fleet: a change of one agent costs one row and one page, and readers see every agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from covey.coordinator.record.roster_files import read_roster, roster_file
from covey.coordinator.serve.roster import PAGE_AGENTS, Roster, RosterPages
from covey.shared.wire.documents import AgentStatus, RosterMessage
from covey.shared.wire.roster_view import RosterView
from covey.shared.wire.topics import Topics

TOPICS = Topics("default")


def pages_of(agents: int, page_agents: int = 3) -> RosterPages:
    pages = RosterPages(page_agents)
    for number in range(agents):
        pages.touch(f"a{number}")
    return pages


def taken(pages: RosterPages) -> dict[int, list[str]]:
    """All pages that wait to be published."""
    found: dict[int, list[str]] = {}
    while (page := pages.take_page()) is not None:
        number, agents = page
        found[number] = list(agents)
    return found


def test_a_small_fleet_has_one_page() -> None:
    assert taken(pages_of(3)) == {0: ["a0", "a1", "a2"]}


def test_a_change_of_one_agent_concerns_its_own_page() -> None:
    pages = pages_of(8)
    assert pages.count == 3
    taken(pages)
    pages.take_changes()
    pages.touch("a4")
    assert pages.take_changes() == ["a4"]
    assert taken(pages) == {1: ["a3", "a4", "a5"]}
    assert not pages.is_stale


def test_the_place_of_a_forgotten_agent_is_taken_by_the_next_newcomer() -> None:
    pages = pages_of(6)
    pages.drop("a1")
    pages.touch("new")
    assert pages.count == 2
    assert taken(pages)[0] == ["a0", "a2", "new"]


def test_an_agent_without_a_row_is_not_touched() -> None:
    pages = RosterPages()
    pages.touch_all(["stranger"])
    pages.drop("stranger")
    assert not pages.is_stale


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12))))
def test_whatever_comes_and_goes_every_agent_is_on_one_page_and_no_page_is_too_long(
    changes: list[tuple[bool, int]],
) -> None:
    pages = RosterPages(3)
    known: set[str] = set()
    for comes, number in changes:
        name = f"a{number}"
        if comes:
            pages.touch(name)
            known.add(name)
        else:
            pages.drop(name)
            known.discard(name)
    pages.touch_all(known)
    members = [agent for page in taken(pages).values() for agent in page]
    assert sorted(members) == sorted(known)
    for agents in pages._members:
        assert len(agents) <= 3


def message(rows: dict[str, Any], pages: int = 1, run: str = "r1") -> RosterMessage:
    return RosterMessage(run=run, agents=rows, pages=pages)


def agents_of(view: RosterView) -> dict[str, Any]:
    found = view.message
    assert found is not None
    return found.agents


def test_a_reader_puts_pages_and_changes_together() -> None:
    view = RosterView()
    assert view.take(TOPICS, TOPICS.roster, message({"a": {"n": 1}}, pages=2).to_bytes())
    assert view.further_topics(TOPICS) == [TOPICS.roster_changes, TOPICS.roster_page(1)]
    assert not view.is_complete
    view.take(TOPICS, TOPICS.roster_page(1), message({"b": {"n": 1}}, pages=2).to_bytes())
    assert view.is_complete
    view.take(TOPICS, TOPICS.roster_changes, message({"b": {"n": 2}}, pages=2).to_bytes())
    assert agents_of(view) == {"a": {"n": 1}, "b": {"n": 2}}
    assert not view.take(TOPICS, TOPICS.metrics, b"{}")


def test_an_empty_row_among_changes_is_an_agent_that_was_forgotten() -> None:
    view = RosterView()
    view.take_page(0, message({"a": {"n": 1}}, pages=2))
    view.take_changes(message({"a": {}}, pages=2))
    assert agents_of(view) == {}


def test_the_first_page_of_another_run_replaces_everything() -> None:
    view = RosterView()
    view.take_page(0, message({"a": {"n": 1}}, pages=2))
    view.take_page(1, message({"b": {"n": 1}}, pages=2))
    view.take_page(0, message({"c": {"n": 1}}, run="r2"))
    assert agents_of(view) == {"c": {"n": 1}}


def test_a_roster_of_one_page_has_the_bytes_that_it_always_had() -> None:
    assert b"pages" not in message({"a": {}}).to_bytes()
    assert b'"pages":2' in message({"a": {}}, pages=2).to_bytes()


def test_the_pages_in_a_folder_are_read_as_one_roster(tmp_path: Path) -> None:
    roster_file(tmp_path).write_bytes(message({"a": {"n": 1}}, pages=3).to_bytes())
    roster_file(tmp_path, 1).write_bytes(message({"b": {"n": 1}}, pages=3).to_bytes())
    roster_file(tmp_path, 2).write_bytes(b"cut sho")
    assert sorted(read_roster(tmp_path).agents) == ["a", "b"]


def test_a_large_fleet_is_published_a_page_at_a_time() -> None:
    roster = Roster("t")
    agents = 3000
    status = AgentStatus(agent="a", session="s", online=True, task="t", samples=5)
    for number in range(agents):
        one = status.model_copy(update={"agent": f"agent-{number:06d}"})
        roster.seen(one, retained=False, epoch="", now=0.0)
    pages = roster.pages
    pages.take_changes()
    taken(pages)
    for number in range(10):
        roster.reported(f"agent-{number:06d}", 1.0, worked=True)
    changed = pages.take_changes()
    assert len(roster.rows({}, agents=changed)) == 10
    page = pages.take_page()
    assert page is not None
    assert len(page[1]) <= PAGE_AGENTS
    assert not pages.is_stale
