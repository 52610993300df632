"""`coordinator compare`: run the missing cells, then print and write the tables.

A cell is finished if its folder holds a finished run, or if the compare.json of an earlier comparison
has its row. So a comparison continues where it stopped on the same machine, and on another machine with
nothing but that file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from covey.coordinator.cli import run as command
from covey.coordinator.cli.options import (
    BROKER_OF_A_RUN,
    Embedded,
    InProcess,
    Modes,
    ScenarioFile,
    Set,
    Track,
    distinct_brokers,
    ensure_role,
    in_federation,
    out,
    refuse_contradictions,
)
from covey.coordinator.disk.checkpoint import Checkpoint
from covey.coordinator.record.notices import Notice, Observer
from covey.coordinator.record.records import PAGE
from covey.coordinator.report.progress import ProgressBar
from covey.coordinator.report.tables import none_evaluated
from covey.coordinator.run.folder import alone_in
from covey.coordinator.run.options import RunOptions
from covey.coordinator.run.rules import rules_of
from covey.coordinator.view.printed import comparison_table, json_line, results_table, show_words
from covey.extras.compare.comparison_files import (
    NONE_KNOWN,
    KnownRows,
    finished_rows,
    is_finished,
    keep_scenario,
    known_rows,
    write_page,
    write_tables,
)
from covey.extras.compare.dask_cells import CellOutcome, failed, run_together
from covey.extras.compare.grid import Cell, chosen, grid
from covey.extras.compare.rows import ComparisonRow, summaries
from covey.extras.compare.tables import tables
from covey.extras.compare.verdict import deciding, standings, verdicts
from covey.extras.outlets.tracked_run import finish_tracked, track_afterwards
from covey.extras.outlets.tracking import check_trackers, tracking
from covey.extras.simulate.driver import simulate
from covey.extras.simulate.workers import WorkerPool
from covey.shared.cli import Allow, BrokerAddresses, DataRoot, Json, stopped, with_connection
from covey.shared.errors import UserError
from covey.shared.mqtt.credentials import COORDINATOR
from covey.shared.own_code.consent import AllowedCode
from covey.shared.programs.child import cores
from covey.shared.programs.terminal import Terminal
from covey.shared.scenario.code import check_code
from covey.shared.scenario.load import load
from covey.shared.scenario.scenario import Scenario

log = logging.getLogger(__name__)

Observing = Callable[[Cell], contextlib.AbstractContextManager[Observer]]
# (scenario, options, observer): a run to its end, and its result; None if the user stopped it
Complete = Callable[[Scenario, RunOptions, Observer], dict[str, Any] | None]
SENTENCE_WIDTH = 80  # of the sentences above a short table


@with_connection(BROKER_OF_A_RUN, several=True)
def compare_command(
    context: typer.Context,
    scenario: ScenarioFile,
    *,
    folder: Annotated[
        Path | None, typer.Option("--out", help="the comparison's folder  [default: runs/<name>]")
    ] = None,
    cells: Annotated[
        list[str] | None,
        typer.Option(help="run these cells only, e.g. fedavg/1,fedclust; repeatable"),
    ] = None,
    known: Annotated[
        list[Path] | None,
        typer.Option(
            help="compare.json of an earlier comparison, whose cells count as finished; repeatable"
        ),
    ] = None,
    no_run: Annotated[
        bool,
        typer.Option(
            "--no-run", help="run nothing: print the finished cells; write tables only with --out"
        ),
    ] = False,
    in_process: InProcess = False,
    executor: Annotated[
        str,
        typer.Option(
            metavar="<address>",
            help="run the cells on a Dask cluster, dask://host:port of its scheduler, instead of on this machine; "
            "without a broker, as --in-process",
            show_default=False,
        ),
    ] = "",
    jobs: Annotated[
        int,
        typer.Option(
            min=1,
            help="run this many cells at once on this machine; without a broker, as --in-process",
        ),
    ] = 1,
    html: Annotated[
        bool,
        typer.Option(
            "--html", help="also write a page with tables and curves, report.html, to the folder"
        ),
    ] = False,
    latex: Annotated[
        bool, typer.Option("--latex", help="print the tables for LaTeX, with the package booktabs")
    ] = False,
    modes: Modes = False,
    track: Track = None,
    connection: BrokerAddresses,
    embedded: Embedded = False,
    overrides: Set = None,
    data_root: DataRoot = None,
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """Run every method of a scenario's compare section, and print tables of mean results.

    A cell is one run: one method, one partition, one seed. To continue after an interruption, type the same command: finished
    cells are kept, others resume. --known adds cells that were run elsewhere. The tables are also written to the
    comparison's folder; with --no-run, only if --out names one.
    """
    refuse_contradictions(context)
    own_broker = in_process or embedded or executor or jobs > 1
    if not own_broker:
        ensure_role(connection, COORDINATOR)
    loaded = load(scenario, overrides or [])
    if not own_broker:
        loaded = in_federation(connection, loaded)
    options = RunOptions(
        folder or Path("runs") / loaded.name,
        resume=False,
        embedded=embedded,
        data_root=data_root,
        allowed=AllowedCode.parse(allow),
        brokers=distinct_brokers(connection),
    )
    if executor and jobs > 1:
        raise UserError(
            "--executor and --jobs contradict each other: a Dask cluster has its own number of cells"
        )
    if executor and not executor.startswith("dask://"):
        raise UserError(f"--executor {executor}: expected dask://host:port of a Dask scheduler")
    request = CompareRequest(
        cells or [],
        known or [],
        run=not no_run,
        in_process=in_process,
        machines=executor or jobs,
        write=not no_run or folder is not None,
        html=html,
        latex=latex,
        track=track or [],
        modes=modes,
    )
    done = False
    with contextlib.suppress(KeyboardInterrupt):
        done = compare(loaded, options, request, None if as_json else out())
    if not done:
        raise stopped("the same command continues")


@dataclass(frozen=True)
class CompareRequest:
    """What the command line asks of a comparison, besides its scenario and how its cells run."""

    cells: Sequence[str] = ()  # names; empty for all
    known: Sequence[Path] = ()  # compare.json files
    run: bool = True  # run the missing cells
    in_process: bool = False
    # the cluster that runs the cells, dask://host:port, or how many cells this machine runs at once
    machines: str | int = 1
    write: bool = True  # write the tables to files
    html: bool = False  # and a page
    latex: bool = False  # print the tables for LaTeX, in place of all else
    track: Sequence[str] = ()  # names of experiment trackers
    modes: bool = False  # print all modes of evaluation


def compare(
    scenario: Scenario, options: RunOptions, request: CompareRequest, console: Console | None
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
    if request.run and request.machines != 1:
        run_at_once(scenario, options, request, known, console)
    elif request.run:
        outcome = try_cells(
            scenario,
            options,
            request.cells,
            _observing(scenario, options.folder, console),
            in_process=request.in_process,
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
    if request.latex:
        for table in tables(scenario, summaries(scenario, rows), modes=request.modes):
            print(table.latex())
    else:
        show(scenario, rows, console, modes=request.modes)
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

    def observe(cell: Cell) -> contextlib.AbstractContextManager[Observer]:
        if console is not None:
            console.print(f"{cell.name}: {out / cell.folder}", highlight=False, soft_wrap=True)
            return ProgressBar(console, scenario.rounds.count)

        def print_line(notice: Notice) -> None:
            json_line({"cell": cell.name, **notice.to_json()})

        return contextlib.nullcontext(print_line)

    return observe


def show(
    scenario: Scenario,
    rows: Sequence[ComparisonRow],
    console: Console | None,
    *,
    modes: bool = False,
) -> None:
    """Print the tables of these rows, or without a console one line of JSON.

    Args:
        scenario: the comparison.
        rows: its finished cells.
        console: None: for programs.
        modes: all modes of evaluation, and not only the compared one.
    """
    found = summaries(scenario, rows)
    if console is None:
        methods = [one.to_json() for one in found]
        judged = [one.to_json() for one in verdicts(scenario, rows)]
        json_line({"event": "compare", "methods": methods, "verdicts": judged})
        return
    alone = None if modes else deciding(scenario, rows)
    width = None if alone is None else min(console.width, SENTENCE_WIDTH)
    for verdict in verdicts(scenario, rows):
        style = "" if verdict.outcome == "worth it" else "yellow"
        console.print(verdict.sentence, style=style, highlight=False, markup=False, width=width)
    if alone is not None:  # compare.md and the page have all figures
        show_words(console, alone, results_table)
        return
    for words in (*tables(scenario, found, modes=modes), *standings(scenario, rows)):
        show_words(console, words, comparison_table)


# -- running cells -------------------------------------------------------------------------------------------------


def run_cells(
    scenario: Scenario,
    options: RunOptions,
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
    options: RunOptions,
    names: Iterable[str],
    observing: Observing,
    *,
    in_process: bool = False,
    known: KnownRows = NONE_KNOWN,
    track: Sequence[str] = (),
    complain: Callable[..., None] = log.warning,
) -> CellsTried:
    """As `run_cells`, but a cell that cannot be run does not keep the others from running: `complain` gets it.

    If a method fails before its first round, its other seeds on the same partition are not tried: they would fail in the
    same way. Raises UserError, before anything starts, if a cell's folder holds a run of another scenario.
    """
    check_code(scenario, options.allowed)
    missing = _missing(scenario, options.folder, names, known)
    if not missing:
        return CellsTried()
    failures: dict[str, str] = {}
    impossible = _impossible(missing)  # before the first cell takes its time
    with contextlib.ExitStack() as stack:
        stack.enter_context(alone_in(options.folder))
        keep_scenario(scenario, options.folder)
        way = with_one_pool(scenario, options.folder) if in_process else with_one_fleet()
        complete = stack.enter_context(way)
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
                    own = _begun(cell, options)
                    result = complete(cell.scenario, own, tracked.before(shown))
                    if result is not None:
                        finish_tracked(tracked, folder, result)
            except UserError as error:
                failures[cell.name] = why = str(error)
                if not _has_begun(folder):
                    impossible[method] = why
                complain("cell %s cannot be run: %s", cell.name, why)
                continue
            if result is None:
                return CellsTried(stopped=True, failures=failures)
            if problem := none_evaluated(result):
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
            reasons[method] = str(error)
    for method, why in reasons.items():
        log.warning("%s cannot be run: %s", "/".join(method).strip("/"), why)
    return reasons


def _has_begun(folder: Path) -> bool:
    """Whether the run in this folder has completed any phase."""
    record = folder / "rounds.jsonl"
    return record.exists() and record.stat().st_size > 0


def _any_finished(scenario: Scenario, out: Path, known: KnownRows) -> bool:
    """Whether any cell has a row."""
    return any(cell.name in known or is_finished(cell, out) for cell in grid(scenario))


def _complain(text: str) -> None:
    """A remark that is no part of the output."""
    Terminal(stderr=True).print(text, highlight=False, soft_wrap=True)


def _missing(scenario: Scenario, out: Path, names: Iterable[str], known: KnownRows) -> list[Cell]:
    """The chosen cells that have no result yet.

    Raises UserError if a cell's folder holds a run of another scenario.
    """
    cells = chosen(grid(scenario), names)
    return [cell for cell in cells if cell.name not in known and not is_finished(cell, out)]


def run_at_once(
    scenario: Scenario,
    options: RunOptions,
    request: CompareRequest,
    known: KnownRows,
    console: Console | None,
) -> None:
    """Run the missing cells on the machines of a cluster, or several at once on this one.

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
        if request.track and not outcome.failure:
            cell = by_name[outcome.name]
            track_afterwards(request.track, cell, folder / cell.folder, _complain)

    by_name = {cell.name: cell for cell in missing}
    folder = options.folder
    with alone_in(folder):
        keep_scenario(scenario, folder)
        failures = run_together(
            request.machines,
            missing,
            folder,
            data_root=options.data_root,
            allowed=options.allowed,
            finished=show,
        )
    if failures:
        raise failed(failures)


