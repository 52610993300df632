"""How often Kin cuts fleets without groups, and finds those of fleets with two, after its tests and both of its votes.

    python -m benchmarks.false_cuts [--seeds 1 2 3] [--most 40] [--shifts none]

A fleet is dealt the images of scikit-learn's digits at random, in equal or unequal shares; with a shift those of every second
agent are upside down. All fleets send cards; those whose cards propose a cut run, with all defaults, ten rounds and all agents.
A fleet of more than `--most` agents whose cut is right does not, for it takes minutes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

from benchmarks import kin
from benchmarks.measuring import Found, record_options, resumed, show_tables
from covey.coordinator.record import records
from covey.coordinator.record.notices import ignore
from covey.coordinator.run.options import RunOptions
from covey.extras.simulate.driver import simulate
from covey.extras.simulate.workers import WorkerPool
from covey.shared.scenario.load import from_mapping
from covey.shared.scenario.simulated_agents import agent_name
from covey.shared.seeds import generator
from covey.shared.strategies.bases.cut import LEVEL

OUT = Path(__file__).parent / "results" / "false_cuts.json"
SIZES = ("equal", "log-normal 0.5", "log-normal 1", "1:5", "1:10")
AGENTS = (8, 20, 40, 100)
SHIFTS = ("none", "upside down")
LEAST = 4  # samples of an agent
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Cell:
    """One fleet."""

    shift: str
    sizes: str
    agents: int
    seed: int

    @property
    def key(self) -> str:
        return f"{self.shift}/{self.sizes}/{self.agents}/{self.seed}"

    @property
    def groups(self) -> int:
        return 1 if self.shift == "none" else 2


def shares(cell: Cell, samples: int) -> list[Indices]:
    """The samples of each agent, dealt at random."""
    draw = generator(cell.seed, "shares", cell.sizes, cell.agents)
    weights = np.ones(cell.agents)
    if cell.sizes.startswith("log-normal"):
        weights = np.exp(float(cell.sizes.split()[1]) * draw.standard_normal(cell.agents))
    elif ":" in cell.sizes:
        weights[: cell.agents // 2] = float(cell.sizes.split(":")[1])
    own = np.maximum((samples * weights / weights.sum()).astype(int), LEAST)
    own[own.argmax()] -= max(own.sum() - samples, 0)
    ends = np.minimum(np.cumsum(own), samples)
    return np.split(draw.permutation(samples), ends)[: cell.agents]


def content_of(cell: Cell, folder: Path) -> dict[str, Any]:
    """A scenario, with the fleet's data in the folder. Every agent tests with one of its own samples, which decides nothing."""
    raw = load_digits()
    images, labels = raw.images.astype(np.uint8)[:, None], raw.target.astype(np.int64)
    rows = shares(cell, len(labels))
    if cell.groups > 1:
        turned = np.concatenate(rows[1::2])
        images[turned] = images[turned][..., ::-1, ::-1]
    first = np.array([own[0] for own in rows])
    np.savez(folder / "x.npz", x=images, y=labels, x_test=images[first], y_test=labels[first])
    who = {
        "train_idx": np.concatenate(rows),
        "train_ptr": np.cumsum([0, *map(len, rows)]),
        "test_idx": np.arange(cell.agents),
        "test_ptr": np.arange(cell.agents + 1),
    }
    np.savez(folder / "who.npz", **who)  # type: ignore[arg-type]
    scene = kin.scenario(kin.Cell("even", "kin", cell.seed, "digits"))
    content = scene.model_dump(mode="json", include={"name", "task", "training", "fleet"})
    content["fleet"] |= {
        "agents": cell.agents,
        "data": str(folder / "x.npz"),
        "partition": str(folder / "who.npz"),
        "limit": None,
        "workers": 1,
    }
    evaluation = {"tune_epochs": 0, "deliver": "served"}
    return content | {"seed": cell.seed, "evaluation": evaluation, "rounds": {"count": 10}}


def measured(cell: Cell, most: int, pool: WorkerPool) -> dict[str, Any]:
    """Whether a test on the cards fires; whether they propose a cut, and a right one; and the groups at the end of a run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        content = content_of(cell, folder)

        def ran(settings: dict[str, Any], into: str) -> tuple[dict[str, Any], dict[str, Any]]:
            scene = from_mapping(content | {"strategy": {"name": "kin", **settings}})
            result = simulate(scene, RunOptions(folder / into), pool, ignore)
            phases = [row for row in records.lines(folder / into) if row["event"] == "phase"]
            return result, phases[0]["notes"]

        result, notes = ran({"stop": "cards"}, "cards")
        chances = notes.get("shift_chances", {})
        found: dict[str, Any] = {
            "fires": any(chance < LEVEL for chance in chances.values()),
            "proposed": is_right(result, cell) if result["clusters"] > 1 else None,
        }
        if found["proposed"] is None or (cell.agents > most and found["proposed"]):
            return found
        result, _ = ran({}, "run")
        is_cut = result["clusters"] > 1
        return found | {"stands": is_right(result, cell) if is_cut else None}


def is_right(result: dict[str, Any], cell: Cell) -> bool:
    """Whether a cut has the two groups that there are, and no other."""
    groups = result["assignment"]
    own = [groups[agent_name(number, cell.agents)] for number in range(cell.agents)]
    halves = [set(own[::2]), set(own[1::2])]
    return cell.groups > 1 and all(len(half) == 1 for half in halves) and len(set(own)) == 2


def table(found: Found) -> str:
    """Markdown: a row per shift and number of agents."""
    lines = [
        "| fleets | agents | fleets | a test fires | a cut is proposed | right | runs | groups stand | right |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for shift, agents in product(SHIFTS, (*AGENTS, None)):
        own = [
            one
            for key, one in found.items()
            if key.startswith(f"{shift}/") and (agents is None or f"/{agents}/" in key)
        ]
        ran = [one["stands"] for one in own if "stands" in one]
        proposed = [one["proposed"] for one in own if one["proposed"] is not None]
        stands = [one for one in ran if one is not None]
        counts = [len(own), sum(one["fires"] for one in own), len(proposed), sum(proposed)]
        counts += [len(ran), len(stands), sum(stands)]
        words = " | ".join(str(one) for one in counts)
        lines.append(f"| {shift} | {agents or 'all'} | {words} |")
    return "\n".join(lines)


def cells(seeds: Sequence[int]) -> Iterator[Cell]:
    """All fleets of a seed come before any of the next."""
    for seed, agents, sizes, shift in product(seeds, AGENTS, SIZES, SHIFTS):
        yield Cell(shift, sizes, agents, seed)


def main() -> None:
    parser = record_options(__doc__, OUT, range(1, 76))
    parser.add_argument("--most", type=int, default=40, help="agents of a fleet with groups")
    parser.add_argument("--shifts", nargs="+", choices=SHIFTS, default=SHIFTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, WorkerPool(1, Path(name) / "log") as pool:
        planned = {
            cell.key: partial(measured, cell, options.most, pool)
            for cell in cells(options.seeds)
            if cell.shift in options.shifts
        }
        found = resumed(options, planned, {"rounds": 10}, indent=None)
    show_tables(options, {"fleets": table(found)})


if __name__ == "__main__":
    main()
