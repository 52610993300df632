"""A comparison: the grid of methods and seeds, a row of figures per cell, and the tables. Pure: no files, no processes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator import mixtures
from shared.errors import UserError
from shared.scenario import Compare, Metric, Scenario

Row = dict[str, Any]
NONE = "–"
MODES = ("last", "server", "tuned", "best")
METRICS: Mapping[Metric, tuple[str, str]] = {
    "last": ("last", "macro"),
    "server": ("server", "macro"),
    "tuned": ("tuned", "macro"),
    "global": ("server", "micro"),
}
SPREAD = ("ari", "nmi", "purity", "mbit_per_agent", "mb_wire", "rounds_to_target", "mbit_to_target", "seconds")


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    label: str
    seed: int
    scenario: Scenario

    @property
    def name(self) -> str:
        return f"{self.label}/{self.seed}"

    @property
    def folder(self) -> Path:
        """Below the comparison's folder."""
        return Path(self.label) / f"seed-{self.seed}"


def section(scenario: Scenario) -> Compare:
    """What is compared. Raises UserError where the scenario does not say."""
    if scenario.compare is None:
        raise UserError(
            f"{scenario.name} has no section compare; wanted is, for example, "
            "compare: {methods: [{name: fedavg}, {name: fedclust}], seeds: [1, 2, 3]}"
        )
    return scenario.compare


def grid(scenario: Scenario) -> list[Cell]:
    """All cells, seed by seed, so that methods can be compared early."""
    compare = section(scenario)
    return [
        Cell(
            method.label,
            seed,
            scenario.model_copy(
                update={
                    "seed": seed,
                    "strategy": method.strategy,
                    "task": scenario.task_of(method),
                    "training": scenario.training_of(method),
                    "compare": None,
                }
            ),
        )
        for seed in compare.seeds
        for method in compare.methods
    ]


def chosen(cells: Sequence[Cell], wanted: Iterable[str]) -> list[Cell]:
    """The cells that are named, "fedavg/1" or "fedavg" for all seeds; all of them where none is."""
    names = [name for text in wanted for name in text.split(",") if name]
    for name in names:
        if not any(name in (cell.name, cell.label) for cell in cells):
            raise UserError(
                f"--cells {name}: there is no such cell; there are {', '.join(cell.name for cell in cells)}"
            )
    return [cell for cell in cells if not names or cell.name in names or cell.label in names]


# -- figures -----------------------------------------------------------------------------------------------------------


def row_of(cell: Cell, compare: Compare, result: Mapping[str, Any], lines: Iterable[Mapping[str, Any]]) -> Row:
    """The figures of a finished cell: accuracies as shares, traffic in Mbit per agent and in MB on the wire."""
    metric = _metric(compare, cell.label)
    row: Row = {"method": cell.label, "seed": cell.seed, "strategy": cell.scenario.strategy.name}
    for mode in MODES:
        figures = result["accuracy"].get(mode, {})
        for figure in ("accuracy", "f1", "mse"):
            for average, value in figures.get(figure, {}).items():
                row[f"{mode}_{figure}_{average}"] = value
    row["metric"], row["figure"] = metric, _accuracy(result["accuracy"], metric)
    row |= {key: result[key] for key in ("clusters", "ari", "nmi", "purity", "rounds", "agents", "mbit_per_agent")}
    wire = result["bytes"]
    row["mb_wire"] = (wire["wire_down"] + wire["wire_up"]) / 1e6 if wire["wire_up"] else None  # none without a broker
    row["seconds"] = result["seconds"]
    row |= mixtures.row_of(result)
    if compare.target is not None:
        row |= _reached(lines, compare.target, metric, result["agents"])
    return row


def _metric(compare: Compare, label: str) -> Metric:
    own = next((method.metric for method in compare.methods if method.label == label), None)
    return own or compare.metric


def _accuracy(modes: Mapping[str, Any], metric: Metric) -> float | None:
    mode, average = METRICS[metric]
    value: float | None = modes.get(mode, {}).get("accuracy", {}).get(average)
    return value


def _reached(lines: Iterable[Mapping[str, Any]], target: float, metric: Metric, agents: int) -> Row:
    """The first round (from 1) at or above the target, without smoothing, and the traffic until then.

    Looked at is what participants reach right after their training, where that was tracked; otherwise the metric, after
    those rounds at which everybody was evaluated.
    """
    phases = [line for line in lines if line["event"] == "phase"]
    tracked = any("tracked" in line for line in phases)
    row: Row = {"target_on": "participants" if tracked else metric, "rounds_to_target": None, "mbit_to_target": None}
    for line in phases:
        if tracked:
            value = line.get("tracked", {}).get("accuracy", {}).get("macro")
        else:
            value = _accuracy(line.get("evaluation", {}), metric)
        if value is not None and value >= target:
            traffic = line["traffic"]
            bits = 32 * (traffic.get("down_vectors", 0) + traffic.get("up_vectors", 0))
            return row | {
                "rounds_to_target": line["round"] + (1 if tracked else 0),
                "mbit_to_target": bits / 1e6 / max(agents, 1),
            }
    return row


