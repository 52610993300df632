"""FeSEM-MA on clients whose answers are known by hand."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from covey.shared.errors import UserError
from covey.shared.numerics.averages import Average
from covey.shared.numerics.fedma import align, permute, random_start
from covey.shared.numerics.vectors import Layout, Tensor, Vector, squared_distance
from covey.shared.seeds import generator
from covey.shared.strategies import fesem_ma
from covey.shared.strategies.base import Phase, Setup, Strategy
from covey.shared.strategies.client_half import Report
from covey.shared.strategies.fesem import Fesem
from covey.shared.strategies.fesem_ma import FesemMa, FesemMaState
from covey.shared.strategies.reading import folded
from tests.bowl import perceptron_client
from tests.drive import Run, fingerprint
from tests.shared.planted import ONE, TWO, close, run, setup, softmaxes

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
        (start + (-1) ** i * 0.2 * way + draw.normal(0, 0.02, MLP.size)).astype(np.float32)
        for i in range(count)
    ]


def centres(strategy: Strategy[Any], *, shuffled: bool, rounds: int = 2) -> tuple[Vector, ...]:
    start, models = mlp_models()
    draw = np.random.default_rng(4)
    if shuffled:
        models = [
            permute(model, [draw.permutation(6), draw.permutation(5)], MLP) for model in models
        ]
    state = strategy.init(Setup((start,), MLP, 7, 3, 1.0, ONE))
    reports = [(f"c{i}", Report({"model": model}, 10)) for i, model in enumerate(models)]
    for name in ("warmup", *["train"] * rounds):
        state = folded(strategy, state, Phase(name), reports=reports)
    return strategy.clusters(state)


def test_fesem_ma_centres_do_not_depend_on_the_order_of_the_clients_units() -> None:
    strategy = FesemMa(n_clusters=2)
    for plain, shuffled in zip(
        centres(strategy, shuffled=False), centres(strategy, shuffled=True), strict=True
    ):
        assert np.array_equal(plain, shuffled)
    index_wise = Fesem(n_clusters=2)
    blurred = zip(
        centres(index_wise, shuffled=False), centres(index_wise, shuffled=True), strict=True
    )
    assert not any(np.allclose(plain, shuffled, atol=0.05) for plain, shuffled in blurred)


def test_fesem_ma_finds_the_groups_behind_shuffled_units() -> None:
    _, models = mlp_models()
    for centre, expected in zip(
        centres(FesemMa(n_clusters=2), shuffled=True), (models[::2], models[1::2]), strict=True
    ):
        assert np.allclose(centre, np.mean(expected, axis=0), atol=1e-5)


def test_fesem_ma_without_hidden_units_is_fesem() -> None:
    locals_ = softmaxes(n=12)
    matched = run(FesemMa(n_clusters=2, mu=0.3), locals_, TWO)
    plain = run(Fesem(n_clusters=2, mu=0.3), locals_, TWO, *matched.setup.starts)
    assert matched.state.assign == plain.state.assign
    for a, b in zip(matched.state.models, plain.state.models, strict=True):
        assert close(a, b)


def after_warmup(warmup_start: Any) -> tuple[Run, list[Vector]]:
    """A run of small networks right after its warm-up, and the models that the clients sent."""
    locals_ = {f"c{i}": perceptron_client(((0, 1), (2, 3))[i % 2], seed=i) for i in range(6)}
    start = generator(1, "start").normal(0, 0.5, locals_["c0"].layout.size).astype(np.float32)
    at = Run(FesemMa(n_clusters=2, warmup_start=warmup_start), setup(locals_, TWO, start), locals_)
    at.phase(0)
    return at, list(at.state.stored.values())


def matched_share(models: Sequence[Vector], layout: Layout) -> float:
    """Squared distances to the first model once units are matched to it, as a share of those before."""
    first, *others = models
    before = [squared_distance(model, first) for model in others]
    after = [squared_distance(align(model, first, layout), first) for model in others]
    return sum(after) / sum(before)


def test_fesem_ma_agents_that_begin_at_their_own_weights_give_matching_something_to_match() -> None:
    common, models = after_warmup("common")
    assert matched_share(models, common.setup.layout) > 0.99
    own, models = after_warmup("own")
    assert matched_share(models, own.setup.layout) < 0.9
    assert own.strategy.order(own.strategy.init(own.setup), Phase("warmup"), "c0").models == ()


def test_fesem_ma_own_starts_repeat_on_the_seed_and_differ_between_agents() -> None:
    first, again = after_warmup("own")[1], after_warmup("own")[1]
    assert fingerprint(first) == fingerprint(again)
    assert len({model.tobytes() for model in first}) == len(first)


@pytest.mark.parametrize("matching", ["fixed", "fedma"])
def test_fesem_ma_with_own_starts_learns(matching: Any) -> None:
    """Six agents with two labels each: the mean loss falls below what guessing among all four classes costs."""
    locals_ = {f"c{i}": perceptron_client(((0, 1), (2, 3))[i % 2], seed=i) for i in range(6)}
    start = np.zeros(locals_["c0"].layout.size, np.float32)
    end = run(
        FesemMa(n_clusters=2, matching=matching, warmup_start="own"), locals_, TWO, start, rounds=6
    )
    losses = [
        local.loss(end.state.models[end.state.assign[client]]) for client, local in locals_.items()
    ]
    assert np.mean(losses) < np.log(4) / 2


def test_a_random_start_has_the_spread_that_layers_of_its_size_begin_with() -> None:
    tensors = MLP.named(random_start(MLP, generator(1, "x")))
    for name, inputs in (("fc1", 4), ("fc2", 6), ("fc3", 5)):
        values = np.concatenate([tensors[f"{name}.weight"].ravel(), tensors[f"{name}.bias"]])
        assert 0.7 / np.sqrt(inputs) < np.abs(values).max() <= 1 / np.sqrt(inputs)


def test_fesem_ma_takes_stored_models_of_those_who_are_absent() -> None:
    strategy = FesemMa(n_clusters=1)
    start, models = mlp_models(4)
    state = strategy.init(Setup((start,), MLP, 7, 3, 1.0, ONE))
    reports = [(f"c{i}", Report({"model": model}, 10)) for i, model in enumerate(models)]
    state = folded(strategy, state, Phase("warmup"), reports=reports)
    moved = models[0] + np.float32(0.01)
    state = folded(strategy, state, Phase(), reports=[("c0", Report({"model": moved}, 10))])
    assert np.allclose(state.models[0], np.mean([moved, *models[1:]], axis=0), atol=1e-5)


def test_fesem_ma_refuses_a_model_that_it_cannot_match_when_the_run_starts() -> None:
    normed = Layout((Tensor("conv.weight", (4, 3, 3, 3)), Tensor("norm.weight", (4,))), 2)
    with pytest.raises(UserError, match="norm: its weight has shape"):
        FesemMa().init(Setup((np.zeros(normed.size, np.float32),), normed, 7, 3, 1.0, ONE))


def warmed_up(strategy: FesemMa, models: list[Vector], start: Vector) -> FesemMaState:
    state = strategy.init(Setup((start,), MLP, 7, 3, 1.0, ONE))
    reports = [(f"c{i}", Report({"model": model}, 10)) for i, model in enumerate(models)]
    return folded(strategy, state, Phase("warmup"), reports=reports)


def test_fesem_ma_matches_its_members_once_more_to_their_mean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []

    def watched(
        members: Sequence[Vector], anchor: Vector, layout: Layout, average: Average
    ) -> Vector:
        calls.append(len(members))
        return matched_mean(members, anchor, layout, average)

    start, models = mlp_models(4)
    matched_mean = fesem_ma._matched_mean
    monkeypatch.setattr(fesem_ma, "_matched_mean", watched)
    warmed_up(FesemMa(n_clusters=1), models, start)
    assert calls == [4, 4]


def test_fesem_ma_notes_the_mean_squared_distance_to_the_own_centre() -> None:
    start, models = mlp_models()
    strategy = FesemMa(n_clusters=2)
    before = warmed_up(strategy, models, start)
    after = folded(strategy, before, Phase(), reports=[("c0", Report({"model": models[0]}, 10))])
    distances = [
        float(np.sum((model - before.models[before.assign[f"c{i}"]]).astype(np.float64) ** 2))
        for i, model in enumerate(models)
    ]
    assert strategy.shown(after).notes["J"] == pytest.approx(np.mean(distances), rel=1e-4)


def test_fesem_ma_newcomers_start_from_the_mean_of_the_centres_and_join_the_nearest() -> None:
    start, models = mlp_models()
    strategy = FesemMa(n_clusters=2)
    state = warmed_up(strategy, models, start)
    order = strategy.order(state, Phase("entry"), "new")
    assert order.models == ("mean",)
    assert np.allclose(
        strategy.model(state, "mean"), (state.models[0] + state.models[1]) / 2, atol=1e-6
    )
    own = Report({"model": models[1] + np.float32(0.001)}, 10)
    assert strategy.assign_newcomers(state, [("new", own)]).assign["new"] == state.assign["c1"]


def test_fesem_ma_gives_a_cluster_without_members_the_model_that_lies_farthest_out() -> None:
    start, models = mlp_models()
    strategy = FesemMa(n_clusters=2)
    state = warmed_up(strategy, models, start)
    all_in_one = replace(state, models=(state.models[0], state.models[0] + np.float32(50)))
    after = folded(
        strategy, all_in_one, Phase(), reports=[("c0", Report({"model": models[0]}, 10))]
    )
    assert strategy.shown(after).notes["reseeded"] == 1
    assert set(after.assign.values()) == {0, 1}
