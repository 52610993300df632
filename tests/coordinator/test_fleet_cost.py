"""What a coordinator does for one agent does not grow with the fleet: counted in operations, not in seconds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from covey.coordinator.disk.checkpoint import Checkpoint
from covey.coordinator.engine.events import Joined, Left
from covey.coordinator.run import orders as orders_module
from covey.coordinator.run.effects import SendOrder
from covey.coordinator.run.run import Run
from covey.shared.wire.messages import Work
from tests.kit.small_run import rules, scenario, setup

AGENTS = [f"agent-{number:03d}" for number in range(200)]


class CountedSet(set[str]):
    """A set that counts how often it is gone through or copied."""

    walks = 0

    def __or__(self, other: Any) -> Any:
        CountedSet.walks += 1
        return set(self) | set(other)

    def __ror__(self, other: Any) -> Any:
        CountedSet.walks += 1
        return set(self) | set(other)


def open_run(folder: Path, method: str, participation: float) -> Run:
    """A run of 200 agents whose first step is open."""
    changes: dict[str, Any] = {
        "participation": participation,
        "start_agents": len(AGENTS),
        "quorum": 1,
    }
    changes["timing"] = {"absence_s": 0.0}  # an agent that leaves is gone
    scene = scenario(method, rounds=changes)
    starts = setup(scene)
    run = Run.start(folder, scene, starts, rules=rules(scene), run="run-1", now=0.0)
    for agent in AGENTS:
        run.handle(Joined(agent), 0.0)
    assert run.engine.step is not None
    return run


def test_the_work_of_a_step_is_made_once_for_all_agents_that_share_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: Counter[str] = Counter()

    def counted(**fields: Any) -> Work:
        made["work"] += 1
        return Work(**fields)

    monkeypatch.setattr(orders_module, "Work", counted)
    run = open_run(tmp_path, "fedavg", 1.0)
    assert made["work"] == 1
    sent = run.desired()
    orders = [one.order for one in sent if isinstance(one, SendOrder)]
    assert len({id(order.work) for order in orders}) == 1
    assert len(orders) == len(AGENTS)


def test_an_order_does_not_look_at_all_who_have_reported(tmp_path: Path) -> None:
    run = open_run(tmp_path, "fedavg", 1.0)
    step = run.engine.step
    assert step is not None
    step.reported = CountedSet(step.reported)
    for agent in AGENTS:
        run.order_of(agent)
    assert CountedSet.walks == 0


def test_many_agents_that_take_the_places_of_others_share_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_run(tmp_path, "fedavg", 0.5)
    step = run.engine.step
    assert step is not None
    saved: Counter[str] = Counter()
    save = Checkpoint.save

    def counted(self: Checkpoint, facts: Any, state: Any) -> Any:
        saved["checkpoints"] += 1
        return save(self, facts, state)

    monkeypatch.setattr(Checkpoint, "save", counted)
    cohort = tuple(step.cohort)
    run.handle_all([Left(agent) for agent in cohort[:50]], 1.0)
    assert saved["checkpoints"] == 1
    assert len(step.cohort) == len(cohort) + 50
    known = Checkpoint(tmp_path / "checkpoint").facts()["engine"]["step"]["cohort"]
    assert known == list(step.cohort)
