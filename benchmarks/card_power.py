"""How often each test on cards fires without a shift and with shifts of growing strength, and how often random groups win a vote.

    python -m benchmarks.card_power [--agents 4 8 20] [--svg docs/_static/power.svg]

Agents have 100 samples on average of ten Gaussian classes in 64 dimensions, whose noise has deviation 1 in each; their numbers
of samples are equal, log-normal (sigma 1) or 1:10. In two more rows each has 30 or 10 samples, and its card the sums of all
classes (`task.min_cell: 1`). Every second agent differs by

- labels: a share of its samples that comes from half of the classes only.
- style: a vector of this length, added to all its inputs.
- concept: a share of its samples of two classes whose labels are swapped.

The vote: 20 agents with digits in two to four groups drawn at random, which a test is said to have found (`benchmarks.kin` has
the fleets). Each cell is written to --out as soon as it is finished, and a second start resumes after the last finished cell.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.false_alarms import CLASSES, VALUES, counts_of
from benchmarks.kin import Cell, measured
from benchmarks.measuring import record_options, resumed, show_tables
from benchmarks.torch_runs import repeatable
from covey.coordinator.view import plots
from covey.coordinator.view.axes import from_zero
from covey.coordinator.view.svg import Drawing, document
from covey.shared.numerics import kinship
from covey.shared.strategies import kin

OUT = Path(__file__).parent / "results" / "card_power.json"
FEW = {"30 each": 30, "10 each": 10}
SIZES = ("equal", "log-normal 1", "1:10", *FEW)
NULL = {4: 200, 8: 200, 20: 200, 100: 50, 1000: 10}  # fleets without a shift, by agents
POWER = {4: 40, 8: 40, 20: 40, 100: 10, 1000: 3}
STRENGTHS = {"labels": (0.1, 0.2, 0.4), "style": (0.25, 0.5, 1.0), "concept": (0.1, 0.25, 0.5)}
VOTED = ("even", "two labels", "dirichlet 0.3")
VOTES = 12  # random cuts of each fleet
Found = dict[str, dict[str, int]]  # by cell: its fleets, and in how many each test fires


def shifts(kind: str, strength: float, sizes: str, agents: int, seed: int) -> kinship.Shifts:
    """The tests on one fleet."""
    draw = np.random.default_rng(seed)
    centres = draw.standard_normal((CLASSES, VALUES))
    away = draw.standard_normal(VALUES)
    away /= np.linalg.norm(away)
    cards = []
    counts = [FEW[sizes]] * agents if sizes in FEW else counts_of(sizes, agents, draw)
    min_cell = 1 if sizes in FEW else kinship.MIN_CELL
    for agent, count in enumerate(counts):
        labels = draw.integers(0, CLASSES, count)
        changed = draw.random(count) < (strength if agent % 2 else 0.0)
        if kind == "labels":
            labels = np.where(changed, labels % (CLASSES // 2), labels)
        inputs = centres[labels] + draw.standard_normal((count, VALUES))
        if kind == "style" and agent % 2:
            inputs += strength * away
        if kind == "concept":
            labels = np.where(changed & (labels < 2), 1 - labels, labels)
        units = np.arange(count)
        cards.append(kinship.card([inputs], labels, CLASSES, units, seed, agent, min_cell))
    return kinship.shifts(cards, seed)


def random_cut(fleet: str, seed: int) -> bool:
    """Whether groups drawn at random win the vote of a fleet, in which tests of style and labels are said to have fired."""
    draw = np.random.default_rng(seed)

    def drawn(fitted: Any, *_: Any) -> Any:
        groups = np.arange(len(fitted.style)) % int(draw.integers(2, 5))
        return draw.permutation(groups), 0.5

    with (
        mock.patch.object(kin, "card_labels", drawn),
        mock.patch.object(kin, "tested", return_value=(1.0, 0.001, 1.0)),
    ):
        return bool(measured(Cell(fleet, "kin", seed))["basis"])


def cells(agents: list[int]) -> Iterator[tuple[str, float, str, int]]:
    """Kind, strength, sizes and agents of each cell."""
    for number in agents:
        yield from itertools.product(["none"], [0.0], SIZES, [number])
    for number in agents:
        for kind, strengths in STRENGTHS.items():
            yield from itertools.product([kind], strengths, SIZES, [number])


def counted(kind: str, strength: float, sizes: str, agents: int) -> dict[str, int]:
    """The fleets of a cell, and in how many each test fires, and at least one."""
    fleets = (NULL if kind == "none" else POWER)[agents]
    found = [shifts(kind, strength, sizes, agents, seed) for seed in range(1, fleets + 1)]
    fired = {
        test: sum(getattr(one, test) < kinship.LEVEL for one in found) for test in kinship.KINDS
    }
    return {"fleets": fleets, **fired, "any": sum(one.any for one in found)}


def alarms(found: Found) -> str:
    """Markdown: false alarms in percent, a row per number of agents and sizes."""
    lines = [
        "| agents | samples | fleets | labels | style | concept | any of the three |",
        "|---:|---|---:|---:|---:|---:|---:|",
    ]
    for key, row in found.items():
        if key.startswith("none/"):
            _, _, sizes, agents = key.split("/")
            share = [f"{100 * row[test] / row['fleets']:.1f}" for test in (*kinship.KINDS, "any")]
            lines.append(f"| {agents} | {sizes} | {row['fleets']} | {' | '.join(share)} |")
    return "\n".join(lines)


def power(found: Found) -> str:
    """Markdown: the share of fleets in percent in which the test of the shift fires, a row per strength and sizes."""
    numbers = [agents for agents in POWER if any(key.endswith(f"/{agents}") for key in found)]
    lines = [
        f"| shift | strength | samples | {' | '.join(f'{one} agents' for one in numbers)} |",
        "|---|---:|---|" + "---:|" * len(numbers),
    ]
    for kind, strengths in STRENGTHS.items():
        for strength, sizes in itertools.product(strengths, SIZES):
            rows = [found.get(f"{kind}/{strength:g}/{sizes}/{agents}") for agents in numbers]
            shares = [f"{100 * row[kind] / row['fleets']:.0f}" if row else "" for row in rows]
            lines.append(f"| {kind} | {strength:g} | {sizes} | {' | '.join(shares)} |")
    return "\n".join(lines)


def picture(found: Found) -> Drawing:
    """A panel for each shift: the share of fleets in which its test fires over its strength, a line per number of agents."""
    share = from_zero([100.0], "fleets in %")
    panels = []
    for kind, strengths in STRENGTHS.items():
        series = []
        for number, agents in enumerate(POWER):
            keys = [(0.0, f"none/0/equal/{agents}")]
            keys += [(one, f"{kind}/{one:g}/equal/{agents}") for one in strengths]
            points = [
                (strength, 100 * found[key][kind] / found[key]["fleets"]) for strength, key in keys
            ]
            series.append(plots.Series(f"{agents} agents", number, points))
        panels.append(plots.lines(kind, series, from_zero(strengths, "strength"), share))
    return Drawing(panels, plots.legend_of(series))


def votes(found: Found) -> str:
    """Markdown: how often random groups win."""
    lines = ["| random groups of | fleets | win the first vote |", "|---|---:|---:|"]
    for fleet in VOTED:
        if row := found.get(f"vote/{fleet}"):
            lines.append(f"| {fleet} | {row['fleets']} | {row['won']} |")
    return "\n".join(lines)


def main() -> None:
    parser = record_options(__doc__, OUT, ())
    parser.add_argument("--svg", type=Path, help="where the curves are drawn")
    parser.add_argument("--agents", type=int, nargs="+", default=list(NULL), choices=list(NULL))
    options = parser.parse_args()
    repeatable()
    planned = {f"vote/{fleet}": partial(random_cuts, fleet) for fleet in VOTED}
    planned |= {
        f"{kind}/{strength:g}/{sizes}/{agents}": partial(counted, kind, strength, sizes, agents)
        for kind, strength, sizes, agents in cells(options.agents)
    }
    found = resumed(options, planned, {})
    tables = {"agents": alarms(found), "shift": power(found), "random groups of": votes(found)}
    show_tables(options, tables)
    if options.svg is not None:
        options.svg.write_text(document(picture(found)), "utf-8")


def random_cuts(fleet: str) -> dict[str, int]:
    """How many random cuts of a fleet the vote lets win."""
    won = sum(random_cut(fleet, seed) for seed in range(1, VOTES + 1))
    return {"fleets": VOTES, "won": won}


if __name__ == "__main__":
    main()
