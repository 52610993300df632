"""What `coordinator compare` does: run the missing cells, then print and write the tables.

A cell is finished if its folder holds a finished run, or if the compare.json of an earlier comparison
has its row. So a comparison continues where it stopped on the same machine, and on another machine with
nothing but that file.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import logging
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console

from covey.coordinator.cluster.cell_task import CellOutcome
from covey.coordinator.cluster.dask_cells import failed, place_of, run_on_dask
from covey.coordinator.commands import run as command
from covey.coordinator.compare.grid import Cell, chosen, grid, section, target_of
from covey.coordinator.compare.metrics import measure_of
from covey.coordinator.compare.rows import (
    ComparisonRow,
    judged,
    row_of,
    tuning_of,
    with_same_columns,
)
from covey.coordinator.compare.summaries import no_better, summaries
from covey.coordinator.compare.tables import markdown, tables
from covey.coordinator.processes.workers import WorkerPool
from covey.coordinator.report.progress import ProgressBar
from covey.coordinator.report.tables import nobody_evaluated
from covey.coordinator.report.text_table import comparison_table, json_line, show_words
from covey.coordinator.run.checkpoint import Checkpoint
from covey.coordinator.run.folder import alone_in
from covey.coordinator.run.notices import Notice, Observer
from covey.coordinator.run.options import Options
from covey.coordinator.run.records import finished, lines, scenario_digest
from covey.coordinator.run.rules import rules_of
from covey.coordinator.simulate.driver import simulate
from covey.coordinator.track.tracking import check_trackers, tracking
from covey.shared import json_text
from covey.shared.errors import UserError
from covey.shared.files import atomic_replace, private_folder, write_atomically
from covey.shared.scenario.code import check_code
from covey.shared.scenario.describe import dump
from covey.shared.scenario.load import load
from covey.shared.scenario.scenario import Scenario
from covey.shared.terminal import Terminal

log = logging.getLogger(__name__)

Observing = Callable[[Cell], AbstractContextManager[Observer]]
KnownRows = Mapping[str, ComparisonRow]  # of earlier comparisons, by the cell's name
Identity = tuple[str, float | None]  # the digest of a cell's scenario, and its target
NONE_KNOWN: KnownRows = MappingProxyType({})
SCENARIO = "compare.yaml"  # of a comparison's folder: what is compared, from its first cell on
TABLE = "compare.json"  # its tables, for programs
PAGE = "report.html"
TABLE_WIDTH = 160  # columns of text at least, so that no column of a table is lost


@dataclass(frozen=True)
class Request:
    """What the command line asks of a comparison, besides its scenario and how its cells run."""

    cells: Sequence[str] = ()  # names; empty for all
    known: Sequence[Path] = ()  # compare.json files
    run: bool = True  # run the missing cells
    in_process: bool = False
    executor: str = ""  # the cluster that runs the cells, dask://host:port; empty for this machine
    write: bool = True  # write the tables to files
    html: bool = False  # and a page
    track: Sequence[str] = ()  # names of experiment trackers


def compare(
    scenario: Scenario, options: Options, request: Request, console: Console | None
) -> bool:
    """Run the missing cells, then print and write the tables; False if the user stopped it.

    Without a console the output is lines of JSON. Raises UserError (for cells that could not be run, once all others
    are finished and the tables are written), and KeyboardInterrupt if a run without a broker is stopped.
    """
    check_trackers(request.track)
    known = known_rows(scenario, request.known)
    failures: Mapping[str, str] = {}
    if request.known and console is not None:
        remark = f"{len(known)} cells are known: those with the same scenario and target"
        console.print(remark, highlight=False)
    if request.run and request.executor:
        run_on_cluster(scenario, options, request, known, console)
    elif request.run:
        observing = _observing(scenario, options.folder, console)
        in_process = request.in_process
        outcome = try_cells(
            scenario,
            options,
            request.cells,
            observing,
            in_process=in_process,
            known=known,
            track=request.track,
        )
        if outcome.stopped:
            return False
        failures = outcome.failures
    if failures and not _any_finished(scenario, options.folder, known):
        raise failed(failures)
    rows = finished_rows(scenario, options.folder, known)
    if request.write:
        write_tables(scenario, options.folder, rows)
    show(scenario, rows, console)
    if request.write and console is not None:
        text = f"compare.json, .csv, .parquet and .md are in {options.folder}"
        console.print(text, highlight=False, soft_wrap=True)
    if request.html:
        page = options.folder / PAGE
        write_page(scenario, options.folder, rows, page)
        if console is not None:
            console.print(f"the page is {page}", highlight=False, soft_wrap=True)
    if failures:
        raise failed(failures)
    return True


def _observing(scenario: Scenario, out: Path, console: Console | None) -> Observing:
    """How the run of each cell is shown: lines of JSON, or a progress bar below the cell's name."""

    def observe(cell: Cell) -> AbstractContextManager[Observer]:
        if console is not None:
            console.print(f"{cell.name}: {out / cell.folder}", highlight=False, soft_wrap=True)
            return ProgressBar(console, scenario.rounds.count)

        def print_line(notice: Notice) -> None:
            json_line({"cell": cell.name, **notice.to_json()})

        return nullcontext(print_line)

    return observe


