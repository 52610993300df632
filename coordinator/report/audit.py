"""The output of `coordinator lab audit`: the verdict on an audit log, and how often each event is in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from covey.coordinator.view.table import Table, columns_of


def audit_lines(found: Mapping[str, Any]) -> list[str]:
    """The lines above the table: the verdict, what it rests on, and repairs."""
    intact = found["whole"]
    if intact:
        run = found["run"]
        count = found["lines"]
        verdict = f"the audit log of run {run} is whole: {count} lines"
    else:
        broken_line = found["broken_line"]
        reason = found["why"]
        verdict = f"the audit log is broken at line {broken_line}: {reason}"
    lines = [verdict, *found["notes"]]
    for publication in found["publications"]:
        lines.append(_publication(publication))
    if intact and not found["anchored"]:
        lines.append("no checkpoint and no --head: lines cut off at the end would go unnoticed")
    if found["head"]:
        head = found["head"]
        lines.append(f"newest line: {head} (keep it elsewhere and compare later with --head)")
    return lines


def _publication(one: Mapping[str, Any]) -> str:
    """Which models were published for use, and when."""
    time = one["time"]
    event = one["event"]
    number = one["round"]
    federation = one["federation"]
    return f"{time}  {event}: the models of round {number}, for federation {federation}"


def audit_table(found: Mapping[str, Any]) -> Table:
    """How often each event is in the intact part of the log."""
    title = "no line is whole"
    if found["lines"]:
        first = found["first_time"]
        last = found["last_time"]
        title = f"{first} to {last}"
    rows = [[event, str(count)] for event, count in found["events"].items()]
    return Table(title, columns_of(["event", "lines"]), rows)