def summaries(compare: Compare, rows: Sequence[Row]) -> list[Row]:
    """Per method: how many seeds, and mean and population deviation of every figure over those that have it."""
    found = []
    for method in compare.methods:
        mine = [row for row in rows if row["method"] == method.label]
        if not mine:
            continue
        keys = [key for key in dict.fromkeys(key for row in mine for key in row) if key in SPREAD or _is_figure(key)]
        summary: Row = {"method": method.label, "seeds": [row["seed"] for row in mine], "metric": mine[0]["metric"]}
        summary["published"] = compare.published.get(method.label)
        for key in keys:
            values = [row[key] for row in mine if row.get(key) is not None]
            if values:
                summary[key] = {"mean": statistics.fmean(values), "std": statistics.pstdev(values), "n": len(values)}
        summary |= {key: [row.get(key) for row in mine] for key in ("clusters", "rounds")}
        if compare.target is not None:
            summary["reached"] = [row["rounds_to_target"] for row in mine]
        found.append(summary)
    return found


def _is_figure(key: str) -> bool:
    return key == "figure" or key.endswith(("_micro", "_macro")) or mixtures.is_figure(key)


# -- tables ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """Words in columns."""

    title: str
    headers: list[str]
    lines: list[list[str]]

    def markdown(self) -> str:
        rule = [":--", *["--:"] * (len(self.headers) - 1)]
        rows = "\n".join(f"| {' | '.join(words)} |" for words in (self.headers, rule, *self.lines))
        return f"**{self.title}**\n\n{rows}\n"


def table(scenario: Scenario, found: Sequence[Row], average: str = "macro") -> Table:
    """Methods side by side; `average` of the accuracies is macro (mean over agents) or micro (by samples)."""
    compare, columns = section(scenario), dict[str, Callable[[Row], str]]()
    columns["method"] = lambda one: str(one["method"])
    columns["seeds"] = lambda one: str(len(one["seeds"]))
    accuracies = any(f"{mode}_accuracy_{average}" in one for one in found for mode in MODES)
    figure, scale, digits = ("accuracy", 100.0, 2) if accuracies else ("mse", 1.0, 4)
    for mode in ("last", "server", "tuned"):
        key = f"{mode}_{figure}_{average}"
        if any(key in one for one in found):
            columns[f"E-{mode}"] = _spread(key, digits, scale)
    if compare.published:
        columns["published (ours)"] = _published
    if any("ari" in one for one in found):
        columns["ARI"] = _spread("ari", 2)
    for key, (header, places, factor) in mixtures.columns(found).items():
        columns[header] = _spread(key, places, factor)
    columns["clusters"] = lambda one: _listed(one["clusters"])
    if compare.target is not None:
        columns[f"rounds to {100 * compare.target:g} %"] = lambda one: _listed(one["reached"])
        columns["Mbit to it"] = _mean("mbit_to_target", 2)
    columns["Mbit per agent"] = _mean("mbit_per_agent", 2)
    if any("mb_wire" in one for one in found):
        columns["MB on the wire"] = _mean("mb_wire", 1)
    unit = "accuracy in %" if accuracies else "mean squared error"
    title = f"{scenario.name}: {unit}, {average} average; mean ± population deviation over seeds"
    return Table(title, list(columns), [[column(one) for column in columns.values()] for one in found])


def _spread(key: str, digits: int, scale: float = 1.0) -> Callable[[Row], str]:
    def words(one: Row) -> str:
        if key not in one:
            return NONE
        return f"{scale * one[key]['mean']:.{digits}f}±{scale * one[key]['std']:.{digits}f}"

    return words


def _mean(key: str, digits: int) -> Callable[[Row], str]:
    """With a remark where not every seed has the figure."""

    def words(one: Row) -> str:
        if key not in one:
            return NONE
        few = one[key]["n"] < len(one["seeds"])
        return f"{one[key]['mean']:.{digits}f}" + (f" ({one[key]['n']} of {len(one['seeds'])})" if few else "")

    return words


def _published(one: Row) -> str:
    """The published figure, and ours in the metric that it is held against."""
    if one["published"] is None:
        return NONE
    ours = f"{one['metric']} {100 * one['figure']['mean']:.2f}" if "figure" in one else NONE
    return f"{one['published']:.2f} ({ours})"


def _listed(values: Sequence[Any]) -> str:
    """One value where all are the same, else each seed's."""
    words = [NONE if value is None else str(value) for value in values]
    return words[0] if len(set(words)) == 1 else ", ".join(words)


def markdown(scenario: Scenario, found: Sequence[Row]) -> str:
    """Both averages, one table each."""
    return "\n".join(table(scenario, found, average).markdown() for average in ("macro", "micro"))
