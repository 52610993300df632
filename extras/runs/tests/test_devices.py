"""The state of an agent, as its roster has it and as the device states itself."""

from __future__ import annotations

from covey.coordinator.serve.roster import Roster
from covey.extras.runs.devices import NOT_KNOWN, device_of, rows_now
from covey.extras.runs.state import agent_state, reason
from covey.shared.wire.documents import EXPELLED, AgentStatus
from tests.coordinator.test_roster import seen, status


def test_a_device_that_left_in_order_is_not_offline() -> None:
    roster = Roster("t")
    seen(roster, status())
    for serial, state in ((0, "offline"), (3, "left")):
        seen(roster, status(online=False, serial=serial))
        assert agent_state(roster.rows({})["a"]) == state


def test_who_was_expelled_is_no_member_also_after_the_broker_lost_its_store() -> None:
    gone = {**NOT_KNOWN, "problem": EXPELLED}
    roster = {"gw-1": NOT_KNOWN, "gw-2": gone}
    for between_runs in (True, False):
        assert list(rows_now(roster, {}, between_runs=between_runs)) == ["gw-1"]
        back = device_of(AgentStatus(agent="gw-2", session="s", serial=1, online=True)).to_json()
        rows = rows_now(roster, {"gw-2": back}, between_runs=between_runs)
        assert list(rows) == ["gw-1", "gw-2"], "it was enrolled again"


def test_a_reason_names_an_agent_that_no_figure_counts() -> None:
    assert reason({"samples": 4, "test_samples": 0}) == "no test samples: no figure counts it"
    assert reason({"samples": 4, "test_samples": 1}) == reason({}) == ""
