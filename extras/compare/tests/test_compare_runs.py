"""The runs of a comparison: they share start and draws, run once, resume, and can come from an earlier comparison."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.coordinator.run.effects import RunOver
from covey.coordinator.run.folder import IN_PROCESS, alone_in, prepare
from covey.coordinator.run.options import RunOptions
from covey.coordinator.run.rules import rules_of
from covey.coordinator.run.run import Run
from covey.coordinator.simulate.virtual_clock import Driver
from covey.extras.compare import compare as commands
from covey.extras.compare.compare import CellsTried, CompareRequest, run_cells, try_cells
from covey.extras.compare.comparison_files import (
    NONE_KNOWN,
    KnownRows,
    finished_rows,
    known_rows,
    write_tables,
)
from covey.extras.compare.grid import Cell, grid
from covey.extras.compare.rows import Summary, summaries
from covey.extras.compare.tests.comparisons import DIGITS, scenario, written
from covey.extras.simulate.driver import alone, simulate
from covey.extras.simulate.workers import WorkerPool
from covey.shared.errors import UserError
from covey.shared.numerics.vectors import Layout, Tensor
from covey.shared.scenario.load import load
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import Setup, TaskData
from covey.shared.strategies.fedavg import FedAvg
from covey.shared.strategies.fuzzy import Fuzzy
from covey.shared.strategies.registry import BUILT_IN
from covey.shared.wire.jobs import DeviceData, InspectData, Performed
from tests.e2e.conftest import finish
from tests.processes import Program, model_bytes, words


class Watching:
    """Notes which cells are run."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def __call__(self, cell: Cell) -> Any:
        self.ran.append(cell.name)
        return nullcontext(lambda row: None)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerPool]:
    """Two workers; torch is imported once for all tests."""
    with WorkerPool(2, tmp_path_factory.mktemp("pool") / "workers.log") as pool:
        yield pool


def compare_in_process(
    scene: Scenario, out: Path, *cells: str, known: KnownRows = NONE_KNOWN
) -> list[str]:
    watching = Watching()
    assert run_cells(scene, RunOptions(out), cells, watching, in_process=True, known=known)
    return watching.ran


def tabled(scene: Scenario, out: Path, known: KnownRows = NONE_KNOWN) -> list[Summary]:
    """Write the tables of the finished cells; returns a summary for each method."""
    rows = finished_rows(scene, out, known)
    write_tables(scene, out, rows)
    return summaries(scene, rows)


@pytest.mark.usefixtures("numpy_learner")
@pytest.mark.processes
def test_a_comparison_shares_partition_start_and_draws_and_runs_nothing_twice(
    tmp_path: Path,
) -> None:
    scene = scenario()
    assert compare_in_process(scene, tmp_path, "fedavg/4") == ["fedavg/4"]
    assert compare_in_process(scene, tmp_path, "fedavg,fedclust/4,four/4") == [
        "fedclust/4",
        "four/4",
        "fedavg/5",
    ]
    folders = {label: tmp_path / label / "seed-4" for label in ("fedavg", "fedclust", "four")}
    assert len({(folder / "partition.npz").read_bytes() for folder in folders.values()}) == 1
    starts = {label: np.load(folder / "start.npz")["starts"] for label, folder in folders.items()}
    assert [len(starts[label]) for label in folders] == [1, 1, 4]
    assert len({start[0].tobytes() for start in starts.values()}) == 1
    other = np.load(tmp_path / "fedavg" / "seed-5" / "start.npz")["starts"]
    assert other[0].tobytes() != starts["fedavg"][0].tobytes()
    draws = {label: invited(folder) for label, folder in folders.items()}
    assert draws["fedavg"] == draws["fedclust"] == draws["four"] != []

    found = tabled(scene, tmp_path)
    assert [(one.method, one.seeds) for one in found] == [
        ("fedavg", [4, 5]),
        ("fedclust", [4]),
        ("four", [4]),
    ]
    rows = list(csv.DictReader((tmp_path / "compare.csv").open()))
    assert [f"{row['method']}/{row['seed']}" for row in rows] == [
        "fedavg/4",
        "fedclust/4",
        "four/4",
        "fedavg/5",
    ]
    assert json.loads((tmp_path / "compare.json").read_text())["methods"] == [
        one.to_json() for one in found
    ]
    splits = {seed: {row["split"] for row in rows if row["seed"] == seed} for seed in ("4", "5")}
    assert len(splits["4"]) == len(splits["5"]) == 1
    assert splits["4"] != splits["5"] != {""}
    assert (tmp_path / "compare.parquet").stat().st_size > 0

    with pytest.raises(UserError, match="holds a run of another scenario"):
        compare_in_process(scenario(rounds={"count": 3}), tmp_path)

    elsewhere = tmp_path / "elsewhere"
    known = known_rows(scene, [tmp_path / "compare.json"])
    assert compare_in_process(scene, elsewhere, "4", "fedclust", known=known) == ["fedclust/5"]
    again = tabled(scene, elsewhere, known)
    assert [(one.method, one.seeds) for one in again] == [
        ("fedavg", [4, 5]),
        ("fedclust", [4, 5]),
        ("four", [4]),
    ]
    assert again[0] == found[0]
    assert again[2] == found[2]


