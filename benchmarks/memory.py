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
from pathlib import Path
from typing import Any

import psutil
import yaml
from rich.console import Console
from rich.table import Table

from tests.kit.parrot import Parrot
from tests.processes import Program, free_port, mosquitto


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
