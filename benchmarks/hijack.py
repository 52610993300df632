"""A cluster that hostile agents choose to be in: how much of it is left, with and without the fallback.

    python -m benchmarks.hijack [--seeds 1] [--cost]

The digits of scikit-learn, 20 agents in four groups with labels of their own, a small MLP, every method with as many
clusters as there are groups. Six agents of the other groups are hostile: they do all their work on samples of group 0's
labels, so they are clustered with it. From then on they report ten times their step, backwards. The hostile agents exist
in this file only.

- `stay`: they vote to stay in the cluster. With IFCA they keep to the hypothesis that they chose first.
- `follow`: they vote, and with IFCA choose, as an agent of group 0 would.

E-server, means over the honest agents of group 0 and over those of the other groups. A cell in which no false report was
accepted ends the campaign. Every cell is written to --out as soon as it is finished, and a second start resumes after the
last finished cell. `--cost` runs honest fleets with and without the fallback in place of the attacks. `--table` runs
nothing and prints the finished cells.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring import Found, mean_and_spread, record_options, resumed
from benchmarks.torch_runs import WithLiars, chosen, draw_of, lied, models_of, repeatable, started
from covey.agent.data import Dataset, fit
from covey.agent.data.dataset import hold_back
from covey.agent.data.partition import client_dataset, fleet_data
from covey.agent.training.learner import TorchLocal
from covey.coordinator.run.run import Run
from covey.shared.client import VOTE
from covey.shared.numerics.vectors import Vector
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.simulated_agents import agent_name
from covey.shared.seeds import generator
from covey.shared.strategies.base import TRAIN, ClientId
from covey.shared.wire.messages import OrderMessage, ReportContent

AGENTS = 20
GROUPS = 4
HOSTILE = 6
ROUNDS = 6
ATTACKED = range(AGENTS // GROUPS)  # the agents of group 0
ATTACKS = ("none", "stay", "follow")
OWN_RULE = "own"  # robust has means of its own
METHODS = ("fedclust", "pacfl", "cfl", "robust", "ifca")
RULES: dict[str, dict[str, Any]] = {
    "mean": {"rule": "mean"},
    "mean+clip": {"rule": "mean", "clip": {"times_median": 1.0}},
    "median": {"rule": "median"},
    "geometric_median": {"rule": "geometric_median"},
    "multi_krum": {"rule": "multi_krum", "liars": 0.3},
    OWN_RULE: {"rule": "mean"},
}
FLEETS: dict[str, dict[str, Any]] = {
    "groups": {"name": "grouped_labels", "groups": GROUPS},
    "iid": {"name": "iid"},
    "unequal": {"name": "quantity", "alpha": 0.3},
    "skew": {"name": "label_skew", "share": 0.2},
    "dirichlet": {"name": "dirichlet", "alpha": 0.1},
}
OUT = Path(__file__).parent / "results" / "hijack.json"


@dataclass(frozen=True)
class Cell:
    """One run."""

    method: str
    rule: str = "mean"
    attack: str = "none"
    fallback: bool = False
    seed: int = 1
    fleet: str = "groups"
    agents: int = AGENTS

    @property
    def key(self) -> str:
        """The cell's name in the JSON file."""
        fallback = "fallback" if self.fallback else "plain"
        return f"{self.fleet}-{self.agents} {self.method} {self.rule} {self.attack} {fallback} {self.seed}"


def scenario(cell: Cell) -> Scenario:
    """The scenario that a coordinator would run."""
    clusters = {} if cell.method == "cfl" else {"n_clusters": GROUPS}
    return Scenario.model_validate(
        {
            "name": "hijack",
            "seed": cell.seed,
            "task": {
                "features": [1, 8, 8],
                "classes": 10,
                "scale": 1 / 16,
                "model": {"name": "mlp", "options": {"hidden": 32}},
            },
            "training": {"epochs": 2, "batch": 10, "lr": 0.1},
            "strategy": {"name": cell.method, **clusters},
            "rounds": {"count": ROUNDS},
            "evaluation": {"tune_epochs": 0, "every": 1, "fallback": cell.fallback},
            "aggregation": RULES[cell.rule],
            "fleet": {"agents": cell.agents, "data": "digits", "partition": FLEETS[cell.fleet]},
        }
    )


@cache
def fleet(name: str, agents: int, seed: int) -> dict[ClientId, Dataset]:
    """Each agent's data, the same for all cells of a seed."""
    scene = scenario(Cell("fedclust", fleet=name, agents=agents, seed=seed))
    data, split = fleet_data(scene, None)
    datasets: dict[ClientId, Dataset] = {}
    for index in range(agents):
        datasets[agent_name(index, agents)] = fit(client_dataset(data, split, index), scene.task)
    return datasets


