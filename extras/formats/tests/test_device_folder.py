"""Fleets with data of people's own: one file per device, arrays with groups and populations, functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.agent.data.check import load_local
from covey.agent.data.named import load_named
from covey.agent.data.partition import client_dataset, fleet_data
from covey.extras.formats.device_folders import device_entries
from covey.shared.errors import DataError
from covey.shared.own_code.consent import AllowedCode, ConsentError, consented
from covey.shared.scenario.scenario import Scenario
from tests.agent.test_task_columns import written

TASK = {
    "features": [4],
    "columns": ["area", "town"],
    "categories": {"town": 2},
    "target": "state",
    "classes": ["good", "poor"],
    "impute": "mean",
}
HEADER = "area,town,state"
ROWS = ["50,Oslo,good", "60,Rome,poor", ",Oslo,good", "70,,poor", "80,Rome,good"]


def fleet(agents: int, data: str, task: dict[str, Any] = TASK, **keys: Any) -> Scenario:
    section = {"agents": agents, "data": data, "partition": "by_group", **keys}
    content = {"name": "own", "task": task, "strategy": {"name": "fedavg"}, "fleet": section}
    return Scenario.model_validate(content)


def folder_of_devices(root: Path) -> Path:
    """Three devices; words and classes occur in another order on each."""
    rows = {"a": ROWS, "b": ROWS[::-1], "c": ROWS[1:]}
    for name, own in rows.items():
        written(root / name, HEADER, *own)
    return root


def test_each_entry_of_a_folder_is_an_agent_with_the_data_of_a_real_one(tmp_path: Path) -> None:
    folder = folder_of_devices(tmp_path / "flats")
    scene = fleet(3, "flats")
    data, split = fleet_data(scene, tmp_path)
    for index, name in enumerate("abc"):
        simulated = client_dataset(data, split, index)
        real = load_local(folder / name, task=scene.task)
        assert np.array_equal(simulated.targets, real.targets)
        assert np.array_equal(simulated.test_targets, real.test_targets)
        assert np.array_equal(simulated.features[:, 0], real.features[:, 0], equal_nan=True)
        assert words(simulated) == words(real)
    assert split.truth is None


def words(data: Any) -> list[str]:
    """The towns of the training samples."""
    known = data.columns.words["town"]
    codes = data.features[:, 1]
    return ["" if np.isnan(code) else known[int(code)] for code in codes]


def test_folders_around_devices_are_populations(tmp_path: Path) -> None:
    for site in ("north", "south"):
        for pump in ("1", "2"):
            written(tmp_path / "pumps" / site / pump, HEADER, *ROWS)
    _, split = fleet_data(fleet(4, "pumps"), tmp_path)
    assert split.truth is not None
    assert split.truth.tolist() == [0, 0, 1, 1]
    assert split.populations == ("north", "south")


def test_files_next_to_each_other_are_devices_but_train_and_test_are_not(tmp_path: Path) -> None:
    written(tmp_path / "two", HEADER, *ROWS, name="pi-1.csv")
    written(tmp_path / "two", HEADER, *ROWS, name="pi-2.csv")
    data = load_named("two", tmp_path, fleet(2, "two").task)
    assert data.groups is not None
    assert set(data.groups) == {"pi-1.csv", "pi-2.csv"}
    written(tmp_path / "one", HEADER, *ROWS, name="train.csv")
    written(tmp_path / "one", HEADER, *ROWS, name="test.csv")
    assert load_named("one", tmp_path, fleet(2, "one").task).groups is None


def test_files_with_numbers_are_devices(tmp_path: Path) -> None:
    for number in (1, 2, 20261):
        written(tmp_path, "a,b,label", "1,2,0", name=f"device-{number}.csv")
    assert len(device_entries(tmp_path)) == 3


def test_a_device_that_does_not_fit_is_named(tmp_path: Path) -> None:
    folder = folder_of_devices(tmp_path / "flats")
    written(folder / "d", "area,state", "50,good", "60,poor")
    with pytest.raises(DataError, match=r"flats/d/.* no column 'town'"):
        load_named("flats", tmp_path, fleet(4, "flats").task)


def test_a_path_from_the_working_directory_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder_of_devices(tmp_path / "flats")
    monkeypatch.chdir(tmp_path)
    data = load_named("./flats", tmp_path / "elsewhere", fleet(3, "flats").task)
    assert len(set(data.groups.tolist() if data.groups is not None else ())) == 3


# -- arrays and functions ------------------------------------------------------------------------------------

ARRAYS = {
    "x": np.arange(32, dtype=np.float32).reshape(16, 2),
    "y": np.arange(16) % 2,
    "groups": np.repeat(["ann", "bob", "cid", "dan"], 4),
    "populations": np.repeat(["north", "south"], 8),
}
PLAIN_TASK = {"features": [2], "classes": 2}


def test_arrays_name_groups_and_populations(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", **ARRAYS)  # type: ignore[arg-type]
    data, split = fleet_data(fleet(4, "mine.npz", PLAIN_TASK), tmp_path)
    assert split.truth is not None
    assert split.truth.tolist() == [0, 0, 1, 1]
    assert client_dataset(data, split, 3).features.min() >= 24


def test_a_function_names_groups_too_if_it_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import numpy as np\ndef arrays(path):\n    return dict(np.load(path))\n"
    (tmp_path / "my_fleet.py").write_text(text)
    np.savez(tmp_path / "mine.npz", **ARRAYS)  # type: ignore[arg-type]
    monkeypatch.syspath_prepend(tmp_path)
    scene = fleet(4, f"my_fleet:arrays:{tmp_path / 'mine.npz'}", PLAIN_TASK)
    with pytest.raises(ConsentError):
        fleet_data(scene, tmp_path)
    with consented(AllowedCode.parse(["my_fleet"])):
        _, split = fleet_data(scene, tmp_path)
    assert split.truth is not None
    assert split.truth.tolist() == [0, 0, 1, 1]


def test_populations_of_another_length_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", **(ARRAYS | {"populations": np.zeros(3)}))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="3 group entries for 16 samples"):
        load_named("mine.npz", tmp_path)


def test_the_latest_rows_of_a_device_in_a_fleet_are_those_of_its_own_file(tmp_path: Path) -> None:
    """Before: each device had the moments of the first one, for as many rows as that had."""
    task = {
        "features": [5], "columns": ["at", "a"], "times": ["at"], "target": "y", "classes": 2, "test": "latest"
    }  # fmt: skip
    folder = tmp_path / "pumps"
    folder.mkdir()
    for device, count in enumerate((20, 40)):
        rows = [f"2026-0{device + 1}-{row % 28 + 1:02d},{row},{row % 2}" for row in range(count)]
        (folder / f"{device}.csv").write_text("\n".join(["at,a,y", *rows]) + "\n")
    scene = fleet(2, "pumps", task)
    data, split = fleet_data(scene, tmp_path)
    for device in range(2):
        simulated = client_dataset(data, split, device)
        real = load_local(folder / f"{device}.csv", task=scene.task)
        assert simulated.columns is not None
        assert real.columns is not None
        assert np.array_equal(simulated.columns.moments, real.columns.moments)  # type: ignore[arg-type]
