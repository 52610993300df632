"""Scaling and standardisation of features, as one factor and one shift, and of a regression target. Pure.

The files' values are multiplied by `task.scale` and then standardised per channel (the first axis of the features).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from covey.agent.data.dataset import Array
from covey.shared.errors import PublicError
from covey.shared.scenario.columns import TargetScale
from covey.shared.scenario.task import Standardise, Task


def target_scale_of(task: Task) -> TargetScale | None:
    """Mean and standard deviation of the target; None if it is not standardised."""
    scale = task.target_scale
    if isinstance(scale, TargetScale):
        return scale
    return None


def standardised_targets(values: Array, task: Task) -> Array:
    """Targets (n,) for training from targets in the units of the data; the same array without a scale.

    Models of a task with `target_scale` give standardised values. Figures, predictions and exported programs are in the
    units of the data: they pass through `in_units_of_the_data`.
    """
    scale = target_scale_of(task)
    if scale is None:
        return values
    return ((values.astype(np.float64) - scale.mean) / scale.std).astype(np.float32)


def in_units_of_the_data(outputs: Array, task: Task) -> Array:
    """Outputs (n, 1) of the model in the units of the data; the same array without a scale."""
    scale = target_scale_of(task)
    if scale is None:
        return outputs
    return (outputs.astype(np.float64) * scale.std + scale.mean).astype(np.float32)


Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
COARSE = (
    1e4  # deviations from 0 to the mean: float32 rounds to about a thousandth of a deviation then
)


@dataclass(frozen=True)
class Scaling:
    """x * factor + shift turns features of a file into a model's inputs. None leaves a term out.

    Both arrays are float32 of shape (channels, 1, ...), or () for a factor that all channels share.
    """

    shift: Float32 | None
    factor: Float32 | None

    @classmethod
    def of(cls, task: Task, scaling: Mapping[str, Sequence[float]] | None = None) -> Scaling:
        """The scaling of a task.

        Args:
            task: `scale` and `standardise` count.
            scaling: `mean` and `std` per channel, after `task.scale`; None: the task's fixed values, if it has any.

        Raises:
            PublicError: `mean` or `std` has another number of values than the features have channels.
        """
        if scaling is not None:
            return cls._standardising(task, scaling["mean"], scaling["std"])
        fixed = task.standardise
        if isinstance(fixed, Standardise):
            return cls._standardising(task, fixed.mean, fixed.std)
        if task.scale == 1:
            return cls(None, None)
        return cls(None, np.array(task.scale, np.float32))

    @classmethod
    def _standardising(cls, task: Task, means: Sequence[float], stds: Sequence[float]) -> Scaling:
        """(x * scale - mean) / std per channel, as one factor and one shift."""
        mean = _per_channel(task, "mean", means)
        std = _per_channel(task, "std", stds)
        if task.has_own_columns:
            mean = mean - _centres(mean, std)
        spread = np.where(std > 0, std, 1.0)  # a channel that never changes is only shifted
        return cls(_broadcast(task, -mean / spread), _broadcast(task, task.scale / spread))

    def apply(self, raw: Float32) -> Float32:
        """Inputs (n, *features) from float32 features (n, *features)."""
        inputs = raw
        if self.factor is not None:
            inputs = inputs * self.factor
        if self.shift is not None:
            inputs = inputs + self.shift
        return inputs


def centres_of(task: Task) -> Float64:
    """Subtracted from the numbers of a resolved task's columns before they are inputs, (inputs,): 0, or the mean where float32 would round the
    differences between the numbers away, as of seconds since 1970. Empty without fixed means."""
    fixed = task.standardise
    if not isinstance(fixed, Standardise):
        return np.zeros(0)
    return _centres(np.array(fixed.mean), np.array(fixed.std))


def _centres(mean: Float64, std: Float64) -> Float64:
    return np.where(np.abs(mean) > COARSE * std, mean, 0.0)


def _per_channel(task: Task, name: str, numbers: Sequence[float]) -> Float64:
    """One number per channel. Raises PublicError for another count."""
    values = np.asarray(numbers, np.float64)
    channels = task.features[0]
    if values.shape != (channels,):
        raise PublicError(
            f"task.standardise.{name} has {values.size} values, the features have {channels} "
            "channels; give one value per channel"
        )
    return values


def _broadcast(task: Task, values: Float64) -> Float32:
    """Values per channel as float32 (channels, 1, ...), to be combined with a batch of features."""
    other_axes = len(task.features) - 1
    return values.astype(np.float32).reshape((len(values), *[1] * other_axes))
