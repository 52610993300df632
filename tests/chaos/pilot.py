"""`python -m tests.chaos.pilot`: a pilot of ten devices that people can watch, with the dashboard open and faults on a timeline.

Every program is real: Mosquitto, a coordinator, the dashboard, and an agent for each device, which reaches the broker over
a network of its own (a proxy). The end is a table of what was done to them and what the product showed. Exit code 0 only if
the run ended as it should, each fault was seen in the product's own words, and the page had no error.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from covey.extras.dashboard.tests.looks import flaws, views_of, whole_page
from covey.shared.sentences import counted
from tests.browser import CHROMIUM, browser
from tests.chaos import check
from tests.chaos.proxy import Proxy
from tests.chaos.site import Program, Site, python
from tests.kit.scenes import start_file
from tests.processes import free_port, free_ports

LEARNS = ("--learner", "numpy", "--threads", "1")
END_S = 300.0  # of the rest of the run after the last fault
GRACE_S = 3.0  # a round with its quorum waits so long for the others
SEEN_S = 45.0  # within which a fault must show
LOSS = 0.3
LISTED = "document.querySelectorAll('#agents tbody tr').length > 0"
ODD = "offline: its connection broke"  # in the first lines of the dashboard


@dataclass(frozen=True)
class Fault:
    """Something is done to a device, or to what all of them need, two rounds after all was well again."""

    kind: str
    device: int = 0
    seconds: float = 8.0


PLAN = (
    Fault("loss", device=3, seconds=10),
    Fault("sleep", device=5, seconds=12),
    Fault("the broker moves"),
    Fault("power cut", device=7, seconds=4),
    Fault("the broker restarts", seconds=3),
    Fault("the coordinator is killed"),
)
SHORT = (Fault("power cut", device=1, seconds=0.5), Fault("the broker moves"))
CALM = 2  # rounds between two faults


@dataclass
class Seen:
    """A fault that happened, and how the product showed it."""

    fault: Fault
    at_s: float
    shown: str = ""  # empty: in no way
    well_s: float | None = None  # when all was well again


class PilotSite(Site):
    """A site whose agents are devices, each behind a proxy of its own."""

    def __init__(self, folder: Path, devices: int, rounds: int) -> None:
        super().__init__(folder, agents=devices, rounds=rounds, disks=False)
        self.links = [Proxy(port, self.proxy.upstream) for port in free_ports(devices)]
        self.devices: list[Program] = []

    async def __aenter__(self) -> PilotSite:
        await super().__aenter__()
        for number, link in enumerate(self.links):
            await link.start()
            await self.start_device(number)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(device.stop() for device in self.devices if device.lives))
        await super().__aexit__()
        for link in self.links:
            await link.stop()

    def name(self, number: int) -> str:
        return f"gw-{number + 1:02}"

    def data(self, number: int) -> Path:
        """Measurements of one gateway. The gateways are of two kinds, in which the same values mean the opposite."""
        path = self.folder / f"{self.name(number)}.npz"
        if not path.exists():
            x = np.random.default_rng(number).normal(size=(400, 4)).astype(np.float32)
            y = ((x[:, 0] + 0.3 * x[:, 1] > 0) == bool(number % 2)).astype(np.int64)
            np.savez(path, x=x[:300], y=y[:300], x_test=x[300:], y_test=y[300:])
        return path

    async def start_device(self, number: int) -> None:
        name = self.name(number)
        where = ["--broker", f"mqtt://127.0.0.1:{self.links[number].port}", "--id", name]
        own = ["--data", str(self.data(number)), "--state", str(self.home / name), "--json"]
        command = python("covey.agent.cli", "start", *where, *own, *LEARNS)
        device = await Program.start(command, self.folder / f"{name}.log")
        self.devices[number : number + 1] = [device]

    def scenario(
        self, method: str, *, fleet: bool = False, init: Path | None = None
    ) -> dict[str, Any]:
        """Two clusters of gateways; a round does not wait long for one that is away."""
        return {
            "name": "pilot",
            "seed": 5,
            "federation": "default",
            "task": {"features": [4], "classes": 2, "model": {"name": "linear"}},
            "training": {"epochs": 60, "batch": 10, "lr": 0.002},
            "strategy": {"name": method, "n_clusters": 2},
            "rounds": {
                "count": self.rounds,
                "participation": 1.0,
                "start_agents": self.agents,
                "quorum": max(2, self.agents // 2),
                "deadline_s": 30,
                "grace_s": GRACE_S,
            },
            "evaluation": {"every": 1, "tune_epochs": 0},
        }

    async def move_broker(self) -> None:
        """The broker is at another place, with what it kept; its name leads there."""
        assert self.broker is not None
        await self.broker.stop()
        self.proxy.upstream = free_port()
        for link in self.links:
            link.upstream = self.proxy.upstream
        await self.start_broker()

    async def restart_broker(self, away_s: float) -> None:
        assert self.broker is not None
        await self.broker.kill()
        await asyncio.sleep(away_s)
        await self.start_broker()


@dataclass
class Pilot:
    """One rehearsal.

    Args:
        site: its machines.
        plan: what happens.
        pictures: a folder for pictures of the dashboard; None: no browser is started.
        show: shows a line of the timeline.
    """

    site: PilotSite
    plan: Sequence[Fault]
    pictures: Path | None
    show: Callable[[str], None]
    name: str = "pilot"
    address: str = ""  # of the dashboard
    began: float = field(default_factory=time.monotonic)
    seen: list[Seen] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def now_s(self) -> float:
        return time.monotonic() - self.began

    def tells(self, text: str) -> None:
        minutes, seconds = divmod(int(self.now_s), 60)
        self.show(f"{minutes:02}:{seconds:02}  {text}")

    async def plays(self) -> bool:
        """Did the run end as it should, and was everything seen?"""
        site = self.site
        await self._scenario()
        await site.start_coordinator(self.name)
        await soon((site.run / self.name / "scenario.yaml").exists, END_S)
        dashboard = await Program.start(
            python("covey.coordinator.cli", "dashboard", str(site.run / self.name), "--port", "0"),
            site.folder / "dashboard.log",
        )
        try:
            self.address = await self._address(dashboard)
            self.tells(f"{site.agents} devices, {site.rounds} rounds. Watch: {self.address}")
            watching = asyncio.create_task(self._watch())
            for fault in self.plan:
                if not await self._reached(self.rounds_done() + CALM):
                    self.problems.append(f"{fault.kind}: the run was over before")
                    break
                await self._strike(fault)
            await self._ends()
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
            await self._photograph(self.name, LISTED)
        finally:
            await dashboard.stop()
        self.judge()
        self.show(table(self.seen, self.problems))
        return not self.problems

    async def _scenario(self) -> None:
        """The scenario, and its initial models: a coordinator then needs no torch."""
        import yaml

        scene = self.site.scenario("fedclust")
        scene["task"]["init"] = start_file(self.site.folder, scene["task"])
        (self.site.folder / f"{self.name}.yaml").write_text(yaml.safe_dump(scene))

    async def _address(self, dashboard: Program) -> str:
        found = await soon(lambda: re.search(r"dashboard: (\S+)", dashboard.output), END_S)
        return str(found[1])

    # what happens

    async def _reached(self, rounds: int) -> bool:
        """Wait until this number of rounds is over. False if the run ends before."""
        coordinator = self.site.coordinator
        assert coordinator is not None
        await soon(lambda: self.rounds_done() >= rounds or not coordinator.lives, END_S)
        return coordinator.lives

    async def _strike(self, fault: Fault) -> None:
        deeds: dict[str, Callable[[Fault], Awaitable[None]]] = {
            "loss": self._loss,
            "sleep": self._sleep,
            "power cut": self._power_cut,
            "the broker moves": self._broker,
            "the broker restarts": self._broker,
            "the coordinator is killed": self._coordinator,
        }
        seen = Seen(fault, self.now_s)
        self.seen.append(seen)
        about = self.site.name(fault.device) if fault.device else ""
        self.tells(f"FAULT    {fault.kind} {about}")
        rows, said = len(self.site.rows(self.name)), len(self.said())
        await deeds[fault.kind](fault)
        with contextlib.suppress(TimeoutError):
            shown = await soon(lambda: self._shown(fault, rows, said))
            seen.shown, seen.well_s = shown, self.now_s
            self.tells(f"PRODUCT  {shown}")

    async def _loss(self, fault: Fault) -> None:
        await self.site.links[fault.device].lose(LOSS, fault.seconds)

    async def _sleep(self, fault: Fault) -> None:
        await self.site.devices[fault.device].freeze(fault.seconds)

    async def _power_cut(self, fault: Fault) -> None:
        await self.site.devices[fault.device].kill()
        self.site.links[fault.device].cut("all")
        await self._photograph("odd", f"document.body.innerText.includes('{ODD}')")
        await asyncio.sleep(fault.seconds)
        await self.site.start_device(fault.device)

    async def _broker(self, fault: Fault) -> None:
        if fault.kind.endswith("moves"):
            await self.site.move_broker()
        else:
            await self.site.restart_broker(fault.seconds)

    async def _coordinator(self, fault: Fault) -> None:
        assert self.site.coordinator is not None
        await self.site.coordinator.kill()
        await self.site.start_coordinator(self.name, "--resume")

    async def _photograph(self, name: str, ready: str) -> None:
        if self.pictures is not None:
            done = asyncio.to_thread(photographed, self.address, self.pictures, name, ready)
            self.problems += await done

    # what the product shows

    def said(self) -> str:
        log = self.site.folder / f"coordinator-{self.name}.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def phases(self, since: int = 0) -> list[dict[str, Any]]:
        return [row for row in self.site.rows(self.name)[since:] if row["event"] == "phase"]

    def rounds_done(self) -> int:
        return sum(1 for row in self.phases() if row["ends_round"])

    def _shown(self, fault: Fault, rows: int, said: int) -> str:
        """The product's own words about a fault, once all is well again; empty before."""
        after = self.phases(rows)
        if "broker" in fault.kind:
            events = [
                json.loads(line) for line in self.said()[said:].splitlines() if line[:1] == "{"
            ]
            links = [event for event in events if event["event"] == "link"]
            if not after or len(links) < 2 or not links[-1]["up"]:
                return ""
            why = next(event["why"] for event in links if not event["up"])
            return f"{why.partition(': ')[2] or why}; up again, round {after[-1]['round'] + 1}"
        if "coordinator" in fault.kind:
            return f"resumed in round {after[-1]['round'] + 1}" if after else ""
        name = self.site.name(fault.device)
        away = [row for row in after if name not in row["reported"]]
        if not after or name not in after[-1]["reported"]:
            return ""
        if not away:
            return f"late, and in every round: {counted(len(after), 'report')}"
        first, last = (f"{row['phase']} of round {row['round'] + 1}" for row in (away[0], away[-1]))
        missed = f"in {first}" if len(away) == 1 else f"from {first} to {last}"
        return f"missing {missed}; then back"

    async def _watch(self) -> None:
        """Show each round on the timeline."""
        told = 0
        while True:
            for row in self.phases()[told:]:
                told += 1
                if row["ends_round"]:
                    missing = "".join(f", {name} is missing" for name in row["missing"])
                    here = f"{len(row['invited'])} invited, {len(row['reported'])} reported"
                    self.tells(f"         round {row['round'] + 1}: {here}{missing}")
            await asyncio.sleep(0.1)

    # the end

    async def _ends(self) -> None:
        coordinator = self.site.coordinator
        assert coordinator is not None
        try:
            async with asyncio.timeout(END_S):
                code = await coordinator.process.wait()
        except TimeoutError:
            self.problems.append(f"the run did not end within {END_S:.0f} s of the last fault")
            return
        self.tells(f"the run ended with exit code {code}")
        if code != 0:
            self.problems.append(f"the coordinator ended with {code}: {self.said()[-300:]}")

    def judge(self) -> None:
        """Note what is wrong with the run and its record."""
        for one in self.seen:
            if not one.shown:
                self.problems.append(f"{one.fault.kind}: the product showed nothing")
        phases = self.phases()
        ended = [row["round"] for row in phases if row["ends_round"]]
        if ended != list(range(self.site.rounds)):
            self.problems.append(f"the rounds that ended are {ended}")
        names = {self.site.name(number) for number in range(self.site.agents)}
        if phases and (away := names - set(phases[-1]["reported"])):
            self.problems.append(f"missing in the last phase: {', '.join(sorted(away))}")
        for log in sorted(self.site.folder.glob("*.log")):
            crashes = check.crashes(log.read_text(errors="replace"))
            self.problems += [f"{log.name}: {crash}" for crash in crashes]


