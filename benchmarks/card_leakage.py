"""What an adversary redraws of an agent's data from its card, and what the cards still find, with noise. Prints a table, writes JSON.

    python -m benchmarks.card_leakage [--seeds 1 2 3 4 5]

Fleets of `benchmarks.kin` with the sums of all cells. The adversary owns the first half of the agents of *even*, and so knows the
mean image and the covariance of each class; it has the cards of the others and the seed of the projection, and redraws how the
mean image of each class at an agent differs from that of the class, with the least expected error. The figure is the share of
the square of this difference that it gets right: 1 is all, 0 nothing.

Noise is Gaussian, on the projected sum of each class in each block, in multiples of the median length of a projected image; epsilon is
that of one image in one such sum at delta 1e-5, if the counts and the squares were noised for free. What cards still find: in how
many fleets of *rotated* a test of style or concept fires, the ARI of the cut, and how many fleets of *even* seem to differ.
Each cell is written to --out as soon as it is finished, and a second start resumes after the last finished cell.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import numpy.typing as npt

from benchmarks.kin import people
from benchmarks.measuring import record_options, resumed, show_tables
from covey.agent.data import Dataset
from covey.extras.cards import kinship
from covey.extras.cards.fleet_cards import card_labels, tested
from covey.shared.numerics.metrics import adjusted_rand
from covey.shared.strategies.bases.cut import INPUTS, LEVEL
from covey.shared.strategies.facts import MIN_CELL

OUT = Path(__file__).parent / "results" / "card_leakage.json"
CLASSES = 10
SMALL = MIN_CELL
DELTA = 1e-5
PROJECTED = (8, 32, 128)
NOISE = (0.0, 0.1, 0.5, 1.0, 2.0)
Matrix = npt.NDArray[np.float64]
Row = dict[str, float]


def images_of(own: Dataset) -> Matrix:
    """What the model gets (n, 64)."""
    return own.features.reshape(len(own.features), -1).astype(np.float64) / 16


def cards_of(owned: Sequence[Dataset], noise: float, seed: int) -> list[kinship.Card]:
    """The cards of a fleet, with noise of this deviation on each projected sum."""
    draw = np.random.default_rng(seed)
    cards = []
    for agent, own in enumerate(owned):
        units = np.arange(len(own.targets))
        card = kinship.card(
            [images_of(own)], own.targets, CLASSES, units=units, seed=seed, client=agent, min_cell=1
        )
        sums = (
            card.sums + noise * draw.standard_normal(card.sums.shape) * (card.counts > 0)[..., None]
        )
        cards.append(replace(card, sums=sums))
    return cards


def redrawn(owned: Sequence[Dataset], noise: float, seed: int) -> tuple[float, float]:
    """The share of the square that is redrawn: of cells of fewer than `SMALL` images, and of larger ones."""
    half = len(owned) // 2
    known = np.concatenate([images_of(own) for own in owned[:half]])
    labels = np.concatenate([own.targets for own in owned[:half]])
    means = np.stack([known[labels == k].mean(axis=0) for k in range(CLASSES)])
    spread = np.cov((known - means[labels]).T)  # of one image around its class
    project = kinship.projection(known.shape[1], seed)
    left: dict[bool, list[float]] = {True: [], False: []}
    whole: dict[bool, list[float]] = {True: [], False: []}
    for own, card in zip(owned[half:], cards_of(owned, noise, seed)[half:], strict=True):
        images = images_of(own)
        sums, counts = card.sums.sum(axis=0), card.counts.sum(axis=0)
        blocks = np.count_nonzero(card.counts, axis=0)
        for k in np.flatnonzero(counts):
            truth = images[own.targets == k].mean(axis=0) - means[k]
            seen = sums[k] / counts[k] - project @ means[k]
            around = project @ spread @ project.T / counts[k]
            around += np.eye(len(seen)) * (blocks[k] * noise**2 / counts[k] ** 2 + 1e-9)
            guess = spread @ project.T @ np.linalg.solve(around, seen) / counts[k]
            is_small = bool(counts[k] < SMALL)
            left[is_small].append(float(((truth - guess) ** 2).sum()))
            whole[is_small].append(float((truth**2).sum()))
    small, large = (1 - sum(left[size]) / sum(whole[size]) for size in (True, False))
    return small, large


def measured(projected: int, noise: float, seed: int) -> Row:
    """One seed, all fleets."""
    kinship.projection.cache_clear()
    with mock.patch.object(kinship, "PROJECTED", projected):
        even = [*people("even", seed)[0].values()]
        rotated, truth = people("rotated", seed)
        project = kinship.projection(64, seed)
        lengths = [np.linalg.norm(images_of(own) @ project.T, axis=1) for own in even]
        deviation = noise * float(np.median(np.concatenate(lengths)))
        small, large = redrawn(even, deviation, seed)
        cards = cards_of([*rotated.values()], deviation, seed)
        chances = tested(cards)
        labels, _ = card_labels(kinship.Kinship.of(cards), INPUTS, (1.0, 0.001, 0.001))
        null = tested(cards_of(even, deviation, seed))
    kinship.projection.cache_clear()
    return {
        "small": small,
        "large": large,
        "fires": float(min(chances[1:]) < LEVEL),
        "ari": adjusted_rand(labels.tolist(), truth),
        "false": float(min(null) < LEVEL),
    }


def epsilon(noise: float) -> str:
    """Of one release with the Gaussian mechanism; above 1 only indicative."""
    return f"{math.sqrt(2 * math.log(1.25 / DELTA)) / noise:.1f}" if noise else "none"


def table(found: dict[str, Row]) -> str:
    """Markdown: a row per length of a projection and strength of the noise."""
    lines = [
        f"| p | noise | epsilon | redrawn, cells of 1 to {SMALL - 1} | cells of {SMALL} or more | finds *rotated* | ARI | false alarms |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for projected, noise in itertools.product(PROJECTED, NOISE):
        rows = [row for key, row in found.items() if key.startswith(f"{projected}/{noise:g}/")]
        if not rows:
            continue
        mean = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
        fired, false = (round(mean[name] * len(rows)) for name in ("fires", "false"))
        lines.append(
            f"| {projected} | {noise:g} | {epsilon(noise)} | {mean['small']:.2f} | {mean['large']:.2f} | {fired} of {len(rows)} | "
            f"{mean['ari']:.2f} | {false} of {len(rows)} |"
        )
    return "\n".join(lines)


def main() -> None:
    options = record_options(__doc__, OUT, [1, 2, 3, 4, 5]).parse_args()
    planned = {
        f"{projected}/{noise:g}/{seed}": partial(measured, projected, noise, seed)
        for seed, projected, noise in itertools.product(options.seeds, PROJECTED, NOISE)
    }
    show_tables(options, {"p": table(resumed(options, planned, {}))})


if __name__ == "__main__":
    main()
