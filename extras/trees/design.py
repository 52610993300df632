"""What a companion sees of a table: the inputs of the model as a line reads them, and its columns as trees ask about them. Pure.

Inputs are those of the network, standardised by the fleet. For trees the inputs of one column of words are one column again,
whose value is the word, and the flag of a number's missing cells is an answer of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Self

import numpy as np
import numpy.typing as npt

from covey.shared.errors import PublicError
from covey.shared.scenario.task import Task

Float64 = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

FARTHEST = (
    8.0  # deviations from the mean at which an input is clipped: one cell never decides alone
)
MOST_INPUTS = 512  # whose products are 130 thousand numbers
KNOWN = "or known values {mean: ..., std: ...}, which secure sums need"


@dataclass(frozen=True)
class Column:
    """What trees ask about."""

    start: int  # the first of its inputs
    words: int = 0  # inputs of which one is set; 0: a number, which is one input
    flag: int | None = None  # of a number: the input that is set where the cell is missing


@dataclass(frozen=True)
class Form:
    """The form of a task's rows and answers."""

    columns: tuple[Column, ...]
    width: int  # inputs
    classes: int  # 0: values

    @classmethod
    def of(cls, task: Task) -> Self:
        """That of a task, whether it has the fleet's statistics already or not.

        Raises:
            PublicError: the task is none that a companion can learn, with the reason.
        """
        if why := unsuited(task):
            raise PublicError(why)
        width = task.features[0]
        columns = tuple(_columns(task)) or tuple(map(Column, range(width)))
        return cls(columns, width, task.outputs if task.kind == "classes" else 0)

    @property
    def scores(self) -> int:
        """Numbers that are learned for each row: of two classes one, the logit of the second."""
        return {0: 1, 2: 1}.get(self.classes, self.classes)

    @property
    def words(self) -> int:
        """The most words of a column."""
        return max(column.words for column in self.columns)

    @property
    def are_words(self) -> Flags:
        """Of which columns (columns,) the values are words."""
        return np.array([column.words > 0 for column in self.columns])


def _columns(task: Task) -> Iterator[Column]:
    start = 0
    for column in task.table_columns:
        match column.kind:
            case "category":
                yield Column(start, words=column.width)
            case "time":
                yield from map(Column, range(start, start + column.width))
            case "number":
                yield Column(start, flag=start + 1 if column.flagged else None)
        start += column.width


def unsuited(task: Task) -> str:
    """Why a companion cannot learn a task, as a sentence; empty: it can."""
    what = ""
    if task.window is not None:
        what = "windows and forecasts of a series" if task.window.horizon else "windows of a series"
    elif task.anomalies is not None:
        what = "anomalies"
    elif len(task.features) != 1:
        what = "images and other samples with several axes"
    elif task.kind not in ("classes", "values"):
        what = "several labels"
    elif task.kind == "values" and task.outputs != 1:
        what = "several values"
    if what:
        return f"it is for tables with one class or value a row, and not yet for {what}"
    if task.features[0] > MOST_INPUTS:
        return f"the task has {task.features[0]} inputs, and it takes up to {MOST_INPUTS}"
    if task.standardise == "none":
        return (
            f"inputs need one scale in all of the fleet; set task.standardise: federated, {KNOWN}"
        )
    if task.kind == "values" and task.target_scale == "none":
        return f"the target needs one scale in all of the fleet; set task.target_scale: federated, {KNOWN}"
    return ""


@dataclass(frozen=True, eq=False)
class Design:
    """Some rows (n, ...). Equal are those with the same inputs."""

    line: Float64  # (n, inputs + 1): 1, and each input
    numbers: Float64  # (n, columns); of words 0
    words: Indices  # (n, columns); of numbers 0
    missing: Flags  # (n, columns)

    @classmethod
    def of(cls, inputs: npt.NDArray[np.float32], form: Form) -> Self:
        """Those with these inputs (n, width), standardised."""
        rows = np.clip(np.nan_to_num(inputs.astype(np.float64)), -FARTHEST, FARTHEST)
        shape = (len(rows), len(form.columns))
        numbers, missing = np.zeros(shape), np.zeros(shape, np.bool_)
        words = np.zeros(shape, np.int64)
        for place, column in enumerate(form.columns):
            if column.words:
                words[:, place] = rows[:, column.start : column.start + column.words].argmax(axis=1)
                continue
            numbers[:, place] = rows[:, column.start]
            if column.flag is not None:
                missing[:, place] = rows[:, column.flag] > 0
        return cls(np.column_stack([np.ones(len(rows)), rows]), numbers, words, missing)

    def __len__(self) -> int:
        return len(self.line)

    @cached_property
    def digest(self) -> bytes:
        """Names the rows."""
        return blake2b(self.line.tobytes(), digest_size=16).digest()

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Design) and self.digest == other.digest
