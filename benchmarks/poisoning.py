"""How far hostile agents damage clustered training, and how much each rule of the aggregation section saves.

    python -m benchmarks.poisoning --data-root ../shared/data [--seeds 1 2 3]

Fashion-MNIST with a label skew of 20 % (two labels an agent), 30 agents of which 6 are hostile, a small MLP, every
method with three clusters. The hostile agents exist in this file only: they train honestly and bend what they report.
Only vectors that become models are bent; signatures stay honest, so that liars get into clusters.

- `sign_flip`: ten times the honest step, backwards; `random`: a random step ten times as long as the honest one;
  `scaled`: ten times the honest step; `label_flip`: training on labels 9 - y, reported as it is

E-server and E-tuned are means over the honest agents. Every cell is written to --out as soon as it is finished, and a
second start resumes after the last finished cell. `--table` runs nothing and prints the finished cells; `--page` replaces
the tables in a Markdown page that has them already.
"""

from __future__ import annotations

import itertools
import re
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring import mean_and_spread, record_options, resumed
from benchmarks.torch_runs import (
    TIMES,
    WithLiars,
    chosen,
    draw_of,
    lied,
    models_of,
    repeatable,
    started,
)
from covey.agent.data import Dataset, fit
from covey.agent.data.partition import client_dataset, fleet_data
from covey.coordinator.run.run import Run
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.simulated_agents import agent_name
from covey.shared.seeds import generator
from covey.shared.storage.files import write_atomically
from covey.shared.strategies.base import ClientId
from covey.shared.wire.messages import OrderMessage, ReportContent

AGENTS = 30
HOSTILE = 6
CLUSTERS = 3
ROUNDS = 10
METHODS = ("fedavg", "fedclust", "pacfl", "ifca")
ATTACKS = ("none", "sign_flip", "random", "scaled", "label_flip")
RULES: dict[str, dict[str, Any]] = {
    "mean": {"rule": "mean"},
    "mean+clip": {"rule": "mean", "clip": {"times_median": 1.0}},
    "trimmed_mean": {"rule": "trimmed_mean", "trim": 0.2},
    "median": {"rule": "median"},
    "krum": {"rule": "krum", "liars": 0.2},
    "multi_krum": {"rule": "multi_krum", "liars": 0.2},
    "geometric_median": {"rule": "geometric_median"},
}
OUT = Path(__file__).parent / "results" / "poisoning.json"


@dataclass(frozen=True)
class Cell:
    """One run."""

    method: str
    rule: str
    attack: str
    seed: int

    @property
    def key(self) -> str:
        """The cell's name in the JSON file."""
        return f"{self.method} {self.rule} {self.attack} {self.seed}"


def scenario(cell: Cell) -> Scenario:
    """The scenario that a coordinator would run."""
    clusters: dict[str, Any] = {}
    if cell.method != "fedavg":
        clusters["n_clusters"] = CLUSTERS
    return Scenario.model_validate(
        {
            "name": "poisoning",
            "seed": cell.seed,
            "task": {
                "features": [1, 28, 28],
                "classes": 10,
                "scale": 1 / 255,
                "model": {"name": "mlp", "options": {"hidden": 64}},
            },
            "training": {"epochs": 2, "batch": 20, "lr": 0.1},
            "strategy": {"name": cell.method, **clusters},
            "rounds": {"count": ROUNDS},
            "evaluation": {"tune_epochs": 1},
            "aggregation": RULES[cell.rule],
            "fleet": {
                "agents": AGENTS,
                "data": "fashion-mnist",
                "limit": 3000,
                "partition": {"name": "label_skew", "share": 0.2},
            },
        }
    )


def hostile(seed: int) -> frozenset[ClientId]:
    """The same agents in every cell of a seed."""
    drawn = generator(seed, "hostile").choice(AGENTS, HOSTILE, replace=False)
    return frozenset(agent_name(int(index), AGENTS) for index in drawn)


@cache
def fleet(seed: int, data_root: str) -> dict[ClientId, Dataset]:
    """Each agent's data, the same for all cells of a seed."""
    scene = scenario(Cell("fedavg", "mean", "none", seed))
    data, split = fleet_data(scene, data_root)
    datasets: dict[ClientId, Dataset] = {}
    for index in range(AGENTS):
        datasets[agent_name(index, AGENTS)] = fit(client_dataset(data, split, index), scene.task)
    return datasets


def flipped(data: Dataset) -> Dataset:
    """The same samples with labels 9 - y."""
    return replace(data, targets=9 - data.targets)


