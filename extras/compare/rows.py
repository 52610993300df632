"""The rows of a comparison: the figures of one finished cell each, and what it took to reach the target.

Means over the seeds of a comparison.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from covey.coordinator.record.records import mbit_per_agent
from covey.coordinator.view.words import MODE_TITLES
from covey.extras.compare.grid import Cell, section, splits, target_of
from covey.shared.numerics.measures import ACCURACY, MEASURES, Measure, MeasureName, main_measure
from covey.shared.scenario.compare import Compare, ComparedPartition, Metric
from covey.shared.scenario.scenario import Scenario
from covey.shared.scenario.task import Task
from covey.shared.strategies.phase_names import TRAIN

ALONE = ("baseline", "trees")  # what each device has without the others, whatever the method
# The modes that a row has figures of, in the order of its columns.
MODES = (
    "last",
    "last_of_undrawn",
    "server",
    "delivered",
    "tuned",
    "best",
    "newcomers_server",
    "newcomers_tuned",
    *ALONE,
)
# The modes that a table shows, in the order of its columns.
TITLES = {
    "last": MODE_TITLES["last"],
    "server": MODE_TITLES["server"],
    "delivered": MODE_TITLES["delivered"],
    "tuned": MODE_TITLES["tuned"],
    "newcomers_server": "newcomers, as served",
    "newcomers_tuned": "newcomers, tuned",
}
# A metric is one average of one mode.
METRICS: Mapping[Metric, tuple[str, str]] = {
    "last": ("last", "macro"),
    "server": ("server", "macro"),
    "delivered": ("delivered", "macro"),
    "tuned": ("tuned", "macro"),
    "global": ("server", "micro"),
    "newcomers": ("newcomers_tuned", "macro"),
}


def metric_of(compare: Compare, label: str) -> Metric:
    """The metric of the method with this label: its own, else the comparison's."""
    for method in compare.methods:
        if method.label == label and method.metric is not None:
            return method.metric
    return compare.metric


def measure_of(compare: Compare, task: Task) -> Measure:
    """The measure that tables show and targets are compared with: the comparison's, else the task's usual one."""
    if compare.measure is not None:
        return MEASURES[compare.measure]
    return task.main_measure


def figure_of(averages: Mapping[str, Any], metric: Metric, measure: Measure) -> float | None:
    """The metric's figure out of averages by mode, as it is stored; None if they do not have it."""
    mode, average = METRICS[metric]
    value: float | None = averages.get(mode, {}).get(measure.name, {}).get(average)
    return value


Phase = Mapping[str, Any]  # a line of the record


@dataclass(frozen=True)
class Point:
    """The state of a run after some rounds: its figure, and its traffic until then."""

    on: str  # what the figure is of
    rounds: int  # counted from 1
    figure: float  # as it is stored: an accuracy is a share
    mbit: float  # of float32 values, per agent
    mb_wire: (
        float | None
    )  # of all agents, without models sent for evaluation; None without a broker


def columns_to_target(
    phases: Sequence[Phase],
    metric: Metric,
    measure: Measure,
    *,
    target: float,
    agents: int,
    classes: int,
) -> dict[str, Any]:
    """The columns of a row about its target.

    Args:
        phases: the phases of the run's record, in order
        metric: which average of which mode is compared with the target
        measure: its kind of figure, which knows what is better
        target: the figure to reach, as it is stored: an accuracy is a share
        agents: how many agents the run has, without newcomers
        classes: of the task; an untrained agent counts as a guess among them
    """
    points = curve(phases, metric, measure, agents, classes)
    columns: dict[str, Any] = {
        "target_on": None,
        "rounds_to_target": None,
        "mbit_to_target": None,
        "mb_wire_to_target": None,
        "rounds_to_target_participants": _participants_reach(phases, measure, target),
    }
    if points:
        columns["target_on"] = points[0].on
    reached = _first_at(points, measure, target)
    if reached is not None:
        columns["rounds_to_target"] = reached.rounds
        columns["mbit_to_target"] = reached.mbit
        columns["mb_wire_to_target"] = reached.mb_wire
    return columns


