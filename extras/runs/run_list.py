"""`coordinator ls` and `coordinator prune`: the runs in a folder, and the removal of old ones."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from covey.coordinator.cli.options import out, show_line, warn
from covey.coordinator.record.records import run_folders
from covey.coordinator.report.odd_list import moment
from covey.coordinator.view.printed import json_line, show
from covey.coordinator.view.table import NONE, Column, Table
from covey.extras.runs.folder_reader import FolderReader
from covey.extras.runs.state import dashboard_state
from covey.shared import extras
from covey.shared.cli import Json
from covey.shared.errors import UserError
from covey.shared.numerics.measures import MEASURES, measured
from covey.shared.sentences import counted
from covey.shared.storage.files import folder_lock

MEGABYTE = 1e6


def list_runs(
    runs: Annotated[
        Path, typer.Argument(metavar="RUNS", help="the folder that has the folders of runs")
    ] = Path("runs"),
    as_json: Json = False,
) -> None:
    """List the runs in a folder: state, rounds, figure of the newest evaluation, size, and published versions."""
    found = RunList(runs).lines()
    for one in found:
        warn(one.fault)
    if as_json:
        json_line({"runs": [one.to_json() for one in found]})
    elif found:
        show(out(), table(found, runs))
    else:
        show_line(f"{runs}: no run has begun in this folder")


def prune(
    runs: Annotated[
        Path, typer.Argument(metavar="RUNS", help="the folder that has the folders of runs")
    ] = Path("runs"),
    keep: Annotated[
        int, typer.Option(min=1, help="how many of the newest runs stay in any case")
    ] = 10,
    yes: Annotated[
        bool, typer.Option("--yes", help="remove the folders; without it, list them")
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove the folders of old runs, with their models, records and audit logs.

    Runs at work stay, and so do those whose versions are the champion, a candidate, or have a name, and the one that
    `coordinator rollback` would go back to. Runs of a comparison stay, and runs whose log cannot be read. Without --yes the
    command lists what it would remove.
    """
    lines = RunList(runs).lines()
    for one in lines:
        warn(one.fault)
    found = old(runs, lines, keep)
    if yes:
        found = [removed(line) for line in found]
    if as_json:
        json_line({"removed": yes, "runs": [one.to_json() for one in found]})
        return
    if not found:
        show_line(f"{runs}: nothing to remove; the newest runs stay, as many as --keep names")
        return
    show(out(), table(found, runs))
    size = sum(one.bytes for one in found) / MEGABYTE
    what = "removed" if yes else "to remove; --yes removes them"
    show_line(f"{counted(len(found), 'run')}, {size:.1f} MB {what}")


@dataclass(frozen=True)
class RunLine:
    """One run in a folder."""

    folder: str
    title: str  # its name within the folder of runs
    run: str  # its id; "" before its first phase
    name: str  # of its scenario
    method: str
    state: str  # running, finished, stopped, or killed: it ended without a word
    rounds_done: int
    rounds: int
    agents: int
    measure: str
    figure_title: str  # its mode and measure
    figure: float | None  # of its newest evaluation, mean over agents
    published: Sequence[str]  # its versions that are champion, candidate, or have a name
    changed: float  # when it wrote its record last, in seconds since 1970
    bytes: int  # on disk
    fault: str = ""  # why its publications are not known

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "published": list(self.published)}


