"""A federation in one folder, in which every program has nothing but its files: a broker with TLS, devices, coordinators."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from typer import Typer
from typer.testing import CliRunner, Result

from covey.extras.users.folder import BrokerFolder
from tests.e2e.enrolled import SCENARIO, TASK, data
from tests.kit.scenes import start_file
from tests.processes import Program, free_port, until


@dataclass
class Enrolled:
    """Its machines. `stack` ends their programs."""

    folder: Path
    stack: ExitStack
    home: BrokerFolder = field(init=False)
    starts: int = 0

    def __post_init__(self) -> None:
        self.home = BrokerFolder.create(self.folder / "home", ["localhost"], free_port())

    def program(self, name: str, *command: object, **how: Any) -> Program:
        """A program with a log of its own."""
        self.starts += 1
        log = self.folder / f"{self.starts}-{name}.log"
        this = Program([str(word) for word in command], log, **how)
        self.stack.callback(this.stop)
        return this

    def broker(self, *more: str) -> Program:
        """`broker up`, which listens when this returns."""
        up = ["covey.broker.cli", "up", "--home", self.home.folder, "--host", "127.0.0.1", *more]
        this = self.program("broker", *up)
        until(lambda: "listens" in this.output, of=this)
        return this

    def credentials(self, name: str) -> Path:
        """Those of a device, as they lie on it: a copy."""
        copy = self.folder / f"{name}.pem"
        if not copy.exists():
            copy.write_bytes(self.home.enroll(name).read_bytes())
        return copy

    def state(self, name: str) -> Path:
        return self.folder / f"state-{name}"

    def models(self, name: str) -> Path:
        return self.folder / f"models-{name}"

    def agent(self, name: str, *more: object, state: Path | None = None, **how: Any) -> Program:
        """A device that keeps models."""
        words = ["--credentials", self.credentials(name), "--state", state or self.state(name)]
        words += ["--data", data(self.folder, 1 + len(name)), "--model-dir", self.models(name)]
        words += ["--learner", "numpy", "--threads", 1, "--json", *more]
        return self.program(name, "covey.agent.cli", "start", *words, **how)

    def scenario(self, devices: int, **sections: Mapping[str, Any]) -> Path:
        """A scenario that needs this number of devices."""
        task = {**TASK, "init": start_file(self.folder, TASK)}
        rounds = {"start_agents": devices, "quorum": devices, **sections.pop("rounds", {})}
        scene = {**SCENARIO, "task": task, "strategy": {"name": "fedavg"}, "rounds": rounds}
        path = self.folder / "scenario.yaml"
        path.write_text(yaml.safe_dump(scene | sections))
        return path

    def coordinator(self, out: str, scene: Path, *more: str, **how: Any) -> Program:
        """A run in a folder of this name."""
        words = ["run", scene, "--out", self.folder / out, "--json", *self.operator, *more]
        return self.program(out, "covey.coordinator.cli", *words, **how)

    @property
    def operator(self) -> list[str]:
        return ["--credentials", str(self.home.file("coordinator"))]

    def typed(self, app: Typer, *words: object) -> Result:
        """A command at a terminal of this folder."""
        with contextlib.chdir(self.folder):
            return CliRunner().invoke(app, [str(word) for word in words])
