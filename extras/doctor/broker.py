"""Examines a broker as a client: which of the functions that Covey needs it provides, and how fast; and whether there is
room on the disk under its folder.

Do several addresses lead to one broker? Tests what crosses from each to each.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import statistics
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from covey.broker.limits import DEFAULT_PART, MIB
from covey.broker.programs.mosquitto import DATABASE, SAVE_EVERY_S
from covey.extras.scale.crossing import UNSHARED, Crossing, crossing
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.mqtt.link import UNANSWERED, Down, Received, Up, Will
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.mqtt.profiles import HEAD_BYTES, NAMES, PART_HEAD_BYTES, UNLIMITED
from covey.shared.wire.topics import Topics

SIZES = tuple(1 << power for power in range(16, 24))  # parts of 64 KiB to 8 MiB
TRIPS = 50
BULK = (250_000, 40)  # bytes of a message, how many
USELESS = "Covey cannot work with this broker as it is configured"
SUBSCRIPTIONS = 64  # at once: a model of some 32 MB has as many parts
NAME_PROFILE = f"a model of more parts needs the broker's profile in its address: ?profile= and one of {', '.join(NAMES[1:])}"
TOO_LARGE = "raise the broker's limits (`broker up --max-packet`; Mosquitto: max_packet_size, message_size_limit), or lower wire.part_bytes in the scenario"


@dataclass(frozen=True)
class BrokerCheck:
    """The result of one check."""

    check: str
    state: Literal["ok", "missing", "note"]  # "missing": Covey cannot work without it
    seen: str  # what the broker did
    means: str = ""  # the consequence, and what to do
    value: float | None = None  # the figure behind `seen`, if the check measured one


class CheckFailed(Exception):  # noqa: N818  not an error of ours: a finding
    """The broker did not do what the check expects. `means`: the consequence, and what to do."""

    def __init__(self, seen: str, means: str = USELESS) -> None:
        super().__init__(seen)
        self.means = means


class Doctor:
    """One examination of a broker. It leaves nothing behind.

    Its topics begin with `covey/doctor-...`, for a coordinator of one federation with `covey/{federation}/doctor-...`.

    Args:
        url: of the broker, with the user and its password.
        patience_s: how long to wait for each answer.
        role: of the user, from its credentials; empty: unknown.
        federation: of the user, from its credentials; empty: any, or unknown.
    """

    def __init__(
        self, url: BrokerUrl, *, patience_s: float = 5.0, role: str = "", federation: str = ""
    ) -> None:
        self.url = url
        self.role = role
        self.federation = federation
        self.patience_s = patience_s
        self._name = f"doctor-{uuid.uuid4().hex[:8]}"  # so that two examinations do not meet
        self._links = 0  # opened so far; numbers their client ids

    def __repr__(self) -> str:
        return f"<Doctor {self._name} of {self.url}>"

    async def examine(self) -> list[BrokerCheck]:
        """All findings, in the order of the checks.

        Without a connection, only the first. For a user whom the access rules restrict to its own topics, only the
        first two: all other checks would blame the broker for what the rules forbid.
        """
        first = await self._connect()
        if first.state != "ok":
            return [first]
        if self.url.user and await self._is_kept_out(self.url.user):
            seen = f"the access rules restrict {self.url.user} to an {self.role or 'agent'}'s own topics"
            means = "this user cannot examine the broker; use the coordinator's credentials"
            return [first, BrokerCheck("publish and subscribe", "missing", seen, means)]
        checks: list[tuple[str, Callable[[], Awaitable[BrokerCheck]]]] = [
            ("publish and subscribe", self._publish),
            ("retained message", self._retain),
            ("clearing a retained message", self._clear),
            ("retained, for a wildcard subscription", self._wildcard),
            ("last will", self._will),
            ("take-over of a client id", self._take_over),
            ("persistent session", self._persistent),
            ("limits", self._limits),
            ("subscriptions", self._subscriptions),
            ("largest payload", self._largest),
            ("round trip", self._round_trip),
            ("throughput", self._throughput),
        ]
        findings = [first]
        for name, check in checks:
            findings.append(await self._check(name, check))
        return findings

    async def _check(self, name: str, check: Callable[[], Awaitable[BrokerCheck]]) -> BrokerCheck:
        try:
            return await check()
        except CheckFailed as error:
            return BrokerCheck(name, "missing", str(error), error.means)
        except TimeoutError:
            return BrokerCheck(name, "missing", self._silence, USELESS)

    @property
    def _silence(self) -> str:
        return f"nothing within {self.patience_s:g} s"

    async def _is_kept_out(self, user: str) -> bool:
        """Whether a message to itself reaches this user on an agent's topic, but not on the doctor's topic."""
        if self.role:
            return self.role != "coordinator"
        if await self._comes_back(self._topic("plain")):
            return False
        return await self._comes_back(Topics(self._name).status(user))

    async def _comes_back(self, topic: str) -> bool:
        try:
            async with self._link() as link:
                await self._subscribe(link, topic)
                await self._send(link, topic, b"x")
                await self._hear(link)
        except (CheckFailed, TimeoutError):
            return False
        return True

    async def _connect(self) -> BrokerCheck:
        link = MqttLink(self.url, client_id=self._name)
        async with link:
            try:
                async with asyncio.timeout(self.patience_s):
                    first = await anext(link.incoming())
            except TimeoutError:
                first = Down(f"{self.url}: no answer within {self.patience_s:g} s")
        if isinstance(first, Down):
            means = "check host, port, user, password and TLS"
            return BrokerCheck("connection", "missing", first.why, means)
        version = "MQTT 5" if self.url.profile.mqtt5 else "MQTT 3.1.1"
        return BrokerCheck("connection", "ok", f"{version}, broker profile {self.url.profile}")

    async def _publish(self) -> BrokerCheck:
        async with self._link() as link:
            await self._subscribe(link, self._topic("plain"))
            await self._send(link, self._topic("plain"), b"x")
            await self._hear(link)
        return BrokerCheck("publish and subscribe", "ok", "QoS 1, acknowledged and delivered")

    async def _retain(self) -> BrokerCheck:
        async with self._link() as link:
            await self._send(link, self._topic("state"), b"state", retain=True)
            await self._subscribe(link, self._topic("state"))
            await self._hear(link)
        return BrokerCheck("retained message", "ok", "a late subscriber gets it")

    async def _clear(self) -> BrokerCheck:
        topic = self._topic("state")
        async with self._link() as link:
            await self._send(link, topic, b"", retain=True)
            await self._subscribe(link, topic)
            await self._send(link, topic, b"sentinel")
            heard = await self._hear(link)
            while heard.payload != b"sentinel":
                if heard.retained:
                    raise CheckFailed("the message is still there after an empty one")
                # a live copy of an earlier message, from a broker that acknowledges before it delivers
                heard = await self._hear(link)
        return BrokerCheck("clearing a retained message", "ok", "an empty message clears the topic")

    async def _wildcard(self) -> BrokerCheck:
        name = "retained, for a wildcard subscription"
        async with self._link() as link:
            await self._send(link, self._topic("wild/one"), b"state", retain=True)
            await self._subscribe(link, self._topic("wild/+"))
            await self._send(link, self._topic("wild/two"), b"sentinel")
            found = (await self._hear(link)).payload == b"state"
            await self._send(link, self._topic("wild/one"), b"", retain=True)
        if found:
            return BrokerCheck(name, "ok", "delivered")
        means = "no harm: Covey reads retained state by exact topics only"
        return BrokerCheck(name, "note", "not delivered", means)

    async def _will(self) -> BrokerCheck:
        topic = self._topic("will")
        async with self._link() as link:
            await self._subscribe(link, topic)
            async with self._link(will=Will(topic, b"gone")) as victim:
                await victim.abort()
            if (await self._hear(link)).payload != b"gone":
                raise CheckFailed("another message arrived instead")
            await self._send(link, topic, b"", retain=True)
        return BrokerCheck("last will", "ok", "published when a connection breaks")

    async def _take_over(self) -> BrokerCheck:
        name = f"{self._name}-twin"
        async with (
            self._link(client_id=name) as older,
            self._link(client_id=name),
            asyncio.timeout(self.patience_s),
        ):
            while not isinstance(await anext(older.incoming()), Down):
                pass
        return BrokerCheck("take-over of a client id", "ok", "the older connection ends")

    async def _persistent(self) -> BrokerCheck:
        check, name, topic = "persistent session", f"{self._name}-sleeper", self._topic("offline")
        async with self._link(client_id=name, clean_session=False) as sleeper:
            await self._subscribe(sleeper, topic)
        async with self._link() as link:
            await self._send(link, topic, b"kept")
        try:
            async with self._link(client_id=name, clean_session=False) as sleeper:
                await self._hear(sleeper)
            return BrokerCheck(
                check, "ok", "the broker keeps messages for a client that is offline"
            )
        except (CheckFailed, TimeoutError):
            return BrokerCheck(check, "note", "none", "no harm: Covey uses clean sessions only")
        finally:
            async with self._link(client_id=name):  # a clean session removes the persistent one
                pass

    async def _limits(self) -> BrokerCheck:
        """What the broker names itself, if it speaks MQTT 5."""
        profile = replace(self.url.profile, mqtt5=True)
        link = MqttLink(replace(self.url, profile=profile), client_id=f"{self._name}-5")
        async with link, asyncio.timeout(self.patience_s):
            first = await anext(link.incoming())
        if link.profile.unusable:
            raise CheckFailed(link.profile.unusable)
        if isinstance(first, Down):
            return BrokerCheck("limits", "ok", "none named: the broker has no MQTT 5")
        found = link.profile
        named = []
        if found.payload_bytes < UNLIMITED - HEAD_BYTES:
            named.append(f"{found.payload_bytes >> 10} KiB in a message")
        if found.unacknowledged < UNLIMITED:
            named.append(f"{found.unacknowledged} messages unacknowledged")
        seen = ", ".join(named) or "none named"
        return BrokerCheck("limits", "ok", seen, value=found.payload_bytes)

    async def _subscriptions(self) -> BrokerCheck:
        count = min(SUBSCRIPTIONS, self.url.profile.subscriptions)
        topics = [self._topic(f"part/{number}") for number in range(count)]
        answer = UNANSWERED
        with contextlib.suppress(TimeoutError):
            async with self._link() as link, asyncio.timeout(4 * self.patience_s):
                answer = await link.subscribe(topics)
        if answer:
            return BrokerCheck("subscriptions", "ok", f"{count} of one connection", value=count)
        seen = f"{len(answer.refused)} of {count} refused"
        if not answer.answered:
            seen = f"{count} in one packet are not answered"
        return BrokerCheck("subscriptions", "note", seen, NAME_PROFILE)

    async def _largest(self) -> BrokerCheck:
        most = self.url.profile.part_bytes
        sizes = [size for size in SIZES if size < most]
        if most < SIZES[-1]:
            sizes.append(most)
        largest, topic = 0, self._topic("large")
        for size in sizes:
            payload = os.urandom(size + PART_HEAD_BYTES)
            try:
                async with self._link() as link:
                    await self._subscribe(link, topic)
                    await self._send(link, topic, payload, patience_s=4 * self.patience_s)
                    await self._hear(link)
            except (CheckFailed, TimeoutError):
                break
            largest = size
        seen = f"{largest // 1024} KiB{' or more' if largest == SIZES[-1] else ''}"
        if largest < sizes[0]:
            raise CheckFailed(f"not even {sizes[0] // 1024} KiB arrived", TOO_LARGE)
        if largest < min(DEFAULT_PART, most):
            advice = f"set wire.part_bytes to at most {largest} in the scenario"
            return BrokerCheck("largest payload", "note", seen, advice, largest)
        return BrokerCheck("largest payload", "ok", seen, value=largest)

    async def _round_trip(self) -> BrokerCheck:
        trips, topic = [], self._topic("trip")
        async with self._link() as link:
            await self._subscribe(link, topic)
            for _ in range(TRIPS):
                began = time.perf_counter()
                await asyncio.gather(self._send(link, topic, bytes(64)), self._hear(link))
                trips.append(1000 * (time.perf_counter() - began))
        median = statistics.median(trips)
        return BrokerCheck("round trip", "ok", f"{median:.2f} ms (median of {TRIPS})", value=median)

    async def _throughput(self) -> BrokerCheck:
        size, count = BULK
        size = min(size, self.url.profile.part_bytes)
        bulk = f"{count} messages of {size // 1000} kB"
        payload, topic, failed = os.urandom(size), self._topic("bulk"), ""
        async with self._link() as sender, self._link() as reader:
            await self._subscribe(reader, topic)
            began = time.perf_counter()
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._drain(reader, count))
                    for _ in range(count):
                        group.create_task(self._send(sender, topic, payload, patience_s=60.0))
            except* (CheckFailed, TimeoutError) as errors:
                failed = str(errors.exceptions[0]) or self._silence
            rate = size * count / (time.perf_counter() - began) / 1e6
        if failed:
            raise CheckFailed(f"{bulk} did not arrive: {failed}", TOO_LARGE)
        return BrokerCheck("throughput", "ok", f"{rate:.3g} MB/s ({bulk})", value=rate)

    async def _drain(self, reader: MqttLink, count: int) -> None:
        for _ in range(count):
            await self._hear(reader)

    def _topic(self, leaf: str) -> str:
        federation = f"{self.federation}/" if self.federation else ""
        return f"covey/{federation}{self._name}/{leaf}"

    @asynccontextmanager
    async def _link(self, *, client_id: str = "", **options: Any) -> AsyncIterator[MqttLink]:
        """A link that is connected."""
        self._links += 1
        async with MqttLink(
            self.url, client_id=client_id or f"{self._name}-{self._links}", **options
        ) as link:
            async with asyncio.timeout(self.patience_s):
                while not isinstance(await anext(link.incoming()), Up):
                    pass
            yield link

    async def _subscribe(self, link: MqttLink, topic: str) -> None:
        async with asyncio.timeout(self.patience_s):
            if not await link.subscribe([topic]):
                raise CheckFailed(f"the subscription to {topic} was refused")

    async def _send(
        self,
        link: MqttLink,
        topic: str,
        payload: bytes,
        *,
        retain: bool = False,
        patience_s: float = 0.0,
    ) -> None:
        async with asyncio.timeout(patience_s or self.patience_s):
            if not await link.publish(topic, payload, retain=retain):
                raise CheckFailed(f"{len(payload)} bytes to {topic} broke the connection")

    async def _hear(self, link: MqttLink) -> Received:
        async with asyncio.timeout(self.patience_s):
            async for item in link.incoming():
                if isinstance(item, Received):
                    return item
                if isinstance(item, Down):
                    raise CheckFailed(item.why)
        raise CheckFailed("the link was closed")


CHECK = "disk"
SPARE = 64 * MIB  # beyond a second copy of the retained messages, which each save writes
LATE_S = 3 * SAVE_EVERY_S
LOST = "a broker that cannot save loses retained messages, such as models of finished runs, at its next start"


def examine_disk(data: Path) -> BrokerCheck:
    """The disk of a broker that runs, and its newest save.

    Args:
        data: the folder with its retained messages, which may not exist yet.
    """
    place = data if data.exists() else data.parent
    free = shutil.disk_usage(place).free
    database = data / DATABASE
    if not database.exists():
        return judged(free, 0, None)
    found = database.stat()
    return judged(free, found.st_size, time.time() - found.st_mtime)


def judged(free: int, saved: int, age_s: float | None) -> BrokerCheck:
    """What the figures mean.

    Args:
        free: bytes on the disk.
        saved: bytes of the newest save; 0 if there is none.
        age_s: seconds since then; None if there is none.
    """
    seen = f"{free // MIB} MiB free, {saved // MIB} MiB saved"
    if free < saved + SPARE:
        least = (saved + SPARE) // MIB + 1
        return BrokerCheck(CHECK, "missing", seen, f"{LOST}; make room, at least {least} MiB", free)
    if age_s is None:
        return BrokerCheck(CHECK, "ok", f"{free // MIB} MiB free, nothing saved yet", value=free)
    seen += f", {age_s:.0f} s ago"
    if age_s > LATE_S:
        means = f"the broker should save every {SAVE_EVERY_S} s: {LOST}; see the messages of `broker up`"
        return BrokerCheck(CHECK, "missing", seen, means, free)
    return BrokerCheck(CHECK, "ok", seen, value=free)


BETWEEN = "between the addresses"
ONE_WAY = "agents hear the coordinator or it hears them, not both; bridge covey/# in both directions, or in none"
AGAIN = "a node may be down or starting; examine them again"


@dataclass(frozen=True)
class Between:
    """The relation of several addresses to each other."""

    findings: list[BrokerCheck]
    groups: list[list[str]]  # addresses that lead to one broker, or to bridged ones


async def examine_between(
    urls: Sequence[BrokerUrl], *, patience_s: float = 5.0, federation: str = ""
) -> Between:
    """Test all pairs of addresses at once. It leaves nothing behind.

    Args:
        urls: at least two, which can be reached.
        patience_s: a message that has not crossed after this time (s) never does.
        federation: of the user; empty: any.
    """
    base = f"covey/{federation}/" if federation else "covey/"
    prefix = f"{base}doctor-{uuid.uuid4().hex[:8]}"
    count = len(urls)
    arrows = [(start, end) for start in range(count) for end in range(count) if start != end]
    tests = [crossing(urls[a], urls[b], f"{prefix}/{a}-{b}", patience_s) for a, b in arrows]
    seen = await asyncio.gather(*tests)
    return judged_between([str(url) for url in urls], dict(zip(arrows, seen, strict=True)))


def judged_between(names: Sequence[str], crossings: dict[tuple[int, int], Crossing]) -> Between:
    """What the crossings mean.

    Args:
        names: the addresses, for people.
        crossings: by the numbers of two addresses, from and to; every pair in both directions.
    """
    findings: list[BrokerCheck] = []
    groups: list[list[int]] = []
    for number in range(len(names)):
        own = [group for group in groups if crossings[group[0], number] is not Crossing.NOTHING]
        if own:
            own[0].append(number)
        else:
            groups.append([number])
    for start in range(len(names)):
        for end in range(start + 1, len(names)):
            findings += _faults(names, crossings, start, end)
    named = [[names[number] for number in group] for group in groups]
    if not findings:
        findings.append(_summary(named))
    return Between(findings, named)


def _faults(
    names: Sequence[str], crossings: dict[tuple[int, int], Crossing], start: int, end: int
) -> list[BrokerCheck]:
    pair = f"{names[start]} and {names[end]}"
    both = {crossings[start, end], crossings[end, start]}
    if Crossing.UNKNOWN in both:
        why, means = Crossing.UNKNOWN.value, AGAIN
    elif Crossing.LIVE in both:
        why, means = Crossing.LIVE.value, UNSHARED
    elif len(both) == 2:
        why, means = "messages cross in one direction only", ONE_WAY
    else:
        return []
    return [BrokerCheck(BETWEEN, "missing", f"{pair}: {why}", means)]


def _summary(groups: Sequence[Sequence[str]]) -> BrokerCheck:
    addresses = sum(len(group) for group in groups)
    if len(groups) == 1:
        seen = f"one broker, or bridged ones: all {addresses} addresses share live and retained messages"
        means = "agents may use any of them; give all of them to `coordinator run --cluster`"
    elif len(groups) == addresses:
        seen = f"{addresses} independent brokers (shards): nothing crosses"
        means = "list all of them under `brokers` in the scenario, and enroll each agent at one"
    else:
        sets = "; ".join(" = ".join(group) for group in groups)
        seen = f"{len(groups)} independent brokers (shards), some with several addresses: {sets}"
        means = "list one address of each under `brokers` in the scenario"
    return BrokerCheck(BETWEEN, "ok", seen, means)
