"""`coordinator lab audit`: check a run's audit log."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from covey.coordinator.cli.options import out, show_line
from covey.coordinator.view.printed import json_line, show
from covey.coordinator.view.table import Table, columns_of
from covey.extras.audit import check as audit_check
from covey.extras.audit.key import read_key
from covey.shared.cli import Json


def audit(
    folder: Annotated[Path, typer.Argument(help="a run's folder")],
    key: Annotated[
        Path | None,
        typer.Option(
            help="file with the key that the log was signed with", envvar="COVEY_AUDIT_KEY"
        ),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(
            help="NUMBER:HASH that an earlier audit printed; the log must still contain that line"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a run's audit log line by line. If it was changed, print the first wrong line and exit with code 1."""
    secret = read_key(key) if key is not None else None
    known = audit_check.parse_head(head) if head is not None else None
    found = audit_check.summary(audit_check.check(folder, key=secret, head=known))
    if as_json:
        json_line(found)
    else:
        for line in audit_lines(found):
            show_line(line)
        show(out(), audit_table(found))
    if not found["whole"]:
        raise typer.Exit(1)


# -- the output of `coordinator lab audit`: the verdict on an audit log, and how often each event is in it -------------


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
    title = "no intact line"
    if found["lines"]:
        first = found["first_time"]
        last = found["last_time"]
        title = f"{first} to {last}"
    rows = [[event, str(count)] for event, count in found["events"].items()]
    return Table(title, columns_of(["event", "lines"]), rows)