def recorded(path: Path, **changes: Any) -> tuple[Scenario, Path]:
    """A comparison with one row, as its compare.json has it."""
    scene = scenario(**changes)
    row = {
        "partition": "",
        "method": "fedavg",
        "seed": 4,
        "metric": "global",
        "figure": 0.5,
        "last_accuracy_macro": 0.9,
    }
    path.write_text(json.dumps({"scenario": scene.model_dump(mode="json"), "cells": [row]}))
    return scene, path


def test_a_cell_is_known_from_elsewhere_only_if_scenario_and_target_agree(tmp_path: Path) -> None:
    scene, file = recorded(tmp_path / "compare.json")
    assert list(known_rows(scene, [file])) == ["fedavg/4"]
    assert known_rows(scenario(rounds={"count": 3}), [file]) == {}
    assert known_rows(scenario(compare={"target": 0.5}), [file]) == {}
    more = [*DIGITS["compare"]["methods"], {"name": "fedprox"}]
    assert list(known_rows(scenario(compare={"methods": more}), [file])) == ["fedavg/4"]


def test_a_known_row_is_judged_by_this_comparisons_metric(tmp_path: Path) -> None:
    _, file = recorded(tmp_path / "compare.json")
    methods = [
        {**DIGITS["compare"]["methods"][0], "metric": "last"},
        *DIGITS["compare"]["methods"][1:],
    ]
    row = known_rows(scenario(compare={"methods": methods}), [file])["fedavg/4"]
    assert (row["metric"], row["figure"]) == ("last", 0.9)


