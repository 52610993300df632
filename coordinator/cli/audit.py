"""`coordinator lab audit`: check a run's audit log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from covey.coordinator.cli.options import out, show_line
from covey.coordinator.record import audit_check
from covey.coordinator.report.audit import audit_lines, audit_table
from covey.coordinator.view.printed import json_line, show
from covey.shared.audit import read_key
from covey.shared.cli import Json


def audit(
    folder: Annotated[Path, typer.Argument(help="a run's folder")],
    key: Annotated[
        Path | None,
        typer.Option(
            help="file with the key that the log was signed with",
            envvar="COVEY_AUDIT_KEY",
            show_default=False,
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
