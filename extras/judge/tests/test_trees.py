"""Trees of a device's table: fitted once for the same samples, whichever method asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from covey.extras.judge import trees
from covey.extras.judge.trees import Trees
from covey.shared.scenario.task import Task

pytest.importorskip("sklearn")
COLUMNS: dict[str, Any] = {"features": [3], "columns": ["a", "b", "c"], "target": "state"}
CLASSES = Task.model_validate({**COLUMNS, "classes": ["no", "yes"]})
VALUES = Task.model_validate({**COLUMNS, "classes": None})
TABLE = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)


@dataclass
class Samples:
    """The training samples of a device."""

    table: npt.NDArray[np.float32]
    of_target: npt.NDArray[Any]

    def rows(self, _split: str) -> npt.NDArray[np.float32]:
        return self.table

    def targets(self, _split: str) -> npt.NDArray[Any]:
        return self.of_target


def fitted(samples: Samples, task: Task = CLASSES) -> Trees:
    made = trees.trees_for(task)
    assert made is not None
    found: Any = samples
    return made(found)


def samples(table: npt.NDArray[np.float32] = TABLE) -> Samples:
    """New arrays in each call, as a device has in each run."""
    return Samples(table.copy(), (table[:, 0] > 0).astype(np.int64))


def test_the_methods_of_a_comparison_share_the_trees_of_a_device() -> None:
    first = fitted(samples())
    assert fitted(samples()) is first
    assert np.array_equal(first.rows, TABLE)


@pytest.mark.parametrize(
    ("other", "task"),
    [
        (samples(TABLE + 1), CLASSES),
        (samples(TABLE[:, ::-1]), CLASSES),
        (samples(TABLE[:30]), CLASSES),
        (samples(TABLE.reshape(60, 2)), CLASSES),
        (Samples(TABLE, 1 - samples().of_target), CLASSES),
        (Samples(TABLE, TABLE[:, 0]), VALUES),
    ],
)  # fmt: skip
def test_other_samples_have_trees_of_their_own(other: Samples, task: Task) -> None:
    own = fitted(other, task)
    assert own is not fitted(samples())
    alone = Trees.of(other.table, other.of_target, task.outputs)
    if own.model is not None:
        assert np.array_equal(own.model.predict(other.table), alone.model.predict(other.table))


def test_trees_of_many_rows_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some dozens of them would take the memory of a small device."""
    monkeypatch.setattr(trees, "LARGE", TABLE.nbytes - 1)
    assert fitted(samples()) is not fitted(samples())
