"""What agents, brokers and files say never reaches a terminal as control characters."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.wire.documents import RosterMessage
from tests.attacks import rogue
from tests.processes import program, until
from tests.raw_mqtt import Raw, packet

pytestmark = pytest.mark.processes

TITLE = "\x1b]0;owned\x07"  # renames the terminal's window
CLEAR = "\x1b[2J\x9b1;1H\u202e"


def row(problem: str) -> dict[str, object]:
    counts = {"samples": 1, "test_samples": 1, "labels": 1, "seen": 0.0, "cluster": None}
    return {
        **counts,
        "online": True,
        "takes_part": False,
        "busy": False,
        "problem": problem,
        "refusals": {TITLE: 1},
    }


@pytest.mark.whole
def test_coordinator_status_shows_escape_sequences_by_their_numbers(tmp_path: Path) -> None:
    """Before, a problem that an agent reported renamed the operator's window and cleared her screen."""
    roster = RosterMessage.model_construct(
        run="run-1", agents={"pi-7": row(TITLE + CLEAR)}, refusals={TITLE: 1}
    ).to_bytes()
    with rogue.open_broker() as url:
        status = rogue.status(None).model_copy(update={"name": TITLE, "phase": CLEAR})
        messages = {rogue.TOPICS.roster: roster, rogue.TOPICS.coordinator_status: status.to_bytes()}
        rogue.attack(url, messages, enough=lambda heard: True)  # once they are published
        command = ["covey.coordinator.cli", "status", "--broker", url]
        with program(*command, log=tmp_path / "status.log") as shown:
            assert shown.process.wait(60) == 0, shown.output
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "roster.json").write_bytes(roster)
        with program(
            "covey.coordinator.cli", "status", str(tmp_path / "run"), log=tmp_path / "folder.log"
        ) as from_folder:
            assert from_folder.process.wait(60) == 0, from_folder.output
    for output in (shown.output, from_folder.output):
        assert not set("\x1b\x07\x9b\u202e") & set(output)
        assert "\\x1b]0;owned" in output


@pytest.mark.whole
def test_an_agent_shows_what_a_coordinator_named_by_its_numbers(tmp_path: Path) -> None:
    task = rogue.task(model={"name": f"my_pkg:{TITLE}", "options": {}})
    with rogue.open_broker() as url, rogue.victim(tmp_path, url) as agent:
        status = rogue.status(task)
        rogue.attack(
            url, {rogue.TOPICS.coordinator_status: status.to_bytes()}, enough=lambda h: h.problems
        )
        until(lambda: "staying out" in agent.output, of=agent)
    assert "\\x1b]0;owned\\x07" in agent.output
    assert "\x1b" not in agent.output


@pytest.mark.whole
def test_a_broker_shows_the_names_of_its_clients_by_their_numbers(tmp_path: Path) -> None:
    """Before, a client id in a warning of the embedded broker renamed the window of the user who had started it."""
    shown = tmp_path / "broker.log"
    with rogue.broker_program(tmp_path) as url, Raw(BrokerUrl.parse(url), TITLE) as client:
        client.send(packet(0x80, b""))  # no SUBSCRIBE looks like that: a warning names the client
        until(lambda: "owned" in shown.read_text())
    assert "\\x1b]0;owned\\x07" in shown.read_text()
    assert "\x1b" not in shown.read_text()
