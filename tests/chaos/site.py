"""Where a run happens: a broker behind the proxy, a fleet that outlives runs, and a coordinator; real programs all of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.chaos.proxy import Proxy
from tests.processes import Output, free_ports, listens

ROOT = Path(__file__).resolve().parents[2]
AGENTS, ROUNDS = 20, 5
FEDERATION = "chaos"
READY_S = 180.0
BIG = 1 << 28


class Broken(Exception):  # noqa: N818 - what a run found, not what a program does
    """A run did not end as it should. The text describes what was seen."""


@dataclass
class Program:
    """A program with its output in a file."""

    process: asyncio.subprocess.Process
    _output: Output

    @classmethod
    async def start(cls, command: list[str], log: Path) -> Program:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
        before = Output.at_the_end_of(log)
        with log.open("ab") as file:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=environment,
            )
        return cls(process, before)

    @property
    def output(self) -> str:
        """What this program has written."""
        return self._output.read()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def lives(self) -> bool:
        return self.process.returncode is None

    async def kill(self) -> None:
        """kill -9, also of one that is stopped."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()

    async def freeze(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGSTOP)
            try:
                await asyncio.sleep(seconds)
            finally:
                self.process.send_signal(signal.SIGCONT)

    async def stop(self) -> None:
        """SIGTERM, and kill -9 where that does not help."""
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        try:
            async with asyncio.timeout(20):
                await self.process.wait()
        except TimeoutError:
            await self.kill()


