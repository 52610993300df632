"""What a device can answer with, judged on samples that it has not trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import covey.extras.judge.trees as trees
from covey.agent.data.dataset import Dataset, folds
from covey.agent.policy import NO_CODE_RULES, OwnersRules, Policy
from covey.agent.training.learner import TorchLocal
from covey.agent.worker.learners import new_weights
from covey.extras.in_use.answering import Answering
from covey.extras.judge.candidates import (
    Allowance,
    BeforeHome,
    Candidate,
    Constant,
    at_home,
    begun_again,
    judged,
    made,
    mixed,
)
from covey.extras.judge.judge import Judgement
from covey.extras.judge.mixture import FleetWeights, chosen
from covey.extras.judge.mixture import fitted as fitted_weights
from covey.extras.judge.trees import trees_for
from covey.extras.light.numpy_learner import NumpyLocal, layout_of_task
from covey.extras.light.own_loop import LoopLocal, start_of
from covey.shared.candidate_names import HOMES
from covey.shared.numerics.figures import baseline_figures, figures_of
from covey.shared.numerics.split import Split
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.scenario.task import Task
from covey.shared.seeds import generator
from covey.shared.strategies.base import Training
from covey.shared.strategies.client_half import Drill, Fold, Local, TrainingResult
from covey.shared.work.label_prior import own_prior, with_prior

pytestmark = pytest.mark.usefixtures("single_thread")

TASK = Task.model_validate(
    {"features": [2], "classes": 2, "model": {"name": "mlp", "options": {"hidden": 8}}}
)
VALUES = Task.model_validate({"features": [2], "classes": None, "model": {"name": "linear"}})
TRAINING = Training(batch=20, lr=0.1, momentum=0.5)
LocalOf = Callable[[Dataset], Local]


class Softmax:
    """A loop of the user's own: softmax regression by full gradients."""

    def start(self, seed: int) -> dict[str, Any]:
        return {"weight": np.zeros((2, 2)), "bias": np.zeros(2)}

    def train(self, state: Any, data: Any, settings: Any) -> Any:
        weight, bias = state["weight"], state["bias"]
        own = np.eye(2)[data.targets]
        for _ in range(settings.epochs):
            slopes = self._shares(weight, bias, data.features) - own
            weight, bias = weight - slopes.T @ data.features / len(own), bias - slopes.mean(0)
        return {"weight": weight, "bias": bias}, len(own), {"loss": 0.5}

    def evaluate(self, state: Any, features: Any) -> Any:
        return features @ state["weight"].T + state["bias"]

    def _shares(self, weight: Any, bias: Any, features: Any) -> Any:
        powers = np.exp(features @ weight.T + bias)
        return powers / powers.sum(1, keepdims=True)


def points(seed: int, count: int, *, is_turned: bool = False, is_noise: bool = False) -> Dataset:
    """Points that are of class 1 right of zero, or left of it, or by chance; the first hundred test."""
    draw = generator(seed, "points")
    x = draw.normal(size=(count + 100, 2)).astype(np.float32)
    y = ((x[:, 0] > 0) != is_turned).astype(np.int64)
    if is_noise:
        y = draw.integers(0, 2, len(x))
    return Dataset(x[100:], y[100:], x[:100], y[:100])


def local_with(
    kind: str, task: Task = TASK, rules: OwnersRules = NO_CODE_RULES
) -> tuple[LocalOf, Layout]:
    draw = generator(1, "shuffle")
    if kind == "loop":
        _, layout = start_of(Softmax(), 0)
        return lambda data: LoopLocal(
            Softmax(), data, task, layout=layout, training=TRAINING, rng=draw, rules=rules
        ), layout
    layout = layout_of_task(task)
    cls = TorchLocal if kind == "torch" else NumpyLocal
    return lambda data: cls(
        data, task, layout, TRAINING, generator(1, "shuffle"), rules=rules
    ), layout


def given(model: Vector, task: Task = TASK) -> BeforeHome:
    make = trees_for(task)
    return BeforeHome(((1.0, model),), task.outputs, others={} if make is None else {"trees": make})


