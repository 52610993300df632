"""FedSoft on clients whose answers are known by hand."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from covey.shared.errors import DataError
from covey.shared.strategies.base import Phase, View
from covey.shared.strategies.client_half import Report
from covey.shared.strategies.fedsoft import FedSoft, FedSoftState
from covey.shared.strategies.reading import folded
from tests.bowl import Bowl, flat, softmax_client
from tests.shared.planted import ONE, close, job, run, two_groups


def test_fedsoft_counts_how_many_samples_each_cluster_explains_best() -> None:
    client = softmax_client((0, 1, 2, 3), seed=1, n=40)
    draw = np.random.default_rng(0)
    models = [draw.normal(size=client.layout.size).astype(np.float32) for _ in range(3)]
    report, _ = FedSoft(n_clusters=3).work(job(*models, phase="estimate"), client, {})
    best = np.argmin([client.losses(model) for model in models], axis=0)
    assert report.numbers["importance"] == [np.count_nonzero(best == k) / 40 for k in range(3)]
    assert not report.vectors


def test_fedsoft_gives_a_cluster_that_explains_nothing_a_small_importance() -> None:
    report, _ = FedSoft().work(job(flat(1, 1), flat(4, 4), phase="estimate"), Bowl(flat(5, 5)), {})
    assert report.numbers["importance"] == [1e-4, 1.0]


def test_fedsoft_pulls_towards_every_cluster_by_its_importance() -> None:
    strategy, local = (
        FedSoft.model_validate({"name": "fedsoft", "lambda": 0.2}),
        Bowl(flat(8, 0), training=ONE),
    )
    centres, importance, own = (flat(2, 2), flat(-4, 6)), (0.9, 0.6), flat(1, -1)
    state = FedSoftState(flat(0, 0), centres, 7, 1.0, {"c": importance}, {"c": 10}, trained=("c",))
    order = strategy.order(state, Phase(), "c")
    assert order.models == ("@c",)  # one vector, whatever K
    report, client_state = strategy.work(
        job(strategy.model(state, "@c"), **order.numbers), local, {"held": own}
    )
    gradient = (
        own
        - local.minimum
        + 0.2 * sum(u * (own - c) for u, c in zip(importance, centres, strict=True))
    )
    assert close(report.vectors["model"], own - 0.5 * gradient)
    assert client_state["held"] is report.vectors["model"]


def test_fedsoft_keeps_the_optimisers_velocity_between_rounds() -> None:
    """A bowl at 8, half of the way in each step: 4, then 2 more, and 0.375 of the first step's 4."""
    strategy = FedSoft(pull=0.0)
    local = Bowl(flat(8), training=ONE.model_copy(update={"momentum": 0.375}))
    asked = job(flat(0), flat(0), pull=0.0)
    first, client_state = strategy.work(asked, local, {})
    report, _ = strategy.work(asked, local, client_state)
    assert first.vectors["model"] == pytest.approx([4])
    assert report.vectors["model"] == pytest.approx([4 + 1.5 + 2])


def test_fedsoft_separates_two_groups() -> None:
    end = run(FedSoft(pull=0.1), two_groups(spread=0), ONE, flat(1, 1), flat(-1, -1), rounds=8)
    assert np.all(np.abs(end.state.models[0] - 5) < 0.1)
    assert np.all(np.abs(end.state.models[1] + 5) < 0.1)
    assert end.strategy.assignment(end.state) == {
        client: i % 2 for i, client in enumerate(end.locals)
    }
    assert end.strategy.shown(end.state).memberships["c00"] == pytest.approx((1, 0), abs=1e-3)


def test_fedsoft_estimates_in_every_second_round_and_sends_one_vector_in_other_rounds() -> None:
    end = run(FedSoft(), two_groups(2, spread=0), rounds=3)
    names = [phase.name for phase, _ in end.phases]
    assert names == ["estimate", "train", "train", "estimate", "train"]
    orders = [end.strategy.order(end.state, Phase(name), "c00") for name in ("estimate", "train")]
    assert [order.models for order in orders] == [("0", "1"), ("@c00",)]