@contextlib.contextmanager
def with_one_pool(scenario: Scenario, folder: Path) -> Iterator[Complete]:
    """Runs without a broker, one after another, with the same worker processes."""
    size = scenario.fleet.workers_on(cores()) if scenario.fleet is not None else 1
    with WorkerPool(size, folder / "workers.log") as pool:
        yield lambda scenario, own, observer: simulate(scenario, own, pool, observer)


@contextlib.contextmanager
def with_one_fleet() -> Iterator[Complete]:
    """Runs over a broker, one after another. Fleet and broker are started for the first one, and end with the block."""
    with asyncio.Runner() as runner:
        stack = contextlib.AsyncExitStack()
        children = command.Children(stack)
        try:
            yield lambda scenario, options, observer: runner.run(
                command.run(scenario, options, observer, children)
            )
        finally:
            runner.run(stack.aclose())


def _begun(cell: Cell, options: RunOptions) -> RunOptions:
    """The options of a cell's run, which is resumed where it has a checkpoint."""
    folder = options.folder / cell.folder
    resume = Checkpoint(folder / "checkpoint").exists()
    if not resume and folder.exists():
        # Ours, and stopped before its first checkpoint: nothing in it took any time.
        shutil.rmtree(folder)
    return replace(options, folder=folder, resume=resume)
