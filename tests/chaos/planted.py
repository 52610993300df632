"""`python -m tests.chaos.planted`: faults planted in a fleet of real agents over Mosquitto, and what `coordinator doctor` lists first.

One fault at a time, then two at a time on other devices. Each is planted in a healthy fleet whose run is at work, must be named
within a while by the first line, and alone; then it is fixed, and the list must be empty again. Exit code 0 only if all of the
table were planted, each was named, nobody else was, and each alarm ended.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import csv
import datetime as dt
import functools
import json
import random
import re
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml

from covey.coordinator.odd import BROKER, COORDINATOR, Odd, ranked
from covey.extras.doctor.command import of_broker
from covey.shared.errors import CoveyError
from covey.shared.mqtt.broker_url import BrokerUrl
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.sentences import counted
from covey.shared.wire.topics import Topics
from tests.chaos.proxy import Proxy
from tests.chaos.site import Broken, Program, Site, python
from tests.processes import free_ports

DEVICES = 8
ROWS = 240
HEADER = ["time", "temperature", "vibration", "current", "state"]
CALM_S, NAMED_S, ENDED_S = 900.0, 300.0, 300.0  # on a machine that others use too
LEARNS = ("--learner", "numpy", "--threads", "1")
DAY_S = 86_400
READY_S = 10.0  # until an agent that was started is at work

Row = list[str]
Change = Callable[[list[Row]], list[Row]]


def rows_of(seed: int) -> list[Row]:
    """Measurements of one machine: it is worn where it is warm and shakes."""
    dice = np.random.default_rng(seed)
    found, start = [], dt.datetime(2026, 11, 1)
    for number in range(ROWS):
        warm, shakes = 60 + dice.normal() * 5, abs(dice.normal() * 0.4 + 0.8)
        current = 10 + 0.05 * warm + dice.normal()
        sum_ = 1.2 * (warm - 62) / 5 + 1.5 * (shakes - 0.8) / 0.4 - 0.5
        state = "worn" if dice.random() < 1 / (1 + np.exp(-2.5 * sum_)) else "ok"
        at = (start + dt.timedelta(minutes=7 * number)).isoformat(sep=" ")
        found.append([at, f"{warm:.2f}", f"{shakes:.3f}", f"{current:.2f}", state])
    return found


def scaled(column: int, factor: float, shift: float = 0.0) -> Change:
    def change(rows: list[Row]) -> list[Row]:
        new = [list(row) for row in rows]
        for row in new:
            row[column] = f"{float(row[column]) * factor + shift:.4f}"
        return new

    return change


def cell(column: int, value: str, every: int = ROWS) -> Change:
    def change(rows: list[Row]) -> list[Row]:
        new = [list(row) for row in rows]
        for row in new[5 % every :: every]:
            row[column] = value
        return new

    return change


def sticking(rows: list[Row]) -> list[Row]:
    """One temperature in all rows but one of fifty."""
    return [
        row if place % 50 == 5 else [row[0], "61.5", *row[2:]] for place, row in enumerate(rows)
    ]


def swapped(rows: list[Row]) -> list[Row]:
    return [[row[0], row[2], row[1], *row[3:]] for row in rows]


def flipped(rows: list[Row]) -> list[Row]:
    return [[*row[:4], "ok" if row[4] == "worn" else "worn"] for row in rows]


class Floor(Site):
    """A hall of machines, each with an agent behind a link of its own, and a run that is at work all the time."""

    def __init__(self, folder: Path, devices: int = DEVICES) -> None:
        super().__init__(folder, agents=devices, rounds=1_000_000, disks=False)
        self.names = [f"m{number + 1:02}" for number in range(devices)]
        self.links = dict(
            zip(self.names, (Proxy(port, 0) for port in free_ports(devices)), strict=True)
        )
        self.devices: dict[str, Program] = {}
        self.bent: dict[str, list[str]] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Floor:
        await super().__aenter__()
        for number, name in enumerate(self.names):
            self.links[name].upstream = self.proxy.upstream
            await self.links[name].start()
            self.write(name, rows_of(number))
            await self.start_device(name)
        (self.folder / "floor.yaml").write_text(yaml.safe_dump(self.scenario("fedavg")))
        await self.start_coordinator("floor")
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self.tasks.values():
            task.cancel()
        for name in self.names:
            await self.end_device(name)
            await self.links[name].stop()
            with contextlib.suppress(OSError):
                await self.unmount(name)
        await super().__aexit__()

    def scenario(
        self, method: str, *, fleet: bool = False, init: Path | None = None
    ) -> dict[str, Any]:
        task = {
            "features": [3],
            "ignore": ["time"],
            "columns": HEADER[1:4],
            "target": HEADER[4],
            "classes": ["ok", "worn"],
        }
        task |= {"standardise": "federated", "impute": "mean"}
        rounds = {"count": self.rounds, "start_agents": self.agents, "participation": 1.0}
        rounds |= {"quorum": self.agents // 2, "deadline_s": 20, "grace_s": 8}
        return {
            "name": "floor",
            "seed": 3,
            "federation": "default",
            "task": task | {"model": {"name": "linear"}},
            "training": {"epochs": 2, "batch": 32, "lr": 0.05},
            "strategy": {"name": method},
            "rounds": rounds,
            "evaluation": {"every": 1, "deliver": "served"},
        }

    # devices

    def data(self, name: str) -> Path:
        return self.folder / f"{name}.csv"

    def write(self, name: str, rows: Sequence[Row], header: Row = HEADER) -> None:
        """Replace a device's file at once, as a gateway does."""
        new = self.data(name).with_suffix(".new")
        with new.open("w", newline="") as file:
            csv.writer(file).writerows([header, *rows])
        new.replace(self.data(name))

    def healthy_rows(self, name: str) -> list[Row]:
        return rows_of(self.names.index(name))

    async def start_device(self, name: str, *more: str, bent: Sequence[str] = ()) -> None:
        words = ["start", "--id", name, "--broker", f"mqtt://127.0.0.1:{self.links[name].port}"]
        words += ["--data", str(self.data(name)), "--state", str(self.home / name), *LEARNS, *more]
        command = python("covey.agent.cli", *words)
        if bent:
            command = python("tests.chaos.bent", *bent, "--", "covey.agent.cli", *words)
        self.devices[name] = await Program.start(command, self.folder / f"{name}.log")

    async def end_device(self, name: str) -> None:
        if name in self.devices and self.devices[name].lives:
            with contextlib.suppress(ProcessLookupError):
                self.devices[name].process.send_signal(signal.SIGCONT)
            await self.devices[name].stop()

    async def again(self, name: str, *more: str, bent: Sequence[str] = ()) -> None:
        await self.end_device(name)
        await self.start_device(name, *more, bent=bent)

    def tree(self, name: str) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.devices[name].pid)
            return [process, *process.children(recursive=True)]
        return []

    async def unmount(self, name: str) -> None:
        quiet = asyncio.subprocess.DEVNULL
        words = ("umount", "--lazy", str(self.home / name))
        await (await asyncio.create_subprocess_exec(*words, stdout=quiet, stderr=quiet)).wait()

    # what doctor lists

    async def listed(self) -> list[Odd]:
        """As `coordinator doctor` with the coordinator's rights lists it."""
        url = BrokerUrl.parse(f"mqtt://127.0.0.1:{self.proxy.upstream}")
        return ranked(await of_broker(url, "default", asks=True))


