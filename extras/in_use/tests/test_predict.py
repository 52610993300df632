"""`agent predict`: the same preparation as training, files without targets, names, probabilities and units."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from covey.agent.cli.program import app
from covey.agent.policy import OwnersRules, Policy
from covey.extras.in_use.kept_versions import Version
from covey.extras.in_use.model_dir import ModelDir
from covey.extras.in_use.model_file import save_model
from covey.extras.in_use.predict import Predictor, predict, trains_on
from covey.extras.in_use.tests.test_kept import BAD, GOOD, LAYOUT, TASK
from covey.shared.errors import DataError, UserError
from covey.shared.scenario.task import Model, Standardise, Task

ROWS = ((1.5, 0.0), (-2.0, 1.0), (0.5, 9.0))


def table(path: Path, *targets: str, header: str = "a,b") -> Path:
    with path.open("w", newline="") as file:
        file.write(header + "\n")
        writer = csv.writer(file)
        for number, row in enumerate(ROWS):
            writer.writerow([*row, *targets[number : number + 1]])
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "cluster-0.safetensors"
    save_model(path, Version("r1", 3, 0), TASK.for_agents(), mixture=((1.0, GOOD),), layout=LAYOUT)
    return path


def test_classes_have_names_and_probabilities(tmp_path: Path, model: Path) -> None:
    found = predict(model, table(tmp_path / "new.csv"))
    assert [one.prediction for one in found] == ["yes", "no", "yes"]
    expected = [1 / (1 + np.exp(-2 * abs(a))) for a, _ in ROWS]
    assert [one.probability for one in found] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("header", "label"), [("a,b,label", None), ("a,b,z", None), ("a,b,z", "z"), ("y,b,label", None)]
)
def test_a_target_column_is_left_out_whatever_it_holds(
    tmp_path: Path, model: Path, header: str, label: str | None
) -> None:
    path = table(tmp_path / "new.csv", "", "?", "unheard of", header=header)
    plain = predict(model, table(tmp_path / "plain.csv"))
    assert predict(model, path, label or ("label" if header.startswith("y") else None)) == plain


def test_one_row_and_arrays_are_enough(tmp_path: Path, model: Path) -> None:
    np.savez(tmp_path / "new.npz", x=np.array(ROWS[:1], np.float32))
    [only] = predict(model, tmp_path / "new.npz")
    assert only.prediction == "yes"
    one = tmp_path / "one.csv"
    one.write_text("a,b\n-1,0\n")
    assert [found.prediction for found in predict(model, one)] == ["no"]


def test_the_devices_own_function_gives_the_samples(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_reader.py").write_text(
        "import numpy as np\n"
        "def load(path):\n"
        "    cells = np.loadtxt(path, delimiter=',', skiprows=1, usecols=(0, 1))\n"
        "    return cells, np.zeros(len(cells), int)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    file = table(tmp_path / "new.csv", header="a,b")
    given = Path(f"own_reader:load:{file}")
    assert [one.prediction for one in predict(model, given)] == [
        one.prediction for one in predict(model, file)
    ]


def test_a_mixture_is_mixed_and_inputs_are_standardised(tmp_path: Path) -> None:
    scaling = Standardise(mean=(10.0, 0.0), std=(2.0, 1.0))
    task = TASK.model_copy(update={"standardise": scaling}).for_agents()
    path = tmp_path / "mixed.safetensors"
    save_model(path, Version("r1", 3), task, mixture=((0.9, GOOD), (0.1, BAD)), layout=LAYOUT)
    [first, *_] = predict(path, table(tmp_path / "new.csv"))
    share = 1 / (1 + np.exp(2 * (1.5 - 10) / 2))  # of "no" by the first model
    assert first.prediction == "no"
    assert first.probability == pytest.approx(0.9 * share + 0.1 * (1 - share), abs=1e-6)


def test_a_regression_predicts_values(tmp_path: Path) -> None:
    task = Task(features=(2,), classes=None, model=Model(name="linear", options={}))
    from covey.agent.training.models import initial

    _, layout = initial(task, 0)
    vector = np.array([2, 0, 1], np.float32)  # 2 x0 + 1
    path = tmp_path / "values.safetensors"
    save_model(path, Version("r1", 3), task.for_agents(), mixture=((1.0, vector),), layout=layout)
    found = predict(path, table(tmp_path / "new.csv"))
    assert [one.prediction for one in found] == [4.0, -3.0, 2.0]
    assert found[0].probability is None


def test_mistakes_name_the_users_own_file(tmp_path: Path, model: Path) -> None:
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("a,b\n1,2\n3,four\n")
    with pytest.raises(DataError, match=r"wrong\.csv: row 2 \(line 3\), column 'b': 'four'"):
        predict(model, wrong)
    wide = tmp_path / "wide.csv"
    wide.write_text("a,b,c,d\n1,2,3,4\n")
    with pytest.raises(DataError, match="the task expects"):
        predict(model, wide)
    with pytest.raises(UserError, match="expected a model file"):
        predict(wrong, wrong)


CLAIMS = [
    (10**12, "task.model.options: at most 256 numbers of at most"),
    ([1 << 24, 1 << 24], "its tensors are not those of mlp"),
]


@pytest.mark.parametrize("learner", ["torch", "numpy"])
@pytest.mark.parametrize(("hidden", "why"), CLAIMS)
def test_a_header_that_claims_huge_layers_is_refused_before_memory_is_taken(
    learner: str, hidden: object, why: str, tmp_path: Path
) -> None:
    """Before: 10^12 units ended in a MemoryError, and what fits into memory was taken."""
    task = TASK.model_copy(update={"model": Model(name="mlp", options={"hidden": hidden})})
    path = tmp_path / "huge.safetensors"
    save_model(path, Version("r1", 3, 0), task.for_agents(), mixture=((1.0, GOOD),), layout=LAYOUT)
    with pytest.raises(UserError, match=why) as refused:
        predict(path, table(tmp_path / "new.csv"), rules=OwnersRules(learner=learner))
    assert str(path) in str(refused.value)


def test_a_model_file_above_the_limits_of_the_policy_is_refused(
    tmp_path: Path, model: Path
) -> None:
    rules = OwnersRules(Policy(max_model_values=5))
    with pytest.raises(UserError, match="max_model_values: the model has 6 values"):
        predict(model, table(tmp_path / "new.csv"), rules=rules)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_class_name_is_no_command_to_the_terminal(
    is_terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "\x1b]0;owned\x07"
    task = TASK.model_copy(update={"classes": ("no", name)})
    path = tmp_path / "named.safetensors"
    save_model(path, Version("r1", 3, 0), task.for_agents(), mixture=((1.0, GOOD),), layout=LAYOUT)
    monkeypatch.setattr("typer.testing._NamedTextIOWrapper.isatty", lambda _: is_terminal)
    options = ["predict", "--data", str(table(tmp_path / "new.csv")), "--model", str(path)]
    shown = CliRunner().invoke(app, options).stdout
    assert (name in shown) != is_terminal
    assert (r"\x1b]0;owned\x07" in shown) == is_terminal


def test_the_command_uses_the_model_in_use(tmp_path: Path) -> None:
    models = ModelDir(tmp_path / "models")
    new = table(tmp_path / "new.csv")
    options = ["predict", "--data", str(new), "--model-dir", str(models.folder)]
    runner = CliRunner()
    assert "no model is in use yet" in str(runner.invoke(app, options).output)
    version = Version("r1", 3, 0)
    save_model(
        models.path(version), version, TASK.for_agents(), mixture=((1.0, GOOD),), layout=LAYOUT
    )
    models.take(version, "first")
    shown = runner.invoke(app, options)
    assert shown.stdout.splitlines()[:2] == ["row,prediction,probability", "1,yes,0.952574"]
    out = tmp_path / "predictions.jsonl"
    assert runner.invoke(app, [*options, "--json", "--out", str(out)]).exit_code == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert lines[1] == {"row": 2, "prediction": "no", "probability": 0.982014}


# -- images --------------------------------------------------------------------------------------------------


@pytest.fixture
def brightness(tmp_path: Path) -> Path:
    """A model of grey images of 1x2 pixels: yes if they are bright."""
    task = TASK.model_copy(update={"features": (1, 1, 2), "scale": 1 / 255})
    path = tmp_path / "brightness.safetensors"
    from covey.agent.training.models import initial

    _, layout = initial(task, 0)
    vector = np.array([-1, -1, 1, 1, 1, -1], np.float32)  # weights (2, 2), then biases
    save_model(
        path, Version("r1", 3, 0), task.for_agents(), mixture=((1.0, vector),), layout=layout
    )
    return path


def grey(path: Path, value: int, size: tuple[int, int] = (2, 1)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, value).save(path)


def test_images_of_a_folder_have_file_names(tmp_path: Path, brightness: Path) -> None:
    folder = tmp_path / "new"
    grey(folder / "b.png", 250)
    grey(folder / "no" / "a.png", 10)
    grey(folder / ".hidden" / "c.png", 0)
    found = predict(brightness, folder)
    assert [(one.file, one.prediction) for one in found] == [("b.png", "yes"), ("no/a.png", "no")]
    [only] = predict(brightness, folder / "b.png")
    assert (only.row, only.file, only.probability) == (1, "b.png", found[0].probability)
    shown = CliRunner().invoke(
        app, ["predict", "--data", str(folder), "--model", str(brightness), "--json"]
    )
    first = json.loads(shown.stdout.splitlines()[0])
    assert list(first) == ["row", "file", "prediction", "probability"]


def test_images_that_come_into_a_folder_are_predicted(
    tmp_path: Path, brightness: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out, looks = tmp_path / "new", tmp_path / "out", iter(range(2))
    grey(folder / "b.PNG", 250)

    def sleep(_: float) -> None:
        if next(looks, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr("covey.extras.in_use.models.time.sleep", sleep)
    words = ["predict", "--watch", str(folder), "--out", str(out), "--model", str(brightness)]
    shown = CliRunner().invoke(app, words)
    assert shown.stdout == "b.PNG: 1 predictions\n", shown.stderr
    assert (out / "b.PNG.csv").read_text().splitlines()[1].startswith("1,b.PNG,yes,")


def test_a_folder_with_one_table_is_this_table(tmp_path: Path, model: Path) -> None:
    folder = tmp_path / "local"
    folder.mkdir()
    path = table(folder / "new.csv", "yes", "no", "yes", header="a,b,label")
    assert predict(model, folder) == predict(model, path)


def test_all_refused_images_are_in_one_message(tmp_path: Path, brightness: Path) -> None:
    folder = tmp_path / "new"
    grey(folder / "1.png", 250)
    grey(folder / "2.png", 250, (3, 1))
    (folder / "3.png").write_bytes(b"no image")
    with pytest.raises(DataError, match="2 images cannot be used") as raised:
        predict(brightness, folder)
    assert "2.png: grey 3x1, the first image is grey 2x1" in str(raised.value)
    assert "3.png: not a readable image" in str(raised.value)
    assert raised.value.public.startswith("2 images cannot be used, the first: image 2 is grey 3x1")
    with pytest.raises(DataError, match="no images or sounds and no single table"):
        predict(brightness, empty(tmp_path / "empty"))


def empty(folder: Path) -> Path:
    folder.mkdir()
    return folder


def predicted(*words: object) -> Result:
    return CliRunner().invoke(app, ["predict", *map(str, words), "--learner", "numpy"])


def test_ids_and_times_are_kept_next_to_the_predictions(tmp_path: Path, model: Path) -> None:
    path = tmp_path / "new.csv"
    path.write_text("sensor,a,b,time\ns-7,1.5,0,31.12.2025 10:00\n0042,-2,1,\n")
    task = TASK.model_copy(update={"columns": ("a", "b"), "ignore": ("sensor", "time")})
    save_model(model, Version("r1", 3, 0), task.for_agents(), mixture=((1.0, GOOD),), layout=LAYOUT)
    given = ["--data", path, "--model", model, "--keep", "sensor", "--keep", "time"]
    lines = predicted(*given).stdout.splitlines()
    assert lines[0] == "row,sensor,time,prediction,probability"
    assert lines[1].startswith("1,s-7,31.12.2025 10:00,yes,")
    assert lines[2].startswith("2,0042,,no,")
    row = json.loads(predicted(*given, "--json").stdout.splitlines()[1])
    assert row["sensor"] == "0042"
    wrong = predicted("--data", path, "--model", model, "--keep", "place")
    assert wrong.exit_code == 2
    assert "no column 'place'; the columns are" in wrong.stderr
    taken = predicted("--data", path, "--model", model, "--keep", "row")
    assert "predictions have a column of this name" in taken.stderr
    np.savez(tmp_path / "new.npz", x=np.array(ROWS, np.float32))
    save_model(model, Version("r1", 3, 0), TASK.for_agents(), mixture=((1.0, GOOD),), layout=LAYOUT)
    arrays = predicted("--data", tmp_path / "new.npz", "--model", model, "--keep", "time")
    assert "no table" in arrays.stderr


def test_a_score_compares_the_predictions_with_the_targets_of_the_file(
    tmp_path: Path, model: Path
) -> None:
    path = table(tmp_path / "new.csv", "yes", "yes", "yes", header="a,b,state")
    shown = predicted("--data", path, "--model", model, "--label", "state", "--score")
    assert shown.stdout == (
        "3 samples: accuracy 0.6667, macro recall 0.6667; "
        "always the most frequent class: accuracy 1, macro recall 1\n"
    )
    np.savez(tmp_path / "new.npz", x=np.array(ROWS, np.float32), y=np.array(["yes", "no", "no"]))
    found = json.loads(
        predicted("--data", tmp_path / "new.npz", "--model", model, "--score", "--json").stdout
    )
    assert found == {
        "n": 3,
        "accuracy": pytest.approx(2 / 3),
        "macro recall": 0.75,
        "constant": {"accuracy": pytest.approx(2 / 3), "macro recall": 0.5},
    }
    without = predicted("--data", table(tmp_path / "x.csv"), "--model", model, "--score")
    assert without.exit_code == 2
    both = predicted("--data", path, "--model", model, "--score", "--out", tmp_path / "out.csv")
    assert "omit --out" in both.stderr


def test_a_score_of_a_regression_is_in_the_units_of_the_target(tmp_path: Path) -> None:
    from covey.agent.training.models import initial

    task = Task(features=(2,), classes=None, model=Model(name="linear", options={}))
    _, layout = initial(task, 0)
    model = tmp_path / "values.safetensors"
    vector = np.array([2, 0, 1], np.float32)  # 2 x0 + 1: 4, -3, 2
    save_model(model, Version("r1", 3), task.for_agents(), mixture=((1.0, vector),), layout=layout)
    path = table(tmp_path / "new.csv", "5", "-3", "4", header="a,b,level")
    found = Predictor(model).score(path)
    assert found.figures["RMSE"] == pytest.approx(np.sqrt(5 / 3))
    assert found.figures["MAE"] == pytest.approx(1.0)
    assert found.constant["RMSE"] == pytest.approx(np.std([5, -3, 4]))
    assert found.figures["R2"] == pytest.approx(1 - 5 / 3 / np.var([5, -3, 4]))
    assert "always the mean: RMSE" in found.sentence


def test_a_score_on_rows_that_the_device_trains_on_names_itself(tmp_path: Path) -> None:
    data, models = tmp_path / "pi", tmp_path / "models"
    data.mkdir()
    for name in ("train.csv", "test.csv"):
        (data / name).touch()
    kept = ModelDir(models, data=str(data))
    kept.settle(1, pinned=False)
    assert trains_on(data / "train.csv", models)
    assert not trains_on(data / "test.csv", models)
    assert not trains_on(tmp_path / "new.csv", models)
    assert ModelDir(models).index.data == str(data), "another reader keeps it"
    ModelDir(models, data=str(tmp_path / "pi.csv")).settle(2, pinned=False)
    assert trains_on(tmp_path / "pi.csv", models)
    assert not trains_on(data / "train.csv", tmp_path / "nowhere")


def test_a_score_on_a_copy_of_the_training_rows_names_itself(tmp_path: Path) -> None:
    data, models = tmp_path / "pi", tmp_path / "models"
    data.mkdir()
    (data / "train.csv").write_text("a,y\n1,0\n2,1\n")
    (data / "test.csv").write_text("a,y\n8,0\n")
    ModelDir(models, data=str(data)).settle(1, pinned=False)
    copy = tmp_path / "copy.csv"
    for text, is_copy in (
        ("a,y\n1,0\n2,1\n", True),
        ("a,y\n1,0\n", True),  # the device has more rows since
        ("a,y\n1,0\n2,1\n3,1", True),  # or fewer
        ("a,y\n8,0\n", False),  # its test part
        ("a,y\n2,1\n1,1\n", False),
        ("a,y\n", False),
        ("", False),
    ):
        copy.write_text(text)
        assert trains_on(copy, models) == is_copy, text
    copy.write_text("a,y\n1,0\n2,1\n")
    ModelDir(models, data=str(data / "train.csv")).settle(2, pinned=False)
    assert trains_on(copy, models)
    (data / "train.csv").unlink()
    assert not trains_on(copy, models), "nobody can know"
