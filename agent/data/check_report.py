"""`agent check`: what lies in the data, told to a person as a table or to a program as JSON."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from covey.agent.data.check import Finding, inspect, load_local
from covey.shared import json_text
from covey.shared.errors import DataError
from covey.shared.scenario.load import load_without_files
from covey.shared.terminal import Terminal


def show(data: str, label: str | None, scenario: Path | None, *, as_json: bool) -> bool:
    """Print what was found; False if something keeps the data out of a run.

    Raises UserError for data that cannot be read; as JSON, that is a problem like others.
    """
    task = load_without_files(scenario).task if scenario else None
    try:
        finding = inspect(load_local(data, label), task)
    except DataError as error:
        if not as_json:
            raise
        print(json_text.dumps({"source": data, "problems": [str(error)]}))
        return False
    if as_json:
        print(json_text.dumps(asdict(finding)))
    else:
        _print(finding, f"the task of {scenario}" if scenario else "")
    return not finding.problems


def _print(finding: Finding, task: str) -> None:
    out = Terminal(soft_wrap=True)
    table = Table(title=finding.source, show_header=False, title_justify="left")
    low, high = finding.value_range
    rows = {
        "training samples": str(finding.samples),
        "test samples": str(finding.test_samples),
        "one sample": f"{'x'.join(map(str, finding.shape))} {finding.dtype}, from {low:g} to {high:g}",
        "classes": ", ".join(f"{name} ({train}+{test})" for name, train, test in finding.classes)
        or "none: regression",
        "told to the coordinator": ", ".join(
            f"{key} {value}" for key, value in finding.told.items() if value
        ),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    out.print(table)
    for note in finding.notes:
        out.print(f"note: {note}")
    for problem in finding.problems:
        out.print(f"wrong: {problem}", style="red")
    if task and not finding.problems:
        out.print(f"fits {task}", style="green")
