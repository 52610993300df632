"""The files of a comparison: which cells are finished, their rows, the tables and the page.

A cell is finished if its folder holds a finished run, or if the compare.json of an earlier comparison has its row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from covey.coordinator.cli.options import warn
from covey.coordinator.cli.report import SCENARIO, TABLE
from covey.coordinator.disk.checkpoint import Checkpoint
from covey.coordinator.record.records import finished, lines, scenario_digest
from covey.extras.compare.grid import Cell, grid, section, target_of
from covey.extras.compare.rows import (
    ComparisonRow,
    Summary,
    judged,
    measure_of,
    row_of,
    summaries,
    with_same_columns,
)
from covey.extras.compare.tables import markdown
from covey.extras.compare.verdict import Verdict, standings, verdicts
from covey.shared.errors import UserError
from covey.shared.scenario.describe import dump
from covey.shared.scenario.load import load
from covey.shared.scenario.scenario import Scenario
from covey.shared.sentences import some
from covey.shared.storage import csv_text, json_text
from covey.shared.storage.files import atomic_replace, private_folder, write_atomically

KnownRows = Mapping[str, ComparisonRow]  # of earlier comparisons, by the cell's name
Identity = tuple[str, float | None]  # the digest of a cell's scenario, and its target
NONE_KNOWN: KnownRows = MappingProxyType({})
UNREADABLE = "cannot be read"  # in the place of a cell's state
EXPECTED = "expected a compare.json that `coordinator compare` wrote"


def keep_scenario(scenario: Scenario, out: Path) -> None:
    """Write what is compared, so that a report of an unfinished comparison knows all cells."""
    write_atomically(out / SCENARIO, dump(scenario).encode())


def is_finished(cell: Cell, out: Path) -> bool:
    """Whether the cell has a result below `out`. Raises UserError if its folder holds something else."""
    folder = out / cell.folder
    if not folder.exists() or not any(folder.iterdir()):
        return False
    file = folder / "scenario.yaml"
    if not file.exists() or scenario_digest(load(file)) != scenario_digest(cell.scenario):
        raise UserError(
            f"{folder}: this folder holds a run of another scenario; compare {file} with yours, "
            "and choose another --out or remove the folder yourself"
        )
    return (folder / "result.json").exists()


# -- rows of earlier comparisons -----------------------------------------------------------------------------------


def known_rows(scenario: Scenario, files: Iterable[Path]) -> KnownRows:
    """The rows of these compare.json files for cells of this comparison; the last file wins.

    A row counts if its cell ran the same scenario and counts to the same target. Raises UserError for a
    file that no comparison wrote.
    """
    expected = {cell.name: _identity(scenario, cell) for cell in grid(scenario)}
    known = {}
    for file in files:
        for name, (identity, row) in _recorded(file).items():
            if expected.get(name) == identity:
                measure = measure_of(section(scenario), scenario.task)
                known[name] = judged(row, section(scenario), measure)
    return known


def _recorded(file: Path) -> dict[str, tuple[Identity, ComparisonRow]]:
    """The cells that a compare.json has rows of, by name."""
    try:
        return _read_rows(file)
    except OSError as error:
        raise UserError(f"--known {file}: {error.strerror}; {EXPECTED}") from None
    except (ValueError, KeyError, TypeError, UserError) as error:
        reason = str(error).splitlines()[0]
        kind = type(error).__name__
        raise UserError(f"--known {file}: {EXPECTED}; {kind}: {reason}") from None


def _read_rows(file: Path) -> dict[str, tuple[Identity, ComparisonRow]]:
    document = json_text.loads(file.read_text())
    scenario = Scenario.model_validate(document["scenario"])
    by_cell = {}
    for columns in document["cells"]:
        key = (columns["partition"], columns["method"], columns["seed"])
        by_cell[key] = columns
    found = {}
    for cell in grid(scenario):
        key = (cell.split, cell.label, cell.seed)
        columns = by_cell.get(key)
        if columns is not None:
            row = ComparisonRow.from_json(columns)
            found[cell.name] = _identity(scenario, cell), row
    return found


def _identity(scenario: Scenario, cell: Cell) -> Identity:
    return scenario_digest(cell.scenario), target_of(section(scenario), cell)


# -- tables --------------------------------------------------------------------------------------------------------


def finished_rows(
    scenario: Scenario, out: Path, known: KnownRows = NONE_KNOWN
) -> list[ComparisonRow]:
    """A row for each finished cell, all with the same columns. Raises UserError if there is none.

    A cell whose files are damaged, or of another version or scenario, is left out with a warning.
    """
    from pyarrow import parquet

    compare = section(scenario)
    rows = []
    for cell in grid(scenario):
        folder = out / cell.folder
        try:
            if is_finished(cell, out):
                agents = parquet.read_table(folder / "agents.parquet").to_pylist()
                rows.append(row_of(cell, compare, finished(folder), lines(folder), agents))
                continue
        except (UserError, OSError, ValueError, KeyError, TypeError) as error:  # also of the table
            what = "the row of compare.json counts" if cell.name in known else "it is left out"
            warn(f"cell {cell.name} cannot be read, {what}: {error}")
        if cell.name in known:
            rows.append(known[cell.name])
    if not rows:
        raise UserError(f"{out}: {_none_finished(grid(scenario), out)}")
    return with_same_columns(rows)


def _none_finished(cells: Sequence[Cell], out: Path) -> str:
    """Why there is nothing to compare, and which cells of other seeds or methods are finished."""
    asked = {cell.folder.as_posix() for cell in cells}
    there = {found.parent.relative_to(out).as_posix() for found in out.rglob("result.json")}
    text = f"no cell that is asked for is finished ({some([cell.name for cell in cells])})"
    if others := sorted(there - asked):
        return f"{text}; finished are {some(others)}: ask for the seeds and methods of {out / SCENARIO}"
    return f"{text}, so there is nothing to compare; run some of them first"


def write_tables(scenario: Scenario, out: Path, rows: Sequence[ComparisonRow]) -> None:
    """Write compare.json, .csv, .parquet (a row for each finished cell) and .md to the folder `out`.

    The folder is created if it does not exist.
    """
    from pyarrow import Table, parquet

    private_folder(out)
    found = summaries(scenario, rows)
    judged = verdicts(scenario, rows)
    cells = [row.to_json() for row in rows]
    document = {
        "name": scenario.name,
        "scenario": scenario.model_dump(mode="json"),
        "methods": [one.to_json() for one in found],
        "verdicts": [one.to_json() for one in judged],
        "cells": cells,
    }
    places = _places(scenario, out)
    if places:
        document["ran_on"] = places
    text = json.dumps(document, indent=1, allow_nan=False)
    write_atomically(out / TABLE, text.encode())
    write_atomically(out / "compare.csv", csv_text.dumps(cells).encode())
    write_atomically(out / "compare.md", _markdown(scenario, found, judged, rows).encode())
    with atomic_replace(out / "compare.parquet") as new:
        parquet.write_table(Table.from_pylist(cells), new)


def _markdown(
    scenario: Scenario,
    found: Sequence[Summary],
    judged: Sequence[Verdict],
    rows: Sequence[ComparisonRow],
) -> str:
    """The verdicts, then the tables."""
    sentences = [f"- {one.sentence}\n" for one in judged]
    heading = "".join(sentences) + "\n" * bool(sentences)
    parts = [markdown(scenario, found), *[table.markdown() for table in standings(scenario, rows)]]
    return heading + "\n".join(parts)


def _places(scenario: Scenario, out: Path) -> dict[str, Any]:
    """The machines that cells ran on, by the cell's name, for those that a cluster ran."""
    from covey.extras.compare.dask_cells import place_of

    places = {cell.name: place_of(out / cell.folder) for cell in grid(scenario)}
    return {name: place for name, place in places.items() if place is not None}


