"""How agents that come late get a cluster: the rules that clustered methods share."""

from typing import Any

import pytest

from covey.shared.strategies.base import Phase, View
from covey.shared.strategies.fedclust import FedClust
from covey.shared.strategies.fesem import Fesem
from covey.shared.strategies.reading import folded
from tests.bowl import Bowl, flat
from tests.drive import Run, fingerprint
from tests.shared.planted import run, setup, two_groups

CLUSTERED = [FedClust(n_clusters=2), Fesem(mu=0.0), Fesem(mu=0.0, m_step="participants")]


@pytest.mark.parametrize("strategy", CLUSTERED, ids=lambda s: s.name)
def test_a_newcomer_whose_entry_failed_is_asked_again_only_after_a_round(strategy: Any) -> None:
    broken = lambda phase, round_, client: client == "c07" and round_ < 3  # noqa: E731
    end = run(strategy, two_groups(), rounds=4, joins={"c07": 1}, drop=broken)
    entries = [reporters for phase, reporters in end.phases if phase.name == "entry"]
    assert entries == [(), (), ("c07",)]
    assert [phase.name for phase, _ in end.phases][2:] == ["entry", "train"] * 3
    assert end.state.assign["c07"] == end.state.assign["c05"]


@pytest.mark.parametrize("strategy", CLUSTERED, ids=lambda s: s.name)
def test_an_agent_drawn_for_a_round_without_a_cluster_does_its_entry_there(strategy: Any) -> None:
    no_entry = lambda phase, round_, client: phase == "entry"  # noqa: E731
    end = run(strategy, two_groups(), rounds=2, joins={"c07": 1}, drop=no_entry)
    alone = run(strategy, {c: b for c, b in two_groups().items() if c != "c07"}, rounds=2)
    assert end.state.assign["c07"] == end.state.assign["c05"]
    assert fingerprint(end.state.models) == fingerprint(
        alone.state.models
    )  # nobody's model took it in
    order = strategy.order(end.state, Phase(), "stranger")
    assert order.cluster is None
    assert strategy.model(end.state, order.models[0]).shape == (2,)


@pytest.mark.parametrize("strategy", CLUSTERED, ids=lambda s: s.name)
def test_who_has_no_cluster_is_served_the_model_with_the_lowest_training_loss(
    strategy: Any,
) -> None:
    end = run(strategy, two_groups(), rounds=4)
    end.locals = {**end.locals, "late": Bowl(flat(-4, -4))}
    assert end.personal("late")[0][1] is end.state.models[end.state.assign["c01"]]
    assert end.personal("c00")[0][1] is end.state.models[end.state.assign["c00"]]
    early = Run(strategy, setup(two_groups()), two_groups())
    assert early.personal("c00")[0][1].tolist() == [0, 0]


@pytest.mark.parametrize("strategy", CLUSTERED, ids=lambda s: s.name)
def test_a_first_phase_without_reports_leaves_the_state_alone(strategy: Any) -> None:
    state = strategy.init(setup(two_groups()))
    assert folded(strategy, state, strategy.plan(state, View(0, 3, 0, ("a",))), reports=[]) is state
