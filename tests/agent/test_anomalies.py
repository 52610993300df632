"""Unusual rows of a table, without labels and with them: from files to figures, thresholds and alarms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from covey.agent.data.check import load_local
from covey.agent.data.fit import fit
from covey.agent.data.tables import load_table
from covey.agent.training.learner import TorchLocal
from covey.agent.training.models import initial
from covey.shared.numerics.figures import anomaly_figures, errors, figures_of
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.scenario.task import Task
from covey.shared.seeds import generator
from covey.shared.strategies.base import Training

pytestmark = pytest.mark.usefixtures("single_thread")

DOCUMENT: dict[str, Any] = {
    "features": [4],
    "columns": ["a", "b", "c", "d"],
    "anomalies": {"quantile": 0.9},
    "standardise": "federated",
    "model": {"name": "autoencoder", "options": {"hidden": [2]}},
}
LABELLED: dict[str, Any] = DOCUMENT | {"target": "state", "classes": ["ok", "worn", "loose"]}
TASK = Task.model_validate(LABELLED)


def rows(count: int, seed: int, *, level: float = 0.0) -> list[str]:
    """Four columns that follow two hidden ones. Every tenth row breaks the rule."""
    rng = generator(seed, "rows")
    hidden = rng.normal(size=(count, 2))
    mixed = hidden @ np.array([[1, 1, 0, 1], [0, 1, 1, -1]]) + level
    lines = []
    for number, row in enumerate(mixed):
        broken = number % 10 == 9
        values = row + rng.normal(size=4) * (2.0 if broken else 0.05)
        lines.append(",".join(f"{value:.4f}" for value in values) + (",worn" if broken else ",ok"))
    return lines


def table(folder: Path, lines: list[str], *, labelled: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    header = "a,b,c,d"
    if labelled:
        header += ",state"
    else:
        lines = [line.rpartition(",")[0] for line in lines if line.endswith(",ok")]
    path = folder / "rows.csv"
    path.write_text("\n".join([header, *lines]))
    return path


def test_rows_that_a_label_calls_unusual_test_and_never_train(tmp_path: Path) -> None:
    data = load_local(str(table(tmp_path, rows(100, 1))), None, Task.model_validate(LABELLED))
    assert not data.targets.any()
    assert len(data.targets) == 72  # nine tenths of 80
    assert int(data.test_targets.sum()) == 10


def test_a_test_part_of_its_own_keeps_its_rows_and_unusual_training_rows_are_left_out(
    tmp_path: Path,
) -> None:
    train, test = table(tmp_path, rows(50, 1)), table(tmp_path / "test", rows(30, 2))
    data = fit(load_table(train, test=test, task=TASK), TASK)
    assert (len(data.targets), len(data.test_targets)) == (45, 30)
    assert int(data.test_targets.sum()) == 3


def test_windows_that_share_rows_with_unusual_ones_are_in_neither_part(tmp_path: Path) -> None:
    lines = [line for line in rows(100, 1) if line.endswith("ok")]
    lines[40] = lines[40].replace("ok", "worn")
    task = Task.model_validate(LABELLED | {"features": [4, 3], "window": {"rows": 3, "stride": 1}})
    data = load_local(str(table(tmp_path, lines)), None, task)
    assert data.test_targets.tolist().count(True) == 1
    first = [float(line.split(",")[0]) for line in lines[38:43]]
    assert not np.isin(np.float32(first[2]), data.features[:, 0])


def test_a_table_without_labels_has_usual_rows_only(tmp_path: Path) -> None:
    path = table(tmp_path, rows(50, 1), labelled=False)
    for document in (DOCUMENT, LABELLED):  # a device may lack the column
        data = load_local(str(path), None, Task.model_validate(document))
        assert data.targets.dtype == np.bool_
        assert len(data.targets) == 36
        assert not data.test_targets.any()


def trained(document: dict[str, Any], path: Path) -> tuple[TorchLocal, Vector, Layout]:
    task = Task.model_validate(document | {"standardise": "none"})
    start, layout = initial(task, 3)
    settings = Training(epochs=30, batch=10, lr=0.05, momentum=0.5)
    local = TorchLocal(
        load_local(str(path), None, task), task, layout, training=settings, rng=generator(1, "test")
    )
    return local, start, layout


def test_the_loss_is_the_error_of_reconstruction_and_its_quantile_the_threshold(
    tmp_path: Path,
) -> None:
    local, start, layout = trained(LABELLED, table(tmp_path, rows(200, 1)))
    result = local.train(start)
    assert local.loss(result.end) < local.loss(start) / 3
    thresholds, found = local.predict(result.end, "train").T
    assert found == pytest.approx(local.losses(result.end))
    assert layout.named(result.end)["threshold"] == pytest.approx(np.quantile(found, 0.9))
    assert np.ptp(thresholds) == 0
    named = layout.named(result.end)
    hidden = np.maximum(local.inputs() @ named["layers.fc1.weight"].T + named["layers.fc1.bias"], 0)
    outputs = hidden @ named["layers.fc2.weight"].T + named["layers.fc2.bias"]
    assert found == pytest.approx(((outputs - local.inputs()) ** 2).mean(axis=1), rel=1e-4)
    assert not local.gradient(start)[layout.parameters :].any()


def test_figures_of_alarms_are_known_by_hand() -> None:
    truth = np.array([False, False, False, True, True])
    found = np.array([[2, 1], [2, 1], [2, 3], [2, 9], [2, 1.5]], np.float64)
    figures = figures_of(truth, found)
    assert figures == anomaly_figures(truth, found)
    assert (figures["n"], figures["correct"], figures["loss"]) == (5, 3, pytest.approx(5 / 3))
    assert figures["auc"] == pytest.approx(5 / 6)
    assert figures["recall"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert errors(truth, found, "auc").tolist() == [1, 1, 3, 9, 1.5]
    usual = figures_of(truth[:3], found[:3])
    assert "auc" not in usual
    assert usual["accuracy"] == pytest.approx(2 / 3), "what raises no alarm"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"model": "mlp"}, "model is mlp"),
        ({"anomalies": None, "classes": 2}, "autoencoder needs anomalies"),
        ({"classes": 3}, "usual samples first"),
        ({"anomalies": {"quantile": 1.0}}, "less than 1"),
        ({"label_prior": "on"}, "label_prior is for classes"),
    ],
)
def test_a_task_that_cannot_find_anomalies_is_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Task.model_validate(DOCUMENT | change)


def test_a_task_of_anomalies_completes_its_classes_and_its_measure() -> None:
    task = Task.model_validate(DOCUMENT)
    assert (task.classes, task.measure, task.outputs) == (("normal", "anomaly"), "loss", 2)
    assert Task.model_validate(LABELLED).measure == "auc"
    assert Task.model_validate(task.for_agents()).digest == task.digest
