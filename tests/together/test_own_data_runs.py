"""From files of people's own to fine-tuned models: three devices train in this process, with FedAvg and each alone."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.agent.worker import perform
from covey.coordinator import checks
from covey.coordinator.checks import LARGEST_VALUE
from covey.coordinator.run.result import result_of, write_models
from covey.coordinator.run.run import Run
from covey.coordinator.simulate.virtual_clock import GivenUpError
from covey.extras.in_use.predict import predict
from covey.extras.proposals.choices import Choice
from covey.extras.proposals.proposal import checked, propose
from covey.extras.proposals.proposal_data import describe
from covey.extras.simulate.tests.device_run import devices, inspected, scenes
from covey.shared.errors import UserError, os_errors_as_user_errors
from tests.agent.test_task_columns import written

METHODS = ("fedavg", "local")
FLATS = {
    "features": [5],
    "columns": ["area", "town", "year"],
    "categories": {"town": 2},
    "target": "rent",
    "impute": "mean",
    "standardise": "federated",
    "target_scale": "federated",
    "model": {"name": "linear"},
}


def flats(folder: Path, device: int, rows: int = 40) -> Path:
    """Rents of 10 per square metre and 100 more in Oslo; some cells are missing, columns in an order of their own."""
    rng = np.random.default_rng(device)
    lines: list[str] = []
    for row in range(rows):
        area = float(rng.integers(20, 120))
        town = ("Oslo", "Rome")[int(rng.integers(2))]
        rent = 10 * area + 100 * (town == "Oslo") + float(rng.normal(0, 5))
        cells = {
            "area": "" if row % 17 == 3 else f"{area}",
            "town": "" if row % 13 == 5 else town,
            "year": "nan" if row % 5 == 0 else f"{1950 + row}",
            "rent": f"{rent:.1f}",
        }
        order = sorted(cells, reverse=bool(device % 2))
        lines.append(",".join(cells[name] for name in order))
    header = ",".join(order)
    return written(folder / f"device-{device}", header, *lines)


def tuned(run: Run, figure: str) -> float:
    """The mean of a figure in mode `tuned` over the devices."""
    figures = [numbers["tuned"][figure] for numbers in run.members.evaluation.values()]
    assert len(figures) == 3
    return float(np.mean(figures))


def resumed(run: Run) -> Run:
    """The run as another process finds it on disk."""
    again, _ = Run.resume(run.folder, run.scenario, run.setup, rules=run.engine.rules, now=0.0)
    return again


@pytest.mark.parametrize("method", METHODS)
def test_a_regression_on_a_table_with_missing_cells_and_words(tmp_path: Path, method: str) -> None:
    files = {f"device-{i}": flats(tmp_path, i) for i in range(3)}
    scene = scenes(FLATS)(method)
    run = devices(tmp_path / "run", scene, files)
    assert tuned(run, "mse") ** 0.5 < 150  # in units of the rent, whose deviation is 290
    found: dict[str, Any] = run.facts.scaling or {}
    assert found["categories"] == {"town": ["Oslo", "Rome"]}
    assert 60 < found["impute"]["area"] < 80
    assert 600 < found["target"]["mean"] < 900
    restarted = resumed(run)
    assert restarted.facts.scaling == run.facts.scaling
    write_models(run)
    model = next((run.folder / "models").glob("*.safetensors"), None)
    if method == "fedavg":
        assert model is not None
        new = written(tmp_path / "new", "town,year,area", "Oslo,,100", "Bonn,1990,30")
        large, small = predict(model, new)
        assert 800 < float(large.prediction) < 1300  # again in units of the rent
        assert 150 < float(small.prediction) < 500


def test_where_devices_judge_a_run_has_the_figures_of_trees_on_each_table(tmp_path: Path) -> None:
    files = {f"device-{i}": flats(tmp_path, i, rows=200) for i in range(3)}
    scene = scenes(FLATS)("fedavg", rounds={"count": 1}, evaluation={"deliver": {}})
    found = result_of(devices(tmp_path / "run", scene, files), None).accuracy
    assert found["trees"]["agents"] == found["baseline"]["agents"] == 3
    assert found["trees"]["rmse"]["macro"] < 150 < found["baseline"]["rmse"]["macro"]


def test_a_device_whose_columns_do_not_fit_stays_out_and_its_status_names_why(
    tmp_path: Path,
) -> None:
    path = written(tmp_path, "area,town,secret,rent", "50,Oslo,7,600", "60,Rome,8,700")
    found = inspected(path, scenes(FLATS)())
    assert found.problem.startswith("the table has no column 'year'")
    assert "secret" not in found.problem


def test_a_proposal_trains(tmp_path: Path) -> None:
    """As proposed, but with fewer rounds: words, missing cells and a regression."""
    files = {f"device-{i}": flats(tmp_path, i) for i in range(3)}
    described = [describe(str(path)) for path in files.values()]
    proposal = propose(described, target="rent")
    task = proposal.content()["task"]
    assert task["categories"] == {"town": ("Oslo", "Rome")}
    assert (task["impute"], task["target_scale"]) == ("mean", "federated")
    proposal.sections["rounds"]["count"] = Choice(3)
    run = devices(tmp_path / "run", checked(proposal), files)
    assert tuned(run, "mse") ** 0.5 < 150  # in units of the rent, whose deviation is 290


def test_a_simulation_without_room_on_the_disk_names_the_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on the device")

    monkeypatch.setattr(perform, "write_atomically", no_room)
    files = {"a": flats(tmp_path, 0), "b": flats(tmp_path, 1)}
    with (
        pytest.raises(UserError, match=r"no room is left on the disk .*with --resume"),
        os_errors_as_user_errors(),
    ):
        devices(tmp_path / "run", scenes(FLATS)(), files)


def test_a_refused_report_in_a_simulation_is_failed_work_and_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = LARGEST_VALUE
    accept = Run.accept

    def one_is_absurd(self: Run, client: str, *rest: Any, **more: Any) -> Any:
        monkeypatch.setattr(checks, "LARGEST_VALUE", 1e-9 if client == "a" else limit)
        return accept(self, client, *rest, **more)

    monkeypatch.setattr(Run, "accept", one_is_absurd)
    files = {"a": flats(tmp_path, 0), "b": flats(tmp_path, 1), "c": flats(tmp_path, 2)}
    devices(tmp_path / "run", scenes(FLATS)(), files)
    story = (tmp_path / "run" / "audit.jsonl").read_text()
    assert "its report is refused" in story
    assert "choose a smaller training.lr" in story


def test_a_simulation_in_which_every_agent_diverges_ends_with_the_learning_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "LARGEST_VALUE", 1e-9)
    files = {"a": flats(tmp_path, 0), "b": flats(tmp_path, 1)}
    with pytest.raises(
        GivenUpError, match=r"its report is refused .*choose a smaller training\.lr"
    ):
        devices(tmp_path / "run", scenes(FLATS)(), files)
