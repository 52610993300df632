"""How much a coordinator grows while a hundred reports of an 11 M-parameter model arrive and are folded.

    python benchmarks/memory.py [--reports 100] [--hidden 3600]

Starts a Mosquitto and a coordinator; this process plays all agents: it answers every order with a report of
random weights and trains nothing. Prints a table, writes memory.json below --out.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import tempfile
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml
from rich.console import Console
from rich.table import Table

from covey.shared.mqtt.link import Message, Up, Will
from covey.shared.mqtt.mqtt_link import MqttLink
from covey.shared.numerics.vectors import Layout
from covey.shared.wire.codec import Codec, encode
from covey.shared.wire.messages import (
    AgentStatus,
    CoordinatorStatus,
    OrderMessage,
    ReportContent,
    digest,
)
from covey.shared.wire.parts import split
from covey.shared.wire.topics import Topics
from tests.processes import Program, free_port, mosquitto

TOPICS = Topics("default")


def scenario(reports: int, hidden: int) -> dict[str, Any]:
    """FedAvg on CIFAR-like images with an MLP of 3 072 * hidden + 11 * hidden + 10 parameters."""
    return {
        "name": "memory",
        "task": {
            "features": [3, 32, 32],
            "classes": 10,
            "model": {"name": "mlp", "options": {"hidden": hidden}},
        },
        "strategy": {"name": "fedavg"},
        "rounds": {"count": 1, "participation": 1.0, "start_agents": reports, "deadline_s": 3600},
    }


class Parrot:
    """An agent that has no data and sends random weights."""

    def __init__(self, name: str, url: str) -> None:
        self.name, self.url = name, url

    async def live(self, gate: asyncio.Semaphore) -> None:
        online = AgentStatus(agent=self.name, session="s", online=True, samples=10, test_samples=0)
        gone = online.model_copy(update={"online": False})
        will = Will(TOPICS.status(self.name), gone.to_bytes())
        async with MqttLink(self.url, client_id=self.name, will=will) as link:
            async for incoming in link.incoming():
                if isinstance(incoming, Up):
                    await link.subscribe([TOPICS.coordinator_status, TOPICS.order(self.name)])
                elif isinstance(incoming, Message) and incoming.topic == TOPICS.coordinator_status:
                    seen = CoordinatorStatus.from_bytes(incoming.payload)
                    answer = online.model_copy(
                        update={"epoch": seen.epoch, "task": seen.task_digest}
                    )
                    await link.publish(TOPICS.status(self.name), answer.to_bytes(), retain=True)
                elif isinstance(incoming, Message):
                    order = OrderMessage.from_bytes(incoming.payload)
                    if order.work is not None:
                        async with gate:
                            await self.report(link, order)

    async def report(self, link: MqttLink, order: OrderMessage) -> None:
        assert order.work is not None
        content = self.content(order)
        parts = split(
            BytesIO(content),
            digest=digest(content),
            size=len(content),
            part_bytes=order.work.part_bytes,
            about=order.step,
        )
        for part in parts:
            await link.publish(TOPICS.report(self.name, part.index), part.to_bytes())

    def content(self, order: OrderMessage) -> bytes:
        assert order.work is not None
        rng = np.random.default_rng(abs(hash(self.name)))
        vectors = {}
        if order.work.phase == "train":
            weights = rng.standard_normal(Layout.from_wire(order.work.layout).size, np.float32)
            vectors["model"], _ = encode(
                weights, Codec(), base=None, base_digest=b"", error=None, rng=rng
            )
        numbers: dict[str, Any] = {"server": {"n": 0}} if order.work.phase == "evaluate" else {}
        return ReportContent(
            run=order.run, step=order.step, client=self.name, examples=10, steps=1, loss=1.0, numbers=numbers,
            seconds=0.0, vectors=vectors,
        ).to_bytes()  # fmt: skip


def memory(pid: int) -> dict[str, float]:
    """MB: all resident pages, and those that are the process's own (not files that are mapped)."""
    with contextlib.suppress(psutil.Error):
        full = psutil.Process(pid).memory_full_info()
        return {
            "rss": full.rss / 1e6,
            "own": full.uss / 1e6,
            "anonymous": (full.rss - full.shared) / 1e6,
        }
    return {"rss": 0.0, "own": 0.0, "anonymous": 0.0}


async def measure(this: Program, url: str, reports: int, at_once: int) -> dict[str, Any]:
    before: dict[str, float] = {}
    peak: dict[str, float] = {}
    gate = asyncio.Semaphore(at_once)
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        parrots = [
            group.create_task(Parrot(f"parrot-{i:03d}", url).live(gate)) for i in range(reports)
        ]
        while this.process.poll() is None:
            now = memory(this.process.pid)
            if not before and '"event": "link"' in this.output:
                before = now
            peak = {key: max(value, peak.get(key, 0.0)) for key, value in now.items()}
            await asyncio.sleep(0.05)
        for parrot in parrots:
            parrot.cancel()
    growth = {key: peak[key] - before[key] for key in peak}
    return {"before": before, "peak": peak, "growth": growth, "seconds": time.monotonic() - began}


def run(reports: int, hidden: int, at_once: int) -> dict[str, Any]:
    """The figures of one run; AssertionError with the coordinator's log where it did not end well."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        (folder / "scenario.yaml").write_text(yaml.safe_dump(scenario(reports, hidden)))
        url = f"mqtt://127.0.0.1:{port}"
        with mosquitto(folder, port):
            out = ["--out", str(folder / "run"), "--broker", url, "--json"]
            this = Program(
                ["covey.coordinator.cli", "run", str(folder / "scenario.yaml"), *out],
                folder / "log",
            )
            try:
                figures = asyncio.run(measure(this, url, reports, at_once))
            finally:
                this.stop()
            assert this.process.returncode == 0, this.output[-2000:]
        result = json.loads((folder / "run" / "result.json").read_text())
    parameters = 3072 * hidden + 11 * hidden + 10
    return {
        "parameters": parameters,
        "reports": reports,
        "bytes_up": result["bytes"]["wire_up"],
        **figures,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--reports", type=int, default=100)
    parser.add_argument("--hidden", type=int, default=3600)
    parser.add_argument(
        "--at-once", type=int, default=8, help="reports on their way at the same time"
    )
    parser.add_argument("--out", type=Path, default=Path("runs"))
    given = parser.parse_args()
    figures = run(given.reports, given.hidden, given.at_once)
    table = Table(
        title=f"{figures['reports']} reports of {figures['parameters']:,} parameters, {figures['bytes_up'] / 1e6:.0f} MB"
    )
    for column in ("MB", "before", "peak", "growth"):
        table.add_column(column, justify="right")
    for key in ("rss", "own", "anonymous"):
        table.add_row(key, *(f"{figures[part][key]:.0f}" for part in ("before", "peak", "growth")))
    Console().print(table)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "memory.json").write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
