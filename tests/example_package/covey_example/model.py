"""A small network for inputs of any shape."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn


def two_layers(features: Sequence[int], outputs: int, width: int = 8) -> nn.Module:
    """A hidden layer of `width` units."""
    inputs = math.prod(features)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, outputs)
    )
