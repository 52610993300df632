"""Finished runs as curves: their figures over the rounds, over the traffic and over the agents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from covey.coordinator.disk.checkpoint import Checkpoint
from covey.coordinator.processes import launch
from covey.coordinator.record.notices import PhaseFolded
from covey.coordinator.record.records import lines, mbit_per_agent, rounds_done
from covey.coordinator.report.tables import labels
from covey.coordinator.view.lines import PhaseLine, averages, macro, reduced
from covey.extras.dashboard import sketches
from covey.extras.dashboard.sketches import ModelSketches
from covey.shared.numerics.measures import ACCURACY, MEASURES, Measure, shown_measure
from covey.shared.scenario.load import load
from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import ClientId, Proximity
from covey.shared.strategies.fedclust import FedClust

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class EvaluatedRun:
    """The state of a run when all agents were evaluated."""

    rounds: int  # that were over
    mbit: float  # per agent until then
    figures: Mapping[str, float]  # macro averages by mode


@dataclass(frozen=True)
class Attendance:
    """How many agents of a training round reported, and how many did not."""

    round: int  # counted from 1
    reported: int
    missing: int


@dataclass(frozen=True)
class RoundTimes:
    """How long the reporters of a training round took, in seconds."""

    round: int  # counted from 1
    usual: float  # the median
    last: float
    agent: ClientId  # the last one


@dataclass(frozen=True)
class TreeCut:
    """The result of cutting a tree of distances at a quantile of all of them."""

    quantile: float
    clusters: int  # that were found
    figures: Mapping[str, float]  # macro averages by mode


@dataclass(frozen=True)
class AgentFigure:
    """One agent at the end of a run; each value is None if it is unknown."""

    agent: ClientId
    samples: int  # of training
    cluster: int | None
    truth: int | None  # its planted group
    figure: float | None  # as served


@dataclass(frozen=True)
class Curves:
    """One finished run. Sequences are empty and values None if the run has kept nothing of their kind."""

    label: str
    result: Mapping[str, Any]  # as result.json has it
    figure: str  # the measure that is drawn: "accuracy", or "rmse" of a regression ("mse" of older runs)
    loss: Points  # over rounds
    evaluated: Sequence[EvaluatedRun]
    sizes: Sequence[tuple[int, Mapping[str, int]]]  # agents by cluster, after this many rounds
    agents: Sequence[AgentFigure]
    models: Sequence[ModelSketches] = ()  # of agents' models, for each phase that reported any
    proximity: Proximity | None = None  # what clusters were made from
    cut: TreeCut | None = None  # how its tree was cut
    attendance: Sequence[Attendance] = ()
    seed: int = 0
    times: Sequence[RoundTimes] = ()

    @property
    def measure(self) -> Measure:
        """The measure of all figures that are drawn."""
        return MEASURES[self.figure]

    @cached_property
    def clusters(self) -> Mapping[ClientId, int]:
        """The cluster of each agent that has one."""
        return {one.agent: one.cluster for one in self.agents if one.cluster is not None}

    @cached_property
    def truth(self) -> Mapping[ClientId, int]:
        """The planted group of each agent that has one."""
        return {one.agent: one.truth for one in self.agents if one.truth is not None}

    @cached_property
    def samples(self) -> Mapping[int, int]:
        """Training samples by cluster."""
        samples: Counter[int] = Counter()
        for one in self.agents:
            if one.cluster is not None:
                samples[one.cluster] += one.samples
        return samples

    def over_rounds(self, mode: str) -> Points:
        """The figure in one mode against rounds."""
        return [
            (float(one.rounds), one.figures[mode]) for one in self.evaluated if mode in one.figures
        ]

    def over_traffic(self, mode: str) -> Points:
        """The figure in one mode against Mbit per agent."""
        return [(one.mbit, one.figures[mode]) for one in self.evaluated if mode in one.figures]

    def by_truth(self) -> Mapping[tuple[int, int], int]:
        """How many agents of each planted group are in each cluster: {(cluster, group): agents}."""
        counts: Counter[tuple[int, int]] = Counter()
        for one in self.agents:
            cluster = one.cluster
            group = one.truth
            if cluster is not None and group is not None:
                counts[cluster, group] += 1
        return counts


def curves(
    folders: Sequence[Path], results: Sequence[Mapping[str, Any]], *, detailed: bool = True
) -> list[Curves]:
    """The finished runs in these folders, which have these results. Raises UserError for a damaged folder.

    Without `detailed`, what only pages of single runs show is left out: agents' models, distances.
    """
    found = []
    for name, result, folder in zip(labels(folders, results), results, folders, strict=True):
        found.append(_curves(name, result, folder, detailed=detailed))
    return found


def _curves(label: str, result: Mapping[str, Any], folder: Path, *, detailed: bool) -> Curves:
    record = [row for row in lines(folder) if row["event"] == PhaseFolded.event]
    phases = [line for line in map(reduced, record) if isinstance(line, PhaseLine)]
    figure = (shown_measure(result["accuracy"].get("server", {})) or ACCURACY).name
    ended = [line for line in phases if line.ends_round]
    proximity = None
    cut = None
    models: Sequence[ModelSketches] = ()
    file = folder / "scenario.yaml"
    if detailed:
        models = sketches.read(folder, record)
        if file.exists():
            scenario = load(file)
            if scenario.strategy.facts.signatures:
                proximity = proximity_of(folder, scenario)
            cut = _cut(result, figure, scenario)
    return Curves(
        label,
        result,
        figure,
        [(line.rounds, line.loss) for line in ended if line.loss is not None],
        list(_evaluated(phases, figure, result["agents"])),
        [(line.rounds, line.sizes) for line in phases if line.sizes],
        _agents(folder / "agents.parquet", figure),
        models,
        proximity,
        cut,
        [Attendance(line.rounds, line.reported, line.missing) for line in ended],
        result["seed"],
        [_times(row) for row in record if row["ends_round"] and len(row.get("took", ())) > 1],
    )


def _times(row: Mapping[str, Any]) -> RoundTimes:
    last, agent = max(zip(row["took"], row["reported"], strict=True))
    return RoundTimes(rounds_done(row), median(row["took"]), last, agent)


def proximity_of(folder: Path, scenario: Scenario) -> Proximity | None:
    """What the clusters were made from, out of the newest checkpoint. Raises UserError if that is damaged."""
    checkpoint = Checkpoint(folder / "checkpoint")
    strategy = scenario.strategy
    if not checkpoint.exists():
        return None
    state: Any = checkpoint.state(strategy.init(launch.started(folder, scenario)))
    return strategy.shown(state).proximity()


def _cut(result: Mapping[str, Any], figure: str, scenario: Scenario) -> TreeCut | None:
    """How FedClust's tree was cut, if it was cut at a quantile of all distances."""
    strategy = scenario.strategy
    if not isinstance(strategy, FedClust) or strategy.lambda_quantile is None:
        return None
    figures = macro(averages(result["accuracy"]), figure)
    return TreeCut(strategy.lambda_quantile, result["clusters"], figures)


def _evaluated(phases: Iterable[PhaseLine], figure: str, agents: int) -> Iterator[EvaluatedRun]:
    """The state of the run at each evaluation."""
    for line in phases:
        figures = macro(line.evaluation, figure)
        if figures:
            yield EvaluatedRun(line.rounds, mbit_per_agent(line.traffic, agents), figures)


def _agents(path: Path, figure: str) -> list[AgentFigure]:
    """The agents of a run, out of its Parquet file."""
    from pyarrow import parquet

    names = ["agent", "samples", "cluster", "truth", f"server_{figure}"]
    table = parquet.read_table(path, columns=names).to_pydict()
    columns = [table[name] for name in names]
    return [AgentFigure(*row) for row in zip(*columns, strict=True)]
