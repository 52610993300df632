"""The page of a comparison: means with bands over seeds, all cells, also while some are unfinished."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
from rich.console import Console

from covey.coordinator.cli import report
from covey.coordinator.run.result import write_all
from covey.extras.compare import comparison_files
from covey.extras.compare.comparison_page import ShownCell, curves_of_cells, pictures_of_splits
from covey.extras.compare.grid import Cell, grid
from covey.shared.errors import UserError
from covey.shared.scenario.describe import dump
from tests.kit.small_run import in_process, scenario

PLANTED = {f"agent-{i}": i % 2 for i in range(8)}
SCENE = scenario(
    "fedavg",
    evaluation={"every": 1},
    compare={
        "methods": [{"name": "fedavg"}, {"name": "fedclust", "n_clusters": 2}],
        "seeds": [1, 2],
    },
)


def compared(folder: Path, cells: Iterable[Cell]) -> Path:
    """A comparison's folder in which these cells are finished."""
    folder.mkdir()
    (folder / report.SCENARIO).write_text(dump(SCENE))
    for cell in cells:
        own = folder / cell.folder
        own.mkdir(parents=True)
        write_all(in_process(own, cell.scenario), PLANTED)
        (own / "scenario.yaml").write_text(dump(cell.scenario))
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compared(tmp_path_factory.mktemp("comparisons") / "whole", grid(SCENE))


def printed(folder: Path, *more: Path, html: Path | None = None) -> str:
    """What the report prints at 80 columns."""
    said = io.StringIO()
    console = Console(width=80, file=said, force_terminal=True, markup=False, emoji=False)
    report.report(report.ReportRequest([folder, *more], html), console)
    return said.getvalue()


def shown(folder: Path) -> list[ShownCell]:
    rows = comparison_files.finished_rows(SCENE, folder)
    cells = []
    for cell, row in zip(grid(SCENE), rows, strict=True):
        cells.append(ShownCell(cell, folder / cell.folder, "finished", row))
    return cells


def test_the_report_of_a_comparison_writes_a_page_into_its_folder(whole: Path) -> None:
    said = printed(whole)
    assert "fedclust" in said
    assert "the page is" in said
    page = (whole / "report.html").read_text()
    for words in (
        "comparison of 2 methods",
        "seeds 1, 2",
        "± standard deviation over seeds",
        "Accuracy at the end, seed by seed",
        "Lines are means over seeds",
        "<h2>Cells</h2>",
        f"coordinator compare {whole}/compare.yaml --out runs/whole-again --in-process",
    ):
        assert words in page
    assert 'class="band' in page


def test_a_band_is_one_deviation_around_the_mean_of_the_seeds(whole: Path) -> None:
    cells = shown(whole)
    runs = curves_of_cells(cells)
    assert sorted(runs) == ["fedavg/1", "fedavg/2", "fedclust/1", "fedclust/2"]
    first, *_ = pictures_of_splits(SCENE, cells, runs)
    assert (first.name, len(first.drawing.panels)) == ("accuracy", 3)
    assert [entry.label for entry in first.drawing.legend] == ["fedavg", "fedclust"]


def test_an_unfinished_comparison_is_reported_with_the_cells_that_it_has(
    whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "part"
    shutil.copytree(whole, folder)
    (folder / "report.html").unlink(missing_ok=True)
    shutil.rmtree(folder / "fedavg" / "seed-2")
    (folder / "fedclust" / "seed-2" / "result.json").unlink()  # it was interrupted
    said = printed(folder, html=tmp_path / "page.html")
    assert "fedavg" in said
    page = (tmp_path / "page.html").read_text()
    for words in ("2 of 4 cells are finished", "not begun", "unfinished, 3 rounds are over"):
        assert words in page
    assert not (folder / "report.html").exists()


def test_a_comparison_without_its_scenario_file_is_read_from_its_table(
    whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "older"
    shutil.copytree(whole, folder)
    comparison_files.write_tables(SCENE, folder, comparison_files.finished_rows(SCENE, folder))
    (folder / report.SCENARIO).unlink()
    assert "fedclust" in printed(folder)
    (folder / report.TABLE).write_text("{}")
    with pytest.raises(UserError, match=r"compare\.json: expected what .coordinator compare."):
        printed(folder)


def test_comparisons_are_reported_one_at_a_time(whole: Path) -> None:
    with pytest.raises(UserError, match="report one comparison at a time"):
        printed(whole, whole / "fedavg" / "seed-1")


def test_an_unasked_page_is_no_reason_to_fail(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole / "fedavg" / "seed-1", folder)
    (folder / "agents.parquet").unlink()
    said = printed(folder)
    assert "fedavg" in said
    assert "no page was written" in said


def test_the_page_begins_with_the_verdict_and_who_loses_and_folds_the_rest(tmp_path: Path) -> None:
    folder = compared(tmp_path / "whole", grid(SCENE))
    printed(folder)
    page = (folder / "report.html").read_text()
    first, _, rest = page.partition("<summary>All other figures</summary>")
    assert first.index("<h2>Verdict</h2>") < first.index("what is in use")
    assert "Agents by group found" in first
    assert "<h2>Cells</h2>" in rest
    assert first.count('class="lead"') == 1