def learned(kind: str, task: Task = TASK) -> tuple[LocalOf, Vector]:
    """A model of points that are not turned."""
    local_of, layout = local_with(kind, task)
    start: Vector = generator(1, "start").normal(0, 0.25, layout.size).astype(np.float32)
    return local_of, local_of(points(9, 300)).train(start, Drill(epochs=10)).end


def fitted(local: Local, has: BeforeHome) -> dict[str, Candidate]:
    """The candidates of an agent that has the time for all of them."""
    return made(local, has, at_home(local, has, HOMES))


def folds_of(data: Dataset, local_of: LocalOf) -> Iterator[Fold]:
    return (Fold(local_of(part), units) for part, units in folds(data, 1, "pi"))


def delivered(
    data: Dataset, local_of: LocalOf, has: BeforeHome
) -> tuple[dict[str, float], float, float]:
    """The weights of an agent, and the accuracies of its mixture and of the served model on its test samples."""
    candidates = fitted(local_of(data), has)
    found = judged(folds_of(data, local_of), has, candidates)
    choice = chosen(found, list(candidates))
    truth = data.test_targets
    accuracies = [
        figures_of(truth, mixed(candidates, weights, local_of(data), "test"))["accuracy"]
        for weights in (choice.weights, {"served": 1.0})
    ]
    return dict(choice.weights), *accuracies


@pytest.mark.parametrize("kind", ["torch", "numpy", "loop"])
def test_each_learner_has_the_candidates_that_it_can_have(kind: str) -> None:
    local_of, model = learned(kind)
    names = ["none", "served", "home-1", "home-5", "home-20", "near", "soup", "trees"]
    if kind == "loop":
        names.remove("near")
    assert list(fitted(local_of(points(1, 60)), given(model))) == names
    assert "trees" not in fitted(local_of(points(1, 60)), BeforeHome(((1.0, model),), 2))


@pytest.mark.parametrize("kind", ["torch", "numpy", "loop"])
def test_a_device_that_differs_from_the_others_uses_what_it_can_learn_itself(kind: str) -> None:
    local_of, model = learned(kind)
    weights, mixture, served = delivered(points(1, 90, is_turned=True), local_of, given(model))
    assert weights.get("served", 0) < 0.2
    assert mixture > 0.9 > 0.1 > served


@pytest.mark.parametrize("kind", ["torch", "numpy", "loop"])
def test_a_device_that_is_like_the_others_loses_little(kind: str) -> None:
    local_of, model = learned(kind)
    _, mixture, served = delivered(points(1, 60), local_of, given(model))
    assert mixture >= served - 0.05


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_a_device_uses_no_candidate_that_only_remembers_its_samples(kind: str) -> None:
    local_of, model = learned(kind)
    alone = 0
    for seed in range(6):
        weights, _, _ = delivered(points(seed, 90, is_noise=True), local_of, given(model))
        alone += weights == {"none": 1.0}
    assert alone >= 5


@pytest.mark.parametrize("units", [1, 3])
def test_a_device_of_copies_alone_or_of_three_units_uses_what_the_fleet_does(units: int) -> None:
    local_of, model = learned("numpy")
    single, copies = points(1, units), np.arange(60) % units
    data = replace(single, features=single.features[copies], targets=single.targets[copies])
    candidates = fitted(local_of(data), given(model))
    found = judged(folds_of(data, local_of), given(model), candidates)
    assert (0 if found is None else found.size) == (units if units > 1 else 0)
    fleet = FleetWeights({"served": 0.6, "near": 0.4}, gains=True)
    used = chosen(found, list(candidates), fleet)
    assert used.weights == pytest.approx(fleet.weights)


def test_an_agent_that_is_the_whole_fleet_uses_what_it_would_use_alone() -> None:
    local_of, model = learned("numpy")
    data = points(1, 90, is_turned=True)
    found = judged(folds_of(data, local_of), given(model), fitted(local_of(data), given(model)))
    assert found is not None
    own = fitted_weights(found)
    vote = found.vote(own)
    assert vote is not None
    for fleet in (None, FleetWeights.of([own], [vote])):
        used = chosen(found, found.names, fleet).weights
        assert max(used, key=lambda name: used[name]) != "served"
        assert set(used) == set(chosen(found, found.names).weights)


