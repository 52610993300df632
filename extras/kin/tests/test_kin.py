"""Cards on the agent: units of samples, classes of a regression, one card by torch and by numpy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from covey.agent.data.dataset import Dataset, units_of
from covey.agent.training.learner import TorchLocal
from covey.agent.training.models import initial
from covey.extras.light.numpy_learner import NumpyLocal
from covey.shared.scenario.task import Task
from covey.shared.seeds import generator
from covey.shared.strategies.base import Training
from covey.shared.strategies.client_half import Local


def data(count: int, **more: Any) -> Dataset:
    draw = np.random.default_rng(1)
    features = draw.standard_normal((count, 3)).astype(np.float32)
    targets = draw.integers(0, 4, count)
    return Dataset(features, targets, features[:2], targets[:2], **more)


def test_a_sample_is_a_unit_where_an_agent_has_one_group() -> None:
    assert units_of(data(5)).tolist() == [0, 1, 2, 3, 4]
    assert units_of(data(5, groups=np.array(["a"] * 5))).tolist() == [0, 1, 2, 3, 4]


def test_a_recording_is_a_unit_where_an_agent_has_several() -> None:
    groups = np.array(["b", "a", "b", "c", "c"])
    assert units_of(data(5, groups=groups)).tolist() == [1, 0, 1, 2, 2]


def of_classes(targets: list[int], overlap: int) -> Dataset:
    return replace(data(len(targets), overlap=overlap), targets=np.array(targets))


def test_a_stretch_of_a_series_ends_where_the_class_changes() -> None:
    runs = [0] * 3 + [1] * 2 + [0] * 4 + [2] * 3 + [1] * 4  # usual: 16 / 8 = 2
    expected = [0] * 3 + [1] * 2 + [2] * 4 + [3] * 3 + [4] * 4
    assert units_of(of_classes(runs, 0)).tolist() == expected


def test_a_stretch_is_twice_as_long_as_usual_at_most() -> None:
    assert units_of(of_classes([1] * 10, 0)).tolist() == [0] * 4 + [1] * 4 + [2] * 2


def test_a_stretch_is_longer_than_the_windows_that_overlap() -> None:
    changing = [0, 1] * 8
    assert units_of(of_classes(changing, 2)).tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert set(units_of(of_classes(changing, 9))) == {0}


def test_each_series_has_stretches_of_its_own() -> None:
    series = replace(of_classes([0, 5, 0, 5, 1, 6, 1, 6], 1), groups=np.array([0, 1] * 4))
    assert units_of(series).tolist() == [0, 2, 0, 2, 1, 3, 1, 3]


def locals_of(samples: Dataset, task: Task) -> list[Local]:
    _, layout = initial(task, 1)
    draws = [generator(1, "shuffle", i) for i in range(2)]
    kinds = (TorchLocal, NumpyLocal)
    return [
        kind(samples, task, layout, Training(), draw)
        for kind, draw in zip(kinds, draws, strict=True)
    ]


def test_a_card_is_made_of_what_the_model_gets_and_is_one_with_torch_and_without() -> None:
    standard = {"mean": [1.0, 0.0, 0.0], "std": [2.0, 1.0, 1.0]}
    sections = {"features": [3], "classes": 4, "model": {"name": "linear"}}
    scaled = Task.model_validate({**sections, "standardise": standard})
    samples = data(300)
    torch_card, numpy_card = (local.card(3, "a", 1) for local in locals_of(samples, scaled))
    np.testing.assert_array_equal(torch_card.counts, numpy_card.counts)
    np.testing.assert_allclose(torch_card.sums, numpy_card.sums, rtol=1e-5, atol=1e-5)
    assert torch_card.counts.sum(axis=0).tolist() == np.bincount(samples.targets).tolist()
    plain, _ = (
        local.card(3, "a", 1) for local in locals_of(samples, Task.model_validate(sections))
    )
    assert not np.allclose(plain.sums, torch_card.sums)


@pytest.mark.parametrize(("scale", "classes"), [({"mean": 0.0, "std": 1.0}, 10), ("none", 1)])
def test_a_regression_has_tenths_of_its_scale_as_classes_and_without_a_scale_one(
    scale: Any, classes: int
) -> None:
    task = Task.model_validate(
        {"features": [3], "classes": None, "model": {"name": "linear"}, "target_scale": scale}
    )
    features = np.ones((500, 3), np.float32)
    targets = np.random.default_rng(2).standard_normal(500).astype(np.float32)
    samples = Dataset(features, targets, features[:1], targets[:1])
    for local in locals_of(samples, task):
        counts = local.card(1, "a", 1).counts
        assert counts.shape == (4, 10)
        assert int((counts.sum(axis=0) > 0).sum()) == classes
