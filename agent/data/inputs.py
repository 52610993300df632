"""From the rows of a table to the inputs of a model: the one function for training, evaluation and prediction. Pure.

A task with columns is resolved first (`covey.shared.scenario.fleet_statistics`): it then has every value that this needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from covey.agent.data.dataset import Array, Dataset
from covey.agent.data.times import circular
from covey.shared.errors import PublicError
from covey.shared.scenario.columns import TableColumn
from covey.shared.scenario.task import Task

Float32 = npt.NDArray[np.float32]
Words = Mapping[
    str, Sequence[str]
]  # by categorical column: the words that its features are indices into


def prepared(data: Dataset, task: Task) -> Dataset:
    """The data as inputs of the model of a resolved task. Data whose features are inputs already stays as it is."""
    if data.columns is None:
        return data
    words = data.columns.words
    return replace(
        data,
        features=inputs(data.features, words, task),
        test_features=inputs(data.test_features, words, task),
        columns=None,
    )


def inputs(raw: Array, words: Words, task: Task) -> Float32:
    """Numbers with missing cells filled in, flags of these cells, and an input per word of each category.

    Args:
        raw: (n, columns, ...) float32 in the order of `task.columns`: numbers, indices into the column's words, or seconds
            of the week. NaN is a missing cell.
        words: the words of the data, by categorical column.
        task: resolved.

    Raises:
        PublicError: cells are missing, and the task has no value for them.

    Returns:
        Inputs (n, width, ...) float32. Of a category exactly one input is 1, the last one for words that the task does not
        know and for missing cells.
    """
    found: list[Float32] = []
    for place, column in enumerate(task.table_columns):
        values = raw[:, place]
        match column.kind:
            case "category":
                found.append(_one_hot(values, words.get(column.name, ()), column))
            case "time":
                found.append(circular(values, seasonal=column.seasonal))
            case "number":
                found.append(_filled(values, column, task)[:, None])
                if column.flagged:
                    found.append(np.isnan(values)[:, None].astype(np.float32))
    return np.ascontiguousarray(np.concatenate(found, axis=1), np.float32)


def _filled(values: Float32, column: TableColumn, task: Task) -> Float32:
    """The column (n, ...) with `task.impute` in place of missing cells."""
    missing = np.isnan(values)
    if not missing.any():
        return values
    imputed = task.impute
    if not isinstance(imputed, dict) or column.name not in imputed:
        raise PublicError(
            f"missing cells in column {column.name!r}, and task.impute has no value for it"
        )
    filled = values.copy()
    filled[missing] = imputed[column.name]
    return filled


def _one_hot(values: Float32, words: Sequence[str], column: TableColumn) -> Float32:
    """Indices of words (n, ...) as inputs (n, room + 1, ...)."""
    input_of = dict(zip(column.words, range(column.room), strict=False))
    other = column.room
    input_of_code = [input_of.get(word, other) for word in words]
    input_of_code.append(other)  # for missing cells
    codes = np.nan_to_num(values, nan=len(words))
    codes = codes.astype(np.int64)
    places = np.array(input_of_code)[codes]
    found = np.zeros((len(values), column.width, *values.shape[1:]), np.float32)
    for place in range(column.width):
        found[:, place] = places == place
    return found