def test_samples_judge_once_and_none_that_a_candidate_has_trained_on() -> None:
    local_of, model = learned("numpy")
    data = points(1, 60)
    data = replace(
        data,
        features=data.features[[*range(60), *range(30)]],
        targets=data.targets[[*range(60), *range(30)]],
    )
    seen = []
    for fold in folds_of(data, local_of):
        train = {row.tobytes() for row in fold.local.inputs()}
        rows = fold.local.rows("test")  # type: ignore[attr-defined]
        assert train.isdisjoint({row.tobytes() for row in rows})
        seen.append(len(rows))
    found = judged(folds_of(data, local_of), given(model), ["served", "near"])
    assert found is not None
    assert (sum(seen), found.size, found.shares.sum()) == (90, 60, pytest.approx(60))


def test_snapshots_are_of_one_training() -> None:
    local_of, model = learned("numpy")
    has, data = given(model), points(1, 60)
    found = at_home(local_of(data), has, HOMES)
    [(_, end)] = found[20]
    assert np.array_equal(end, local_of(data).train(model, Drill(epochs=20)).end)
    assert not np.array_equal(found[1][0][1], found[5][0][1])


def dead(layout: Layout) -> Vector:
    """A model whose hidden units answer nothing, whatever the sample is: no training reaches them."""
    parts = layout.named(np.ones(layout.size, np.float32))
    return layout.vector(
        {name: value * (-100 if name == "fc1.bias" else 0) for name, value in parts.items()}
    )


def judged_at_home(
    data: Dataset, local_of: LocalOf, has: BeforeHome
) -> tuple[Judgement, dict[str, float], float]:
    """The findings of a device, what it uses, and the accuracy of that on its test samples."""
    known, candidates = Judgement.made(
        local_of(data),
        has,
        folds_of(data, local_of),
        {},
        measure="",
        budget_s=None,
        clock=lambda: 0.0,
    )
    uses = known.choice({}, single=False).weights
    answered = mixed(candidates, uses, local_of(data), "test")
    return known, dict(uses), figures_of(data.test_targets, answered)["accuracy"]


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_a_device_whose_served_model_is_dead_trains_at_home_from_new_weights(kind: str) -> None:
    """Before: it used the constant, where a device that trains alone has a model."""
    local_of, layout = local_with(kind)
    data, has = points(1, 90), BeforeHome(((1.0, dead(layout)),), 2)
    _, _, without = judged_at_home(data, local_of, has)
    new = partial(new_weights, TASK, 1)
    known, uses, accuracy = judged_at_home(data, local_of, replace(has, new=new))
    assert accuracy > 0.9 > 0.7 > without
    assert sum(share for name, share in uses.items() if name.startswith("home-")) > 0.9
    assert "soup" not in known.names, "their mean with a dead model"
    # a further order makes the same candidates of what is kept
    again = Judgement.of_memory(known.to_memory(), has.served)
    assert again is not None
    kept = made(local_of(data), has, again.snapshots, uses)
    assert figures_of(data.test_targets, mixed(kept, uses, local_of(data), "test"))[
        "accuracy"
    ] == pytest.approx(accuracy)


@pytest.mark.parametrize("kind", ["torch", "numpy"])
@pytest.mark.parametrize(
    "data",
    [points(1, 60), points(1, 60, is_turned=True), points(2, 90, is_noise=True)],
    ids=["like the others", "turned", "noise"],
)
def test_training_at_home_begins_with_a_served_model_that_can_learn(
    kind: str, data: Dataset
) -> None:
    local_of, model = learned(kind)
    has = replace(given(model), new=lambda: pytest.fail("no new weights are asked for"))
    local = local_of(data)
    assert begun_again(local, has, at_home(local, has, HOMES)) is has


def test_where_the_constant_has_no_loss_nothing_begins_again() -> None:
    local_of, layout = local_with("numpy")
    data = points(1, 60)
    data = replace(data, targets=np.zeros_like(data.targets))
    new = partial(new_weights, TASK, 1)
    has = BeforeHome(((1.0, dead(layout)),), 2, new=new)
    local = local_of(data)
    assert begun_again(local, has, at_home(local, has, HOMES)) is has