def show(scenario: Scenario, rows: Sequence[ComparisonRow], console: Console | None) -> None:
    """Print the tables of these rows, or without a console one line of JSON."""
    found = summaries(scenario, rows)
    if console is None:
        methods = [one.to_json() for one in found]
        json_line({"event": "compare", "methods": methods})
        return
    for words in tables(scenario, found):
        show_words(console, words, comparison_table, min_width=TABLE_WIDTH)
    for remark in no_better(scenario, found):
        console.print(remark, style="yellow", highlight=False, markup=False)


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
        raise UserError(f"--known {file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, UserError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"--known {file}: expected a compare.json that `coordinator compare` wrote; "
            f"{type(error).__name__}: {reason}"
        ) from None


def _read_rows(file: Path) -> dict[str, tuple[Identity, ComparisonRow]]:
    document = json_text.loads(file.read_text())
    scenario = Scenario.model_validate(document["scenario"])
    by_cell = {}
    for columns in document["cells"]:
        by_cell[columns["partition"], columns["method"], columns["seed"]] = columns
    found = {}
    for cell in grid(scenario):
        columns = by_cell.get((cell.split, cell.label, cell.seed))
        if columns is not None:
            row = ComparisonRow.from_json({**_tuned_before(scenario, cell), **columns})
            found[cell.name] = _identity(scenario, cell), row
    return found


def _tuned_before(scenario: Scenario, cell: Cell) -> dict[str, Any]:
    """The settings of fine-tuning of a row that has none: an earlier version took the method's own training."""
    before = cell.scenario.model_copy(update={"evaluation": scenario.evaluation})
    return tuning_of(before)


def _identity(scenario: Scenario, cell: Cell) -> Identity:
    return scenario_digest(cell.scenario), target_of(section(scenario), cell)


# -- running cells -------------------------------------------------------------------------------------------------


def run_cells(
    scenario: Scenario,
    options: Options,
    names: Iterable[str],
    observing: Observing,
    *,
    in_process: bool = False,
    known: KnownRows = NONE_KNOWN,
) -> bool:
    """Run the cells that are missing below `options.folder`; False if the user stopped it.

    Raises UserError, before anything starts, if a cell's folder holds a run of another scenario, and at the end for cells
    that could not be run.
    """
    outcome = try_cells(scenario, options, names, observing, in_process=in_process, known=known)
    if outcome.failures and not outcome.stopped:
        raise failed(outcome.failures)
    return not outcome.stopped


@dataclass(frozen=True)
class CellsTried:
    """What became of the missing cells."""

    stopped: bool = False  # by the user
    failures: Mapping[str, str] = field(default_factory=dict)  # why cells could not be run, by name


