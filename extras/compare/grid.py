"""The grid of a comparison: one cell for each method, partition and seed. Pure: no files, no processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covey.shared.errors import UserError
from covey.shared.scenario.compare import Compare, ComparedPartition, Method
from covey.shared.scenario.scenario import Scenario


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    split: str  # the partition's label; empty for the scenario's own partition
    label: str  # the method's
    seed: int
    scenario: Scenario  # what the run is started with

    @property
    def words(self) -> list[str]:
        """What names the cell: partition (unless it is the only one), method and seed."""
        words = [self.label, str(self.seed)]
        return [self.split, *words] if self.split else words

    @property
    def name(self) -> str:
        """The cell as `--cells` takes it, such as fedavg/1 or skew20/fedavg/1."""
        return "/".join(self.words)

    @property
    def folder(self) -> Path:
        """The run's folder, relative to the comparison's."""
        return Path(self.split) / self.label / f"seed-{self.seed}"


def section(scenario: Scenario) -> Compare:
    """The compare section. Raises UserError if the scenario has none."""
    if scenario.compare is None:
        raise UserError(
            f"{scenario.name} has no section compare; add one, for example "
            "compare: {methods: [{name: fedavg}, {name: fedclust}], seeds: [1, 2, 3]}"
        )
    return scenario.compare


def splits(scenario: Scenario) -> list[ComparedPartition]:
    """The partitions that are compared on; the scenario's own is one without a label."""
    compare = section(scenario)
    if compare.partitions:
        return list(compare.partitions)
    own = ComparedPartition.model_construct(
        label="", partition="", published=compare.published, target=compare.target
    )
    return [own]


def grid(scenario: Scenario) -> list[Cell]:
    """All cells, seed by seed and partition by partition, so that methods can be compared early."""
    compare = section(scenario)
    cells = []
    for seed in compare.seeds:
        for split in splits(scenario):
            for method in compare.methods:
                own = _scenario_of(scenario, split, method, seed)
                cells.append(Cell(split.label, method.label, seed, own))
    return cells


def _scenario_of(
    scenario: Scenario, split: ComparedPartition, method: Method, seed: int
) -> Scenario:
    """The scenario that one cell runs."""
    changes: dict[str, Any] = {
        "seed": seed,
        "strategy": method.strategy,
        "compare": None,
        "task": scenario.task_of(method),
        "training": scenario.training_of(method),
        "evaluation": scenario.evaluation_of(method),
    }
    if split.label and scenario.fleet is not None:
        changes["fleet"] = scenario.fleet.model_copy(update={"partition": split.partition})
    if scenario.fleet is None:  # a trial of methods replaces no model that devices use
        changes["rounds"] = scenario.rounds.model_copy(update={"publish": "never"})
    return scenario.model_copy(update=changes)


def chosen(cells: Sequence[Cell], wanted: Iterable[str]) -> list[Cell]:
    """The cells that are named, or all of them if none is.

    "fedavg/1" names one cell, "fedavg" all its seeds, "skew20" all methods on that partition; a comma
    separates names. Raises UserError for a name that no cell has.
    """
    texts = list(wanted)
    if not texts:
        return list(cells)
    names = [name for name in ",".join(texts).split(",") if name]
    known = ", ".join(cell.name for cell in cells)
    if not names:
        raise UserError(f"--cells: no cell is named; expected some of {known}, or omit --cells")
    for name in names:
        if not any(_is_named(cell, name) for cell in cells):
            raise UserError(f"--cells {name}: there is no such cell; expected some of {known}")
    return [cell for cell in cells if any(_is_named(cell, name) for name in names)]


def _is_named(cell: Cell, name: str) -> bool:
    return set(name.split("/")) <= set(cell.words)


def target_of(compare: Compare, cell: Cell) -> float | None:
    """The accuracy that the cell's rounds and traffic are counted to; None if there is no target."""
    for split in compare.partitions:
        if split.label == cell.split:
            return split.target
    return compare.target
