"""A round in which almost nothing is trained, next to bare MQTT clients that move the same payloads.

    python -m benchmarks.rounds [--kinds fleet agents wide] [--times 5] [--rounds 40]

Ten agents have eight samples each, so a round is one step of SGD for each of them: what remains is the cost of orders,
processes, files and messages. `fleet` simulates the agents in one process, `agents` starts ten times `agent start`, and
`wide` has a model of 11.2 M parameters; for this one, the PUBLISH packets are counted that carry parts of contents. There are
two floors (`benchmarks.bare`): aiomqtt that exchanges the same bytes, and the same with the promises of a round.
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml

from benchmarks.bare import AGENTS, PART_BYTES, parts_of
from benchmarks.measuring import OUT, Cost, Row, cpu_s_of, foreign_load, median, show
from tests.processes import Program, free_port, mosquitto, rows, until

SAMPLES = 10  # of an agent; two of them are its test part
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


def floor(kind: Kind, rounds: int, promise: str = "plain") -> Cost:
    """The cost of one round of bare clients."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        port = free_port()
        broker = stack.enter_context(mosquitto(folder, port))
        numbers = [str(port), str(kind.parameters), str(rounds)]
        programs = []
        for role in ("play", "lead"):
            this = Program(["benchmarks.bare", role, *numbers, promise], folder / role)
            stack.callback(this.stop)
            programs.append(this)
        pids = [broker.process.pid, *[this.process.pid for this in programs]]
        lead_of_all = programs[-1]
        until(lambda: "began" in lead_of_all.output, 120, lead_of_all)  # after a round to warm up
        before = cpu_s_of(pids)
        until(lambda: "seconds" in lead_of_all.output, 600, lead_of_all)
        used = cpu_s_of(pids) - before
        wall_s = float(lead_of_all.output.split("seconds")[1])
        return Cost(wall_s, used / rounds)


# -- both --------------------------------------------------------------------------------------------------------------


def measure(kind: Kind, times: int, rounds: int) -> list[Row]:
    """Both floors and the product in turns."""
    promises = ("plain", "durable" if kind.devices else "kept")
    floors: dict[str, list[Cost]] = {promise: [] for promise in promises}
    products: list[Cost] = []
    by_role: list[dict[str, float]] = []
    packets: list[float] = []
    for _ in range(times):
        for promise in promises:
            floors[promise].append(floor(kind, rounds, promise))
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
    return [
        Row(f"{kind.name}, {promise} floor", median(costs), median(products), times, detail)
        for promise, costs in floors.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=40, help="of the small model")
    parser.add_argument("--wide-rounds", type=int, default=6)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    found = []
    with foreign_load() as load:
        for name in options.kinds:
            kind = KINDS[name]
            count = options.wide_rounds if name == "wide" else options.rounds
            found += measure(kind, options.times, count)
    name = "rounds-" + "-".join(options.kinds)
    show(name, "a round of ten agents", found, load, options.out)


if __name__ == "__main__":
    main()
