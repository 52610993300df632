"""`agent check`: what the data holds, as a table for people or as JSON for programs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.table import Table

from covey.agent.data.check import read_local
from covey.agent.data.dataset import with_test
from covey.agent.data.fit import fit
from covey.agent.data.load import tables_at
from covey.agent.data_place import place_of
from covey.extras.proposals.findings import DataFinding, inspect, note_on_testing
from covey.shared.errors import DataError, UserError
from covey.shared.numerics.split import TensorsOfRole
from covey.shared.programs.terminal import Terminal
from covey.shared.scenario.load import load_without_files
from covey.shared.scenario.task import Task
from covey.shared.sentences import some
from covey.shared.storage import json_text

SHOWN = 20  # words of a category


def show(
    data: str,
    label: str | None,
    scenario: Path | None,
    *,
    as_json: bool,
    parts: Sequence[TensorsOfRole] = (),
) -> bool:
    """Print what was found; False if something keeps the data out of a run.

    Args:
        data: a path.
        label: the column to predict.
        scenario: whose task the data is compared with.
        as_json: for programs.
        parts: of the scenario's model: what travels, what stays, what does not train.

    Raises:
        UserError: the data cannot be read. As JSON, that is a problem like others.
    """
    task: Task | None = None
    if scenario:
        task = load_without_files(scenario).task
    try:
        finding = _found(data, label, task)
    except DataError as error:
        if not as_json:
            raise
        problem = {"source": data, "problems": [str(error)]}
        print(json_text.dumps(problem))
        return False
    if as_json:
        content = finding.to_json()
        if parts:
            content["parts"] = [asdict(part) for part in parts]
        print(json_text.dumps(content))
    else:
        _print(finding, scenario, parts)
    return not finding.problems


def _found(data: str, label: str | None, task: Task | None) -> DataFinding:
    """The finding of data that has its test part as on a device.

    Without a task, a table whose cells are not all numbers is read as `--propose` would.
    """
    remarks: list[str] = []
    try:
        local = read_local(data, label, task)
    except DataError as error:
        task, remark = _proposed_task(data, label, task, error)
        local = read_local(data, label, task)
        remarks.append(remark)
    if not local.has_test:
        remarks.append(note_on_testing(local))
    if task is not None:
        with contextlib.suppress(DataError):  # `inspect` names it
            local = fit(local, task)
    finding = inspect(with_test(local), task)
    return replace(finding, notes=(*remarks, *finding.notes))


def _proposed_task(
    data: str, label: str | None, task: Task | None, error: DataError
) -> tuple[Task, str]:
    """The task that fits a table, and a remark on it; the error if it is no table, or was compared with a task."""
    if task is not None or not tables_at(place_of(data)):
        raise error
    from covey.extras.proposals.proposal_data import task_of_table

    try:
        found = task_of_table(data, label)
    except UserError:
        raise error from None
    kinds: list[str] = []
    if found.categories:
        listed = [
            f"{name} ({some(found.table_columns[found.columns.index(name)].words, SHOWN)})"
            for name in found.categories
        ]
        kinds.append(f"words in {some(listed)}")
    if found.times:
        kinds.append(f"times in {some(found.times)}")
    if found.ignore:
        kinds.append(f"without {some(found.ignore)}")
    kinds.append(f"target {found.target}")
    how = "; ".join(kinds)
    return (
        found,
        f"read as `agent check --propose` proposes: {how}; --scenario compares it with a task",
    )


def _print(finding: DataFinding, scenario: Path | None, parts: Sequence[TensorsOfRole]) -> None:
    """A table, then notes and problems, one a line."""
    table = Table(title=finding.source, show_header=False, title_justify="left")
    for name, value in _rows(finding).items():
        table.add_row(name, value)
    for part in parts:
        table.add_row(part.role, str(part))
    out = Terminal(soft_wrap=True)
    out.print(table)
    for note in finding.notes:
        out.print(f"note: {note}")
    for problem in finding.problems:
        out.print(f"wrong: {problem}", style="red")
    if scenario and not finding.problems:
        out.print(f"fits the task of {scenario}", style="green")


def _rows(finding: DataFinding) -> Mapping[str, str]:
    """The rows of the table."""
    smallest, largest = finding.value_range
    shape = "x".join([str(length) for length in finding.shape])
    classes = [f"{one.name} ({one.train}+{one.test})" for one in finding.classes]
    sent = [f"{name} {value}" for name, value in finding.disclosure.to_json().items() if value]
    return {
        "training samples": str(finding.samples),
        "test samples": str(finding.test_samples),
        "one sample": f"{shape} {finding.dtype}, from {smallest:g} to {largest:g}",
        "classes": ", ".join(classes) or "none: regression",
        "sent to the coordinator": ", ".join(sent),
    }
