"""Odd devices: what their newest statuses and the coordinator's roster show. Pure: the time is an argument."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median_low
from typing import TYPE_CHECKING, Any

from covey.coordinator.odd import BROKER, COORDINATOR, Broker, Odd
from covey.extras.doctor.columns import few_rows, to_check
from covey.shared.errors import HONEST_REFUSALS
from covey.shared.mqtt.duplicate_ids import started_at
from covey.shared.sentences import counted
from covey.shared.wire.documents import (
    EXPELLED,
    FELL,
    IN_USE,
    JUDGING,
    AgentStatus,
    CoordinatorStatus,
)
from covey.shared.wire.format import FORMAT

if TYPE_CHECKING:
    from covey.shared.wire.deployments import Deployment

DAY_S = 86_400.0
HERE = "doctor"  # in the place of a device: the machine on which it runs
SOON_S = 14 * DAY_S  # before a certificate ends
CLOCKS_DIFFER_S = 600.0
ROUNDED = 1.01  # a clock that is 23.9 hours off is a day off
FIRST_S = 1.6e9  # a clock that shows an earlier time (2020) was never set
ROLL_S = 120.0  # after a roll call, besides its spread, an agent that lives has answered
CHECK_S = 600.0  # in which data of any size are compared with a task
LEAST_FREE = 512 << 20  # bytes, for logs and an upgrade; agents publish at each power of two
LEAST_FREE_RUNS = 1_000_000_000  # bytes on the coordinator's disk: a full one pauses the run
MANY_LINKS = 20  # losses of a day that are odd
TIMES_USUAL = 10  # the losses of the others

# refused messages that are no alarm by themselves; of data that shrink, a report may come after the status with the new number
NO_ALARM = HONEST_REFUSALS | {"too many examples"}

FLOOD = 10  # messages beyond the rate: of fewer ones the newest was taken all the same

Row = Mapping[str, Any]  # of a roster


@dataclass(frozen=True)
class Seen:
    """All that is known about a fleet's devices at one moment."""

    now: float  # seconds since 1970
    statuses: Mapping[str, AgentStatus] = field(default_factory=dict)  # the newest of each
    rows: Mapping[str, Row] = field(default_factory=dict)  # of the roster
    coordinator: CoordinatorStatus | None = None
    deployment: Deployment | None = None  # in force for all devices
    elsewhere: Mapping[str, str] = field(default_factory=dict)  # in federations of nobody
    broker: Broker = field(default_factory=Broker)
    free: int | None = None  # bytes on the disk of the coordinator
    version: str = ""  # of the coordinator's Covey
    waits: str = ""  # what the run at work waits for; empty: for no agent
    judge: str = COORDINATOR  # whose clock `now` is


def odd_devices(seen: Seen) -> Iterator[Odd]:
    """All that is odd about the devices themselves."""
    members = {agent: one for agent, one in seen.statuses.items() if one.problem != EXPELLED}
    yield from _broker(seen)
    yield from _certificates(seen, members)
    shaky = list(_links(seen, members))
    yield from shaky
    explained: set[str] = {device for odd in shaky if BROKER in odd.devices for device in members}
    versions = list(_versions(seen, members))
    yield from versions
    named = {device for odd in versions for device in odd.devices}
    yield from _clocks(seen, members)
    late = [one for one in members if members[one].online and seen.rows.get(one, {}).get("silent")]
    if len(late) >= 2 and 2 * len(late) > len(members):
        explained |= {*late}
        what = f"the reports of {len(late)} of {len(members)} devices came too late, several times in a row"
        command = "look at its load (top), at the broker's, and at rounds.deadline_s"
        yield Odd((COORDINATOR,), "silent", what, command, weight=9)
    for agent, status in members.items():
        row = seen.rows.get(agent, {})
        yield from _of_its_own(agent, status)
        yield from reports_of(agent, row, status)
        yield from _away(agent, status, row, seen, named | explained)
    yield from _publication(seen, members)
    yield from few_rows({agent: one.samples for agent, one in members.items() if one.samples})
    for agent, federation in seen.elsewhere.items():
        if agent not in members:
            what = f"it is in federation {federation!r}, which has had no coordinator"
            command = "start it with the --federation or the credentials of this fleet"
            yield Odd((agent,), "federation", what, command)
    for agent, row in seen.rows.items():
        if seen.statuses and agent not in seen.statuses and row.get("problem") != EXPELLED:
            what = "the broker has no status of it: the access rules may not let it publish"
            command = "`broker doctor --credentials FILE` with its file"
            yield Odd((agent,), "silent", what, command, row.get("seen"))


