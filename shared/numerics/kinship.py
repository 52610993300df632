"""Whether the data of a fleet differ between agents, and in what: cards, their fit, three tests.

Before any training each agent sends one card: counts per class, and sums of randomly projected
inputs per class, in four blocks of its samples. The mean of class c at agent i is

    mu_c + s_i + g_ic + noise

and each kind of shift lives in one term: other labels in the counts, a style that is the same in
all classes in s_i, a concept (the same inputs with other labels, or a style of single classes) in
g_ic. Each block is fitted by itself. Where agents differ, the terms of an agent's blocks agree;
where they do not, the sign of every block is arbitrary. So the tests flip these signs: they need no
model of the noise, no dimension and no number of clusters, and agents may have unequal numbers of
samples. Nor need samples be independent, as long as those that belong together share a block: a
chi-square test of the counts would find a shift in labels wherever they come in runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from covey.shared.numerics.clustering import Matrix
from covey.shared.numerics.vectors import Vector
from covey.shared.seeds import Key, generator

BLOCKS = 4
PROJECTED = 32  # p, the values of a projected input
MIN_CELL = 5  # sums of fewer samples of a class are not sent
SWEEPS = 50
RIDGE = 1.0
FLIPS = 1999
LEVEL = 0.01
MOST_CLASSES = 50
LEVELS = 10  # classes of a regression
TENTHS = [NormalDist().inv_cdf(k / LEVELS) for k in range(1, LEVELS)]


@dataclass(frozen=True)
class Card:
    """A summary of an agent's training data: C (4 p + 4) numbers, about 5 kB for ten classes.

    Counts are complete. Sums are zero for classes with fewer than `MIN_CELL` samples.
    """

    counts: Matrix  # n (4, C): samples by block and class
    sums: Matrix  # S (4, C, p): sums of the projected inputs


@dataclass(frozen=True)
class Shifts:
    """The chance of each statistic, or a larger one, in a fleet whose agents do not differ in it."""

    labels: float
    style: float
    concept: float

    @property
    def any(self) -> bool:
        """Whether a test fires: at a level of 1 % each."""
        return min(self.labels, self.style, self.concept) < LEVEL


@lru_cache(maxsize=1)
def projection(values: int, seed: int) -> Matrix:
    """R (p, d): a Gaussian matrix that shortens inputs of d values, the same for all agents of a run."""
    draw = generator(seed, "kin-projection")
    shorten: Matrix = draw.standard_normal((PROJECTED, values)) / np.sqrt(values)
    return shorten


def card(
    inputs: Iterable[npt.NDArray[np.floating]],
    labels: npt.NDArray[np.integer],
    classes: int,
    units: npt.NDArray[np.generic],
    seed: int,
    client: Key,
) -> Card:
    """The card of one agent.

    Args:
        inputs: what the model gets, on one scale for the fleet, in pieces (rows, d) that together
            have n rows.
        labels: the class of each sample (n,).
        classes: the number of classes of the task. More than `MOST_CLASSES` share that number.
        units: what belongs together (n,), as for `dealt`.
        seed: of the run, which all agents share.
        client: the agent.
    """
    classes = min(classes, MOST_CLASSES)
    cells = dealt(units, seed, client) * classes + labels % classes
    every_cell = np.arange(BLOCKS * classes)
    sums = np.zeros((len(every_cell), PROJECTED))
    row = 0
    for piece in inputs:
        own = cells[row : row + len(piece), None] == every_cell
        shorten = projection(piece.shape[1], seed)
        sums += own.T.astype(np.float64) @ (piece.astype(np.float64) @ shorten.T)
        row += len(piece)
    counts = np.bincount(cells, minlength=len(every_cell)).astype(np.float64)
    table = counts.reshape(BLOCKS, classes)
    by_cell = sums.reshape(BLOCKS, classes, PROJECTED)
    by_cell[:, table.sum(axis=0) < MIN_CELL] = 0.0
    return Card(table, by_cell)


def tenths(values: npt.NDArray[np.floating]) -> npt.NDArray[np.int64]:
    """The class of each target of a regression (n,): the tenth of a normal distribution that it is in.

    Args:
        values: targets (n,), standardised over the fleet.
    """
    return np.searchsorted(TENTHS, values).astype(np.int64)


def packed(card: Card) -> tuple[Vector, list[int]]:
    """A card as it travels: the means of its cells (4 C p,) in float32, and its counts (4 C)."""
    means = card.sums / np.maximum(card.counts, 1.0)[..., None]
    return means.astype(np.float32).ravel(), card.counts.astype(int).ravel().tolist()


def unpacked(means: Vector, counts: Sequence[int]) -> Card | None:
    """The card of an agent; None if the two do not fit each other."""
    if len(counts) % BLOCKS or means.size != len(counts) * PROJECTED:
        return None
    table = np.asarray(counts, np.float64).reshape(BLOCKS, -1)
    cells = np.asarray(means, np.float64).reshape(*table.shape, PROJECTED)
    hidden = table.sum(axis=0) < MIN_CELL
    return Card(table, np.where(hidden[:, None], 0.0, cells * table[..., None]))


def dealt(units: npt.NDArray[np.generic], seed: int, client: Key) -> npt.NDArray[np.int64]:
    """The block (n,) of each sample: units are dealt in random order, in turn.

    Args:
        units: the recording, machine or stretch of time of each sample (n,). Samples that belong
            together have one unit: if they are spread over blocks, blocks of one agent agree
            without any shift. With a single unit the agent has no say in the tests.
        seed: of the run.
        client: the agent.
    """
    names, of_sample = np.unique(units, return_inverse=True)
    place = generator(seed, "kin-blocks", client).permutation(len(names))
    blocks: npt.NDArray[np.int64] = place[of_sample] % BLOCKS
    return blocks


def shifts(cards: Sequence[Card], seed: int = 0, *, flips: int = FLIPS) -> Shifts:
    """The three tests on the cards of a fleet.

    Args:
        cards: in ascending order of client id, all with the same number of classes.
        seed: of the draws; equal cards and seeds give equal results.
        flips: the number of sign flips; the least possible result is 1 / (flips + 1).
    """
    counts = np.stack([one.counts for one in cards])  # (N, 4, C)
    sums = np.stack([one.sums for one in cards])
    sent = counts * (counts.sum(axis=1) >= MIN_CELL)[:, None]
    styles = []
    concepts = []
    for block in range(BLOCKS):
        n = sent[:, block]
        style, concept = fitted(n, sums[:, block])
        styles.append(style)
        concepts.append((np.sqrt(n)[..., None] * concept).reshape(len(cards), -1))
    draw = generator(seed, "kin-flips")
    signs = (draw.integers(0, 2, (flips, len(cards), BLOCKS)) * 2 - 1).astype(np.float64)
    samples = sent.sum(axis=(1, 2))
    return Shifts(
        labels=_chance_of_agreement(
            _surplus(counts), 1 / np.maximum(counts.sum(axis=(1, 2)), 1.0), signs
        ),
        style=_chance_of_agreement(np.stack(styles, axis=1), samples, signs),
        concept=_chance_of_agreement(np.stack(concepts, axis=1), np.ones(len(cards)), signs),
    )


def fitted(counts: Matrix, sums: Matrix) -> tuple[Matrix, Matrix]:
    """The two-way layout with unequal counts: each agent's style s (N, p) and concept g (N, C, p).

    The fit alternates between class means and styles, from styles of zero, with a ridge on styles.
    Terms of cells without samples are zero.

    Args:
        counts: n_ic (N, C).
        sums: S_ic (N, C, p).
    """
    by_class = np.maximum(counts.sum(axis=0), 1.0)[:, None]
    by_agent = counts.sum(axis=1)[:, None] + RIDGE
    totals_of_classes = sums.sum(axis=0)
    totals_of_agents = sums.sum(axis=1)
    style = np.zeros((len(counts), sums.shape[2]))
    means = totals_of_classes / by_class
    for _ in range(SWEEPS):
        means = (totals_of_classes - counts.T @ style) / by_class
        style = (totals_of_agents - counts @ means) / by_agent
    own = sums / np.maximum(counts, 1.0)[..., None]
    return style, np.where((counts > 0)[..., None], own - means - style[:, None], 0.0)


def _surplus(counts: Matrix) -> Matrix:
    """By how much the counts (N, 4, C) exceed what the fleet's shares of the classes make expected.

    In standard deviations of a class, up to one factor for each block.
    """
    of_class = counts.sum(axis=(0, 1))
    shares = of_class / max(of_class.sum(), 1.0)
    expected = counts.sum(axis=2, keepdims=True) * shares
    surplus: Matrix = (counts - expected) / np.sqrt(np.where(shares > 0, shares, 1.0))
    return surplus


def _chance_of_agreement(vectors: Matrix, weights: Matrix, signs: Matrix) -> float:
    """The share of sign flips, the data among them, whose blocks agree at least as well.

    Args:
        vectors: of each block of each agent (N, 4, m).
        weights: of the agents (N,).
        signs: -1 or 1 (flips, N, 4).
    """
    products = np.einsum("nbm,ncm->nbc", vectors, vectors) * weights[:, None, None]
    own_blocks = np.arange(BLOCKS)
    products[:, own_blocks, own_blocks] = 0.0
    agreement = products.sum()
    if agreement <= 0:
        return 1.0
    flipped = np.einsum("fnb,nbc,fnc->f", signs, products, signs, optimize=True)
    # a flip of all signs of an agent is a tie, which rounding must not decide
    as_good = int((flipped >= agreement * (1 - 1e-12)).sum())
    return (1 + as_good) / (1 + len(signs))
