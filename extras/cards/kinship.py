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

`Kinship` is one fit of all blocks together. It has the distances between agents, from which the
share of the noise is taken off: without that, agents with few samples would be far from all others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from covey.shared.numerics.vectors import Vector
from covey.shared.numerics.votes import LIMIT
from covey.shared.seeds import Key, generator
from covey.shared.strategies.bases.cut import BLOCKS, LEVEL, MOST_CLASSES, PROJECTED
from covey.shared.strategies.client_half import Card as Card
from covey.shared.strategies.facts import MIN_CELL

if TYPE_CHECKING:
    from covey.shared.numerics.clustering import Labels, Matrix

SWEEPS = 50
RIDGE = 1.0
FLIPS = 1999
OWN_BLOCKS = 16  # of a card that stays with its agent; of four blocks two cards show nothing
CHANGED = 0.001  # the level at which an agent finds its own data changed
LEVELS = 10  # classes of a regression
COMMON = 2  # classes of the median pair; with fewer, concepts are not compared
GRAIN = 2.0**-20  # distances are rounded to it: sums in another order do not change a cut
FAR = 1.5  # times the reach of a fleet: no two agents count as farther apart
TENTHS = [NormalDist().inv_cdf(k / LEVELS) for k in range(1, LEVELS)]


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
    *,
    units: npt.NDArray[np.generic],
    seed: int,
    client: Key,
    min_cell: int = MIN_CELL,
    blocks: int | None = None,
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
        min_cell: the fewest samples of a class whose sums are in the card.
        blocks: of the card; None: `BLOCKS`.
    """
    blocks = blocks or BLOCKS
    classes = min(classes, MOST_CLASSES)
    cells = dealt(units, seed, client, blocks) * classes + labels % classes
    every_cell = np.arange(blocks * classes)
    sums = np.zeros((len(every_cell), PROJECTED))
    norms = np.zeros(len(every_cell))
    row = 0
    for piece in inputs:
        own = (cells[row : row + len(piece), None] == every_cell).T.astype(np.float64)
        projected = piece.astype(np.float64) @ projection(piece.shape[1], seed).T
        sums += own @ projected
        norms += own @ (projected**2).sum(axis=1)
        row += len(piece)
    counts = np.bincount(cells, minlength=len(every_cell)).astype(np.float64)
    table = counts.reshape(blocks, classes)
    by_cell = sums.reshape(blocks, classes, PROJECTED)
    squares = norms.reshape(blocks, classes).sum(axis=0)
    hidden = table.sum(axis=0) < min_cell
    by_cell[:, hidden] = 0.0
    squares[hidden] = 0.0
    return Card(table, by_cell, squares)


def tenths(values: npt.NDArray[np.floating]) -> npt.NDArray[np.int64]:
    """The class of each target of a regression (n,): the tenth of a normal distribution that it is in.

    Args:
        values: targets (n,), standardised over the fleet.
    """
    return np.searchsorted(TENTHS, values).astype(np.int64)


def unpacked(
    means: Vector, counts: Sequence[int], squares: Sequence[float] | None = None
) -> Card | None:
    """The card of an agent; None if its parts do not fit each other.

    Args:
        means: of the cells, as `Card.packed` gives them.
        counts: likewise.
        squares: of the card (C,); None: they were not sent.
    """
    if len(counts) % BLOCKS or means.size != len(counts) * PROJECTED:
        return None
    table = np.asarray(counts, np.float64).reshape(BLOCKS, -1)
    cells = np.asarray(means, np.float64).reshape(*table.shape, PROJECTED)
    norms = np.zeros(table.shape[1]) if squares is None else np.asarray(squares, np.float64)
    if norms.shape != table.shape[1:]:
        return None
    sums = cells * table[..., None]
    return Card(table, sums, np.where((sums != 0).any(axis=(0, 2)), norms, 0.0))


def dealt(
    units: npt.NDArray[np.generic], seed: int, client: Key, count: int | None = None
) -> npt.NDArray[np.int64]:
    """The block (n,) of each sample: units are dealt in random order, in turn.

    Args:
        units: the recording, machine or stretch of time of each sample (n,). Samples that belong
            together have one unit: if they are spread over blocks, blocks of one agent agree
            without any shift. With a single unit the agent has no say in the tests.
        seed: of the run.
        client: the agent.
        count: of the blocks; None: `BLOCKS`.
    """
    names, of_sample = np.unique(units, return_inverse=True)
    place = generator(seed, "kin-blocks", client).permutation(len(names))
    blocks: npt.NDArray[np.int64] = place[of_sample] % (count or BLOCKS)
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
    sent = counts * (sums != 0).any(axis=(1, 3))[:, None]
    styles = []
    concepts = []
    blocks = counts.shape[1]
    for block in range(blocks):
        n = sent[:, block]
        _, style, concept = fitted(n, sums[:, block])
        styles.append(style)
        concepts.append((np.sqrt(n)[..., None] * concept).reshape(len(cards), -1))
    draw = generator(seed, "kin-flips")
    signs = (draw.integers(0, 2, (flips, len(cards), blocks)) * 2 - 1).astype(np.float64)
    samples = sent.sum(axis=(1, 2))
    return Shifts(
        labels=_chance_of_agreement(
            _surplus(counts), 1 / np.maximum(counts.sum(axis=(1, 2)), 1.0), signs
        ),
        style=_chance_of_agreement(np.stack(styles, axis=1), samples, signs),
        concept=_chance_of_agreement(np.stack(concepts, axis=1), np.ones(len(cards)), signs),
    )


def has_changed(before: Card, now: Card, seed: int) -> bool:
    """Whether the data of an agent differ from those of its earlier card, in labels, style or concept.

    The three tests compare the two cards as those of two agents.

    Args:
        before: with `OWN_BLOCKS`.
        now: likewise.
        seed: of the draws.
    """
    if before.counts.shape != now.counts.shape:
        return True
    if np.array_equal(before.sums, now.sums) and np.array_equal(before.counts, now.counts):
        return False
    found = shifts([before, now], seed)
    return min(found.labels, found.style, found.concept) < CHANGED


def _sent(counts: Matrix, sums: Matrix) -> Matrix:
    """The counts (N, C) of the cells whose sums (N, C, p) are in a card; 0 of the others, whose sums are zero."""
    return np.where((sums != 0).any(axis=2), counts, 0.0)


def fitted(counts: Matrix, sums: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """The two-way layout with unequal counts: class means mu (C, p), styles s (N, p), concepts g (N, C, p).

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
    return means, style, _concept(counts, sums, means, style)


