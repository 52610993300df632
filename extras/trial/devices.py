"""The data of each device in one folder, as a simulated fleet reads it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from covey.agent.data.cells import BadCells
from covey.agent.data.table_files import open_table
from covey.agent.data_place import place_of
from covey.extras.formats.sqlite_place import SqlitePath


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
        for block in table.blocks(table.columns, BadCells(source)):
            for cells in zip(*(block.cells[name] for name in table.columns), strict=True):
                row = dict(zip(table.columns, cells, strict=True))
                print(json.dumps(row, default=str), file=lines)