class RunList:
    """The runs in a folder, to be looked at again and again: only what has changed since is read.

    Raises UserError if it is no folder.
    """

    def __init__(self, runs: Path) -> None:
        if not runs.is_dir():
            raise UserError(f"{runs}: no such folder; expected one that has the folders of runs")
        self.folder = runs
        self._readers: dict[Path, FolderReader] = {}

    def lines(self) -> list[RunLine]:
        """The runs, those that have changed last first; a comparison's runs are among them."""
        named: dict[Path, list[str]] = {}
        faults: Mapping[Path, str] = {}
        for known in _published(self.folder):
            faults = known.faults
            folders = {entry.version: entry.folder for entry in known.entries}
            for version in known.names():
                roles = ", ".join(known.roles(version))
                title = known.title(version) + (f" ({roles})" if roles else "")
                named.setdefault(folders[version], []).append(title)
        readers = self._readers
        present = run_folders(self.folder)
        self._readers = {path: readers.get(path) or FolderReader(path) for path in present}
        found = [
            self._line(one, named.get(path, ()), faults.get(path, ""))
            for path, one in self._readers.items()
        ]
        return sorted(found, key=lambda line: -line.changed)

    def table(self) -> Table:
        """A line for each run."""
        return table(self.lines(), self.folder)

    def reader(self, title: str) -> FolderReader | None:
        """A reader of the run with this title; None if there is no such run."""
        for path in run_folders(self.folder):
            if self._title(path) == title:
                return FolderReader(path)
        return None

    def _title(self, folder: Path) -> str:
        return folder.relative_to(self.folder).as_posix()

    def _line(self, reader: FolderReader, published: Sequence[str], fault: str) -> RunLine:
        reader.poll()
        seen = dashboard_state(reader.sources)
        folder = reader.folder
        return RunLine(
            folder=str(folder),
            title=self._title(folder),
            run=seen.run,
            name=seen.name,
            method=seen.method,
            state=state_of(reader),
            rounds_done=seen.rounds_done,
            rounds=seen.rounds,
            agents=seen.fleet.known,
            measure=seen.measure,
            figure_title=seen.measure_title,
            figure=seen.newest_figure,
            published=published,
            changed=seen.updated,
            bytes=_size(folder),
            fault=fault,
        )


def _published(runs: Path) -> list[Any]:
    """The publications of each federation that has runs in a folder, or those of none; nothing where nothing can publish."""
    if not extras.has("in_use"):
        return []
    return list(extras.part("in_use", "registry").registries(runs, "default").values())


def _size(folder: Path) -> int:
    """Bytes of all files, but for those that a run has just removed."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def state_of(reader: FolderReader) -> str:
    """The state of a run: running, finished, stopped in order, or killed. Only a run over a broker leaves word of its end."""
    if reader.finished:
        return "finished"
    try:
        with folder_lock(reader.folder, "it is at work"):
            is_stopped = reader.status is None or reader.status.state == "stopped"
            return "stopped" if is_stopped else "killed"
    except UserError:
        return "running"


def table(found: Sequence[RunLine], runs: Path) -> Table:
    """A line for each run."""
    columns = [
        *map(Column, ("run", "method", "state")),
        *[Column(one, is_number=True) for one in ("rounds", "mean figure")],
        *map(Column, ("changed", "published")),
    ]
    title = f"{runs}: {counted(len(found), 'run')}"
    return Table(title, columns, list(map(_cells, found))).without_empty_columns()


def _cells(one: RunLine) -> list[str]:
    return [
        one.title,
        one.method,
        one.state,
        f"{one.rounds_done}/{one.rounds}",
        NONE
        if one.figure is None
        else measured(MEASURES[one.measure], one.figure, one.figure_title),
        moment(one.changed),
        "not known" if one.fault else ", ".join(one.published),
    ]


def old(runs: Path, lines: Sequence[RunLine], keep: int) -> list[RunLine]:
    """The runs that can be removed: finished or stopped, not among the newest, and not needed on devices.

    The runs of a comparison belong to it and stay. What devices use or a rollback needs stays, in every federation, and what
    may be needed because nobody can read it.

    Args:
        runs: the folder.
        lines: its runs, the newest first.
        keep: how many of the newest runs stay in any case.
    """
    needs: set[Path] = set()
    for known in _published(runs):
        needs |= {entry.folder for entry in extras.part("in_use", "registry").needed(known)}
    own = [line for line in lines if "/" not in line.title]
    return [
        line
        for line in own[keep:]
        if line.state != "running"
        and not line.fault
        and Path(line.folder) not in needs
        and not Path(line.folder).is_symlink()
    ]


def removed(line: RunLine) -> RunLine:
    """Remove a run's folder, unless a coordinator has begun to work in it. UserError then."""
    from covey.coordinator.run.folder import alone_in  # here, because a list of runs needs no run

    with alone_in(Path(line.folder)):
        shutil.rmtree(line.folder)
    return replace(line, state="removed")
