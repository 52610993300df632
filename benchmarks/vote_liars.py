"""Agents that lie in both votes on groups: how many of them turn the outcome, and what devices use then.

    python -m benchmarks.own_data --data-root ../shared/data --out runs/own-data
    /tmp/files/bin/python benchmarks/real_files_side.py runs/real-files further
    python -m benchmarks.vote_liars --data-root ../shared/data --page benchmarks/results/judged.md

Fleets are those of `benchmarks.delivered`, ten rounds with all agents. Where groups help, liars vote against them, and where one
model is better, for them: each claims a million for its gain, with a variance of nearly nothing. They do all else as agreed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks import delivered
from benchmarks.companion import InProcess
from benchmarks.measuring import Found, record_options, resumed, show_tables
from covey.shared.scenario.simulated_agents import agent_name
from covey.shared.seeds import generator
from covey.shared.strategies.bases.vote import GAIN, VARIANCE, voted_on
from covey.shared.strategies.client_half import Job, Report

OUT = Path(__file__).parent / "results" / "vote_liars.json"
CLAIM, NEARLY_NOTHING = 1e6, 1e-12
FLEETS = {"swaps": 1, "rotated": 1, "values": 1, "weather": -1, "sensor gain": -1}  # groups help?
METHODS = {"kin": "covey.extras.kin.kin", "fedclust": "covey.shared.strategies.fedclust"}
LIARS = (0, 1, 2, 3, 5)


@dataclass(frozen=True)
class Lies:
    """Which agents vote against what is so."""

    names: frozenset[str]
    sign: int  # of what they claim

    def voted(self, job: Job, *rest: Any) -> Report:
        report = voted_on(job, *rest)
        if job.client not in self.names:
            return report
        cuts = len(job.models) - 1
        claims = {GAIN: [self.sign * CLAIM] * cuts, VARIANCE: [NEARLY_NOTHING] * cuts}
        return Report(report.vectors, report.examples, claims)


def measured(cell: delivered.Cell, liars: int, place: delivered.Place) -> dict[str, Any]:
    """Groups at the end, and what devices use then."""
    scene = delivered.scenario(cell, place)
    agents = scene.fleet.agents if scene.fleet else 0
    drawn = generator(cell.seed, "liars").permutation(agents)[:liars]
    names = frozenset(agent_name(int(one), agents) for one in drawn)
    lies = Lies(names, -FLEETS[cell.fleet])
    with InProcess() as pool, mock.patch(f"{METHODS[cell.method]}.voted_on", lies.voted):
        found = delivered.measured(cell, place, pool)
    return {"groups": found["clusters, without model, agents"][0], "in use": found["delivered"]}


def cells(seeds: list[int]) -> Iterator[tuple[str, delivered.Cell, int]]:
    for seed, liars, fleet, method in product(seeds, LIARS, FLEETS, METHODS):
        cell = delivered.Cell(fleet, "all", method, seed)
        yield f"{cell.key}/{liars}", cell, liars


def table(found: Found) -> str:
    """Markdown: a row per fleet and method; in use, with the number of groups, seeds apart."""
    lines = [
        f"| fleet, method | {' | '.join('no liar' if not one else str(one) for one in LIARS)} |",
        "|---|" + "--:|" * len(LIARS),
    ]
    for fleet, method in product(FLEETS, METHODS):
        seeds = [
            seed for seed in range(1, 10) if f"{fleet}/all/{method}/{seed}/{LIARS[-1]}" in found
        ]
        words = []
        for liars in LIARS:
            own = [found[f"{fleet}/all/{method}/{seed}/{liars}"] for seed in seeds]
            words.append("; ".join(f"{one['in use']:.1f} ({one['groups']})" for one in own))
        better = "groups help" if FLEETS[fleet] > 0 else "one model is better"
        lines.append(f"| {fleet} ({better}), {method} | {' | '.join(words)} |")
    return "\n".join(lines)


def main() -> None:
    parser = record_options(__doc__, OUT, [1, 2])
    parser.add_argument("--data-root", type=Path, default=Path("../shared/data"))
    parser.add_argument("--files", type=Path, default=Path("runs/real-files"))
    parser.add_argument("--made", type=Path, default=Path("runs/delivered"))
    options = parser.parse_args()
    options.made.mkdir(parents=True, exist_ok=True)
    place = delivered.Place(options.data_root, Path(), options.files.resolve(), options.made)
    planned = {
        key: partial(measured, cell, liars, place) for key, cell, liars in cells(options.seeds)
    }
    found = resumed(options, planned, {"claim": CLAIM, "rounds": 10})
    show_tables(options, {"fleet, method": table(found)})


if __name__ == "__main__":
    main()