def hostile(seed: int) -> list[ClientId]:
    """Agents of the other groups, the same ones in every cell of a seed."""
    others = np.arange(len(ATTACKED), AGENTS)
    drawn = generator(seed, "hostile").choice(others, HOSTILE, replace=False)
    return [agent_name(int(index), AGENTS) for index in sorted(drawn)]


def posing(cell: Cell) -> dict[ClientId, Dataset]:
    """All agents' data, where a hostile one has those of an agent of group 0."""
    datasets = dict(fleet(cell.fleet, cell.agents, cell.seed))
    if cell.attack == "none":
        return datasets
    for place, liar in enumerate(hostile(cell.seed)):
        model = agent_name(ATTACKED[place % len(ATTACKED)], AGENTS)
        datasets[liar] = datasets[model]
    return datasets


class Hijacked(WithLiars):
    """Clients with hostile agents among them."""

    def __init__(self, cell: Cell) -> None:
        scene = scenario(cell)
        held_back = self._held_back if cell.fallback else None
        super().__init__(scene, started(scene), posing(cell), held_back)
        self.cell = cell
        self.liars = frozenset(hostile(cell.seed)) if cell.attack != "none" else frozenset()
        self.lies = 0  # false reports that were accepted
        self._false: set[ClientId] = set()  # whose newest report is false
        self._attacking: set[ClientId] = set()
        self._choices: dict[ClientId, int] = {}  # of liars that stay: their first hypothesis

    def data(self, client: ClientId, order: OrderMessage) -> Dataset:
        assert order.work is not None
        data = self.datasets[client]
        return hold_back(data, order.work.seed, client)[0] if self.cell.fallback else data

    def _held_back(self, client: ClientId, order: OrderMessage) -> TorchLocal | None:
        assert order.work is not None
        _, held = hold_back(self.datasets[client], order.work.seed, client)
        return None if held is None else self.trainer(held, client, order)

    def work(self, run: Run, client: ClientId, order: OrderMessage) -> ReportContent:
        assert order.work is not None
        report = super().work(run, client, order)
        self._false.discard(client)
        if client not in self.liars:
            return report
        if order.work.phase == TRAIN and self._is_inside(run, client, order):
            self._false.add(client)
            return self._lie(report, models_of(run, order))
        if self.cell.attack == "stay" and VOTE in report.numbers:
            return to_stay(report)
        return report

    def settle(self, run: Run, client: ClientId, step: int) -> None:
        super().settle(run, client, step)
        if run.facts.accepted.get(client) == step:
            self.lies += client in self._false

    def _is_inside(self, run: Run, client: ClientId, order: OrderMessage) -> bool:
        """Has the hostile agent been clustered with group 0, now or before?"""
        assert order.work is not None
        clusters = run.strategy.assignment(run.state)
        is_apart = len(set(clusters.values())) > 1
        if self.cell.method == "ifca":
            is_apart = len(order.work.models) > 1  # its first rounds have groups that were drawn
        attacked = [clusters.get(agent_name(index, AGENTS)) for index in ATTACKED]
        if is_apart and clusters.get(client) in attacked:
            self._attacking.add(client)
        return client in self._attacking

    def _lie(self, report: ReportContent, models: Sequence[Vector]) -> ReportContent:
        own = chosen(report, models)
        draw = draw_of(self.cell.seed, report)
        if len(models) == 1 or self.cell.attack != "stay":
            return lied(report, models[own], "sign_flip", draw)
        choice = self._choices.setdefault(report.client, own)
        return lied(report, models[own], "sign_flip", draw, models[choice], choice=choice)


def to_stay(report: ReportContent) -> ReportContent:
    """The report of an evaluation with a vote for the model of the cluster."""
    vote = dict(report.numbers[VOTE])
    vote["loss"] = vote["other"]
    return report.model_copy(update={"numbers": {**report.numbers, VOTE: vote}})


def measured(cell: Cell) -> dict[str, Any]:
    """E-server of the honest agents by group, and how many of them fell back."""
    clients = Hijacked(cell)
    with tempfile.TemporaryDirectory() as folder:
        run = clients.run(Path(folder))
        if cell.attack != "none" and not clients.lies:
            raise RuntimeError(f"{cell.key}: no false report was accepted")
        attacked = {agent_name(index, cell.agents) for index in ATTACKED}
        honest = [name for name in clients.datasets if name not in clients.liars]
        figures = run.facts.evaluation
        return {
            "group 0": accuracy(figures, [name for name in honest if name in attacked]),
            "others": accuracy(figures, [name for name in honest if name not in attacked]),
            "fell_back": len(run.facts.fallen.keys() & set(honest)),
            "clusters": len(set(run.strategy.assignment(run.state).values())),
            "lies": clients.lies,
            "quarantined": sorted(run.engine.quarantined),
        }


