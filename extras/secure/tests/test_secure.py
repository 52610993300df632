"""Secure sums over Mosquitto: what needs `secure` and `users`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from covey.extras.secure.secure_folder import SecureFolder
from covey.extras.users.folder import BrokerFolder
from tests.e2e.conftest import finish
from tests.e2e.enrolled import SCENARIO, TASK, data
from tests.e2e.test_secure import ends
from tests.kit.scenes import start_file
from tests.processes import Program, free_port, needs_mosquitto, program, rows, until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.broker,
    pytest.mark.usefixtures("numpy_learner"),
    needs_mosquitto,
]

DEVICES = ("pi-1", "pi-2", "pi-3", "pi-4")


def test_devices_with_keys_of_their_own_make_sums_and_one_that_is_killed_is_missing(
    tmp_path: Path,
) -> None:
    """`broker init`, `agent lab keys`, `broker enroll --key`, `agent start`: each has nothing but its files."""
    home = BrokerFolder.create(tmp_path / "home", ["localhost"], free_port(), days=1)
    scenario = {
        **SCENARIO,
        "task": {**TASK, "init": start_file(tmp_path, TASK)},
        "strategy": {"name": "fedavg"},
        "rounds": {"count": 3, "start_agents": 4, "quorum": 2, "participation": 1.0},
        "privacy": {"secure": {"clip": 5.0}},
    }
    (tmp_path / "scenario.yaml").write_text(yaml.safe_dump(scenario))
    out = tmp_path / "run"
    with ExitStack() as stack:

        def start(name: str, *command: str) -> Program:
            return stack.enter_context(program(*command, log=tmp_path / f"{name}.log"))

        broker = start(
            "broker", "covey.broker.cli", "up", "--home", str(home.folder), "--host", "127.0.0.1"
        )
        until(lambda: "listens" in broker.output, of=broker)
        agents = {}
        for seed, name in enumerate(DEVICES):
            state = tmp_path / name
            key = SecureFolder.signing_key(state / "secure")
            [file] = home.enroll_all([name], key=key)
            own = ["--credentials", str(file), "--state", str(state), "--limit"]
            demand = "privacy={secure_least: 3}"
            sources = ["--data", str(data(tmp_path, seed))]
            agents[name] = start(name, "covey.agent.cli", "start", *sources, *own, demand)
        scene = str(tmp_path / "scenario.yaml")
        line = ["covey.coordinator.cli", "run", scene, "--out", str(out), "--json"]
        credentials = ["--credentials", str(home.file("coordinator"))]
        this = Program([*line, *credentials], tmp_path / "run.log")
        until(lambda: this.output.count("secure-unmask") >= 1, of=this)
        agents["pi-4"].kill()
        finish(this)
    assert ends(out) == [["sum"]] * 4  # of three rounds and an evaluation
    members = [
        len(row["notes"]["secure"][0]["reported"])
        for row in rows(out)
        if row.get("phase") == "secure-unmask"
    ]
    assert members[0] == 4
    assert members[-1] == 3
