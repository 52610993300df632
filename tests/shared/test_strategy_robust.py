"""Robust(TKM) on clients whose answers are known by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from covey.shared.errors import UserError
from covey.shared.numerics.clustering import RUNS
from covey.shared.numerics.vectors import Layout, Tensor
from covey.shared.strategies import robust
from covey.shared.strategies.base import Phase, Setup, Training
from covey.shared.strategies.client_half import Report
from covey.shared.strategies.fedavg import FedAvg
from covey.shared.strategies.reading import folded
from covey.shared.strategies.robust import Robust, logistic
from tests.bowl import Bowl, flat, softmax_client
from tests.drive import Run
from tests.shared.planted import ONE, alternating, bowls, run, setup, softmaxes, two_groups


@pytest.mark.parametrize("trim", ["mean", "ball", "median"])
@pytest.mark.parametrize("features", ["full", "last_kernel", "last_layer"])
def test_robust_finds_the_groups_from_locally_trained_models(features: Any, trim: Any) -> None:
    locals_ = two_groups()
    end = run(Robust(features=features, trim=trim), locals_, rounds=12)
    assert end.state.assign == alternating(locals_)
    assert end.state.models[0] == pytest.approx([5, 5.3], rel=2e-3)
    assert end.state.models[1] == pytest.approx([-5, -4.6], rel=2e-3)


@pytest.mark.parametrize("trim", ["mean", "ball", "median"])
def test_robust_is_not_moved_by_a_hostile_client_and_a_plain_mean_is(trim: Any) -> None:
    locals_ = bowls(*([(1.0, 0.0)] * 4), (1e6, -1e6))
    whole = Training(epochs=1, batch=100, lr=1.0)
    trimmed = Robust(n_clusters=1, trim=trim, beta=0.2)
    assert run(trimmed, locals_, whole, rounds=2).state.models[0] == pytest.approx(
        [1.0, 0.0], abs=1e-3
    )
    assert run(FedAvg(), locals_, whole, rounds=2).state.model[0] > 1e5


@pytest.mark.parametrize(("features", "expected"), [("full", 2.0), ("last_kernel", 2.6)])
def test_robust_starts_a_cluster_at_its_centre_or_where_parts_were_clustered_at_the_plain_mean(
    features: Any, expected: float
) -> None:
    strategy = Robust(n_clusters=1, features=features, beta=0.2)
    start = strategy.init(run(strategy, bowls((0, 0)), rounds=1).setup)
    reports = [(f"c{i}", Report({"model": flat(v, 0)}, 10)) for i, v in enumerate([0, 1, 2, 3, 7])]
    assert strategy.form_clusters(start, reports).models[0][0] == pytest.approx(expected)


@pytest.mark.parametrize(("beta", "centre"), [(0.0, 2.6), (0.2, 2.0)])
def test_robust_stage_2_drops_its_own_share_and_not_that_of_a_round(
    beta: float, centre: float
) -> None:
    strategy = Robust(n_clusters=1, features="last_kernel", beta=beta)
    start = strategy.init(run(strategy, bowls((0, 0)), rounds=1).setup)
    reports = [(f"c{i}", Report({"model": flat(0, v)}, 10)) for i, v in enumerate([0, 1, 2, 3, 7])]
    assert strategy.form_clusters(start, reports).centres[0] == pytest.approx([centre])


def test_robust_buffers_have_no_say_in_who_is_far() -> None:
    layout = Layout((Tensor("out.weight", (1,)), Tensor("norm.mean", (1,))), 1)
    strategy = Robust(n_clusters=1, trim="ball", beta=0.34)  # one of three
    start = strategy.init(Setup((flat(0, 0),), layout, 7, 10, 1.0, ONE))
    models = {"a": flat(0, 600), "b": flat(1, 0), "c": flat(9, 0)}
    state = strategy.form_clusters(
        start, [(name, Report({"model": model}, 10)) for name, model in models.items()]
    )
    assert state.models[0] == pytest.approx([0.5, 300])


def test_robust_takes_the_run_with_the_least_trimmed_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [0, 1, 2, 40, 41, 42, 100, 101, 102, 103]
    reports = [(f"c{i}", Report({"model": flat(v, 0)}, 10)) for i, v in enumerate(points)]
    costs = []
    strategy = Robust(n_clusters=3, beta=0.0)
    for runs in (1, RUNS):
        monkeypatch.setattr(robust, "RUNS", runs)
        setups = [replace(setup(bowls((0, 0))), seed=seed) for seed in range(20)]
        costs.append(
            [strategy.form_clusters(strategy.init(one), reports).inertia for one in setups]
        )
    assert set(costs[1]) == {min(costs[0])}
    assert max(costs[0]) > min(costs[0])


def test_robust_leaves_out_coefficients_of_another_length_than_most() -> None:
    strategy = Robust(n_clusters=2, features="logreg", beta=0.0)
    start = strategy.init(setup(bowls((0, 0))))
    lengths = {"a": 2, "b": 2, "c": 3}
    reports = [
        (c, Report({"model": flat(1, 1), "logreg": np.ones(n, np.float32)}, 10))
        for c, n in lengths.items()
    ]
    assert set(strategy.form_clusters(start, reports).assign) == {"a", "b"}


def test_robust_trims_a_round_only_where_the_share_makes_a_whole_client() -> None:
    strategy = Robust(n_clusters=1)
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


def test_robust_with_gradients_takes_one_step_against_their_trimmed_mean() -> None:
    locals_ = bowls((4.0, 0.0), (2.0, 0.0))
    end = run(Robust(n_clusters=1, averaging="gradient", first_epochs=1), locals_, rounds=1)
    # stage 1: halves of the minima, mean (1.5, 0); mean gradient there 1.5 - 3, times 0.5
    assert end.state.models[0] == pytest.approx([1.5 + 0.75, 0.0])
    assert dict(end.phases[-1][0].sizes) == {"gradient": 2}


def test_robust_stage_1_takes_epochs_of_its_own() -> None:
    local = Bowl(flat(8, 0), training=ONE)
    at = Run(Robust(n_clusters=1, first_epochs=3), setup({"a": local}), {"a": local})
    at.phase(0)
    assert at.state.models[0].tolist() == [7, 0]


@pytest.mark.parametrize("features", ["full", "logreg"])
def test_robust_sends_a_newcomer_through_stage_1_to_the_nearest_centre(features: Any) -> None:
    locals_ = softmaxes(6)
    end = run(
        Robust(features=features, beta=0.0),
        locals_,
        Training(batch=8, lr=0.3),
        rounds=4,
        joins={"c4": 1, "c5": 2},
    )
    assert end.state.assign == alternating(locals_)
    entries = [(reporters, phase.name) for phase, reporters in end.phases if phase.name == "entry"]
    assert entries == [(("c4",), "entry"), (("c5",), "entry")]


def test_logistic_coefficients_of_absent_classes_are_zero_and_the_rest_predicts() -> None:
    local = softmax_client((1, 3), seed=0, n=60)
    w = logistic(local, np.zeros(local.layout.size, np.float32)).reshape(4, -1)
    assert not w[[0, 2]].any()
    guesses = (local.x @ w.T)[:, [1, 3]].argmax(axis=1)
    assert np.mean(np.array([1, 3])[guesses] == local.y) > 0.85
    scaled = logistic(
        replace(local, x=local.x * 255), np.zeros(local.layout.size, np.float32)
    ).reshape(4, -1)
    assert scaled * 255 == pytest.approx(
        w, rel=1e-3, abs=1e-4
    )  # the scale of the inputs is no matter


def test_logistic_coefficients_are_the_minimum_also_where_inputs_are_nearly_alike() -> None:
    """It needs the acceleration: as many plain steps of the same length end where the slope is 0.005."""
    base = softmax_client((0, 1), seed=0, n=60, features=2)
    x = np.column_stack([base.x[:, 0], base.x[:, 0] + 0.2 * base.x[:, 1]])
    labels = np.random.default_rng(2).permutation(
        base.y
    )  # no line parts them, so there is a minimum
    local = replace(base, x=x, y=labels)
    w = logistic(local, np.zeros(local.layout.size, np.float32))
    slope = local.gradient(np.concatenate([w, flat(*[-50.0 * (k > 1) for k in range(4)])]))[
        : w.size
    ]
    assert np.abs(slope).max() < 1e-3


def test_logistic_regression_of_values_is_refused() -> None:
    with pytest.raises(UserError, match="logreg needs classes"):
        logistic(Bowl(flat(1, 1)), flat(0, 0))
