"""Scaling and standardisation of features on the device that computes (`covey.agent.data.scaling`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from covey.agent.data.scaling import Float32, Scaling
from covey.shared.scenario.task import Task


@dataclass(frozen=True)
class InputScaling:
    """x * factor + shift turns features of a file into a model's inputs. None leaves a term out.

    Both tensors are float32 of shape (channels, 1, ...), or () for a factor that all channels share.
    """

    shift: Tensor | None
    factor: Tensor | None

    @classmethod
    def of(cls, task: Task, scaling: Mapping[str, Sequence[float]] | None = None) -> InputScaling:
        """The scaling of a task, as `Scaling.of` makes it.

        Raises:
            PublicError: `mean` or `std` has another number of values than the features have channels.
        """
        arrays = Scaling.of(task, scaling)
        return cls(_tensor(arrays.shift), _tensor(arrays.factor))

    def to(self, device: torch.device) -> InputScaling:
        """The same scaling on a device."""
        shift = self.shift
        if shift is not None:
            shift = shift.to(device)
        factor = self.factor
        if factor is not None:
            factor = factor.to(device)
        return InputScaling(shift, factor)

    def apply(self, raw: Tensor) -> Tensor:
        """Inputs (n, *features) from float32 features (n, *features)."""
        if self.factor is None:
            return raw
        if self.shift is None:
            return raw * self.factor
        return torch.addcmul(self.shift, raw, self.factor)

    def undo(self, inputs: Tensor) -> Tensor:
        """Float32 features (n, *features) from inputs."""
        raw = inputs
        if self.shift is not None:
            raw = raw - self.shift
        if self.factor is not None:
            raw = raw / self.factor
        return raw


def _tensor(values: Float32 | None) -> Tensor | None:
    """The array as a tensor that shares its memory."""
    if values is None:
        return None
    return torch.from_numpy(values)