def skewed(participation: float = 0.5, clients: int = 6) -> FedSoftState:
    importance: dict[str, tuple[float, ...]] = {
        f"c{i}": (0.1 + 0.15 * i, 0.9 - 0.15 * i) for i in range(clients)
    }
    samples = {client: 10 + 5 * i for i, client in enumerate(importance)}
    return FedSoftState(
        flat(0, 0), (flat(1, 1), flat(2, 2)), 7, participation, importance, samples, estimated=0
    )


def view(state: FedSoftState, attempt: int = 0) -> View:
    return View(state.round, 10, attempt, tuple(state.importance))


def test_fedsoft_draws_in_proportion_to_importance_times_samples() -> None:
    strategy, state = FedSoft(n_clusters=2, selected=1), skewed()
    drawn = Counter(
        strategy.selection(replace(state, seed=seed), 0, tuple(state.importance))[0]
        for seed in range(3000)
    )
    weights = {
        client: state.importance[client][0] * state.samples[client] for client in state.importance
    }
    for client, weight in weights.items():
        assert drawn[client] / 3000 == pytest.approx(weight / sum(weights.values()), abs=0.03)


def test_fedsoft_finds_the_selection_again_from_the_cohort() -> None:
    strategy = FedSoft(n_clusters=2, selected=2)
    for seed in range(50):
        state = replace(skewed(), seed=seed)
        cohort = strategy.plan(state, view(state)).cohort
        assert isinstance(cohort, tuple)
        assert 2 <= len(cohort) <= 4
        for k in range(2):
            all_agents = strategy.selection(state, k, tuple(state.importance))
            assert strategy.selection(state, k, cohort) == all_agents


def test_fedsoft_draws_others_after_a_void_attempt_and_all_again_in_the_end() -> None:
    strategy, state = FedSoft(n_clusters=2, selected=1), skewed()
    cohorts = [set(strategy.plan(state, view(state, attempt)).cohort) for attempt in range(8)]
    assert not cohorts[0] & cohorts[1]
    assert all(cohorts)
    for k in range(2):  # whichever draw it was, its cohort shows the agents of each cluster
        left = tuple(sorted(set(state.importance) - cohorts[0]))
        assert strategy.selection(state, k, tuple(sorted(cohorts[1]))) == strategy.selection(
            state, k, left
        )


def test_fedsoft_centres_are_plain_means_of_their_own_selection_among_the_reporters() -> None:
    strategy, state = FedSoft(n_clusters=2, selected=2), skewed()
    cohort = strategy.plan(state, view(state)).cohort
    assert isinstance(cohort, tuple)
    chosen = [strategy.selection(state, k, cohort) for k in range(2)]
    missing = chosen[0][0]
    models = {client: flat(i, i * i) for i, client in enumerate(cohort)}
    reports = [
        (client, Report({"model": models[client]}, 10)) for client in cohort if client != missing
    ]
    after = folded(strategy, state, Phase(cohort=cohort), reports=reports)
    for k in range(2):
        members = [models[client] for client in chosen[k] if client != missing]
        assert close(after.models[k], np.mean(members, axis=0))
    kept = folded(
        strategy,
        state,
        Phase(cohort=cohort),
        reports=[one for one in reports if one[0] not in chosen[0]],
    )
    assert kept.models[0] is state.models[0]


def test_fedsoft_splits_the_runs_share_of_agents_among_the_clusters() -> None:
    strategy, state = FedSoft(n_clusters=2), skewed(participation=0.4, clients=10)
    assert [len(strategy.selection(state, k, tuple(state.importance))) for k in range(2)] == [2, 2]
    assert strategy.plan(skewed(participation=1.0), view(skewed())).cohort == "all"


def test_fedsoft_newcomers_are_estimated_and_start_from_the_clusters() -> None:
    locals_ = two_groups(3, spread=0)
    end = run(FedSoft(pull=0.0), locals_, ONE, flat(1, 1), flat(-1, -1), rounds=3, joins={"c04": 2})
    assert end.state.late == ("c04",)
    before = run(
        FedSoft(pull=0.0), locals_, ONE, flat(1, 1), flat(-1, -1), rounds=2, joins={"c04": 2}
    ).state.models
    start = (before[0] + np.float32(1e-4) * before[1]) / np.float32(1 + 1e-4)
    assert close(end.client_states["c04"]["held"], (start + flat(5, 5)) / 2)


