"""Predictions of a kept model for new samples, on the device and without a broker, and how good they are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.agent.data.fit import FLAGS
from covey.agent.data.load import TABLES
from covey.agent.learner_choice import TORCH
from covey.agent.learning import SAME_VERSION
from covey.agent.policy import NO_CODE_RULES, OwnersRules
from covey.agent.worker.learners import learner_for
from covey.extras.formats import images, sounds
from covey.extras.in_use.answering import Answering, mixed_answers
from covey.extras.in_use.model_dir import INDEX, read_index
from covey.extras.in_use.model_file import ModelFile, read_model
from covey.extras.in_use.unlabelled import UnlabelledSamples, cells_of, load_unlabelled
from covey.shared.errors import DataError, PublicError, UserError
from covey.shared.numerics.figures import HALF, anomaly_figures, label_figures
from covey.shared.numerics.measures import plain
from covey.shared.numerics.vectors import Layout
from covey.shared.scenario.task import Task
from covey.shared.storage import csv_text, json_text
from covey.shared.strategies.base import Training

# -- new files of a folder: `agent predict --watch` ------------------------------------------------


KINDS = {*TABLES, ".npz", *images.SUFFIXES, *sounds.SUFFIXES}
Stamp = tuple[int, int]  # size and time of the last change, ns


def seen(folder: Path) -> dict[Path, Stamp]:
    """The files in a folder that could be predicted, with what changes when they do."""
    found: dict[Path, Stamp] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in KINDS and not path.name.startswith("."):
            try:
                stat = path.stat()
            except FileNotFoundError:  # it was moved away
                continue
            found[path] = stat.st_size, stat.st_mtime_ns
    return found


def whole(
    now: Mapping[Path, Stamp], before: Mapping[Path, Stamp], done: Mapping[Path, Stamp]
) -> list[Path]:
    """The files that have stopped to change since the last look, and were not dealt with as they are.

    Args:
        now, before: what two looks have seen.
        done: the files that were dealt with, as they were then.
    """
    return [path for path, stamp in now.items() if before.get(path) == stamp != done.get(path)]


# -- predictions ------------------------------------------------------------------------------------


Outputs = npt.NDArray[Any]
OWN_COLUMNS = ("row", "file", "prediction", "probability")
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
    kept: Mapping[str, str] = field(default_factory=dict)  # cells of the sample's row, by column
    # where a sample has several answers, by column: the value of each row after a window, whether the sample has each
    # label, or error, threshold and alarm
    several: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Its row, its file if it is an image, kept columns, its prediction, and the probability if it has one."""
        content: dict[str, Any] = {"row": self.row}
        if self.file is not None:
            content["file"] = self.file
        content.update(self.kept)
        if self.several:
            return {**content, **self.several}
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


SEEN = "the device trains on rows of this file: their figures flatter the model; score a file that it has not seen"


ENOUGH = 1 << 26  # bytes that two files have in common


def trains_on(file: Path, folder: Path) -> bool:
    """Whether the device whose models lie in a folder trains on rows of a file: its data, a training table in its data, or a copy
    of one, from before rows were added to either."""
    try:
        data = read_index(folder).data
    except UserError:
        return False
    own, given = Path(data).resolve(), file.resolve()
    if not data or given == own or (own in given.parents and given.stem != "test"):
        return bool(data)
    tables = [own, *(own.glob("*") if own.is_dir() else ())]
    return any(_is_copy(given, one) for one in tables if one.stem != "test")


def _is_copy(given: Path, own: Path) -> bool:
    """Whether two files begin with the same rows, up to the end of the shorter one."""
    try:
        size = min(given.stat().st_size, own.stat().st_size, ENOUGH)
        with given.open("rb") as one, own.open("rb") as other:
            head = one.readline()
            return size > len(head) and head + one.read(size - len(head)) == other.read(size)
    except OSError:  # it is gone, or a folder
        return False


@dataclass(frozen=True)
class Score:
    """How good predictions are. A regression has errors in the units of the data, and classes have shares."""

    n: int
    figures: Mapping[str, float]
    # of a constant prediction: the most frequent class of the file, or the mean of its targets; empty for other tasks
    constant: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"n": self.n, **self.figures, "constant": dict(self.constant)}

    @property
    def sentence(self) -> str:
        """For a person."""
        words = [f"{name} {plain(value)}" for name, value in self.figures.items()]
        rest = [f"{name} {plain(value)}" for name, value in self.constant.items()]
        found = f"{self.n} samples: {', '.join(words)}"
        if not rest:
            return found
        what = "the mean" if "RMSE" in self.figures else "the most frequent class"
        return f"{found}; always {what}: {', '.join(rest)}"


