"""How much a coordinator grows while a hundred reports of an 11 M-parameter model arrive and are folded.

    python benchmarks/memory.py [--reports 100] [--hidden 3600]

Starts a Mosquitto and a coordinator. This process plays all agents: it answers every order with a report of random weights
and trains nothing. Prints a table, writes memory.json below --out.
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
from covey.shared.wire.documents import AgentStatus, CoordinatorStatus
from covey.shared.wire.framing import REPORT_VERSION
from covey.shared.wire.messages import Encoded, OrderMessage, ReportContent, digest
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
        self.name = name
        self.url = url

    async def live(self, gate: asyncio.Semaphore) -> None:
        """Answer until it is cancelled; `gate` bounds how many parrots report at the same time."""
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
        """Publish the report for an order, in parts."""
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
            payload = part.to_bytes(REPORT_VERSION)
            await link.publish(TOPICS.report(self.name, part.index), payload)

    def content(self, order: OrderMessage) -> bytes:
        """A report with random weights, or with nothing to evaluate on."""
        assert order.work is not None
        vectors = {}
        numbers: dict[str, Any] = {}
        if order.work.phase == "train":
            vectors["model"] = self.weights(Layout.from_wire(order.work.layout).size)
        if order.work.phase == "evaluate":
            # somebody must be evaluated, or the run does not end well
            numbers["server"] = {"n": 10, "correct": 1, "accuracy": 0.1, "f1": 0.1, "loss": 2.3}
        report = ReportContent(
            run=order.run,
            step=order.step,
            work=order.work.digest,
            client=self.name,
            examples=10,
            steps=1,
            loss=1.0,
            numbers=numbers,
            seconds=0.0,
            vectors=vectors,
        )
        return report.to_bytes()

    def weights(self, size: int) -> Encoded:
        """The encoded model of a report: random values, as many as asked for."""
        rng = np.random.default_rng(abs(hash(self.name)))
        values = rng.standard_normal(size, np.float32)
        encoded, _ = encode(values, Codec(), base=None, base_digest=b"", error=None, rng=rng)
        return encoded


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
    """The coordinator's memory before the first report, and its largest until it ends."""
    before: dict[str, float] = {}
    peak: dict[str, float] = {}
    gate = asyncio.Semaphore(at_once)
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        tasks: list[asyncio.Task[None]] = []
        for number in range(reports):
            parrot = Parrot(f"parrot-{number:03d}", url)
            tasks.append(group.create_task(parrot.live(gate)))
        while this.process.poll() is None:
            now = memory(this.process.pid)
            if not before and '"event": "link"' in this.output:
                before = now
            for key, value in now.items():
                peak[key] = max(value, peak.get(key, 0.0))
            await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
    growth = {key: peak[key] - before[key] for key in peak}
    return {"before": before, "peak": peak, "growth": growth, "seconds": time.monotonic() - began}


def run(reports: int, hidden: int, at_once: int) -> dict[str, Any]:
    """The figures of one run. Raises AssertionError with the coordinator's log if it failed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        port = free_port()
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
    options = parser.parse_args()
    figures = run(options.reports, options.hidden, options.at_once)
    sent = figures["bytes_up"] / 1e6
    table = Table(
        title=f"{figures['reports']} reports of {figures['parameters']:,} parameters, {sent:.0f} MB"
    )
    moments = ("before", "peak", "growth")
    for column in ("MB", *moments):
        table.add_column(column, justify="right")
    for key in ("rss", "own", "anonymous"):
        row = [f"{figures[moment][key]:.0f}" for moment in moments]
        table.add_row(key, *row)
    Console().print(table)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "memory.json").write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
