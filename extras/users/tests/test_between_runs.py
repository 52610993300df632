"""`coordinator status` with no coordinator at work, against the truth about each device. Every program is a process."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from covey.broker.cli.program import app as broker_app
from covey.coordinator.cli.program import app
from covey.extras.runs.roster_table import is_left, roster_table
from covey.extras.users.folder import BrokerFolder
from tests.e2e.enrolled import SCENARIO, TASK, data
from tests.kit.scenes import start_file
from tests.processes import Program, free_port, needs_mosquitto, program, until

pytestmark = [pytest.mark.processes, pytest.mark.broker, needs_mosquitto]

AT_WORK = ("gw-train", "gw-dead", "gw-left", "gw-gone")  # when the coordinator is killed
FOREVER = {"batch": 10, "lr": 0.0001, "epochs": 2_000_000}
RULES = {"count": 1, "start_agents": len(AT_WORK), "quorum": len(AT_WORK)}


def test_between_runs_each_device_is_shown_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("covey.shared.mqtt.retained.QUIET_S", 0.4)
    home = BrokerFolder.create(tmp_path / "home", ["localhost"], free_port(), days=1)
    task = {**TASK, "init": start_file(tmp_path, TASK)}
    scene = {**SCENARIO, "task": task, "training": FOREVER, "rounds": RULES}
    scene["strategy"] = {"name": "fedavg"}
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(scene))
    coordinator = ["--credentials", str(home.file("coordinator"))]
    with ExitStack() as stack:

        def started(name: str, *command: str) -> Program:
            return stack.enter_context(program(*command, log=tmp_path / f"{name}.log"))

        def agent(name: str) -> Program:
            own = ["--credentials", str(home.enroll(name)), "--state", str(tmp_path / name)]
            own += ["--data", str(data(tmp_path, 1)), "--learner", "numpy"]
            own += ["--limit", "max_epochs=10000000"]
            return started(name, "covey.agent.cli", "start", *own)

        def shown() -> dict[str, Any]:
            done = CliRunner().invoke(app, ["status", "--json", *coordinator])
            found: dict[str, Any] = json.loads(done.stdout) if done.exit_code == 0 else {}
            return found

        def states() -> dict[str, str]:
            seen = shown()
            if not seen:
                return {}
            listed = roster_table(seen["roster"], seen["devices"], left=is_left(seen))
            return {row[0]: row[1] for row in listed.rows}

        up = ["covey.broker.cli", "up", "--home", str(home.folder), "--host", "127.0.0.1"]
        broker = started("broker", *up)
        until(lambda: "listens" in broker.output, of=broker)
        home.enroll("gw-never")
        agents = {name: agent(name) for name in AT_WORK}
        out = ["--out", str(tmp_path / "run"), "--json", *coordinator]
        run = started("run", "covey.coordinator.cli", "run", str(path), *out)
        until(lambda: states() == dict.fromkeys(AT_WORK, "busy"), of=run)

        run.kill()
        agents["gw-dead"].kill()
        agents["gw-left"].stop()
        expelled = CliRunner().invoke(broker_app, ["expel", "gw-gone", "--home", str(home.folder)])
        assert expelled.exit_code == 0, expelled.stderr
        agent("gw-idle")
        truth = {"gw-idle": "idle", "gw-train": "busy", "gw-dead": "offline", "gw-left": "left"}
        until(lambda: states() == truth)

        devices = shown()["devices"]
        assert devices["gw-gone"]["state"] == "expelled"
        assert 0 <= time.time() - devices["gw-idle"]["since"] < 60
        assert devices["gw-dead"]["since"] is None
        printed = CliRunner().invoke(app, ["status", *coordinator]).stdout
        assert "no coordinator is running: this is what the agents state themselves" in printed
        assert "expelled, no members any more: gw-gone\n" in printed
        assert "gw-never" not in printed

        asked = CliRunner().invoke(app, ["doctor", "--json", *coordinator])
        odd = [(one["devices"], one["kind"]) for one in json.loads(asked.stdout)["odd"]]
        assert asked.exit_code == 1
        assert (["gw-dead"], "offline") in odd
        assert (["broker"], "certificate") in odd  # it lives for a day
        assert not [one for one, _ in odd if one in (["gw-idle"], ["gw-left"], ["gw-gone"])]
        assert devices["gw-idle"]["disk_free"] > 0
        assert devices["gw-idle"]["certificate"] > time.time()
        broker.stop()
        asked = CliRunner().invoke(app, ["doctor", "--json", *coordinator])
        assert [one["kind"] for one in json.loads(asked.stdout)["odd"]] == ["broker"]
