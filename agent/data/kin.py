"""The card of an agent: the classes of its samples, and the units of samples that belong together. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from covey.agent.data.dataset import Array, Dataset
from covey.agent.data.scaling import target_scale_of
from covey.shared.numerics import kinship
from covey.shared.scenario.task import Task

Indices = npt.NDArray[np.int64]
STRETCHES = 2 * kinship.BLOCKS  # of a series, about


def units_of(data: Dataset) -> Indices:
    """The unit (n,) of each training sample; samples of one unit belong together.

    A unit is a stretch of time where samples are windows that share rows. Otherwise it is a group of the data (a recording,
    a person), or the sample itself if the agent has one group.
    """
    n = len(data.targets)
    groups = np.zeros(n, np.int64)
    if data.groups is not None:
        _, groups = np.unique(data.groups, return_inverse=True)
    if data.overlap is not None:
        return _stretches(groups, data.targets, data.overlap)
    if groups.any():
        return groups
    return np.arange(n)


def _stretches(groups: Indices, targets: Array, overlap: int) -> Indices:
    """Stretches (n,) of the windows of each series, which are in time order.

    A stretch ends where the class changes, so that no run of a class is in two of them: shares of classes would agree
    between blocks by chance. It is as long as an eighth of the series, and twice as long at most if the class stays.
    Windows at the two sides of a border may share rows, so it is also longer than the windows that overlap.

    Args:
        groups: (n,) the series of each window.
        targets: (n,) its class, or a value.
        overlap: how many windows before a window share rows with it.
    """
    units = np.zeros(len(groups), np.int64)
    unit = -1
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        usual = max(-(-len(rows) // STRETCHES), 2 * overlap, 1)
        unit += 1
        length = 0
        for before, row in zip([rows[0], *rows], rows, strict=False):
            changes = np.any(targets[row] != targets[before])
            if length >= 2 * usual or (length >= usual and changes):
                unit += 1
                length = 0
            units[row] = unit
            length += 1
    return units


def card_of(
    inputs: Iterable[Array],
    values: Array,
    units: Indices,
    task: Task,
    seed: int,
    client: str,
    min_cell: int,
    blocks: int | None = None,
) -> kinship.Card:
    """The card of an agent.

    Args:
        inputs: of the training samples, as the model gets them, in pieces (rows, values of one).
        values: their targets (n,) in the units of the data, of forecasts (n, steps). Those of a regression, or their means,
            count in tenths of the fleet's distribution; without `target_scale`, which would show that, and of labels and
            anomalies, all samples count as one class.
        units: as `units_of` gives them.
        task: of the scenario, resolved.
        seed: of the run.
        client: the agent.
        min_cell: the fewest samples of a class whose sums are in it.
        blocks: of the card; None: as many as one that is sent.
    """
    classes = task.outputs if task.kind == "classes" else kinship.LEVELS
    labels = values
    if task.kind != "classes":
        scale = target_scale_of(task)
        labels = np.zeros(len(values), np.int64)
        if scale is not None:
            means = values if values.ndim == 1 else values.mean(axis=1)
            labels = kinship.tenths((means - scale.mean) / scale.std)
    return kinship.card(inputs, labels, classes, units, seed, client, min_cell, blocks)
