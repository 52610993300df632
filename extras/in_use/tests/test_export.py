"""A model as a program: what it gives is what the agent's model gives for the same features."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from typer.testing import CliRunner

from covey.agent.cli.program import app
from covey.agent.training.learner import TorchLocal
from covey.agent.training.models import initial
from covey.extras.in_use.kept_versions import Version
from covey.extras.in_use.model_file import MixedPart, save_model
from covey.extras.in_use.program import export
from covey.shared.errors import UserError
from covey.shared.numerics.figures import softmax
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.scenario.adapters import Adapters
from covey.shared.scenario.task import Model, Standardise, Task
from covey.shared.seeds import generator
from covey.shared.strategies.base import Training
from tests.agent.test_learner import IMAGES, NORMED, TABLE, VALUES, data_of
from tests.night import by_day

FIXED = Standardise(mean=(0.2, 0.1, -0.3), std=(2.0, 0.5, 1.0))
TASKS = {
    "images": IMAGES,
    "bytes": IMAGES.model_copy(update={"scale": 1 / 255}),
    "batch norm, standardised": NORMED.model_copy(update={"scale": 3.0, "standardise": FIXED}),
    "table": TABLE,
    "regression": VALUES,
    "adapters": NORMED.model_copy(
        update={"model": NORMED.model.model_copy(update={"adapters": Adapters(rank=2)})}
    ),
    "with a head": IMAGES.model_copy(update={"model": Model(name="lenet5", options={"head": 2})}),
}


def saved(folder: Path, task: Task) -> tuple[Path, Vector, Layout]:
    """A model file as a run leaves it, with weights unlike a start's."""
    start, layout = initial(task, 3)
    vector = start + np.random.default_rng(1).normal(0, 0.1, layout.size).astype(np.float32) ** 2
    facts = {"task": task.for_agents()}
    path = folder / "cluster-0.safetensors"
    save_file(dict(layout.named(vector)), path, metadata={"facts": json.dumps(facts)})
    return path, vector, layout


def outputs(program: Path, features: Any) -> Any:
    if program.suffix == ".onnx":
        runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
        session = runtime.InferenceSession(str(program), providers=["CPUExecutionProvider"])
        return session.run(None, {"features": features})[0]
    return torch.export.load(program).module()(torch.from_numpy(features)).detach().numpy()


# the way to ONNX begins with the program of torch: one task with everything that the program adds to a model
PROGRAMS = [(name, "pt2") for name in by_day("export", TASKS, 3)]
CASES = [*PROGRAMS, ("batch norm, standardised", "onnx")]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_raw_features_give_what_the_agents_model_gives(
    name: str, kind: str, tmp_path: Path
) -> None:
    task = TASKS[name]
    path, vector, layout = saved(tmp_path, task)
    export(path, program := tmp_path / "new" / f"model.{kind}")
    data = data_of(task)
    local = TorchLocal(data, task, layout, training=Training(), rng=generator(1, "test"))
    for n in (len(data.test_features), 1):  # any number at a time
        got = outputs(program, data.test_features[:n])
        np.testing.assert_allclose(got, local.predict(vector, "test")[:n], atol=1e-5)
    assert list(program.parent.iterdir()) == [program]


@pytest.mark.parametrize("kind", ["pt2", "onnx"])
def test_an_exported_program_describes_the_task_it_was_trained_for(
    kind: str, tmp_path: Path
) -> None:
    path, _, _ = saved(tmp_path, TASKS["batch norm, standardised"])
    export(path, program := tmp_path / f"model.{kind}")
    if kind == "onnx":
        onnx = pytest.importorskip("onnx", reason="onnx is not installed")
        told = {entry.key: entry.value for entry in onnx.load(program).metadata_props}["task"]
    else:
        torch.export.load(program, extra_files=(extra := {"task.json": ""}))
        told = extra["task.json"]
    assert Task.model_validate_json(told) == TASKS["batch norm, standardised"]