class Predictor:
    """A model, ready to predict.

    Args:
        model: a kept model, or a model that a run left in its folder.
        rules: the code that may be imported for the model.

    Raises:
        UserError: the model cannot be used here.
    """

    def __init__(self, model: Path, rules: OwnersRules = NO_CODE_RULES) -> None:
        self.file = read_model(model)
        self._rules = rules
        self._layout = _layout(self.file, rules)
        self._learner = learner_for(self.file.task, rules)
        answering = Answering.of_file(self.file, self._layout)
        self.uses_none = not answering.uses_models  # the judge of this device found nothing better
        self._candidates = answering.candidates(self.file.task.outputs)

    @property
    def uses(self) -> str:
        """What it answers with, for people; empty for the served model."""
        return "" if self.file.version is None else self.file.version.uses

    def __repr__(self) -> str:
        return f"<Predictor {self.file.path}>"

    def predict(
        self, data: Path, label: str | None = None, keep: Sequence[str] = ()
    ) -> list[Prediction]:
        """The predictions for all samples of a file, or for all images of a folder.

        Args:
            data: a table, an .npz file, an image or a folder of images, with or without targets.
            label: the column of a table that holds targets; it is left out.
            keep: columns of a table whose cells the predictions should have.

        Raises:
            UserError: a column to keep has the name of another one of the predictions.
            DataError: the samples cannot be read, do not fit the model's task, or have no finite answer.
        """
        taken = [name for name in keep if name in OWN_COLUMNS]
        if taken:
            raise UserError(f"--keep {taken[0]}: predictions have a column of this name already")
        mixed, samples = self._answers(data, label)
        found = _predictions(mixed, samples.rows, self.file.task)
        if samples.files:
            return _with_files(found, samples.files)
        if not keep:
            return found
        rows = cells_of(data, self.file.task, samples.rows, keep)
        return [
            replace(one, kept=dict(zip(keep, cells, strict=True)))
            for one, cells in zip(found, rows, strict=True)
        ]

    def score(self, data: Path, label: str | None = None) -> Score:
        """How good the predictions for a file with targets are.

        Raises:
            DataError: as `predict` does, or the file has no targets.
        """
        task = self.file.task
        mixed, samples = self._answers(data, label, with_targets=True)
        match task.kind:
            case "values":
                return _errors(mixed.ravel(), samples.targets, data)
            case "classes":
                found = _predictions(mixed, samples.rows, task)
                return _shares([str(one.prediction) for one in found], samples.targets)
            case "labels":
                spelled = np.char.lower(np.array(samples.targets))
                truth = np.isin(spelled, [name for name, flag in FLAGS.items() if flag])
                figures = label_figures(truth.reshape(mixed.shape), mixed)
                shown = {"macro F1": "f1", "AUC": "auc", "accuracy": "accuracy"}
            case "anomalies":
                usual = _class_name(task, 0)
                figures = anomaly_figures(np.array(samples.targets) != usual, mixed)
                shown = {"AUC": "auc", "macro recall": "recall", "accuracy": "accuracy"}
        return Score(
            len(mixed), {name: figures[key] for name, key in shown.items() if key in figures}
        )

    def _answers(
        self, data: Path, label: str | None, *, with_targets: bool = False
    ) -> tuple[Outputs, UnlabelledSamples]:
        """The answers of the model, mixed by the weights of its parts as an evaluation does, and the samples."""
        samples = load_unlabelled(data, self.file.task, label, with_targets=with_targets)
        local = self._learner.local(
            samples.data,
            self.file.task,
            self._layout,
            training=Training(),
            rng=np.random.default_rng(0),
            rules=self._rules,
        )
        mixed = mixed_answers(self._candidates, local, "train", self.file.task.kind)
        mixed = mixed[: len(samples.rows)]
        finite = np.isfinite(mixed).reshape(len(mixed), -1).all(axis=1)
        if not finite.all():
            row = samples.rows[int(np.argmin(finite))]
            raise DataError(
                f"{data}: row {row}: the model has no finite answer for it; are its values in the units of the training data?",
                public="a row without a finite answer",
            )
        return mixed, samples


