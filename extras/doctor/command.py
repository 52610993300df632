"""`coordinator doctor`: what is odd about a fleet, as one ranked list. It asks the devices' own word at the broker, and the last run."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from covey.coordinator.cli.options import READERS, complain, ensure_role, out, show_line
from covey.coordinator.odd import COORDINATOR, Broker, Odd, ranked, read_odd
from covey.coordinator.record import records
from covey.coordinator.record.roster_files import read_roster, roster_file
from covey.coordinator.report.odd_list import show_odd
from covey.coordinator.view.lines import PhaseLine
from covey.coordinator.view.printed import json_line
from covey.extras.doctor.devices import CLOCKS_DIFFER_S, HERE, Seen, odd_devices, wrong_clock
from covey.extras.doctor.examine import Facts, examine, of_retained, with_one_cause
from covey.extras.doctor.own_row import at_broker, in_folder, is_at_work
from covey.extras.doctor.slow import slow
from covey.extras.doctor.watch import BEGUN, command_of, look, read_reported, run, write_reported
from covey.extras.in_use.uptake import RetainedFleet
from covey.extras.runs.folder_reader import FolderReader
from covey.extras.runs.run_list import state_of
from covey.shared.cli import BrokerAddresses, Json, broker_option, check_name, with_connection
from covey.shared.errors import DecodeError, UserError
from covey.shared.mqtt.broker_url import DEFAULT_BROKER, BrokerUrl
from covey.shared.mqtt.credentials import read
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.mqtt.retained import until_quiet, why_not_up
from covey.shared.wire.documents import Control, CoordinatorStatus
from covey.shared.wire.topics import Topics

WITHIN_S = 3.0
MOST_S = 60.0  # to read the statuses of a whole fleet
ANSWER_S = 5.0  # for a coordinator to answer


@with_connection(broker_option(f"none with FOLDER, or {DEFAULT_BROKER}"))
def doctor(
    folder: Annotated[
        Path | None,
        typer.Argument(help="a run's folder: what was odd at its end  [default: ask the broker]"),
    ] = None,
    *,
    connection: BrokerAddresses,
    federation: Annotated[str, typer.Option(help="the federation to examine")] = "default",
    watch: Annotated[
        bool, typer.Option("--watch", help="keep looking; report each alarm once, and its end")
    ] = False,
    execute: Annotated[
        str,
        typer.Option(
            "--exec",
            metavar="<command>",
            help="with --watch: run this for each alarm and for its end, with the sentence as last argument",
            show_default=False,
        ),
    ] = "",
    every: Annotated[
        float, typer.Option(min=1.0, help="seconds from one look of --watch to the next")
    ] = 60.0,
    memory: Annotated[
        Path | None,
        typer.Option(
            help="file in which --watch keeps what it has reported  [default: in XDG_STATE_HOME or ~/.local/state]"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List what is odd about a fleet, the most serious first: device, what, since when, and the next command.

    It looks at data, figures, silence, versions, certificates, disks, clocks, refusals and brokers, with or without a
    running coordinator. The exit code is 1 if anything is odd.

    With --watch and --exec each alarm is reported once, and once when it is over, also after a restart.
    """
    check_name("--federation", federation)
    if execute and not watch:
        raise UserError("--exec without --watch has no effect; add --watch")
    if watch:
        if folder is not None:
            raise UserError("--watch looks at a broker; omit the folder")
        ensure_role(connection, *READERS)
        file = memory or default_memory(federation)
        with suppress(KeyboardInterrupt):
            _watch(connection, federation, file, command_of(execute) if execute else (), every)
        return
    found: list[Odd] = []
    if folder is not None:
        found += of_folder(folder)
    if folder is None or connection.is_named:
        ensure_role(connection, *READERS)
        asks = may_ask(connection)
        found += asyncio.run(of_broker(connection.url(), federation, asks=asks))
    listed = ranked(with_one_cause(found))  # the folder and the broker may know the same
    if as_json:
        json_line({"federation": federation, "odd": [one.to_json() for one in listed]})
    else:
        show_odd(out(), listed)
    if listed:
        raise typer.Exit(1)


def default_memory(federation: str) -> Path:
    """Where the alarms that were named are kept."""
    states = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not states.is_absolute():
        states = Path("~/.local/state").expanduser()
    return states / "covey" / f"alarms-{federation}.json"


def _watch(
    connection: BrokerAddresses, federation: str, file: Path, words: Sequence[str], every: float
) -> None:
    def report(word: str, odd: Odd) -> bool:
        show_line(odd.sentence if word == BEGUN else f"over: {odd.who}: {odd.what}")
        return run(words, word, odd, complain) if words else True

    url, asks = connection.url(), may_ask(connection)
    while True:
        reported = read_reported(file)
        try:
            now = ranked(asyncio.run(of_broker(url, federation, asks=asks)))
            look(reported, now, report, partial(write_reported, file))
        except (UserError, OSError) as error:  # one look that fails does not end the watch
            complain(f"{error}; it is tried again at the next look")
        time.sleep(every)