def accuracy(figures: Mapping[ClientId, Mapping[str, Any]], agents: Sequence[ClientId]) -> float:
    """The mean over agents. A model that diverged is right about nothing."""
    shares = [figures[agent]["server"].get("accuracy", 0.0) for agent in agents]
    return round(float(np.mean(shares)), 6)


def rules_of_method(method: str) -> list[str]:
    return [rule for rule in RULES if (rule == OWN_RULE) == (method == "robust")]


def attacks(seeds: Sequence[int]) -> Iterator[Cell]:
    """All cells of the first seed come before any of the second."""
    for seed, attack, fallback, method in itertools.product(seeds, ATTACKS, (False, True), METHODS):
        if fallback and (method == "ifca" or attack == "none"):
            continue  # IFCA has none; `costs` has honest fleets
        if attack == "follow" and fallback == (method == "ifca"):
            continue  # without a fallback no agent moves, except in IFCA
        for rule in rules_of_method(method):
            yield Cell(method, rule, attack, fallback, seed)


def costs(seeds: Sequence[int]) -> Iterator[Cell]:
    """Honest fleets: 20 agents with about 70 training samples, and 40 with half of that."""
    for seed, name, agents in itertools.product(seeds, FLEETS, (20, 40)):
        for fallback in (False, True):
            yield Cell("fedclust", fallback=fallback, seed=seed, fleet=name, agents=agents)


def percent(found: Found, cell: Cell, seeds: Sequence[int], group: str) -> str:
    """A cell of a table over the finished seeds."""
    values: list[float] = []
    for seed in seeds:
        key = replace(cell, seed=seed).key
        if key in found:
            values.append(100 * found[key][group])
    return mean_and_spread(values)


def table(found: Found, seeds: Sequence[int]) -> str:
    """Markdown: group 0 / the others, by method and rule."""
    columns = [("none", False), ("stay", False), ("stay", True), ("follow", True)]
    heads = ["no attack", "hijack", "hijack, fallback", "hijack that follows, fallback"]
    lines = [f"| method | rule | {' | '.join(heads)} |", "|---|---|" + "---:|" * len(heads)]
    for method in METHODS:
        for rule in rules_of_method(method):
            row: list[str] = []
            for attack, fallback in columns:
                if method == "ifca":
                    if fallback and attack != "follow":
                        row.append("–")
                        continue
                    fallback = False
                cell = Cell(method, rule, attack, fallback)
                both = [percent(found, cell, seeds, group) for group in ("group 0", "others")]
                row.append(" / ".join(both) if all(both) else "")
            lines.append(f"| {method} | {rule} | {' | '.join(row)} |")
    return "\n".join(lines)


def cost_table(found: Found, seeds: Sequence[int]) -> str:
    """Markdown: accuracy of honest fleets without and with the fallback, and how many agents fell back."""
    lines = ["| fleet | agents | plain | fallback | fell back |", "|---|---:|---:|---:|---:|"]
    for name, agents in itertools.product(FLEETS, (20, 40)):
        row: list[str] = []
        fallen = 0
        for fallback in (False, True):
            values: list[float] = []
            for seed in seeds:
                cell = Cell("fedclust", fallback=fallback, seed=seed, fleet=name, agents=agents)
                if cell.key in found:
                    one = found[cell.key]
                    share = len(ATTACKED) / agents
                    values.append(100 * (share * one["group 0"] + (1 - share) * one["others"]))
                    fallen += one["fell_back"]
            row.append(mean_and_spread(values))
        lines.append(f"| {name} | {agents} | {' | '.join(row)} | {fallen} |")
    return "\n".join(lines)


def main() -> None:
    parser = record_options(__doc__, OUT, [1])
    parser.add_argument("--cost", action="store_true", help="honest fleets only")
    options = parser.parse_args()
    repeatable()
    settings = {"agents": AGENTS, "groups": GROUPS, "hostile": HOSTILE, "rounds": ROUNDS}
    planned = costs(options.seeds) if options.cost else attacks(options.seeds)
    found = resumed(options, {cell.key: partial(measured, cell) for cell in planned}, settings)
    print(table(found, options.seeds))
    print()
    print(cost_table(found, options.seeds))


if __name__ == "__main__":
    main()
