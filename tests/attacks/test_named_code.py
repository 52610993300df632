"""No code is named by the other side: what a coordinator or a file names is imported only where the command line allowed it.

Before the rule, an order reached a shell on the device 7.7 s after it was published, as the agent's user.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner, Result

from tests.attacks import rogue
from tests.processes import program, words

pytestmark = pytest.mark.processes

WEAPON = """
import os, pathlib
pathlib.Path(os.environ["COVEY_TEST_MARKER"]).write_text("imported")
def net(features, outputs, command="true"):
    os.system(command)
    import torch
    width = int(torch.tensor(features).prod())
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(width, outputs))
def data(path):
    os.system("true")
    import numpy
    return numpy.zeros((20, 4), "float32"), numpy.arange(20) % 2
"""


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Exists once the module `weapon`, which lies on the device's import path, was imported."""
    library = tmp_path / "library"
    library.mkdir()
    (library / "weapon.py").write_text(WEAPON)
    monkeypatch.setenv("PYTHONPATH", str(library))  # of programs
    monkeypatch.syspath_prepend(library)
    monkeypatch.delitem(sys.modules, "weapon", raising=False)
    monkeypatch.setenv("COVEY_TEST_MARKER", str(tmp_path / "marker"))
    return tmp_path / "marker"


def weapon(folder: Path) -> dict[str, object]:
    options = {"command": f"id > {folder}/shell"}
    return rogue.task(model={"name": "weapon:net", "options": options})


@pytest.mark.whole
def test_an_order_that_names_code_runs_nothing_and_the_agent_gives_the_reason(
    tmp_path: Path, marker: Path
) -> None:
    order = rogue.order(task=weapon(tmp_path))
    with rogue.open_broker() as url, rogue.victim(tmp_path, url, learner="torch") as agent:
        heard = rogue.attack(
            url,
            {rogue.TOPICS.order("victim"): order.to_bytes()},
            enough=lambda h: h.failures or marker.exists(),
        )
        assert agent.process.poll() is None
    assert not marker.exists()
    assert not (tmp_path / "shell").exists()
    assert "--allow weapon" in heard.failures[0]


@pytest.mark.whole
def test_a_status_whose_task_names_code_runs_nothing_and_keeps_the_agent_out(
    tmp_path: Path, marker: Path
) -> None:
    status = rogue.status(weapon(tmp_path))
    with rogue.open_broker() as url, rogue.victim(tmp_path, url, learner="torch") as agent:
        heard = rogue.attack(
            url, {rogue.TOPICS.coordinator_status: status.to_bytes()}, enough=lambda h: h.problems
        )
        assert agent.process.poll() is None
    assert not marker.exists()
    assert heard.problems == [
        "this task names code of its own: weapon:net; the owner of this device must allow it with --allow weapon"
    ]
    assert "staying out of this run: this task names code" in agent.output


@pytest.mark.whole
def test_code_that_the_devices_owner_allowed_is_run(tmp_path: Path, marker: Path) -> None:
    order = rogue.order(task=weapon(tmp_path))
    with (
        rogue.open_broker() as url,
        rogue.victim(tmp_path, url, "--allow", "weapon", learner="torch"),
    ):
        rogue.attack(
            url, {rogue.TOPICS.order("victim"): order.to_bytes()}, enough=lambda h: h.reports
        )
    assert marker.exists()
    assert (tmp_path / "shell").exists()


@pytest.mark.whole
def test_a_model_file_that_names_code_runs_nothing_without_consent(
    tmp_path: Path, marker: Path
) -> None:
    facts = {"task": rogue.task(model={"name": "weapon:net", "options": {}})}
    tensors = {"1.weight": np.zeros((2, 4), np.float32), "1.bias": np.zeros(2, np.float32)}
    save_file(tensors, tmp_path / "cluster-0.safetensors", metadata={"facts": json.dumps(facts)})
    command = words(
        "agent lab export", tmp_path / "cluster-0.safetensors", "--out", tmp_path / "out.pt2"
    )
    assert "--allow weapon" in refused(command)
    assert not marker.exists()
    done = typed([*command, "--allow", "weapon"])
    assert done.exit_code == 0, done.output
    assert marker.exists()


SCENARIO = """
name: stranger
task: {features: [4], classes: 2, model: {name: "%s", options: {}}}
training: {batch: 10, lr: 0.1}
strategy: {name: fedavg}
rounds: {count: 1}
evaluation: {deliver: served}
fleet: {agents: 2, data: "%s", workers: 1}
"""
DIGITS = "features: [1, 8, 8], classes: 10"
COMMANDS = {
    "coordinator run": words("coordinator run", "{scenario}", "--out", "{out}", "--embedded"),
    "coordinator run --in-process": words(
        "coordinator run", "{scenario}", "--out", "{out}", "--in-process"
    ),
    "coordinator compare": words(
        "coordinator compare", "{compare}", "--out", "{out}", "--in-process"
    ),
    "agent lab model": ["covey.agent.cli", "lab", "model", "{scenario}", "--out", "{out}"],
    "agent lab fleet": ["covey.agent.cli", "lab", "fleet", "{scenario}", "--run-dir", "{out}"],
}


@pytest.mark.whole
@pytest.mark.parametrize("command", COMMANDS)
def test_a_scenario_that_names_a_model_runs_nothing_without_consent(
    command: str, tmp_path: Path, marker: Path
) -> None:
    output = refused_with(COMMANDS[command], SCENARIO % ("weapon:net", "digits"), tmp_path)
    assert "--allow weapon" in output
    assert not marker.exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["coordinator run --in-process", "agent lab fleet"])
def test_a_scenario_names_no_data_of_code(command: str, tmp_path: Path, marker: Path) -> None:
    refused_with(COMMANDS[command], SCENARIO % ("linear", "weapon:data"), tmp_path)
    assert not marker.exists()


def typed(command: Sequence[str]) -> Result:
    """A command in this process, where the weapon can be imported as in any other."""
    app = importlib.import_module(f"{command[0]}.program").app
    return CliRunner().invoke(app, list(command[1:]))


def refused(command: Sequence[str]) -> str:
    """What a command prints that ends with a user's mistake."""
    done = typed(command)
    assert done.exit_code == 2, done.output
    return done.output


def refused_with(command: Sequence[str], text: str, folder: Path) -> str:
    """The same of a command that reads this scenario."""
    places = {"scenario": folder / "s.yaml", "compare": folder / "c.yaml", "out": folder / "out"}
    places["scenario"].write_text(text)
    places["compare"].write_text(text + "compare: {methods: [{name: fedavg}], seeds: [1]}\n")
    return refused([word.format_map(places) for word in command])


@pytest.mark.whole
def test_a_run_and_its_resume_take_the_consent_from_the_command_line(
    tmp_path: Path, marker: Path
) -> None:
    """The fleet and its workers inherit it; the run's folder keeps none."""
    path, out = tmp_path / "s.yaml", tmp_path / "out"
    path.write_text(
        (SCENARIO % ("weapon:net", "digits")).replace("features: [4], classes: 2", DIGITS)
    )
    command = ["covey.coordinator.cli", "run", str(path), "--out", str(out), "--embedded", "--json"]
    with program(*command, "--allow", "weapon", log=tmp_path / "log") as run:
        assert run.process.wait(120) == 0, run.output
    assert marker.exists()
    marker.unlink()
    with program(*command, "--resume", log=tmp_path / "resume") as resumed:
        assert resumed.process.wait(60) == 2, resumed.output
    assert "--allow weapon" in resumed.output
    assert not marker.exists()
    assert "allow" not in "".join(file.read_text() for file in out.glob("*.yaml"))