def may_ask(connection: BrokerAddresses) -> bool:
    """Whether the coordinator hears questions of these credentials. A broker without users has no roles."""
    roles = {read(file).role for file in connection.credentials}
    return COORDINATOR in roles or not (roles or connection.url().user)


def of_folder(folder: Path) -> list[Odd]:
    """The list of a run's end, or of its coordinator's newest roster, after what is odd about the coordinator itself.

    Raises:
        UserError: the folder has neither.
    """
    if (folder / "result.json").exists():
        late: list[Odd] = []
        with suppress(FileNotFoundError, DecodeError):  # a run without a broker has no roster
            late += slow(read_roster(folder).agents, of_run=False)
        return [*read_odd(records.finished(folder).get("odd")), *late]
    reader = FolderReader(folder)
    reader.poll()
    lines = [line for line in reader.lines if isinstance(line, PhaseLine)]
    rounds = lines[-1].rounds if lines else 0
    own = [*with_disk(folder)]
    if reader.status is not None:
        own += in_folder(state_of(reader), reader.status, folder, rounds, reader.updated)
    try:
        roster = read_roster(folder)
        return [*own, *read_odd(roster.odd), *slow(roster.agents, of_run=False)]
    except FileNotFoundError:
        if own:
            return own
        raise records.no_run(folder, "no result.json and no roster.json in it") from None
    except DecodeError as error:
        raise UserError(f"{roster_file(folder)}: {error}") from None


def with_disk(folder: Path) -> Iterator[Odd]:
    """The disk of a run's folder, if it is full now."""
    with suppress(OSError):
        yield from odd_devices(Seen(time.time(), free=shutil.disk_usage(folder).free))


async def of_broker(url: BrokerUrl, federation: str, *, asks: bool = False) -> list[Odd]:
    """The list from all that a broker retains. A broker that cannot be reached is odd itself.

    `asks`: also ask a coordinator that claims to be at work, with its own credentials.
    """
    topics = Topics(federation)
    fleet = RetainedFleet(topics)
    async with MqttLink(url, client_id=f"covey-doctor-{uuid.uuid4().hex[:8]}") as link:
        if why := await why_not_up(link, WITHIN_S):
            return examine(Facts(seen=Seen(time.time(), broker=Broker(why))))
        own = [topics.every_status, topics.coordinator_status, topics.roster]
        await link.subscribe([*own, topics.deployment, topics.candidate])
        # access rules may keep other federations back
        await link.subscribe([Topics("+").every_status, Topics("+").coordinator_status])
        async for message in until_quiet(link, MOST_S):
            fleet.take(message)
            further = fleet.pages.further_topics(topics) if message.topic == topics.roster else []
            if further:
                await link.subscribe(further)
        asked = asks and is_at_work(fleet.coordinator)
        answer = await _answer(link, topics) if asked else None
        answers, clock = not asked or answer is not None, None if answer is None else answer.clock
        return of_fleet(fleet, time.time(), link.certificate_until, answers=answers, clock=clock)


async def _answer(link: MqttLink, topics: Topics) -> CoordinatorStatus | None:
    """The answer of the coordinator. One that reads at all gives it at once, whatever it computes."""
    await link.publish(topics.control, Control(command="tell").to_bytes())
    async for message in until_quiet(link, ANSWER_S, is_awaited=lambda: True):
        if message.topic == topics.coordinator_status and not message.retained:
            with suppress(DecodeError):
                return CoordinatorStatus.from_bytes(message.payload)
    return None


def of_fleet(
    fleet: RetainedFleet,
    now: float,
    until: float | None = None,
    *,
    answers: bool = True,
    clock: float | None = None,
) -> list[Odd]:
    """The list from all that was read at a broker.

    Args:
        fleet: what it retains.
        now: by the clock of this machine.
        until: when the certificate of the broker ends.
        answers: whether the coordinator does.
        clock: its time when it answered; None: it was not asked.
    """
    caller, roster, devices = fleet.coordinator, fleet.pages.message, fleet.statuses
    rows, known = ({}, []) if roster is None else (roster.agents, read_odd(roster.odd))
    is_theirs = any((one.devices, one.kind) == ((COORDINATOR,), "clock") for one in known)
    if clock is None and is_theirs:  # when it heard an agent last, by its own clock
        clock = max((row.get("seen") or 0.0 for row in rows.values()), default=now)
    found = [*at_broker(caller, roster, devices, fleet.topics.federation, answers=answers)]
    if clock is not None and abs(now - clock) > CLOCKS_DIFFER_S and not is_theirs:
        found.append(wrong_clock(HERE, now - clock, "the coordinator's"))
    found += slow(rows, of_run=not is_at_work(caller))
    found += of_retained(
        now if clock is None else clock,
        devices,
        roster,
        caller,
        between_runs=not is_at_work(caller),
        deployment=fleet.held.all_devices,
        elsewhere=fleet.elsewhere,
        until=until,
        judge=HERE if clock is None else COORDINATOR,
    )
    return ranked(found)
