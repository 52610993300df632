"""Predictions of a kept model for new samples, on the device and without a broker."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.agent.data.unlabelled import load_unlabelled
from covey.agent.kept.model_dir import INDEX, read_index
from covey.agent.kept.model_file import ModelFile, read_model
from covey.agent.learner_choice import TORCH
from covey.agent.learning import SAME_VERSION, load_learner
from covey.agent.policy import NO_CODE_RULES, Rules
from covey.shared import json_text
from covey.shared.errors import PublicError, UserError
from covey.shared.numerics.figures import softmax, weighted_mean
from covey.shared.numerics.vectors import Layout
from covey.shared.scenario.task import Task
from covey.shared.strategies.base import Training

Outputs = npt.NDArray[Any]
DIGITS = 6  # of a probability, decimal places; of a value, significant digits


@dataclass(frozen=True)
class Prediction:
    """The output of a model for one sample."""

    row: int  # from 1, in the order of the file
    prediction: (
        str | float
    )  # a class by name, or its number if it has none; a value for a regression task
    probability: float | None = None  # of that class; None for a regression task
    file: str | None = None  # of an image: its name below the folder

    def to_json(self) -> dict[str, Any]:
        """Its row, its file if it is an image, its prediction, and the probability if it has one."""
        content: dict[str, Any] = {"row": self.row}
        if self.file is not None:
            content["file"] = self.file
        content["prediction"] = self.prediction
        if self.probability is not None:
            content["probability"] = self.probability
        return content


def model_in_use(folder: Path) -> Path:
    """The file of the model in use in a folder of `agent start --model-dir`.

    Raises:
        UserError: there is none.
    """
    kept = read_index(folder).in_use
    if kept is None:
        raise UserError(
            f"{folder / INDEX}: no model is in use yet; start the agent with --model-dir {folder}, and wait for a model"
        )
    return folder / kept.version.file


def predict(
    model: Path, data: Path, label: str | None = None, rules: Rules = NO_CODE_RULES
) -> list[Prediction]:
    """The predictions for all samples of a file, or for all images of a folder.

    Args:
        model: a kept model, or a model that a run left in its folder.
        data: a table, an .npz file, an image or a folder of images, with or without targets.
        label: the column of a table that holds targets; it is left out.
        rules: the code that may be imported for the model.

    Raises:
        UserError: the model cannot be used here.
        DataError: the samples cannot be read, or do not fit the model's task.
    """
    file = read_model(model)
    layout = _layout(file, rules)
    samples = load_unlabelled(data, file.task, label)
    learner = load_learner(rules.learner, rules.allowed)
    generator = np.random.default_rng(0)
    local = learner.local(samples.data, file.task, layout, Training(), generator, rules)
    outputs: list[Outputs] = []
    for named in file.models:
        raw = local.predict(layout.vector(named), "train")
        outputs.append(raw[: len(samples.rows)].astype(np.float64))
    found = _predictions(outputs, samples.rows, file)
    if samples.files:
        return _with_files(found, samples.files)
    return found


def _layout(file: ModelFile, rules: Rules) -> Layout:
    """The layout of a file's models. Nothing takes memory before the file's claims fit its tensors. UserError if they do not."""
    try:
        rules.check_model_file(file.task.model.options, file.values)
        if rules.learner == TORCH:
            from covey.agent.training.models import check_claims

            check_claims(file)
        layout = load_learner(rules.learner, rules.allowed).layout(file.task, rules.allowed)
    except PublicError as error:
        raise UserError(f"{file.path}: {error}") from None
    if not all(layout.fits(named) for named in file.models):
        name = file.task.model.name
        raise UserError(f"{file.path}: its tensors are not those of {name}; {SAME_VERSION}")
    return layout


def _with_files(predictions: Sequence[Prediction], files: Sequence[str]) -> list[Prediction]:
    return [replace(one, file=file) for one, file in zip(predictions, files, strict=True)]


def _predictions(
    outputs: Sequence[Outputs], rows: Sequence[int], file: ModelFile
) -> list[Prediction]:
    """Mix the outputs of all models by their weights, as an evaluation does."""
    weights = list(file.weights)
    if file.task.classes is None:
        mixed = weighted_mean(weights, outputs)
        return _values(mixed[:, 0], rows)
    mixed = weighted_mean(weights, [softmax(output) for output in outputs])
    return _classes(mixed, rows, file.task)


def _values(values: Outputs, rows: Sequence[int]) -> list[Prediction]:
    found: list[Prediction] = []
    for row, value in zip(rows, values.tolist(), strict=True):
        rounded = float(f"{value:.{DIGITS}g}")
        found.append(Prediction(row, rounded))
    return found


def _classes(probabilities: Outputs, rows: Sequence[int], task: Task) -> list[Prediction]:
    found: list[Prediction] = []
    for row, own in zip(rows, probabilities.tolist(), strict=True):
        probability = max(own)
        index = own.index(probability)
        rounded = round(probability, DIGITS)
        found.append(Prediction(row, _class_name(task, index), rounded))
    return found


def _class_name(task: Task, index: int) -> str:
    if isinstance(task.classes, tuple):
        return task.classes[index]
    return str(index)


def as_csv(predictions: Sequence[Prediction]) -> str:
    """A table with the columns row and prediction; file for images, and probability for classes."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns: list[str] = []
    for one in predictions:
        content = one.to_json()
        if not columns:
            columns = list(content)
            writer.writerow(columns)
        writer.writerow(content.values())
    return text.getvalue()


def as_json_lines(predictions: Sequence[Prediction]) -> str:
    """One JSON object per line."""
    return "\n".join([json_text.dumps(one.to_json()) for one in predictions]) + "\n"