def curve(
    phases: Sequence[Phase], metric: Metric, measure: Measure, agents: int, classes: int
) -> list[Point]:
    """The metric over the rounds: of the own last models after each round if it was tracked, else wherever all were evaluated."""
    if metric == "last" and _is_tracked(phases, measure):
        guessed_among = classes if measure == ACCURACY else None
        return _tracked_curve(phases, agents, guessed_among)
    points = []
    for phase in phases:
        averages = phase.get("evaluation", {})
        # no agent chooses what it uses before the last round is over
        on: Metric = "server" if metric == "delivered" and metric not in averages else metric
        figure = figure_of(averages, on, measure)
        if figure is not None:
            points.append(_point(phase, on, phase["round"], figure, agents))
    return points


def _is_tracked(phases: Iterable[Phase], measure: Measure) -> bool:
    """Whether the record has each agent's figure right after its training. It has accuracy or RMSE, and no other."""
    if measure != main_measure(regression=measure != ACCURACY):
        return False
    return any("tracked" in phase for phase in phases)


def _tracked_curve(phases: Iterable[Phase], agents: int, classes: int | None) -> list[Point]:
    """The own last models over the rounds: the mean over all agents of the figure right after their newest training.

    Any phase that trains counts. Published counts of rounds are made this way, with a guess for each agent
    that has not trained: with C = 0.1 a quarter of all agents has not trained after 13 rounds, unless
    all trained once before the rounds. Without classes it is unknown how good a guess is: then the mean is over the
    agents that have trained.
    """
    newest: dict[str, float | None] = {}  # by agent; None: it has no test data
    points = []
    for phase in phases:
        newest |= phase.get("tracked", {}).get("by_agent", {})
        if not phase["ends_round"]:
            continue
        figure = _mean_with_guesses(newest.values(), agents, classes)
        if figure is not None:
            points.append(_point(phase, "last, tracked", phase["round"] + 1, figure, agents))
    return points


def _mean_with_guesses(
    reached: Collection[float | None], agents: int, classes: int | None
) -> float | None:
    """The mean over all agents with test data, a guess for each that has not trained; None if none has trained."""
    known = [figure for figure in reached if figure is not None]
    if not known:
        return None
    if classes is None:
        return sum(known) / len(known)
    without_data = len(reached) - len(known)
    return (sum(known) + (agents - len(reached)) / classes) / (agents - without_data)


def _point(phase: Phase, on: str, rounds: int, figure: float, agents: int) -> Point:
    """The point after a phase, with the traffic until then."""
    traffic = phase["traffic"]
    mbit = mbit_per_agent(traffic, agents)
    mb_wire = None
    if traffic.get("wire_up"):  # there was a broker
        bytes_sent = -traffic.get("evaluation_models", 0)
        for key in ("wire_down", "down_models", "wire_up"):
            bytes_sent += traffic.get(key, 0)
        mb_wire = bytes_sent / 1e6
    return Point(on, rounds, figure, mbit, mb_wire)


def _first_at(points: Iterable[Point], measure: Measure, target: float) -> Point | None:
    """The first point that is as good as the target, without smoothing."""
    return next((one for one in points if measure.reaches(one.figure, target)), None)


def _participants_reach(phases: Iterable[Phase], measure: Measure, target: float) -> int | None:
    """The first round, from 1, whose participants alone reach the target on average, right after training."""
    for phase in phases:
        if phase["phase"] != TRAIN:  # a phase of all agents before the rounds is no round
            continue
        mean = figure_of({"last": phase.get("tracked", {})}, "last", measure)
        if mean is not None and measure.reaches(mean, target):
            rounds: int = phase["round"] + 1
            return rounds
    return None


FIGURES = ("accuracy", "f1", "mse", "rmse", "mae", "r2")
COPIED = ("clusters", "ari", "nmi", "purity", "rounds", "agents", "mbit_per_agent")  # from results


@dataclass(frozen=True)
class ComparisonRow:
    """One finished cell. Which columns there are depends on the task, the method and the target."""

    partition: str  # its label; empty for the scenario's own
    method: str  # its label
    seed: int
    columns: Mapping[str, Any] = field(repr=False)  # all, in order, also those three
    # the compared measure of each agent, if the run's folder is here
    agents: Mapping[str, float] = field(default_factory=dict, repr=False)
    alone: Mapping[str, Mapping[str, float]] = field(default_factory=dict, repr=False)  # by mode

    @classmethod
    def from_json(cls, columns: Mapping[str, Any]) -> Self:
        """A row as compare.json has it. Raises KeyError if it does not name its cell."""
        return cls(columns["partition"], columns["method"], columns["seed"], columns)

    def to_json(self) -> dict[str, Any]:
        """The columns by name, in the order of the files."""
        return dict(self.columns)

    def __getitem__(self, column: str) -> Any:
        return self.columns[column]

    def __contains__(self, column: str) -> bool:
        return column in self.columns

    def get(self, column: str) -> Any:
        """The value of a column; None if the row does not have it."""
        return self.columns.get(column)

    def updated(self, columns: Mapping[str, Any]) -> Self:
        """The same row with other values, or further columns at its end."""
        return replace(self, columns={**self.columns, **columns})


