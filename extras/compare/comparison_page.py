"""A comparison as one page: its tables, curves with mean and band over seeds, and its cells one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from covey.coordinator.record.records import finished
from covey.coordinator.view.table import NONE, Column, Table
from covey.coordinator.view.words import MODE_TITLES
from covey.extras.compare.gain_pictures import of_field, of_groups
from covey.extras.compare.grid import Cell, section, splits
from covey.extras.compare.rows import ComparisonRow, measure_of, summaries
from covey.extras.compare.tables import tables
from covey.extras.compare.verdict import fields, standings, verdict_table, verdicts
from covey.extras.dashboard.curves import Curves, curves
from covey.extras.dashboard.figure_pictures import Picture, RunGroup
from covey.extras.dashboard.html_page import Fact, Page, PageSection, html, pictures, terms
from covey.extras.dashboard.run_facts import (
    data_remarks,
    device_words,
    moment,
    repeat_command,
    run_id,
    times,
    version_words,
)
from covey.shared.numerics.measures import Measure
from covey.shared.scenario.describe import dump
from covey.shared.scenario.scenario import Scenario


@dataclass(frozen=True)
class ShownCell:
    """A cell of the grid, as far as it has come."""

    cell: Cell
    folder: Path  # of its run
    state: str  # FINISHED, or in words what it lacks
    row: ComparisonRow | None  # None: it has no figures yet


FINISHED = "finished"


def comparison_page(scenario: Scenario, folder: Path, cells: Sequence[ShownCell]) -> str:
    """The HTML of a comparison.

    Args:
        scenario: the comparison
        folder: where it lies
        cells: all cells of its grid, finished or not; at least one has a row

    Raises UserError if the files of a finished cell are damaged.
    """
    rows = [shown.row for shown in cells if shown.row is not None]
    found = summaries(scenario, rows)
    runs = curves_of_cells(cells)
    measure = measure_of(section(scenario), scenario.task)
    drawn = pictures_of_splits(scenario, cells, runs)
    judged = verdicts(scenario, rows)
    sign = -1 if measure.lower_is_better else 1
    lead = [max(judged, key=lambda one: sign * one.figure).sentence] if judged else []
    decisive = [
        replace(
            picture,
            title=f"{field.partition}: {picture.title}" if field.partition else picture.title,
        )
        for field in fields(scenario, rows)
        for picture in of_field(field)
    ]
    decisive += of_groups([run for run in runs.values() if run.seed == section(scenario).seeds[0]])
    remarks: list[str] = []
    missing = [shown for shown in cells if shown.row is None]
    if missing:
        count = f"{len(cells) - len(missing)} of {len(cells)} cells are finished"
        remarks.append(f"{count}; the command of the comparison continues it.")
    has_groups = any(row.get("ari") is not None for row in rows)
    shown_tables = []
    for table in tables(scenario, found):
        # the page's own title has the scenario's name
        title = table.title.removeprefix(f"{scenario.name}: ")
        shown_tables.append(replace(table, title=_capital(title)))
    shown_tables += standings(scenario, rows)
    page = Page(
        title=scenario.name,
        subtitle=_subtitle(scenario, folder, cells),
        kind="comparison",
        lead=lead,
        tiles=(),
        first=[verdict_table(judged)] if judged else [],
        tables=[*shown_tables, _cells(cells, measure)],
        remarks=remarks,
        terms=terms(MODE_TITLES, has_groups=has_groups),
        pictures=decisive,
        folded=drawn,
        sections=[_section(scenario, folder, cells)],
    )
    return html(page)


def curves_of_cells(cells: Sequence[ShownCell]) -> Mapping[str, Curves]:
    """The curves of the cells whose runs lie here, by the cell's name."""
    names = []
    folders = []
    results = []
    for shown in cells:
        if shown.state == FINISHED:
            result = finished(shown.folder)
            names.append(shown.cell.name)
            folders.append(shown.folder)
            results.append(result)
    return dict(zip(names, curves(folders, results, detailed=False), strict=True))


