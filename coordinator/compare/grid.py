"""A comparison: the grid of methods, partitions and seeds, and a row of figures per cell. Pure: no files, no processes."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covey.coordinator.run import mixtures
from covey.coordinator.run.records import mbit_per_agent
from covey.shared.errors import UserError
from covey.shared.scenario.compare import Compare, Method, Metric, Split
from covey.shared.scenario.scenario import Scenario

Row = dict[str, Any]
MODES = (
    "last",
    "last_of_undrawn",
    "server",
    "tuned",
    "best",
    "newcomers_server",
    "newcomers_tuned",
)
METRICS: Mapping[Metric, tuple[str, str]] = {
    "last": ("last", "macro"),
    "server": ("server", "macro"),
    "tuned": ("tuned", "macro"),
    "global": ("server", "micro"),
    "newcomers": ("newcomers_tuned", "macro"),
}
TUNING = (
    "tune_epochs",
    "tune_batch",
    "tune_lr",
    "tune_momentum",
    "tune_weight_decay",
)  # what E-tuned was made with
SPREAD = (
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
class Cell:
    """One run of the grid; `split` is empty where the scenario's own partition is the only one."""

    split: str
    label: str
    seed: int
    scenario: Scenario

    @property
    def words(self) -> list[str]:
        return [*([self.split] if self.split else []), self.label, str(self.seed)]

    @property
    def name(self) -> str:
        return "/".join(self.words)

    @property
    def folder(self) -> Path:
        """Below the comparison's folder."""
        return Path(self.split) / self.label / f"seed-{self.seed}"


def section(scenario: Scenario) -> Compare:
    """What is compared. Raises UserError where the scenario does not say."""
    if scenario.compare is None:
        raise UserError(
            f"{scenario.name} has no section compare; wanted is, for example, "
            "compare: {methods: [{name: fedavg}, {name: fedclust}], seeds: [1, 2, 3]}"
        )
    return scenario.compare


def splits(scenario: Scenario) -> list[Split]:
    """The partitions that are compared on; one without a label where it is the scenario's own."""
    compare = section(scenario)
    own = Split.model_construct(
        label="", partition="", published=compare.published, target=compare.target
    )
    return list(compare.partitions) or [own]


def grid(scenario: Scenario) -> list[Cell]:
    """All cells, seed by seed and partition by partition, so that methods can be compared early."""
    compare = section(scenario)
    return [
        Cell(split.label, method.label, seed, _of(scenario, split, method, seed))
        for seed in compare.seeds
        for split in splits(scenario)
        for method in compare.methods
    ]


def _of(scenario: Scenario, split: Split, method: Method, seed: int) -> Scenario:
    """The scenario that one cell runs."""
    changed: dict[str, Any] = {"seed": seed, "strategy": method.strategy, "compare": None}
    changed |= {"task": scenario.task_of(method), "training": scenario.training_of(method)}
    changed["evaluation"] = scenario.evaluation_of(method)
    if split.label and scenario.fleet is not None:
        changed["fleet"] = scenario.fleet.model_copy(update={"partition": split.partition})
    return scenario.model_copy(update=changed)


def chosen(cells: Sequence[Cell], wanted: Iterable[str]) -> list[Cell]:
    """The cells that are named: "fedavg/1", "fedavg" for all seeds, "skew20" for all methods on that partition; all
    of them where nothing is."""
    names = [name for text in wanted for name in text.split(",") if name]
    for name in names:
        if not any(_names(name, cell) for cell in cells):
            raise UserError(
                f"--cells {name}: there is no such cell; there are {', '.join(cell.name for cell in cells)}"
            )
    return [cell for cell in cells if not names or any(_names(name, cell) for name in names)]


def _names(name: str, cell: Cell) -> bool:
    return set(name.split("/")) <= set(cell.words)


# -- figures -----------------------------------------------------------------------------------------------------------


