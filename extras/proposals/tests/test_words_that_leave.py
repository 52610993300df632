"""Every word of six tables about people that leaves a device: in a description, a proposal, a status, and in statistics of the fleet.

The lists are whole: a word that is not listed leaves nowhere, even where a coordinator asks for the words of each column.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from covey.agent.data.check import load_local
from covey.agent.data.survey import DataSurvey
from covey.agent.worker.worker import answer
from covey.extras.proposals.proposal import checked, propose
from covey.extras.proposals.proposal_data import describe
from covey.shared.scenario.columns import table_columns, width_of
from covey.shared.scenario.task import Task
from covey.shared.wire.jobs import DeviceData, InspectData

DEVICES = 3
ROWS = 30
FIRST = ("Ada", "Bo", "Cleo", "Dan", "Eve", "Fay", "Gus")
LAST = ("Adams", "Brown", "Clark", "Davis", "Evans", "Frank")
THINGS = ("pump", "valve", "door", "roof", "lamp", "gate", "wheel")
Row = Callable[[int], Sequence[object]]

# name -> columns, a row by its number over all devices, and the words of cells that leave
TABLES: dict[str, tuple[str, Row, str]] = {
    "patients": (
        "patient ward age ill",
        lambda n: (f"{FIRST[n % 7]} {LAST[n // 7 % 6]}", ("north", "south")[n % 2], n % 60, ("no", "yes")[n // 3 % 2]),
        "north south no yes",
    ),
    "customers": (
        "email street city spent",
        lambda n: (f"{FIRST[n % 7]}{n // 3}@mail.org".lower(), f"{LAST[n % 6]} Road {n // 2}", ("Bern", "Oslo")[n // 2 % 2], n * 7 % 90 / 4),
        "Bern Oslo",
    ),
    "employees": (
        "employee badge department hours late",
        lambda n: (LAST[n % 6], f"{n * 7919 % 9973:04x}-{n % 3}", ("sales", "works")[n // 2 % 2], n % 41, ("in time", "late")[n // 5 % 2]),
        "sales works in~time late",
    ),
    "tickets": (
        "subject reporter minutes solved",
        lambda n: (f"the {THINGS[n % 7]} of {FIRST[n // 7 % 7]} in room {n // 2} is broken", f"{FIRST[n % 7]}", n * 11 % 300, n % 2 == 0),
        "true false",
    ),
    "cars": (
        "plate vin_code owner_name model km",
        lambda n: (f"B-{chr(65 + n % 26)}{chr(65 + n // 3 % 26)} {n // 2}", f"WVW{n * 104729 % 999983:06d}", f"{FIRST[n % 7]}", ("kombi", "van")[n % 2], n * 13 % 700 / 8),
        "kombi van",
    ),
    "accounts": (
        "iban account_id country note balance",
        lambda n: (f"DE{n * 15485863 % 10**10:010d}", 70_000 + n * 31 % 97, ("DE", "AT")[n % 2], "" if n % 4 else f"call {FIRST[n % 7]} {n}", n * 17 % 900 / 16),
        "DE AT",
    ),
}  # fmt: skip


def words_that_leave(folder: Path, header: str, row: Row) -> set[str]:
    """The words in the cells of all devices that are in anything that one of them would send."""
    cells: set[str] = set()
    sources: list[str] = []
    for device in range(DEVICES):
        rows = [row(number) for number in range(device * ROWS, (device + 1) * ROWS)]
        cells |= {str(cell) for one in rows for cell in one if isinstance(cell, str) and cell}
        cells |= {str(cell).lower() for one in rows for cell in one if isinstance(cell, bool)}
        path = folder / f"{device}.csv"
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([header.split(), *rows])
        sources.append(str(path))
    descriptions = [describe(source) for source in sources]
    proposal = propose(descriptions)
    task = checked(proposal).task
    sent = [one.model_dump_json(exclude={"source"}) for one in descriptions]
    sent.append(json.dumps(proposal.content()) + "".join(proposal.remarks()))
    for source in sources:
        for asked in (task, asking_for_all(task, header.split())):
            job = InspectData(source=DeviceData(data=source), task=asked.model_dump(mode="json"))
            sent.append(json.dumps({**vars(answer(job)), "detail": ""}))
            numbers = DataSurvey(load_local(source, task=asked), asked).statistics()
            sent.append(json.dumps(numbers, default=lambda one: np.asarray(one).tolist()))
    everything = "\n".join(sent)
    return {word for word in cells if f'"{word}"' in everything or f"'{word}'" in everything}


def asking_for_all(task: Task, names: Sequence[str]) -> Task:
    """The same task with every other column as words that the fleet finds."""
    columns = tuple(name for name in names if name != task.target)
    numbers = {*task.columns} - {*task.categories}
    categories = {name: 50 for name in columns if name not in numbers}
    width = width_of(table_columns(columns, categories, (), flags=(), seasons=(), elapsed=()))
    content = task.model_dump(mode="json") | {
        "columns": columns, "categories": categories, "ignore": (), "features": [width], "impute": "mean"
    }  # fmt: skip
    return Task.model_validate(content)


@pytest.mark.parametrize("name", sorted(TABLES))
def test_these_words_leave_a_device_and_no_others(tmp_path: Path, name: str) -> None:
    header, row, leaving = TABLES[name]
    expected = {word.replace("~", " ") for word in leaving.split()}
    assert words_that_leave(tmp_path, header, row) == expected
