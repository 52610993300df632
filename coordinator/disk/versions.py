"""The models of a run on disk: the initial ones, those of the last round in `models`, and others that were kept in `versions`.

A kept version is a folder with one file per cluster, as `models` has them, and `version.json`: the run, the round, the
cluster of each agent, and the figure for which it was kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covey.coordinator.disk.array_files import open_arrays, save_arrays
from covey.coordinator.disk.checkpoint import Checkpoint
from covey.shared.errors import UserError
from covey.shared.numerics.vectors import Layout, Vector
from covey.shared.storage import json_text
from covey.shared.storage.files import model_file, model_files, write_atomically
from covey.shared.strategies.base import ClientId

START = "start.npz"  # of a run's folder: its initial models
VERSIONS = "versions"
BEST = "best"
DESCRIPTION = "version.json"
ROUND_DIGITS = 5


@dataclass(frozen=True)
class ModelVersion:
    """The models of one round of a run."""

    run: str
    round: int  # complete rounds
    task: Mapping[str, Any]  # with the statistics that the fleet found
    layout: Layout
    models: tuple[Vector, ...]  # one (d,) per cluster
    assignment: Mapping[ClientId, int]  # the cluster of each agent; empty without clusters
    figure: Mapping[
        str, Any
    ]  # {"metric", "value", "chosen_on"} of its evaluation; empty if it is not known


def save_version(folder: Path, name: str, version: ModelVersion) -> None:
    """Keep a version in the run's folder. One of the same name is replaced; `version.json` is written last."""
    place = folder / VERSIONS / name
    place.mkdir(parents=True, exist_ok=True)
    (place / DESCRIPTION).unlink(missing_ok=True)
    for path in model_files(place):
        path.unlink()
    for cluster, model in enumerate(version.models):
        arrays = version.layout.named(model)
        save_arrays(model_file(place, cluster), arrays, {"task": dict(version.task)})
    description = {
        "run": version.run,
        "round": version.round,
        "assignment": dict(version.assignment),
        "figure": dict(version.figure),
    }
    write_atomically(place / DESCRIPTION, json_text.dumps(description).encode())


def round_name(number: int) -> str:
    """The name of the version of a round."""
    return f"round-{number:0{ROUND_DIGITS}d}"


def last_version(folder: Path) -> ModelVersion:
    """The models of a finished run. Raises UserError if the folder is no finished run."""
    result = folder / "result.json"
    if not result.is_file():
        raise UserError(
            f"{folder}: the run is not finished, or this folder does not belong to a run; finish it with --resume, or choose "
            "RUN@best if the run has evaluated its models"
        )
    document = _json(result, ("rounds", "assignment"))
    run = Checkpoint(folder / "checkpoint").facts()["run"]["run"]
    return _read(
        folder, folder / "models", run, document["rounds"], document["assignment"], figure={}
    )


def best_version(folder: Path) -> ModelVersion:
    """The models of the round with the best evaluation; those of the last round if the run kept no other.

    Raises:
        UserError: the folder has neither.
    """
    if is_kept(folder, BEST):
        return _kept(folder, BEST)
    return last_version(folder)


def version_of_round(folder: Path, number: int) -> ModelVersion:
    """The models of one round. Raises UserError, with the rounds that are there, if that one is not."""
    if is_kept(folder, round_name(number)):
        return _kept(folder, round_name(number))
    found: list[int] = []
    for read in (best_version, last_version):
        try:
            version = read(folder)
        except UserError:
            continue
        if version.round == number:
            return version
        found.append(version.round)
    for path in sorted((folder / VERSIONS).glob("round-*")):
        if is_kept(folder, path.name):
            found.append(_kept(folder, path.name).round)
    rounds = ", ".join(str(one) for one in sorted(set(found))) or "none"
    raise UserError(
        f"{folder}: the models of round {number} were not kept; there are those of: {rounds}. A run keeps its last "
        "round, and the best one if evaluation.every is set"
    )


def is_kept(folder: Path, name: str) -> bool:
    """Whether the run kept a version of this name."""
    return (folder / VERSIONS / name / DESCRIPTION).is_file()


def _kept(folder: Path, name: str) -> ModelVersion:
    place = folder / VERSIONS / name
    found = _json(place / DESCRIPTION, ("run", "round", "assignment", "figure"))
    run = found["run"]
    return _read(folder, place, run, found["round"], found["assignment"], figure=found["figure"])


def _json(path: Path, keys: Sequence[str]) -> Mapping[str, Any]:
    """The object in a file. Raises UserError if there is none, or if one of the keys is missing."""
    try:
        found = json_text.loads(path.read_text())
        if not isinstance(found, dict):
            raise ValueError("not a JSON object")
        missing = [key for key in keys if key not in found]
        if missing:
            raise ValueError(f"{', '.join(missing)} is missing")
    except ValueError as error:
        raise UserError(f"{path}: the file is damaged ({error}); restore it from a copy") from None
    return found


def _read(
    folder: Path,
    place: Path,
    run: str,
    number: int,
    assignment: Mapping[ClientId, int],
    *,
    figure: Mapping[str, Any],
) -> ModelVersion:
    _, layout = read_start(folder)
    models: list[Vector] = []
    task: Mapping[str, Any] = {}
    for path in model_files(place):
        try:
            arrays, facts = open_arrays(path)
            models.append(layout.vector(arrays))
            task = facts["task"]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path}: damaged ({error}); repeat the run with another --out"
            ) from None
    _check_clusters(assignment, models, place)
    return ModelVersion(run, number, task, layout, tuple(models), assignment, figure)


def _check_clusters(
    assignment: Mapping[ClientId, int], models: Sequence[Vector], place: Path
) -> None:
    if not models:
        raise UserError(
            f"{place}: there is no model; the method keeps its models on the devices, or the folder is incomplete"
        )
    for model in models:
        if not np.isfinite(model).all():
            raise UserError(
                f"{place}: a model has values that are not finite: it diverged; publish an earlier round, such as RUN@best"
            )
    if max(assignment.values(), default=0) >= len(models):
        raise UserError(
            f"{place}: an agent is in a group that has no model; restore the missing files from a copy"
        )


def read_start(folder: Path) -> tuple[np.ndarray, Layout]:
    """The initial models of a run, float32 (starts, d), and their layout. Raises UserError for a damaged file."""
    path = folder / START
    try:
        with np.load(path, allow_pickle=False) as file:
            return file["starts"], Layout.from_wire(json_text.loads(str(file["layout"])))
    except Exception as error:  # numpy, zipfile and zlib raise a dozen types for damaged files
        raise UserError(
            f"{path}: the initial models are missing or damaged ({type(error).__name__}: {error}). "
            "Remove the file and type the same command: it is built again from the scenario"
        ) from None
