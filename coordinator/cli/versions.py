"""`coordinator versions`: what was published to a federation, and which devices use it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from covey.coordinator.cli.options import READERS, DeviceFederation, ensure_role, out
from covey.coordinator.deploy.registry import Publication, Registry, Version, registry
from covey.coordinator.deploy.uptake import statuses
from covey.coordinator.serve.connect import connected
from covey.coordinator.view.printed import json_line, show
from covey.coordinator.view.table import NONE, Column, Table
from covey.shared.cli import Connection, Json, broker_option, check_name, with_connection
from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.numerics.measures import MEASURES
from covey.shared.sentences import counted, some
from covey.shared.wire.topics import Topics

MAX_NAMES = 3  # of devices in a line
RUN_CHARACTERS = 8  # of a run's id, where its folder is not known


@with_connection(broker_option("none: the devices are not asked"))
def versions_command(
    runs: Annotated[
        Path, typer.Argument(metavar="RUNS", help="the folder that has the folders of runs")
    ] = Path("runs"),
    *,
    connection: Connection,
    federation: DeviceFederation = "default",
    as_json: Json = False,
) -> None:
    """List the versions that were published to a federation, over all its runs: the newest publication first.

    Each line has the run and round, its names, its figure, when it was published and by whom. With a broker or
    credentials it also has the devices that are online and use it.
    """
    check_name("--federation", federation)
    url = None
    if connection.is_named:
        ensure_role(connection, *READERS)
        url = connection.url()
    found = asyncio.run(versions(runs, federation, url))
    if as_json:
        json_line({"federation": federation, "versions": [one.to_json() for one in found]})
    else:
        show(out(), table(found, federation, asked=url is not None))


@dataclass(frozen=True)
class Published:
    """One version that was published, or that a device uses."""

    title: str  # the name of the run's folder, and the round
    run: str
    round: int
    folder: str  # "" if no run of the folder made it
    names: Sequence[str]
    publications: Sequence[Publication]  # oldest first
    used_by: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "names": list(self.names),
            "publications": [asdict(one) for one in self.publications],
            "used_by": list(self.used_by),
        }


def listed(known: Registry, used: Mapping[Version, Sequence[str]]) -> list[Published]:
    """The versions of a registry, newest publication first, and then those that devices use and the registry lacks."""
    names = known.names()
    by_version: dict[Version, list[Publication]] = {}
    titles: dict[Version, tuple[str, str]] = {}
    for entry in reversed(known.entries):
        by_version.setdefault(entry.version, []).insert(0, entry.publication)
        titles[entry.version] = str(entry), str(entry.folder)
    for run, number in used:
        by_version.setdefault((run, number), [])
    found: list[Published] = []
    for (run, number), publications in by_version.items():
        title, folder = titles.get((run, number), (f"{run[:RUN_CHARACTERS]}@{number}", ""))
        users = used.get((run, number), ())
        own = names.get((run, number), [])
        found.append(Published(title, run, number, folder, own, publications, users))
    return found


async def versions(runs: Path, federation: str, url: BrokerUrl | None) -> list[Published]:
    """The versions of a federation; with the address of its broker also the devices that use them.

    Raises:
        UserError: a list of publications is damaged, or the broker cannot be reached.
    """
    known = registry(runs, federation)
    return listed(known, {} if url is None else await _used(url, federation))


async def _used(url: BrokerUrl, federation: str) -> dict[Version, list[str]]:
    """The devices that use each version, as their statuses show it."""
    topics = Topics(federation)
    found: dict[Version, list[str]] = {}
    async with AsyncExitStack() as stack:
        client = f"covey-versions-{uuid.uuid4().hex[:8]}"
        link = await connected(stack, [url], topics, client)
        try:
            known = await statuses(link, topics)
        except UserError as error:
            raise UserError(f"{url}: {error}") from None
    for agent, status in sorted(known.items()):
        if status.model is not None and status.model.run:
            found.setdefault((status.model.run, status.model.round), []).append(agent)
    return found


def table(found: Sequence[Published], federation: str, *, asked: bool) -> Table:
    """A line for each version."""
    titles = ("version", "name", "figure", "published", "by", "in use on")
    rows = [_cells(one, asked=asked) for one in found]
    title = f"federation {federation}: {counted(len(found), 'version')}"
    return Table(title, [Column(one) for one in titles], rows).without_empty_columns()


def _cells(one: Published, *, asked: bool) -> list[str]:
    newest = one.publications[-1] if one.publications else None
    when, who, figure = "elsewhere", NONE, NONE
    if newest is not None:
        when = newest.time.replace("T", " ").removesuffix("Z")[:16]
        who = newest.who
        if newest.figure:
            measure = MEASURES[newest.figure["metric"]]
            unit = " %" if measure.unit == "in %" else ""
            figure = f"{measure.label} {measure.text(newest.figure['value'])}{unit}"
    users = (
        f"{len(one.used_by)}: {some(one.used_by, MAX_NAMES)}"
        if one.used_by
        else "0"
        if asked
        else ""
    )
    return [one.title, ", ".join(one.names), figure, when, who, users]
