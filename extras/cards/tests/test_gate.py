"""Methods whose cards decide whether they have groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from covey.shared.strategies.cfl import Cfl
from covey.shared.strategies.fedclust import FedClust
from covey.shared.strategies.pacfl import Pacfl
from tests.bowl import softmax_client
from tests.shared import planted
from tests.shared.planted import SGD, WHOLE, run
from tests.shared.test_strategy_cfl import four_ways
from tests.shared.test_strategy_pacfl import pictures


def test_cfl_by_default_makes_all_clusters_in_the_first_round() -> None:
    end = run(Cfl(), four_ways(), WHOLE, rounds=1)
    assert [*end.state.assign.values()] == [0, 3, 1, 2] * 3
    assert [phase.name for phase, _ in end.phases] == ["signature", "train"]
    assert [round(float(model[0]), 3) for model in end.state.models] == [5.1, -4.9, 0.1, 0.1]
    facts = end.strategy.shown(end.state).notes
    assert facts["shift"].startswith("agents differ in")
    assert "warning_clusters" not in facts
    later = run(Cfl(), four_ways(), WHOLE, rounds=5)
    assert len(later.state.models) == 4


def test_cfl_never_splits_a_fleet_whose_cards_show_no_shift() -> None:
    clients = {f"c{i}": softmax_client((0, 1, 2, 3), seed=i, n=30 + 20 * i) for i in range(8)}
    end = run(Cfl(), clients, SGD, rounds=2)
    facts = end.strategy.shown(replace(end.state, rounds=2)).notes
    assert len(end.state.models) == 1
    assert facts["shift"] == "no shift found: one group"
    assert "no shift found between the data of the agents" in facts["warning_clusters"]
    for gate, models in (("cards", 1), ("none", 2)):
        always = Cfl.model_validate({"eps_1": 99, "eps_2": 0, "warmup": 0, "gate": gate})
        assert len(run(always, clients, SGD, rounds=1).state.models) == models


def test_cfl_without_any_card_decides_by_chance_and_does_not_wait() -> None:
    def no_card(phase: str, _: int, __: str) -> bool:
        return phase == "signature"

    end = run(Cfl(), four_ways(), WHOLE, rounds=1, drop=no_card)
    assert [*end.state.assign.values()] == [0, 3, 1, 2] * 3
    assert "fewer than 4 agents sent a card" in end.strategy.shown(end.state).notes["shift"]


def test_cfl_by_rotations_asks_for_cards() -> None:
    assert Cfl(trigger="rotations").gate == "cards"


def test_pacfl_by_default_finds_groups_where_a_card_finds_a_style() -> None:
    grouped = {f"c{i:02}": pictures((0,), seed=i, turn=40.0 * (i % 2) + 0.5 * i) for i in range(10)}
    end = run(Pacfl(), grouped, rounds=1)
    assert [*end.state.assign.values()] == [0, 1] * 5
    facts = end.strategy.shown(end.state).notes
    assert facts["shift"].startswith("agents differ in style")


@pytest.mark.parametrize("method", [FedClust, Pacfl])
def test_a_cut_that_cards_have_asked_for_is_voted_on_unless_they_are_private(method: Any) -> None:
    begun = planted.setup(planted.softmaxes(8), rounds=9)
    assert method().init(begun).vote_after == 3
    assert method().init(replace(begun, private=True)).vote_after == 0


@pytest.mark.parametrize("method", [FedClust, Pacfl, Cfl])
def test_without_the_extra_no_card_is_sent_and_a_gate_that_is_asked_for_is_refused_by_name(
    method: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("covey.shared.extras.has", lambda name: name != "cards")
    assert method().gate == "none"
    with pytest.raises(ValueError, match="gate: cards: needs covey's extra `cards`"):
        method(gate="cards")
