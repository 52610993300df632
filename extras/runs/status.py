"""`coordinator status`: read the roster from a run's folder, or from the retained messages of a broker."""

from __future__ import annotations

import asyncio
import json
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from covey.coordinator.cli.options import READERS, ensure_role, out, show_line
from covey.coordinator.record.records import newest_privacy
from covey.coordinator.record.roster_files import read_roster, roster_file
from covey.coordinator.view.printed import json_line, show
from covey.extras.runs.devices import device_of, status_in
from covey.extras.runs.roster_table import STYLES, is_left, roster_table, status_lines
from covey.shared import extras
from covey.shared.cli import BrokerAddresses, Json, check_name, with_connection
from covey.shared.errors import DecodeError, UserError
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.mqtt.retained import until_quiet, why_not_up
from covey.shared.wire.documents import CoordinatorStatus, RosterMessage
from covey.shared.wire.framing import Document
from covey.shared.wire.roster_view import RosterView
from covey.shared.wire.topics import Topics

WITHIN_S = 3.0
MOST_S = 60.0  # to read the statuses of a whole fleet


@with_connection()
def status(
    folder: Annotated[
        Path | None,
        typer.Argument(help="a run's folder  [default: ask the broker about a running fleet]"),
    ] = None,
    *,
    connection: BrokerAddresses,
    federation: Annotated[str, typer.Option(help="the federation to show")] = "default",
    watch: Annotated[
        bool, typer.Option("--watch", help="show rounds and figures until the run is over")
    ] = False,
    as_json: Json = False,
) -> None:
    """List a fleet's agents: their state and since when, the version in use, and what is wrong.

    The agents state this themselves at the broker: no coordinator needs to run. --json has all that is known of each one:
    group, samples, figures, certificate, free disk. `coordinator doctor` lists what is odd.

    With --watch, show the rounds instead, as they end: figures by group, reports, faults, and the time that is left.
    """
    check_name("--federation", federation)
    if watch:
        _watch(folder, connection, federation, as_json=as_json)
        return

    if folder is not None:
        seen = from_folder(folder)
    else:
        ensure_role(connection, *READERS)
        seen = asyncio.run(from_broker(connection.url(), federation))
    if as_json:
        json_line(seen)
        return
    for line in status_lines(seen):
        show_line(line)
    roster = seen["roster"]
    show(out(), roster_table(roster, seen.get("devices"), left=is_left(seen)), STYLES)
    counts = [f"{reason}: {count}" for reason, count in roster["refusals"].items()]
    show_line(f"refused messages: {', '.join(counts) or 'none'}")


def _watch(
    folder: Path | None, connection: BrokerAddresses, federation: str, *, as_json: bool
) -> None:
    terminal = extras.part("dashboard", "terminal")

    url = None
    if connection.is_named or folder is None:
        ensure_role(connection, *READERS)
        url = connection.url()
    with suppress(KeyboardInterrupt), terminal.opened(folder, url, federation) as hub:
        terminal.watch(hub, out(), json_line if as_json else None)


def from_folder(folder: Path) -> dict[str, Any]:
    """The newest roster in a run's folder, when it was written, and whether the run is finished.

    Raises UserError if the folder has no roster, or a damaged one.
    """
    path = roster_file(folder)
    try:
        roster, written = read_roster(folder), path.stat().st_mtime
    except FileNotFoundError:
        raise UserError(f"{folder}: no list of agents is in it; {_instead(folder)}") from None
    except DecodeError as error:
        raise UserError(f"{path}: {error}") from None
    finished = (folder / "result.json").exists()
    return {
        "status": None,
        "roster": roster.model_dump(mode="json"),
        "written": written,
        "finished": finished,
        "privacy": newest_privacy(folder),
    }


def _instead(folder: Path) -> str:
    """What to do about a folder without a roster."""
    if (folder / "result.json").exists():
        return (
            "a run without a broker keeps none. "
            f"It is finished: `coordinator report {folder}` shows its result"
        )
    if (folder / "scenario.yaml").exists():
        return (
            "a run without a broker keeps none; any other writes it when its first agent connects"
        )
    return "expected the folder of a run; `coordinator ls` lists them"


async def from_broker(url: BrokerUrl, federation: str) -> dict[str, Any]:
    """Everything that the broker retains: each device's own word, the coordinator's status, and its roster.

    Raises UserError if the broker does not answer within `WITHIN_S` seconds, or retains neither devices nor a run.
    """
    topics = Topics(federation)
    status: CoordinatorStatus | None = None
    pages = RosterView()
    devices: dict[str, Any] = {}
    account: dict[str, Any] | None = None
    async with MqttLink(url, client_id=f"covey-status-{uuid.uuid4().hex[:8]}") as link:
        if why := await why_not_up(link, WITHIN_S):
            raise UserError(f"{why}; check the address with `broker doctor {url}`")
        await link.subscribe(
            [topics.metrics, topics.every_status, topics.coordinator_status, topics.roster]
        )
        try:
            async for message in until_quiet(link, MOST_S):
                topic, payload = message.topic, message.payload
                if topic == topics.metrics:
                    account = _account(payload)
                elif topic == topics.coordinator_status:
                    status = CoordinatorStatus.from_bytes(payload)
                elif (one := status_in(message, topics)) is not None:
                    devices[one.agent] = device_of(one).to_json()
                else:
                    pages.take(topics, topic, payload)
                further = pages.further_topics(topics) if topic == topics.roster else []
                if further:
                    await link.subscribe(further)
        except DecodeError as error:
            raise UserError(f"{url}: its retained messages are not Covey's ({error})") from None
    found = pages.message
    if found is None and not devices:
        raise UserError(
            f"{url}: no agent and no run of federation {federation!r}; check --federation"
        )
    return {
        "status": _dumped(status),
        "roster": _dumped(found or RosterMessage()),
        "devices": devices,
        "privacy": account,
    }


def _dumped(document: Document | None) -> dict[str, Any] | None:
    return None if document is None else document.model_dump(mode="json")


def _account(payload: bytes) -> dict[str, Any] | None:
    """The privacy account in the newest record, or None if there is none that can be read."""
    try:
        line = json.loads(payload)
    except ValueError:
        return None
    account = line.get("privacy") if isinstance(line, dict) else None
    return account if isinstance(account, dict) else None
