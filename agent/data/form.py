"""The form of a device's data: its kind, its columns and its number of rows, and nothing that follows from a cell.

Where the owner of a device demands anything, a coordinator learns this before there is work, and no more: each task that it
makes up would otherwise be a question about cells, which the number of rows that fit answers.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from covey.agent.data.cells import BadCells
from covey.agent.data.dataset import TESTS, Dataset, held_out
from covey.agent.data.fit import fitting_form
from covey.agent.data.load import class_folders, has_image_column, load, tables_at
from covey.agent.data.table_files import open_table
from covey.agent.data.tables import no_window, opened
from covey.agent.data_place import place_of
from covey.shared.errors import DataError
from covey.shared.own_code.consent import AllowedCode
from covey.shared.scenario.task import Task


def form_counts(path: str, label: str | None, task: Task) -> tuple[int, int]:
    """The samples for training and for tests that data of this form gives a task if every cell is as the task wants it.

    Args:
        path: as of `agent start --data`.
        label: the label column of a table.
        task: names columns and windows.

    Raises:
        DataError: no data of this form fits the task.
    """
    place = place_of(path)
    if tables := tables_at(place):
        rows = [_rows_of(table, label, task) for table in tables]
    elif folders := class_folders(place):
        rows = [len(folders.train), len(folders.test)]
    else:
        try:
            data = load(path, label, AllowedCode.for_data(path))
        except DataError as error:  # no task can use them, and which cells are why stays here
            raise error.kept from error
        fitting_form(data, task)
        rows = [len(data.targets), len(data.test_targets)]
    train, test = (_samples(place, count, task) for count in (*rows, 0)[:2])
    if not test:
        test = held_out(train, TESTS)
        train -= test
    return train, test


def _rows_of(path: Path, label: str | None, task: Task) -> int:
    """The rows of a table. DataError if its columns do not fit the task."""
    faults = BadCells(path)  # of rows of another length, which count too
    if not task.has_own_columns and has_image_column(path):
        with open_table(path, least=1) as file:
            return sum(len(block.rows) for block in file.blocks(file.columns[:1], faults))
    with opened(path, label, task) as (file, selection):
        BadCells(path).check(selection.faults)
        if task.read.pivot is None:
            count = sum(len(block.rows) for block in file.blocks(file.columns[:1], faults))
    if (
        task.read.pivot is not None
    ):  # its readings: how many rows they give follows from their times
        with open_table(
            path, least=1, notation=task.read.model_copy(update={"pivot": None})
        ) as file:
            count = sum(len(block.rows) for block in file.blocks(file.columns[:1], faults))
    targets = max(len(selection.labels), 1) * (task.window.targets if task.window else 1)
    empty = np.empty((0, len(selection.features)))
    no_targets = np.empty((0, targets) if targets > 1 else 0)
    fitting_form(Dataset(empty, no_targets, empty, no_targets, source=str(path)), task)
    return count + faults.count


def _samples(path: Path, rows: int, task: Task) -> int:
    """The samples of this many rows, of one series. DataError if they are too few for a window."""
    window = task.window
    if window is None or not rows:
        return rows
    if rows < window.span:
        raise no_window(path, rows, window)
    return (rows - window.span) // window.step + 1
