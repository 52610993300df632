"""Robust(TKM) on clients whose answers are known by hand."""

from dataclasses import replace

import pytest

from covey.shared.strategies.base import Phase, Report, Training
from covey.shared.strategies.reading import folded
from covey.shared.strategies.robust import Robust
from tests.bowl import Bowl, flat
from tests.drive import Run
from tests.shared.planted import ONE, alternating, bowls, run, setup, softmaxes, two_groups


def test_robust_finds_the_groups_from_locally_trained_models() -> None:
    locals_ = two_groups()
    end = run(Robust(), locals_, rounds=12)
    assert end.state.assign == alternating(locals_)
    assert end.state.models[0] == pytest.approx([5, 5.3], rel=2e-3)
    assert end.state.models[1] == pytest.approx([-5, -4.6], rel=2e-3)


def test_robust_is_not_moved_by_a_hostile_client_and_a_plain_mean_is() -> None:
    locals_ = bowls(*([(1.0, 0.0)] * 4), (1e6, -1e6))
    whole = Training(epochs=1, batch=100, lr=1.0)
    robust = Robust(n_clusters=1, beta=0.2, round_beta=0.2)
    assert run(robust, locals_, whole, rounds=2).state.models[0] == pytest.approx(
        [1.0, 0.0], abs=1e-3
    )
    plain = Robust(n_clusters=1, beta=0.0, round_beta=0.0)
    assert run(plain, locals_, whole, rounds=2).state.models[0][0] > 1e5


def test_robust_starts_a_cluster_at_its_centre() -> None:
    strategy = Robust(n_clusters=1, beta=0.2)
    start = strategy.init(run(strategy, bowls((0, 0)), rounds=1).setup)
    reports = [(f"c{i}", Report({"model": flat(v, 0)}, 10)) for i, v in enumerate([0, 1, 2, 3, 7])]
    assert strategy.form_clusters(start, reports).models[0][0] == pytest.approx(2.0)


@pytest.mark.parametrize(("beta", "centre"), [(0.0, 2.6), (0.2, 2.0)])
def test_robust_stage_2_drops_its_own_share_and_not_that_of_a_round(
    beta: float, centre: float
) -> None:
    strategy = Robust(n_clusters=1, beta=beta, round_beta=0.4)
    start = strategy.init(run(strategy, bowls((0, 0)), rounds=1).setup)
    reports = [(f"c{i}", Report({"model": flat(0, v)}, 10)) for i, v in enumerate([0, 1, 2, 3, 7])]
    assert strategy.form_clusters(start, reports).centres[0] == pytest.approx([0, centre])


def test_robust_takes_the_run_with_the_least_trimmed_cost() -> None:
    points = [0, 1, 2, 40, 41, 42, 100, 101, 102, 103]
    reports = [(f"c{i}", Report({"model": flat(v, 0)}, 10)) for i, v in enumerate(points)]
    costs = []
    for restarts in (1, 20):
        strategy = Robust(n_clusters=3, beta=0.0, restarts=restarts)
        setups = [replace(setup(bowls((0, 0))), seed=seed) for seed in range(20)]
        costs.append(
            [strategy.form_clusters(strategy.init(one), reports).inertia for one in setups]
        )
    assert set(costs[1]) == {min(costs[0])}
    assert max(costs[0]) > min(costs[0])


def test_robust_trims_a_round_only_where_the_share_makes_a_whole_client() -> None:
    strategy = Robust(n_clusters=1, round_beta=0.2)
    state = replace(
        strategy.init(run(strategy, bowls((0, 0)), rounds=1).setup), models=(flat(0, 0),)
    )
    state = replace(state, assign={f"c{i}": 0 for i in range(5)})
    reports = [
        (f"c{i}", Report({"model": flat(v, -v)}, 10 + i)) for i, v in enumerate([0, 1, 2, 6, 100])
    ]
    assert folded(strategy, state, Phase(), reports=reports).models[0] == pytest.approx(
        [3, -3]
    )  # 0 and 100 are dropped, no weights
    assert folded(strategy, state, Phase(), reports=reports[:4]).models[0] == pytest.approx(
        [9 / 4, -9 / 4]
    )  # 0.2 * 4 is no client
    assert folded(strategy, state, Phase(), reports=[]).models[0].tolist() == [0, 0]


def test_robust_stage_1_takes_epochs_of_its_own() -> None:
    local = Bowl(flat(8, 0), training=ONE)
    at = Run(Robust(n_clusters=1, first_epochs=3), setup({"a": local}), {"a": local})
    at.phase(0)
    assert at.state.models[0].tolist() == [7, 0]


def test_robust_sends_a_newcomer_through_stage_1_to_the_nearest_centre() -> None:
    locals_ = softmaxes(6)
    end = run(
        Robust(beta=0.0), locals_, Training(batch=8, lr=0.3), rounds=4, joins={"c4": 1, "c5": 2}
    )
    assert end.state.assign == alternating(locals_)
    entries = [(reporters, phase.name) for phase, reporters in end.phases if phase.name == "entry"]
    assert entries == [(("c4",), "entry"), (("c5",), "entry")]
