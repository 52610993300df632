"""The model that a device uses: the served one, or the same after fine-tuning."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.agent.data.dataset import Dataset, RawColumns, folds, take
from covey.agent.kept.model_dir import ModelDir
from covey.agent.kept.model_file import read_model
from covey.shared.numerics.votes import is_clearly_better
from covey.shared.strategies.base import Fold, TrainingResult
from covey.shared.wire.messages import ReportContent
from covey.shared.work.client import is_better_at_home
from tests.agent.test_held_back import numbered, numbers
from tests.agent.test_kept import BAD, GOOD, LAYOUT, perform

TRAINING = {"epochs": 1, "batch": 5, "lr": 1.0}


def parts_of(data: Dataset, seed: int, client: str) -> Iterator[Dataset]:
    return (part for part, _ in folds(data, seed, client))


# -- the samples -------------------------------------------------------------------------------------------------------


def test_each_training_sample_is_once_among_those_that_choose_and_no_test_sample_is() -> None:
    data = numbered(60)
    tests: Any = object()  # of other rows
    data = replace(data, targets=np.repeat([0, 1], [45, 15]), shared_tests=tests)
    parts = list(parts_of(data, 3, "pi-1"))
    held = [part.test_features[:, 0].astype(int).tolist() for part in parts]
    assert sorted(itertools.chain.from_iterable(held)) == list(range(60))
    for part, own in zip(parts, held, strict=True):
        assert sorted([*numbers(part), *own]) == list(range(60))
        assert part.test_targets.tolist().count(1) == 5, "of each class its share"
        assert part.shared_tests is None
    assert [part.test_features.tolist() for part in parts_of(data, 3, "pi-1")] == [
        part.test_features.tolist() for part in parts
    ]


def test_of_rows_and_windows_in_time_order_each_third_of_the_time_chooses_in_turn() -> None:
    moments = np.arange(60)[::-1].astype(float)  # the first row is the latest
    rows = replace(numbered(60), columns=RawColumns(moments=moments))
    parts = list(parts_of(rows, 3, "pi-1"))
    assert [numbers(part)[:1] for part in parts] == [[0], [0], [20]]
    assert [part.test_features[0, 0] for part in parts] == [40, 20, 0]
    parts = list(parts_of(replace(numbered(120), overlap=1), 3, "pi-1"))
    assert parts[1].test_features[:, 0].astype(int).tolist() == list(range(40, 80))
    assert numbers(parts[1]) == [*range(39), *range(81, 120)]


def test_few_units_choose_nothing() -> None:
    assert not list(folds(numbered(24), 3, "pi-1"))
    assert not list(folds(replace(numbered(60), overlap=60), 3, "pi-1"))
    copies = take(numbered(24), np.arange(48) % 24)
    assert not list(folds(copies, 3, "pi-1"))


@pytest.mark.parametrize("copies", [1, 20])
def test_copies_of_a_sample_do_not_make_a_gain_clear(copies: int) -> None:
    """Of thirty points the served model has one wrong, and training at home has none: that may be chance."""
    data = take(numbered(30), np.repeat(np.arange(30), copies))
    data = replace(data, targets=(data.features[:, 0] >= 15).astype(np.int64))
    served, at_home = (np.array([0, 1, shift, 0], np.float32) for shift in (-13.5, -14.5))

    class Knows:
        """Training at home finds the border."""

        def __init__(self, data: Dataset) -> None:
            self.data = data

        def targets(self, split: str) -> Any:
            return self.data.test_targets

        def train(self, *_: Any, **options: Any) -> Any:
            return TrainingResult(at_home, 1, 0.0)

        def predict(self, model: Any, split: str) -> Any:
            score = self.data.test_features[:, 0] + model[2]
            return np.column_stack([-score, score])

    parts: Any = (Fold(Knows(part), units) for part, units in folds(data, 3, "pi-1"))  # type: ignore[arg-type]
    assert not is_better_at_home(((1.0, served),), 1, None, parts, "")


@pytest.mark.parametrize(
    ("right", "is_better"), [(0, False), (1, False), (2, False), (3, True), (10, True)]
)
def test_a_gain_that_may_be_chance_is_left_alone(right: int, *, is_better: bool) -> None:
    served = np.ones(50)
    other = np.ones(50)
    other[:right] = 0
    assert is_clearly_better(other, served) == is_better
    assert not is_clearly_better(served, other)


# -- the worker --------------------------------------------------------------------------------------------------------


def evaluated(
    folder: Path, served: np.ndarray[Any, Any], **changes: Any
) -> tuple[dict[str, Any], ModelDir]:
    """The numbers of the report of the last evaluation, and the models on the device."""
    models = ModelDir(folder / "models")
    wanted = {
        "evaluation": {"tune_epochs": 3, "deliver": "best"},
        "training": TRAINING,
        "use": True,
        **changes,
    }
    perform(folder, served, models, phase="evaluate", sizes={}, round_=2, **wanted)
    content = ReportContent.from_bytes((folder / "report").read_bytes(), verified=True)
    return dict(content.numbers), models


def test_a_device_whose_samples_are_for_it_uses_the_model_after_fine_tuning(
    tmp_path: Path, single_thread: None
) -> None:
    found, models = evaluated(tmp_path, BAD)
    assert found["at_home"] == 1
    assert models.in_use is not None
    assert str(models.in_use) == "run run-1, round 2, cluster 0, fine-tuned here"
    [kept] = read_model(models.path(models.in_use)).models
    assert models.index.in_use is not None
    assert models.index.in_use.figure == ("accuracy", found["tuned"]["accuracy"])
    assert found["tuned"]["accuracy"] > 0.8 > 0.2 > found["server"]["accuracy"]
    assert not np.array_equal(LAYOUT.vector(kept), BAD)
    assert ModelDir(models.folder).in_use == models.in_use


def test_a_device_uses_the_served_model_where_fine_tuning_does_not_help(
    tmp_path: Path, single_thread: None
) -> None:
    found, models = evaluated(tmp_path, GOOD)
    assert found["at_home"] == 0
    assert models.in_use is not None
    assert not models.in_use.at_home
    [kept] = read_model(models.path(models.in_use)).models
    assert LAYOUT.vector(kept).tolist() == GOOD.tolist()


@pytest.mark.parametrize(
    "changes",
    [
        {"evaluation": {"tune_epochs": 3}},
        {"evaluation": {"tune_epochs": 0, "deliver": "best"}},
        {"use": False},
    ],
)
def test_a_device_chooses_only_when_a_model_goes_into_use(
    tmp_path: Path, single_thread: None, changes: dict[str, Any]
) -> None:
    found, models = evaluated(tmp_path, BAD, **changes)
    assert "at_home" not in found
    assert models.in_use is None or not models.in_use.at_home
