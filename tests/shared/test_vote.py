"""`vote: auto`: methods that cluster once train one model first, and their agents vote on the clusters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from covey.shared.scenario.scenario import Scenario
from covey.shared.strategies.base import HOLD_BACK, Phase, View
from covey.shared.strategies.fedclust import FedClust
from covey.shared.strategies.pacfl import Pacfl
from tests.drive import Run
from tests.kit.small_run import scenario
from tests.shared import planted


def scene(strategy: Any, **sections: Any) -> Scenario:
    return scenario("fedclust", strategy=strategy, rounds={"count": 6}, **sections)


def test_one_cluster_has_nothing_to_vote_on_and_holds_nothing_back() -> None:
    clients = planted.softmaxes(8)
    end = planted.run(FedClust(vote="auto", n_clusters=1), clients, rounds=3)
    assert [phase.name for phase, _ in end.phases] == ["signature", "train", "train", "train"]
    order = end.strategy.order(end.state, Phase(), "c0")
    assert HOLD_BACK not in order.numbers


@pytest.mark.parametrize("method", [FedClust, Pacfl])
def test_who_comes_after_a_refused_cut_joins_the_one_model(method: Any) -> None:
    clients = planted.softmaxes(8)
    end = planted.run(method(vote="auto", n_clusters=2), clients, rounds=6, joins={"c7": 4})
    assert len(end.state.models) == 1
    assert set(end.state.assign.values()) == {0}
    assert "c7" in end.state.assign


@pytest.mark.parametrize("method", [FedClust, Pacfl])
def test_a_cut_is_voted_on_where_votes_are_asked_for(method: Any) -> None:
    begun = planted.setup(planted.softmaxes(8), rounds=9)
    by_server = {"server": {"name": "adam"}}
    for options, vote_after in (
        ({"n_clusters": 2}, 0),
        ({"n_clusters": 2, "vote": "auto"}, 3),
        ({"gate": "none"}, 0),
        ({"vote": "none"}, 0),
        (by_server, 0),
    ):
        state = method(**options).init(begun)
        assert state.vote_after == vote_after, options


def test_until_the_vote_all_clusters_have_one_model() -> None:
    clients = planted.softmaxes(8)
    strategy = FedClust(vote="auto", n_clusters=2)
    begun = planted.setup(clients, rounds=9)
    states = Run(strategy, begun, clients).rounds(3).state
    end = Run(strategy, begun, clients).rounds(9)
    assert states.question
    np.testing.assert_array_equal(states.models[0], states.models[1])
    assert sorted(states.averages) == ["clusters-0", "clusters-1"]
    assert strategy.plan(states, View(3, 9, 0, tuple(clients))).name == "vote"
    assert end.state.outcomes["clusters"]["voters"] == 0, "agents that hold nothing back abstain"
    assert len(end.state.models) == 1


@pytest.mark.parametrize(
    ("sections", "why"),
    [({"privacy": {"client": {"clip": 1.0, "noise_multiplier": 1.0}}}, "votes hold losses")],
)
def test_settings_that_a_vote_cannot_work_with_are_refused(
    sections: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValidationError, match=why):
        scene({"name": "fedclust", "vote": "auto"}, **sections)
    with pytest.raises(ValidationError, match="compares single models"):
        scene({"name": "robust", "vote": "auto"})
    with pytest.raises(ValidationError, match="the server's optimiser moves"):
        scene({"name": "fedclust", "vote": "auto", "server": {"name": "adam"}})
