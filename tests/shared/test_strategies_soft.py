"""Soft-clustered and matched methods on clients whose answers are known by hand."""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from pydantic import ValidationError

from shared.errors import DataError, UserError
from shared.matching import permute
from shared.strategies.fedavg import FedAvg
from shared.strategies.fedem import FedEm
from shared.strategies.fedsoft import FedSoft, FedSoftState
from shared.strategies.fesem import Fesem
from shared.strategies.fesem_ma import FesemMa
from shared.strategies.fuzzy import Fuzzy
from shared.strategy import Contrast, Descent, Job, Phase, Report, Setup, Strategy, Training, View
from shared.vectors import Layout, Tensor, Vector
from tests.bowl import Bowl, Softmax, bowl_layout, flat, softmax_client
from tests.drive import Run

ONE = Training(epochs=1, batch=10, lr=0.5)  # a bowl of 10 samples: one step, half of the way
TWO = Training(epochs=2, batch=8, lr=0.1, momentum=0.5)


def two_groups(each: int = 4) -> dict[str, Bowl]:
    """Members alternate: c00, c02, ... around +5, the others around -5."""
    return {f"c{i:02d}": Bowl(flat((-1) ** i * 5.0, (-1) ** i * 5.0)) for i in range(2 * each)}


def softmaxes() -> dict[str, Softmax]:
    owned = [(0, 1), (2, 3), (0, 1), (2, 3), (0, 1), (2, 3)]
    return {f"c{i}": softmax_client(labels, seed=i, n=12 + 4 * i) for i, labels in enumerate(owned)}


def setup(strategy: Strategy[Any], locals_: Any, training: Training, *starts: Vector, share: float = 1.0) -> Setup:
    first = next(iter(locals_.values()))
    layout = first.layout if isinstance(first, Softmax) else bowl_layout(len(first.minimum))
    draw = np.random.default_rng(1)
    starts = starts or tuple(draw.normal(0, 0.5, layout.size).astype(np.float32) for _ in range(strategy.starts))
    return Setup(starts, layout, 7, 10, share, training)


def run(strategy: Strategy[Any], locals_: Any, training: Training = ONE, *starts: Vector, **more: Any) -> Run:
    rounds, share = more.pop("rounds", 3), more.pop("participation", 1.0)
    return Run(strategy, setup(strategy, locals_, training, *starts, share=share), locals_, **more).rounds(rounds)


def job(*models: Vector, phase: str = "train", training: Training = ONE, **numbers: Any) -> Job:
    return Job(phase, 0, "c", 0, models, numbers, None, bowl_layout(len(models[0])), training)


def close(a: Vector, b: npt.NDArray[Any]) -> bool:
    return bool(np.allclose(a, b, rtol=1e-5, atol=1e-6))


# -- FedSoft ---------------------------------------------------------------------------------------


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
    strategy, local = FedSoft.model_validate({"name": "fedsoft", "lambda": 0.2}), Bowl(flat(8, 0), training=ONE)
    centres, importance, own = (flat(2, 2), flat(-4, 6)), (0.9, 0.6), flat(1, -1)
    state = FedSoftState(flat(0, 0), centres, 7, 1.0, {"c": importance}, {"c": 10}, trained=("c",))
    order = strategy.order(state, Phase(), "c")
    assert order.models == ("@c",)  # one vector, whatever K
    report, memory = strategy.work(job(strategy.model(state, "@c"), **order.numbers), local, {"held": own})
    gradient = own - local.minimum + 0.2 * sum(u * (own - c) for u, c in zip(importance, centres, strict=True))
    assert close(report.vectors["model"], own - 0.5 * gradient)
    assert memory["held"] is report.vectors["model"]


def test_fedsoft_separates_two_groups() -> None:
    end = run(FedSoft(pull=0.1), two_groups(), ONE, flat(1, 1), flat(-1, -1), rounds=8)
    assert np.all(np.abs(end.state.models[0] - 5) < 0.1)
    assert np.all(np.abs(end.state.models[1] + 5) < 0.1)
    assert end.strategy.assignment(end.state) == {client: i % 2 for i, client in enumerate(end.locals)}
    assert end.strategy.memberships(end.state)["c00"] == pytest.approx((1, 0), abs=1e-3)


def test_fedsoft_estimates_every_so_many_rounds_and_sends_one_vector_in_the_others() -> None:
    end = run(FedSoft(estimate_every=3), two_groups(2), rounds=5)
    names = [phase.name for phase, _ in end.phases]
    assert names == ["estimate", "train", "train", "train", "estimate", "train", "train"]
    orders = [end.strategy.order(end.state, Phase(name), "c00") for name in ("estimate", "train")]
    assert [order.models for order in orders] == [("0", "1"), ("@c00",)]


