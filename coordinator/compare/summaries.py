"""Means over the seeds of a comparison."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from covey.coordinator.compare.grid import section, splits
from covey.coordinator.compare.rows import TUNING, ComparisonRow, measure_of
from covey.shared.numerics.measures import ACCURACY, Measure, MeasureName
from covey.shared.scenario.compare import ComparedPartition, Metric
from covey.shared.scenario.scenario import Scenario

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
    std: float  # population deviation
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
    tuning: Mapping[str, list[Any]]  # settings of fine-tuning, by column
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
        row |= self.tuning
        if self.reached is not None:
            row["reached"] = self.reached
        return row


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
                figures[column] = Spread(mean, statistics.pstdev(values), len(values))
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
        tuning={column: [row.get(column) for row in rows] for column in TUNING},
        reached=reached,
    )


def _is_averaged(column: str) -> bool:
    if column in AVERAGED or column == "figure":
        return True
    return column.endswith(("_micro", "_macro", "_diverged"))
