"""Data against a task: what fits, and what is said when it does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from covey.agent.data.dataset import Dataset, dataset
from covey.agent.data.fit import fit
from covey.shared.errors import DataError
from covey.shared.scenario.task import Task


def some(
    *shape: int,
    targets: list[int] | list[float],
    labels: tuple[str, ...] = (),
    ordered: bool = False,
) -> Dataset:
    features = np.arange(len(targets) * int(np.prod(shape)), dtype=np.float32).reshape(-1, *shape)
    return dataset(features, np.array(targets), source="here.csv", labels=labels, ordered=ordered)


def test_a_table_of_64_columns_fits_images_of_8_by_8() -> None:
    data = fit(some(64, targets=[0, 1]), Task(features=(1, 8, 8), classes=2))
    assert data.shape == (1, 8, 8)
    assert data.features[1, 0, 0, 0] == 64


def test_axes_of_length_one_do_not_matter() -> None:
    assert fit(some(8, 8, targets=[0, 1]), Task(features=(1, 8, 8), classes=2)).shape == (1, 8, 8)


@pytest.mark.parametrize(
    ("have", "want", "words"),
    [
        ((5,), (6,), "5 feature columns instead of 6"),
        ((8, 8, 3), (3, 8, 8), "put the channels first"),
        ((128, 9), (9, 128), "put the channels first"),
        ((3, 8, 8), (1, 8, 8), "3 colour channels instead of 1"),
        ((1, 10, 12), (1, 8, 8), "12x10 instead of 8x8"),
        ((7,), (1, 8, 8), "7 numbers per sample instead of 64"),
    ],
)
def test_a_wrong_shape_is_refused_with_the_exact_difference(
    have: tuple[int, ...], want: tuple[int, ...], words: str
) -> None:
    with pytest.raises(DataError) as caught:
        fit(some(*have, targets=[0, 1]), Task(features=want, classes=2))
    assert words in str(caught.value)
    assert "here.csv" in str(caught.value)


def test_class_names_get_the_tasks_indices_whatever_the_devices_own_order() -> None:
    data = fit(
        some(2, targets=[0, 1, 1], labels=("cat", "dog")),
        Task(features=(2,), classes=("dog", "ant", "cat")),
    )
    assert data.targets.tolist() == [2, 0, 0]
    assert data.labels == ("dog", "ant", "cat")


def test_an_unknown_class_is_named_with_its_row() -> None:
    with pytest.raises(DataError, match=r"row 2: class 'eel' is unknown.*dog, cat"):
        fit(
            some(2, targets=[0, 1], labels=("cat", "eel")),
            Task(features=(2,), classes=("dog", "cat")),
        )
    with pytest.raises(DataError, match=r"row 3: class '2' is unknown.*0 to 1"):
        fit(some(2, targets=[0, 1, 2]), Task(features=(2,), classes=2))
    with pytest.raises(DataError, match="class '-1'"):
        fit(some(2, targets=[0, -1]), Task(features=(2,), classes=2))


def test_a_class_in_the_test_part_alone_is_checked_too() -> None:
    data = replace(
        some(2, targets=[0, 1]),
        test_features=np.ones((1, 2), np.float32),
        test_targets=np.array([9]),
    )
    with pytest.raises(DataError, match="class '9'"):
        fit(data, Task(features=(2,), classes=2))


def test_names_of_one_device_do_not_fit_a_task_that_only_counts() -> None:
    with pytest.raises(DataError, match=r"name them all in task.classes"):
        fit(some(2, targets=[0, 1], labels=("cat", "dog")), Task(features=(2,), classes=2))


def test_names_in_the_order_of_the_format_do() -> None:
    data = some(2, targets=[0, 1], labels=("plane", "car"), ordered=True)
    assert fit(data, Task(features=(2,), classes=2)).targets.tolist() == [0, 1]


def test_numbers_spelled_in_the_task_are_names_of_integers() -> None:
    data = fit(some(2, targets=[5, 3]), Task(features=(2,), classes=("3", "5")))
    assert data.targets.tolist() == [1, 0]


def test_regression_needs_values_and_classification_needs_classes() -> None:
    assert fit(some(2, targets=[1, 2]), Task(features=(2,))).targets.dtype == np.float32
    with pytest.raises(DataError, match=r"a target is 0\.5"):
        fit(some(2, targets=[0.5, 1.0]), Task(features=(2,), classes=2))
    with pytest.raises(DataError, match="class names"):
        fit(some(2, targets=[0, 1], labels=("a", "b")), Task(features=(2,)))


def test_bytes_stay_bytes() -> None:
    data = dataset(np.zeros((2, 4), np.uint8), np.array([0, 1]), source="x")
    assert fit(data, Task(features=(4,), classes=2, scale=1 / 255)).features.dtype == np.uint8


def test_values_that_are_whole_numbers_in_one_part_stay_values() -> None:
    data = dataset(
        np.ones((2, 1)), np.array([1.0, 2.0]), (np.ones((1, 1)), np.array([0.5])), source="x"
    )
    assert fit(data, Task(features=(1,))).test_targets.tolist() == [0.5]
    with pytest.raises(DataError, match=r"a target is 0\.5"):
        fit(data, Task(features=(1,), classes=3))