class Poisoned(WithLiars):
    """Clients with liars among them."""

    def __init__(self, cell: Cell, datasets: dict[ClientId, Dataset]) -> None:
        scene = scenario(cell)
        super().__init__(scene, started(scene), datasets)
        self.cell = cell
        self.liars = hostile(cell.seed)
        self.lies = 0  # false reports so far

    def data(self, client: ClientId, order: OrderMessage) -> Dataset:
        assert order.work is not None
        data = self.datasets[client]
        flips = self.cell.attack == "label_flip" and client in self.liars
        if not flips or order.work.phase == "evaluate":
            return data
        self.lies += 1
        return flipped(data)

    def work(self, run: Run, client: ClientId, order: OrderMessage) -> ReportContent:
        report = super().work(run, client, order)
        bends = client in self.liars and self.cell.attack not in ("none", "label_flip")
        if not bends or "model" not in report.vectors:
            return report
        self.lies += 1
        models = models_of(run, order)
        # in IFCA's warm-up the order names the hypothesis, and only that one is sent
        base = models[chosen(report, models)]
        return lied(report, base, self.cell.attack, draw_of(self.cell.seed, report))


def measured(cell: Cell, data_root: str) -> dict[str, Any]:
    """E-server and E-tuned of the honest agents, and what happened to the liars."""
    clients = Poisoned(cell, fleet(cell.seed, data_root))
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        run = clients.run(Path(folder))
        if cell.attack != "none" and not clients.lies:
            raise RuntimeError(f"{cell.key}: no hostile agent reported anything false")
        models = run.strategy.clusters(run.state)
        finite = [bool(np.isfinite(model).all()) for model in models]
        seconds = time.process_time() - began
        return {
            "server": honest_accuracy(run, clients.liars, "server"),
            "tuned": honest_accuracy(run, clients.liars, "tuned"),
            "finite": all(finite),
            "clusters": len(models),
            "lies": clients.lies,
            "quarantined": sorted(run.members.quarantined),
            "seconds": round(seconds, 2),
        }


def honest_accuracy(run: Run, liars: Collection[ClientId], mode: str) -> float:
    """The mean over the honest agents that have something to test on."""
    shares: list[float] = []
    for name, figures in run.members.evaluation.items():
        if name not in liars and figures[mode]["n"]:
            shares.append(figures[mode]["accuracy"])
    return float(np.mean(shares))


def cells(seeds: Sequence[int]) -> Iterator[Cell]:
    """All cells of the first seed come before any of the second."""
    for seed, method, attack, rule in itertools.product(seeds, METHODS, ATTACKS, RULES):
        yield Cell(method, rule, attack, seed)


def table(found: dict[str, dict[str, Any]], mode: str, seeds: Sequence[int]) -> str:
    """Markdown: a row per method and rule, a column per attack; percent, mean over the finished seeds."""
    head = " | ".join(ATTACKS)
    lines = [f"| method | rule | {head} |", "|---|---|" + "---:|" * len(ATTACKS)]
    for method, rule in itertools.product(METHODS, RULES):
        row: list[str] = []
        for attack in ATTACKS:
            values: list[float] = []
            for seed in seeds:
                key = Cell(method, rule, attack, seed).key
                if key in found:
                    values.append(100 * found[key][mode])
            row.append(mean_and_spread(values))
        text = " | ".join(row)
        lines.append(f"| {method} | {rule} | {text} |")
    return "\n".join(lines)


def put_into(page: Path, found: dict[str, dict[str, Any]], seeds: Sequence[int]) -> None:
    """Replace the two tables of a page, E-server's first."""
    tables = iter([table(found, "server", seeds), table(found, "tuned", seeds)])
    pattern = r"^\| method \| rule \| none .*(?:\n\|.*)*"
    text = re.sub(pattern, lambda _: next(tables), page.read_text(), flags=re.MULTILINE)
    write_atomically(page, text.encode())


def main() -> None:
    parser = record_options(__doc__, OUT, [1])
    parser.add_argument("--data-root", default="../shared/data")
    options = parser.parse_args()
    repeatable()
    settings = {
        "agents": AGENTS,
        "hostile": HOSTILE,
        "clusters": CLUSTERS,
        "rounds": ROUNDS,
        "times": TIMES,
    }
    planned = {
        cell.key: partial(measured, cell, options.data_root) for cell in cells(options.seeds)
    }
    found = resumed(options, planned, settings)
    if options.page is not None:
        seeds = {int(key.rpartition(" ")[2]) for key in found}
        put_into(options.page, found, sorted(seeds))
    for mode in ("server", "tuned"):
        text = table(found, mode, options.seeds)
        print(f"\nE-{mode} of the honest agents, percent\n\n{text}")


if __name__ == "__main__":
    main()