def _concept(counts: Matrix, sums: Matrix, means: Matrix, style: Matrix) -> Matrix:
    """g (N, C, p): what is left of the means of cells; zero for cells without samples."""
    own = sums / np.maximum(counts, 1.0)[..., None]
    return np.where((counts > 0)[..., None], own - means - style[:, None], 0.0)


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
    own_blocks = np.arange(vectors.shape[1])
    products[:, own_blocks, own_blocks] = 0.0
    agreement = products.sum()
    if agreement <= 0:
        return 1.0
    flipped = np.einsum("fnb,nbc,fnc->f", signs, products, signs, optimize=True)
    # a flip of all signs of an agent is a tie, which rounding must not decide
    as_good = int((flipped >= agreement * (1 - 1e-12)).sum())
    return (1 + as_good) / (1 + len(signs))


@dataclass(frozen=True)
class Kinship:
    """The fit of a fleet's cards, and what has been measured of each of its N rows: agents, or groups of them."""

    means: Matrix  # mu (C, p)
    noise: float  # v: the variance of one sample, all p numbers together
    counts: Matrix  # n (N, C), complete
    sent: Matrix  # n (N, C) of the cells whose sums were sent
    style: Matrix  # s (N, p)
    concept: Matrix  # g (N, C, p)

    @classmethod
    def of(cls, cards: Sequence[Card]) -> Kinship:
        """The fit of all blocks together.

        One false card has little effect: means of cells are cut off at `LIMIT` times the size of a usual sample; the
        agent's weight in the fit, its noise and its degrees of freedom at `LIMIT` times the median.

        Args:
            cards: with their squares, all with the same number of classes.
        """
        counts = np.stack([one.counts.sum(axis=0) for one in cards])
        sums = np.stack([one.sums.sum(axis=0) for one in cards])
        squares = np.array([float(one.squares.sum()) for one in cards])
        sent = _sent(counts, sums)
        samples = sent.sum(axis=1)
        sizes = (sums**2).sum(axis=2) / np.maximum(sent, 1.0) ** 2
        largest = LIMIT**2 * _usual(squares / np.maximum(samples, 1.0))
        sums = sums / np.sqrt(np.maximum(sizes / (largest or 1.0), 1.0))[..., None]
        weights = _cut_off(samples) / np.maximum(samples, 1.0)
        means, style, concept = fitted(sent * weights[:, None], sums * weights[:, None, None])
        free = samples - np.count_nonzero(sent, axis=1)
        within = squares - ((sums**2).sum(axis=2) / np.maximum(sent, 1.0)).sum(axis=1)
        of_agents = np.maximum(within, 0.0) / np.maximum(free, 1.0)
        noise = float(_cut_off(free) @ _cut_off(of_agents)) / max(float(_cut_off(free).sum()), 1.0)
        return cls(means, noise, counts, sent=sent, style=style, concept=concept)

    def joined(self, card: Card) -> Kinship:
        """With a row for one more card, measured against the means that the fleet had."""
        counts = card.counts.sum(axis=0)[None]
        sums = card.sums.sum(axis=0)[None]
        sent = _sent(counts, sums)
        by_agent = sent.sum(axis=1)[:, None] + RIDGE
        style = (sums.sum(axis=1) - sent @ self.means) / by_agent
        concept = _concept(sent, sums, self.means, style)
        return replace(
            self,
            counts=np.concatenate([self.counts, counts]),
            sent=np.concatenate([self.sent, sent]),
            style=np.concatenate([self.style, style]),
            concept=np.concatenate([self.concept, concept]),
        )

    def grouped(self, labels: Labels) -> Kinship:
        """With one row for each group: the means of its members, weighted by samples.

        Args:
            labels: the group of each row (N,), from 0.
        """
        member = (labels[:, None] == np.arange(labels.max() + 1)).T.astype(np.float64)  # (K, N)
        sent = member @ self.sent
        by_agent = self.sent.sum(axis=1)
        style = (
            member @ (by_agent[:, None] * self.style) / np.maximum(member @ by_agent, 1.0)[:, None]
        )
        concept = np.einsum("kn,nc,ncp->kcp", member, self.sent, self.concept)
        return replace(
            self,
            counts=member @ self.counts,
            sent=sent,
            style=style,
            concept=concept / np.maximum(sent, 1.0)[..., None],
        )

    def by_inputs(self, kinds: Collection[str]) -> Matrix:
        """D (N, N): squared distances in style and concept, without the share of the noise.

        Args:
            kinds: of the shifts that were found; what is in neither of the two terms does not count.
        """
        common = (self.sent > 0).astype(np.float64)
        pairs = np.triu_indices(len(common), 1)
        comparable = (
            bool(np.median((common @ common.T)[pairs]) >= COMMON) if len(common) > 1 else False
        )
        total = np.zeros((len(common), len(common)))
        if "style" in kinds or not comparable:
            n = self.sent.sum(axis=1)
            total += _filled(_squared(self.style) - self.noise * _both(_inverse(n)))
        if "concept" in kinds and comparable:
            total += _filled(self._by_concept())
        return _rounded(total)

    def _by_concept(self) -> Matrix:
        """The mean over the common classes of a pair, each weighted by its precision; NaN without any.

        An agent's style takes the share 1 / n_i of the variance 1 / n_ic of its cells: only the rest is in g.
        """
        weighted = np.zeros((len(self.sent), len(self.sent)))
        weights = np.zeros_like(weighted)
        taken = _inverse(self.sent.sum(axis=1))
        for k in range(self.sent.shape[1]):
            cell = _inverse(self.sent[:, k])  # in units of v
            is_common = ~np.isnan(_both(cell))
            weight = np.divide(1.0, _both(cell), out=np.zeros_like(weights), where=is_common)
            apart = _squared(self.concept[:, k]) - self.noise * _both(cell - taken)
            weighted += np.where(is_common, weight * apart, 0.0)
            weights += weight
        nothing = np.full_like(weights, np.nan)
        apart_by_class: Matrix = np.divide(weighted, weights, out=nothing, where=weights > 0)
        return apart_by_class

    def by_labels(self) -> Matrix:
        """D (N, N): squared distances between shares of classes, without the share of chance."""
        n = self.counts.sum(axis=1)
        shares = self.counts / np.maximum(n, 1.0)[:, None]
        spread = float((n * (1 - (shares**2).sum(axis=1))).sum() / max(float(n.sum()), 1.0))
        return _rounded(_filled(_squared(shares) - spread * _both(_inverse(n))))


