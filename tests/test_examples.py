"""The data sets in `examples/`: small, readable, and a proposal for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from covey.agent.cli.data import EXAMPLES, copy_examples
from covey.agent.data.check import load_local
from covey.agent.data.proposal_data import describe
from covey.shared.errors import UserError
from covey.shared.proposal.proposal import checked, propose

MAX_BYTES = 300_000
NAMES = ("breast-cancer", "diabetes", "digits", "wine")


def test_the_examples_are_small_and_all_are_documented() -> None:
    files = [path for path in EXAMPLES.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MAX_BYTES
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir()}
    assert folders == set(NAMES)
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
