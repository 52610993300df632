"""`coordinator report`: print the results of runs and comparisons, and write their pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from covey.coordinator.cli.options import Modes, out
from covey.coordinator.record.records import PAGE, finished
from covey.coordinator.report.tables import labels, results
from covey.coordinator.view.printed import json_line, results_table, show_words
from covey.shared import extras
from covey.shared.cli import Allow, Json
from covey.shared.errors import UserError
from covey.shared.scenario.load import load
from covey.shared.scenario.scenario import Scenario
from covey.shared.storage import json_text
from covey.shared.storage.files import write_atomically

SCENARIO = "compare.yaml"  # of a comparison's folder: what is compared, from its first cell on
TABLE = "compare.json"  # its tables, for programs


def report_command(
    folders: Annotated[
        list[Path], typer.Argument(help="folders of finished runs, or the folder of one comparison")
    ],
    html: Annotated[
        Path | None,
        typer.Option(
            help="write the page to this file  [default: report.html in the folder, if it is a single one]"
        ),
    ] = None,
    svg: Annotated[
        list[str] | None,
        typer.Option(
            help="also write one picture of that page: NAME=FILE, e.g. accuracy=a.svg; repeatable"
        ),
    ] = None,
    *,
    modes: Modes = False,
    allow: Allow = None,
    as_json: Json = False,
) -> None:
    """Print the results of finished runs in one table, and write a page with curves, groups and agents.

    A comparison may be unfinished: its report shows the cells that are there. With --json, a page is written only if
    --html names its file.
    """
    report(ReportRequest(folders, html, svg or [], as_json, modes), out())


@dataclass(frozen=True)
class ReportRequest:
    """What the command line asks of a report."""

    folders: Sequence[Path]
    html: Path | None = None  # the page goes there; None: into the folder, if it is a single one
    svg: Sequence[str] = ()  # pictures as files of their own, NAME=FILE
    as_json: bool = False
    modes: bool = False  # all modes of evaluation


def report(request: ReportRequest, console: Console) -> None:
    """Print the results, and write what was asked for.

    Raises UserError if a folder holds no finished run and no comparison, or is damaged.
    """
    folders = request.folders
    comparisons = [folder for folder in folders if is_comparison(folder)]
    if not comparisons:
        _report_runs(request, console)
        return
    if len(folders) > 1:
        raise UserError(
            f"{comparisons[0]}: this is a comparison; report one comparison at a time, or name runs alone"
        )
    if request.svg:
        raise UserError("--svg takes pictures of runs: name those of the comparison that you mean")
    _report_comparison(request, console)


def _report_runs(request: ReportRequest, console: Console) -> None:
    folders = request.folders
    places = [folder.resolve() for folder in folders]
    if twice := [folder for folder in folders if places.count(folder.resolve()) > 1]:
        raise UserError(f"{twice[0]}: this run is named twice; name each run once")
    found = [finished(folder) for folder in folders]
    if request.html is not None or request.svg:
        _write_runs(folders, found, request.html, request.svg)
    if request.as_json:
        for result in found:
            json_line(result)
        return
    show_words(console, results(found, labels(folders, found), modes=request.modes), results_table)
    if request.html is not None:
        _print_place(request.html, console)
    elif len(folders) == 1 and extras.has("dashboard"):
        place = folders[0] / PAGE
        _write_unasked(place, console, lambda: _write_runs(folders, found, place, ()))


def _write_runs(
    folders: Sequence[Path], found: Sequence[dict[str, Any]], html: Path | None, svg: Sequence[str]
) -> None:
    curves = extras.part("dashboard", "curves", "a page").curves
    html_report = extras.part("dashboard", "html_report")

    runs = curves(folders, found)
    if html is not None:
        write_atomically(html, html_report.page(runs, folders).encode())
    html_report.write_pictures(runs, svg)


def _write_unasked(place: Path, console: Console, write: Callable[[], None]) -> None:
    """Write a page for which no file was named; a folder that cannot hold it is no failure."""
    try:
        write()
    except (OSError, UserError) as error:
        remark = f"no page was written to {place}: {error}; --html FILE writes it elsewhere"
        console.print(remark, highlight=False, soft_wrap=True)
        return
    _print_place(place, console)


def _print_place(page: Path, console: Console) -> None:
    console.print(f"the page is {page}", highlight=False, soft_wrap=True)


# -- comparisons -----------------------------------------------------------------------------------


def is_comparison(folder: Path) -> bool:
    """Whether `coordinator compare` wrote this folder."""
    if (folder / "result.json").exists():
        return False
    return any((folder / name).exists() for name in (SCENARIO, TABLE))


def _report_comparison(request: ReportRequest, console: Console) -> None:
    [folder] = request.folders
    comparison_files = extras.part("compare", "comparison_files", "a comparison")
    scenario = _scenario_of(folder)
    table = folder / TABLE
    known = comparison_files.known_rows(scenario, [table] if table.exists() else [])
    rows = comparison_files.finished_rows(scenario, folder, known)
    extras.part("compare", "compare").show(
        scenario, rows, None if request.as_json else console, modes=request.modes
    )
    if request.html is not None:
        comparison_files.write_page(scenario, folder, rows, request.html)
        if not request.as_json:
            _print_place(request.html, console)
    elif not request.as_json:
        place = folder / PAGE
        _write_unasked(
            place, console, lambda: comparison_files.write_page(scenario, folder, rows, place)
        )


def _scenario_of(folder: Path) -> Scenario:
    """The scenario of a comparison, finished or not."""
    file = folder / SCENARIO
    if file.exists():
        return load(file)
    table = folder / TABLE
    try:
        return Scenario.model_validate(json_text.loads(table.read_bytes())["scenario"])
    except (ValueError, KeyError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"{table}: expected what `coordinator compare` writes ({reason}); run the same comparison with --no-run "
            f"--out {folder} to write it again"
        ) from None