def _broker(seen: Seen) -> Iterator[Odd]:
    broker = seen.broker
    if broker.why:
        named = re.findall("`[^`]+`", broker.why)  # a reason may know what helps
        yield Odd((BROKER,), "broker", broker.why, (*named, "`broker doctor`")[0], weight=9)
    if seen.free is not None and seen.free < LEAST_FREE_RUNS:
        what = f"{megabytes(seen.free)} free on the disk of its runs"
        yield Odd((COORDINATOR,), "disk", what, "`coordinator prune`", weight=9)


def megabytes(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


# -- certificates ----------------------------------------------------------------------------------------------------


def _certificates(seen: Seen, members: Mapping[str, AgentStatus]) -> Iterator[Odd]:
    """Certificates that have ended or soon will. An end that most devices share is the broker's."""
    ends = {agent: one.certificate for agent, one in members.items() if one.certificate is not None}
    if seen.broker.until is not None:
        yield from _ends((BROKER,), seen.broker.until, seen.now, "`broker lab renew`")
    shared = Counter(ends.values()).most_common(1)
    common = shared[0][0] if shared and shared[0][1] > 1 and 2 * shared[0][1] > len(ends) else None
    if common is not None:
        yield from _ends((BROKER,), common, seen.now, "`broker lab renew`")
    for agent, end in ends.items():
        if end not in (common, seen.broker.until):
            yield from _ends((agent,), end, seen.now, f"`broker lab rotate {agent}`")


def _ends(devices: tuple[str, ...], end: float, now: float, command: str) -> Iterator[Odd]:
    if end <= now:
        what = "its certificate has expired"
        yield Odd(devices, "certificate", what, command, since=end, weight=now - end)
    elif end - now < SOON_S:
        what = f"its certificate ends in {_duration(end - now)}"
        yield Odd(devices, "certificate", what, command, weight=(now - end) / SOON_S)


# -- one device by itself --------------------------------------------------------------------------------------------

TAKES_NOTHING = "its disk takes nothing: it is full, read-only, or closed to the agent's user"
ITS_DISK = "look at its disk and its log; the agent continues by itself"
MEMORY = re.compile(r"\bmemory\b|\bMiB\b|largest_.*_mb", re.IGNORECASE)


def _of_its_own(agent: str, status: AgentStatus) -> Iterator[Odd]:
    if status.twins:
        what = "another program uses its id"
        yield Odd((agent,), "twin id", what, "give one of them another --id", status.clock)
    if (free := status.disk_free) is not None and free < LEAST_FREE:
        what = f"{megabytes(free)} free on its disk" if free else TAKES_NOTHING
        command = "free room there; the agent continues by itself"
        yield Odd((agent,), "disk", what, command if free else ITS_DISK, status.clock)
    if status.model is not None and FELL in status.model.note:
        what = f"its model in use{FELL}{status.model.note.partition(FELL)[2]}"
        yield to_check(agent, "figure", what)
    if status.online and status.problem and status.format == FORMAT:
        yield excluded(agent, status.problem, status.clock)


def _clocks(seen: Seen, members: Mapping[str, AgentStatus]) -> Iterator[Odd]:
    """Clocks that are ahead of ours, or behind: those of devices, or ours, if most devices agree with each other against it."""
    off: dict[str, float] = {}  # seconds that a device is ahead of us
    for agent, status in members.items():
        if status.online and status.clock is not None:
            off[agent] = _ahead(status, status.clock, seen.rows.get(agent, {}), seen.now)
    set_once = [agent for agent in off if (members[agent].clock or 0.0) > FIRST_S - CLOCKS_DIFFER_S]
    for sign in (1, -1):
        alike = [agent for agent in set_once if sign * off[agent] > CLOCKS_DIFFER_S]
        if len(alike) > 1 and 2 * len(alike) > len(off):
            ours = median_low(off[agent] for agent in alike)
            whose = seen.judge if sign > 0 else COORDINATOR  # whose roll call they answer too early
            yield wrong_clock(whose, -ours, f"{len(alike)} of {len(off)} devices")
            exact = [agent for agent in off if seen.rows.get(agent, {}).get("behind")]
            off = {agent: off[agent] - ours for agent in exact if agent not in alike}
            break
    for agent, ahead in off.items():
        what = f"its clock is {_duration(ROUNDED * ahead)} ahead"
        if ahead < 0:
            what = f"its clock is {_duration(-ROUNDED * ahead)} or more behind: it stands still, or was never set"
        if abs(ahead) > CLOCKS_DIFFER_S:
            yield Odd((agent,), "clock", what, "on the device: timedatectl", weight=abs(ahead))


def wrong_clock(who: str, ahead: float, of: str) -> Odd:
    """The clock of a machine by which others are judged is some seconds ahead of theirs."""
    owner, also = ("this", "") if who == HERE else ("its", " and the coordinator's")
    off = f"{_duration(ROUNDED * abs(ahead))} {'ahead of' if ahead > 0 else 'behind'}"
    what = f"the clock of {owner} machine is {off} {of}"
    return Odd((who,), "clock", what, f"on this machine{also}: timedatectl", weight=abs(ahead))


def _ahead(status: AgentStatus, clock: float, row: Row, now: float) -> float:
    """Seconds that a device's clock is ahead of ours: it shows more than ours does now, less than at the start of the
    coordinator that the device answers, or another time than ours when its status came."""
    called = started_at(status.epoch.partition(".")[0])
    behind = max(max(FIRST_S, called or 0.0) - clock, row.get("behind") or 0.0)
    ahead = max(clock - now, -(row.get("behind") or 0.0))
    return ahead if ahead > behind else -behind if behind > 0 else 0.0


def _duration(seconds: float) -> str:
    for unit, length in (("day", DAY_S), ("hour", 3600.0)):
        if seconds >= length:
            return counted(int(seconds / length), unit)
    return counted(int(seconds / 60), "minute")


def excluded(agent: str, why: str, since: float | None = None) -> Odd:
    """A device that is there and takes no part."""
    command = "agent lab policy" if "policy" in why else "agent check DATA"
    return Odd((agent,), "excluded", f"it takes no part: {why}", f"on the device: {command}", since)


def reports_of(agent: str, row: Row, status: AgentStatus | None = None) -> Iterator[Odd]:
    """Reports that were refused, and work that fails."""
    refusals: Mapping[str, int] = row.get("refusals") or {}
    counts = {why: count for why, count in refusals.items() if why not in NO_ALARM}
    if counts.get("rate", FLOOD) < FLOOD:
        del counts["rate"]
    if row.get("quarantined"):
        what = f"in quarantine: {row['quarantined']}"
        command = f"`coordinator lab story {agent}`, then `coordinator lab release {agent}` or `broker expel {agent}`"
        yield Odd((agent,), "reports", what, command, row.get("seen"), weight=9)
    elif row.get("set_aside") or counts:
        reasons = ", ".join(f"{reason} {count}" for reason, count in counts.items())
        what = str(row.get("set_aside") or f"its messages were refused: {reasons}")
        yield Odd((agent,), "reports", what, f"`coordinator lab story {agent}`", row.get("seen"))
    elif status is not None and status.refused:
        what = f"its newest report was refused: {status.refused}"
        yield Odd((agent,), "reports", what, f"`coordinator lab story {agent}`", status.clock)
    failed = row.get("failing") or (row.get("failed") if row.get("failures") else "")
    if failed:
        command = f"`coordinator lab story {agent}`"
        if MEMORY.search(str(failed)):
            command = "on the device: agent lab policy"
        what, weight = f"it cannot do its work: {failed}", float(row.get("failures") or 0)
        yield Odd((agent,), "work", what, command, row.get("seen"), weight)


def _away(
    agent: str, status: AgentStatus, row: Row, seen: Seen, explained: set[str]
) -> Iterator[Odd]:
    """Devices that were lost, that ended while a run waits, or that are there and do not answer."""
    expired = status.certificate is not None and status.certificate <= seen.now
    if not status.online:
        if not status.serial and not expired and agent not in explained:
            since, caller = row.get("seen"), seen.coordinator
            before = ""
            if since is None and caller is not None and caller.online:  # which never heard it
                since, before = started_at(caller.session), " before the coordinator was started"
            what = f"offline: its connection broke{before}"
            command = "look at its power and network; `broker list`"
            yield Odd((agent,), "offline", what, command, since)
        elif status.serial and seen.waits:
            what = f"its agent was stopped, and the run waits: {seen.waits}"
            since = status.clock or row.get("seen")
            yield Odd((agent,), "offline", what, "on the device: agent start", since)
        return
    if row.get("silent") and agent not in explained:
        what = f"online, and sends no reports: {row['silent']}"
        yield Odd((agent,), "silent", what, f"`coordinator lab story {agent}`", row.get("seen"))
        return
    caller = seen.coordinator
    if caller is None or not caller.online or agent in explained:
        return
    called, since = started_at(caller.session), row.get("seen")
    patience = ROLL_S + caller.spread_s
    if status.epoch != caller.epoch and called is not None and seen.now - called > patience:
        what = "online by its last status, and has not answered the coordinator's roll call"
        yield Odd((agent,), "silent", what, "look at its power and network", since)
        return
    lasts_s = 0.0 if since is None else seen.now - since
    is_checking = not status.problem and caller.task_digest not in ("", status.task)
    if status.epoch == caller.epoch and is_checking and lasts_s > CHECK_S:
        what = f"it has compared its data with the task for {_duration(lasts_s)}, and takes no part yet"
        command = "look at its load (top); on the device: agent check DATA"
        yield Odd((agent,), "silent", what, command, since)


# -- devices next to each other --------------------------------------------------------------------------------------


def _links(seen: Seen, members: Mapping[str, AgentStatus]) -> Iterator[Odd]:
    """Links that are lost again and again: of one device, or of most, which is the broker."""
    lost = {
        agent: one.links - 1
        for agent, one in members.items()
        if one.links and (one.clock is None or seen.now - one.clock <= DAY_S)
    }
    if not lost:
        return
    usual = median_low(lost.values())
    many = [agent for agent, count in sorted(lost.items()) if count >= MANY_LINKS]
    if len(lost) >= 2 and 2 * len(many) > len(lost):
        what = f"it drops connections: {len(many)} of {counted(len(lost), 'device')} came back {usual:.0f} times or so"
        yield Odd((BROKER,), "broker", what, "`broker doctor`", weight=usual)
        return
    for agent in many:
        if lost[agent] >= TIMES_USUAL * usual:
            what = f"its link was lost {lost[agent]} times within a day, the others' {usual:.0f}"
            command = "look at its network, then at keepalive in the broker's log"
            yield Odd((agent,), "link", what, next=command, weight=lost[agent])


def _versions(seen: Seen, members: Mapping[str, AgentStatus]) -> Iterator[Odd]:
    """Devices whose version is older than that of most, or newer than the coordinator's, or whose messages mean something else."""
    versions = {agent: one.version for agent, one in members.items() if one.online and one.version}
    usual = Counter(versions.values()).most_common(1)
    ours = _release(seen.version)
    newer = [agent for agent, own in versions.items() if ours and _release(own) > ours]
    if newer:
        newest = max((versions[agent] for agent in newer), key=_release)
        what = f"Covey {newest} is newer than the coordinator's {seen.version}"
        command = f"update the coordinator: {UPDATE}"
        yield Odd(tuple(sorted(newer)), "version", what, command, weight=8)
    for agent, status in members.items():
        own = versions.get(agent, "")
        if status.online and status.format != FORMAT and agent not in newer:
            name = own or "of unknown version"
            what = f"Covey {name} speaks format {status.format}, not {FORMAT}"
            command = f"update {'the coordinator' if status.format > FORMAT else 'it'}: {UPDATE}"
            yield Odd((agent,), "version", what, command, started_at(status.session), weight=9)
        elif own and 2 * usual[0][1] > len(versions) and _release(own) < _release(usual[0][0]):
            what = f"Covey {own}, most devices have {usual[0][0]}"
            yield Odd((agent,), "version", what, f"update it: {UPDATE}", started_at(status.session))


UPDATE = "docs/operations.md#upgrade"  # no index of packages has it


def _release(version: str) -> tuple[int, ...]:
    """A version as numbers that can be compared."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _publication(seen: Seen, members: Mapping[str, AgentStatus]) -> Iterator[Odd]:
    """Devices that use another version than the one in force, which they have judged."""
    wanted = seen.deployment
    if wanted is None:
        return
    refused = {
        agent: one.model.note
        for agent, one in members.items()
        if one.online
        and one.model is not None
        and one.model.serial == wanted.serial
        and (one.model.run, one.model.round) != (wanted.run, wanted.round)
        and not one.model.note.startswith((IN_USE, JUDGING))
    }
    if refused:
        why = next(filter(None, refused.values()), "their check kept it out")
        what = f"refused {wanted.title}: {why}"
        yield Odd(tuple(sorted(refused)), "publication", what, "`coordinator versions`")
