"""What an agent's own worker answers to a coordinator that asks for figures, in order to learn what a sum or noise hides.

The orders are those of attacks that succeeded: figures of a fine-tuned model told training rows apart, and figures of models
that the coordinator chose gave one agent's update for any model.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.agent.policy import Policy, Rules
from covey.agent.worker.worker import answer
from covey.shared.client import encode_model
from covey.shared.numerics.vectors import Layout
from covey.shared.wire.codec import Codec
from covey.shared.wire.messages import ModelRef, ReportContent, digest
from tests.attacks.rogue import order

DATA = Path(__file__).parent.parent.parent / "examples" / "diabetes" / "device-1.csv"
COLUMNS = 10
TASK: dict[str, Any] = {
    "features": [COLUMNS],
    "classes": None,
    "target": "progression",
    "model": {"name": "linear", "options": {}},
    "standardise": {
        "mean": [48, 1.4, 26, 94, 189, 115, 49, 4, 4.6, 91],
        "std": [13, 0.5, 4.4, 14, 34, 30, 13, 1.3, 0.5, 11.5],
    },
    "target_scale": {"mean": 152, "std": 77},
}
LAYOUT = {"tensors": [["fc.weight", [1, COLUMNS]], ["fc.bias", [1]]], "trainable": 2}
VALUES = COLUMNS + 1
NOISY = {
    "local": {
        "noise_multiplier": 100.0,
        "target_epsilon": None,
        "max_grad_norm": 1.0,
        "delta": 1e-5,
    },
    "signatures": None,
    "rounds": 1,
}
EVERYTHING = {"tune_epochs": 1, "knn": 3, "track": True, "deliver": "best"}
SEED = 3


class Device:
    """A device with the product's own worker, whose answers the coordinator reads."""

    def __init__(self, folder: Path, limit: str = "", data: Path = DATA) -> None:
        self._folder = folder
        self._data = data
        self._rules = Rules(Policy().with_limits([limit] if limit else []), learner="numpy")

    def report(self, model: Any = None, **work: Any) -> ReportContent:
        """What leaves the device after an order with this model."""
        folder = self._folder
        vector = np.zeros(VALUES, np.float32) if model is None else np.asarray(model, np.float32)
        rng = np.random.default_rng(0)
        content = encode_model(vector, Layout.from_wire(LAYOUT).digest, Codec("float32"), rng)
        path = folder / f"{digest(content).hex()}.model"
        path.write_bytes(content)
        ref = ModelRef(key="0", digest=digest(content), parts=1, size=len(content))
        training = {"epochs": 1, "batch": 10_000, "lr": 0.05}
        asked = {"task": TASK, "layout": LAYOUT, "models": [ref], "training": training, **work}
        job: dict[str, Any] = {
            "job": "perform",
            "order": order(**asked).to_bytes(),
            "models": [str(path)],
            "memory": "",
            "client": "a1",
            "source": {"data": str(self._data), "label": "progression"},
            "report_out": str(folder / "report"),
            "memory_out": str(folder / "memory"),
            "durable": False,
            "secure": str(folder / "secure"),
            "account": str(folder / "privacy.json"),
            "keep": None,
            **self._rules.to_wire(),
        }
        answer(job)
        return ReportContent.from_bytes((folder / "report").read_bytes(), verified=True)


def with_another_target(row: int, folder: Path) -> Path:
    """The device's table with one other target."""
    table = list(csv.reader(DATA.open()))
    table[row][-1] = "25"
    changed = folder / f"{row}.csv"
    with changed.open("w") as file:
        csv.writer(file).writerows(table)
    return changed


def figures(report: ReportContent) -> Mapping[str, Any]:
    assert report.failure is None, report.failure
    return report.numbers


@pytest.mark.parametrize("limit", ["", "privacy={local_epsilon: 0.1}"])
@pytest.mark.parametrize("method", ["fedavg", "ditto", "local"])
def test_no_figure_of_an_evaluation_tells_training_rows_apart_where_dp_sgd_hides_them(
    tmp_path: Path, method: str, limit: str
) -> None:
    asked = {
        "phase": "evaluate",
        "strategy": {"name": method},
        "evaluation": EVERYTHING,
        "privacy": NOISY,
    }
    honest = figures(Device(tmp_path, limit).report(**asked))
    changed = [
        figures(Device(tmp_path, limit, with_another_target(row, tmp_path)).report(**asked))
        for row in range(1, 9)
    ]
    of_training = [one for one in changed if one.get("server") == honest.get("server")]
    assert of_training, "no row of these is a training row"
    assert all(one == honest for one in of_training)


def test_a_device_that_demands_sums_gives_no_figure_of_models_that_a_coordinator_chose(
    tmp_path: Path,
) -> None:
    device = Device(tmp_path, "privacy={secure_least: 5}")
    unit = np.eye(VALUES)
    asked = [np.zeros(VALUES), *unit, *-unit, *(one + unit[0] for one in unit[1:])]
    for model in asked:
        report = device.report(model, phase="evaluate", evaluation=EVERYTHING)
        assert figures(report) == {}
