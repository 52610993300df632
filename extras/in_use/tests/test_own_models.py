"""What a device uses: what its judge chooses, kept, and predicted with."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from covey.agent.cli.program import app
from covey.agent.data.dataset import Dataset, RawColumns, folds, take
from covey.extras.in_use.model_dir import ModelDir
from covey.extras.in_use.model_file import read_model
from covey.extras.in_use.predict import Predictor
from covey.extras.in_use.tests.test_held_back import numbered, numbers
from covey.extras.in_use.tests.test_kept import BAD, GOOD, LAYOUT, perform, samples
from covey.shared.candidate_names import in_words
from covey.shared.wire.jobs import Failure
from covey.shared.wire.messages import ReportContent

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
    assert not list(folds(numbered(2), 3, "pi-1"))
    assert not list(folds(replace(numbered(60), overlap=60), 3, "pi-1"))
    copies = take(numbered(2), np.arange(48) % 2)
    assert not list(folds(copies, 3, "pi-1"))


# -- the worker --------------------------------------------------------------------------------------------------------


def evaluated(
    folder: Path, served: np.ndarray[Any, Any], **changes: Any
) -> tuple[dict[str, Any], ModelDir]:
    """The numbers of the report of the last evaluation, and the models on the device."""
    models = ModelDir(folder / "models")
    wanted = {
        "evaluation": {"tune_epochs": 3, "deliver": {}},
        "numbers": {"judge": 0},
        "training": TRAINING,
        "use": True,
        **changes,
    }
    kept = perform(folder, served, models, phase="evaluate", sizes={}, round_=2, **wanted)
    assert not isinstance(kept, Failure), kept
    content = ReportContent.from_bytes((folder / "report").read_bytes(), verified=True)
    return dict(content.numbers), models


def test_a_device_uses_the_mixture_that_its_samples_are_for(
    tmp_path: Path, single_thread: None
) -> None:
    found, models = evaluated(tmp_path, BAD)
    assert sum(found["weights"].values()) == pytest.approx(1)
    assert set(found["uses"]) < set(found["weights"])
    assert found["gain"][0] > 0
    assert found["delivered"]["accuracy"] > 0.8 > 0.2 > found["server"]["accuracy"]
    assert models.in_use is not None
    assert models.index.in_use is not None
    assert models.index.in_use.figure == ("accuracy", found["delivered"]["accuracy"])
    assert str(models.in_use) == f"run run-1, round 2, group 0: {in_words(found['uses'])}"
    assert models.index.note == "in use: run run-1, round 2, group 0", "a status shows no weights"
    assert ModelDir(models.folder).in_use == models.in_use


def test_predictions_are_those_of_e_delivered(tmp_path: Path, single_thread: None) -> None:
    found, models = evaluated(tmp_path, BAD)
    assert models.in_use is not None
    predictor = Predictor(models.path(models.in_use))
    assert predictor.uses == in_words(found["uses"])
    assert not predictor.uses_none
    path = samples(tmp_path)
    is_yes = np.load(path)["x"][:, 0] > 0
    right = [
        (one.prediction == "yes") == truth
        for one, truth in zip(predictor.predict(path), is_yes, strict=True)
    ]
    assert np.mean(right) > 0.8


def test_a_device_uses_the_served_model_where_a_mixture_is_no_better(
    tmp_path: Path, single_thread: None
) -> None:
    found, models = evaluated(tmp_path, GOOD)
    assert found["uses"] == {"served": 1.0}
    assert found["delivered"] == found["server"]
    assert models.in_use is not None
    first, *_ = read_model(models.path(models.in_use)).models
    assert LAYOUT.vector(first).tolist() == GOOD.tolist()


def test_a_device_without_anything_better_than_the_constant_answers_with_it_and_states_this(
    tmp_path: Path, single_thread: None
) -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(0, 1, (200, 2)).astype(np.float32)
    y = (generator.random(200) < 0.3).astype(np.int64)  # chance
    np.savez(tmp_path / "noise.npz", x=x, y=y)
    found, models = evaluated(tmp_path, BAD, data="noise.npz")
    assert found["uses"] == {"none": 1.0}
    assert models.in_use is not None
    assert models.in_use.uses == "no model, but the constant"
    path = models.path(models.in_use)
    assert LAYOUT.vector(read_model(path).models[0]).tolist() == BAD.tolist()
    predictor = Predictor(path)
    assert predictor.uses_none
    [only] = {one.prediction for one in predictor.predict(tmp_path / "noise.npz")}
    assert only == "no"
    shown = CliRunner().invoke(
        app, ["predict", "--model", str(path), "--data", str(tmp_path / "noise.npz")]
    )
    assert "no model is better than the constant" in shown.stderr


@pytest.mark.parametrize("changes", [{"evaluation": {"tune_epochs": 3}}, {"numbers": {}}])
def test_a_device_judges_only_in_the_last_evaluation(
    tmp_path: Path, single_thread: None, changes: dict[str, Any]
) -> None:
    found, models = evaluated(tmp_path, BAD, **changes)
    assert not {"uses", "delivered", "weights", "gain"} & set(found)
    assert models.in_use is None or not models.in_use.uses
