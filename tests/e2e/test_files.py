"""Partition, initial weights and draws from files: what another implementation needs to be held against ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.conftest import SIMULATED, finish
from tests.processes import Program, model_bytes, result, rows, words

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("numpy_learner")]


def run(folder: Path, out: str, **sections: Any) -> Path:
    """A FedAvg run of the small fleet."""
    path = SIMULATED.written(folder, fleet={"faults": {}}, **sections)
    sets = ["--set", "strategy.name=fedavg", "--set", "rounds.count=2", "--in-process", "--json"]
    finish(
        Program(
            ["covey.coordinator.cli", "run", str(path), "--out", str(folder / out), *sets],
            folder / f"{out}.log",
        )
    )
    return folder / out


@pytest.mark.whole
def test_a_run_from_files_is_the_run_that_wrote_them(tmp_path: Path) -> None:
    first = run(tmp_path, "first")
    with np.load(first / "start.npz") as start:
        np.savez(tmp_path / "theta.npz", theta0=start["starts"][0])
    with np.load(first / "partition.npz") as whole:
        wanted = ("train_idx", "train_ptr", "test_idx", "test_ptr")
        np.savez(tmp_path / "split.npz", **{name: whole[name] for name in wanted})
    assert set(result(first)["devices"]) == {"cpu (numpy)"}
    trained = [row["invited"] for row in rows(first) if row["phase"] == "train"]
    (tmp_path / "who.json").write_text(
        json.dumps([[int(who.split("-")[1]) for who in row] for row in trained])
    )
    base = SIMULATED.written(tmp_path, fleet={"faults": {}})
    files = {
        "task.init": "theta.npz",
        "fleet.partition": "split.npz",
        "rounds.participants": "who.json",
        "seed": "5",
    }
    sets = [word for key, value in files.items() for word in ("--set", f"{key}={value}")]
    command = words("coordinator run", base, "--out", tmp_path / "second", "--in-process", "--json")
    more = ["--set", "strategy.name=fedavg", "--set", "rounds.count=2"]
    finish(Program([*command, *more, *sets], tmp_path / "second.log"))
    assert model_bytes(tmp_path / "second") == model_bytes(first)
    assert [
        row["invited"] for row in rows(tmp_path / "second") if row["phase"] == "train"
    ] == trained
    assert result(tmp_path / "second")["accuracy"]["server"] == result(first)["accuracy"]["server"]


def test_initial_weights_of_the_wrong_length_are_refused_before_anything_starts(
    tmp_path: Path,
) -> None:
    path = SIMULATED.written(tmp_path)
    np.savez(tmp_path / "theta.npz", theta0=np.zeros(7, np.float32))
    command = words(
        "coordinator run", path, "--out", tmp_path / "run", "--set", "task.init=theta.npz"
    )
    this = Program(command, tmp_path / "log")
    assert this.process.wait(60) == 2, this.output
    assert "theta0" in this.output
    assert "7" in this.output
    assert "Traceback" not in this.output
