"""Finished runs as curves: what their records say over the rounds and over the agents. Pure but for reading the folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from covey.coordinator.processes import launch
from covey.coordinator.report.tables import labels
from covey.coordinator.run import sketches
from covey.coordinator.run.checkpoint import Checkpoint
from covey.coordinator.run.modes import MODE_TITLES
from covey.coordinator.run.records import lines, mbit_per_agent, rounds_done
from covey.coordinator.run.sketches import ModelSketches
from covey.shared.scenario.load import load
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import ClientId, Proximity, Strategy
from covey.shared.strategies.fedclust import FedClust

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Evaluated:
    """Where a run stood when everybody was evaluated: rounds done, Mbit per agent until then, the macro average of the
    figure in each mode."""

    rounds: int
    mbit: float
    figures: Mapping[str, float]


@dataclass(frozen=True)
class Cut:
    """A tree of distances that was cut at a quantile of all of them: clusters found, macro average of the figure by mode."""

    quantile: float
    clusters: int
    figures: Mapping[str, float]


@dataclass(frozen=True)
class Curves:
    """One run. `figure` is accuracy, or mse for a regression task; `sizes` are agents per cluster after so many rounds;
    `agents` are (cluster, truth, figure in E-server), each None where it is unknown. By agent there are `clusters` and
    `truth`, by cluster the training `samples`. `models` are sketches of agents' models in each phase that reported any,
    `proximity` what clusters were made from, `cut` how it was cut; empty and None where the run has kept nothing of it."""

    label: str
    result: Mapping[str, Any]
    figure: str
    loss: Points
    evaluated: Sequence[Evaluated]
    sizes: Sequence[tuple[int, Mapping[str, int]]]
    agents: Sequence[tuple[int | None, int | None, float | None]]
    clusters: Mapping[ClientId, int] = field(default_factory=dict)
    truth: Mapping[ClientId, int] = field(default_factory=dict)
    samples: Mapping[int, int] = field(default_factory=dict)
    models: Sequence[ModelSketches] = ()
    proximity: Proximity | None = None
    cut: Cut | None = None

    def over_rounds(self, mode: str) -> Points:
        return [
            (float(one.rounds), one.figures[mode]) for one in self.evaluated if mode in one.figures
        ]

    def over_traffic(self, mode: str) -> Points:
        return [(one.mbit, one.figures[mode]) for one in self.evaluated if mode in one.figures]

    def by_truth(self) -> Mapping[tuple[int, int], int]:
        """How many agents of each planted group are in each cluster: {(cluster, group): agents}."""
        return Counter(
            (cluster, truth)
            for cluster, truth, _ in self.agents
            if cluster is not None and truth is not None
        )


def curves(folders: Sequence[Path], results: Sequence[Mapping[str, Any]]) -> list[Curves]:
    """The finished runs in these folders, which have these results."""
    return [
        _curves(label, result, folder)
        for label, result, folder in zip(labels(folders, results), results, folders, strict=True)
    ]


def _curves(label: str, result: Mapping[str, Any], folder: Path) -> Curves:
    phases = [line for line in lines(folder) if line["event"] == "phase"]
    figure = "accuracy" if "accuracy" in result["accuracy"].get("server", {}) else "mse"
    table = _table(
        folder / "agents.parquet", "agent", "samples", "cluster", "truth", f"server_{figure}"
    )
    clusters = {agent: cluster for agent, _, cluster, _, _ in table if cluster is not None}
    samples: Counter[int] = Counter()
    for _, amount, cluster, _, _ in table:
        if cluster is not None:
            samples[cluster] += amount
    scenario = load(folder / "scenario.yaml") if (folder / "scenario.yaml").exists() else None
    return Curves(
        label,
        result,
        figure,
        [
            (rounds_done(line), line["loss"])
            for line in phases
            if "loss" in line and line["ends_round"]
        ],
        list(_evaluated(phases, figure, result["agents"])),
        [(rounds_done(line), line["cluster_sizes"]) for line in phases if line["cluster_sizes"]],
        [(cluster, truth, value) for _, _, cluster, truth, value in table],
        clusters,
        {agent: truth for agent, _, _, truth, _ in table if truth is not None},
        samples,
        sketches.read(folder, phases),
        _proximity(folder, scenario) if scenario is not None else None,
        _cut(result, figure, scenario) if scenario is not None else None,
    )


def _proximity(folder: Path, scenario: Scenario) -> Proximity | None:
    """What the clusters were made from, out of the run's newest checkpoint. Raises UserError where that is damaged."""
    checkpoint, strategy = Checkpoint(folder / "checkpoint"), scenario.strategy
    if type(strategy).proximity is Strategy.proximity or not checkpoint.exists():
        return None  # nothing is read of a method that has no distances to show
    kind = type(strategy.init(launch.started(folder, scenario)))
    state: Any = checkpoint.state(kind)
    return strategy.proximity(state)


def _cut(result: Mapping[str, Any], figure: str, scenario: Scenario) -> Cut | None:
    strategy = scenario.strategy
    if not isinstance(strategy, FedClust) or strategy.lambda_quantile is None:
        return None
    modes = result["accuracy"]
    figures = {
        mode: modes[mode][figure]["macro"] for mode in MODE_TITLES if figure in modes.get(mode, {})
    }
    return Cut(strategy.lambda_quantile, result["clusters"], figures)


def _evaluated(
    phases: Iterable[Mapping[str, Any]], figure: str, agents: int
) -> Iterable[Evaluated]:
    for line in phases:
        modes = line.get("evaluation", {})
        figures = {
            mode: modes[mode][figure]["macro"]
            for mode in MODE_TITLES
            if figure in modes.get(mode, {})
        }
        if figures:
            yield Evaluated(rounds_done(line), mbit_per_agent(line["traffic"], agents), figures)


def _table(path: Path, *names: str) -> list[tuple[Any, ...]]:
    """These columns of a Parquet file, row by row."""
    from pyarrow import parquet

    columns = parquet.read_table(path, columns=list(names)).to_pydict()
    return list(zip(*(columns[name] for name in names), strict=True))
