"""What a run starts from: models that were made elsewhere spare the coordinator torch."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.coordinator.cli.run import Children
from covey.coordinator.processes import launch
from covey.coordinator.run.options import RunOptions
from covey.shared.errors import UserError
from covey.shared.numerics.vectors import Layout, Tensor
from covey.shared.scenario.scenario import Scenario

LAYOUT = Layout((Tensor("out.weight", (2, 3)), Tensor("out.bias", (2,))), 2)


SCENARIO = {
    "name": "x",
    "task": {"features": [3], "classes": 2},
    "strategy": {"name": "ifca", "n_clusters": 2},
}


async def test_an_error_of_a_child_shows_nothing_from_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "export.log"
    log.write_text("error: of yesterday\n")
    monkeypatch.setattr(
        launch, "python", lambda *_: ["/bin/sh", "-c", "echo error: of today; exit 2"]
    )
    with pytest.raises(UserError, match=r"could not be exported:\nerror: of today$"):
        await launch.exported(tmp_path / "model", tmp_path / "out", log)


async def test_runs_share_a_fleet_for_as_long_as_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scenario.model_validate({**SCENARIO, "fleet": {"agents": 2}})
    folders = [tmp_path / name for name in ("one", "two", "three")]
    for folder in folders:
        folder.mkdir()
    first, second, third = [RunOptions(folder) for folder in folders]
    monkeypatch.setattr(launch, "python", lambda *_: ["/bin/sh", "-c", "read path; echo $path"])
    async with AsyncExitStack() as stack:
        children = Children(stack)
        fleet = await children.fleet(scene, first, [])
        assert fleet is not None
        assert await children.fleet(scene, second, []) is fleet
        await fleet.process.wait()
        assert fleet.messages() == f"{tmp_path}/two/scenario.yaml"
        assert await children.fleet(scene, third, []) is not fleet


def begun(folder: Path, starts: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The setup of a method with two starts, where no child may be asked to build a model."""

    def no_child(*_: Any, **__: Any) -> Any:
        raise AssertionError("a model was to be built")

    monkeypatch.setattr(launch, "_child", no_child)
    np.savez(folder / "made.npz", starts=starts, layout=np.array(json.dumps(LAYOUT.to_wire())))
    task = {"features": [3], "classes": 2, "init": str(folder / "made.npz")}
    strategy = {"name": "ifca", "n_clusters": 2}
    scenario = Scenario.model_validate({"name": "x", "task": task, "strategy": strategy})
    return asyncio.run(launch.initial(folder, scenario))


def test_models_that_agent_model_wrote_are_taken_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = np.arange(16, dtype=np.float32).reshape(2, 8)
    setup = begun(tmp_path, starts, monkeypatch)
    assert [start.tolist() for start in setup.starts] == starts.tolist()
    assert setup.layout == LAYOUT
    assert (tmp_path / "start.npz").exists()


def test_models_for_another_method_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        UserError,
        match=r"starts has shape \(1, 8\), expected \(2, 8\); create it again with `agent lab model`",
    ):
        begun(tmp_path, np.zeros((1, 8), np.float32), monkeypatch)


@pytest.mark.parametrize("damage", ["cut", "bit", "empty", "other"])
def test_damaged_initial_models_are_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    setup = begun(tmp_path, np.arange(16, dtype=np.float32).reshape(2, 8), monkeypatch)
    start = tmp_path / "start.npz"
    whole = start.read_bytes()
    damaged = {
        "cut": whole[: len(whole) // 2],
        "bit": whole[:200] + b"?" + whole[201:],
        "empty": b"",
        "other": b"no",
    }
    start.write_bytes(damaged[damage])
    with pytest.raises(UserError, match=r"start\.npz.*damaged.*Remove the file"):
        begun(tmp_path, np.zeros((2, 8), np.float32), monkeypatch)
    start.unlink()
    again = begun(tmp_path, np.arange(16, dtype=np.float32).reshape(2, 8), monkeypatch)
    assert [one.tolist() for one in again.starts] == [one.tolist() for one in setup.starts]
