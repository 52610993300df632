"""Matching with widths that grow: units of several networks become global units of one.

PFNM (Yurochkin et al. 2019) as FedMA (Wang et al. 2020) uses it, layer by layer from the input. A unit is a row of
incoming weights and bias, drawn around a global unit; a unit that resembles none founds a new one. A global unit is
the posterior mean of its matched units. The score counts 2 ln(c / (J - c)) everywhere; the authors' convolutional
code drops the 2 in one of two places. A network that lacks a global unit counts with weights of 0 on it, which is
what it computes. scipy is imported only where it is used: agents do not have it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.shared.numerics.matching import Layer, Permutation, layers_of
from covey.shared.numerics.vectors import Layout, Vector

Units = npt.NDArray[np.float64]  # (units, D), one unit per row
Places = Mapping[int, Permutation]  # by client (units,): the global unit of each own unit

BIAS = 0.1  # prior mean of a bias; weights have 0
POPULAR = 10  # a global unit's popularity counts up to here
WIDEST = 700  # beyond so many global units new ones come one at a time


@dataclass(frozen=True)
class Prior:
    """Variances of a unit around its global unit and of global units around the prior mean, the mass of the Indian
    buffet process, and how often every network is taken out and matched again."""

    noise: float = 1.0  # sigma squared
    spread: float = 1.0  # sigma_0 squared
    mass: float = 1.0  # gamma
    sweeps: int = 8


@dataclass(frozen=True)
class Matched:
    """Global units (G, D), and for each network the global unit of each of its own (units,)."""

    units: Units
    places: tuple[Permutation, ...]


@dataclass(frozen=True)
class Inputs:
    """What a layer reads: `width` global units, and for each network which of them are its own, in its own order."""

    width: int
    places: tuple[Permutation, ...]


def match(
    rows: Sequence[Units], mean: npt.NDArray[np.float64], prior: Prior, draw: np.random.Generator
) -> Matched:
    """Match the units (L_j, D) of J >= 1 networks, the widest first, then in the order of `draw`; `mean` (D,)."""
    places: Places = {}
    for j in sorted(range(len(rows)), key=lambda j: -len(rows[j])):
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
    networks: int,
    mean: npt.NDArray[np.float64],
    prior: Prior,
) -> Units:
    """What speaks for each of a network's units (L, D) being each global unit or the r-th new one, (L, G + R).

    `sums` (G, D) are prior and matched units weighted by their precisions, `counts` (G,) how many were matched.
    """
    s, s0 = 1 / prior.noise, 1 / prior.spread
    precision = s0 + s * counts
    own, theirs = s**2 * np.sum(rows**2, axis=1), np.sum(sums**2, axis=1)
    joint = own[:, None] + theirs + 2 * s * rows @ sums.T
    popular = np.minimum(counts, POPULAR)
    known = (
        joint / (precision + s) - theirs / precision + 2 * np.log(popular / (networks - popular))
    )
    rank = np.arange(1, most_new(len(rows), len(sums)) + 1)
    alone = np.sum((s0 * mean + s * rows) ** 2, axis=1) / (s0 + s) - s0 * float(mean @ mean)
    return np.hstack(
        [known, alone[:, None] - 2 * np.log(rank) + 2 * math.log(prior.mass / networks)]
    )


def most_new(units: int, known: int) -> int:
    """How many new global units a network may found: all of its own up to a width, but every unit gets a place."""
    return max(min(units, max(WIDEST - known, 1)), units - known)


def match_layer(
    models: Sequence[Vector],
    layout: Layout,
    index: int,
    inputs: Inputs,
    prior: Prior,
    draw: np.random.Generator,
) -> tuple[list[Vector], Inputs]:
    """Match one hidden layer; the models (d,) with the global values of their own units, and what the next layer reads.

    `inputs` comes from the layer before, or from `raw_inputs` for the first. Units stay where each model has them.
    """
    layer = layers_of(layout)[index]
    rows = _wide(models, layer, layout, inputs)
    mean = np.zeros(rows[0].shape[1])
    mean[mean.size - layer.bias :] = BIAS
    found = match(rows, mean, prior, draw)
    moved = [
        _narrow(model, layer, layout, found.units[own], inputs, j)
        for j, (model, own) in enumerate(zip(models, found.places, strict=True))
    ]
    return moved, Inputs(len(found.units), found.places)


def average_last(
    models: Sequence[Vector], layout: Layout, inputs: Inputs, weights: npt.NDArray[np.float64]
) -> list[Vector]:
    """The models (d,) with the last layer averaged class by class; `weights` (J, classes) >= 0.

    A class that nobody has a weight for is averaged by the networks' total weights.
    """
    layer = layers_of(layout)[-1]
    fallback = np.broadcast_to(weights.sum(axis=1, keepdims=True), weights.shape)
    weights = np.where(weights.sum(axis=0) > 0, weights, fallback)
    shares = weights / weights.sum(axis=0)
    total = sum(
        share[:, None] * rows
        for share, rows in zip(shares, _wide(models, layer, layout, inputs), strict=True)
    )
    return [
        _narrow(model, layer, layout, np.asarray(total), inputs, j)
        for j, model in enumerate(models)
    ]


def raw_inputs(layout: Layout, networks: int) -> Inputs:
    """The first layer reads the features: they are the same for everybody."""
    width = layers_of(layout)[0].inputs
    return Inputs(width, (np.arange(width),) * networks)


def _placed(
    j: int, rows: Sequence[Units], places: Places, mean: npt.NDArray[np.float64], prior: Prior
) -> Places:
    """Take network j out, if it is in, and match it to the others: new global units come after the known ones."""
    from scipy.optimize import linear_sum_assignment

    others = _renumbered({i: own for i, own in sorted(places.items()) if i != j})
    sums, counts = _gathered(rows, others, mean, prior)
    _, chosen = linear_sum_assignment(
        scores(rows[j], sums, counts, len(rows), mean, prior), maximize=True
    )
    new = chosen >= len(sums)
    chosen[new] = len(sums) + np.arange(np.count_nonzero(new))
    return {**others, j: np.asarray(chosen, np.int64)}


def _renumbered(places: Places) -> Places:
    """The same places without those global units that nobody is matched to any more."""
    if not places:
        return {}
    _, dense = np.unique(np.concatenate(list(places.values())), return_inverse=True)
    ends = np.cumsum([len(own) for own in places.values()])[:-1]
    return dict(zip(places, np.split(dense.astype(np.int64), ends), strict=True))


def _gathered(
    rows: Sequence[Units], places: Places, mean: npt.NDArray[np.float64], prior: Prior
) -> tuple[Units, npt.NDArray[np.int64]]:
    """A = s0 * mu0 + the sum of s * v over matched units (G, D), and how many there are (G,)."""
    width = max((int(own.max()) + 1 for own in places.values()), default=0)
    sums, counts = np.tile(mean / prior.spread, (width, 1)), np.zeros(width, np.int64)
    for j, own in sorted(places.items()):
        sums[own] += rows[j] / prior.noise  # a network has at most one unit in each place
        counts[own] += 1
    return sums, counts


def _wide(models: Sequence[Vector], layer: Layer, layout: Layout, inputs: Inputs) -> list[Units]:
    """The units of each network as rows over all global inputs: weights, 0 where it lacks the input, then the bias."""
    wide = []
    for model, own in zip(models, inputs.places, strict=True):
        tensors: dict[str, npt.NDArray[Any]] = layout.named(model)
        weight = tensors[f"{layer.name}.weight"].reshape(layer.units, len(own), -1)
        row = np.zeros((layer.units, inputs.width, weight.shape[2]))
        row[:, own] = weight
        parts = [row.reshape(layer.units, -1)]
        wide.append(
            np.hstack([*parts, tensors[f"{layer.name}.bias"][:, None]] if layer.bias else parts)
        )
    return wide


def _narrow(
    model: Vector, layer: Layer, layout: Layout, rows: Units, inputs: Inputs, j: int
) -> Vector:
    """A copy of network j's model whose layer has the values of these rows, as far as it has their inputs."""
    moved = model.astype(np.float32)
    tensors = layout.named(moved)
    weight = tensors[f"{layer.name}.weight"]
    values = rows[:, : rows.shape[1] - layer.bias].reshape(layer.units, inputs.width, -1)
    weight[...] = values[:, inputs.places[j]].reshape(weight.shape)
    if layer.bias:
        tensors[f"{layer.name}.bias"][...] = rows[:, -1]
    return moved
