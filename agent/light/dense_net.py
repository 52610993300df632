"""The built-in models `linear` and `mlp` in numpy: their layout, outputs and gradient.

Names, shapes and order of the tensors are those of the torch modules of the same names, so that both kinds of devices
exchange the same vectors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.shared.errors import PublicError
from covey.shared.numerics.vectors import Layout, Tensor, Vector
from covey.shared.scenario.task import Task

MAX_LAYERS = 64
DEFAULT_HIDDEN = 200

Float32 = npt.NDArray[np.float32]


def layout_of_task(task: Task) -> Layout:
    """The layout of the task's model. Nothing takes memory for it.

    Raises:
        PublicError: the model is neither `linear` nor `mlp`, or its options are wrong.
    """
    inputs = math.prod(task.features)
    hidden = _hidden_widths(task)
    names = _layer_names(task.model.name, len(hidden) + 1)
    widths = [inputs, *hidden, task.outputs]
    tensors: list[Tensor] = []
    for name, (before, after) in zip(names, pairwise(widths), strict=True):
        tensors.append(Tensor(f"{name}.weight", (after, before)))
        tensors.append(Tensor(f"{name}.bias", (after,)))
    return Layout(tuple(tensors), len(tensors))


def _layer_names(model: str, layers: int) -> list[str]:
    if model == "linear":
        return ["fc"]
    return [f"fc{number}" for number in range(1, layers + 1)]


def _hidden_widths(task: Task) -> Sequence[int]:
    """The widths of the hidden layers. Raises PublicError for another model and for wrong options."""
    name = task.model.name
    options = {key: value for key, value in task.model.options.items() if value is not None}
    match name:
        case "linear":
            known: tuple[str, ...] = ()
            hidden: Any = []
        case "mlp":
            known = ("hidden",)
            hidden = options.get("hidden", DEFAULT_HIDDEN)
        case _:
            raise PublicError(
                f"task.model {name!r}: the learner numpy trains linear and mlp only; choose one of these, or start "
                "the agent with --learner torch"
            )
    unknown = sorted(options.keys() - set(known))
    if unknown:
        takes = ", ".join(known) or "no options"
        raise PublicError(
            f"task.model {name!r}: the learner numpy does not know the option {unknown[0]}; it takes {takes}"
        )
    widths = [hidden] if isinstance(hidden, int) else hidden
    is_list = isinstance(widths, list) and all(type(width) is int for width in widths)
    if not is_list or len(widths) >= MAX_LAYERS or min(widths, default=1) < 1:
        raise PublicError(
            f"task.model.options.hidden: expected a width of 1 or more, or a list of fewer than {MAX_LAYERS}"
        )
    return widths


@dataclass(frozen=True)
class _Layer:
    """One fully connected layer: views of the net's state and of its gradient."""

    weight: Float32  # (after, before)
    bias: Float32  # (after,)
    weight_gradient: Float32  # (after, before)
    bias_gradient: Float32  # (after,)


class DenseNet:
    """Fully connected layers with ReLU between them, whose state and gradient are one vector each.

    Args:
        layout: of the model, as `layout_of_task` makes it.
    """

    state: Vector  # (d,)
    gradient: Vector  # (d,); `add_gradient` adds to it
    _layers: list[_Layer]
    _inputs: list[Float32]  # of each layer in the latest forward pass

    def __init__(self, layout: Layout) -> None:
        self.state = np.zeros(layout.size, np.float32)
        self.gradient = np.zeros(layout.size, np.float32)
        values = layout.named(self.state)
        gradients = layout.named(self.gradient)
        self._inputs = []
        self._layers = []
        for name in layout.modules:
            weight = f"{name}.weight"
            bias = f"{name}.bias"
            layer = _Layer(values[weight], values[bias], gradients[weight], gradients[bias])
            self._layers.append(layer)

    def __repr__(self) -> str:
        layers = len(self._layers)
        return f"<DenseNet: {self.state.size} values in {layers} layers>"

    def load(self, model: Vector) -> None:
        """Copy a model (d,) into the state. Raises ValueError for another shape."""
        if model.shape != self.state.shape:
            raise ValueError(f"model has shape {model.shape}, the layout has ({self.state.size},)")
        np.copyto(self.state, model)

    def outputs(self, inputs: Float32) -> Float32:
        """Outputs (n, outputs) of inputs (n, *features). `add_gradient` may follow."""
        values = inputs.reshape(len(inputs), -1)
        self._inputs = []
        last = len(self._layers) - 1
        for number, layer in enumerate(self._layers):
            self._inputs.append(values)
            values = values @ layer.weight.T
            values += layer.bias
            if number != last:
                np.maximum(values, 0, out=values)
        return values

    def add_gradient(self, slopes: Float32) -> None:
        """Add to `gradient` what the loss of the latest forward pass gives.

        Args:
            slopes: (n, outputs), the derivative of the loss by the outputs.
        """
        for number in reversed(range(len(self._layers))):
            layer = self._layers[number]
            inputs = self._inputs[number]
            np.add(layer.weight_gradient, slopes.T @ inputs, out=layer.weight_gradient)
            np.add(layer.bias_gradient, slopes.sum(axis=0), out=layer.bias_gradient)
            if number > 0:
                slopes = slopes @ layer.weight
                slopes *= inputs > 0  # the derivative of ReLU; at 0 it is 0, as in torch