def test_values_that_a_dead_model_does_not_follow_are_learned_from_new_weights() -> None:
    task = Task.model_validate({**TASK.model_dump(mode="json"), "classes": None})
    local_of, layout = local_with("numpy", task)
    data = points(1, 90)
    slope = [part[:, 0].astype(np.float32) for part in (data.features, data.test_features)]
    data = replace(data, targets=slope[0], test_targets=slope[1])
    has = BeforeHome(((1.0, dead(layout)),), 1, new=partial(new_weights, task, 1))
    local = local_of(data)
    assert begun_again(local, has, at_home(local, has, HOMES)).home is not None


def test_new_weights_are_those_of_built_in_models_that_train_as_a_whole() -> None:
    found, again = new_weights(TASK, 1), new_weights(TASK, 1)
    assert found is not None
    assert again is not None
    local_of, layout = local_with("numpy")
    assert found.dtype == np.float32
    assert found.shape == (layout.size,)
    assert np.array_equal(found, again)
    own = TASK.model_copy(update={"model": TASK.model.model_copy(update={"name": "own:net"})})
    assert new_weights(own, 1) is None
    part = Split.by_patterns(layout, [], [], ["fc1.bias"])
    has = BeforeHome(((1.0, dead(layout)),), 2, split=part, new=lambda: found)
    assert begun_again(local_of(points(1, 60)), has, {}) is has


class Slow:
    """Data on which an epoch takes a second."""

    def __init__(self, local: Local) -> None:
        self.local = local
        self.now = 0.0

    def train(self, start: Vector, drill: Drill) -> TrainingResult:
        assert drill.epochs is not None
        self.now += drill.epochs
        result: TrainingResult = self.local.train(start, drill)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self.local, name)


def test_a_fold_trains_no_longer_than_the_candidates_need_it() -> None:
    local_of, model = learned("numpy")
    slow: list[Any] = []

    def counted(data: Dataset) -> Any:
        slow.append(Slow(local_of(data)))
        return slow[-1]

    judged(folds_of(points(1, 60), counted), given(model), ["served", "home-1"])
    assert [one.now for one in slow] == [1, 1, 1]


@pytest.mark.parametrize(
    ("budget", "homes"), [(1.0, []), (3.0, [1]), (15.0, [1, 5]), (60.0, [1, 5, 20])]
)
def test_snapshots_for_which_there_is_no_time_are_left_out(budget: float, homes: list[int]) -> None:
    """The folds take twice the time of all samples."""
    local_of, model = learned("numpy")
    slow: Any = Slow(local_of(points(1, 60)))
    found = at_home(slow, given(model), HOMES, Allowance(budget, lambda: slow.now))
    assert list(found) == homes


class Watch:
    """A clock that work moves on: an epoch takes a second for each 60 samples, and trees take `trees` as long."""

    def __init__(self, trees: float) -> None:
        self.now = 0.0
        self.trees = trees

    def __call__(self) -> float:
        return self.now

    def local(self, local: Local) -> Any:
        watch = self

        class Timed(Slow):
            def train(self, start: Vector, drill: Drill) -> TrainingResult:
                assert drill.epochs is not None
                watch.now += drill.epochs * self.local.examples / 60
                result: TrainingResult = self.local.train(start, drill)
                return result

        return Timed(local)

    def make(self, local: Local) -> Any:
        self.now += self.trees * local.examples / 60
        return Constant.of(local.targets("train"), 2)


@pytest.mark.parametrize(
    ("budget", "trees", "names", "seconds"),
    [
        (None, 100.0, {"home-1", "home-5", "home-20", "near", "soup", "trees"}, 360.0),
        (90.0, 5.0, {"home-1", "home-5", "home-20", "near", "soup", "trees"}, 75.0),
        (70.0, 5.0, {"home-1", "home-5", "home-20", "near", "soup"}, 66.7),
        (40.0, 5.0, {"home-1", "home-5", "near", "soup", "trees"}, 30.0),
        (5.0, 5.0, {"home-1", "near", "soup"}, 9.7),
        (1.0, 5.0, {"near"}, 4.3),
        (1.0, 0.0, {"near", "trees"}, 1.0),
    ],
)
def test_the_whole_judging_keeps_to_its_budget(
    budget: float | None, trees: float, names: set[str], seconds: float
) -> None:
    """It takes at most twice as long, unless an epoch or the first fold alone do; trees that are too slow cost the rest nothing."""
    local_of, model = learned("numpy")
    watch = Watch(trees)
    data = points(1, 60)
    known, candidates = Judgement.made(
        watch.local(local_of(data)),
        replace(given(model), others={"trees": watch.make}),
        (Fold(watch.local(local_of(part)), units) for part, units in folds(data, 1, "pi")),
        {},
        measure="",
        budget_s=budget,
        clock=watch,
    )
    assert set(known.names) == set(candidates) == names | {"none", "served"}
    assert watch.now == pytest.approx(seconds, abs=0.1)


