"""A round in which almost nothing is trained, next to bare MQTT clients that move the same payloads.

    python -m benchmarks.rounds [--kinds fleet agents wide] [--times 5] [--rounds 40]

Ten agents have eight samples each, so a round is one step of SGD for each of them: what remains is the cost of orders,
processes, files and messages. `fleet` simulates the agents in one process, `agents` starts ten times `agent start`, and
`wide` has a model of 11.2 M parameters; for this one, the PUBLISH packets are counted that carry parts of contents. The floor is aiomqtt alone: one client publishes the model and ten orders, ten
clients answer with a report of the same size, in the same parts.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiomqtt
import numpy as np
import psutil
import yaml

from benchmarks.measuring import OUT, Cost, Row, cpu_s_of, foreign_load, median, show
from tests.processes import Program, free_port, mosquitto, rows, until

AGENTS = 10
SAMPLES = 10  # of an agent; two of them are its test part
ORDER_BYTES = 2500
PART_BYTES = 512 * 1024
PACKET = re.compile(r"Received PUBLISH from .*'[^']*/(model|report)/\d+'")
ROLES = ("coordinator", "fleet", "workers", "broker")


@dataclass(frozen=True)
class Kind:
    """One kind of round."""

    name: str
    features: tuple[int, int, int]
    model: dict[str, Any]
    parameters: int
    devices: bool = False  # ten programs `agent start`, not a simulated fleet

    @property
    def payload_bytes(self) -> int:
        """Of a model, and of a report."""
        return 4 * self.parameters

    @property
    def parts(self) -> int:
        """Of the model and of all reports, in one round."""
        return (1 + AGENTS) * len(parts_of(self.payload_bytes))

    @property
    def is_counted(self) -> bool:
        """Are the packets counted? The broker's log of a small model would cost more than its messages."""
        return self.payload_bytes > PART_BYTES


LENET = Kind("fleet", (1, 28, 28), {"name": "lenet5"}, 44_426)
WIDE_MLP = {"name": "mlp", "options": {"hidden": 3630}}
KINDS = {
    "fleet": LENET,
    "agents": replace(LENET, name="agents", devices=True),
    "wide": Kind("wide", (3, 32, 32), WIDE_MLP, 11_191_300),
}


# -- the product -------------------------------------------------------------------------------------------------------


def scenario(kind: Kind, rounds: int) -> dict[str, Any]:
    """FedAvg; every agent reports in every round."""
    fleet = {"agents": AGENTS, "data": "data.npz"}
    found: dict[str, Any] = {
        "name": kind.name,
        "task": {"features": list(kind.features), "classes": 10, "model": kind.model},
        "training": {"epochs": 1, "batch": SAMPLES, "lr": 0.001},
        "strategy": {"name": "fedavg"},
        "rounds": {"count": rounds, "participation": 1.0, "deadline_s": 3600},
        "evaluation": {"every": 0},
    }
    if kind.devices:
        found["rounds"]["start_agents"] = AGENTS
    else:
        found["fleet"] = fleet
    return found


def write_data(kind: Kind, path: Path, examples: int) -> None:
    features = np.random.default_rng(0).random((examples, *kind.features), dtype=np.float32)
    np.savez(path, x=features, y=np.arange(examples) % 10)


@contextmanager
def devices(kind: Kind, folder: Path, url: str) -> Iterator[list[int]]:
    """The process ids of ten times `agent start`; none for a simulated fleet, which the coordinator starts."""
    with ExitStack() as stack:
        started: list[int] = []
        if kind.devices:
            for number in range(AGENTS):
                name = f"agent-{number}"
                data = folder / f"{name}.npz"
                write_data(kind, data, SAMPLES)
                options = ["--data", str(data), "--id", name, "--broker", url]
                state = ["--state", str(folder / name)]
                command = ["covey.agent.cli", "start", *options, *state]
                this = Program(command, folder / f"{name}.log")
                stack.callback(this.stop)
                started.append(this.process.pid)
        yield started


