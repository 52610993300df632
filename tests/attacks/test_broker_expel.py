"""An agent that is expelled in the middle of a round: the round closes at once, and nothing stays retained for it."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey.broker.cli.program import app
from covey.broker.folder import BrokerFolder
from covey.shared.mqtt import credentials
from covey.shared.wire.documents import EXPELLED, AgentStatus
from tests.e2e.enrolled import Enrolled
from tests.processes import needs_mosquitto, rows, until
from tests.raw_mqtt import Heard, Raw

pytestmark = [pytest.mark.processes, pytest.mark.broker, needs_mosquitto]

DEADLINE_S = 900.0


def retained(home: BrokerFolder, *topics: str) -> dict[str, Heard]:
    """What the broker keeps on these topics, as the coordinator sees it."""
    coordinator = credentials.read(home.file("coordinator"))
    url = coordinator.url
    with Raw(url, f"witness-{time.monotonic_ns()}", url.user or "", url.password or "") as witness:
        witness.subscribe(*topics)
        witness.ping()
    return {message.topic: message for message in witness.heard if message.retained}


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
        kept = until(
            lambda: _only_status(retained(site.home, f"{base}/status", f"{base}/order")), of=run
        )
        status = AgentStatus.from_bytes(kept.payload)
        assert (status.online, status.problem) == (False, EXPELLED)
        roster = json.loads((out / "roster.json").read_bytes())
        assert roster["agents"]["pi-8"]["problem"] == EXPELLED


def _only_status(kept: dict[str, Heard]) -> Heard | None:
    """The status, once the order is gone."""
    found = [message for topic, message in kept.items() if topic.endswith("/status")]
    return found[0] if len(kept) == len(found) == 1 else None