async def soon(holds: Callable[[], Any], within_s: float = SEEN_S) -> Any:
    """Wait for something, and return it. Raises TimeoutError."""
    async with asyncio.timeout(within_s):
        while True:
            if found := holds():
                return found
            await asyncio.sleep(0.05)


def photographed(address: str, folder: Path, name: str, ready: str) -> list[str]:
    """Pictures of the dashboard, once it is `ready`: on a desk and on a phone, light and dark. Returns what is wrong with it."""
    folder.mkdir(parents=True, exist_ok=True)
    wrong = []
    profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    with profile as place, browser(Path(place)) as page:
        for view in views_of(page, address, ready):
            whole_page(page, folder / f"{name}-{view.name}.png")
            wrong += [f"the dashboard, {view.name}: {flaw}" for flaw in flaws(page)]
        wrong += [f"the browser's console: {complaint}" for complaint in page.complaints]
    return wrong


def table(seen: Sequence[Seen], problems: Sequence[str]) -> str:
    """What was done, and what the product showed."""
    lines = [
        "",
        "| at | what was done | what the product showed | well after |",
        "|---:|---|---|---:|",
    ]
    for one in seen:
        well = "never" if one.well_s is None else f"{one.well_s - one.at_s:.0f} s"
        device = f" of gw-{one.fault.device + 1:02}" if one.fault.device else ""
        shown = one.shown or "**nothing**"
        lines.append(f"| {one.at_s:.0f} s | {one.fault.kind}{device} | {shown} | {well} |")
    lines.append("")
    lines += [f"WRONG: {problem}" for problem in problems] or ["The run ended as it should."]
    return "\n".join(lines)


async def rehearsal(
    folder: Path,
    plan: Sequence[Fault],
    *,
    devices: int,
    rounds: int,
    pictures: Path | None,
    show: Callable[[str], None],
) -> bool:
    """Did a whole rehearsal in an empty folder end as it should?"""
    async with PilotSite(folder, devices, rounds) as site:
        return await Pilot(site, plan, pictures, show).plays()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.pilot", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/pilot"))
    folder: Path = parser.parse_args().out.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pictures = None if CHROMIUM is None else folder / "pictures"
    os.environ.pop("COVEY_BROKER", None)
    is_good = asyncio.run(
        rehearsal(
            folder,
            PLAN,
            devices=10,
            rounds=48,
            pictures=pictures,
            show=lambda line: print(line, flush=True),
        )
    )
    print(f"logs and pictures: {folder}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
