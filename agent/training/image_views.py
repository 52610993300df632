"""Changed images of a batch, made from the inputs of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from covey.agent.training.augment import Augmentation
from covey.agent.training.input_scaling import InputScaling

# inputs (B, *features) -> inputs of changed images
Change = Callable[[Tensor], Tensor]


def unchanged(inputs: Tensor) -> Tensor:
    """The change that leaves images as they are."""
    return inputs


@dataclass(frozen=True)
class ImageViews:
    """Changes images that are inputs of a model already."""

    scaling: InputScaling  # that made the inputs from raw features
    low: float  # the raw feature that augmentation takes for 0
    span: float  # from there to the raw feature that it takes for 1
    draw: torch.Generator  # of the numbers by which images are changed

    @classmethod
    def of(cls, raw: Tensor, scale: float, scaling: InputScaling, seed: int) -> ImageViews:
        """The views of an agent's images.

        Args:
            raw: all raw features (n, *features). Images span 0 to what `scale` makes 1, or more if the data does.
            scale: the factor `task.scale`.
            scaling: makes inputs of raw features.
            seed: determines the changes.
        """
        smallest = float(raw.min())
        largest = float(raw.max())
        low = min(0.0, smallest)
        usual = 1 / scale
        high = max(usual, largest)
        span = high - low
        draw = torch.Generator()
        draw.manual_seed(seed)
        return cls(scaling, low, span, draw)

    def changed(self, inputs: Tensor, augment: Augmentation) -> Tensor:
        """Inputs of changed images: augmentation works on images with values in [0, 1]."""
        raw = self.scaling.undo(inputs)
        from_zero = raw - self.low
        images = from_zero / self.span
        changed = augment(images, self.draw)
        stretched = changed * self.span
        changed_raw = stretched + self.low
        return self.scaling.apply(changed_raw)