def test_the_owner_of_a_device_decides_how_much_it_trains_at_home() -> None:
    _, model = learned("numpy")
    for most, homes in ((4, [1, 5]), (2, [1])):
        local_of, _ = local_with("numpy", rules=OwnersRules(Policy(max_epochs=most)))
        assert list(at_home(local_of(points(1, 60)), given(model), HOMES)) == homes
    local_of, _ = local_with("numpy", rules=OwnersRules(Policy(max_steps=1)))
    assert not at_home(local_of(points(1, 60)), given(model), HOMES)


def test_a_training_that_diverges_leaves_the_snapshots_before_it() -> None:
    local_of, layout = local_with("numpy", VALUES)
    data = points(1, 60)
    data = replace(data, features=1e3 * data.features, targets=data.features[:, 0])
    data = replace(data, test_targets=data.test_features[:, 0])
    has = BeforeHome(((1.0, np.zeros(layout.size, np.float32)),), 1)
    candidates = fitted(local_of(data), has)
    found = judged(folds_of(data, local_of), has, candidates)
    assert "home-20" not in candidates
    assert set(chosen(found, list(candidates)).weights) <= {
        "none",
        "served",
        "near",
        "soup",
        "home-1",
        "home-5",
    }


def test_the_same_samples_give_the_same_weights_and_answers() -> None:
    local_of, model = learned("numpy")
    data = points(1, 90, is_turned=True)
    first, second = (delivered(data, local_of, given(model)) for _ in range(2))
    assert first == second


def test_values_are_mixed_in_the_units_of_the_data() -> None:
    task = VALUES.model_copy(update={"target_scale": None})
    local_of, layout = local_with("numpy", task)
    data = points(2, 90)
    curve = [1000 + 50 * (x[:, 0] > 0) + 5 * x[:, 1] for x in (data.features, data.test_features)]
    data = replace(data, targets=curve[0], test_targets=curve[1])
    has = given(np.zeros(layout.size, np.float32), task)
    candidates = fitted(local_of(data), has)
    choice = chosen(judged(folds_of(data, local_of), has, candidates), list(candidates))
    found = mixed(candidates, choice.weights, local_of(data), "test")
    assert figures_of(data.test_targets, found)["mse"] < 0.2 * np.var(data.test_targets)
    assert not choice.uses_none


def test_the_label_prior_is_no_hindrance() -> None:
    local_of, model = learned("numpy")
    data = points(1, 60)
    local = local_of(data)
    prior = own_prior(2, local, layout_of_task(TASK))
    assert prior is not None
    candidates = fitted(with_prior(local, prior), given(model))
    assert np.isfinite(candidates["home-20"].answers(with_prior(local, prior), "test")).all()


def test_the_constant_gives_each_class_a_share() -> None:
    assert Constant.of(np.array([0, 0, 2]), 3).answer.tolist() == pytest.approx(
        [2.5 / 4.5, 0.5 / 4.5, 1.5 / 4.5]
    )
    assert Constant.of(np.array([[1.0, 2.0], [3.0, 6.0]], np.float32), 2).answer.tolist() == [2, 4]
    assert Constant.of(np.array([[True, False], [True, True]]), 2).answer.tolist() == [1, 0.5]


# -- trees -------------------------------------------------------------------------------------------------------------


