"""Several labels, each of which a row has or not: what needs `in_use` and `simulate`."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.coordinator.run.result import result_of
from covey.extras.in_use.kept_versions import Version
from covey.extras.in_use.model_file import save_model
from covey.extras.in_use.predict import Predictor, as_csv
from covey.extras.simulate.tests.device_run import devices, scenes
from tests.agent.test_labels import DOCUMENT, table

pytestmark = pytest.mark.usefixtures("single_thread")


@pytest.mark.parametrize("strategy", ["fedavg", "kin", "flux", "pacfl"])
def test_a_run_learns_several_labels_and_its_model_predicts_each(
    tmp_path: Path, strategy: str
) -> None:
    files = {f"site-{i}": table(tmp_path / str(i), 80, i) for i in range(4)}
    scene = scenes(DOCUMENT)(
        strategy={"name": strategy}, training={"epochs": 5, "batch": 8, "lr": 0.5}
    )
    run = devices(tmp_path / "run", scene, files)
    result = result_of(run, None).to_json()
    assert result["measure"] == "f1"
    assert result["accuracy"]["server"]["f1"]["macro"] > 0.8
    if strategy != "fedavg":
        return
    file = tmp_path / "model.safetensors"
    mixture = ((1.0, run.models[0]),)
    save_model(
        file, Version("r", 3, None), run.task_of_models, mixture=mixture, layout=run.setup.layout
    )
    predictor = Predictor(file)
    new = tmp_path / "new.csv"
    new.write_text("y,x\n-9,5\n5,9")
    found = predictor.predict(new)
    assert as_csv(found).splitlines()[0] == (
        "row,prediction_right,probability_right,prediction_high,probability_high,"
        "prediction_far,probability_far"
    )
    assert [one.several["prediction_high"] for one in found] == [0, 1]
    assert [one.prediction for one in found] == ["right", "right, high, far"]
    assert predictor.score(files["site-0"]).figures["macro F1"] > 0.8
