"""What an agent's own worker answers to a coordinator that asks for figures, in order to learn what a sum or noise hides.

The orders are those of attacks that succeeded: figures of a fine-tuned model separated training rows, and figures of models
that the coordinator chose gave one agent's update for any model.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey.agent.policy import OwnersRules, Policy
from covey.agent.worker.memory_file import StoredMemory
from covey.agent.worker.worker import answer
from covey.shared.numerics.vectors import Layout
from covey.shared.scenario.task import Task
from covey.shared.strategies.client_half import LAST_MODEL
from covey.shared.strategies.phase_names import CARD
from covey.shared.wire.codec import Codec, encode_model
from covey.shared.wire.jobs import DeviceData, InspectData, Perform
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
NOISY: dict[str, Any] = {
    "local": {
        "noise_multiplier": 100.0,
        "target_epsilon": None,
        "max_grad_norm": 1.0,
        "delta": 1e-5,
    },
    "signatures": None,
    "rounds": 1,
}
EVERYTHING = {"tune_epochs": 1, "track": True, "deliver": {}}
JUDGED: dict[str, Any] = {"numbers": {"judge": 0}}
ILL = "age,ill\n50,yes\n60,no\n70,yes\n80,no\n55,yes\n65,no\n75,yes\n85,no\n"


class Device:
    """A device with the product's own worker, whose answers the coordinator reads."""

    def __init__(
        self, folder: Path, limit: str = "", data: Path = DATA, learner: str = "numpy"
    ) -> None:
        self.folder = folder
        self.memory: Path | None = None  # of work that was accepted
        self._data = data
        self._rules = OwnersRules(Policy().with_limits([limit] if limit else []), learner=learner)

    def report(self, model: Any = None, own: Any = None, **work: Any) -> ReportContent:
        """What leaves the device after an order with this model, and with first values of what it keeps."""
        answer(self.job(model, own, **work))
        return ReportContent.from_bytes((self.folder / "report").read_bytes(), verified=True)

    def job(self, model: Any = None, own: Any = None, **work: Any) -> Perform:
        """The worker's job of that order."""
        folder = self.folder
        vector = np.zeros(VALUES, np.float32) if model is None else np.asarray(model, np.float32)
        named = {"0": vector} if own is None else {"0": vector, "own": own}
        layout = Layout.from_wire(work.get("layout", LAYOUT))
        files = {key: self._file(one, layout) for key, one in named.items()}
        refs = [
            ModelRef(key=key, digest=digest(file.read_bytes()), parts=1, size=file.stat().st_size)
            for key, file in files.items()
        ]
        training = {"epochs": 1, "batch": 10_000, "lr": 0.05}
        asked = {"layout": LAYOUT, "models": refs, "training": training, **work}
        asked["task"] = Task.model_validate(work.get("task", TASK)).for_agents()
        return Perform(
            order=order(**asked).to_bytes(),
            models=list(files.values()),
            memory=self.memory,
            client="a1",
            source=DeviceData(data=str(self._data)),
            report_out=folder / "report",
            memory_out=folder / "memory",
            durable=False,
            secure=folder / "secure",
            account=folder / "privacy.json",
            rules=self._rules.for_job(),
        )

    def _file(self, vector: Any, layout: Layout) -> Path:
        rng = np.random.default_rng(0)
        content = encode_model(vector, layout.digest, Codec("float32"), rng)
        path = self.folder / f"{digest(content).hex()}.model"
        path.write_bytes(content)
        return path

    def problem(self, guess: str, target: str, other: str) -> str:
        """What the device's status gives as the reason why its data does not fit a task."""
        task = {
            "features": [1],
            "columns": [other],
            "target": target,
            "classes": [guess, "x"],
            "model": {"name": "linear"},
        }
        source = DeviceData(data=str(self._data))
        return str(
            answer(InspectData(source=source, task=task, rules=self._rules.for_job())).problem
        )


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


@pytest.mark.whole
@pytest.mark.parametrize("limit", ["", "privacy={local_epsilon: 0.1}"])
@pytest.mark.parametrize("method", ["fedavg", "ditto", "local"])
def test_no_figure_of_an_evaluation_depends_on_training_rows_that_dp_sgd_hides(
    tmp_path: Path, method: str, limit: str
) -> None:
    asked = {
        "phase": "evaluate",
        "strategy": {"name": method},
        "evaluation": EVERYTHING,
        "numbers": {"judge": 0},
        "privacy": NOISY,
    }
    honest = figures(Device(tmp_path, limit).report(**asked))
    changed = [
        figures(Device(tmp_path, limit, with_another_target(row, tmp_path)).report(**asked))
        for row in range(1, 5)
    ]
    of_training = [one for one in changed if one.get("server") == honest.get("server")]
    assert of_training, "no row of these is a training row"
    assert all(one == honest for one in of_training)


@pytest.mark.whole
@pytest.mark.parametrize("method", ["ditto", "local"])
def test_a_model_that_trained_at_home_without_noise_is_in_no_figure_and_neither_is_its_loss(
    tmp_path: Path, method: str
) -> None:
    """Before: the losses and steps of `local`, and the figures of both."""
    pytest.importorskip("opacus")
    device = Device(tmp_path, learner="torch")
    asked = {"strategy": {"name": method}, "privacy": NOISY}
    sizes = {"model": VALUES} if method == "ditto" else {}
    numbers = {"epochs": 1} if method == "local" else {}
    trained = device.report(sizes=sizes, numbers=numbers, **asked)
    assert (trained.loss, trained.steps) == (0.0, 0)
    assert figures(trained).keys() <= {"epsilon"}
    device.memory = tmp_path / "memory"
    assert figures(device.report(phase="evaluate", evaluation=EVERYTHING, **JUDGED, **asked)) == {}


