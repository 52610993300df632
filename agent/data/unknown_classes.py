"""Labels of a table that are no class of the task, as faults of cells. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from covey.agent.data.bad_cells import BadCell, BadCells, quoted
from covey.agent.data.table_columns import MISSING_LABELS, CellPlace, spelled
from covey.agent.data.table_rows import is_number, listed
from covey.shared.scenario.task import Task


def add_unknown_classes(
    place: CellPlace, rows: Sequence[int], labels: Sequence[str], task: Task, faults: BadCells
) -> None:
    """Add a fault for each label that the task does not know. A table without other faults is compared by `fit`.

    Args:
        place: the label column.
        rows: (n,) numbers of the rows, from 1.
        labels: (n,) as the file spells them.
        task: only class names are compared: numbers may count them.
        faults: get the cells.
    """
    if not isinstance(task.classes, tuple) or all(map(is_number, labels)):
        return
    advice = f"correct the label; the classes of the task are {listed(task.classes)}"
    for row, text in zip(rows, labels, strict=True):
        is_known = text in task.classes or _as_number(text) in task.classes
        if is_known or text.lower() in MISSING_LABELS:
            continue
        fault = f"{quoted(text)} is not a class of the task"
        kind = "is not a class of the task"
        faults.add(BadCell(row, place.position, 0, place.name, fault, kind, advice))


def _as_number(text: str) -> str:
    """A whole number without decimals; other text stays."""
    if is_number(text):
        return spelled(float(text))
    return text