Deed = Callable[[Floor, str], Awaitable[None]]


@dataclass(frozen=True)
class Fault:
    """Something that can be wrong. `kinds` are those that name it; `who` is in the place of the device, if it is none."""

    name: str
    kinds: tuple[str, ...]
    plant: Deed
    mend: Deed
    who: str = ""
    twice: bool = True  # it can be planted next to another one


def of_rows(name: str, change: Change, *kinds: str) -> Fault:
    """A fault in the rows of a device's file, while its agent runs."""

    async def plant(floor: Floor, device: str) -> None:
        floor.write(device, change(floor.healthy_rows(device)))

    return Fault(name, kinds, plant, healed)


async def healed(floor: Floor, device: str) -> None:
    floor.write(device, floor.healthy_rows(device))


async def restarted(floor: Floor, device: str) -> None:
    await floor.again(device)


def started(name: str, kinds: tuple[str, ...], *words: str, bent: Sequence[str] = ()) -> Fault:
    """An agent that is started in another way."""

    async def plant(floor: Floor, device: str) -> None:
        await floor.again(device, *words, bent=bent)

    return Fault(name, kinds, plant, restarted)


async def _other_format(floor: Floor, device: str) -> None:
    await floor.again(device, bent=["format=99"])


async def _own_format(floor: Floor, device: str) -> None:
    """A memory of the other format is refused: it begins again."""
    await floor.end_device(device)
    shutil.rmtree(floor.home / device)
    await floor.start_device(device)


