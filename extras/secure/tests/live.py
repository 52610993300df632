"""Runs whose agents are the workers of devices: their own keys, data, policy, memory and state on disk.

Only the coordinator may lie: a test patches its code, and looks at what the workers have sent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from covey.agent.policy import OwnersRules, Policy
from covey.agent.worker.worker import answer
from covey.coordinator.processes.launch import setup_of
from covey.coordinator.run.folder import IN_PROCESS
from covey.coordinator.run.rules import rules_of
from covey.coordinator.run.run import Run
from covey.coordinator.simulate.virtual_clock import Driver
from covey.extras.secure.derivation import signed_of_entry
from covey.extras.secure.primitives import signature
from covey.extras.secure.secure_folder import SecureFolder
from covey.extras.secure.tests.group import FLEET, FLEET_SECRET, entry_of
from covey.shared.numerics.vectors import Layout, Tensor
from covey.shared.strategies.base import ClientId
from covey.shared.wire.jobs import DeviceData, KeepPlace, Perform, Performed
from covey.shared.wire.messages import OrderMessage, ReportContent
from tests.kit.local_clients import LocalClients
from tests.kit.scenes import Scenes

AGENTS = ("a1", "a2", "a3", "a4", "a5")
FEATURES = 3
LAYOUT = Layout((Tensor("fc.weight", (1, FEATURES)), Tensor("fc.bias", (1,))), 2)
SECTIONS: dict[str, Any] = {
    "training": {"epochs": 2, "batch": 8, "lr": 0.05},
    "rounds": {"count": 1, "participation": 1.0, "start_agents": len(AGENTS)},
    "privacy": {"secure": {"clip": 10.0, "cap": 1000}},
    "evaluation": {"tune_epochs": 0},
}
TASK = {
    "features": [FEATURES],
    "classes": None,
    "target": "y",
    "model": {"name": "linear"},
    "standardise": {"mean": [0.0] * FEATURES, "std": [1.0] * FEATURES},
    "target_scale": {"mean": 0.0, "std": 1.0},
}


class Devices(LocalClients):
    """Agents on a disk: what a run leaves there, the next one finds."""

    def __init__(
        self, folder: Path, limit: str = "privacy={secure_least: 4}", agents: Sequence[str] = AGENTS
    ) -> None:
        super().__init__(lambda *_: None)  # type: ignore[arg-type]
        self.folder, self.agents = folder, agents
        self.rules = OwnersRules(Policy().with_limits([limit]), learner="numpy").for_job()
        self.failures: list[str] = []  # of reports, as the coordinator reads them
        self.kept: dict[str, Any] = {}  # the newest model that each device may use
        for number, name in enumerate(agents, 1):
            (folder / name / "models").mkdir(parents=True)
            self._enrolled(number, name)
            rows = np.random.default_rng(number).normal(size=(40, FEATURES))
            targets = rows @ [1.0, -2.0, 0.5] + number
            lines = [f"{','.join(map(str, row))},{y}" for row, y in zip(rows, targets, strict=True)]
            text = "\n".join(["u,v,w,y", *lines])
            (folder / name / "data.csv").write_text(text)

    def _enrolled(self, number: int, name: str) -> None:
        place = self.folder / name / "secure"
        entry = entry_of(name, number, SecureFolder.signing_key(place))
        valid = entry.model_copy(update={"since": 0, "until": 1 << 40})
        signed = signature(FLEET_SECRET, signed_of_entry(valid))
        entry = valid.model_copy(update={"signature": signed})
        SecureFolder.take_entry(place, entry.to_bytes(), FLEET)

    def work(self, run: Run, client: ClientId, order: OrderMessage) -> ReportContent:
        place = self.folder / client
        assert order.work is not None
        paths = []
        for ref in order.work.models:
            paths.append(place / f"{ref.digest.hex()}.model")
            paths[-1].write_bytes(run.orders.content_of(ref.key))
        memory = place / "memory"
        job = Perform(
            order=order.to_bytes(),
            models=paths,
            memory=memory if memory.exists() else None,
            client=client,
            source=DeviceData(data=str(place / "data.csv"), label="y"),
            report_out=place / "report",
            memory_out=place / "newer",
            durable=False,
            secure=place / "secure",
            keep=KeepPlace(folder=place / "models", current="", accepted="", margin=0.05),
            rules=self.rules,
        )
        done = answer(job)
        assert isinstance(done, Performed), done
        if done.memory_digest:
            (place / "newer").replace(memory)
        if done.kept is not None:
            self.kept[client] = done.kept
        report = ReportContent.from_bytes((place / "report").read_bytes(), verified=True)
        if done.failed:
            self.failures.append(done.failed)
        return report


def made(devices: Devices, name: str, *, strategy: Any = "fedavg", **sections: Any) -> Path:
    """A run of these devices to its end, however its sums end, with one evaluation of the models that are served; its folder."""
    figures = {**SECTIONS["evaluation"], "deliver": "served", **sections.pop("evaluation", {})}
    sections["evaluation"] = figures
    run_of(devices, name, strategy=strategy, **sections)
    return devices.folder / name


def run_of(devices: Devices, name: str, *, strategy: Any = "fedavg", **sections: Any) -> Run:
    """The same run itself."""
    method = {"name": strategy} if isinstance(strategy, str) else dict(strategy)
    scene = Scenes.of("live", TASK, seed=3, **SECTIONS)(method, **sections)
    starts = [np.full(LAYOUT.size, 0.1 * k, np.float32) for k in range(scene.strategy.starts)]
    setup = setup_of(scene, starts, LAYOUT)
    folder = devices.folder / name
    run = Run.start(
        folder, scene, setup, rules=replace(rules_of(scene), void_limit=20), run=IN_PROCESS, now=0.0
    )
    return Driver(run, devices).complete(dict.fromkeys(devices.agents, (40, 40)))


def record(folder: Path) -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def sums(folder: Path, *, evaluations: bool = False) -> list[Mapping[str, Any]]:
    """How each sum of a run's rounds, or evaluations, ended, from its record."""
    rows = [row for row in record(folder) if ("evaluation" in row) == evaluations]
    return [one for row in rows for one in (row.get("notes") or {}).get("secure", ())]
