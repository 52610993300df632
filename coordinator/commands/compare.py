"""What `coordinator compare` does: run the cells that are missing, then print and write the tables.

A cell is there when its folder holds a finished run, or when the compare.json of an earlier comparison has its row: so a
comparison goes on where it stopped on the same machine, and on another one with nothing but that file.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console

from covey.coordinator.commands import run as command
from covey.coordinator.compare.grid import (
    Cell,
    Row,
    chosen,
    grid,
    judged,
    no_better,
    row_of,
    section,
    summaries,
    target_of,
    tuning_of,
)
from covey.coordinator.compare.tables import markdown, tables
from covey.coordinator.processes.workers import WorkerPool
from covey.coordinator.report import display
from covey.coordinator.run.checkpoint import Checkpoint
from covey.coordinator.run.folder import alone_in
from covey.coordinator.run.notices import Notice, Observer
from covey.coordinator.run.options import Options
from covey.coordinator.run.records import finished, lines, scenario_digest
from covey.coordinator.simulate.driver import simulate
from covey.shared import json_text
from covey.shared.errors import UserError
from covey.shared.files import atomic_replace, private_folder, write_atomically
from covey.shared.scenario.code import check_code
from covey.shared.scenario.load import load
from covey.shared.scenario.scenario import Scenario

Watching = Callable[[Cell], AbstractContextManager[Observer]]
Known = Mapping[str, Row]  # rows of earlier comparisons, by the cell's name
Identity = tuple[str, float | None]  # a cell's scenario, as a digest, and its target
NONE_KNOWN: Known = MappingProxyType({})


@dataclass(frozen=True)
class Wanted:
    """What a comparison is asked for besides its scenario and how its cells run."""

    cells: Sequence[str] = ()  # empty: all
    known: Sequence[Path] = ()  # compare.json files
    run: bool = True  # what is missing
    in_process: bool = False
    write: bool = True  # the tables, as files


def compare(scenario: Scenario, options: Options, wanted: Wanted, console: Console | None) -> bool:
    """Run what is missing, then print the tables, and write them; False where the operator stopped it.

    Without a console lines of JSON are printed. Raises UserError, and KeyboardInterrupt where a run without a broker was
    stopped.
    """
    known = known_rows(scenario, wanted.known)
    if wanted.known and console is not None:
        console.print(
            f"{len(known)} cells are known: those with this scenario and target", highlight=False
        )
    watching = _watching(scenario, options.folder, console)
    if wanted.run and not run_cells(
        scenario, options, wanted.cells, watching, in_process=wanted.in_process, known=known
    ):
        return False
    rows = finished_rows(scenario, options.folder, known)
    if wanted.write:
        write_tables(scenario, options.folder, rows)
    _show(scenario, rows, console)
    if wanted.write and console is not None:
        names = "compare.json, .csv, .parquet and .md are in"
        console.print(f"{names} {options.folder}", highlight=False, soft_wrap=True)
    return True


def _watching(scenario: Scenario, out: Path, console: Console | None) -> Watching:
    def watching(cell: Cell) -> AbstractContextManager[Observer]:
        def print_notice(notice: Notice) -> None:
            display.json_line({"cell": cell.name, **notice.to_json()})

        if console is None:
            return nullcontext(print_notice)
        console.print(f"{cell.name}: {out / cell.folder}", highlight=False, soft_wrap=True)
        return display.Progressing(console, scenario.rounds.count)

    return watching


def _show(scenario: Scenario, rows: Sequence[Row], console: Console | None) -> None:
    found = summaries(scenario, rows)
    if console is None:
        display.json_line({"event": "compare", "methods": found})
        return
    for words in tables(scenario, found):
        console.print(
            display.words_table(words), width=max(console.width, 160), crop=False
        )  # no column is lost
    for remark in no_better(scenario, found):
        console.print(remark, style="yellow", highlight=False, markup=False)


def known_rows(scenario: Scenario, files: Iterable[Path]) -> Known:
    """Rows of the cells that these compare.json files and the scenario have in common, the last file first.

    In common are cells that run the very same scenario and count to the same target. Raises UserError where a file is
    none that a comparison wrote.
    """
    wanted = {cell.name: _identity(scenario, cell) for cell in grid(scenario)}
    return {
        name: judged(row, section(scenario))
        for file in files
        for name, (identity, row) in _recorded(file).items()
        if wanted.get(name) == identity
    }


def _recorded(file: Path) -> dict[str, tuple[Identity, Row]]:
    """The cells that a compare.json has rows of, by name."""
    try:
        document = json_text.loads(file.read_text())
        scenario = Scenario.model_validate(document["scenario"])
        rows = {(row["partition"], row["method"], row["seed"]): row for row in document["cells"]}
        return {
            cell.name: (_identity(scenario, cell), {**_tuned_before(scenario, cell), **rows[key]})
            for cell in grid(scenario)
            if (key := (cell.split, cell.label, cell.seed)) in rows
        }
    except OSError as error:
        raise UserError(f"--known {file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, UserError) as error:
        raise UserError(
            f"--known {file}: wanted is a compare.json as `coordinator compare` writes it; {type(error).__name__}: "
            f"{str(error).splitlines()[0]}"
        ) from None


def _tuned_before(scenario: Scenario, cell: Cell) -> Row:
    """What a row was fine-tuned with that does not say so: an earlier version took the method's own training."""
    return tuning_of(cell.scenario.model_copy(update={"evaluation": scenario.evaluation}))


