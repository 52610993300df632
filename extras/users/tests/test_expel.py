"""An agent that is expelled in the middle of a round: the round closes at once, and nothing stays retained for it.

Nor does anything if no coordinator is at work: the broker's word that it was expelled takes the place of its status, so that
a coordinator that comes later learns of it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey.broker.access.acl import AGENT_RULES
from covey.broker.cli.program import app
from covey.extras.users.folder import BrokerFolder
from covey.extras.users.tests.enrolled import Enrolled
from covey.shared.mqtt import credentials
from covey.shared.wire.documents import EXPELLED, ROTATED, AgentStatus
from covey.shared.wire.topics import Topics
from tests.processes import needs_mosquitto, rows, until
from tests.raw_mqtt import Heard, Raw

pytestmark = pytest.mark.processes

DEADLINE_S = 900.0
OF_MOSQUITTO = [pytest.mark.broker, needs_mosquitto]
WAYS = [["--embedded"], pytest.param([], marks=OF_MOSQUITTO)]
EXPELLED_AT_ONCE = [f"pi-{number}" for number in range(10)]  # more than one session has wildcards


def coordinator(home: BrokerFolder) -> Raw:
    url = credentials.read(home.file("coordinator")).url
    return Raw(url, f"witness-{time.monotonic_ns()}", url.user or "", url.password or "")


def retained(home: BrokerFolder, *topics: str) -> dict[str, Heard]:
    """What the broker keeps on these topics, as the coordinator sees it."""
    with coordinator(home) as witness:
        witness.subscribe(*topics)
        witness.ping()
    return {message.topic: message for message in witness.heard if message.retained}


def topics_of(agent: str) -> set[str]:
    """All topics that an agent may read or write alone, with two parts of each that has parts."""
    own = {rule.filter_for(agent, "default") for rule in AGENT_RULES if "%u" in rule.pattern}
    return {topic.replace("+", part) for topic in own for part in ("0", "1")}


@pytest.mark.parametrize("way", WAYS, ids=["embedded", "mosquitto"])
def test_only_the_word_that_they_were_expelled_stays_retained(
    tmp_path: Path, way: list[str]
) -> None:
    with ExitStack() as stack:
        site = Enrolled(tmp_path, stack)
        site.broker(*way)
        everyone = [*EXPELLED_AT_ONCE, "pi-stays"]
        site.home.enroll_all(everyone)
        with coordinator(site.home) as link:
            for topic in sorted(set[str]().union(*map(topics_of, everyone))):
                assert link.publish(topic, b"of a device", retain=True)
        for words in (["lab", "rotate", "pi-stays"], ["expel", *EXPELLED_AT_ONCE]):
            done = site.typed(app, *words, "--home", site.home.folder)
            assert (done.exit_code, done.stderr) == (0, "")
        kept = retained(site.home, "covey/default/#")
    statuses = {Topics("default").status(name): name for name in everyone}
    of_device = {topic for topic in kept if kept[topic].payload == b"of a device"}
    assert of_device == topics_of("pi-stays") - statuses.keys()
    assert kept.keys() - of_device == statuses.keys()
    for topic, name in statuses.items():
        problem = ROTATED if name == "pi-stays" else EXPELLED
        word = AgentStatus(agent=name, session="unknown", online=False, problem=problem)
        assert AgentStatus.from_bytes(kept[topic].payload) == word


@pytest.mark.broker
@needs_mosquitto
def test_the_round_of_an_expelled_agent_closes_long_before_its_deadline(tmp_path: Path) -> None:
    """Before: no last will follows on Mosquitto, and the round took its deadline. After: 3 to 6 s after `broker expel`."""
    out = tmp_path / "run"
    with ExitStack() as stack:
        site = Enrolled(tmp_path, stack)
        site.broker()
        agents = {name: site.agent(name) for name in ("pi-7", "pi-8")}
        run = site.coordinator(
            "run", site.scenario(2, rounds={"quorum": 1, "deadline_s": DEADLINE_S})
        )
        until(lambda: '"event": "work"' in agents["pi-8"].output, 120, of=run)
        stopped = agents["pi-8"].process.pid
        os.kill(stopped, signal.SIGSTOP)  # in mid-round: it neither reports nor disconnects
        stack.callback(os.kill, stopped, signal.SIGCONT)
        until(lambda: '"event": "accepted"' in agents["pi-7"].output, 120, of=run)
        assert rows(out) == [], "the expelled agent was not the last one"
        began = time.monotonic()
        done = CliRunner().invoke(app, ["expel", "pi-8", "--home", str(site.home.folder)])
        assert done.exit_code == 0, done.output
        assert done.stderr == ""
        [first] = until(lambda: rows(out), DEADLINE_S / 10, of=run)[:1]
        print(
            f"the round closed {time.monotonic() - began:.2f} s after `broker expel`, deadline {DEADLINE_S:g} s"
        )
        assert (first["reported"], first["missing"]) == (["pi-7"], ["pi-8"])
        base = "covey/default/agents/pi-8"
        kept = until(lambda: _only_status(retained(site.home, f"{base}/#")), of=run)
        status = AgentStatus.from_bytes(kept.payload)
        assert (status.online, status.problem) == (False, EXPELLED)
        roster = json.loads((out / "roster.json").read_bytes())
        assert roster["agents"]["pi-8"]["problem"] == EXPELLED


def _only_status(kept: dict[str, Heard]) -> Heard | None:
    """The status, once all else is gone."""
    found = [message for topic, message in kept.items() if topic.endswith("/status")]
    return found[0] if len(kept) == len(found) == 1 else None
