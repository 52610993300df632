"""Whether the data of a fleet differ between agents, and in what: cards, their fit, three tests.

Before any training each agent sends one card: counts per class, and sums of randomly projected
inputs per class, in four blocks of its samples. The mean of class c at agent i is

    mu_c + s_i + g_ic + noise

and each kind of shift lives in one term: other labels in the counts, a style that is the same in
all classes in s_i, a concept (the same inputs with other labels, or a style of single classes) in
g_ic. Each block is fitted by itself. Where agents differ, the terms of an agent's blocks agree;
where they do not, the sign of every block is arbitrary. So the tests flip these signs: they need no
model of the noise, no dimension and no number of clusters, and agents may have unequal numbers of
samples. scipy is imported inside of functions: agents do not have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from covey.shared.numerics.clustering import Matrix
from covey.shared.seeds import Key, generator

BLOCKS = 4
PROJECTED = 32  # p, the values of a projected input
MIN_CELL = 5  # sums of fewer samples of a class are not sent
SWEEPS = 50
RIDGE = 1.0
FLIPS = 1999
LEVEL = 0.01


@dataclass(frozen=True)
class Card:
    """A summary of an agent's training data: C (4 p + 5) numbers, about 5 kB for ten classes.

    Counts are complete. Sums and squares are zero for classes with fewer than `MIN_CELL` samples.
    """

    counts: Matrix  # n (4, C): samples by block and class
    sums: Matrix  # S (4, C, p): sums of the projected inputs
    squares: Matrix  # q (C,): sums of their squared lengths over all blocks


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


def projection(values: int, seed: int) -> Matrix:
    """R (p, d): a Gaussian matrix that shortens inputs of d values, the same for all agents of a run."""
    draw = generator(seed, "kin-projection")
    shorten: Matrix = draw.standard_normal((PROJECTED, values)) / np.sqrt(values)
    return shorten


def card(
    inputs: npt.NDArray[np.floating],
    labels: npt.NDArray[np.integer],
    classes: int,
    shorten: Matrix,
    blocks: npt.NDArray[np.integer],
    *,
    min_cell: int = MIN_CELL,
) -> Card:
    """The card of one agent.

    Args:
        inputs: what the model gets, on one scale for the fleet (n, d).
        labels: the class of each sample (n,).
        classes: C, the number of classes of the task.
        shorten: the run's `projection` (p, d).
        blocks: the block of each sample (n,), as `dealt` gives them.
        min_cell: the least number of samples of a class for its sums to be sent.
    """
    short = np.asarray(inputs, np.float64) @ shorten.T
    counts = np.zeros((BLOCKS, classes))
    sums = np.zeros((BLOCKS, classes, len(shorten)))
    squares = np.zeros(classes)
    np.add.at(counts, (blocks, labels), 1.0)
    np.add.at(sums, (blocks, labels), short)
    np.add.at(squares, labels, np.einsum("np,np->n", short, short))
    hidden = counts.sum(axis=0) < min_cell
    sums[:, hidden] = 0.0
    squares[hidden] = 0.0
    return Card(counts, sums, squares)


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


def shifts(
    cards: Sequence[Card], seed: int, *, min_cell: int = MIN_CELL, flips: int = FLIPS
) -> Shifts:
    """The three tests on the cards of a fleet.

    Args:
        cards: in ascending order of client id.
        seed: of the draws; equal cards and seeds give equal results.
        min_cell: as the cards were made with.
        flips: the number of sign flips; the least possible result is 1 / (flips + 1).
    """
    counts = np.stack([one.counts for one in cards])  # (N, 4, C)
    sums = np.stack([one.sums for one in cards])
    sent = counts * (counts.sum(axis=1) >= min_cell)[:, None]
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
        labels=_chance_of_counts(counts.sum(axis=1)),
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
    concept = np.where((counts > 0)[..., None], own - means - style[:, None], 0.0)
    return style, concept


def _chance_of_counts(table: Matrix) -> float:
    """Pearson's chi-square test of independence of agents and classes (N, C)."""
    from scipy import stats

    present = table[table.sum(axis=1) > 0][:, table.sum(axis=0) > 0]
    if min(present.shape, default=0) < 2:
        return 1.0
    return float(stats.chi2_contingency(present, correction=False).pvalue)


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