def row_of(
    cell: Cell, compare: Compare, result: Mapping[str, Any], lines: Iterable[Mapping[str, Any]]
) -> Row:
    """The figures of a finished cell: accuracies as shares, traffic in Mbit per agent and in MB on the wire."""
    modes = _modes(result)
    target = target_of(compare, cell)
    row: Row = {
        "partition": cell.split,
        "method": cell.label,
        "seed": cell.seed,
        "strategy": cell.scenario.strategy.name,
        "split": result.get("partition"),  # who held which samples
    }
    for mode in MODES:
        figures = modes.get(mode, {})
        for figure in ("accuracy", "f1", "mse"):
            for average, value in figures.get(figure, {}).items():
                row[f"{mode}_{figure}_{average}"] = value
    row["undrawn"] = modes.get("last_of_undrawn", {}).get("agents")
    row |= tuning_of(cell.scenario)
    row = judged(row, compare)
    row |= {
        key: result[key]
        for key in ("clusters", "ari", "nmi", "purity", "rounds", "agents", "mbit_per_agent")
    }
    wire = result["bytes"]
    row["mb_wire"] = (
        (wire["wire_down"] + wire["wire_up"]) / 1e6 if wire["wire_up"] else None
    )  # none without a broker
    row["seconds"] = result["seconds"]
    row |= mixtures.row_of(result)
    if "J" in result["notes"]:  # FeSEM's mean distance to the own centre
        row["J"] = result["notes"]["J"]
    if target is not None:
        phases = [line for line in lines if line["event"] == "phase"]
        row |= _reached(
            _curve(phases, row["metric"], result["agents"], cell.scenario.task.outputs), target
        )
        row["rounds_to_target_participants"] = _participants_reach(phases, target)
    return row


def tuning_of(scenario: Scenario) -> Row:
    """The settings of fine-tuning as columns of a row; without values where mode E-tuned is left out."""
    settings = scenario.fine_tuning or {}
    return {key: settings.get(key.removeprefix("tune_")) for key in TUNING}


def target_of(compare: Compare, cell: Cell) -> float | None:
    """The accuracy that the cell's rounds and traffic are counted to."""
    return next(
        (split.target for split in compare.partitions if split.label == cell.split), compare.target
    )


def judged(row: Row, compare: Compare) -> Row:
    """A row with this comparison's metric and the figure in it."""
    metric = _metric(compare, row["method"])
    mode, average = METRICS[metric]
    return {**row, "metric": metric, "figure": row.get(f"{mode}_accuracy_{average}")}


def _modes(result: Mapping[str, Any]) -> dict[str, Any]:
    """Figures by mode, those of the newcomers beside the others'."""
    newcomers = (result.get("newcomers") or {}).get("accuracy", {})
    return {
        **result["accuracy"],
        **{f"newcomers_{mode}": figures for mode, figures in newcomers.items()},
    }


def _metric(compare: Compare, label: str) -> Metric:
    own = next((method.metric for method in compare.methods if method.label == label), None)
    return own or compare.metric


def _accuracy(modes: Mapping[str, Any], metric: Metric) -> float | None:
    mode, average = METRICS[metric]
    value: float | None = modes.get(mode, {}).get("accuracy", {}).get(average)
    return value


@dataclass(frozen=True)
class Point:
    """Where a run stood after so many rounds (from 1): accuracy, and traffic until then."""

    on: str
    rounds: int
    accuracy: float
    mbit: float  # per agent
    mb_wire: float | None  # of all agents; models that were sent out for evaluation are left out


def _curve(
    phases: Sequence[Mapping[str, Any]], metric: Metric, agents: int, classes: int
) -> list[Point]:
    """The metric over the rounds.

    E-last where it was tracked: the mean over all agents of what each reached right after its newest training, in
    whichever phase; who never trained counts as a guess. That is what published counts of rounds are made of: with
    C = 0.1 a quarter of all agents has not trained after 13 rounds, unless all trained once before the rounds.
    Otherwise the metric where everybody was evaluated.
    """
    newest: dict[str, float | None] = {}  # None: it has nothing to test on
    points = []
    for line in phases:
        on, value, rounds = (
            str(metric),
            _accuracy(line.get("evaluation", {}), metric),
            line["round"],
        )
        if metric == "last" and any("tracked" in other for other in phases):
            newest |= line.get("tracked", {}).get("by_agent", {})
            on, rounds = "last, tracked", line["round"] + 1
            value = _with_guesses(newest.values(), agents, classes) if line["ends_round"] else None
        if value is not None:
            points.append(_point(on, rounds, value, line["traffic"], agents))
    return points