def pictures_of_splits(
    scenario: Scenario, cells: Sequence[ShownCell], runs: Mapping[str, Curves]
) -> list[Picture]:
    """The pictures of each partition, with a group of seeds for each method."""
    found = []
    for split in splits(scenario):
        groups = _groups(split.label, scenario, cells, runs)
        if not groups:
            continue
        for picture in pictures(groups, by_seed=True):
            title = picture.title
            if split.label:
                title = f"{split.label}: {title}"
            found.append(replace(picture, title=title))
    return found


def _groups(
    partition: str, scenario: Scenario, cells: Sequence[ShownCell], runs: Mapping[str, Curves]
) -> list[RunGroup]:
    """The methods that have runs on a partition."""
    groups = []
    for method in section(scenario).methods:
        own = []
        for shown in cells:
            cell = shown.cell
            is_own = cell.split == partition and cell.label == method.label
            if is_own and cell.name in runs:
                own.append(runs[cell.name])
        if own:
            groups.append(RunGroup(method.label, own))
    return groups


def _capital(title: str) -> str:
    """A title with a capital letter at its beginning."""
    return title[:1].upper() + title[1:]


def _subtitle(scenario: Scenario, folder: Path, cells: Sequence[ShownCell]) -> str:
    compare = section(scenario)
    seeds = ", ".join(str(seed) for seed in compare.seeds)
    words = [f"comparison of {len(compare.methods)} methods", f"seeds {seeds}"]
    last = _last_time(cells)
    if last:
        words.append(last)
    return " · ".join(words)


def _last_time(cells: Sequence[ShownCell]) -> str:
    """When the last of the runs that lie here ended."""
    ends = []
    for shown in cells:
        if shown.state == FINISHED:
            _, end = times(shown.folder)
            ends.append(end)
    return moment(max(ends)) if ends else ""


def _section(scenario: Scenario, folder: Path, cells: Sequence[ShownCell]) -> PageSection:
    """The cells, and where they come from."""
    facts = [Fact("folder", str(folder))]
    command = ["coordinator", "compare", str(folder / "compare.yaml")]
    here = [shown.folder for shown in cells if shown.state == FINISHED]
    if here:
        result = finished(here[0])
        began, _ = times(here[0])
        facts.append(Fact("began", moment(began)))
        facts.append(Fact("ended", _last_time(cells)))
        facts.append(Fact("computed on", device_words(result)))
        facts.append(Fact("versions", version_words(result)))
        run = run_id(here[0])
    else:
        run = ""
    known = [fact for fact in facts if fact.value]
    repeated = repeat_command(command, folder.resolve().name, run, scenario)
    return PageSection("", [], known, repeated, data_remarks(scenario), dump(scenario))


def _cells(cells: Sequence[ShownCell], measure: Measure) -> Table:
    """A line for each cell: its state, its figures, its traffic and time."""
    columns = []
    for title in ("partition", "method", "seed", "state"):
        columns.append(Column(title))
    for mode in MODE_TITLES.values():
        title = f"{mode}, {measure.title}"
        columns.append(Column(title, is_number=True))
    for title, _ in CELL_COLUMNS.values():
        columns.append(Column(title, is_number=True))
    lines = [_line(shown, measure) for shown in cells]
    return Table("Cells", columns, lines, is_long=True).without_empty_columns()


def _line(shown: ShownCell, measure: Measure) -> list[str]:
    cell = shown.cell
    row: Mapping[str, Any] = {}
    if shown.row is not None:
        row = shown.row.columns
    line = [cell.split or NONE, cell.label, str(cell.seed), shown.state]
    for mode in MODE_TITLES:
        figure = row.get(f"{mode}_{measure.name}_macro")
        text = NONE if figure is None else measure.text(figure)
        line.append(text)
    for key, (_, form) in CELL_COLUMNS.items():
        value = row.get(key)
        text = NONE if value is None else format(value, form)
        line.append(text)
    return line


CELL_COLUMNS = {  # by the column of a row: its title, and the form of its figures
    "clusters": ("groups", "d"),
    "ari": ("ARI", ".2f"),
    "rounds": ("rounds", "d"),
    "rounds_to_target": ("rounds to target", "d"),
    "mbit_per_agent": ("Mbit per agent", ".2f"),
    "mb_wire": ("MB on the wire", ".2f"),
    "seconds": ("seconds", ".1f"),
}
