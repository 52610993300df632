"""The built-in models as torch modules: `covey.shared.models.built_in` with the layers of torch, and some of our own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import cast

import torch
from torch import Tensor, nn

from covey.shared.errors import PublicError
from covey.shared.models.built_in import BUILDERS

THRESHOLD = "threshold"  # buffer of a model for anomalies


class Net(nn.Sequential):
    """Named layers, each applied to the outputs of the one before."""

    def __init__(self, **layers: nn.Module) -> None:
        super().__init__(OrderedDict(layers))


class Autoencoder(nn.Module):
    """Reconstructs a sample from a short code. Outputs (n, 2) are its threshold, and the error of each sample.

    The error is the mean squared difference of the inputs to their reconstruction. The threshold is a buffer, so it is
    averaged, kept and stored with the weights.

    Args:
        layers: give as many numbers as a sample has.
    """

    threshold: Tensor  # (1,)

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers
        self.register_buffer(THRESHOLD, torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        error = (self.layers(flat).float() - flat).square().mean(dim=1)
        return torch.stack([self.threshold.expand_as(error), error], dim=1)


class Headed(nn.Module):
    """A model with a projection head on the features that its final layer reads.

    The head is linear, ReLU, linear (Tang et al. 2024). Its outputs are logits of `clusters` clusters; `forward` leaves
    it out. The layers keep their names, and the head is declared before the final layer, which so stays the last.

    Args:
        layers: a sequence of layers that ends in a linear one.
        clusters: outputs of the head.

    Raises:
        PublicError: the last layer is not linear.
    """

    clusters: int
    head: nn.Module  # features (n, width) -> logits (n, clusters)
    _body: list[str]  # names of all layers before the final one, in order
    _final: str  # name of the final layer

    def __init__(self, layers: nn.Sequential, clusters: int) -> None:
        super().__init__()
        *body, (last, final) = layers.named_children()
        if not isinstance(final, nn.Linear):
            raise PublicError(
                "task.model.options.head: a projection head needs a model that ends in a linear "
                f"layer, this one ends in {type(final).__name__}; choose another model"
            )
        self.clusters = clusters
        self._body = [name for name, _ in body]
        self._final = last
        for name, layer in body:
            self.add_module(name, layer)
        width = final.in_features
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, clusters))
        self.add_module(last, final)

    def features(self, x: Tensor) -> Tensor:
        """The features (n, width) that the final layer and the head read, from inputs (n, *features)."""
        for name in self._body:
            x = self.get_submodule(name)(x)
        return x

    def classify(self, features: Tensor) -> Tensor:
        """The task's outputs (n, outputs) from the features (n, width)."""
        return cast(Tensor, self.get_submodule(self._final)(features))

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.features(x))


class Residual(nn.Sequential):
    """x + f(x), where f is the layers in a row (He et al. 2016)."""

    def forward(self, x: Tensor) -> Tensor:
        inside = x
        for layer in self:
            inside = layer(inside)
        return x + inside


class LastState(nn.GRU):
    """The state (n, hidden) of a GRU after a window (n, channels, length)."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        states, _ = super().forward(x.transpose(1, 2))
        return states[:, -1]


LAYERS = SimpleNamespace(
    **{**vars(nn), **{one.__name__: one for one in (Net, Autoencoder, Residual, LastState)}}
)
BUILT_IN: Mapping[str, Callable[..., nn.Module]] = {
    name: partial(builder, LAYERS) for name, builder in BUILDERS.items()
}
