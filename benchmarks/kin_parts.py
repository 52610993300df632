"""What each part of Kin brings, on the fleets of `benchmarks.kin` and on further ones. Prints tables, writes JSON.

    python -m benchmarks.kin_parts [--seeds 1 2 3] [--fleets rotated negative] [--variants kin]

A variant changes one thing in Kin; `VARIANTS` has them. The first vote is
judged by two of them: in *cut stands* every cut wins it, in *no cut* none.

Further fleets, from which no rule was made: two groups of agents (*4 of 20*: every fifth agent; *four gains*: four) differ in
- gain 0.25, gain 0.75, four gains: the brightness.
- negative, mirrored, moved (by a pixel), blurred, half (of the image is dark), permuted (all pixels).
- noisy: noise without a mean, which cards cannot show.
- one swap: the names of two digits.

Each cell is written to --out as soon as it is finished, and a second start resumes after the last finished cell.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.kin import TASKS, Cell, Found, measured
from benchmarks.kin_fleets import FLEETS, IID, TURNED, Fleet, Images, renamed, seen
from benchmarks.measuring import record_options, resumed, show_tables
from benchmarks.torch_runs import repeatable
from covey.shared.numerics import kinship
from covey.shared.numerics.votes import Outcome
from covey.shared.strategies import kin
from covey.shared.strategies.bases.cut import INPUTS
from covey.shared.strategies.bases.vote import elected

OUT = Path(__file__).parent / "results" / "kin_parts.json"
METHOD = "kin"
BRIGHT = 16.0  # the largest value of a pixel
ONE_SWAP = [list(range(10)), [1, 0, *range(2, 10)]]


def _noisy(images: Images) -> Images:
    noise = np.random.default_rng(len(images)).standard_normal(images.shape)
    return np.asarray(images + BRIGHT / 4 * noise, np.float32)


def _blurred(images: Images) -> Images:
    moved = [np.roll(images, step, axis) for step in (1, -1) for axis in (-1, -2)]
    return np.asarray(np.mean([images, *moved], axis=0), np.float32)


def _permuted(images: Images) -> Images:
    order = np.random.default_rng(7).permutation(64)
    return images.reshape(-1, 64)[:, order].reshape(images.shape)


FURTHER = {
    "gain 0.25": Fleet(IID, 2, seen(lambda images: images / 4)),
    "gain 0.75": Fleet(IID, 2, seen(lambda images: images * np.float32(0.75))),
    "gain 4 of 20": Fleet(IID, 5, seen(lambda images: images / 2, first=4)),
    "four gains": Fleet(
        IID,
        4,
        lambda own, group: seen(lambda images: images / np.float32(1 + 0.5 * group))(own, group),
    ),
    "unequal gain": Fleet(IID, 2, seen(lambda images: images / 2), unequal=True),
    "negative": Fleet(IID, 2, seen(lambda images: BRIGHT - images)),
    "mirrored": Fleet(IID, 2, seen(lambda images: images[..., ::-1])),
    "moved": Fleet(IID, 2, seen(lambda images: np.roll(images, 1, -1))),
    "noisy": Fleet(IID, 2, seen(_noisy)),
    "blurred": Fleet(IID, 2, seen(_blurred)),
    "half": Fleet(IID, 2, seen(lambda images: images * (np.arange(8) < 4))),
    "permuted": Fleet(IID, 2, seen(_permuted)),
    "one swap": Fleet(IID, 2, renamed(*ONE_SWAP)),
    "unequal swap": Fleet(IID, 2, renamed(*ONE_SWAP), unequal=True),
    "turned 4 of 20": Fleet(IID, 5, seen(lambda images: images[..., ::-1, ::-1], first=4)),
    "unequal turned": Fleet(IID, 2, TURNED, unequal=True),
}
EVERY = {**FLEETS, **FURTHER}


def _noiseless(cards: Any) -> kinship.Kinship:
    return replace(FITTED(cards), noise=0.0)


FITTED = kinship.Kinship.of
Variant = Callable[[], AbstractContextManager[Any]]
KIN, STANDS, NO_CUT = "kin", "cut stands", "no cut"


def _decided(*, stands: bool) -> Variant:
    """All votes on groups have one outcome: the cut with the largest gain stands, or none."""

    def decide(state: Any, reports: Any, tested: Any) -> tuple[Any, str]:
        after, _ = elected(state, reports, tested)
        largest = max(state.proposed, key=lambda name: float(after.outcomes[name]["gain"]))
        return after, largest if stands else ""

    return _constant(kin, "elected", decide)


def _constant(module: Any, name: str, value: Any) -> Variant:
    return lambda: mock.patch.object(module, name, value)


VARIANTS: dict[str, Variant] = {
    KIN: nullcontext,
    STANDS: _decided(stands=True),
    NO_CUT: _decided(stands=False),
    "no veto": _constant(Outcome, "harms", False),
    "no second vote": _constant(kin, "_own_or_group", lambda *_: []),
    "no prior": lambda: mock.patch.dict(TASKS, {METHOD: {**TASKS[METHOD], "label_prior": "off"}}),
    "noise left in": _constant(kinship.Kinship, "of", _noiseless),
    "no fit": _constant(kinship, "SWEEPS", 0),  # one term and one test for all inputs
    "cells of 5": lambda: mock.patch.dict(TASKS, {METHOD: {"min_cell": 5}}),
    "p 8": _constant(kinship, "PROJECTED", 8),
    "p 128": _constant(kinship, "PROJECTED", 128),
    "2 blocks": _constant(kinship, "BLOCKS", 2),
    "8 blocks": _constant(kinship, "BLOCKS", 8),
}
VOTED = (STANDS, NO_CUT)  # what the further fleets are run with
POINTS = 0.5  # a cut matters if it brings or costs more


def figures(fleet: str, variant: str, seed: int) -> dict[str, Any]:
    """One run; its key is that of a cell whose method is the variant."""
    kinship.projection.cache_clear()
    with mock.patch.dict(FLEETS, FURTHER), VARIANTS[variant]():
        return measured(Cell(fleet, METHOD, seed))


def judged(found: Found) -> str:
    """Markdown: what a cut brings to each further fleet, and the outcome of the vote, seed by seed; how often that is right."""
    lines = [
        "| further fleet | the cut brings, E-server | E-tuned | z | z of the group that loses most | the cut stands | by z alone |",
        "|---|---:|---:|---|---|---|---|",
    ]
    right = np.zeros(2, int)
    matters = 0
    for fleet in FURTHER:
        votes = {
            seed: vote
            for seed in range(1, 10)
            if (vote := _voted_on(found, fleet, seed)) is not None
        }
        if not votes:
            continue
        brings = {
            mode: np.array([_apart(found, fleet, STANDS, NO_CUT, seed, mode) for seed in votes])
            for mode in ("server", "tuned")
        }
        stand = np.array([[vote.z > 0 and not vote.harms, vote.z > 0] for vote in votes.values()])
        large = np.abs(brings["server"]) > POINTS
        right += (stand == (brings["server"] > 0)[:, None])[large].sum(axis=0)
        matters += int(large.sum())
        row = [
            *[f"{one.mean():+.1f}" for one in brings.values()],
            "; ".join(f"{vote.z:.1f}" for vote in votes.values()),
            "; ".join(f"{vote.least:.1f}" for vote in votes.values()),
            *[f"{count} of {len(votes)}" for count in stand.sum(axis=0)],
        ]
        lines.append(f"| {fleet} | {' | '.join(row)} |")
    share = " | ".join(f"{count} of {matters}" for count in right)
    return "\n".join([*lines, f"| right, of the cuts that matter | | | | | {share} |"])


def _apart(found: Found, fleet: str, one: str, other: str, seed: int, mode: str) -> float:
    """By how many points one variant is better than another."""
    better, worse = (found[f"{fleet}/{variant}/{seed}"][mode] for variant in (one, other))
    return 100 * float(better - worse)


def _voted_on(found: Found, fleet: str, seed: int) -> Outcome | None:
    """The outcome of the vote on a cut by inputs; None if there was none, or one of the two runs is missing."""
    if not all(f"{fleet}/{variant}/{seed}" in found for variant in VOTED):
        return None
    votes: dict[str, Any] = found[f"{fleet}/{NO_CUT}/{seed}"]["votes"]
    return Outcome(**votes[INPUTS]) if INPUTS in votes else None


def parts(found: Found) -> str:
    """Markdown: points that Kin has more than each variant, over the fleets of `benchmarks.kin` that are finished."""
    lines = [
        "| without, or with | fleets | E-server, mean | least | most | E-tuned, mean |",
        "|---|---:|---:|---|---|---:|",
    ]
    for variant in VARIANTS:
        more: dict[str, dict[str, float]] = {"server": {}, "tuned": {}}
        for fleet in FLEETS:
            seeds = [
                seed
                for seed in range(1, 10)
                if all(f"{fleet}/{one}/{seed}" in found for one in (variant, KIN))
            ]
            for mode in more if seeds else ():
                points = [_apart(found, fleet, KIN, variant, seed, mode) for seed in seeds]
                more[mode][fleet] = float(np.mean(points))
        served = more["server"]
        if variant == KIN or not served:
            continue
        ends = [choose(served, key=served.__getitem__) for choose in (min, max)]
        extremes = " | ".join(f"{served[fleet]:+.1f} ({fleet})" for fleet in ends)
        means = [float(np.mean([*of_mode.values()])) for of_mode in more.values()]
        lines.append(
            f"| {variant} | {len(served)} | {means[0]:+.2f} | {extremes} | {means[1]:+.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = record_options(__doc__, OUT, [1, 2, 3])
    parser.add_argument("--fleets", nargs="+", default=list(EVERY), choices=list(EVERY))
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    options = parser.parse_args()
    repeatable()
    planned = {
        f"{fleet}/{variant}/{seed}": partial(figures, fleet, variant, seed)
        for seed, fleet, variant in itertools.product(
            options.seeds, options.fleets, options.variants
        )
        if fleet not in FURTHER or variant in VOTED
    }
    found = resumed(options, planned, {})
    show_tables(options, {"further fleet": judged(found), "without, or with": parts(found)})


if __name__ == "__main__":
    main()
