"""Profiles of agents by the outputs of a common model, as FLUX and Feroma compare them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from covey.shared.numerics.clustering import Matrix
from covey.shared.numerics.figures import kind_of
from covey.shared.numerics.vectors import Vector
from covey.shared.strategies.base import Settings, TaskData
from covey.shared.strategies.client_half import Local

PROFILE = "profile"  # vector of a report
WARMUP_ROUNDS = 3  # of FedAvg, before profiles are made
COMMON = "common"  # key of the model whose outputs are summarised
MOST_ROWS = 50  # classes with means of their own; more share that number


def refused(settings: Settings) -> str:
    """Why profiles make no sense with a setting; empty: they do."""
    if isinstance(settings, TaskData) and settings.kind == "anomalies":
        return (
            "its profiles are of predicted classes or values, and a model of anomalies has neither"
        )
    return ""


def shape_of(outputs: int) -> tuple[int, int]:
    """Rows for classes, and values of an output; a regression has one row, of prediction and target."""
    return min(outputs, MOST_ROWS), max(outputs, 2)


def length_of(outputs: int) -> int:
    """The values of a profile."""
    rows, values = shape_of(outputs)
    return 2 * (1 + rows) * values


def profile(local: Local, model: Vector) -> Vector:
    """Means and deviations of the outputs, over all training samples and over those of each class.

    Returns:
        (length_of(outputs),) in four blocks: mean, deviation, means by class, deviations by class;
        zeros for classes without samples.
    """
    outputs = local.predict(model, "train").astype(np.float64)
    targets = local.targets("train")
    rows, _ = shape_of(outputs.shape[1])
    has_classes = kind_of(targets) == "classes"
    labels = targets % rows if has_classes else np.zeros(len(targets), np.int64)
    if outputs.shape[1] == 1:
        outputs = np.column_stack([outputs, targets])
    means, deviations = np.zeros((2, rows, outputs.shape[1]))
    for k in range(rows):
        own = outputs[labels == k]
        if len(own):
            means[k], deviations[k] = own.mean(axis=0), own.std(axis=0)
    blocks = (outputs.mean(axis=0), outputs.std(axis=0), means.ravel(), deviations.ravel())
    values: Vector = np.nan_to_num(np.concatenate(blocks)).astype(np.float32)
    return values


def scaled(profiles: Sequence[Vector], outputs: int, others: Sequence[Vector] = ()) -> Matrix:
    """Profiles (n, values) whose blocks have the range 0 to 1, with `others` in the same units behind them."""
    rows, values = shape_of(outputs)
    ends = np.cumsum([values, values, rows * values])
    known = np.stack(profiles).astype(np.float64)
    every = np.stack([*profiles, *others]).astype(np.float64)
    blocks = []
    for own, block in zip(
        np.split(known, ends, axis=1), np.split(every, ends, axis=1), strict=True
    ):
        wide = float(np.ptp(own)) or 1.0
        blocks.append((block - own.min()) / wide)
    together: Matrix = np.concatenate(blocks, axis=1)
    return together