def _errors(values: Outputs, targets: Sequence[str], data: Path) -> Score:
    try:
        truth = np.array(targets, np.float64)
    except ValueError as error:
        raise DataError(
            f"{data}: a target is not a number ({error})", public="a target is not a number"
        ) from None
    off = values - truth
    spread = float(np.mean((truth - truth.mean()) ** 2))
    squared = float(np.mean(off**2))
    figures = {"RMSE": math.sqrt(squared), "MAE": float(np.mean(np.abs(off)))}
    if spread:
        figures["R2"] = 1 - squared / spread
    return Score(len(truth), figures, {"RMSE": math.sqrt(spread)})


def _shares(predicted: Sequence[str], targets: Sequence[str]) -> Score:
    hits: dict[str, list[bool]] = {}
    for one, truth in zip(predicted, targets, strict=True):
        hits.setdefault(truth, []).append(one == truth)
    n = len(targets)
    recalls = [sum(own) / len(own) for own in hits.values()]
    most = max(len(own) for own in hits.values())
    figures = {
        "accuracy": sum(sum(own) for own in hits.values()) / n,
        "macro recall": sum(recalls) / len(recalls),
    }
    return Score(n, figures, {"accuracy": most / n, "macro recall": 1 / len(hits)})


def predict(
    model: Path, data: Path, label: str | None = None, rules: OwnersRules = NO_CODE_RULES
) -> list[Prediction]:
    """The predictions of a model file, as `Predictor` makes them."""
    return Predictor(model, rules).predict(data, label)


def _layout(file: ModelFile, rules: OwnersRules) -> Layout:
    """The layout of a file's models. Nothing takes memory before the file's claims fit its tensors. UserError if they do not."""
    try:
        rules.check_model_file(file.task.model.options, file.values)
        if rules.learner == TORCH:
            from covey.extras.in_use.program import check_claims

            check_claims(file)
        layout = learner_for(file.task, rules).layout(file.task, rules.allowed)
    except PublicError as error:
        raise UserError(f"{file.path}: {error}") from None
    if not all(layout.fits(named) for named in file.models):
        name = file.task.model.name
        raise UserError(f"{file.path}: its tensors are not those of {name}; {SAME_VERSION}")
    return layout


def _with_files(predictions: Sequence[Prediction], files: Sequence[str]) -> list[Prediction]:
    return [replace(one, file=file) for one, file in zip(predictions, files, strict=True)]


def _predictions(found: Outputs, rows: Sequence[int], task: Task) -> list[Prediction]:
    """The predictions of samples from the answers (n, ...) of a model."""
    match task.kind:
        case "values":
            return _values(found, rows)
        case "classes":
            return _classes(found, rows, task)
        case "labels":
            return _labels(found, rows, task)
        case "anomalies":
            return _alarms(found, rows, task)


def _values(values: Outputs, rows: Sequence[int]) -> list[Prediction]:
    """The predictions of values (n, 1), or of forecasts (n, steps)."""
    found: list[Prediction] = []
    for row, own in zip(rows, values.tolist(), strict=True):
        first, *later = rounded = [_rounded(value) for value in own]
        steps = {f"prediction_{step}": value for step, value in enumerate(rounded, 1)}
        found.append(Prediction(row, first, several=steps if later else {}))
    return found


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _labels(probabilities: Outputs, rows: Sequence[int], task: Task) -> list[Prediction]:
    """For each label whether a sample has it, and its probability."""
    found: list[Prediction] = []
    for row, own in zip(rows, probabilities.tolist(), strict=True):
        cells: dict[str, float] = {}
        for name, probability in zip(task.targets, own, strict=True):
            cells |= {f"prediction_{name}": int(probability > HALF)}
            cells |= {f"probability_{name}": round(probability, DIGITS)}
        having = [
            name for name, probability in zip(task.targets, own, strict=True) if probability > HALF
        ]
        found.append(Prediction(row, ", ".join(having), several=cells))
    return found


def _alarms(found: Outputs, rows: Sequence[int], task: Task) -> list[Prediction]:
    """The error of each sample, and whether it exceeds the threshold."""
    return [
        Prediction(
            row,
            _class_name(task, int(error > threshold)),
            several={
                "score": _rounded(error),
                "threshold": _rounded(threshold),
                "alarm": int(error > threshold),
            },
        )
        for row, (threshold, error) in zip(rows, found.tolist(), strict=True)
    ]


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
    return csv_text.dumps([one.to_json() for one in predictions])


def as_json_lines(predictions: Sequence[Prediction]) -> str:
    """One JSON object per line."""
    return "\n".join([json_text.dumps(one.to_json()) for one in predictions]) + "\n"