def skewed(participation: float = 0.5, clients: int = 6) -> FedSoftState:
    importance: dict[str, tuple[float, ...]] = {f"c{i}": (0.1 + 0.15 * i, 0.9 - 0.15 * i) for i in range(clients)}
    samples = {client: 10 + 5 * i for i, client in enumerate(importance)}
    return FedSoftState(flat(0, 0), (flat(1, 1), flat(2, 2)), 7, participation, importance, samples, estimated=0)


def view(state: FedSoftState, attempt: int = 0) -> View:
    return View(state.round, 10, attempt, tuple(state.importance))


def test_fedsoft_draws_in_proportion_to_importance_times_samples() -> None:
    strategy, state = FedSoft(n_clusters=2, selected=1), skewed()
    drawn = Counter(
        strategy._selection(replace(state, seed=seed), 0, tuple(state.importance))[0] for seed in range(3000)
    )
    weights = {client: state.importance[client][0] * state.samples[client] for client in state.importance}
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
            everybody = strategy._selection(state, k, tuple(state.importance))
            assert strategy._selection(state, k, cohort) == everybody


def test_fedsoft_draws_others_after_a_void_attempt_and_all_again_in_the_end() -> None:
    strategy, state = FedSoft(n_clusters=2, selected=1), skewed()
    cohorts = [set(strategy.plan(state, view(state, attempt)).cohort) for attempt in range(8)]
    assert not cohorts[0] & cohorts[1]
    assert all(cohorts)
    for k in range(2):  # whichever draw it was, its cohort tells who stands for which cluster
        left = tuple(sorted(set(state.importance) - cohorts[0]))
        assert strategy._selection(state, k, tuple(sorted(cohorts[1]))) == strategy._selection(state, k, left)


def test_fedsoft_centres_are_plain_means_of_their_own_selection_among_the_reporters() -> None:
    strategy, state = FedSoft(n_clusters=2, selected=2), skewed()
    cohort = strategy.plan(state, view(state)).cohort
    assert isinstance(cohort, tuple)
    chosen = [strategy._selection(state, k, cohort) for k in range(2)]
    missing = chosen[0][0]
    models = {client: flat(i, i * i) for i, client in enumerate(cohort)}
    reports = [(client, Report({"model": models[client]}, 10)) for client in cohort if client != missing]
    after = strategy.fold(state, Phase(cohort=cohort), reports)
    for k in range(2):
        members = [models[client] for client in chosen[k] if client != missing]
        assert close(after.models[k], np.mean(members, axis=0))
    kept = strategy.fold(state, Phase(cohort=cohort), [one for one in reports if one[0] not in chosen[0]])
    assert kept.models[0] is state.models[0]


def test_fedsoft_splits_the_runs_share_of_agents_among_the_clusters() -> None:
    strategy, state = FedSoft(n_clusters=2), skewed(participation=0.4, clients=10)
    assert [len(strategy._selection(state, k, tuple(state.importance))) for k in range(2)] == [2, 2]
    assert strategy.plan(skewed(participation=1.0), view(skewed())).cohort == "all"


def test_fedsoft_newcomers_are_estimated_and_start_from_the_clusters() -> None:
    locals_ = two_groups(3)
    end = run(FedSoft(pull=0.0), locals_, ONE, flat(1, 1), flat(-1, -1), rounds=3, joins={"c04": 2})
    assert end.state.late == ("c04",)
    before = run(FedSoft(pull=0.0), locals_, ONE, flat(1, 1), flat(-1, -1), rounds=2, joins={"c04": 2}).state.models
    start = (before[0] + np.float32(1e-4) * before[1]) / np.float32(1 + 1e-4)
    assert close(end.memory["c04"]["held"], (start + flat(5, 5)) / 2)


def test_fedsoft_keeps_the_last_importance_of_who_misses_an_estimation() -> None:
    def drop(phase: str, round_: int, client: str) -> bool:
        return phase == "estimate" and client == "c00" and round_ > 0

    end = run(FedSoft(estimate_every=1), two_groups(2), ONE, flat(1, 1), flat(-1, -1), drop=drop)
    assert end.state.importance["c00"] == (1.0, 1e-4)


def test_fedsoft_says_when_a_trained_clients_model_is_gone() -> None:
    end = run(FedSoft(), two_groups(1))
    end.memory.clear()
    with pytest.raises(DataError, match="agent c00 has trained in this run but its model is gone"):
        end.personal("c00")


# -- FedEM -----------------------------------------------------------------------------------------