def row_of(
    cell: Cell,
    compare: Compare,
    result: Mapping[str, Any],
    record: Iterable[Mapping[str, Any]],
    agents: Iterable[Mapping[str, Any]] = (),
) -> ComparisonRow:
    """The row of a finished cell.

    Accuracies are shares, errors of a regression are in the units of the target, traffic is in Mbit of float32
    values per agent and in MB on the wire.

    Args:
        cell: what was run
        compare: the comparison that it belongs to
        result: the run's result.json
        record: the lines of its rounds.jsonl
        agents: the rows of its agents.parquet
    """
    averages = averages_by_mode(result)
    undrawn = averages.get("last_of_undrawn", {})
    columns: dict[str, Any] = {
        "partition": cell.split,
        "method": cell.label,
        "seed": cell.seed,
        "strategy": cell.scenario.strategy.name,
        "split": result.get("partition"),  # a digest of who held which samples
    }
    task = cell.scenario.task
    measure = measure_of(compare, task)
    columns |= _figures(averages, measure)
    columns["undrawn"] = undrawn.get("agents")  # how many agents no training round has drawn
    columns |= _judgement(columns, compare, measure)
    for key in COPIED:
        columns[key] = result[key]
    columns["mb_wire"] = _mb_wire(result["bytes"])
    columns["seconds"] = result["seconds"]
    notes = result["notes"]
    if "J" in notes:  # FeSEM's mean distance of models to their cluster's centre
        columns["J"] = notes["J"]
    target = target_of(compare, cell)
    if target is not None:
        phases = [line for line in record if line["event"] == "phase"]
        columns |= columns_to_target(
            phases,
            columns["metric"],
            measure,
            target=target,
            agents=result["agents"],
            classes=task.outputs,
        )
    mode, _ = METRICS[compare.metric]
    key = f"{mode}_{measure.name}"
    served = key.replace("delivered", "server", 1)
    by_agent: dict[str, float] = {}
    alone: dict[str, dict[str, float]] = {mode: {} for mode in ALONE}
    for agent in agents:
        name = agent["agent"]
        if (figure := agent.get(key, agent.get(served))) is not None:
            by_agent[name] = figure
        for mode, figures in alone.items():
            if (figure := agent.get(f"{mode}_{measure.name}")) is not None:
                figures[name] = figure
    return ComparisonRow(cell.split, cell.label, cell.seed, columns, by_agent, alone)


def judged(row: ComparisonRow, compare: Compare, measure: Measure) -> ComparisonRow:
    """The row with this comparison's metric, and its figure in that metric."""
    return row.updated(_judgement(row.columns, compare, measure))