def python(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", module, *arguments]


class Site:
    """One place in `folder` for many runs, one after another. `async with Site(folder)`."""

    def __init__(
        self,
        folder: Path,
        *,
        agents: int = AGENTS,
        rounds: int = ROUNDS,
        slow_s: float = 0.15,
        learner: str = "torch",
        disks: bool = True,  # small disks of their own, where this user may have them
    ) -> None:
        self.folder, self.agents, self.rounds = folder, agents, rounds
        self.slow_s, self.learner, self.disks = slow_s, learner, disks
        port, upstream = free_ports(2)
        self.proxy = Proxy(port, upstream)
        self.broker: Program | None = None
        self.fleet: Program | None = None
        self.coordinator: Program | None = None
        self.run = folder / "run"
        self.home = folder / "fleet"
        self.database = folder / "broker" / "mosquitto.db"
        self.old_database = folder / "broker" / "old.db"  # from the middle of an earlier run
        self.mounted: list[Path] = []
        self.drawn: set[Path] = set()  # initial models that are there

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.proxy.port}"

    async def __aenter__(self) -> Site:
        for place in (self.folder / "broker", self.run, self.home):
            place.mkdir(parents=True, exist_ok=True)
        for place in (self.run, self.home):
            if self.disks and await self._mount(place):
                self.mounted.append(place)
        await self.proxy.start()
        await self.start_broker()
        return self

    async def __aexit__(self, *_: object) -> None:
        for program in (self.coordinator, self.fleet, self.broker):
            if program is not None and program.lives:
                with contextlib.suppress(ProcessLookupError):
                    program.process.send_signal(signal.SIGCONT)
                await program.stop()
        await self.proxy.stop()
        for place in self.mounted:
            await (await asyncio.create_subprocess_exec("umount", "--lazy", str(place))).wait()

    async def _mount(self, place: Path) -> bool:
        """A small disk of its own, where this user may have one: then it can be full."""
        if os.geteuid() != 0 or shutil.which("mount") is None:
            return False
        quiet = asyncio.subprocess.DEVNULL
        command = ("mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(place))
        return (
            await (
                await asyncio.create_subprocess_exec(*command, stdout=quiet, stderr=quiet)
            ).wait()
            == 0
        )

    # programs

    async def start_broker(self) -> None:
        """A stock Mosquitto with persistence, on the port behind the proxy."""
        folder = self.database.parent
        config = folder / "mosquitto.conf"
        lines = [
            f"listener {self.proxy.upstream} 127.0.0.1",
            "allow_anonymous true",
            "persistence true",
            f"persistence_location {folder}/",
            "autosave_interval 1",
        ]
        lines += ["user root"] if os.geteuid() == 0 else []
        config.write_text("\n".join(lines) + "\n")
        self.broker = await Program.start(
            ["mosquitto", "-c", str(config)], folder / "mosquitto.log"
        )
        await self._until(
            lambda: listens(self.proxy.upstream), "the broker does not listen", self.broker
        )

    async def start_fleet(self) -> None:
        """All agents, with what they have on disk. Returns when their process is ready to work."""
        scenario = self.folder / "fleet.yaml"
        if not scenario.exists():
            scenario.write_text(yaml.safe_dump(self.scenario("fedavg", fleet=True)))
        command = python(
            "covey.agent.cli",
            "lab",
            "fleet",
            str(scenario),
            "--broker",
            self.url,
            "--run-dir",
            str(self.home),
            "--learner",
            self.learner,
        )
        fleet = self.fleet = await Program.start([*command, "--json"], self.folder / "fleet.log")
        await self._until(lambda: '"fleet up"' in fleet.output, "the fleet does not start", fleet)

    async def start_coordinator(self, name: str, *more: str) -> Program:
        """`coordinator run` of the scenario in the run's folder."""
        scenario = self.folder / f"{name}.yaml"
        command = [
            "run",
            str(scenario),
            "--out",
            str(self.run / name),
            "--broker",
            self.url,
            "--json",
            *more,
        ]
        self.coordinator = await Program.start(
            python("covey.coordinator.cli", *command), self.folder / f"coordinator-{name}.log"
        )
        return self.coordinator

    async def initial_models(self, method: str, out: Path) -> None:
        """Draw the first models once for all runs of a method: a coordinator then needs no torch."""
        if out in self.drawn:
            return
        scenario = self.folder / f"draw-{method}.yaml"
        scenario.write_text(yaml.safe_dump(self.scenario(method)))
        program = await Program.start(
            python("covey.agent.cli", "lab", "model", str(scenario), "--out", str(out)),
            self.folder / "draw.log",
        )
        if await program.process.wait() != 0:
            raise Broken(f"no initial model:\n{program.output[-2000:]}")
        self.drawn.add(out)

    def scenario(
        self, method: str, *, fleet: bool = False, init: Path | None = None
    ) -> dict[str, Any]:
        """Everybody takes part in every round, and nobody is given up for being away: so the bytes must be the same."""
        strategy: dict[str, Any] = {"name": method}
        if method != "fedavg":
            strategy["n_clusters"] = 2
        task: dict[str, Any] = {
            "features": [1, 8, 8],
            "classes": 10,
            "scale": 0.0625,
            "model": {"name": "mlp", "options": {"hidden": 16}},
        }
        if init is not None:
            task["init"] = str(init)
        data: dict[str, Any] = {
            "name": f"chaos-{method}",
            "seed": 5,
            "federation": FEDERATION,
            "task": task,
            "training": {"epochs": 1, "batch": 20, "lr": 0.1},
            "strategy": strategy,
            "rounds": {
                "count": self.rounds,
                "participation": 1.0,
                "quorum": self.agents,
                "start_agents": self.agents,
                "deadline_s": 300,
                "timing": {"absence_s": 240, "rollcall_s": 240},
            },
            "evaluation": {"tune_epochs": 0},
            "wire": {"part_bytes": 2048},
        }
        if fleet:
            data["fleet"] = {
                "agents": self.agents,
                "data": "digits",
                "partition": {"name": "grouped_labels", "groups": 2},
                "workers": 1,
                "faults": {"slow": 1.0, "slow_s": self.slow_s},
            }
        return data

    # what can be seen

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The record of a run so far."""
        path = self.run / name / "rounds.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def workers(self) -> list[psutil.Process]:
        """The processes that train."""
        if self.fleet is None or not self.fleet.lives:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            found: list[psutil.Process] = psutil.Process(self.fleet.pid).children(recursive=True)
            return found
        return []

    async def _until(self, holds: Callable[[], bool], otherwise: str, of: Program) -> None:
        try:
            async with asyncio.timeout(READY_S):
                while not holds():
                    if not of.lives:
                        break
                    await asyncio.sleep(0.05)
                else:
                    return
        except TimeoutError:
            pass
        raise Broken(f"{otherwise}:\n{of.output[-2000:]}")


def fill(folder: Path) -> Path:
    """Take all the room that the disk of this folder has left."""
    ballast = folder / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 16)):
            pass
    with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
        while file.write(bytes(512)):
            pass
    return ballast


def flip(path: Path, chance: float) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[int(chance * len(content))] ^= 1 << int(chance * 8)
    path.write_bytes(content)
