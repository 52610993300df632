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
from covey.shared.strategies.base import Debias

MAX_LAYERS = 64
DEFAULT_HIDDEN = 200

Float32 = npt.NDArray[np.float32]


def layout_of_task(task: Task) -> Layout:
    """The layout of the task's model. Nothing takes memory for it.

    Raises:
        PublicError: the model is neither `linear` nor `mlp`, or its options are wrong.
    """
    if task.model.adapters is not None:
        raise PublicError(
            "task.model.adapters: the learner of this device (numpy) has none; start the agent with --learner torch"
        )
    inputs = math.prod(task.features)
    hidden = _hidden_widths(task)
    names = _layer_names(task.model.name, len(hidden) + 1)
    widths = [inputs, *hidden, task.outputs]
    tensors: list[Tensor] = []
    for name, (before, after) in zip(names, pairwise(widths), strict=True):
        tensors += [Tensor(f"{name}.weight", (after, before)), Tensor(f"{name}.bias", (after,))]
    return Layout(tuple(tensors), len(tensors))


def _layer_names(model: str, layers: int) -> list[str]:
    if model == "linear":
        return ["fc"]
    return [f"fc{number}" for number in range(1, layers + 1)]


def _hidden_widths(task: Task) -> Sequence[int]:
    """The widths of the hidden layers. Raises PublicError for another model and for wrong options."""
    name = task.model.name
    options = task.model.options
    match name:
        case "linear":
            _check_options(task, [])
            return []
        case "mlp":
            _check_options(task, ["hidden"])
            return _checked_widths(options.get("hidden", DEFAULT_HIDDEN))
    raise PublicError(
        f"task.model {name!r}: the learner numpy trains linear and mlp only; choose one of these, or start "
        "the agent with --learner torch"
    )


def _check_options(task: Task, known: Sequence[str]) -> None:
    """Raises PublicError for an option that is set and not known."""
    takes = ", ".join(known) or "no options"
    for option, value in task.model.options.items():
        if value is not None and option not in known:
            raise PublicError(
                f"task.model {task.model.name!r}: the learner numpy does not know the option {option}; it takes "
                f"{takes}"
            )


def _checked_widths(hidden: Any) -> Sequence[int]:
    """The option `hidden` as a list. Raises PublicError if it is no width, and no list of widths."""
    widths = hidden if isinstance(hidden, list) else [hidden]
    wrong = [width for width in widths if type(width) is not int or width < 1]
    if wrong or len(widths) >= MAX_LAYERS:
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
            layer = _Layer(
                weight=values[weight],
                bias=values[bias],
                weight_gradient=gradients[weight],
                bias_gradient=gradients[bias],
            )
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

    @property
    def last_inputs(self) -> Float32:
        """What the last layer read in the latest forward pass (n, width)."""
        return self._inputs[-1]

    @property
    def last_layer(self) -> _Layer:
        """The layer that gives the outputs."""
        return self._layers[-1]

    def add_gradient(self, slopes: Float32, of_features: Float32 | None = None) -> None:
        """Add to `gradient` what the loss of the latest forward pass gives.

        Args:
            slopes: (n, outputs), the derivative of the loss by the outputs.
            of_features: (width,), a further derivative by what the last layer reads, the same for each sample.
        """
        for number in reversed(range(len(self._layers))):
            layer = self._layers[number]
            inputs = self._inputs[number]
            by_weight = layer.weight_gradient
            by_weight += slopes.T @ inputs
            by_bias = layer.bias_gradient
            by_bias += slopes.sum(axis=0)
            if number > 0:
                was_active = inputs > 0  # the derivative of ReLU; at 0 it is 0, as in torch
                slopes = slopes @ layer.weight
                if of_features is not None and number == len(self._layers) - 1:
                    slopes += of_features
                slopes *= was_active


class DebiasedNet:
    """A net with the terms of `Debias`: W (z + z_i) + b is the output of the net, W z + b, and W z_i.

    Args:
        net: that trains.
        debias: the terms.
    """

    def __init__(self, net: DenseNet, debias: Debias) -> None:
        self.own = debias.own.astype(np.float32)
        self._net = net
        self._debias = debias
        self._of_own: Float32  # (width,), the derivative by `own`

    def outputs(self, inputs: Float32) -> Float32:
        """As `DenseNet.outputs`."""
        return self._net.outputs(inputs) + self._net.last_layer.weight @ self.own

    def add_gradient(self, slopes: Float32) -> None:
        """As `DenseNet.add_gradient`, with the derivative of the term."""
        mean = self._net.last_inputs.mean(axis=0)
        pull = np.float32(self._debias.kappa) * (mean - self._debias.mean) / np.float32(mean.size)
        self._net.add_gradient(slopes, pull / np.float32(len(slopes)))
        last = self._net.last_layer
        by_weight = last.weight_gradient
        by_weight += np.outer(slopes.sum(axis=0), self.own)
        self._of_own = slopes.sum(axis=0) @ last.weight

    def step(self, rate: float) -> None:
        """Change the offset by its gradient."""
        self.own = self.own - np.float32(rate) * self._of_own
