"""Windows whose targets are the values of the rows after them: what needs `in_use` and `light`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from covey.agent.data.check import load_local
from covey.coordinator.processes.launch import setup_of
from covey.coordinator.report.tables import regression
from covey.coordinator.run.result import result_of
from covey.extras.in_use.kept_versions import Version
from covey.extras.in_use.model_file import save_model, task_with_scaling
from covey.extras.in_use.predict import Predictor, as_csv
from covey.extras.in_use.unlabelled import load_unlabelled
from covey.extras.light.numpy_learner import NumpyLocal, layout_of_task
from covey.shared.strategies.base import Training
from covey.shared.strategies.client_half import Local
from covey.shared.wire.messages import OrderMessage
from covey.shared.work.at_hand import shuffle
from tests.agent.test_forecasts import DOCUMENT, TASK, table
from tests.kit.local_clients import local_driver
from tests.kit.small_run import rules, scenario

pytestmark = pytest.mark.usefixtures("single_thread")


def test_a_run_has_an_error_for_each_step_and_its_model_forecasts_the_newest_window(
    tmp_path: Path,
) -> None:
    task = {**DOCUMENT, "classes": None}
    scene = scenario("fedavg", task=task, training={"epochs": 5, "lr": 0.2})
    layout = layout_of_task(TASK)
    setup = setup_of(scene, [np.zeros(layout.size, np.float32)], layout)
    paths = {f"agent-{i}": table(tmp_path / str(i), 80, phase=i) for i in range(8)}
    data = {client: load_local(str(path), None, TASK) for client, path in paths.items()}

    def local_for(client: str, order: OrderMessage) -> Local:
        assert order.work is not None
        training = Training.model_validate(order.work.training)
        return NumpyLocal(
            data[client], TASK, layout, training=training, rng=shuffle(order.work, client)
        )

    driver = local_driver(tmp_path / "run", scene, setup, rules(scene), local_for)
    run = driver.complete({client: (len(one.targets),) * 2 for client, one in data.items()})
    result = result_of(run, None).to_json()
    maes = result["accuracy"]["server"]["maes"]
    assert len(maes) == 2
    assert max(maes) < 0.5, "the mean of a wave is off by 0.64"
    assert "MAE by step" in regression(result)

    file = tmp_path / "model.safetensors"
    stored = task_with_scaling(TASK.model_dump(mode="json"), None)
    save_model(file, Version("r", 3, None), stored, mixture=((1.0, run.models[0]),), layout=layout)
    newest = load_unlabelled(paths["agent-0"], TASK)
    assert newest.rows[-1] == 80, "no row has to follow the newest window"
    predictor = Predictor(file)
    found = predictor.predict(paths["agent-0"])
    assert len(found[-1].several) == 2
    assert as_csv(found).splitlines()[0] == "row,prediction_1,prediction_2"
    assert predictor.score(paths["agent-0"]).figures["MAE"] < 0.5