def try_cells(
    scenario: Scenario,
    options: Options,
    names: Iterable[str],
    observing: Observing,
    *,
    in_process: bool = False,
    known: KnownRows = NONE_KNOWN,
    track: Sequence[str] = (),
) -> CellsTried:
    """As `run_cells`, but a cell that cannot be run does not keep the others from running.

    If a method fails before its first round, its other seeds on the same partition are not tried: they would fail in the
    same way. Raises UserError, before anything starts, if a cell's folder holds a run of another scenario.
    """
    check_code(scenario, options.allowed)
    missing = _missing(scenario, options.folder, names, known)
    if not missing:
        return CellsTried()
    failures: dict[str, str] = {}
    impossible = _impossible(missing)  # before the first cell takes its time
    with ExitStack() as stack:
        stack.enter_context(alone_in(options.folder))
        _keep_scenario(scenario, options.folder)
        pool = None
        if in_process:
            size = scenario.fleet.workers if scenario.fleet is not None else 0
            pool = stack.enter_context(WorkerPool(size, options.folder / "workers.log"))
        for cell in missing:
            method = (cell.split, cell.label)
            if method in impossible:
                failures[cell.name] = impossible[method]
                continue
            folder = options.folder / cell.folder
            try:
                with (
                    tracking(track, cell.scenario, folder, _complain, cell.name) as tracked,
                    observing(cell) as shown,
                ):
                    result = _run(cell, options, pool, tracked.before(shown))
                    if result is not None:
                        tracked.finished(result)
            except UserError as error:
                why = str(error)
                failures[cell.name] = why
                if not _has_begun(folder):
                    impossible[method] = why
                log.warning("cell %s cannot be run: %s", cell.name, why)
                continue
            if result is None:
                return CellsTried(stopped=True, failures=failures)
            if problem := nobody_evaluated(result):
                failures[cell.name] = problem
    return CellsTried(failures=failures)


def _impossible(cells: Iterable[Cell]) -> dict[tuple[str, str], str]:
    """Why methods cannot begin, by partition and method, as far as their settings show it."""
    reasons: dict[tuple[str, str], str] = {}
    for cell in cells:
        method = (cell.split, cell.label)
        try:
            rules_of(cell.scenario)
        except UserError as error:
            why = str(error)
            reasons[method] = why
    for method, why in reasons.items():
        words = "/".join(method)
        log.warning("%s cannot be run: %s", words.strip("/"), why)
    return reasons


def _has_begun(folder: Path) -> bool:
    """Has the run in this folder completed any phase?"""
    record = folder / "rounds.jsonl"
    if not record.exists():
        return False
    return record.stat().st_size > 0


def _any_finished(scenario: Scenario, out: Path, known: KnownRows) -> bool:
    """Is there a row for any cell?"""
    return any(cell.name in known or is_finished(cell, out) for cell in grid(scenario))


def _complain(text: str) -> None:
    """A remark that is no part of the output."""
    Terminal(stderr=True).print(text, highlight=False, soft_wrap=True)


def _missing(scenario: Scenario, out: Path, names: Iterable[str], known: KnownRows) -> list[Cell]:
    """The chosen cells that have no result yet.

    Raises UserError if a cell's folder holds a run of another scenario.
    """
    missing: list[Cell] = []
    for cell in chosen(grid(scenario), names):
        if cell.name not in known and not is_finished(cell, out):
            missing.append(cell)
    return missing


def run_on_cluster(
    scenario: Scenario,
    options: Options,
    request: Request,
    known: KnownRows,
    console: Console | None,
) -> None:
    """Run the missing cells on the machines of a cluster.

    Raises UserError, once all other cells are finished, if cells could not be run.
    """
    check_code(scenario, options.allowed)
    missing = _missing(scenario, options.folder, request.cells, known)
    if not missing:
        return

    def show(outcome: CellOutcome, left: int) -> None:
        if console is None:
            json_line({**outcome.to_json(), "left": left})
        else:
            text = f"{outcome.text()}; {left} left"
            console.print(text, highlight=False, markup=False, soft_wrap=True)

    folder = options.folder
    with alone_in(folder):
        _keep_scenario(scenario, folder)
        failures = run_on_dask(
            request.executor, missing, folder, options.data_root, options.allowed, show
        )
    if failures:
        raise failed(failures)


def _keep_scenario(scenario: Scenario, out: Path) -> None:
    """Write what is compared, so that a report of an unfinished comparison knows all cells."""
    write_atomically(out / SCENARIO, dump(scenario).encode())


