"""Unusual rows of a table, without labels and with them: what needs `in_use` and `simulate`."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.coordinator.report.tables import baseline
from covey.coordinator.run.result import result_of
from covey.extras.in_use.kept_versions import Version
from covey.extras.in_use.model_file import save_model
from covey.extras.in_use.predict import Predictor, as_csv
from covey.extras.simulate.tests.device_run import devices, scenes
from tests.agent.test_anomalies import LABELLED, rows, table

pytestmark = pytest.mark.usefixtures("single_thread")


@pytest.mark.parametrize("strategy", ["fedavg", "ditto"])
def test_a_run_finds_anomalies_and_its_model_raises_alarms(tmp_path: Path, strategy: str) -> None:
    files = {f"pump-{i}": table(tmp_path / str(i), rows(120, i, level=i % 2)) for i in range(3)}
    files["pump-3"] = table(tmp_path / "3", rows(120, 3, level=1), labelled=False)
    scene = scenes(LABELLED)(
        strategy={"name": strategy}, training={"epochs": 10, "batch": 10, "lr": 0.1}
    )
    run = devices(tmp_path / "run", scene, files)
    result = result_of(run, None).to_json()
    figures = result["accuracy"]["server"]
    assert figures["auc"]["macro"] > 0.8
    assert figures["auc"]["agents"] == 3
    assert result["measure"] == "auc"
    assert baseline(result) == ""
    if strategy != "fedavg":
        return
    layout = run.setup.layout
    assert layout.named(run.models[0])["threshold"] > 0
    file = tmp_path / "model.safetensors"
    save_model(
        file,
        Version("r", 3, None),
        run.task_of_models,
        mixture=((1.0, run.models[0]),),
        layout=layout,
    )
    found = Predictor(file)
    new = table(tmp_path / "new", ["0,0,0,0,ok", "5,-5,5,5,worn"])
    assert as_csv(found.predict(new)).splitlines()[0] == "row,score,threshold,alarm"
    assert [one.several["alarm"] for one in found.predict(new)] == [0, 1]
    assert found.score(new).figures == {"AUC": 1.0, "macro recall": 1.0, "accuracy": 1.0}
