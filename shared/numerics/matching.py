"""Matching hidden units: two networks may compute the same function with units in another order.

This is the fixed-width part of matched averaging (Wang et al. 2020, Federated Learning with Matched
Averaging). Layer by layer from the input, the units of a model are brought into the order in which
they are nearest to those of an anchor. scipy is imported inside of functions: agents do not have
it.
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
    """One dense or convolutional layer."""

    name: str  # of the module
    units: int  # output units
    inputs: int
    # Inputs per unit of the layer before: 1, except for a dense layer after a flattened
    # convolution, where each channel has H * W inputs in a row.
    block: int
    bias: bool  # does the layer have one?


def layers_of(layout: Layout) -> tuple[Layer, ...]:
    """The layers of a plain chain of dense and convolutional layers, from input to output.

    A residual connection between equal widths leaves no trace in a layout and is not noticed.

    Raises:
        PublicError: the layout has anything else: normalisation, buffers, grouped convolutions,
            branches that change widths.
    """
    if layout.trainable != len(layout.tensors):
        buffer = layout.tensors[layout.trainable]
        raise PublicError(f"{buffer.name}: {_NEEDS} without buffers")
    shapes = {tensor.name: tensor.shape for tensor in layout.tensors}
    layers: list[Layer] = []
    for module in layout.modules:
        weight = shapes.pop(f"{module}.weight", ())
        bias = shapes.pop(f"{module}.bias", None)
        if len(weight) < 2 or bias not in (None, weight[:1]):
            raise PublicError(f"{module}: its weight has shape {list(weight)}; {_NEEDS}")
        units = weight[0]
        inputs = weight[1]
        before = layers[-1].units if layers else inputs
        block, rest = divmod(inputs, before)
        is_convolution = len(weight) > 2
        if rest or (block > 1 and is_convolution):
            raise PublicError(
                f"{module}: it takes {inputs} inputs after a layer of {before} units; {_NEEDS}"
            )
        layers.append(Layer(module, units, inputs, block, bias is not None))
    if shapes:
        unknown = next(iter(shapes))
        raise PublicError(f"{unknown}: {_NEEDS}")
    return tuple(layers)


_NEEDS = "matching units needs a plain chain of dense and convolutional layers with weight and bias"


def match_units(rows: UnitRows, anchor: UnitRows) -> Permutation:
    """The order (units,) of `rows` with the least sum of squared distances to those of `anchor`.

    Both are (units, D). Squared norms are the same in any order, so the inner products decide; they
    are computed in float64.
    """
    from scipy.optimize import linear_sum_assignment

    products = anchor.astype(np.float64) @ rows.astype(np.float64).T
    _, order = linear_sum_assignment(products, maximize=True)
    return np.asarray(order, np.int64)


def align(model: Vector, anchor: Vector, layout: Layout) -> Vector:
    """A copy of the model that computes the same, with hidden units in the order of the anchor.

    A layer is matched once its inputs are in order, from input to output.

    Args:
        model: the model to bring into order (d,).
        anchor: the model that gives the order (d,).
        layout: of both.

    Raises:
        PublicError: as `layers_of`.
    """
    moved = model.astype(np.float32)  # a copy, and its tensors are views of it
    own = layout.named(moved)
    other = layout.named(anchor)
    for layer, following in itertools.pairwise(layers_of(layout)):
        _move(own, layer, following, match_units(_rows(own, layer), _rows(other, layer)))
    return moved


def permute(model: Vector, orders: Sequence[Permutation], layout: Layout) -> Vector:
    """A copy of the model (d,) with the units of its hidden layers in these orders.

    It computes the same outputs.
    """
    moved = model.astype(np.float32)
    tensors = layout.named(moved)
    layers = layers_of(layout)
    for (layer, following), order in zip(itertools.pairwise(layers), orders, strict=True):
        _move(tensors, layer, following, order)
    return moved


def random_start(layout: Layout, draw: np.random.Generator) -> Vector:
    """A random model (d,), drawn as PyTorch initialises dense and convolutional layers.

    Each value of a unit is uniform within 1 / sqrt(inputs of the unit).

    Raises:
        PublicError: as `layers_of`.
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
    rows = tensors[f"{layer.name}.weight"].reshape(layer.units, -1)
    if not layer.bias:
        return rows
    return np.column_stack([rows, tensors[f"{layer.name}.bias"]])


def _move(
    tensors: dict[str, npt.NDArray[np.float32]], layer: Layer, following: Layer, order: Permutation
) -> None:
    """Reorder a layer's units, and the inputs of the layer that reads them, in place."""
    weight = tensors[f"{layer.name}.weight"]
    weight[...] = weight[order]
    if layer.bias:
        bias = tensors[f"{layer.name}.bias"]
        bias[...] = bias[order]
    incoming = tensors[f"{following.name}.weight"]
    # inputs of one channel are neighbours: (units, channels, H * W) for a dense layer
    blocks = incoming.reshape(following.units, layer.units, -1)
    blocks[...] = blocks[:, order]