def _run(
    cell: Cell, options: Options, pool: WorkerPool | None, observer: Observer
) -> dict[str, Any] | None:
    folder = options.folder / cell.folder
    resume = Checkpoint(folder / "checkpoint").exists()
    if not resume and folder.exists():
        # Ours, and stopped before its first checkpoint: nothing in it took any time.
        shutil.rmtree(folder)
    own = replace(options, folder=folder, resume=resume)
    if pool is not None:
        return simulate(cell.scenario, own, pool, observer)
    return asyncio.run(command.run(cell.scenario, own, observer))


def is_finished(cell: Cell, out: Path) -> bool:
    """Does the cell have a result below `out`? Raises UserError if its folder holds something else."""
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


# -- tables --------------------------------------------------------------------------------------------------------


def finished_rows(
    scenario: Scenario, out: Path, known: KnownRows = NONE_KNOWN
) -> list[ComparisonRow]:
    """A row for each finished cell, all with the same columns. Raises UserError if there is none."""
    compare = section(scenario)
    rows = []
    for cell in grid(scenario):
        if is_finished(cell, out):
            folder = out / cell.folder
            rows.append(row_of(cell, compare, finished(folder), lines(folder)))
        elif cell.name in known:
            rows.append(known[cell.name])
    if not rows:
        raise UserError(f"{out}: no cell is finished, there is nothing to compare")
    return with_same_columns(rows)


def write_tables(scenario: Scenario, out: Path, rows: Sequence[ComparisonRow]) -> None:
    """Write compare.json, .csv, .parquet (a row for each finished cell) and .md to the folder `out`.

    The folder is created if it does not exist.
    """
    from pyarrow import Table, parquet

    private_folder(out)
    found = summaries(scenario, rows)
    cells = [row.to_json() for row in rows]
    document = {
        "name": scenario.name,
        "scenario": scenario.model_dump(mode="json"),
        "methods": [one.to_json() for one in found],
        "cells": cells,
    }
    places = _places(scenario, out)
    if places:
        document["ran_on"] = places
    text = json.dumps(document, indent=1, allow_nan=False)
    write_atomically(out / TABLE, text.encode())
    write_atomically(out / "compare.csv", _csv(cells).encode())
    write_atomically(out / "compare.md", markdown(scenario, found).encode())
    with atomic_replace(out / "compare.parquet") as new:
        parquet.write_table(Table.from_pylist(cells), new)


def _places(scenario: Scenario, out: Path) -> dict[str, Any]:
    """The machines that cells ran on, by the cell's name, for those that a cluster ran."""
    places: dict[str, Any] = {}
    for cell in grid(scenario):
        place = place_of(out / cell.folder)
        if place is not None:
            places[cell.name] = place
    return places


# -- the page --------------------------------------------------------------------------------------


def write_page(scenario: Scenario, out: Path, rows: Sequence[ComparisonRow], page: Path) -> None:
    """Write the page of a comparison to a file.

    Args:
        scenario: what is compared
        out: the comparison's folder
        rows: the rows of its finished cells, and of those that are known from elsewhere
        page: the file
    """
    from covey.coordinator.report.comparison_page import FINISHED, ShownCell, comparison_page

    by_cell = {(row.partition, row.method, row.seed): row for row in rows}
    cells = []
    for cell in grid(scenario):
        row = by_cell.get((cell.split, cell.label, cell.seed))
        folder = out / cell.folder
        state = FINISHED
        if not is_finished(cell, out):
            state = _progress_of(folder) if row is None else "finished elsewhere"
        cells.append(ShownCell(cell, folder, state, row))
    private_folder(out)
    text = comparison_page(scenario, out, cells)
    write_atomically(page, text.encode())


def _progress_of(folder: Path) -> str:
    """How far an unfinished cell has come."""
    checkpoint = Checkpoint(folder / "checkpoint")
    if not checkpoint.exists():
        return "not begun"
    facts = checkpoint.facts()
    rounds = facts["engine"]["round"]
    return f"unfinished, {rounds} rounds are over"


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