def test_fedem_shares_are_weights_times_likelihoods() -> None:
    client = softmax_client((0, 1, 2, 3), seed=1, n=30)
    draw = np.random.default_rng(0)
    models = [draw.normal(size=client.layout.size).astype(np.float32) for _ in range(2)]
    pi = np.array([0.7, 0.3])
    _, memory = FedEm(n_clusters=2).work(job(*models), replace(client, training=ONE), {"pi": pi})
    likely = pi * np.exp(-np.stack([client.losses(model).astype(np.float64) for model in models], axis=1))
    assert memory["pi"] == pytest.approx((likely / likely.sum(axis=1, keepdims=True)).mean(axis=0))


def test_fedem_trains_each_component_on_its_share_of_every_sample() -> None:
    local = Bowl(flat(1, 1), training=ONE)
    models = flat(1, 0), flat(0, 0)
    losses = np.array([0.5, 1.0])
    share = np.exp(-losses) / np.exp(-losses).sum()
    report, memory = FedEm(n_clusters=2).work(job(*models), local, {})
    for k, model in enumerate(models):  # divided by the batch size, not by the sum of shares
        assert close(report.vectors[f"component-{k}"], model + 0.5 * share[k] * (flat(1, 1) - model))
    assert report.loss == pytest.approx(float(share @ losses))
    assert memory["held"] is report.vectors["component-0"]
    assert "pi" not in report.numbers


def test_fedem_revives_a_component_whose_weight_was_zero() -> None:
    _, memory = FedEm(n_clusters=2).work(job(flat(90, 0), flat(0, 0)), Bowl(flat(0, 0)), {"pi": np.array([1.0, 0.0])})
    assert memory["pi"] == pytest.approx([0, 1], abs=1e-6)


def test_fedem_components_are_means_by_samples() -> None:
    strategy = FedEm(n_clusters=2)
    state = strategy.init(setup(strategy, two_groups(), ONE))
    reports = [
        (c, Report({"component-0": flat(i, 0), "component-1": flat(0, i)}, n))
        for c, i, n in (("a", 1, 10), ("b", 5, 30))
    ]
    assert [one.tolist() for one in strategy.fold(state, Phase(), reports).components] == [[4, 0], [0, 4]]


def test_fedem_damped_lets_absent_clients_hold_the_old_components() -> None:
    strategy = FedEm(n_clusters=1, damped=True)
    state = strategy.init(setup(strategy, two_groups(), ONE, flat(8, 8)))
    assert strategy.plan(state, View(0, 10, 0, ("a", "b"))).name == "count"
    state = strategy.fold(state, Phase("count"), [("a", Report({}, 10)), ("b", Report({}, 30))])
    assert strategy.plan(state, View(0, 10, 0, ("a", "b"))).name == "train"
    after = strategy.fold(state, Phase(), [("a", Report({"component-0": flat(0, 4)}, 10))])
    assert after.components[0].tolist() == [6, 7]


def test_fedem_keeps_weights_on_the_client_until_its_report_is_accepted() -> None:
    end = run(FedEm(n_clusters=2), two_groups(2), drop=lambda phase, round_, client: client == "c00")
    assert "c00" not in end.memory
    assert set(end.memory["c01"]) == {"pi", "held"}
    assert end.strategy.memberships(end.state) == {}


def test_fedem_tells_weights_only_where_the_scenario_asks_for_them() -> None:
    end = run(FedEm(n_clusters=2, share_memberships=True), two_groups(), ONE, flat(1, 1), flat(-1, -1), rounds=20)
    memberships = end.strategy.memberships(end.state)
    assert memberships["c00"] == pytest.approx((1, 0), abs=1e-3)
    assert memberships["c01"] == pytest.approx((0, 1), abs=1e-3)
    assert np.all(np.abs(end.state.components[0] - 5) < 0.1)


def test_fedem_newcomers_fit_weights_and_train_nothing() -> None:
    strategy, local = FedEm(n_clusters=2, entry_steps=2), Bowl(flat(1, 1))
    ((first, _), (second, _)) = strategy.personal(job(flat(1, 0), flat(0, 0)), local, {})
    likely = np.exp([-2 * 0.5, -2 * 1.0])  # two E-steps from equal weights, every sample alike
    assert (first, second) == pytest.approx(tuple(likely / likely.sum()))
    ((kept, _), _) = strategy.personal(job(flat(1, 0), flat(0, 0)), local, {"pi": np.array([0.2, 0.8])})
    assert kept == 0.2


# -- Fuzzy-CFL -------------------------------------------------------------------------------------


def counted(model: Vector, *counts: float) -> Report:
    return Report({"model": model}, int(sum(counts)), {"counts": list(counts)})


