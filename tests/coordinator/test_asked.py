"""The task of an agent is made once, with its order: a report is compared with that, and nothing is made again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.coordinator.engine.events import Failed, Joined
from covey.shared.strategies.base import ClientId, Phase
from covey.shared.strategies.registry import BUILT_IN
from covey.shared.wire import codec
from tests.coordinator.test_recovery import half_reported, report_of, resumed
from tests.kit.small_run import begun, clients, in_process, scenario
from tests.methods import METHODS, of_each_kind

ADDED_UP = [
    name
    for name, options in METHODS.items()
    if not BUILT_IN[options.get("name", name)].facts.individual
]


class Calls:
    """Counts how often a method is asked for an agent in a phase of a round; its states live on, so that ids differ."""

    def __init__(self, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.orders: Counter[tuple[int, ClientId]] = Counter()
        self.terms: Counter[tuple[int, ClientId]] = Counter()  # of reports that only sums need
        self._phases: list[Phase] = []
        self._whole: set[tuple[int, ClientId]] = set()
        order, terms = kind.order, kind.terms

        def ordered(method: Any, state: Any, phase: Phase, client: ClientId) -> Any:
            made = order(method, state, phase, client)
            self.orders[self._place(phase, client)] += 1
            if made.whole:
                self._whole.add(self._place(phase, client))
            return made

        def counted(method: Any, state: Any, phase: Phase, client: ClientId, report: Any) -> Any:
            place = self._place(phase, client)
            if place not in self._whole:
                self.terms[place] += 1
            return terms(method, state, phase, client, report)

        monkeypatch.setattr(kind, "order", ordered)
        monkeypatch.setattr(kind, "terms", counted)

    def _place(self, phase: Phase, client: ClientId) -> tuple[int, ClientId]:
        if not any(phase is one for one in self._phases):
            self._phases.append(phase)
        return id(phase), client


@pytest.mark.parametrize("method", of_each_kind("asked", ADDED_UP))
def test_a_method_is_asked_once_for_an_order_and_once_for_the_terms_of_its_report(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = scenario(method, rounds={"participation": 1.0, "count": 2})
    calls = Calls(type(scene.method), monkeypatch)
    in_process(tmp_path / "run", scene)
    assert set(calls.orders.values()) == {1}
    assert set(calls.terms.values()) <= {1}


def test_the_methods_of_these_rules_have_terms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = scenario("fedavg", rounds={"participation": 1.0, "count": 2})
    calls = Calls(type(scene.method), monkeypatch)
    in_process(tmp_path / "run", scene)
    assert len(calls.terms) == len(calls.orders) == 16


def test_a_coordinator_that_was_killed_makes_again_what_agents_are_asked_for(
    tmp_path: Path,
) -> None:
    before, orders = half_reported(tmp_path)
    step = before.engine.step
    assert step is not None
    run, _ = resumed(tmp_path)
    for client in sorted(orders):
        assert run.orders.asked_for(client, step.number, run.state) == step.asked[client].work


def test_the_task_of_an_agent_whose_work_has_failed_is_made_again(tmp_path: Path) -> None:
    """Perhaps the values that it keeps are lost: it would be asked with initial ones."""
    run = begun(tmp_path, scenario("fedrep", rounds={"participation": 1.0}))
    run.members.of("agent-0").owns = 0
    for client in clients():
        run.handle(Joined(client), 0.0)
    assert run.engine.step is not None
    number, orders = run.engine.step.number, run.orders
    before = {client: orders.asked_for(client, number, run.state) for client in clients()}
    for client in ("agent-0", "agent-1"):
        run.handle(Failed(client, number, "no memory"), 1.0)
    after = {client: orders.asked_for(client, number, run.state) for client in clients()}
    assert {client for client in before if before[client] != after[client]} == {"agent-0"}
    assert after["agent-0"] == after["agent-1"]


class Watched(np.ndarray[Any, Any]):
    """Counts the values that are read block by block."""

    read = 0

    def __getitem__(self, place: Any) -> Any:
        part = self.view(np.ndarray)[place]
        Watched.read += part.size
        return part


def test_three_passes_go_over_the_vector_of_a_report_that_is_measured_compared_and_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, orders = half_reported(tmp_path)
    reader = codec._READERS["float32"]
    monkeypatch.setitem(codec._READERS, "float32", lambda *of: reader(*of).view(Watched))
    content = report_of(run, "agent-7", orders["agent-7"])
    monkeypatch.setattr(Watched, "read", 0)
    run.accept("agent-7", content, 1.0)
    assert run.engine.step is not None
    assert Watched.read == 3 * run.engine.step.phase.sizes["model"]