def with_same_columns(rows: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    """The rows with all columns that any of them has, empty where a row has none."""
    empty: dict[str, None] = {}
    for row in rows:
        empty |= dict.fromkeys(row.columns)
    return [replace(row, columns={**empty, **row.columns}) for row in rows]


def averages_by_mode(result: Mapping[str, Any]) -> dict[str, Any]:
    """The averages of a result by mode; those of newcomers are modes of their own. Agents that do not choose use what they are
    served. Trees that only some have are left out: their mean is one over other agents."""
    averages = dict(result["accuracy"])
    averages = {"delivered": averages.get("server"), **averages}
    for mode in ALONE:
        if averages.get(mode, {}).get("agents") != (averages.get("server") or {}).get("agents"):
            averages.pop(mode, None)
    of_newcomers = (result.get("newcomers") or {}).get("accuracy", {})
    for mode, figures in of_newcomers.items():
        averages[f"newcomers_{mode}"] = figures
    return averages


def _figures(averages: Mapping[str, Any], measure: Measure) -> dict[str, float]:
    """A column for each mode, figure and average, such as last_accuracy_macro."""
    columns = {}
    for mode in MODES:
        figures = averages.get(mode)
        if not figures:
            continue
        for figure in dict.fromkeys((*FIGURES, measure.name)):
            for average, value in figures.get(figure, {}).items():
                column = f"{mode}_{figure}_{average}"
                columns[column] = value
        diverged = figures.get("diverged")
        if diverged:
            column = f"{mode}_diverged"
            columns[column] = len(diverged)
    return columns


def _judgement(columns: Mapping[str, Any], compare: Compare, measure: Measure) -> dict[str, Any]:
    """The metric of the row's method, and its figure of that measure in that metric."""
    metric = metric_of(compare, columns["method"])
    mode, average = METRICS[metric]
    column = f"{mode}_{measure.name}_{average}"
    judgement: dict[str, Any] = {"metric": metric, "figure": columns.get(column)}
    if measure != ACCURACY:
        judgement["measure"] = measure.name
    return judgement


def _mb_wire(sent: Mapping[str, int]) -> float | None:
    """Megabytes on the wire, both ways; None for a run without a broker."""
    up = sent["wire_up"]
    if not up:
        return None
    return (sent["wire_down"] + up) / 1e6


# Columns that are averaged besides the accuracies.
AVERAGED = (
    "J",
    "ari",
    "nmi",
    "purity",
    "mbit_per_agent",
    "mb_wire",
    "rounds_to_target",
    "mbit_to_target",
    "mb_wire_to_target",
    "seconds",
)


@dataclass(frozen=True)
class Spread:
    """A figure over those seeds that have it."""

    mean: float
    std: float  # of the sample, n - 1; 0 for one seed
    n: int  # how many seeds have the figure


@dataclass(frozen=True)
class Summary:
    """One method on one partition, over its finished seeds."""

    partition: str  # its label
    method: str  # its label
    seeds: list[int]
    metric: Metric
    measure: MeasureName  # of the compared figure
    published: float | None  # the published figure (of accuracy in percent), to compare with
    figures: Mapping[str, Spread]  # by column of a row
    clusters: list[int | None]  # per seed, as the following
    rounds: list[int | None]
    reached: list[int | None] | None  # rounds to the target; None if the partition has no target

    def to_json(self) -> dict[str, Any]:
        """An entry of "methods" in compare.json."""
        row: dict[str, Any] = {
            "partition": self.partition,
            "method": self.method,
            "seeds": self.seeds,
            "metric": self.metric,
            **({"measure": self.measure} if self.measure != ACCURACY.name else {}),
            "published": self.published,
        }
        for key, spread in self.figures.items():
            row[key] = asdict(spread)
        row["clusters"] = self.clusters
        row["rounds"] = self.rounds
        if self.reached is not None:
            row["reached"] = self.reached
        return row


def deviation_of(values: Sequence[float]) -> float:
    """The standard deviation of a sample (n - 1), as papers have it; 0 for one value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def summaries(scenario: Scenario, rows: Sequence[ComparisonRow]) -> list[Summary]:
    """A summary for each partition and method that has a finished seed, in the order of the scenario."""
    found = []
    for split in splits(scenario):
        for method in section(scenario).methods:
            key = (split.label, method.label)
            own = [row for row in rows if (row.partition, row.method) == key]
            if own:
                found.append(_summary(split, own, measure_of(section(scenario), scenario.task)))
    return found


def _summary(split: ComparedPartition, rows: Sequence[ComparisonRow], measure: Measure) -> Summary:
    first = rows[0]
    columns: dict[str, None] = {}  # of all rows, in order
    for row in rows:
        columns |= dict.fromkeys(row.columns)
    figures = {}
    for column in columns:
        if _is_averaged(column):
            values = [row[column] for row in rows if row.get(column) is not None]
            if values:
                mean = statistics.fmean(values)
                figures[column] = Spread(mean, deviation_of(values), len(values))
    reached = None
    if split.target is not None:
        reached = [row["rounds_to_target"] for row in rows]
    return Summary(
        partition=split.label,
        method=first.method,
        seeds=[row.seed for row in rows],
        metric=first["metric"],
        measure=measure.name,
        published=split.published.get(first.method),
        figures=figures,
        clusters=[row.get("clusters") for row in rows],
        rounds=[row.get("rounds") for row in rows],
        reached=reached,
    )


def _is_averaged(column: str) -> bool:
    if column in AVERAGED or column == "figure":
        return True
    return column.endswith(("_micro", "_macro", "_diverged"))
