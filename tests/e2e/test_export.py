"""`coordinator lab export`: a run's models leave as programs, with the standardisation that the fleet found in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from covey.coordinator.cli.program import app
from covey.shared.numerics.metrics import accuracy
from tests.e2e.conftest import SIMULATED, finish
from tests.processes import Program, result

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("numpy_learner")]


@pytest.mark.whole
def test_an_exported_model_has_the_accuracy_of_its_run_on_raw_data(tmp_path: Path) -> None:
    run = tmp_path / "run"
    task = {"standardise": "federated", "scale": 1.0}
    path = SIMULATED.written(tmp_path, task=task, rounds={"count": 3}, fleet={"faults": {}})
    line = ["covey.coordinator.cli", "run", str(path), "--out", str(run), "--in-process", "--json"]
    finish(Program([*line, "--set", "strategy.name=fedavg"], tmp_path / "run.log"))
    done = CliRunner().invoke(app, ["lab", "export", str(run), "--json"])
    assert done.exit_code == 0, done.output
    program = torch.export.load(run / "export" / "cluster-0.pt2").module()
    digits = load_digits()
    with np.load(run / "partition.npz") as split:
        mine = split["test_idx"]
    features = torch.from_numpy(digits.images[mine, None].astype(np.float32))
    predicted = program(features).argmax(dim=1).numpy()
    wanted = result(run)["accuracy"]["server"]["accuracy"]["micro"]
    assert accuracy(digits.target[mine], predicted) == pytest.approx(wanted)
    assert wanted > 0.5


@pytest.mark.whole
def test_a_run_that_is_not_finished_has_nothing_to_export(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["lab", "export", str(tmp_path)])
    assert done.exit_code == 2
    assert "the run is not finished" in done.stderr
