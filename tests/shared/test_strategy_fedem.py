"""FedEM on clients whose answers are known by hand."""

from dataclasses import replace

import numpy as np
import pytest

from covey.shared.errors import PublicError
from covey.shared.strategies.base import Phase, View
from covey.shared.strategies.client_half import Report
from covey.shared.strategies.fedem import FedEm
from covey.shared.strategies.reading import folded
from tests.bowl import Bowl, flat, softmax_client
from tests.shared.planted import ONE, close, job, run, setup, two_groups


def test_fedem_shares_are_weights_times_likelihoods() -> None:
    client = softmax_client((0, 1, 2, 3), seed=1, n=30)
    draw = np.random.default_rng(0)
    models = [draw.normal(size=client.layout.size).astype(np.float32) for _ in range(2)]
    pi = np.array([0.7, 0.3])
    _, client_state = FedEm(n_clusters=2).work(
        job(*models), replace(client, training=ONE), {"pi": pi}
    )
    likely = pi * np.exp(
        -np.stack([client.losses(model).astype(np.float64) for model in models], axis=1)
    )
    assert client_state["pi"] == pytest.approx(
        (likely / likely.sum(axis=1, keepdims=True)).mean(axis=0)
    )


def test_fedem_trains_each_component_on_its_share_of_every_sample() -> None:
    local = Bowl(flat(1, 1), training=ONE)
    models = flat(1, 0), flat(0, 0)
    losses = np.array([0.5, 1.0])
    share = np.exp(-losses) / np.exp(-losses).sum()
    report, client_state = FedEm(n_clusters=2).work(job(*models), local, {})
    for k, model in enumerate(models):  # divided by the batch size, not by the sum of shares
        assert close(
            report.vectors[f"component-{k}"], model + 0.5 * share[k] * (flat(1, 1) - model)
        )
    assert report.loss == pytest.approx(float(share @ losses))
    assert client_state["held"] is report.vectors["component-0"]
    assert "pi" not in report.numbers


def test_fedem_revives_a_component_whose_weight_was_zero() -> None:
    _, client_state = FedEm(n_clusters=2).work(
        job(flat(90, 0), flat(0, 0)), Bowl(flat(0, 0)), {"pi": np.array([1.0, 0.0])}
    )
    assert client_state["pi"] == pytest.approx([0, 1], abs=1e-6)


def test_fedem_components_are_means_by_samples() -> None:
    strategy = FedEm(n_clusters=2)
    state = strategy.init(setup(two_groups(spread=0), count=strategy.starts))
    reports = [
        (c, Report({"component-0": flat(i, 0), "component-1": flat(0, i)}, n))
        for c, i, n in (("a", 1, 10), ("b", 5, 30))
    ]
    assert [
        one.tolist() for one in folded(strategy, state, Phase(), reports=reports).components
    ] == [[4, 0], [0, 4]]


def test_fedem_damped_lets_absent_clients_hold_the_old_components() -> None:
    strategy = FedEm(n_clusters=1, damped=True)
    state = strategy.init(setup(two_groups(spread=0), ONE, flat(8, 8)))
    assert strategy.plan(state, View(0, 10, 0, ("a", "b"))).name == "count"
    state = folded(
        strategy, state, Phase("count"), reports=[("a", Report({}, 10)), ("b", Report({}, 30))]
    )
    assert strategy.plan(state, View(0, 10, 0, ("a", "b"))).name == "train"
    after = folded(
        strategy, state, Phase(), reports=[("a", Report({"component-0": flat(0, 4)}, 10))]
    )
    assert after.components[0].tolist() == [6, 7]


def test_fedem_keeps_weights_on_the_client_until_its_report_is_accepted() -> None:
    end = run(
        FedEm(n_clusters=2),
        two_groups(2, spread=0),
        drop=lambda phase, round_, client: client == "c00",
    )
    assert "c00" not in end.client_states
    assert set(end.client_states["c01"]) == {"pi", "held"}
    assert end.strategy.shown(end.state).memberships == {}


def test_fedem_reports_weights_only_if_the_scenario_asks_for_them() -> None:
    end = run(
        FedEm(n_clusters=2, share_memberships=True),
        two_groups(spread=0),
        ONE,
        flat(1, 1),
        flat(-1, -1),
        rounds=20,
    )
    memberships = end.strategy.shown(end.state).memberships
    assert memberships["c00"] == pytest.approx((1, 0), abs=1e-3)
    assert memberships["c01"] == pytest.approx((0, 1), abs=1e-3)
    assert np.all(np.abs(end.state.components[0] - 5) < 0.1)


def test_fedem_newcomers_fit_weights_and_train_nothing() -> None:
    strategy, local = FedEm(n_clusters=2), Bowl(flat(1, 1))
    ((first, _), (second, _)) = strategy.personal(job(flat(1, 0), flat(0, 0)), local, {})
    likely = np.exp([-0.5, -1.0])  # one E-step from equal weights, every sample alike
    assert (first, second) == pytest.approx(tuple(likely / likely.sum()))
    ((kept, _), _) = strategy.personal(
        job(flat(1, 0), flat(0, 0)), local, {"pi": np.array([0.2, 0.8])}
    )
    assert kept == 0.2


@pytest.mark.parametrize("half", ["work", "personal"])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_fedem_refuses_an_order_with_other_models_than_it_has_weights(
    half: str, count: int
) -> None:
    strategy, weights = FedEm(n_clusters=2), {"pi": np.array([0.2, 0.8])}
    order = replace(job(flat(0, 0)), models=tuple(flat(place, 0) for place in range(count)))
    with pytest.raises(PublicError, match=f"the order has {count} model"):
        getattr(strategy, half)(order, Bowl(flat(1, 1), training=ONE), weights)
