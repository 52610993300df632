"""Secure sums over Mosquitto: agents drop out, programs are killed, and the bytes are those of plain integer sums."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from covey.extras.secure.secure_folder import SecureFolder
from covey.extras.users.folder import BrokerFolder
from tests.e2e.conftest import AGENTS, coordinator, finish, fleet, whole_in_process
from tests.e2e.enrolled import SCENARIO, TASK, data
from tests.kit.scenes import start_file
from tests.processes import (
    Program,
    free_port,
    model_bytes,
    mosquitto,
    needs_mosquitto,
    program,
    rows,
    until,
)

pytestmark = [
    pytest.mark.processes,
    pytest.mark.broker,
    pytest.mark.usefixtures("numpy_learner"),
    needs_mosquitto,
]

SECTIONS: dict[str, Any] = {
    "strategy": {"name": "fedavg"},
    "rounds": {"count": 2, "participation": 1.0},
    "privacy": {"secure": {"clip": 5.0}},
}


def ends(folder: Path) -> list[list[str]]:
    """How the sums of each round ended."""
    found = [row for row in rows(folder) if row.get("phase") == "secure-unmask"]
    return [[one["end"] for one in row["notes"]["secure"]] for row in found]


def test_a_run_survives_kills_of_the_coordinator_with_the_same_bytes(tmp_path: Path) -> None:
    port, undisturbed = free_port(), whole_in_process(tmp_path / "undisturbed", **SECTIONS)
    with mosquitto(tmp_path, port), fleet(tmp_path, port, **SECTIONS):
        for kill in range(1, 3):
            more = ["--resume"] if kill > 1 else []
            this = coordinator(tmp_path, port, *more, **SECTIONS)
            before = this.output.count('"event": "phase"')
            until(
                lambda this=this, before=before: (  # type: ignore[misc]
                    this.output.count('"event": "phase"') >= before + 2
                ),
                of=this,
            )
            this.kill()
        finish(coordinator(tmp_path, port, "--resume", **SECTIONS))
    two_groups = ["sum", "sum"]
    assert ends(undisturbed) == [two_groups] * 3  # two rounds and the evaluation
    assert ends(tmp_path / "run") == [two_groups] * 3
    assert model_bytes(tmp_path / "run") == model_bytes(undisturbed)


def test_agents_that_drop_out_leave_the_sum_of_the_others(tmp_path: Path) -> None:
    """In each phase an agent loses its connection with a probability of 10 %, for 4 s."""
    port = free_port()
    faults = {"die": 0.1, "back_after_s": 4.0, "slow": 1.0, "slow_s": 0.2}
    simulated = {
        "agents": AGENTS,
        "data": "digits",
        "partition": {"name": "grouped_labels", "groups": 2},
        "workers": 1,
        "faults": faults,
    }
    sections = {
        **SECTIONS,
        "rounds": {"count": 2, "participation": 1.0, "timing": {"absence_s": 1.0}},
    }
    with mosquitto(tmp_path, port), fleet(tmp_path, port, **sections, fleet=simulated):
        finish(coordinator(tmp_path, port, **sections), within_s=300.0)
    found = ends(tmp_path / "run")
    assert len(found) >= 3  # two rounds and the evaluation, which begins again where it is void
    sums = [one for groups in found for one in groups]
    assert "sum" in sums
    assert all(one == "sum" or one.startswith(("void", "passed over")) for one in sums)
    missing = [row["missing"] for row in rows(tmp_path / "run") if row.get("event") == "phase"]
    assert any(missing), "no agent dropped out"


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
