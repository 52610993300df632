"""The data sets in `examples/`: what needs `proposals`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from covey.agent.data.check import load_local
from covey.extras.proposals.check_command import EXAMPLES, copy_device, copy_examples
from covey.extras.proposals.proposal import checked, propose
from covey.extras.proposals.proposal_data import describe
from covey.shared.errors import UserError
from covey.shared.scenario.load import load

MAX_BYTES = 300_000
NAMES = ("breast-cancer", "diabetes", "digits", "wine")


def test_the_examples_are_small_and_all_are_documented() -> None:
    files = [path for path in EXAMPLES.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MAX_BYTES
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir()}
    assert folders == {*NAMES, "my_method"}
    text = (EXAMPLES / "README.md").read_text("utf-8")
    assert all(f"| `{name}` |" in text for name in NAMES)


@pytest.mark.parametrize(
    ("name", "samples", "classes", "model"),
    [
        ("breast-cancer", 569, ("benign", "malignant"), "linear"),
        ("diabetes", 442, None, "mlp"),
        ("digits", 300, tuple("0123456789"), "mlp"),
        ("wine", 178, ("class_0", "class_1", "class_2"), "linear"),
    ],
)
def test_each_example_fits_its_proposal(name: str, samples: int, classes: Any, model: str) -> None:
    files = sorted((EXAMPLES / name).iterdir())
    described = [describe(str(path)) for path in files]
    assert (len(files), sum(one.samples for one in described)) == (3, samples)
    scenario = checked(propose(described))
    assert scenario.name == name
    assert (scenario.task.classes, scenario.task.model.name) == (classes, model)
    data = load_local(files[0], task=scenario.task)
    assert len(data.targets) + len(data.test_targets) == described[0].samples


def test_copies_for_those_who_installed_a_wheel(tmp_path: Path) -> None:
    copies = copy_examples(tmp_path / "mine")
    assert len(copies) == 3 * len(NAMES)
    with pytest.raises(UserError, match="exists already"):
        copy_examples(tmp_path / "mine")


@pytest.mark.parametrize(
    ("name", "host", "device"),
    [
        ("local", "laptop", "device-1"),
        ("local", "pi-3", "device-3"),
        ("local", "gw-08", "device-2"),
        ("local-2", "pi-3", "device-2"),
        ("at-home3", "laptop", "device-3"),
    ],
)
def test_an_example_of_one_device_fits_the_scenario_for_devices(
    name: str, host: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: host)
    assert copy_device(tmp_path / name) == device
    task = load(EXAMPLES.resolve().parent / "scenarios" / "devices.yaml").task
    assert len(load_local(tmp_path / name, task=task).targets) == 80  # and 20 that test
    with pytest.raises(UserError, match="exists already"):
        copy_device(tmp_path / name)
