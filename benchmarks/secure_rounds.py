"""Seconds of a round under secure sums next to a plain one, where each message takes its time: all on a virtual clock.

    python -m benchmarks.secure_rounds [--out benchmarks/results/secure_rounds.json] [--table]

A coordinator and its agents, as programs, over a broker in memory that delivers each message after a fixed time. Agents train
for a fixed time; computing takes no time, so that the figures are those of the exchanges alone. Rounds of FedAvg in which all
agents take part: the second round of two. Bytes are all that the broker delivers, per agent.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measuring import record_options, resumed
from covey.shared.mqtt.link import Received
from tests import clock
from tests.kit.memory_broker import MemoryBroker, MemoryLink
from tests.kit.small_fleet import PATIENT, Fleet
from tests.kit.small_run import clients, judged, rules

TRAINING_S = 10.0
AGENTS = (10, 100)
DELAYS = (0.1, 0.5)  # seconds from one program to another


@dataclass(frozen=True)
class Cell:
    agents: int
    delay_s: float
    sums: str  # "plain" or "secure"

    @property
    def key(self) -> str:
        return f"{self.agents} agents, {self.delay_s:g} s, {self.sums}"


class CountingBroker(MemoryBroker):
    """Counts the bytes that it delivers."""

    delivered_bytes = 0

    def _deliver(self, link: MemoryLink, message: Received) -> None:
        self.delivered_bytes += len(message.payload)
        super()._deliver(link, message)


def measured(cell: Cell) -> dict[str, Any]:
    """What one more round takes."""
    (first_s, first), (second_s, second) = (of_run(cell, rounds) for rounds in (1, 2))
    return {"round_s": second_s - first_s, "bytes_of_agent": (second - first) / cell.agents}


def of_run(cell: Cell, rounds: int) -> tuple[float, int]:
    """Virtual seconds of a run, and the bytes that its broker delivered."""
    taking_part = {"count": rounds, "participation": 1.0, "start_agents": cell.agents}
    secure = {"privacy": {"secure": {"clip": 10.0, "cap": 100}}} if cell.sums == "secure" else {}
    scene = judged("fedavg", rounds=taking_part, **secure)
    broker = CountingBroker(delay_s=cell.delay_s)

    async def whole(folder: Path) -> float:
        people = clients(cell.agents, scene)
        async with Fleet(folder, scene, rules(scene, **PATIENT), broker, people) as fleet:
            fleet.pool.takes_s = TRAINING_S
            await fleet.serve()
            return asyncio.get_running_loop().time()

    with tempfile.TemporaryDirectory() as folder:
        return clock.run(whole(Path(folder)), within_s=1e6), broker.delivered_bytes


def main() -> None:
    out = Path("benchmarks/results/secure_rounds.json")
    options = record_options(__doc__, out, ()).parse_args()
    cells = [
        Cell(agents, delay_s, sums)
        for agents in AGENTS
        for delay_s in DELAYS
        for sums in ("plain", "secure")
    ]
    found = resumed(
        options, {cell.key: partial(measured, cell) for cell in cells}, {"training_s": TRAINING_S}
    )
    print(
        "| agents | a message takes | plain round | secure round | ratio |\n|---:|---:|---:|---:|---:|"
    )
    for agents in AGENTS:
        for delay_s in DELAYS:
            plain, secure = (
                found[Cell(agents, delay_s, sums).key]["round_s"] for sums in ("plain", "secure")
            )
            ratio = secure / plain
            print(f"| {agents} | {delay_s:g} s | {plain:.1f} s | {secure:.1f} s | {ratio:.2f} |")


if __name__ == "__main__":
    main()
