"""The card of an agent: the classes of its samples. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from covey.agent.data.dataset import Array, Indices
from covey.agent.data.scaling import target_scale_of
from covey.extras.cards import kinship
from covey.extras.cards.kinship import Card
from covey.shared.scenario.task import Task


def card_of(
    inputs: Iterable[Array],
    values: Array,
    units: Indices,
    *,
    task: Task,
    seed: int,
    client: str,
    min_cell: int,
    blocks: int | None = None,
) -> Card:
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
    return kinship.card(
        inputs,
        labels,
        classes,
        units=units,
        seed=seed,
        client=client,
        min_cell=min_cell,
        blocks=blocks,
    )
