"""`coordinator status`: read the roster from a run's folder, or from the retained messages of a broker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from covey.coordinator.cli.options import READERS, ensure_role, out, show_line
from covey.coordinator.dashboard.folder_reader import plan_of
from covey.coordinator.record.records import newest_privacy
from covey.coordinator.record.roster_files import read_roster, roster_file
from covey.coordinator.report.roster import STYLES, roster_table, status_lines
from covey.coordinator.view.printed import json_line, show
from covey.shared.cli import Connection, Json, check_name, with_connection
from covey.shared.errors import DecodeError, UserError
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.mqtt.link import Down, Link, Message, Up
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.numerics.measures import is_regression
from covey.shared.wire.documents import AgentStatus, CoordinatorStatus
from covey.shared.wire.framing import Document
from covey.shared.wire.roster_view import RosterView
from covey.shared.wire.topics import Topics

WITHIN_S = 3.0
STATUSES_WITHIN_S = 1.0  # of agents
MAX_AGENTS = 1000  # of a larger fleet, the roster has what it has
BATCH = 100  # topics of one subscription


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
    show(out(), roster_table(roster, regression=seen["regression"]), STYLES)
    counts = [f"{reason}: {count}" for reason, count in roster["refusals"].items()]
    show_line(f"refused messages: {', '.join(counts) or 'none'}")


def _watch(folder: Path | None, connection: Connection, federation: str, *, as_json: bool) -> None:
    from covey.coordinator.dashboard import terminal

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
        raise UserError(f"{folder}: it has no roster; {_instead(folder)}") from None
    except DecodeError as error:
        raise UserError(f"{path}: {error}") from None
    finished = (folder / "result.json").exists()
    return {
        "status": None,
        "roster": roster.model_dump(mode="json"),
        "written": written,
        "finished": finished,
        "privacy": newest_privacy(folder),
        "regression": _is_regression(folder),
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
    return "is it a run's folder?"


async def from_broker(url: BrokerUrl, federation: str) -> dict[str, Any]:
    """The coordinator's status and roster, as the broker retains them.

    Raises UserError if the broker does not answer within `WITHIN_S` seconds, or retains no roster.
    """
    topics = Topics(federation)
    status: CoordinatorStatus | None = None
    pages = RosterView()
    found: dict[str, Any] | None = None  # the roster
    account: dict[str, Any] | None = None
    up = False
    try:
        async with (
            asyncio.timeout(WITHIN_S),
            MqttLink(url, client_id=f"covey-status-{uuid.uuid4().hex[:8]}") as link,
        ):
            async for incoming in link.incoming():
                match incoming:
                    case Up():
                        up = True
                        await link.subscribe(
                            [topics.metrics]
                        )  # first, because nothing waits for it
                        await link.subscribe([topics.coordinator_status, topics.roster])
                    case Down(why):
                        raise UserError(f"{why}; check the address with `broker doctor {url}`")
                    case Message(topic, payload) if topic == topics.metrics:
                        account = _account(payload)
                    case Message(topic, payload) if topic == topics.coordinator_status:
                        status = CoordinatorStatus.from_bytes(payload)
                    case Message(topic, payload):
                        pages.take(topics, topic, payload)
                        if topic == topics.roster and pages.further_topics(topics):
                            await link.subscribe(pages.further_topics(topics))
                if status is not None and pages.is_complete:
                    break
            found = _dumped(pages.message)
            if found is not None:
                await add_models_in_use(link, topics, found["agents"])
    except TimeoutError:
        pass
    except DecodeError as error:
        raise UserError(f"{url}: its retained messages are not Covey's ({error})") from None
    found = found or _dumped(pages.message)
    if not up:
        raise UserError(
            f"{url}: no answer within {WITHIN_S:g} s; check it with `broker doctor {url}`"
        )
    if found is None:
        raise UserError(f"{url}: no run of federation {federation!r}; check --federation")
    return {
        "status": _dumped(status),
        "roster": found,
        "privacy": account,
        "regression": status is not None and status.task is not None and is_regression(status.task),
    }


def _is_regression(folder: Path) -> bool:
    """Whether the scenario of a run's folder has values as targets."""
    try:
        return bool(plan_of(yaml.safe_load((folder / "scenario.yaml").read_bytes())).regression)
    except (OSError, yaml.YAMLError):
        return False


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


# -- models in use: agents change them after a run, when no coordinator keeps a roster ---------------


async def add_models_in_use(link: Link, topics: Topics, rows: dict[str, dict[str, Any]]) -> None:
    """Complete the rows of a roster with the models that devices use now.

    Args:
        link: connected.
        topics: of the federation.
        rows: of the roster, by agent; `model` of each is set if its status has one.
    """
    if not rows or len(rows) > MAX_AGENTS:
        return
    awaited = {topics.status(agent): agent for agent in rows}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STATUSES_WITHIN_S):
            await _subscribe(link, list(awaited))
            async for incoming in link.incoming():
                if not isinstance(incoming, Message):
                    continue
                agent = awaited.pop(incoming.topic, None)
                if agent is not None:
                    _complete(rows[agent], incoming.payload)
                if not awaited:
                    return


async def _subscribe(link: Link, wanted: list[str]) -> None:
    for start in range(0, len(wanted), BATCH):
        await link.subscribe(wanted[start : start + BATCH])


def _complete(row: dict[str, Any], payload: bytes) -> None:
    try:
        status = AgentStatus.from_bytes(payload)
    except DecodeError:  # cleared, or of another version
        return
    if status.model is not None:
        row["model"] = status.model.model_dump(mode="json")
