"""FeSEM on clients whose answers are known by hand."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from pydantic import ValidationError

from covey.shared.strategies.base import Phase, Training
from covey.shared.strategies.client_half import Report
from covey.shared.strategies.fesem import Fesem, FesemState
from covey.shared.strategies.reading import folded
from tests.bowl import Bowl, flat
from tests.drive import Run, fingerprint
from tests.shared.planted import WHOLE, bowls, job, run, setup, trained, two_groups


@pytest.mark.parametrize("distance", get_args(Fesem.model_fields["distance"].annotation))
@pytest.mark.parametrize("features", get_args(Fesem.model_fields["features"].annotation))
def test_fesem_ends_with_a_centre_in_each_group(features: Any, distance: Any) -> None:
    if (features, distance) == ("sketch", "l1"):
        return
    end = run(Fesem(mu=0.1, features=features, distance=distance), two_groups(), rounds=12)
    assert end.state.assign == {client: i % 2 for i, client in enumerate(two_groups())}
    assert end.state.models[0] == pytest.approx([5, 5.3], rel=1e-3)
    assert end.state.models[1] == pytest.approx([-5, -4.6], rel=1e-3)
    assert end.strategy.shown(end.state).notes["sizes"] == [4, 4]


def test_fesem_refuses_what_a_projection_does_not_keep() -> None:
    with pytest.raises(ValidationError, match="does not keep l1"):
        Fesem(features="sketch", distance="l1")


def test_fesem_centres_are_plain_means() -> None:
    locals_ = {"a": Bowl(flat(4, 0), 10), "b": Bowl(flat(0, 4), 30)}
    training = Training(epochs=1, batch=100, lr=1.0)
    plain = run(Fesem(n_clusters=1, mu=0.0), locals_, training, rounds=1).state
    assert plain.models[0] == pytest.approx([2, 2])


def test_fesem_pulls_all_alike_towards_the_centre() -> None:
    locals_ = {"a": Bowl(flat(4, 0), 10), "b": Bowl(flat(0, 4), 30)}
    end = run(Fesem(n_clusters=1, mu=0.3), locals_, rounds=1)
    orders = [end.strategy.order(end.state, Phase(), client) for client in ("a", "b")]
    assert [order.numbers["mu"] for order in orders] == [0.3, 0.3]
    long = Training(epochs=300, batch=10, lr=0.1)
    work = trained(Fesem(), job(flat(0, 0), training=long, mu=1.0), Bowl(flat(4, 0)))
    assert work == pytest.approx([2, 0], rel=1e-5)


def test_fesem_uses_the_latest_model_of_clients_that_were_not_invited() -> None:
    locals_, absent = bowls((4, 4), (8, 8)), "c01"
    drop = lambda phase, round_, client: phase == "train" and client == absent  # noqa: E731
    all_agents = run(Fesem(n_clusters=1, mu=0.0), locals_, rounds=1, drop=drop).state
    # warm-up from 0: 2 and 4; centre 3; c00 trains on to 3.5; c01's model is still 4
    assert all_agents.models[0] == pytest.approx([3.75, 3.75])
    reporters = run(
        Fesem(n_clusters=1, mu=0.0, m_step="participants"), locals_, rounds=1, drop=drop
    ).state
    assert reporters.models[0] == pytest.approx([3.5, 3.5])


def test_fesem_participants_and_all_agree_when_all_agents_take_part() -> None:
    ends = [run(Fesem(m_step=m), two_groups(), rounds=4).state for m in ("all", "participants")]
    assert fingerprint(ends[0]) == fingerprint(ends[1])


def test_fesem_spread_is_the_mean_distance_to_the_own_centre() -> None:
    locals_ = bowls((0, 0), (2, 0), (1, 3))
    at = Run(Fesem(n_clusters=1, mu=0.0), setup(locals_, WHOLE), locals_)
    at.phase(0)
    around = (1 + 1 + 1 + 1 + 0 + 4) / 3  # squared, around (1, 1)
    assert at.strategy.shown(at.state).notes["J"] == pytest.approx(around)
    assert at.rounds(1).strategy.shown(at.state).notes["J"] == pytest.approx(around)


def test_fesem_records_j_after_the_m_step_as_well() -> None:
    """One round of whole steps leads everybody from the centre to its own minimum: E measures from the old centre."""
    at = Run(
        Fesem(n_clusters=1, mu=0.0), setup(bowls((0, 0), (2, 0)), WHOLE), bowls((0, 0), (2, 0))
    )
    at.rounds(1)
    at.state = replace(at.state, models=(flat(4, 0),))
    notes = at.rounds(2).strategy.shown(at.state).notes
    assert notes["J"] == pytest.approx((16 + 4) / 2)  # around (4, 0)
    assert notes["J_after_M"] == pytest.approx((1 + 1) / 2)  # around the members' mean (1, 0)


@pytest.mark.parametrize("features", ["full", "last_layer", "sketch"])
def test_fesem_m_step_never_raises_j(features: Any) -> None:
    at = Run(Fesem(mu=0.0, features=features), setup(two_groups()), two_groups())
    for round_ in range(1, 6):
        notes = at.rounds(round_).strategy.shown(at.state).notes
        assert notes["J_after_M"] <= notes["J"] * (1 + 1e-6)


def stop_reasons(strategy: Fesem, disturb: Callable[[FesemState], FesemState]) -> list[str]:
    """The reason to stop after each of seven rounds on two groups; the state is disturbed before the fourth."""
    at = Run(strategy, setup(two_groups(), WHOLE), two_groups())
    reasons = []
    for round_ in range(1, 8):
        if round_ == 4:
            at.state = disturb(at.state)
        reasons.append(strategy.stop_reason(at.rounds(round_).state))
    return reasons


def with_one_moved(state: FesemState) -> FesemState:
    return replace(state, assign={**state.assign, "c00": 1 - state.assign["c00"]})


def with_larger_j(state: FesemState) -> FesemState:
    return replace(state, spread_after=1.1 * state.spread_after)


def test_fesem_stops_once_assignments_rest() -> None:
    strategy = Fesem(mu=0.0, stop="assignments")
    why = "no agent changed its group in 3 successive E-steps"
    assert stop_reasons(strategy, with_one_moved) == ["", "", why, "", "", "", why]
    assert stop_reasons(Fesem(mu=0.0), with_one_moved) == [""] * 7


def test_fesem_stops_once_j_after_the_m_step_hardly_changes() -> None:
    strategy = Fesem(mu=0.0, stop="objective")
    why = "J changed by no more than 0.001 of itself in 3 successive E-steps"
    assert stop_reasons(strategy, with_larger_j) == ["", "", why, "", "", "", why]


@pytest.mark.parametrize(
    ("distance", "groups"), [("l2sq", [0, 1, 0, 1]), ("cosine", [0, 0, 1, 1]), ("l1", [0, 1, 0, 1])]
)
def test_fesem_warm_up_is_clustered_by_the_distance_that_was_asked_for(
    distance: Any, groups: list[int]
) -> None:
    # two directions, one short and one long each
    locals_ = bowls((2, 1), (20, 10), (1, 2), (16, 18))
    at = Run(Fesem(mu=0.0, distance=distance), setup(locals_, WHOLE), locals_)
    at.phase(0)
    assert [*at.state.assign.values()] == groups


def test_fesem_seeds_an_empty_cluster_with_the_client_farthest_from_its_centre() -> None:
    strategy = Fesem(n_clusters=2, mu=0.0)
    at = Run(strategy, setup(two_groups(2)), bowls((1, 1), (1.2, 1), (0.9, 1), (9, 9))).rounds(0)
    at.phase(0)
    far_away = (at.state.models[0], flat(500, 500))
    at.state = replace(at.state, models=far_away, assign=dict.fromkeys(at.state.assign, 0))
    at.rounds(1)
    assert at.state.assign == {"c00": 0, "c01": 0, "c02": 0, "c03": 1}
    assert strategy.shown(at.state).notes["reseeded"] == 1
    assert at.state.models[1] == pytest.approx(at.state.stored["c03"])


def test_fesem_with_participants_only_seeds_an_empty_cluster_with_a_client_that_did_not_report() -> (
    None
):
    strategy = Fesem(n_clusters=2, mu=0.0, m_step="participants")
    state = strategy.init(setup(bowls((0, 0))))
    stored = {"a": flat(0, 0), "b": flat(1, 0), "c": flat(3, 0)}
    state = replace(
        state, models=(flat(0, 0), flat(500, 500)), stored=stored, assign=dict.fromkeys(stored, 0)
    )
    state = folded(strategy, state, Phase(), reports=[("a", Report({"model": flat(0, 0)}, 1))])
    assert state.assign == {"a": 0, "b": 0, "c": 1}
    assert [model.tolist() for model in state.models] == [[0, 0], [3, 0]]


def test_fesem_warns_when_nearly_all_agents_share_a_cluster() -> None:
    collapsed = run(Fesem(n_clusters=2, mu=0.0), bowls(*[(1, 1)] * 9, (50, 50)), rounds=1)
    assert (
        "9 of 10 agents share one of 2 groups"
        in collapsed.strategy.shown(collapsed.state).notes["warning"]
    )
    healthy = run(Fesem(), two_groups(), rounds=1)
    assert "warning" not in healthy.strategy.shown(healthy.state).notes


def test_fesem_starts_with_fewer_clients_than_clusters_and_fills_up_later() -> None:
    joins = dict.fromkeys(list(two_groups())[1:], 1)
    end = run(Fesem(n_clusters=2, mu=0.0), two_groups(), rounds=8, joins=joins)
    assert sorted(end.strategy.shown(end.state).notes["sizes"]) == [4, 4]


def test_fesem_never_copies_a_stored_model(tmp_path: Path) -> None:
    strategy = Fesem(n_clusters=1)
    mapped = np.memmap(tmp_path / "model", np.float32, "w+", shape=(2,))
    phase = Phase("warmup", ("a",), ends_round=False)
    state = folded(
        strategy,
        strategy.init(setup(bowls((1, 1)))),
        phase,
        reports=[("a", Report({"model": mapped}, 3))],
    )
    assert state.stored["a"] is mapped


def test_fesem_newcomer_starts_from_the_mean_of_the_centres() -> None:
    strategy = Fesem(mu=0.0)
    end = run(strategy, bowls((0, 0), (8, 8)), Training(batch=10, lr=1.0), rounds=1)
    (key,) = strategy.order(end.state, Phase("entry"), "stranger").models
    assert strategy.model(end.state, key) == pytest.approx([4.0, 4.0])