# -- the page --------------------------------------------------------------------------------------


def write_page(scenario: Scenario, out: Path, rows: Sequence[ComparisonRow], page: Path) -> None:
    """Write the page of a comparison to a file.

    Args:
        scenario: what is compared
        out: the comparison's folder
        rows: the rows of its finished cells, and of those that are known from elsewhere
        page: the file
    """
    from covey.extras.compare.comparison_page import FINISHED, ShownCell, comparison_page

    by_cell = {(row.partition, row.method, row.seed): row for row in rows}
    cells = []
    for cell in grid(scenario):
        key = (cell.split, cell.label, cell.seed)
        found = by_cell.get(key)
        folder = out / cell.folder
        state = UNREADABLE
        with suppress(UserError):
            is_here = is_finished(cell, out)
            if found is not None:
                state = FINISHED if is_here else "finished elsewhere"
            elif not is_here:
                state = _progress_of(folder)
        cells.append(ShownCell(cell, folder, state, found))
    private_folder(out)
    write_atomically(page, comparison_page(scenario, out, cells).encode())


def _progress_of(folder: Path) -> str:
    """How far an unfinished cell has come."""
    checkpoint = Checkpoint(folder / "checkpoint")
    if not checkpoint.exists():
        return "not begun"
    rounds = checkpoint.facts()["engine"]["round"]
    return f"unfinished, {rounds} rounds are over"
