"""`coordinator versions`: what was published to a federation, and which devices use it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from covey.coordinator.cli.options import (
    READERS,
    DeviceFederation,
    ensure_role,
    out,
    show_line,
    warn,
)
from covey.coordinator.view.printed import json_line, show
from covey.coordinator.view.table import NONE, Column, Table
from covey.coordinator.view.words import MODE_TITLES
from covey.extras.in_use.decide import NO_MODEL, as_devices_have_it, title_of
from covey.extras.in_use.registry import Publication, Registry, RegistryEntry, Version, registry
from covey.extras.in_use.uptake import survey
from covey.shared.cli import BrokerAddresses, Json, broker_option, check_name, with_connection
from covey.shared.errors import UserError
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.numerics.measures import MEASURES, measured
from covey.shared.sentences import counted, some
from covey.shared.wire.topics import Topics

MAX_NAMES = 3  # of devices in a line
MAX_ACTS = 10  # in the log on a terminal
MEAN = "mean over agents"  # of the figure: as in all other tables


@with_connection(broker_option("none: the devices are not asked"))
def versions_command(
    runs: Annotated[
        Path, typer.Argument(metavar="RUNS", help="the folder that has the folders of runs")
    ] = Path("runs"),
    *,
    connection: BrokerAddresses,
    federation: DeviceFederation = "default",
    as_json: Json = False,
) -> None:
    """List the versions that were published to a federation, over all its runs: the newest publication first.

    Each line has the name, whether it is the champion or the candidate, and its figure. With a broker or credentials it also
    has the number of devices that are online and state that they use it. Below are the newest publications: when, by whom,
    what, and how many devices took it over; --json has all of them, device by device.
    """
    check_name("--federation", federation)
    url = None
    if connection.is_named:
        ensure_role(connection, *READERS)
        url = connection.url()
    found = asyncio.run(versions(known_in(runs, federation), federation, url))
    if as_json:
        json_line({"federation": federation, "versions": [one.to_json() for one in found]})
    elif found:
        show(out(), table(found, federation, asked=url is not None))
        if any(one.publications for one in found):
            show(out(), deployments(found))
    else:
        show_line(
            f"{runs}: no run in this folder has published models to the federation {federation}; `coordinator promote RUN` does"
        )


def known_in(runs: Path, federation: str) -> Registry:
    """The registry of a federation, with a warning for each run whose publications are not known."""
    known = registry(runs, federation)
    for fault in known.faults.values():
        warn(fault)
    return known


@dataclass(frozen=True)
class VersionRow:
    """One version that was published, or that a device uses."""

    title: str  # its one name: the operator's own, or the run's folder and the round
    run: str
    round: int
    folder: str  # "" if no run of the folder made it
    names: Sequence[str]  # champion, candidate, or neither
    publications: Sequence[Publication]  # oldest first
    used_by: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "names": list(self.names),
            "publications": [asdict(one) for one in self.publications],
            "used_by": list(self.used_by),
        }


Used = Mapping[Version, tuple[str, Sequence[str]]]  # a version's name, and the devices


def listed(known: Registry, used: Used) -> list[VersionRow]:
    """The versions of a registry, newest publication first, and then those that devices use and the registry lacks."""
    by_version: dict[Version, list[RegistryEntry]] = {}
    for entry in reversed(known.entries):
        by_version.setdefault(entry.version, []).insert(0, entry)
    for version in used:
        by_version.setdefault(version, [])
    found: list[VersionRow] = []
    for version, entries in by_version.items():
        name, users = used.get(version, ("", ()))
        title = known.title(version) or name
        folder = str(entries[-1].folder) if entries else ""
        roles = known.roles(version)
        acts = [one.publication for one in entries]
        found.append(VersionRow(title, *version, folder, roles, acts, users))
    return found


async def versions(known: Registry, federation: str, url: BrokerUrl | None) -> list[VersionRow]:
    """The versions of a federation; with the address of its broker also the devices that use them.

    Raises:
        UserError: the broker cannot be reached.
    """
    if url is None:
        return listed(known, {})
    topics = Topics(federation)
    async with MqttLink(url, client_id=f"covey-versions-{uuid.uuid4().hex[:8]}") as link:
        try:
            fleet = await survey(link, topics)
        except UserError as error:
            raise UserError(f"{url}: {error}") from None
    used: dict[Version, tuple[str, list[str]]] = {}
    for agent, status in sorted(fleet.statuses.items()):
        model = status.model
        if model is not None and model.run:
            used.setdefault((model.run, model.round), (title_of(model), []))[1].append(agent)
    return listed(as_devices_have_it(known, fleet.statuses), used)


def table(found: Sequence[VersionRow], federation: str, *, asked: bool) -> Table:
    """A line for each version."""
    titles = ("version", "role", MEAN, "in use on")
    rows = [_cells(one, asked=asked) for one in found]
    title = f"federation {federation}: {counted(len(found), 'version')}"
    return Table(title, [Column(one) for one in titles], rows).without_empty_columns()


def _cells(one: VersionRow, *, asked: bool) -> list[str]:
    known = one.publications[-1].figure if one.publications else {}
    figure = NONE
    if known:
        figure = measured(MEASURES[known["metric"]], known["value"])
        if mode := known.get("mode"):
            figure = f"{figure}, {MODE_TITLES[mode]}"
    users = f"{len(one.used_by)}: {some(one.used_by, MAX_NAMES)}" if one.used_by else ""
    role = ", ".join(one.names) if one.publications else "from elsewhere"
    return [one.title, role, figure, users or ("0" if asked else "")]


def deployments(found: Sequence[VersionRow]) -> Table:
    """The log: a line for each of the newest publications."""
    names = {(one.run, one.round): one.title for one in found}
    acts = sorted((act for one in found for act in one.publications), key=lambda one: -one.serial)
    rows = []
    for one in acts[:MAX_ACTS]:
        before = names.get(one.before, NO_MODEL) if one.before else NO_MODEL
        name = names[one.version]
        what = f"{one.act}: {f'{before} -> ' * (before != name)}{name}" + ", forced" * one.force
        if one.devices:
            what += f", on {some(one.devices, MAX_NAMES)}"
        outcome = "nobody waited" if one.outcome is None else one.outcome.sentence
        when = one.time.replace("T", " ").removesuffix("Z")[:16]
        rows.append([when, one.who, what, outcome.removeprefix("devices: ")])
    title = f"{len(rows)} of {counted(len(acts), 'deployment')}, newest first"
    return Table(title, [Column(one) for one in ("time (UTC)", "by", "what", "outcome")], rows)