def test_trees_answer_for_classes_that_a_device_does_not_have() -> None:
    task = TASK.model_copy(update={"classes": 4})
    local_of, _ = local_with("numpy", task)
    make = trees_for(task)
    assert make is not None
    for data in (points(1, 60), replace(points(1, 60), targets=np.full(60, 2))):
        local = local_of(data)
        found = make(local).answers(local, "test")
        assert found.shape == (100, 4)
        assert found.sum(axis=1) == pytest.approx(np.ones(100))
        assert not found[:, np.setdiff1d(np.arange(4), data.targets)].any()


def test_there_are_trees_for_tables_where_scikit_learn_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    image = Task.model_validate({"features": [1, 8, 8], "classes": 2, "model": "cnn4"})
    assert trees_for(image) is None
    assert trees_for(TASK) is not None
    monkeypatch.setattr(trees, "find_spec", lambda name: None)
    assert trees_for(TASK) is None


@pytest.mark.parametrize("rows", [12, 24, 39, 80])
def test_trees_of_few_rows_split_them(rows: int) -> None:
    """Where scikit-learn's leaves of twenty rows leave fewer than forty whole."""
    pytest.importorskip("sklearn")
    x = np.linspace(0, 1, rows, dtype=np.float32)[:, None]
    for y in ((x[:, 0] > 0.5).astype(np.int64), x[:, 0]):
        model = trees.Trees.of(x, y, 2).model
        assert len({*model.predict(x).tolist()}) > 1
    assert [trees.least_in_leaf(n) for n in (4, 12, 40, 80, 9000)] == [3, 3, 10, 20, 20]


def test_trees_are_fitted_with_one_thread_outside_of_a_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker's environment has the number that its owner gave."""
    ensemble, control = (
        pytest.importorskip("sklearn.ensemble"),
        pytest.importorskip("threadpoolctl"),
    )
    seen: list[set[int]] = []

    def fit(self: Any, rows: Any, targets: Any) -> Any:
        seen.append({one["num_threads"] for one in control.threadpool_info() if one["user_api"] == "openmp"})  # fmt: skip
        return self

    monkeypatch.setattr(ensemble.HistGradientBoostingRegressor, "fit", fit)
    x = np.linspace(0, 1, 12, dtype=np.float32)[:, None]
    with control.threadpool_limits(2):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        trees.Trees.of(x, x[:, 0], 1)
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        trees.Trees.of(x, x[:, 0], 1)
    assert seen == [{1}, {2}]


def forecast(steps: int) -> Task:
    keys = {"features": [2, 3], "columns": ["a", "b"], "target": "b", "classes": None}
    return Task.model_validate(keys | {"window": {"rows": 3, "horizon": steps}, "model": {"name": "mlp"}})  # fmt: skip


@pytest.mark.parametrize(("drift", "is_last"), [(1.0, True), (0.0, False)])
def test_the_constant_of_a_forecast_is_the_last_value_or_the_mean(
    drift: float, is_last: bool
) -> None:
    """Whichever is nearer to what has come: a level that wanders, or noise."""
    rng = np.random.default_rng(1)
    series = 50 + np.cumsum(rng.normal(size=200)) * drift + rng.normal(size=200) * (1 - drift)
    windows = np.stack([np.stack([rng.normal(size=3), series[at : at + 3]]) for at in range(190)])
    after = np.stack([series[at + 3 : at + 5] for at in range(190)]).astype(np.float32)
    data = Dataset(windows[:150], after[:150], windows[150:], after[150:])
    task = forecast(2)
    local = NumpyLocal(data, task, layout_of_task(task), TRAINING, rng)
    constant = Constant.nearest(local, 2)
    assert (not constant.answer.size) == is_last
    expected = (
        np.repeat(windows[150:, 1, -1:], 2, axis=1)
        if is_last
        else np.tile(after[:150].mean(axis=0), (40, 1))
    )
    assert constant.answers(local, "test") == pytest.approx(expected)
    before, last = local.last_values("train"), local.last_values("test")
    assert before is not None
    assert last is not None
    found = baseline_figures(after[:150], after[150:], (before, last))
    assert (found["mse"] == pytest.approx(np.square(after[150:] - expected).mean())) == is_last
    kept = Answering.of(((1.0, np.zeros(1, np.float32)),), {"none": 1.0}, {"none": constant})
    [(_, again)] = kept.candidates(2)
    assert again.answers(local, "test") == pytest.approx(expected)
