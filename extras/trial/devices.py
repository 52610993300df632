"""The data of each device in one folder, as a simulated fleet reads it, and one table of all devices as a file for each."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from covey.agent.data.cells import BadCells
from covey.agent.data.dataset import TESTS, held_out
from covey.agent.data.table_files import open_table
from covey.agent.data.table_rows import TableFile, listed
from covey.agent.data_place import place_of
from covey.extras.formats.sqlite_place import SqlitePath
from covey.extras.proposals.describe import found_notation
from covey.extras.proposals.description import DataDescription
from covey.shared.errors import UserError
from covey.shared.scenario.columns import Notation
from covey.shared.scenario.task import Task
from covey.shared.storage.files import write_atomically

MOST_DEVICES = 200  # of one table; a column with more words names rows


def devices_in(folder: Path, sources: Sequence[str]) -> None:
    """Fill a folder of devices: with links to files, and with the rows that a query of a database gives."""
    for number, source in enumerate(map(place_of, sources)):
        place = folder / f"{number:05}"  # agents have the order of the names
        if isinstance(source, SqlitePath):
            _copy_rows(source, place.with_suffix(".jsonl"))
        else:
            place.with_suffix(source.suffix).symlink_to(source.absolute())


def _copy_rows(source: SqlitePath, to: Path) -> None:
    with open_table(source, least=1) as table, to.open("w", encoding="utf-8") as lines:
        for cells in _rows(table, source):
            print(_as_json(table.columns, cells), file=lines)


def _rows(table: TableFile, place: Path) -> Iterator[tuple[Any, ...]]:
    """The cells of each row. DataError, after the last one, if some have another number of cells: none is lost without a word."""
    faults = BadCells(place)
    for block in table.blocks(table.columns, faults):
        yield from zip(*(block.cells[name] for name in table.columns), strict=True)
    faults.check()


def _as_json(names: Sequence[str], cells: Sequence[Any]) -> str:
    return json.dumps(dict(zip(names, cells, strict=True)), default=str)


def training_samples(task: Task, device: DataDescription) -> int:
    """About how many samples of a device train."""
    samples = device.samples if task.window is None else device.samples // task.window.step
    return samples - held_out(samples, TESTS)


def divided(source: str, by: str, folder: Path) -> list[str]:
    """A file for each device of a table that has the rows of all, without the column that names the device.

    Args:
        source: the table.
        by: the column. A row in which it is empty belongs to no device.
        folder: of the files, each of which has the name of its device.

    Raises:
        UserError: there is no such column, it names one device or more than `MOST_DEVICES`, or a file is there with other rows.
        DataError: the table cannot be read.
    """
    names, separator, rows = _rows_by_device(source, by)
    if len(rows) < 2:
        raise UserError(
            f"{source}: {by!r} names {len(rows)} devices; expected two or more to train together"
        )
    texts: dict[Path, str] = {}
    for word, cells in rows.items():
        name = re.sub(r"[^\w.-]+", "-", word).strip("-.")[:64] or "device"
        file = folder / f"{name}{'.csv' if separator else '.jsonl'}"
        if file in texts:  # of another word with the same letters
            file = file.with_stem(f"{name}-{len(texts)}")
        texts[file] = _as_text(names, cells, separator)
    for file, text in texts.items():
        if file.exists() and file.read_text(encoding="utf-8") != text:
            raise UserError(
                f"{file} is there already, with other rows; rename {folder}, and repeat the command"
            )
    folder.mkdir(exist_ok=True)
    for file, text in texts.items():
        write_atomically(file, text.encode())
    return [str(file) for file in texts]


def _rows_by_device(source: str, by: str) -> tuple[list[str], str, dict[str, list[Sequence[Any]]]]:
    """The other columns, what is between the cells of a text, and the rows of each device."""
    place = place_of(source)
    rows: dict[str, list[Sequence[Any]]] = {}
    # cells as they are written: devices write theirs in this way too, and the proposal is to find it
    as_written = Notation(encoding=found_notation(place).notation.encoding)
    with open_table(place, least=2, notation=as_written) as table:
        if by not in table.columns:
            raise UserError(f"{source}: no column {by!r}; expected one of {listed(table.columns)}")
        at = table.columns.index(by)
        for cells in _rows(table, place):
            word = "" if cells[at] is None else str(cells[at]).strip()
            if word:
                rows.setdefault(word, []).append(cells[:at] + cells[at + 1 :])
            if len(rows) > MOST_DEVICES:
                raise UserError(
                    f"{source}: {by!r} has more than {MOST_DEVICES} words; expected a column that names the device"
                )
        return [name for name in table.columns if name != by], table.separator, rows


def _as_text(names: Sequence[str], rows: Sequence[Sequence[Any]], separator: str) -> str:
    """Rows as the table had them: text with its separator, or an object of JSON for each where values have types."""
    if not separator:
        return "".join(f"{_as_json(names, cells)}\n" for cells in rows)
    text = io.StringIO(newline=None)  # as in `csv_text`
    csv.writer(text, delimiter=separator).writerows([names, *rows])
    return text.getvalue()
