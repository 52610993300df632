"""Cells of a comparison on a Dask cluster: the same bytes as on this machine, and what happens when a cell fails."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from covey.coordinator.run.options import RunOptions
from covey.extras.compare import dask_cells
from covey.extras.compare.compare import CompareRequest, compare, run_cells
from covey.extras.compare.comparison_files import finished_rows
from covey.extras.compare.dask_cells import CellOutcome, packed, run_together, this_place, unpack
from covey.extras.compare.grid import Cell, grid
from covey.extras.compare.tests.comparisons import scenario
from covey.shared.errors import UserError
from covey.shared.own_code.consent import NO_CODE
from covey.shared.scenario.scenario import Scenario

distributed = pytest.importorskip("distributed")

TWO_CELLS = {"methods": [{"name": "fedavg"}, {"name": "fedclust", "n_clusters": 2}], "seeds": [4]}


@pytest.fixture(scope="module")
def cluster(numpy_learner: None) -> Iterator[str]:
    """The address of a scheduler with two workers, each a process of this machine."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None
    ) as local:
        yield local.scheduler_address.replace("tcp://", "dask://")


def digests(folder: Path) -> dict[str, str]:
    """A digest of each file that is the same in every repetition of the runs below a folder."""
    found = {}
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder)
        is_model = file.suffix == ".safetensors"
        if is_model or file.name in {"agents.parquet", "partition.npz", "start.npz"}:
            found[str(name)] = hashlib.sha256(file.read_bytes()).hexdigest()
    return found


def rows(scene: Scenario, folder: Path) -> list[dict[str, Any]]:
    """The rows of a comparison without its times."""
    found = [row.to_json() for row in finished_rows(scene, folder)]
    return [{name: row[name] for name in row if "seconds" not in name} for row in found]


@pytest.mark.processes
def test_cells_on_two_machines_of_a_cluster_give_the_bytes_of_this_machine(
    cluster: str, tmp_path: Path
) -> None:
    scene = scenario(compare=TWO_CELLS)
    here = RunOptions(tmp_path / "here")
    there = RunOptions(tmp_path / "there")
    assert run_cells(
        scene, here, [], lambda cell: nullcontext(lambda notice: None), in_process=True
    )
    shown = io.StringIO()
    assert compare(scene, there, CompareRequest(machines=cluster), Console(file=shown, width=80))

    assert digests(there.folder) == digests(here.folder)
    models = there.folder.glob("*/*/models/cluster-*.safetensors")
    assert len(list(models)) == 3, "one of FedAvg and two of FedClust"
    assert rows(scene, there.folder) == rows(scene, here.folder)
    for cell in grid(scene):
        assert f"{cell.name}: finished on " in shown.getvalue()
    document = json.loads((there.folder / "compare.json").read_text())
    assert sorted(document["ran_on"]) == sorted(cell.name for cell in grid(scene))
    workers = {place["worker"] for place in document["ran_on"].values()}
    assert len(workers) == 2, "both machines had a part in it"


@pytest.mark.processes
def test_a_cell_that_fails_is_named_and_the_others_are_kept(cluster: str, tmp_path: Path) -> None:
    good = grid(scenario())[0]
    other_shape = good.scenario.task.model_copy(update={"features": (1, 9, 9)})
    does_not_fit = good.scenario.model_copy(update={"task": other_shape})
    bad = Cell(split="", label="bad", seed=4, scenario=does_not_fit)
    outcomes: list[str] = []

    def note(outcome: CellOutcome, left: int) -> None:
        outcomes.append(outcome.name)

    failures = run_together(
        cluster, [good, bad], tmp_path, data_root=None, allowed=NO_CODE, finished=note
    )
    assert sorted(outcomes) == sorted([good.name, bad.name])
    assert list(failures) == [bad.name]
    assert "the task expects [1, 9, 9]" in failures[bad.name]
    assert (tmp_path / good.folder / "result.json").exists()
    assert not (tmp_path / bad.folder).exists()


def test_a_scheduler_that_is_not_there_is_an_error_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_cells, "CONNECT_WITHIN_S", 0.5)
    cells = grid(scenario())
    with pytest.raises(UserError, match=r"no Dask scheduler answers there.*dask scheduler"):
        run_together(
            "dask://127.0.0.1:9",
            cells,
            tmp_path,
            data_root=None,
            allowed=NO_CODE,
            finished=lambda *_: None,
        )


@pytest.mark.processes
def test_a_worker_of_another_version_is_refused(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_cells, "installed_versions", lambda packages: {"covey": "9.9"})
    with pytest.raises(UserError, match="install the same version on both"):
        run_together(
            cluster,
            grid(scenario()),
            tmp_path,
            data_root=None,
            allowed=NO_CODE,
            finished=lambda *_: None,
        )


def test_a_folder_comes_back_without_its_working_files(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for name in ("agents/agent-0/memory-1.npz", "models/cluster-0.npz", "result.json"):
        file = run / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    back = tmp_path / "back"
    back.mkdir()
    unpack(packed(run), back)
    files = [str(file.relative_to(back)) for file in sorted(back.rglob("*")) if file.is_file()]
    assert files == ["models/cluster-0.npz", "result.json"]


def test_an_archive_that_leaves_its_folder_is_refused(tmp_path: Path) -> None:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("../outside"))
    with pytest.raises(tarfile.TarError):
        unpack(content.getvalue(), tmp_path)
    assert not (tmp_path.parent / "outside").exists()


def test_the_place_of_a_cell_names_the_versions_that_decide_its_bytes() -> None:
    place = this_place("tcp://here")
    assert set(place.versions) == {"covey", "torch", "numpy"}
    assert place.versions["numpy"]
