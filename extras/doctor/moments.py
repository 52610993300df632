"""The columns of a fleet, from the sums that agents report before the first round, or from descriptions of their data. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from covey.extras.doctor.columns import Columns, Numbers, numbers_of
from covey.shared.scenario.task import Task

if TYPE_CHECKING:  # a run that asks for sums loads no proposals
    from covey.extras.proposals.description import ColumnFacts, DataDescription

TARGET = "target"  # its name where the task gives it none
FLAGS = 2  # different values of a column that may be yes and no

ByColumn = dict[str, dict[str, Numbers]]


def columns_of_reports(reports: Iterable[tuple[str, Mapping[str, Any]]], task: Task) -> Columns:
    """The columns that a task asks sums of.

    Args:
        reports: of each agent, checked (`fleet_statistics`).
        task: not resolved.
    """
    found: ByColumn = {}
    names = [column.name for column in task.table_columns if column.kind == "number"]
    for agent, numbers in reports:
        if "sum" in numbers:
            totals, squares = _flat(numbers["sum"]), _flat(numbers["square"])
            counts = _flat(numbers["count"])
            counts *= len(totals) // len(counts) if counts else 1
            rows = max(counts, default=0.0)
            for place, sums in enumerate(zip(counts, totals, squares, strict=True)):
                name = names[place] if names else f"channel {place + 1}"
                _add(found, name, agent, numbers_of(*sums, rows))
        if TARGET in numbers:
            of = numbers[TARGET]
            [sums] = zip(_flat(of["count"]), _flat(of["sum"]), _flat(of["square"]), strict=True)
            _add(found, target_of(task), agent, numbers_of(*sums))
    return found


def target_of(task: Task) -> str:
    """The name of a task's target among its columns; "" if it is no number."""
    if task.kind != "values":
        return ""
    return task.target if isinstance(task.target, str) else TARGET


def _flat(values: Any) -> list[float]:
    return [float(one) for one in values] if isinstance(values, Sequence) else [float(values)]


def _add(found: ByColumn, name: str, agent: str, numbers: Numbers | None) -> None:
    if numbers is not None:
        found.setdefault(name, {})[agent] = numbers


def columns_of_descriptions(devices: Sequence[DataDescription]) -> Columns:
    """The columns of numbers of tables, and the targets of other data."""
    found: ByColumn = {}
    for device in devices:
        for facts in (*device.columns, *([device.target] if device.target is not None else ())):
            _add(found, facts.name, device.source, _of_facts(facts))
    return found


def _of_facts(facts: ColumnFacts) -> Numbers | None:
    if facts.mean is None or facts.std is None or facts.kind != "number" or facts.steps:
        return None
    missing = facts.missing / facts.cells if facts.cells else 0.0
    most = None if facts.most is None or not facts.numbers else facts.most / facts.numbers
    return Numbers(facts.numbers, facts.mean, facts.std, missing, facts.distinct <= FLAGS, most)