def test_fuzzy_mixes_clients_into_clusters_and_clusters_into_clients_by_counts() -> None:
    strategy = Fuzzy(n_clusters=2)
    state = strategy.init(setup(strategy, two_groups(), ONE, flat(0, 0)))
    state = strategy.fold(state, Phase(), [("a", counted(flat(8, 0), 30, 10)), ("b", counted(flat(0, 8), 10, 30))])
    assert [model.tolist() for model in state.models] == [[6, 2], [2, 6]]  # equation 3
    assert strategy.model(state, "@a").tolist() == [5, 3]  # equation 4: 3/4 and 1/4
    assert strategy.memberships(state) == {"a": (0.75, 0.25), "b": (0.25, 0.75)}
    assert strategy.order(state, Phase(), "a").models == ("@a",)
    later = strategy.fold(state, Phase(), [("b", counted(flat(9, 9), 0, 40))])
    assert later.models[0] is state.models[0]  # nobody has a sample in it
    assert strategy.model(later, "@a").tolist() == [(3 * 6 + 9) / 4, (3 * 2 + 9) / 4]  # not a reporter, newest clusters


def test_fuzzy_ablation_with_the_loss_alone_aggregates_as_fedavg() -> None:
    locals_ = softmaxes()  # these have no head that a contrast could train
    fuzzy = run(Fuzzy(variant="fedavg+clu"), locals_, TWO)
    assert len(fuzzy.state.models) == 1
    assert close(fuzzy.state.models[0], run(FedAvg(), locals_, TWO, fuzzy.setup.starts[0]).state.model)
    assert len(fuzzy.strategy.memberships(fuzzy.state)["c0"]) == 2


def test_fuzzy_ablation_with_known_memberships_counts_by_them() -> None:
    known = {client: (0.9, 0.1) if i % 2 == 0 else (0.1, 0.9) for i, client in enumerate(two_groups())}
    end = run(Fuzzy(variant="fedavg+clusteredFL", known=known), two_groups(), ONE, flat(0, 0), rounds=1)
    assert end.state.counts["c00"] == (9.0, 1.0)
    assert close(end.state.models[0], 0.9 * flat(2.5, 2.5) - 0.1 * flat(2.5, 2.5))


@dataclass
class Recorder:
    """A client that notes with which contrast it was trained."""

    examples: int = 10
    seen: list[Contrast | None] = field(default_factory=list)

    def descend(self, start: Vector, *, contrast: Contrast | None = None) -> Descent:
        self.seen.append(contrast)
        return Descent(start, 1, 0.0)

    def memberships(self, model: Vector, clusters: int) -> Any:
        return np.array([4, 6])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"beta": 0.5, "temperature": 0.2, "kappa": 0.3, "contrast": "rows"}, Contrast(2, 0.5, 0.2, 0.3, "rows")),
        ({"variant": "fedavg+clu"}, Contrast(2)),
        ({"beta": 0.0}, None),
        ({"variant": "fedavg+clusteredFL", "known": {"c": [0.4, 0.6]}}, None),
    ],
)
def test_fuzzy_trains_with_the_contrast_of_its_variant(options: dict[str, Any], expected: Contrast | None) -> None:
    local: Any = Recorder()
    report, _ = Fuzzy(**options).work(job(flat(0, 0)), local, {})
    assert local.seen == [expected]
    assert report.numbers["counts"] == [4.0, 6.0]


def test_fuzzy_newcomers_count_with_the_mean_model_before_they_train() -> None:
    end = run(Fuzzy(), softmaxes(), TWO, joins={"c4": 2})
    entries = [(phase.cohort, who) for phase, who in end.phases if phase.name == "entry"]
    assert entries == [(("c4",), ("c4",))]
    state = run(Fuzzy(), softmaxes(), TWO, rounds=2, joins={"c4": 2}).state
    assert end.strategy.order(state, Phase("entry"), "c4").models == ("mean",)
    assert close(end.strategy.model(state, "mean"), (state.models[0] + state.models[1]) / 2)


def test_fuzzy_warns_when_all_clients_have_the_same_memberships() -> None:
    strategy = Fuzzy()
    state = strategy.init(setup(strategy, two_groups(), ONE, flat(0, 0)))
    same = [("a", counted(flat(1, 1), 5, 5)), ("b", counted(flat(2, 2), 10, 10))]
    assert "one and the same" in strategy.notes(strategy.fold(state, Phase(), same))["warning"]
    other = [("a", counted(flat(1, 1), 5, 5)), ("b", counted(flat(2, 2), 15, 5))]
    assert "warning" not in strategy.notes(strategy.fold(state, Phase(), other))


