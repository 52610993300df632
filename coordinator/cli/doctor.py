"""`coordinator doctor`: what is odd about a fleet, as one ranked list. It asks the devices' own word at the broker, and the last run."""

from __future__ import annotations

import asyncio
import time
import uuid
from pathlib import Path
from typing import Annotated

import typer

from covey.coordinator.cli.options import READERS, ensure_role, out
from covey.coordinator.deploy.uptake import RetainedFleet
from covey.coordinator.doctor.devices import Broker, Seen
from covey.coordinator.doctor.examine import Facts, examine, of_retained
from covey.coordinator.doctor.odd import Odd, ranked, read_odd
from covey.coordinator.record import records
from covey.coordinator.record.roster_files import read_roster, roster_file
from covey.coordinator.report.odd_list import show_odd
from covey.coordinator.view.devices import is_between_runs
from covey.coordinator.view.printed import json_line
from covey.shared.cli import BrokerAddresses, Json, broker_option, check_name, with_connection
from covey.shared.errors import DecodeError, UserError
from covey.shared.mqtt.broker_url import DEFAULT_BROKER, BrokerUrl
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.mqtt.retained import until_quiet, why_not_up
from covey.shared.wire.topics import Topics

WITHIN_S = 3.0
MOST_S = 60.0  # to read the statuses of a whole fleet


@with_connection(broker_option(f"{DEFAULT_BROKER}; none with a folder"))
def doctor(
    folder: Annotated[
        Path | None,
        typer.Argument(help="a run's folder: what was odd at its end  [default: ask the broker]"),
    ] = None,
    *,
    connection: BrokerAddresses,
    federation: Annotated[str, typer.Option(help="the federation to examine")] = "default",
    as_json: Json = False,
) -> None:
    """List what is odd about a fleet, the most serious first: device, what, since when, and the next command.

    It looks at data, figures, silence, versions, certificates, disks, clocks, refusals and brokers, with or without a
    running coordinator. The exit code is 1 if anything is odd.
    """
    check_name("--federation", federation)
    found: list[Odd] = []
    if folder is not None:
        found += of_folder(folder)
    if folder is None or connection.is_named:
        ensure_role(connection, *READERS)
        found += asyncio.run(of_broker(connection.url(), federation))
    listed = ranked(found)
    if as_json:
        json_line({"federation": federation, "odd": [one.to_json() for one in listed]})
    else:
        show_odd(out(), listed)
    if listed:
        raise typer.Exit(1)


def of_folder(folder: Path) -> list[Odd]:
    """What was odd when a run ended, or when its coordinator wrote its roster last.

    Raises:
        UserError: the folder has neither.
    """
    if (folder / "result.json").exists():
        return read_odd(records.finished(folder).get("odd"))
    try:
        return read_odd(read_roster(folder).odd)
    except FileNotFoundError:
        raise records.no_run(folder, "no result.json and no roster.json in it") from None
    except DecodeError as error:
        raise UserError(f"{roster_file(folder)}: {error}") from None


async def of_broker(url: BrokerUrl, federation: str) -> list[Odd]:
    """The list from all that a broker retains. A broker that cannot be reached is odd itself."""
    topics = Topics(federation)
    fleet = RetainedFleet(topics)
    async with MqttLink(url, client_id=f"covey-doctor-{uuid.uuid4().hex[:8]}") as link:
        if why := await why_not_up(link, WITHIN_S):
            return examine(Facts(seen=Seen(time.time(), broker=Broker(why))))
        await link.subscribe(_filters(topics))
        # access rules may keep other federations back
        await link.subscribe([Topics("+").every_status, Topics("+").coordinator_status])
        async for message in until_quiet(link, MOST_S):
            fleet.take(message)
            further = fleet.pages.further_topics(topics) if message.topic == topics.roster else []
            if further:
                await link.subscribe(further)
        return of_fleet(fleet, time.time(), link.certificate_until)


def of_fleet(fleet: RetainedFleet, now: float, until: float | None = None) -> list[Odd]:
    """The list from all that was read at a broker."""
    caller = fleet.coordinator
    return of_retained(
        now,
        fleet.statuses,
        fleet.pages.message,
        caller,
        between_runs=is_between_runs(None if caller is None else caller.model_dump()),
        deployment=fleet.held.all_devices,
        elsewhere=fleet.elsewhere,
        until=until,
    )


def _filters(topics: Topics) -> list[str]:
    return [
        topics.every_status,
        topics.coordinator_status,
        topics.roster,
        topics.deployment,
        topics.candidate,
    ]