def test_a_name_without_a_known_format_is_refused(tmp_path: Path) -> None:
    path, _, _ = saved(tmp_path, TABLE)
    with pytest.raises(UserError, match=r"ends in \.pt2 or \.onnx"):
        export(path, tmp_path / "model.bin")


def test_files_that_no_run_left_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rubbish").write_bytes(b"rubbish" * 9)
    save_file({"w": np.zeros(3, np.float32)}, tmp_path / "foreign", metadata={"facts": "null"})
    facts = {"task": VALUES.model_dump(mode="json")}
    save_file(
        {"w": np.zeros(3, np.float32)}, tmp_path / "other", metadata={"facts": json.dumps(facts)}
    )
    for name, words in {
        "rubbish": "expected a model file of a finished run",
        "foreign": "expected a model file of a finished run",
        "other": "its tensors are not those of linear",
    }.items():
        with pytest.raises(UserError, match=words):
            export(tmp_path / name, tmp_path / "model.pt2")
    assert not (tmp_path / "model.pt2").exists()
    done = CliRunner().invoke(
        app, ["lab", "export", str(tmp_path / "nowhere"), "--out", str(tmp_path / "x.pt2")]
    )
    assert done.exit_code == 2


# -- the mixture of a device ------------------------------------------------------------------------------------------------


def used(folder: Path, task: Task, *parts: MixedPart, weights: tuple[float, ...] = (1.0,)) -> Path:
    """The file of a device that mixes as many models as there are weights, and parts."""
    start, layout = initial(task, 3)
    mixture = tuple((weight, start + place) for place, weight in enumerate(weights))
    path = folder / "kept.safetensors"
    save_model(
        path, Version("r", 1), task.for_agents(), mixture=mixture, layout=layout, parts=parts
    )
    return path


CONSTANT = MixedPart("none", 0.25, {"answer": np.array([0.5])})
ROWS = MixedPart(
    "trees", 0.5, {"rows": np.zeros((9, 2), np.float32), "targets": np.zeros(9, np.float32)}
)


def test_a_program_has_the_models_and_the_constant_that_a_device_mixes(tmp_path: Path) -> None:
    path = used(tmp_path, VALUES, CONSTANT, weights=(0.0, 0.25, 0.5))
    program = tmp_path / "model.pt2"
    assert export(path, program) == ""
    data = data_of(VALUES)
    start, layout = initial(VALUES, 3)
    local = TorchLocal(data, VALUES, layout, training=Training(), rng=generator(1, "test"))
    first, second = (local.predict(start + place, "test") for place in (1, 2))
    expected = 0.25 * first + 0.5 * second + 0.25 * 0.5
    np.testing.assert_allclose(outputs(program, data.test_features), expected, atol=1e-5)


def test_a_program_of_classes_has_the_mixture_of_their_probabilities(tmp_path: Path) -> None:
    task = TASKS["batch norm, standardised"]
    path = used(tmp_path, task, weights=(0.25, 0.75))
    program = tmp_path / "model.pt2"
    assert export(path, program) == ""
    data = data_of(task)
    start, layout = initial(task, 3)
    local = TorchLocal(data, task, layout, training=Training(), rng=generator(1, "test"))
    shares = [softmax(local.predict(start + place, "test")) for place in (0, 1)]
    expected = 0.25 * shares[0] + 0.75 * shares[1]
    found = softmax(outputs(program, data.test_features))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_parts_that_need_the_rows_of_a_device_are_left_out_and_named(tmp_path: Path) -> None:
    path = used(tmp_path, VALUES, ROWS, weights=(0.5,))
    assert export(path, tmp_path / "model.pt2") == "50 % trees"
    alone = used(tmp_path, VALUES, replace(ROWS, weight=1.0), weights=(0.0,))
    with pytest.raises(UserError, match="uses no model that a program can have"):
        export(alone, tmp_path / "other.pt2")