@pytest.mark.parametrize(
    "options",
    [
        {"known": {"a": [0.5, 0.5]}},
        {"variant": "fedavg+clusteredFL"},
        {"variant": "fedavg+clusteredFL", "known": {"a": [0.5, 0.2]}},
        {"variant": "fedavg+clusteredFL", "known": {"a": [0.5, 0.2, 0.3]}},
        {"variant": "fedavg+clusteredFL", "known": {"a": [1.5, -0.5]}},
    ],
)
def test_fuzzy_refuses_known_memberships_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="known"):
        Fuzzy(**options)


# -- FeSEM-MA --------------------------------------------------------------------------------------

MLP = Layout(
    (
        Tensor("fc1.weight", (6, 4)),
        Tensor("fc1.bias", (6,)),
        Tensor("fc2.weight", (5, 6)),
        Tensor("fc2.bias", (5,)),
        Tensor("fc3.weight", (3, 5)),
        Tensor("fc3.bias", (3,)),
    ),
    6,
)


def mlp_models(count: int = 8) -> tuple[Vector, list[Vector]]:
    """A start, and two groups of models around it."""
    draw = np.random.default_rng(3)
    start, way = (draw.normal(size=MLP.size).astype(np.float32) for _ in range(2))
    return start, [
        (start + (-1) ** i * 0.2 * way + draw.normal(0, 0.02, MLP.size)).astype(np.float32) for i in range(count)
    ]


def centres(strategy: Strategy[Any], *, shuffled: bool, rounds: int = 2) -> tuple[Vector, ...]:
    start, models = mlp_models()
    draw = np.random.default_rng(4)
    if shuffled:
        models = [permute(model, [draw.permutation(6), draw.permutation(5)], MLP) for model in models]
    state = strategy.init(Setup((start,), MLP, 7, 3, 1.0, ONE))
    reports = [(f"c{i}", Report({"model": model}, 10)) for i, model in enumerate(models)]
    for name in ("warmup", *["train"] * rounds):
        state = strategy.fold(state, Phase(name), reports)
    return strategy.clusters(state)


def test_fesem_ma_centres_do_not_depend_on_the_order_of_the_clients_units() -> None:
    strategy = FesemMa(n_clusters=2)
    for plain, shuffled in zip(centres(strategy, shuffled=False), centres(strategy, shuffled=True), strict=True):
        assert np.array_equal(plain, shuffled)
    index_wise = Fesem(n_clusters=2)
    blurred = zip(centres(index_wise, shuffled=False), centres(index_wise, shuffled=True), strict=True)
    assert not any(np.allclose(plain, shuffled, atol=0.05) for plain, shuffled in blurred)


def test_fesem_ma_finds_the_groups_behind_shuffled_units() -> None:
    _, models = mlp_models()
    for centre, expected in zip(
        centres(FesemMa(n_clusters=2), shuffled=True), (models[::2], models[1::2]), strict=True
    ):
        assert np.allclose(centre, np.mean(expected, axis=0), atol=1e-5)


def test_fesem_ma_without_hidden_units_is_fesem() -> None:
    locals_ = softmaxes()
    matched = run(FesemMa(n_clusters=2, mu=0.3), locals_, TWO)
    plain = run(Fesem(n_clusters=2, mu=0.3), locals_, TWO, *matched.setup.starts)
    assert matched.state.assign == plain.state.assign
    for a, b in zip(matched.state.models, plain.state.models, strict=True):
        assert close(a, b)


def test_fesem_ma_takes_stored_models_of_those_who_are_absent() -> None:
    strategy = FesemMa(n_clusters=1, sweeps=0)
    start, models = mlp_models(4)
    state = strategy.init(Setup((start,), MLP, 7, 3, 1.0, ONE))
    reports = [(f"c{i}", Report({"model": model}, 10)) for i, model in enumerate(models)]
    state = strategy.fold(state, Phase("warmup"), reports)
    moved = models[0] + np.float32(0.01)
    state = strategy.fold(state, Phase(), [("c0", Report({"model": moved}, 10))])
    assert np.allclose(state.models[0], np.mean([moved, *models[1:]], axis=0), atol=1e-5)


def test_fesem_ma_refuses_a_model_that_it_cannot_match_when_the_run_starts() -> None:
    normed = Layout((Tensor("conv.weight", (4, 3, 3, 3)), Tensor("norm.weight", (4,))), 2)
    with pytest.raises(UserError, match="norm: its weight has shape"):
        FesemMa().init(Setup((np.zeros(normed.size, np.float32),), normed, 7, 3, 1.0, ONE))
