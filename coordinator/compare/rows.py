"""The rows of a comparison: the figures of one finished cell each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from covey.coordinator.compare.grid import Cell, target_of
from covey.coordinator.compare.metrics import METRICS, MODES, measure_of, metric_of
from covey.coordinator.compare.mixture_columns import mixture_figures
from covey.coordinator.compare.target import columns_to_target
from covey.shared.numerics.measures import ACCURACY, Measure
from covey.shared.scenario.compare import Compare
from covey.shared.scenario.scenario import Scenario

FIGURES = ("accuracy", "f1", "mse", "rmse", "mae", "r2")
# Columns with the settings of fine-tuning, which E-tuned depends on.
TUNING = ("tune_epochs", "tune_batch", "tune_lr", "tune_momentum", "tune_weight_decay")
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
    averages = _averages_by_mode(result)
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
    columns |= tuning_of(cell.scenario)
    columns |= _judgement(columns, compare, measure)
    for key in COPIED:
        columns[key] = result[key]
    columns["mb_wire"] = _mb_wire(result["bytes"])
    columns["seconds"] = result["seconds"]
    columns |= mixture_figures(result)
    notes = result["notes"]
    if "J" in notes:  # FeSEM's mean distance of models to their cluster's centre
        columns["J"] = notes["J"]
    target = target_of(compare, cell)
    if target is not None:
        phases = [line for line in record if line["event"] == "phase"]
        columns |= columns_to_target(
            phases, columns["metric"], measure, target, result["agents"], task.outputs
        )
    mode, _ = METRICS[compare.metric]
    key = f"{mode}_{measure.name}"
    by_agent = {agent["agent"]: agent[key] for agent in agents if agent.get(key) is not None}
    return ComparisonRow(cell.split, cell.label, cell.seed, columns, by_agent)


def judged(row: ComparisonRow, compare: Compare, measure: Measure) -> ComparisonRow:
    """The row with this comparison's metric, and its figure in that metric."""
    return row.updated(_judgement(row.columns, compare, measure))


def with_same_columns(rows: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    """The rows with all columns that any of them has, empty where a row has none."""
    empty: dict[str, None] = {}
    for row in rows:
        empty |= dict.fromkeys(row.columns)
    padded = []
    for row in rows:
        padded.append(replace(row, columns={**empty, **row.columns}))
    return padded


def tuning_of(scenario: Scenario) -> dict[str, Any]:
    """The settings of fine-tuning by column; None for each if E-tuned is not measured."""
    settings = scenario.fine_tuning or {}
    return {column: settings.get(column.removeprefix("tune_")) for column in TUNING}


def _averages_by_mode(result: Mapping[str, Any]) -> dict[str, Any]:
    """The averages of a result by mode; those of newcomers are modes of their own."""
    averages = dict(result["accuracy"])
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