def product(kind: Kind, rounds: int) -> tuple[Cost, dict[str, float], float]:
    """The cost of one round, the processor time in ms of each kind of process, and the packets with parts."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        write_data(kind, folder / "data.npz", AGENTS * SAMPLES)
        file = folder / "scenario.yaml"
        file.write_text(yaml.safe_dump(scenario(kind, rounds)))
        port = free_port()
        url = f"mqtt://127.0.0.1:{port}"
        config = "log_type debug\n" if kind.is_counted else ""
        broker = stack.enter_context(mosquitto(folder, port, config))
        started = stack.enter_context(devices(kind, folder, url))
        out = ["--out", str(folder / "run"), "--broker", url, "--json"]
        command = ["covey.coordinator.cli", "run", str(file), "--data-root", str(folder), *out]
        this = Program(command, folder / "log")
        stack.callback(this.stop)
        return _watch(this, folder / "run", broker, started, rounds)


def _watch(
    this: Program, run: Path, broker: Program, devices: list[int], rounds: int
) -> tuple[Cost, dict[str, float], float]:
    """Leave out the first two rounds, which start processes and fill caches, and the last one."""
    first = until(lambda: _folded(run, 2), 300, this)
    by_role = _processes(this.process.pid, broker.process.pid, devices)
    packets_before = _packets(broker)
    before = {role: cpu_s_of(pids) for role, pids in by_role.items()}
    began = time.perf_counter()
    last = until(lambda: _folded(run, rounds - 1), 900, this)
    wall_s = time.perf_counter() - began
    count = last - first
    used = {}
    for role, pids in by_role.items():
        used[role] = (cpu_s_of(pids) - before[role]) / count
    by_role_ms = {role: 1e3 * seconds for role, seconds in used.items()}
    packets = (_packets(broker) - packets_before) / count
    return Cost(wall_s / count, sum(used.values())), by_role_ms, packets


def _packets(broker: Program) -> int:
    """PUBLISH packets with parts that the broker has received so far, if it logs them."""
    return len(PACKET.findall(broker.output))


def _folded(run: Path, least: int) -> int:
    """Rounds that are in the record; 0 if they are fewer than expected."""
    found = sum(row.get("ends_round", False) for row in rows(run))
    return found if found >= least else 0


def _processes(coordinator: int, broker: int, devices: list[int]) -> dict[str, list[int]]:
    """The processes of the run by their role."""
    found: dict[str, list[int]] = {role: [] for role in ROLES}
    found["coordinator"].append(coordinator)
    found["broker"].append(broker)
    for parent in (coordinator, *devices):
        if parent != coordinator:
            found["fleet"].append(parent)
        for child in psutil.Process(parent).children(recursive=True):
            is_worker = any("worker" in word for word in child.cmdline())
            found["workers" if is_worker else "fleet"].append(child.pid)
    return found


# -- the floor ---------------------------------------------------------------------------------------------------------


def parts_of(size: int) -> list[int]:
    """The sizes of the parts of a content."""
    whole, rest = divmod(size, PART_BYTES)
    return [PART_BYTES] * whole + [rest] * (rest > 0)


async def answer(port: int, number: int, sizes: list[int]) -> None:
    """A bare agent: publish a report for each order."""
    async with aiomqtt.Client("127.0.0.1", port, timeout=60) as client:
        await client.subscribe([("model/#", 1), (f"order/{number}", 1)])
        # retained: the bare coordinator may subscribe later
        await client.publish(f"ready/{number}", b"here", qos=1, retain=True)
        async for message in client.messages:
            if message.topic.value.startswith("order"):
                for index, size in enumerate(sizes):
                    await client.publish(f"report/{number}/{index}", bytes(size), qos=1)


async def play(port: int, size: int) -> None:
    """All bare agents."""
    sizes = parts_of(size)
    async with asyncio.TaskGroup() as group:
        for number in range(AGENTS):
            group.create_task(answer(port, number, sizes))


async def lead(port: int, size: int, rounds: int) -> float:
    """A bare coordinator. Returns the seconds of one round."""
    sizes = parts_of(size)
    async with aiomqtt.Client("127.0.0.1", port, timeout=60) as client:
        await client.subscribe([("report/#", 1), ("ready/#", 1)])
        messages = client.messages
        for _ in range(AGENTS):
            await anext(messages)
        began = 0.0
        for number in range(rounds + 1):  # the first one warms up
            if number == 1:
                began = time.perf_counter()
            for index, part in enumerate(sizes):
                await client.publish(f"model/{index}", bytes(part), qos=1, retain=True)
            for agent in range(AGENTS):
                await client.publish(f"order/{agent}", bytes(ORDER_BYTES), qos=1, retain=True)
            for _ in range(AGENTS * len(sizes)):
                await anext(messages)
        return (time.perf_counter() - began) / rounds


def floor(kind: Kind, rounds: int) -> Cost:
    """The cost of one round of bare clients."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        port = free_port()
        broker = stack.enter_context(mosquitto(folder, port))
        size = str(kind.payload_bytes)
        programs = []
        for role in ("play", "lead"):
            command = ["benchmarks.rounds", f"--{role}", str(port), size, str(rounds)]
            this = Program(command, folder / role)
            stack.callback(this.stop)
            programs.append(this)
        pids = [broker.process.pid, *[this.process.pid for this in programs]]
        lead_of_all = programs[-1]
        # the processor time includes the start of Python: it is taken off as what a floor without rounds would use
        until(lambda: "began" in lead_of_all.output, 60, lead_of_all)
        before = cpu_s_of(pids)
        until(lambda: "seconds" in lead_of_all.output, 600, lead_of_all)
        used = cpu_s_of(pids) - before
        wall_s = float(lead_of_all.output.split("seconds")[1])
        return Cost(wall_s, used / rounds)


# -- both --------------------------------------------------------------------------------------------------------------


def measure(kind: Kind, times: int, rounds: int) -> Row:
    """Floor and product in turns."""
    floors: list[Cost] = []
    products: list[Cost] = []
    by_role: list[dict[str, float]] = []
    packets: list[float] = []
    for _ in range(times):
        floors.append(floor(kind, rounds))
        cost, used, sent = product(kind, rounds)
        products.append(cost)
        by_role.append(used)
        packets.append(sent)
    if kind.is_counted:
        number = statistics.median(packets)
        print(f"{kind.name}: {number:.0f} PUBLISH packets carry {kind.parts} parts in a round")
    detail = {}
    for role in ROLES:
        detail[role] = round(statistics.median(used[role] for used in by_role), 1)
    return Row(kind.name, median(floors), median(products), times, detail)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=40, help="of the small model")
    parser.add_argument("--wide-rounds", type=int, default=6)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--play", nargs=3, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--lead", nargs=3, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play:
        asyncio.run(play(*options.play[:2]))
        return
    if options.lead:
        print("began", flush=True)
        print("seconds", asyncio.run(lead(*options.lead)), flush=True)
        time.sleep(5)  # until its processor time was read; then it is ended
        sys.exit()
    found = []
    with foreign_load() as load:
        for name in options.kinds:
            kind = KINDS[name]
            count = options.wide_rounds if name == "wide" else options.rounds
            found.append(measure(kind, options.times, count))
    name = "rounds-" + "-".join(options.kinds)
    show(name, "a round of ten agents", found, load, options.out)


if __name__ == "__main__":
    main()
