"""Processor time of a coordinator for each report, with fleets of growing size.

    python -m benchmarks.reports [--agents 100 500 1000] [--rounds 3]

Starts a Mosquitto and a coordinator. Other processes play the agents: they answer every order with a report of random
weights and train nothing. The first round warms up and is left out. The floor is what a bare client needs to receive
the same messages from the same broker. Prints a table, writes reports.json below --out.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml
from rich.console import Console
from rich.table import Table

from covey.shared.wire.codec import Codec, encode
from covey.shared.wire.messages import Encoded
from tests.kit.parrot import Parrot
from tests.processes import Program, free_port, mosquitto, until

FLEETS = 2  # processes that play agents
STARTS_PER_S = 200  # agents of one process; a broker's backlog of connections is short


def scenario(agents: int, rounds: int) -> dict[str, Any]:
    """FedAvg with LeNet-5: 44 426 parameters, 178 kB a report. Every agent reports in every round."""
    return {
        "name": "reports",
        "task": {"features": [1, 28, 28], "classes": 10, "model": {"name": "lenet5"}},
        "strategy": {"name": "fedavg"},
        "rounds": {
            "count": rounds,
            "participation": 1.0,
            "start_agents": agents,
            "deadline_s": 3600,
        },
        "evaluation": {"every": rounds},
    }


@functools.cache
def _weights(size: int) -> Encoded:
    """Random weights (size,), drawn and encoded once: all agents of a process report the same."""
    rng = np.random.default_rng(size)
    encoded, _ = encode(rng.standard_normal(size, np.float32), Codec(), rng=rng)
    return encoded


class LightParrot(Parrot):
    """A parrot that draws nothing for a report, so that the coordinator and not the fleet is the limit."""

    def weights(self, size: int) -> Encoded:
        """The same values in every report of this size."""
        return _weights(size)


async def play(url: str, first: int, count: int) -> None:
    """Play these agents until the process is ended."""
    gate = asyncio.Semaphore(8)
    async with asyncio.TaskGroup() as group:
        for number in range(first, first + count):
            group.create_task(LightParrot(f"parrot-{number:05d}", url).live(gate))
            if number % STARTS_PER_S == 0:
                await asyncio.sleep(1.0)


@contextmanager
def fleet(url: str, agents: int, folder: Path) -> Iterator[None]:
    """All agents, in a few processes."""
    started: list[Program] = []
    share = -(-agents // FLEETS)
    try:
        for first in range(0, agents, share):
            count = min(share, agents - first)
            command = ["benchmarks.reports", "--play", url, str(first), str(count)]
            started.append(Program(command, folder / f"fleet-{first}.log"))
        yield
    finally:
        for program in started:
            program.stop()


def seconds_of(pid: int) -> float:
    """Processor time of a process so far, user and system."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def rounds_over(program: Program) -> int:
    """Training rounds that the coordinator has folded."""
    return program.output.count('"ends_round": true')


def measure(agents: int, rounds: int) -> dict[str, Any]:
    """The figures of one fleet."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        port = free_port()
        url = f"mqtt://127.0.0.1:{port}"
        file = folder / "scenario.yaml"
        file.write_text(yaml.safe_dump(scenario(agents, rounds)))
        out = ["--out", str(folder / "run"), "--broker", url, "--json"]
        with mosquitto(folder, port) as broker:
            this = Program(["covey.coordinator.cli", "run", str(file), *out], folder / "log")
            try:
                with fleet(url, agents, folder):
                    return _watch(this, broker, agents, rounds)
            finally:
                this.stop()


def _watch(this: Program, broker: Program, agents: int, rounds: int) -> dict[str, Any]:
    begin = time.monotonic()
    pid, broker_pid = this.process.pid, broker.process.pid
    until(lambda: rounds_over(this) >= 1, 600, this)
    warm = time.monotonic()
    before, broker_before = seconds_of(pid), seconds_of(broker_pid)
    until(lambda: rounds_over(this) >= rounds, 1200, this)
    reports = agents * (rounds - 1)
    wall = time.monotonic() - warm
    memory = psutil.Process(pid).memory_full_info()
    return {
        "agents": agents,
        "reports": reports,
        "first_round_s": round(warm - begin, 2),
        "ms_per_report": round((seconds_of(pid) - before) / reports * 1e3, 3),
        "broker_ms_per_report": round((seconds_of(broker_pid) - broker_before) / reports * 1e3, 3),
        "reports_per_s": round(reports / wall, 1),
        "memory_mb": round(memory.uss / 1e6, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--agents", type=int, nargs="+", default=[100, 500, 1000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--play", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play is not None:
        url, first, count = options.play
        asyncio.run(play(url, int(first), int(count)))
        return
    table = Table(title="a coordinator's processor time for each report of 44 426 parameters")
    columns = ("agents", "ms_per_report", "broker_ms_per_report", "reports_per_s", "memory_mb")
    for column in columns:
        table.add_column(column.replace("_", " "), justify="right")
    figures = []
    for agents in options.agents:
        one = measure(agents, options.rounds)
        figures.append(one)
        table.add_row(*[str(one[column]) for column in columns])
    Console().print(table)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "reports.json").write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
