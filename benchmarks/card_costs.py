"""What cards cost: bytes and seconds at an agent, and seconds of the coordinator for tests, fit and cuts. Prints a table, writes JSON.

    python -m benchmarks.card_costs [--agents 100 1000 10000]

Agents have 100 samples on average of ten Gaussian classes in 64 dimensions, in log-normal numbers (sigma 1); the inputs of every
second one are moved by a vector of twice the noise of one value, and the tests find a style. Seconds are those of one processor
with all reports in memory, the fastest of three tries. Of more than a thousand agents a sample is tested and cut, and the others join the nearest group.
Each cell is written to --out as soon as it is finished, and a second start resumes after the last finished cell.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.measuring import record_options, resumed, show_tables
from covey.extras.cards import kinship
from covey.extras.cards.fleet_cards import MOST_CARDS
from covey.extras.kin.kin import Kin
from covey.shared.numerics.metrics import adjusted_rand
from covey.shared.strategies.base import Setup, Training
from covey.shared.strategies.bases.cut import CARDS_ALONE, COUNTS, SQUARES
from covey.shared.strategies.client_half import Report
from covey.shared.strategies.phase_names import CARD
from covey.shared.strategies.reading import folded
from tests.bowl import bowl_layout, flat

OUT = Path(__file__).parent / "results" / "card_costs.json"
AGENTS = (100, 1000, 10_000)
SEED = 1
MEAN = 100  # samples of an agent
CLASSES, VALUES = 10, 64  # of Gaussians
Row = dict[str, float]


def cards(agents: int) -> Iterator[kinship.Card]:
    """The card of each agent."""
    draw = np.random.default_rng(SEED)
    centres = draw.standard_normal((CLASSES, VALUES))
    away = draw.standard_normal(VALUES)
    away *= 2 / np.linalg.norm(away)
    for agent, count in enumerate(counts_of(agents, draw)):
        labels = draw.integers(0, CLASSES, count)
        inputs = centres[labels] + draw.standard_normal((count, VALUES)) + agent % 2 * away
        yield kinship.card(
            [inputs], labels, CLASSES, units=np.arange(count), seed=SEED, client=agent
        )


def counts_of(agents: int, draw: np.random.Generator) -> list[int]:
    """The log-normal number of samples of each agent, at least ten."""
    weights = np.exp(draw.standard_normal(agents))
    counts: list[int] = np.maximum(MEAN * agents * weights / weights.sum(), 10).astype(int).tolist()
    return counts


def fastest(work: Callable[[], object]) -> float:
    """Processor seconds of the fastest of three tries."""
    seconds = []
    for _ in range(3):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)


def measured(agents: int) -> Row:
    """One fleet."""
    began = time.process_time()
    made = [*cards(agents)]
    at_agent = (time.process_time() - began) / agents
    reports = []
    for agent, card in enumerate(made):
        means, counts = card.packed()
        numbers = {COUNTS: counts, SQUARES: card.squares.tolist()}
        reports.append(
            (f"agent-{agent:05}", Report({CARD: means}, int(card.counts.sum()), numbers))
        )
    size = means.nbytes + len(json.dumps(numbers))
    strategy = Kin(stop="cards")
    state = strategy.init(Setup((flat(0.0, 0.0),), bowl_layout(2), SEED, 3, 1.0, Training()))
    tests = fastest(lambda: kinship.shifts(made[:MOST_CARDS]))
    whole = fastest(lambda: folded(strategy, state, CARDS_ALONE, reports=reports))
    after = folded(strategy, state, CARDS_ALONE, reports=reports)
    groups = [after.assign.get(client, -1) for client, _ in reports]
    return {
        "bytes": size,
        "at_agent": at_agent,
        "tests": tests,
        "whole": whole,
        "ari": adjusted_rand(groups, [agent % 2 for agent in range(agents)]),
    }


def table(found: dict[str, Row]) -> str:
    """Markdown: a row per size of fleet."""
    lines = [
        "| agents with cards | kB of a card | ms to make one | s for the tests | s for tests, fit, cut and groups | ARI |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for agents, row in found.items():
        lines.append(
            f"| {agents} | {row['bytes'] / 1000:.1f} | {1000 * row['at_agent']:.1f} | {row['tests']:.1f} | {row['whole']:.1f} | "
            f"{row['ari']:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = record_options(__doc__, OUT, ())
    parser.add_argument("--agents", type=int, nargs="+", default=list(AGENTS))
    options = parser.parse_args()
    planned = {str(agents): partial(measured, agents) for agents in options.agents}
    show_tables(options, {"agents with cards": table(resumed(options, planned, {}))})


if __name__ == "__main__":
    main()
