"""The documented way to real devices: `broker init`, `enroll`, `up`, then a run in which everybody has nothing but a file."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import yaml

from covey.broker.folder import BrokerFolder
from tests.e2e.conftest import finish
from tests.kit.scenes import start_file
from tests.processes import Program, free_port, needs_mosquitto, program, result, until

pytestmark = pytest.mark.processes

AGENTS = ("pi-7", "pi-8")
TASK = {"features": [4], "classes": 2, "model": {"name": "linear"}}
SCENARIO = {
    "name": "enrolled",
    "seed": 1,
    "training": {"batch": 10, "lr": 0.1},
    "strategy": {
        "name": "fedclust",
        "n_clusters": 2,
    },  # signatures, clusters' models, reports: all kinds of topics
    "rounds": {"count": 1, "start_agents": 2, "quorum": 2},
}


def data(folder: Path, seed: int) -> Path:
    x = np.random.default_rng(seed).normal(size=(40, 4)).astype(np.float32)
    path = folder / f"{seed}.npz"
    np.savez(
        path,
        x=x,
        y=(x[:, 0] > 0).astype(np.int64),
        x_test=x[:10],
        y_test=(x[:10, 0] > 0).astype(np.int64),
    )
    return path


@pytest.mark.broker
@needs_mosquitto
def test_a_run_where_every_program_is_held_to_the_rules(tmp_path: Path) -> None:
    home = BrokerFolder.create(tmp_path / "home", ["localhost"], free_port(), days=1)
    task = {**TASK, "init": start_file(tmp_path, TASK)}
    (tmp_path / "scenario.yaml").write_text(yaml.safe_dump({**SCENARIO, "task": task}))
    out = tmp_path / "run"
    with ExitStack() as stack:

        def start(name: str, *command: str) -> Program:
            return stack.enter_context(program(*command, log=tmp_path / f"{name}.log"))

        broker = start(
            "broker", "covey.broker.cli", "up", "--home", str(home.folder), "--host", "127.0.0.1"
        )
        until(lambda: "listens" in broker.output, of=broker)
        for seed, name in enumerate(AGENTS):
            own = ["--credentials", str(home.enroll(name)), "--state", str(tmp_path / name)]
            own += ["--learner", "numpy"]
            start(name, "covey.agent.cli", "start", "--data", str(data(tmp_path, seed)), *own)
        line = [
            "covey.coordinator.cli",
            "run",
            str(tmp_path / "scenario.yaml"),
            "--out",
            str(out),
            "--json",
        ]
        finish(
            Program([*line, "--credentials", str(home.file("coordinator"))], tmp_path / "run.log")
        )
    assert result(out)["rounds"] == 1
    assert set(result(out)["assignment"]) == set(AGENTS)
