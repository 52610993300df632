"""`agent check`: what the data holds, as a table for people or as JSON for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table

from covey.agent.data.check import Finding, inspect, read_local
from covey.agent.data.dataset import with_test
from covey.agent.data.proposal_data import describe
from covey.shared import json_text
from covey.shared.errors import DataError
from covey.shared.proposal.proposal import propose
from covey.shared.scenario.load import load_without_files
from covey.shared.scenario.task import Task
from covey.shared.terminal import Terminal


def show(data: str, label: str | None, scenario: Path | None, *, as_json: bool) -> bool:
    """Print what was found; False if something keeps the data out of a run.

    Raises:
        UserError: the data cannot be read. As JSON, that is a problem like others.
    """
    task: Task | None = None
    if scenario:
        task = load_without_files(scenario).task
    try:
        local = with_test(read_local(data, label, task))
        finding = inspect(local, task)
    except DataError as error:
        if not as_json:
            raise
        problem = {"source": data, "problems": [str(error)]}
        print(json_text.dumps(problem))
        return False
    if as_json:
        print(json_text.dumps(finding.to_json()))
    else:
        _print(finding, scenario)
    return not finding.problems


def show_proposal(sources: Sequence[str], target: str | None, *, as_json: bool) -> None:
    """Print a scenario that fits the data of one or several devices.

    As JSON, print a description of each, one a line, which `coordinator init` combines with others.

    Raises:
        UserError: the data cannot be read, or no column can be its target.
    """
    descriptions = [describe(data) for data in sources]
    if as_json:
        for description in descriptions:
            print(description.model_dump_json())
        return
    proposal = propose(descriptions, target=target)
    print(proposal.to_yaml(), end="")
    remarks = Terminal(stderr=True, soft_wrap=True)
    for remark in proposal.remarks():
        remarks.print(remark)


def _print(finding: Finding, scenario: Path | None) -> None:
    """A table, then notes and problems, one a line."""
    table = Table(title=finding.source, show_header=False, title_justify="left")
    rows = _rows(finding)
    for name, value in rows.items():
        table.add_row(name, value)
    out = Terminal(soft_wrap=True)
    out.print(table)
    for note in finding.notes:
        out.print(f"note: {note}")
    for problem in finding.problems:
        out.print(f"wrong: {problem}", style="red")
    if scenario and not finding.problems:
        out.print(f"fits the task of {scenario}", style="green")


def _rows(finding: Finding) -> Mapping[str, str]:
    """The rows of the table."""
    smallest, largest = finding.value_range
    lengths = [str(length) for length in finding.shape]
    shape = "x".join(lengths)
    classes: list[str] = []
    for one in finding.classes:
        classes.append(f"{one.name} ({one.train}+{one.test})")
    sent: list[str] = []
    disclosed = finding.disclosure.to_json()
    for name, value in disclosed.items():
        if value:
            sent.append(f"{name} {value}")
    return {
        "training samples": str(finding.samples),
        "test samples": str(finding.test_samples),
        "one sample": f"{shape} {finding.dtype}, from {smallest:g} to {largest:g}",
        "classes": ", ".join(classes) or "none: regression",
        "sent to the coordinator": ", ".join(sent),
    }