def _with_guesses(reached: Collection[float | None], agents: int, classes: int) -> float | None:
    """The mean over all agents that test, a guess for each that has not trained; None where nobody has an accuracy."""
    known = [accuracy for accuracy in reached if accuracy is not None]
    tested = agents - (len(reached) - len(known))
    return (sum(known) + (agents - len(reached)) / classes) / tested if known else None


def _participants_reach(phases: Iterable[Mapping[str, Any]], target: float) -> int | None:
    """The first round (from 1) whose participants alone have the target on the mean, right after their training."""
    rounds = [
        line for line in phases if line["phase"] == "train"
    ]  # a phase of all agents before them is no round
    means = (
        (line["round"] + 1, _accuracy({"last": line.get("tracked", {})}, "last")) for line in rounds
    )
    return next((rounds for rounds, mean in means if mean is not None and mean >= target), None)


def _point(on: str, rounds: int, accuracy: float, traffic: Mapping[str, int], agents: int) -> Point:
    wire = sum(traffic.get(key, 0) for key in ("wire_down", "down_models", "wire_up"))
    wire -= traffic.get("evaluation_models", 0)
    return Point(
        on,
        rounds,
        accuracy,
        mbit_per_agent(traffic, agents),
        wire / 1e6 if traffic.get("wire_up") else None,
    )


def _reached(curve: Sequence[Point], target: float) -> Row:
    """The first point at or above the target, without smoothing."""
    first = next((point for point in curve if point.accuracy >= target), None)
    return {
        "target_on": curve[0].on if curve else None,
        "rounds_to_target": first.rounds if first else None,
        "mbit_to_target": first.mbit if first else None,
        "mb_wire_to_target": first.mb_wire if first else None,
    }


def summaries(scenario: Scenario, rows: Sequence[Row]) -> list[Row]:
    """Per partition and method: how many seeds, and mean and population deviation of every figure over those that have
    it."""
    return [
        _summary(split, mine)
        for split in splits(scenario)
        for method in section(scenario).methods
        if (
            mine := [
                row
                for row in rows
                if (row["partition"], row["method"]) == (split.label, method.label)
            ]
        )
    ]


def no_better(scenario: Scenario, found: Sequence[Row]) -> list[str]:
    """A sentence for each clustered method whose models are no better than FedAvg's one, in E-server or in E-tuned."""
    methods = section(scenario).methods
    single = {method.label for method in methods if method.strategy.name == "fedavg"}
    said = []
    for one in found:
        baselines = [
            row for row in found if row["method"] in single and row["partition"] == one["partition"]
        ]
        clusters = [number for number in one["clusters"] if number is not None]
        if not baselines or one["method"] in single or max(clusters, default=0) < 2:
            continue
        ahead = [
            _ahead(one, baselines[0], f"{mode}_accuracy_macro") for mode in ("server", "tuned")
        ]
        if any(points is not None for points in ahead) and not any(
            points and points > 0 for points in ahead
        ):
            where = f" on {one['partition']}" if one["partition"] else ""
            said.append(
                f"{one['method']}{where}: its clusters are no better than {baselines[0]['method']}'s one model"
            )
    return said


def _ahead(one: Row, other: Row, figure: str) -> float | None:
    """By how much a mean figure is larger; None where one of them has none."""
    return (
        one[figure]["mean"] - other[figure]["mean"] if figure in one and figure in other else None
    )


def _summary(split: Split, mine: Sequence[Row]) -> Row:
    first = mine[0]
    summary: Row = {
        "partition": split.label,
        "method": first["method"],
        "seeds": [row["seed"] for row in mine],
    }
    summary |= {"metric": first["metric"], "published": split.published.get(first["method"])}
    for key in dict.fromkeys(key for row in mine for key in row):
        values = [row[key] for row in mine if row.get(key) is not None]
        if values and (key in SPREAD or _is_figure(key)):
            summary[key] = {
                "mean": statistics.fmean(values),
                "std": statistics.pstdev(values),
                "n": len(values),
            }
    summary |= {key: [row.get(key) for row in mine] for key in ("clusters", "rounds", *TUNING)}
    if split.target is not None:
        summary["reached"] = [row["rounds_to_target"] for row in mine]
    return summary


def _is_figure(key: str) -> bool:
    return key == "figure" or key.endswith(("_micro", "_macro")) or mixtures.is_figure(key)
