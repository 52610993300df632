"""Matching units in growing widths: units of several networks become global units of one.

PFNM (Yurochkin et al. 2019, Bayesian Nonparametric Federated Learning of Neural Networks) as FedMA
(Wang et al. 2020, Federated Learning with Matched Averaging) uses it, layer by layer from the
input. A unit is a row of incoming weights and bias, drawn around a global unit; a unit that
resembles no global unit founds a new one. A global unit is the posterior mean of its matched units.

Our deviations. The score counts 2 ln(c / (J - c)) everywhere, as in the paper; the authors'
convolutional code drops the 2 in one of two places. A network that lacks a global unit counts with
weights of 0 on it, which is what it computes.

scipy is imported inside of functions: agents do not have it.

Matching hidden units: two networks may compute the same function with units in another order.

This is the fixed-width part of matched averaging (Wang et al. 2020, Federated Learning with Matched
Averaging). Layer by layer from the input, the units of a model are brought into the order in which
they are nearest to those of an anchor. scipy is imported inside of functions: agents do not have
it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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


Units = npt.NDArray[np.float64]  # (units, D), one unit per row
Places = Mapping[int, Permutation]  # for each network (units,): the global unit of each own unit

BIAS = 0.1  # prior mean of a bias; that of a weight is 0
MAX_POPULARITY = 10  # a global unit's popularity counts up to here
MAX_WIDTH = 700  # a wider layer takes new global units one at a time


@dataclass(frozen=True)
class Prior:
    """The prior distribution of units, and how long to search."""

    noise: float = 1.0  # sigma^2: variance of a unit around its global unit
    spread: float = 1.0  # sigma_0^2: variance of global units around the prior mean
    mass: float = 1.0  # gamma: mass of the Indian buffet process
    sweeps: int = 8  # how often each network is taken out and matched again


@dataclass(frozen=True)
class Matched:
    """The result of matching one layer."""

    units: Units  # global units (G, D)
    places: tuple[Permutation, ...]  # for each network the global unit of each of its own (units,)


@dataclass(frozen=True)
class Inputs:
    """What a layer reads."""

    width: int  # global units of the layer before
    places: tuple[Permutation, ...]  # which of them each network has, in its own order


def match(
    rows: Sequence[Units], mean: npt.NDArray[np.float64], prior: Prior, draw: np.random.Generator
) -> Matched:
    """Match the units of J >= 1 networks.

    Args:
        rows: the units (L_j, D) of each network.
        mean: the prior mean mu_0 (D,).
        prior: variances, mass and sweeps.
        draw: gives the order of the networks in each sweep. In the beginning the widest network
            comes first.
    """

    def width_of(j: int) -> int:
        return len(rows[j])

    places: Places = {}
    for j in sorted(range(len(rows)), key=width_of, reverse=True):
        places = _placed(j, rows, places, mean, prior)
    for _ in range(prior.sweeps):
        for j in draw.permutation(len(rows)).tolist():
            places = _placed(j, rows, places, mean, prior)
    sums, counts = _gathered(rows, places, mean, prior)
    precision = 1 / prior.spread + counts / prior.noise
    return Matched(sums / precision[:, None], tuple(places[j] for j in range(len(rows))))


def scores(
    rows: Units,
    sums: Units,
    counts: npt.NDArray[np.int64],
    *,
    networks: int,
    mean: npt.NDArray[np.float64],
    prior: Prior,
) -> Units:
    """The log-likelihood (L, G + R) of each unit being each global unit or the r-th new one.

    Args:
        rows: a network's units v (L, D).
        sums: prior and matched units (G, D), weighted by their precisions.
        counts: c (G,), the number of units matched to each global unit.
        networks: J.
        mean: the prior mean mu_0 (D,).
        prior: variances and mass.
    """
    s = 1 / prior.noise
    s0 = 1 / prior.spread
    precision = s0 + s * counts
    # |A + s v|^2 for each unit v and each global unit's sum A
    own = s**2 * np.sum(rows**2, axis=1)
    theirs = np.sum(sums**2, axis=1)
    fit = (own[:, None] + theirs + 2 * s * rows @ sums.T) / (precision + s) - theirs / precision
    popular = np.minimum(counts, MAX_POPULARITY)
    known = fit + 2 * np.log(popular / (networks - popular))

    new_units = np.arange(1, most_new(len(rows), len(sums)) + 1)  # r
    fit_alone = np.sum((s0 * mean + s * rows) ** 2, axis=1) / (s0 + s) - s0 * float(mean @ mean)
    new = fit_alone[:, None] - 2 * np.log(new_units) + 2 * math.log(prior.mass / networks)
    return np.hstack([known, new])


def most_new(units: int, known: int) -> int:
    """How many new global units a network may found.

    It may found one for each of its units up to a width; beyond, as many as its units need places.
    """
    return max(min(units, max(MAX_WIDTH - known, 1)), units - known)


def match_layer(
    models: Sequence[Vector],
    layout: Layout,
    index: int,
    *,
    inputs: Inputs,
    prior: Prior,
    draw: np.random.Generator,
) -> tuple[list[Vector], Inputs]:
    """Match one hidden layer of several models.

    Args:
        models: the models (d,). Units stay where each model has them.
        layout: of the models.
        index: of the hidden layer, from the input.
        inputs: what the layer reads: from the layer before, or from `raw_inputs` for the first.
        prior: of the units.
        draw: for `match`.

    Returns:
        The models with the global values of their own units, and what the next layer reads.
    """
    layer = layers_of(layout)[index]
    rows = _wide(models, layer, layout, inputs)
    mean = np.zeros(rows[0].shape[1])
    if layer.bias:
        mean[-1] = BIAS
    matched = match(rows, mean, prior, draw)
    moved = []
    for j, model in enumerate(models):
        own = matched.units[matched.places[j]]
        moved.append(_narrow(model, layer, layout, rows=own, inputs=inputs, j=j))
    return moved, Inputs(len(matched.units), matched.places)


def average_last(
    models: Sequence[Vector], layout: Layout, inputs: Inputs, weights: npt.NDArray[np.float64]
) -> list[Vector]:
    """The models (d,) with the last layer averaged class by class.

    Args:
        models: the models (d,).
        layout: of the models.
        inputs: what the last layer reads.
        weights: of each network for each class (J, classes), >= 0. A class without any weight is
            averaged by the networks' total weights.
    """
    layer = layers_of(layout)[-1]
    fallback = np.broadcast_to(weights.sum(axis=1, keepdims=True), weights.shape)
    has_weight = weights.sum(axis=0) > 0
    weights = np.where(has_weight, weights, fallback)
    shares = weights / weights.sum(axis=0)
    wide = _wide(models, layer, layout, inputs)
    weighted = (share[:, None] * rows for share, rows in zip(shares, wide, strict=True))
    mean = np.asarray(sum(weighted))
    return [
        _narrow(model, layer, layout, rows=mean, inputs=inputs, j=j)
        for j, model in enumerate(models)
    ]


def raw_inputs(layout: Layout, networks: int) -> Inputs:
    """What the first layer reads: the features, which are the same for all."""
    width = layers_of(layout)[0].inputs
    return Inputs(width, (np.arange(width),) * networks)


def _placed(
    j: int, rows: Sequence[Units], places: Places, mean: npt.NDArray[np.float64], prior: Prior
) -> Places:
    """Take network j out if it is in, and match it to the others.

    New global units come after the known ones.
    """
    from scipy.optimize import linear_sum_assignment

    others = _renumbered({i: own for i, own in sorted(places.items()) if i != j})
    sums, counts = _gathered(rows, others, mean, prior)
    likelihoods = scores(rows[j], sums, counts, networks=len(rows), mean=mean, prior=prior)
    _, chosen = linear_sum_assignment(likelihoods, maximize=True)
    known = len(sums)
    new = chosen >= known
    chosen[new] = known + np.arange(np.count_nonzero(new))
    return {**others, j: np.asarray(chosen, np.int64)}


def _renumbered(places: Places) -> Places:
    """The same places without those global units to which no unit is matched any more."""
    if not places:
        return {}
    _, dense = np.unique(np.concatenate(list(places.values())), return_inverse=True)
    ends = np.cumsum([len(own) for own in places.values()])[:-1]
    return dict(zip(places, np.split(dense.astype(np.int64), ends), strict=True))


def _gathered(
    rows: Sequence[Units], places: Places, mean: npt.NDArray[np.float64], prior: Prior
) -> tuple[Units, npt.NDArray[np.int64]]:
    """A = s_0 mu_0 + the sum of s v over matched units (G, D), and their numbers c (G,)."""
    width = 0
    for own in places.values():
        width = max(width, int(own.max()) + 1)
    sums = np.tile(mean / prior.spread, (width, 1))
    counts = np.zeros(width, np.int64)
    for j, own in sorted(places.items()):
        sums[own] += rows[j] / prior.noise  # a network has at most one unit in each place
        counts[own] += 1
    return sums, counts


def _wide(models: Sequence[Vector], layer: Layer, layout: Layout, inputs: Inputs) -> list[Units]:
    """The units of each network as rows over all global inputs, then the bias.

    The weight is 0 where a network lacks the input.
    """
    wide = []
    for model, own in zip(models, inputs.places, strict=True):
        tensors: dict[str, npt.NDArray[Any]] = layout.named(model)
        weight = tensors[f"{layer.name}.weight"].reshape(layer.units, len(own), -1)
        row = np.zeros((layer.units, inputs.width, weight.shape[2]))
        row[:, own] = weight
        columns = [row.reshape(layer.units, -1)]
        if layer.bias:
            columns.append(tensors[f"{layer.name}.bias"][:, None])
        wide.append(np.hstack(columns))
    return wide


def _narrow(
    model: Vector, layer: Layer, layout: Layout, *, rows: Units, inputs: Inputs, j: int
) -> Vector:
    """A copy of network j's model whose layer has the values of these rows.

    Values of inputs that the network lacks are left out.
    """
    moved = model.astype(np.float32)
    tensors = layout.named(moved)
    weight = tensors[f"{layer.name}.weight"]
    columns = rows.shape[1] - layer.bias
    own_inputs = rows[:, :columns].reshape(layer.units, inputs.width, -1)[:, inputs.places[j]]
    weight[...] = own_inputs.reshape(weight.shape)
    if layer.bias:
        bias = tensors[f"{layer.name}.bias"]
        bias[...] = rows[:, -1]
    return moved