def _identity(scenario: Scenario, cell: Cell) -> Identity:
    return scenario_digest(cell.scenario), target_of(section(scenario), cell)


def run_cells(
    scenario: Scenario,
    options: Options,
    wanted: Iterable[str],
    watching: Watching,
    *,
    in_process: bool = False,
    known: Known = NONE_KNOWN,
) -> bool:
    """Run what is missing below `options.folder`; False where the operator stopped it. Finished cells stay as they are.

    Raises UserError, before anything starts, where a folder holds a run of another scenario.
    """
    check_code(scenario, options.allowed)
    cells = [cell for cell in chosen(grid(scenario), wanted) if cell.name not in known]
    missing = [cell for cell in cells if not is_finished(cell, options.folder)]
    with ExitStack() as stack:
        if missing:
            stack.enter_context(alone_in(options.folder))
        pool = None
        if in_process and missing:
            size = scenario.fleet.workers if scenario.fleet is not None else 0
            pool = stack.enter_context(WorkerPool(size, options.folder / "workers.log"))
        for cell in missing:
            with watching(cell) as observer:
                if _run(cell, options, pool, observer) is None:
                    return False
    return True


def _run(
    cell: Cell, options: Options, pool: WorkerPool | None, observer: Observer
) -> dict[str, Any] | None:
    folder = options.folder / cell.folder
    resume = Checkpoint(folder / "checkpoint").exists()
    if not resume and folder.exists():
        shutil.rmtree(
            folder
        )  # ours, and stopped before its first checkpoint: nothing in it took any time
    own = replace(options, folder=folder, resume=resume)
    if pool is not None:
        return simulate(cell.scenario, own, pool, observer)
    return asyncio.run(command.run(cell.scenario, own, observer))


def is_finished(cell: Cell, out: Path) -> bool:
    """Is the cell's result there? Raises UserError where its folder holds something else."""
    folder = out / cell.folder
    if not folder.exists() or not any(folder.iterdir()):
        return False
    file = folder / "scenario.yaml"
    if not file.exists() or scenario_digest(load(file)) != scenario_digest(cell.scenario):
        raise UserError(
            f"{folder}: what is there was run from another scenario; compare {file} with yours, and choose another "
            "--out or remove the folder yourself"
        )
    return (folder / "result.json").exists()


def finished_rows(scenario: Scenario, out: Path, known: Known = NONE_KNOWN) -> list[Row]:
    """A row of figures per finished cell, all with the same keys. UserError where there is none."""
    compare = section(scenario)
    rows = []
    for cell in grid(scenario):
        if is_finished(cell, out):
            folder = out / cell.folder
            rows.append(row_of(cell, compare, finished(folder), lines(folder)))
        elif cell.name in known:
            rows.append(dict(known[cell.name]))
    if not rows:
        raise UserError(f"{out}: no cell is finished, there is nothing to compare")
    keys = list(dict.fromkeys(key for row in rows for key in row))
    return [{key: row.get(key) for key in keys} for row in rows]


def write_tables(scenario: Scenario, out: Path, rows: Sequence[Row]) -> None:
    """compare.json, .csv, .parquet (a row per finished cell) and .md below `out`, which is made where it is not there."""
    from pyarrow import Table, parquet

    private_folder(out)
    found = summaries(scenario, rows)
    document = {
        "name": scenario.name,
        "scenario": scenario.model_dump(mode="json"),
        "methods": found,
        "cells": rows,
    }
    write_atomically(out / "compare.json", json.dumps(document, indent=1, allow_nan=False).encode())
    write_atomically(out / "compare.csv", _csv(rows).encode())
    write_atomically(out / "compare.md", markdown(scenario, found).encode())
    with atomic_replace(out / "compare.parquet") as beside:
        parquet.write_table(Table.from_pylist(list(rows)), beside)


def _csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
