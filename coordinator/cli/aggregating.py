"""The command that adds up reports near a broker."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated

import typer

from covey.coordinator.cli.options import ensure_role, show_line
from covey.shared.cli import LOCAL_BROKER, Allow, Connection, check_name, with_connection
from covey.shared.consent import AllowedCode
from covey.shared.mqtt.credentials import COORDINATOR


@with_connection(LOCAL_BROKER)
def aggregate(
    *,
    connection: Connection,
    federation: Annotated[str, typer.Option(help="the federation of the run")] = "default",
    allow: Allow = None,
) -> None:
    """Add up the reports of a broker's agents, for a run that was started with --aggregators.

    Start one near each broker; it needs an aggregator's credentials. It checks reports as the coordinator does and sends
    it one sum for each cluster. It serves one run after another until Ctrl-C.
    """
    from covey.coordinator.aggregate.command import serve

    check_name("--federation", federation)
    ensure_role(connection, "aggregator", COORDINATOR)
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(connection.url(), federation, AllowedCode.parse(allow), show_line))