@pytest.mark.parametrize("text", [None, "no json", "[]", "{}", '{"scenario": {}, "cells": []}'])
def test_a_file_that_no_comparison_wrote_is_named(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "other.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UserError, match=r"--known .*other\.json: "):
        known_rows(scenario(), [file])


def invited(folder: Path) -> list[list[str]]:
    lines = [json.loads(text) for text in (folder / "rounds.jsonl").read_text().splitlines()]
    return [line["invited"] for line in lines if line["phase"] == "train"]


@pytest.mark.processes
def test_a_run_without_a_broker_is_byte_identical_to_one_over_a_broker(tmp_path: Path) -> None:
    wire = {"codec": "int8", "delta": True}
    data = {key: value for key, value in DIGITS.items() if key != "compare"} | {"wire": wire}
    fleet = {**data["fleet"], "newcomers": 1}
    path = written(
        tmp_path, {**data, "fleet": fleet, "strategy": {"name": "fedclust", "n_clusters": 2}}
    )
    arguments = words("coordinator run", path, "--out", tmp_path / "wire", "--embedded", "--json")
    finish(Program(arguments, tmp_path / "log"))
    here = alone(load(path), RunOptions(tmp_path / "here"), lambda row: None)
    assert here is not None
    there = json.loads((tmp_path / "wire" / "result.json").read_text())
    assert model_bytes(tmp_path / "here") == model_bytes(tmp_path / "wire")
    assert len(model_bytes(tmp_path / "here")) == 2
    for key in ("accuracy", "assignment", "took_part", "mbit_per_agent", "ari", "newcomers"):
        assert here[key] == there[key]


@pytest.mark.usefixtures("numpy_learner")
@pytest.mark.processes
def test_the_cells_of_a_comparison_share_one_broker_and_one_fleet_and_have_their_own_bytes(
    tmp_path: Path,
) -> None:
    scene, cells, wire = scenario(), ["fedclust/4", "four/5"], tmp_path / "wire"
    assert run_cells(scene, RunOptions(wire, embedded=True), cells, Watching())
    assert [path.parent.parent.name for path in wire.glob("*/*/*.log")] == ["fedclust"] * 2
    for cell in grid(scene):
        if cell.name in cells:
            here = tmp_path / cell.label
            alone(cell.scenario, RunOptions(here), lambda row: None)
            assert model_bytes(wire / cell.folder) == model_bytes(here)
            both = [
                (folder / "partition.npz").read_bytes() for folder in (wire / cell.folder, here)
            ]
            assert both[0] == both[1]


class Interrupted(WorkerPool):
    """A pool that is interrupted after this many reports."""

    def __init__(self, pool: WorkerPool, reports: int) -> None:
        super().__init__(pool.size, Path())
        self._pool, self._left = pool, reports

    def call(self, job: Any) -> Any:
        answer: object = self._pool.call(job)
        if isinstance(answer, Performed):
            self._left -= 1
            if self._left < 0:
                raise KeyboardInterrupt
        return answer


@pytest.mark.usefixtures("numpy_learner")
@pytest.mark.processes
def test_an_interrupted_run_resumes_to_the_same_bytes(tmp_path: Path, pool: WorkerPool) -> None:
    scene = grid(scenario())[1].scenario
    whole = simulate(scene, RunOptions(tmp_path / "whole"), pool, lambda row: None)
    interrupted = Interrupted(
        pool, 6 + 3 + 2
    )  # signatures, the first round, all but one of the second
    with pytest.raises(KeyboardInterrupt):
        simulate(scene, RunOptions(tmp_path / "cut"), interrupted, lambda row: None)
    assert not (tmp_path / "cut" / "result.json").exists()
    again = simulate(scene, RunOptions(tmp_path / "cut", resume=True), pool, lambda row: None)
    assert model_bytes(tmp_path / "cut") == model_bytes(tmp_path / "whole")
    assert again["accuracy"] == whole["accuracy"]  # own last is measured with the agents' memories


@pytest.mark.usefixtures("numpy_learner")
@pytest.mark.processes
@pytest.mark.parametrize("kind", [NotImplementedError, RecursionError, RuntimeError])
def test_an_abandoned_run_names_the_error_that_its_method_raised(
    kind: type[Exception], tmp_path: Path, pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fold(*_: Any) -> Any:
        raise kind("not yet")

    monkeypatch.setattr(FedAvg, "fold", fold)
    with pytest.raises(
        UserError, match=f"given up after round 0: .* the fold failed: {kind.__name__}: not yet"
    ):
        simulate(grid(scenario())[0].scenario, RunOptions(tmp_path / "run"), pool, lambda row: None)


@pytest.mark.usefixtures("numpy_learner")
@pytest.mark.processes
def test_an_abandoned_run_names_its_reason(
    tmp_path: Path, pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Driver, "_wait", lambda *_: [RunOver("20 void rounds in a row")])
    with pytest.raises(UserError, match="given up after round 0: 20 void rounds in a row"):
        simulate(grid(scenario())[0].scenario, RunOptions(tmp_path / "run"), pool, lambda row: None)


def test_a_run_with_a_broker_is_not_resumed_without_one_nor_the_reverse(tmp_path: Path) -> None:
    """Agents keep their state elsewhere in each case; it would be lost without a message."""
    scene = scenario(compare={})
    for name, began, wanted in (
        ("abc", "over a broker", True),
        (IN_PROCESS, "without a broker", False),
    ):
        folder = tmp_path / name
        setup = Setup(
            (np.zeros(3, np.float32),), Layout((Tensor("w", (3,)),), 1), 0, 1, 1.0, scene.training
        )
        Run.start(folder, scene, setup, rules=rules_of(scene), run=name, now=0.0)
        options = RunOptions(folder, resume=True)
        with pytest.raises(UserError, match=f"this run began {began}; resume it with"):
            prepare(scene, options, in_process=wanted)
        prepare(scene, options, in_process=not wanted)


def test_a_method_that_cannot_be_run_leaves_the_other_cells_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[str] = []

    async def run(scene: Scenario, options: RunOptions, *_: Any) -> dict[str, Any]:
        folder = options.folder
        tried.append(f"{folder.parent.name}/{scene.seed}")
        if folder.parent.name == "fedclust":
            raise UserError("the model has no such layer")
        return {"accuracy": {"server": {"agents": 6}}}

    monkeypatch.setattr("covey.coordinator.cli.run.run", run)
    scene = scenario()  # three methods, seeds 4 and 5
    outcome = try_cells(scene, RunOptions(tmp_path), [], Watching())
    # the second seed would fail in the same way
    assert tried == ["fedavg/4", "fedclust/4", "four/4", "fedavg/5", "four/5"]
    assert outcome.failures == dict.fromkeys(
        ["fedclust/4", "fedclust/5"], "the model has no such layer"
    )
    assert "cell fedclust/4 cannot be run: the model has no such layer" in caplog.text
    with pytest.raises(UserError, match=r"cell fedclust/4: .* \(1 more cells failed: fedclust/5\)"):
        run_cells(scene, RunOptions(tmp_path), [], Watching())
    assert tried[-1] == "four/5"


def test_a_method_that_cannot_train_on_the_task_is_named_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    evaluated = {"accuracy": {"server": {"agents": 6}}}
    said_before: list[str] = []

    async def run(*_: Any) -> dict[str, Any]:
        said_before.append(caplog.text)
        return evaluated

    monkeypatch.setattr("covey.coordinator.cli.run.run", run)
    why = "it needs tables"
    refuses = lambda _, settings: why if isinstance(settings, TaskData) else ""  # noqa: E731
    monkeypatch.setattr(BUILT_IN["fedprox"], "refuses", refuses)
    methods = ["fedavg", "fedprox"]
    scene = scenario(compare={"methods": methods, "published": {}, "seeds": [4]})
    outcome = try_cells(scene, RunOptions(tmp_path), [], Watching())
    assert why in said_before[0]
    assert why in outcome.failures["fedprox/4"]
    with pytest.raises(UserError, match=why):
        rules_of(grid(scene)[1].scenario)


def test_a_contrastive_loss_needs_images() -> None:
    fuzzy = Fuzzy(n_clusters=2)
    assert "needs images" in fuzzy.refuses(TaskData((5,)))
    assert fuzzy.refuses(TaskData((1, 8, 8))) == ""
    assert Fuzzy(n_clusters=2, beta=0).refuses(TaskData((5,))) == ""


def test_a_comparison_prints_its_tables_before_it_names_the_cells_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    failures = {"fedclust/4": "no such layer"}
    monkeypatch.setattr(commands, "try_cells", lambda *_, **__: CellsTried(failures=failures))
    monkeypatch.setattr(commands, "finished_rows", lambda *_: [])
    monkeypatch.setattr(commands, "write_tables", lambda *_: shown.append("written"))
    monkeypatch.setattr(commands, "show", lambda *_, **__: shown.append("shown"))
    monkeypatch.setattr(commands, "_any_finished", lambda *_: True)
    with pytest.raises(UserError, match="cell fedclust/4: no such layer"):
        commands.compare(scenario(), RunOptions(tmp_path), CompareRequest(), None)
    assert shown == ["written", "shown"]


def test_a_comparison_locks_its_folder(tmp_path: Path) -> None:
    scene = scenario()
    with alone_in(tmp_path), pytest.raises(UserError, match="another coordinator is at work in it"):
        run_cells(scene, RunOptions(tmp_path), [], lambda cell: nullcontext(print), in_process=True)
    assert not list(tmp_path.iterdir())


def test_faults_need_a_broker(tmp_path: Path) -> None:
    fleet = {**DIGITS["fleet"], "faults": {"die": 0.1}}
    with pytest.raises(UserError, match="need a broker"):
        simulate(
            scenario(fleet=fleet),
            RunOptions(tmp_path / "x"),
            WorkerPool(1, tmp_path / "log"),
            lambda row: None,
        )
    assert not (tmp_path / "x").exists()


@pytest.mark.processes
def test_a_worker_that_dies_during_a_job_is_reported(tmp_path: Path) -> None:
    dies = (sys.executable, "-c", "import sys; sys.stdin.buffer.read(4)")
    with (
        WorkerPool(1, tmp_path / "log", dies) as pool,
        pytest.raises(UserError, match="a worker process died during a job"),
    ):
        pool.call(InspectData(source=DeviceData(data="x"), task={}))
