"""`python -m tests.chaos.drawn --minutes 40`: faults of all kinds, drawn by the clock, in a fleet that works; versions come and go.

Each fault stays until doctor names it, or its time is over; then it is fixed. All that doctor lists meanwhile is written down
next to what was planted. Memory, descriptors, disk and logs are looked at all the time. Exit code 0 only if each fault was named,
each alarm ended, nobody else was accused, and nothing grew.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.chaos.planted import FAULTS, Fault, Floor, about, calm, looked
from tests.chaos.site import Broken, Program, python
from tests.chaos.soak import Sample, Trend, trend

LOOK_S, SAMPLE_S = 4.0, 20.0
PATIENCE_S = 300.0  # for a name, and for an end, on a machine that others use too
AFTER_S = (
    60.0  # for what follows from a fault that was fixed, such as a device that is late once more
)
VERSIONS = ("may", "june")
ANSWERED = (0, 1, 3)  # all have it; one refuses it, or an earlier one is damaged; a device is away
FASTER, LEAST_RATE = 1.5, 2000.0  # times the bytes a second of before, and bytes that are noise
SHARED = ("broker", "coordinator")  # a fault of these may show on any device


@dataclass
class Planting:
    """One fault in the fleet, and what doctor made of it; seconds since the beginning."""

    fault: str
    who: str
    began: float
    named: float | None = None
    fixed: float | None = None
    over: float | None = None
    keys: set[tuple[str, str]] = field(default_factory=set)

    def explains(self, key: tuple[str, str], now: float) -> bool:
        """Whether a line about a device, of a kind, may come from this fault."""
        if self.over is not None and now > self.over + AFTER_S:
            return False
        return key in self.keys or key[0] == self.who or self.who in SHARED


@dataclass
class Published:
    """One promotion, or one way back."""

    at: float
    word: str
    code: int
    seconds: float


class Hall(Floor):
    """A floor whose devices keep models, with two runs that are over."""

    def __init__(self, folder: Path, devices: int, delay_s: float) -> None:
        super().__init__(folder, devices)
        for link in self.links.values():
            link.delay_s = delay_s

    async def start_device(self, name: str, *more: str, bent: Sequence[str] = ()) -> None:
        models = ("--model-dir", str(self.folder / f"models-{name}"))
        await super().start_device(name, *models, *more, bent=bent)

    async def start_coordinator(self, name: str, *more: str) -> Program:
        if name == "floor" and not (self.run / VERSIONS[-1]).exists():
            for number, version in enumerate(VERSIONS):
                rules = self.scenario("fedavg") | {"name": version, "seed": number}
                rules["rounds"] |= {"count": 3 + 3 * number, "publish": "never", "deadline_s": 120}
                (self.folder / f"{version}.yaml").write_text(yaml.safe_dump(rules))
                program = await super().start_coordinator(version)
                if await program.process.wait():
                    raise Broken(program.output[-2000:])
        return await super().start_coordinator(name, *more)

    async def publish(self, word: str) -> int:
        """`coordinator promote` of a version, or `coordinator rollback`."""
        words = ["promote", str(self.run / word), "--as", word] if word in VERSIONS else [word]
        words += ["--broker", f"mqtt://127.0.0.1:{self.proxy.upstream}", "--runs", str(self.run)]
        command = python("covey.coordinator.cli", *words, "--wait", "60")
        return await (await Program.start(command, self.folder / "published.log")).process.wait()


class Night:
    """One campaign."""

    def __init__(self, hall: Hall, options: argparse.Namespace) -> None:
        self.hall, self.every_s, self.publish_s = hall, options.every, options.publish
        self.patience_s = options.patience
        self.faults = [one for one in FAULTS if re.search(options.only, one.name)]
        self.dice = random.Random(options.seed)  # noqa: S311 - bad luck, no secrets
        self.start = time.monotonic()
        self.plantings: list[Planting] = []
        self.published: list[Published] = []
        self.samples: dict[str, list[Sample]] = {}
        self.sizes: list[tuple[float, float, float]] = []  # at, bytes on disk, bytes of logs
        self.alone: dict[tuple[str, str], list[Any]] = {}  # false: first, last, sentence
        self.listed: set[tuple[str, str]] = set()
        self.looks = 0

    @property
    def now(self) -> float:
        return round(time.monotonic() - self.start, 1)

    async def look(self) -> None:
        """What doctor lists, again and again."""
        while True:
            lines = await looked(self.hall)
            self.looks += 1
            self.listed = {(who, one.kind) for one in lines for who in one.devices}
            for one in lines:
                for key in {(who, one.kind) for who in one.devices}:
                    if not self.explains(key):
                        self.alone.setdefault(key, [self.now, self.now, one.sentence])[1] = self.now
            await asyncio.sleep(LOOK_S)

    def explains(self, key: tuple[str, str]) -> bool:
        """Whether a line follows from a fault, or from a version that devices were asked to take: their check may refuse it."""
        if key[1] == "publication" and any(one.code != 0 for one in self.published):
            return True
        return any(planted.explains(key, self.now) for planted in self.plantings)

    async def plant(self) -> None:
        """One fault after another; each kind once before any comes again."""
        waiting: list[Fault] = []
        while True:
            if not waiting:
                waiting = self.dice.sample(self.faults, len(self.faults))
            began = self.now
            await self._tried(waiting.pop(), self.dice.choice(self.hall.names[1:]))
            await asyncio.sleep(max(self.every_s - (self.now - began), 5.0))

    async def _tried(self, fault: Fault, device: str) -> None:
        planting = Planting(fault.name, fault.who or device, self.now)
        planting.keys = about(fault, device)
        self.plantings.append(planting)
        await fault.plant(self.hall, device)
        while self.now - planting.began < self.patience_s:
            if self.listed & planting.keys:
                planting.named = self.now
                break
            await asyncio.sleep(1)
        await fault.mend(self.hall, device)
        planting.fixed = self.now
        while self.now - planting.fixed < self.patience_s:
            await asyncio.sleep(1)
            if not self.listed & planting.keys:
                planting.over = self.now
                break

    async def publish(self) -> None:
        """Versions come and go by the clock."""
        words = [*VERSIONS, "rollback"]
        while True:
            await asyncio.sleep(self.publish_s)
            word, began = words[len(self.published) % len(words)], self.now
            code = await self.hall.publish(word)
            self.published.append(Published(began, word, code, round(self.now - began, 1)))

    async def sample(self) -> None:
        """Memory and descriptors of each program, and bytes on disk."""
        while True:
            for name, process in self._processes():
                with contextlib.suppress(psutil.Error):
                    memory = process.memory_full_info().pss / 2**20
                    seen = self.samples.setdefault(f"{name} {process.pid}", [])
                    seen.append(Sample(self.now, memory, process.num_fds()))
            places = (self.hall.run, self.hall.home, self.hall.folder / "broker")
            disk = sum(bytes_below(place) for place in places)
            logs = sum(path.stat().st_size for path in self.hall.folder.glob("*.log"))
            self.sizes.append((self.now, disk, logs))
            await asyncio.sleep(SAMPLE_S)

    def _processes(self) -> Iterator[tuple[str, psutil.Process]]:
        own = {"coordinator": self.hall.coordinator, "broker": self.hall.broker}
        for name, program in {**own, **self.hall.devices}.items():
            if program is not None and program.lives:
                with contextlib.suppress(psutil.Error):
                    process = psutil.Process(program.pid)
                    yield name, process
                    for child in process.children():
                        yield f"{name}'s worker", child

    def trends(self) -> list[Trend]:
        """Of the longest life of each program."""
        longest: dict[str, list[Sample]] = {}
        for key, seen in self.samples.items():
            name = key.rpartition(" ")[0]
            if len(seen) > len(longest.get(name, [])):
                longest[name] = seen
        return [trend(name, seen) for name, seen in sorted(longest.items()) if len(seen) >= 8]


def judged(record: Mapping[str, Any]) -> list[str]:
    """The faults of a record; empty if the campaign is green."""
    found = []
    ended = [one for one in record["plantings"] if one["fixed"] is not None]
    if not ended:
        found.append("no fault was planted and fixed")
    for one in ended:
        if one["named"] is None:
            found.append(f"{one['fault']} ({one['who']}): nobody named it")
        if one["over"] is None and record["seconds"] - one["fixed"] > record["patience"]:
            found.append(f"{one['fault']} ({one['who']}): its alarm did not end")
    found += [f"false alarm: {sentence}" for *_, sentence in record["false"]]
    for one in record["published"]:
        if one["code"] not in ANSWERED:
            found.append(f"{one['word']} ended with {one['code']}")
    found += [f"{one['name']} grew" for one in record["processes"] if not one["flat"]]
    for place, name in enumerate(("disk", "logs"), start=1):
        early, late = growth(record["sizes"], place)
        if late > max(FASTER * early, LEAST_RATE):
            found.append(f"{name}: {late:.0f} bytes a second, {early:.0f} before")
    return found


def growth(sizes: Sequence[Sequence[float]], place: int) -> tuple[float, float]:
    """Bytes a second in the second quarter, and in the last one."""
    quarter = max(len(sizes) // 4, 1)
    rates = []
    for span in (sizes[quarter : 2 * quarter + 1], sizes[-quarter - 1 :]):
        seconds = max(span[-1][0] - span[0][0], 1.0) if span else 1.0
        rates.append((span[-1][place] - span[0][place]) / seconds if span else 0.0)
    return rates[0], rates[1]


def bytes_below(place: Path) -> float:
    total = 0.0
    for path in place.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total


def table(night: Night, agents: int, rounds: int) -> str:
    """What people read."""
    found = [one for one in night.plantings if one.fixed is not None]
    named = [one for one in found if one.named is not None]
    over = [one for one in found if one.over is not None]
    head = f"{night.now / 60:.0f} minutes, {agents} agents, {rounds} rounds, {night.looks} looks, {len(found)} faults: "
    head += f"{len(named)} named, {len(over)} over afterwards, {len(night.alone)} false alarms"
    lines = [head, "", "| planted | where | at s | named after s | over after s |"]
    lines.append("|---|---|--:|--:|--:|")
    for one in found:
        after = "-" if one.named is None else f"{one.named - one.began:.0f}"
        end = "-" if one.over is None or one.fixed is None else f"{one.over - one.fixed:.0f}"
        lines.append(f"| {one.fault} | {one.who} | {one.began:.0f} | {after} | {end} |")
    lines += ["", "| false alarm | from s | to s | line |", "|---|--:|--:|---|"]
    for (who, kind), (first, last, sentence) in sorted(night.alone.items()):
        lines.append(f"| {who}: {kind} | {first:.0f} | {last:.0f} | {sentence} |")
    lines += ["", "| published | at s | took s | exit code |", "|---|--:|--:|--:|"]
    lines += [
        f"| {one.word} | {one.at:.0f} | {one.seconds:.0f} | {one.code} |" for one in night.published
    ]
    lines += ["", "| process, its longest life | samples | PSS before, MB | after | descriptors before | after | flat |"]  # fmt: skip
    lines.append("|---|--:|--:|--:|--:|--:|---|")
    for trend_ in night.trends():
        numbers = f"{trend_.samples} | {trend_.before_mb} | {trend_.after_mb}"
        files = f"{trend_.before_descriptors:g} | {trend_.after_descriptors:g}"
        lines.append(f"| {trend_.name} | {numbers} | {files} | {'yes' if trend_.flat else 'NO'} |")
    for name, place in (("disk", 1), ("logs", 2)):
        early, late = growth(night.sizes, place)
        lines += ["", f"{name}: {early:.0f} bytes a second in the second quarter, {late:.0f} in the last one"]  # fmt: skip
    return "\n".join(lines)


async def campaign(options: argparse.Namespace, out: Path) -> int:
    hall = Hall(out / "site", options.agents, options.delay)
    async with hall:
        await calm(hall)
        night = Night(hall, options)
        tasks = [
            asyncio.create_task(one)
            for one in (night.look(), night.plant(), night.publish(), night.sample())
        ]
        why = ""
        while night.now < 60 * options.minutes and not why:
            await asyncio.wait(tasks, timeout=15, return_when=asyncio.FIRST_EXCEPTION)
            why = "; ".join(repr(one.exception()) for one in tasks if one.done())
            text = table(night, options.agents, len(hall.rows("floor")) // 2)
            (out / "soak.md").write_text(f"{text}\n{why}\n")
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        record = {
            "seconds": night.now,
            "patience": night.patience_s,
            "plantings": [asdict(one) | {"keys": sorted(one.keys)} for one in night.plantings],
            "false": [[*key, *seen] for key, seen in night.alone.items()],
            "published": [asdict(one) for one in night.published],
            "processes": [asdict(one) | {"flat": one.flat} for one in night.trends()],
            "sizes": night.sizes,
        }
        (out / "soak.json").write_text(json.dumps(record, indent=1))
    wrong = [*judged(record), *filter(None, [why])]
    print((out / "soak.md").read_text(), *wrong or ["nothing wrong"], sep="\n")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.drawn", description=__doc__)
    parser.add_argument("--minutes", type=float, default=40.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--agents", type=int, default=15)
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two faults")
    parser.add_argument("--publish", type=float, default=240.0, help="seconds between two versions")
    parser.add_argument(
        "--delay", type=float, default=0.0, help="seconds of each packet on a device's link"
    )
    parser.add_argument("--only", default="", help="faults whose names have this pattern")
    parser.add_argument(
        "--patience", type=float, default=PATIENCE_S, help="seconds for a name, and for an end"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/drawn"))
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    return asyncio.run(campaign(options, out))


if __name__ == "__main__":
    sys.exit(main())
