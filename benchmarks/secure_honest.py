"""Honest secure rounds where agents drop out: sums, voids, bytes and processor time.

    python -m benchmarks.secure_honest [--seeds 1] [--out benchmarks/results/secure_honest.json] [--table]

FedAvg of a small model in this process, with all messages and keys. An agent drops out of a round with this chance: half of
them before the sums begin, the others before they report. Bytes are those of orders' models and reports, per agent and round.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measuring import record_options, resumed
from covey.coordinator.run.run import Run
from covey.coordinator.simulate.virtual_clock import Driver
from covey.extras.secure import phases
from covey.extras.secure.tests.secure_run import rows, sums
from covey.shared.errors import PublicError
from covey.shared.strategies.base import ClientId
from covey.shared.wire.messages import OrderMessage, ReportContent
from tests.kit import small_run
from tests.kit.local_clients import LocalClients


@dataclass(frozen=True)
class Cell:
    agents: int
    rounds: int
    gone: float

    @property
    def key(self) -> str:
        return f"{self.agents} agents, {self.rounds} rounds, {self.gone:.0%} gone"


CELLS = [
    Cell(agents, rounds, gone)
    for agents, rounds in ((10, 300), (100, 100))
    for gone in (0.0, 0.1, 0.3)
]


class Clients(LocalClients):
    """Agents that drop out by chance, for a round."""

    def __init__(self, cell: Cell, seed: int, people: Any) -> None:
        super().__init__(small_run.local_for(people))
        self.chance = random.Random(f"{cell.key} {seed}")  # noqa: S311 - no secrets
        self.gone, self.bytes = cell.gone / 2.0, 0
        self.refusals: Counter[str] = Counter()
        self.drops: dict[tuple[int, str, ClientId], bool] = {}

    def work(self, run: Run, client: ClientId, order: OrderMessage) -> ReportContent:
        assert order.work is not None
        when = {phases.BOX: "before", "train": "after"}.get(order.work.phase)
        if when is not None and "evaluate" not in order.work.numbers.values():
            key = (order.work.round, when, client)
            if self.drops.setdefault(key, self.chance.random() < self.gone):
                return ReportContent.failed(order, client, "gone")
        try:
            report = super().work(run, client, order)
        except PublicError as refusal:
            self.refusals[str(refusal)] += 1
            return ReportContent.failed(order, client, str(refusal))
        self.bytes += len(report.to_bytes())
        return report


def measured(cell: Cell, seeds: list[int]) -> dict[str, Any]:
    """A run for each seed."""
    ends: Counter[str] = Counter()
    summed, sent, began = 0, 0, time.process_time()
    for seed in seeds:
        taking_part = {"count": cell.rounds, "participation": 1.0, "start_agents": cell.agents}
        scene = small_run.judged(
            "fedavg", rounds=taking_part, privacy={"secure": {"clip": 10.0, "cap": 100}}
        )
        people = small_run.clients(cell.agents, scene)
        clients = Clients(cell, seed, people)
        with tempfile.TemporaryDirectory() as folder:
            this = Path(folder) / "run"
            rules = small_run.rules(scene, void_limit=1000)
            run = Run.start(
                this, scene, small_run.setup(scene), rules=rules, run="in-process", now=0.0
            )
            Driver(run, clients).complete(small_run.samples_of(people))
            for groups in sums(this):
                ends.update(one["end"] for one in groups)
                summed += sum(len(one["reported"]) for one in groups if one["end"] == "sum")
                ends["rounds with a sum"] += any(one["end"] == "sum" for one in groups)
            ends["attempts"] += sum(row.get("phase") == phases.JOIN for row in rows(this))
            sent += clients.bytes
    rounds = cell.rounds * len(seeds)
    return {
        **ends,
        "refused": sum(clients.refusals.values()),
        "reports in sums": summed / rounds,
        "bytes sent": sent / rounds / cell.agents,
        "processor_s": (time.process_time() - began) / rounds,
    }


def main() -> None:
    out = Path("benchmarks/results/secure_honest.json")
    options = record_options(__doc__, out, (1,)).parse_args()
    found = resumed(
        options,
        {cell.key: partial(measured, cell, options.seeds) for cell in CELLS},
        {"seeds": options.seeds},
    )
    for key, one in found.items():
        print(f"{key}: {one}")


if __name__ == "__main__":
    main()
