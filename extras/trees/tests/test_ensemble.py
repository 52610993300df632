"""The sums of a companion: a line as scikit-learn's, trees that lower the loss, and devices that are missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.datasets import load_breast_cancer, load_wine, make_friedman1
from sklearn.linear_model import LogisticRegression, Ridge

from covey.extras.trees.design import Column, Design, Form, unsuited
from covey.extras.trees.ensemble import (
    FOLDS,
    LEAVES,
    NEWTON,
    PATIENCE,
    Ensemble,
    Rows,
    best,
    grown,
    leaf_of,
    splits,
    stepped,
    sums_of,
    with_loss,
)
from covey.shared.scenario.task import Task

SEED = 3
Fleet = Sequence[Sequence[Rows]]


def rows_of(x: npt.NDArray[Any], y: npt.NDArray[Any], form: Form, fold: int | None = None) -> Rows:
    return Rows(Design.of(x.astype(np.float32), form), y, fold)


def fleet_of(x: npt.NDArray[Any], y: npt.NDArray[Any], form: Form, devices: int = 5) -> Fleet:
    """Devices with three folds each, of neighbours in the file."""
    return [
        [
            rows_of(x[fold], y[fold], form, place)
            for place, fold in enumerate(np.array_split(own, FOLDS))
        ]
        for own in np.array_split(np.arange(len(y)), devices)
    ]


def total(ensemble: Ensemble, fleet: Fleet, *, grows: bool) -> npt.NDArray[np.float64]:
    found = np.sum([sums_of(ensemble, own, grows=grows) for own in fleet], axis=0)
    return np.asarray(found)


def lined(form: Form, fleet: Fleet) -> Ensemble:
    ensemble = Ensemble.begun(form, SEED)
    for _ in range(NEWTON if form.classes else 1):
        ensemble = stepped(ensemble, total(ensemble, fleet, grows=False))
    return ensemble


def boosted(ensemble: Ensemble, fleet: Fleet, messages: int) -> tuple[Ensemble, Sequence[float]]:
    losses: tuple[float, ...] = ()
    for _ in range(messages):
        sums = total(ensemble, fleet, grows=True)
        losses = with_loss(losses, sums)
        ensemble = grown(ensemble, sums)
    return ensemble, losses


def scaled(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = (x - x.mean(axis=0)) / x.std(axis=0)
    return found


@pytest.fixture(scope="module")
def values() -> tuple[npt.NDArray[Any], npt.NDArray[Any], Form]:
    x, y = make_friedman1(600, noise=1.0, random_state=0)
    return scaled(x), scaled(y), Form(tuple(map(Column, range(10))), 10, 0)


@pytest.fixture(scope="module")
def classes() -> tuple[npt.NDArray[Any], npt.NDArray[Any], Form]:
    x, y = load_wine(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return scaled(x)[order], y[order], Form(tuple(map(Column, range(13))), 13, 3)


def test_a_line_is_the_ridge_of_all_rows_but_those_of_its_fold(values: Any) -> None:
    x, y, form = values
    fleet = fleet_of(x, y, form)
    found = lined(form, fleet)
    rest = np.concatenate([one.design.line[:, 1:] for own in fleet for one in own[1:]])
    truth = np.concatenate([one.targets for own in fleet for one in own[1:]])
    ridge = Ridge(alpha=1.0).fit(rest, truth)
    line = np.array([ridge.intercept_, *ridge.coef_])
    np.testing.assert_allclose(found.line[0, :, 0], line, atol=1e-6)


@pytest.mark.parametrize("load", [load_wine, load_breast_cancer])
def test_five_steps_of_newton_are_close_to_logistic_regression(load: Any) -> None:
    x, y = load(return_X_y=True)
    x, kinds = scaled(x), len(np.unique(y))
    form = Form(tuple(map(Column, range(x.shape[1]))), x.shape[1], kinds)
    found = lined(form, [[rows_of(x, y, form)]]).probabilities(
        Design.of(x.astype(np.float32), form)
    )
    theirs = LogisticRegression(max_iter=1000).fit(x, y).predict_proba(x)
    assert np.mean(found.argmax(axis=1) == theirs.argmax(axis=1)) > 0.985
    assert np.abs(found - theirs).mean() < 0.02


@pytest.mark.parametrize("kind", ["values", "classes"])
def test_each_message_of_trees_lowers_the_loss_of_rows_that_they_have_not_seen(
    kind: str, request: Any
) -> None:
    x, y, form = request.getfixturevalue(kind)
    fleet = fleet_of(x, y, form)
    _, losses = boosted(lined(form, fleet), fleet, 12)
    assert losses[-1] < (0.6 if kind == "values" else 0.82) * losses[0]
    assert all(np.diff(losses) < 0.01 * losses[0])


def test_targets_by_chance_end_the_trees_where_they_begin(values: Any) -> None:
    x, _, form = values
    y = np.random.default_rng(0).normal(size=len(x))
    fleet = fleet_of(x, y, form)
    _, losses = boosted(lined(form, fleet), fleet, 2 * PATIENCE)
    least, ends = best(losses)
    assert ends
    assert least <= 2


def test_trees_end_where_the_loss_has_not_fallen_for_some_messages() -> None:
    assert best([1.0, 0.9, 0.8]) == (3, False)
    assert best([1.0, 0.5, *[0.6] * PATIENCE]) == (1, True)


def test_sums_rounded_as_under_masks_give_the_same_answers(values: Any) -> None:
    """Integers of a mean of at most one unit, with 2^24 levels and a hundred rows a device."""
    x, y, form = values
    fleet = fleet_of(x, y, form)
    design = Design.of(x.astype(np.float32), form)

    def made(unit: float) -> npt.NDArray[np.float64]:
        ensemble = Ensemble.begun(form, SEED)
        for grows in [False] + [True] * 15:
            parts = [sums_of(ensemble, own, grows=grows) for own in fleet]
            sums = np.sum([np.rint(one / unit) * unit for one in parts] if unit else parts, axis=0)
            ensemble = (grown if grows else stepped)(ensemble, sums)
        return ensemble.probabilities(design)[:, 0]

    plain, rounded = made(0.0), made(0.003)
    rmse = [float(np.sqrt(np.mean((one - y) ** 2))) for one in (plain, rounded)]
    assert abs(rmse[0] - rmse[1]) < 1e-3


def test_a_vector_is_the_ensemble_again(classes: Any) -> None:
    x, y, form = classes
    fleet = fleet_of(x, y, form)
    found, _ = boosted(lined(form, fleet), fleet, 2)
    again = Ensemble.of_vector(form, SEED, found.vector)
    assert again == found
    assert again.before != found
    assert again.upto(2) == found
    with pytest.raises(ValueError):
        Ensemble.of_vector(form, SEED, found.vector[:-1])


def test_missing_cells_and_words_are_answers_of_their_own() -> None:
    form = Form((Column(0, flag=1), Column(2, words=3)), 5, 0)
    inputs = np.array(
        [[0.5, 0, 1, 0, 0], [0.5, 1, 1, 0, 0], [0.5, 0, 0, 0, 1], [0.5, 0, 1, 0, 0]], np.float32
    )
    leaves = np.concatenate(
        [leaf_of(form, SEED, message, Design.of(inputs, form)) for message in range(3)]
    )
    usual, missing, other, same = leaves.T
    np.testing.assert_array_equal(usual, same)
    assert (usual != missing).any()
    assert (usual != other).any()
    assert set(leaves.ravel()) <= set(range(LEAVES))
    assert splits(form, SEED, 0).column.max() == 1


TABLE: dict[str, Any] = {
    "columns": ["a", "b", "when"],
    "features": [8],
    "categories": {"b": ["x", "y"]},
    "times": ["when"],
    "model": "mlp",
    "target": "y",
    "classes": ["no", "yes"],
    "standardise": "federated",
}


SERIES = {
    "window": {"rows": 4},
    "columns": ["a"],
    "features": [1, 4],
    "categories": {},
    "times": [],
}


def test_the_form_of_a_task_has_a_column_for_each_question() -> None:
    form = Form.of(Task.model_validate(TABLE))
    assert form.columns[:2] == (Column(0), Column(1, words=3))
    assert form.width == 8
    assert form.scores == 1


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"standardise": "none"}, "standardise: federated"),
        ({"classes": None}, "target_scale: federated"),
        (SERIES, "windows"),
    ],
)
def test_what_a_companion_cannot_learn_is_named(changes: dict[str, Any], why: str) -> None:
    assert not unsuited(Task.model_validate(TABLE))
    assert why in unsuited(Task.model_validate({**TABLE, **changes}))
