"""Who is there: live statuses, roll calls, last wills."""

from __future__ import annotations

from typing import Any

from covey.coordinator.engine.events import Joined, Left
from covey.coordinator.record.records import sizes
from covey.coordinator.serve.roster import Roster
from covey.shared.wire.documents import EXPELLED, AgentStatus


def status(online: bool = True, session: str = "s1", **changes: Any) -> AgentStatus:
    base = {
        "agent": "a",
        "session": session,
        "online": online,
        "task": "t",
        "samples": 5,
        "epoch": "e1",
    }
    return AgentStatus.model_validate(base | changes)


def seen(roster: Roster, one: AgentStatus, *, retained: bool = False) -> list[Joined | Left]:
    return roster.seen(one, retained=retained, epoch="e1", now=0.0)


def test_a_live_agent_whose_data_fits_has_joined() -> None:
    assert seen(Roster("t"), status()) == [Joined("a")]


def test_a_live_status_counts_before_it_answers_the_roll_call() -> None:
    assert seen(Roster("t"), status(epoch="")) == [Joined("a")]


def test_a_retained_status_counts_only_if_it_answers_the_roll_call() -> None:
    roster = Roster("t")
    assert seen(roster, status(epoch="old"), retained=True) == []
    assert seen(roster, status(), retained=True) == [Joined("a")]


def test_the_last_will_of_the_present_session_takes_an_agent_away() -> None:
    roster = Roster("t")
    seen(roster, status())
    assert seen(roster, status(online=False)) == [Left("a")]
    assert roster.entries["a"].status.samples == 5


def test_once_all_agents_have_left_the_roster_names_them_and_when_each_was_heard() -> None:
    roster = Roster("t")
    assert roster.departures() == ""
    roster.seen(status(), retained=False, epoch="e1", now=86_400.0 * 365)
    assert roster.departures() == ""
    seen(roster, status(online=False))
    assert roster.departures().startswith("all agents have left; last heard: a at 197")


def test_the_last_will_of_an_older_session_changes_nothing() -> None:
    roster = Roster("t")
    seen(roster, status(session="s2"))
    assert seen(roster, status(online=False, session="s1")) == []
    assert roster.entries["a"].here


def test_an_agent_whose_data_was_not_checked_against_this_task_stays_out() -> None:
    assert seen(Roster("t"), status(task="")) == []
    assert seen(Roster("t"), status(task="other")) == []


def test_an_agent_with_a_problem_is_listed_and_stays_out() -> None:
    roster = Roster("t")
    assert seen(roster, status(problem="no column 'label'")) == []
    assert roster.rows({})["a"]["problem"] == "no column 'label'"


def test_an_agent_that_stops_fitting_has_left() -> None:
    roster = Roster("t")
    seen(roster, status())
    assert seen(roster, status(problem="the file is gone")) == [Left("a")]


def test_refusals_are_counted_by_reason_and_by_sender() -> None:
    roster = Roster("t")
    seen(roster, status())
    roster.refuse("checksum", "a")
    roster.refuse("checksum", "stranger")
    assert roster.refusals == {"checksum": 2}
    assert roster.rows({"a": 1})["a"]["refusals"] == {"checksum": 1}
    assert roster.rows({"a": 1})["a"]["cluster"] == 1


def test_a_status_that_was_overtaken_by_a_newer_one_changes_nothing() -> None:
    roster = Roster("t")
    seen(roster, status(serial=2))
    assert seen(roster, status(serial=1, task="")) == []
    assert roster.entries["a"].here
    assert seen(roster, status(session="s2", serial=1)) == [
        Joined("a")
    ]  # a new start has a count of its own


def test_an_agent_was_last_seen_when_it_sent_something_and_not_when_its_last_will_came() -> None:
    roster = Roster("t")
    roster.seen(status(), retained=False, epoch="e1", now=10.0)
    roster.reported("a", 20.0, worked=True)
    roster.seen(status(online=False), retained=False, epoch="e1", now=99.0)
    assert roster.rows({})["a"]["seen"] == 20.0


def test_an_agent_that_is_known_by_a_retained_will_alone_was_never_seen() -> None:
    roster = Roster("t")
    roster.seen(status(online=False), retained=True, epoch="e1", now=10.0)
    assert roster.rows({})["a"]["seen"] is None


def test_failures_in_a_row_are_counted_until_a_report_has_work() -> None:
    roster = Roster("t")
    seen(roster, status())
    for now in (1.0, 2.0):
        roster.reported("a", now, worked=False)
        roster.failed("a", "no such file")
    row = roster.rows({})["a"]
    assert (row["failures"], row["failed"]) == (2, "no such file")
    roster.reported("a", 3.0, worked=True)
    row = roster.rows({})["a"]
    assert (row["failures"], row["failed"]) == (0, "no such file")


def test_no_agent_is_busy_in_the_roster_of_a_run_that_is_over() -> None:
    roster = Roster("t")
    seen(roster, status(busy=True))
    assert roster.rows({})["a"]["busy"]
    assert not roster.rows({}, over=True)["a"]["busy"]


def test_nobody_waits_for_an_agent_that_was_expelled_and_no_cluster_counts_it() -> None:
    for first in (
        status(online=False),
        None,
    ):  # the broker cuts it off before or after it names why
        roster = Roster("t")
        seen(roster, status())
        if first is not None:
            assert seen(roster, first) == [Left("a")]
        assert seen(roster, status(online=False, problem=EXPELLED)) == [Left("a", at_once=True)]
        assert seen(roster, status(online=False, problem=EXPELLED)) == [], "it is gone"
        assert sizes({"a": 0, "b": 0, "c": 1}, roster.members.expelled) == {"0": 1, "1": 1}
        assert seen(roster, status(session="s2")) == [Joined("a")], "it was enrolled again"
        assert sizes({"a": 0}, roster.members.expelled) == {"0": 1}


def test_a_lost_device_of_a_resumed_run_was_heard_when_the_run_before_heard_it() -> None:
    roster = Roster("t")
    roster.before = {"a": 1234.5}
    roster.seen(status(online=False), retained=True, epoch="e2", now=9e9)
    assert roster.rows({})["a"]["seen"] == 1234.5
    roster.forget("a")
    roster.seen(status(online=False), retained=True, epoch="e2", now=9e9)
    assert roster.rows({})["a"]["seen"] is None