def _squared(rows: Matrix) -> Matrix:
    """Squared distances (n, n) of rows (n, p), by direct differences."""
    squares: Matrix = np.stack([((rows - row) ** 2).sum(axis=1) for row in rows])
    return squares


def _usual(values: Matrix) -> float:
    """The median of the values that are above zero."""
    return float(np.median(values[values > 0])) if (values > 0).any() else 0.0


def _cut_off(values: Matrix) -> Matrix:
    """The values (n,), none above `LIMIT` times the usual one."""
    return np.minimum(values, LIMIT * _usual(values))


def within_reach(squares: Matrix) -> Matrix:
    """Squared distances (n, n), none beyond `FAR` times the reach of the fleet.

    The reach is the median over the rows of the distance of all others but the farthest: one row that is far from all
    others has no part in it, and hides no groups among them.
    """
    if len(squares) < 3:
        return squares
    reach = float(np.median(np.partition(squares, -2, axis=1)[:, -2]))
    return np.minimum(squares, FAR**2 * reach) if reach else squares


def _inverse(counts: Matrix) -> Matrix:
    """1 / n, NaN for 0."""
    inverse: Matrix = np.divide(1.0, counts, out=np.full(counts.shape, np.nan), where=counts > 0)
    return inverse


def _both(values: Matrix) -> Matrix:
    """The sum (n, n) of the values of two rows."""
    total: Matrix = values[:, None] + values
    return total


def _filled(squares: Matrix) -> Matrix:
    """NaN, for pairs that cannot be compared, becomes the mean over all others."""
    pairs = squares[np.triu_indices(len(squares), 1)]
    known = pairs[~np.isnan(pairs)]
    return np.where(np.isnan(squares), known.mean() if len(known) else 0.0, squares)


def _rounded(squares: Matrix) -> Matrix:
    """Distances of at least zero, in multiples of `GRAIN`, symmetric, with a zero diagonal."""
    half = np.tril(np.round(np.maximum(squares, 0.0) / GRAIN) * GRAIN, -1)
    whole: Matrix = half + half.T
    return whole
