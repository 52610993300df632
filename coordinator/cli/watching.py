"""Commands that show a run while it happens, and those that look into its records."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from covey.coordinator.cli.options import READERS, ensure_role, out, show_line
from covey.shared.cli import Connection, Json, broker_option, check_name, with_connection
from covey.shared.mqtt.broker_url import DEFAULT_BROKER


@with_connection()
def status(
    folder: Annotated[
        Path | None,
        typer.Argument(help="a run's folder  [default: ask the broker about a running fleet]"),
    ] = None,
    *,
    connection: Connection,
    federation: Annotated[str, typer.Option(help="the federation to show")] = "default",
    watch: Annotated[
        bool, typer.Option("--watch", help="show rounds and figures until the run is over")
    ] = False,
    as_json: Json = False,
) -> None:
    """List a run's agents with cluster, last contact and samples, and why an agent is excluded.

    With --watch, show the rounds instead, as they end: figures by cluster, reports, faults, and the time that is left.
    """
    check_name("--federation", federation)
    if watch:
        _watch(folder, connection, federation, as_json=as_json)
        return
    from covey.coordinator.commands import status as command
    from covey.coordinator.report.roster import STYLES, roster_table, status_lines
    from covey.coordinator.view.printed import json_line, show

    if folder is not None:
        seen = command.from_folder(folder)
    else:
        ensure_role(connection, *READERS)
        seen = asyncio.run(command.from_broker(connection.url(), federation))
    if as_json:
        json_line(seen)
        return
    for line in status_lines(seen):
        show_line(line)
    roster = seen["roster"]
    show(out(), roster_table(roster, regression=seen["regression"]), STYLES)
    counts = [f"{reason}: {count}" for reason, count in roster["refusals"].items()]
    show_line(f"refused messages: {', '.join(counts) or 'none'}")


def _watch(folder: Path | None, connection: Connection, federation: str, *, as_json: bool) -> None:
    from covey.coordinator.commands import watch as command
    from covey.coordinator.view.printed import json_line

    url = None
    if connection.is_named or folder is None:
        ensure_role(connection, *READERS)
        url = connection.url()
    with suppress(KeyboardInterrupt), command.opened(folder, url, federation) as hub:
        command.watch(hub, out(), json_line if as_json else None)


@with_connection(broker_option("none with RUN, else " + DEFAULT_BROKER))
def dashboard(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN", help="a run's folder, or one with runs in it  [default: ask the broker]"
        ),
    ] = None,
    *,
    connection: Connection,
    federation: Annotated[str, typer.Option(help="the federation to show")] = "default",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="port on 127.0.0.1; 0 takes any free one")
    ] = 8470,
) -> None:
    """Show a run in a browser while it happens: rounds, figures by cluster, agents, faults.

    The page is served on this machine only and needs no internet. It reads the run's folder, the broker, or both.
    With the coordinator's credentials it has buttons: pause, resume, stop, forget.
    """
    from covey.coordinator.commands.dashboard import Request, serve
    from covey.shared.mqtt.credentials import read

    check_name("--federation", federation)
    url = None
    if connection.is_named or folder is None:
        ensure_role(connection, *READERS)
        url = connection.url()
    role = next((read(file).role for file in connection.credentials), "")
    with suppress(KeyboardInterrupt):
        serve(Request(folder, url, federation, role, port), show_line)


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
    from covey.coordinator.record import audit_check
    from covey.coordinator.report.audit import audit_lines, audit_table
    from covey.coordinator.view.printed import json_line, show
    from covey.shared.audit import read_key

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


def story(
    agent: Annotated[str, typer.Argument(help="the agent's id, as `coordinator status` shows it")],
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="a run's folder")],
    as_json: Json = False,
) -> None:
    """Print what happened to one agent in a run, in order: invitations, reports, refusals, quarantine."""
    from covey.coordinator.commands.story import story_of
    from covey.coordinator.view.printed import json_line

    found = story_of(agent, folder)
    if as_json:
        json_line(found.to_json())
        return
    for sentence in found.sentences:
        show_line(f"{sentence.time}  {sentence.text}")
