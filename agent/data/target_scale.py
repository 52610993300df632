"""Standardisation of a regression target, there and back. Pure.

Models of a task with `target_scale` give standardised values. Figures, predictions and exported programs are in the units
of the data: they pass through `in_units_of_the_data`.
"""

from __future__ import annotations

import numpy as np

from covey.agent.data.dataset import Array
from covey.shared.scenario.columns import TargetScale
from covey.shared.scenario.task import Task


def target_scale_of(task: Task) -> TargetScale | None:
    """Mean and standard deviation of the target; None if it is not standardised."""
    scale = task.target_scale
    if isinstance(scale, TargetScale):
        return scale
    return None


def standardised_targets(values: Array, task: Task) -> Array:
    """Targets (n,) for training from targets in the units of the data; the same array without a scale."""
    scale = target_scale_of(task)
    if scale is None:
        return values
    exact = (values.astype(np.float64) - scale.mean) / scale.std
    return exact.astype(np.float32)


def in_units_of_the_data(outputs: Array, task: Task) -> Array:
    """Outputs (n, 1) of the model in the units of the data; the same array without a scale."""
    scale = target_scale_of(task)
    if scale is None:
        return outputs
    exact = outputs.astype(np.float64) * scale.std + scale.mean
    return exact.astype(np.float32)