@pytest.mark.whole
def test_values_that_a_device_keeps_enter_the_next_training_with_the_noise_of_this_one(
    tmp_path: Path,
) -> None:
    """Ditto trains its own model last, without noise: the kept values were those, and the next report grew from them."""
    pytest.importorskip("opacus")
    local = {**NOISY["local"], "max_grad_norm": 1e-6}  # so that a step with noise is small
    Device(tmp_path, learner="torch").report(
        np.zeros(COLUMNS),
        np.zeros(1, np.float32),
        task={**TASK, "keep": ["fc.bias"]},
        strategy={"name": "ditto"},
        sizes={"model": COLUMNS},
        privacy={**NOISY, "local": local},
    )
    memory = StoredMemory(tmp_path / "memory")
    assert np.abs(memory["own"]).max() > 1e-3, "its own model has learned"
    assert np.abs(memory[LAST_MODEL][COLUMNS:]).max() < 1e-3


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (
            {"label_prior": "on"},
            "task.label_prior adds counts of this device's classes without noise",
        ),
        ({"numbers": {"prior": 1}}, "numbers.prior: the method fedavg declares no such number"),
    ],
)
@pytest.mark.parametrize("phase", ["train", "evaluate"])
@pytest.mark.parametrize("limit", ["", "privacy={local_epsilon: 8}"])
def test_counts_of_classes_do_not_enter_a_training_or_a_figure_that_dp_sgd_hides(
    tmp_path: Path, asked: dict[str, Any], why: str, phase: str, limit: str
) -> None:
    """With the label prior, one example's class changes the outputs for all, and the clip bounds no more what it changes."""
    pytest.importorskip("opacus")
    data = tmp_path / "ill.csv"
    data.write_text(ILL)
    prior = asked.get("label_prior", "auto")
    of_classes = {"features": [1], "columns": ["age"], "target": "ill", "classes": ["no", "yes"]}
    report = Device(tmp_path, limit, data, "torch").report(
        np.zeros(4),
        phase=phase,
        task={**of_classes, "model": {"name": "linear"}, "label_prior": prior},
        layout={"tensors": [["fc.weight", [2, 1]], ["fc.bias", [2]]], "trainable": 2},
        training={"epochs": 1, "batch": 4, "lr": 0.1},
        sizes={"model": 4} if phase == "train" else {},
        numbers=asked.get("numbers", {}),
        privacy=NOISY,
    )
    assert why in str(report.failure)


@pytest.mark.whole
def test_an_order_without_a_number_of_its_phase_is_refused_by_the_name_of_the_number(
    tmp_path: Path,
) -> None:
    report = Device(tmp_path).report(
        np.zeros(COLUMNS), phase="vote", strategy={"name": "pacfl"}, sizes={}
    )
    assert report.failure == "numbers.share is missing; the order is refused"


@pytest.mark.whole
def test_a_card_has_no_noise_and_stays_where_the_owner_demands_dp_sgd(tmp_path: Path) -> None:
    """The coordinator asks for DP-SGD as it must, and for sums of the samples as well."""
    pytest.importorskip("opacus")
    device = Device(tmp_path, "privacy={local_epsilon: 8}", learner="torch")
    report = device.report(
        phase="signature",
        strategy={"name": "fedclust"},
        numbers={CARD: 1},
        sizes={"signature": VALUES},
        privacy=NOISY,
    )
    assert report.vectors == {}
    assert "DP-SGD: what reads training samples leaves this device with noise alone" in str(
        report.failure
    )


@pytest.mark.whole
def test_a_device_that_demands_sums_gives_no_figure_of_models_that_a_coordinator_chose(
    tmp_path: Path,
) -> None:
    device = Device(tmp_path, "privacy={secure_least: 5}")
    unit = np.eye(VALUES)
    asked = [np.zeros(VALUES), *unit, *-unit, *(one + unit[0] for one in unit[1:])]
    for model in asked:
        report = device.report(model, phase="evaluate", evaluation=EVERYTHING, **JUDGED)
        assert figures(report) == {}


KEPT = ["labels=hidden", "words=hidden", "privacy={secure_least: 5}", "privacy={local_epsilon: 1}"]


@pytest.mark.parametrize("limit", KEPT)
def test_the_faults_that_a_device_finds_for_made_up_tasks_are_no_way_to_its_rows(
    tmp_path: Path, limit: str
) -> None:
    """Each list of classes gave the first row that has another class, and how many classes are unknown."""
    data = tmp_path / "ill.csv"
    data.write_text(ILL)
    device = Device(tmp_path, limit, data)
    told = set()
    for guess in ("yes", "no", "perhaps", "50"):
        for target, other in (("ill", "age"), ("age", "ill")):
            told.add(device.problem(guess, target, other))
    assert told == {""}


def test_a_device_that_keeps_nothing_back_names_the_row_that_does_not_fit(tmp_path: Path) -> None:
    data = tmp_path / "ill.csv"
    data.write_text(ILL)
    assert "row 2: its class is unknown" in Device(tmp_path, "", data).problem("yes", "ill", "age")
