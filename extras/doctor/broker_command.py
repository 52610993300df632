"""The command `broker doctor`: does a broker provide what Covey needs?"""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from covey.extras.users.folder import RETAINED, BrokerFolder
from covey.shared.cli import BrokerAddresses, Json, with_connection
from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import ADDRESS, BrokerUrl
from covey.shared.mqtt.credentials import COORDINATOR
from covey.shared.mqtt.credentials import read as read_credentials
from covey.shared.programs.terminal import Terminal
from covey.shared.storage import json_text

if TYPE_CHECKING:
    from covey.extras.doctor.broker import Between, BrokerCheck

COLOURS = {"ok": "green", "missing": "red", "note": "yellow"}


ADDRESSES = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="BROKER",
        help=f"{ADDRESS}; of several, also whether they are one broker or independent ones",
    ),
]


@with_connection(ADDRESSES)
def doctor(
    *,
    connection: BrokerAddresses,
    home: Annotated[
        Path | None,
        typer.Option(
            help="folder of `broker init`, on the broker's machine: connect as the coordinator, and look at the disk too"
        ),
    ] = None,
    patience_s: Annotated[
        float, typer.Option(min=0.1, help="seconds to wait for each answer")
    ] = 5.0,
    as_json: Json = False,
) -> None:
    """Check that a broker provides what Covey needs. Exit code 1 if something is missing."""
    from covey.extras.doctor.broker import BETWEEN, Doctor, examine_between, examine_disk

    disk = None
    if home is not None:
        folder = BrokerFolder(home)
        disk = examine_disk(folder.folder / RETAINED)
        if not connection.is_named:
            connection = BrokerAddresses(credentials=(folder.file(COORDINATOR),))
    if not connection.is_named:
        raise UserError(f"expected the address of a broker, {ADDRESS}, --credentials or --home")
    user = role = federation = ""
    if connection.credentials:
        own = read_credentials(connection.credentials[0])
        user, role, federation = own.id, own.role, own.federation
    urls = connection.urls(user)
    examined: list[tuple[BrokerUrl, list[BrokerCheck]]] = []
    for url in urls:
        one = Doctor(url, patience_s=patience_s, role=role, federation=federation)
        examined.append((url, asyncio.run(one.examine())))
    if disk is not None:
        examined[0][1].append(disk)
    everything = [finding for _, findings in examined for finding in findings]
    between = None
    if len(urls) > 1 and not any(finding.state == "missing" for finding in everything):
        between = asyncio.run(examine_between(urls, patience_s=patience_s, federation=federation))
        everything += between.findings
    if as_json:
        print(json_text.dumps(_as_json(examined, between), indent=2))
    else:
        for url, findings in examined:
            _show(str(url), findings)
        if between is not None:
            _show(BETWEEN, between.findings)
    if any(finding.state == "missing" for finding in everything):
        raise typer.Exit(1)


def _as_json(
    examined: list[tuple[BrokerUrl, list[BrokerCheck]]], between: Between | None
) -> list[dict[str, Any]] | dict[str, Any]:
    """The findings about one broker; about several, those of each, and what they are to each other."""
    brokers: list[dict[str, Any]] = [
        {"broker": str(url), "findings": list(map(dataclasses.asdict, findings))}
        for url, findings in examined
    ]
    if len(brokers) == 1:
        return list(brokers[0]["findings"])
    found, shards = ([], []) if between is None else (between.findings, between.groups)
    return {"brokers": brokers, "between": list(map(dataclasses.asdict, found)), "shards": shards}


def _show(title: str, findings: list[BrokerCheck]) -> None:
    table = Table("check", "", "seen", "what it means", title=title)
    for finding in findings:
        table.add_row(
            finding.check, Text(finding.state, COLOURS[finding.state]), finding.seen, finding.means
        )
    Terminal().print(table)