async def _copied(floor: Floor, device: str) -> None:
    other = floor.names[floor.names.index(device) - 1]
    floor.write(device, floor.healthy_rows(other))


async def _deleted(floor: Floor, device: str) -> None:
    floor.data(device).unlink()


async def _half(floor: Floor, device: str) -> None:
    content = floor.data(device).read_bytes()
    floor.data(device).write_bytes(content[: len(content) // 2 + 7])


async def _without_column(floor: Floor, device: str) -> None:
    rows = [[*row[:2], *row[3:]] for row in floor.healthy_rows(device)]
    floor.write(device, rows, [*HEADER[:2], *HEADER[3:]])


async def _killed(floor: Floor, device: str) -> None:
    await floor.devices[device].kill()


async def _cut_off(floor: Floor, device: str) -> None:
    floor.links[device].upstream = 1  # nobody listens there
    floor.links[device].cut("all")


async def _connected(floor: Floor, device: str) -> None:
    floor.links[device].upstream = floor.proxy.upstream


async def _slow(floor: Floor, device: str) -> None:
    async def brake() -> None:
        while True:
            for number, pause in ((signal.SIGSTOP, 3.0), (signal.SIGCONT, 0.15)):
                for process in floor.tree(device):
                    with contextlib.suppress(psutil.Error):
                        process.send_signal(number)
                await asyncio.sleep(pause)

    floor.tasks[device] = asyncio.create_task(brake())


async def _at_speed(floor: Floor, device: str) -> None:
    floor.tasks.pop(device).cancel()
    for process in floor.tree(device):
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGCONT)


async def _stuck(floor: Floor, device: str) -> None:
    """Its training process stands still; the agent itself does not."""

    async def hold() -> None:
        while True:
            for process in floor.tree(device)[1:]:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(0.2)

    floor.tasks[device] = asyncio.create_task(hold())


async def _twin(floor: Floor, device: str) -> None:
    other = floor.folder / "twin"
    shutil.rmtree(other, ignore_errors=True)
    words = ["start", "--id", device, "--broker", f"mqtt://127.0.0.1:{floor.links[device].port}"]
    words += ["--data", str(floor.data(device)), "--state", str(other), *LEARNS]
    twin = await Program.start(python("covey.agent.cli", *words), floor.folder / "twin.log")
    await twin.process.wait()  # the younger one gives way


async def _full_disk(floor: Floor, device: str) -> None:
    await _on_a_disk(floor, device, "24m")


async def _read_only_disk(floor: Floor, device: str) -> None:
    """As a memory card that has failed."""
    await _on_a_disk(floor, device, "2g")
    await asyncio.sleep(READY_S)
    for _ in range(100):
        if not await _mounted("-o", "remount,ro", str(floor.home / device)):
            return
        await asyncio.sleep(0.1)  # a file was open
    raise Broken("the disk could not be made read-only")


async def _on_a_disk(floor: Floor, device: str, size: str) -> None:
    """Start the agent again, with its state on a disk of its own."""
    await floor.end_device(device)
    place = floor.home / device
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    if await _mounted("-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(place)):
        raise Broken("no disk of its own could be mounted: this needs root")
    await floor.start_device(device)


async def _mounted(*words: str) -> int:
    """The exit code of `mount`."""
    quiet = asyncio.subprocess.DEVNULL
    return await (await asyncio.create_subprocess_exec("mount", *words, stderr=quiet)).wait()


async def _more_disk(floor: Floor, device: str) -> None:
    await floor.end_device(device)
    await floor.unmount(device)
    await floor.start_device(device)


async def _elsewhere(floor: Floor, device: str) -> None:
    words = [
        "start",
        "--id",
        f"{device}-b",
        "--broker",
        f"mqtt://127.0.0.1:{floor.links[device].port}",
    ]
    words += [
        "--data",
        str(floor.data(device)),
        "--state",
        str(floor.folder / f"elsewhere-{device}"),
    ]
    command = python("covey.agent.cli", *words, *LEARNS, "--federation", "nobodys")
    floor.devices["elsewhere"] = await Program.start(command, floor.folder / "elsewhere.log")


async def _home(floor: Floor, device: str) -> None:
    await floor.devices.pop("elsewhere").stop()
    url = BrokerUrl.parse(floor.url)
    async with MqttLink(url, client_id="planted") as link:
        await link.publish(Topics("nobodys").status(f"{device}-b"), b"", retain=True)


async def _coordinator_killed(floor: Floor, _: str) -> None:
    assert floor.coordinator is not None
    await floor.coordinator.kill()


async def _coordinator_stopped(floor: Floor, _: str) -> None:
    assert floor.coordinator is not None
    await floor.coordinator.stop()


async def _coordinator_frozen(floor: Floor, _: str) -> None:
    assert floor.coordinator is not None
    floor.coordinator.process.send_signal(signal.SIGSTOP)


async def _coordinator_thawed(floor: Floor, _: str) -> None:
    assert floor.coordinator is not None
    floor.coordinator.process.send_signal(signal.SIGCONT)


async def _resumed(floor: Floor, _: str) -> None:
    assert floor.coordinator is not None
    await floor.coordinator.stop()
    await floor.start_coordinator("floor", "--resume")


async def _coordinator_ahead(floor: Floor, _: str) -> None:
    assert floor.coordinator is not None
    await floor.coordinator.stop()
    words = ["run", str(floor.folder / "floor.yaml"), "--out", str(floor.run / "floor")]
    words += ["--broker", floor.url, "--json", "--resume"]
    command = python("tests.chaos.bent", f"clock={DAY_S}", "--", "covey.coordinator.cli", *words)
    floor.coordinator = await Program.start(command, floor.folder / "coordinator-floor.log")


async def _run_moved_away(floor: Floor, _: str) -> None:
    (floor.run / "floor").rename(floor.run / "moved")


async def _run_brought_back(floor: Floor, device: str) -> None:
    (floor.run / "moved").rename(floor.run / "floor")
    await _resumed(floor, device)


async def _broker_down(floor: Floor, _: str) -> None:
    assert floor.broker is not None
    await floor.broker.stop()


async def _broker_up(floor: Floor, _: str) -> None:
    await floor.start_broker()


LOST = ("offline",)
OUT = ("excluded", "work")
FAULTS: tuple[Fault, ...] = (
    of_rows("°C as °F", scaled(1, 1.8, 32.0), "unit"),
    of_rows("°C as K", scaled(1, 1.0, 273.15), "unit"),
    of_rows("ten times", scaled(1, 10.0), "unit"),
    of_rows("a thousand times", scaled(2, 1000.0), "unit"),
    of_rows("a tenth", scaled(3, 0.1), "unit"),
    of_rows("the wrong sign", scaled(1, -1.0), "scale"),
    of_rows("an offset", scaled(1, 1.0, 100.0), "scale"),
    of_rows("a constant sensor", cell(1, "61.5", 1), "constant"),
    of_rows("a sensor that sticks", sticking, "constant"),
    of_rows("swapped columns", swapped, "swap"),
    of_rows("missing cells", lambda rows: cell(1, "", 1)(rows[: 3 * ROWS // 4]) + rows[3 * ROWS // 4 :], "missing"),
    of_rows("few rows", lambda rows: rows[:20], "rows"),
    of_rows("turned labels", flipped, "figure"),
    Fault("a copy of another's rows", ("copy",), _copied, healed),
    of_rows("a word among numbers", cell(1, "n.a.n"), *OUT),
    of_rows("an unknown class", cell(4, "broken"), *OUT),
    Fault("a column is gone", OUT, _without_column, healed),
    Fault("the file is gone", OUT, _deleted, healed),
    Fault("half a file", OUT, _half, healed),
    Fault("kill -9", LOST, _killed, restarted),
    Fault("no network", LOST, _cut_off, _connected),
    Fault("slow", ("slow",), _slow, _at_speed),
    Fault("its training stands still", ("silent", "slow"), _stuck, _at_speed),
    Fault("a second program with its id", ("twin id",), _twin, restarted),
    started("a clock ahead", ("clock",), bent=[f"clock={DAY_S}"]),
    started("a clock behind", ("clock",), bent=[f"clock={-DAY_S}"]),
    started("an old version", ("version",), bent=["version=0.0.9"]),
    Fault("another format", ("version",), _other_format, _own_format),
    started("its owner forbids two epochs", OUT, "--limit", "max_epochs=1"),
    started("too little memory", OUT, "--memory-limit", "60M"),
    Fault("a full disk", ("disk",), _full_disk, _more_disk),
    Fault("a read-only disk", ("disk",), _read_only_disk, _more_disk),
    Fault("another federation", ("federation",), _elsewhere, _home),
    Fault("kill -9 of the coordinator", ("coordinator",), _coordinator_killed, _resumed, COORDINATOR),
    Fault("the coordinator was stopped", ("coordinator",), _coordinator_stopped, _resumed, COORDINATOR),
    Fault("the coordinator stands still", ("coordinator",), _coordinator_frozen, _coordinator_thawed, COORDINATOR),
    Fault("the coordinator's clock", ("clock",), _coordinator_ahead, _resumed, COORDINATOR),
    Fault("the run's folder is gone", ("coordinator",), _run_moved_away, _run_brought_back, COORDINATOR),
    Fault("no broker", ("broker",), _broker_down, _broker_up, BROKER, twice=False),
)  # fmt: skip


@dataclass
class Found:
    """What became of one or two planted faults."""

    planted: list[str]
    who: list[str]
    first: str = ""  # the first line once all were named; empty: they were not
    named_s: float | None = None
    ended_s: float | None = None
    false: list[str] = field(default_factory=list)  # lines about what was not planted
    seen: list[str] = field(default_factory=list)  # the last list before the fix

    @property
    def is_right(self) -> bool:
        return self.named_s is not None and self.ended_s is not None and not self.false


def about(fault: Fault, device: str) -> set[tuple[str, str]]:
    """Device and kind of the lines that may name a fault."""
    devices = {fault.who or device}
    if fault.name == "a copy of another's rows":
        devices |= {neighbour(device)}
    if fault.name == "another federation":
        devices = {f"{device}-b"}
    return {(one, kind) for one in devices for kind in fault.kinds}


def neighbour(device: str) -> str:
    """The device whose rows a copy has: the one before."""
    return f"m{int(device[1:]) - 1:02}"


async def tried(floor: Floor, faults: Sequence[Fault], devices: Sequence[str]) -> Found:
    """Plant, look until the first line names them all and nobody else, fix it, and look until the list is empty."""
    found = Found(
        [one.name for one in faults],
        [one.who or device for one, device in zip(faults, devices, strict=True)],
    )
    wanted = [about(fault, device) for fault, device in zip(faults, devices, strict=True)]
    clock = asyncio.get_running_loop().time
    began = clock()
    for place, (fault, device) in enumerate(zip(faults, devices, strict=True), start=1):
        if (
            fault.who and place > 1
        ):  # a run that is at work finds the one before; then nobody is at work
            await named(floor, wanted[: place - 1], found)
        await fault.plant(floor, device)
    if lines := await named(floor, wanted, found):
        found.named_s, found.first = round(clock() - began, 1), lines[0].sentence
        planted = set().union(*wanted)
        others = [{(device, one.kind) for device in one.devices} - planted for one in lines]
        found.false = [one.sentence for one, more in zip(lines, others, strict=True) if more]
    for fault, device in reversed(list(zip(faults, devices, strict=True))):
        await fault.mend(floor, device)
    began = clock()
    while clock() - began < ENDED_S:
        if not await looked(floor):
            found.ended_s = round(clock() - began, 1)
            break
        await asyncio.sleep(1)
    else:
        found.seen += [f"not over: {one.sentence}" for one in await looked(floor)]
    return found


async def named(floor: Floor, wanted: Sequence[set[tuple[str, str]]], found: Found) -> list[Odd]:
    """Look until the list has all that is expected, and one of these first; the list then, or an empty one."""
    clock = asyncio.get_running_loop().time
    began = clock()
    while clock() - began < NAMED_S:
        lines = await looked(floor)
        keys = [{(device, one.kind) for device in one.devices} for one in lines]
        found.seen = [one.sentence for one in lines]
        is_named = lines and all(any(key & one for key in keys) for one in wanted)
        if is_named and any(keys[0] & one for one in wanted):
            return lines
        await asyncio.sleep(1)
    return []


async def looked(floor: Floor) -> list[Odd]:
    try:
        return await floor.listed()
    except (CoveyError, OSError) as error:
        return [Odd((BROKER,), "broker", str(error), "")]


def plan(seed: int, pairs: int, *, alone: bool = True) -> list[tuple[list[Fault], list[str]]]:
    """Each fault by itself, and pairs of them on two devices: each comes once before any comes again."""
    dice = random.Random(seed)  # noqa: S311 - bad luck, no secrets
    names = [f"m{number + 1:02}" for number in range(DEVICES)]
    found = [([fault], [names[place % DEVICES]]) for place, fault in enumerate(FAULTS)]
    beside, waiting = [one for one in FAULTS if one.twice], list[Fault]()
    paired: list[tuple[list[Fault], list[str]]] = []
    while len(paired) < pairs:
        if len(waiting) < 2:
            waiting += dice.sample(beside, len(beside))
        one = waiting.pop(0)
        fits = [other for other in waiting if other != one and not (one.who and other.who)]
        if not fits:  # the last ones are all faults of the coordinator
            waiting += dice.sample(beside, len(beside))
            fits = [other for other in waiting if other != one and not (one.who and other.who)]
        other = fits[0]
        waiting.remove(other)
        far = dice.choice(names[1:4]), dice.choice(names[5:])  # a copy's neighbour is neither
        # what nobody works on is not found: the device is first
        both = [one, other] if not one.who else [other, one]
        paired.append((both, list(far)))
    return [*found * alone, *paired]


async def campaign(
    out: Path,
    planned: Sequence[tuple[list[Fault], list[str]]],
    only: str,
    show: Callable[[str], None],
) -> list[Found]:
    """All that is planned, one after another in one fleet; lines of the record that are there are not tried again."""
    record = out / "planted.jsonl"
    known = (
        [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    )
    done = [Found(**one) for one in known]
    todo = planned[len(done) :]
    if only:
        names = [(one, " + ".join(fault.name for fault in one[0])) for one in planned]
        todo, done = [one for one, name in names if re.search(only, name)], []
    if not todo:
        return done
    site = out / "site"
    shutil.rmtree(site, ignore_errors=True)
    async with Floor(site) as floor:
        await calm(floor)
        for faults, devices in todo:
            await whole(floor)
            found = await tried(floor, faults, devices)
            done.append(found)
            show(line_of(found))
            if not only:
                with record.open("a") as file:
                    file.write(json.dumps(asdict(found)) + "\n")
            if found.ended_s is None:
                break  # what follows would not begin in a healthy fleet: the next start does
    return done


async def whole(floor: Floor) -> None:
    """Wait until all devices report again: one that is still comparing its data with the task is no healthy one."""
    before = len(floor.rows("floor"))
    async with asyncio.timeout(CALM_S):
        while True:
            newest = floor.rows("floor")[before:]
            if any(len(row.get("reported", ())) == floor.agents for row in newest):
                return
            await asyncio.sleep(1)


async def calm(floor: Floor) -> None:
    """Wait until the run is at work, and nothing odd."""
    async with asyncio.timeout(CALM_S):
        while len(floor.rows("floor")) < 6 or await looked(floor):
            if floor.coordinator is not None and not floor.coordinator.lives:
                raise Broken(floor.coordinator.output[-2000:])
            await asyncio.sleep(1)


def line_of(found: Found) -> str:
    what = " + ".join(f"{name} ({who})" for name, who in zip(found.planted, found.who, strict=True))
    named = "-" if found.named_s is None else f"{found.named_s:.0f}"
    ended = "-" if found.ended_s is None else f"{found.ended_s:.0f}"
    said = found.first or f"NOT NAMED: {found.seen}"
    false = f" FALSE: {found.false}" if found.false else ""
    return f"| {what} | {named} | {ended} | {said}{false} |"


def table(found: Sequence[Found]) -> str:
    right = sum(one.is_right for one in found)
    head = f"{counted(len(found), 'planting')}, {right} right"
    return "\n".join(
        [
            head,
            "",
            "| planted | named s | over s | first line |",
            "|---|--:|--:|---|",
            *map(line_of, found),
        ]
    )


def main() -> int:
    """Exit code 0 only if all that was planned was planted and right."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.planted", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--no-alone", action="store_true", help="pairs only")
    parser.add_argument("--only", default="", help="plantings whose names have this pattern")
    parser.add_argument("--out", type=Path, default=Path("runs/planted"))
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    planned = plan(options.seed, options.pairs, alone=not options.no_alone)
    show = functools.partial(print, flush=True)
    found = asyncio.run(campaign(out, planned, options.only, show))
    (out / "planted.md").write_text(table(found) + "\n")
    print(table(found).splitlines()[0])
    wanted = len(found) if options.only else len(planned)
    return 0 if found and len(found) == wanted and all(one.is_right for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
