"""Runs under secure sums of the small fleet: members that fail, and what the record has about each sum."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.coordinator.run.run import Run
from covey.coordinator.simulate.virtual_clock import Driver
from covey.extras.secure import phases
from covey.extras.secure import secured as secured
from covey.extras.secure.integers import Integers, Total, total_of
from covey.extras.secure.messages import Entry
from covey.extras.secure.parameters import Scale
from covey.extras.secure.secure_folder import SecureFolder
from covey.shared.strategies.base import ClientId
from covey.shared.wire.messages import OrderMessage, ReportContent
from tests.kit import small_run
from tests.kit.local_clients import LocalClients
from tests.kit.small_run import samples_of, scenario

SECURE = {"clip": 10.0, "cap": 100, "colluders": 0.2}
WHOLE = {"least": 5}  # of eight: they are one group
# of methods whose defaults need what sums do not have
OPTIONS: dict[str, dict[str, Any]] = {
    "ifca": {"shared_trunk": False},
    "fedem": {"damped": False},
    "fedclust": {"signature": "update"},
}


def scene(method: str = "fedavg", **sections: Any) -> Any:
    asked = sections.pop("secure", {})
    whole = WHOLE if method in ("fedavg", "feddane") and "group" not in asked else {}
    privacy = {"secure": {**SECURE, **whole, **asked}}
    rounds = {"participation": 1.0, "count": 2, **sections.pop("rounds", {})}
    return scenario(method, privacy=privacy, rounds=rounds, **sections)


def rows(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def all_sums(folder: Path) -> list[list[dict[str, Any]]]:
    """How the sum of each group ended, in each round and evaluation."""
    ended = [row for row in rows(folder) if row.get("phase") == phases.UNMASK]
    return [row["notes"]["secure"] for row in ended]


def sums(folder: Path) -> list[list[dict[str, Any]]]:
    """The same of rounds."""
    ended = [row for row in rows(folder) if row.get("phase") == phases.UNMASK]
    return [row["notes"]["secure"] for row in ended if "evaluation" not in row]


def ends(folder: Path) -> list[list[str]]:
    """The same in words."""
    return [
        [f"{one['end']}: {one['why']}" if one["why"] else one["end"] for one in groups]
        for groups in sums(folder)
    ]


@dataclass
class Watch:
    """The integers that agents make of their updates, and the sums that the coordinator opens."""

    made: dict[ClientId, Integers] = field(default_factory=dict)  # the newest of each agent
    opened: list[tuple[Integers, dict[ClientId, Integers]]] = field(default_factory=list)

    @classmethod
    def of(cls, monkeypatch: pytest.MonkeyPatch) -> Watch:
        watch, save = cls(), SecureFolder.save_vector

        def saved(folder: SecureFolder, name: str, vector: Integers) -> None:
            if not name.endswith("-masked"):
                agent = Entry.from_bytes(folder.agent.identity.entry).agent
                watch.made[agent] = vector.copy()
            save(folder, name, vector)

        def opened(integers: Integers, reported: int, scale: Scale) -> Total:
            watch.opened.append((integers, dict(watch.made)))
            return total_of(integers, reported, scale)

        monkeypatch.setattr(SecureFolder, "save_vector", saved)
        monkeypatch.setattr(secured, "total_of", opened)
        return watch

    def check(self, folder: Path) -> int:
        """Each sum in the record is that of the integers of the agents in `reported`. Returns the number of sums."""
        recorded = [one for groups in all_sums(folder) for one in groups if one["end"] == "sum"]
        for one, (integers, made) in zip(recorded, self.opened, strict=True):
            plain = np.sum([made[agent] for agent in one["reported"]], axis=0, dtype=np.uint32)
            assert np.array_equal(integers, plain)
        return len(recorded)


class Failing(LocalClients):
    """The first clients fail in a phase of a round, the first times that they are asked."""

    def __init__(self, fail: Mapping[tuple[str, int], int], times: int = 1) -> None:
        super().__init__(small_run.local_for(small_run.clients()))
        self.fail, self.times = dict(fail), times
        self.asked: Counter[tuple[str, int, ClientId]] = Counter()

    def work(self, run: Run, client: ClientId, order: OrderMessage) -> ReportContent:
        assert order.work is not None
        phase, number = order.work.phase, order.work.round
        self.asked[phase, number, client] += 1
        fails = int(client.removeprefix("agent-")) < self.fail.get((phase, number), 0)
        if fails and self.asked[phase, number, client] <= self.times:
            return ReportContent.failed(order, client, "out of memory")
        return super().work(run, client, order)


def begun(folder: Path, this: Any) -> Run:
    return small_run.begun(folder, this, name="in-process")


def ended(run: Run, clients: Failing) -> Run:
    return Driver(run, clients).complete(samples_of(small_run.clients()))


def run_with(
    folder: Path, fail: Mapping[tuple[str, int], int], times: int = 1, this: Any = None
) -> Run:
    return ended(begun(folder, this or scene()), Failing(fail, times))
