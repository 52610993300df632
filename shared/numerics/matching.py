"""Matching hidden units: two networks may compute the same function in another order of units.

The fixed-width part of matched averaging (Wang et al. 2020, Federated Learning with Matched Averaging): layer by
layer from the input, the units of a model are brought into the order in which they lie nearest to those of an
anchor. scipy is imported only where it is used: agents do not have it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from covey.shared.errors import PublicError
from covey.shared.numerics.vectors import Layout, Vector

Permutation = npt.NDArray[np.int64]  # (units,): entry g is the unit that comes to place g
UnitRows = npt.NDArray[np.float32]  # one unit per row


@dataclass(frozen=True)
class Layer:
    """One dense or convolutional layer: output units, inputs, and inputs per unit of the layer before.

    `block` is 1 but for a dense layer after a flattened convolution: there each channel has H * W inputs in a row.
    """

    name: str
    units: int
    inputs: int
    block: int
    bias: bool


def layers_of(layout: Layout) -> tuple[Layer, ...]:
    """The layers of a plain chain of dense and convolutional layers, from input to output.

    Raises UserError for anything else: normalisation, buffers, grouped convolutions, branches that change widths.
    A residual connection between equal widths leaves no trace in a layout and is not noticed.
    """
    if layout.trainable != len(layout.tensors):
        raise PublicError(f"{layout.tensors[layout.trainable].name}: {_WANTED} without buffers")
    shapes = {tensor.name: tensor.shape for tensor in layout.tensors}
    layers: list[Layer] = []
    for module in layout.modules:
        weight, bias = shapes.pop(f"{module}.weight", ()), shapes.pop(f"{module}.bias", None)
        if len(weight) < 2 or bias not in (None, weight[:1]):
            raise PublicError(f"{module}: its weight has shape {list(weight)}; {_WANTED}")
        before = layers[-1].units if layers else weight[1]
        block, rest = divmod(weight[1], before)
        if rest or (block > 1 and len(weight) > 2):
            raise PublicError(
                f"{module}: it takes {weight[1]} inputs after a layer of {before} units; {_WANTED}"
            )
        layers.append(Layer(module, weight[0], weight[1], block, bias is not None))
    if shapes:
        raise PublicError(f"{next(iter(shapes))}: {_WANTED}")
    return tuple(layers)


_WANTED = (
    "to match units, a plain chain of dense and convolutional layers with weight and bias is wanted"
)


def match_units(rows: UnitRows, anchor: UnitRows) -> Permutation:
    """The order of `rows` (units, D) with the least sum of squared distances to those of `anchor` (units, D).

    Squared norms are the same in any order, so the inner products decide; in float64.
    """
    from scipy.optimize import linear_sum_assignment

    products = anchor.astype(np.float64) @ rows.astype(np.float64).T
    _, order = linear_sum_assignment(products, maximize=True)
    return np.asarray(order, np.int64)


def align(model: Vector, anchor: Vector, layout: Layout) -> Vector:
    """A copy of the model (d,) that computes the same, with each hidden unit where the anchor (d,) has it.

    Greedy from input to output: a layer is matched once its inputs are in order. Raises UserError as `layers_of`.
    """
    moved = model.astype(np.float32)  # a copy of our own, and its tensors are views of it
    own, other = layout.named(moved), layout.named(anchor)
    layers = layers_of(layout)
    for layer, following in itertools.pairwise(layers):
        order = match_units(_rows(own, layer), _rows(other, layer))
        _move(own, layer, following, order)
    return moved


def permute(model: Vector, orders: Sequence[Permutation], layout: Layout) -> Vector:
    """A copy of the model (d,) whose hidden layers have their units in these orders, outputs unchanged."""
    moved = model.astype(np.float32)
    tensors, layers = layout.named(moved), layers_of(layout)
    for (layer, following), order in zip(itertools.pairwise(layers), orders, strict=True):
        _move(tensors, layer, following, order)
    return moved


def random_start(layout: Layout, draw: np.random.Generator) -> Vector:
    """A random model (d,): each value of a unit is uniform within 1 / sqrt(its inputs), as PyTorch begins such layers.

    Raises UserError as `layers_of`.
    """
    model = np.empty(layout.size, np.float32)
    tensors = layout.named(model)
    for layer in layers_of(layout):
        weight = tensors[f"{layer.name}.weight"]
        bound = 1 / np.sqrt(max(weight[:1].size, 1))
        weight[...] = draw.uniform(-bound, bound, weight.shape)
        if layer.bias:
            bias = tensors[f"{layer.name}.bias"]
            bias[...] = draw.uniform(-bound, bound, bias.shape)
    return model


def _rows(tensors: dict[str, npt.NDArray[np.float32]], layer: Layer) -> UnitRows:
    """One row per unit: incoming weights, then the bias."""
    weights = tensors[f"{layer.name}.weight"].reshape(layer.units, -1)
    return np.column_stack([weights, tensors[f"{layer.name}.bias"]]) if layer.bias else weights


def _move(
    tensors: dict[str, npt.NDArray[np.float32]], layer: Layer, following: Layer, order: Permutation
) -> None:
    """Reorder a layer's units, and the inputs of the layer that reads them, in place."""
    for name in ("weight", "bias") if layer.bias else ("weight",):
        tensor = tensors[f"{layer.name}.{name}"]
        tensor[...] = tensor[order]
    incoming = tensors[f"{following.name}.weight"]
    # inputs of one channel lie in a row: (units, channels, H * W) for a dense layer, kernels stay whole
    blocks = incoming.reshape(following.units, layer.units, -1)
    blocks[...] = blocks[:, order]