def test_fedsoft_keeps_the_last_importance_of_who_misses_an_estimation() -> None:
    def drop(phase: str, round_: int, client: str) -> bool:
        return phase == "estimate" and client == "c00" and round_ > 0

    end = run(FedSoft(), two_groups(2, spread=0), ONE, flat(1, 1), flat(-1, -1), drop=drop)
    assert end.state.importance["c00"] == (1.0, 1e-4)


def test_fedsoft_reports_that_a_trained_clients_model_is_gone() -> None:
    end = run(FedSoft(), two_groups(1, spread=0))
    end.client_states.clear()
    with pytest.raises(
        DataError, match="agent c00 has trained in this run but its model is missing"
    ):
        end.personal("c00")


def test_fedsoft_treats_a_client_that_was_never_estimated_as_split_evenly() -> None:
    strategy = FedSoft.model_validate({"name": "fedsoft", "n_clusters": 4, "lambda": 0.2})
    centres = (flat(0, 0), flat(4, 0), flat(0, 8), flat(4, 8))
    state = FedSoftState(
        flat(9, 9), centres, 7, 1.0, {"known": (1.0, 0.1, 0.1, 0.1)}, {"known": 10}
    )
    assert close(strategy.model(state, "@stranger"), flat(2, 4))
    assert strategy.order(state, Phase(), "stranger").numbers["pull"] == pytest.approx(0.2)


def test_fedsoft_memberships_are_importances_that_sum_to_one() -> None:
    strategy = FedSoft()
    state = FedSoftState(flat(0, 0), (flat(0, 0),) * 2, 7, 1.0, {"a": (0.9, 0.6), "b": (1e-4, 1.0)})
    assert strategy.shown(state).memberships["a"] == pytest.approx((0.6, 0.4))
    assert sum(strategy.shown(state).memberships["b"]) == pytest.approx(1.0)


def test_fedsoft_asks_a_newcomer_that_does_not_answer_only_once_in_a_round() -> None:
    strategy, state = FedSoft(), replace(skewed(), round=1)
    seen = View(1, 10, 0, (*state.importance, "new"))
    estimate = strategy.plan(state, seen)
    assert (estimate.name, estimate.cohort) == ("estimate", ("new",))
    assert strategy.plan(folded(strategy, state, estimate, reports=[]), seen).name == "train"


def test_fedsoft_centres_of_drawn_clients_do_not_weigh_samples_again() -> None:
    """The draw has weighed them. Each centre has two members or more, with unequal numbers of samples."""
    strategy, state = FedSoft(n_clusters=2, selected=3), skewed()
    cohort = strategy.plan(state, view(state)).cohort
    assert isinstance(cohort, tuple)
    models = {client: flat(i, i * i) for i, client in enumerate(cohort)}
    reports = [(client, Report({"model": model}, 10)) for client, model in models.items()]
    after = folded(strategy, state, Phase(cohort=cohort), reports=reports)
    for k in range(2):
        drawn = strategy.selection(state, k, cohort)
        assert len({state.samples[client] for client in drawn}) == 3
        assert close(after.models[k], np.mean([models[client] for client in drawn], axis=0))


def test_fedsoft_counts_a_client_of_unknown_size_as_one_of_average_size() -> None:
    strategy = FedSoft(n_clusters=2)
    even: dict[str, tuple[float, ...]] = dict.fromkeys(("a", "b", "new"), (0.5, 0.5))
    known = replace(skewed(1.0), importance=even, samples={"a": 10, "b": 30})
    ways = {"a": flat(6, 0), "b": flat(0, 6), "new": flat(6, 6)}
    reports = [(client, Report({"model": way}, 500)) for client, way in ways.items()]
    after = folded(strategy, known, Phase(cohort=tuple(ways)), reports=reports)
    assert close(after.models[0], flat(3, 5))  # shares of 1/6, 3/6 and 2/6
